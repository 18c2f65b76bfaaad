from __future__ import annotations

import asyncio
from pathlib import Path

from interlock import aio
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
