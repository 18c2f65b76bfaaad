"""The record of a peer comes from real requests, blocks it, and can be cleared."""

from __future__ import annotations

import pytest
from tests.nouns.requests.pair import Pair, Swarm
from tests.nouns.requests.test_attacks import Attack, post_result, sent

from interlock.core import keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import decode_reputation
from interlock.nouns.requests.views import list_quarantine
from interlock.nouns.swarms.reputation import GOOD_PROBES, PROBE_EVERY, UNKNOWN, record
from interlock.nouns.swarms.results import PeerTrust
from interlock.nouns.swarms.trust_service import forgive, trust


@pytest.fixture
def pair() -> Pair:
    found = Pair()
    for name, other in (("north", "south"), ("south", "north")):
        found.trust(name, other, rate=0)
    return found


def outcomes(swarm: Swarm, of: str = "south") -> str:
    key = keys.reputation(of)
    found = decode_reputation(swarm.home.read(key)[key])
    return "" if found is None else found.outcomes


def trusted(swarm: Swarm) -> PeerTrust:
    found = swarm.run(trust(swarm.runner, "south"))
    return found.peers[0]  # type: ignore[union-attr]


def answered(north: Swarm, south: Swarm) -> None:
    north.sent()
    assert south.work()
    north.take_in()


def timed_out(pair: Pair, north: Swarm, south: Swarm) -> None:
    """A request is answered after its timeout, and before the next one."""
    request = north.sent(timeout=5)
    pair.clock.advance(6)
    north.tend()
    assert south.work()
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)


def test_a_swarm_with_too_many_timeouts_is_blocked_and_its_numbers_are_shown(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    while not (found := trusted(north)).standing.blocked:
        timed_out(pair, north, south)
        answered(north, south)
        assert found.standing.samples < 20
    assert found.standing.samples >= 20
    assert found.standing.timeouts >= 7
    assert found.standing.timeout_bound > 0.05
    assert (found.standing.blocked, found.breaker.state) == (("timeouts",), "closed")
    refused = north.send()
    assert isinstance(refused, out.SwarmUnavailable)
    assert refused.reason == "timeouts"


def test_a_few_timeouts_block_no_swarm(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(2):
        timed_out(pair, north, south)
    for _ in range(30):
        answered(north, south)
    assert trusted(north).standing.blocked == ()


def block(north: Swarm) -> None:
    """South has a bad record, and gets probes alone."""
    north.put(keys.reputation("south"), record(UNKNOWN, ["timeout"] * 30))


def test_a_blocked_swarm_gets_one_request_in_ten_minutes_over_all_processes(pair: Pair) -> None:
    north, other = pair.swarm("north"), pair.swarm("north", "eve")
    block(north)
    for _ in range(3):
        pair.clock.advance(PROBE_EVERY)
        found = [north.send(), other.send(), north.send()]
        assert [isinstance(each, out.RequestSent) for each in found] == [True, False, False]


def test_ten_answered_probes_in_a_row_clear_a_record(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    block(north)
    for number in range(GOOD_PROBES):
        assert trusted(north).standing.good_probes == number
        answered(north, south)
        pair.clock.advance(PROBE_EVERY)
    assert trusted(north).standing.blocked == ()
    assert isinstance(north.send(), out.RequestSent)


def test_a_probe_that_times_out_starts_the_row_again(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    block(north)
    for _ in range(3):
        answered(north, south)
        pair.clock.advance(PROBE_EVERY)
    timed_out(pair, north, south)
    assert trusted(north).standing.good_probes <= 1


def test_probes_of_the_circuit_breaker_clear_no_record(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(GOOD_PROBES + 1):
        requests = [north.sent(timeout=5) for _ in range(3)]
        pair.clock.advance(6)
        north.tend()
        pair.clock.advance(400)
        requests.append(north.sent())
        while south.work():
            pass
        north.take_in()
        assert {type(north.result(each)) for each in requests} == {out.RequestAnswered}
        if outcomes(north).count("t") > 5:  # before it is blocked for good
            break
    assert outcomes(north).count("t") == 6
    found = decode_reputation(north.home.read(keys.reputation("south"))[keys.reputation("south")])
    assert found is not None
    assert found.good == 0


def test_an_outage_costs_a_swarm_three_timeouts_however_many_requests_it_cut_off(
    pair: Pair,
) -> None:
    north = pair.swarm("north")
    for _ in range(40):
        north.sent(timeout=5)
    pair.clock.advance(6)
    north.tend()
    assert outcomes(north) == "ttt"


def test_equivocating_results_block_a_swarm_and_an_operator_forgives_it() -> None:
    attack = Attack()
    north = attack.north
    for _ in range(10):
        _, head = sent(attack)
        post_result(attack, head)
        north.take_in()
        post_result(attack, head, body=b"4")
        north.take_in()
    found = trusted(north)
    assert (found.standing.conflicts, found.standing.samples) == (10, 20)
    assert found.standing.blocked == ("conflicts",)
    north.sent()  # a probe
    assert isinstance(north.send(), out.SwarmUnavailable)
    attack.south.sent(to="north")
    north.take_in()  # nothing of it is taken in, either
    reasons = [each.reason for each in north.run(list_quarantine("", "", 100))]
    assert reasons.count("blocked") == 1
    north.run(forgive(north.runner, north.actor, "south"))
    assert isinstance(north.send(), out.RequestSent)
    assert trusted(north).standing.samples == 0
