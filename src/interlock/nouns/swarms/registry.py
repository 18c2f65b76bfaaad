"""The registry: the signed entry in which a swarm describes itself, and what others find in it.

The entry lists the keys of the swarm, its agents with capabilities and load, and the depth of its
queue; it has a version and expires after ``ENTRY_TTL``.  ``registry_rules.py`` says which entries
a reader accepts.

**Rotation** is an entry, too: the next version lists the new key, and the old one with the time at
which it ends (``until``), and both sign.  The owner publishes with both until then, so a reader
that was away for less than the overlap can follow.  The overlap is longer than the longest
deadline of a request, so no request in flight loses its key.

**Liveness** is separate: an unsigned key on the bus that lasts ``LIVE_TTL``.  It says only that a
process of the swarm is there, and together with the expiry gives the status.

**Load** ranks the list that people see, and is minutes old.  All senders that trusted it would send
to the same agent (with a cache of five minutes that made requests a hundred times slower than a
random choice), so a request names a capability, and workers pull.  Between swarms the sender draws
two at random and takes the one with fewer of its own requests in flight; load only breaks a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import validate
from interlock.errors import BadInput

ENTRY_TTL = 15 * 60.0
"""Seconds that an entry counts after it was issued."""
CACHED = 5 * 60.0
"""Seconds for which a reader may use an accepted entry without another look."""
LIVE_TTL = 30.0
"""Seconds after which a swarm without a process is noticed."""
CLOCK_SKEW = 30.0
"""Seconds by which the clocks of two swarms may differ."""
LONGEST_DEADLINE = 24 * 3600.0
OVERLAP = LONGEST_DEADLINE + ENTRY_TTL + 2 * CLOCK_SKEW
"""Seconds for which a rotated key still signs: the request that it signed last may live as long."""
KEY_AGE = 90 * 24 * 3600.0
"""Seconds after which a key is due for rotation."""

KEYS_LIMIT = 4
"""Keys that sign for a swarm at one time, those that were rotated included."""

SwarmStatus: TypeAlias = Literal["online", "degraded", "offline"]


# The signed entry.  All fields are required and no other is allowed, and numbers are integers, so
# that decoding and encoding returns the signed bytes in every language.


class ListedKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key: its fingerprint, the public key in base64, and when it ends (ms) if it was rotated."""

    fingerprint: str
    public: str
    until: int | None


class ListedAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent: what it can do, its load, and its own key if it has one.

    The load is a percentage: 0 is idle, 100 is busy, and more means that requests wait.
    """

    agent: str
    capabilities: tuple[str, ...]
    load: int
    key: ListedKey | None


class RegistryEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a swarm says about itself; ``issued`` and ``expires`` are in milliseconds.

    ``depth`` is the number of requests that its home store has not finished.
    """

    swarm: str
    bus: str
    version: int
    issued: int
    expires: int
    keys: tuple[ListedKey, ...]
    agents: tuple[ListedAgent, ...]
    depth: int


# The own entry.


def renew(
    before: RegistryEntry, agents: Iterable[ListedAgent], depth: int, now: float
) -> RegistryEntry:
    """The next version of our entry; keys that have ended are left out.

    ``before`` is the newest version that our home store or the bus has: after a home store was
    restored from a copy, a lower version would be a rollback for every reader.
    """
    issued = round(now * 1000)
    ended = [each for each in before.keys if each.until is not None and each.until <= issued]
    return replace(
        before,
        version=before.version + 1,
        issued=issued,
        expires=issued + round(ENTRY_TTL * 1000),
        keys=tuple([each for each in before.keys if each not in ended]),
        agents=tuple(agents),
        depth=depth,
    )


def rotate(before: RegistryEntry, new: ListedKey, now: float) -> RegistryEntry:
    """The next version with a new current key; the others end after the overlap.

    The old and the new keys all sign it.
    """
    if len(before.keys) >= KEYS_LIMIT:
        ends = min(each.until or 0 for each in before.keys if each.until) / 1000
        raise BadInput(
            f"{len(before.keys)} keys sign for {before.swarm}, and no more are allowed;"
            f" rotate again in {validate.span(ends - now)}, or revoke one"
        )
    until = round((now + OVERLAP) * 1000)
    old = [each if each.until else replace(each, until=until) for each in before.keys]
    listed = (new, *[each for each in old if each.fingerprint != new.fingerprint])
    return renew(replace(before, keys=listed), before.agents, before.depth, now)


# Discovery.


class KnownSwarm(Struct, frozen=True, kw_only=True):
    """An accepted entry, and whether the swarm's liveness key exists."""

    entry: RegistryEntry
    live: bool


class FoundAgent(Struct, frozen=True, kw_only=True):
    """An agent with the wanted capability."""

    swarm: str
    agent: str
    load: int


class SwarmChoice(Struct, frozen=True, kw_only=True):
    """A swarm that can do it: our own requests in flight to it, and the load of its able agents."""

    swarm: str
    in_flight: int
    load: float


def status(entry: RegistryEntry | None, now: float, *, live: bool) -> SwarmStatus:
    """Online if it is live, its entry is fresh and lists agents; offline if neither holds."""
    fresh = entry is not None and now <= entry.expires / 1000 + CLOCK_SKEW
    if live and fresh:
        return "online" if entry is not None and entry.agents else "degraded"
    return "degraded" if live or fresh else "offline"


def discover(
    swarms: Iterable[KnownSwarm], capability: str, now: float, swarm: str = ""
) -> tuple[FoundAgent, ...]:
    """The agents of swarms that are online with a capability, least loaded first."""
    found = [
        FoundAgent(swarm=each.entry.swarm, agent=agent.agent, load=agent.load)
        for each in swarms
        if swarm in ("", each.entry.swarm) and status(each.entry, now, live=each.live) == "online"
        for agent in each.entry.agents
        if _is_able(agent, capability)
    ]
    return tuple(sorted(found, key=lambda each: (each.load, each.swarm, each.agent)))


def _is_able(agent: ListedAgent, capability: str) -> bool:
    return capability in agent.capabilities or validate.ALL_ABILITIES in agent.capabilities


def choices(found: Sequence[FoundAgent], in_flight: Mapping[str, int]) -> tuple[SwarmChoice, ...]:
    """The swarms of discovered agents, with the mean load of these agents."""
    loads: dict[str, list[float]] = {}
    for each in found:
        loads.setdefault(each.swarm, []).append(each.load)
    return tuple(
        [
            SwarmChoice(swarm=swarm, in_flight=in_flight.get(swarm, 0), load=sum(all_) / len(all_))
            for swarm, all_ in sorted(loads.items())
        ]
    )


def choose(swarms: Sequence[SwarmChoice], first: float, second: float) -> SwarmChoice | None:
    """The better of two swarms, drawn with two random numbers from [0, 1); None without any."""
    if len(swarms) < 2:  # noqa: PLR2004 - there is nothing to compare
        return swarms[0] if swarms else None
    one = int(first * len(swarms))
    other = (one + 1 + int(second * (len(swarms) - 1))) % len(swarms)
    return min(swarms[one], swarms[other], key=lambda each: (each.in_flight, each.load))
