"""A client dies, or its network fails, at any commit: each run of a schedule is published once."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from tests.nouns.schedules.test_schedules import HOUR, add, looks, shown, under

from interlock.core import keys
from interlock.errors import OutcomeUnknown
from interlock.nouns.schedules import schedule as core
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash, Fault
from interlock.testing.testbed import Stepper, Testbed

RUNS = 3
FAULTS: tuple[Fault, ...] = (
    "crash before", "crash after", "lost reply", "late arrival", "conflict",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_run_is_published_once_whatever_happens_at_any_commit(fault: Fault) -> None:
    for number in count():
        stage = Testbed()
        ada = stage.remote("ada", ttl=10_000_000.0)
        add(ada, missed="all", title="x")
        stage.clock.advance(RUNS * HOUR)
        ada.network.script([None] * number + [fault])
        with suppress(Crash, OutcomeUnknown):
            looks(ada)
        struck = bool(ada.network.drawn)
        ada.network.deliver()
        ada.network.revive()
        stage.clock.advance(20 * 60)  # a claim of a dead client expires, and its task rests
        heir = stage.client("heir", ttl=10_000_000.0)
        looks(heir)
        tasks = heir.run(heir.tasks.list(all=True))
        assert [each.task for each in tasks] == sorted({each.task for each in tasks})
        assert len(tasks) == RUNS, number
        assert shown(heir).published == RUNS
        assert audit(stage.store) == []
        if not struck:
            break
    assert number > RUNS


@pytest.mark.parametrize("seed", range(5))
def test_many_clients_with_failing_networks_publish_each_run_once(seed: int) -> None:
    stage = Testbed(seed)
    owner = stage.client("owner", ttl=10_000_000.0)
    for number in range(3):
        add(owner, f"s{number}", every=60 * (number + 1), missed="all")
    chances = Chances(conflict=0.1, lost_reply=0.1, late_arrival=0.1)
    workers = [stage.remote(f"w{n}", ttl=10_000_000.0, chances=chances) for n in range(4)]
    for _ in range(6):
        stage.clock.advance(60)
        steppers = [worker.start(worker.tasks.next()) for worker in workers]
        while not all(each.done for each in steppers):
            for each in steppers:
                each.go()
    for worker in workers:
        worker.network.deliver()
    looks(owner)
    tasks = owner.run(owner.tasks.list(all=True))
    assert len(tasks) == 6 + 3 + 2
    listed = owner.run(owner.fleet.schedules.list())
    assert [each.published for each in listed] == [6, 3, 2]
    assert audit(stage.store) == []


@pytest.mark.parametrize("act", ["pause", "drop", "replace"])
def test_a_schedule_that_changes_at_any_moment_of_a_publisher_stays_as_it_was_changed(
    act: str,
) -> None:
    for number in count():
        stage = Testbed()
        ada, bob = (stage.remote(name, ttl=10_000_000.0) for name in ("ada", "bob"))
        add(ada)
        stage.clock.advance(HOUR)
        publisher = Stepper(bob.tasks.next(), bob.store, stage.clock)
        for _ in range(number):
            publisher.go()
        over = publisher.done
        calls = ada.fleet.schedules
        if act == "replace":
            add(ada, every=60, replace=True)
        else:
            ada.run(calls.pause("hourly") if act == "pause" else calls.drop("hourly"))
        publisher.run()
        view = ada.run(calls.show("hourly"))
        due = under(stage.store, keys.DUE)
        if act == "replace":
            assert isinstance(view, core.ScheduleView)
            assert view.every == 60
            assert due == [keys.due_schedule(stage.clock.wall() + 60, "hourly")]
        else:
            assert isinstance(view, core.UnknownSchedule if act == "drop" else core.ScheduleView)
            assert not isinstance(view, core.ScheduleView) or view.state == "paused"
            assert due == []
        assert audit(stage.store) == []
        if over:
            break
    assert number > 3
