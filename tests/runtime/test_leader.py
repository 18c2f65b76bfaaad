"""One caller of a process works for all that want the same; the others sleep until they have it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from interlock.runtime.leader import Bell, GroupMember, LeaderGroup
from interlock.steps import Op, Pause, drive, drive_async

MANY = 50


class Number(GroupMember):
    """Wants to be squared."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.square = -1


class Squares:
    """Squares the numbers of all callers, batch by batch."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.group = LeaderGroup[Number]()
        self.batches: list[list[int]] = []
        self.seconds = seconds

    def square(self, number: int) -> Op[int]:
        member = Number(number)
        yield from self.group.attend(member, self.lead)
        return member.square

    def lead(self) -> Op[None]:
        batch = self.group.unsettled()
        self.batches.append([each.number for each in batch])
        yield Pause(self.seconds)
        for each in batch:
            each.square = each.number**2
            each.settle()


def test_a_caller_that_is_alone_does_its_work_itself() -> None:
    squares = Squares()
    assert drive(squares.square(3), None) == 9
    assert drive(squares.square(4), None) == 16
    assert squares.batches == [[3], [4]]


def test_tasks_that_come_while_one_works_are_the_next_batch() -> None:
    squares = Squares()

    async def all_of_them() -> list[int]:
        asked = [drive_async(squares.square(number), None) for number in range(MANY)]
        return list(await asyncio.gather(*asked))

    assert asyncio.run(all_of_them()) == [number**2 for number in range(MANY)]
    assert squares.batches == [[0], list(range(1, MANY))]


def test_threads_share_the_work_and_each_gets_its_own_answer() -> None:
    squares = Squares(0.002)
    with ThreadPoolExecutor(MANY) as pool:
        found = pool.map(lambda number: drive(squares.square(number), None), range(MANY))
        assert list(found) == [number**2 for number in range(MANY)]
    assert sorted(number for batch in squares.batches for number in batch) == list(range(MANY))
    assert len(squares.batches) < MANY


def test_the_work_of_a_leader_that_is_interrupted_is_done_by_another_one() -> None:
    class Interrupted(Squares):
        def lead(self) -> Op[None]:
            if not self.batches:
                self.batches.append([])
                yield Pause(0)
                raise KeyboardInterrupt
            yield from super().lead()

    squares = Interrupted()

    loop = asyncio.new_event_loop()
    try:
        first = loop.create_task(drive_async(squares.square(2), None))
        second = loop.create_task(drive_async(squares.square(3), None))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait((first, second)))
        assert loop.run_until_complete(second) == 9
        assert isinstance(first.exception(), KeyboardInterrupt)
    finally:
        loop.close()
    assert squares.batches == [[], [3]]


def test_a_leader_that_is_cancelled_leaves_the_others_to_the_next() -> None:
    squares = Squares(60)

    async def scenario() -> int:
        first = asyncio.create_task(drive_async(squares.square(2), None))
        second = asyncio.create_task(drive_async(squares.square(3), None))
        await asyncio.sleep(0)  # both have begun
        squares.seconds = 0
        first.cancel()
        return await second

    assert asyncio.run(scenario()) == 9
    assert squares.batches == [[2], [3]]


def test_an_error_of_the_leader_is_its_own() -> None:
    class Failing(Squares):
        def lead(self) -> Op[None]:
            if not self.batches:
                self.batches.append([])
                yield Pause(0)
                raise ValueError("no square")
            yield from super().lead()

    squares = Failing()

    async def scenario() -> list[object]:
        asked = [drive_async(squares.square(number), None) for number in (2, 3)]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    failed, squared = asyncio.run(scenario())
    assert isinstance(failed, ValueError)
    assert squared == 9


def test_a_member_whose_time_is_up_leaves_and_the_others_go_on() -> None:
    squares = Squares()
    late = Number(5)
    drive(squares.group.attend(late, squares.lead, lambda: 0.0), None)
    assert not late.settled
    assert drive(squares.square(6), None) == 36
    assert squares.batches == [[6]]


def test_a_ring_before_the_sleep_is_not_lost() -> None:
    bell = Bell()
    bell.ring()
    drive(bell.sleep(60), None)
    bell.ring()
    asyncio.run(drive_async(bell.sleep(60), None))


def test_a_thread_wakes_a_task_and_a_task_a_thread() -> None:
    bell, slept = Bell(), threading.Event()

    async def sleep() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: threading.Thread(target=bell.ring).start())
        await drive_async(bell.sleep(60), None)

    asyncio.run(sleep())

    def nap() -> None:
        drive(bell.sleep(60), None)
        slept.set()

    thread = threading.Thread(target=nap)
    thread.start()

    async def ring() -> None:
        while not slept.is_set():
            bell.ring()
            await asyncio.sleep(0.001)

    asyncio.run(ring())
    thread.join()
