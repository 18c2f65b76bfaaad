"""An agent without the claim cannot end a task, and the record shows its attempt."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from interlock.core.entry import decode
from interlock.errors import BadInput
from interlock.nouns.grants.lock import LockFenced
from interlock.nouns.grants.semaphore import SlotsFenced
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    NoTask,
    Retried,
    TaskCompleted,
    TaskFailed,
    TaskFenced,
    TaskNotOwner,
)
from interlock.nouns.tasks.task_view import TaskView
from interlock.store import VOID, Log
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "network"])
def eve(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    make = stage.client if request.param == "local" else stage.remote
    return make("eve", ttl=1000.0)


def refusals(stage: Testbed) -> list[tuple[str, str, str]]:
    page = Log(after=0, limit=1000)
    items = stage.store.read(page).ranges[page]
    entries = [decode(item.value) for item in items if item.value != VOID]
    found = [e for e in entries if e.outcome in ("not_owner", "not_holder", "fenced")]
    return [(entry.agent, entry.verb, entry.outcome) for entry in found]


def test_the_first_refusal_of_a_minute_is_recorded(stage: Testbed, eve: Client) -> None:
    ada = stage.client("ada", ttl=1000.0)
    ada.run(ada.tasks.publish("t"))
    ada.run(ada.tasks.claim("t"))
    for _ in range(3):
        assert isinstance(eve.run(eve.tasks.complete("t")), TaskNotOwner)
    assert refusals(stage) == [("eve", "task.complete", "not_owner")]
    stage.clock.advance(61)
    assert isinstance(eve.run(eve.tasks.release("t")), TaskNotOwner)
    assert refusals(stage)[1:] == [("eve", "task.release", "not_owner")]


def test_a_claim_that_is_over_is_fenced_and_recorded(stage: Testbed, eve: Client) -> None:
    ada = stage.client("ada", ttl=1000.0)
    ada.run(ada.tasks.publish("t"))
    got = eve.run(eve.tasks.claim("t", ttl=5))
    assert isinstance(got, Claimed)
    stage.clock.advance(6)
    ada.run(ada.tasks.next())
    stage.clock.advance(2)
    again = ada.run(ada.tasks.claim("t"))
    assert isinstance(again, Claimed)
    told = eve.run(eve.tasks.complete("t", token=got.token))
    assert isinstance(told, TaskFenced)
    assert (told.holder, told.token) == ("ada", again.token)
    assert refusals(stage) == [("eve", "task.complete", "fenced")]


def test_what_is_over_or_was_never_there_is_refused(stage: Testbed, eve: Client) -> None:
    ada = stage.client("ada", ttl=1000.0)
    ada.run(ada.tasks.publish("t", retries=0))
    got = ada.run(ada.tasks.claim("t"))
    assert isinstance(got, Claimed)
    ada.run(ada.tasks.fail("t", token=got.token))
    assert isinstance(ada.run(ada.tasks.complete("t", token=got.token)), TaskFenced), (
        "a dead letter"
    )
    assert isinstance(eve.run(eve.tasks.complete("nothing", token=1)), TaskNotOwner)
    assert refusals(stage) == [("ada", "task.complete", "fenced")]


def test_a_task_that_missed_its_deadline_can_be_sent_back() -> None:
    stage = Testbed()
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t", deadline=1))
    stage.clock.advance(2)
    assert isinstance(ada.run(ada.tasks.claim("t")), NoTask)
    assert isinstance(ada.run(ada.tasks.retry("t")), Retried)
    assert isinstance(ada.run(ada.tasks.next()), Claimed)


def test_an_attempt_that_failed_once_is_not_failed_again_when_its_rest_is_over() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.tasks.publish("t"))
    ada.run(ada.tasks.publish("later"))
    got = ada.run(ada.tasks.claim("t"))
    assert isinstance(got, Claimed)
    first = ada.run(ada.tasks.fail("t", token=got.token))
    stage.clock.advance(2)
    bob.run(bob.fleet.maintain())
    again = ada.run(ada.tasks.fail("t", token=got.token))
    assert isinstance(first, TaskFailed)
    assert isinstance(again, TaskFailed)
    assert (first.already, again.already, again.attempts) == (False, True, 1)


@pytest.mark.parametrize("words", [{"deadline": 0}, {"deadline": 5, "not_before": 9}])
def test_a_deadline_that_nobody_can_meet_is_refused(words: dict[str, float]) -> None:
    ada = Testbed().client("ada")
    with pytest.raises(BadInput, match="deadline"):
        ada.run(ada.tasks.publish("t", **words))  # type: ignore[arg-type]


def test_whoever_begins_in_time_may_try_again_after_the_deadline() -> None:
    stage = Testbed()
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t", deadline=5))
    got = ada.run(ada.tasks.claim("t"))
    assert isinstance(got, Claimed)
    ada.run(ada.tasks.fail("t", token=got.token))
    stage.clock.advance(10)
    assert isinstance(ada.run(ada.tasks.next()), Claimed)


def test_the_token_of_somebody_else_or_of_no_claim_makes_nobody_an_owner() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.tasks.publish("t"))
    assert isinstance(bob.run(bob.tasks.complete("t", token=1)), TaskNotOwner)
    got = ada.run(ada.tasks.claim("t"))
    assert isinstance(got, Claimed)
    assert isinstance(bob.run(bob.tasks.complete("t", token=got.token)), TaskNotOwner)
    ada.run(ada.tasks.release("t"))
    assert isinstance(ada.run(ada.tasks.complete("t", token=got.token)), TaskFenced)


def test_what_a_session_has_done_twice_is_already_done_and_what_it_lost_is_fenced() -> None:
    stage = Testbed()
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.tasks.publish("t", retries=0))
    ada.run(ada.tasks.publish("u", backoff=100))
    ada.run(ada.tasks.claim("t"))
    ada.run(ada.tasks.complete("t"))
    assert ada.run(ada.tasks.complete("t")) == TaskCompleted(task="t", already=True)
    ada.run(ada.tasks.claim("u", ttl=5))
    stage.clock.advance(6)
    bob.run(bob.fleet.maintain())
    assert isinstance(ada.run(ada.tasks.complete("u")), TaskFenced)


def test_a_refusal_in_favour_of_each_claim_is_recorded() -> None:
    stage = Testbed()
    ada, eve = stage.client("ada"), stage.client("eve")
    ada.run(ada.tasks.publish("t"))
    for _ in range(2):
        ada.run(ada.tasks.claim("t"))
        for _ in range(2):
            assert isinstance(eve.run(eve.tasks.complete("t")), TaskNotOwner)
        ada.run(ada.tasks.release("t"))
    lines = ada.run(ada.record.log(thing="task/t", by="eve"))
    assert [line.outcome for line in lines] == ["not_owner", "not_owner"]


def test_the_error_of_an_attempt_is_gone_with_the_next_one() -> None:
    stage = Testbed()
    ada = stage.client("ada")
    ada.run(ada.tasks.publish("t", backoff=0))
    ada.run(ada.tasks.claim("t"))
    ada.run(ada.tasks.fail("t", error={"trace": "boom"}))
    failed = ada.run(ada.tasks.show("t"))
    assert isinstance(failed, TaskView)
    assert failed.error == {"trace": "boom"}
    ada.run(ada.tasks.claim("t"))
    ada.run(ada.tasks.complete("t"))
    done = ada.run(ada.tasks.show("t"))
    assert isinstance(done, TaskView)
    assert done.error in (None, UNSET)


@pytest.mark.parametrize("named", [True, False])
def test_whoever_meets_a_task_too_late_records_that_it_expired(named: bool) -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=600.0)
    ada.run(ada.tasks.publish("t", deadline=1))
    stage.clock.advance(2.0)
    found = ada.run(ada.tasks.claim("t") if named else ada.tasks.next())
    assert isinstance(found, NoTask)
    (line,) = [each for each in ada.run(ada.record.log()) if each.verb == "task.expire"]
    assert line.outcome == "expired"


def test_whoever_beats_too_late_is_not_called_the_holder(stage: Testbed, eve: Client) -> None:
    ada = stage.client("ada", ttl=1000.0)
    ada.run(ada.tasks.publish("t"))
    claimed = eve.run(eve.tasks.claim("t", ttl=5.0))
    granted = eve.run(eve.locks.acquire("m", ttl=5.0))
    slots = eve.run(eve.semaphores.acquire("s", capacity=1, ttl=5.0))
    assert claimed
    assert granted
    assert slots
    stage.clock.advance(6.0)
    late = eve.run(eve.tasks.heartbeat("t", token=claimed.token))
    assert late == TaskFenced(task="t", state="running")
    fenced = eve.run(eve.locks.heartbeat("m", token=granted.token))
    assert fenced == LockFenced(lock="m")
    assert eve.run(eve.semaphores.heartbeat("s", token=slots.token)) == SlotsFenced(semaphore="s")


def test_the_first_refusal_of_each_caller_and_verb_is_recorded(stage: Testbed, eve: Client) -> None:
    ada, bob = stage.client("ada", ttl=1000.0), stage.client("bob", ttl=1000.0)
    ada.run(ada.tasks.publish("t"))
    ada.run(ada.tasks.claim("t"))
    ada.run(ada.locks.acquire("deploy"))
    slots = ada.run(ada.semaphores.acquire("builds", capacity=1))
    assert slots
    for _ in range(3):
        for client in (eve, bob):
            assert not client.run(client.tasks.complete("t"))
            assert not client.run(client.tasks.release("t"))
            assert not client.run(client.locks.release("deploy"))
            assert not client.run(client.semaphores.release("builds"))
    verbs = ("task.complete", "task.release", "lock.release", "sem.release")
    found = [(agent, verb) for agent, verb, _ in refusals(stage)]
    assert sorted(found) == sorted((agent, verb) for agent in ("eve", "bob") for verb in verbs)
