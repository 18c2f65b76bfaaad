"""Revoking our own keys, and those of our agents.

A revocation is one commit at home: the key is taken off the list of our keys, or off that of its
agent, and the signed revocation is kept.  Each pass copies those to the bus, so a bus that was away
or emptied gets them again, and peers end the key with their next look.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Raw
from msgspec.structs import replace

from interlock.client_context import Context
from interlock.core import keys, signing
from interlock.core.decision import Decision, Event, Write
from interlock.core.signing import Signer
from interlock.errors import BadInput, BusTrouble, NotAllowed
from interlock.nouns.swarms.agent_keys import agent_of_key, without
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.head import ListedKey, RevocationHead, milliseconds
from interlock.nouns.swarms.own_keys import (
    adopt_rotation,
    current_signer,
    is_revoked,
    named_signer,
    own_swarm,
    signer_of,
)
from interlock.nouns.swarms.publish_service import publish
from interlock.nouns.swarms.results import KeyRevoked, NotRegistered, RevokeOutcome
from interlock.nouns.swarms.swarm import OwnSwarm, OwnSwarmChange, decode_agent_keys, decode_own
from interlock.runtime.attempt import BoundedRefs, DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up_within
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op
from interlock.store import Item


def revoke_own(context: Context, actor: Actor, named: str, reason: str) -> Op[RevokeOutcome]:
    """End one of our keys: one commit at home; then the revocation is put on the bus."""
    own = yield from own_swarm()
    if own is None:
        return NotRegistered()
    own = yield from adopt_rotation(context.runner, own, actor)
    fingerprint: str = yield InThread(partial(_fingerprint_of, named))
    agent = yield from agent_of_key(fingerprint)
    if not agent and fingerprint not in [key.fingerprint for key in own.keys]:
        if (yield from is_revoked(own.name, fingerprint)):
            trouble = yield from post_revocations(context, own, urgent=True)
            return _revoked(own, fingerprint, trouble, already=True)
        raise BadInput(
            f"{fingerprint} signs neither for {own.name} nor for an agent of it, any more;"
            " 'interlock swarm list --json' shows the keys"
        )
    now = context.runner.clock.wall()
    data: bytes = yield InThread(
        partial(_revocation, own, fingerprint, reason, now, context.runner.signer)
    )
    own = yield from _revoking(
        context.runner, actor, own, fingerprint=fingerprint, agent=agent, data=data, reason=reason
    )
    trouble = yield from post_revocations(context, own, urgent=True)
    if own.keys and not trouble:
        try:
            yield from publish(context, own, actor, force=True, urgent=True)
        except (BusTrouble, NotAllowed) as error:
            # The revocation is on the bus.  An agent need not have the key that signs the entry.
            trouble = "" if agent else str(error)
    return replace(_revoked(own, fingerprint, trouble), agent=agent)


def _revoked(own: OwnSwarm, fingerprint: str, trouble: str, *, already: bool = False) -> KeyRevoked:
    current = own.fingerprint if own.keys else ""
    return KeyRevoked(
        swarm=own.name, fingerprint=fingerprint, current=current, already=already, trouble=trouble
    )


def _fingerprint_of(named: str) -> str:
    if named.startswith(signing.FINGERPRINT_MARK):
        return signing.require_fingerprint(named)
    return named_signer(named).fingerprint


def _revocation(
    own: OwnSwarm, fingerprint: str, reason: str, now: float, mine: Signer | None
) -> bytes:
    """The signed revocation, by the key itself if it is here, else by the current one."""
    try:
        signer = signer_of(own, fingerprint, mine)
    except NotAllowed:
        signer = current_signer(own, now)
    head = RevocationHead(
        from_swarm=own.name,
        key=signer.fingerprint,
        timestamp=milliseconds(now),
        revokes=fingerprint,
        reason=reason,
    )
    return sign_head(head, signer)


def _revoking(
    runner: Runner,
    actor: Actor,
    own: OwnSwarm,
    *,
    fingerprint: str,
    agent: str,
    data: bytes,
    reason: str,
) -> Op[OwnSwarm]:
    key = keys.revocation(own.name, fingerprint)
    of_agent = (keys.agent_keys(agent),) if agent else ()

    def deciding() -> DecideOp[OwnSwarmChange]:
        snapshot = yield (keys.OWN_SWARM, key, *of_agent)
        item = snapshot[keys.OWN_SWARM]
        before = own if item is None else decode_own(item)
        left = tuple([each for each in before.keys if each.fingerprint != fingerprint])
        after = before if left == before.keys else replace(before, keys=_with_current(left))
        change = _without_agents_key([snapshot[each] for each in of_agent], fingerprint)
        if snapshot[key] is not None and after == before and not change.changes:
            return Decision(outcome=OwnSwarmChange(own=before))
        return Decision(
            outcome=OwnSwarmChange(own=after),
            verb="key.revoke",
            thing=f"swarm/{own.name}",
            puts=(Write(key, Raw(data)), Write(keys.OWN_SWARM, after), *change.puts),
            deletes=change.deletes,
            events=(Event("swarm:key_revoked", actor.agent),),
            reason=reason,
        )

    return (yield from runner.change(deciding, actor)).outcome.own


def _without_agents_key(items: Sequence[Item | None], fingerprint: str) -> Decision[None]:
    """What becomes of the keys of an agent that loses this one."""
    for item in items:
        if item is not None:
            left = without(decode_agent_keys(item), fingerprint)
            if left is None:
                return Decision(outcome=None, deletes=(item.key,))
            return Decision(outcome=None, puts=(Write(item.key, left),))
    return Decision(outcome=None)


def _with_current(left: Sequence[ListedKey]) -> tuple[ListedKey, ...]:
    """The keys that are left, if the current one is among them.

    A rotated key never becomes current again: readers take no entry from it alone.
    """
    return tuple(left) if any(not key.until for key in left) else ()


def post_revocations(context: Context, own: OwnSwarm, *, urgent: bool = False) -> Op[str]:
    """Put all our revocations on the bus that are not there; returns why that failed, or empty."""
    items = yield from every(keys.revocation(own.name))
    if not items:
        return ""
    try:
        yield from context.bus.on(own, partial(_post, items=items, own=own), urgent=urgent)
    except BusTrouble as error:
        return str(error)
    return ""


def _post(runner: Runner, *, items: Sequence[Item], own: OwnSwarm) -> Op[None]:
    there = yield from looked_up_within({item.key: len(item.value) for item in items})
    for item in items:
        found = there[item.key]
        if found is not None and found.value == item.value:
            continue

        def deciding(item: Item = item) -> DecideOp[str]:
            stands = (yield BoundedRefs.of((item.key,), len(item.value)))[item.key]
            if stands is not None and stands.value == item.value:
                return Decision(outcome="unchanged")
            return Decision(
                outcome="posted",
                verb="key.revoke",
                thing=f"swarm/{own.name}",
                puts=(Write(item.key, Raw(item.value)),),
                events=(Event("swarm:key_revoked", own.name),),
            )

        yield from runner.change(deciding, Actor(own.name))
