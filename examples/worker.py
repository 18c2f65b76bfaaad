"""Run a worker in an event loop: eight tasks at once, each done once, until it is stopped.

SIGTERM stops the worker of a program: it finishes its current tasks, and claims no more.
"""

import asyncio
import tempfile

from interlock import aio
from interlock.aio_tasks import Claim

MANY = 40
done: list[int] = []


async def main() -> None:
    """Publish tasks, and let the worker do them."""
    with tempfile.TemporaryDirectory() as folder:
        async with await aio.connect(f"{folder}/store.db", agent="ada") as fleet:
            for number in range(MANY):
                await fleet.tasks.publish(f"square/{number}", number)
            worker = fleet.tasks.work(concurrency=8)

            async def square(claim: Claim) -> int:
                number: int = claim.data
                done.append(number)
                await asyncio.sleep(0)  # Other tasks run now.
                if len(done) == MANY:
                    worker.stop("all is done")
                return number**2  # The return value is the result of the task.

            await worker.serve(square)
            print(f"{len(done)} tasks are done; the worker stopped since {worker.stopped}")
            assert sorted(done) == list(range(MANY))
            assert not (await fleet.tasks.list()).tasks


asyncio.run(main())
