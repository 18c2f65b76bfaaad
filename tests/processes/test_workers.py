"""Work is done once, however workers fail; and all subscribers get its events."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes.helpers import Process, ProcessGroup, store_times, until

import interlock
from interlock import guard
from interlock.core import keys
from interlock.errors import StoreBusy
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.nouns.tasks.task_reader import decode_claim, decode_status
from interlock.stores import is_network
from interlock.stores.sqlite import SQLiteStore


@pytest.fixture
def crew() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.worker_programs") as everybody:
        yield everybody


def events(fleet: interlock.Fleet, task: str) -> list[str]:
    """What happened to a task, as the record has it."""
    lines = fleet.record.log(thing=f"task/{task}")
    return [event.name.removeprefix("task:") for line in lines for event in line.events]


def state(fleet: interlock.Fleet, task: str) -> str:
    status = decode_status(fleet.store.read(keys.status(task))[keys.status(task)])
    return "" if status is None else status.state


def owner(fleet: interlock.Fleet, task: str) -> str:
    claim = decode_claim(fleet.store.read(keys.owner(task))[keys.owner(task)])
    return "" if claim is None else claim.agent


def started(crew: ProcessGroup, fleet: interlock.Fleet, actor: str, *arguments: object) -> Process:
    """A worker that has begun with t1."""
    fleet.tasks.publish("t1", backoff=0)
    worker = crew.start(actor, *arguments)
    assert worker.read_line() == "begun t1 1"
    until(lambda: [agent.doing for agent in fleet.agents.show("ada")] == ["task/t1"])
    return worker


def freeze(worker: Process, url: str) -> None:
    """Stop a worker, but not inside of a commit, where it would block all others."""
    worker.freeze()
    while not is_network(url):
        store = SQLiteStore(url, patience=0.5)
        try:
            store.transact(lambda _: None)
        except StoreBusy:
            worker.thaw()
            worker.freeze()
        else:
            return
        finally:
            store.close()


def test_all_tasks_of_a_worker_killed_with_many_in_flight_are_done_by_another_once(
    tmp_path: Path, crew: ProcessGroup
) -> None:
    """The claims of one commit are claims like any other: they live by the session."""
    url = f"sqlite:///{tmp_path}/store.db"
    with interlock.connect(url, agent="boss") as fleet:
        for number in range(8):
            fleet.tasks.publish(f"t{number}", backoff=0)
        ada = crew.start("work_on_many", url, "ada", 1, 8)
        assert {ada.read_line() for _ in range(8)} == {f"begun t{n} 1" for n in range(8)}
        counts = [[e.name for e in line.events] for line in fleet.record.log(verb="task.claim")]
        assert max(each.count("task:claimed") for each in counts) > 1
        ada.kill()
        bob = crew.start("work_on_many", url, "bob", 30, 8)
        assert {bob.read_line() for _ in range(8)} == {f"begun t{n} 2" for n in range(8)}
        bob.write_line()
        assert bob.remaining_lines() == ["over it was asked to"]
        for number in range(8):
            told = ["published", "claimed", "reclaimed", "claimed", "completed"]
            assert own_events(fleet, f"t{number}") == told


def own_events(fleet: interlock.Fleet, task: str) -> list[str]:
    """What happened to a task, of entries that may be about others, too."""
    thing = f"task/{task}"
    lines = sorted(fleet.record.log(limit=1000), key=lambda line: line.revision)
    pairs = [(event.thing or line.thing, event.name) for line in lines for event in line.events]
    return [name.removeprefix("task:") for about, name in pairs if about == thing]


def test_the_task_of_a_killed_worker_is_done_by_another_once(url: str, crew: ProcessGroup) -> None:
    ttl = store_times(url).at_least(2.0)
    with interlock.connect(url, agent="boss") as fleet:
        started(crew, fleet, "work", url, "ada", ttl, 0).kill()
        bob = crew.start("work", url, "bob", 30, 0)
        assert bob.read_line() == "begun t1 2"
        bob.write_line()
        assert bob.read_line() == "done t1"
        os.kill(bob.pid, signal.SIGTERM)
        assert bob.remaining_lines() == ["over SIGTERM"]
        told = ["published", "claimed", "reclaimed", "claimed", "completed"]
        assert events(fleet, "t1") == told


def test_a_loop_that_is_killed_after_a_block_loses_no_finished_work(
    url: str, crew: ProcessGroup
) -> None:
    no_finished_work_is_lost(url, crew, "kill", most=1)


@pytest.mark.parametrize(("how", "most"), [("exit", 1), ("exec", 1), ("close", 0), ("break", 0)])
def test_a_loop_that_ends_after_a_block_loses_no_finished_work(
    path: str, crew: ProcessGroup, how: str, most: int
) -> None:
    no_finished_work_is_lost(path, crew, how, most)


def no_finished_work_is_lost(url: str, crew: ProcessGroup, how: str, most: int) -> None:
    """A loop that ends after four blocks leaves so many claims at most that it did not begin."""
    tasks = [f"t{number}" for number in range(6)]
    with interlock.connect(url, agent="boss") as fleet:
        for task in tasks:
            fleet.tasks.publish(task, backoff=0)
        ada = crew.start("end_after", url, "ada", store_times(url).at_least(2.0), 4, how)
        done = [ada.read_line().removeprefix("done ") for _ in range(4)]
        if how == "kill":
            ada.died()
        else:
            ada.finish()
        now = {task: state(fleet, task) for task in tasks}
        assert {now[task] for task in done} == {"complete"}
        left = [task for task in tasks if now[task] == "running"]
        assert len(left) <= most
        while len(done) < len(tasks):
            claimed = fleet.tasks.next(wait=60)
            assert isinstance(claimed, Claimed), claimed
            assert claimed.attempt == (2 if claimed.task in left else 1)
            assert fleet.tasks.complete(claimed.task, token=claimed.token)
            done.append(claimed.task)
        assert sorted(done) == tasks, "each once"


def test_one_of_two_workers_gets_a_task_when_its_gate_opens(url: str, crew: ProcessGroup) -> None:
    """A gate opens with the release of a lock, and with the death of its holder."""
    ttl = store_times(url).at_least(1.0)
    with interlock.connect(url, agent="boss") as fleet:
        fleet.guards.define(guard.named("calm", guard.lock_free("deploy")))
        holder = crew.start("hold", url, "ada", 60, "deploy")
        assert holder.read_line() == "held deploy"
        assert getattr(fleet.tasks.publish("t1", guard=["calm"]), "guard", "") == "calm"
        both = [crew.start("toil", url, name, 60, 0) for name in ("bob", "cleo")]
        until(lambda: {"bob", "cleo"} <= {each.agent for each in fleet.agents.list()})
        assert state(fleet, "t1") == "blocked"
        holder.write_line()
        until(lambda: any(each.has_line() for each in both))
        (got,) = [each for each in both if each.has_line()]
        assert got.read_line() == "begun t1 1"
        got.write_line()
        assert got.read_line() == "done t1"
        for worker in both:
            os.kill(worker.pid, signal.SIGTERM)
            assert worker.remaining_lines() == ["over SIGTERM"], "the other one got nothing"
        told = ["published", "blocked", "ready", "claimed", "completed"]
        assert events(fleet, "t1") == told
        lost = crew.start("hold", url, "ada", ttl, "deploy")
        assert lost.read_line() == "held deploy"
        fleet.tasks.publish("t2", guard=["calm"])
        lost.kill()
        dan = crew.start("toil", url, "dan", 60, 0)
        assert dan.read_line() == "begun t2 1"
        dan.write_line()
        assert dan.read_line() == "done t2"
        os.kill(dan.pid, signal.SIGTERM)
        assert dan.remaining_lines() == ["over SIGTERM"]


def test_a_worker_that_was_stopped_for_too_long_is_cancelled_and_finishes_nothing(
    url: str, crew: ProcessGroup
) -> None:
    ttl = store_times(url).at_least(2.0)
    with interlock.connect(url, agent="boss") as fleet:
        ada = started(crew, fleet, "work", url, "ada", 60, ttl)
        _taken_from(ada, crew, fleet, url)
        ada.thaw()
        assert ada.read_line() == "lost t1"
        os.kill(ada.pid, signal.SIGTERM)
        assert ada.remaining_lines() == ["over SIGTERM"]
        assert Counter(events(fleet, "t1"))["completed"] == 1


def test_a_late_completion_of_a_blocking_worker_is_fenced(path: str, crew: ProcessGroup) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        ada = started(crew, fleet, "toil", path, "ada", 60, 2)
        _taken_from(ada, crew, fleet, path)
        ada.thaw()
        ada.write_line()
        assert ada.read_line() == "lost t1 True"
        os.kill(ada.pid, signal.SIGTERM)
        assert ada.remaining_lines() == ["over SIGTERM"]
        assert [(line.agent, line.outcome) for line in fleet.record.log(verb="task.complete")] == [
            ("bob", "completed"),
            ("ada", "fenced"),
        ]


def _taken_from(ada: Process, crew: ProcessGroup, fleet: interlock.Fleet, url: str) -> None:
    """Stop ada until another worker has done her task."""
    freeze(ada, url)
    bob = crew.start("work", url, "bob", 60, 0)
    assert bob.read_line() == "begun t1 2"
    bob.write_line()
    assert bob.read_line() == "done t1"
    os.kill(bob.pid, signal.SIGTERM)
    assert bob.remaining_lines() == ["over SIGTERM"]
    assert state(fleet, "t1") == "complete"


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_a_polite_signal_lets_a_worker_finish_its_task_and_leave(
    path: str, crew: ProcessGroup, actor: str
) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        ada = started(crew, fleet, actor, path, "ada", 60, 0)
        fleet.tasks.publish("t2")
        os.kill(ada.pid, signal.SIGTERM)
        ada.write_line()
        assert ada.read_line() == "done t1"
        assert ada.remaining_lines() == ["over SIGTERM"]
        assert (state(fleet, "t1"), state(fleet, "t2")) == ("complete", "pending")
        assert [agent.agent for agent in fleet.agents.list()] == ["boss"]


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_a_second_signal_gives_the_task_back(path: str, crew: ProcessGroup, actor: str) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        ada = started(crew, fleet, actor, path, "ada", 60, 0)
        for number in (signal.SIGTERM, signal.SIGINT):  # two events of a kind may arrive as one
            os.kill(ada.pid, number)
        until(lambda: not owner(fleet, "t1"))
        assert state(fleet, "t1") == "pending"
        assert events(fleet, "t1") == ["published", "claimed", "released"]


def fifty_hear(url: str, crew: ProcessGroup) -> None:
    listeners = [crew.start("listen", url, 10, 5) for _ in range(5)]
    for listener in listeners:
        assert listener.read_line() == "ready"
    with interlock.connect(url, agent="boss") as fleet:
        for number in range(5):
            fleet.tasks.publish(f"t{number}")
        for listener in listeners:
            assert listener.remaining_lines() == ["t0 t1 t2 t3 t4"] * 10


def test_fifty_subscribers_hear_of_every_task_in_order(path: str, crew: ProcessGroup) -> None:
    fifty_hear(path, crew)


@pytest.mark.proof
def test_fifty_subscribers_hear_of_every_task_on_every_store(url: str, crew: ProcessGroup) -> None:
    fifty_hear(url, crew)
