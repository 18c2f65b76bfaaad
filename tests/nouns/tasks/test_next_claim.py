"""One commit ends a task and claims the next: in loops, with handlers, and by a call of its own.

That it claims what ``next`` would claim right after is for ``test_task_machine.py``, and what a
crash leaves for ``test_crashes.py``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import interlock
from interlock import aio
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.errors import BadInput
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    NoTask,
    TaskBlocked,
    TaskCompleted,
    TaskFailed,
    TaskFenced,
)
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def ada(url: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(url, agent="ada") as fleet:
        yield fleet


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with much to do, a loop may not seem to go on at once."""
    monkeypatch.setattr("interlock.client_worker.AT_ONCE", 60.0)


def publish(fleet: interlock.Fleet, *names: str) -> None:
    for name in names:
        fleet.tasks.publish(name, {"name": name}, backoff=60)


def commits(fleet: interlock.Fleet) -> list[str]:
    """What each commit did to tasks since they were published, oldest first."""
    lines = [line for line in fleet.record.log(limit=1000) if line.verb != "task.publish"]
    found = []
    for line in sorted(lines, key=lambda line: line.revision):
        events = [(each.name, each.thing or line.thing) for each in line.events]
        said = [f"{name[5:]} {thing[5:]}" for name, thing in events if name.startswith("task:")]
        found += [", ".join(said)] if said else []
    return found


def states(fleet: interlock.Fleet) -> dict[str, str]:
    return {each.task: each.state for each in fleet.tasks.list(all=True).tasks}


# The call.


def test_the_next_task_comes_with_the_end_of_the_last_one(ada: interlock.Fleet) -> None:
    publish(ada, "a", "b", "c")
    got = ada.tasks.next()
    assert isinstance(got, Claimed)
    done = ada.tasks.complete("a", token=got.token, result=1, then_next=True)
    assert isinstance(done, TaskCompleted)
    assert isinstance(done.next, Claimed)
    assert (done.next.task, done.next.data) == ("b", {"name": "b"})
    failed = ada.tasks.fail("b", "broken", token=done.next.token, then_next=True, ttl="5m")
    assert isinstance(failed, TaskFailed)
    assert isinstance(failed.next, Claimed)
    assert (failed.next.task, failed.next.expires_in) == ("c", 300.0)
    last = ada.tasks.complete("c", token=failed.next.token, then_next=True)
    assert isinstance(last, TaskCompleted)
    assert isinstance(last.next, NoTask)
    assert commits(ada) == [
        *("claimed a", "completed a, claimed b", "failed b, claimed c", "completed c")
    ]
    assert ada.record.verify().exit_status == 0


def test_a_task_that_waited_for_this_one_can_be_the_next(ada: interlock.Fleet) -> None:
    publish(ada, "a")
    ada.tasks.publish("urgent", needs=["a"], priority=1, requires=["rust"])
    publish(ada, "b")
    got = ada.tasks.claim("a")
    assert isinstance(got, Claimed)
    done = ada.tasks.complete("a", token=got.token, then_next=True, can=["rust"])
    assert isinstance(done, TaskCompleted)
    assert isinstance(done.next, Claimed)
    assert done.next.task == "urgent"
    assert commits(ada)[-1] == "completed a, ready urgent, claimed urgent"
    assert ada.tasks.complete("urgent", token=done.next.token)
    assert ada.record.verify().exit_status == 0


@pytest.mark.parametrize("make", [Testbed.client, Testbed.remote])
def test_a_task_that_is_due_comes_before_the_one_that_just_failed(
    make: Callable[..., Client],
) -> None:
    stage = Testbed()
    worker = make(stage, "ada", ttl=60.0)
    worker.run(worker.tasks.publish("a", backoff=0))
    worker.run(worker.tasks.publish("due", priority=1, not_before=1))
    got = worker.run(worker.tasks.claim("a"))
    assert isinstance(got, Claimed)
    stage.clock.advance(2.0)
    failed = worker.run(worker.tasks.fail("a", token=got.token, then_next=True))
    assert isinstance(failed, TaskFailed)
    assert isinstance(failed.next, Claimed)
    assert failed.next.task == "due"


