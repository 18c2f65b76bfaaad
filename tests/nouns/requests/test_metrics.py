"""The metrics of requests count true events, under the names that dashboards know."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from tests.nouns.requests.pair import Pair, Swarm, put_item

from interlock.core import keys
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.requests.audit import COUNTER_NAMES, GAUGE_NAMES, HISTOGRAM_NAMES
from interlock.nouns.requests.serving import answer_claim
from interlock.runtime.metrics import BOUNDS, Histogram, Metric
from interlock.runtime.observe import Counters
from interlock.store import Range


def counted(swarm: Swarm) -> Counters:
    found: Counters = swarm.run(FleetCalls(swarm.context).counters(since="1h"))
    return found


def metrics(swarm: Swarm) -> dict[str, Metric]:
    return {" ".join((each.name, *each.labels.values())): each for each in counted(swarm).metrics}


def values(swarm: Swarm) -> dict[str, float]:
    return {name: each.value for name, each in metrics(swarm).items() if each.value}


def test_every_name_appears_in_a_home_that_is_a_swarm() -> None:
    north = Pair().swarm("north")
    names = [each.name for each in counted(north).metrics]
    assert set(names) == {*COUNTER_NAMES, *HISTOGRAM_NAMES, *GAUGE_NAMES}
    assert values(north) == {}


def test_a_home_that_is_no_swarm_has_no_metrics_of_requests() -> None:
    pair = Pair()
    north = pair.swarm("north")
    north.run(_delete(north, keys.OWN_SWARM))
    assert counted(north).metrics == ()


def _delete(swarm: Swarm, key: str) -> Any:
    from interlock.core.decision import Decision

    def deciding() -> Any:
        yield (key,)
        return Decision(outcome=None, verb="test.drop", thing="test", deletes=(key,))

    return swarm.runner.change(deciding, swarm.actor)


def test_a_request_counts_where_it_was_posted_claimed_and_completed() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for status, body in (("success", b"3"), ("error", b'"no"')):
        north.sent()
        pair.clock.advance(0.010)
        south.take_in()
        claimed = south.claim()
        assert claimed is not None
        pair.clock.advance(0.120)
        word: Any = status
        south.run(answer_claim(south.context, claimed, word, body))
        pair.clock.advance(0.030)
        north.take_in()
    asked, executed = metrics(north), metrics(south)
    assert {name: n for name, n in values(north).items() if name.endswith("_total")} == {
        "requests_cross_swarm_posted_total": 2,
        "requests_cross_swarm_completed_total": 1,
        "requests_cross_swarm_failed_total": 1,
    }
    assert {name: n for name, n in values(south).items() if name.endswith("_total")} == {
        "requests_cross_swarm_claimed_total": 2
    }
    e2e = asked["histogram_e2e_latency_ms"]
    assert e2e.value == 2
    assert e2e.sum == pytest.approx(320, abs=1)
    assert e2e.p99 is not None
    assert 100 < e2e.p99 <= 200
    retrieval = asked["histogram_result_retrieval_latency_ms"]
    assert retrieval.value == 2
    assert retrieval.sum == pytest.approx(60, abs=1)
    execution = executed["histogram_execution_latency_ms"]
    assert execution.value == 2
    assert execution.sum == pytest.approx(240, abs=1)


def test_timeouts_and_refusals_count_each_one() -> None:
    pair = Pair()
    north = pair.swarm("north")
    north.sent(timeout=10.0)
    pair.clock.advance(11)
    north.tend()
    for _ in range(5):
        north.send(to="nobody")
    pair.clock.advance(61)
    north.send(to="nobody")
    found = values(north)
    assert found["requests_cross_swarm_timeout_total"] == 1
    assert found["swarm_not_authorized_total"] == 6
    assert counted(north).refusals == 6


def test_forged_messages_count_as_failed_signatures() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    folder = Range(keys.bus_request("south"))
    (item,) = pair.bus.read(folder).ranges[folder]
    begin, mark, rest = item.value.partition(b'"sig":"')
    forged = begin + mark + (b"A" if rest[:1] != b"A" else b"B") + rest[1:]
    put_item(pair, pair.bus, item.key, Raw(forged))
    south.take_in()
    assert values(south)["signature_verification_failed_total"] == 1


def test_the_depth_of_a_queue_is_that_of_our_home_and_of_each_peer() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(3):
        north.sent()
    south.take_in()
    assert values(south)["queue_depth south"] == 3
    assert values(south)["queue_depth_max_seen"] == 3
    pair.cable("north").is_cut = True
    north.sent()
    assert values(north)["queue_depth south"] == 1


def test_a_quantile_lies_in_the_bucket_of_its_values() -> None:
    histogram = Histogram()
    for value in [1.0] * 90 + [150.0] * 10:
        histogram.add(value)
    found = histogram.metric("x")
    assert (found.value, found.sum) == (100, 1590)
    assert found.p50 == 1
    assert found.p95 == pytest.approx(125)
    assert found.p99 == pytest.approx(145)
    assert [bucket.le for bucket in found.buckets] == [*BOUNDS, None]
    assert [bucket.count for bucket in found.buckets][-1] == 100


def test_an_empty_histogram_has_no_quantiles_and_a_value_above_all_bounds_is_counted() -> None:
    assert Histogram().metric("x").p99 is None
    histogram = Histogram()
    histogram.add(1e9)
    assert histogram.metric("x").buckets[-2].count == 0
    assert histogram.metric("x").p50 == 1e9
