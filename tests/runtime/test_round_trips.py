"""What each operation asks of an engine across a network: a round trip is what costs there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from interlock.errors import NotAllowed, StoreBusy, TooLarge
from interlock.nouns.agents.session_rules import Left
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import (
    LockAcquired,
    LockBusy,
    LockFenced,
    LockNotOwner,
    LockReleased,
    LockTarget,
    Reclaimed,
)
from interlock.nouns.grants.pool import WAITERS
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.grants.semaphore import SlotsTarget
from interlock.nouns.grants.several import target_of
from interlock.nouns.messages.query import Late, NobodyToAsk, TakenBack
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.runtime.identity import Actor
from interlock.runtime.reads import fresh_once
from interlock.runtime.runner import PATIENCE
from interlock.steps import Commit, NextChanges, Op, OpenWatch, PrepareLiveness, Read, Renew, Step
from interlock.store import Txn
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

TERMS = GrantTerms(wait=3600, ttl=None, max_hold=None, metadata=None, given=())


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def remote(stage: Testbed, name: str) -> Client:
    """A client that has asked for the base of its tokens already."""
    client = stage.remote(name)
    client.run(client.runner.base())
    return client


def steps(client: Client, op: Op[Any]) -> list[type[Step]]:
    hand = client.start(op)
    hand.result()
    return kinds(hand)


def kinds(hand: Stepper[Any]) -> list[type[Step]]:
    return [type(step) for step in hand.steps]


def test_an_uncontended_acquire_and_release_are_one_commit_each(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    assert steps(ada, ada.locks.acquire("merge")) == [Commit]
    assert steps(ada, ada.locks.release("merge")) == [Commit]
    assert audit(stage.store) == []


def test_slots_are_one_commit_each(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    assert steps(ada, ada.semaphores.acquire("x", capacity=3)) == [Commit]
    assert steps(ada, ada.semaphores.release("x")) == [Commit]
    assert steps(ada, ada.semaphores.acquire("x", weight=2)) == [Commit]
    assert steps(ada, ada.semaphores.release("x")) == [Commit]
    assert audit(stage.store) == []


def test_slots_that_others_changed_meanwhile_cost_one_conflict(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.semaphores.acquire("x", capacity=3))
    bob.run(bob.semaphores.acquire("x"))
    assert steps(ada, ada.semaphores.release("x")) == [Commit, Commit]


def test_three_things_at_once_are_one_commit(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    ada.run(ada.semaphores.resize("x", 3))
    things = ("lock/a", "lock/b", "sem/x=2")
    assert steps(ada, ada.several.acquire(*things)) == [Commit]
    assert steps(ada, ada.several.release("lock/a", "lock/b", "sem/x")) == [Commit]
    assert audit(stage.store) == []


def test_waiting_for_slots_costs_what_waiting_for_a_lock_does(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.semaphores.acquire("x", capacity=1))
    waiting = bob.start(take(bob.context, SlotsTarget("x", capacity=1), None, TERMS))
    assert kinds(waiting) == [Commit, Commit, OpenWatch, Read]
    slept = len(waiting.steps)
    giving = ada.start(ada.semaphores.release("x"))
    assert kinds(giving) == [Commit, Commit]
    waiting.run().result()
    assert kinds(waiting)[slept:] == [NextChanges, Read]


def test_waiting_for_several_things_costs_no_more(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.locks.acquire("a"))
    waiting = bob.start(take(bob.context, target_of(("lock/a", "lock/b")), None, TERMS))
    assert kinds(waiting) == [Commit, Commit, OpenWatch, Read]
    slept = len(waiting.steps)
    giving = ada.start(ada.locks.release("a"))
    assert kinds(giving)[-1] is Commit
    assert len(kinds(giving)) <= 4, "who waits, and what else it waits for"
    waiting.run().result()
    assert kinds(waiting)[slept:] == [NextChanges, Read]


def test_a_waiter_sleeps_though_somebody_dead_stands_before_it(stage: Testbed) -> None:
    """The first waiter lives and does not fit yet; the second is dead, and in nobody's way."""
    ada = stage.client("ada")
    ada.run(ada.semaphores.acquire("x", capacity=3, weight=2))
    big = stage.client("big")
    big.start(big.semaphores.acquire("x", weight=3, wait=60))
    dead = stage.client("dead", ttl=1.0)
    dead.start(dead.semaphores.acquire("x", wait=60))
    eve = stage.client("eve")
    waiting = eve.start(eve.semaphores.acquire("x", wait=60))
    stage.clock.advance(2.0)
    for _ in range(50):
        waiting.go()
    assert waiting.asleep


