from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.nouns.grants.pools import EVERYBODY, NOW, A, B, Table, X, all_of, facts, slots, without

from interlock.core import keys
from interlock.core.decision import Decision, Missing
from interlock.nouns.grants import lock, rules, semaphore, several
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.request import GrantRequest, HolderRequest


@pytest.fixture
def table() -> Table:
    return Table(x=3)


def one(agent: str, name: str, **terms: Any) -> GrantRequest:
    return GrantRequest(
        target=lock.LockTarget(name),
        grant=f"grt_{agent}",
        agent=agent,
        session=f"ses_{agent}",
        **terms,
    )


def release(table: Table, agent: str, *things: str, dead: tuple[str, ...] = ()) -> Decision[Any]:
    who = HolderRequest(target=several.target_of(things), agent=agent, session=f"ses_{agent}")
    return table.carry_out(rules.release(who, facts(table.pools, without(*dead)), NOW))


def test_all_of_it_is_taken_with_one_decision_under_one_token(table: Table) -> None:
    decision = table.acquire(all_of("ada", "lock/a", "lock/b", "sem/x=2"))
    assert decision.outcome == several.SeveralAcquired(
        things=("lock/a", "lock/b", "sem/x=2"), holder="ada", expires_in=30.0, grant="grt_ada"
    )
    assert (decision.verb, decision.thing) == ("acquire", "lock/a+lock/b+sem/x")
    assert {table.token(key, "ada") for key in (A, B, X)} == {1}
    assert table.holders(X) == {"ada": 2}


def test_none_of_it_is_taken_if_some_of_it_cannot_be(table: Table) -> None:
    table.acquire(one("ada", "b"))
    decision = table.acquire(all_of("bob", "lock/a", "lock/b", "sem/x"))
    assert isinstance(decision.outcome, several.SeveralBusy)
    assert [type(no) for no in decision.outcome.blocked] == [lock.LockBusy]
    assert not decision.changes


def test_whatever_blocks_is_named(table: Table) -> None:
    table.acquire(all_of("ada", "lock/a", "sem/x=3"))
    decision = table.acquire(all_of("bob", "lock/a", "lock/b", "sem/x"))
    assert decision.outcome.blocked == (
        lock.LockBusy(lock="a", holder="ada", since=NOW),
        semaphore.SlotsFull(semaphore="x", capacity=3, available=0, holders=("ada",)),
    )


def test_it_queues_everywhere_with_one_decision(table: Table) -> None:
    table.acquire(one("ada", "a"))
    decision = table.acquire(all_of("bob", "lock/a", "lock/b", "sem/x", wait=True))
    assert decision.outcome == several.SeveralWaiting(
        things=("lock/a", "lock/b", "sem/x"), before=0
    )
    assert [table.waiters(key) for key in (A, B, X)] == [["bob"]] * 3
    assert [table.holders(key) for key in (B, X)] == [{}, {}]


def test_a_free_lock_is_kept_for_who_waits_for_more(table: Table) -> None:
    table.acquire(one("ada", "a"))
    table.acquire(all_of("bob", "lock/a", "lock/b", wait=True))
    refused = table.acquire(one("cleo", "b"))
    assert refused.outcome == lock.LockBusy(lock="b", holder="", since=NOW, waiters=1)
    table.acquire(one("cleo", "b", wait=True))
    release(table, "ada", "lock/a")
    assert (table.holders(A), table.holders(B)) == ({"bob": 1}, {"bob": 1})
    release(table, "bob", "lock/a", "lock/b")
    assert table.holders(B) == {"cleo": 1}


def test_who_gives_up_lets_those_behind_it_go_on(table: Table) -> None:
    table.acquire(one("ada", "a"))
    waits = all_of("bob", "lock/a", "lock/b", wait=True)
    table.acquire(waits)
    table.acquire(one("cleo", "b", wait=True))
    decision = table.carry_out(rules.withdraw(waits, facts(table.pools), NOW))
    assert isinstance(decision.outcome, several.SeveralBusy)
    assert table.holders(B) == {"cleo": 1}
    assert table.waiters(A) == []


