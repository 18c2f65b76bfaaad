"""What we know of other swarms: their entries are read from the bus, judged, and kept at home.

A **refresh** reads, for each peer that is due, its entry, its snapshot, its liveness key, and the
revocations of the keys that we trust; never a whole folder, which anyone with the bus's credentials
could fill.
The signatures are verified outside of any transaction.  The commit at home relies on the revisions
of the trust and the floor that were judged, and starts over if one has changed.

Its result is kept (``floors/{swarm}``), also a refusal: an attack is visible in ``swarm list``,
``health`` and the record.

**The cache.**  A refresh counts for ``CACHED`` seconds, for all processes of the home, since it is
in the home store.  A process also keeps what it read, with the agents of each ability, so that a
discovery asks no store at all.  A peer whose entry was refused, or that is not live, is due again
after ``RETRY_AFTER`` seconds.  A refresh that finds nothing new is kept only every ``CACHED``
seconds, and the same bytes count as refused once in that time: neither a peer that is away nor an
attacker fills our record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.errors import BusTrouble, StoreBusy
from interlock.nouns.swarms import registry
from interlock.nouns.swarms.head import REGISTRY_LIMIT
from interlock.nouns.swarms.registry import KnownSwarm
from interlock.nouns.swarms.registry_rules import (
    EntryAccepted,
    RegistryRefusal,
    already_counted,
    judge_entry,
    judge_revocation,
    refused,
    trusted_keys,
)
from interlock.nouns.swarms.results import EntryRefused, FoundAgent
from interlock.nouns.swarms.swarm import (
    Floor,
    OwnSwarm,
    Peer,
    decode_floor,
    decode_own,
    decode_peer,
)
from interlock.nouns.swarms.sync_rules import judge_state
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up_within, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

RETRY_AFTER = 30.0
"""Seconds after which a peer that is not live, or whose entry was refused, is read again."""
IN_VAIN = 5.0
"""Seconds after which a message may make us look again at an entry that had not changed."""
REMEMBERED = 1000
"""Receivers of requests that a process remembers at most."""
_KEPT = "kept"
_TRIES = 5
"""How often a refresh starts over because trust has changed while it ran."""


class PeerState(Struct, frozen=True, kw_only=True):
    """A peer and its floor as the home store has them, with their items to rely on."""

    peer: Peer
    floor: Floor
    peer_item: Item | None = None
    floor_item: Item | None = None


class BusView(Struct, frozen=True, kw_only=True):
    """What stands on the bus about a peer."""

    entry: bytes | None
    live: bool
    revocations: tuple[bytes, ...] = ()
    state: bytes | None = None


class PeersRefreshed(Struct, frozen=True, kw_only=True):
    """What a refresh did: entries accepted and refused, keys revoked; or why it failed.

    ``changed`` are the peers with another entry or other keys than before.
    """

    accepted: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    refused: tuple[EntryRefused, ...] = ()
    revoked: tuple[str, ...] = ()
    trouble: str = ""


def peer_states() -> Op[dict[str, PeerState]]:
    """All peers of our home, by name; damaged items are left out, and ``doctor`` reports them."""
    items = yield from every(keys.PEERS, keys.FLOORS)
    floors = {keys.swarm_of(i.key): i for i in items if i.key.startswith(keys.FLOORS)}
    found: dict[str, PeerState] = {}
    for item in items:
        if not item.key.startswith(keys.PEERS):
            continue
        peer = readable(decode_peer, item)
        if peer is not None:
            found[peer.swarm] = _state(peer, item, floors.get(peer.swarm))
    return found


def _state(peer: Peer, item: Item | None, floor_item: Item | None) -> PeerState:
    floor = None if floor_item is None else readable(decode_floor, floor_item)
    return PeerState(
        peer=peer,
        floor=floor or Floor(swarm=peer.swarm),
        peer_item=item,
        floor_item=floor_item,
    )


def fresh_for(floor: Floor, now: float) -> float:
    """Seconds for which the last refresh of a peer still counts, as the home store has it."""
    age = now - floor.fetched
    return max(0.0, patience(floor) - age) if age >= 0 else 0.0


def patience(floor: Floor) -> float:
    """Seconds between two refreshes of a peer."""
    calm = floor.live and floor.refused_at < floor.fetched
    return registry.CACHED if calm else RETRY_AFTER


# What stands on the bus.


def _wanted(state: PeerState) -> tuple[str, ...]:
    swarm = state.peer.swarm
    return (
        keys.registry_entry(swarm),
        keys.state(swarm),
        keys.swarm_live(swarm),
        *[keys.revocation(swarm, name) for name in _revocable(state)],
    )


def _revocable(state: PeerState) -> list[str]:
    """The keys whose revocation would change something, and could be verified."""
    trusted = trusted_keys(state.peer, state.floor, None)
    return [name for name, key in trusted.items() if not key.revoked]


def _read_bus(_runner: Runner, states: Sequence[PeerState]) -> Op[dict[str, BusView]]:
    """What the bus has about these peers."""
    items = yield from looked_up_within(
        {key: REGISTRY_LIMIT for state in states for key in _wanted(state)}
    )
    return {state.peer.swarm: _view(state, items) for state in states}


def _view(state: PeerState, items: Mapping[str, Item | None]) -> BusView:
    swarm = state.peer.swarm
    entry, snapshot = items[keys.registry_entry(swarm)], items[keys.state(swarm)]
    found = [items[keys.revocation(swarm, name)] for name in _revocable(state)]
    return BusView(
        entry=None if entry is None else _judgeable(entry),
        live=items[keys.swarm_live(swarm)] is not None,
        revocations=tuple([_judgeable(item) for item in found if item is not None]),
        state=None if snapshot is None else _judgeable(snapshot),
    )


def _judgeable(item: Item) -> bytes:
    """The value; one that is too long to be read is refused for its length."""
    return bytes(REGISTRY_LIMIT + 1) if item.omitted else item.value


# Judging.


class Judged(Struct, frozen=True, kw_only=True):
    """What a peer and its floor become by a refresh; ``counted`` are the refusals that are new."""

    state: PeerState
    peer: Peer
    floor: Floor
    accepted: bool
    refusals: tuple[RegistryRefusal, ...]
    counted: tuple[RegistryRefusal, ...]

    @property
    def revoked(self) -> tuple[str, ...]:
        """The keys that this refresh ended."""
        return tuple([each for each in self.peer.revoked if each not in self.state.peer.revoked])

    @property
    def changed(self) -> bool:
        """Whether the peer has another entry or other keys than before."""
        newer = self.floor.version != self.state.floor.version
        return newer or self.peer != self.state.peer

    @property
    def worth_keeping(self) -> bool:
        """Whether it says more than that the peer was read again."""
        before = self.state.floor
        old = self.floor.fetched - before.fetched
        same = self.floor == replace(before, fetched=self.floor.fetched)
        return self.peer != self.state.peer or not same or not 0 <= old < registry.CACHED


def judged(state: PeerState, view: BusView, bus: str, now: float) -> Judged:
    """Judge what stands on the bus about a peer: revocations first, then the entry, the state.

    The entry may name the key that signed the state.
    """
    peer, floor = state.peer, state.floor
    refusals: list[tuple[RegistryRefusal, bytes]] = []
    for data in view.revocations:
        ended = judge_revocation(peer, floor, data, bus, now)
        if isinstance(ended, Peer):
            peer = ended
        else:
            refusals.append((ended, data))
    accepted = False
    if view.entry is not None:
        found = judge_entry(peer, floor, view.entry, bus, now)
        if isinstance(found, EntryAccepted):
            peer, floor, accepted = found.peer, found.floor, True
        else:
            refusals.append((found, view.entry))
    if view.state is not None:
        after = judge_state(peer, floor, view.state, bus, now)
        if isinstance(after, Floor):
            floor = after
        else:
            refusals.append((after, view.state))
    counted = [each for each, data in refusals if not already_counted(floor, each, data, now)]
    for each, data in refusals:
        floor = refused(floor, each, data, now)
    return Judged(
        state=state,
        peer=peer,
        floor=replace(floor, fetched=now, live=view.live),
        accepted=accepted,
        refusals=tuple([each for each, _ in refusals]),
        counted=tuple(counted),
    )


class KnownPeers(Struct, frozen=True, kw_only=True):
    """What a process knows of its peers, ``until`` a monotonic moment; ``read`` is how old it is.

    ``found`` has the answers to discoveries so far: threads that share it find the same.
    """

    swarms: tuple[KnownSwarm, ...]
    until: float
    read: float
    found: dict[tuple[str, str], tuple[FoundAgent, ...]] = field(default_factory=dict)


class SwarmRegistry:
    """The peers of one client's home, as far as this process has read them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refreshed: dict[str, float] = {}
        """When this process last read the entry of a peer, by the monotonic clock."""
        self._in_vain: dict[str, float] = {}
        self._known = KnownPeers(swarms=(), until=float("-inf"), read=0.0)
        self._unlisted: dict[tuple[str, str], tuple[str, float]] = {}
        """Whether receivers are listed, and until when that counts by the monotonic clock."""

    def forget(self) -> None:
        """Ask the stores again at the next discovery: trust has changed."""
        self._known = KnownPeers(swarms=(), until=float("-inf"), read=0.0)
        self._refreshed = {}
        self._unlisted = {}

    def refresh(
        self,
        own: OwnSwarm,
        *,
        only: Iterable[str] | None = None,
        force: bool = False,
        urgent: bool = False,
    ) -> Op[PeersRefreshed]:
        """Read the entries of peers that are due, or of those that are named, and keep them."""
        began = self._context.runner.clock.monotonic()
        for _ in range(_TRIES):
            states = yield from peer_states()
            wanted = set(states if only is None else only)
            due = [
                state
                for name, state in states.items()
                if name in wanted and state.peer.allowed and (force or not self._fresh_for(state))
            ]
            if not due:
                return PeersRefreshed()
            try:
                views = yield from self._context.bus.on(
                    own, partial(_read_bus, states=due), urgent=urgent
                )
            except BusTrouble as error:
                return PeersRefreshed(trouble=str(error))
            now = self._context.runner.clock.wall()
            found = [judged(state, views[state.peer.swarm], own.bus_id, now) for state in due]
            news = [each for each in found if each.worth_keeping]
            if (yield from self._keep(news, began)):
                at = self._context.runner.clock.monotonic()
                self._refreshed.update({each.peer.swarm: at for each in found})
                return _result(found)
        raise StoreBusy("the trust in peers keeps changing; retry later")

    def look_again(self, own: OwnSwarm, swarms: Iterable[str]) -> Op[bool]:
        """Read the entries of these peers, which may have changed; whether one has.

        For messages under a key that is not known: a rotated one, or one of a new agent.  Anyone
        can make such messages, so after a look in vain the next one is ``IN_VAIN`` seconds later.
        """
        now = self._context.runner.clock.monotonic()
        due = [each for each in swarms if now >= self._in_vain.get(each, now)]
        if not due:
            return False
        refreshed = yield from self.refresh(own, only=due, force=True)
        vain = dict.fromkeys([each for each in due if each not in refreshed.changed], now + IN_VAIN)
        self._in_vain = {name: until for name, until in self._in_vain.items() if until > now} | vain
        return bool(refreshed.changed)

    def unlisted(self, own: OwnSwarm, swarm: str, to: str) -> Op[str]:
        """Why the entry of a swarm lists no such receiver; empty if it does, or none is known.

        A request is sent all the same.  The entry is read again before this is said, and then
        counts for a few seconds; a receiver that is listed counts for as long as the cache.  One
        of those that send at the same time looks; the others go on without a warning.
        """
        now = self._context.runner.clock.monotonic()
        said, until = self._unlisted.get((swarm, to), ("", now))
        if until > now:
            return said
        self._unlisted[swarm, to] = said, now + IN_VAIN
        said = yield from self._said_unlisted(swarm, to)
        if said and (yield from self.look_again(own, [swarm])):
            said = yield from self._said_unlisted(swarm, to)
        if len(self._unlisted) > REMEMBERED:
            self._unlisted.clear()
        self._unlisted[swarm, to] = said, now + (IN_VAIN if said else registry.CACHED)
        return said

    def _said_unlisted(self, swarm: str, to: str) -> Op[str]:
        key = keys.floor(swarm)
        item = (yield Read(key))[key]
        floor = None if item is None else readable(decode_floor, item)
        return "" if floor is None or floor.entry is None else registry.unlisted(floor.entry, to)

    def _fresh_for(self, state: PeerState) -> float:
        """Seconds for which the last refresh of a peer counts: of this process, or of another."""
        clock = self._context.runner.clock
        last = self._refreshed.get(state.peer.swarm, float("-inf"))
        own = last + patience(state.floor) - clock.monotonic()
        return max(0.0, own, fresh_for(state.floor, clock.wall()))

    def _keep(self, found: Sequence[Judged], began: float) -> Op[bool]:
        """Keep the results, in as few commits as the store takes; False if it must repeat."""
        limits = self._context.runner.capabilities
        some: list[Judged] = []
        size = 0
        for each in found:
            more = len(codec.encode(each.floor)) + len(codec.encode(each.peer))
            full = size + more > limits.max_bytes // 2 or len(some) * 8 > limits.max_operations
            if some and full:
                if not (yield from self._commit(some, began)):
                    return False
                some, size = [], 0
            some.append(each)
            size += more
        return not some or (yield from self._commit(some, began))

    def _commit(self, some: Sequence[Judged], began: float) -> Op[bool]:
        took = round((self._context.runner.clock.monotonic() - began) * 1000, 3)
        done = yield from self._context.runner.change(partial(_keeping, some, took), Actor())
        return done.outcome == _KEPT

    def update(self, own: OwnSwarm, *, force: bool = False) -> Op[str]:
        """See that what this process knows is current; returns why it is not, or empty."""
        refreshed = yield from self.refresh(own, force=force)
        states = [state for state in (yield from peer_states()).values() if state.peer.allowed]
        clock = self._context.runner.clock
        now = clock.wall()
        entries = [(state.floor.entry, state.floor.live) for state in states]
        known = tuple([KnownSwarm(entry=each, live=live) for each, live in entries if each])
        expiries = [each.entry.expires / 1000 + registry.CLOCK_SKEW for each in known]
        lasts = [
            registry.CACHED if not refreshed.trouble else 0.0,
            *[self._fresh_for(state) for state in states],
            *[expiry - now for expiry in expiries if expiry > now],
        ]
        self._known = KnownPeers(
            swarms=known,
            until=clock.monotonic() + min(lasts),
            read=min([state.floor.fetched for state in states], default=now),
        )
        return refreshed.trouble

    def discover(
        self, ability: str, swarm: str = "", *, force: bool = False
    ) -> Op[tuple[tuple[FoundAgent, ...], str, float] | None]:
        """The agents with an ability, why what we know is old, and its age; None without a bus."""
        clock = self._context.runner.clock
        trouble = ""
        if force or clock.monotonic() >= self._known.until:
            snapshot: Snapshot = yield Read(keys.OWN_SWARM)
            item = snapshot[keys.OWN_SWARM]
            if item is None:
                return None
            trouble = yield from self.update(decode_own(item), force=force)
        known = self._known
        found = known.found.get((ability, swarm))
        if found is None:
            found = registry.discover(known.swarms, ability, clock.wall(), swarm)
            known.found[ability, swarm] = found
        return found, trouble, max(0.0, clock.wall() - known.read)


