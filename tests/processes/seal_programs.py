"""Programs that seal the record; words name one and give its arguments."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.nouns.record.sealed import SMALL, touch

from interlock.nouns.record.seal_service import Sealing
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.steps import Op, drive
from interlock.store import Store
from interlock.stores import open_store

WHO = Actor("sealer")


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def opened(url: str) -> tuple[Store, Runner, Sealing]:
    store = open_store(url)
    if store.capabilities.engine == "redis":
        store.settling = 0  # type: ignore[attr-defined]  # nothing here is as old as that
    runner = Runner(store)
    sealing = Sealing(runner)
    sealing.limits = SMALL
    return store, runner, sealing


def writes(url: str, count: str) -> None:
    """Commit, seal after every twentieth, and print each revision and the size of the log."""
    store, runner, sealing = opened(url)
    say("ready")
    sys.stdin.readline()
    for number in range(int(count)):
        done = drive(runner.change(lambda n=number: touch(n), WHO), store)  # type: ignore[misc]
        say(done.revision, store.extent().entries)
        if number % 20 == 19:
            drive(sealing.run_pass(WHO), store)
    store.close()


def seals(url: str) -> None:
    """Seal without end."""
    store, _, sealing = opened(url)
    say("ready")
    while True:
        drive(sealing.run_pass(WHO), store)


def dies(url: str, steps: str) -> None:
    """Seal, and be killed after this many steps; print if there are fewer."""
    store, _, sealing = opened(url)
    left = int(steps)

    def perform(op: Op[Any]) -> None:
        nonlocal left
        try:
            step = next(op)
            while True:
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                step = op.send(step.perform(store))
        except StopIteration:
            pass

    perform(sealing.run_pass(WHO))
    say("done")
    store.close()


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
