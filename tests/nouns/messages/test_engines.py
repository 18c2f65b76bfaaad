"""Messages between clients of every engine that real processes can share."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from tests.conftest import with_git
from tests.faces.shell import until

import interlock
from interlock.core import keys
from interlock.nouns.messages.decision import DecisionView
from interlock.nouns.messages.message import Acknowledged, Limited, MessageExists, Sent
from interlock.nouns.messages.query import Handed, Late, QueryAnswered, TimedOut, TooMany
from interlock.store import Range
from interlock.stores import open_store


@with_git
def test_alert_query_share_mail_and_stop_reach_the_receiver(url: str) -> None:
    got: list[tuple[str, object, int]] = []
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        bob.messages.subscribe("build", where={"ok": False})

        def serve() -> None:
            for message in bob.messages.recv(can=["review"]):
                got.append((message.kind, message.data, message.seq))
                if message.kind == "query":
                    message.reply(f"{message.data} yes")
                if message.kind == "stop":
                    break

        bob.agents.status("idle", can=["review"])
        thread = threading.Thread(target=serve)
        thread.start()
        ada.messages.alert("build", {"ok": True})
        ada.messages.alert("build", {"ok": False})
        ada.messages.share("bob", "note", [1])
        ada.messages.send("all", "hello", subject="all")
        direct = ada.messages.query("bob", "you?", timeout=30)
        able = ada.messages.query("?review", "anyone?", timeout=30)
        ada.messages.send("bob", "last")
        until(lambda: any(data == "last" for _, data, _ in got))
        stop = ada.messages.stop("bob", "enough")
        thread.join(30)
        assert isinstance(direct, QueryAnswered)
        assert isinstance(able, QueryAnswered)
        assert (direct.answer, able.answer) == ("you? yes", "anyone? yes")
        assert sorted(str(data) for _, data, _ in got) == sorted(
            map(str, [{"ok": False}, [1], "hello", "you?", "anyone?", "last", "enough"])
        )
        assert isinstance(bob.messages.reply(able.query, "other"), Late)
        assert isinstance(stop, Sent)
        (left,) = bob.messages.inbox().messages
        assert left.id == stop.message
        assert bob.messages.ack(left.id) == Acknowledged(messages=(left.id,))
        assert bob.messages.ack(left.id) == Acknowledged(already=(left.id,))


def test_what_was_not_acknowledged_comes_to_the_next_in_order(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        bob.messages.subscribe("build")
        for number in range(6):
            ada.messages.alert("build", number)
        with bob.messages.recv(ack=False, timeout=5) as messages:
            got = list(messages.take())
            messages.ack(got[1], got[4])
        with interlock.connect(url, agent="bob") as again:
            assert [each.data for each in again.messages.recv(timeout=0)] == [0, 2, 3, 5]
            assert [each.data for each in again.messages.recv(timeout=0)] == []


def test_clients_of_one_sender_share_its_limit_and_an_id_is_taken_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_RATE", "5")
    monkeypatch.setenv("INTERLOCK_MESSAGE_WINDOW", "1h")
    with (
        interlock.connect(url, agent="ada") as one,
        interlock.connect(url, agent="ada") as two,
        interlock.connect(url, agent="bob") as bob,
    ):
        one.messages.send("bob", 0, id="msg_1")
        assert two.messages.send("bob", 0, id="msg_1") == MessageExists(message="msg_1")
        outcomes = [each.messages.send("bob", 1) for each in (one, two) * 4]
        assert sum(isinstance(each, Sent) for each in outcomes) == 4
        assert sum(isinstance(each, Limited) for each in outcomes) == 4
        assert len(bob.messages.inbox().messages) == 5


def test_a_queued_message_is_dropped_after_unsubscribing(url: str) -> None:
    """Watches of one store may share changes, and may take them much later."""
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        for type_ in ("build", "test"):
            bob.messages.subscribe(type_)
        with (
            bob.messages.recv(ack=False, timeout=0) as one,
            bob.messages.recv(ack=False, timeout=0) as two,
        ):
            assert (one.take(), two.take()) == ((), ())
            ada.messages.alert("build", {"ok": True})
            ada.messages.alert("test", {"ok": True})
            until(lambda: [each.type for each in one.take()][-1:] == ["test"])
            bob.messages.unsubscribe("build")
            bob.messages.subscribe("test", where={"ok": False})
            assert two.take() == ()


def test_a_question_is_open_for_all_of_its_time(url: str) -> None:
    """Etcd measures in whole seconds: what it reports as left is not exact."""
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob"):
        began = time.monotonic()
        outcome = ada.messages.query("bob", "you?", timeout=1.2)
        waited = time.monotonic() - began
        assert isinstance(outcome, TimedOut)
        assert waited >= 1.2


def test_askers_at_once_never_have_more_questions_open_than_are_allowed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_MESSAGE_OPEN_QUERIES", "5")
    start = threading.Barrier(12)
    with ExitStack() as stack, closing(open_store(url)) as store:
        fleets = [
            stack.enter_context(interlock.connect(url, agent=f"a{number}")) for number in range(12)
        ]
        stack.enter_context(interlock.connect(url, agent="bob"))

        def ask(fleet: interlock.Fleet) -> object:
            start.wait(30)
            return fleet.messages.query("bob", "you?", timeout=60)

        with ThreadPoolExecutor(12) as aside:
            asking = [aside.submit(ask, fleet) for fleet in fleets]
            until(lambda: sum(each.done() for each in asking) == 7)
            page = Range(keys.OPEN)
            listed = store.read(page).ranges[page]
            for item in listed:
                agent, id_ = keys.open_query_of(item.key)
                fleets[int(agent.removeprefix("a"))].messages.cancel(id_)
        outcomes = [each.result() for each in asking]
    refused = [each for each in outcomes if isinstance(each, TooMany)]
    assert (len(listed), len(refused)) == (5, 7)
    assert all(each.retry_in and 0 < each.retry_in <= 62 for each in refused)


def test_a_question_without_an_answer_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob"):
        outcome = ada.messages.query("bob", "you?", timeout=0.1)
    assert isinstance(outcome, TimedOut)
    (said,) = [each for each in caplog.records if outcome.query in each.getMessage()]
    assert (said.name, said.levelname) == ("interlock", "WARNING")


def test_an_id_may_be_shortened_to_a_prefix_that_only_one_id_has(url: str) -> None:
    short = slice(24)
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        bob.messages.subscribe("built")
        mail = ada.messages.send("bob", "hello")
        alert = ada.messages.alert("built")
        asked = ada.messages.query("bob", "which?", timeout=0.001, person=True, id="qry_question1")
        assert isinstance(mail, Sent)
        assert isinstance(alert, Sent)
        assert isinstance(asked, Handed)
        ids = (mail.message, alert.message)
        answer = bob.messages.send("ada", "hi", reply_to=mail.message[short])
        assert isinstance(answer, Sent)
        assert answer.thread == mail.message
        assert len(bob.messages.inbox(thread=mail.message[short])) == 2
        assert bob.messages.ack(*[each[short] for each in ids]) == Acknowledged(messages=ids)
        assert bob.why(mail.message[short]).thing.endswith(mail.message)
        assert bob.why("qry_questi")
        assert ada.record.explain(asked.decision[short]).thing.endswith(asked.decision)
        shown = ada.messages.decision(asked.decision[short])
        assert isinstance(shown, DecisionView)
        assert isinstance(bob.messages.resolve(asked.decision[short], "yes"), interlock.Resolved)
        assert isinstance(bob.messages.reply("qry_questi", "no"), Late)
        (session,) = ada.agents.show(ada.session[short])
        assert session.session == ada.session


def test_a_prefix_that_several_ids_have_is_refused_with_these(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent="bob") as bob:
        for number in (1, 2, 22):
            ada.messages.send("bob", "hello", id=f"msg_chosen{number}")
        with pytest.raises(interlock.BadInput, match="msg_chosen1, msg_chosen2, msg_chosen22"):
            bob.messages.ack("msg_chosen")
        assert bob.messages.ack("msg_chosen2") == Acknowledged(messages=("msg_chosen2",))
        assert isinstance(bob.messages.ack("msg_cho"), interlock.UnknownMessages), "too short"
        assert isinstance(bob.messages.ack("msg_other1"), interlock.UnknownMessages)
        assert len(bob.messages.inbox()) == 2


def test_lists_can_be_iterated_and_counted(url: str) -> None:
    with interlock.connect(url, agent="ada") as ada:
        ada.locks.acquire("merge")
        for task in ("t1", "t2"):
            ada.tasks.publish(task)
        assert [lock.lock for lock in ada.locks.list()] == ["merge"]
        tasks = ada.tasks.list()
        assert ([task.task for task in tasks], len(tasks)) == (["t1", "t2"], 2)
        assert list(ada.messages.inbox()) == []
        assert len(ada.agents.list()) == 1
        assert [each.what for each in ada.record.explain("lock/merge")] == ["acquired"]
        assert not ada.tasks.list(prefix="none")
