from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.grants.pools import NOW, Table, X, Y, all_of, facts, slots, without

from interlock.core.decision import Decision
from interlock.errors import BadInput
from interlock.nouns.grants import rules, semaphore
from interlock.nouns.grants.pool import GRANTS, Pool, with_token
from interlock.nouns.grants.request import HolderRequest


@pytest.fixture
def table() -> Table:
    return Table(x=3)


def caller(agent: str, token: int | None = None) -> HolderRequest:
    return HolderRequest(
        target=semaphore.SlotsTarget("x"), agent=agent, session=f"ses_{agent}", token=token
    )


def release(table: Table, who: HolderRequest, *dead: str) -> Decision[Any]:
    return table.carry_out(rules.release(who, facts(table.pools, without(*dead)), NOW))


def resize(table: Table, capacity: int) -> Decision[semaphore.Resized]:
    return table.carry_out(semaphore.resize("x", capacity, facts(table.pools), NOW))


def test_slots_are_taken_by_weight(table: Table) -> None:
    decision = table.acquire(slots("ada", 2))
    assert decision.outcome == semaphore.SlotsAcquired(
        semaphore="x",
        holder="ada",
        weight=2,
        capacity=3,
        available=1,
        expires_in=30.0,
        grant="grt_ada",
    )
    assert decision.verb == "sem.acquire"
    assert isinstance(table.acquire(slots("bob")).outcome, semaphore.SlotsAcquired)
    assert table.holders(X) == {"ada": 2, "bob": 1}


def test_full_says_what_there_is(table: Table) -> None:
    table.acquire(slots("ada", 2))
    decision = table.acquire(slots("bob", 2))
    assert decision.outcome == semaphore.SlotsFull(
        semaphore="x", capacity=3, available=1, holders=("ada",)
    )
    assert not decision.changes


def test_the_first_who_names_a_capacity_makes_it_and_everybody_must_mean_the_same() -> None:
    table = Table()
    with pytest.raises(BadInput, match=r"capacity=N, --capacity N"):
        table.acquire(slots("ada"))
    assert isinstance(table.acquire(slots("ada", capacity=4)).outcome, semaphore.SlotsAcquired)
    assert isinstance(table.acquire(slots("bob", capacity=4)).outcome, semaphore.SlotsAcquired)
    with pytest.raises(BadInput, match="has capacity 4, not 5"):
        table.acquire(slots("cleo", capacity=5))


def test_more_than_there_is_in_all_is_refused_at_once(table: Table) -> None:
    with pytest.raises(BadInput, match="can never be had"):
        table.acquire(slots("ada", 4, wait=True))


def test_who_carries_its_grant_keeps_it_or_gets_more(table: Table) -> None:
    table.acquire(slots("ada"))
    token = table.token(X, "ada")
    same = table.acquire(slots("ada", token=token))
    assert isinstance(same.outcome, semaphore.AlreadyHeld)
    assert same.quiet
    more = table.acquire(slots("ada", 3, token=token))
    assert isinstance(more.outcome, semaphore.Increased)
    assert (more.outcome.token, more.outcome.weight, more.outcome.available) == (token, 3, 0)
    less = table.acquire(slots("ada", 2, token=token))
    assert isinstance(less.outcome, semaphore.AlreadyHeld)
    assert less.outcome.weight == 3


def test_an_increase_waits_behind_everybody(table: Table) -> None:
    table.acquire(slots("ada"))
    table.acquire(slots("bob", 2))
    table.acquire(slots("cleo", wait=True))
    token = table.token(X, "ada")
    waits = slots("ada", 2, token=token, wait=True, grant="grt_more")
    assert table.acquire(waits).outcome == semaphore.SlotsWaiting(semaphore="x", before=1)
    release(table, caller("bob"))
    assert table.holders(X) == {"ada": 2, "cleo": 1}
    looked = rules.check_wait(waits, facts(table.pools), NOW)
    assert isinstance(looked.outcome, semaphore.Increased)
    assert (looked.outcome.grant, looked.outcome.token) == ("grt_ada", token)


