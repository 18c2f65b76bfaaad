"""Programs that submit branches and serve a merge queue, and are killed; words name one."""

from __future__ import annotations

import os
import subprocess
import sys

import interlock
from interlock.nouns.merges import merge as core


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def author(url: str, tree: str, name: str, count: str) -> None:
    """In a worktree of its own: make a branch, submit it, go on; every fifth fails its guard."""
    git = ["git", "-C", tree, "-c", "user.name=t", "-c", "user.email=t@t"]
    with interlock.connect(url, agent=name) as fleet:
        for number in range(int(count)):
            branch = f"{name}-{number}"
            file = f"bad-{branch}" if number % 5 == 4 else branch
            subprocess.run([*git, "checkout", "-q", "--detach", "main"], check=True)
            subprocess.run([*git, "checkout", "-q", "-b", branch], check=True)
            with open(f"{tree}/{file}", "w", encoding="utf-8") as written:
                written.write(branch)
            subprocess.run([*git, "add", "-A"], check=True)
            subprocess.run([*git, "commit", "-q", "-m", branch], check=True)
            subprocess.run([*git, "checkout", "-q", "--detach"], check=True)
            assert fleet.merges.submit(branch, repository=tree)
            say("submitted", branch)
    say("end")


def server(url: str, folder: str, log: str) -> None:
    """Serve until killed; the guard notes each commit that passes."""
    script = f'ls bad-* 2>/dev/null && exit 1; echo "$INTERLOCK_MERGE_COMMIT" >> {log}'
    with interlock.connect(url, agent=f"queue{os.getpid()}", ttl=1.0) as fleet:
        say("ready")
        fleet.merges.serve(command=["sh", "-c", script], batch=5, repository=folder, told=_say)


def _say(ended: core.MergeDone | core.MergeBounced) -> None:
    say(type(ended).__name__, ended.branch)


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
