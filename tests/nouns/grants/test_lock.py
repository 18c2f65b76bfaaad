from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.grants.pools import complete

from interlock.core import keys
from interlock.core.decision import REFUSAL_WINDOW, Decision, Write
from interlock.errors import NotAllowed
from interlock.nouns.grants import lock, rules
from interlock.nouns.grants.pool import WAITERS, Grant, Pool, with_token
from interlock.nouns.grants.pool_change import CLAIM_WINDOW, PoolFacts
from interlock.nouns.grants.request import GrantRequest, HolderRequest

NOW = 100.0
ADA, BOB, CLEO = (keys.live(f"ses_{name}") for name in ("ada", "bob", "cleo"))


KEY = keys.lock("merge")


def facts(state: Pool | None, live: Iterable[str]) -> PoolFacts:
    return complete({KEY: state}, set(live))


def acquire(agent: str, state: Pool | None = None, *live: str, **terms: object) -> Decision[Any]:
    return rules.acquire(ask(agent, **terms), facts(state, live), NOW)


def ask(agent: str, **terms: object) -> GrantRequest:
    command = GrantRequest(
        target=lock.LockTarget("merge"),
        grant=f"grt_{agent}",
        agent=agent,
        session=f"ses_{agent}",
        session_ttl=30.0,
    )
    return replace(command, **terms)


def look(state: Pool | None, agent: str, live: set[str]) -> Decision[Any]:
    return rules.check_wait(ask(agent), facts(state, live), NOW)


def withdraw(state: Pool | None, agent: str, live: set[str]) -> Decision[Any]:
    return rules.withdraw(ask(agent), facts(state, live), NOW)


def release(state: Pool | None, who: HolderRequest, live: set[str]) -> Decision[Any]:
    return rules.release(who, facts(state, live), NOW)


def beat(state: Pool | None, who: HolderRequest, live: set[str], ttl: float) -> Decision[Any]:
    return rules.beat(who, facts(state, live), ttl)


def reclaim(state: Pool, live: set[str]) -> Decision[Any]:
    return rules.reclaim(KEY, facts(state, live), NOW)


def caller(agent: str, token: int | None = None) -> HolderRequest:
    return HolderRequest(
        target=lock.LockTarget("merge"), agent=agent, session=f"ses_{agent}", token=token
    )


def state(decision: Decision[Any], token: int | None = None) -> Pool:
    """The lock that a decision writes, as the next reader sees it."""
    (found,) = (put.value for put in decision.puts if put.key == KEY)
    assert isinstance(found, Pool)
    return found if token is None else with_token(found, token)


def grant(found: Pool) -> Grant:
    """The one grant of a lock."""
    (one,) = found.grants
    return one


def held(token: int = 5, **terms: object) -> Pool:
    return state(acquire("ada", **terms), token)  # type: ignore[arg-type]


def queued(*agents: str) -> Pool:
    """Ada holds, these wait."""
    found = held()
    for agent in agents:
        found = state(acquire(agent, found, ADA, wait=True))
    return found


def test_a_free_lock_is_taken() -> None:
    decision = acquire("ada")
    assert decision.outcome == lock.LockAcquired(
        lock="merge", holder="ada", expires_in=30.0, grant="grt_ada"
    )
    assert grant(state(decision)).live == (ADA,)
    assert decision.verb == "lock.acquire"


def test_a_held_lock_is_busy_and_names_its_holder() -> None:
    decision = acquire("bob", held(), ADA)
    assert decision.outcome == lock.LockBusy(lock="merge", holder="ada", since=NOW)
    assert not decision.changes


def test_a_grant_lives_by_its_session_or_by_a_ttl_of_its_own() -> None:
    own = acquire("ada", ttl=9.0, max_hold=60.0)
    tag = {"agent": "ada", "for": "lock/merge"}
    assert grant(state(own)).live == ("live/grt_ada", "live/grt_ada.limit")
    assert Write("live/grt_ada", tag, 9.0) in own.puts
    assert Write("live/grt_ada.limit", tag, 60.0) in own.puts
    assert [put.key for put in acquire("ada").puts] == [keys.lock("merge")]


