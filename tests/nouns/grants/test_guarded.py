"""Locks and slots behind guards: granted only while the guards pass, and waited for until then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.grants.guarded import FREE, define, deploy, entries, listed, state

from interlock import guard
from interlock.core.outcomes import Deadlock, GuardBlocked, NoGuard
from interlock.errors import BadInput, BadName, TooLarge, Unavailable
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import (
    LockAcquired,
    LockBusy,
    LockDeadlock,
    LockExtended,
    LockTarget,
)
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.grants.semaphore import Increased, SlotsAcquired
from interlock.nouns.grants.several import SeveralAcquired
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.allowed import allow
from interlock.nouns.guards.condition import Condition
from interlock.steps import Commit, InThread, NextChanges, Op, Read
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["near", "far"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Client:
    """The caller behind the guard: decides inside a transaction, or across a network."""
    return (bed.client if request.param == "near" else bed.remote)("ada", ttl=600.0)


@pytest.fixture
def bob(bed: Testbed) -> Client:
    """He holds what the guard wants free."""
    found = bed.client("bob", ttl=600.0)
    define(found, "calm", FREE)
    assert found.run(found.locks.acquire("db"))
    return found


@pytest.fixture(autouse=True)
def _list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "list"))


# Without a wait.


def test_a_lock_is_granted_while_its_guard_passes(ada: Client, bob: Client) -> None:
    refused = ada.run(deploy(ada))
    assert refused == GuardBlocked(
        thing="lock/deploy",
        guard="calm",
        result="failed",
        leaf="lock-free=db",
        reason="bob holds lock db, for 0 s",
        action="block",
        acts=("bob releases lock db",),
    )
    assert not refused
    bob.run(bob.locks.release("db"))
    assert isinstance(ada.run(deploy(ada)), LockAcquired)


def test_all_of_several_guards_must_pass(ada: Client, bob: Client) -> None:
    define(bob, "idle", guard.lock_free("ci"))
    both = partial(ada.locks.acquire, "deploy", guard=["idle", "calm", "calm"])
    refused = ada.run(both())
    assert isinstance(refused, GuardBlocked)
    assert refused.guard == "calm"
    bob.run(bob.locks.release("db"))
    assert ada.run(both())


def test_a_guard_that_is_unknown_does_not_pass_nor_does_it_fail(ada: Client, bob: Client) -> None:
    define(bob, "calm", guard.semaphore_available("builds"), on_failure=guard.fail("no slots"))
    waits = ada.start(deploy(ada, wait=60))
    assert waits.asleep
    refused = ada.run(deploy(ada))
    assert isinstance(refused, GuardBlocked)
    assert (refused.result, refused.action, refused.message) == ("unknown", "fail", "")
    bob.run(bob.semaphores.resize("builds", 1))
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_refusal_names_the_leaf_as_it_was_written(ada: Client, bob: Client) -> None:
    define(bob, "calm", ~guard.lock_held("db"))
    refused = ada.run(deploy(ada))
    assert isinstance(refused, GuardBlocked)
    assert (refused.leaf, refused.reason) == ("!lock-held=db", "bob holds lock db, for 0 s")


def test_slots_and_several_things_have_guards_too(ada: Client, bob: Client) -> None:
    calls: list[tuple[Callable[[], Op[Any]], type]] = [
        (lambda: ada.semaphores.acquire("builds", capacity=2, guard="calm"), SlotsAcquired),
        (lambda: ada.several.acquire("lock/x", "sem/builds", guard="calm"), SeveralAcquired),
    ]
    bob.run(bob.semaphores.resize("builds", 2))
    for call, _ in calls:
        assert isinstance(ada.run(call()), GuardBlocked)
    bob.run(bob.locks.release("db"))
    for call, kind in calls:
        assert isinstance(ada.run(call()), kind)


def test_a_lock_that_is_busy_is_busy_whatever_its_guard_says(ada: Client, bob: Client) -> None:
    bob.run(bob.locks.acquire("deploy"))
    assert isinstance(ada.run(deploy(ada)), LockBusy)


def test_a_grant_that_one_has_is_extended_whatever_its_guard_says(ada: Client, bob: Client) -> None:
    got: Any = ada.run(ada.locks.acquire("deploy"))
    slots: Any = ada.run(ada.semaphores.acquire("builds", capacity=2))
    assert isinstance(ada.run(deploy(ada, token=got.token)), LockExtended)
    more = partial(ada.semaphores.acquire, "builds", weight=2, token=slots.token, guard="calm")
    assert isinstance(ada.run(more()), GuardBlocked)
    bob.run(bob.locks.release("db"))
    assert isinstance(ada.run(more()), Increased)


def test_a_guard_that_only_warns_lets_it_pass_and_the_record_says_so(
    ada: Client, bob: Client
) -> None:
    define(bob, "calm", FREE, on_failure=guard.warn())
    assert ada.run(deploy(ada))
    (entry,) = entries(bob, "lock.acquire")[-1:]
    assert [event.name for event in entry.events] == ["lock:acquired", "lock:warned"]
    said = "warned by calm: lock-free=db is false: bob holds lock db, for 0 s"
    assert entry.reason == said
    story = bob.run(bob.record.explain("lock/deploy"))
    assert [(each.what, each.says) for each in story] == [("acquired", ""), ("warned", said)]


def test_there_is_no_such_guard(ada: Client) -> None:
    assert ada.run(deploy(ada)) == NoGuard(guard="calm")
    assert ada.run(deploy(ada, wait=60)) == NoGuard(guard="calm")


@pytest.mark.parametrize("condition", [FREE, ~guard.lock_held("db"), FREE | guard.lock_free("x")])
def test_a_guard_about_the_very_lock_is_refused(bob: Client, condition: Condition) -> None:
    define(bob, "calm", condition)
    with pytest.raises(BadInput, match=r"asks for lock-(free|held)=db, and lock/db is what it"):
        bob.run(bob.locks.acquire("db", guard="calm"))
    with pytest.raises(BadInput, match="drop that condition"):
        bob.run(bob.several.acquire("lock/x", "lock/db", guard="calm"))


def test_a_guard_about_the_very_semaphore_is_refused(bob: Client) -> None:
    define(bob, "calm", guard.semaphore_available("builds"))
    with pytest.raises(BadInput, match="asks for semaphore-available=builds, and sem/builds"):
        bob.run(bob.semaphores.acquire("builds", capacity=1, guard="calm"))


def test_odd_names_of_guards_are_refused(bob: Client) -> None:
    """An empty name, as from a variable that is not set, must not mean that there is no guard."""
    for odd, error in (("", BadName), ([""], BadName), (3, BadInput), (None, BadInput)):
        with pytest.raises(error):
            bob.locks.acquire("deploy", guard=odd)  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="one request may name 16"):
        bob.locks.acquire("deploy", guard=[f"g{n}" for n in range(17)])
    assert bob.run(bob.locks.acquire("deploy", guard=[]))


def test_a_lock_taken_between_the_look_and_the_commit_is_seen(bed: Testbed) -> None:
    ada, bob = bed.remote("ada"), bed.client("bob")
    define(bob, "calm", FREE)
    step = Stepper(deploy(ada), ada.store, bed.clock)
    while not isinstance(step._next, Commit):
        step.go()
    bob.run(bob.locks.acquire("db"))
    assert isinstance(step.run().result(), GuardBlocked)
    assert state(bob)[0] == "free"


def test_a_guard_redefined_between_the_look_and_the_commit_is_seen(bed: Testbed) -> None:
    ada, bob = bed.remote("ada"), bed.client("bob")
    define(bob, "calm", FREE)
    step = Stepper(deploy(ada), ada.store, bed.clock)
    while not isinstance(step._next, Commit):
        step.go()
    define(bob, "calm", guard.lock_held("db"))
    assert isinstance(step.run().result(), GuardBlocked)


# Waiting.


def test_a_caller_waits_for_its_guard_outside_of_the_queue(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    waits = ada.start(deploy(ada, wait=60))
    assert waits.asleep
    assert state(bob) == ("free", "", ())
    assert listed(bed)
    assert bob.run(bob.locks.acquire("deploy"))
    bob.run(bob.locks.release("deploy"))
    assert not waits.run().done
    bob.run(bob.locks.release("db"))
    assert isinstance(waits.run().result(), LockAcquired)
    assert listed(bed) == []
    story = [(each.what, each.says) for each in bob.run(bob.record.explain("lock/deploy"))]
    said = "guard calm does not pass: lock-free=db: bob holds lock db, for 0 s"
    assert (story[0], story[-1]) == (("waiting", said), ("acquired", ""))


def test_a_wait_for_a_guard_ends_at_its_time(bed: Testbed, ada: Client, bob: Client) -> None:
    began = bed.clock.monotonic()
    refused = ada.run(deploy(ada, wait=200))
    assert isinstance(refused, GuardBlocked)
    assert bed.clock.monotonic() - began == pytest.approx(200, abs=1)
    assert refused.reason == "bob holds lock db, for 3 min"
    assert listed(bed) == []


def test_a_busy_lock_is_queued_for_while_the_guard_passes(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    cleo = bed.client("cleo", ttl=600.0)
    bob.run(bob.locks.release("db"))
    bob.run(bob.locks.acquire("deploy"))
    first, second = ada.start(deploy(ada, wait=60)), cleo.start(deploy(cleo, wait=60))
    assert state(bob) == ("held", "bob", ("ada", "cleo"))
    bob.run(bob.locks.release("deploy"))
    assert isinstance(first.run().result(), LockAcquired)
    ada.run(ada.locks.release("deploy"))
    assert isinstance(second.run().result(), LockAcquired)


@pytest.mark.parametrize("ttl", [None, 60.0])
def test_a_promoted_waiter_whose_guard_fails_gives_the_lock_to_the_next(
    bed: Testbed, ada: Client, bob: Client, ttl: float | None
) -> None:
    cleo = bed.client("cleo", ttl=600.0)
    bob.run(bob.locks.release("db"))
    bob.run(bob.locks.acquire("deploy"))
    waits = ada.start(deploy(ada, wait=600, ttl=ttl))
    next_one = cleo.start(cleo.locks.acquire("deploy", wait=600))
    bob.run(bob.locks.acquire("db"))
    bob.run(bob.locks.release("deploy"))
    assert not waits.run().done
    assert isinstance(next_one.run().result(), LockAcquired)
    assert state(bob) == ("held", "cleo", ())
    (back,) = [line for line in entries(bob, "lock.release") if line.outcome == "blocked"]
    assert back.reason.startswith("guard calm does not pass: lock-free=db: bob holds lock db")
    cleo.run(cleo.locks.release("deploy"))
    bob.run(bob.locks.release("db"))
    got = waits.run().result()
    assert isinstance(got, LockAcquired)
    assert got.expires_in == (ttl or 600.0)
    assert listed(bed) == []


@pytest.mark.parametrize("ttl", [None, 60.0])
def test_a_promoted_waiter_keeps_the_lock_while_its_guard_passes(
    bed: Testbed, ada: Client, bob: Client, ttl: float | None
) -> None:
    bob.run(bob.locks.release("db"))
    bob.run(bob.locks.acquire("deploy"))
    waits = ada.start(deploy(ada, wait=600, ttl=ttl))
    bob.run(bob.locks.release("deploy"))
    got = waits.run().result()
    assert isinstance(got, LockAcquired)
    assert got.expires_in == (ttl or 600.0)
    assert entries(bob, "lock.confirm") == []


def test_a_promoted_waiter_that_is_warned_has_an_entry_of_its_own(ada: Client, bob: Client) -> None:
    define(bob, "calm", FREE, on_failure=guard.warn())
    bob.run(bob.locks.acquire("deploy"))
    waits = ada.start(deploy(ada, wait=600))
    bob.run(bob.locks.release("deploy"))
    assert isinstance(waits.run().result(), LockAcquired)
    (entry,) = entries(bob, "lock.confirm")
    assert [event.name for event in entry.events] == ["lock:warned"]


def test_a_guard_that_fails_ends_a_wait_at_once_with_its_message(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    define(bob, "calm", FREE, on_failure=guard.fail("the database is busy"))
    began = bed.clock.monotonic()
    refused = ada.run(deploy(ada, wait=60))
    assert isinstance(refused, GuardBlocked)
    assert (refused.action, refused.message) == ("fail", "the database is busy")
    assert bed.clock.monotonic() == began
    with pytest.raises(Unavailable, match="'the database is busy': lock-free=db: bob holds"):
        ada.run(take(ada.context, LockTarget("deploy"), None, GrantTerms(wait=60, guard="calm")))


def test_a_guard_is_checked_again_after_its_delay_as_often_as_it_says(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    define(bob, "calm", FREE, on_failure=guard.retry("30s", 3))
    refused = ada.run(deploy(ada))
    assert isinstance(refused, GuardBlocked)
    assert (refused.action, refused.retry_in) == ("retry", 30.0)
    began = bed.clock.monotonic()
    refused = ada.run(deploy(ada, wait=590))
    assert isinstance(refused, GuardBlocked)
    assert (refused.action, refused.retry_in) == ("retry", None)
    assert bed.clock.monotonic() - began == pytest.approx(90, abs=1)


def test_between_two_retries_a_guard_is_not_checked(bed: Testbed, ada: Client, bob: Client) -> None:
    define(bob, "calm", FREE, on_failure=guard.retry("30s", 3))
    waits = ada.start(deploy(ada, wait=590))
    bob.run(bob.locks.release("db"))
    assert not waits.run().done
    bed.clock.advance(30)
    assert isinstance(waits.run().result(), LockAcquired)


def test_an_unknown_guard_uses_up_no_retry(bed: Testbed, ada: Client, bob: Client) -> None:
    slots = guard.semaphore_available("builds")
    define(bob, "calm", slots, on_failure=guard.retry("1s", 1))
    waits = ada.start(deploy(ada, wait=590))
    for _ in range(5):
        bed.clock.advance(70)
        assert not waits.run().done
    bob.run(bob.semaphores.acquire("builds", capacity=1))
    assert not waits.run().done
    bed.clock.advance(1)
    assert isinstance(waits.run().result(), GuardBlocked)


def test_a_holder_that_dies_clears_the_way_though_no_watch_reports_it(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    bob.run(bob.locks.release("db"))
    bob.run(bob.locks.acquire("db", ttl=100))
    waits = ada.start(deploy(ada, wait=590))
    bed.clock.advance(61)
    assert not waits.run().done
    assert waits.wakes - bed.clock.monotonic() == pytest.approx(39, abs=0.1)
    bed.clock.advance(40)
    assert isinstance(waits.run().result(), LockAcquired)


def test_tasks_wake_a_wait_and_other_tasks_do_not(bed: Testbed, ada: Client, bob: Client) -> None:
    define(bob, "calm", guard.tasks_complete("build."))
    for task in ("build.1", "ship.1"):
        bob.run(bob.tasks.publish(task))
    waits = ada.start(deploy(ada, wait=60))
    before = len(waits.steps)
    claim = bob.run(bob.tasks.claim("ship.1"))
    assert claim
    waits.run()
    assert all(isinstance(step, NextChanges) for step in waits.steps[before:])
    bob.run(bob.tasks.claim("build.1"))
    bob.run(bob.tasks.complete("build.1"))
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_wait_on_many_items_watches_their_folders(bed: Testbed, bob: Client) -> None:
    ada, many = bed.client("ada", ttl=600.0), range(70)
    for n in many:
        bob.run(bob.locks.acquire(f"l{n}"))
    define(bob, "calm", guard.all_of(*[guard.lock_free(f"l{n}") for n in many]))
    waits = ada.start(deploy(ada, wait=60))
    for n in many:
        assert not waits.run().done
        bob.run(bob.locks.release(f"l{n}"))
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_guard_that_is_dropped_ends_the_wait_for_it(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    waits = ada.start(deploy(ada, wait=60))
    bob.run(bob.guards.drop("calm"))
    assert waits.run().result() == NoGuard(guard="calm")
    assert listed(bed) == []


def test_a_guard_that_is_redefined_counts_as_it_is_now(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    waits = ada.start(deploy(ada, wait=60))
    define(bob, "calm", guard.lock_free("other"))
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_session_that_expires_meanwhile_is_followed_by_another(bed: Testbed, bob: Client) -> None:
    ada = bed.client("ada", ttl=30.0)
    before = ada.session
    waits = ada.start(deploy(ada, wait=600))
    bed.clock.advance(40)
    assert bob.run(bob.fleet.why("lock/deploy")).meanwhile == ()
    bob.run(bob.locks.release("db"))
    assert isinstance(waits.run().result(), LockAcquired)
    assert ada.session != before
    assert bob.run(bob.locks.show("deploy")).session == ada.session
    assert listed(bed) == []


# The wait graph, and why.


def test_waits_for_guards_and_for_locks_that_never_end_are_refused(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    """She holds what he waits for, and her guard wants free what he holds."""
    ada.run(ada.locks.acquire("ci"))
    hers = ada.start(deploy(ada, wait=500))
    his = bob.start(bob.locks.acquire("ci", wait=500))
    refused: Any = his.run().result()
    assert isinstance(refused, LockDeadlock)
    assert refused.cycle == ("bob", "ada")
    bob.run(bob.locks.release("db"))
    assert hers.run().result()


def test_a_wait_for_a_guard_that_closes_a_cycle_is_refused(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    ada.run(ada.locks.acquire("ci"))
    his = bob.start(bob.locks.acquire("ci", wait=500))
    define(ada, "calm", FREE & guard.lock_free("x"))
    refused: Any = ada.run(deploy(ada, wait=500))
    assert isinstance(refused, LockDeadlock)
    assert refused.cycle == ("ada", "bob")
    assert listed(bed) != []
    ada.run(ada.locks.release("ci"))
    assert his.run().result()
    assert listed(bed) == []


def test_who_holds_what_its_own_guard_wants_free_does_not_wait_for_itself(ada: Client) -> None:
    define(ada, "calm", FREE)
    ada.run(ada.locks.acquire("db"))
    assert isinstance(ada.run(deploy(ada, wait=500)), Deadlock)


def test_an_alternative_to_a_held_lock_is_no_deadlock(ada: Client, bed: Testbed) -> None:
    define(ada, "calm", FREE | guard.lock_free("x"))
    bob = bed.client("bob", ttl=600.0)
    ada.run(ada.locks.acquire("db"))
    bob.run(bob.locks.acquire("x"))
    waits = ada.start(deploy(ada, wait=500))
    assert waits.asleep
    bob.run(bob.locks.release("x"))
    assert waits.run().result()


def test_why_names_who_waits_for_a_guard_before_a_lock(
    bed: Testbed, ada: Client, bob: Client
) -> None:
    waits = ada.start(deploy(ada, wait=500))
    bed.clock.advance(5)
    found = bob.run(bob.fleet.why("lock/deploy"))
    assert not found.blocked
    (said,) = found.meanwhile
    assert said == (
        "ada waits for guard/calm before it acquires this, for 5 s:"
        " lock-free=db: bob holds lock db, for 5 s"
    )
    assert [(each.thing, each.by) for each in found.chain] == [("lock/db", "bob")]
    bob.run(bob.locks.acquire("deploy"))
    assert said in bob.run(bob.fleet.why("lock/deploy")).meanwhile
    waits.interrupt(KeyboardInterrupt())
    assert bob.run(bob.fleet.why("lock/deploy")).meanwhile == ()


# Facts from outside.


@pytest.fixture
def stop(bob: Client, tmp_path: Path) -> Path:
    """The file whose absence the guard wants; bob's lock is no matter any more."""
    root = tmp_path / "project"
    root.mkdir()
    bob.run(bob.locks.release("db"))
    return root / "STOP"


