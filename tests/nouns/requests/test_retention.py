"""What is old is deleted, nothing else is, and no pass does more than its bound."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.requests.pair import Pair, Swarm, put_item
from tests.nouns.requests.test_attacks import Attack

from interlock.core import keys
from interlock.core.rate import RateLog
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests import retention
from interlock.nouns.requests.exchange import SeenMark
from interlock.nouns.requests.retention import EVERY, RequestRetention
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock

HOUR, DAY = 3600.0, 86400.0
FOLDERS = (
    keys.SEEN, keys.RECEIVED, keys.UNANSWERED, keys.UNACKNOWLEDGED, keys.REQUESTS, keys.FINDINGS,
    keys.REQUEST_NAMES, keys.REQUEST_BODIES, keys.REQUEST_DUE, keys.ESCALATED, keys.REQUEST_RATES,
    keys.QUARANTINE, keys.QUARANTINE_CONTENT, keys.OUTBOX,
)  # fmt: skip


@pytest.fixture
def pair() -> Pair:
    return Pair()


def folders(store: Any) -> dict[str, int]:
    """How many items each folder has, without empty ones."""
    pages = [Range(folder, limit=100_000) for folder in FOLDERS]
    ranges = store.read(*pages).ranges
    return {page.prefix: len(ranges[page]) for page in pages if ranges[page]}


def maintain(swarm: Swarm) -> Any:
    return swarm.run(HousekeepingPass(swarm.runner).run(swarm.actor))


def test_a_finding_is_deleted_after_an_hour_and_the_rest_of_a_request_after_its_deadline(
    pair: Pair,
) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(name="nightly")
    assert south.work()
    north.take_in()
    south.tend()
    pair.clock.advance(HOUR - 10)
    maintain(north)
    assert isinstance(north.result(request), out.RequestAnswered)
    pair.clock.advance(20)
    maintain(north)
    assert isinstance(north.result(request), out.RequestOver)
    assert north.result("nightly").request == request
    maintain(south)
    assert folders(pair.homes["south"])[keys.SEEN] == 1
    pair.clock.advance(DAY)
    for swarm in (north, south):
        maintain(swarm)
    assert folders(pair.homes["north"]) == {}
    assert isinstance(north.result("nightly"), out.UnknownRequest)
    pair.clock.advance(HOUR)
    maintain(south)
    assert folders(pair.homes["south"]) == {}
    for name in pair.homes:
        assert audit(pair.homes[name]) == []


def test_a_result_is_kept_for_an_hour_though_the_deadline_was_a_minute(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent(deadline=60.0)
    assert south.work()
    north.take_in()
    pair.clock.advance(HOUR - 60)
    maintain(north)
    assert isinstance(north.result(request), out.RequestAnswered)
    pair.clock.advance(DAY)
    maintain(north)
    assert folders(pair.homes["north"]) == {}


def test_an_open_request_stays_and_one_that_no_person_decided_about_goes(pair: Pair) -> None:
    north = pair.swarm("north")
    request = north.sent(deadline=7 * DAY)
    north.sent(deadline=HOUR)
    for _ in range(8):
        pair.clock.advance(HOUR / 2)
        north.tend()
    pair.clock.advance(3 * DAY)
    north.tend()
    pair.clock.advance(DAY)
    maintain(north)
    page = Range(keys.REQUESTS)
    left = [keys.id_of(item.key) for item in pair.homes["north"].read(page).ranges[page]]
    assert left == [request]


def test_marks_are_deleted_after_their_deadlines_whatever_stands_before_them(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    south, now = pair.swarm("south", "bob"), pair.clock.wall()
    marks = []
    for number in range(3000):
        old = number % 3 == 2
        mark = SeenMark(request="r", content="c", attempt=1, until=now + (60 if old else 7 * DAY))
        marks.append(Put(keys.seen("north", f"msg_{number:032x}"), _encoded(mark)))
    pair.homes["south"].commit(Txn(id="marks", puts=tuple(marks), quiet=True))
    maintain(south)
    assert folders(pair.homes["south"])[keys.SEEN] == 3000
    pair.clock.advance(HOUR)
    monkeypatch.setattr(retention, "BOUND", 400)
    done = south.run(RequestRetention(south.runner).run(south.actor, 400))
    assert done == 1  # a folder with more to delete
    left = folders(pair.homes["south"])[keys.SEEN]
    assert 2000 < left < 3000
    maintain(south)
    assert folders(pair.homes["south"])[keys.SEEN] == 2000


def _encoded(value: object) -> bytes:
    from interlock.core import codec

    return codec.encode(value)


def test_a_process_that_serves_deletes_what_is_old_in_small_passes(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(20):
        north.sent()
    while south.work():
        pass
    north.take_in()
    south.tend()
    pair.clock.advance(DAY + HOUR)
    for _ in range(len(retention.FOLDERS) + 1):
        for swarm in (north, south):
            swarm.tend()
        pair.clock.advance(EVERY)
    assert folders(pair.homes["north"]).keys() <= {keys.REQUEST_RATES}
    assert folders(pair.homes["south"]).keys() <= {keys.REQUEST_RATES}


def test_refused_messages_are_kept_for_a_week_with_their_payload() -> None:
    attack = Attack()
    attack.pair.trust("south", "north", rate=1)
    for _ in range(2):
        attack.post(attack.head())
    assert attack.reasons() == ["limited"]
    attack.pair.clock.advance(6 * DAY)
    maintain(attack.south)
    found = folders(attack.pair.homes["south"])
    assert (found[keys.QUARANTINE], found[keys.QUARANTINE_CONTENT]) == (1, 1)
    attack.pair.clock.advance(2 * DAY)
    maintain(attack.south)
    assert folders(attack.pair.homes["south"]) == {}


def test_names_without_a_request_are_deleted(pair: Pair) -> None:
    north = pair.swarm("north")
    north.sent(name="lost")
    request = north.result("lost").request
    north.run(north.requests.sender.cancel(north.actor, request, "not needed"))
    pair.homes["north"].commit(Txn(id="gone", deletes=(keys.request(request),), quiet=True))
    pair.clock.advance(HOUR + 1)
    maintain(north)
    assert keys.REQUEST_NAMES not in folders(pair.homes["north"])


def test_rates_of_agents_that_ask_no_more_are_deleted(pair: Pair) -> None:
    now = round(pair.clock.wall() * 1000)
    for number in range(3):
        key = keys.request_rate("from", "north", f"invented-{number}")
        put_item(pair, pair.homes["south"], key, RateLog(times=(now,)))
    south = pair.swarm("south", "bob")
    pair.clock.advance(DAY - 1)
    maintain(south)
    assert folders(pair.homes["south"]) == {keys.REQUEST_RATES: 3}
    pair.clock.advance(2)
    maintain(south)
    assert folders(pair.homes["south"]) == {}


def test_a_client_whose_clock_is_ahead_deletes_no_marks_of_others(pair: Pair) -> None:
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.take_in()
    wrong, ahead = pair.swarm("south", "zoe"), FakeClock()
    ahead.jump_wall(3 * DAY)
    wrong.runner.clock = ahead
    maintain(wrong)
    assert folders(pair.homes["south"])[keys.SEEN] == 1


def test_a_damaged_item_stays_and_the_others_are_deleted(pair: Pair) -> None:
    south, now = pair.swarm("south", "bob"), pair.clock.wall()
    good = SeenMark(request="r", content="c", attempt=1, until=now)
    puts = (
        Put(keys.seen("north", "msg_1"), b"{"),
        Put(keys.seen("north", "msg_2"), _encoded(good)),
        Put(keys.seen("north", "msg_3"), _encoded(replace(good, until=now + 3 * DAY))),
    )
    pair.homes["south"].commit(Txn(id="marks", puts=puts, quiet=True))
    pair.clock.advance(HOUR)
    maintain(south)
    assert folders(pair.homes["south"])[keys.SEEN] == 2