@pytest.mark.parametrize("gone", ["live/grt_ada", "live/grt_ada.limit"])
def test_a_grant_is_stale_when_any_of_its_liveness_keys_is_gone(gone: str) -> None:
    found = held(ttl=9.0, max_hold=60.0)
    live = set(grant(found).live) - {gone}
    assert isinstance(acquire("bob", found, *live).outcome, lock.Reclaimed)
    assert isinstance(acquire("bob", found, *live, gone).outcome, lock.LockBusy)


def test_whoever_meets_a_stale_grant_gets_it_and_is_told_from_whom() -> None:
    decision = acquire("bob", held(ttl=9.0, max_hold=60.0))
    assert decision.outcome == lock.Reclaimed(
        lock="merge", holder="bob", expires_in=30.0, grant="grt_bob", reclaimed_from="ada"
    )
    assert set(decision.deletes) == {"live/grt_ada", "live/grt_ada.limit"}
    assert [(event.name, event.agent) for event in decision.events] == [
        ("lock:reclaimed", "ada"),
        ("lock:acquired", "bob"),
    ]


def test_a_stale_grant_goes_to_the_first_live_waiter_before_whoever_meets_it() -> None:
    found = queued("dead", "bob")
    decision = acquire("cleo", found, BOB)
    assert isinstance(decision.outcome, lock.LockBusy)
    assert decision.outcome.holder == "bob"
    assert grant(state(decision)).id == "grt_bob"
    assert state(decision).waiters == ()
    assert decision.signals == (keys.wake_waiter("ses_bob", "grt_bob"),)


def test_whoever_meets_a_stale_grant_and_waits_queues_behind_the_heir() -> None:
    decision = acquire("cleo", queued("bob"), BOB, wait=True)
    assert decision.outcome == lock.LockWaiting(lock="merge", holder="bob", before=0)
    assert [waiter.id for waiter in state(decision).waiters] == ["grt_cleo"]
    assert decision.signals == (keys.wake_waiter("ses_bob", "grt_bob"),)


def test_a_lapsed_holder_may_only_come_again() -> None:
    found = held()
    assert isinstance(acquire("ada", found, token=5).outcome, lock.Reclaimed)
    assert beat(found, caller("ada", 5), set(), 30.0).outcome == lock.LockFenced(lock="merge")


def test_acquiring_again_extends_for_a_call_that_carries_the_token() -> None:
    decision = acquire("ada", held(), ADA, token=5)
    assert decision.outcome == lock.LockExtended(
        lock="merge", holder="ada", token=5, expires_in=30.0, grant="grt_ada"
    )
    assert decision.quiet
    assert [(put.key, put.ttl) for put in decision.puts] == [(ADA, 30.0)]


def test_acquiring_again_extends_for_a_whole_session() -> None:
    assert isinstance(acquire("ada", held(), ADA, whole_session=True).outcome, lock.LockExtended)


def test_two_tasks_of_one_session_are_two_callers() -> None:
    assert isinstance(acquire("ada", held(), ADA).outcome, lock.LockBusy)


@pytest.mark.parametrize(("agent", "token"), [("bob", 5), ("ada", 6)])
def test_a_token_counts_only_under_its_holders_name(agent: str, token: int) -> None:
    assert isinstance(acquire(agent, held(), ADA, token=token).outcome, lock.LockBusy)


def test_acquiring_with_the_token_of_a_lock_that_moved_on_is_fenced_and_recorded() -> None:
    decision = acquire("ada", held(), ADA, token=4)
    assert decision.outcome == lock.LockFenced(lock="merge", holder="ada", token=5)
    assert (decision.verb, decision.deletes) == ("lock.acquire", ())


def test_extending_with_other_metadata_records_them() -> None:
    decision = acquire("ada", held(), ADA, token=5, metadata={"step": 2})
    assert grant(state(decision)).metadata == {"step": 2}
    assert (decision.verb, decision.quiet) == ("lock.extend", False)


