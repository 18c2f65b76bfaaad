"""Which swarms we trust: allow and deny them, and what our own record says about them.

Each change of trust is one commit on ``peers/{swarm}``.  Every intake relies on that item, so
nothing that was verified against the old trust is accepted after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.errors import BadInput
from interlock.nouns.swarms import breaker as breakers
from interlock.nouns.swarms import reputation as reputations
from interlock.nouns.swarms.breaker import Breaker
from interlock.nouns.swarms.limits import PeerLimits
from interlock.nouns.swarms.registry_rules import (
    RegistryRefusal,
    pin,
    revoke,
    trust_first_use,
)
from interlock.nouns.swarms.reputation import Reputation
from interlock.nouns.swarms.results import (
    AllowOutcome,
    BreakerView,
    DenyOutcome,
    Forgiven,
    PeerTrust,
    PeerTrustList,
    SwarmAllowed,
    SwarmDenied,
    SwarmRevokedKey,
    UnknownSwarm,
)
from interlock.nouns.swarms.swarm import Floor, Peer, decode_floor, decode_peer
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op

decode_breaker = codec.Decoder(Breaker).read
decode_reputation = codec.Decoder(Reputation).read


class TrustChange(Struct, frozen=True, kw_only=True):
    """What an operator says about a swarm: its key, or that of its first entry, and its limits.

    With neither, a peer that is allowed keeps the keys that it has; ``limits`` are those to change.
    """

    swarm: str
    fingerprint: str = ""
    public: str = ""
    first_use: bool = False
    limits: Mapping[str, Any] = {}


def allow(runner: Runner, actor: Actor, change: TrustChange) -> Op[AllowOutcome]:
    """Trust a key of a swarm and no other, or those of its first entry; and set its limits."""
    deciding = partial(_allowing, actor, change, runner.clock.wall)
    return (yield from runner.change(deciding, actor)).outcome


def _allowing(
    actor: Actor, change: TrustChange, now: Callable[[], float]
) -> DecideOp[AllowOutcome]:
    swarm, fingerprint = change.swarm, change.fingerprint
    snapshot = yield (keys.peer(swarm), keys.floor(swarm))
    item, floor_item = snapshot[keys.peer(swarm)], snapshot[keys.floor(swarm)]
    before = None if item is None else decode_peer(item)
    floor = None if floor_item is None else readable(decode_floor, floor_item)
    if fingerprint:
        peer = pin(before, swarm, fingerprint, round(now(), 3), change.public)
        if isinstance(peer, RegistryRefusal):
            return Decision(outcome=SwarmRevokedKey(swarm=swarm, fingerprint=fingerprint))
        # A pin is also the way back from a version that a thief of the last key made too high.
        after = Floor(swarm=swarm)
    elif change.first_use:
        peer = trust_first_use(before, swarm)
        after = floor or Floor(swarm=swarm)
    elif before is None or not before.allowed:
        raise BadInput(f"{swarm} is not allowed yet; name its key, too: --key FINGERPRINT")
    else:
        peer, after = before, floor or Floor(swarm=swarm)
    peer = replace(peer, limits=replace(peer.limits, **change.limits))
    trusted = fingerprint or (peer.keys[0].fingerprint if peer.keys else "")
    outcome = SwarmAllowed(
        swarm=swarm,
        how="pinned" if fingerprint else "first_use" if change.first_use else "unchanged",
        fingerprint=trusted,
        **_limits(peer.limits),
    )
    if peer == before and after == floor:
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="swarm.allow",
        thing=f"swarm/{swarm}",
        puts=(Write(keys.peer(swarm), peer), Write(keys.floor(swarm), after)),
        events=(Event("swarm:allowed", actor.agent),),
        reason=_said(change),
    )


def _said(change: TrustChange) -> str:
    keys_ = change.fingerprint or ("first use" if change.first_use else "")
    limits = [f"{name} {value:g}" for name, value in sorted(change.limits.items())]
    return ", ".join([*([keys_] if keys_ else ()), *limits])


def _limits(limits: PeerLimits) -> dict[str, Any]:
    return {
        "rate": limits.rate,
        "window": limits.window,
        "queue": limits.queue,
        "marks": limits.marks,
    }


def deny(runner: Runner, actor: Actor, swarm: str, reason: str, key: str = "") -> Op[DenyOutcome]:
    """Take nothing from a swarm and send nothing to it; with a key, revoke that key alone."""

    def deciding() -> DecideOp[DenyOutcome]:
        item = (yield (keys.peer(swarm),))[keys.peer(swarm)]
        if item is None:
            return Decision(outcome=UnknownSwarm(what="swarm", unknown=(swarm,)))
        before = decode_peer(item)
        after = _ended(before, key)
        outcome = SwarmDenied(swarm=swarm, already=after == before)
        if after == before:
            return Decision(outcome=outcome)
        return Decision(
            outcome=outcome,
            verb="swarm.deny",
            thing=f"swarm/{swarm}",
            puts=(Write(keys.peer(swarm), after),),
            events=(Event("swarm:denied", actor.agent),),
            reason=reason,
        )

    return (yield from runner.change(deciding, actor)).outcome


def _ended(peer: Peer, key: str) -> Peer:
    if not key:
        return replace(peer, allowed=False, first_use=False)
    ended = revoke(peer, Floor(swarm=peer.swarm), key, None)
    return ended if isinstance(ended, Peer) else peer


# What our own record says.


def trust(runner: Runner, swarm: str | None) -> Op[PeerTrustList | UnknownSwarm]:
    """The reputation and the circuit breaker of one peer, or of all."""
    peers = [readable(decode_peer, item) for item in (yield from every(keys.PEERS))]
    known = {peer.swarm: peer for peer in peers if peer is not None}
    if swarm is not None and swarm not in known:
        return UnknownSwarm(what="swarm", unknown=(swarm,))
    wanted = sorted(known) if swarm is None else [swarm]
    both = [keys.breaker(name) for name in wanted] + [keys.reputation(name) for name in wanted]
    items = yield from looked_up(both)
    now = runner.clock.wall()
    found = []
    for name in wanted:
        broken, went = items[keys.breaker(name)], items[keys.reputation(name)]
        breaker = breakers.CLOSED if broken is None else decode_breaker(broken)
        reputation = reputations.UNKNOWN if went is None else decode_reputation(went)
        found.append(
            PeerTrust(
                swarm=name,
                allowed=known[name].allowed,
                standing=reputations.standing(reputation, now),
                breaker=_view(breaker, now),
                **_limits(known[name].limits),
            )
        )
    return PeerTrustList(peers=tuple(found))


def _view(breaker: Breaker, now: float) -> BreakerView:
    checked = breakers.check(breaker, now, probing=False)
    wait = checked.retry_in if isinstance(checked, breakers.BreakerOpen) else 0.0
    return BreakerView(
        state=breakers.state(breaker, now),
        timeouts=breaker.timeouts,
        opened=breaker.opened,
        retry_in=wait,
    )


def forgive(runner: Runner, actor: Actor, swarm: str) -> Op[Forgiven | UnknownSwarm]:
    """Clear the record of a peer and close its breaker, as an operator decides."""
    wanted = (keys.peer(swarm), keys.breaker(swarm), keys.reputation(swarm))

    def deciding() -> DecideOp[Forgiven | UnknownSwarm]:
        snapshot = yield wanted
        if snapshot[keys.peer(swarm)] is None:
            return Decision(outcome=UnknownSwarm(what="swarm", unknown=(swarm,)))
        went = snapshot[keys.reputation(swarm)]
        before = reputations.UNKNOWN if went is None else decode_reputation(went)
        there = tuple([key for key in wanted[1:] if snapshot[key] is not None])
        outcome = Forgiven(swarm=swarm, samples=len(before.outcomes))
        if not there:
            return Decision(outcome=outcome)
        return Decision(
            outcome=outcome,
            verb="swarm.forgive",
            thing=f"swarm/{swarm}",
            deletes=there,
            events=(Event("swarm:forgiven", actor.agent),),
        )

    return (yield from runner.change(deciding, actor)).outcome