def test_an_increase_whose_grant_ends_meanwhile_comes_again(table: Table) -> None:
    table.acquire(slots("ada"))
    table.acquire(slots("bob", 2))
    waits = slots("ada", 2, token=table.token(X, "ada"), wait=True, grant="grt_more")
    table.acquire(waits)
    release(table, caller("ada"))
    assert table.holders(X) == {"bob": 2}
    looked = rules.check_wait(waits, facts(table.pools), NOW)
    assert looked.outcome == semaphore.SlotsGone(semaphore="x")
    assert table.waiters(X) == []


def test_the_dead_are_no_reason_to_say_full(table: Table) -> None:
    table.acquire(slots("ada", 2))
    table.acquire(slots("bob", 1))
    decision = table.acquire(slots("cleo", 2), without("ada"))
    assert isinstance(decision.outcome, semaphore.SlotsAcquired)
    assert table.holders(X) == {"bob": 1, "cleo": 2}


def test_nobody_overtakes_so_a_big_request_is_never_starved(table: Table) -> None:
    table.acquire(slots("ada", 2))
    table.acquire(slots("bob", 3, wait=True))
    assert isinstance(table.acquire(slots("cleo")).outcome, semaphore.SlotsFull)
    table.acquire(slots("dora", wait=True))
    decision = release(table, caller("ada"))
    assert decision.outcome == semaphore.SlotsReleased(semaphore="x", next=("bob",))
    assert table.waiters(X) == ["dora"]


def test_all_who_fit_are_served_by_one_release(table: Table) -> None:
    table.acquire(slots("ada", 3))
    for name in ("bob", "cleo", "dora", "eve"):
        table.acquire(slots(name, wait=True))
    decision = release(table, caller("ada"), "cleo")
    assert decision.outcome.next == ("bob", "dora", "eve")
    assert table.waiters(X) == []


def test_a_token_under_its_holders_name_means_one_grant(table: Table) -> None:
    """What one commit gives has one token, so a second grant of an agent comes a commit later."""
    table.acquire(slots("ada", 3))
    for number in (1, 2):
        table.acquire(slots("bob", wait=True, grant=f"grt_bob{number}"))
    decision = release(table, caller("ada"))
    assert decision.outcome.next == ("bob",)
    assert decision.signals == ("wake/session/ses_bob/grt_bob1", "wake/session/ses_bob/grt_bob2")
    second = slots("bob", grant="grt_bob2")
    table.carry_out(rules.check_wait(second, facts(table.pools), NOW))
    pool = table.pools[X] or Pool()
    assert len({grant.token for grant in pool.grants}) == 2


def test_who_meets_its_own_heir_comes_again_for_a_token_of_its_own(table: Table) -> None:
    table.acquire(slots("ada", 3))
    table.acquire(slots("bob", wait=True, grant="grt_first"))
    decision = table.acquire(slots("bob"), without("ada"))
    assert isinstance(decision.outcome, semaphore.SlotsGone)
    assert table.holders(X) == {"bob": 1}
    assert isinstance(table.acquire(slots("bob")).outcome, semaphore.SlotsAcquired)


@pytest.mark.parametrize("who", [caller("bob"), caller("bob", 1), caller("ada", 9_000)])
def test_who_never_held_is_no_holder(table: Table, who: HolderRequest) -> None:
    table.acquire(slots("ada"))
    assert release(table, who).outcome == semaphore.NotHolder(semaphore="x")


def test_a_token_that_is_over_is_fenced(table: Table) -> None:
    table.acquire(slots("ada"))
    release(table, caller("ada", 1))
    table.acquire(slots("bob"))
    assert isinstance(release(table, caller("ada", 1)).outcome, semaphore.SlotsFenced)
    beat = rules.beat(caller("ada", 1), facts(table.pools), 30.0)
    assert isinstance(beat.outcome, semaphore.SlotsFenced)


