"""Programs that advance pipelines, and are killed between any two steps; words name one."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import interlock
from interlock.nouns.pipelines.pipeline import Overtaken, PipelineAdvanced
from interlock.runtime.runner import LocalTransaction


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def die(url: str, pipeline: str, write: str, when: str) -> None:
    """Advance a pipeline again and again, and be killed at this write, before or after it."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", join=False)
    _deadly(fleet.store, write, when)
    fleet.pipelines.start("p", id=pipeline)
    while True:
        fleet.pipelines.advance(pipeline)


def _deadly(store: Any, write: str, when: str) -> None:
    """Have this process killed at a write to the store, before or after it."""
    word = "transact" if store.capabilities.transacts else "commit"
    change, writes = getattr(store, word), count(1)

    def deadly(*arguments: Any) -> Any:
        last = next(writes) == int(write)
        if last and when == "before":
            _die()
        answer = change(*arguments)
        if last:
            _die()
        return answer

    setattr(store, word, deadly)


def release(url: str, lock: str, point: str) -> None:
    """Release a lock at the word of the test, and be killed at this point of it.

    The point is a write (``1 before``, ``2 after``), or ``inside`` a transaction of the engine,
    when the release is written and the first gate is about to be checked.
    """
    fleet = interlock.connect(url, agent="bob")
    got: Any = fleet.locks.acquire(lock)
    say("ready")
    sys.stdin.readline()
    if point == "inside":
        LocalTransaction.again = _die  # type: ignore[method-assign, assignment]
    else:
        _deadly(fleet.store, *point.split())
    fleet.locks.release(lock, token=got.token)
    _die()


def _die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def race(url: str, pipeline: str, rounds: str) -> None:
    """Advance from each phase at the word of the test, and say who won."""
    with interlock.connect(url, agent=f"a{os.getpid()}", join=False) as fleet:
        say("ready", f"a{os.getpid()}")
        for number in range(int(rounds)):
            sys.stdin.readline()
            outcome = fleet.pipelines.advance(pipeline, phase=f"phase{number}")
            if isinstance(outcome, PipelineAdvanced):
                say("won", outcome.phase)
            elif isinstance(outcome, Overtaken):
                say("lost", outcome.by)
            else:
                say(outcome)


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
