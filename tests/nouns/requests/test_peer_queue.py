"""Queues have limits: the sender sees how many requests wait for a peer, and says when to retry."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair, put_item
from tests.nouns.swarms.swarm_heads import SHOP, an_entry

from interlock.core import codec, keys
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.health import findings
from interlock.nouns.requests.peer_queue import LONGEST, SHORTEST, PeerQueue
from interlock.nouns.requests.views import list_quarantine
from interlock.nouns.swarms.bus import RECONNECT
from interlock.nouns.swarms.limits import QUEUE_NOTICE
from interlock.nouns.swarms.swarm import Floor
from interlock.store import Put, Range, Txn

HOUR = 3600.0


@pytest.fixture
def pair() -> Pair:
    found = Pair()
    found.trust("north", "south", rate=0, queue=4)
    return found


def items(store: Any, prefix: str) -> list[str]:
    page = Range(prefix, limit=200_000)
    return [item.key for item in store.read(page).ranges[page]]


def fill(pair: Pair, number: int) -> None:
    """Put envelopes for south on the bus, as other swarms would."""
    for start in range(0, number, 500):
        puts = tuple(
            [
                Put(keys.bus_request("south", f"msg_{each:032x}"), b"x")
                for each in range(start, min(start + 500, number))
            ]
        )
        pair.bus.commit(Txn(id=f"fill_{start}", puts=puts, quiet=True))


def publish(pair: Pair, depth: int) -> None:
    """The depth in the entry of south that north accepted last."""
    entry = replace(an_entry(SHOP), depth=depth)
    floor = Floor(swarm="south", version=1, entry=entry, live=True)
    put_item(pair, pair.homes["north"], keys.floor("south"), floor)


def count(pair: Pair, on_bus: int) -> None:
    """Another process of north has counted the queue of south."""
    value = codec.encode(PeerQueue(on_bus=on_bus, published=0))
    put = Put(keys.peer_queue("south"), value, 60.0)
    pair.homes["north"].commit(Txn(id="queue", puts=(put,), quiet=True))


def test_a_full_queue_refuses_new_requests_with_its_depth_and_the_time_to_retry(
    pair: Pair,
) -> None:
    north = pair.swarm("north")
    for _ in range(4):
        north.sent()
    refused = north.send()
    assert isinstance(refused, out.SwarmQueueFull)
    assert (refused.depth, refused.limit) == (4, 4)
    assert 1 <= refused.retry_in <= 300
    assert len(items(pair.bus, keys.BUS_REQUESTS)) == 4


def test_a_queue_that_became_shorter_takes_requests_again_and_its_speed_gives_the_time(
    pair: Pair,
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(4):
        north.sent()
    assert isinstance(north.send(), out.SwarmQueueFull)
    south.take_in()
    pair.clock.advance(SHORTEST + LONGEST)
    assert isinstance(north.send(), out.RequestSent)


def test_envelopes_of_others_and_the_depth_that_the_receiver_publishes_count_together(
    pair: Pair,
) -> None:
    fill(pair, 1200)
    publish(pair, 300)
    pair.trust("north", "south", rate=0, queue=1500)
    north = pair.swarm("north")
    north.sent()  # counts behind it
    refused = north.send()
    assert isinstance(refused, out.SwarmQueueFull)
    assert refused.depth == 1501
    other = pair.swarm("north", "eve")  # another process, which did not count
    assert isinstance(other.send(), out.SwarmQueueFull)


def test_the_default_limits_are_eighty_and_a_hundred_thousand(pair: Pair) -> None:
    pair.trust("north", "south", rate=0)
    fill(pair, 79_990)
    publish(pair, 8)
    north = pair.swarm("north")
    north.sent()
    north.sent()
    refused = north.send()
    assert isinstance(refused, out.SwarmQueueFull)
    assert (refused.depth, refused.limit) == (80_000, 80_000)


def test_a_short_queue_is_counted_with_one_small_read_every_half_minute(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.trust("north", "south", rate=0)
    north = pair.swarm("north")
    reads: list[int] = []
    queues = north.requests.home.queues
    counting = queues._count

    def counted(*args: Any) -> Any:
        reads.append(1)
        return counting(*args)

    monkeypatch.setattr(queues, "_count", counted)
    for _ in range(60):
        north.sent()
        pair.clock.advance(1)
    assert len(reads) == 2


def test_a_request_that_was_promised_waits_in_the_outbox_while_the_queue_is_too_long(
    pair: Pair,
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.cable("north").is_cut = True
    for _ in range(4):
        north.sent()
    pair.cable("north").is_cut = False
    fill(pair, 5)
    count(pair, on_bus=5)
    pair.clock.advance(RECONNECT)
    north.tend()
    assert len(items(pair.homes["north"], keys.OUTBOX)) == 4
    assert len(items(pair.bus, keys.BUS_REQUESTS)) == 5
    south.take_in()  # the rubbish is deleted
    pair.clock.advance(60)
    north.tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []


def test_a_result_is_posted_past_requests_that_wait_for_a_full_queue(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = south.sent(to="north")
    north.take_in()
    claimed = north.claim()
    assert claimed is not None
    pair.cable("north").is_cut = True
    for _ in range(3):
        north.sent()
    north.answer(claimed)
    pair.cable("north").is_cut = False
    count(pair, on_bus=5)
    pair.clock.advance(RECONNECT)
    north.tend()
    assert len(items(pair.homes["north"], keys.OUTBOX)) == 3
    south.take_in()
    assert isinstance(south.result(request), out.RequestAnswered)


# What leaves the line.


def test_what_waits_for_a_swarm_that_is_denied_is_not_posted_and_a_person_decides(
    pair: Pair,
) -> None:
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    request = north.sent()
    pair.cable("north").is_cut = False
    put_item(
        pair,
        pair.homes["north"],
        keys.peer("south"),
        replace(pair.peer("south"), allowed=False),
    )
    pair.clock.advance(RECONNECT)
    north.tend()
    assert items(pair.bus, keys.BUS_REQUESTS) == []
    assert items(pair.homes["north"], keys.OUTBOX) == []
    (kept,) = north.run(list_quarantine("", "", 10)).messages
    assert (kept.reason, kept.request) == ("not_allowed", request)
    open_ = north.result(request)
    assert (open_.state, bool(open_.decision)) == ("escalated", True)


def test_a_result_that_expired_in_the_outbox_leaves_the_line(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    pair.cable("south").is_cut = True
    south.answer(claimed)
    pair.clock.advance(25 * HOUR)
    pair.cable("south").is_cut = False
    south.tend()
    assert items(pair.homes["south"], keys.OUTBOX) == []
    assert items(pair.bus, keys.BUS_RESULTS) == []
    assert [each.reason for each in south.run(list_quarantine("", "", 10))] == ["expired"]


def test_depths_above_a_thousand_are_shared_between_processes_and_end_by_themselves(
    pair: Pair,
) -> None:
    fill(pair, QUEUE_NOTICE + 5)
    pair.trust("north", "south", rate=0)
    north = pair.swarm("north")
    north.sent()
    assert pair.homes["north"].read(keys.peer_queue("south"))[keys.peer_queue("south")]
    pair.clock.advance(2 * LONGEST + 1)
    assert pair.homes["north"].read(keys.peer_queue("south"))[keys.peer_queue("south")] is None


# Reports.


def test_health_and_doctor_report_long_queues_from_a_thousand_on(pair: Pair) -> None:
    north = pair.swarm("north")

    def told() -> list[str]:
        found = north.run(FleetCalls(north.context).health())
        return [each.says for each in found.problems if each.kind == "full"]

    assert told() == []
    puts = [Put(keys.unanswered("south", f"req_{each:032x}"), b"{}") for each in range(1001)]
    pair.homes["north"].commit(Txn(id="received", puts=tuple(puts), quiet=True))
    assert told() == ["swarm/north: 1001 requests wait for north, which is above 1000"]
    publish(pair, 5)
    count(pair, on_bus=10_001)
    assert told()[1] == "swarm/south: 10001 requests wait for south, which is above 10000"
    (found,) = north.run(findings(pair.clock.wall()))
    assert (found.verdict, "interlock request serve" in found.remedy) == ("warn", True)
