from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from interlock.core import validate
from interlock.errors import BadDuration, BadInput, BadName, TooLarge

NOW = 1_800_000_000.0
NOW_TIME = datetime(2026, 11, 15, 10, tzinfo=UTC)
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
    assert validate.moment(text, NOW) == moment


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert validate.moment("2026-11-15T10:00", NOW) == validate.moment("2026-11-15T07:00Z", NOW)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "soon", "-2h", "400d", "2026-13-01", "2026-11-15T25:00"])
def test_what_is_no_moment_is_said_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match="give a duration back from now") as refused:
        validate.moment(text, NOW, "'since'")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5), ("30s", 30.0), ("90", 90.0), ("1.5h", 5400.0), ("2d", 172_800.0),
        ("1h30m", 5400.0), (" 1m30s", 90.0), ("1d2h3m4s5ms", 93_784.005), ("1.5m500ms", 90.5),
    ],
)  # fmt: skip
def test_a_duration_is_one_or_several_numbers_with_their_units(text: str, seconds: float) -> None:
    assert validate.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["1h30", "30m1", "h", "1h 30m", "1h-30m", "1hm", "1.h", "1h30x"])
def test_a_duration_with_a_loose_number_or_unit_is_refused(text: str) -> None:
    with pytest.raises(BadDuration, match="1h30m"):
        validate.duration(text)


def test_a_number_that_is_no_duration_is_refused() -> None:
    with pytest.raises(BadDuration):
        validate.moment(float("nan"), NOW)


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
    assert validate.thing(text) == thing


def test_a_thing_is_named_like_anything_else() -> None:
    with pytest.raises(BadName):
        validate.thing("lock/")


@dataclass
class Point:
    x: int = 1


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, b"x", {1, 2}, {1: 2}, {None: 1}, Decimal(1), Point(), object()),
        *(NOW_TIME, [1.0, math.nan], {"a": [{"b": -math.inf}]}, [[b"x"]], "\ud800", {"\ud800": 1}),
    ],
)
def test_what_json_cannot_say_as_it_is_is_refused_and_never_changed(value: object) -> None:
    with pytest.raises(BadInput) as refused:
        validate.payload(value, "body", 1000)
    assert "\n" not in str(refused.value)
    with pytest.raises(BadInput):
        validate.metadata(value)


@pytest.mark.parametrize(
    "value", [None, True, 2**70, 1.5, "é", [], {}, [1.5, "x", None], {"a": {"b": [1, [2.0]]}}]
)
def test_what_json_can_say_comes_back_as_it_was(value: object) -> None:
    assert msgspec.json.decode(validate.payload(value, "body", 1000)) == value


def test_a_value_may_have_32_levels_and_no_more() -> None:
    value: list[object] = []
    for _ in range(validate.METADATA_DEPTH - 1):
        value = [value]
    validate.payload(value, "body", 1000)
    with pytest.raises(TooLarge, match="32 levels"):
        validate.payload([[value]], "body", 1000)


@pytest.mark.parametrize("value", [0, 1, "yes", None, []])
def test_only_true_and_false_are_flags(value: Any) -> None:
    with pytest.raises(BadInput, match="'urgent' is either true or false"):
        validate.flag(value, "urgent")


@pytest.mark.parametrize("value", [True, 10**400, None, b"1"])
def test_no_duration_is_made_of_what_is_none(value: Any) -> None:
    with pytest.raises(BadDuration):
        validate.duration(value)


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("two\nlines", "it is one line"),
        ("red \x1b[31m", "U+001B"),
        ("a\u2028b", "U+2028"),
        ("   ", "only spaces"),
        ("x" * 201, "201 characters; 200 are allowed"),
        ("x" * 2**20, "1048576 bytes"),
        ("\ud800", "not UTF-8"),
        (7, "must be text, not int"),
    ],
)
def test_a_title_is_one_line_that_a_person_can_read(title: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        validate.title(title)


def test_a_title_may_be_in_any_language() -> None:
    for title in ("größe\u00a0neu", "認証を直す\u3000急ぎ", "👩‍💻 works", "x" * 200, ""):
        assert validate.title(title) == title
    assert validate.title("  Fix it ") == "Fix it"


def test_a_text_has_lines_and_tabs_and_no_other_control_characters() -> None:
    assert validate.lines("a\r\n\tb\n") == "a\n\tb\n"
    for text, said in (("a\nb\x07", "line 2 of the text"), ("x" * 2**20, "65536 bytes; shorten")):
        with pytest.raises(BadInput, match=said):
            validate.lines(text)
