"""Programs that look for work, publish what schedules have due, and are killed; words name one."""

from __future__ import annotations

import os
import sys

import interlock
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.testing.faults import kill_at


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def die(url: str, verb: str, when: str) -> None:
    """Look for work, and be killed at the first commit of this verb, before or after it."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", join=False)
    kill_at(fleet.context, verb, when)  # type: ignore[arg-type]
    fleet.tasks.next()


def drain(url: str) -> None:
    """At the word of the test, do one task after the other until none is left."""
    with interlock.connect(url, agent=f"a{os.getpid()}", join=False) as fleet:
        say("ready")
        sys.stdin.readline()
        while isinstance(got := fleet.tasks.next(ttl=30), Claimed):
            fleet.tasks.complete(got.task, token=got.token)
            say("did", got.task)
        say("end")


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
