"""Finds problems of peers for ``health``: those that are refused, and those without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.core.validate import quote, span
from interlock.runtime.health import HealthCheck, Problem
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.swarms.registry_service import PeerState


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Peers that signed two texts or are refused, and peers without a key; read at home alone."""
    if not (yield from checkup.read(keys.PEERS)):
        return []  # most homes have none, and need not import what follows
    from interlock.nouns.swarms.registry_service import peer_states

    now, found = checkup.runner.clock.wall(), list[Problem]()
    for name, state in (yield from peer_states()).items():
        if state.peer.allowed:
            problem = _problem(name, state, now)
            found += [] if problem is None else [problem]
    return found


def _problem(name: str, state: PeerState, now: float) -> Problem | None:
    from interlock.nouns.swarms.registry import CACHED

    floor, thing = state.floor, f"swarm/{name}"
    if floor.refused.get("equivocation"):
        says = f"{thing}: it signed two different entries as one version; its key may be stolen"
        remedy = (
            "ask its operator; then pin a key that is not stolen: interlock swarm allow"
            f" {quote(name)} --key FINGERPRINT --agent NAME; or deny it:"
            f" interlock swarm deny {quote(name)} --agent NAME"
        )
        return Problem(
            kind="refused", says=says, remedy=remedy, thing=thing, since=floor.refused_at
        )
    if not state.peer.keys and not state.peer.first_use:
        says = f"{thing}: no key of it is trusted any more, so nothing of it is taken in"
        remedy = (
            f"pin its new key: interlock swarm allow {quote(name)} --key FINGERPRINT --agent NAME"
        )
        return Problem(kind="refused", says=says, remedy=remedy, thing=thing)
    recent = floor.refused_at and floor.refused_at >= floor.fetched - CACHED
    if recent and floor.last_refused:
        ago = span(now - floor.refused_at)
        says = f"{thing}: its entry was refused {ago} ago: {floor.last_refused}"
        remedy = "see 'interlock swarm list'; if its key has changed, pin the new one"
        return Problem(
            kind="refused", says=says, remedy=remedy, thing=thing, since=floor.refused_at
        )
    return None
