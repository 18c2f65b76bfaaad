"""The circuit breaker: three timeouts in a row open it, one probe or any answer closes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.hypothesis_settings import bounds, budget, run

from interlock.nouns.swarms.breaker import (
    CLOSED,
    FIRST,
    JITTER,
    LONGEST,
    PROBE_LEASE,
    Breaker,
    BreakerOpen,
    BreakerPass,
    after_answer,
    after_timeout,
    check,
    state,
)

NOW = 1_700_000_000.0
PASS, PROBE = BreakerPass(probe=False), BreakerPass(probe=True)


def timed_out(times: int, breaker: Breaker = CLOSED, now: float = NOW) -> Breaker:
    for _ in range(times):
        breaker = after_timeout(breaker, now, 0.0)
    return breaker


def test_two_timeouts_leave_it_closed_and_the_third_opens_it() -> None:
    assert check(timed_out(2), NOW, probing=False) == PASS
    assert check(timed_out(3), NOW, probing=False) == BreakerOpen(retry_in=60.0, opened=1)


def test_an_answer_in_between_starts_the_row_again() -> None:
    assert state(timed_out(2, after_answer(timed_out(2))), NOW) == "closed"


def test_after_its_time_one_probe_goes_through_and_no_other_request() -> None:
    breaker = timed_out(3)
    assert check(breaker, NOW + 59.9, probing=False) == BreakerOpen(retry_in=0.1, opened=1)
    assert check(breaker, NOW + 60, probing=False) == PROBE
    busy = BreakerOpen(retry_in=PROBE_LEASE, opened=1)
    assert check(breaker, NOW + 60, probing=True) == busy


def test_each_failed_probe_doubles_the_time_up_to_five_minutes() -> None:
    breaker, now, lasted = timed_out(3), NOW, []
    for _ in range(5):
        refused = check(breaker, now, probing=False)
        assert isinstance(refused, BreakerOpen)
        lasted.append(refused.retry_in)
        now += refused.retry_in
        breaker = after_timeout(breaker, now, 0.0, probe=True)
    assert lasted == [60, 120, 240, 300, 300]


def test_requests_that_were_in_flight_when_it_opened_do_not_keep_it_open() -> None:
    breaker = timed_out(3)
    assert timed_out(47, breaker, NOW + 30) == breaker
    assert timed_out(47, breaker, NOW + 61) == breaker


def test_a_late_answer_closes_it_while_it_is_open() -> None:
    closed = after_answer(timed_out(3))
    assert check(closed, NOW, probing=False) == PASS
    assert timed_out(3, closed).opened == 1


def test_a_probe_that_times_out_after_a_late_answer_is_an_ordinary_timeout() -> None:
    assert after_timeout(after_answer(timed_out(3)), NOW, 0.0, probe=True) == Breaker(timeouts=1)


def test_a_clock_that_was_set_back_lets_a_probe_through() -> None:
    breaker = timed_out(3, now=NOW + 86_400)
    assert check(breaker, NOW, probing=False) == PROBE


def test_a_clock_that_is_far_ahead_lets_a_probe_through() -> None:
    assert check(timed_out(3), NOW + 86_400, probing=False) == PROBE


@given(jitter=st.floats(0, 1, exclude_max=True), opened=st.integers(0, 2000))
def test_the_time_has_bounds_for_any_number_of_failed_probes(jitter: float, opened: int) -> None:
    breaker = after_timeout(Breaker(opened=opened, timeouts=2), NOW, jitter, probe=True)
    assert FIRST <= breaker.until - NOW < LONGEST * (1 + JITTER) + 1e-6
    assert state(breaker, NOW) == "open"


class Model(RuleBasedStateMachine):
    """A breaker beside the plain rules, with any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker, self.now = CLOSED, NOW
        self.row: list[str] = []
        self.ends: float | None = None
        self.times = 0

    @rule(seconds=st.sampled_from([0.5, 30.0, 59.0, 60.0, 200.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(probe=st.booleans())
    def timeout(self, *, probe: bool) -> None:
        self.breaker = after_timeout(self.breaker, self.now, 0.0, probe=probe)
        if self.ends is None:
            self.row.append("t")
            if len(self.row) >= 3:
                self.times, self.ends = 1, self.now + 60
        elif probe and self.now >= self.ends:
            self.times += 1
            self.ends = self.now + min(60 * 2 ** (self.times - 1), 300)

    @rule()
    def answer(self) -> None:
        self.breaker = after_answer(self.breaker)
        self.row, self.ends, self.times = [], None, 0

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        if self.ends is None:
            assert state(self.breaker, self.now) == "closed"
        else:
            expected = "open" if self.now < self.ends else "half_open"
            assert state(self.breaker, self.now) == expected


def test_any_order_of_timeouts_and_answers_follows_the_plain_rules() -> None:
    run(Model, bounds(budget(30), 40))


@pytest.mark.parametrize("probing", [True, False])
def test_a_closed_breaker_needs_no_lease(probing: bool) -> None:
    assert check(CLOSED, NOW, probing=probing) == PASS
