from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget
from tests.nouns.record.histories import KEYS, History, judged, places, words

from interlock import check_record
from interlock.check_record import ExpectedMark, RecordJudge
from interlock.core import codec
from interlock.core.segment import RecordMark
from interlock.nouns.record.reader import plain_mark
from interlock.nouns.record.verify import verified
from interlock.runtime.attempt import Chain, Draft
from interlock.store import Txn

OK = ("ok", "ok", "unproven")


@pytest.fixture
def history() -> History:
    """Two writers, linked by their chains and by what they saw; one entry that nobody links."""
    made = History()
    made.commit("ada", put="locks/a")  # 1
    made.commit("bob", put="locks/b")  # 2
    made.commit("ada", delete="locks/a")  # 3
    made.void()  # 4
    made.commit("bob", put="locks/a")  # 5
    made.quiet()  # 6
    made.commit("cleo", verb="lock.refused")  # 7: nobody links it, and it wrote nothing
    made.commit("ada", put="locks/c")  # 8
    made.commit("bob", put="locks/b")  # 9
    return made


def test_an_honest_record_is_sound_and_its_end_unproven(history: History) -> None:
    found = judged(history, marks=[history.mark(4), history.mark()])
    assert words(found) == OK
    assert (found.entries, found.begins, found.ends, found.exit_status) == (8, 1, 9, 0)


def test_an_anchor_proves_the_end_up_to_where_it_stands(history: History) -> None:
    found = judged(history, anchors=[history.mark(3), history.mark(7)])
    assert words(found) == ("ok", "ok", "ok")
    assert found.anchored == 8


@pytest.mark.parametrize("revision", [1, 2, 3, 5, 8, 9])
def test_an_edited_entry_is_found_where_it_stands(history: History, revision: int) -> None:
    history.edit(revision)
    found = judged(history)
    assert words(found) == ("bad", "ok", "unproven")
    assert places(found.findings) == [("integrity", revision)]


def test_bytes_that_do_not_hash_to_their_stamp_are_found(history: History) -> None:
    history.edit(7, rehash=False)
    assert places(judged(history).findings) == [("integrity", 7)]


@pytest.mark.parametrize(
    ("revision", "where"),
    [
        (1, [("completeness", 3)]),
        (3, [("completeness", 5), ("completeness", 8)]),
        (5, [("completeness", 9), ("completeness", "locks/a")]),
        (8, [("completeness", "locks/c")]),
    ],
)
def test_a_deleted_entry_is_missed_by_those_that_link_it(
    history: History, revision: int, where: list[tuple[str, int | str]]
) -> None:
    history.delete(revision)
    found = judged(history)
    assert found.completeness == "bad"
    assert places(found.findings) == where


def test_what_nobody_links_is_missed_by_a_mark_alone(history: History) -> None:
    mark = history.mark()
    history.delete(7)
    assert words(judged(history)) == OK
    found = judged(history, marks=[mark])
    assert places(found.findings) == [("integrity", 9)]
    assert "counts 8 entries and the record 7" in found.findings[0].says
    assert words(judged(history, anchors=[mark])) == ("ok", "ok", "bad")


def test_an_entry_that_is_gone_from_where_a_mark_was_made_is_missed(history: History) -> None:
    mark = history.mark(6)
    history.delete(7)
    found = judged(history, marks=[mark], anchors=[mark])
    assert places(found.findings) == [("integrity", 7), ("truncation", 7)]
    assert "no entry stands here" in found.findings[0].says


def test_an_inserted_entry_is_noticed_by_a_mark(history: History) -> None:
    mark = history.mark()
    history.insert(7)
    assert words(judged(history)) == OK
    assert places(judged(history, marks=[mark]).findings) == [("integrity", 9)]


def test_an_inserted_write_is_contradicted_by_the_state(history: History) -> None:
    history.insert(7, put={"locks/x": "digest"})
    assert places(judged(history).findings) == [("completeness", "locks/x")]


