"""The queue of a peer: new requests stop first, answers never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.nouns.swarms.limits import (
    QUEUE_LIMIT,
    QUEUE_MOST,
    Posting,
    QueueFull,
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
