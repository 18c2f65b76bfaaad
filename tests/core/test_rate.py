"""A log of times keeps a rate in every window, for the sender and for the receiver."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from interlock.core import rate
from interlock.core.rate import EMPTY, Rate, RateLog

START = 1_700_000_000_000
HOUR = 3_600_000
HOURLY = Rate(100, 3600.0)

rates = st.builds(Rate, st.integers(1, 4), st.integers(1, 20).map(float))
gaps = st.lists(st.integers(0, 8_000), min_size=1, max_size=60)


def most_in_a_window(times: list[int], rate_: Rate) -> int:
    window = rate_.window * 1000
    return max(sum(first <= each < first + window for each in times) for first in times)


def sent_at(rate_: Rate, steps: list[int]) -> list[int]:
    """The times of a sender that tries after each of these gaps."""
    log, now, sent = EMPTY, START, []
    for step in steps:
        now += step
        if (after := rate.admit(log, now, rate_, now)) is not None:
            log = after
            sent.append(now)
    return sent


def test_request_101_of_an_hour_is_refused_until_the_first_one_is_an_hour_old() -> None:
    log = EMPTY
    for second in range(100):
        admitted = rate.admit(log, START + second * 1000, HOURLY, START + second * 1000)
        assert admitted is not None
        log = admitted
    later = START + 100_000
    assert rate.admit(log, later, HOURLY, later) is None
    assert rate.in_window(log, HOURLY, later) == 100
    assert rate.retry_in(log, HOURLY, later) == 3500.0
    assert rate.admit(log, START + HOUR, HOURLY, START + HOUR) is not None


def test_without_a_limit_nothing_is_kept() -> None:
    assert rate.admit(EMPTY, START, Rate(0, 3600.0), START) == EMPTY
    assert rate.retry_in(EMPTY, Rate(0, 3600.0), START) == 0


@given(rate_=rates, made=st.lists(st.integers(0, 60_000), min_size=1, max_size=60))
def test_no_window_has_more_than_the_limit_in_any_order_of_arrival(
    rate_: Rate, made: list[int]
) -> None:
    log, admitted = EMPTY, []
    for each in made:
        after = rate.admit(log, START + each, rate_, START + 60_000)
        if after is not None:
            log = after
            admitted.append(START + each)
    assert most_in_a_window(admitted, rate_) <= rate_.limit
    assert len(log.times) <= 2 * rate_.limit
    assert all(first <= second for first, second in pairwise(log.times))


@given(rate_=rates, steps=gaps, seed=st.integers(0, 1000))
def test_the_receiver_admits_all_that_an_honest_sender_sent_however_late_it_arrives(
    rate_: Rate, steps: list[int], seed: int
) -> None:
    sent = sent_at(rate_, steps)
    drawn = random.Random(seed)
    places = {each: place + drawn.random() * rate_.limit for place, each in enumerate(sent)}
    healed, log = sent[-1] + HOUR, EMPTY
    for each in sorted(sent, key=lambda time: places[time]):
        after = rate.admit(log, each, rate_, healed)
        assert after is not None
        log = after


@given(rate_=rates, steps=gaps, later=st.integers(0, 30_000))
def test_the_time_to_retry_is_exact(rate_: Rate, steps: list[int], later: int) -> None:
    log, now = EMPTY, START
    for step in steps:
        now += step
        log = rate.admit(log, now, rate_, now) or log
    now += later
    wait = round(rate.retry_in(log, rate_, now) * 1000)
    assert rate.admit(log, now + wait, rate_, now + wait) is not None
    if wait:
        assert rate.admit(log, now, rate_, now) is None
        assert rate.admit(log, now + wait - 1, rate_, now + wait - 1) is None


def test_a_request_older_than_the_log_goes_back_is_refused() -> None:
    one = Rate(1, 10.0)
    log = EMPTY
    for made in (START, START + 10_000, START + 20_000):
        log = rate.admit(log, made, one, made) or log
    assert log == RateLog(times=(START + 10_000, START + 20_000), floor=START)
    assert rate.admit(log, START - 60_000, one, START + 20_000) is None


def test_times_from_before_a_clock_was_set_back_do_not_count() -> None:
    few = Rate(2, 10.0)
    year = 366 * 24 * HOUR
    log = EMPTY
    for made in range(START + year, START + year + 100_000, 10_000):
        log = rate.admit(log, made, few, made) or log
    assert log.floor
    assert rate.admit(log, START, few, START) == RateLog(times=(START,))
    assert rate.retry_in(log, few, START) == 0


def test_a_time_less_than_a_window_ahead_counts() -> None:
    log = RateLog(times=(START + 9_000,))
    assert rate.admit(log, START, Rate(1, 10.0), START) is None
    assert rate.retry_in(log, Rate(1, 10.0), START) == 19.0
