"""The decisions of a merge queue, without a store and without git."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.merges import merge as core
from interlock.nouns.merges import rules
from interlock.nouns.merges.merge import Merge, MergeAttempt, MergeTarget
from interlock.nouns.merges.rules import Bounce, PrefixSearch, QueuedMerge
from interlock.runtime.text import render

MERGE = Merge(branch="b", into="main", commit="c1", by="ada", at=1.0)
FOUND = QueuedMerge(id="mrg_1", merge=MERGE)
NONE = MergeTarget()
TESTING = MergeTarget(
    attempt=MergeAttempt(merges=("mrg_1",), base="c0", tip="t", token=7, since=2.0),
    held="",
    since=2.0,
)
LANDING = replace(TESTING, attempt=replace(TESTING.attempt, landing=True))  # type: ignore[type-var]


@pytest.mark.parametrize("size", range(1, 9))
def test_the_search_finds_the_longest_prefix_before_the_first_branch_that_fails(size: int) -> None:
    for bad in range(size + 1):  # the branch that fails; size: none
        search, tested = PrefixSearch(size=size), []
        while number := search.next:
            tested.append(number)
            search = search.after(number, passed=number <= bad)
        assert (search.passed, search.culprit) == (bad, None if bad == size else bad)
        assert tested[0] == size
        assert len(tested) <= 1 + size.bit_length()
        assert len(set(tested)) == len(tested)


def test_the_search_ends_whatever_a_guard_says() -> None:
    for answers in product((True, False), repeat=6):
        search, said = PrefixSearch(size=8), iter(answers)
        while number := search.next:
            assert search.passed < number <= search.size
            search = search.after(number, passed=next(said))
        assert search.culprit is None or search.culprit == search.passed


def test_a_branch_that_waits_gets_its_new_commit_in_its_old_place() -> None:
    fresh = replace(MERGE, commit="c2", at=9.0)
    done = rules.submit("mrg_2", fresh, FOUND, NONE)
    assert isinstance(done.outcome, core.MergeSubmitted)
    assert (done.outcome.merge, done.outcome.before) == ("mrg_1", "c1")
    assert [write.key for write in done.puts] == [keys.merge("mrg_1")]  # not its entry
    assert done.puts[0].value == replace(fresh, at=1.0, replaced=("c1",))


def test_the_same_commit_is_queued_once() -> None:
    done = rules.submit("mrg_2", MERGE, FOUND, NONE)
    assert isinstance(done.outcome, core.MergeSubmitted)
    assert done.outcome.already
    assert not done.changes


def test_a_branch_that_is_tested_takes_another_commit_and_one_that_lands_does_not() -> None:
    fresh = replace(MERGE, commit="c2")
    assert isinstance(rules.submit("mrg_2", fresh, FOUND, TESTING).outcome, core.MergeSubmitted)
    done = rules.submit("mrg_2", fresh, FOUND, LANDING)
    assert isinstance(done.outcome, core.MergeBusy)
    assert not done.changes


def test_a_hold_keeps_an_attempt_that_may_have_moved_the_target_and_no_other() -> None:
    for target, moved, kept in (
        (TESTING, True, None),
        (LANDING, False, None),
        (LANDING, True, LANDING.attempt),
    ):
        done = rules.hold("main", target, "why", agent="queue", now=5.0, moved=moved)
        after: Any = done.puts[0].value
        assert (after.attempt, after.held) == (kept, "why")
        assert not rules.hold("main", after, "why", agent="queue", now=6.0, moved=moved).changes


@pytest.mark.parametrize(
    ("state", "target", "outcome"),
    [
        ("waiting", NONE, core.MergeCancelled),
        ("waiting", TESTING, core.MergeCancelled),
        ("waiting", LANDING, core.MergeBusy),
        ("merged", NONE, core.MergeOver),
        ("bounced", NONE, core.MergeOver),
        ("cancelled", NONE, core.MergeCancelled),
    ],
)
def test_a_merge_is_cancelled_until_it_lands(state: Any, target: MergeTarget, outcome: Any) -> None:
    found = QueuedMerge(id="mrg_1", merge=replace(MERGE, state=state))
    done = rules.cancel(found, target, "bob", "not yet", 5.0)
    assert type(done.outcome) is outcome
    assert done.changes == (state == "waiting" and outcome is core.MergeCancelled)


def test_nothing_lands_for_another_server_or_another_base_or_after_a_change() -> None:
    attempt = TESTING.attempt
    assert attempt is not None
    stored = {"mrg_1": MERGE}
    land = partial(rules.land, "main", batch=(FOUND,), compared=True)
    assert land(TESTING, attempt, stored=stored).outcome == "landing"
    for other in (replace(attempt, token=8), replace(attempt, base="c9")):
        assert land(TESTING, other, stored=stored).outcome == "changed"
    assert land(NONE, attempt, stored=stored).outcome == "changed"
    for changed in (None, replace(MERGE, commit="c2"), replace(MERGE, state="cancelled")):
        assert land(TESTING, attempt, stored={"mrg_1": changed}).outcome == "changed"
    newer = land(TESTING, attempt, stored=stored, compared=False)
    assert (newer.outcome, newer.puts) == ("uncompared", ())
    reserved = (FOUND, Bounce(cause="reserved", reason="r"))
    found = land(TESTING, attempt, stored=stored, reserved=reserved)
    assert (found.outcome, found.puts) == (reserved, ())


def test_every_end_leaves_the_queue_and_tells_the_author_in_one_commit() -> None:
    ended = [
        rules.conclude("main", LANDING, (FOUND,), "t", now=5.0, notices=("msg_1",)),
        rules.bounce(
            "main", TESTING, FOUND, Bounce(cause="failed", reason="r"), now=5.0, notice="msg_1"
        ),
    ]
    for done, state in zip(ended, ("merged", "bounced"), strict=True):
        written: dict[str, Any] = {write.key: write.value for write in done.puts}
        assert written[keys.merge("mrg_1")].state == state
        assert core.TRANSITIONS["conclude" if state == "merged" else "bounce"]["waiting"] == state
        assert written[keys.merge_target("main")].attempt is None
        assert keys.unread("ada", "msg_1") in written
        assert done.deletes == (keys.merge_waiting("main", "b"),)
        assert done.ends


def test_a_merge_ends_once() -> None:
    over = QueuedMerge(id="mrg_1", merge=replace(MERGE, state="merged"))
    assert not rules.conclude("main", NONE, (over,), "t", now=5.0, notices=("m",)).changes
    why = Bounce(cause="failed", reason="r")
    assert not rules.bounce("main", NONE, over, why, now=5.0, notice="m").changes


@pytest.mark.parametrize(
    ("now", "contained", "error", "result"),
    [
        ("tip", False, "the connection broke", "merged"),
        ("later", True, "the connection broke", "merged"),
        ("other", False, "stale info", "again"),
        ("base", False, "refused by a hook", "held"),
        ("base", False, "", "again"),
    ],
)
def test_the_ref_decides_what_became_of_a_move(
    now: str, contained: bool, error: str, result: str
) -> None:
    assert rules.after_move("tip", "base", now, error, contained=contained) == result


def test_a_queue_without_a_server_says_why_it_was_held() -> None:
    view = core.MergeTargetView(target="main", waiting=1, held="main has moved")
    said = render(core.MergeList(merges=(), targets=(view,)))
    assert "main: no server; held: main has moved; start one: interlock merge serve" in said


def test_the_output_of_a_guard_is_shown_in_lines() -> None:
    reason = "make test ended with status 1\n1 failed\x1b[31m\n2 passed"
    bounced = core.MergeBounced(
        merge="mrg_1", branch="b", into="main", cause="failed", reason=reason
    )
    lines = ["  | make test ended with status 1", "  | 1 failed\\x1b[31m", "  | 2 passed"]
    assert render(bounced).split("\n") == ["bounced b from main:", *lines]
    view = core.MergeView(
        merge="mrg_1", branch="b", into="main", state="bounced", commit="c", by="ada", at=1.0,
        ended_at=2.0, reason=reason,
    )  # fmt: skip
    assert render(view).split("\n")[-3:] == lines
