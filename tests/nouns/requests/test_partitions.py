"""The bus is away, the receiver is slow, a message is lost: each request still ends once."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair, Swarm, put_item

from interlock.core import keys
from interlock.nouns.messages import decode
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import UNSIGNED_LIMIT, decode_request
from interlock.nouns.requests.request import OutgoingRequest
from interlock.nouns.requests.views import list_quarantine
from interlock.nouns.swarms.bus import RECONNECT
from interlock.steps import Commit, Op
from interlock.store import Range, Txn
from interlock.testing.audit import audit, request_events
from interlock.testing.testbed import Stepper

T = TypeVar("T")


def stored(swarm: Swarm, request: str) -> OutgoingRequest:
    key = keys.request(request)
    found = decode_request(swarm.home.read(key)[key])
    assert found is not None
    return found


def items(store: Any, prefix: str) -> list[str]:
    page = Range(prefix)
    return [item.key for item in store.read(page).ranges[page]]


@pytest.fixture
def pair() -> Pair:
    return Pair()


# The bus is away.


def test_a_request_is_spooled_while_the_bus_is_away_and_posted_when_it_is_back(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.cable("north").is_cut = True
    sent = north.send()
    assert isinstance(sent, out.RequestSent)
    assert sent.spooled
    assert "the cable is cut" in sent.reason
    pair.clock.advance(3600)
    north.tend()
    assert stored(north, sent.request).attempt == 1
    pair.cable("north").is_cut = False
    pair.clock.advance(RECONNECT)
    north.tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []
    assert south.work()
    north.take_in()
    assert isinstance(north.result(sent.request), out.RequestAnswered)


def test_what_was_spooled_is_posted_in_the_order_of_sending(pair: Pair) -> None:
    one, other = pair.swarm("north"), pair.swarm("north", "eve")
    pair.cable("north").is_cut = True
    order = []
    for number in range(9):
        order.append((one, other)[number % 2].sent())
        pair.clock.advance(0.01)
    pair.cable("north").is_cut = False
    pair.clock.advance(RECONNECT)
    late = one.sent()
    south = pair.swarm("south", "bob")
    other.tend()
    south.take_in()
    ready = sorted(items(pair.homes["south"], keys.READY), key=keys.ready_order)
    found = [keys.task_in_index(key).partition("@")[0] for key in ready]
    assert found == [*order, late]


def test_an_entry_that_the_bus_refuses_leaves_the_line(pair: Pair) -> None:
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    first, large, last = (
        north.sent(),
        north.sent(body=b'"%b"' % (b"x" * 50_000)),
        north.sent(),
    )
    pair.cable("north").is_cut = False
    pair.cable("north").max_value = 20_000
    pair.clock.advance(RECONNECT)
    pair.swarm("north", "eve").tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []
    assert len(items(pair.bus, keys.BUS_REQUESTS)) == 2
    kept = north.run(list_quarantine("", "", 10)).messages
    assert [(each.request, each.reason) for each in kept] == [(large, "too_large")]
    assert {stored(north, id_).posted is None for id_ in (first, last)} == {False}


def test_rubbish_on_the_bus_leaves_room_in_quarantine_for_our_own_messages(pair: Pair) -> None:
    for number in range(UNSIGNED_LIMIT + 50):
        put_item(pair, pair.bus, f"{keys.bus_result('north')}req_{number}", Raw(b"{}"))
    north = pair.swarm("north")
    north.take_in()
    pair.cable("north").is_cut = True
    large = north.sent(body=b'"%b"' % (b"x" * 50_000))
    pair.cable("north").is_cut = False
    pair.cable("north").max_value = 20_000
    pair.clock.advance(RECONNECT)
    pair.swarm("north", "eve").tend()
    kept = north.run(list_quarantine("", "", 1000)).messages
    assert len(kept) == UNSIGNED_LIMIT + 1
    assert large in [each.request for each in kept]


def test_a_worker_answers_while_the_bus_is_away_and_the_result_comes_later(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    pair.cable("south").is_cut = True
    south.answer(claimed)
    assert len(items(pair.homes["south"], keys.OUTBOX)) == 1
    pair.cable("south").is_cut = False
    pair.clock.advance(RECONNECT)
    pair.swarm("south", "carl").tend()
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)


def test_one_process_drains_a_target_at_a_time(pair: Pair) -> None:
    north = pair.swarm("north")
    pair.cable("north").is_cut = True
    north.sent()
    pair.cable("north").is_cut = False
    other = pair.swarm("north", "eve")
    pair.clock.advance(RECONNECT)
    assert other.run(other.requests.outbox.lease("south").take(other.actor))
    north.tend()
    assert len(items(pair.homes["north"], keys.OUTBOX)) == 1
    pair.clock.advance(31)
    north.tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []


def test_a_request_is_spooled_while_another_process_drains(pair: Pair) -> None:
    north, other = pair.swarm("north"), pair.swarm("north", "eve")
    pair.cable("north").is_cut = True
    north.sent()
    pair.cable("north").is_cut = False
    pair.clock.advance(RECONNECT)
    lease = other.requests.outbox.lease("south")
    assert other.run(lease.take(other.actor))
    behind = north.send()
    assert behind.spooled
    assert "made before" in behind.reason
    other.run(lease.leave(other.actor))
    assert not north.send().spooled
    assert items(pair.homes["north"], keys.OUTBOX) == []


def test_across_a_network_a_drainer_posts_what_waits_and_leaves_the_lock(pair: Pair) -> None:
    """There the lock is a liveness key, whose value is not read with a hopeful decision."""
    north = pair.swarm("north", faulty=True)
    pair.cable("north").is_cut = True
    for _ in range(2):
        north.sent()
    pair.cable("north").is_cut = False
    pair.clock.advance(RECONNECT)
    north.tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []
    other = pair.swarm("north", "eve", faulty=True)
    assert other.run(other.requests.outbox.lease("south").take(other.actor))


def test_across_a_network_a_drainer_that_lost_its_lock_deletes_nothing(pair: Pair) -> None:
    north, other = pair.swarm("north", faulty=True), pair.swarm("north", "eve", faulty=True)
    pair.cable("north").is_cut = True
    north.sent()
    outbox = north.requests.outbox
    page = north.run(outbox._page("south", "")).postings
    assert other.run(other.requests.outbox.lease("south").take(other.actor))
    north.run(outbox._clear(north.actor, page, outbox.lease("south")))
    assert len(items(pair.homes["north"], keys.OUTBOX)) == 1


# A swarm is denied while something is sent to it.


def deny(pair: Pair, name: str, other: str) -> None:
    put_item(pair, pair.homes[name], keys.peer(other), replace(pair.peer(other), allowed=False))


def denied_meanwhile(swarm: Swarm, op: Op[T], other: str) -> T:
    """Carry out an operation; the other swarm is denied just before something is in the outbox."""
    going = Stepper(op, swarm.home, swarm.pair.clock)
    while not (
        isinstance(going._next, Commit)
        and any(put.key.startswith(keys.OUTBOX) for put in going._next.txn.puts)
    ):
        assert going.go(), "nothing was sent"
    deny(swarm.pair, swarm.name, other)
    return going.run().result()


def test_a_request_to_a_swarm_that_is_denied_meanwhile_is_refused(pair: Pair) -> None:
    north = pair.swarm("north", faulty=True)
    assert isinstance(denied_meanwhile(north, north.sending(), "south"), out.SwarmNotAllowed)
    assert items(pair.homes["north"], keys.OUTBOX) == []
    assert items(pair.bus, keys.BUS_REQUESTS) == []


@pytest.mark.parametrize("faulty", [False, True])
def test_a_later_attempt_to_a_swarm_that_was_denied_goes_to_quarantine(
    pair: Pair, *, faulty: bool
) -> None:
    north = pair.swarm("north", faulty=faulty)
    request = north.sent()
    pair.bus.commit(
        Txn(id="lost", deletes=tuple(items(pair.bus, keys.BUS_REQUESTS)))
    )  # it was lost
    pair.clock.advance(61)
    if faulty:
        denied_meanwhile(north, north.requests.attempts.step(north.actor, north.own()), "south")
    else:
        deny(pair, "north", "south")
        north.tend()
    assert items(pair.homes["north"], keys.OUTBOX) == []
    assert items(pair.bus, keys.BUS_REQUESTS) == []
    assert stored(north, request).state == "escalated"
    (kept,) = north.run(list_quarantine("", "", 10))
    assert kept.reason == "not_allowed"


def test_a_result_for_a_swarm_that_is_denied_meanwhile_ends_the_task_and_is_not_posted(
    pair: Pair,
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob", faulty=True)
    north.sent()
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    assert denied_meanwhile(south, south.answering(claimed), "north")
    assert items(pair.homes["south"], keys.OUTBOX) == []
    assert items(pair.bus, keys.BUS_RESULTS) == []
    (kept,) = south.run(list_quarantine("", "", 10))
    assert (kept.kind, kept.reason) == ("result", "not_allowed")


# An asker that waits.


def waits(swarm: Swarm, request: str, seconds: int) -> None:
    """What an asker does while it waits; the wait itself would block on the bus."""
    for _ in range(seconds // 5):
        swarm.run(swarm.requests.sender._tend(swarm.actor))
        swarm.pair.clock.advance(5)
    assert isinstance(swarm.result(request), out.RequestOpen)


def test_an_asker_that_waits_posts_what_another_process_left_in_the_outbox(pair: Pair) -> None:
    """A swarm of askers has no process that serves, and none may run ``maintain``."""
    pair.cable("north").is_cut = True
    request = pair.swarm("north").sent()
    pair.cable("north").is_cut = False
    heir = pair.swarm("north", "eve")
    waits(heir, request, 5)
    assert len(items(pair.bus, keys.BUS_REQUESTS)) == 1


def test_an_asker_that_waits_repeats_and_escalates_its_request(pair: Pair) -> None:
    north = pair.swarm("north")
    request = north.sent()
    waits(north, request, 600)
    assert (stored(north, request).state, stored(north, request).attempt) == ("escalated", 4)


def test_an_asker_without_the_key_of_its_swarm_waits_and_signs_nothing(pair: Pair) -> None:
    request = pair.swarm("north").sent()
    reader = pair.swarm("north", "eve")
    reader.requests.home._signers.clear()
    waits(reader, request, 100)
    assert (stored(reader, request).state, stored(reader, request).attempt) == ("open", 1)


# Attempts.


def test_a_slow_worker_is_not_taken_for_a_lost_request(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    for _ in range(10):
        pair.clock.advance(61)
        north.tend()
        south.tend()
        north.tend()
    found = stored(north, request)
    assert (found.attempt, found.state, found.taken is None) == (2, "open", False)
    assert south.work()
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)
    assert items(pair.bus, "ack/") == []


def test_a_result_that_was_lost_on_the_bus_is_posted_again_with_the_same_content(
    pair: Pair,
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    assert south.work()
    lost = pair.bus.read(Range(keys.BUS_RESULTS)).ranges[Range(keys.BUS_RESULTS)][0]
    delete(pair, lost.key)
    pair.clock.advance(61)
    north.tend()
    assert south.take_in() == 1
    put_item(pair, pair.bus, "unrelated/x", Raw(b"1"))
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)
    put_item(pair, pair.bus, lost.key, Raw(lost.value))  # and the first one appears after all
    put_item(pair, pair.bus, keys.bus_result_body("north", request), Raw(b"3"))
    north.take_in()
    assert north.run(list_quarantine("", "", 10)).messages == ()
    assert request_events(pair.homes["south"])[request]["request:executed"] == 1


def test_an_answer_whose_task_is_deleted_is_not_followed_by_another_one(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    assert south.work()
    page = Range(keys.BUS_RESULTS)
    delete(pair, pair.bus.read(page).ranges[page][0].key)
    received = south.run(south.requests.answers.received("north", request))
    assert received is not None
    gone = Txn(id="txn_1", deletes=(keys.status(received.task),), quiet=True)
    pair.homes["south"].commit(gone)
    pair.clock.advance(61)
    north.tend()
    south.take_in()
    north.take_in()
    assert isinstance(north.result(request), out.RequestOpen)


def delete(pair: Pair, key: str) -> None:
    from interlock.core.decision import Decision
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.testing.testbed import run_steps

    runner = Runner(pair.bus, clock=pair.clock, randomness=pair.random.randbytes)

    def deciding() -> Any:
        yield (key,)
        return Decision(outcome=None, verb="test.drop", thing="test", deletes=(key,))

    run_steps(runner.change(deciding, Actor("eve")), pair.bus, pair.clock)


def escalated(pair: Pair, north: Swarm) -> str:
    request = north.sent()
    for _ in range(20):
        pair.clock.advance(30)
        north.tend()
    assert stored(north, request).state == "escalated"
    return request


def resolve(pair: Pair, answer: bytes, request: OutgoingRequest) -> None:
    boss = pair.swarm("north", "boss")
    said = msgspec.json.decode(answer)
    boss.run(MessageCalls(boss.context).resolve(request.decision, said))


def test_an_unanswered_request_is_repeated_three_times_and_then_escalated(pair: Pair) -> None:
    north = pair.swarm("north")
    request = escalated(pair, north)
    found = stored(north, request)
    assert (found.attempt, len(found.heads)) == (4, 4)
    key = keys.decision(found.decision)
    decision = decode.decision(north.home.read(key)[key])
    assert decision is not None
    assert [each.name for each in decision.options] == [
        "local_execution",
        "queue_for_later",
        "alternative_swarm",
    ]
    open_ = north.result(request)
    assert (open_.state, open_.decision) == ("escalated", found.decision)


def test_without_a_decision_the_attempts_start_again_after_an_hour(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = escalated(pair, north)
    pair.clock.advance(3601)
    north.tend()
    assert (stored(north, request).state, stored(north, request).attempt) == ("open", 5)
    assert south.work()
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)
    assert audit(pair.homes["north"]) == []


def test_a_late_answer_closes_the_decision(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = escalated(pair, north)
    decision = stored(north, request).decision
    assert south.work()
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)
    found = decode.decision(north.home.read(keys.decision(decision))[keys.decision(decision)])
    assert found is not None
    assert (found.state, found.by) == ("resolved", "south")


def test_a_person_has_the_work_done_here(pair: Pair) -> None:
    north = pair.swarm("north")
    request = escalated(pair, north)
    resolve(pair, b'"local_execution"', stored(north, request))
    north.tend()
    over = north.result(request)
    assert isinstance(over, out.RequestOver)
    assert over.replaced_by == f"task/{request}"
    claimed = north.claim()
    assert claimed is not None
    assert claimed.data["payload"] == [1, 2]


def test_a_person_asks_another_swarm(pair: Pair) -> None:
    pair.add("east")
    pair.trust("north", "east")
    pair.trust("east", "north")
    north, east = pair.swarm("north"), pair.swarm("east", "zoe")
    request = escalated(pair, north)
    resolve(pair, b'{"option":"alternative_swarm","swarm":"east"}', stored(north, request))
    north.tend()
    over = north.result(request)
    assert isinstance(over, out.RequestOver)
    assert east.work()
    north.take_in()
    other = over.replaced_by.removeprefix("request/")
    assert isinstance(north.result(other), out.RequestAnswered)


# Limits of the sender.


def test_three_timeouts_open_the_circuit_and_one_request_probes_it(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    requests = [north.sent(timeout=5) for _ in range(3)]
    pair.clock.advance(6)
    north.tend()
    refused = north.send()
    assert isinstance(refused, out.SwarmUnavailable)
    assert 0 < refused.retry_in <= 75
    pair.clock.advance(76)
    assert north.sent()
    assert isinstance(north.send(), out.SwarmUnavailable)
    while south.work():
        pass
    north.take_in()
    assert {type(north.result(each)) for each in requests} == {out.RequestAnswered}
    assert isinstance(north.send(), out.RequestSent)


def test_an_agent_makes_at_most_so_many_requests_in_any_window(pair: Pair) -> None:
    north = pair.swarm("north")
    pair.trust("north", "south", rate=2)
    north.sent()
    pair.clock.advance(1800)
    north.sent()
    refused = north.send()
    assert isinstance(refused, out.RequestLimited)
    assert refused.retry_in == pytest.approx(1800, abs=1)
    pair.clock.advance(1801)
    north.sent()
    assert isinstance(north.send(), out.RequestLimited)


def test_a_swarm_that_is_not_on_the_list_is_not_asked(pair: Pair) -> None:
    assert pair.swarm("north").send(to="west") == out.SwarmNotAllowed(swarm="west")


def test_a_repeated_call_sends_nothing_twice(pair: Pair) -> None:
    north = pair.swarm("north")
    first = north.sent(name="nightly")
    again = north.send(name="nightly")
    assert again == out.RequestExists(request=first, state="open")
    assert north.result("nightly").request == first
    assert len(items(pair.bus, keys.BUS_REQUESTS)) == 1


# Other ends of a task.


def test_a_request_to_all_agents_is_a_message(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(whom="*", body=b'"hello"')
    south.take_in()
    assert len(items(pair.homes["south"], keys.topic("*"))) == 1
    assert items(pair.homes["south"], keys.READY) == []
    north.take_in()
    assert isinstance(north.result(request), out.RequestAnswered)


def test_a_request_that_an_ordinary_worker_completes_is_answered_too(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    south.run(south.tasks.complete(claimed.task, token=claimed.token, result={"sum": 3}))
    south.tend()
    north.take_in()
    assert north.result(request).result == {"sum": 3}


def test_a_request_that_is_cancelled_at_the_receiver_is_answered_with_an_error(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    south.run(south.tasks.cancel(f"{request}@north", "not our job"))
    south.tend()
    north.take_in()
    found = north.result(request)
    assert isinstance(found, out.RequestFailed)
    assert "not our job" in found.error


def test_a_request_that_is_over_is_taken_back_from_the_bus(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    cancelled, late = north.sent(), north.sent(deadline=100.0)
    north.run(north.requests.sender.cancel(north.actor, cancelled, ""))
    pair.clock.advance(100)
    north.tend()
    assert stored(north, late).state == "escalated"
    there = [Range(keys.bus_request("south")), Range(keys.bus_request_body("south", ""))]
    assert [*pair.bus.read(*there).ranges.values()] == [(), ()]
    assert south.take_in() == 0


def test_a_zombie_stores_no_result(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    frozen = south.claim()
    assert frozen is not None
    pair.clock.advance(3600)
    heir = pair.swarm("south", "carl")
    claimed = None
    for _ in range(5):
        if (claimed := heir.claim()) is not None:
            break
        pair.clock.advance(5)
    assert claimed is not None
    assert not south.answer(frozen, b'"late"')
    heir.answer(claimed, b'"first"')
    north.take_in()
    assert north.result(request).result == "first"
    assert north.run(list_quarantine("", "", 10)).messages == ()
