"""A stop reaches the sessions that exist when it is sent, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core import keys
from interlock.errors import StoreAway, StoreBusy, StoreClosed, StoreFull
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import Arrived, NobodyToStop, Sent
from interlock.nouns.messages.stops import RECHECK_AFTER, StopNotice, Stops
from interlock.nouns.tasks.worker import WorkerLoop
from interlock.steps import Read
from interlock.store import Answer, Ref, Snapshot, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def stop(client: Client, to: str, reason: str = "enough") -> str:
    sent = client.run(MessageCalls(client.context).stop(to, reason))
    assert isinstance(sent, Sent)
    return sent.message


def mail(client: Client, to: str, *, urgent: bool = False) -> str:
    sent = client.run(MessageCalls(client.context).send(to, "hello", urgent=urgent))
    assert isinstance(sent, Sent)
    return sent.message


def unread(client: Client) -> list[str]:
    inbox = client.run(MessageCalls(client.context).inbox())
    return [message.id for message in inbox.messages]


def stops(client: Client) -> Stops:
    return Stops(client.runner, client.context.me().actor)


def came(client: Client, listening: Stops) -> list[str]:
    return [str(each) for each in client.run(listening.take(0))]


def test_a_stop_arrives_with_its_commit_and_names_its_sender_and_reason(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = ada.start(stops(ada).take(None))
    assert (waits.asleep, waits.wakes) == (True, float("inf"))
    id_ = stop(bob, "ada", "we are done")
    assert waits.run().result() == [StopNotice(id=id_, sender="bob", reason="we are done")]


def test_a_stop_sent_before_the_listener_started_is_reported_once(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    stop(bob, "ada", "first")
    stop(bob, "ada", "")
    listening = stops(ada)
    assert sorted(came(ada, listening)) == ["bob asked", "bob asked: first"]
    assert came(ada, listening) == []


def test_who_is_gone_cannot_be_stopped_and_nothing_is_written(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.agents.leave())
    before = stage.store.read().revision
    assert bob.run(bob.messages.stop("ada", "enough")) == NobodyToStop(to="ada")
    assert stage.store.read().revision == before


def test_who_never_had_a_session_cannot_be_stopped_and_its_first_one_finds_no_stop(
    stage: Testbed,
) -> None:
    ada, shell = stage.client("ada"), stage.client("bob", ttl=None)
    shell.run(shell.messages.inbox())
    ada.run(ada.messages.send("eve", "later", hold=True))
    for name in ("bob", "eve"):
        assert ada.run(ada.messages.stop(name, "enough")) == NobodyToStop(to=name)
    assert unread(stage.client("bob")) == []


def test_a_loop_without_a_session_that_receives_is_there_to_be_stopped(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob", ttl=None)
    waits = bob.start(bob.messages.wait())
    stop(ada, "bob", "enough")
    came = waits.run().result()
    assert isinstance(came, Arrived)
    assert [each.data for each in came.messages] == ["enough"]


def test_the_next_incarnation_passes_over_a_stop_and_clears_it_away(stage: Testbed) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    stop(bob, "ada")
    before.run(before.agents.leave())
    later = stage.client("ada")
    assert len(unread(later)) == 1
    listening = stops(later)
    assert came(later, listening) == []
    assert unread(later) == []
    stop(bob, "ada", "you, too")
    assert came(later, listening) == ["bob asked: 'you, too'"]


def test_a_receiver_passes_over_a_stop_for_those_before_it_and_clears_it_away(
    stage: Testbed,
) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    old = stop(bob, "ada")
    hello = mail(bob, "ada", urgent=True)
    before.run(before.agents.leave())
    ada = stage.client("ada")
    receiver = ada.messages.receiver()
    assert [each.id for each in ada.run(receiver.take(0))] == unread(ada) == [hello]
    kept = ada.run(ada.messages.inbox(all=True)).messages
    assert [(each.id, each.read) for each in kept] == [(old, True), (hello, False)]
    new = stop(bob, "ada")
    assert [each.id for each in ada.run(receiver.take(0))] == [new]


def test_a_stop_stays_for_a_receiver_that_was_there_though_a_later_one_passes_over_it(
    stage: Testbed,
) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    receiver = before.messages.receiver()
    assert before.run(receiver.take(0)) == []
    old = stop(bob, "ada")
    later = stage.client("ada")
    assert later.run(later.messages.receiver().take(0)) == []
    assert [each.id for each in before.run(receiver.take(0))] == [old]


def test_a_skipped_stop_is_acknowledged_when_no_earlier_session_lives(
    stage: Testbed,
) -> None:
    bob, _ = stage.client("bob", ttl=1000), stage.client("ada", ttl=30)
    old = stop(bob, "ada")
    later = stage.client("ada", ttl=1000)
    waits = later.start(later.messages.receiver(redeliver=60).take(100))
    assert (waits.asleep, unread(bob), unread(later)) == (True, [], [old])
    stage.clock.advance(61)
    assert waits.run().asleep
    assert unread(later) == []
    stage.clock.advance(61)
    assert waits.run().result() == []


def test_a_stop_stays_for_a_loop_that_has_not_read_it_though_a_later_worker_passes_over_it(
    stage: Testbed,
) -> None:
    bob, loop = stage.client("bob"), stage.client("ada")
    old = stop(bob, "ada")
    later = stage.client("ada")
    assert came(later, stops(later)) == []
    assert [each.id for each in loop.run(loop.messages.receiver().take(0))] == [old]


def test_a_listener_acknowledges_skipped_stops_once_no_earlier_session_lives(
    stage: Testbed,
) -> None:
    bob, before = stage.client("bob", ttl=1000), stage.client("ada", ttl=30)
    old = stop(bob, "ada")
    later = stage.client("ada", ttl=1000)
    waits = later.start(stops(later).take(None))
    assert (waits.asleep, unread(later)) == (True, [old])
    stage.clock.advance(RECHECK_AFTER)
    assert (waits.run().asleep, unread(later)) == (True, [old])
    before.run(before.agents.leave())
    stage.clock.advance(RECHECK_AFTER)
    assert (waits.run().asleep, unread(later)) == (True, [])
    assert waits.wakes == float("inf"), "there is nothing left to look for"


def full(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a client is full: it can only be read."""

    def refuse(_: Txn) -> Answer:
        raise StoreFull("no room left; make some")

    monkeypatch.setattr(client.store, "commit", refuse)


