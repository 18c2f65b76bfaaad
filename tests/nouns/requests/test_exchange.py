"""A request goes from one swarm to another and its result comes back, once."""

from __future__ import annotations

from tests.nouns.requests.pair import Pair

from interlock.nouns.requests import outcomes as out
from interlock.store import Range
from interlock.testing.audit import audit


def on_bus(pair: Pair) -> list[str]:
    ranges = [Range(prefix) for prefix in ("req", "res", "ack")]
    found = pair.bus.read(*ranges).ranges
    return [item.key for each in ranges for item in found[each]]


def test_a_request_is_a_task_at_the_receiver_and_its_result_a_finding_at_the_asker() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(body=b'{"numbers":[1,2]}')
    assert isinstance(north.result(request), out.RequestOpen)
    assert south.take_in() == 1
    claimed = south.claim()
    assert claimed is not None
    assert claimed.data["payload"] == {"numbers": [1, 2]}
    assert claimed.data["request"]["from_swarm"] == "north"
    south.answer(claimed, b'{"sum":3}')
    north.take_in()
    found = north.result(request)
    assert isinstance(found, out.RequestAnswered)
    assert (found.result, found.executed_by, found.from_swarm) == ({"sum": 3}, "bob", "south")
    assert on_bus(pair) == []
    for store in (*pair.homes.values(), pair.bus):
        assert audit(store) == []
