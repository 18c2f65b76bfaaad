"""A request goes from one swarm to another and its result comes back, once."""

from __future__ import annotations

import pytest
from tests.nouns.requests.pair import Pair

from interlock.core import keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.swarms import head
from interlock.nouns.swarms.publish_service import own_depth
from interlock.runtime.housekeeping import HousekeepingPass
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


def test_the_depth_that_a_swarm_publishes_is_its_requests_without_an_answer() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(3):
        north.sent()
    assert south.run(own_depth()) == 0  # they are on the bus, where senders count them
    south.take_in()
    assert south.run(own_depth()) == 3
    claimed = south.claim()
    assert claimed is not None
    assert south.run(own_depth()) == 3
    south.answer(claimed)
    assert south.run(own_depth()) == 2
    assert north.run(own_depth()) == 0


def test_a_request_that_is_deleted_after_its_deadline_is_not_counted_for_ever() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=60.0)
    south.take_in()
    assert south.claim() is not None
    pair.clock.advance(600)
    south.run(HousekeepingPass(south.runner).run(south.actor))
    received, unanswered = Range(keys.RECEIVED), Range(keys.UNANSWERED)
    found = pair.homes["south"].read(received, unanswered).ranges
    assert (found[received], found[unanswered]) == ((), ())
    assert south.run(own_depth()) == 0


def test_a_result_that_cannot_be_sent_is_answered_as_an_error_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head, "BODY_LIMIT", 1000)
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for name in ("large", "small"):
        north.sent(name=name)
    south.take_in()
    for result in ("x" * 1000, "3"):
        claimed = south.claim()
        assert claimed is not None
        south.run(south.tasks.complete(claimed.task, token=claimed.token, result=result))
    south.tend()
    north.take_in()
    large, small = (north.result(name) for name in ("large", "small"))
    assert isinstance(large, out.RequestFailed)
    assert "cannot be sent" in large.error
    assert isinstance(small, out.RequestAnswered)