def test_a_worker_alone_keeps_the_order_although_its_claim_left_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Across a network a claim by name leaves its entry in the queue, which its end deletes."""
    stage = Testbed()
    worker = stage.remote("ada", ttl=60.0)
    monkeypatch.setattr(worker.context.runner, "random_below", lambda below: below - 1)
    for name in "abcd":
        worker.run(worker.tasks.publish(name))
    got = worker.run(worker.tasks.claim("a"))
    assert isinstance(got, Claimed)
    done = worker.run(worker.tasks.complete("a", token=got.token, then_next=True))
    assert isinstance(done, TaskCompleted)
    assert isinstance(done.next, Claimed)
    after = worker.run(worker.tasks.next())
    assert isinstance(after, Claimed)
    assert (done.next.task, after.task) == ("b", "c")


def test_who_lost_its_claim_claims_nothing_else(ada: interlock.Fleet) -> None:
    publish(ada, "a", "b")
    got = ada.tasks.next()
    assert isinstance(got, Claimed)
    ada.tasks.requeue("a", "it hangs")
    assert isinstance(ada.tasks.complete("a", token=got.token, then_next=True), TaskFenced)
    assert states(ada) == {"a": "pending", "b": "pending"}


def test_repeated_it_claims_once_more(ada: interlock.Fleet) -> None:
    """The first answer may have been lost with its process: the task is complete, so go on."""
    publish(ada, "a", "b", "c")
    got = ada.tasks.next()
    assert isinstance(got, Claimed)
    for task in ("b", "c"):
        done = ada.tasks.complete("a", token=got.token, then_next=True)
        assert isinstance(done, TaskCompleted)
        assert isinstance(done.next, Claimed)
        assert (done.next.task, done.already) == (task, task == "c")


def test_the_terms_of_a_next_task_need_one(ada: interlock.Fleet) -> None:
    publish(ada, "a")
    ada.tasks.claim("a")
    with pytest.raises(BadInput, match="then_next"):
        ada.tasks.complete("a", can=["rust"])


def test_a_task_with_guards_is_claimed_by_a_commit_of_its_own(ada: interlock.Fleet) -> None:
    ada.guards.define(interlock.guard.named("calm", interlock.guard.lock_free("deploy")))
    publish(ada, "a")
    ada.tasks.publish("guarded", guard="calm")
    ada.tasks.claim("a")
    done = ada.tasks.complete("a", then_next=True)
    assert isinstance(done, TaskCompleted)
    assert isinstance(done.next, Claimed)
    assert done.next.task == "guarded"
    assert [line for line in commits(ada) if "claimed" in line] == ["claimed a", "claimed guarded"]
    ada.tasks.publish("kept", guard="calm")
    ada.locks.acquire("deploy")
    assert isinstance(ada.tasks.claim("kept"), TaskBlocked)
    done = ada.tasks.complete("guarded", then_next=True)
    assert isinstance(done, TaskCompleted)
    assert isinstance(done.next, NoTask)


# Loops of the blocking client.


@pytest.mark.usefixtures("at_once")
def test_a_loop_that_goes_on_at_once_pays_one_commit_for_each_task(ada: interlock.Fleet) -> None:
    seen: list[str] = []
    worker = ada.tasks.work(stop_on_signals=False)
    publish(ada, "a", "b", "c", "d")
    for claim in worker:
        with claim:
            seen.append(claim.task)
            if claim.task == "c":
                raise ValueError("broken")
            if claim.task == "d":
                worker.stop()
    assert seen == ["a", "b", "c", "d"]
    assert states(ada) == {"a": "complete", "b": "complete", "c": "pending", "d": "complete"}
    assert commits(ada) == [
        *("claimed a", "completed a", "claimed b"),  # it is not known yet how the loop goes on
        *("completed b, claimed c", "failed c, claimed d", "completed d"),
    ]
    assert ada.record.verify().exit_status == 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_block_is_the_end_of_the_task(
    ada: interlock.Fleet, url: str, *, fails: bool
) -> None:
    names = ("a", "b", "c", "d")
    publish(ada, *names)
    worker = ada.tasks.work(stop_on_signals=False)
    with interlock.connect(url, agent="bob") as bob:
        for claim in worker:
            with claim:
                if claim.task == "d":
                    worker.stop()
                if fails:
                    raise ValueError("broken")
            assert states(bob)[claim.task] == ("pending" if fails else "complete")
            assert claim.ended == ("failed" if fails else "completed")
            assert list(states(bob).values()).count("running") <= 1


@pytest.mark.usefixtures("at_once")
def test_a_loop_that_is_left_has_released_the_claim_that_it_did_not_begin(
    ada: interlock.Fleet,
) -> None:
    publish(ada, "a", "b", "c", "d")
    for claim in ada.tasks.work(stop_on_signals=False):
        with claim:
            pass
        if claim.task == "c":
            break
    assert states(ada) == dict.fromkeys("abc", "complete") | {"d": "pending"}
    assert commits(ada)[-2:] == ["completed c, claimed d", "released d"]
    for claim in ada.tasks.work(stop_on_signals=False):
        with claim:
            assert claim.attempt == 1, "it was not begun"
            break
    assert states(ada)["d"] == "complete"


@pytest.mark.usefixtures("at_once")
def test_what_follows_the_block_finds_the_task_complete(ada: interlock.Fleet) -> None:
    publish(ada, "a", "b", "c", "d", "e")
    worker = ada.tasks.work(stop_on_signals=False)
    for claim in worker:
        with claim:
            pass
        match claim.data["name"]:
            case "b":
                assert claim.ended == "completed"
            case "c":
                assert states(ada)["c"] == "complete"
            case "d":
                with ada.lock("merge", wait=0):
                    assert states(ada)["d"] == "complete"
            case "e":
                worker.stop()
            case _:
                pass
    assert commits(ada).count("completed e") == 1


@pytest.mark.usefixtures("at_once")
def test_a_loop_that_does_not_go_on_leaves_the_next_task_to_others(
    ada: interlock.Fleet, url: str
) -> None:
    publish(ada, "a", "b", "c")
    worker = ada.tasks.work(stop_on_signals=False)
    with interlock.connect(url, agent="bob") as bob:
        for claim in worker:
            with claim:
                pass
            if claim.task == "b":  # the body waits for a task that came with the end of the block
                assert commits(ada)[-1] == "completed b, claimed c"
                assert isinstance(bob.tasks.claim("c", wait=20), Claimed)
                assert commits(ada)[-2:] == ["released c", "claimed c"]
                worker.stop()


@pytest.mark.usefixtures("at_once")
def test_closing_the_client_releases_what_another_thread_has_not_begun(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.client_worker_ends.LONGEST", 60.0)
    done, closed = threading.Event(), threading.Event()
    ada = interlock.connect(url, agent="ada")
    publish(ada, "a", "b", "c")

    def work() -> None:
        for claim in ada.tasks.work(stop_on_signals=False, stop_on_messages=False):
            with claim:
                pass
            if claim.task == "b":
                done.set()
                closed.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(20)
    ada.close()
    closed.set()
    thread.join(20)
    with interlock.connect(url, agent="bob") as bob:
        assert states(bob) == {"a": "complete", "b": "complete", "c": "pending"}


WORKER = """
import os, sys, threading, interlock