def looks(steps: Stepper[Any], bed: Testbed, upto: float) -> list[float]:
    """When the caller looks at the outside, in seconds."""
    began, found = bed.clock.monotonic(), list[float]()
    while steps.wakes - began <= upto:
        bed.clock.advance(max(0.0, steps.wakes - bed.clock.monotonic()))
        found.append(round(bed.clock.monotonic() - began, 1))
        steps.run()
    return found


def test_an_allowed_host_looks_again_ever_more_slowly(
    bed: Testbed, ada: Client, bob: Client, stop: Path
) -> None:
    stop.touch()
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="10s")
    allow(g.digest(made), stop.parent)
    waits = ada.start(deploy(ada, wait=500))
    assert looks(waits, bed, 40) == [1, 3, 7, 15, 25, 35]
    stop.unlink()
    assert not waits.run().done
    bed.clock.advance(10)
    assert isinstance(waits.run().result(), LockAcquired)
    (entry,) = entries(bob, "lock.acquire")[-1:]
    (fact,) = entry.observed
    assert (fact.condition, fact.max_age) == ("file-exists=STOP", 10.0)
    assert fact.host
    assert fact.digest


def test_a_retry_looks_again_however_young_the_last_observation_is(
    bed: Testbed, ada: Client, bob: Client, stop: Path
) -> None:
    stop.touch()
    terms = {"on_failure": guard.retry("5s", 3), "max_age": "60s"}
    made = define(bob, "calm", ~guard.file_exists("STOP"), **terms)
    allow(g.digest(made), stop.parent)
    waits = ada.start(deploy(ada, wait=500))
    bed.clock.advance(5)
    assert not waits.run().done
    stop.unlink()
    bed.clock.advance(5)
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_look_that_takes_longer_than_its_answer_counts_is_not_repeated_at_once(
    bed: Testbed, ada: Client, bob: Client, stop: Path
) -> None:
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="2s")
    allow(g.digest(made), stop.parent)
    waits = Stepper(deploy(ada, wait=100), ada.store, bed.clock)
    looks = 0
    while not waits.done:
        looks += isinstance(waits._next, InThread)
        if not waits.go() or isinstance(waits.steps[-1], InThread):
            bed.clock.advance(3.0)
    refused = waits.result()
    assert isinstance(refused, GuardBlocked)
    assert refused.result == "unknown"
    assert looks < 100


