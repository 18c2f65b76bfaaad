"""Workers that serve: several threads at once, functions by type, and a limit for each call."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.client_worker import Worker
from interlock.clock import SystemClock
from interlock.errors import BadInput
from interlock.nouns.messages.message import Sent
from interlock.nouns.tasks.task import ONLY, can_do
from interlock.nouns.tasks.task_view import ListedTask
from interlock.nouns.tasks.worker import WorkerTeam
from interlock.stores.memory import MemoryStore

PATIENCE = 60.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def fleet(store: MemoryStore) -> Iterator[interlock.Fleet]:
    with interlock.connect(agent="ada", store=store) as fleet:
        yield fleet


def publish(fleet: interlock.Fleet, many: int, **options: Any) -> None:
    for number in range(many):
        fleet.tasks.publish(f"t{number}", number, **options)


def tasks(fleet: interlock.Fleet) -> dict[str, ListedTask]:
    return {each.task: each for each in fleet.tasks.list(all=True).tasks}


def states(fleet: interlock.Fleet) -> dict[str, str]:
    return {name: task.state for name, task in tasks(fleet).items()}


class Counter:
    """Stops a worker after so many calls."""

    def __init__(self, worker: Worker, many: int) -> None:
        self.worker, self.many = worker, many
        self.done: list[str] = []
        self._guard = threading.Lock()

    def add(self, claim: Claim) -> None:
        with self._guard:
            self.done.append(claim.task)
            if len(self.done) == self.many:
                self.worker.stop("that was the last one")


def test_as_many_threads_as_asked_for_work_at_once_and_each_task_is_done_once(
    fleet: interlock.Fleet,
) -> None:
    publish(fleet, 20)
    worker = fleet.tasks.work(concurrency=4)
    count, together = Counter(worker, 20), threading.Barrier(4)

    def handle(claim: Claim) -> int:
        together.wait(PATIENCE)  # none goes on before four of them are here
        count.add(claim)
        return int(claim.data) + 1

    worker.serve(handle)
    assert (len(count.done), len(set(count.done))) == (20, 20)
    assert set(states(fleet).values()) == {"complete"}
    found = fleet.tasks.show("t7")
    assert getattr(found, "result", None) == 8
    assert worker.stopped == "that was the last one"


def test_a_thread_ends_a_task_and_claims_the_next_with_one_commit(fleet: interlock.Fleet) -> None:
    publish(fleet, 12)
    before = fleet.store.read().revision
    worker = fleet.tasks.work(concurrency=2)
    count = Counter(worker, 12)
    worker.serve(count.add)
    lines = [each for each in fleet.record.log(limit=1000) if each.revision > before]
    alone = [each for each in lines if each.verb == "task.claim"]
    assert len(alone) <= 2  # one for each thread
    assert len([each for each in lines if each.verb == "task.complete"]) == 12


def test_an_error_fails_its_task_alone(fleet: interlock.Fleet) -> None:
    publish(fleet, 6, retries=0)
    worker = fleet.tasks.work(concurrency=3)
    count = Counter(worker, 6)

    def handle(claim: Claim) -> None:
        count.add(claim)
        if claim.data == 3:
            raise ValueError("three")

    worker.serve(handle)
    assert {name for name, state in states(fleet).items() if state == "dead"} == {"t3"}
    assert tasks(fleet)["t3"].reason == "ValueError: three"


def test_a_worker_of_several_threads_reports_all_that_they_do() -> None:
    team = WorkerTeam()
    assert team.doing("one", ["t1"]) == ("t1",)
    assert team.doing("two", ["t2"]) == ("t1", "t2")
    assert team.doing("one", ()) == ("t2",)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_all_threads_finish_and_two_release_what_they_work_on(
    fleet: interlock.Fleet, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    publish(fleet, 3)
    begun, told = threading.Barrier(3), threading.Event()
    lost: list[bool] = []

    def polite(claim: Claim) -> None:
        if begun.wait(PATIENCE) == 0:
            os.kill(os.getpid(), number)
            told.set()
        told.wait(PATIENCE)

    fleet.tasks.serve(polite, concurrency=3)
    assert set(states(fleet).values()) == {"complete"}

    def stubborn(claim: Claim) -> None:
        if begun.wait(PATIENCE) == 0:
            os.kill(os.getpid(), number)
            until(lambda: worker.stopped)
            os.kill(os.getpid(), number)
        until(lambda: claim.lost)
        lost.append(claim.lost)

    for name in ("u0", "u1", "u2"):
        fleet.tasks.publish(name)
    worker = fleet.tasks.work(concurrency=3)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        worker.serve(stubborn)
    until(lambda: len(lost) == 3)
    found = tasks(fleet)
    assert {(found[name].state, found[name].attempts) for name in ("u0", "u1", "u2")} == {
        ("pending", 0)
    }


def test_of_the_threads_without_a_task_one_waits_and_the_others_wait_for_it(
    fleet: interlock.Fleet,
) -> None:
    """Each task wakes one thread, and not all: only one of them watches the queue."""
    worker = fleet.tasks.work(concurrency=5, stop_on_signals=False)
    done: list[str] = []
    serving = threading.Thread(target=lambda: worker.serve(lambda claim: done.append(claim.task)))
    serving.start()
    for number in range(3):
        until(lambda: fleet.context.tasks.waiting)
        assert len(fleet.context.tasks.waiting) == 1
        fleet.tasks.publish(f"t{number}")
        until(lambda: len(done) == number + 1)  # noqa: B023 - it is called here
    worker.stop()
    serving.join(PATIENCE)
    assert done == ["t0", "t1", "t2"]


def test_threads_that_wait_go_when_a_message_asks_them(
    fleet: interlock.Fleet, store: MemoryStore
) -> None:
    worker = fleet.tasks.work(concurrency=3, stop_on_signals=False)
    serving = threading.Thread(target=lambda: worker.serve(lambda claim: None))
    serving.start()
    with interlock.connect(agent="bob", store=store) as bob:
        until(lambda: any(each.agent == "ada" for each in bob.agents.list()))
        assert isinstance(bob.messages.stop("ada", "enough"), Sent)
        serving.join(PATIENCE)  # to close bob is to close the store
        assert not serving.is_alive()
    assert worker.stopped == "bob asked: enough"


def test_each_task_goes_to_the_function_of_its_type_and_others_stay(fleet: interlock.Fleet) -> None:
    wanted = {"plain": [], "other": ["deploy"], "both": ["gpu"], "b": ["build"], "t": ["test"]}
    for name, requires in wanted.items():
        fleet.tasks.publish(name, requires=requires)
    worker = fleet.tasks.work(can=["gpu"])
    count = Counter(worker, 2)
    said: list[tuple[str, str]] = []

    @worker.on("build")
    def build(claim: Claim) -> str:
        said.append(("build", claim.task))
        count.add(claim)
        return "built"

    @worker.on("test", "lint")
    def check(claim: Claim) -> None:
        said.append(("check", claim.task))
        count.add(claim)

    worker.serve()
    assert sorted(said) == [("build", "b"), ("check", "t")]
    left = {name for name, task in tasks(fleet).items() if task.state == "pending"}
    assert left == {"plain", "other", "both"}
    assert {task.attempts for task in tasks(fleet).values()} == {0}  # none was claimed for nothing
    assert build(fleet.tasks.hold("plain").__enter__()) == "built"  # it is still a plain function


def test_a_function_without_a_type_takes_what_else_the_worker_can_do(
    fleet: interlock.Fleet,
) -> None:
    for name, requires in {"b": ["build", "gpu"], "plain": [], "g": ["gpu"]}.items():
        fleet.tasks.publish(name, requires=requires)
    worker = fleet.tasks.work(can=["gpu"])
    count = Counter(worker, 3)
    said: list[tuple[str, str]] = []

    @worker.on("build")
    def build(claim: Claim) -> None:
        said.append(("build", claim.task))
        count.add(claim)

    def rest(claim: Claim) -> None:
        said.append(("rest", claim.task))
        count.add(claim)

    worker.serve(rest)
    assert sorted(said) == [("build", "b"), ("rest", "g"), ("rest", "plain")]


def test_a_worker_that_waits_for_its_types_is_woken_by_them_on_every_store(url: str) -> None:
    """In an event loop; the first task of the type comes while the worker waits."""

    async def main() -> list[str]:
        async with await aio.connect(url, agent="ada") as fleet:
            await fleet.tasks.publish("plain")
            worker = fleet.tasks.work(concurrency=2)
            said: list[str] = []

            @worker.on("build")
            async def build(claim: AsyncClaim) -> None:
                said.append(f"{claim.task} {claim.outcome.requires[0]}")
                if claim.task == "second":
                    worker.stop()
                else:
                    await fleet.tasks.publish("second", requires=["build"])

            serving = asyncio.create_task(worker.serve())
            await fleet.tasks.publish("first", requires=["build"])
            await asyncio.wait_for(serving, PATIENCE)
            (left,) = (await fleet.tasks.list()).tasks
            assert (left.task, left.attempts) == ("plain", 0)
            return said

    assert asyncio.run(main()) == ["first build", "second build"]


def test_a_call_that_takes_too_long_fails_its_attempt_and_its_thread_is_free_when_it_returns(
    fleet: interlock.Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    publish(fleet, 2, retries=0)
    worker = fleet.tasks.work()
    seen: list[str] = []

    @worker.on(timeout="50ms")
    def slow(claim: Claim) -> str:
        if claim.data == 0:
            until(lambda: claim.lost)
            seen.append(states(fleet)["t1"])
            return "too late"
        worker.stop()
        return "in time"

    worker.serve()
    found = tasks(fleet)
    assert (found["t0"].state, found["t0"].reason) == ("dead", "the handler took longer than 0 s")
    assert seen == ["pending"]  # the thread was busy
    assert found["t1"].state == "complete"
    assert "its thread is still busy" in caplog.text


def test_a_call_in_an_event_loop_that_takes_too_long_is_cancelled(store: MemoryStore) -> None:
    async def main() -> None:
        async with await aio.connect(agent="ada", store=store) as fleet:
            for number in range(2):
                await fleet.tasks.publish(f"t{number}", number, retries=0)
            worker = fleet.tasks.work()

            async def slow(claim: AsyncClaim) -> None:
                if claim.data == 0:
                    await asyncio.sleep(3600)
                worker.stop()
                raise TimeoutError("its own")

            await asyncio.wait_for(worker.serve(slow, timeout=0.05), PATIENCE)
            reasons = [each.reason for each in (await fleet.tasks.list()).tasks]
            assert reasons == ["the handler took longer than 0 s", "TimeoutError: its own"]

    asyncio.run(main())


def _twice(worker: Worker) -> None:
    worker.on("a")(print)
    worker.on("b", "a")(print)


def _rest_twice(worker: Worker) -> None:
    worker.on()(print)
    worker.serve(print)


BAD: list[tuple[str, Callable[[Worker], object]]] = [
    ("have a handler already", _twice),
    ("have a handler already", _rest_twice),
    ("has no handler", lambda worker: worker.serve()),
    ("is a function", lambda worker: worker.serve("build")),  # type: ignore[arg-type]
    ("timeout", lambda worker: worker.on("a", timeout="soon")(print)),
    ("type", lambda worker: worker.on("")(print)),
    ("one task at a time", list),
]


@pytest.mark.parametrize(("said", "act"), BAD)
def test_handlers_that_make_no_sense_are_refused(
    fleet: interlock.Fleet, said: str, act: Callable[[Worker], object]
) -> None:
    with pytest.raises(BadInput, match=said):
        act(fleet.tasks.work(concurrency=2))
    with pytest.raises(BadInput, match="concurrency"):
        fleet.tasks.work(concurrency=0)


def test_abilities_with_a_type_allow_nothing_without_it() -> None:
    able = ("gpu", "build", f"{ONLY}build")
    assert [
        can_do(able, each) for each in ((), ("gpu",), ("build",), ("build", "gpu"), ("x",))
    ] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert can_do((), ())
    assert can_do(("*", f"{ONLY}build"), ("build", "x"))
    assert not can_do(("*", f"{ONLY}build"), ("x",))