def work(fleet):
    for claim in fleet.tasks.work(stop_on_signals=False):
        with claim:
            pass
        print(claim.task, flush=True)

with interlock.connect(sys.argv[1], agent="struck", ttl=60) as fleet:
    if sys.argv[2] == "main":
        work(fleet)
    threading.Thread(target=work, args=(fleet,), daemon=True).start()
    sys.stdin.readline()
    os._exit(0)
"""


@pytest.mark.parametrize("thread", ["main", "daemon"])
def test_a_worker_that_ends_anywhere_has_ended_what_it_finished(url: str, thread: str) -> None:
    """By SIGKILL, or by ``os._exit`` while its loop is in a daemon thread."""
    left = [f"t{number:02}" for number in range(60)]
    with interlock.connect(url, agent="bob") as bob:
        for name in left:
            bob.tasks.publish(name, backoff=0)
        for after in (1, 2, 5, 8, 20):
            with subprocess.Popen(
                [sys.executable, "-c", WORKER, url, thread],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                done = [worker.stdout.readline().strip() for _ in range(after)]
                if thread == "main":
                    worker.kill()
                else:
                    worker.stdin.close()
                done += worker.stdout.read().split("\n")[:-1]
            now = states(bob)
            assert {now[task] for task in done} == {"complete"}
            running = [task for task, state in now.items() if state == "running"]
            assert len(running) <= 1, "the one that it works on, or the next one"
            for task in running:
                bob.tasks.requeue(task, "its worker is gone")


def test_a_loop_with_more_in_its_body_ends_each_task_with_its_block(
    ada: interlock.Fleet, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.client_worker.AT_ONCE", 0.0)
    publish(ada, "a", "b", "c")
    worker = ada.tasks.work(stop_on_signals=False)
    with interlock.connect(url, agent="bob") as bob:
        for claim in worker:
            with claim:
                pass
            assert states(bob)[claim.task] == "complete"
            if claim.task == "c":
                worker.stop()


@pytest.mark.usefixtures("at_once")
def test_handlers_pay_one_commit_for_each_task(ada: interlock.Fleet) -> None:
    publish(ada, "a", "b", "c")
    worker = ada.tasks.work(stop_on_signals=False, ahead=1)

    def handle(claim: Claim) -> object:
        if claim.task == "b":
            raise ValueError("broken")
        if claim.task == "c":
            worker.stop()
        return {"of": claim.task}

    worker.serve(handle)
    assert commits(ada) == [
        *("claimed a", "completed a, claimed b", "failed b, claimed c", "completed c")
    ]
    shown = ada.tasks.show("a")
    assert not isinstance(shown, NoTask)
    assert shown.result == {"of": "a"}


def test_a_result_that_is_none_fails_the_attempt(ada: interlock.Fleet) -> None:
    publish(ada, "a")
    worker = ada.tasks.work(stop_on_signals=False)

    def handle(_: Claim) -> object:
        worker.stop()
        return object()

    worker.serve(handle)
    shown = ada.tasks.show("a")
    assert not isinstance(shown, NoTask)
    assert "result" in shown.reason


# The asyncio client.


def test_an_event_loop_pays_one_commit_for_each_task_too(url: str) -> None:
    async def main() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            for name in ("a", "b", "c"):
                await ada.tasks.publish(name)
            worker = ada.tasks.work(stop_on_signals=False)

            async def handle(claim: AsyncClaim) -> None:
                if claim.task == "c":
                    worker.stop()

            await worker.serve(handle)

    asyncio.run(main())
    with interlock.connect(url, agent="bob") as bob:
        assert commits(bob) == [
            *("claimed a", "completed a, claimed b", "completed b, claimed c", "completed c")
        ]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_never_more_are_open_than_asked_for(url: str, concurrency: int) -> None:
    most = now = done = 0

    async def main() -> None:
        async with await aio.connect(url, agent="ada") as ada:
            for number in range(20):
                await ada.tasks.publish(f"t{number}")
            worker = ada.tasks.work(concurrency=concurrency, stop_on_signals=False)

            async def handle(claim: AsyncClaim) -> None:
                nonlocal most, now, done
                now += 1
                running = len((await ada.tasks.list(state=["running"])).tasks)
                most = max(most, running, now)
                await asyncio.sleep(0)
                now -= 1
                done += 1
                if done == 20:
                    worker.stop()

            await worker.serve(handle)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (done, most) == (20, concurrency)
