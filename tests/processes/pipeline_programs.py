"""Programs that advance pipelines, and are killed between any two steps; words name one."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import interlock
from interlock.nouns.pipelines.pipeline import Overtaken, PipelineAdvanced


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def die(url: str, pipeline: str, write: str, when: str) -> None:
    """Advance a pipeline again and again, and be killed at this write, before or after it."""
    fleet = interlock.connect(url, agent=f"a{os.getpid()}", join=False)
    store: Any = fleet.store
    word = "transact" if store.capabilities.transacts else "commit"
    change, writes = getattr(store, word), count(1)

    def deadly(*arguments: Any) -> Any:
        last = next(writes) == int(write)
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = change(*arguments)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(store, word, deadly)
    fleet.pipelines.start("p", id=pipeline)
    while True:
        fleet.pipelines.advance(pipeline)


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
