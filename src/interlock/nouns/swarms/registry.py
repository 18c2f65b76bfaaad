"""The registry: the signed entry in which a swarm describes itself, and what others find in it.

The entry (``RegistryHead``) lists the keys of the swarm, its agents with abilities and load, and
the depth of its queue; it has a version and expires after ``ENTRY_TTL``.  ``registry_rules.py``
says which entries a reader accepts.

**Rotation** is an entry, too: the next version lists the new key, and the old one with the time at
which it ends (``until``), and both sign.  The owner publishes with both until then, so a reader
that was away for less than the overlap can follow.  The overlap is longer than any deadline, so no
message on its way loses its key.  A key that must not count any more is revoked.

**Liveness** is separate: an unsigned key on the bus that lasts ``LIVE_TTL``.  It says only that a
process of the swarm is there, and together with the expiry gives the status.

**Load** ranks the list that people see, and is minutes old.  All senders that trusted it would send
to the same agent (with a cache of five minutes that made requests a hundred times slower than a
random choice), so a request names an ability, and workers pull.  Between swarms the sender draws
two at random and takes the one with fewer of its own requests in flight; load only breaks a tie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, validate
from interlock.core.safe_text import foreign, foreign_names
from interlock.errors import BadInput
from interlock.nouns.swarms.head import (
    ABILITY,
    AGENTS_LIMIT,
    ALL_AGENTS,
    ENTRY_EXPIRES,
    KEYS_LIMIT,
    LONGEST_DEADLINE,
    REGISTRY_LIMIT,
    ListedKey,
    RegisteredAgent,
    RegistryHead,
    milliseconds,
)
from interlock.nouns.swarms.limits import QUEUE_NOTICE
from interlock.nouns.swarms.results import FoundAgent, SwarmStatus

ENTRY_TTL = ENTRY_EXPIRES
AGENTS_BYTES = (REGISTRY_LIMIT - 8 * 1024) * 3 // 4
"""Bytes for the agents of an entry: base64 makes four of three, and the rest needs room."""
CACHED = 5 * 60.0
"""Seconds for which a reader may use an accepted entry without another look."""
REPUBLISH = 5 * 60.0
"""Seconds after which an entry is signed again, though its agents did not change."""
LIVE_TTL = 30.0
"""Seconds after which a swarm without a process is noticed."""
CLOCK_SKEW = 30.0
"""Seconds by which the clocks of two swarms may differ."""
OVERLAP = LONGEST_DEADLINE + ENTRY_TTL + 2 * CLOCK_SKEW
"""Seconds for which a rotated key still counts: no message that it signed lives longer."""

K = TypeVar("K", bound=ListedKey)

# The own entry.


def valid_keys(keys: Iterable[K], now: float) -> tuple[K, ...]:
    """The keys that have not ended; the current one stays first."""
    return tuple([each for each in keys if not each.until or each.until > milliseconds(now)])


def next_entry(
    swarm: str,
    bus: str,
    version: int,
    *,
    keys: Sequence[ListedKey],
    agents: Iterable[RegisteredAgent],
    depth: int,
    now: float,
) -> RegistryHead:
    """This version of our entry; keys that have ended are left out.

    ``version`` is above all that our home store and the bus have: after a home store was restored
    from a copy, a lower version would be a rollback for every reader.
    """
    listed = valid_keys(keys, now)
    return RegistryHead(
        from_swarm=swarm,
        key=listed[0].fingerprint,
        timestamp=milliseconds(now),
        expires=milliseconds(now) + milliseconds(ENTRY_TTL),
        bus=bus,
        version=version,
        keys=listed,
        agents=tuple(agents),
        depth=depth,
    )


def fitting(agents: Sequence[RegisteredAgent]) -> tuple[RegisteredAgent, ...]:
    """As many of these agents, the first ones, as one entry holds.

    An entry that is too large could not be published, and the swarm would expire.
    """
    room = AGENTS_BYTES
    found: list[RegisteredAgent] = []
    for each in agents[:AGENTS_LIMIT]:
        room -= len(codec.encode(each)) + 1
        if room < 0:
            break
        found.append(each)
    return tuple(found)


def content(entry: RegistryHead) -> str:
    """The digest of what readers must learn soon: keys, agents and abilities, and a long queue.

    The load and the depth change all the time; they wait for the next version, except that senders
    have to know each further thousand of requests.
    """
    agents = [(each.agent, each.can, each.keys, each.away) for each in entry.agents]
    return codec.digest(codec.encode((entry.keys, agents, entry.depth // QUEUE_NOTICE)))


def require_room(keys: Sequence[ListedKey], whose: str, now: float, most: int = KEYS_LIMIT) -> None:
    """Refuse a rotation while too many keys sign for a swarm, or for an agent."""
    left = valid_keys(keys, now)
    if len(left) >= most:
        ends = min(each.until for each in left if each.until) / 1000
        raise BadInput(
            f"{len(left)} keys sign for {whose}, and no more are allowed;"
            f" rotate again in {validate.span(ends - now)}, or revoke one"
        )


def rotated(
    keys: Sequence[K], new: K, whose: str, now: float, most: int = KEYS_LIMIT
) -> tuple[K, ...]:
    """The keys of a swarm, or of an agent, with a new current one.

    The others end after the overlap; until then they sign each entry, if they are of a swarm.
    """
    require_room(keys, whose, now, most)
    until = milliseconds(now + OVERLAP)
    left = valid_keys(keys, now)
    old = [each if each.until else replace(each, until=until) for each in left]
    return (new, *[each for each in old if each.public != new.public])


# Discovery.


class KnownSwarm(Struct, frozen=True, kw_only=True):
    """An accepted entry, and whether the swarm's liveness key exists."""

    entry: RegistryHead
    live: bool