def _keeping(found: Sequence[Judged], took: float) -> DecideOp[str]:
    wanted = [keys.peer(each.peer.swarm) for each in found]
    floors = [keys.floor(each.peer.swarm) for each in found]
    items = (yield (*wanted, *floors)).items
    for each, own, floor in zip(found, wanted, floors, strict=True):
        if _moved(each.state.peer_item, items[own]) or _moved(each.state.floor_item, items[floor]):
            return Decision(outcome="overtaken")
    puts = [Write(keys.floor(each.peer.swarm), each.floor) for each in found]
    puts += [
        Write(keys.peer(each.peer.swarm), each.peer)
        for each in found
        if each.peer != each.state.peer
    ]
    events = [event for each in found for event in _events(each)]
    return Decision(
        outcome=_KEPT,
        verb="swarm.refresh",
        thing=f"swarm/{found[0].peer.swarm}",
        puts=tuple(puts),
        events=tuple(events),
        reason="; ".join(_said(each) for each in found if each.counted),
        took=took,
    )


def _moved(judged_on: Item | None, stands: Item | None) -> bool:
    before = 0 if judged_on is None else judged_on.revision
    return before != (0 if stands is None else stands.revision)


def _events(each: Judged) -> list[Event]:
    thing = f"swarm/{each.peer.swarm}"
    before = each.state.floor
    events = [Event("swarm:refused", each.peer.swarm, thing) for _ in each.counted]
    events += [Event("swarm:key_revoked", each.peer.swarm, thing) for _ in each.revoked]
    if any(refusal.alarm for refusal in each.counted):
        events.append(Event("swarm:alarm", each.peer.swarm, thing))
    if each.accepted and each.floor.version != before.version:
        depth = 0 if each.floor.entry is None else each.floor.entry.depth
        details = {"depth": depth}
        events.append(Event("swarm:accepted", each.peer.swarm, thing, details=details))
    return events


def _said(each: Judged) -> str:
    return f"{each.peer.swarm}: " + ", ".join(refusal.reason for refusal in each.counted)


def _result(found: Sequence[Judged]) -> PeersRefreshed:
    return PeersRefreshed(
        accepted=tuple([each.peer.swarm for each in found if each.accepted]),
        changed=tuple([each.peer.swarm for each in found if each.changed]),
        refused=tuple(
            [
                EntryRefused(swarm=each.peer.swarm, reason=why.reason, detail=why.detail)
                for each in found
                for why in each.refusals
            ]
        ),
        revoked=tuple([name for each in found for name in each.revoked]),
    )
