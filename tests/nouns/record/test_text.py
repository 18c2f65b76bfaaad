from __future__ import annotations

import time
from typing import Any

import pytest

from interlock.core.history import HistoryEvent, Story
from interlock.nouns.record.noun import NoHistory
from interlock.runtime.text import render


def said(thing: str = "lock/merge", **fields: Any) -> str:
    """What stands behind the times."""
    at = time.time() - 12
    each = HistoryEvent(revision=7, at=at, thing=fields.pop("about", thing), **fields)
    clock, rest = render(Story(thing=thing, happenings=(each,))).split("12 s ago")
    assert clock.strip() == time.strftime("%H:%M:%S", time.localtime(at))
    return " ".join(rest.split())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"what": "acquired", "token": 12}, "ada acquired, token 12"),
        (
            {"what": "acquired", "token": 12, "waited": 0.4, "came_from": ("bob",)},
            "ada acquired, token 12, waited 0.4 s behind bob",
        ),
        (
            {"what": "acquired", "token": 12, "came_from": ("bob",)},
            "ada acquired, token 12, taken over from bob",
        ),
        ({"what": "waiting", "behind": ("bob", "cleo")}, "ada waiting, behind bob, cleo"),
        ({"what": "withdrew", "waited": 75.0}, "ada withdrew, waited 75 s"),
        (
            {"what": "released", "token": 12, "held": 3.21, "went_to": ("cleo",)},
            "ada released, token 12, held 3.2 s, handed to cleo",
        ),
        ({"what": "released", "held": 12.0, "reason": "left"}, "ada released, held 12 s, it left"),
        (
            {"what": "reclaimed", "held": 30.4, "by": "bob", "went_to": ("bob",)},
            "ada lost, held 30 s, reclaimed by bob since its grant had lapsed",
        ),
        (
            {"what": "reclaimed", "by": "bob", "went_to": ("cleo",)},
            "ada lost, reclaimed by bob since its grant had lapsed, handed to cleo",
        ),
        ({"what": "refused", "reason": "fenced"}, "ada refused, its token was an older one"),
        ({"what": "refused", "reason": "not_owner"}, "ada refused, it did not hold it"),
        ({"what": "extended"}, "ada extended"),
        ({"what": "stop", "about": "agent/ada", "by": "bob"}, "ada asked to stop, by bob"),
        (
            {"what": "sent", "about": "message/m", "went_to": ("bob", "cleo")},
            "ada sent, to bob, cleo",
        ),
        ({"what": "sent", "about": "message/m", "on": "alert/t"}, "ada sent, alert/t"),
        ({"what": "received", "about": "message/m", "waited": 2.0}, "ada received, after 2.0 s"),
        ({"what": "expired", "about": "query/q", "waited": 30.0}, "ada got no answer, after 30 s"),
        ({"what": "sent", "about": "", "count": 12, "on": "messages"}, "ada sent, 12 messages"),
        ({"what": "acquired", "trace": "release-7"}, "ada acquired release-7"),
    ],
)
def test_a_happening_is_one_line(fields: dict[str, Any], words: str) -> None:
    assert said(agent="ada", **fields) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"what": "published", "on": "t0"}, "ada published, blocked on t0"),
        ({"what": "published", "rests": 60.0}, "ada published, not to begin for 60 s"),
        ({"what": "claimed", "token": 12, "attempt": 2}, "ada claimed, token 12, attempt 2"),
        ({"what": "completed", "token": 12, "held": 3.0}, "ada completed, worked 3.0 s"),
        (
            {"what": "reclaimed", "held": 12.0, "by": "dan", "rests": 1.04},
            "ada lost, worked 12 s, its claim had lapsed, as dan found, rests 1.0 s",
        ),
        (
            {"what": "failed", "rests": 2.0, "says": "no disk"},
            "ada failed, rests 2.0 s, the reason: 'no disk'",
        ),
        ({"what": "failed", "reason": "final"}, "ada failed, for good"),
        ({"what": "dead", "reason": "attempts"}, "ada dead, no attempt is left"),
        ({"what": "refused", "reason": "fenced"}, "ada refused, its claim was over"),
    ],
)
def test_what_happens_to_a_task_is_one_line(fields: dict[str, Any], words: str) -> None:
    assert said("task/t1", agent="ada", **fields) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"what": "unblocked", "on": "t0", "by": "bob"}, "- unblocked, since bob completed t0"),
        ({"what": "unblocked", "on": "t0"}, "- unblocked, since t0 is complete"),
        ({"what": "blocked", "on": "t2", "by": "bob"}, "- blocked, now on t2"),
        ({"what": "ready", "by": "bob"}, "- ready, since its time has come"),
        ({"what": "dead", "reason": "deadline"}, "- dead, no worker began it before its deadline"),
    ],
)
def test_what_nobody_did_to_a_task_is_nobodys(fields: dict[str, Any], words: str) -> None:
    assert said("task/t1", agent="", **fields) == words


def test_an_agents_story_names_each_thing() -> None:
    line = said("agent/ada", agent="ada", what="acquired", about="lock/merge", token=3)
    assert line == "ada acquired lock/merge, token 3"
    line = said("agent/ada", agent="ada", what="joined", about="agent/ada", session="ses_1")
    assert line == "ada joined, session ses_1"


def test_another_day_is_named() -> None:
    old = HistoryEvent(revision=1, at=1_700_000_000.0, agent="ada", what="acquired", thing="lock/m")
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_700_000_000))
    text = render(Story(thing="lock/m", happenings=(old,), earlier=True))
    assert text.splitlines()[1].startswith(day)
    assert "--limit" in text.splitlines()[0]


def test_nothing_says_what_to_try() -> None:
    said = render(NoHistory(thing="lock/ada"))
    assert said == (
        "the record knows nothing of lock/ada; for a task write task/ada, for an agent agent/ada;"
        " 'interlock record log' shows all"
    )
    assert "write" not in render(NoHistory(thing="agent/ada"))
