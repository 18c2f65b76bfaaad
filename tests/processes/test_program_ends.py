"""Programs that end without closing their clients: they free their locks, and print nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes.test_away import Engine

import interlock

ASYNC = """
import asyncio, sys
from interlock import aio

kept = []

async def hold(fleet, lock):
    async with fleet.lock(lock):
        await asyncio.sleep(600)

async def holding(fleet, lock):
    async with fleet.lock(lock):
        yield

async def work(fleet):
    async for claim in fleet.tasks.work(stop_on_signals=False):
        async with claim:
            await asyncio.sleep(600)

async def receive(fleet):
    async for message in fleet.messages.recv():
        pass

async def main():
    ada = await aio.connect(sys.argv[1], agent="ada", ttl=600)
    bob = await aio.connect(sys.argv[1], agent="bob", ttl=600)
    await ada.locks.acquire("merge")
    await ada.tasks.publish("build")
    generator = holding(ada, "generator")
    await anext(generator)
    events = await ada.tasks.subscribe(callback=kept.append)
    waits = hold(ada, "block"), bob.locks.acquire("merge", wait=600), work(ada), receive(bob)
    kept.extend([ada, bob, generator, events, *map(asyncio.create_task, waits)])
    while (await ada.tasks.show("build")).state != "running":
        await asyncio.sleep(0)
    sys.exit(int(sys.argv[2]))

asyncio.run(main())
"""
BLOCKING = """
import sys
import interlock

fleet = interlock.connect(sys.argv[1], agent="ada", ttl=600)
fleet.locks.acquire("merge")
fleet.tasks.publish("build")

def holding():
    with fleet.lock("block"), fleet.lock("generator"), fleet.tasks.hold("build"):
        yield

generator = holding()
next(generator)
sys.exit(int(sys.argv[2]))
"""


def ends_well(program: str, url: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, url, str(status)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert [line for line in done.stderr.splitlines() if not _is_slow_callback(line)] == []
    with interlock.connect(url) as fleet:
        for lock in ("merge", "block", "generator"):
            assert fleet.locks.show(lock).state == "free", lock
        assert fleet.tasks.show("build").state == "pending"
        assert not fleet.agents.list()


def _is_slow_callback(line: str) -> bool:
    """As the debug mode of asyncio says on a machine with much to do."""
    return line.startswith("Executing <") and " took " in line


@pytest.mark.parametrize("program", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_a_program_on_sqlite_that_ends_without_closing_frees_all(
    tmp_path: Path, program: str
) -> None:
    for status in (0, 3):
        ends_well(program, str(tmp_path / f"{status}.db"), status)


@pytest.mark.parametrize("program", [ASYNC, BLOCKING], ids=["async", "blocking"])
def test_a_program_on_a_server_that_ends_without_closing_frees_all(
    server: Engine, program: str
) -> None:
    for status in (0, 3):
        ends_well(program, server.url(f"ends{status}"), status)
