from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.errors import StoreClosed
from interlock.runtime.client_housekeeping import ClientHousekeeping
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.stores.memory import MemoryStore


def test_closing_ends_though_the_keeper_was_woken_at_that_very_moment(tmp_path: Path) -> None:
    """Python 3.11 forgets that a task was cancelled if what it waits for happens just then."""

    async def open_and_close(number: int) -> None:
        fleet = await aio.connect(str(tmp_path / f"{number}.db"), agent="ada")
        await fleet.locks.acquire("merge")
        fleet._nudge.set()
        await asyncio.wait_for(fleet.close(), 20)

    async def main() -> None:
        for number in range(5):
            await open_and_close(number)

    asyncio.run(main())


def test_a_program_that_ends_without_closing_ends_though_the_keeper_was_woken_just_then() -> None:
    async def main() -> bool:
        fleet = await aio.connect(agent="ada", store=MemoryStore())
        await asyncio.sleep(0)
        keeper = fleet._tasks[0]
        fleet._nudge.set()
        keeper.cancel()  # once, as asyncio.run does
        await asyncio.wait({keeper}, timeout=5)
        ended = keeper.done()
        await fleet.close()
        return ended

    assert asyncio.run(main())


def interrupted(_: ClientHousekeeping, __: Actor) -> Op[None]:
    yield from ()
    raise KeyboardInterrupt


def test_who_is_interrupted_at_its_end_lets_go_of_the_store_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientHousekeeping, "run", interrupted)
    fleet = interlock.connect(agent="ada", join=False, store=MemoryStore())
    fleet.context.housekeeping.due = True
    with pytest.raises(KeyboardInterrupt):
        fleet.close()
    with pytest.raises(StoreClosed):
        fleet.store.read()


def test_who_is_cancelled_at_its_end_lets_go_of_the_store_all_the_same() -> None:
    async def main() -> None:
        fleet = await aio.connect(agent="ada", store=MemoryStore())
        closing = asyncio.create_task(fleet.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        with pytest.raises(StoreClosed):
            fleet.store.read()

    asyncio.run(main())
