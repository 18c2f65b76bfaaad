"""The obvious loop is right: handled messages are acknowledged, and no others."""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faces.shell import until
from tests.nouns.messages.helpers import sent

import interlock
from interlock import aio
from interlock.client_messages import Receiver
from interlock.core import keys
from interlock.errors import BadInput, StoreAway
from interlock.nouns.messages import retention
from interlock.nouns.messages.inbox_reader import InboxEntry
from interlock.nouns.messages.message import Acknowledged, Received, Sent
from interlock.nouns.messages.query import Late, QueryAnswered, Replied
from interlock.nouns.messages.receive_loop import ReceiveLoop
from interlock.nouns.messages.receiver import DeliveryQueue
from interlock.store import Range
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def ada(place: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(place, agent="ada") as fleet:
        yield fleet


@pytest.fixture
def bob(place: str) -> Iterator[interlock.Fleet]:
    with interlock.connect(place, agent="bob") as fleet:
        yield fleet


def unread(fleet: interlock.Fleet) -> list[object]:
    return [each.data for each in fleet.messages.inbox().messages]


def serving(fleet: interlock.Fleet) -> bool:
    page = Range(keys.serving("bob"))
    return bool(fleet.store.read(page).ranges[page])


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C in the main thread of a program, also if the tests run in another way."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_the_message_at_hand_and_no_other(
    ada: interlock.Fleet, bob: interlock.Fleet, ctrl_c: Callable[[], None]
) -> None:
    for number in range(3):
        ada.messages.send("bob", number)

    def handle(inbox: Receiver) -> None:
        for message in inbox:
            if message.data == 1:
                ctrl_c()

    with pytest.raises(KeyboardInterrupt), bob.messages.recv(timeout=30) as inbox:
        handle(inbox)
    assert unread(bob) == [1, 2]


def test_ctrl_c_ends_a_loop_that_sleeps(
    ada: interlock.Fleet, bob: interlock.Fleet, ctrl_c: Callable[[], None]
) -> None:
    def interrupt() -> None:
        until(lambda: serving(ada) and not unread(bob))
        ctrl_c()

    ada.messages.send("bob", "done")
    terminal = threading.Thread(target=interrupt)
    terminal.start()
    with pytest.raises(KeyboardInterrupt), bob.messages.recv(timeout=30) as inbox:
        list(inbox)
    terminal.join()
    assert unread(bob) == []


