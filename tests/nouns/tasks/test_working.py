"""Workers of both clients: claimed tasks are done, and tasks that they leave are released."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.clock import SystemClock
from interlock.core import keys
from interlock.errors import Lapsed, Lost, StoreAway, StoreBusy, Unavailable
from interlock.nouns.tasks.task import State, TaskEvent
from interlock.nouns.tasks.task_outcomes import NoTask
from interlock.nouns.tasks.task_reader import decode_result, decode_status
from interlock.nouns.tasks.worker import SIGNALS
from interlock.steps import drive, drive_async
from interlock.store import Ref, Snapshot
from interlock.stores.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def fleet(store: MemoryStore) -> Iterator[interlock.Fleet]:
    with interlock.connect(agent="ada", store=store) as fleet:
        yield fleet


def publish(fleet: interlock.Fleet, many: int, backoff: float = 0) -> None:
    for number in range(many):
        fleet.tasks.publish(f"t{number}", number, backoff=backoff)


def stands(store: MemoryStore, many: int) -> list[State]:
    found = [decode_status(store.read(key)[key]) for key in map(keys.status, names(many))]
    return [status.state for status in found if status is not None]


def came_of(store: MemoryStore, task: str) -> bytes | None:
    found = decode_result(store.read(keys.result(task))[keys.result(task)])
    return None if found is None else bytes(found.result or b"")


def names(many: int) -> list[str]:
    return [f"t{number}" for number in range(many)]


def in_a_loop(
    store: MemoryStore,
    many: int,
    body: Callable[[aio.Fleet], Awaitable[None]],
    backoff: float = 0,
) -> None:
    """Connect in an event loop, publish some tasks, and do this, within a time limit."""

    async def main() -> None:
        fleet = await aio.connect(agent="ada", store=store)
        for number in range(many):
            await fleet.tasks.publish(f"t{number}", number, backoff=backoff)
        try:
            await body(fleet)
        finally:
            await fleet.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def eventually(condition: Callable[[], bool]) -> None:
    """Let others go on until it is so."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


async def beat(fleet: aio.Fleet) -> None:
    """Let the keeper look now, in a task of its own as it does."""
    await asyncio.create_task(drive_async(fleet.context.keeper.beat(), fleet.store))


