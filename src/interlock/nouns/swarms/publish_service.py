"""Our own swarm: registering it, and its registry entry on the bus.

**Publishing** takes two commits.  The one at home reserves the next version (``swarm/entry``), so
two processes never sign two texts as one version.  The one on the bus puts the signed entry there,
unless a higher version is there already.

    crash before the first commit     nothing happened
    crash between the two             a version number is unused; the next pass signs the next one
    crash after the second            done

Whether an entry is due is judged by the entry on the bus, not by the version that was reserved: an
entry that never arrived there, was deleted or replaced is signed again.  A version on the bus
counts only with a valid signature of one of our keys.  It may be above the one at home, after the
home store was restored from a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.client_context import Context
from interlock.core import keys, signing, validate
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import foreign
from interlock.core.signing import Signer
from interlock.errors import BadInput, BusTrouble, NotAllowed, StoreBusy
from interlock.nouns.agents.views import all_reports, all_sessions
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.agent_keys import listed_agent_keys
from interlock.nouns.swarms.bus import bus_here
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    TrustedKey,
    claimed_keys,
    claimed_signers,
    open_envelope,
    sign_head,
)
from interlock.nouns.swarms.head import ABILITY, REGISTRY_LIMIT, RegisteredAgent, RegistryHead
from interlock.nouns.swarms.limits import LARGEST_QUEUE
from interlock.nouns.swarms.own_keys import (
    adopt_rotation,
    is_revoked,
    listed_key,
    named_signer,
    own_signers,
    own_swarm,
    verified_own,
)
from interlock.nouns.swarms.results import NameTaken, RegisterOutcome, SwarmRegistered
from interlock.nouns.swarms.swarm import (
    OwnEntry,
    OwnSwarm,
    OwnSwarmChange,
    decode_own,
    decode_own_entry,
)
from interlock.runtime.attempt import BoundedRefs, DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Range, Snapshot

_TRIES = 5
"""How often publishing starts over because our swarm was changed while it ran."""


class VersionReserved(Struct, frozen=True, kw_only=True, tag="reserved"):
    """The version that this process may sign."""

    version: int


class EntryPublished(Struct, frozen=True, kw_only=True, tag="published"):
    """The version of our entry on the bus, and whether this pass put it there."""

    version: int
    now: bool


# Registering.


def register(
    context: Context, actor: Actor, name: str, *, url: str, shown: str, key: str
) -> Op[RegisterOutcome]:
    """Make our home a swarm: one commit; then its entry is put on the bus.

    Again, it names another bus, or rotates to another key.
    """
    signer: Signer = yield InThread(partial(named_signer, key))
    signing.require_public_key(signer.public_key)
    if (yield from is_revoked(name, signer.fingerprint)):
        raise BadInput(f"{signer.fingerprint} is revoked, permanently; name another key")
    before = yield from own_swarm()
    if before is not None and before.name != name:
        return _has_another_name(before, name)
    bus_id = yield from context.bus.reach(url)
    if (yield from bus_here()) == bus_id:
        raise BadInput("the bus is this home itself, where others must not write; name another")
    now = context.runner.clock.wall()
    planned = OwnSwarm(
        name=name,
        bus=url,
        bus_shown=shown,
        bus_id=bus_id,
        key=key,
        keys=(listed_key(signer),),
        registered=now,
    )
    alone = False
    if before is None:
        other = yield from context.bus.on(planned, lambda _: _other_owner(planned, now))
        if other:
            return NameTaken(swarm=name, reason=other)
        alone = yield from context.bus.on(planned, lambda _: _is_alone(name))
    done = yield from _registering(context.runner, planned, actor)
    if isinstance(done, NameTaken):
        return done
    own = done.own
    version, trouble = 0, ""
    try:
        published = yield from publish(context, own, actor, force=True, urgent=True)
        version = published.version
    except BusTrouble as error:
        version, trouble = (yield from _reserved()), str(error)
    return SwarmRegistered(
        swarm=name,
        bus=shown,
        bus_id=bus_id,
        fingerprint=own.fingerprint,
        version=version,
        alone=alone,
        trouble=trouble,
    )


def _has_another_name(own: OwnSwarm, name: str) -> NameTaken:
    said = f"this home is the swarm {foreign(own.name)}, and its peers know it as that"
    return NameTaken(swarm=name, reason=said)


def _is_alone(name: str) -> Op[bool]:
    """Whether no other swarm has an entry on the bus."""
    entries = Range(keys.REGISTRY, limit=2)
    snapshot: Snapshot = yield Read(entries, longest=0)
    return all(each.key == keys.registry_entry(name) for each in snapshot.ranges[entries])


def _other_owner(own: OwnSwarm, now: float) -> Op[str]:
    """Why this name belongs to another swarm on the bus; empty if it does not.

    An entry without a valid signature, or an expired one, takes no name.
    """
    snapshot: Snapshot = yield Read(keys.registry_entry(own.name), longest=REGISTRY_LIMIT)
    item = snapshot[keys.registry_entry(own.name)]
    if item is None or own.fingerprint in claimed_signers(item.value, RegistryHead):
        return ""
    claimed = {
        name: TrustedKey(public_key=key, swarm=own.name)
        for name, key in claimed_keys(item.value).items()
    }
    found = open_envelope(item.value, RegistryHead, claimed.get, bus=own.bus_id, now=now)
    if isinstance(found, EnvelopeRefused):
        return ""
    return (
        f"the bus has an entry of {foreign(own.name)} that is signed by {foreign(found.head.key)}"
    )


def _registering(runner: Runner, planned: OwnSwarm, actor: Actor) -> Op[OwnSwarmChange | NameTaken]:
    def deciding() -> DecideOp[OwnSwarmChange | NameTaken]:
        item = (yield (keys.OWN_SWARM,))[keys.OWN_SWARM]
        before = None if item is None else decode_own(item)
        if before is not None and before.name != planned.name:
            return Decision(outcome=_has_another_name(before, planned.name))
        own = planned if before is None else _again(before, planned, runner.clock.wall())
        if own == before:
            return Decision(outcome=OwnSwarmChange(own=own))
        return Decision(
            outcome=OwnSwarmChange(own=own),
            verb="swarm.register",
            thing=f"swarm/{own.name}",
            puts=(Write(keys.OWN_SWARM, own),),
            events=(Event("swarm:registered", actor.agent),),
        )

    return (yield from runner.change(deciding, actor)).outcome


def _again(before: OwnSwarm, planned: OwnSwarm, now: float) -> OwnSwarm:
    """The swarm with the bus and key that were named now; another key is a rotation."""
    moved = replace(planned, keys=before.keys, registered=before.registered)
    new = planned.keys[0]
    known = [key.public for key in registry.valid_keys(before.keys, now)]
    if known[:1] == [new.public]:
        return moved
    if new.public in known:
        raise BadInput(
            f"{new.fingerprint} was rotated and will end; name the current key of {before.name},"
            " or a new one"
        )
    return replace(moved, keys=registry.rotated(before.keys, new, before.name, now))


# Publishing.


def publish(
    context: Context, own: OwnSwarm, actor: Actor, *, force: bool = False, urgent: bool = False
) -> Op[EntryPublished]:
    """Put our entry on the bus if it is due, and see that our liveness key is there."""
    for _ in range(_TRIES):
        own = yield from adopt_rotation(context.runner, own, actor)
        done = yield from _publish(context, own, force=force, urgent=urgent)
        if isinstance(done, EntryPublished):
            return done
        own = done.own
    raise StoreBusy("the keys of this swarm keep changing; retry later")


def _publish(
    context: Context, own: OwnSwarm, *, force: bool, urgent: bool
) -> Op[EntryPublished | OwnSwarmChange]:
    """One attempt; our swarm as it is now if another process has changed it."""
    now = context.runner.clock.wall()
    stands = yield from context.bus.on(own, lambda _: _own_entry_on_bus(own, now), urgent=urgent)
    depth = yield from own_depth()
    draft = partial(
        registry.next_entry,
        own.name,
        own.bus_id,
        keys=own.keys,
        agents=(yield from own_agents(now)),
        depth=depth,
        now=now,
    )
    if not force and stands is not None and not _is_due(stands, own, draft, now):
        yield from context.bus.on(own, partial(_beat, own=own))
        return EntryPublished(version=stands.version, now=False)
    above = 0 if stands is None else stands.version
    if above >= validate.LARGEST:
        raise NotAllowed(
            f"an entry of {own.name} with the highest version stands on the bus, so a thief has"
            f" a key of it: rotate, revoke the old key, and have all peers pin the new one"
        )
    signers: tuple[Signer, ...] = yield InThread(partial(own_signers, own, now))
    reserved = yield from _reserve(context.runner, own, above, depth)
    if isinstance(reserved, OwnSwarmChange):
        return reserved
    version = reserved.version
    head = draft(version)
    data: bytes = yield InThread(lambda: sign_head(head, *signers))
    put = partial(_put_entry, own=own, data=data, version=version, now=now)
    return (yield from context.bus.on(own, put))


def _is_due(
    stands: RegistryHead, own: OwnSwarm, draft: Callable[[int], RegistryHead], now: float
) -> bool:
    if not registry.valid_keys(own.keys, now):
        return True  # the attempt says what to do
    age = now - stands.timestamp / 1000
    fresh = -registry.CLOCK_SKEW < age < registry.REPUBLISH
    return not fresh or registry.content(stands) != registry.content(draft(stands.version))


def _own_entry_on_bus(own: OwnSwarm, now: float) -> Op[RegistryHead | None]:
    """Our entry as it stands on the bus; None if none is there that one of our keys signed."""
    snapshot: Snapshot = yield Read(keys.registry_entry(own.name), longest=REGISTRY_LIMIT)
    return verified_own(snapshot[keys.registry_entry(own.name)], own, now)


def _reserve(
    runner: Runner, own: OwnSwarm, above: int, depth: int
) -> Op[VersionReserved | OwnSwarmChange]:
    """The next version of our entry, which no other process signs; the record has its depth.

    If our keys or our bus have changed, the entry would be wrong: our swarm as it is now.
    """

    def deciding() -> DecideOp[VersionReserved | OwnSwarmChange]:
        snapshot = yield (keys.OWN_ENTRY, keys.OWN_SWARM)
        item, swarm = snapshot[keys.OWN_ENTRY], snapshot[keys.OWN_SWARM]
        if swarm is not None and (current := decode_own(swarm)) != own:
            return Decision(outcome=OwnSwarmChange(own=current))
        version = max(above, 0 if item is None else decode_own_entry(item).version) + 1
        entry = OwnEntry(version=version, at=round(runner.clock.wall(), 3))
        return Decision(
            outcome=VersionReserved(version=version),
            verb="swarm.publish",
            thing=f"swarm/{own.name}",
            puts=(Write(keys.OWN_ENTRY, entry),),
            events=(Event("swarm:signed", own.name, details={"depth": depth}),),
        )

    return (yield from runner.change(deciding, Actor())).outcome


def _reserved() -> Op[int]:
    snapshot: Snapshot = yield Read(keys.OWN_ENTRY)
    item = snapshot[keys.OWN_ENTRY]
    return 0 if item is None else decode_own_entry(item).version


def _put_entry(
    runner: Runner, *, own: OwnSwarm, data: bytes, version: int, now: float
) -> Op[EntryPublished]:
    """Put our entry on the bus, unless a later one is there."""
    key, live = keys.registry_entry(own.name), keys.swarm_live(own.name)

    def deciding() -> DecideOp[EntryPublished]:
        stands = verified_own((yield BoundedRefs.of((key,), REGISTRY_LIMIT))[key], own, now)
        if stands is not None and stands.version >= version:
            return Decision(outcome=EntryPublished(version=stands.version, now=False))
        return Decision(
            outcome=EntryPublished(version=version, now=True),
            verb="swarm.publish",
            thing=f"swarm/{own.name}",
            puts=(
                Write(key, Raw(data)),
                Write(live, own.name, registry.LIVE_TTL),
            ),
            events=(Event("swarm:published", own.name),),
        )

    return (yield from runner.change(deciding, Actor(own.name))).outcome


def _beat(runner: Runner, *, own: OwnSwarm) -> Op[None]:
    """Renew our liveness key on the bus, or put it there again."""
    write = Write(keys.swarm_live(own.name), own.name, registry.LIVE_TTL)
    if write.key in (yield from runner.renew([write])):
        return

    def deciding() -> DecideOp[None]:
        yield from ()
        return Decision(outcome=None, puts=(write,), quiet=True)

    yield from runner.change(deciding, Actor(own.name))


def beat(context: Context, own: OwnSwarm, *, urgent: bool = False) -> Op[None]:
    """Show on the bus that a process of our swarm is there."""
    yield from context.bus.on(own, partial(_beat, own=own), urgent=urgent)


def listed_abilities(can: Iterable[str]) -> Iterator[str]:
    """Abilities as others ask for them: a worker for requests has ``can:X``, and ``@`` its name."""
    for each in can:
        if not each.startswith("@"):
            yield each.removeprefix(ABILITY)


def own_agents(now: float) -> Op[tuple[RegisteredAgent, ...]]:
    """The agents with a live session at home: their abilities, keys, and the work that they have.

    Also those that are away, if they signed something that may still be on its way.  If an entry
    does not hold them all, those that are away for longest are left out.
    """
    sessions = yield from all_sessions()
    live = yield from looked_up(keys.live(each.id) for each in sessions)
    reports = yield from all_reports()
    claims = [keys.claim_of(item.key)[0] for item in (yield from every(keys.CLAIMS))]
    own_keys = yield from listed_agent_keys(now)
    able: dict[str, dict[str, None]] = {}
    busy: dict[str, list[int]] = {}
    for each in sessions:
        if live[keys.live(each.id)] is None:
            continue
        report = reports.get(each.id)
        can = listed_abilities(report.can if report else ())
        able.setdefault(each.agent, {}).update(dict.fromkeys(can))
        busy.setdefault(each.agent, []).append(claims.count(each.id))
    here = [
        RegisteredAgent(
            agent=agent,
            can=tuple(sorted(can)[: validate.CAN_LIMIT]),
            load=round(100 * sum(busy[agent]) / len(busy[agent])),
            keys=own_keys.get(agent, ()),
        )
        for agent, can in sorted(able.items())
    ]
    away = [
        RegisteredAgent(agent=agent, keys=of_agent, away=True)
        for agent, of_agent in own_keys.items()
        if agent not in able
    ]
    return registry.fitting([*here, *away])


def own_depth() -> Op[int]:
    """The requests of other swarms that our home has received and not finished.

    Each has a mark of its own: an item of ``received/`` is kept until the deadline, answered or
    not.  Senders stop at ``LARGEST_QUEUE``, so a longer queue is not counted to its end.
    """
    return len((yield from every(keys.UNANSWERED, most=LARGEST_QUEUE)))
