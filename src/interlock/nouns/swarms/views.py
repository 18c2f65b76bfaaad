"""What ``swarm list`` says about swarms, and ``doctor`` about swarms and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from interlock.client_context import Context
from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.errors import BusTrouble, InterlockError
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.envelope import claimed_keys
from interlock.nouns.swarms.head import REGISTRY_LIMIT, RegistryHead
from interlock.nouns.swarms.own_keys import no_key_left, own_swarm, verified_own
from interlock.nouns.swarms.registry import valid_keys
from interlock.nouns.swarms.registry_service import PeerState, peer_states
from interlock.nouns.swarms.results import NotRegistered, SwarmList, SwarmView, TrustedKeyView
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Finding, Item, Range, Snapshot, finding

STRANGERS = 100
"""Entries on the bus that are read to name swarms that are not allowed yet."""


def list_swarms(context: Context) -> Op[SwarmList | NotRegistered]:
    """Our swarm, its peers, and the other swarms that have an entry on the bus."""
    own = yield from own_swarm()
    states = yield from peer_states()
    if own is None and not states:
        return NotRegistered()
    trouble, items, reached = "", dict[str, Item](), False
    if own is not None:
        refreshed = yield from context.swarms.refresh(own)
        trouble = refreshed.trouble
        states = yield from peer_states()
        try:
            items = yield from context.bus.on(own, partial(_on_bus, own=own))
            reached = True
        except BusTrouble as error:
            trouble = trouble or str(error)
    now = context.runner.clock.wall()
    found = [] if own is None else [_own(own, items, now, known=reached)]
    found += [_peer(states[name], now) for name in sorted(states)]
    if own is not None:
        known = {own.name, *states}
        found += _strangers(items, known)
    shown = "" if own is None else own.bus_shown
    return SwarmList(swarms=tuple(found), bus=shown, trouble=trouble)


def _on_bus(_runner: Runner, *, own: OwnSwarm) -> Op[dict[str, Item]]:
    page = Range(keys.REGISTRY, limit=STRANGERS)
    wanted = (keys.registry_entry(own.name), keys.swarm_live(own.name))
    snapshot: Snapshot = yield Read(*wanted, page, longest=REGISTRY_LIMIT)
    found = {item.key: item for item in snapshot.ranges[page]}
    found.update({key: item for key, item in snapshot.items.items() if item is not None})
    return found


def _own(own: OwnSwarm, items: Mapping[str, Item], now: float, *, known: bool) -> SwarmView:
    entry = verified_own(items.get(keys.registry_entry(own.name)), own, now)
    live = keys.swarm_live(own.name) in items
    trusted = [
        TrustedKeyView(
            fingerprint=key.fingerprint,
            how="own",
            since=own.registered,
            until=key.until / 1000 if key.until else None,
        )
        for key in own.keys
    ]
    return SwarmView(
        swarm=own.name,
        role="own",
        status=registry.status(entry, now, live=live) if known else "unknown",
        keys=tuple(trusted),
        agent_keys=_agent_keys(entry),
        version=None if entry is None else entry.version,
        agents=None if entry is None else entry.here,
        depth=None if entry is None else entry.depth,
        expires_at=None if entry is None else entry.expires / 1000,
    )


def _peer(state: PeerState, now: float) -> SwarmView:
    peer, floor = state.peer, state.floor
    trusted = [
        TrustedKeyView(fingerprint=key.fingerprint, how=key.how, since=key.since, until=key.until)
        for key in peer.keys
    ]
    return SwarmView(
        swarm=peer.swarm,
        role="peer" if peer.allowed else "denied",
        status=registry.status(floor.entry, now, live=floor.live) if floor.fetched else "unknown",
        read_at=floor.fetched or None,
        keys=tuple(trusted),
        agent_keys=_agent_keys(floor.entry),
        first_use=peer.first_use,
        refused=floor.refused,
        last_refused=floor.last_refused,
        refused_at=floor.refused_at or None,
        version=floor.version or None,
        agents=None if floor.entry is None else floor.entry.here,
        depth=None if floor.entry is None else floor.entry.depth,
        expires_at=None if floor.entry is None else floor.entry.expires / 1000,
    )


def _agent_keys(entry: RegistryHead | None) -> dict[str, tuple[str, ...]]:
    listed = () if entry is None else entry.agents
    return {
        each.agent: tuple([key.fingerprint for key in each.keys]) for each in listed if each.keys
    }


def _strangers(items: Mapping[str, Item], known: set[str]) -> list[SwarmView]:
    """Swarms with an entry that nothing here vouches for: what they claim, to be compared."""
    found = []
    for key, item in sorted(items.items()):
        if not key.startswith(keys.REGISTRY) or keys.swarm_of(key) in known:
            continue
        claimed = next(iter(claimed_keys(item.value)), "")
        found.append(
            SwarmView(swarm=keys.swarm_of(key), role="stranger", status="unknown", claims=claimed)
        )
    return found


# ---- doctor


def swarm_findings(context: Context) -> Op[list[Finding]]:
    """Whether the bus of our swarm answers, our entry stands there, and writes wait for it.

    Nothing without a swarm.
    """
    own = yield from own_swarm()
    if own is None:
        return []
    from interlock.nouns.swarms.sync_views import waiting_writes

    waiting = yield from waiting_writes(context.runner.clock.wall())
    return [*(yield from _entry_findings(context, own)), *waiting]


def _entry_findings(context: Context, own: OwnSwarm) -> Op[list[Finding]]:
    try:
        items = yield from context.bus.on(own, partial(_on_bus, own=own), urgent=True)
    except BusTrouble as error:
        fact, _, remedy = str(error).partition("; ")
        return [finding("swarm", fact, remedy or "see 'interlock swarm list'")]
    now = context.runner.clock.wall()
    if not valid_keys(own.keys, now):
        fact, _, remedy = no_key_left(own).partition("; ")
        return [finding("swarm", fact, remedy)]
    entry = verified_own(items.get(keys.registry_entry(own.name)), own, now)
    if entry is None or entry.expires / 1000 < now:
        fact = f"{foreign(own.name)} has no valid entry on {own.bus_shown}"
        return [finding("swarm", fact, "run 'interlock swarm sync', with --follow to stay there")]
    left = span(entry.expires / 1000 - now)
    fact = f"{foreign(own.name)} on {own.bus_shown}, entry {entry.version} expires in {left}"
    return [finding("swarm", fact), *_rotated_keys(own, now)]


def _rotated_keys(own: OwnSwarm, now: float) -> list[Finding]:
    """The keys of our swarm that still count beside the current one."""
    return [
        finding(
            "swarm",
            f"{key.fingerprint} was rotated and counts for another {span(key.until / 1000 - now)};"
            f" if it was stolen, end it: interlock key revoke {quote(key.fingerprint)}",
        )
        for key in valid_keys(own.keys, now)
        if key.until
    ]


def key_findings(now: Callable[[], float]) -> Op[list[Finding]]:
    """The keys of this user that are too old, or cannot be used."""
    found: list[Finding] = yield InThread(partial(_key_findings, now))
    return found


def _key_findings(now: Callable[[], float]) -> list[Finding]:
    from interlock.nouns.swarms import key_files

    try:
        files = key_files.listed()
    except InterlockError as error:
        fact, _, remedy = str(error).partition("; ")
        return [finding("keys", fact, remedy or "see 'interlock key list'")]
    found = []
    for file in files:
        if file.problem and not file.retired:
            fact, _, remedy = file.problem.partition("; ")
            found.append(finding("keys", fact, remedy or "see 'interlock key list'"))
        elif file.overdue(now()):
            fact = f"{foreign(file.name)} is {span(file.age(now()))} old"
            found.append(
                finding("keys", fact, f"run {command(f'interlock key rotate {quote(file.name)}')}")
            )
    current = [file for file in files if not file.retired]
    if not found and current:
        found.append(finding("keys", f"{len(current)}, none older than 90 days"))
    return found
