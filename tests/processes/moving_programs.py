"""Programs around the move of a store; words name one and give its arguments."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
from contextlib import closing

from tests.processes.helpers import until

import interlock
from interlock import aio
from interlock.aio_tasks import Claim
from interlock.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreMissing,
    StoreMoved,
    StoreMoving,
    StoreTrouble,
)
from interlock.nouns.fleet.moving import CopyProgress, StoreCopy
from interlock.stores import open_store


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - to the test


def moves(source: str, target: str, step: str) -> None:
    """Move a store, and be killed at this report; print the state if there are fewer."""
    numbers = itertools.count(1)

    def report(progress: CopyProgress) -> None:
        say(progress.step)
        if next(numbers) == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        closing(open_store(source, filling=True)) as one,
        closing(open_store(target, filling=True)) as two,
    ):
        StoreCopy(one, two, (source, target), report=report).run()


def works(url: str, agent: str) -> None:
    """Acquire and release until the store is moved; print each token as soon as it is granted."""
    with interlock.connect(url, agent=agent) as fleet:
        say("ready")
        while True:
            try:
                got = fleet.locks.acquire(f"lock-{agent}")
                if isinstance(got, interlock.Acquired):
                    say(got.token)
                    fleet.locks.release(f"lock-{agent}", token=got.token)
            except StoreMoving:
                continue
            except StoreMoved as moved:
                say("moved", moved.place)
                return


def holds(url: str, seconds: str) -> None:
    """Hold a lock until it is lost."""
    with interlock.connect(url, agent="holder", ttl=float(seconds)) as fleet:
        try:
            with fleet.lock("merge") as held:
                say("holds", held.token)
                until(lambda: held.lost)
        except interlock.Lost:
            say("lost")


def waits(url: str, seconds: str) -> None:
    """Wait for that lock."""
    with interlock.connect(url, agent="waiter", ttl=float(seconds)) as fleet:
        say("waits")
        try:
            say(type(fleet.locks.acquire("merge", wait="5m")).__name__)
        except StoreMoved:
            say("moved")


def toils(url: str, agent: str) -> None:
    """Work on tasks until the store is moved: one task until a line comes, then the next."""
    with interlock.connect(url, agent=agent) as fleet:
        say("ready")
        try:
            for claim in fleet.tasks.work():
                with claim:
                    say("begun", claim.task)
                    sys.stdin.readline()
                say(claim.ended, claim.task)
        except StoreMoved as error:
            say("StoreMoved", error.place)


def serves(url: str, agent: str) -> None:
    """Serve tasks in an event loop until the store is moved."""

    async def serve() -> None:
        async with await aio.connect(url, agent=agent) as fleet:
            say("ready")
            await fleet.tasks.serve(_nothing)

    try:
        asyncio.run(serve())
    except StoreMoved as error:
        say("StoreMoved", error.place)


async def _nothing(_claim: Claim) -> None: ...


def observes(url: str, _agent: str) -> None:
    """Follow all events without a session, until the store is moved."""
    with interlock.connect(url) as fleet:
        say("ready")
        try:
            for _ in fleet.observe():
                pass
        except StoreMoved as error:
            say("StoreMoved", error.place)


def receives(url: str, agent: str) -> None:
    """Receive messages until the store is moved."""
    with interlock.connect(url, agent=agent) as fleet:
        say("ready")
        try:
            for _ in fleet.messages.recv():
                pass
        except StoreMoved as error:
            say("StoreMoved", error.place)


def visits(url: str, agent: str) -> None:
    """Connect, acquire, leave, until stdin ends; print each token as soon as it is granted."""
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    say("ready")
    while not ended.is_set():
        try:
            with interlock.connect(url, agent=agent) as fleet:
                got = fleet.locks.acquire(f"lock-{agent}")
                if isinstance(got, interlock.Acquired):
                    say(got.token)
        except StoreTrouble as error:  # it came in the moment of the restore
            if not isinstance(error, StoreMissing | StoreBusy | OutcomeUnknown):
                raise
        ended.wait(0.02)


def main() -> None:
    globals()[sys.argv[1]](*sys.argv[2:])
