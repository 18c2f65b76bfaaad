from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from interlock.core import words
from interlock.errors import BadDuration, BadInput, BadName

NOW = 1_800_000_000.0
PLUS_TWO = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", NOW - 7200),
        ("90", NOW - 90),
        (0.5, NOW - 0.5),
        ("2026-11-15T10:00Z", datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp()),
        ("2026-11-15T10:00+02:00", datetime(2026, 11, 15, 8, tzinfo=UTC).timestamp()),
        (" 2026-11-15 10:00:30Z", datetime(2026, 11, 15, 10, 0, 30, tzinfo=UTC).timestamp()),
        (datetime(2026, 11, 15, 10, tzinfo=PLUS_TWO), 1_794_729_600.0),
    ],
    ids=str,
)
def test_a_moment_is_a_duration_back_or_a_time(text: str | float | datetime, moment: float) -> None:
    assert words.moment(text, NOW) == moment


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert words.moment("2026-11-15T10:00", NOW) == words.moment("2026-11-15T07:00Z", NOW)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "soon", "-2h", "400d", "2026-13-01", "2026-11-15T25:00"])
def test_what_is_no_moment_is_said_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="give a duration back from now") as refused:
        words.moment(text, NOW, "'since'")
    assert "\n" not in str(refused.value)


def test_a_number_that_is_no_duration_is_refused() -> None:
    with pytest.raises(BadDuration):
        words.moment(float("nan"), NOW)


@pytest.mark.parametrize(
    ("text", "thing"),
    [
        ("merge", "lock/merge"),
        ("lock/merge", "lock/merge"),
        ("team/deploy", "lock/team/deploy"),
        ("sem/builds", "sem/builds"),
        ("agent/ada", "agent/ada"),
        ("ses_12", "agent/ses_12"),
        ("sem", "lock/sem"),
    ],
)
def test_a_thing_has_a_kind_or_is_a_lock(text: str, thing: str) -> None:
    assert words.thing(text) == thing


def test_a_thing_is_named_like_anything_else() -> None:
    with pytest.raises(BadName):
        words.thing("lock/")