def test_the_next_writer_of_the_item_fills_in_the_token() -> None:
    assert grant(state(acquire("ada"))).token is None
    assert grant(state(acquire("bob", held(token=5), ADA, wait=True))).token == 5


def test_a_token_once_filled_in_stays() -> None:
    assert grant(with_token(held(token=5), 99)).token == 5


def test_waiters_queue_in_the_order_of_their_coming() -> None:
    found = queued("bob", "cleo")
    assert [waiter.id for waiter in found.waiters] == ["grt_bob", "grt_cleo"]
    decision = acquire("dora", found, ADA, wait=True)
    assert decision.outcome == lock.LockWaiting(lock="merge", holder="ada", before=2)


def test_a_queue_has_a_limit() -> None:
    found = queued("bob")
    full = Pool(found.grants, found.waiters * WAITERS)
    with pytest.raises(NotAllowed, match="already wait"):
        acquire("cleo", full, ADA, BOB, wait=True)
    assert isinstance(acquire("cleo", full, ADA, BOB).outcome, lock.LockBusy)


def test_the_dead_do_not_fill_a_queue() -> None:
    found = queued("bob", "dead")
    full = Pool(found.grants, (found.waiters[0], *found.waiters[1:] * (WAITERS - 1)))
    decision = acquire("cleo", full, ADA, BOB, wait=True)
    assert [waiter.id for waiter in state(decision).waiters] == ["grt_bob", "grt_cleo"]


def test_release_hands_over_to_the_first_live_waiter_in_the_same_decision() -> None:
    decision = release(queued("dead", "bob", "cleo"), caller("ada", 5), {ADA, BOB, CLEO})
    assert decision.outcome == lock.LockReleased(lock="merge", next="bob")
    found = state(decision)
    assert grant(found).id == "grt_bob"
    assert grant(found).token is None
    assert [waiter.id for waiter in found.waiters] == ["grt_cleo"]
    assert decision.signals == (keys.wake_waiter("ses_bob", "grt_bob"),)


def test_release_without_waiters_frees_the_lock_and_its_keys() -> None:
    live = {"live/grt_ada", "live/grt_ada.limit"}
    decision = release(held(ttl=9.0, max_hold=60.0), caller("ada", 5), live)
    assert decision.outcome == lock.LockReleased(lock="merge")
    assert set(decision.deletes) == {"locks/merge", "live/grt_ada", "live/grt_ada.limit"}


def test_release_never_ends_the_session_that_a_grant_lives_by() -> None:
    assert release(held(), caller("ada"), {ADA}).deletes == ("locks/merge",)


def test_a_free_lock_is_already_free() -> None:
    decision = release(None, caller("ada", 5), set())
    assert decision.outcome == lock.AlreadyFree(lock="merge")
    assert not decision.changes


def test_a_session_speaks_for_its_grant_without_a_token() -> None:
    assert isinstance(release(held(), caller("ada"), {ADA}).outcome, lock.LockReleased)


def test_a_lapsed_grant_is_fenced_though_nobody_took_it_and_passed_on() -> None:
    decision = release(queued("bob"), caller("ada", 5), {BOB})
    assert decision.outcome == lock.LockFenced(lock="merge")
    assert grant(state(decision)).id == "grt_bob"


def test_an_older_token_is_fenced() -> None:
    for decision in (
        release(held(), caller("ada", 4), {ADA}),
        beat(held(), caller("ada", 4), {ADA}, 30.0),
    ):
        assert decision.outcome == lock.LockFenced(lock="merge", holder="ada", token=5)


@pytest.mark.parametrize("who", [caller("bob"), caller("bob", 5), caller("ada", 6)])
def test_who_never_held_it_is_no_owner(who: HolderRequest) -> None:
    assert release(held(), who, {ADA}).outcome == lock.LockNotOwner(lock="merge", holder="ada")