def test_a_release_of_a_part_keeps_the_rest_alive(table: Table) -> None:
    table.acquire(all_of("ada", "lock/a", "lock/b", ttl=9.0, max_hold=60.0))
    live = EVERYBODY | {keys.live("grt_ada"), keys.max_hold("grt_ada")}
    who = HolderRequest(target=several.target_of(("lock/a",)), agent="ada", session="ses_ada")
    part = table.carry_out(rules.release(who, facts(table.pools, live), NOW))
    assert part.outcome == several.SeveralReleased(things=("lock/a",))
    assert part.deletes == (A,), "what keeps the other alive stays"
    assert table.holders(B) == {"ada": 1}


def test_a_release_of_all_frees_its_liveness_too(table: Table) -> None:
    table.acquire(all_of("ada", "lock/a", "lock/b", ttl=9.0, max_hold=60.0))
    whole = release(table, "ada", "lock/a", "lock/b")
    assert set(whole.deletes) == {A, B, "live/grt_ada", "live/grt_ada.limit"}


def test_what_was_never_held_is_not_given_back(table: Table) -> None:
    table.acquire(one("ada", "a"))
    assert release(table, "bob", "lock/a", "lock/b").outcome == several.SeveralNotOwner(
        things=("lock/a", "lock/b")
    )


def test_a_dead_waiter_for_several_is_passed_over_everywhere(table: Table) -> None:
    table.acquire(one("ada", "a"))
    table.acquire(all_of("bob", "lock/a", "lock/b", wait=True))
    table.acquire(all_of("cleo", "lock/b", "lock/a", wait=True))
    release(table, "ada", "lock/a", dead=("bob",))
    assert (table.holders(A), table.holders(B)) == ({"cleo": 1}, {"cleo": 1})
    assert (table.waiters(A), table.waiters(B)) == ([], [])


def test_some_of_it_lost_is_all_of_it_lost(table: Table) -> None:
    """Promoted while it slept, and a part given back by another hand: it takes none."""
    table.acquire(one("ada", "a"))
    waits = all_of("bob", "lock/a", "lock/b", wait=True)
    table.acquire(waits)
    release(table, "ada", "lock/a")
    release(table, "bob", "lock/b")
    assert isinstance(rules.check_wait(waits, facts(table.pools), NOW).outcome, several.SeveralGone)
    table.carry_out(rules.abandon(waits, facts(table.pools), NOW))
    assert (table.pools[A], table.pools[B]) == (None, None)


OF_ADA = HolderRequest(target=lock.LockTarget("a"), agent="ada", session="ses_ada")


def gathered(
    decide: Callable[[], Decision[Any]], known: PoolFacts, table: Table
) -> tuple[Decision[Any], list[tuple[str, ...]]]:
    """The decision, and what it asked for on the way; everybody lives."""
    asked: list[tuple[str, ...]] = []
    while True:
        try:
            return decide(), asked
        except Missing as missing:
            asked.append(missing.refs)
            pools = {ref: table.pools[ref] for ref in missing.refs if ref in table.pools}
            live = dict.fromkeys(set(missing.refs) - pools.keys(), True)
            known.pools, known.exists = {**known.pools, **pools}, {**known.exists, **live}


def test_a_decision_asks_for_what_it_needs_and_nothing_else(table: Table) -> None:
    table.acquire(one("ada", "a"))
    table.acquire(all_of("bob", "lock/a", "lock/b", wait=True))
    known = PoolFacts({A: table.pools[A]}, {}, {})
    decision, asked = gathered(lambda: rules.release(OF_ADA, known, NOW), known, table)
    assert asked == [("live/ses_ada",), ("live/ses_bob",), (B,)]
    assert decision.outcome == lock.LockReleased(lock="a", next="bob")


def test_slots_wait_behind_several(table: Table) -> None:
    table.acquire(one("ada", "a"))
    table.acquire(all_of("bob", "lock/a", "sem/x", wait=True))
    assert isinstance(table.acquire(slots("cleo")).outcome, semaphore.SlotsFull)
