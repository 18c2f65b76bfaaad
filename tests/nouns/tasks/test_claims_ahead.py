"""Where a user asks for it, a worker claims very short tasks ahead, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.grants.test_handover import strike_all
from tests.nouns.tasks.test_next_claim import commits, publish, states
from tests.processes import checks
from tests.processes.helpers import until

import interlock
from interlock import client_worker_ends
from interlock.client_tasks import Claim
from interlock.client_worker import Worker
from interlock.errors import StoreAway
from interlock.nouns.tasks.ready_index import Abilities
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.task_view import TaskView
from interlock.stores.memory import MemoryStore
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def ada(url: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(url, agent="ada") as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks count as short, on a machine with much to do, too."""
    monkeypatch.setattr("interlock.client_worker.AT_ONCE", 60.0)
    monkeypatch.setattr(client_worker_ends, "WORK", 60.0)
    monkeypatch.setattr(client_worker_ends, "LONGEST", 60.0)


def work(
    fleet: interlock.Fleet, last: str, each: Callable[[Claim], object] = lambda _: None
) -> list[str]:
    """Work in a loop, up to this task; returns the tasks in their order."""
    done: list[str] = []
    worker = fleet.tasks.work(stop_on_signals=False, ahead=16)
    for claim in worker:
        with claim:
            done.append(claim.task)
            if claim.task == last:
                worker.stop()
            each(claim)
    return done


def go_on(worker: Worker) -> None:
    """Work until something ends the loop."""
    for claim in worker:
        with claim:
            pass


def names(number: int) -> list[str]:
    return [f"t{each:02}" for each in range(number)]


def test_short_tasks_are_claimed_and_ended_together_in_their_order(ada: interlock.Fleet) -> None:
    tasks = names(12)
    publish(ada, *tasks)
    assert work(ada, "t11") == tasks
    assert set(states(ada).values()) == {"complete"}
    told = commits(ada)
    assert told[:3] == ["claimed t00", "completed t00", "claimed t01"]  # how it goes on is unknown
    assert told[3:] == [
        "completed t01, claimed t02, claimed t03",
        "completed t02, completed t03, " + ", ".join(f"claimed {task}" for task in tasks[4:8]),
        ", ".join(f"completed {task}" for task in tasks[4:8])
        + ", "
        + ", ".join(f"claimed {task}" for task in tasks[8:12]),
        ", ".join(f"completed {task}" for task in tasks[8:11]),
        "completed t11",
    ]
    assert ada.record.verify().exit_status == 0


def test_a_server_ends_short_tasks_together_too(ada: interlock.Fleet) -> None:
    tasks = names(30)
    publish(ada, *tasks)
    worker = ada.tasks.work(stop_on_signals=False)

    def handle(claim: Claim) -> str:
        if claim.task == tasks[-1]:
            worker.stop()
        return claim.task

    worker.serve(handle)
    assert set(states(ada).values()) == {"complete"}
    shown = ada.tasks.show("t07")
    assert isinstance(shown, TaskView)
    assert shown.result == "t07"
    assert len(commits(ada)) < len(tasks) / 2


def test_whoever_asks_how_an_earlier_claim_ended_learns_it(ada: interlock.Fleet) -> None:
    publish(ada, *names(12))
    before: list[Claim] = []

    def look(claim: Claim) -> None:
        assert not claim.settled
        assert [each.ended for each in before[-1:]] in ([], ["completed"])
        assert all(each.settled for each in before)
        before.append(claim)

    assert work(ada, "t11", look) == names(12)


def test_tasks_that_take_long_are_claimed_one_by_one(
    ada: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_worker_ends, "WORK", 0.0)
    publish(ada, *names(6))
    work(ada, "t05")
    assert all(told.count("claimed") <= 1 for told in commits(ada))


def test_a_long_task_after_short_ones_leaves_the_others_to_other_workers(
    ada: interlock.Fleet, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_worker_ends, "LONGEST", 0.01)
    publish(ada, *names(8))
    with interlock.connect(url, agent="bob") as bob:

        def each(claim: Claim) -> None:
            if claim.task == "t05":  # t06 and t07 were claimed with it, and t04 is put off
                assert isinstance(bob.tasks.claim("t07", wait=20), Claimed)
                assert isinstance(bob.tasks.claim("t06", wait=20), Claimed)
                until(lambda: states(bob)["t04"] == "complete")
                worker.stop()

        worker = ada.tasks.work(stop_on_signals=False, ahead=16)
        for claim in worker:
            with claim:
                each(claim)
        assert states(bob) == dict.fromkeys(names(6), "complete") | {
            "t06": "running",
            "t07": "running",
        }
        shown = bob.tasks.show("t07")
        assert shown
        assert shown.attempts == 0, "it was not begun"