class SwarmChoice(Struct, frozen=True, kw_only=True):
    """A swarm that can do it: our own requests in flight to it, and the load of its able agents."""

    swarm: str
    in_flight: int
    load: float


def status(entry: RegistryHead | None, now: float, *, live: bool) -> SwarmStatus:
    """Online if it is live, its entry is fresh and lists agents; offline if neither holds."""
    fresh = entry is not None and now <= entry.expires / 1000 + CLOCK_SKEW
    if live and fresh:
        return "online" if entry is not None and entry.here else "degraded"
    return "degraded" if live or fresh else "offline"


def discover(
    swarms: Iterable[KnownSwarm], capability: str, now: float, swarm: str = ""
) -> tuple[FoundAgent, ...]:
    """The agents of swarms that are online with this ability, least loaded first."""
    found = [
        FoundAgent(swarm=each.entry.from_swarm, agent=agent.agent, load=agent.load)
        for each in swarms
        if swarm in ("", each.entry.from_swarm)
        and status(each.entry, now, live=each.live) == "online"
        for agent in each.entry.agents
        if _is_able(agent, capability)
    ]
    return tuple(sorted(found, key=lambda each: (each.load, each.swarm, each.agent)))


def unlisted(entry: RegistryHead, to: str) -> str:
    """Why an entry lists no receiver for a request, with names that are close; empty if it does.

    An entry without agents proves nothing: its workers may come later.
    """
    here = [each for each in entry.agents if not each.away]
    ability = to.removeprefix(ABILITY)
    wanted = ability != to
    if not here or to == ALL_AGENTS:
        return ""
    if any(_is_able(each, ability) for each in here) if wanted else to in _names(entry):
        return ""
    from difflib import get_close_matches

    known = sorted({each for agent in here for each in agent.can}) if wanted else _names(entry)
    near = [f"{ABILITY if wanted else ''}{each}" for each in get_close_matches(ability, known, 3)]
    what = f"no agent that can {foreign(ability)}" if wanted else f"no agent {foreign(to)}"
    meant = f"; did you mean {foreign_names(near, ' or ')}?" if near else ""
    return f"{foreign(entry.from_swarm)} lists {what}, so it waits until there is one{meant}"


def _names(entry: RegistryHead) -> list[str]:
    return [each.agent for each in entry.agents]


def _is_able(agent: RegisteredAgent, capability: str) -> bool:
    return capability in agent.can or validate.ALL_ABILITIES in agent.can


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
