"""A held claim: kept alive, noticed when lost, settled once, and never dropped silently."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.errors import Lost, StoreAway, Unavailable
from interlock.nouns.grants import lock
from interlock.nouns.grants.held_grant import take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTarget, GrantTerms
from interlock.nouns.grants.semaphore import SlotsTarget
from interlock.nouns.grants.several import target_of
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.claim_handle import ClaimHandle
from interlock.nouns.tasks.held_claim import HeldClaim, claim_for_block
from interlock.nouns.tasks.task_reader import decode_status
from interlock.nouns.tasks.task_view import TaskView
from interlock.runtime.keeper import margin
from interlock.steps import Op
from interlock.testing.testbed import Client, Stepper, Testbed

CUT_OFF = StoreAway("cut off")


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def hold(client: Client, task: str, ttl: float | None = None, wait: float = 0) -> HeldClaim:
    return client.run(claim_for_block(client.context, task, ttl=ttl, wait=wait))


def impatient(stage: Testbed) -> Client:
    """A client that does not wait for a store that is away."""
    ada = stage.client("ada")
    ada.context.no_retry = True
    return ada


def published(client: Client, task: str = "t1") -> str:
    assert isinstance(
        client.run(client.tasks.publish(task, {"x": 1}, backoff=0)), task_outcomes.Published
    )
    return task


def while_away(client: Client, op: Op[object]) -> None:
    """Carry it out while the store does not answer."""
    with pytest.raises(StoreAway):
        Stepper(op, client.store, client.clock).interrupt(StoreAway("cut off")).result()


def status(stage: Testbed, task: str = "t1") -> core.TaskStatus:
    found = decode_status(stage.store.read(keys.status(task))[keys.status(task)])
    assert found is not None
    return found


def test_a_claim_by_session_is_lost_before_anybody_else_may_claim_it(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=86400.0)
    working = hold(ada, published(ada))
    stage.clock.advance(30.0 - margin(30.0) - 0.001)
    assert not working.lost()
    stage.clock.advance(0.002)
    assert working.lost()
    assert isinstance(bob.run(bob.tasks.claim("t1")), task_outcomes.Taken)
    stage.clock.advance(margin(30.0))
    assert isinstance(bob.run(bob.tasks.claim("t1")), task_outcomes.Claimed)


def test_a_claim_with_a_ttl_is_renewed_by_the_keeper(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=600.0)
    working = hold(ada, published(ada), ttl=5.0)
    for _ in range(4):
        assert ada.context.keeper.wait() <= 2.0
        stage.clock.advance(2.0)
        ada.run(ada.context.keeper.beat())
    assert not working.lost()
    assert isinstance(ada.run(working.complete()), task_outcomes.TaskCompleted)
    stage.clock.advance(2.0)
    assert ada.context.keeper.wait() > 2.0, "nothing is left to renew but the session"


def test_a_claim_that_was_waited_for_counts_from_when_it_began(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=600.0), stage.client("bob", ttl=600.0)
    first = hold(ada, published(ada), ttl=60.0)
    waits = bob.start(claim_for_block(bob.context, "t1", ttl=8.0, wait=600))
    stage.clock.advance(30.0)
    ada.run(first.release())
    while not waits.done:
        stage.clock.advance(0.25)  # every step is slow
        waits.go()
    working = waits.result()
    live = keys.live(working.claimed.grant)
    item = stage.store.read(live, times=True)[live]
    assert item is not None
    assert item.expires_in is not None
    left = item.expires_in - margin(8.0)
    stage.clock.advance(left - 0.3)
    assert not working.lost()
    stage.clock.advance(0.3)
    assert working.lost()


def test_a_claim_that_the_store_no_longer_has_is_lost_with_the_next_beat(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    working = hold(ada, published(ada))
    told: list[str] = []
    working.on_lost = lambda: told.append("lost")
    ada.run(ada.context.keeper.beat())
    assert not working.lost()
    bob.run(bob.tasks.cancel("t1"))
    ada.run(ada.context.keeper.beat())
    assert working.lost()
    assert told == ["lost"]
    with pytest.raises(Lost, match=r"task t1 .* is no longer ours"):
        ada.run(working.complete("late"))
    assert status(stage).state == "failed"


def test_a_claim_that_this_program_ended_says_so(stage: Testbed) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    ada.run(working.complete(1))
    for again in (working.complete(2), working.fail("late"), working.release()):
        with pytest.raises(Lost, match=r"has ended already, completed by this program$"):
            ada.run(again)
    assert status(stage).state == "complete"


def test_its_proof_lets_a_lock_be_had_only_while_the_claim_lives(stage: Testbed) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    proof = ada.run(working.check())
    assert proof.thing == "task/t1"
    got = ada.run(ada.locks.acquire("merge", given=[proof]))
    assert isinstance(got, lock.LockAcquired)
    ada.run(ada.locks.release("merge"))
    ada.run(working.complete())
    assert isinstance(ada.run(ada.locks.acquire("merge", given=[proof])), lock.LockFenced)
    with pytest.raises(Lost):
        ada.run(working.check())


@pytest.mark.parametrize(
    "target",
    [LockTarget("merge"), SlotsTarget("gpus", 1, 1), target_of(("lock/a", "lock/b"))],
    ids=["lock", "semaphore", "several"],
)
def test_a_block_that_relied_on_a_claim_names_the_task(stage: Testbed, target: GrantTarget) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    proof = ada.run(working.check())
    ada.run(working.complete())
    terms = GrantTerms(wait=0, ttl=None, max_hold=None, metadata=None, given=[proof])
    with pytest.raises(Unavailable, match=r"^task 't1', which this relies on, .* claim it again$"):
        ada.run(take(ada.context, target, None, terms))


def test_a_block_that_relied_on_slots_names_the_semaphore(stage: Testbed) -> None:
    ada = stage.client("ada")
    terms = GrantTerms(wait=0, ttl=None, max_hold=None, metadata=None, given=())
    held = ada.run(take(ada.context, SlotsTarget("gpus", 1, 1), None, terms))
    proof = ada.run(held.check())
    ada.run(held.release())
    with pytest.raises(Unavailable, match=r"^semaphore 'gpus', which .* acquire it again$"):
        ada.run(take(ada.context, LockTarget("merge"), None, replace(terms, given=[proof])))


def test_the_proof_of_a_lapsed_claim_is_no_proof(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=600.0)
    proof = ada.run(hold(ada, published(ada)).check())
    stage.clock.advance(30.1)
    assert isinstance(bob.run(bob.locks.acquire("merge", given=[proof])), lock.LockFenced)


def test_a_task_that_cannot_be_claimed_says_why(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    hold(ada, published(ada))
    ada.run(ada.tasks.publish("t2", needs=["t1"]))
    with pytest.raises(Unavailable, match="taken by ada") as taken:
        hold(bob, "t1")
    assert isinstance(taken.value.outcome, task_outcomes.Taken)
    with pytest.raises(Unavailable, match="needs t1, which is not complete"):
        hold(bob, "t2")
    with pytest.raises(Unavailable, match="there is no task t3"):
        hold(bob, "t3")


def test_the_end_of_a_block_completes_fails_or_releases(stage: Testbed) -> None:
    ada = stage.client("ada")
    ada.run(hold(ada, published(ada, "done")).end(None))
    ada.run(hold(ada, published(ada, "wrong")).end(ValueError("no such branch")))
    ada.run(hold(ada, published(ada, "stopped")).end(KeyboardInterrupt()))
    assert status(stage, "done").state == "complete"
    assert (status(stage, "wrong").state, status(stage, "wrong").attempts) == ("pending", 1)
    assert status(stage, "wrong").reason == "ValueError: no such branch"
    assert (status(stage, "stopped").state, status(stage, "stopped").attempts) == ("pending", 0)


def test_what_a_block_raised_is_kept_within_bounds(stage: Testbed) -> None:
    ada = stage.client("ada")
    try:
        raise RuntimeError("x" * 100_000 + "\udc80")  # noqa: TRY301 - it needs a traceback
    except RuntimeError as error:
        ada.run(hold(ada, published(ada)).end(error))
    found = stage.store.read(keys.result("t1"))[keys.result("t1")]
    assert found is not None
    assert len(found.value) < 40_000
    assert b"xxx?" in found.value, "the end of it is kept"
    assert len(status(stage).reason) == 1000


def test_what_was_settled_inside_of_the_block_stays_so(stage: Testbed) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    ada.run(working.fail("it never works", {"code": 3}, retry=False))
    ada.run(working.end(None))
    assert status(stage).state == "failed"
    with pytest.raises(Lost):
        ada.run(working.complete())


def test_a_completion_that_meets_trouble_is_said_and_can_be_tried_again(stage: Testbed) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    while_away(ada, working.complete("result"))
    assert not working.released
    assert isinstance(ada.run(working.complete("result")), task_outcomes.TaskCompleted)


def test_without_retries_a_block_that_cannot_complete_raises_and_its_task_goes_back(
    stage: Testbed,
) -> None:
    ada = impatient(stage)
    working = hold(ada, published(ada))
    while_away(ada, working.end(None))
    assert working.lost()
    assert status(stage).state == "running"
    ada.run(ada.context.keeper.beat())
    assert (status(stage).state, status(stage).attempts) == ("pending", 0)


@pytest.mark.parametrize("swallowed", [False, True])
def test_work_that_was_done_is_completed_by_the_end_of_its_block(
    stage: Testbed, *, swallowed: bool
) -> None:
    """Trouble with saying so is no failed attempt."""
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    while_away(ada, working.complete({"pull": 7}))
    ada.run(working.end(None if swallowed else CUT_OFF))
    shown = ada.run(ada.tasks.show("t1"))
    assert isinstance(shown, TaskView)
    assert (shown.state, shown.result) == ("complete", {"pull": 7})


def test_without_retries_work_that_was_done_is_given_back_if_the_trouble_lasts(
    stage: Testbed,
) -> None:
    ada = impatient(stage)
    working = hold(ada, published(ada))
    while_away(ada, working.complete())
    end = Stepper(working.end(CUT_OFF), ada.store, ada.clock)
    end.interrupt(StoreAway("cut off")).result()
    assert working.lost()
    ada.run(ada.context.keeper.beat())
    assert (status(stage).state, status(stage).attempts) == ("pending", 0)


@pytest.mark.parametrize(("retry", "state"), [(True, "pending"), (False, "failed")])
@pytest.mark.parametrize("error", [None, CUT_OFF])
def test_a_failure_that_met_trouble_is_repeated_by_the_end_of_its_block_in_its_words(
    stage: Testbed, *, retry: bool, state: str, error: StoreAway | None
) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    while_away(ada, working.fail("no such branch", retry=retry))
    ada.run(working.end(error))
    found = status(stage)
    assert (found.state, found.attempts, found.reason) == (state, 1, "no such branch")


def test_a_block_that_meets_trouble_at_its_end_waits_and_completes_its_task(
    stage: Testbed,
) -> None:
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    Stepper(working.end(None), ada.store, ada.clock).interrupt(CUT_OFF).result()
    assert (working.ended, status(stage).state) == ("completed", "complete")


def test_a_block_whose_claim_runs_out_in_an_outage_raises_lost(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=600.0)
    working = hold(ada, published(ada))
    end = Stepper(working.end(None), ada.store, ada.clock)
    stage.clock.advance(30.1)
    with pytest.raises(Lost):
        end.interrupt(CUT_OFF).result()
    assert working.ended == "lost"
    assert isinstance(bob.run(bob.tasks.claim("t1")), task_outcomes.Claimed)


def test_what_is_owed_does_not_release_somebody_elses_claim(stage: Testbed) -> None:
    ada, bob = impatient(stage), stage.client("bob", ttl=600.0)
    while_away(ada, hold(ada, published(ada)).end(None))
    stage.clock.advance(30.1)
    assert isinstance(bob.run(bob.tasks.claim("t1")), task_outcomes.Claimed)
    ada.run(ada.context.grants.release_pending())
    assert status(stage).state == "running"


def test_the_loss_that_comes_from_settling_strikes_nobody(stage: Testbed) -> None:
    """The keeper may look after the commit, and before the settling caller knows of it."""
    ada = stage.client("ada")
    working = hold(ada, published(ada))
    told: list[str] = []
    working.on_lost = lambda: told.append("lost")
    settling = working.complete()
    answer = next(settling).perform(stage.store)
    while status(stage).state == "running":
        answer = settling.send(answer).perform(stage.store)
    ada.run(ada.context.keeper.beat())
    with pytest.raises(StopIteration):
        settling.send(answer)
    assert told == []


@pytest.mark.parametrize("tried", [False, True])
def test_a_claim_that_nobody_can_settle_any_more_is_released(
    stage: Testbed, *, tried: bool
) -> None:
    ada = stage.client("ada")
    claim = ClaimHandle(hold(ada, published(ada)))
    assert claim.forgotten
    if tried:
        while_away(ada, claim._holding.complete())
    del claim
    ada.run(ada.context.grants.release_pending())
    assert status(stage).state == "pending"
