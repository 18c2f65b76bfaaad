"""A cursor knows of each message whether it is acknowledged, in any order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget

from interlock.nouns.messages.inbox_rules import (
    AckRequest,
    AckState,
    Cursor,
    TopicAcks,
    TopicTrim,
    acknowledge,
    advance,
    first_cursor,
)
from interlock.nouns.messages.message import Acknowledged, AlertSubscription, UnknownMessages


def seen(messages: dict[str, int], pending: list[int], upto: int) -> TopicAcks:
    return TopicAcks(topic="build", messages=messages, pending=pending, upto=upto)


def test_acknowledged_in_order_it_is_one_number() -> None:
    first = advance(Cursor(after=3), seen({"a": 5}, [5, 8], 9))
    assert first == Cursor(after=7)
    assert advance(first, seen({"b": 8}, [8], 9)) == Cursor(after=9)


def test_acknowledged_out_of_turn_the_first_stays_unread() -> None:
    cursor = advance(Cursor(after=3), seen({"b": 8}, [5, 8], 9))
    assert cursor == Cursor(after=4, also=(8,))
    assert (cursor.has(5), cursor.has(8)) == (False, True)


def test_a_reader_of_later_messages_still_learns_that_earlier_ones_are_deleted() -> None:
    cursor = Cursor(after=3, also=(8,))
    assert cursor.missed(TopicTrim(upto=8, count=2))
    assert not cursor.missed(TopicTrim(upto=3, count=1))
    assert not cursor.missed(None)


def test_missed_messages_are_reported_once_though_an_older_one_still_exists() -> None:
    told = TopicAcks(topic="build", messages={"m": 8}, pending=[5], upto=9, told={"m"})
    cursor = advance(Cursor(after=3), told)
    assert not cursor.missed(TopicTrim(upto=8, count=2))
    assert cursor.missed(TopicTrim(upto=9, count=3))
    assert not cursor.has(5)
    assert advance(cursor, seen({"a": 5}, [5], 9)) == Cursor(after=9)


def test_a_reader_that_knows_less_takes_nothing_back() -> None:
    assert advance(Cursor(after=20), seen({"a": 5}, [5], 9)) == Cursor(after=20)


def test_a_cursor_begins_with_its_subscription_or_before_the_last_ones() -> None:
    assert first_cursor(AlertSubscription(), 7) == Cursor(after=7)
    assert first_cursor(AlertSubscription(since=3), 7) == Cursor(after=3)


def test_what_is_neither_waiting_nor_read_is_not_ours() -> None:
    known = AckState(waiting={"m1": ""}, read={"m2"})
    decision = acknowledge(
        "bob", ("m1", "m2", "m3"), AckRequest(ids=("m1", "m2", "m3")), known, 5.0
    )
    assert decision.outcome == UnknownMessages(unknown=("m3",), messages=("m1",), already=("m2",))
    assert decision.deletes == ("unread/bob/m1",)


def test_what_changes_nothing_is_not_written() -> None:
    known = AckState(read={"m2"})
    decision = acknowledge("bob", ("m2",), AckRequest(ids=("m2",)), known, 5.0)
    assert decision.outcome == Acknowledged(already=("m2",))
    assert not decision.changes


@settings(max_examples=budget(30))
@given(data=st.data(), readers=st.integers(1, 3))
def test_a_cursor_has_what_was_acknowledged_and_nothing_else(
    data: st.DataObject, readers: int
) -> None:
    """Readers with one name, each with its own view, against a plain set."""
    cursor, sent, acked = Cursor(after=0), [0], set[int]()
    views = [(0, set[int]()) for _ in range(readers)]
    for _ in range(data.draw(st.integers(1, 15))):
        now = sent[-1] + data.draw(st.integers(1, 3))  # others commit in between
        sent.append(now)
        reader = data.draw(st.integers(0, readers - 1))
        upto, pending = views[reader]
        if data.draw(st.booleans()):
            pending |= {each for each in sent if upto < each and not cursor.has(each)}
            upto = now
        chosen = data.draw(st.sets(st.sampled_from(sorted(pending)))) if pending else set()
        if chosen:
            ids = {str(each): each for each in chosen}
            cursor = advance(cursor, seen(ids, sorted(pending), upto))
            acked |= chosen
        views[reader] = (upto, pending - chosen)
        assert {each for each in sent[1:] if cursor.has(each)} == acked
        assert all(each > cursor.after for each in cursor.also)


@settings(max_examples=budget(20))
@given(st.sets(st.integers(0, 40)), st.integers(-1, 41))
def test_what_was_acknowledged_out_of_turn_is_found(also: set[int], revision: int) -> None:
    cursor = Cursor(after=-1, also=tuple(sorted(also)))
    assert cursor.has(revision) == (revision < 0 or revision in also)
