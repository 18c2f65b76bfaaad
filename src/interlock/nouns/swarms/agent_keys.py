"""Keys of agents: how an agent of our swarm gets one, and for how long it counts.

A process without the key of its swarm can still sign, with a key of its own: the one that its
client has (``connect(key=...)``, ``--key`` or ``INTERLOCK_KEY``) and that signs its entries in the
record.  A message counts under that key only for the agent that the key belongs to.

    announce   the agent stores the key at home, with a proof that the key itself signed
    publish    the next registry entry lists it; a process with the key of the swarm signs that
    sign       peers that have read the entry take messages of this agent

No one can announce a key that they do not have, since the proof is a signature of it over the
names of the swarm and the agent.  A home trusts its own processes with everything else.

    current ──its owner announces another one──> rotated: counts for a week ──> gone
       └──revoke──> gone at once, and permanently

One agent has one current key.  Another process under the same name with another key is refused,
unless it also has the key that it replaces: so a name that is used twice by accident never takes a
key away.  A key that its agent has not used for ``KEPT`` is not listed any more, and its name is
free.  It is listed for that long although the agent has left: agents come and go with every
command, and what they signed is still on its way.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.signing import Signer
from interlock.core.validate import quote
from interlock.errors import BusTrouble, NotAllowed
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.head import AGENT_KEYS_LIMIT, REGISTRY_LIMIT, AgentKey, agent_key
from interlock.nouns.swarms.own_keys import own_swarm, verified_own
from interlock.nouns.swarms.swarm import OwnAgentKeys, OwnSwarm, decode_agent_keys
from interlock.runtime.reads import every, readable
from interlock.runtime.retention_clock import earlier_time
from interlock.steps import InThread, NextChanges, Op, OpenWatch, Read
from interlock.store import Snapshot

if TYPE_CHECKING:
    from interlock.nouns.swarms.bus import Bus
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

USED_AGAIN = 3600.0
"""Seconds after which the use of a key is noted again."""
KEPT = registry.OVERLAP + USED_AGAIN
"""Seconds for which a key is listed after its last use."""
PATIENCE = 10.0
"""Seconds to wait for the registry entry that lists a new key."""


# Rules.


def announced(
    before: OwnAgentKeys | None, agent: str, new: AgentKey, owned: Collection[str], now: float
) -> OwnAgentKeys:
    """The keys of an agent that uses this one; NotAllowed if the agent has another key.

    ``owned`` are the keys that this process has.
    """
    known = () if before is None or is_unused(before, now) else valid(before, now)
    mine = [key for key in known if key.public == new.public]
    if mine:
        return OwnAgentKeys(agent=agent, keys=known, at=now)
    if before is not None and _was_rotated(before, new):
        raise NotAllowed(
            f"{new.fingerprint} was replaced as the key of {agent}; start this again with the"
            " current one ('interlock key list' shows it)"
        )
    if known and known[0].fingerprint not in owned:
        raise NotAllowed(
            f"{agent} signs with another key, {known[0].fingerprint}: take another name for this"
            " agent, or use that key; if it is lost, end it where the key of the swarm is:"
            f" interlock key revoke {quote(known[0].fingerprint)}"
        )
    listed = registry.rotated(known, new, agent, now, AGENT_KEYS_LIMIT)
    return OwnAgentKeys(agent=agent, keys=listed, at=now)


def valid(own: OwnAgentKeys, now: float) -> tuple[AgentKey, ...]:
    """The keys of an agent that have not ended."""
    return registry.valid_keys(own.keys, now)


def is_unused(own: OwnAgentKeys, now: float) -> bool:
    """Whether an agent has not used its key for so long that the key is not listed any more."""
    return now > own.at + KEPT


def _was_rotated(before: OwnAgentKeys, key: AgentKey) -> bool:
    return any(each.public == key.public and each.until for each in before.keys)


# Announcing.


def announce(runner: Runner, own: OwnSwarm, actor: Actor, signer: Signer) -> Op[str]:
    """Store the key of this process as that of its agent; returns its fingerprint.

    Nothing is committed if it is stored already.
    """
    name, place = signer.fingerprint, keys.agent_keys(actor.agent)
    if name in [key.fingerprint for key in own.keys]:
        return name
    now = runner.clock.wall()
    item = (yield Read(place))[place]
    before = None if item is None else readable(decode_agent_keys, item)
    if before is not None and _says(before, name, now):
        return name
    # The earlier of two clocks: one that is ahead must not take the key of another agent away.
    now = round((yield from earlier_time(runner)), 3)
    new, revoked = agent_key(own.name, actor.agent, signer), keys.revocation(own.name, name)
    owned: set[str] = yield InThread(_keys_of_this_user)

    def deciding() -> DecideOp[str]:
        snapshot = yield (place, revoked)
        if snapshot[revoked] is not None:
            raise NotAllowed(
                f"{name} is revoked, permanently; make another key with 'interlock key new NAME'"
            )
        stored = snapshot[place]
        found = None if stored is None else readable(decode_agent_keys, stored)
        after = announced(found, actor.agent, new, owned, now)
        return Decision(
            outcome=name,
            verb="key.announce",
            thing=f"swarm/{own.name}",
            puts=(Write(place, after),),
            events=(Event("swarm:key_announced", actor.agent),),
            reason=name,
        )

    return (yield from runner.change(deciding, actor)).outcome


def announce_joining(runner: Runner, actor: Actor) -> Op[None]:
    """Announce the key of a client whose agent joins, if its home is a swarm."""
    own = yield from own_swarm()
    if own is not None and runner.signer is not None:
        yield from announce(runner, own, actor, runner.signer)


def _says(stored: OwnAgentKeys, fingerprint: str, now: float) -> bool:
    """Whether an agent has said recently that it uses this key."""
    listed = [key.fingerprint for key in valid(stored, now)]
    return fingerprint in listed and 0 <= now - stored.at < USED_AGAIN


def _keys_of_this_user() -> set[str]:
    from interlock.nouns.swarms import key_files

    return {file.fingerprint for file in key_files.listed() if file.fingerprint}


def wait_until_listed(bus: Bus, own: OwnSwarm, fingerprint: str, runner: Runner) -> Op[None]:
    """Wait until our entry on the bus lists this key of an agent; NotAllowed if it does not.

    A message that came before it would be refused.  While the bus is away nothing can come before
    it, so there is nothing to wait for.
    """
    wait = runner.capabilities.allow(PATIENCE)
    try:
        listed = yield from bus.on(own, lambda _: _is_listed(own, fingerprint, runner, wait))
    except BusTrouble:
        return
    if not listed:
        raise NotAllowed(
            f"the entry of {own.name} on the bus does not list the key {fingerprint} of this agent"
            " yet; a process with the key of the swarm signs the next one: run a worker there"
            " ('interlock request serve') or 'interlock swarm sync --follow', and repeat this"
        )


def _is_listed(own: OwnSwarm, fingerprint: str, runner: Runner, wait: float) -> Op[bool]:
    key, clock = keys.registry_entry(own.name), runner.clock
    ends = clock.monotonic() + wait
    while True:
        snapshot: Snapshot = yield Read(key, longest=REGISTRY_LIMIT)
        entry = verified_own(snapshot[key], own, clock.wall())
        if entry is not None and fingerprint in entry.agent_keys():
            return True
        watch = yield OpenWatch(key, snapshot.revision)
        try:
            if not (yield NextChanges(watch, max(0.0, ends - clock.monotonic()))):
                return False
        finally:
            watch.close()


# All agents of our swarm.


def listed_agent_keys(now: float) -> Op[dict[str, tuple[AgentKey, ...]]]:
    """The keys that our next entry lists, by agent; those that were used last come first."""
    items = yield from every(keys.AGENT_KEYS)
    stored = [each for item in items if (each := readable(decode_agent_keys, item))]
    stored.sort(key=lambda each: (-each.at, each.agent))
    return {each.agent: valid(each, now) for each in stored if not is_unused(each, now)}


def agent_of_key(fingerprint: str) -> Op[str]:
    """The agent in our swarm that has this key; empty if there is none."""
    for item in (yield from every(keys.AGENT_KEYS)):
        stored = readable(decode_agent_keys, item)
        if stored is not None and fingerprint in [key.fingerprint for key in stored.keys]:
            return stored.agent
    return ""


def without(stored: OwnAgentKeys, fingerprint: str) -> OwnAgentKeys | None:
    """The keys of an agent without one; None if its current one is gone.

    A rotated key never becomes the current one again.
    """
    left = tuple([key for key in stored.keys if key.fingerprint != fingerprint])
    return replace(stored, keys=left) if any(not key.until for key in left) else None
