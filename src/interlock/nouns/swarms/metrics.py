"""Swarms as numbers for monitors: their agents, how old their entries are, and who is cut off."""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.swarms import breaker as breakers
from interlock.nouns.swarms.swarm import decode_own, decode_own_entry
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
    from interlock.nouns.swarms.registry_service import peer_states
    from interlock.nouns.swarms.trust_service import decode_breaker

    now = scrape.runner.clock.wall()
    here = yield from own_agents(now)
    agents = {home.name: sum(not each.away for each in here)}
    ages: dict[str, float] = {}
    entry = snapshot[keys.OWN_ENTRY]
    if entry is not None and (said := readable(decode_own_entry, entry)) is not None:
        ages[home.name] = round(max(0.0, now - said.at), 3)
    peers = list((yield from peer_states()).items())
    scrape.partial |= len(peers) > LABELLED
    peers = peers[:LABELLED]
    circuits = yield from looked_up(keys.breaker(name) for name, _ in peers)
    open_: dict[str, int] = {}
    for name, peer in peers:
        item = circuits[keys.breaker(name)]
        circuit = breakers.CLOSED if item is None else readable(decode_breaker, item)
        open_[name] = breakers.state(circuit or breakers.CLOSED, now) != "closed"
        if (published := peer.floor.entry) is not None:
            agents[name] = sum(not each.away for each in published.agents)
            ages[name] = round(max(0.0, now - published.timestamp / 1000), 3)
    return [
        *gauges(AGENTS, "Active agents of a swarm, as its entry says.", "swarm", agents),
        *gauges(AGE, "Seconds since a swarm signed its entry.", "swarm", ages),
        *gauges(OPEN, "1 while the circuit breaker of a peer is open.", "swarm", open_),
    ]
