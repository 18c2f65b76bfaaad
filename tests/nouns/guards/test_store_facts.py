"""Facts of the store for guards: locks, slots, tasks and pipelines as a decision reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import interlock
from interlock import Fleet
from interlock.core import keys
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import store_facts as facts
from interlock.runtime.attempt import decide_inside
from interlock.runtime.reads import outside
from interlock.steps import drive
from interlock.store import Put, Txn
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ada(clock: FakeClock) -> Iterator[Fleet]:
    with interlock.connect(store=MemoryStore(clock), agent="ada", join=False) as fleet:
        yield fleet


def fact(fleet: Fleet, need: c.FactNeed) -> c.Fact:
    return drive(outside(facts.store_facts([need])), fleet.store)[need]


def states(fleet: Fleet, **chosen: str) -> dict[str, int]:
    found = fact(fleet, c.TasksNeed(c.TaskFilter(**chosen)))
    assert isinstance(found, c.TasksFact)
    return found.states


def test_a_holder_whose_grant_expired_does_not_count(ada: Fleet, clock: FakeClock) -> None:
    ada.locks.acquire("deploy", ttl=10)
    ada.semaphores.acquire("builds", capacity=3, weight=2, ttl=10)
    held = fact(ada, c.LockNeed("deploy"))
    assert isinstance(held, c.LockFact)
    assert held.holder == "ada"
    slots = fact(ada, c.SemaphoreNeed("builds"))
    assert slots == c.SemaphoreFact(capacity=3, available=1, holders=("ada",))
    clock.advance(11)
    assert fact(ada, c.LockNeed("deploy")) == c.LockFact()
    assert fact(ada, c.SemaphoreNeed("builds")) == c.SemaphoreFact(capacity=3, available=3)


def test_tasks_are_selected_by_every_field_of_a_filter(ada: Fleet) -> None:
    ada.tasks.publish("build.1", requires=["gpu"], labels=["fast"])
    ada.tasks.publish("build.2", needs=["build.1"])
    ada.tasks.publish("buildings", labels=["fast"])
    assert states(ada) == {"pending": 2, "blocked": 1}
    assert states(ada, prefix="build.") == {"pending": 1, "blocked": 1}
    assert states(ada, requires="gpu") == {"pending": 1}
    assert states(ada, needs="build.1") == {"blocked": 1}
    assert states(ada, label="fast") == {"pending": 2}
    assert states(ada, state="blocked") == {"blocked": 1}
    assert states(ada, prefix="build.", label="fast", state="pending") == {"pending": 1}
    assert states(ada, prefix="none") == {}


def test_an_open_task_is_named_with_its_worker(ada: Fleet) -> None:
    ada.tasks.publish("build.1")
    ada.tasks.claim("build.1")
    found = fact(ada, c.TasksNeed(c.TaskFilter()))
    assert isinstance(found, c.TasksFact)
    assert found.open == (("build.1", "running", "ada"),)


def test_the_open_tasks_of_a_large_range_are_all_found(
    ada: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "SCANNED", 100)
    ada.tasks.publish_all([{"id": f"build.{n}"} for n in range(60)])
    need = c.TasksNeed(c.TaskFilter(prefix="build."))
    found = fact(ada, need)
    assert isinstance(found, c.TasksFact)
    assert (found.states, found.partial) == ({"pending": 60}, False)
    for n in range(60):
        ada.tasks.claim(f"build.{n}")
        ada.tasks.complete(f"build.{n}")
    found = fact(ada, need)
    assert isinstance(found, c.TasksFact)
    assert (set(found.states), found.uncounted, found.open) == ({"complete"}, True, ())


def test_a_damaged_item_is_a_fact_that_says_so(ada: Fleet) -> None:
    broken = (keys.lock("x"), keys.semaphore("x"), keys.pipeline("x"), keys.status("x"))
    puts = tuple([Put(key, b"[") for key in broken])
    ada.store.commit(Txn(id="x", puts=puts, quiet=True))
    needs = (
        c.LockNeed("x"),
        c.SemaphoreNeed("x"),
        c.PipelineNeed("x"),
        c.TasksNeed(c.TaskFilter()),
    )
    for need in needs:
        found = fact(ada, need)
        assert isinstance(found, c.NoFact)
        assert "does not read" in found.says


def test_the_commit_checks_locks_and_the_liveness_of_their_holders(ada: Fleet) -> None:
    ada.locks.acquire("deploy", ttl=10)
    grant = ada.locks.show("deploy")
    needs = [c.LockNeed("deploy"), c.LockNeed("free"), c.PipelineNeed("r1")]

    def work(view: object) -> None:
        attempt = decide_inside(facts.store_facts(needs), view)  # type: ignore[arg-type]
        lived = [key for key in attempt.seen if key.startswith(keys.LIVE)]
        seen.extend(attempt.seen)
        assert len(lived) == 1

    seen: list[str] = []
    ada.store.transact(work)  # type: ignore[attr-defined]
    assert grant.state == "held"
    assert {keys.lock("deploy"), keys.lock("free"), keys.pipeline("r1")} < set(seen)
