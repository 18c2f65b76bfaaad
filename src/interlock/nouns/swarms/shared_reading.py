"""Reading shared values: verified, compared with the copies of this home, and kept.

The bus is read by the names of the keys.  Signatures are verified outside of any transaction; the
commit at home relies on the copies that were compared and on the trust in the swarms that signed,
and starts over if one of them has changed.  A read that finds nothing new commits nothing.

Only keys that an agent of this home has read or written have a copy, so no other swarm can fill
our home.  What is refused is kept beside the copy, which stays: ``swarm shared`` shows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, signing
from interlock.core.decision import Decision, Event, Write
from interlock.errors import StoreBusy
from interlock.nouns.swarms.envelope import TrustedKey
from interlock.nouns.swarms.registry_rules import all_trusted_keys
from interlock.nouns.swarms.shared import (
    ITEM_LIMIT,
    SharedCopy,
    SharedRefusal,
    StoredConflict,
    decode_copy,
    judge_item,
    moved,
    open_shared,
    overwritten,
    taken_in,
)
from interlock.nouns.swarms.swarm import OwnSwarm, decode_peer
from interlock.nouns.swarms.sync_rules import SYNC_EVERY
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, looked_up_within, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context

AT_ONCE = 8
"""Copies in one commit: each may have a value of 64 KiB."""
_TRIES = 5
"""How often a read starts over because a copy or the trust has changed while it ran."""
_KEPT = "kept"


class SharedTrust(Struct, frozen=True, kw_only=True):
    """The keys whose shared values count, by fingerprint, and the items that say so, by swarm."""

    keys: dict[str, TrustedKey]
    items: dict[str, Item]


class SharedRead(Struct, frozen=True, kw_only=True):
    """A shared key as it was read: our copy before and after, and a refusal.

    ``signer`` is the swarm whose trust the copy relies on, ``lost`` a conflict that a write of our
    swarm has lost.
    """

    key: str
    before: Item | None
    copy: SharedCopy | None
    after: SharedCopy | None
    refusal: SharedRefusal | None = None
    signer: str = ""
    lost: StoredConflict | None = None

    @property
    def changed(self) -> bool:
        """Whether there is something to keep."""
        return self.after != self.copy


def trust_now(own: OwnSwarm, now: float) -> Op[SharedTrust]:
    """The keys of our peers, and our own."""
    items = yield from every(keys.PEERS)
    known = [(item, readable(decode_peer, item)) for item in items]
    found = all_trusted_keys([peer for _, peer in known if peer is not None], {}, now)
    return SharedTrust(
        keys={**found, **own_keys(own)},
        items={peer.swarm: item for item, peer in known if peer is not None},
    )


def own_keys(own: OwnSwarm) -> dict[str, TrustedKey]:
    """Our own keys, those that were rotated included."""
    return {
        key.fingerprint: TrustedKey(
            public_key=signing.from_base64(key.public) or b"", swarm=own.name
        )
        for key in own.keys
    }


class SharedReader:
    """The copies of one home; its methods are generators for a driver."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runner = context.runner

    def read(
        self,
        own: OwnSwarm,
        names: Iterable[str],
        *,
        shown: bool = False,
        accept: bool = False,
        urgent: bool = False,
    ) -> Op[dict[str, SharedRead]]:
        """Read shared keys, and keep what is new about them.

        ``shown`` says that a caller gets the value: its next write is based on that.  ``accept``
        takes what stands on the bus although it is older than our copy, or is gone.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        for _ in range(_TRIES):
            stands = yield from self._context.bus.on(
                own, partial(_on_bus, names=wanted), urgent=urgent
            )
            now = self._runner.clock.wall()
            trust = yield from trust_now(own, now)
            copies = yield from looked_up(map(keys.copy, wanted))
            found = [
                self._judged(own, trust, name, copies[keys.copy(name)], stands[name], accept=accept)
                for name in wanted
            ]
            if shown:
                found = [_shown(each) for each in found]
            if (yield from self._keep(own, trust, [each for each in found if each.changed])):
                return {each.key: each for each in found}
        raise StoreBusy("the trust in peers, or a shared value, keeps changing; retry later")

    def _judged(
        self,
        own: OwnSwarm,
        trust: SharedTrust,
        name: str,
        before: Item | None,
        item: Item | None,
        *,
        accept: bool,
    ) -> SharedRead:
        now = round(self._runner.clock.wall(), 3)
        copy = None if before is None else readable(decode_copy, before)
        here = None if copy is None else moved(copy, own.bus_id)
        nothing = SharedRead(key=name, before=before, copy=copy, after=here)
        if item is None:
            return _absent(nothing, now, accept=accept)
        found = judge_item(here, item, name, trust.keys, own.bus_id)
        if isinstance(found, SharedRefusal) and found.reason == "rollback" and accept:
            found = open_shared(item, name, trust.keys, own.bus_id)
        if isinstance(found, SharedRefusal):
            return _refused(nothing, found, now)
        if found is None:
            return replace(nothing, after=here and replace(here, refused="", refused_at=0.0))
        lost = overwritten(here, found, own.name)
        kept = None
        if lost is not None:
            kept = StoredConflict(id=self._runner.new_id("cfl"), conflict=lost, at=now)
        return replace(
            nothing,
            after=taken_in(here, found, own.bus_id),
            signer=found.head.from_swarm,
            lost=kept,
        )

    def _keep(self, own: OwnSwarm, trust: SharedTrust, found: Sequence[SharedRead]) -> Op[bool]:
        """Keep copies, some in each commit; False if one must be judged again."""
        for start in range(0, len(found), AT_ONCE):
            deciding = partial(_keeping, own, trust, found[start : start + AT_ONCE])
            if (yield from self._runner.change(deciding, Actor())).outcome != _KEPT:
                return False
        return True


def _on_bus(_runner: Runner, *, names: Sequence[str]) -> Op[dict[str, Item | None]]:
    found = yield from looked_up_within(dict.fromkeys(map(keys.shared, names), ITEM_LIMIT))
    return {name: found[keys.shared(name)] for name in names}


def _absent(found: SharedRead, now: float, *, accept: bool) -> SharedRead:
    """Nothing stands on the bus: it was never written, or was deleted there."""
    here = found.after
    if here is None or not here.item:
        return found
    if accept:
        gone = replace(here, item=0, revision=0, digest="", seen=0, refused="", refused_at=0.0)
        return replace(found, after=gone)
    said = "it does not stand on the bus any more"
    return _refused(found, SharedRefusal(reason="deleted", detail=said), now)


def _refused(found: SharedRead, refusal: SharedRefusal, now: float) -> SharedRead:
    """The copy with a refusal beside it; the same one is noted again only after a while."""
    here = found.after
    if here is not None:
        said = f"{refusal.reason}: {refusal.detail}"
        if said != here.refused or not 0 <= now - here.refused_at < SYNC_EVERY:
            here = replace(here, refused=said, refused_at=now)
    return replace(found, after=here, refusal=refusal)


def _shown(found: SharedRead) -> SharedRead:
    """The copy after a caller was shown its value."""
    after = found.after
    if after is None or not after.item or found.refusal is not None:
        return found
    return replace(found, after=replace(after, seen=after.revision))


def _keeping(own: OwnSwarm, trust: SharedTrust, found: Sequence[SharedRead]) -> DecideOp[str]:
    signers = {each.signer for each in found} - {"", own.name}
    copies, peers = [keys.copy(each.key) for each in found], [keys.peer(name) for name in signers]
    items = (yield (*copies, *peers)).items
    moved_on = [_revision(items[keys.copy(each.key)]) != _revision(each.before) for each in found]
    untrusted = [
        _revision(items[keys.peer(name)]) != _revision(trust.items.get(name)) for name in signers
    ]
    if any(moved_on) or any(untrusted):
        return Decision(outcome="overtaken")
    lost = [each.lost for each in found if each.lost is not None]
    events = [
        Event("swarm:refused", each.signer, f"shared/{each.key}")
        for each in found
        if each.refusal is not None
    ]
    events += [
        Event(
            "swarm:conflict",
            each.conflict.winner,
            f"shared/{each.conflict.key}",
            details=each.conflict.details(),
        )
        for each in lost
    ]
    return Decision(
        outcome=_KEPT,
        verb="swarm.read",
        thing=f"shared/{found[0].key}",
        puts=(
            *[Write(keys.copy(each.key), each.after) for each in found],
            *[Write(keys.conflict(each.id), each) for each in lost],
        ),
        events=tuple(events),
    )


def _revision(item: Item | None) -> int:
    return 0 if item is None else item.revision
