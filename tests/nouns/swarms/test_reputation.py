"""Reputation: bad luck blocks hardly any healthy swarm, and a bad swarm is blocked soon."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.nouns.swarms import reputation as rules
from interlock.nouns.swarms.reputation import (
    GOOD_PROBES,
    KEPT,
    PROBE_EVERY,
    UNKNOWN,
    PeerOutcome,
    Reputation,
    ReputationBlocked,
    ReputationPass,
    forgive,
    lower_bound,
    probe_sent,
    record,
    record_probe,
    standing,
)

NOW = 1_700_000_000.0
ANSWERED: PeerOutcome = "answered"
TIMEOUT: PeerOutcome = "timeout"


def bad(**counts: int) -> Reputation:
    """A record of 100 outcomes with this many timeouts and conflicts."""
    letters = "t" * counts.get("timeouts", 0) + "c" * counts.get("conflicts", 0)
    return Reputation(outcomes=letters.ljust(100, "."))


@given(samples=st.integers(1, 500), data=st.data())
def test_the_lower_bound_solves_the_equation_of_wilson(samples: int, data: st.DataObject) -> None:
    bad_ones = data.draw(st.integers(1, samples))
    bound, z = lower_bound(bad_ones, samples), 1.6448536269514722
    distance = bad_ones / samples - bound
    assert distance == pytest.approx(z * (bound * (1 - bound) / samples) ** 0.5)


@given(samples=st.integers(1, 500), data=st.data())
def test_the_lower_bound_is_below_the_rate_and_grows_with_it(
    samples: int, data: st.DataObject
) -> None:
    bad_ones = data.draw(st.integers(0, samples - 1))
    bound, more = lower_bound(bad_ones, samples), lower_bound(bad_ones + 1, samples)
    assert 0 <= bound <= bad_ones / samples
    assert bound < more


def test_nineteen_timeouts_prove_nothing_and_twenty_block() -> None:
    few = record(UNKNOWN, [TIMEOUT] * 19)
    assert standing(few, NOW).blocked == ()
    assert standing(record(few, [TIMEOUT]), NOW).blocked == ("timeouts",)


def test_each_rate_has_its_own_limit() -> None:
    assert standing(bad(timeouts=10), NOW).blocked == ("timeouts",)
    assert standing(bad(conflicts=10), NOW).blocked == ()
    assert standing(bad(conflicts=20), NOW).blocked == ("conflicts",)
    assert standing(bad(conflicts=30, timeouts=20), NOW).blocked == ("conflicts", "timeouts")


def test_the_numbers_are_shown() -> None:
    shown = standing(bad(conflicts=3, timeouts=10), NOW)
    assert (shown.samples, shown.conflicts, shown.timeouts) == (100, 3, 10)
    assert (shown.conflict_rate, shown.timeout_rate) == (0.03, 0.1)
    assert (shown.conflict_bound, shown.timeout_bound) == (0.0121, 0.0607)


def test_only_the_last_two_hundred_count() -> None:
    old = record(record(UNKNOWN, [TIMEOUT] * 10), [ANSWERED] * KEPT)
    assert old.outcomes == "." * KEPT


@given(outcomes=st.lists(st.sampled_from(["answered", "timeout", "conflict"]), max_size=300))
def test_many_outcomes_at_once_are_the_same_as_one_by_one(outcomes: list[PeerOutcome]) -> None:
    one_by_one = UNKNOWN
    for each in outcomes:
        one_by_one = record(one_by_one, [each])
    assert record(UNKNOWN, outcomes) == one_by_one
    assert len(one_by_one.outcomes) <= KEPT


# The way out.


def test_a_blocked_peer_gets_one_request_every_ten_minutes() -> None:
    blocked = bad(timeouts=20)
    assert rules.check(blocked, NOW) == ReputationPass(probe=True)
    sent = probe_sent(blocked, NOW)
    refused = rules.check(sent, NOW + 10)
    assert isinstance(refused, ReputationBlocked)
    assert refused.retry_in == PROBE_EVERY - 10
    assert refused.standing.timeouts == 20
    assert rules.check(sent, NOW + PROBE_EVERY) == ReputationPass(probe=True)


def test_ten_answers_in_a_row_clear_the_record() -> None:
    peer = bad(timeouts=50)
    for number in range(GOOD_PROBES):
        assert standing(peer, NOW).good_probes == number
        peer = record_probe(probe_sent(peer, NOW), ANSWERED)
    assert peer == Reputation(outcomes="." * GOOD_PROBES)


def test_a_bad_probe_starts_the_row_again() -> None:
    peer = bad(timeouts=50)
    for _ in range(GOOD_PROBES - 1):
        peer = record_probe(peer, ANSWERED)
    found = standing(record_probe(peer, TIMEOUT), NOW)
    assert (found.good_probes, found.blocked) == (0, ("timeouts",))


def test_answers_to_requests_that_were_in_flight_are_no_probes() -> None:
    peer = record(bad(timeouts=50), [ANSWERED] * GOOD_PROBES)
    assert standing(peer, NOW).blocked == ("timeouts",)


def test_an_operator_clears_the_record() -> None:
    assert rules.check(forgive(bad(timeouts=90)), NOW) == ReputationPass(probe=False)


def test_a_probe_of_the_future_says_only_that_a_clock_was_set_back() -> None:
    sent = probe_sent(bad(timeouts=20), NOW + 86_400)
    assert rules.check(sent, NOW) == ReputationPass(probe=True)


# How good the measure is.


def blocks(rate: float, seed: int) -> tuple[bool, bool]:
    """Whether 1,000 requests block a swarm at some time, by this rule and by the plain share."""
    drawn, peer, plain = random.Random(seed), UNKNOWN, False
    for _ in range(1000):
        peer = record(peer, [TIMEOUT if drawn.random() < rate else ANSWERED])
        found = standing(peer, NOW)
        plain = plain or (found.samples >= 20 and found.timeouts / found.samples > 0.05)
        if found.blocked:
            return True, plain
    return False, plain


def test_of_healthy_swarms_hardly_any_is_blocked_but_a_plain_share_would_block_many() -> None:
    found = [blocks(0.02, seed) for seed in range(100)]
    assert sum(blocked for blocked, _ in found) <= 2
    assert sum(plain for _, plain in found) >= 15


def test_every_swarm_that_drops_a_tenth_of_the_requests_is_blocked() -> None:
    assert all(blocked for blocked, _ in [blocks(0.10, seed) for seed in range(100)])


def sent_to(rate: float, seed: int, hours: int = 48, hourly: int = 360) -> float:
    """The share of requests that go through over two days, with probes."""
    drawn, peer, sent = random.Random(seed), UNKNOWN, 0
    total = hours * hourly
    for number in range(total):
        now = NOW + number * 3600 / hourly
        passed = rules.check(peer, now)
        if isinstance(passed, ReputationBlocked):
            continue
        sent += 1
        outcome = TIMEOUT if drawn.random() < rate else ANSWERED
        if passed.probe:
            peer = record_probe(probe_sent(peer, now), outcome)
        else:
            peer = record(peer, [outcome])
    return sent / total


def test_over_two_days_a_healthy_swarm_gets_nearly_all_and_a_bad_one_few_requests() -> None:
    healthy = [sent_to(0.01, seed) for seed in range(3)]
    poor = [sent_to(0.10, seed) for seed in range(3)]
    assert min(healthy) > 0.95
    assert max(poor) < 0.25
