"""Discovery: agents by capability, the status of a swarm, and the choice between swarms."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from interlock.nouns.swarms.head import RegisteredAgent, RegistryHead
from interlock.nouns.swarms.registry import (
    CLOCK_SKEW,
    ENTRY_TTL,
    KnownSwarm,
    SwarmChoice,
    choices,
    choose,
    discover,
    status,
    unlisted,
)
from interlock.nouns.swarms.results import FoundAgent

NOW = 1_700_000_000.0
STALE = NOW + ENTRY_TTL + CLOCK_SKEW + 1


def agent(name: str, load: int, *can: str) -> RegisteredAgent:
    return RegisteredAgent(agent=name, can=can, load=load)


def known(swarm: str, *agents: RegisteredAgent, live: bool = True) -> KnownSwarm:
    issued = round(NOW * 1000)
    entry = RegistryHead(
        from_swarm=swarm,
        key="",
        bus="bus-1",
        version=1,
        timestamp=issued,
        expires=issued + round(ENTRY_TTL * 1000),
        keys=(),
        agents=agents,
        depth=0,
    )
    return KnownSwarm(entry=entry, live=live)


BANK = known("bank", agent("ada", 50, "search"), agent("bob", 10, "search", "write"))
SHOP = known("shop", agent("cyd", 20, "*"), agent("dan", 0, "write"))


def names(*swarms: KnownSwarm, can: str = "search", now: float = NOW, of: str = "") -> list[str]:
    return [each.agent for each in discover(swarms, can, now, of)]


def test_agents_are_found_by_capability_the_least_loaded_first() -> None:
    assert names(BANK, SHOP) == ["bob", "cyd", "ada"]
    assert names(BANK, SHOP, can="write") == ["dan", "bob", "cyd"]
    assert names(BANK, SHOP, of="bank") == ["bob", "ada"]
    assert names(BANK, can="paint") == []


def test_swarms_that_are_not_live_or_stale_are_not_found() -> None:
    away = KnownSwarm(entry=BANK.entry, live=False)
    assert names(away, SHOP) == ["cyd"]
    assert names(BANK, SHOP, now=STALE) == []


def test_the_status_follows_from_liveness_and_freshness() -> None:
    entry = BANK.entry
    assert status(entry, NOW, live=True) == "online"
    assert status(entry, NOW, live=False) == "degraded"
    assert status(entry, STALE, live=True) == "degraded"
    assert status(entry, STALE, live=False) == "offline"
    assert status(None, NOW, live=True) == "degraded"
    assert status(None, NOW, live=False) == "offline"
    assert status(known("bank").entry, NOW, live=True) == "degraded"


def test_the_load_of_a_swarm_is_that_of_its_able_agents() -> None:
    found = discover((BANK, SHOP), "search", NOW)
    assert choices(found, {"shop": 4}) == (
        SwarmChoice(swarm="bank", in_flight=0, load=30.0),
        SwarmChoice(swarm="shop", in_flight=4, load=20.0),
    )


def test_without_a_choice_there_is_none() -> None:
    only = SwarmChoice(swarm="bank", in_flight=9, load=90.0)
    assert choose((), 0.5, 0.5) is None
    assert choose((only,), 0.5, 0.5) == only


unit = st.floats(0, 1, exclude_max=True)
options = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), min_size=2, max_size=6)


@given(options=options, first=unit, second=unit)
def test_the_choice_is_never_the_worst_and_prefers_fewer_own_requests_to_load(
    options: list[tuple[int, int]], first: float, second: float
) -> None:
    swarms = [
        SwarmChoice(swarm=f"s{number}", in_flight=own, load=load)
        for number, (own, load) in enumerate(options)
    ]
    chosen = choose(swarms, first, second)
    assert chosen is not None
    worse = [
        each
        for each in swarms
        if each != chosen and (each.in_flight, each.load) >= (chosen.in_flight, chosen.load)
    ]
    assert worse


def test_each_pair_of_swarms_is_drawn_equally_often() -> None:
    drawn = random.Random(7)
    swarms = [SwarmChoice(swarm=f"s{own}", in_flight=own, load=0) for own in range(4)]
    found = Counter(choose(swarms, drawn.random(), drawn.random()) for _ in range(6000))
    assert [round(found[each] / 1000) for each in swarms] == [3, 2, 1, 0]


def run(seed: int, *, spread: bool) -> float:
    """The mean time of requests to ten swarms whose loads are published every five minutes.

    Each request takes one second, and all together use four fifths of the capacity.
    """
    drawn = random.Random(seed)
    free_at, loads, waits = [0.0] * 10, [0.0] * 10, []
    now, published = 0.0, 0.0
    while now < 600:
        now += drawn.expovariate(8)
        if now - published > 300:
            loads, published = [max(0.0, each - now) for each in free_at], now
        swarms = [
            SwarmChoice(swarm=str(place), in_flight=round(max(0.0, ends - now)), load=load)
            for place, (ends, load) in enumerate(zip(free_at, loads, strict=True))
        ]
        best = min(swarms, key=lambda each: each.load)
        chosen = (choose(swarms, drawn.random(), drawn.random()) or best) if spread else best
        place = int(chosen.swarm)
        free_at[place] = max(free_at[place], now) + 1
        waits.append(free_at[place] - now)
    return sum(waits) / len(waits)


def test_a_choice_of_two_is_far_quicker_than_the_least_loaded_of_five_minutes_ago() -> None:
    assert run(1, spread=True) * 20 < run(1, spread=False)


def test_the_list_is_stable_among_equals() -> None:
    same = known("aide", agent("zoe", 20, "search"))
    found = discover((SHOP, same), "search", NOW)
    assert found[0] == FoundAgent(swarm="aide", agent="zoe", load=20)


def test_a_receiver_that_an_entry_does_not_list_is_named_with_those_that_are_close() -> None:
    said = unlisted(BANK.entry, "can:serch")
    assert said.startswith("bank lists no agent that can serch")
    assert said.endswith("did you mean can:search?")
    assert unlisted(BANK.entry, "bib").endswith("did you mean bob?")
    assert "did you mean" not in unlisted(BANK.entry, "can:xyz")


def test_nothing_is_said_of_a_receiver_that_is_listed_or_may_come_later() -> None:
    for to in ("can:search", "can:write", "ada", "*"):
        assert unlisted(BANK.entry, to) == ""
    assert unlisted(SHOP.entry, "can:anything") == ""
    away = RegisteredAgent(agent="eve", away=True)
    assert unlisted(known("mint", away).entry, "can:search") == ""
    assert unlisted(known("mint", away, agent("ada", 0)).entry, "eve") == ""