def test_what_another_host_sees_right_after_our_look_wakes_us(
    bed: Testbed, bob: Client, stop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="60s")
    ada = bed.client("ada", ttl=600.0)
    waits = Stepper(deploy(ada, wait=500), ada.store, bed.clock)
    looks = 0
    while looks < 2:  # that of the request, and that of the wait
        waits.go()
        looks += any(
            str(ref).startswith("observed/") for ref in getattr(waits.steps[-1], "refs", ())
        )
    with monkeypatch.context() as other:
        other.setenv("INTERLOCK_ALLOWED_DIR", str(stop.parent / "elsewhere"))
        allow(g.digest(made), stop.parent)
        assert bob.run(bob.guards.check("calm"))
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_host_that_does_not_look_is_woken_by_one_that_does(
    bed: Testbed, ada: Client, bob: Client, stop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="60s")
    waits = ada.start(deploy(ada, wait=500))
    assert waits.asleep
    with monkeypatch.context() as other:
        other.setenv("INTERLOCK_ALLOWED_DIR", str(stop.parent / "elsewhere"))
        allow(g.digest(made), stop.parent)
        stop.touch()
        bob.run(bob.guards.check("calm"))
        stop.unlink()
        bed.clock.advance(0.5)
        assert bob.run(bob.guards.check("calm"))
    assert isinstance(waits.run().result(), LockAcquired)
    assert [line.outcome for line in entries(bob, "guard.observe")] == ["observed"] * 2


