"""The rate of an agent by signed times, the queue of a peer, and what is counted of a swarm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nouns.swarms.swarm_heads import NOW, SHOP, a_request

from interlock.core import codec, rate
from interlock.nouns.swarms.head import next_attempt
from interlock.nouns.swarms.limits import (
    DEFAULT_LIMITS,
    NO_COUNTS,
    QUEUE_LIMIT,
    QUEUE_MOST,
    REQUEST_RATE,
    PeerLimits,
    Posting,
    QueueFull,
    arrived_lately,
    count_arrival,
    made_at,
    marks_kept,
    queue_check,
    queue_depth,
    queue_level,
)


@pytest.mark.parametrize(
    ("depth", "posting", "limit"),
    [
        (79_999, "new", None),
        (80_000, "new", QUEUE_LIMIT),
        (80_000, "promised", None),
        (100_000, "promised", QUEUE_MOST),
        (500_000, "answer", None),
    ],
)
def test_a_full_queue_stops_new_requests_first_and_answers_never(
    depth: int, posting: Posting, limit: int | None
) -> None:
    found = queue_check(depth, posting)
    assert (found and found.limit) == limit


def test_the_refusal_has_the_depth_and_the_time_to_retry() -> None:
    depth = queue_depth(on_bus=60_000, published=25_000)
    assert queue_check(depth, "new", 100.0) == QueueFull(
        depth=85_000, limit=QUEUE_LIMIT, retry_in=50.01
    )
    assert queue_check(depth, "new") == QueueFull(depth=85_000, limit=QUEUE_LIMIT, retry_in=60.0)


@given(depth=st.integers(QUEUE_MOST, 10**9), per_second=st.floats(0, 1e6))
def test_the_time_to_retry_has_bounds(depth: int, per_second: float) -> None:
    for posting in ("new", "promised"):
        found = queue_check(depth, posting, per_second)
        assert found is not None
        assert 1 <= found.retry_in <= 300


def test_depths_are_reported_above_a_thousand_and_above_ten_thousand() -> None:
    assert [queue_level(each) for each in (1000, 1001, 10_000, 10_001)] == [
        "",
        "notice",
        "notice",
        "alert",
    ]


@given(queue=st.integers(1, 1_000_000))
def test_the_second_limit_of_a_queue_is_a_quarter_above_the_first(queue: int) -> None:
    limits = PeerLimits(queue=queue)
    assert limits.queue_most == queue + queue // 4
    assert queue_check(queue - 1, "new", limits=limits) is None
    assert queue_check(queue, "new", limits=limits) is not None
    assert queue_check(limits.queue_most, "promised", limits=limits) is not None


# Rate.


def made(seconds: float) -> str:
    """The id of a message that was made this long after NOW."""
    return codec.make_id("msg", round((NOW + seconds) * 1000), bytes(10))


def test_the_time_of_a_request_is_in_its_id_and_stays_when_it_is_sent_again() -> None:
    head = a_request(message_id=made(0))
    assert made_at(head) == NOW * 1000
    assert made_at(next_attempt(head, key=SHOP.fingerprint, now=NOW + 3600)) == NOW * 1000


HOUR, DAY = 3600, 24 * 3600


@pytest.mark.parametrize(
    ("seconds", "wrong"),
    [
        (-6 * DAY, ""),
        (-7 * DAY, "backdated"),
        (-50 * 365 * DAY, "backdated"),
        (29, ""),
        (31, "future"),
    ],
)
def test_a_time_that_no_deadline_reaches_back_to_is_refused(seconds: float, wrong: str) -> None:
    found = made_at(a_request(message_id=made(seconds)))
    assert found == (wrong or round((NOW + seconds) * 1000))


def test_what_an_outage_delivers_at_once_is_within_the_rate_and_a_flood_is_not() -> None:
    spooled = [round((NOW + hour * HOUR + each) * 1000) for hour in range(5) for each in range(100)]
    healed = spooled[-1] + 60_000
    log = rate.EMPTY
    for each in spooled:
        after = rate.admit(log, each, REQUEST_RATE, healed)
        assert after is not None
        log = after
    assert rate.admit(log, spooled[-1], REQUEST_RATE, healed) is None


# What is counted of a swarm.


@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 4 * HOUR), st.integers(1, 7 * DAY)), min_size=1, max_size=60
    )
)
def test_the_counts_of_a_swarm_are_never_below_the_truth_and_stay_small(
    arrivals: list[tuple[int, int]],
) -> None:
    counts, now, kept, times = NO_COUNTS, NOW, [], []
    for pause, lives in arrivals:
        now += pause
        counts = count_arrival(counts, DEFAULT_LIMITS, now + lives, now)
        kept.append(now + lives)
        times.append(now)
        true_marks = sum(until > now for until in kept)
        true_arrivals = sum(at > now - HOUR for at in times)
        assert true_marks <= marks_kept(counts, now)
        assert marks_kept(counts, now) <= sum(until > now - HOUR for until in kept)
        assert true_arrivals <= arrived_lately(counts, DEFAULT_LIMITS, now)
        assert arrived_lately(counts, DEFAULT_LIMITS, now) <= sum(
            at > now - HOUR - HOUR / 6 for at in times
        )
        assert len(counts.marks) <= 7 * 24 + 2
        assert len(counts.arrived) <= 13