def test_a_loop_completes_nothing_that_it_neither_entered_nor_settled(
    fleet: interlock.Fleet, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    publish(fleet, 3, backoff=60)
    seen = []
    worker = fleet.tasks.work()
    for claim in worker:
        seen.append(claim.data)
        if claim.data == 1:
            claim.complete()
        if claim.data == 2:
            worker.stop("enough")
        continue
    assert seen == [0, 1, 2]
    assert stands(store, 3) == ["pending", "complete", "pending"]
    assert why_failed(fleet, "t0") == "the loop went on without completing it"
    assert worker.stopped == "enough"
    assert "use 'with claim:' in the loop" in caplog.text


def test_a_loop_that_is_left_fails_its_attempt(fleet: interlock.Fleet, store: MemoryStore) -> None:
    """A task that kills its worker rests before the next attempt, and ends as a dead letter."""
    publish(fleet, 2, backoff=60)
    for claim in fleet.tasks.work():
        assert claim.token
        break
    with pytest.raises(ValueError, match="invalid literal"):
        [int(claim.task) for claim in fleet.tasks.work()]
    assert stands(store, 2) == ["pending", "pending"]
    for task in ("t0", "t1"):
        assert why_failed(fleet, task) == "the loop was left without completing it"


def test_a_loop_that_is_left_to_stop_releases_its_claim(
    fleet: interlock.Fleet, store: MemoryStore
) -> None:
    publish(fleet, 1)
    worker = fleet.tasks.work()
    for _claim in worker:
        worker.stop()
        break
    assert stands(store, 1) == ["pending"]
    assert not list(fleet.record.log(verb="task.fail"))


def test_what_a_block_in_a_loop_raises_fails_the_attempt_and_the_worker_goes_on(
    fleet: interlock.Fleet, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    publish(fleet, 3, backoff=60)
    worker = fleet.tasks.work()
    for claim in worker:
        with claim:
            if claim.task == "t0":
                int("not a number")
            if claim.task == "t2":
                worker.stop()
    assert stands(store, 3) == ["pending", "complete", "complete"]
    assert "invalid literal" in str(why_failed(fleet, "t0"))
    assert "task t0 failed" in caplog.text


def why_failed(fleet: interlock.Fleet, task: str) -> object:
    shown = fleet.tasks.show(task)
    assert not isinstance(shown, NoTask)
    return shown.reason


def test_a_block_in_the_loop_says_what_became_of_the_task(
    fleet: interlock.Fleet, store: MemoryStore
) -> None:
    publish(fleet, 3)
    attempts = []
    worker = fleet.tasks.work()
    for claim in worker:
        attempts.append((claim.task, claim.attempt))
        with claim:
            if claim.task == "t0" and claim.attempt == 1:
                int("not yet")
            if claim.task == "t1":
                claim.fail("never", retry=False)
        if len(attempts) == 4:
            worker.stop()
    assert sorted(attempts) == [("t0", 1), ("t0", 2), ("t1", 1), ("t2", 1)]
    assert stands(store, 3) == ["complete", "failed", "complete"]


def test_a_worker_waits_and_can_be_stopped_from_another_thread(fleet: interlock.Fleet) -> None:
    worker = fleet.tasks.work()
    done: list[object] = []

    def work() -> None:
        done.extend(claim.data for claim in worker)

    thread = threading.Thread(target=work)
    thread.start()
    fleet.tasks.publish("t0", "first")
    until(lambda: done)
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert done == ["first"]


def test_a_worker_ends_when_its_client_is_closed(store: MemoryStore) -> None:
    fleet = interlock.connect(agent="ada", store=store)
    worker = fleet.tasks.work()
    thread = threading.Thread(target=list, args=(worker,))
    thread.start()
    until(lambda: fleet.context.tasks.housekeeping.seconds_to_next_look() is None)
    fleet._stopped.set()
    fleet.agents.leave()
    fleet.tasks.publish("t0")
    thread.join(30)
    assert not thread.is_alive()
    assert worker.stopped == "the client was closed"


def test_a_worker_whose_session_is_over_says_so(fleet: interlock.Fleet) -> None:
    fleet.agents.leave()
    drive(fleet.context.keeper.beat(), fleet.store)
    with pytest.raises(Lapsed):
        list(fleet.tasks.work())


def test_a_session_that_lapses_ends_a_worker_that_waits(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        async def handle(_claim: AsyncClaim) -> None:
            pass

        serving = asyncio.create_task(fleet.tasks.serve(handle))
        await asyncio.sleep(0)
        await fleet.agents.leave()
        await beat(fleet)
        with pytest.raises(Lapsed):
            await serving

    in_a_loop(store, 0, body)


def test_a_session_that_lapses_ends_a_thread_that_waits(
    fleet: interlock.Fleet, store: MemoryStore
) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            list(fleet.tasks.work())
        except Lapsed as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    fleet.agents.leave()
    drive(fleet.context.keeper.beat(), store)
    thread.join(30)
    assert failed


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_lets_the_loop_finish_and_the_second_does_not(
    fleet: interlock.Fleet, store: MemoryStore, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    publish(fleet, 3)
    worker = fleet.tasks.work()
    for claim in worker:
        with claim:
            os.kill(os.getpid(), number)
    assert worker.stopped == number.name
    assert stands(store, 3) == ["complete", "pending", "pending"]
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        fleet.tasks.serve(lambda _: twice(number))
    assert stands(store, 3) == ["complete", "pending", "pending"]
    assert signal.getsignal(number) is before


def twice(number: signal.Signals) -> None:
    for _ in range(2):
        os.kill(os.getpid(), number)


def test_served_tasks_have_what_the_handler_returned(
    fleet: interlock.Fleet,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(fleet, 3)
    worker = fleet.tasks.work(ahead=1)  # t2 comes after all of t1

    def handle(claim: Claim) -> object:
        if claim.task == "t2":
            worker.stop()
        return {"name": claim.task} if claim.task != "t1" else int("never")

    worker.serve(handle)
    assert stands(store, 3) == ["complete", "dead", "complete"]
    kept = store.read(keys.result("t2"))[keys.result("t2")]
    assert kept is not None
    assert b'{"name":"t2"}' in kept.value
    assert "task t1 failed" in caplog.text


def test_a_claim_is_held_by_name_and_refused_to_others(
    fleet: interlock.Fleet, store: MemoryStore
) -> None:
    publish(fleet, 1)
    with fleet.tasks.hold("t0", ttl=5) as claim:
        assert not claim.lost
        with pytest.raises(Unavailable, match="taken by ada"), fleet.tasks.hold("t0"):
            pass
        with fleet.lock("merge", given=[claim.check()]):
            pass
    assert claim.settled
    assert stands(store, 1) == ["complete"]


def test_a_loop_in_an_event_loop_completes_nothing_by_accident_likewise(
    store: MemoryStore,
) -> None:
    async def reason(fleet: aio.Fleet, task: str) -> str:
        shown = await fleet.tasks.show(task)
        assert not isinstance(shown, NoTask)
        return shown.reason

    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work()
        async for claim in worker:
            if claim.task == "t1":
                async with claim:
                    worker.stop()
                    int("not a number")
        assert stands(store, 3) == ["pending", "pending", "pending"]
        assert await reason(fleet, "t0") == "the loop went on without completing it"
        assert "invalid literal" in await reason(fleet, "t1")
        async for claim in fleet.tasks.work():
            assert claim.task == "t2"
            break
        del claim
        await eventually(lambda: stands(store, 3)[2] == "pending")  # the loop closes what is left
        assert await reason(fleet, "t2") == "the loop was left without completing it"

    in_a_loop(store, 3, body, backoff=60)


def test_several_are_open_at_once_but_never_more_than_asked_for(store: MemoryStore) -> None:
    most = now = done = 0

    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work(concurrency=4)
        full = asyncio.Event()

        async def handle(_claim: AsyncClaim) -> None:
            nonlocal most, now, done
            now += 1
            most = max(most, now)
            if now == 4:
                for _ in range(50):  # turns in which one more could come
                    await asyncio.sleep(0)
                full.set()
            await full.wait()
            now -= 1
            done += 1
            if done == 20:
                worker.stop()

        await worker.serve(handle)
        assert stands(store, 20) == ["complete"] * 20

    in_a_loop(store, 20, body)
    assert most == 4


def test_what_came_and_was_not_handed_out_is_given_back(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work(concurrency=3)
        loop = aiter(worker)
        claim = await anext(loop)
        async with claim:
            await eventually(lambda: stands(store, 5).count("running") == 3)
        await loop.aclose()  # type: ignore[attr-defined]
        assert sorted(stands(store, 5)) == ["complete", *["pending"] * 4]

    in_a_loop(store, 5, body)


def test_a_claim_that_everybody_forgot_makes_room_and_is_released(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work(concurrency=2)
        seen = 0
        async for claim in worker:
            del claim
            gc.collect()
            seen += 1
            if seen == 2:
                worker.stop()
        await eventually(lambda: stands(store, 1) == ["pending"])

    in_a_loop(store, 1, body)


def test_a_block_whose_claim_is_lost_is_cancelled_and_says_so(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        async def work() -> None:
            async with fleet.tasks.hold("t0"):
                await fleet.tasks.cancel("t0")
                await beat(fleet)
                await asyncio.sleep(60)

        with pytest.raises(Lost, match="task t0"):
            await work()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    in_a_loop(store, 1, body)


def test_a_block_that_is_cancelled_from_outside_releases(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with fleet.tasks.hold("t0"):
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stands(store, 1) == ["pending"]

    in_a_loop(store, 1, body)


def test_serving_goes_on_after_a_failure_and_says_it(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work(concurrency=2)
        seen: list[str] = []

        async def handle(claim: AsyncClaim) -> str:
            seen.append(claim.task)
            if len(seen) == 4:
                worker.stop()
            if claim.task == "t1" and claim.attempt == 1:
                raise ValueError("not yet")
            return claim.task

        await worker.serve(handle)
        assert sorted(seen) == ["t0", "t1", "t1", "t2"]
        assert stands(store, 3) == ["complete"] * 3

    with caplog.at_level(logging.ERROR):
        in_a_loop(store, 3, body)
    assert "task t1 failed" in caplog.text


def cut_once(
    monkeypatch: pytest.MonkeyPatch, store: MemoryStore, name: str, meant: Callable[[], bool]
) -> None:
    """The next call of this caller fails; the keeper may call at any time."""
    call = getattr(store, name)

    def cut(*arguments: object, **named: object) -> object:
        if not meant():
            return call(*arguments, **named)
        monkeypatch.undo()
        raise StoreBusy("another process delays it")

    monkeypatch.setattr(store, name, cut)


def test_served_work_that_was_done_is_complete_though_saying_so_met_trouble(
    fleet: interlock.Fleet,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(fleet, 1)
    worker = fleet.tasks.work()

    def handle(_claim: Claim) -> str:
        here = threading.current_thread()
        cut_once(monkeypatch, store, "transact", lambda: threading.current_thread() is here)
        worker.stop()
        return "done"

    worker.serve(handle)
    assert came_of(store, "t0") == b'"done"'
    assert "the end of task t0 goes on when this is over: another process delays it" in caplog.text


def test_the_same_is_so_in_an_event_loop(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work()

        async def handle(_claim: AsyncClaim) -> str:
            here = asyncio.current_task()
            cut_once(monkeypatch, store, "transact_async", lambda: asyncio.current_task() is here)
            worker.stop()
            return "done"

        await worker.serve(handle)
        assert came_of(store, "t0") == b'"done"'

    in_a_loop(store, 1, body)
    assert "the end of task t0 goes on when this is over: another process delays it" in caplog.text


def test_serving_ends_with_what_ended_it(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        async def handle(_claim: AsyncClaim) -> None:
            await asyncio.sleep(60)

        serving = asyncio.create_task(fleet.tasks.serve(handle, concurrency=2))
        await eventually(lambda: stands(store, 1) == ["running"])
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert stands(store, 1) == ["pending"]

    in_a_loop(store, 1, body)


def test_signals_reach_an_event_loop(store: MemoryStore) -> None:
    async def body(fleet: aio.Fleet) -> None:
        worker = fleet.tasks.work()
        async for claim in worker:
            async with claim:
                os.kill(os.getpid(), signal.SIGTERM)
        assert worker.stopped == "SIGTERM"
        assert stands(store, 2) == ["complete", "pending"]

        async def interrupted(_claim: AsyncClaim) -> None:
            twice(signal.SIGINT)
            await asyncio.sleep(60)

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(fleet.tasks.serve(interrupted))
        assert stands(store, 2) == ["complete", "pending"]

    in_a_loop(store, 2, body)


def test_a_waiting_worker_survives_a_store_that_is_away_for_a_while(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = [StoreAway("cut off"), StoreAway("cut off")]
    work = store.transact_async

    async def flaky(*arguments: object) -> object:
        if troubles:
            raise troubles.pop()
        return await work(*arguments)  # type: ignore[arg-type]

    async def body(fleet: aio.Fleet) -> None:
        monkeypatch.setattr("interlock.nouns.tasks.worker.AGAIN", 0.0)
        monkeypatch.setattr(store, "transact_async", flaky)
        worker = fleet.tasks.work()
        async for claim in worker:
            assert claim.task == "t0"
            await claim.complete()
            worker.stop()
        assert stands(store, 1) == ["complete"]

    in_a_loop(store, 1, body)
    assert not troubles


@pytest.mark.parametrize("leased", [True, False])
def test_a_worker_hears_that_it_is_to_stop_while_the_store_is_away(
    fleet: interlock.Fleet, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, leased: bool
) -> None:
    """With a lease of its own, and in a session that another process keeps alive."""
    asked = threading.Event()

    def away(*_: object, **__: object) -> object:
        asked.set()
        raise StoreAway("cut off")

    if not leased:
        monkeypatch.setattr(fleet.context, "session_lease", None)
    worker = fleet.tasks.work()
    thread = threading.Thread(target=list, args=(worker,), daemon=True)
    with monkeypatch.context() as outage:
        outage.setattr(store, "transact", away)
        thread.start()
        assert asked.wait(30)
        worker.stop("SIGTERM")
        thread.join(60)
        assert not thread.is_alive()


def test_a_subscriber_is_called_in_both_worlds(fleet: interlock.Fleet, store: MemoryStore) -> None:
    heard: list[TaskEvent] = []
    with fleet.tasks.subscribe(callback=heard.append), fleet.tasks.subscribe() as iterated:
        publish(fleet, 2)
        until(lambda: len(heard) == 2)
        assert [event.task for _, event in zip(range(2), iterated, strict=False)] == names(2)
    until(lambda: "interlock-events" not in {thread.name for thread in threading.enumerate()})

    async def body(other: aio.Fleet) -> None:
        asynchronous: list[str] = []

        async def hear(event: TaskEvent) -> None:
            asynchronous.append(event.event)

        async with (
            await other.tasks.subscribe(callback=hear),
            await other.tasks.subscribe(events=["completed"]) as events,
        ):
            await other.tasks.publish("later")
            async with other.tasks.hold("later"):
                pass
            async for event in events:
                assert event.task == "later"
                break
            await eventually(lambda: asynchronous == ["published", "claimed", "completed"])

    in_a_loop(MemoryStore(SystemClock()), 0, body)


def test_a_subscriber_goes_on_after_trouble_and_misses_nothing(
    fleet: interlock.Fleet,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []
    read = store.read

    def cut(*refs: Ref, **how: Any) -> Snapshot:
        if threading.current_thread().name != "interlock-events":
            return read(*refs, **how)
        monkeypatch.undo()
        raise StoreBusy("another process delays it")

    with fleet.tasks.subscribe(callback=lambda event: heard.append(event.task)):
        monkeypatch.setattr(store, "read", cut)
        publish(fleet, 2)
        until(lambda: heard == names(2))
    assert caplog.text.count("goes on when this is over: another process delays it") == 1


def test_a_subscriber_in_an_event_loop_goes_on_likewise(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    async def body(fleet: aio.Fleet) -> None:
        events = await fleet.tasks.subscribe(callback=lambda event: heard.append(event.task))
        async with events:
            its = events._task
            cut_once(monkeypatch, store, "read_async", lambda: asyncio.current_task() is its)
            await fleet.tasks.publish("t1")
            await fleet.tasks.publish("t2")
            await eventually(lambda: heard == ["t1", "t2"])

    in_a_loop(store, 1, body)
    assert caplog.text.count("goes on when this is over: another process delays it") == 1


def test_a_callback_that_fails_is_told_and_the_next_event_comes(
    fleet: interlock.Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def hear(event: TaskEvent) -> None:
        heard.append(event.task)
        raise ValueError("cannot hear")

    with fleet.tasks.subscribe(callback=hear):
        publish(fleet, 2)
        until(lambda: len(heard) == 2)
    assert heard == names(2)
    assert "cannot hear" in caplog.text


def test_nothing_is_claimed_for_a_worker_that_can_do_nothing_of_it(fleet: interlock.Fleet) -> None:
    fleet.tasks.publish("t0", requires=["gpu"])
    assert isinstance(fleet.tasks.next(can=["rust"]), NoTask)
    worker = fleet.tasks.work(can=["gpu"])
    for claim in worker:
        assert claim.task == "t0"
        worker.stop()


def test_a_worker_says_what_it_does_but_not_with_every_task(fleet: interlock.Fleet) -> None:
    publish(fleet, 50)
    worker = fleet.tasks.work(can=["rust"])
    for claim in worker:
        if claim.task == "t0":
            until(lambda: fleet.agents.show("ada")[0].doing == "task/t0")
        if claim.task == "t49":
            worker.stop()
    (ada,) = fleet.agents.show("ada")
    assert (ada.status, ada.can) == ("busy", ("rust",))
    said = fleet.record.log(verb="agent.status")
    assert len(said) < 10, "a report in a while, not one for each"


def test_somebody_who_can_do_everything_says_that(fleet: interlock.Fleet) -> None:
    publish(fleet, 1)
    for claim in fleet.tasks.work(can=["rust", "*"]):
        assert claim.task == "t0"
        until(lambda: fleet.agents.show("ada")[0].can == ("*",))
        break
