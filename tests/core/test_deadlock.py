"""Who is refused: each shape by itself, then all small states against an oracle.

The oracle knows nothing of reduction.  It plays the programs: whoever runs may give back one of its
grants and at last ends, queues are served in their order, and a wait never ends if no execution
serves it.  A *knot* is a set of waits that never end though everybody outside of it ends at once,
and that all end as soon as any one of them gives way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.deadlock import Knot, Need, Room, Wait, knot


def room(thing: str, *holders: str | tuple[str, int], capacity: int = 1) -> Room:
    held = tuple((each, 1) if isinstance(each, str) else each for each in holders)
    return Room(thing, capacity, held)


def wait(caller: str, *needs: Need | Room, order: int = 0, id_: str = "") -> Wait:
    wanted = tuple(Need(each) if isinstance(each, Room) else each for each in needs)
    return Wait(id_ or caller, caller, caller, order, wanted)


def members(found: Knot | None) -> set[str]:
    return set() if found is None else {each.id for each in found.members}


def cycle(found: Knot | None) -> list[str]:
    return [] if found is None else [each.agent for each in found.cycle]


def ring(*callers: str) -> list[Wait]:
    """Each waits for a lock of the next one."""
    after = zip(callers, [*callers[1:], callers[0]], strict=True)
    return [wait(one, room(other, other), order=n) for n, (one, other) in enumerate(after)]


def test_two_who_wait_for_each_other_are_a_knot_and_the_younger_gives_way() -> None:
    found = knot(ring("ada", "bob"), "bob")
    assert members(found) == {"ada", "bob"}
    assert cycle(found) == ["bob", "ada"]
    assert found is not None
    assert found.youngest.id == "bob"


def test_who_waits_for_its_own_lock_is_a_knot_by_itself() -> None:
    assert cycle(knot([wait("ada", room("x", "ada"))], "ada")) == ["ada"]


def test_a_holder_that_goes_on_is_no_deadlock() -> None:
    assert knot([wait("ada", room("x", "bob"))], "ada") is None


def test_a_long_circle_is_told_in_order_from_whoever_asks() -> None:
    names = [f"w{number:02}" for number in range(20)]
    assert cycle(knot(ring(*names), "w07")) == names[7:] + names[:7]


def test_the_shortest_of_several_circles_is_told() -> None:
    long = ring("ada", "bob", "cleo", "dan")
    short = wait("dan", Need(room("ada", "ada")), Need(room("b2", "bob")), order=3)
    assert cycle(knot([*long[:3], short], "bob")) == ["bob", "cleo", "dan"]


def test_slots_with_a_way_open_are_no_deadlock() -> None:
    slots = room("s", "bob", "cleo", capacity=2)
    waits = [wait("ada", slots, order=1), wait("bob", room("a", "ada"), order=2)]
    assert knot(waits, "ada") is None, "cleo goes on"
    waits.append(wait("cleo", room("a2", "ada"), order=3))
    assert members(knot(waits, "cleo")) == {"ada", "bob", "cleo"}


def test_free_room_is_a_way_open() -> None:
    slots = room("s", ("bob", 1), capacity=3)
    ring_ = [wait("ada", Need(slots, 2)), wait("bob", room("a", "ada"))]
    assert knot(ring_, "ada") is None
    tight = [wait("ada", Need(slots, 3)), wait("bob", room("a", "ada"))]
    assert members(knot(tight, "ada")) == {"ada", "bob"}


def test_a_small_request_behind_a_big_one_that_waits_for_it_is_a_knot() -> None:
    slots = room("s", "ada", capacity=2)
    big = wait("bob", Need(slots, 2), order=1)
    small = wait("ada", Need(slots, 1, before="bob"), order=2)
    found = knot([big, small], "ada")
    assert cycle(found) == ["ada", "bob"]
    assert found is not None
    assert found.youngest.id == "ada"


def test_two_holders_that_both_want_more_are_a_knot() -> None:
    slots = room("s", ("ada", 2), ("bob", 1), capacity=4)
    waits = [wait("ada", Need(slots, 2), order=1), wait("bob", Need(slots, 2, "ada"), order=2)]
    assert members(knot(waits, "bob")) == {"ada", "bob"}
    assert knot([waits[0]], "ada") is None


def test_who_wants_several_at_once_waits_for_all_of_them() -> None:
    free, taken = room("free"), room("x", "bob")
    waits = [wait("ada", free, taken, order=2), wait("bob", room("a", "ada"), order=1)]
    assert members(knot(waits, "ada")) == {"ada", "bob"}


def test_a_caller_with_several_waits_goes_on_if_one_of_them_can_end() -> None:
    one = wait("ada", room("b", "bob"), id_="one")
    two = wait("ada", room("c", "cleo"), id_="two")
    bob = wait("bob", room("a", "ada"))
    assert knot([one, two, bob], "bob") is None
    cleo = wait("cleo", room("a", "ada"))
    assert members(knot([one, two, bob, cleo], "bob")) == {"one", "two", "bob", "cleo"}


def test_nobody_in_particular_is_never_in_the_way() -> None:
    assert knot([wait("", room("x", ""), id_="one")], "one") is None
    waits = [wait("ada", room("x", ""), order=1), wait("", room("a", "ada"), id_="one")]
    assert knot(waits, "ada") is None


def test_who_stands_behind_a_knot_is_not_part_of_it() -> None:
    waits = [*ring("ada", "bob"), wait("eve", room("ada", "ada"), order=9)]
    assert knot(waits, "eve") is None
    assert members(knot(waits, "ada")) == {"ada", "bob"}


def test_two_knots_are_two() -> None:
    waits = [*ring("ada", "bob"), *ring("cleo", "dan", "eve")]
    assert members(knot(waits, "ada")) == {"ada", "bob"}
    assert members(knot(waits, "dan")) == {"cleo", "dan", "eve"}


def test_a_circle_that_another_knot_keeps_closed_is_none() -> None:
    """Fay needs one slot of two; as soon as dan and eve are untangled there is one."""
    slots = room("s", "gil", "dan", capacity=2)
    waits = [
        *ring("dan", "eve"),
        wait("fay", slots, order=7),
        wait("gil", room("f", "fay"), order=8),
    ]
    assert knot(waits, "fay") is None
    assert knot(waits, "gil") is None
    assert members(knot(waits, "eve")) == {"dan", "eve"}


def test_a_need_that_can_be_met_ties_nobody_in() -> None:
    """Yan holds a slot of something that has room, so nobody waits for yan."""
    slots = room("s", "yan", capacity=2)
    waits = [
        wait("ada", slots, room("b", "bob"), order=1),
        wait("bob", room("a", "ada"), order=2),
        wait("yan", room("a2", "ada"), order=3),
    ]
    assert knot(waits, "yan") is None
    assert members(knot(waits, "bob")) == {"ada", "bob"}


def test_who_would_free_nobody_by_giving_way_waits_for_those_who_would() -> None:
    """As after a resize: two circles at once, and who is the youngest of all is in one of them."""
    waits = [
        wait("ada", room("b", "bob"), room("c", "cleo"), order=1),
        wait("bob", room("a", "ada"), order=2),
        wait("cleo", room("a2", "ada"), order=3),
    ]
    assert knot(waits, "cleo") is None
    found = knot(waits, "bob")
    assert members(found) == {"ada", "bob"}
    assert found is not None
    assert found.youngest.id == "bob"
    assert members(knot([waits[0], waits[2]], "cleo")) == {"ada", "cleo"}


def test_what_is_inside_of_a_caller_keeps_it_from_going_on() -> None:
    waits = [wait("ada/inner", room("b", "bob"), order=1), wait("bob", room("a", "ada"), order=2)]
    assert members(knot(waits, "bob")) == {"ada/inner", "bob"}
    assert cycle(knot([wait("ada/inner", room("a", "ada"))], "ada/inner")) == ["ada/inner"]


def test_two_inside_of_one_caller_are_two() -> None:
    assert knot([wait("ada/one", room("b", "ada/two"))], "ada/one") is None
    assert knot([wait("ada", room("b", "ada/two"))], "ada") is None, "it may go on by itself"


def test_a_thousand_waiters_and_holders_are_judged_in_no_time() -> None:
    holders = [f"h{number}" for number in range(1000)]
    slots = room("s", *holders, capacity=1000)
    waits = [
        wait(f"w{number}", Need(slots, 1, f"w{number - 1}" if number else ""), order=number)
        for number in range(1000)
    ]
    stuck = [wait(name, room("w", "w999"), order=2000 + n) for n, name in enumerate(holders)]
    began = time.perf_counter()
    assert knot([*waits, *stuck[1:]], "w999") is None
    assert len(members(knot([*waits, *stuck], "w999"))) == 2000
    assert time.perf_counter() - began < 2.0


class Asked(NamedTuple):
    """A wait as the oracle plays it: so much of some pools."""

    caller: str
    wants: tuple[tuple[str, int], ...]


class State(NamedTuple):
    """Capacities; grants as (pool, caller, weight); waits in their order."""

    capacities: tuple[tuple[str, int], ...]
    grants: tuple[tuple[str, str, int], ...]
    waits: tuple[tuple[str, Asked], ...]


def served(state: State) -> tuple[State, set[str]]:
    """Serve whoever is first in all of its queues and fits, until nobody is."""
    done: set[str] = set()
    while True:
        for number, (id_, ask) in enumerate(state.waits):
            before = {pool for _, other in state.waits[:number] for pool, _ in other.wants}
            if all(p not in before and n <= free(state, p) for p, n in ask.wants):
                grants = (*state.grants, *((p, ask.caller, n) for p, n in ask.wants))
                waits = (*state.waits[:number], *state.waits[number + 1 :])
                state = State(state.capacities, grants, waits)
                done.add(id_)
                break
        else:
            return state, done


def free(state: State, pool: str) -> int:
    return dict(state.capacities)[pool] - sum(n for p, _, n in state.grants if p == pool)


def ever_served(state: State, sleeping: Mapping[str, str]) -> set[str]:
    """All waits that some execution serves; ``sleeping`` says whose each wait is.

    A caller runs if it has no wait, or one of those that it had was served.
    """
    start = served(state)
    seen = {(start[0], frozenset(start[1]))}
    todo = list(seen)
    ends: set[str] = set()
    while todo:
        now, over = todo.pop()
        ends |= over
        asleep = set(sleeping.values()) - {sleeping[id_] for id_ in over} - {""}
        for number, (_, caller, _) in enumerate(now.grants):
            if caller not in asleep:
                rest = (*now.grants[:number], *now.grants[number + 1 :])
                after, more = served(State(now.capacities, rest, now.waits))
                step = (after, over | frozenset(more))
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
    return ends


def never_end(state: State, among: Iterable[str]) -> bool:
    """Whether none of these ever ends, though every other wait ends at once."""
    kept = set(among)
    others = {ask.caller for id_, ask in state.waits if id_ not in kept}
    waits = tuple((id_, ask) for id_, ask in state.waits if id_ in kept)
    sleeping = {id_: ask.caller for id_, ask in waits if ask.caller not in others}
    sleeping |= {id_: "" for id_, ask in waits if ask.caller in others}
    return not ever_served(State(state.capacities, state.grants, waits), sleeping)


def knots(state: State) -> list[set[str]]:
    """Sets that never end, none of whose parts would do so alone."""
    ids = [id_ for id_, _ in state.waits]
    found: list[set[str]] = []
    for size in range(1, len(ids) + 1):
        for some in combinations(ids, size):
            if not any(each <= set(some) for each in found) and never_end(state, some):
                found.append(set(some))
    return found


def as_waits(state: State) -> list[Wait]:
    rooms = {
        pool: Room(pool, capacity, tuple((c, n) for p, c, n in state.grants if p == pool))
        for pool, capacity in state.capacities
    }
    last: dict[str, str] = {}
    waits = []
    for order, (id_, ask) in enumerate(state.waits):
        needs = tuple(Need(rooms[p], n, last.get(p, "")) for p, n in ask.wants)
        last |= dict.fromkeys([p for p, _ in ask.wants], id_)
        waits.append(Wait(id_, ask.caller, ask.caller, order, needs))
    return waits


@st.composite
def states(draw: st.DrawFn) -> State:
    """Who holds what, and who waits, as requests one after the other would leave it.

    Most callers wait for one thing at most; one goes by several waits, and one is nobody.
    """
    pools = [f"p{n}" for n in range(draw(st.integers(2, 4)))]
    state = State(tuple((pool, draw(st.integers(1, 3))) for pool in pools), (), ())
    capacities = dict(state.capacities)
    callers = [f"c{n}" for n in range(draw(st.integers(3, 5)))]
    asleep: set[str] = set()
    for number in range(draw(st.integers(3, 11))):
        caller = draw(st.sampled_from([*callers, ""]))
        if caller in asleep and caller != "c0":
            continue
        some = draw(st.lists(st.sampled_from(pools), min_size=1, max_size=2, unique=True))
        wants = tuple((pool, draw(st.integers(1, capacities[pool]))) for pool in some)
        asked = State(*state[:2], (*state.waits, (f"w{number}", Asked(caller, wants))))
        state, _ = served(asked)
        if any(id_ == f"w{number}" for id_, _ in state.waits):
            asleep.add(caller)
    return state


@settings(max_examples=1500, deadline=None)
@given(states())
def test_whoever_gives_way_is_in_a_knot_and_while_there_is_one_somebody_does(state: State) -> None:
    waits = as_waits(state)
    truth = knots(state)
    told = {each.id: knot(waits, each.id) for each in waits}
    yielding = {id_ for id_, found in told.items() if found and found.youngest.id == id_}
    assert all(any(id_ in found for found in truth) for id_ in yielding), truth
    assert bool(yielding) == bool(truth)
    assert all(never_end(state, members(found)) for found in told.values() if found)


@settings(max_examples=600, deadline=None)
@given(states())
def test_the_last_wait_closes_every_knot_and_is_the_only_one_to_give_way(state: State) -> None:
    """Waits come one after the other, and each looks when it came: that is how a fleet lives."""
    standing: list[tuple[str, Asked]] = []
    for each in state.waits:
        standing.append(each)
        now = State(*state[:2], tuple(standing))
        found = knot(as_waits(now), each[0])
        if found is not None:
            assert found.youngest.id == each[0]
            assert found.cycle[0].id == each[0]
            standing.pop()
        assert knots(State(*state[:2], tuple(standing))) == [], "nobody sleeps for ever"
