"""Workers that a message asks to stop, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.processes.helpers import Process, ProcessGroup, until
from tests.processes.worker_programs import WHEN_STOPPED

import interlock
from interlock.core import keys
from interlock.nouns.messages.message import Sent
from interlock.nouns.tasks.task_reader import decode_status
from interlock.store import Range


@pytest.fixture
def crew() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.worker_programs") as everybody:
        yield everybody


def stop(fleet: interlock.Fleet, reason: str) -> None:
    assert isinstance(fleet.messages.stop("ada", reason), Sent)


def unread(fleet: interlock.Fleet) -> int:
    marks = Range(keys.unread("ada"))
    return len(fleet.store.read(marks).ranges[marks])


def state(fleet: interlock.Fleet, task: str) -> str:
    status = decode_status(fleet.store.read(keys.status(task))[keys.status(task)])
    return "" if status is None else status.state


def end(url: str, *sessions: str) -> None:
    """End these sessions before they expire."""
    for session in sessions:
        with interlock.connect(url, session=session) as dead:
            dead.agents.leave()


def idle(crew: ProcessGroup, fleet: interlock.Fleet, actor: str, url: str) -> Process:
    """A worker that waits for work."""
    worker = crew.start(actor, url, "ada", 60, 0)
    until(lambda: [each.status for each in fleet.agents.show("ada")] == ["idle"])
    return worker


def at_work(
    crew: ProcessGroup, fleet: interlock.Fleet, actor: str, url: str, attempt: int = 1
) -> Process:
    """A worker that has begun with t1."""
    fleet.tasks.publish("t1", backoff=0)
    worker = crew.start(actor, url, "ada", 60, 0)
    assert worker.read_line() == f"begun t1 {attempt}"
    return worker


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_an_idle_worker_goes_on_every_store(url: str, crew: ProcessGroup, actor: str) -> None:
    with interlock.connect(url, agent="boss") as fleet:
        ada = idle(crew, fleet, actor, url)
        stop(fleet, "done")
        assert ada.remaining_lines() == ["over boss asked: done"]
        assert unread(fleet) == 0


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_a_worker_finishes_its_task_and_takes_no_other(
    path: str, crew: ProcessGroup, actor: str
) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        ada = at_work(crew, fleet, actor, path)
        fleet.tasks.publish("t2")
        stop(fleet, "done")
        assert unread(fleet) == 1, "it is acknowledged when it was obeyed"
        ada.write_line(WHEN_STOPPED)
        assert ada.remaining_lines() == ["done t1", "over boss asked: done"]
        assert (state(fleet, "t1"), state(fleet, "t2")) == ("complete", "pending")
        assert unread(fleet) == 0


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_a_second_stop_gives_the_task_back_though_its_worker_sits_in_a_system_call(
    path: str, crew: ProcessGroup, actor: str
) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        at_work(crew, fleet, actor, path)
        stop(fleet, "soon")
        stop(fleet, "now")
        until(lambda: state(fleet, "t1") == "pending")
        until(lambda: unread(fleet) == 0)
        told = [line.outcome for line in fleet.record.log(thing="task/t1")]
        assert told == ["published", "claimed", "released"]


@pytest.mark.parametrize("actor", ["work", "toil"])
def test_one_who_is_killed_with_a_stop_in_its_hands_leaves_it_to_nobody(
    path: str, crew: ProcessGroup, actor: str
) -> None:
    """It is not acknowledged; the next incarnation passes over it, and clears it away."""
    with interlock.connect(path, agent="boss") as fleet:
        ada = at_work(crew, fleet, actor, path)
        stop(fleet, "old")
        ada.kill()
        end(path, *[each.session for each in fleet.agents.show("ada")])
        assert unread(fleet) == 1
        again = crew.start(actor, path, "ada", 60, 0)
        assert again.read_line() == "begun t1 1"
        until(lambda: unread(fleet) == 0)
        again.write_line()
        assert again.read_line() == "done t1"
        stop(fleet, "new")
        assert again.remaining_lines() == ["over boss asked: new"]


def test_all_sessions_of_an_agent_that_were_there_go(path: str, crew: ProcessGroup) -> None:
    with interlock.connect(path, agent="boss") as fleet:
        crowd = [crew.start(actor, path, "ada", 60, 0) for actor in ("work", "toil", "work")]
        until(lambda: [each.status for each in fleet.agents.show("ada")] == ["idle"] * 3)
        stop(fleet, "all of you")
        for ada in crowd:
            assert ada.remaining_lines() == ["over boss asked: 'all of you'"]
        assert unread(fleet) == 0
