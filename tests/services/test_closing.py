from __future__ import annotations

import asyncio
from pathlib import Path

from interlock import aio


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
