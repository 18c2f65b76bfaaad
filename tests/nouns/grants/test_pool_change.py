from __future__ import annotations

import pytest
from tests.nouns.grants.pools import EVERYBODY, NOW, A, B, Table, X, all_of, complete, facts, slots

from interlock.core import keys
from interlock.core.decision import Missing
from interlock.nouns.grants import rules, semaphore
from interlock.nouns.grants.pool import Pool, with_token
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts
from interlock.nouns.grants.request import HolderRequest

MANY_NAMES = [f"n{number}" for number in range(40)]
ALL = EVERYBODY | {keys.live(f"ses_{name}") for name in MANY_NAMES}


def crowd(capacity: int = 40) -> Table:
    """Ada has all of x, and many wait for one slot each."""
    table = Table(x=capacity)
    table.acquire(slots("ada", capacity))
    for name in MANY_NAMES:
        table.acquire(slots(name, wait=True), ALL)
    return table


def given_back(table: Table, max_operations: int) -> tuple[list[str], tuple[str, ...], int]:
    """Who is served and who is woken when ada releases, and how large the commit is."""
    who = HolderRequest(target=semaphore.SlotsTarget("x"), agent="ada", session="ses_ada")
    known = complete({X: table.pools[X]}, ALL, max_operations=max_operations)
    decision = table.carry_out(rules.release(who, known, NOW))
    size = len(decision.puts) + len(decision.deletes) + len(decision.signals)
    return list(table.holders(X)), decision.signals, size + len(known.relied) + len(known.pools)


def test_everybody_who_fits_is_served_where_there_is_room() -> None:
    served, woken, _ = given_back(crowd(), max_operations=10_000)
    assert served == MANY_NAMES
    assert len(woken) == 40


def test_beyond_the_room_of_a_commit_the_next_one_is_only_woken() -> None:
    table = crowd()
    served, woken, size = given_back(table, max_operations=40)
    assert 1 < len(served) < 40
    assert size <= 40
    first = table.waiters(X)[0]
    assert woken[-1] == keys.wake_waiter(f"ses_{first}", f"grt_{first}")


def test_however_little_room_there_is_somebody_is_served() -> None:
    served, _, _ = given_back(crowd(), max_operations=2)
    assert served == MANY_NAMES[:1]


def test_many_stale_grants_end_within_the_room_of_a_commit() -> None:
    table = Table(x=40)
    for name in MANY_NAMES:
        table.acquire(slots(name, ttl=9.0, max_hold=60.0), ALL)
    decision = rules.reclaim(X, facts(table.pools, EVERYBODY, max_operations=30), NOW)
    assert decision.outcome == "reclaimed"
    assert len(decision.puts) + len(decision.deletes) <= 20
    table.carry_out(decision)
    assert table.holders(X) == {}


def test_a_waiter_that_needs_many_other_things_is_woken_and_not_looked_into() -> None:
    """To read them all would be more than one commit can check."""
    table = Table(x=1)
    table.acquire(slots("ada"))
    table.acquire(all_of("bob", "sem/x", "lock/a", "lock/b", wait=True))
    who = HolderRequest(target=semaphore.SlotsTarget("x"), agent="ada", session="ses_ada")
    known = complete({X: table.pools[X]}, EVERYBODY, max_operations=10)
    decision = rules.release(who, known, NOW)
    assert decision.signals == ("wake/session/ses_bob/grt_bob",)
    table.carry_out(decision)
    looks = all_of("bob", "sem/x", "lock/a", "lock/b")
    table.carry_out(rules.check_wait(looks, facts(table.pools, max_operations=10), NOW))
    assert [table.holders(key) for key in (X, A, B)] == [{"bob": 1}] * 3


def test_tokens_and_the_order_of_waiters_are_filled_in_by_the_next_reader() -> None:
    table = Table(x=1)
    table.acquire(slots("ada"))
    table.acquire(slots("bob", wait=True))
    table.acquire(slots("cleo", wait=True))
    pool = table.pools[X] or Pool()
    assert [grant.token for grant in pool.grants] == [1]
    assert [waiter.order for waiter in pool.waiters] == [2, 3]
    assert with_token(pool, 99) == pool


def test_facts_ask_for_each_thing_once_and_together() -> None:
    with pytest.raises(Missing) as pools:
        PoolFacts({}, {}, {}).pool(A)
    assert pools.value.refs == (A,)
    with pytest.raises(Missing) as live:
        PoolFacts({}, {"live/a": True}, {}).need(["live/a", "live/b", "live/c", "live/b"])
    assert live.value.refs == ("live/b", "live/c")


def test_a_turn_that_changes_nothing_is_no_decision() -> None:
    table = Table(x=1)
    turn = PoolChanges(facts(table.pools), NOW)
    turn.serve((X, A))
    assert not turn.decision("same", "sem.reclaim", "sem/x").changes


def test_a_release_relies_on_who_gives_back_and_on_the_waiter_that_it_serves() -> None:
    table = Table(x=1)
    table.acquire(slots("ada"))
    table.acquire(slots("bob", wait=True))
    table.acquire(slots("cleo", wait=True))
    known = facts(table.pools)
    rules.release(
        HolderRequest(target=semaphore.SlotsTarget("x"), agent="ada", session="ses_ada"), known, NOW
    )
    assert list(known.relied) == ["live/ses_ada", "live/ses_bob"]
