"""A worker in an event loop: eight tasks at once, each done once, until it is told to stop.

In a program of your own, SIGTERM stops it: it finishes what it has begun, and claims no more.
"""

import asyncio
import tempfile

from interlock import aio
from interlock.aio_work import Claim

MANY = 40
done: list[int] = []


async def main() -> None:
    """Publish tasks, and have them done."""
    with tempfile.TemporaryDirectory() as folder:
        async with await aio.connect(f"{folder}/store.db", agent="ada") as fleet:
            for number in range(MANY):
                await fleet.tasks.publish(f"square/{number}", number)
            worker = fleet.tasks.work(concurrency=8)

            async def square(claim: Claim) -> int:
                number: int = claim.data
                done.append(number)
                await asyncio.sleep(0)  # Others go on meanwhile.
                if len(done) == MANY:
                    worker.stop("all is done")
                return number**2  # What is returned is the result of the task.

            await worker.serve(square)
            print(f"{len(done)} tasks are done; the worker stopped since {worker.stopped}")
            assert sorted(done) == list(range(MANY))
            assert not (await fleet.tasks.list()).tasks


asyncio.run(main())