def test_entries_that_changed_places_are_found(history: History) -> None:
    history.swap(3, 8)
    found = judged(history)
    assert found.integrity == "bad"
    assert ("integrity", 3) in places(found.findings)


def test_a_link_that_points_forward_is_found_without_the_revision_it_was_decided_on() -> None:
    made = History()
    for _ in range(3):
        made.commit("ada", on=0)
    made.swap(2, 3)
    assert ("integrity", 2) in places(judged(made).findings)


def test_an_entry_stands_right_above_what_it_was_decided_on(history: History) -> None:
    history.commit("cleo", on=4)
    assert places(judged(history).findings) == [("integrity", 10)]


def test_an_entry_that_was_written_twice_is_found(history: History) -> None:
    item = history.entries[-2]
    history.entries[-2] = msgspec.structs.replace(item, revision=12)
    assert places(judged(history).findings) == [("integrity", 8)]


def test_a_cut_tail_is_noticed_by_what_it_wrote_and_beside_an_anchor(history: History) -> None:
    anchor = history.mark()
    history.cut(7)
    found = judged(history, anchors=[anchor])
    assert words(found) == ("ok", "bad", "bad")
    assert places(found.findings) == [
        ("truncation", 9),
        ("completeness", "locks/b"),
        ("completeness", "locks/c"),
    ]


def test_a_tail_that_was_cut_with_its_state_is_noticed_only_beside_an_anchor() -> None:
    made = History()
    made.commit("ada", put="locks/a")
    items = dict(made.items)
    made.commit("ada", put="locks/a")
    anchor = made.mark()
    made.cut(1)
    made.items = items
    assert words(judged(made)) == OK
    assert words(judged(made, anchors=[anchor])) == ("ok", "ok", "bad")


def test_a_mark_of_the_store_behind_its_own_end_says_that_the_end_is_missing(
    history: History,
) -> None:
    mark = history.mark()
    history.cut(8)
    assert ("truncation", 9) in places(judged(history, marks=[mark]).findings)


def test_an_item_is_what_its_last_entry_wrote(history: History) -> None:
    item = history.items["locks/c"]
    history.items["locks/c"] = msgspec.structs.replace(item, value=b"{}")
    assert places(judged(history).findings) == [("integrity", "locks/c")]


def test_an_item_carries_the_revision_of_its_entry(history: History) -> None:
    item = history.items["locks/c"]
    history.items["locks/c"] = msgspec.structs.replace(item, revision=99)
    assert places(judged(history).findings) == [("integrity", "locks/c")]


def test_state_without_a_record_and_a_record_without_its_state_are_found(
    history: History,
) -> None:
    item = history.items.pop("locks/c")
    history.items["locks/x"] = msgspec.structs.replace(item, key="locks/x")
    found = judged(history)
    assert places(found.findings) == [("completeness", "locks/c"), ("completeness", "locks/x")]
    assert words(judged(history, changed=["locks/c", "locks/x"])) == OK


def test_an_item_that_was_set_back_is_found(history: History) -> None:
    older = history.entries[1]
    item = history.items["locks/b"]
    history.items["locks/b"] = msgspec.structs.replace(item, entry=older.entry, hash=older.hash)
    assert places(judged(history).findings) == [("integrity", "locks/b")]


def test_what_was_dropped_on_purpose_is_not_missed(history: History) -> None:
    found = judged(history, begins=history.mark(2), marks=[history.mark()])
    assert words(found) == OK
    assert (found.dropped, found.begins) == (2, 3)


def test_an_anchor_of_what_was_dropped_can_no_longer_be_judged(history: History) -> None:
    found = judged(history, begins=history.mark(3), anchors=[history.mark(2)])
    assert words(found) == OK
    met = judged(history, begins=history.mark(3), anchors=[history.mark(3)])
    assert (met.truncation, met.anchored) == ("ok", 3)