def test_what_is_refused_for_ever_rests_on_no_hope(stage: Testbed) -> None:
    """A queue that seems to be full is looked at: the dead in it do not count."""
    ada = remote(stage, "ada")
    ada.run(ada.locks.acquire("merge"))
    dead = stage.client("dead", ttl=1.0)
    for _ in range(WAITERS):
        dead.start(dead.locks.acquire("merge", wait=60))
    bob = remote(stage, "bob")
    with pytest.raises(NotAllowed):
        bob.run(bob.locks.acquire("merge", wait=60))
    stage.clock.advance(2.0)
    waiting = bob.start(bob.locks.acquire("merge", wait=60))
    assert waiting.asleep
    ada.run(ada.locks.release("merge"))
    assert isinstance(waiting.run().result(), LockAcquired)


def test_a_wait_that_ends_after_its_holder_lapsed_is_no_refusal(stage: Testbed) -> None:
    """Whoever comes late looks at the holder once more: the dead are no reason."""
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge", ttl=2.5))
    waiting = bob.start(bob.locks.acquire("merge", wait=2.5))
    stage.clock.advance(3)
    assert isinstance(waiting.run().result(), Reclaimed)


def test_joining_is_one_commit(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=None)
    assert steps(ada, ada.context.join(30.0)) == [Commit]


