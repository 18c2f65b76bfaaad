"""Measure the merge queue beside the bare git commands, in turns: 20 branches that merge cleanly.

    python tools/merge_speed.py [TURNS]

The bare commands do what the queue does, without a store: for each branch ``merge-tree`` and
``commit-tree``, for each batch a checkout in a worktree, the guard and ``update-ref``, and in the
end the branches are deleted.  Both have the same repository, batches of ten, and ``true`` as guard.
"""  # noqa: INP001 - a script

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import interlock

BRANCHES, BATCH, TURNS = 20, 10, 5
TARGET = 1.2


def git(folder: Path, *words: str, given: str = "") -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", *words], cwd=folder, input=given, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def prepare(folder: Path) -> Path:
    """A repository of 200 files with branches, each of which changes one more."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--bare")
    git(folder, "config", "user.name", "speed")
    git(folder, "config", "user.email", "speed@localhost")
    files = "".join(f"M 100644 inline d{n % 10}/f{n}\ndata 4\nabc\n\n" for n in range(200))
    head = "committer s <s@s> 1700000000 +0000\ndata 1\nx\n"
    text = f"commit refs/heads/main\nmark :1\n{head}{files}\n"
    for number in range(BRANCHES):
        file = f"M 100644 inline new{number}\ndata 2\nx\n\n"
        text += f"commit refs/heads/b{number}\n{head}from :1\n{file}\n"
    git(folder, "fast-import", "--quiet", given=text)
    return folder


def bare(folder: Path, tree: Path) -> float:
    """Seconds of the bare git commands."""
    began = time.perf_counter()
    base = git(folder, "rev-parse", "refs/heads/main")
    for start in range(0, BRANCHES, BATCH):
        tip = base
        for number in range(start, start + BATCH):
            commit = git(folder, "rev-parse", f"refs/heads/b{number}")
            made = git(folder, "merge-tree", "--write-tree", tip, commit)
            tip = git(folder, "commit-tree", made, "-p", tip, "-p", commit, "-m", "merge")
        if start:
            git(tree, "checkout", "-q", "--force", "--detach", tip)
            git(tree, "clean", "-qffdx")
        else:
            git(folder, "worktree", "add", "-q", "--detach", str(tree), tip)
        subprocess.run(["true"], cwd=tree, check=True)
        git(folder, "update-ref", "refs/heads/main", tip, base)
        names = [f"delete refs/heads/b{n}" for n in range(start, start + BATCH)]
        git(folder, "update-ref", "--stdin", given="\n".join((*names, "")))
        base = tip
    git(folder, "worktree", "remove", "--force", str(tree))
    return time.perf_counter() - began


def queue(folder: Path, store: str) -> float:
    """Seconds of the server, with all branches submitted before."""
    with interlock.connect(store, agent="queue") as fleet:
        for number in range(BRANCHES):
            fleet.merges.submit(f"b{number}", repository=folder)
        began = time.perf_counter()
        served = fleet.merges.serve(command=["true"], batch=BATCH, drain=True, repository=folder)
        took = time.perf_counter() - began
    assert getattr(served, "merged", 0) == BRANCHES, served
    return took


def main() -> int:
    """Measure in turns, and say whether the target is reached."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    place = Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    floors, times = [], []
    try:
        for turn in range(turns):
            floors.append(bare(prepare(place / f"bare{turn}"), place / f"tree{turn}"))
            times.append(queue(prepare(place / f"queue{turn}"), str(place / f"{turn}.db")))
    finally:
        shutil.rmtree(place)
    floor, took = statistics.median(floors), statistics.median(times)
    ratio = statistics.median(b / a for a, b in zip(floors, times, strict=True))
    print(f"bare git commands  {floor * 1000:6.0f} ms")
    print(f"merge queue        {took * 1000:6.0f} ms")
    print(f"ratio              {ratio:6.2f}     at most {TARGET}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