def test_what_was_trimmed_is_unproven_and_the_rest_is_judged(history: History) -> None:
    mark, end = history.mark(5), history.mark()
    history.entries = history.entries[2:]
    found = judged(history, covered=False)
    assert words(found) == ("ok", "unproven", "unproven")
    assert found.since == 3
    history.edit(8)
    found = judged(history, covered=False, marks=[mark, end])
    assert ("integrity", 8) in places(found.findings)
    assert ("integrity", 9) in places(found.findings), "rolled from the first mark that is passed"


def test_a_gap_after_a_trimmed_beginning_is_still_found() -> None:
    made = History()
    for _ in range(6):
        made.commit("ada")
    made.entries = made.entries[1:]
    made.delete(4)
    found = judged(made, covered=False)
    assert found.exit_status == 1


def under_way(acts: list[tuple[str, int]]) -> History:
    """One writer whose commits overlap: drafts are made, and carried out or given up, in any order.

    In the end all of them are carried out, and another one follows.
    """
    made, chain, drafts = History(), Chain("ada"), list[tuple[str, ...]]()

    def carry(after: tuple[str, ...]) -> None:
        made.commit("ada", after=after)
        chain.advance(Draft(Txn(id="", entry=b"x", hash=made.entries[-1].hash), after))

    for act, which in acts:
        if act == "draft" or not drafts:
            drafts.append(chain.take())
        elif act == "commit":
            carry(drafts.pop(which % len(drafts)))
        else:
            chain.give_back(Draft(Txn(id=""), drafts.pop(which % len(drafts))))
    for after in (*drafts, None):
        carry(chain.take() if after is None else after)
    return made


@given(
    st.lists(
        st.tuples(st.sampled_from(["draft", "draft", "commit", "fail"]), st.integers(0, 9)),
        min_size=5,
        max_size=40,
    )
)
@example([("draft", 0), ("commit", 0), *[("draft", 0), ("draft", 0), ("commit", 0)] * 5])
def test_commits_that_were_under_way_at_a_cut_are_not_missed(acts: list[tuple[str, int]]) -> None:
    made = under_way(acts)
    for cut in range(1, len(made.entries)):
        assert words(judged(made, begins=made.mark(cut))) == OK, cut


def test_a_gap_behind_commits_that_were_under_way_is_still_found() -> None:
    acts = [("draft", 0), ("commit", 0), *[("draft", 0), ("draft", 0), ("commit", 0)] * 5]
    made = under_way(acts)
    begins, first = made.mark(3), made.entries[-1].revision + 1
    for _ in range(4):
        made.commit("ada")
    made.delete(first + 1)
    assert places(judged(made, begins=begins).findings) == [("integrity", first)]


def test_far_behind_a_cut_no_link_is_let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_record, "UNDER_WAY", 3)
    made = History()
    for _ in range(6):
        made.commit("ada")
    made.commit("ada", after=(made.entries[-1].hash, "0" * 64))
    assert places(judged(made, begins=made.mark(1)).findings) == [("completeness", 7)]
    monkeypatch.undo()
    assert words(judged(made, begins=made.mark(1))) == OK


def test_a_link_from_far_behind_is_looked_for_once_more(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_record, "RECENT", 1)
    for _ in range(20):
        history.commit("dora")
    history.commit("cleo")
    assert words(judged(history)) == OK


def test_what_was_seen_without_a_stamp_cannot_be_judged(history: History) -> None:
    history.commit("ada", saw={"locks/q": "blind"})
    assert words(judged(history)) == OK


def test_an_entry_that_cannot_be_read_is_found(history: History) -> None:
    item = history.entries[6]
    raw = b"\xff" + item.value
    history.entries[6] = msgspec.structs.replace(item, value=raw, hash=codec.digest(raw))
    assert ("integrity", 8) in places(judged(history).findings)


def test_twenty_findings_are_told_and_the_others_counted() -> None:
    made = History()
    for number in range(30):
        made.commit("ada", put=f"locks/{number}")
    made.items.clear()
    found = judged(made)
    assert (len(found.findings), found.more) == (20, 10)


