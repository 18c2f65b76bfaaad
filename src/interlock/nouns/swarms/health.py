"""Finds problems for ``health``: peers that are refused or have no key, and writes that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import quote, span
from interlock.runtime.health import HealthCheck, Problem
from interlock.steps import Op, Read
from interlock.store import Range

if TYPE_CHECKING:
    from interlock.nouns.swarms.registry_service import PeerState

TOO_LONG = 60.0
"""Seconds after which a write of a shared value that is not on the bus is a problem."""


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Peers that signed two texts or are refused, peers without a key, and writes that wait.

    It reads the home alone.
    """
    found = yield from _waiting(checkup)
    if not (yield from checkup.read(keys.PEERS)):
        return found  # most homes have none, and need not import what follows
    from interlock.nouns.swarms.registry_service import peer_states

    now = checkup.runner.clock.wall()
    for name, state in (yield from peer_states()).items():
        if state.peer.allowed:
            problem = _problem(name, state, now)
            found += [] if problem is None else [problem]
    return found


def _waiting(checkup: HealthCheck) -> Op[list[Problem]]:
    """Writes of shared values that have waited for the bus for longer than a few passes."""
    page = Range(keys.SHARED_WRITES, limit=1)
    if not (yield Read(page)).ranges[page]:
        return []
    from interlock.nouns.swarms.shared_posting import AT_ONCE, first_waiting

    waiting = yield from first_waiting(AT_ONCE)
    first = min(waiting, key=lambda each: each.written_at, default=None)
    now = checkup.runner.clock.wall()
    if first is None or now - first.written_at < TOO_LONG:
        return []
    thing, more = f"shared/{first.key}", len(waiting) - 1
    says = f"{foreign(thing)}: a write is not on the bus for {span(now - first.written_at)}"
    says += f", and {more} other keys wait" if more else ""
    remedy = "run 'interlock swarm sync' on a host with the swarm's key; 'doctor' checks the bus"
    return [Problem(kind="unsent", says=says, remedy=remedy, thing=thing, since=first.written_at)]


def _problem(name: str, state: PeerState, now: float) -> Problem | None:
    from interlock.nouns.swarms.registry import CACHED

    floor, thing = state.floor, f"swarm/{name}"
    if floor.refused.get("equivocation") or floor.refused.get("divergence"):
        what = "entries" if floor.refused.get("equivocation") else "states"
        says = (
            f"{foreign(thing)}: it signed two different {what} as one version; its key may be"
            " stolen"
        )
        remedy = (
            "ask its operator; then pin a key that is not stolen: interlock swarm allow"
            f" {quote(name)} --key FINGERPRINT --agent NAME; or deny it:"
            f" interlock swarm deny {quote(name)} --agent NAME"
        )
        return Problem(
            kind="refused", says=says, remedy=remedy, thing=thing, since=floor.refused_at
        )
    if not state.peer.keys and not state.peer.first_use:
        says = f"{foreign(thing)}: no key of it is trusted any more, so nothing of it is taken in"
        remedy = (
            f"pin its new key: interlock swarm allow {quote(name)} --key FINGERPRINT --agent NAME"
        )
        return Problem(kind="refused", says=says, remedy=remedy, thing=thing)
    recent = floor.refused_at and floor.refused_at >= floor.fetched - CACHED
    if recent and floor.last_refused:
        ago = span(now - floor.refused_at)
        says = f"{foreign(thing)}: its entry was refused {ago} ago: {floor.last_refused}"
        remedy = "see 'interlock swarm list'; if its key has changed, pin the new one"
        return Problem(
            kind="refused", says=says, remedy=remedy, thing=thing, since=floor.refused_at
        )
    return None
