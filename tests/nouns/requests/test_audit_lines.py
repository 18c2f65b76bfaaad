"""Every event between swarms is one line of the audit, from the record alone."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from tests.nouns.requests.pair import Pair, Swarm, put_item

from interlock.core import keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditEntry, audit_day
from interlock.nouns.requests.calls import RequestCalls
from interlock.nouns.requests.exchange import UNSIGNED_LIMIT
from interlock.nouns.requests.quarantine_service import release
from interlock.nouns.requests.serving import answer_claim
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.store import Range
from interlock.testing.audit import audit


def lines(swarm: Swarm, **wanted: Any) -> list[AuditEntry]:
    day = audit_day(swarm.pair.clock.wall())
    found = swarm.run(RequestCalls(swarm.context).audit(day, limit=10_000, **wanted))
    return list(found)


def events(swarm: Swarm, **wanted: Any) -> list[str]:
    return [line.event_type for line in lines(swarm, **wanted)]


def log(swarm: Swarm) -> int:
    return len(swarm.run(_record(swarm)))


def _record(swarm: Swarm) -> Any:
    from interlock.nouns.record.calls import RecordCalls

    return RecordCalls(swarm.context).log(limit=100_000)


def maintained(swarm: Swarm) -> None:
    swarm.run(HousekeepingPass(swarm.runner).run(swarm.actor))


def test_a_request_is_in_the_audit_of_both_swarms_from_posting_to_retrieval() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(confidence=0.75, citations=("doc:1",))
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    pair.clock.advance(2)
    south.run(
        answer_claim(south.context, claimed, "success", b"3", confidence=0.5, citations=("doc:2",))
    )
    north.take_in()

    posted, retrieved = lines(north)
    assert (posted.event_type, retrieved.event_type) == (
        "cross_swarm_request_posted",
        "cross_swarm_result_retrieved",
    )
    assert {posted.request_id, retrieved.request_id} == {request}
    assert (posted.from_swarm, posted.from_agent) == ("north", "ada")
    assert (posted.to_swarm, posted.to_agent) == ("south", "can:sum")
    assert (posted.confidence, posted.citations) == (0.75, ("doc:1",))
    # It was signed here, and nothing was verified yet; the rate of its agent was.
    assert (posted.signature_verified, posted.rate_limit_ok) == (None, True)
    assert (retrieved.from_swarm, retrieved.from_agent) == ("south", "bob")
    assert (retrieved.to_swarm, retrieved.to_agent) == ("north", "ada")
    assert (retrieved.confidence, retrieved.citations) == (0.5, ("doc:2",))
    assert (retrieved.signature_verified, retrieved.rate_limit_ok) == (True, None)
    assert retrieved.status == "success"

    received, taken, answered = lines(south)
    assert [each.event_type for each in (received, taken, answered)] == [
        "cross_swarm_request_received",
        "cross_swarm_task_claimed",
        "cross_swarm_result_posted",
    ]
    assert {each.request_id for each in (received, taken, answered)} == {request}
    assert (received.signature_verified, received.rate_limit_ok) == (True, True)
    assert (received.confidence, received.citations) == (0.75, ("doc:1",))
    assert (taken.from_swarm, taken.from_agent, taken.by) == ("north", "ada", "bob")
    assert (answered.from_agent, answered.to_agent) == ("bob", "ada")
    assert (answered.confidence, answered.citations) == (0.5, ("doc:2",))
    assert {each.action for each in (*lines(north), *lines(south))} == {"SHARE"}


def test_a_claim_names_its_request_after_that_was_deleted() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=60.0)
    south.work()
    pair.clock.advance(600)
    maintained(south)
    received = Range(keys.RECEIVED)
    assert pair.homes["south"].read(received).ranges[received] == ()
    claimed = [each for each in lines(south) if each.event_type == "cross_swarm_task_claimed"]
    assert [(each.from_agent, each.to_agent) for each in claimed] == [("ada", "can:sum")]


def test_ordinary_tasks_are_not_in_the_audit() -> None:
    pair = Pair()
    south = pair.swarm("south", "bob")
    south.run(south.tasks.publish("t1"))
    south.run(south.tasks.claim("t1"))
    assert lines(south) == []


def test_a_timeout_is_held_and_an_escalation_is_escalated() -> None:
    pair = Pair()
    north = pair.swarm("north")
    request = north.sent(deadline=1000.0)
    for _ in range(20):
        pair.clock.advance(60)
        north.tend()
    found = {line.event_type: line for line in lines(north)}
    timeout = found["cross_swarm_request_timeout"]
    escalated = found["cross_swarm_request_escalated"]
    assert (timeout.action, timeout.request_id) == ("HOLD", request)
    assert (escalated.action, escalated.request_id) == ("ESCALATE", request)
    assert lines(north, action="ESCALATE") == [escalated]


def test_a_message_that_is_refused_is_held_with_what_was_verified() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    folder = Range(keys.bus_request("south"))
    (item,) = pair.bus.read(folder).ranges[folder]
    begin, mark, rest = item.value.partition(b'"sig":"')
    forged = begin + mark + (b"A" if rest[:1] != b"A" else b"B") + rest[1:]
    put_item(pair, pair.bus, item.key, Raw(forged))
    put_item(pair, pair.bus, keys.bus_request("south", "rubbish"), {"no": "envelope"})
    pair.add("east")
    pair.trust("east", "south")
    pair.swarm("east", "eve").sent()
    south.take_in()
    found = {line.event_type: line for line in lines(south)}
    assert set(found) == {
        "signature_verification_failed",
        "message_quarantined",
        "swarm_not_authorized",
    }
    assert {line.action for line in found.values()} == {"HOLD"}
    assert found["signature_verification_failed"].signature_verified is False
    assert found["message_quarantined"].signature_verified is None
    # The key of east is not on the list, so nothing could be verified, and no name is believed.
    assert found["swarm_not_authorized"].signature_verified is None
    assert found["swarm_not_authorized"].from_swarm == ""
    assert {line.request_id for line in found.values()} == {""}


def test_a_request_over_its_rate_is_held_at_the_receiver_and_shared_when_it_is_released() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.trust("south", "north", rate=1)
    north.sent()
    second = north.sent()
    south.take_in()
    (limited,) = lines(south, action="HOLD")
    assert (limited.event_type, limited.request_id) == ("rate_limit_exceeded", second)
    assert (limited.signature_verified, limited.rate_limit_ok) == (True, False)
    assert (limited.from_swarm, limited.from_agent) == ("north", "ada")
    folder = Range(keys.QUARANTINE)
    (kept,) = pair.homes["south"].read(folder).ranges[folder]
    south.run(release(south.requests, south.actor, keys.id_of(kept.key)))
    received, released = lines(south)[-2:]
    assert (received.event_type, received.rate_limit_ok) == ("cross_swarm_request_received", None)
    assert (released.event_type, released.by) == ("quarantine_released", "bob")
    assert (released.request_id, released.action) == (second, "SHARE")


def test_refused_requests_of_an_agent_are_all_counted_with_one_entry_a_minute() -> None:
    pair = Pair()
    north = pair.swarm("north")
    before = log(north)
    for number in range(50):
        assert isinstance(north.send(to=f"nobody{number}"), out.SwarmNotAllowed)
    assert log(north) == before + 1
    assert audit(pair.homes["north"]) == []
    pair.clock.advance(61)
    assert isinstance(north.send(to="nobody"), out.SwarmNotAllowed)
    assert log(north) == before + 2
    found = lines(north)
    assert [each.event_type for each in found] == ["swarm_not_authorized"] * 2
    assert [each.count for each in found] == [1, 50]
    assert (found[0].from_agent, found[0].to_swarm, found[0].action) == ("ada", "nobody0", "HOLD")


def test_refusals_that_no_later_one_records_are_recorded_by_maintain() -> None:
    pair = Pair()
    north = pair.swarm("north")
    for _ in range(3):
        north.send(to="nobody")
    maintained(north)
    assert [each.count for each in lines(north)] == [1]  # the minute is not over
    pair.clock.advance(61)
    maintained(north)
    maintained(north)
    assert [each.count for each in lines(north)] == [1, 2]
    tallies, counts = Range(keys.REQUEST_REFUSALS), Range(keys.REQUESTS_REFUSED)
    ranges = pair.homes["north"].read(tallies, counts).ranges
    assert (ranges[tallies], ranges[counts]) == ((), ())
    assert audit(pair.homes["north"]) == []
    for _ in range(3):
        north.send(to="nobody")
    pair.clock.advance(61)
    north.send(to="nobody")
    assert [each.count for each in lines(north)] == [1, 2, 1, 3]


def test_refusals_that_were_counted_are_recorded_with_those_of_another_kind_left_alone() -> None:
    pair = Pair()
    north = pair.swarm("north")
    pair.trust("north", "south", rate=1)
    north.sent()
    for _ in range(4):
        north.send()
    pair.clock.advance(31)
    for _ in range(3):
        north.send(to="nobody")
    pair.clock.advance(31)
    maintained(north)
    held = lines(north, action="HOLD")
    assert [(each.event_type, each.count) for each in held] == [
        ("rate_limit_exceeded", 1),
        ("swarm_not_authorized", 1),
        ("rate_limit_exceeded", 3),
    ]
    pair.clock.advance(31)
    maintained(north)
    assert lines(north, action="HOLD")[-1].count == 2
    assert audit(pair.homes["north"]) == []


def test_each_reason_not_to_send_has_its_own_event() -> None:
    from interlock.nouns.swarms.breaker import Breaker

    pair = Pair(names=("north", "south", "west"))
    north = pair.swarm("north")
    pair.trust("north", "south", rate=1)
    north.sent()
    assert isinstance(north.send(), out.RequestLimited)
    north.put(keys.breaker("west"), Breaker(opened=1, until=pair.clock.wall() + 60))
    assert isinstance(north.send(to="west"), out.SwarmUnavailable)
    held = lines(north, action="HOLD")
    assert [(each.event_type, each.to_swarm, each.rate_limit_ok) for each in held] == [
        ("rate_limit_exceeded", "south", False),
        ("swarm_unavailable", "west", None),
    ]


def test_a_flood_of_rubbish_is_counted_when_the_quarantine_has_no_room() -> None:
    pair = Pair()
    south = pair.swarm("south", "bob")
    flood = UNSIGNED_LIMIT + 150
    for number in range(flood):
        put_item(pair, pair.bus, keys.bus_request("south", f"msg_{number}"), {"no": number})
    before = log(south)
    south.take_in()
    assert log(south) - before <= UNSIGNED_LIMIT // 48 + 2
    quiet = pair.homes["south"].read(keys.BASE).revision
    for number in range(40):
        put_item(pair, pair.bus, keys.bus_request("south", f"msg_x{number}"), {"no": number})
    south.take_in()
    assert pair.homes["south"].read(keys.BASE).revision == quiet  # a flood writes nothing at home
    flood += 40
    pair.clock.advance(61)
    south.tend()
    south.tend()
    held = lines(south)
    assert {each.event_type for each in held} == {"message_quarantined"}
    assert sum(each.count for each in held) == flood
    assert len(held) == UNSIGNED_LIMIT + 2