def test_what_the_loop_came_back_from_is_acknowledged(
    ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    for number in range(3):
        ada.messages.send("bob", number)
    assert [message.data for message in bob.messages.recv(timeout=0)] == [0, 1, 2]
    assert unread(bob) == []
    assert list(bob.messages.recv(timeout=0)) == []


def test_what_the_loop_is_left_with_stays_unread(
    ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    for number in range(4):
        ada.messages.send("bob", number)
    for message in bob.messages.recv():
        if message.data == 1:
            break
    assert unread(bob) == [1, 2, 3]
    assert not serving(bob)

    def handle() -> None:
        for message in bob.messages.recv():
            1 // (message.data - 2)

    with pytest.raises(ZeroDivisionError):
        handle()
    assert unread(bob) == [2, 3]


def test_a_block_may_have_several_loops(ada: interlock.Fleet, bob: interlock.Fleet) -> None:
    with bob.messages.recv(timeout="50ms", redeliver=0) as messages:
        ada.messages.send("bob", 1)
        for message in messages:
            assert message.data == 1
            break
        assert serving(bob)
        assert [(each.data, each.attempt) for each in messages] == [(1, 2)]
    assert not serving(bob)
    assert unread(bob) == []


def test_who_acknowledges_itself_is_left_alone(ada: interlock.Fleet, bob: interlock.Fleet) -> None:
    for number in range(3):
        ada.messages.send("bob", number)
    with bob.messages.recv(timeout=0, ack=False) as messages:
        first, second, third = messages
        assert messages.ack(first, third.id) == Acknowledged(messages=(first.id, third.id))
        assert unread(bob) == [1]
        assert second.ack() == Acknowledged(messages=(second.id,))
        assert second.ack() == Acknowledged(already=(second.id,))


def test_acknowledging_while_another_comes_in_moves_no_cursor_past_that(
    ada: interlock.Fleet, bob: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob.messages.subscribe("build")
    ada.messages.alert("build", 1)
    with bob.messages.recv(ack=False, timeout=0) as messages:
        (one,) = messages.take()
        ada.messages.alert("build", 2)
        real = DeliveryQueue.add

        def add(line: DeliveryQueue, found: InboxEntry) -> None:
            monkeypatch.setattr(DeliveryQueue, "add", real)
            one.ack()
            line.add(found)

        monkeypatch.setattr(DeliveryQueue, "add", add)
        assert [each.data for each in messages.take()] == [2]
    assert unread(bob) == [2]


def test_a_message_acknowledged_ahead_is_not_delivered(
    ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    ids = [sent_by(ada, number) for number in range(3)]
    with bob.messages.recv(timeout=0) as messages:
        loop = iter(messages)
        assert next(loop).data == 0
        messages.ack(ids[1])
        assert [each.data for each in loop] == [2]


def sent_by(fleet: interlock.Fleet, body: object) -> str:
    outcome = fleet.messages.send("bob", body)
    assert isinstance(outcome, Sent)
    return outcome.message


def test_what_comes_while_another_thread_acknowledges_waits_for_that(
    ada: interlock.Fleet, bob: interlock.Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that stops in the middle of an acknowledgement, while the loop takes messages."""
    bob.messages.subscribe("build")
    for number in range(82):
        ada.messages.alert("build", number)
    got: list[interlock.Message] = []
    with bob.messages.recv(ack=False, timeout=0) as messages:
        first = messages.take()
        takes = threading.Thread(target=lambda: got.extend(messages.take()))
        real = DeliveryQueue.__iter__

        def held_up(line: DeliveryQueue) -> Iterator[InboxEntry]:
            monkeypatch.setattr(DeliveryQueue, "__iter__", real)
            found = real(line)
            yield next(found)
            takes.start()
            takes.join(0.1)
            yield from found

        monkeypatch.setattr(DeliveryQueue, "__iter__", held_up)
        assert first[0].ack() == Acknowledged(messages=(first[0].id,))
        takes.join()
    assert [each.data for each in (*first, *got)] == list(range(82))
    assert unread(bob) == list(range(1, 82))


def test_another_thread_may_acknowledge_while_the_loop_sleeps(
    ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    bob.messages.subscribe("build")
    handed: queue.SimpleQueue[interlock.Message] = queue.SimpleQueue()
    messages = bob.messages.recv(ack=False)

    def receive() -> None:
        for message in messages:
            handed.put(message)

    loop = threading.Thread(target=receive)
    loop.start()
    for number in range(20):
        ada.messages.alert("build", number)
        ada.messages.send("bob", number)
    for _ in range(20):
        assert isinstance(messages.ack(handed.get(timeout=30)), Acknowledged)
        assert isinstance(handed.get(timeout=30).ack(), Acknowledged)
    messages.close()
    loop.join(30)
    assert unread(bob) == []


def test_a_portion_is_taken_and_acknowledged_with_the_next(
    ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    with bob.messages.recv(timeout=0) as messages:
        ada.messages.send("bob", 0)
        ada.messages.send("bob", 1)
        assert [each.data for each in messages.take()] == [0, 1]
        assert unread(bob) == [0, 1]
        assert messages.take() == ()
        assert unread(bob) == []


def test_questions_are_answered_in_the_loop(ada: interlock.Fleet, bob: interlock.Fleet) -> None:
    replies: list[object] = []

    def serve() -> None:
        for message in bob.messages.recv():
            if message.kind == "query":
                replies.extend((message.reply(message.data + 1), message.reply("again")))
            if message.kind == "stop":
                message.ack()
                return

    thread = threading.Thread(target=serve)
    thread.start()
    answer = ada.messages.query("bob", 6, timeout=30)
    ada.messages.stop("bob")
    thread.join(30)
    assert isinstance(answer, QueryAnswered)
    assert answer.answer == 7
    assert isinstance(replies[0], Replied)
    assert isinstance(replies[1], Late)
    assert unread(bob) == []


def test_another_thread_may_close_it_and_the_loop_ends(bob: interlock.Fleet) -> None:
    messages = bob.messages.recv()
    loop = threading.Thread(target=lambda: list(messages))
    loop.start()
    until(lambda: serving(bob))
    messages.close()
    loop.join(30)
    assert not loop.is_alive()
    assert not serving(bob)
    assert messages.take() == ()


def test_the_loop_ends_with_its_client(place: str, ada: interlock.Fleet) -> None:
    bob = interlock.connect(place, agent="bob")
    loop = threading.Thread(target=lambda: list(bob.messages.recv()))
    loop.start()
    until(lambda: serving(ada))
    bob.close()
    loop.join(30)
    assert not loop.is_alive()
    assert not serving(ada)


def test_it_needs_words_that_make_sense(bob: interlock.Fleet, place: str) -> None:
    with pytest.raises(BadInput, match="put brackets"):
        bob.messages.recv(can="review")
    with bob.messages.recv() as receiver, pytest.raises(BadInput, match=r"ack\(\*messages\)"):
        receiver.ack(["msg_1"])  # type: ignore[arg-type]
    with interlock.connect(place) as nobody, pytest.raises(BadInput) as told:
        nobody.messages.recv()
    assert "who are you? say connect(agent=NAME)" in str(told.value)
    with pytest.raises(BadInput, match=r"write ack\(\*ids\)"):
        bob.messages.ack(["msg_1"])  # type: ignore[arg-type]


def test_async_loops_do_the_same(place: str, ada: interlock.Fleet) -> None:
    async def run() -> None:
        async with await aio.connect(place, agent="bob") as bob:
            for number in range(4):
                ada.messages.send("bob", number)
            async for message in bob.messages.recv():
                if message.data == 2:
                    break
            await asyncio.sleep(0)
            left = [each.data for each in (await bob.messages.inbox()).messages]
            assert left[-2:] == [2, 3]
            async with bob.messages.recv(timeout=0, ack=False) as messages:
                async for message in messages:
                    assert isinstance(await message.ack(), Acknowledged)
                assert await messages.take() == ()
            assert (await bob.messages.inbox()).messages == ()

    asyncio.run(run())


def test_async_what_the_loop_handled_is_acknowledged_when_its_client_closes(
    place: str, ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    async def run() -> None:
        async with await aio.connect(place, agent="bob") as fleet:
            async for message in fleet.messages.recv():
                if message.data == 2:
                    break

    for number in range(4):
        ada.messages.send("bob", number)
    asyncio.run(run())
    assert unread(bob) == [2, 3]


def test_async_questions_are_answered_and_another_task_may_close(place: str) -> None:
    async def run() -> None:
        async with (
            await aio.connect(place, agent="ada") as ada,
            await aio.connect(place, agent="bob") as bob,
        ):
            messages = bob.messages.recv()

            async def serve() -> None:
                async for message in messages:
                    assert isinstance(await message.reply("yes"), Replied)

            task = asyncio.create_task(serve())
            answer = await ada.messages.query("bob", "ok?", timeout=30)
            assert isinstance(answer, QueryAnswered)
            await messages.close()
            await asyncio.wait_for(task, 30)

    asyncio.run(run())


def test_async_a_cancelled_loop_keeps_what_it_has_not_handled(
    place: str, ada: interlock.Fleet, bob: interlock.Fleet
) -> None:
    async def run() -> None:
        async with await aio.connect(place, agent="bob") as fleet:
            handling = asyncio.Event()

            async def serve() -> None:
                async for message in fleet.messages.recv():
                    if message.data == 1:
                        handling.set()
                        await asyncio.sleep(60)

            task = asyncio.create_task(serve())
            await handling.wait()
            task.cancel()
            await asyncio.wait([task])

    for number in range(3):
        ada.messages.send("bob", number)
    asyncio.run(run())
    assert unread(bob) == [1, 2]


# Step by step


def reception(client: Client, **terms: object) -> ReceiveLoop:
    return client.messages.reception(**terms)  # type: ignore[arg-type]


def next_(client: Client, loop: ReceiveLoop) -> Received | None:
    return client.run(loop.next())


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def test_what_is_taken_together_is_acknowledged_with_one_commit(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    loop = reception(bob, timeout=0)
    for number in range(10):
        ada.run(ada.messages.send("bob", number))
    before = stage.store.read().revision
    assert len(bob.run(loop.take())) == 10
    assert bob.run(loop.take()) == ()
    assert stage.store.read().revision == before + 1


def test_who_takes_only_what_is_there_writes_nothing_but_its_acknowledgement(
    stage: Testbed,
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    ada.run(ada.messages.send("bob", 1))
    before, loop = stage.store.read().revision, reception(bob, timeout=0)
    assert next_(bob, loop)
    assert next_(bob, loop) is None
    bob.run(loop.end())
    assert stage.store.read().revision == before + 1


def test_what_is_done_is_acknowledged_before_the_next_is_given_out(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    loop = reception(bob, timeout=0)
    ids = [sent(ada, ada.messages.send("bob", number)) for number in range(3)]
    for number in range(3):
        next_(bob, loop)
        left = bob.run(bob.messages.inbox()).messages
        assert [each.id for each in left] == ids[number:]


def died(stage: Testbed) -> None:
    """Kill its process: it writes nothing more, and its liveness key expires."""
    stage.clock.advance(31)


def test_what_a_receiver_died_with_counts_as_delivered(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=10_000)
    for number in range(4):
        ada.run(ada.messages.send("bob", number, hold=True))
    for attempt in (1, 2, 3):
        bob = stage.client("bob")
        loop = reception(bob)
        first = next_(bob, loop)
        assert (first and first.data, first and first.attempt) == (0, attempt)
        died(stage)
    bob = stage.client("bob")
    loop = reception(bob)
    found = [next_(bob, loop) for _ in range(3)]
    assert [each and (each.data, each.attempt) for each in found] == [(0, 4), (1, 1), (2, 1)]
    died(stage)
    ada.run(ada.fleet.maintain())
    bob = stage.client("bob")
    loop = reception(bob, timeout=0)
    found = [next_(bob, loop) for _ in range(2)]
    assert [each and (each.data, each.attempt) for each in found] == [(2, 2), (3, 1)]
    assert next_(bob, loop) is None


def test_receivers_that_died_before_it_was_sent_count_for_one_attempt_at_most(
    stage: Testbed,
) -> None:
    """It is unknown when the last one died; the others were gone by then."""
    ada = stage.client("ada", ttl=10_000)
    for _ in range(4):
        bob = stage.client("bob")
        waits = Stepper(reception(bob).next(), bob.store, bob.clock).run()
        assert not waits.done
        died(stage)
    ada.run(ada.messages.send("bob", 0, hold=True))
    for attempt in (2, 3):
        bob = stage.client("bob")
        found = next_(bob, reception(bob))
        assert (found and found.data, found and found.attempt) == (0, attempt)
        died(stage)


def test_who_closes_leaves_no_attempt_behind(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=10_000), stage.client("bob", ttl=10_000)
    loop = reception(bob)
    ada.run(ada.messages.send("bob", 0))
    next_(bob, loop)
    ada.run(ada.messages.send("bob", 1))
    next_(bob, loop)
    bob.run(loop.ack([each.id for each in bob.run(bob.messages.inbox()).messages]))
    bob.run(loop.end())
    ada.run(ada.messages.send("bob", 2))
    loop = reception(bob)
    found = next_(bob, loop)
    assert found is not None
    assert found.attempt == 1


def test_the_note_of_a_dead_receiver_is_deleted_in_time(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=1e7), stage.client("bob")
    loop = reception(bob)
    ada.run(ada.messages.send("bob", 0))
    next_(bob, loop)
    died(stage)
    assert ada.run(ada.fleet.maintain()).reclaimed
    page = Range(keys.SERVING)
    assert stage.store.read(page).ranges[page]
    stage.clock.advance(retention.RECEIVER_NOTE_AGE + 1)
    ada.run(ada.fleet.maintain())
    assert not stage.store.read(page).ranges[page]


def test_slow_work_on_the_first_does_not_bring_the_others_again(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    loop = reception(bob, timeout=0, ack=False, redeliver=60)
    for number in range(2):
        ada.run(ada.messages.send("bob", number))
    first = next_(bob, loop)
    assert first is not None
    bob.run(loop.ack([first.id]))
    stage.clock.advance(61)
    second = next_(bob, loop)
    assert (second and second.data, second and second.attempt) == (1, 1)
    assert next_(bob, loop) is None
    stage.clock.advance(61)
    again = next_(bob, loop)
    assert (again and again.data, again and again.attempt) == (1, 2)


def test_an_outage_does_not_end_the_loop_and_is_reported_once(
    stage: Testbed, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    loop = reception(bob)
    ada.run(ada.messages.send("bob", 1))
    assert next_(bob, loop)
    with caplog.at_level(logging.WARNING, "interlock"):
        waits = bob.start(loop.next())
        for _ in range(3):
            assert not waits.interrupt(StoreAway("it does not answer")).done
        ada.run(ada.messages.send("bob", 2))
        found = waits.run().result()
    assert found is not None
    assert found.data == 2
    (told,) = caplog.messages
    assert told == "receiving messages goes on when this is over: it does not answer"


@pytest.mark.parametrize("strike", range(1, 25))
def test_trouble_at_any_step_of_the_loop_loses_and_repeats_nothing(
    stage: Testbed, strike: int
) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    bob.run(bob.messages.subscribe("build"))
    for number in range(3):
        ada.run(ada.messages.alert("build", number))
    loop, got, steps = reception(bob, timeout=5), list[object](), 0
    while True:
        turn = Stepper(loop.next(), bob.store, bob.clock)
        while not turn.done:
            steps += 1
            if steps == strike:
                turn.interrupt(StoreAway("it does not answer"))
            elif not turn.go():
                stage.clock.advance(1)
        with suppress(StoreAway):  # it has timed out by then: ask again
            if (found := turn.result()) is None:
                break
            got.append(found.data)
    assert got == [0, 1, 2]
    assert bob.run(bob.messages.inbox()).messages == ()


def test_with_a_time_limit_trouble_is_raised_in_the_end(stage: Testbed) -> None:
    bob = stage.client("bob")
    turn = Stepper(reception(bob, timeout=0).next(), bob.store, bob.clock)
    with pytest.raises(StoreAway):
        turn.interrupt(StoreAway("it does not answer")).result()


def test_who_was_taken_for_gone_says_again_that_it_is_there(stage: Testbed) -> None:
    bob = stage.client("bob")
    loop = reception(bob)
    waits = bob.start(loop.next())
    key, session = keys.serving("bob", bob.someone.name), bob.session
    live = keys.receiver_live(session, bob.someone.name)
    assert stage.store.read(key, live).items.keys() == {key, live}
    stage.clock.advance(31)
    bob.context.keeper.expire()
    assert stage.store.read(live)[live] is None
    waits.run()
    stage.clock.advance(1)
    waits.run()
    assert bob.session != session, "its session expired, and another one follows"
    live = keys.receiver_live(bob.session, bob.someone.name)
    assert stage.store.read(live)[live] is not None


def test_a_typed_receiver_is_what_recv_returns(bob: interlock.Fleet) -> None:
    assert isinstance(bob.messages.recv(), Receiver)
