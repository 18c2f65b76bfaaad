"""Share a lock among the tasks of an event loop; a task that loses its lock is cancelled.

Two tasks of one agent are two callers, so they exclude each other too.
"""

import asyncio
import tempfile

from interlock import aio

inside = 0
order: list[str] = []


async def work(fleet: aio.Fleet, name: str) -> None:
    """Work alone while holding the lock."""
    global inside  # noqa: PLW0603 - what the lock protects in this example
    async with fleet.lock("merge") as held:
        inside += 1
        assert inside == 1, "another task is inside"
        await asyncio.sleep(0)  # Any other task may run now, and none gets in.
        order.append(name)
        print(f"{name} merges with token {held.token}")
        inside -= 1


async def main() -> None:
    """Let five tasks share one lock."""
    with tempfile.TemporaryDirectory() as folder:
        async with await aio.connect(f"{folder}/store.db", agent="ada") as fleet:
            await asyncio.gather(*(work(fleet, f"task {number}") for number in range(5)))


asyncio.run(main())
assert sorted(order) == [f"task {number}" for number in range(5)]