def test_an_idle_session_is_renewed_by_one_commit(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    stage.clock.advance(12.0)
    commits = ada.network.commits
    assert steps(ada, ada.context.keeper.beat()) == [Renew]
    assert ada.network.commits == commits + 1


def test_a_holder_renews_everything_with_one_commit_and_looks_at_its_locks(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    for name in ("a", "b"):
        ada.run(take(ada.context, LockTarget(name), None, replace(TERMS, ttl=20.0)))
    stage.clock.advance(8.0)
    commits = ada.network.commits
    assert steps(ada, ada.context.keeper.beat()) == [Renew, Read]
    assert ada.network.commits == commits + 1


def test_a_lease_that_lapsed_costs_a_renewal_one_more(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    held = ada.run(take(ada.context, LockTarget("a"), None, replace(TERMS, ttl=10.0)))
    stage.clock.advance(8.9)
    hand = Stepper(ada.context.keeper.beat(), ada.store, stage.clock)
    stage.clock.advance(2.0)  # it lapses between our decision to renew and the request's arrival
    commits = ada.network.commits
    assert kinds(hand.run()) == [Renew, Read]
    assert ada.network.commits == commits + 2
    assert held.lost()
    assert ada.context.session_lease is not None
    assert ada.context.session_lease.alive()


def test_busy_is_a_conflict_and_one_look_at_the_holder(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge"))
    hand = bob.start(bob.locks.acquire("merge"))
    outcome = hand.result()
    assert isinstance(outcome, LockBusy)
    assert outcome.expires_in == 30.0
    assert kinds(hand) == [Commit, Read]


def test_queueing_is_a_conflict_and_a_commit_and_a_handover_one_look(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge"))
    waiting = bob.start(take(bob.context, LockTarget("merge"), None, TERMS))
    assert kinds(waiting) == [Commit, Commit, OpenWatch, Read]
    slept = len(waiting.steps)
    giving = ada.start(ada.locks.release("merge"))
    assert isinstance(giving.result(), LockReleased)
    assert kinds(giving) == [Commit, Commit], "somebody queued: the conflict said so"
    waiting.run().result()
    assert kinds(waiting)[slept:] == [NextChanges, Read], "one look, and the lock is ours"
    assert audit(stage.store) == []


def test_who_waited_looks_before_it_releases_since_others_wait_too(stage: Testbed) -> None:
    """A wrong guess costs a whole commit on some engines, a look costs less on all of them."""
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge"))
    waiting = bob.start(take(bob.context, LockTarget("merge"), None, TERMS))
    ada.run(ada.locks.release("merge"))
    held = waiting.run().result()
    assert steps(bob, held.release()) == [Read, Commit]


def test_a_dead_heir_costs_its_releaser_a_conflict_and_a_look(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    ada.run(ada.locks.acquire("merge"))
    dead = stage.remote("dead", ttl=1.0)
    dead.start(dead.locks.acquire("merge", wait=60))
    eve = remote(stage, "eve")
    waiting = eve.start(eve.locks.acquire("merge", wait=60))
    stage.clock.advance(2.0)
    giving = ada.start(ada.locks.release("merge"))
    outcome = giving.result()
    assert isinstance(outcome, LockReleased)
    assert outcome.next == "eve"
    assert kinds(giving) == [Commit, Commit, Read, Commit]
    assert isinstance(waiting.run().result(), LockAcquired)


def test_a_wrong_memory_of_a_lock_only_costs_a_round_trip(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    near = stage.client("near")
    ada.run(ada.locks.acquire("merge"))
    token = ada.run(ada.locks.show("merge")).token
    near.run(
        near.fleet.context.grants.release(
            ada.context.identity.actor, LockTarget("merge"), token=token
        )
    )
    near.run(near.locks.acquire("merge"))
    giving = ada.start(ada.locks.release("merge", token=token))
    assert isinstance(giving.result(), LockFenced)
    assert near.run(near.locks.show("merge")).holder == "near"


def small(client: Client, operations: int) -> None:
    """An engine that takes only so many operations in one transaction."""
    client.runner.capabilities = replace(client.runner.capabilities, max_operations=operations)


def commits(hand: Stepper[Any]) -> list[Txn]:
    return [step.txn for step in hand.steps if isinstance(step, Commit)]


def test_leaving_with_many_locks_is_split_where_the_engine_takes_few(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    names = [f"n{number:02}" for number in range(30)]
    for name in names:
        ada.run(ada.locks.acquire(name))
    waiting = bob.start(bob.locks.acquire("n07", wait=60))
    small(ada, 20)
    leaving = ada.start(ada.agents.leave())
    outcome = leaving.result()
    assert isinstance(outcome, Left)
    assert sorted(outcome.released) == names
    assert len(commits(leaving)) > 3
    assert isinstance(waiting.run().result(), LockAcquired)
    assert [shown.lock for shown in bob.run(bob.locks.list())] == ["n07"]
    assert audit(stage.store) == []


def test_renewing_many_leases_is_split_where_the_engine_takes_few(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    held = [
        ada.run(take(ada.context, LockTarget(f"n{number}"), None, replace(TERMS, ttl=20.0)))
        for number in range(9)
    ]
    small(ada, 4)
    stage.clock.advance(15.0)
    ada.run(ada.context.keeper.beat())
    stage.clock.advance(15.0)
    assert not any(each.lost() for each in held)


def test_a_queue_of_the_dead_fits_into_a_small_transaction(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    ada.run(ada.locks.acquire("merge"))
    for number in range(100):
        dead = stage.client(f"d{number}", ttl=1.0)
        dead.start(dead.locks.acquire("merge", wait=60))
    eve = remote(stage, "eve")
    eve.start(eve.locks.acquire("merge", wait=60))
    stage.clock.advance(2.0)
    small(ada, 10)
    outcome = ada.run(ada.locks.release("merge"))
    assert isinstance(outcome, LockReleased)
    assert outcome.next == "eve"


def test_a_stale_lock_is_reclaimed_by_whoever_asks(stage: Testbed) -> None:
    ada, bob = stage.remote("ada", ttl=5.0), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(6.0)
    hand = bob.start(bob.locks.acquire("merge"))
    assert isinstance(hand.result(), Reclaimed)
    assert kinds(hand) == [Commit, Read, Commit], "free? no; held? look; gone"


def test_what_the_engine_cannot_take_at_once_is_refused_before_it_is_sent(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    small(ada, 1)
    with pytest.raises(TooLarge, match="this takes"):
        ada.run(ada.locks.acquire("merge"))


def test_a_change_gives_up_when_its_time_is_over(stage: Testbed) -> None:
    ada = remote(stage, "ada")
    ada.network.script(["conflict"] * 10)
    hand = Stepper(ada.locks.acquire("merge"), ada.store, stage.clock)
    for _ in range(3):
        hand.go()
    stage.clock.advance(PATIENCE + 1)
    with pytest.raises(StoreBusy):
        hand.run().result()
    assert len(commits(hand)) < 10


def test_a_decision_that_changes_nothing_never_rests_on_a_guess(stage: Testbed) -> None:
    ada, bob = stage.remote("ada", ttl=5.0), remote(stage, "bob")
    ada.run(ada.locks.acquire("merge"))
    stage.clock.advance(6.0)
    lock = bob.run(bob.locks.show("merge"))
    assert lock.state == "stale"
    outcome = bob.run(
        bob.context.grants.release(
            Actor("nobody", "ses_nobody"), LockTarget("merge"), token=lock.token or 0
        )
    )
    assert isinstance(outcome, LockNotOwner)


def test_a_question_is_two_looks_a_commit_and_a_watch_and_its_reply_one_commit(
    stage: Testbed,
) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    receiver = bob.messages.receiver()
    assert bob.run(receiver.take(0)) == []
    takes = bob.start(receiver.take(None))
    asks = ada.start(ada.messages.query("bob", "how far?"))
    steps_of_first = [PrepareLiveness, Read, Read, Read, Commit, OpenWatch]
    assert kinds(asks) == steps_of_first, "the third counts the inbox"
    (question,) = takes.run().result()
    assert kinds(takes) == [NextChanges, Read], "with its body and the time that is left"
    assert steps(bob, bob.messages.reply(question.id, "nearly")) == [Commit]
    assert asks.run().done
    assert kinds(asks)[-2:] == [NextChanges, Read]
    again = ada.start(ada.messages.query("bob", "how far?"))
    assert kinds(again) == [PrepareLiveness, Commit, OpenWatch], "its commit checks that bob is"
    assert audit(stage.store) == []


def test_a_question_to_an_agent_that_left_is_refused_after_a_refused_commit(
    stage: Testbed,
) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    ada.start(ada.messages.query("bob", "how far?")).interrupt(KeyboardInterrupt())
    bob.run(bob.agents.leave())
    asks = ada.start(ada.messages.query("bob", "how far?"))
    assert kinds(asks) == [PrepareLiveness, Commit, Read, Read], "then the sessions are read"
    assert asks.result() == NobodyToAsk(to="bob")
    again = stage.remote("bob")
    asks = ada.start(ada.messages.query("bob", "how far?"))
    assert kinds(asks) == [PrepareLiveness, Read, Read, Commit, OpenWatch], "another session"
    asks = ada.start(ada.messages.query("bob", "how far?"))
    assert kinds(asks) == [PrepareLiveness, Commit, OpenWatch]
    again.run(again.agents.leave())
    asks = ada.start(ada.messages.query("bob", "how far?", hold=True))
    assert kinds(asks) == [PrepareLiveness, Commit, OpenWatch], "whether it is there or not"
    assert audit(stage.store) == []


def test_an_agent_with_a_session_that_ended_and_another_is_asked(stage: Testbed) -> None:
    ada, bob, other = remote(stage, "ada"), remote(stage, "bob"), remote(stage, "bob")
    ada.start(ada.messages.query("bob", "how far?")).interrupt(KeyboardInterrupt())
    for leaving in (bob, other):
        asks = ada.start(ada.messages.query("bob", "how far?"))
        assert kinds(asks)[-1] is OpenWatch
        leaving.run(leaving.agents.leave())
    assert ada.start(ada.messages.query("bob", "how far?")).result() == NobodyToAsk(to="bob")


def test_a_reply_to_a_question_that_has_ended_is_one_refused_commit(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    receiver = bob.messages.receiver()
    bob.run(receiver.take(0))
    asks = ada.start(ada.messages.query("bob", "how far?"))
    (question,) = bob.run(receiver.take(0))
    ada.run(ada.messages.cancel(question.id))
    assert isinstance(asks.run().result(), TakenBack)
    reply = bob.start(bob.messages.reply(question.id, "nearly"))
    assert isinstance(reply.result(), Late)
    assert kinds(reply) == [Commit]


def test_an_operation_whose_first_read_is_fresh_keeps_its_limits() -> None:
    def reading() -> Op[None]:
        yield Read("a", times=True, longest=5)
        yield Read("b", longest=0)

    op = fresh_once(reading())
    steps = [step for step in (next(op), op.send(None)) if isinstance(step, Read)]
    found = [(each.refs, each.times, each.fresh, each.longest) for each in steps]
    assert found == [(("a",), True, True, 5), (("b",), False, False, 0)]


def test_a_worker_that_wakes_reads_once_and_claims(stage: Testbed) -> None:
    ada, bob = remote(stage, "ada"), remote(stage, "bob")
    waiting = bob.start(bob.tasks.next(wait=60))
    assert not waiting.run().done
    slept = len(waiting.steps)
    ada.run(ada.tasks.publish("build"))
    assert isinstance(waiting.run().result(), Claimed)
    assert kinds(waiting)[slept:] == [NextChanges, Read, Commit]
    assert audit(stage.store) == []
