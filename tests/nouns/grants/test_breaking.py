"""An operator ends a grant: the holder is fenced and learns why, the next waiter is served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.conftest import with_git
from tests.faces.shell import until

import interlock
from interlock import aio
from interlock.errors import BadInput
from interlock.nouns.grants.lock import AlreadyFree, LockBroken, LockFenced
from interlock.nouns.grants.semaphore import NoHolder, SlotsBroken, SlotsFenced
from interlock.nouns.tasks.task_outcomes import TaskFenced, TaskRequeued, Unchanged
from interlock.testing.testbed import Client, Testbed

WHY = "it hangs"


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def maria(stage: Testbed) -> Client:
    return stage.client("maria", ttl=None)


@pytest.fixture
def fleets(url: str, lively: None) -> Iterator[tuple[interlock.Fleet, interlock.Fleet]]:
    with interlock.connect(url, "ada", ttl=10) as ada, interlock.connect(url, "maria") as maria:
        yield ada, maria


@with_git
def test_a_live_holder_loses_the_lock_with_its_next_beat_and_learns_why(
    fleets: tuple[interlock.Fleet, interlock.Fleet],
) -> None:
    ada, maria = fleets

    def hold() -> None:
        with ada.lock("merge") as held:
            broken = maria.locks.break_("merge", WHY)
            assert broken == LockBroken(lock="merge", holder="ada", token=held.token, reason=WHY)
            until(lambda: held.lost)
            assert held.reason == WHY
            late = ada.locks.release("merge", token=held.token)
            assert late == LockFenced(lock="merge", by="maria", reason=WHY)
            again = ada.locks.acquire("merge", token=held.token)
            assert again == LockFenced(lock="merge", by="maria", reason=WHY)

    with pytest.raises(interlock.Lost, match="was ended by maria: 'it hangs'"):
        hold()
    assert ada.locks.acquire("merge"), "a new grant is no trouble"


def test_a_worker_whose_claim_was_ended_learns_why(
    fleets: tuple[interlock.Fleet, interlock.Fleet],
) -> None:
    ada, maria = fleets
    maria.tasks.publish("t1", retries=0)

    def work() -> None:
        with ada.tasks.hold("t1") as claim:
            done = maria.tasks.requeue("t1", WHY)
            assert done == TaskRequeued(task="t1", holder="ada", token=claim.token, reason=WHY)
            until(lambda: claim.lost)
            assert claim.reason == WHY
            late = ada.tasks.complete("t1", token=claim.token)
            assert late == TaskFenced(task="t1", state="pending", by="maria", reason=WHY)

    with pytest.raises(interlock.Lost, match="was ended by maria: 'it hangs'"):
        work()
    again = maria.tasks.claim("t1")
    assert isinstance(again, interlock.Claimed)
    assert again.attempt == 1, "no attempt was counted"


def test_a_block_of_an_event_loop_is_cancelled_and_learns_why(url: str, lively: None) -> None:
    async def play() -> None:
        async with (
            await aio.connect(url, "ada", ttl=10) as ada,
            await aio.connect(url, "maria") as maria,
            ada.slots("builds", capacity=1),
        ):
            assert await maria.semaphores.break_("builds", WHY)
            await asyncio.sleep(60)

    with pytest.raises(interlock.Lost, match="was ended by maria: 'it hangs'"):
        asyncio.run(play())


def test_the_first_waiter_is_served_with_the_same_commit(stage: Testbed, maria: Client) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.locks.acquire("merge"))
    waiting = bob.start(bob.locks.acquire("merge", wait=60))
    broken = maria.run(maria.locks.break_("merge", WHY))
    assert isinstance(broken, LockBroken)
    assert broken.next == ("bob",)
    assert bob.run(bob.locks.show("merge")).holder == "bob"
    del waiting


@pytest.mark.parametrize("frozen", [False, True])
def test_it_works_for_a_holder_that_lives_or_is_gone(
    stage: Testbed, maria: Client, frozen: bool
) -> None:
    ada = stage.client("ada", ttl=10.0)
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.semaphores.acquire("builds", capacity=2))
    maria.run(maria.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    if frozen:
        stage.clock.advance(60.0)
    assert isinstance(maria.run(maria.locks.break_("merge", WHY)), LockBroken)
    assert isinstance(maria.run(maria.semaphores.break_("builds", WHY)), SlotsBroken)
    assert isinstance(maria.run(maria.tasks.requeue("t1", WHY)), TaskRequeued)


def test_where_several_hold_the_operator_says_whose_grant(stage: Testbed, maria: Client) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    first = ada.run(ada.semaphores.acquire("builds", capacity=3))
    second = ada.run(ada.semaphores.acquire("builds"))
    bob.run(bob.semaphores.acquire("builds"))
    with pytest.raises(BadInput, match="3 such grants: ada"):
        maria.run(maria.semaphores.break_("builds", WHY))
    with pytest.raises(BadInput, match=r"2 such grants.*--token N"):
        maria.run(maria.semaphores.break_("builds", WHY, holder="ada"))
    assert isinstance(second, interlock.SlotsAcquired)
    broken = maria.run(maria.semaphores.break_("builds", WHY, token=second.token))
    assert isinstance(broken, SlotsBroken)
    assert (broken.holder, broken.token) == ("ada", second.token)
    nobody = maria.run(maria.semaphores.break_("builds", WHY, holder="cleo"))
    assert nobody == NoHolder(semaphore="builds", holders=("ada", "bob"))
    late = ada.run(ada.semaphores.release("builds", token=second.token))
    assert late == SlotsFenced(semaphore="builds", by="maria", reason=WHY)
    assert isinstance(first, interlock.SlotsAcquired)
    assert ada.run(ada.semaphores.release("builds", token=first.token))


def test_what_was_got_at_once_ends_at_once(stage: Testbed, maria: Client) -> None:
    ada = stage.client("ada")
    got = ada.run(ada.several.acquire("lock/a", "lock/b"))
    assert maria.run(maria.locks.break_("a", WHY))
    assert [each.state for each in (maria.run(maria.locks.show(name)) for name in "ab")] == [
        "free",
        "free",
    ]
    assert isinstance(got, interlock.SeveralAcquired)
    late = ada.run(ada.several.release("lock/a", "lock/b", token=got.token))
    assert isinstance(late, interlock.SeveralFenced)
    assert (late.by, late.reason) == ("maria", WHY)


def test_an_operator_who_names_a_token_ends_no_other_grant(stage: Testbed, maria: Client) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    old = ada.run(ada.locks.acquire("merge"))
    assert isinstance(old, interlock.LockAcquired)
    ada.run(ada.locks.release("merge"))
    bob.run(bob.locks.acquire("merge"))
    refused = maria.run(maria.locks.break_("merge", WHY, token=old.token))
    assert isinstance(refused, LockFenced)
    assert refused.holder == "bob"
    maria.run(maria.tasks.publish("t1"))
    assert isinstance(maria.run(maria.tasks.requeue("t1", WHY)), Unchanged)
    bob.run(bob.tasks.claim("t1"))
    assert isinstance(maria.run(maria.tasks.requeue("t1", WHY, token=1)), TaskFenced)
    assert maria.run(maria.locks.break_("free", WHY)) == AlreadyFree(lock="free")


@pytest.mark.parametrize("reason", ["", "  "])
def test_there_has_to_be_a_reason(stage: Testbed, maria: Client, reason: str) -> None:
    with pytest.raises(BadInput, match="say why"):
        maria.run(maria.locks.break_("merge", reason))
    with pytest.raises(BadInput, match="say why"):
        maria.run(maria.tasks.requeue("t1", reason))


def test_why_and_the_record_tell_who_ended_it_and_why(stage: Testbed, maria: Client) -> None:
    ada = stage.client("ada")
    ada.run(ada.locks.acquire("merge"))
    maria.run(maria.tasks.publish("t1"))
    ada.run(ada.tasks.claim("t1"))
    maria.run(maria.locks.break_("merge", WHY))
    maria.run(maria.tasks.requeue("t1", WHY))
    stage.clock.advance(60.0)
    for thing, verb in (("lock/merge", "lock.break"), ("task/t1", "task.requeue")):
        (said,) = maria.run(maria.fleet.why(thing)).ended
        assert said.startswith("maria ended the grant of ada (token ")
        assert said.endswith("60 s ago: 'it hangs'")
        told = maria.run(maria.record.explain(thing, limit=10)).happenings
        (ended,) = [each for each in told if each.what in ("broken", "requeued")]
        assert (ended.agent, ended.by, ended.says) == ("ada", "maria", WHY)
        (line,) = maria.run(maria.record.log(thing=thing, verb=verb))
        assert (line.agent, line.reason) == ("maria", WHY)
    stage.clock.advance(86_400.0)
    maria.run(maria.fleet.maintain())
    assert maria.run(maria.fleet.why("lock/merge")).ended == (), "nothing is kept for ever"
    assert maria.run(maria.record.log(verb="lock.break"))[0].reason == WHY, "but the record"