def test_a_beat_renews_slots_that_live_and_revives_none(table: Table) -> None:
    table.acquire(slots("ada"))
    assert isinstance(
        rules.beat(caller("ada", 1), facts(table.pools), 30.0).outcome, semaphore.AlreadyHeld
    )
    over = rules.beat(caller("ada", 1), facts(table.pools, without("ada")), 30.0)
    assert isinstance(over.outcome, semaphore.SlotsFenced)


def test_a_larger_capacity_serves_who_fits(table: Table) -> None:
    table.acquire(slots("ada", 3))
    for name in ("bob", "cleo"):
        table.acquire(slots(name, wait=True))
    decision = resize(table, 5)
    assert decision.outcome == semaphore.Resized(
        semaphore="x", capacity=5, before=3, next=("bob", "cleo")
    )
    assert table.holders(X) == {"ada": 3, "bob": 1, "cleo": 1}


def test_a_lower_capacity_takes_nothing_from_anybody(table: Table) -> None:
    table.acquire(slots("ada", 2))
    table.acquire(slots("bob"))
    table.acquire(slots("cleo", wait=True))
    resize(table, 1)
    release(table, caller("bob"))
    assert (table.holders(X), table.waiters(X)) == ({"ada": 2}, ["cleo"])
    release(table, caller("ada"))
    assert table.holders(X) == {"cleo": 1}


def test_who_can_never_fit_is_sent_away_from_all_its_queues() -> None:
    table = Table(x=3, y=1)
    table.acquire(slots("ada"))
    table.acquire(all_of("bob", "sem/x=3", "sem/y", wait=True))
    table.acquire(all_of("cleo", "sem/y", wait=True))
    decision = resize(table, 2)
    assert (table.waiters(X), table.waiters(Y)) == ([], [])
    assert table.holders(Y) == {"cleo": 1}, "who stood behind it is served"
    assert "wake/session/ses_bob/grt_bob" in decision.signals


def test_a_grant_that_can_never_become_so_large_blocks_nobody(table: Table) -> None:
    table.acquire(slots("ada", 1))
    table.acquire(slots("bob", 2))
    waits = slots("ada", 3, token=table.token(X, "ada"), wait=True, grant="grt_more")
    table.acquire(waits)
    table.acquire(slots("cleo", wait=True))
    resize(table, 2)
    assert table.waiters(X) == ["cleo"]


def test_whoever_the_commit_of_a_resize_has_no_room_for_leaves_by_itself(table: Table) -> None:
    table.acquire(slots("ada", 2))
    table.acquire(slots("bob", 3, wait=True))
    decision = semaphore.resize("x", 2, facts(table.pools, max_operations=2), NOW)
    table.carry_out(decision)
    assert table.waiters(X) == ["bob"]
    looked = table.carry_out(rules.check_wait(slots("bob", 3), facts(table.pools), NOW))
    assert looked.outcome == semaphore.SlotsGone(semaphore="x")
    assert table.waiters(X) == []


def test_there_is_a_limit_to_grants_whatever_the_capacity() -> None:
    table = Table(x=5000)
    table.acquire(slots("ada"))
    pool = table.pools[X]
    assert pool is not None
    table.pools[X] = with_token(Pool(pool.grants * GRANTS, (), 5000), 1)
    assert isinstance(table.acquire(slots("bob")).outcome, semaphore.SlotsFull)
    assert isinstance(table.acquire(slots("bob", wait=True)).outcome, semaphore.SlotsWaiting)


def test_what_nobody_holds_or_waits_for_can_be_taken_away(table: Table) -> None:
    def remove(*dead: str) -> object:
        known = facts(table.pools, without(*dead))
        return table.carry_out(semaphore.remove("x", known, NOW)).outcome

    table.acquire(slots("ada"))
    assert remove() == semaphore.SlotsFull(semaphore="x", capacity=3, available=2, holders=("ada",))
    assert remove("ada") == semaphore.Removed(semaphore="x")
    assert remove() == semaphore.NoSemaphore(semaphore="x")