def test_the_thread_that_ends_what_is_put_off_outlives_a_failure(
    ada: interlock.Fleet,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client_worker_ends, "LONGEST", 0.01)
    go_on, failed = client_worker_ends.PutOffEnds.go_on_without, threading.Event()

    def fail_once(ends: client_worker_ends.PutOffEnds) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("unforeseen")
        go_on(ends)

    monkeypatch.setattr(client_worker_ends.PutOffEnds, "go_on_without", fail_once)
    publish(ada, *names(8))
    with interlock.connect(url, agent="bob") as bob:

        def each(claim: Claim) -> None:
            if claim.task == "t05":
                assert isinstance(bob.tasks.claim("t07", wait=60), Claimed)

        work(ada, "t05", each)
    assert failed.is_set()
    said = "interlock-late-end failed, and begins again: ValueError('unforeseen')"
    assert caplog.messages.count(said) == 1


@pytest.mark.parametrize("stops", [False, True])
def test_a_loop_that_is_left_ends_what_is_done_and_releases_what_is_not_begun(
    ada: interlock.Fleet, stops: bool
) -> None:
    publish(ada, *names(8))
    worker = ada.tasks.work(stop_on_signals=False, ahead=16)
    for claim in worker:
        with claim:
            pass
        if claim.outcome.task == "t05":
            if not stops:
                break
            worker.stop()
    until(lambda: states(ada)["t07"] == "pending")
    assert states(ada) == dict.fromkeys(names(6), "complete") | {"t06": "pending", "t07": "pending"}
    assert work(ada, "t07") == ["t06", "t07"]


class Ends:
    """What the thread of late ends watches: a loop that goes on, or one that does not."""

    goes_on = True
    keep_others_waiting = False

    def __init__(self) -> None:
        self._steps = count()
        self._step = 0

    @property
    def steps(self) -> int:
        if self.goes_on:
            self._step = next(self._steps)
        return self._step

    def go_on_without(self) -> None:
        self.keep_others_waiting = False


