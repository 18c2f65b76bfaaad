"""Programs that work on tasks and subscribe to them; see ``lock_programs.py``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time

from tests.processes.lock_programs import say

import interlock
from interlock import aio
from interlock.aio import Stream
from interlock.aio_tasks import Claim
from interlock.aio_worker import Worker
from interlock.errors import Lapsed
from interlock.nouns.tasks.task import TaskEvent

WHEN_STOPPED = "when stopped"
"""The line that lets a task end as soon as its worker is asked to stop."""


async def _lines() -> asyncio.StreamReader:
    """The lines of the test, for an event loop."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def work(url: str, agent: str, session: str, ttl: str) -> None:
    """Work on one task after the other; each is done after a line of the test."""
    lines = await _lines()
    async with await aio.connect(url, agent=agent, ttl=float(session)) as fleet:
        worker = fleet.tasks.work(ttl=float(ttl) or None)
        try:
            async for claim in worker:
                await _once(worker, claim, lines)
        except Lapsed:
            say("lapsed")
        say("over", worker.stopped)


async def work_on_many(url: str, agent: str, session: str, number: str) -> None:
    """Work on many tasks at once; none is done before a line of the test."""
    lines = await _lines()
    go_on = asyncio.Event()
    async with await aio.connect(url, agent=agent, ttl=float(session)) as fleet:
        worker = fleet.tasks.work(concurrency=int(number))

        async def handle(claim: Claim) -> None:
            say("begun", claim.task, claim.attempt)
            await go_on.wait()

        serving = asyncio.create_task(worker.serve(handle))
        await lines.readline()
        worker.stop()
        go_on.set()
        await serving
        say("over", worker.stopped)


async def _once(worker: Worker, claim: Claim, lines: asyncio.StreamReader) -> None:
    async with claim:
        say("begun", claim.task, claim.attempt)
        order = (await lines.readline()).decode().strip()
        while order == WHEN_STOPPED and not worker.stopped:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.002)
    say("done" if claim.ended == "completed" else claim.ended, claim.task)


def toil(url: str, agent: str, session: str, ttl: str) -> None:
    """Run ``work`` without an event loop."""
    with interlock.connect(url, agent=agent, ttl=float(session)) as fleet:
        worker = fleet.tasks.work(ttl=float(ttl) or None)
        for claim in worker:
            with claim:
                say("begun", claim.task, claim.attempt)
                order = sys.stdin.readline().strip()
                while order == WHEN_STOPPED and not worker.stopped:
                    time.sleep(0.002)
            if claim.ended == "completed":
                say("done", claim.task)
            else:
                say(claim.ended, claim.task, claim.lost)
        say("over", worker.stopped)


def end_after(url: str, agent: str, session: str, blocks: str, how: str) -> None:
    """Leave a plain loop right after so many blocks: at once, or as a program should."""
    with interlock.connect(url, agent=agent, ttl=float(session)) as fleet:
        for number, claim in enumerate(fleet.tasks.work(), 1):
            with claim:
                pass
            say("done", claim.task)
            if number < int(blocks):
                continue
            match how:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(0)
                case "exec":
                    os.execv(sys.executable, [sys.executable, "-c", ""])  # noqa: S606 - as a user does
                case "close":
                    fleet.close()
                    return
                case _:
                    break


def hold(url: str, agent: str, session: str, lock: str) -> None:
    """Hold a lock until a line of the test comes."""
    with interlock.connect(url, agent=agent, ttl=float(session)) as fleet, fleet.lock(lock):
        say("held", lock)
        sys.stdin.readline()
    say("released", lock)


async def listen(url: str, subscribers: str, tasks: str) -> None:
    """This many subscribers, each of which gets this many events."""
    async with await aio.connect(url) as fleet:
        subscriptions = [await fleet.tasks.subscribe() for _ in range(int(subscribers))]
        say("ready")
        for names in await asyncio.gather(*(_tasks(each, int(tasks)) for each in subscriptions)):
            say(*names)


async def _tasks(events: Stream[TaskEvent, tuple[TaskEvent, ...]], many: int) -> list[str]:
    found: list[str] = []
    async with events:
        while len(found) < many:
            found += [event.task for event in await events.take()]
    return found


def main() -> None:
    logging.getLogger("interlock").addHandler(logging.NullHandler())
    acted = globals()[sys.argv[1]](*sys.argv[2:])
    if acted is not None:
        asyncio.run(acted)