def test_a_mark_of_nothing_proves_nothing(history: History) -> None:
    assert words(judged(history, anchors=[RecordMark()])) == OK


TAMPERING = st.sampled_from(["edit", "forget", "delete", "insert", "swap", "cut", "item", "stamp"])


@settings(max_examples=budget(60), deadline=None)
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["ada", "bob", "cleo"]),
            st.sampled_from(["put", "delete", "none", "void", "quiet"]),
            st.sampled_from(KEYS),
        ),
        min_size=3,
        max_size=25,
    ),
    tampering=TAMPERING,
    where=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)
def test_no_single_change_goes_unnoticed_before_an_anchor(
    acts: list[tuple[str, str, str]], tampering: str, where: tuple[int, int]
) -> None:
    made = random_history(acts)
    anchor = made.mark()
    assert judged(made, anchors=[anchor]).exit_status == 0
    if tamper(made, tampering, where):
        assert judged(made, anchors=[anchor]).exit_status == 1
        judged(made)
        judged(made, covered=False, marks=[anchor])


def random_history(acts: list[tuple[str, str, str]]) -> History:
    made = History()
    for writer, act, key in acts:
        match act:
            case "put":
                made.commit(writer, put=key)
            case "delete" if key in made.items:
                made.commit(writer, delete=key)
            case "void":
                made.void()
            case "quiet":
                made.quiet()
            case _:
                made.commit(writer)
    return made


def tamper(made: History, how: str, where: tuple[int, int]) -> bool:  # noqa: C901 - one for each
    """Change one thing; whether there was anything to change."""
    real = [item.revision for item in made.entries if item.hash]
    everything = [item.revision for item in made.entries]
    if not real:
        return False
    one, other = real[where[0] % len(real)], everything[where[1] % len(everything)]
    match how:
        case "edit" | "forget":
            made.edit(one, rehash=how == "edit")
        case "delete":
            made.delete(other)
        case "insert":
            if one - 1 in everything or one == 1:
                return False
            made.insert(one)
        case "swap":
            if one == other:
                return False
            made.swap(one, other)
        case "cut":
            if other == everything[-1]:
                return False
            made.cut(other)
        case _:
            if not made.items:
                return False
            key = sorted(made.items)[where[0] % len(made.items)]
            changes = {"value": b"[]"} if how == "item" else {"hash": codec.digest(b"other")}
            made.items[key] = msgspec.structs.replace(made.items[key], **changes)
    return True


@pytest.mark.parametrize("anchors", [(10,), (10, 12)])
def test_no_anchor_proves_what_stands_before_a_gap(anchors: tuple[int, ...]) -> None:
    made = History()
    for _ in range(12):
        made.commit("ada")
    marks, kept = [made.mark(8)], [made.mark(upto) for upto in anchors]
    judge = RecordJudge(
        strict=True,
        marks=[
            *(ExpectedMark(plain_mark(mark), "meta/checkpoint") for mark in marks),
            *(ExpectedMark(plain_mark(mark), "the anchor", outside=True) for mark in kept),
        ],
    )
    forged = made.entries[:5]
    judge.feed(forged)
    judge.trimmed_before(7)
    judge.feed(made.entries[6:])
    found = verified(judge)
    assert words(found) == ("ok", "unproven", "unproven")


def test_behind_a_trimmed_beginning_an_anchor_is_proven_by_one_before_it(history: History) -> None:
    marks = [history.mark(4)]
    anchors = [history.mark(6), history.mark(8)]
    history.entries = history.entries[2:]
    one = judged(history, covered=False, marks=marks, anchors=anchors[:1])
    assert (one.truncation, one.anchored) == ("unproven", 0)
    both = judged(history, covered=False, marks=marks, anchors=anchors)
    assert (both.truncation, both.anchored) == ("ok", 9)
