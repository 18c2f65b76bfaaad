from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.agents import report_rules
from interlock.nouns.agents.report_rules import (
    PACES,
    REMEMBERED,
    Report,
    Reported,
    ReportState,
    ReportUpdate,
)
from interlock.nouns.agents.session_rules import SessionLapsed

BUSY = Report(
    agent="ada",
    session="s",
    state="busy",
    at=1.0,
    can=("gpu",),
    doing="task/t1",
    note="half",
    pace=30,
)


def said(before: Report | None, ask: ReportUpdate, now: float = 9.0) -> Reported:
    outcome = report_rules.update_report(before, "ada", "s", ask, alive=True, now=now).outcome
    assert isinstance(outcome, Reported)
    return outcome


def test_who_says_nothing_else_is_idle() -> None:
    outcome = said(None, ReportUpdate(can=("rust",)))
    assert (outcome.status, outcome.can, outcome.doing, outcome.pace) == ("idle", ("rust",), "", 0)


def test_a_new_state_begins_with_a_clean_slate_but_abilities_stay() -> None:
    outcome = said(BUSY, ReportUpdate(state="idle"))
    assert (outcome.status, outcome.doing, outcome.note) == ("idle", "", "")
    assert outcome.can == ("gpu",)
    outcome = said(BUSY, ReportUpdate(state="waiting", note="for a slot"))
    assert (outcome.doing, outcome.note) == ("", "for a slot")


def test_what_is_left_out_stays_while_the_state_does() -> None:
    outcome = said(BUSY, ReportUpdate(note="done soon", paces=PACES))
    assert (outcome.status, outcome.doing, outcome.note) == ("busy", "task/t1", "done soon")
    assert said(BUSY, ReportUpdate(state="busy", doing="")).doing == ""


@pytest.mark.parametrize("state", report_rules.STATES)
def test_the_pace_follows_the_state(state: ReportState) -> None:
    assert said(None, ReportUpdate(state=state, paces=PACES)).pace == PACES[state]
    assert said(None, ReportUpdate(state=state)).pace == 0, "nobody keeps it"


def test_a_word_of_its_own_has_the_pace_of_a_busy_agent() -> None:
    outcome = said(BUSY, ReportUpdate(state="building", paces=PACES))
    assert (outcome.status, outcome.doing, outcome.pace) == ("building", "", PACES["busy"])


def test_a_change_is_recorded_and_what_is_not_new_is_only_heard() -> None:
    changed = report_rules.update_report(
        BUSY, "ada", "s", ReportUpdate(state="idle"), alive=True, now=9.0
    )
    assert (changed.verb, changed.quiet) == ("agent.status", False)
    assert [event.name for event in changed.events] == ["agent:status"]
    assert {write.key for write in changed.puts} == {
        keys.report("s"),
        keys.report_live("s"),
        keys.able("gpu", "s"),
    }
    same = report_rules.update_report(
        BUSY, "ada", "s", ReportUpdate(state="busy", paces=PACES), alive=True, now=9.0
    )
    assert (same.verb, same.quiet) == ("", True)
    assert [write.key for write in same.puts] == [keys.report_live("s")]
    assert same.outcome == report_rules.report_outcome(BUSY), "it was said when it was said"


def test_a_session_that_is_over_says_nothing() -> None:
    decision = report_rules.update_report(
        BUSY, "ada", "s", ReportUpdate(state="idle"), alive=False, now=9.0
    )
    assert decision.outcome == SessionLapsed(session="s")
    assert not decision.changes


def test_what_a_sign_of_life_has_left_tells_how_long_ago_it_was() -> None:
    ttl = report_rules.sign_of_life(BUSY).ttl
    assert ttl == REMEMBERED
    assert report_rules.seconds_silent(BUSY, ttl - 12.0, now=1e9) == 12.0, (
        "no clock but the engine's counts"
    )
    assert report_rules.seconds_silent(BUSY, None, now=61.0) == 60.0, "it lapsed: clocks have to do"


def test_a_slow_pace_is_remembered_for_longer_than_it_may_be_missed() -> None:
    slow = replace(BUSY, pace=REMEMBERED)
    assert (report_rules.sign_of_life(slow).ttl or 0) > report_rules.SILENT * slow.pace


def test_three_missed_paces_are_silence() -> None:
    assert not report_rules.is_silent(BUSY, 90.0)
    assert report_rules.is_silent(BUSY, 90.1)
    assert not report_rules.is_silent(replace(BUSY, pace=0.0), 1e9), (
        "who promised nothing is never silent"
    )
