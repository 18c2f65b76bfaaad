"""Lists of requests say where each one is and what comes next; results are acknowledged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.requests.pair import Pair, Swarm

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.calls import RequestCalls
from interlock.nouns.requests.outcomes import RequestView
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.runtime.text import render
from interlock.store import Range


def listed(swarm: Swarm, /, **wanted: Any) -> list[RequestView]:
    found: out.RequestList = swarm.run(RequestCalls(swarm.context).list(**wanted))
    return list(found)


def only(swarm: Swarm, /, **wanted: Any) -> RequestView:
    (found,) = listed(swarm, **wanted)
    return found


def state(swarm: Swarm) -> str:
    return only(swarm, received=True).state


def test_a_received_request_is_acknowledged_when_its_asker_has_taken_the_result() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.take_in()
    assert state(south) == "received"
    claimed = south.claim()
    assert claimed is not None
    assert (state(south), only(south, received=True).place) == ("running", "bob")
    south.answer(claimed)
    south.tend()
    assert (state(south), only(south, received=True).step) == ("answered", 8)
    north.take_in()
    assert state(south) == "answered"  # it has not looked yet
    south.tend()
    assert (state(south), only(south, received=True).step) == ("acknowledged", 10)
    marks = Range(keys.UNACKNOWLEDGED)
    assert pair.homes["south"].read(marks).ranges[marks] == ()


def test_a_result_in_the_outbox_is_not_acknowledged() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.take_in()
    claimed = south.claim()
    assert claimed is not None
    pair.cable("south").is_cut = True
    south.answer(claimed)
    south.tend()
    assert state(south) == "answered"
    pair.cable("south").is_cut = False
    pair.clock.advance(20)
    south.tend()
    assert state(south) == "answered"
    north.take_in()
    south.tend()
    assert state(south) == "acknowledged"


def test_a_result_that_is_deleted_by_others_is_answered_again_when_the_asker_repeats() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent()
    south.work()
    folder = Range(keys.bus_result("north"))
    (item,) = pair.bus.read(folder).ranges[folder]
    _delete(pair, item.key)
    south.tend()
    assert state(south) == "acknowledged"  # all that this home can see
    pair.clock.advance(61)
    north.tend()
    south.tend()
    assert state(south) == "answered"
    north.take_in()
    south.tend()
    assert state(south) == "acknowledged"


def _delete(pair: Pair, key: str) -> None:
    from interlock.store import Txn

    pair.bus.commit(Txn(id="txn_1", deletes=(key,), quiet=True))


def test_a_result_that_is_gone_after_it_expired_proves_nothing() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=3 * 86400.0)
    south.work()
    pair.clock.advance(86400 + 60)
    folder = Range(keys.bus_result("north"))
    (item,) = pair.bus.read(folder).ranges[folder]
    _delete(pair, item.key)
    south.tend()
    assert state(south) == "answered"


def kept(south: Swarm) -> tuple[int, int]:
    """The marks and the received requests at home, after a pass of retention."""
    south.run(HousekeepingPass(south.runner).run(south.actor))
    folders = Range(keys.UNACKNOWLEDGED), Range(keys.RECEIVED)
    found = south.pair.homes["south"].read(*folders).ranges
    return len(found[folders[0]]), len(found[folders[1]])


def results(pair: Pair) -> list[str]:
    folders = [Range(f"{kind}/north/") for kind in ("res", "res-body")]
    found = pair.bus.read(*folders).ranges
    return [item.key for folder in folders for item in found[folder]]


def test_the_results_of_an_asker_that_never_returns_are_deleted_from_the_bus() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(3):
        north.sent(deadline=3 * 86400.0)
        south.work()
    pair.clock.advance(86400 + 30)  # clocks may differ
    south.tend()
    assert len(results(pair)) == 6
    before = pair.bus.extent().entries
    pair.clock.advance(60)
    south.tend()
    assert results(pair) == []
    assert pair.bus.extent().entries == before + 1
    south.tend()
    assert {each.state for each in listed(south, received=True)} == {"answered"}
    pair.clock.advance(3 * 86400)
    assert kept(south) == (0, 0)


def test_a_result_stays_as_long_as_its_asker_may_take_it_although_the_request_is_deleted() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=60.0)
    south.work()
    pair.clock.advance(600)
    assert kept(south) == (1, 0)
    south.tend()
    assert len(results(pair)) == 2
    pair.clock.advance(86400)
    south.tend()
    assert results(pair) == []
    assert kept(south) == (0, 0)


def test_a_result_for_a_bus_that_is_gone_for_ever_leaves_no_mark() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=60.0)
    south.work()
    pair.cable("south").is_cut = True
    pair.clock.advance(2 * 86400)
    south.tend()
    assert kept(south) == (1, 0)
    pair.clock.advance(7 * 86400)
    assert kept(south) == (0, 0)


def test_a_client_whose_clock_is_ahead_deletes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    north.sent(deadline=3 * 86400.0)
    south.work()
    engine = pair.clock.wall()
    pair.clock.advance(2 * 86400)
    monkeypatch.setattr(pair.homes["south"], "wall", lambda: engine)
    south.tend()
    assert len(results(pair)) == 2


def test_many_acknowledgements_are_one_commit_and_few_reads() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    for _ in range(30):
        north.sent()
    while south.work():
        pass
    north.take_in()
    before = pair.homes["south"].read(keys.BASE).revision
    assert south.run(south.requests.acknowledgements.look(south.actor, south.own())) == 30
    assert pair.homes["south"].read(keys.BASE).revision == before + 1
    assert south.run(south.requests.acknowledgements.look(south.actor, south.own())) == 0


def test_a_long_list_of_absent_askers_is_looked_at_part_by_part() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    south.requests.acknowledgements._at_once = 4
    for _ in range(10):
        north.sent()
    while south.work():
        pass
    look = south.requests.acknowledgements.look
    assert south.run(look(south.actor, south.own())) == 0
    assert south.requests.acknowledgements._after != ""
    north.take_in()
    done = sum(south.run(look(south.actor, south.own())) for _ in range(3))
    assert done == 10


def test_a_sent_request_says_where_it_is_and_what_comes_next() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    pair.cable("north").is_cut = True
    request = north.sent()
    view = only(north)
    assert (view.state, view.place, view.step) == ("open", "outbox", 1)
    assert (view.next, view.next_at) == ("a person is asked", view.deadline)
    pair.cable("north").is_cut = False
    pair.clock.advance(20)
    north.tend()
    view = only(north)
    assert (view.place, view.step, view.next) == ("bus", 3, "attempt 2 of 4 is sent")
    assert view.next_at == pytest.approx(pair.clock.wall() + 60, abs=1)
    open_ = north.result(request)
    assert isinstance(open_, out.RequestOpen)
    assert (open_.reason, open_.next) == ("it was put on the bus for south", view.next)
    south.work()
    north.take_in()
    assert (only(north).state, only(north).next) == ("answered", "")


def test_a_result_on_the_bus_is_taken_in_by_the_one_who_asks_for_it_without_a_wait() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.work()
    pair.cable("north").is_cut = True
    assert isinstance(north.result(request), out.RequestOpen)
    pair.cable("north").is_cut = False
    pair.clock.advance(20)
    assert isinstance(north.result(request), out.RequestAnswered)


def test_received_requests_are_listed_page_by_page_over_all_swarms() -> None:
    pair = Pair(names=("north", "south", "west"))
    north, west, south = pair.swarm("north"), pair.swarm("west"), pair.swarm("south", "bob")
    sent = {(north.sent(), "north"), (west.sent(), "west"), (north.sent(), "north")}
    sent |= {(west.sent(), "west")}
    south.take_in()
    found: list[tuple[str, str]] = []
    after: str | None = None
    while True:
        page = south.run(RequestCalls(south.context).list(received=True, after=after, limit=1))
        found += [(each.request, each.from_swarm) for each in page]
        if (after := page.more) is None:
            break
    assert len(found) == 4
    assert set(found) == sent
    assert len(listed(south, received=True, swarm="west")) == 2
    assert len(listed(south, received=True, state=["received"])) == 4
    assert listed(south, received=True, state=["acknowledged"]) == []
    with pytest.raises(BadInput, match="ID@SWARM"):
        listed(south, received=True, after="req_1")
    with pytest.raises(BadInput, match="received, running"):
        listed(south, received=True, state=["open"])


def test_the_list_and_the_result_are_one_line_each_in_words() -> None:
    pair = Pair()
    north, south = pair.swarm("north"), pair.swarm("south", "bob")
    request = north.sent()
    south.take_in()
    south.claim()

    head, line = render(north.run(RequestCalls(north.context).list())).splitlines()
    assert head.split() == ["REQUEST", "STATE", "WHERE", "FROM", "TO", "TYPE", "AGE", "NEXT"]
    assert line.split()[:6] == [request, "open", "bus", "ada", "can:sum@south", "sum"]
    assert "attempt 2 of 4 is sent" in line
    received = render(south.run(RequestCalls(south.context).list(received=True)))
    assert received.splitlines()[1].split()[1:5] == ["running", "bob", "ada@north", "can:sum"]
    assert "it was put on the bus for south; attempt 2 of 4" in render(north.result(request))
