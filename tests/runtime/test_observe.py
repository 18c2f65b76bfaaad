"""An observer sees every event of every noun, and counters of them."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

import interlock
from interlock import aio
from interlock.core.rate import Rate
from interlock.errors import BadInput
from interlock.nouns.messages.message import Sent
from interlock.runtime import observe
from interlock.runtime.observe import Counters, Observed
from interlock.store import LOG, Put, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def pair(stage: Testbed) -> tuple[Client, Client]:
    return stage.client("ada"), stage.client("bob")


def seen(client: Client, *nouns: str) -> list[Observed]:
    """All that happened so far."""
    observing = client.run(client.fleet.observe(nouns=nouns or None, after=0))
    found = client.run(observing.take(0))
    observing.close()
    return list(found)


def sent(outcome: object) -> str:
    assert isinstance(outcome, Sent)
    return outcome.message


def test_events_of_all_nouns_are_one_stream(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.run(ada.locks.acquire("merge"))
    ada.run(ada.semaphores.acquire("builds", capacity=1))
    ada.run(ada.tasks.publish("t1"))
    bob.run(bob.messages.subscribe("built"))
    ada.run(ada.messages.alert("built"))
    asked = ada.start(ada.messages.query("bob", "where?"))
    bob.run(bob.messages.reply(bob.run(bob.messages.inbox(kind="query")).messages[0].id, 1))
    asked.run()
    found = seen(ada)
    assert [each.event for each in found] == [
        "agent:joined", "agent:joined", "lock:acquired", "semaphore:acquired", "task:published",
        "alert:subscribed", "message:sent", "query:asked", "query:replied",
    ]  # fmt: skip
    assert [each.revision for each in found] == sorted(each.revision for each in found)
    assert [each.event for each in seen(ada, "sem", "alert")] == [
        "semaphore:acquired",
        "alert:subscribed",
    ]


def test_a_message_is_seen_with_its_id_from_end_to_end(stage: Testbed) -> None:
    ada, bob = pair(stage)
    id_ = sent(ada.run(ada.messages.send("bob", "hello")))
    bob.run(bob.messages.ack(id_))
    first, last = seen(ada, "message")
    assert (first.event, first.thing, first.agent, first.to) == (
        "message:sent", f"message/{id_}", "ada", ("bob",),
    )  # fmt: skip
    assert (last.event, last.thing, last.agent) == ("message:received", f"message/{id_}", "bob")
    ada.run(ada.messages.alert("built"))
    assert seen(ada, "message")[-1].on == "alert/built"


def test_what_happens_by_the_hand_of_another_says_so(stage: Testbed) -> None:
    ada, bob = pair(stage)
    ada.run(ada.locks.acquire("merge"))
    waits = bob.start(bob.locks.acquire("merge", wait=60))
    ada.run(ada.locks.release("merge"))
    waits.run()
    released, acquired = seen(ada, "lock")[-2:]
    assert (released.agent, released.by) == ("ada", "")
    assert (acquired.agent, acquired.by) == ("bob", "ada")


def test_who_comes_too_late_is_told(stage: Testbed) -> None:
    ada, _ = pair(stage)
    ada.run(ada.locks.acquire("merge"))
    stage.store.trim(stage.store.read().revision)
    assert seen(ada)[0].event == "missed"


def test_wrong_words_are_refused(stage: Testbed) -> None:
    ada, _ = pair(stage)
    with pytest.raises(BadInput, match="no event is of 'mail'; there are: agent"):
        ada.run(ada.fleet.observe(nouns=["mail"]))
    with pytest.raises(BadInput, match="put brackets around"):
        ada.run(ada.fleet.observe(nouns="message"))
    with pytest.raises(BadInput, match="out of bounds"):
        ada.run(ada.fleet.observe(after=-1))


def test_counters_say_how_things_stand_and_what_was_done(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "4")
    ada, bob = pair(stage)
    ada.run(ada.messages.alert("old"))
    stage.clock.advance(20)
    first = ada.start(ada.messages.query("bob", "where?", timeout="2s", id="qry_1"))
    ada.start(ada.messages.query("bob", "when?", timeout="300s", id="qry_2"))
    bob.run(bob.messages.ack(sent(ada.run(ada.messages.send("bob")))))
    for _ in range(3):
        ada.run(ada.messages.alert("built"))
    stage.clock.advance(2)
    first.run()
    assert ada.run(ada.fleet.counters(since="10s")) == Counters(
        since=stage.clock.wall() - 10,
        registered=2,
        pending_queries=1,
        sent=2,
        asked=2,
        received=1,
        timeouts=1,
        rate_limit_violations=2,
        refusals=2,
        refused={"ada": 2},
    )
    assert ada.run(ada.fleet.counters(since="1h")).sent == 3
    stage.clock.advance(60)
    assert ada.run(ada.fleet.counters()).registered == 0, "their sessions are over"


def test_counters_say_if_there_is_more_and_pass_over_what_is_no_entry(stage: Testbed) -> None:
    ada, _ = pair(stage)
    ada.run(ada.messages.alert("built"))
    stage.store.commit(Txn(id="x", entry=b"[", puts=(Put("y", b""),)))
    assert ada.run(ada.fleet.counters()).sent == 1
    assert ada.run(observe.counters(0.0, most=1)).partial
    assert stage.store.read(LOG + "x")[LOG + "x"] is not None


def test_an_entry_that_cannot_be_read_is_missed_and_the_others_are_told(stage: Testbed) -> None:
    ada, _ = pair(stage)
    stage.store.commit(Txn(id="x", entry=b'["message:sent"', puts=(Put("y", b""),)))
    ada.run(ada.messages.alert("built"))
    assert [each.event for each in seen(ada, "message")] == ["missed", "message:sent"]


def test_an_observer_hears_of_another_process_on_every_engine(url: str) -> None:
    with interlock.connect(url, "ada") as ada, interlock.connect(url) as monitor:
        with monitor.observe(nouns=["message"]) as events:
            ada.messages.alert("built", {"x": 1})
            (event,) = events.take(60)
            assert (event.event, event.agent, event.on) == ("message:sent", "ada", "alert/built")
            ada.messages.alert("built")
            assert next(iter(events)).revision > event.revision
        assert monitor.counters().sent == 2
        assert monitor.counters().registered == 1


def test_the_same_in_an_event_loop(tmp_path: object) -> None:
    async def main() -> None:
        async with await aio.connect(f"{tmp_path}/store.db", "ada") as ada:
            async with await ada.observe(nouns=["message"]) as events:
                await ada.messages.alert("built")
                assert [each.event for each in await events.take(60)] == ["message:sent"]
                await ada.messages.alert("built")
                async for event in events:
                    assert event.agent == "ada"
                    break
            assert (await ada.counters(since="1h")).sent == 2

    asyncio.run(main())


def test_all_that_is_sent_delivered_and_answered_is_logged_for_who_listens(
    stage: Testbed, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = pair(stage)
    with caplog.at_level(logging.INFO, logger="interlock"):
        id_ = sent(ada.run(ada.messages.send("bob", "hello")))
        receiver = bob.messages.receiver()
        assert len(bob.run(receiver.take(0))) == 1
        receiver.close()
        bob.run(bob.messages.ack(id_))
        asked = ada.start(ada.messages.query("bob", "where?", id="qry_1"))
        bob.run(bob.messages.reply("qry_1", "here"))
        asked.run()
    assert [each.getMessage() for each in caplog.records] == [
        f"ada sent {id_} (mail) to bob",
        f"bob was given {id_} (mail) from ada",
        f"bob acknowledged {id_}",
        "ada asked bob (qry_1)",
        "bob answered qry_1 of ada",
    ]


def test_watchers_hear_of_refusals_and_of_changed_capacities(url: str) -> None:
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
        # The revision before: etcd may have compacted the revisions of earlier tests.
        ada.observe(after=ada.store.read().revision) as observer,
    ):
        lock = ada.locks.acquire("deploy")
        assert isinstance(lock, interlock.LockAcquired)
        bob.locks.release("deploy", token=lock.token)
        slots = ada.semaphores.acquire("builds", capacity=3)
        assert isinstance(slots, interlock.SlotsAcquired)
        more = ada.semaphores.acquire("builds", weight=2, token=slots.token)
        assert isinstance(more, interlock.Increased), more
        ada.semaphores.resize("builds", 4)
        ada.tasks.publish("t1")
        ada.tasks.claim("t1")
        bob.tasks.complete("t1", token=1)
        ada.locks.acquire("last")
        heard: dict[str, tuple[str, str]] = {}
        while ("ada", "lock/last") not in heard.values():
            heard |= {each.event: (each.agent, each.thing) for each in observer.take(20)}
        assert heard.get("lock:not_owner", heard.get("lock:fenced")) == ("bob", "lock/deploy")
        assert heard["semaphore:increased"] == ("ada", "sem/builds")
        assert heard["semaphore:resized"] == ("ada", "sem/builds")
        assert heard.get("task:not_owner", heard.get("task:fenced")) == ("bob", "task/t1")
        told = bob.record.explain("deploy").happenings
        assert [each.what for each in told if each.agent == "bob"] == ["refused"]


def test_every_refusal_is_recorded_or_counted(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        ada.locks.acquire("deploy")
        ada.tasks.publish("t1")
        ada.tasks.claim("t1")
        entries = len(ada.record.log(limit=1000))
        for _ in range(3):
            assert not bob.locks.release("deploy", token=1)
            assert not bob.tasks.complete("t1", token=1)
        recorded = len(ada.record.log(limit=1000)) - entries
        assert recorded == 2, "the first of each in a minute"
        assert ada.counters(since="5m").refusals == 6
        assert ada.record.verify().exit_status == 0


def test_each_message_beyond_the_rate_is_a_violation(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "1")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    with interlock.connect(url, agent="ada") as ada:
        sent = [ada.messages.alert("build") for _ in range(5)]
        refused = [each for each in sent if isinstance(each, interlock.Limited)]
        assert len(refused) == 4
        found = ada.counters(since="5m")
        assert (found.rate_limit_violations, found.refusals) == (4, 4)


def test_a_violation_counts_while_the_sender_is_watched_for_a_pause(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = stage.client("ada")
    watched = replace(ada.messages.limits, rate=Rate(1, 3600.0), pause_after=10)
    monkeypatch.setattr(ada.messages.message_sender, "limits", watched)
    sent = [ada.run(ada.messages.alert("build")) for _ in range(6)]
    assert sum(isinstance(each, interlock.Limited) for each in sent) == 5
    found = ada.run(ada.fleet.counters(since="5m"))
    assert (found.rate_limit_violations, found.refusals) == (5, 5)