def test_a_session_that_cannot_acknowledge_an_old_stop_still_obeys_its_own(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    stop(bob, "ada")
    before.run(before.agents.leave())
    later = stage.remote("ada")
    stop(bob, "ada", "you, too")
    full(later, monkeypatch)
    assert came(later, stops(later)) == ["bob asked: 'you, too'"]


def test_a_receiver_that_cannot_clear_an_old_stop_away_gives_out_the_others(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    old = stop(bob, "ada")
    before.run(before.agents.leave())
    later = stage.remote("ada", ttl=1000)
    hello = mail(bob, "ada")
    receiver = later.messages.receiver(redeliver=60)
    with monkeypatch.context() as patch:
        full(later, patch)
        assert [each.id for each in later.run(receiver.take(0))] == [hello]
    assert old in unread(later)
    stage.clock.advance(61)
    assert [each.id for each in later.run(receiver.take(0))] == [hello]
    assert unread(later) == [hello]


def test_a_receiver_without_a_session_is_given_every_stop(stage: Testbed) -> None:
    bob, before = stage.client("bob"), stage.client("ada")
    old = stop(bob, "ada")
    before.run(before.agents.leave())
    shell = stage.client("ada", ttl=None)
    assert [each.id for each in shell.run(shell.messages.receiver().take(0))] == [old]


def test_all_present_sessions_get_a_stop_that_one_of_them_acknowledges_first(
    stage: Testbed,
) -> None:
    bob, one, two = stage.client("bob"), stage.client("ada"), stage.client("ada")
    first, second = stops(one), stops(two)
    waits = two.start(second.take(None))
    stop(bob, "ada")
    assert came(one, first) == ["bob asked: enough"]
    one.run(first.ack())
    assert unread(two) == []
    assert [str(each) for each in waits.run().result()] == ["bob asked: enough"]
    two.run(second.ack())


def test_nothing_else_in_the_inbox_is_read_or_acknowledged(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    before = mail(bob, "ada")
    listening = stops(ada)
    waits = ada.start(listening.take(None))
    after, urgent = mail(bob, "ada"), mail(bob, "ada", urgent=True)
    assert waits.run().asleep
    stop(bob, "ada")
    assert len(waits.run().result()) == 1
    ada.run(listening.ack())
    assert unread(ada) == [urgent, before, after]
    read = [ref for step in waits.steps if isinstance(step, Read) for ref in step.refs]
    assert keys.message(urgent) in read
    assert not {keys.message(before), keys.message(after)} & set(read)


def test_listening_goes_on_through_an_outage_and_misses_nothing(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = stage.remote("ada"), stage.client("bob")
    heard: list[str] = []
    listens = ada.start(stops(ada).listen(lambda each: heard.append(str(each))))
    troubles = [StoreAway("cut off"), StoreBusy("busy")]
    read = ada.network.read

    def flaky(*refs: Ref, **how: Any) -> Snapshot:
        if troubles:
            raise troubles.pop()
        return read(*refs, **how)

    monkeypatch.setattr(ada.network, "read", flaky)
    stop(bob, "ada")
    assert listens.run().asleep
    assert (heard, troubles) == (["bob asked: enough"], [])
    listens.interrupt(StoreClosed("over")).result()


def test_a_thread_that_waits_for_work_wakes_with_the_stop_and_not_by_looking(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    shift = WorkerLoop(ada.context, (), None)
    waits = ada.start(shift.wait_next())
    mail(bob, "ada", urgent=True)
    assert waits.run().asleep
    stop(bob, "ada", "we are done")
    assert waits.run().result() is None
    assert shift.reason == "bob asked: 'we are done'"
    ada.run(shift.acknowledge_stops())
    assert len(unread(ada)) == 1


def test_a_worker_that_does_not_want_to_know_works_on(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    shift = WorkerLoop(ada.context, (), None, messages=False)
    waits = ada.start(shift.wait_next())
    stop(bob, "ada")
    assert waits.run().asleep
    bob.run(bob.tasks.publish("t1"))
    working = waits.run().result()
    assert working is not None
    assert (working.claimed.task, len(unread(ada))) == ("t1", 1)


def test_an_idle_worker_costs_nothing_for_listening_with_each_task(stage: Testbed) -> None:
    """Claiming takes the same commits, whether it listens or not."""

    def commits(*, messages: bool) -> int:
        ada, bob = stage.client("ada"), stage.client("bob")
        shift = WorkerLoop(ada.context, (), None, messages=messages)
        waits = ada.start(shift.wait_next())
        bob.run(bob.tasks.publish(f"t{messages}"))
        before = stage.store.read().revision
        assert waits.run().result() is not None
        return stage.store.read().revision - before

    assert commits(messages=True) == commits(messages=False)


def test_a_stop_is_found_after_the_watch_lost_its_history(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    waits = ada.start(stops(ada).take(None))
    stop(bob, "ada")
    stage.store.trim(stage.store.read().revision)
    assert [str(each) for each in waits.run().result()] == ["bob asked: enough"]