def test_a_refusal_changes_nothing_but_is_recorded_once_in_a_while() -> None:
    mark = keys.refusal_mark("grt_ada", "bob", "lock.release")
    first = release(held(), caller("bob"), {ADA})
    assert [(put.key, put.ttl) for put in first.puts] == [(mark, REFUSAL_WINDOW)]
    assert (first.verb, first.deletes) == ("lock.release", ())
    assert not release(held(), caller("bob"), {ADA, mark}).changes


def test_a_beat_renews_what_the_grant_lives_by_and_never_its_limit() -> None:
    found = held(ttl=9.0, max_hold=60.0)
    decision = beat(found, caller("ada", 5), set(grant(found).live), 30.0)
    assert isinstance(decision.outcome, lock.LockExtended)
    assert [(put.key, put.ttl) for put in decision.puts] == [("live/grt_ada", 9.0)]
    assert decision.quiet


def test_a_beat_on_a_free_lock_is_fenced() -> None:
    assert beat(None, caller("ada", 5), set(), 30.0).outcome == lock.LockFenced(lock="merge")


def test_a_promoted_waiter_starts_with_a_short_ttl() -> None:
    found = state(acquire("bob", held(), ADA, wait=True, ttl=900.0, max_hold=900.0))
    decision = release(found, caller("ada", 5), {BOB})
    times = {put.key: put.ttl for put in decision.puts}
    assert times["live/grt_bob"] == CLAIM_WINDOW
    assert times["live/grt_bob.limit"] == 900.0
    assert grant(state(decision)).ttl == 900.0


def test_a_look_takes_what_was_handed_over() -> None:
    found = with_token(state(release(queued("bob"), caller("ada", 5), {ADA, BOB})), 9)
    decision = look(found, "bob", {BOB})
    assert decision.outcome == lock.LockAcquired(
        lock="merge", holder="bob", token=9, grant="grt_bob"
    )
    assert not decision.changes


def test_a_look_passes_a_stale_grant_on_in_order() -> None:
    found = queued("bob", "cleo")
    decision = look(found, "cleo", {BOB, CLEO})
    assert decision.outcome == lock.LockWaiting(lock="merge", holder="bob", before=0)
    assert grant(state(decision)).id == "grt_bob"
    decision = look(found, "cleo", {CLEO})
    assert isinstance(decision.outcome, lock.Reclaimed)
    assert grant(state(decision)).id == "grt_cleo"


def test_a_look_changes_nothing_while_the_holder_lives() -> None:
    decision = look(queued("bob"), "bob", {ADA, BOB})
    assert decision.outcome == lock.LockWaiting(lock="merge", holder="ada", before=0)
    assert not decision.changes


def test_who_is_not_in_the_queue_any_more_is_told() -> None:
    gone = lock.LockGone(lock="merge")
    assert look(None, "bob", set()).outcome == gone
    assert look(held(), "bob", {ADA}).outcome == gone
    assert withdraw(held(), "bob", {ADA}).outcome == gone


def test_withdraw_leaves_the_queue_to_the_others() -> None:
    decision = withdraw(queued("bob", "cleo"), "bob", {ADA, BOB, CLEO})
    assert decision.outcome == lock.LockBusy(lock="merge", holder="ada", since=NOW, waiters=1)
    assert [waiter.id for waiter in state(decision).waiters] == ["grt_cleo"]


def test_withdraw_keeps_a_lock_that_came_at_the_last_moment() -> None:
    decision = withdraw(queued("bob"), "bob", {BOB})
    assert isinstance(decision.outcome, lock.Reclaimed)


def test_withdraw_passes_a_stale_grant_on_before_it_leaves() -> None:
    decision = withdraw(queued("bob", "cleo"), "cleo", {BOB, CLEO})
    found = state(decision)
    assert (grant(found).id, found.waiters) == ("grt_bob", ())
    assert decision.signals == (keys.wake_waiter("ses_bob", "grt_bob"),)


def test_maintenance_reclaims_only_what_is_stale() -> None:
    found = queued("dead", "bob")
    assert not reclaim(found, {ADA}).changes
    assert grant(state(reclaim(found, {BOB}))).id == "grt_bob"
    assert reclaim(found, set()).deletes[0] == "locks/merge"