def test_a_loop_that_goes_on_wakes_no_thread_with_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two blocks nothing waits, and the thread that looks then is not sent to sleep."""
    monkeypatch.setattr(client_worker_ends, "LONGEST", 0.0)
    ends: Any = Ends()
    late = client_worker_ends.LateEnd(ends)
    late.begin()
    until(lambda: ends._step > 20 or not late._wanted.is_set())
    assert late._wanted.is_set()
    ends.goes_on = False
    until(lambda: not late._wanted.is_set())
    ends.keep_others_waiting = True
    late.begin()
    until(lambda: not ends.keep_others_waiting)
    late.stop()


def test_a_call_in_a_block_finds_the_earlier_tasks_complete(ada: interlock.Fleet) -> None:
    publish(ada, *names(6))

    def each(claim: Claim) -> None:
        if claim.task == "t04":
            done = states(ada)
            assert [done[task] for task in names(4)] == ["complete"] * 4
            assert done["t05"] == "running", "claimed ahead"

    work(ada, "t05", each)
    assert set(states(ada).values()) == {"complete"}


def test_an_attempt_that_fails_harms_no_other(
    ada: interlock.Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    publish(ada, *names(8))

    def each(claim: Claim) -> None:
        if claim.task == "t05":
            raise ValueError("broken")

    assert work(ada, "t07", each) == names(8)
    assert states(ada) == dict.fromkeys(names(8), "complete") | {"t05": "pending"}
    assert "task t05 failed" in caplog.text


def test_a_task_with_a_failed_attempt_is_claimed_alone(ada: interlock.Fleet) -> None:
    """It may kill its worker, and the tasks that are claimed with it would count that, too."""
    for name in names(8):
        ada.tasks.publish(name, backoff=0)
    for bad in ("t04", "t06"):
        got = ada.tasks.claim(bad)
        assert isinstance(got, Claimed)
        ada.tasks.fail(bad, token=got.token)
    work(ada, "t07")
    claims = [told for told in commits(ada) if "claimed" in told]
    assert [told.count("claimed") for told in claims if "claimed t04" in told][1:] == [1]
    assert [told.count("claimed") for told in claims if "claimed t06" in told][1:] == [1]
    assert set(states(ada).values()) == {"complete"}


@pytest.mark.parametrize("make", [Testbed.client, Testbed.remote])
def test_a_task_without_retries_is_claimed_alone(make: Callable[..., Client]) -> None:
    """A kill of its worker would end it, though it may not have begun."""
    stage = Testbed()
    worker = make(stage, "ada", ttl=60.0)
    for name, retries in (("a", 3), ("b", 3), ("once", 0), ("c", 3), ("d", 3)):
        worker.run(worker.tasks.publish(name, retries=retries))
    claims, identity = worker.context.tasks.claims, worker.context.identity

    def claimed() -> list[str]:
        several = claims.several(identity, Abilities(frozenset()), None, 8, apart=False, ahead=True)
        actor = identity.actor
        done = worker.run(worker.context.tasks.complete_several(actor, (), several))
        return [each.task for each in done.claims]

    assert [claimed() for _ in range(4)] == [["a", "b"], ["once"], ["c", "d"], []]


def test_what_cannot_end_with_the_others_ends_alone(ada: interlock.Fleet) -> None:
    publish(ada, *names(8))
    ada.tasks.publish("after", needs=["t05"])
    work(ada, "after")
    assert set(states(ada).values()) == {"complete"}
    assert "completed t05, ready after" in ",".join(commits(ada))


def test_a_claim_that_was_taken_away_does_not_keep_the_others_from_ending(
    ada: interlock.Fleet, url: str
) -> None:
    publish(ada, *names(8))
    with interlock.connect(url, agent="bob") as bob:

        def each(claim: Claim) -> None:
            if claim.task == "t05":
                bob.tasks.requeue("t04", "it hangs")

        work(ada, "t07", each)
        assert states(bob) == dict.fromkeys(names(8), "complete") | {"t04": "pending"}


def test_results_are_kept_and_large_ones_are_written_alone(ada: interlock.Fleet) -> None:
    publish(ada, *names(8))
    worker = ada.tasks.work(stop_on_signals=False)

    def handle(claim: Claim) -> object:
        if claim.task == "t07":
            worker.stop()
        return "x" * 50_000 if claim.task == "t05" else {"of": claim.task}

    worker.serve(handle)
    for name in names(8):
        shown = ada.tasks.show(name)
        assert shown
        assert shown.state == "complete"
        assert shown.result == ("x" * 50_000 if name == "t05" else {"of": name})


def test_while_the_store_is_away_nothing_is_lost_and_the_worker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    with interlock.connect(store=store, agent="ada") as ada:
        for name in names(8):
            ada.tasks.publish(name, backoff=0)
        transact, left = store.transact, [0]

        def failing(*args: object) -> object:
            if left[0]:
                left[0] -= 1
                raise StoreAway("it is away")
            return transact(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "transact", failing)
        seen: list[str] = []
        worker = ada.tasks.work(stop_on_signals=False, ahead=16)
        for claim in worker:
            with claim:
                seen.append(claim.task)
                if claim.task == "t05":
                    left[0] = 2  # the commit of all ends, and then the end of the first one
                if set(seen) == set(names(8)) and len(seen) > 7:
                    worker.stop()
        until(lambda: "running" not in states(ada).values())
        assert set(seen) == set(names(8))
        left_over = [task for task, state in states(ada).items() if state != "complete"]
        assert not left_over or work(ada, left_over[-1]) == left_over
        assert set(states(ada).values()) == {"complete"}


@pytest.mark.parametrize("ahead", [1, 16])
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.proof)])
def test_a_loop_that_is_struck_anywhere_leaves_nothing_claimed(
    every: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = count()
    make = Worker.__init__

    def eager(self: Worker, *args: object, **options: object) -> None:
        make(self, *args, **options)  # type: ignore[arg-type]
        self._went_on_at_once, self._ends._ahead = True, min(ahead, 2)

    monkeypatch.setattr(Worker, "__init__", eager)
    with interlock.connect(store=MemoryStore(), agent="ada") as fleet:

        def loop() -> None:
            for left in fleet.tasks.list(state=["pending"]).tasks:
                fleet.tasks.cancel(left.task)
            tasks = [f"t{next(numbers)}" for _ in range(6)]
            for task in tasks:
                fleet.tasks.publish(task, backoff=0)
            worker = fleet.tasks.work(stop_on_messages=False, ahead=ahead)
            for claim in worker:
                with claim:
                    if claim.task == tasks[4]:
                        worker.stop()

        loop()
        strike_all(fleet, loop, every=every)


def test_claims_that_are_lost_are_not_begun(ada: interlock.Fleet) -> None:
    """As after a process that was stopped for longer than its session lives."""
    publish(ada, *names(8))
    lease = ada.context.session_lease
    assert lease is not None
    begun: list[str] = []
    worker = ada.tasks.work(stop_on_signals=False, ahead=16)
    for claim in worker:
        with claim:
            begun.append(claim.task)
            if claim.task == "t05":
                lease.ends = -1e9
                assert claim.lost
                worker.stop()
    assert begun == names(6), "t06 and t07 were claimed ahead"


def test_another_thread_may_end_what_is_put_off_at_any_moment(ada: interlock.Fleet) -> None:
    worker = ada.tasks.work(stop_on_signals=False, ahead=16)
    ends, clock = worker._ends, worker._ends._clock

    def meanwhile() -> float:
        thread = threading.Thread(target=ends.go_on_without)
        thread.start()
        thread.join()
        return clock()

    publish(ada, *names(12))
    for claim in worker:
        with claim:
            if claim.task == "t11":
                worker.stop()
        ends._clock = meanwhile  # from now on: at each look at the clock
    assert set(states(ada).values()) == {"complete"}


def test_an_interrupt_of_the_commit_that_ends_them_loses_no_work(
    ada: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ada, *names(8))
    worker = ada.tasks.work(stop_on_signals=False, ahead=16)
    end = client_worker_ends.PutOffEnds._end

    def interrupted(self: client_worker_ends.PutOffEnds, found: Any, *args: Any) -> None:
        if len(found) == 4:
            monkeypatch.undo()
            raise KeyboardInterrupt
        end(self, found, *args)

    monkeypatch.setattr(client_worker_ends.PutOffEnds, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go_on(worker)
    assert [task for task, state in states(ada).items() if state == "complete"] == names(8)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_of_a_call_that_ends_them_first_sends_no_finished_work_back(
    ada: interlock.Fleet, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    publish(ada, *names(16))
    end, left = client_worker_ends.PutOffEnds._end, [times]
    interrupted: list[int] = []

    def strike(self: client_worker_ends.PutOffEnds, found: Any, limit: int, loop: Any) -> None:
        if limit == 0 and len(found) >= 3 and left[0]:
            left[0] -= 1
            interrupted.append(len(found))
            raise KeyboardInterrupt
        end(self, found, limit, loop)

    monkeypatch.setattr(client_worker_ends.PutOffEnds, "_end", strike)
    done: list[str] = []

    def look(claim: Claim) -> None:
        if len(done) == 11:  # in the middle of those that were claimed together
            ada.locks.acquire("any")
        done.append(claim.task)

    with pytest.raises(KeyboardInterrupt):
        work(ada, "t15", look)
    assert interrupted
    complete = [task for task, state in states(ada).items() if state == "complete"]
    assert complete == done


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_end_of_a_loop_that_is_interrupted_again_and_again_says_what_goes_back(
    ada: interlock.Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(ada, *names(8))

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    def look(claim: Claim) -> None:
        if claim.task == "t06":
            monkeypatch.setattr(client_worker_ends.PutOffEnds, "_end", strike)

    with pytest.raises(KeyboardInterrupt):
        work(ada, "t07", look)
    until(lambda: "running" not in states(ada).values())
    assert "tasks were not ended, and go back: interrupted" in caplog.text


def test_in_a_session_that_another_process_keeps_nothing_is_claimed_ahead(
    url: str, ada: interlock.Fleet
) -> None:
    publish(ada, *names(12))
    session = ada.context.identity.actor.session
    with interlock.connect(url, session=session) as inside:
        assert work(inside, "t11") == names(12)
    assert all(told.count("claimed") <= 1 for told in commits(ada))


def test_a_fork_in_the_loop_ends_nothing_of_the_parent_and_hangs_nowhere(
    ada: interlock.Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    publish(ada, *names(12))
    statuses: list[int] = []

    def look(claim: Claim) -> None:
        if claim.task != "t09":
            return
        ends = client_worker_ends._loops
        locks = [each.ending for each in ends]
        held, leave = threading.Event(), threading.Event()

        def hold() -> None:
            for lock in locks:
                lock.acquire()
            held.set()
            leave.wait(60)
            for lock in locks:
                lock.release()

        other = threading.Thread(target=hold)
        other.start()
        held.wait(60)
        child = os.fork()
        if not child:
            try:
                ada.locks.acquire("any")
            except interlock.errors.StoreClosed:
                os._exit(3)
            finally:
                os._exit(4)
        leave.set()
        other.join()
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert work(ada, "t11", look) == names(12)
    assert statuses == [3]
    assert set(states(ada).values()) == {"complete"}
    assert "go back" not in caplog.text


def test_a_claim_that_an_interrupt_kept_from_the_loop_is_released_at_once(
    ada: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ada, *names(8))
    worker = ada.tasks.work(stop_on_signals=False, ahead=16)
    yours = Worker._yours

    def interrupted(self: Worker, working: Any) -> Any:
        if working is not None and working.claimed.task == "t05":
            raise KeyboardInterrupt
        return yours(self, working)

    monkeypatch.setattr(Worker, "_yours", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        go_on(worker)
    until(lambda: "running" not in states(ada).values())
    assert kept.value.__traceback__ is not None, "which keeps all frames of the loop alive"


def in_a_thread(worker: Worker, each: Callable[[Claim], object]) -> threading.Thread:
    """Work in a loop of a daemon thread."""

    def work() -> None:
        for claim in worker:
            with claim:
                each(claim)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_closing_the_client_ends_what_is_done_and_begins_nothing(url: str) -> None:
    fleet, begun = interlock.connect(url, agent="ada"), []
    publish(fleet, *names(8))
    reached, closed = threading.Event(), threading.Event()

    def each(claim: Claim) -> None:
        begun.append(claim.task)
        if claim.task == "t05":  # t06 and t07 were claimed with it, and t04 is put off
            reached.set()
            closed.wait(60)

    thread = in_a_thread(fleet.tasks.work(stop_on_messages=False, ahead=16), each)
    assert reached.wait(60)
    fleet.close()
    closed.set()
    thread.join(60)
    assert begun == names(6)
    with interlock.connect(url, agent="bob") as bob:
        left = dict.fromkeys(("t05", "t06", "t07"), "pending")
        assert states(bob) == dict.fromkeys(names(5), "complete") | left
        released = {line.thing for line in bob.record.log(limit=100) if line.verb == "task.release"}
        assert {"task/t06", "task/t07"} <= released, "not only with the end of the session"


def test_closing_the_client_waits_for_ends_that_are_under_way(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = interlock.connect(url, agent="ada")
    publish(fleet, *names(8))
    end, done = client_worker_ends.PutOffEnds._end, list[str]()
    under_way, go_on = threading.Event(), threading.Event()

    def slow(self: client_worker_ends.PutOffEnds, found: Any, *args: Any) -> None:
        if len(found) == 4:
            under_way.set()
            go_on.wait(60)
        end(self, found, *args)

    monkeypatch.setattr(client_worker_ends.PutOffEnds, "_end", slow)
    worker = fleet.tasks.work(stop_on_messages=False, ahead=16)
    thread = in_a_thread(worker, lambda claim: done.append(claim.task))
    assert under_way.wait(60)
    closing = threading.Thread(target=fleet.close)
    closing.start()
    until(lambda: worker.stopped or not closing.is_alive())
    go_on.set()
    closing.join(60)
    thread.join(60)
    with interlock.connect(url, agent="bob") as bob:
        complete = [task for task, state in states(bob).items() if state == "complete"]
        assert complete == done == names(len(done))
        assert "running" not in states(bob).values()


WORKER = """
import sys, interlock
with interlock.connect(sys.argv[1], agent="struck", ttl=2) as fleet:
    for claim in fleet.tasks.work(stop_on_signals=False, ahead=16):
        with claim:
            print(claim.task, flush=True)
