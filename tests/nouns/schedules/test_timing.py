"""The times of a schedule: intervals, cron lines, zones, and what was missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import BadInput
from interlock.nouns.schedules import timing
from interlock.nouns.schedules.schedule import Schedule, run_id

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0


def at(text: str, zone: ZoneInfo | None = None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def cron(line: str, zone: str = "Europe/Berlin") -> Schedule:
    return Schedule(at=0.0, cron=timing.check_cron(line), zone=zone)


def runs(schedule: Schedule, begin: float, end: float) -> list[str]:
    found = []
    time = timing.following(schedule, begin)
    while time is not None and time <= end:
        found.append(f"{datetime.fromtimestamp(time, BERLIN):%d %H:%M %Z}")
        time = timing.following(schedule, time)
    return found


def test_an_interval_counts_from_its_start_and_does_not_drift() -> None:
    hourly = Schedule(at=0.0, every=HOUR, start=1000.0)
    assert timing.following(hourly, 5.0) == 1000.0
    assert timing.following(hourly, 1000.0) == 4600.0
    assert timing.following(hourly, 9000.5) == 1000.0 + 3 * HOUR


@pytest.mark.parametrize(
    "line", ["0 0 30 2 *", "61 * * * *", "* * *", "", "a b c d e", "@daily", "0 9 * * 1-5 *"]
)
def test_a_cron_line_that_cannot_be_read_or_never_comes_is_refused(line: str) -> None:
    with pytest.raises(BadInput, match="minute, hour"):
        timing.check_cron(line)


def test_a_line_that_needs_a_day_that_never_falls_so_has_no_time() -> None:
    """The parser accepts it: only the calendar says that February has no fifth week."""
    assert timing.following(cron("0 0 31 4,6 1-5", "UTC"), 0.0) is not None  # or: a weekday
    assert timing.following(cron("0 0 * 2 1#5", "UTC"), at("2023-01-01")) == at("2044-02-29")


def test_a_zone_that_this_host_does_not_know_is_refused_with_what_to_do() -> None:
    for name in ("Europe/Nowhere", "", "../../etc/passwd", "Europe"):
        with pytest.raises(BadInput, match="tzdata"):
            timing.check_zone(name)


def test_a_fixed_time_that_summer_time_leaves_out_comes_right_after_the_gap() -> None:
    """On 2026-03-29 it is 03:00 right after 02:00."""
    days = at("2026-03-28T00:00", BERLIN), at("2026-03-31T00:00", BERLIN)
    assert runs(cron("30 2 * * *"), *days) == ["28 02:30 CET", "29 03:00 CEST", "30 02:30 CEST"]


def test_a_fixed_time_in_the_doubled_hour_comes_once() -> None:
    """On 2026-10-25 the hour from 02:00 to 03:00 comes twice."""
    days = at("2026-10-24T00:00", BERLIN), at("2026-10-27T00:00", BERLIN)
    assert runs(cron("30 2 * * *"), *days) == ["24 02:30 CEST", "25 02:30 CEST", "26 02:30 CET"]
    second = at("2026-10-25T01:10")  # 02:10 for the second time
    assert runs(cron("30 2 * * *"), second, days[1]) == ["26 02:30 CET"]


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)], ids=["to summer", "from summer"]
)
def test_a_line_for_each_hour_comes_in_each_real_hour(day: str, hours: int) -> None:
    begin = at(f"{day}T00:00", BERLIN)
    every = cron("0 * * * *")
    times = [begin]
    while len(times) <= hours:
        following = timing.following(every, times[-1])
        assert following is not None
        times.append(following)
    assert {after - before for before, after in pairwise(times)} == {HOUR}
    assert datetime.fromtimestamp(times[-1], BERLIN).hour == 0


LINES = ["30 2 * * *", "0,30 1-3 * * *", "*/20 * * * *", "0 9 * * 1-5", "0 0 1 * *"]


@given(
    line=st.sampled_from(LINES),
    begin=st.sampled_from(["2026-03-28T12:00", "2026-10-24T12:00", "2026-06-01T00:00"]),
    offset=st.integers(0, 3 * 86400),
    length=st.integers(0, 3 * 86400),
)
def test_what_was_missed_is_what_follows_until_now(
    line: str, begin: str, offset: int, length: int
) -> None:
    """Going back with the parser and forward again finds the same times, also in a doubled hour."""
    schedule = cron(line)
    first = timing.following(schedule, at(begin, BERLIN) + offset)
    assert first is not None
    assert first > at(begin, BERLIN) + offset
    now = first + length
    expected = [first]
    while (time := timing.following(schedule, expected[-1])) is not None and time <= now:
        expected.append(time)
    assert timing.missed(schedule, first, now) == expected[-timing.MISSED_MOST - 1 :]
    assert expected == sorted(set(expected))


def test_ten_years_of_missed_minutes_cost_no_more_than_a_hundred() -> None:
    now = at("2026-06-01T12:00:30")
    for schedule in (cron("* * * * *", "UTC"), Schedule(at=0.0, every=60.0, start=0.0)):
        found = timing.missed(schedule, now - 10 * 365 * 86400, now)
        assert len(found) == timing.MISSED_MOST + 1
        assert found[-1] == at("2026-06-01T12:00")


def test_a_line_that_comes_every_28_years_is_found_due_without_going_back_to_the_year_one() -> None:
    rare, due = cron("0 0 * 2 1#5", "UTC"), at("2044-02-29")
    assert timing.missed(rare, due, due + 5) == [due]
    assert timing.missed(rare, at("2016-02-29"), due + 5) == [at("2016-02-29"), due]


def test_the_id_of_a_run_is_its_name_and_its_time_in_utc() -> None:
    assert run_id("nightly", at("2026-11-17T02:00", BERLIN)) == "nightly@2026-11-17T01:00:00Z"
