"""A client dies, or its network fails, at any commit: each run of a schedule is published once."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from tests.nouns.schedules.test_schedules import HOUR, add, looks, shown

from interlock.errors import OutcomeUnknown
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash, Fault
from interlock.testing.testbed import Testbed

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
