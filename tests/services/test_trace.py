from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import interlock
from interlock import aio
from interlock.client import Fleet
from interlock.errors import BadName
from interlock.stores.memory import MemoryStore


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with interlock.connect(agent="ada", store=MemoryStore(), trace="t-1", join=False) as fleet:
        yield fleet


def traces(fleet: Fleet) -> list[str]:
    return [line.trace for line in fleet.record.log()]


def test_what_a_client_does_carries_its_trace(fleet: Fleet) -> None:
    fleet.locks.acquire("a")
    assert fleet.trace == "t-1"
    assert traces(fleet) == ["t-1"]


def test_a_block_has_a_trace_of_its_own(fleet: Fleet) -> None:
    with interlock.trace("t-2") as outer:
        fleet.locks.acquire("a")
        with interlock.trace("t-3"):
            fleet.locks.acquire("b")
            assert fleet.trace == "t-3"
        fleet.locks.acquire("c")
    fleet.locks.acquire("d")
    assert outer == "t-2"
    assert traces(fleet) == ["t-2", "t-3", "t-2", "t-1"]
    assert [line.thing for line in fleet.record.log(trace="t-2")] == ["lock/a", "lock/c"]


def test_another_thread_is_not_in_the_block(fleet: Fleet) -> None:
    with interlock.trace("t-2"):
        thread = threading.Thread(target=fleet.locks.acquire, args=("a",))
        thread.start()
        thread.join()
    assert traces(fleet) == ["t-1"]


def test_tasks_at_the_same_time_keep_their_traces_apart() -> None:
    asyncio.run(_tasks())


async def _tasks() -> None:
    async with await aio.connect(agent="ada", store=MemoryStore(), join=False) as fleet:

        async def work(name: str) -> None:
            with interlock.trace(f"t-{name}"):
                await asyncio.sleep(0)
                await fleet.locks.acquire(name)
                assert fleet.trace == f"t-{name}"

        await asyncio.gather(*(work(name) for name in "abc"))
        log = await fleet.record.log()
        assert {line.thing: line.trace for line in log} == {f"lock/{n}": f"t-{n}" for n in "abc"}
        assert (await fleet.record.explain("a")).happenings[0].trace == "t-a"
        assert fleet.trace.startswith("trc_")


def test_a_program_goes_on_with_the_trace_of_who_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INTERLOCK_TRACE", "t-0")
    for given, trace in (("", "t-0"), ("t-1", "t-1")):
        with interlock.connect(agent="a", store=MemoryStore(), trace=given, join=False) as fleet:
            assert fleet.trace == trace


@pytest.mark.parametrize("name", ["", "a\tb", "-x", "a\nb", "x" * 201])
def test_a_trace_is_a_name(name: str) -> None:
    with pytest.raises(BadName), interlock.trace(name):
        pass
    if name:
        with pytest.raises(BadName, match="trace"):
            interlock.connect(agent="ada", store=MemoryStore(), trace=name)