def test_a_look_that_sees_nothing_new_leaves_no_entry(
    bed: Testbed, bob: Client, stop: Path
) -> None:
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="60s")
    allow(g.digest(made), stop.parent)
    for _ in range(5):
        assert bob.run(bob.guards.check("calm"))
        bed.clock.advance(20)
    assert len(entries(bob, "guard.observe")) == 1


def test_a_promoted_waiter_looks_again_if_its_observation_is_too_old(
    bed: Testbed, ada: Client, bob: Client, stop: Path
) -> None:
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="60s")
    allow(g.digest(made), stop.parent)
    bob.run(bob.locks.acquire("deploy"))
    waits = ada.start(deploy(ada, wait=590, ttl=60.0))
    assert state(bob)[2] == ("ada",)
    stop.touch()
    bed.clock.advance(70)
    bob.run(bob.locks.release("deploy"))
    assert not waits.run().done
    assert state(bob) == ("free", "", ())
    stop.unlink()
    bed.clock.advance(1)
    assert isinstance(waits.run().result(), LockAcquired)


def test_a_promoted_waiter_keeps_the_lock_after_a_new_look(
    bed: Testbed, ada: Client, bob: Client, stop: Path
) -> None:
    """The look may take longer than the short ttl of a grant that came to a sleeper."""
    made = define(bob, "calm", ~guard.file_exists("STOP"), max_age="60s")
    allow(g.digest(made), stop.parent)
    bob.run(bob.locks.acquire("deploy"))
    waits = ada.start(deploy(ada, wait=590, ttl=300.0))
    bed.clock.advance(70)
    bob.run(bob.locks.release("deploy"))
    while not isinstance(waits._next, InThread):
        waits.go()
    bed.clock.advance(200)
    assert isinstance(waits.run().result(), LockAcquired)
    assert [line.outcome for line in entries(bob, "lock.release")] == ["released"] * 2
    (entry,) = entries(bob, "lock.confirm")
    assert [fact.condition for fact in entry.observed] == ["file-exists=STOP"]


# Reading.


def test_a_lock_without_a_guard_reads_and_writes_nothing_more(bed: Testbed, ada: Client) -> None:
    step = Stepper(ada.locks.acquire("merge"), ada.store, bed.clock).run()
    assert isinstance(step.result(), LockAcquired)
    assert len(step.steps) <= 2  # the base, once in a client, and the commit
    assert not [each for each in step.steps[1:] if isinstance(each, Read)]
