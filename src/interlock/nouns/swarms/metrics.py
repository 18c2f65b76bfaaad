"""Swarms as numbers for monitors: their agents, how old their entries are, and who is cut off."""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.swarms import breaker as breakers
from interlock.nouns.swarms.swarm import decode_floor, decode_own, decode_own_entry
from interlock.runtime.metrics import LABELLED, Metric, gauges
from interlock.runtime.monitoring import Scrape
from interlock.runtime.reads import looked_up, readable
from interlock.steps import Op, Read

AGENTS = "interlock_swarm_agents"
AGE = "interlock_swarm_entry_age_seconds"
OPEN = "interlock_swarm_breaker_open"


def swarm_gauges(scrape: Scrape) -> Op[list[Metric]]:
    """Our own swarm, and each peer as its last accepted entry says; none without a swarm."""
    snapshot = yield Read(keys.OWN_SWARM, keys.OWN_ENTRY)
    own = snapshot[keys.OWN_SWARM]
    if own is None or (home := readable(decode_own, own)) is None:
        return []
    from interlock.nouns.swarms.publish_service import own_agents
    from interlock.nouns.swarms.trust_service import decode_breaker

    now = scrape.runner.clock.wall()
    here = yield from own_agents(now)
    agents = {home.name: sum(not each.away for each in here)}
    ages: dict[str, float] = {}
    entry = snapshot[keys.OWN_ENTRY]
    if entry is not None and (said := readable(decode_own_entry, entry)) is not None:
        ages[home.name] = round(max(0.0, now - said.at), 3)
    floors = [
        floor
        for item in (yield from scrape.read(keys.FLOORS, LABELLED))
        if (floor := readable(decode_floor, item)) is not None
    ]
    circuits = yield from looked_up(keys.breaker(floor.swarm) for floor in floors)
    open_: dict[str, int] = {}
    for floor in floors:
        item = circuits[keys.breaker(floor.swarm)]
        circuit = breakers.CLOSED if item is None else readable(decode_breaker, item)
        state = breakers.state(circuit or breakers.CLOSED, now)
        open_[floor.swarm] = state != "closed"
        if floor.entry is not None:
            agents[floor.swarm] = sum(not each.away for each in floor.entry.agents)
            ages[floor.swarm] = round(max(0.0, now - floor.entry.timestamp / 1000), 3)
    return [
        *gauges(AGENTS, "Active agents of a swarm, as its entry says.", "swarm", agents),
        *gauges(AGE, "Seconds since a swarm signed its entry.", "swarm", ages),
        *gauges(OPEN, "1 while the circuit breaker of a peer is open.", "swarm", open_),
    ]
