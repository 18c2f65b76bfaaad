"""What people see of state sync: the snapshots, why a value waits, and what ``doctor`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.errors import BusTrouble
from interlock.nouns.swarms.head import digest
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.nouns.swarms.registry_service import PeerState, peer_states
from interlock.nouns.swarms.results import NotRegistered
from interlock.nouns.swarms.shared import decode_copy, decode_undecided
from interlock.nouns.swarms.shared_posting import AT_ONCE, first_waiting
from interlock.nouns.swarms.state_service import state_on_bus
from interlock.nouns.swarms.sync_heads import StateHead
from interlock.nouns.swarms.sync_results import SwarmState, SwarmStateList
from interlock.runtime.reads import every, readable
from interlock.runtime.why import Why
from interlock.steps import Op, Read
from interlock.store import Finding, finding

if TYPE_CHECKING:
    from interlock.client_context import Context


def list_states(context: Context) -> Op[SwarmStateList | NotRegistered]:
    """The newest snapshots that count: ours as it stands on the bus, those of peers as read."""
    own = yield from own_swarm()
    if own is None:
        return NotRegistered()
    refreshed = yield from context.swarms.refresh(own)
    trouble, head, now = refreshed.trouble, None, context.runner.clock.wall()
    try:
        head = yield from context.bus.on(own, lambda _: state_on_bus(own, now))
    except BusTrouble as error:
        trouble = trouble or str(error)
    found = [_state(own.name, "own", head)]
    for name, state in sorted((yield from peer_states()).items()):
        if state.peer.allowed:
            found.append(_state(name, "peer", state.floor.state, _refused(state)))
    return SwarmStateList(states=tuple(found), trouble=trouble)


def _state(
    swarm: str, role: Literal["own", "peer"], head: StateHead | None, refused: str = ""
) -> SwarmState:
    if head is None:
        return SwarmState(swarm=swarm, role=role, refused=refused)
    return SwarmState(
        swarm=swarm,
        role=role,
        version=head.version,
        hash=digest(head),
        at=head.timestamp / 1000,
        agents=head.agents,
        completed_tasks=head.completed_tasks,
        pending_tasks=head.pending_tasks,
        avg_execution_time_ms=head.avg_execution_time_ms,
        memory=head.memory,
        avg_latency_ms=head.avg_latency_ms,
        message_throughput_per_sec=head.message_throughput_per_sec,
        refused=refused,
    )


def _refused(state: PeerState) -> str:
    """The alarm, if the peer published two states as one version."""
    count = state.floor.refused.get("divergence", 0)
    return f"divergence: it signed two states as one version, {count} times" if count else ""


# Why.


def why_shared(context: Context, name: str) -> Op[Why]:
    """Why a shared value is not what this home wrote: a person, the bus, or a refusal."""
    thing, now = f"shared/{name}", context.runner.clock.wall()
    left = [readable(decode_undecided, item) for item in (yield from every(keys.UNDECIDED))]
    asked = [each for each in left if each is not None and each.undecided.conflict.key == name]
    if asked:
        first = asked[0]
        other = first.undecided.conflict.winner or "no trusted swarm"
        because = (
            f"a write of {foreign(first.agent)} did not see the value of {foreign(other)}, so a"
            " person decides"
        )
        clear = f"interlock decision resolve {quote(first.decision)} OPTION --agent NAME"
        by = f"decision/{first.decision}"
        return Why(
            thing=thing, blocked=True, because=because, clear=clear, by=by, state="undecided"
        )
    waits = [each for each in (yield from first_waiting(AT_ONCE)) if each.key == name]
    if waits:
        since = waits[0].written_at
        ago = span(max(0.0, now - since))
        because = f"a write of {foreign(waits[0].agent)} is not on the bus, for {ago}"
        clear = "interlock swarm sync, on a host with the key of this swarm"
        return Why(
            thing=thing, blocked=True, because=because, clear=clear, since=since, state="spooled"
        )
    copy = decode_copy((yield Read(keys.copy(name)))[keys.copy(name)])
    if copy is not None and copy.refused:
        clear = (
            f"see {command(f'interlock swarm shared {quote(name)}')}; write it again to replace"
            " that"
        )
        because = f"what stands on the bus was refused: {copy.refused}"
        return Why(thing=thing, blocked=True, because=because, clear=clear, state="refused")
    if copy is None:
        because = "this home has neither read nor written a value under this key"
        clear = f"interlock swarm shared {quote(name)}"
        return Why(thing=thing, blocked=False, because=because, clear=clear, state="unknown")
    because = (
        f"revision {copy.revision} is the newest that this home knows, by {foreign(copy.swarm)}"
    )
    clear = "nothing is to be done"
    return Why(thing=thing, blocked=False, because=because, clear=clear, state="shared")


# Doctor.


def waiting_writes(now: float) -> Op[list[Finding]]:
    """The shared values whose writes are not on the bus; nothing if there are none."""
    first = yield from first_waiting(AT_ONCE)
    if not first:
        return []
    since = min(each.written_at for each in first)
    keys_ = "1 key" if len(first) == 1 else f"{len(first)} keys"
    fact = f"writes of {keys_} are not on the bus, for {span(max(0.0, now - since))}"
    return [finding("shared", fact, "run 'interlock swarm sync' on a host with the swarm's key")]
