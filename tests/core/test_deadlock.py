"""Who is refused: each shape by itself, then small states against an oracle (``wait_model.py``)."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.wait_model import Asked, State, deadlocked_sets, never_end, served
from tests.hypothesis_settings import budget

from interlock.core.deadlock import (
    DeadlockedSet,
    Resource,
    ResourceNeed,
    Wait,
    closed_deadlock,
    deadlocked_set,
)


def room(thing: str, *holders: str | tuple[str, int], capacity: int = 1) -> Resource:
    held = tuple((each, 1) if isinstance(each, str) else each for each in holders)
    return Resource(thing, capacity, held)


def wait(caller: str, *needs: ResourceNeed | Resource, order: int = 0, id_: str = "") -> Wait:
    wanted = tuple(ResourceNeed(each) if isinstance(each, Resource) else each for each in needs)
    return Wait(id_ or caller, caller, caller, order, wanted)


def members(found: DeadlockedSet | None) -> set[str]:
    return set() if found is None else {each.id for each in found.members}


def cycle(found: DeadlockedSet | None) -> list[str]:
    return [] if found is None else [each.agent for each in found.cycle]


def ring(*callers: str) -> list[Wait]:
    """Each waits for a lock of the next one."""
    after = zip(callers, [*callers[1:], callers[0]], strict=True)
    return [wait(one, room(other, other), order=n) for n, (one, other) in enumerate(after)]


def test_two_who_wait_for_each_other_are_a_knot_and_the_younger_gives_way() -> None:
    found = deadlocked_set(ring("ada", "bob"), "bob")
    assert members(found) == {"ada", "bob"}
    assert cycle(found) == ["bob", "ada"]
    assert found is not None
    assert found.victim.id == "bob"


def test_who_waits_for_its_own_lock_is_a_knot_by_itself() -> None:
    assert cycle(deadlocked_set([wait("ada", room("x", "ada"))], "ada")) == ["ada"]


def test_who_holds_under_another_name_than_it_waits_under_is_told_by_both() -> None:
    as_ada = Resource("x", 1, (("thread", 1),), ("ada",))
    alone = Wait("w", "thread", "bob", 0, (ResourceNeed(as_ada),))
    found = deadlocked_set([alone], "w")
    assert found is not None
    assert found.names == ("bob", "ada")
    same = deadlocked_set([replace(alone, agent="ada")], "w")
    assert same is not None
    assert same.names == ("ada",)


def test_a_holder_that_goes_on_is_no_deadlock() -> None:
    assert deadlocked_set([wait("ada", room("x", "bob"))], "ada") is None


def test_a_long_circle_is_told_in_order_from_whoever_asks() -> None:
    names = [f"w{number:02}" for number in range(20)]
    assert cycle(deadlocked_set(ring(*names), "w07")) == names[7:] + names[:7]


def test_the_shortest_of_several_circles_is_told() -> None:
    long = ring("ada", "bob", "cleo", "dan")
    short = wait("dan", ResourceNeed(room("ada", "ada")), ResourceNeed(room("b2", "bob")), order=3)
    assert cycle(deadlocked_set([*long[:3], short], "bob")) == ["bob", "cleo", "dan"]


def test_slots_with_a_way_open_are_no_deadlock() -> None:
    slots = room("s", "bob", "cleo", capacity=2)
    waits = [wait("ada", slots, order=1), wait("bob", room("a", "ada"), order=2)]
    assert deadlocked_set(waits, "ada") is None, "cleo goes on"
    waits.append(wait("cleo", room("a2", "ada"), order=3))
    assert members(deadlocked_set(waits, "cleo")) == {"ada", "bob", "cleo"}


def test_free_room_is_a_way_open() -> None:
    slots = room("s", ("bob", 1), capacity=3)
    ring_ = [wait("ada", ResourceNeed(slots, 2)), wait("bob", room("a", "ada"))]
    assert deadlocked_set(ring_, "ada") is None
    tight = [wait("ada", ResourceNeed(slots, 3)), wait("bob", room("a", "ada"))]
    assert members(deadlocked_set(tight, "ada")) == {"ada", "bob"}


def test_a_small_request_behind_a_big_one_that_waits_for_it_is_a_knot() -> None:
    slots = room("s", "ada", capacity=2)
    big = wait("bob", ResourceNeed(slots, 2), order=1)
    small = wait("ada", ResourceNeed(slots, 1, before="bob"), order=2)
    found = deadlocked_set([big, small], "ada")
    assert cycle(found) == ["ada", "bob"]
    assert found is not None
    assert found.victim.id == "ada"


def test_two_holders_that_both_want_more_are_a_knot() -> None:
    slots = room("s", ("ada", 2), ("bob", 1), capacity=4)
    waits = [
        wait("ada", ResourceNeed(slots, 2), order=1),
        wait("bob", ResourceNeed(slots, 2, "ada"), order=2),
    ]
    assert members(deadlocked_set(waits, "bob")) == {"ada", "bob"}
    assert deadlocked_set([waits[0]], "ada") is None


def test_who_wants_several_at_once_waits_for_all_of_them() -> None:
    free, taken = room("free"), room("x", "bob")
    waits = [wait("ada", free, taken, order=2), wait("bob", room("a", "ada"), order=1)]
    assert members(deadlocked_set(waits, "ada")) == {"ada", "bob"}


def test_a_caller_with_several_waits_goes_on_if_one_of_them_can_end() -> None:
    one = wait("ada", room("b", "bob"), id_="one")
    two = wait("ada", room("c", "cleo"), id_="two")
    bob = wait("bob", room("a", "ada"))
    assert deadlocked_set([one, two, bob], "bob") is None
    cleo = wait("cleo", room("a", "ada"))
    assert members(deadlocked_set([one, two, bob, cleo], "bob")) == {"one", "two", "bob", "cleo"}


def test_nobody_in_particular_is_never_in_the_way() -> None:
    assert deadlocked_set([wait("", room("x", ""), id_="one")], "one") is None
    waits = [wait("ada", room("x", ""), order=1), wait("", room("a", "ada"), id_="one")]
    assert deadlocked_set(waits, "ada") is None


def test_who_stands_behind_a_knot_is_not_part_of_it() -> None:
    waits = [*ring("ada", "bob"), wait("eve", room("ada", "ada"), order=9)]
    assert deadlocked_set(waits, "eve") is None
    assert members(deadlocked_set(waits, "ada")) == {"ada", "bob"}


def test_two_knots_are_two() -> None:
    waits = [*ring("ada", "bob"), *ring("cleo", "dan", "eve")]
    assert members(deadlocked_set(waits, "ada")) == {"ada", "bob"}
    assert members(deadlocked_set(waits, "dan")) == {"cleo", "dan", "eve"}


def test_a_circle_that_another_knot_keeps_closed_is_none() -> None:
    """Fay needs one slot of two; as soon as dan and eve are untangled there is one."""
    slots = room("s", "gil", "dan", capacity=2)
    waits = [
        *ring("dan", "eve"),
        wait("fay", slots, order=7),
        wait("gil", room("f", "fay"), order=8),
    ]
    assert deadlocked_set(waits, "fay") is None
    assert deadlocked_set(waits, "gil") is None
    assert members(deadlocked_set(waits, "eve")) == {"dan", "eve"}


def test_a_need_that_can_be_met_ties_nobody_in() -> None:
    """Yan holds a slot of something that has room, so nobody waits for yan."""
    slots = room("s", "yan", capacity=2)
    waits = [
        wait("ada", slots, room("b", "bob"), order=1),
        wait("bob", room("a", "ada"), order=2),
        wait("yan", room("a2", "ada"), order=3),
    ]
    assert deadlocked_set(waits, "yan") is None
    assert members(deadlocked_set(waits, "bob")) == {"ada", "bob"}


def test_of_two_circles_that_hang_together_each_is_untied_by_who_closed_it() -> None:
    waits = [
        wait("ada", room("b", "bob"), room("c", "cleo"), order=1),
        wait("bob", room("a", "ada"), order=2),
        wait("cleo", room("a2", "ada"), order=3),
    ]
    assert closed_deadlock(waits, "ada") is None
    assert members(closed_deadlock(waits, "bob")) == {"ada", "bob"}
    assert members(closed_deadlock(waits, "cleo")) == {"ada", "cleo"}


def test_who_is_freed_by_another_that_gives_way_waits_for_that() -> None:
    waits = [
        wait("bob", room("a", "ada"), order=1),
        wait("ada", room("b", "bob"), room("c", "cleo"), order=2),
        wait("cleo", room("a2", "ada"), order=3),
    ]
    assert members(closed_deadlock(waits, "ada")) == {"ada", "bob"}
    assert closed_deadlock(waits, "cleo") is None


def test_who_waits_for_itself_gives_way_though_others_are_about_to() -> None:
    held = room("b", "cleo")
    waits = [
        wait("ada", held, room("c", "bob"), order=1),
        wait("bob", ResourceNeed(held, 1, "ada"), order=2),
        wait("cleo", ResourceNeed(held, 1, "bob"), order=3),
    ]
    assert members(closed_deadlock(waits, "bob")) == {"ada", "bob"}
    assert "cleo" in members(closed_deadlock(waits, "cleo"))


def test_what_is_inside_of_a_caller_keeps_it_from_going_on() -> None:
    waits = [wait("ada/inner", room("b", "bob"), order=1), wait("bob", room("a", "ada"), order=2)]
    assert members(deadlocked_set(waits, "bob")) == {"ada/inner", "bob"}
    assert cycle(deadlocked_set([wait("ada/inner", room("a", "ada"))], "ada/inner")) == [
        "ada/inner"
    ]


def test_two_inside_of_one_caller_are_two() -> None:
    assert deadlocked_set([wait("ada/one", room("b", "ada/two"))], "ada/one") is None
    assert deadlocked_set([wait("ada", room("b", "ada/two"))], "ada") is None, (
        "it may go on by itself"
    )


def test_a_thousand_waiters_and_holders_are_judged_in_no_time() -> None:
    holders = [f"h{number}" for number in range(1000)]
    slots = room("s", *holders, capacity=1000)
    waits = [
        wait(f"w{number}", ResourceNeed(slots, 1, f"w{number - 1}" if number else ""), order=number)
        for number in range(1000)
    ]
    stuck = [wait(name, room("w", "w999"), order=2000 + n) for n, name in enumerate(holders)]
    began = time.thread_time()
    assert deadlocked_set([*waits, *stuck[1:]], "w999") is None
    assert len(members(deadlocked_set([*waits, *stuck], "w999"))) == 2000
    assert time.thread_time() - began < 10.0


def as_waits(state: State) -> list[Wait]:
    rooms = {
        pool: Resource(pool, capacity, tuple((c, n) for p, c, n in state.grants if p == pool))
        for pool, capacity in state.capacities
    }
    last: dict[str, str] = {}
    waits = []
    for order, (id_, ask) in enumerate(state.waits):
        needs = tuple(ResourceNeed(rooms[p], n, last.get(p, "")) for p, n in ask.wants)
        last |= dict.fromkeys([p for p, _ in ask.wants], id_)
        needs += tuple(
            ResourceNeed(any_of(f"{id_}.{n}", group)) for n, group in enumerate(ask.groups)
        )
        waits.append(Wait(id_, ask.caller, ask.caller, order, needs, ask.also))
    return waits


def any_of(thing: str, group: tuple[str, ...]) -> Resource:
    return Resource(thing, len(group), tuple((name, 1) for name in group))


def tasks(callers: list[str]) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    """All of some who work on what is needed."""
    workers = st.tuples(st.sampled_from(callers))
    return st.lists(workers, max_size=2, unique=True).map(tuple)


def answers(callers: list[str]) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    """Any one of some callers and agents."""
    able = st.sampled_from([*callers, "agent0", "agent1", "agent2"])
    return st.lists(able, min_size=1, max_size=3, unique=True).map(lambda each: (tuple(each),))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Who holds what, and who waits, as requests one after the other would leave it.

    Most callers wait for one thing at most; one goes by several waits, and one is nobody.  Two and
    two are one agent, which others may ask as a whole; some work on tasks that others wait for.
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
        also = (f"agent{callers.index(caller) // 2}",) if caller else ()
        if draw(st.integers(0, 2)) == 0:
            groups = draw(st.sampled_from([tasks, answers]).flatmap(lambda each: each(callers)))
            asked = Asked(caller, (), groups, also)
            state = State(*state[:2], (*state.waits, (f"w{number}", asked)))
            asleep.add(caller)
            continue
        some = draw(st.lists(st.sampled_from(pools), min_size=1, max_size=2, unique=True))
        wants = tuple((pool, draw(st.integers(1, capacities[pool]))) for pool in some)
        more = (f"w{number}", Asked(caller, wants, (), also))
        state, _ = served(State(*state[:2], (*state.waits, more)))
        if any(id_ == f"w{number}" for id_, _ in state.waits):
            asleep.add(caller)
    return state


@settings(max_examples=budget(75), deadline=None)
@given(states())
def test_who_closed_a_knot_gives_way_and_nobody_else(state: State) -> None:
    waits = as_waits(state)
    told = {each.id: closed_deadlock(waits, each.id) for each in waits}
    truth, standing = deadlocked_sets(state), set[str]()
    for id_, found in told.items():
        closes = any(id_ in each and each <= {*standing, id_} for each in truth)
        assert (found is not None) == closes, (id_, truth)
        if found is None:
            standing.add(id_)
        else:
            assert found.victim.id == found.cycle[0].id == id_
            assert never_end(state, members(found))


@settings(max_examples=budget(40), deadline=None)
@given(states())
def test_the_last_wait_closes_every_knot_and_is_the_only_one_to_give_way(state: State) -> None:
    """Waits come one after the other, and each looks when it came: that is how a fleet lives."""
    standing: list[tuple[str, Asked]] = []
    for each in state.waits:
        standing.append(each)
        now = State(*state[:2], tuple(standing))
        if closed_deadlock(as_waits(now), each[0]) is not None:
            standing.pop()
        assert deadlocked_sets(State(*state[:2], tuple(standing))) == [], "nobody sleeps for ever"