"""


def test_a_worker_that_is_killed_anywhere_leaves_only_what_it_had_claimed_ahead(url: str) -> None:
    tasks = names(60)
    with interlock.connect(url, agent="bob") as bob:
        for name in tasks:
            bob.tasks.publish(name, retries=5, backoff=0)
        for after in (1, 2, 5, 8, 20):
            worker = subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE)
            assert worker.stdout is not None
            for _ in range(after):
                worker.stdout.readline()
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
            struck = bob.tasks.list(state=["running"]).tasks
            assert len(struck) <= client_worker_ends.MOST_AHEAD
            for each in struck:
                bob.tasks.requeue(each.task, "its worker was killed")
        while got := bob.tasks.next():
            bob.tasks.complete(got.task, token=got.token)
        assert set(states(bob).values()) == {"complete"}
        ends = [each for told in commits(bob) for each in told.split(", ")]
        ends = [each for each in ends if each.startswith("completed ")]
        assert sorted(ends) == [f"completed {name}" for name in tasks], "each once"
    checks.sound(url, heads=2)  # the worker's own, and the report of its status


def test_threads_that_share_the_work_claim_nothing_ahead(ada: interlock.Fleet) -> None:
    publish(ada, *names(12))
    worker = ada.tasks.work(stop_on_signals=False, concurrency=2, ahead=16)
    left, guard = set(names(12)), threading.Lock()

    def handle(claim: Claim) -> None:
        with guard:
            left.discard(claim.task)
            if not left:
                worker.stop()

    worker.serve(handle)
    assert set(states(ada).values()) == {"complete"}
    assert all(told.count("claimed") <= 1 for told in commits(ada))
