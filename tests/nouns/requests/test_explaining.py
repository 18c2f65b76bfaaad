"""``why``, ``health``, ``doctor`` and the history say where a request is and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair, Swarm

from interlock.core import keys, signing
from interlock.nouns.fleet.calls import FleetCalls
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.requests.exchange import QuarantinedMessage
from interlock.nouns.requests.health import findings
from interlock.nouns.requests.peer_queue import PeerQueue
from interlock.nouns.swarms.breaker import Breaker
from interlock.nouns.swarms.head import ListedKey, RegistryHead
from interlock.nouns.swarms.limits import QUEUE_ALERT, QUEUE_MOST, QUEUE_NOTICE
from interlock.nouns.swarms.reputation import Reputation, record
from interlock.nouns.swarms.swarm import Floor
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.why import Why
from interlock.store import Range


def why(swarm: Swarm, thing: str) -> Why:
    found: Why = swarm.run(FleetCalls(swarm.context).why(thing))
    return found


def problems(swarm: Swarm) -> dict[str, Problem]:
    found = swarm.run(HealthCheck(swarm.runner).run())
    wanted = ("unsent", "unreachable", "waiting", "refused", "full", "undecided")
    return {each.kind: each for each in found.problems if each.kind in wanted}


def story(swarm: Swarm, thing: str) -> list[tuple[str, str]]:
    found = swarm.run(RecordCalls(swarm.context).explain(thing))
    return [(each.thing.partition("/")[0], each.what) for each in found.happenings]


# why


def test_why_follows_a_sent_request_through_the_steps() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.cable("north").is_cut = True
    request = north.sent()
    spooled = why(north, request)
    assert (spooled.blocked, spooled.state, spooled.thing) == (True, "open", f"request/{request}")
    assert "step 1 of 10: it waits in the outbox" in spooled.because
    assert "cable is cut" in spooled.because
    assert "the bus answers" in spooled.clear

    pair.cable("north").is_cut = False
    pair.clock.advance(20)
    north.tend()
    posted = why(north, f"request/{request}")
    assert "step 3 of 10: it is on the bus, and south has not taken it in" in posted.because
    assert posted.meanwhile[0].startswith("attempt 2 of 4 is sent in 60")
    assert posted.by == "south"

    south.take_in()
    assert "step 5 of 10: it is no longer on the bus" in why(north, request).because
    claimed = south.claim()
    assert claimed is not None
    south.answer(claimed)
    answered = why(north, request)
    assert "step 8 of 10: its result is on the bus" in answered.because
    assert answered.clear == f"take it in: interlock request result {request}"
    north.take_in()
    done = why(north, request)
    assert (done.blocked, done.state) == (False, "answered")
    assert f"interlock request result {request}" in done.clear


def test_why_finds_a_request_by_the_name_that_its_sender_chose_and_by_a_part_of_its_id() -> None:
    pair = Pair()
    north = pair.swarm("north")
    request = north.sent(name="nightly")
    assert why(north, "request/nightly").thing == f"request/{request}"
    assert why(north, request[:20]).thing == f"request/{request}"
    unknown = why(north, "req_" + "0" * 32)
    assert (unknown.state, unknown.exit_status) == ("unknown", 1)
    assert "interlock request list" in unknown.clear


def test_why_names_the_breaker_the_reputation_and_a_peer_that_is_away() -> None:
    pair = Pair()
    north = pair.swarm("north")
    request = north.sent()
    now = pair.clock.wall()
    north.put(keys.breaker("south"), Breaker(opened=1, until=now + 45))
    bad = record(Reputation(), ["timeout"] * 30)
    north.put(keys.reputation("south"), bad)
    north.put(keys.floor("south"), Floor(swarm="south", fetched=now - 30, live=False))
    said = "; ".join(why(north, request).meanwhile)
    assert "the circuit breaker of south refuses new requests for 45 s more" in said
    assert "south is blocked for its timeouts" in said
    assert "no process of south was live 30 s ago" in said
    north.put(keys.peer("south"), replace(pair.peer("south"), allowed=False))
    assert "south is not allowed here any more" in "; ".join(why(north, request).meanwhile)


def test_why_of_a_request_in_the_outbox_names_a_full_queue_if_the_bus_answers() -> None:
    pair = Pair()
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    request = north.sent()
    pair.cable("north").is_cut = False
    pair.clock.advance(20)
    counted = PeerQueue(on_bus=0, published=QUEUE_MOST + 7)
    north.put(keys.peer_queue("south"), counted)
    found = why(north, request)
    assert "until a process of this swarm posts it" in found.because
    assert "interlock maintain" in found.clear
    said = f"{QUEUE_MOST + 7} requests wait for south, and {QUEUE_MOST} are allowed"
    assert said in "; ".join(found.meanwhile)


def test_why_of_an_escalated_request_names_the_decision() -> None:
    pair = Pair()
    north = pair.swarm("north")
    request = north.sent(deadline=60.0)
    pair.clock.advance(61)
    north.tend()
    found = why(north, request)
    assert (found.state, found.blocked) == ("escalated", True)
    assert found.by.startswith("decision/dec_")
    assert "interlock decision resolve dec_" in found.clear


def test_why_of_a_received_request_says_who_runs_it_and_follows_its_task() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    waiting = why(south, request)
    assert (waiting.state, waiting.blocked) == ("received", True)
    assert "step 5 of 10: its task is pending: no worker for can:sum" in waiting.because
    assert "ada of north asked" in waiting.because
    assert [link.thing for link in waiting.chain] == [f"task/{request}@north"]
    claimed = south.claim()
    assert claimed is not None
    running = why(south, f"{request}@north")
    assert (running.state, running.by) == ("running", "bob")
    assert "step 6 of 10: bob works on it" in running.because
    pair.cable("south").is_cut = True
    south.answer(claimed)
    assert "step 7 of 10: its result waits in the outbox" in why(south, request).because
    pair.cable("south").is_cut = False
    pair.clock.advance(20)
    south.tend()
    assert "step 8 of 10" in why(south, request).because
    north.take_in()
    south.tend()
    taken = why(south, request)
    assert (taken.blocked, taken.state) == (False, "acknowledged")


# history


def test_the_history_of_a_request_goes_across_its_task() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.work()
    north.take_in()
    south.tend()
    assert story(north, request) == [
        ("request", "sent"),
        ("request", "posted"),
        ("request", "answered"),
    ]
    assert story(south, f"request/{request}") == [
        ("request", "received"),
        ("task", "published"),
        ("task", "claimed"),
        ("task", "completed"),
        ("request", "executed"),
        ("request", "acknowledged"),
    ]
    found = north.run(RecordCalls(north.context).explain(request))
    assert found.happenings[0].says == "to can:sum of south"
    assert found.happenings[-1].says.startswith("success, by bob of south, after ")


def test_the_history_of_an_escalated_request_has_its_decision() -> None:
    pair = Pair()
    north = pair.swarm("north")
    request = north.sent(deadline=60.0)
    pair.clock.advance(61)
    north.tend()
    assert story(north, request) == [
        ("request", "sent"),
        ("request", "posted"),
        ("request", "timed_out"),
        ("request", "escalated"),
        ("decision", "opened"),
    ]


def test_the_history_of_one_request_has_nothing_of_others_in_the_same_commit() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    first, second = north.sent(), north.sent()
    while south.work():
        pass
    north.take_in()
    for request in (first, second):
        assert story(north, request) == [
            ("request", "sent"),
            ("request", "posted"),
            ("request", "answered"),
        ]


# health and doctor


def test_a_home_whose_requests_go_well_is_healthy() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.work()
    north.take_in()
    south.tend()
    assert (problems(north), problems(south)) == ({}, {})


def test_health_reports_envelopes_that_wait_in_the_outbox() -> None:
    pair = Pair()
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    began = pair.clock.wall()
    north.sent()
    north.sent()
    assert problems(north) == {}
    pair.clock.advance(120)
    unsent = problems(north)["unsent"]
    assert "2 envelopes wait for south in the outbox, the first for 2 min" in unsent.says
    assert unsent.since == pytest.approx(began, abs=0.01)
    (found,) = north.run(findings(pair.clock.wall()))
    assert (found.verdict, found.fact) == (
        "warn",
        "2 open, 2 in the outbox, 0 received and not finished, 0 in quarantine",
    )
    pair.cable("north").is_cut = False
    north.tend()
    assert problems(north) == {}
    (found,) = north.run(findings(pair.clock.wall()))
    assert found.verdict == "ok"


def test_health_reports_peers_to_which_nothing_is_sent() -> None:
    pair = Pair()
    north = pair.swarm("north")
    north.put(keys.breaker("south"), Breaker(opened=2, until=pair.clock.wall() + 90))
    found = problems(north)["unreachable"]
    assert "requests to it are refused for 90 s more" in found.says
    assert found.thing == "swarm/south"
    north.put(keys.breaker("south"), Breaker())
    north.put(keys.reputation("south"), record(Reputation(), ["conflict"] * 30))
    assert "30 were conflicts" in problems(north)["unreachable"].says


def test_health_reports_requests_that_have_waited_for_long() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    requests = [north.sent() for _ in range(7)]
    south.take_in()
    for _ in range(3):
        pair.clock.advance(61)
        north.tend()
        south.tend()
        north.take_in()  # the receipts
    pair.clock.advance(3600)
    waiting = problems(north)["waiting"]
    assert (waiting.thing, waiting.agent) == (f"request/{min(requests)}", "ada")
    assert "and 2 more wait for an answer of south" in waiting.says
    assert "south has taken it in and works on it" in waiting.says


def test_why_explains_a_message_in_quarantine_and_what_can_be_done_with_it() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.trust("south", "north", rate=1)
    north.sent()
    north.sent()
    south.take_in()
    page = Range(keys.QUARANTINE)
    (item,) = south.home.read(page).ranges[page]
    id_ = keys.id_of(item.key)
    for thing in (id_, f"quarantine/{id_}", id_[:-4]):
        found = why(south, thing)
        assert (found.thing, found.state, found.by) == (f"quarantine/{id_}", "limited", "north")
        assert "a request from ada of north, and not taken in: limited" in found.because
        assert f"interlock quarantine release {id_}" in found.clear
    gone = why(south, "qua_nothing")
    assert (gone.state, gone.blocked) == ("unknown", False)


def test_why_of_an_own_message_in_quarantine_leads_to_its_request() -> None:
    pair = Pair()
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    request = north.sent()
    pair.cable("north").is_cut = False
    north.put(keys.peer("south"), replace(pair.peer("south"), allowed=False))
    pair.clock.advance(20)
    north.tend()
    page = Range(keys.QUARANTINE)
    (item,) = north.home.read(page).ranges[page]
    found = why(north, keys.id_of(item.key))
    assert "made here, and not posted: not_allowed" in found.because
    assert [each.thing for each in found.chain] == [f"request/{request}"]


def test_health_reports_the_quarantine_by_reason() -> None:
    pair = Pair()
    south = pair.swarm("south", "bob")
    now = pair.clock.wall()
    for number, reason in enumerate(("limited", "limited", "malformed")):
        kept = QuarantinedMessage(
            id=f"qua_{number}", kind="request", reason=reason, detail="", at=now - 60
        )
        south.put(keys.quarantined(kept.id), kept)
    refused = problems(south)["refused"]
    assert "3 messages of other swarms were refused (2 limited, 1 malformed)" in refused.says
    assert "interlock quarantine list" in refused.remedy


@pytest.mark.parametrize(
    ("depth", "bound"),
    [(QUEUE_NOTICE, None), (QUEUE_NOTICE + 1, 1000), (QUEUE_ALERT + 1, 10_000)],
)
def test_health_alerts_at_a_queue_of_1000_and_of_10000(depth: int, bound: int | None) -> None:
    pair = Pair()
    north = pair.swarm("north")
    north.put(keys.floor("south"), _floor(pair, depth))
    found = problems(north).get("full")
    if bound is None:
        assert found is None
    else:
        assert found is not None
        assert f"{depth} requests wait for south, which is above {bound}" in found.says


def _floor(pair: Pair, depth: int) -> Floor:
    now = int(pair.clock.wall() * 1000)
    key = pair.keys["south"]
    entry = RegistryHead(
        from_swarm="south",
        version=1,
        timestamp=now,
        expires=now + 1000,
        depth=depth,
        keys=(ListedKey(public=signing.to_base64(key.public_key)),),
        agents=(),
        key=key.fingerprint,
        bus="bus_1",
    )
    return Floor(swarm="south", version=1, entry=entry, live=True)


def test_a_home_that_is_no_swarm_has_no_problem_of_requests() -> None:
    pair = Pair()
    north = pair.swarm("north")
    north.put(keys.quarantined("qua_1"), {"id": "qua_1"})
    north.run(_drop(north, keys.OWN_SWARM))
    assert "refused" not in problems(north)
    assert north.run(findings(pair.clock.wall())) == []


def _drop(swarm: Swarm, key: str) -> Any:
    from interlock.core.decision import Decision

    def deciding() -> Any:
        yield (key,)
        return Decision(outcome=None, verb="test.drop", thing="test", deletes=(key,))

    return swarm.runner.change(deciding, swarm.actor)


def test_a_damaged_breaker_rate_or_reputation_is_deleted_by_maintain() -> None:
    from interlock.runtime.housekeeping import HousekeepingPass

    pair = Pair()
    north = pair.swarm("north")
    damaged = [
        keys.breaker("south"),
        keys.reputation("south"),
        keys.request_rate("to", "south", "ada"),
        keys.request_refusals("ada"),
    ]
    for key in damaged:
        north.put(key, ["no", "such", "thing"])
    north.run(HousekeepingPass(north.runner).run(north.actor))
    items = pair.homes["north"].read(*damaged).items
    assert [items[key] for key in damaged] == [None] * len(damaged)
    assert north.sent()


def test_every_item_of_requests_is_read_by_the_integrity_check() -> None:
    from interlock.runtime.integrity import kinds

    prefixes = {kind.prefix for kind in kinds()}
    bus = {folder for folder in keys.REQUEST_FOLDERS if folder.startswith(("req", "res", "ack"))}
    bus -= {folder for folder in bus if folder.startswith("request")}
    assert set(keys.REQUEST_FOLDERS) - bus <= prefixes
    folder = Range(keys.REQUESTS)
    pair = Pair()
    north = pair.swarm("north")
    north.sent()
    assert len(pair.homes["north"].read(folder).ranges[folder]) == 1
