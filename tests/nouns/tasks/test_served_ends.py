"""The ends of claims whose handlers have returned: one commit carries out many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import interlock
from interlock import aio
from interlock.aio_tasks import Claim
from interlock.aio_worker import Worker
from interlock.errors import InterlockError, StoreDamaged, StoreTrouble
from interlock.nouns.tasks.task import TaskEnd
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.worker import WorkerLoop
from interlock.steps import Op

TASKS = 6


class Ends:
    """The ends that a worker carries out together: held up, or refused once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.commits: list[int] = []
        """How many ends each commit had."""
        self.error = error
        self._carry_out = WorkerLoop.end_and_claim
        ends = self

        def end_and_claim(loop: WorkerLoop, some: Sequence[TaskEnd], limit: int) -> Op[Any]:
            if some:
                ends.commits.append(len(some))
                error, ends.error = ends.error, None
                if error is not None:
                    raise error
            return (yield from ends._carry_out(loop, some, limit))

        monkeypatch.setattr(WorkerLoop, "end_and_claim", end_and_claim)


async def published(fleet: aio.Fleet) -> None:
    await asyncio.gather(*(fleet.tasks.publish(f"t{n}", n) for n in range(TASKS)))


async def states(fleet: aio.Fleet) -> list[str]:
    return [each.state for each in (await fleet.tasks.list(all=True)).tasks]


async def all_begun(worker: Worker, begun: list[Claim]) -> None:
    """A worker begins with one task, then two: wait until it has all."""
    while len(begun) < TASKS:  # noqa: ASYNC110 - the handlers set no event
        await asyncio.sleep(0.001)
    assert not worker.stopped


def test_no_task_of_the_loop_waits_for_the_commit_that_ends_its_claim(url: str) -> None:
    async def work() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            await published(ada)
            worker = ada.tasks.work(concurrency=TASKS, stop_on_signals=False)
            begun, go_on, tasks = list[Claim](), asyncio.Event(), set[asyncio.Task[Any]]()

            async def handle(claim: Claim) -> None:
                task = asyncio.current_task()
                assert task is not None
                tasks.add(task)
                begun.append(claim)
                await go_on.wait()

            serving = asyncio.create_task(worker.serve(handle))
            await all_begun(worker, begun)
            go_on.set()
            await asyncio.wait(tasks)
            assert not any(claim.settled for claim in begun)
            worker.stop()
            await serving
            assert {claim.ended for claim in begun} == {"completed"}
            assert await states(ada) == ["complete"] * TASKS

    asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "commits"),
    [
        (StoreTrouble("it is away for a moment"), [TASKS, TASKS]),
        (StoreDamaged("an item is damaged"), [TASKS]),
        (InterlockError("one of them cannot end"), [TASKS]),
        (None, [TASKS]),
    ],
)
def test_what_could_not_end_with_others_ends_as_it_would_have_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch, error: Exception | None, commits: list[int]
) -> None:
    """After trouble it is tried again, once, with others; else each ends by a commit of its own."""
    ends = Ends(monkeypatch)

    async def work() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            await published(ada)
            worker = ada.tasks.work(concurrency=TASKS, stop_on_signals=False)
            begun, go_on = list[Claim](), asyncio.Event()

            async def handle(claim: Claim) -> int:
                begun.append(claim)
                await go_on.wait()
                return int(claim.data)

            serving = asyncio.create_task(worker.serve(handle))
            await all_begun(worker, begun)
            ends.commits.clear()
            ends.error = error
            worker.stop()
            go_on.set()
            await serving
            assert await states(ada) == ["complete"] * TASKS
            for number in range(TASKS):
                shown = await ada.tasks.show(f"t{number}")
                assert (shown.result, shown.attempts) == (number, 0)  # type: ignore[union-attr]

    asyncio.run(work())
    assert ends.commits == commits


def test_a_worker_that_is_broken_off_releases_what_was_not_being_ended(url: str) -> None:
    async def work() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            await published(ada)
            worker = ada.tasks.work(concurrency=TASKS, stop_on_signals=False)
            begun, go_on = list[Claim](), asyncio.Event()

            async def handle(claim: Claim) -> None:
                begun.append(claim)
                await go_on.wait()

            serving = asyncio.create_task(worker.serve(handle))
            await all_begun(worker, begun)
            go_on.set()
            await asyncio.sleep(0)  # the handlers return
            serving.cancel()
            await asyncio.wait((serving,))
            assert serving.cancelled()
            assert all(claim.settled for claim in begun)
            while "running" in await states(ada):  # noqa: ASYNC110 - the keeper releases them
                await asyncio.sleep(0.005)
            listed = (await ada.tasks.list(all=True)).tasks
            assert {each.state for each in listed} <= {"complete", "pending"}
            assert {each.attempts for each in listed} == {0}

    asyncio.run(work())


def test_a_worker_may_have_more_in_flight_than_one_commit_of_its_store_takes(url: str) -> None:
    """A commit on etcd has 126 operations at most."""

    async def work() -> list[int]:
        async with await aio.connect(url, agent="ada") as ada:
            await asyncio.gather(*(ada.tasks.publish(f"t{n}", n) for n in range(150)))
            worker, done = ada.tasks.work(concurrency=64, stop_on_signals=False), list[int]()

            async def handle(claim: Claim) -> None:
                done.append(claim.data)
                if len(done) == 150:
                    worker.stop()

            await worker.serve(handle)
            return done

    assert sorted(asyncio.run(work())) == list(range(150))
    with interlock.connect(url, agent="ada") as fleet:
        events = [[each.name for each in line.events] for line in fleet.record.log(limit=1000)]
        claims = [names.count("task:claimed") for names in events]
        ends = [names.count("task:completed") for names in events]
        assert sum(ends) == sum(claims) == 150
        assert max(ends) > 4
        assert {each.state for each in fleet.tasks.list(all=True).tasks} == {"complete"}


def test_more_are_asked_for_than_one_commit_of_the_store_takes(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada:
        for number in range(24):
            ada.tasks.publish(f"t{number}")
        got = ada.tasks.next(limit=64, ttl=60)
        assert isinstance(got, Claimed)
        assert len(got.others) > 4
