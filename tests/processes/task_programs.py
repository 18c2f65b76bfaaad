"""Programs that do tasks, and are killed between any two steps; words name one."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import interlock
from interlock.errors import Lapsed
from interlock.nouns.tasks import task_reader
from interlock.nouns.tasks.task_outcomes import Claimed, TaskCompleted


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def die(url: str, ttl: str, write: str, when: str) -> None:
    """Do one task after the other, and be killed at this write, before or after it.

    A process that stalled for so long that its session expired counts as killed.
    """
    task_reader._ROOM_ELSEWHERE = 60
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", ttl=float(ttl))
    store: Any = fleet.store
    word = "transact" if store.capabilities.transacts else "commit"
    change, writes = getattr(store, word), count(1)

    def deadly(*arguments: Any) -> Any:
        last = next(writes) == int(write)  # the keeper's thread writes, too
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = change(*arguments)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(store, word, deadly)
    try:
        while isinstance(got := fleet.tasks.next(wait=60), Claimed):
            fleet.tasks.complete(got.task, token=got.token)
    except Lapsed:
        os.kill(os.getpid(), signal.SIGKILL)


def drain(url: str) -> None:
    """Take a task, do it with all others until there are none, and say how many."""
    with interlock.connect(url, agent=f"a{os.getpid()}", ttl=30) as fleet:
        got, done = fleet.tasks.next(), 0
        say("ready")
        sys.stdin.readline()
        while isinstance(got, Claimed):
            done += isinstance(fleet.tasks.complete(got.task, token=got.token), TaskCompleted)
            got = fleet.tasks.next()
        say(done)


def main() -> None:
    """Run the program that the first word names."""
    globals()[sys.argv[1]](*sys.argv[2:])
