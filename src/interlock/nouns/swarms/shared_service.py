"""Shared values at one home: what callers see, and what a pass of the link does.

``tend`` is the pass, which any process of the swarm may do: it ends decisions whose time is up,
posts the writes that wait, reads the copies again every ``SYNC_EVERY`` seconds, and signs values of
our swarm again whose key was rotated, so that other swarms can still verify them when that key has
ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.signing import Signer
from interlock.errors import BusTrouble, NotAllowed
from interlock.nouns.messages import decode
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.swarms import registry, share_rules
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.own_keys import current_signer, own_swarm
from interlock.nouns.swarms.shared import (
    ITEM_LIMIT,
    SharedCopy,
    SharedRefusal,
    decode_conflict,
    decode_copy,
    decode_undecided,
    open_shared,
    taken_in,
)
from interlock.nouns.swarms.shared_bus import head_again, put_value
from interlock.nouns.swarms.shared_posting import (
    AT_ONCE,
    SharedPosting,
    SharesPosted,
    first_waiting,
)
from interlock.nouns.swarms.shared_reading import SharedRead, SharedReader, trust_now
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.nouns.swarms.sync_results import (
    ConflictList,
    SharedList,
    SharedView,
    SharesFull,
    ShareSpooled,
    ShareUndecided,
    UnknownShared,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import SYNC_EVERY
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import Pages, every, readable
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op, Read
from interlock.store import Item, Range, Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

LISTED = 100
"""Keys of the bus that a list names, beside those that this home knows."""


class SharedTended(Struct, frozen=True, kw_only=True):
    """What a pass did: writes that are on the bus now, decisions that were opened, or trouble."""

    posted: int = 0
    decisions: tuple[str, ...] = ()
    trouble: str = ""


class SharesWaiting(Struct, frozen=True, kw_only=True):
    """By shared key: the first write of this home that is not on the bus, and open decisions."""

    first: dict[str, int]
    decisions: dict[str, tuple[str, ...]]


class SharedService:
    """Shared values of one home; its methods are generators for a driver."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runner = context.runner
        self.posting = SharedPosting(context)
        self.reader = SharedReader(context)
        self._refreshed = float("-inf")

    def share(
        self, actor: Actor, own: OwnSwarm, key: str, value: Raw, base: int | None
    ) -> Op[ValueShared | ShareSpooled | ShareUndecided | SharesFull]:
        """Write a value."""
        return self.posting.share(actor, own, key, value, base)

    def get(
        self, own: OwnSwarm, key: str, *, accept: bool = False
    ) -> Op[SharedView | UnknownShared]:
        """One value, read from the bus; the copy of this home if the bus does not answer."""
        trouble, refusal = "", None
        try:
            found = (yield from self.reader.read(own, (key,), shown=True, accept=accept))[key]
            if found.refusal is not None and found.refusal.reason == "unknown_key":
                # The writer may have rotated its key since we read its entry.
                yield from self._context.swarms.refresh(own, force=True)
                found = (yield from self.reader.read(own, (key,), shown=True, accept=accept))[key]
            copy, refusal = found.after, found.refusal
        except BusTrouble as error:
            trouble = str(error)
            copy = yield from self._shown_copy(own, key)
        waiting = yield from _waiting()
        if copy is None and refusal is None:
            return UnknownShared(unknown=(key,), key=key, trouble=trouble)
        return _view(key, copy, waiting, refusal, trouble)

    def list(self, own: OwnSwarm) -> Op[SharedList]:
        """The values that this home knows, and the first others that stand on the bus."""
        trouble, others = "", dict[str, Item]()
        try:
            yield from self._refresh(own, force=True)
            others = yield from self._context.bus.on(own, _first)
        except BusTrouble as error:
            trouble = str(error)
        copies = [readable(decode_copy, item) for item in (yield from every(keys.COPIES))]
        known = {copy.key: copy for copy in copies if copy is not None}
        waiting = yield from _waiting()
        found = [_view(key, copy, waiting, None, "") for key, copy in known.items()]
        trust = yield from trust_now(own, self._runner.clock.wall())
        for key, item in others.items():
            if key in known:
                continue
            opened = open_shared(item, key, trust.keys, own.bus_id)
            if isinstance(opened, SharedRefusal):
                found.append(_view(key, None, waiting, opened, ""))
            else:
                found.append(_view(key, taken_in(None, opened, own.bus_id), waiting, None, ""))
        return SharedList(values=tuple(sorted(found, key=lambda each: each.key)), trouble=trouble)

    def conflicts(self, key: str | None) -> Op[ConflictList]:
        """The conflicts that this home had a part in, oldest first."""
        items = yield from every(keys.CONFLICTS)
        stored = [each for item in items if (each := readable(decode_conflict, item)) is not None]
        found = [share_rules.view_conflict(each) for each in stored]
        wanted = [each for each in found if key in (None, each.key)]
        return ConflictList(conflicts=tuple(sorted(wanted, key=lambda each: each.at)))

    # A pass.

    def tend(
        self, actor: Actor, own: OwnSwarm, *, force: bool = False, young: bool = False
    ) -> Op[SharedTended]:
        """Do all that is due for the shared values of this swarm.

        With ``force`` all copies are read again; with ``young`` writes are posted that other
        processes may be posting now.
        """
        yield from settle_ended(self._runner, actor)
        done = yield from self.posting.drain(actor, own, young=young)
        trouble = done.trouble
        if not self._context.bus.trouble:
            try:
                yield from self._refresh(own, force=force)
            except BusTrouble as error:
                trouble = trouble or str(error)
        return _tended(done, trouble)

    def _refresh(self, own: OwnSwarm, *, force: bool) -> Op[None]:
        clock = self._runner.clock
        if not force and clock.monotonic() < self._refreshed + SYNC_EVERY:
            return
        pages = Pages(keys.COPIES)
        while not pages.finished:  # values may be large, so that a page has few of them
            names = [keys.shared_of(item.key) for item in (yield from pages.read())]
            found = yield from self.reader.read(own, names)
            yield from self._sign_again(own, found.values())
        self._refreshed = clock.monotonic()

    def _sign_again(self, own: OwnSwarm, found: Iterable[SharedRead]) -> Op[None]:
        """Sign values of our swarm with the current key that an earlier one signed."""
        now = self._runner.clock.wall()
        old = _signed_before(own, found, now)
        if not old:
            return
        try:
            signer: Signer = yield InThread(partial(current_signer, own, now))
        except NotAllowed:
            return  # the key is on another host, which does it
        for copy in old:
            head = head_again(own, copy, signer.fingerprint)
            envelope: bytes = yield InThread(partial(sign_head, head, signer))
            work = partial(put_value, head=head, envelope=envelope, value=copy.value)
            yield from self._context.bus.on(own, work)
        yield from self.reader.read(own, [copy.key for copy in old])

    def _shown_copy(self, own: OwnSwarm, key: str) -> Op[SharedCopy | None]:
        """Our copy; its value is what the caller saw."""

        def deciding() -> DecideOp[str]:
            item = (yield (keys.copy(key),))[keys.copy(key)]
            copy = decode_copy(item)
            if copy is None or copy.bus != own.bus_id or copy.seen == copy.revision:
                return Decision(outcome="known")
            return Decision(
                outcome="shown",
                verb="swarm.read",
                thing=f"shared/{key}",
                puts=(Write(keys.copy(key), replace(copy, seen=copy.revision)),),
            )

        yield from self._runner.change(deciding, Actor())
        return decode_copy((yield Read(keys.copy(key)))[keys.copy(key)])


# Decisions.


def effect(decision: HumanDecision) -> ReadOp[Decision[bool]]:
    """What the end of a decision about a shared value does, in the commit that ends it."""
    key = keys.undecided(decision.id)
    item = (yield (key,))[key]
    if item is None:
        return Decision(outcome=False)
    left = decode_undecided(item)
    copy = keys.copy(left.undecided.conflict.key)
    return share_rules.carry_out(left, decision, decode_copy((yield (copy,))[copy]))


def then(context: Context, about: str) -> Op[None]:
    """Put the value on the bus that a person chose, if that is possible from here."""
    own = yield from own_swarm()
    if own is not None:
        key = about.removeprefix(keys.SHARED)
        yield from context.shared.posting.post_waiting(context.identity.actor, own, key)


def settle_ended(runner: Runner, actor: Actor) -> Op[int]:
    """End the decisions about shared values whose time is up; how many were settled."""
    done = 0
    for item in (yield from every(keys.UNDECIDED)):
        left = readable(decode_undecided, item)
        if left is None:
            continue
        live = keys.live(left.decision)
        snapshot: Snapshot = yield Read(keys.decision(left.decision), live)
        decision = readable(decode.decision, snapshot[keys.decision(left.decision)])
        if decision is None or decision.state != "open" or snapshot[live] is None:
            deciding = partial(_settling, left.decision, runner)
            done += (yield from runner.change(deciding, actor)).outcome
    return done


def _settling(id_: str, runner: Runner) -> DecideOp[bool]:
    wanted = (keys.undecided(id_), keys.decision(id_), keys.live(id_))
    snapshot = yield wanted
    item = snapshot[wanted[0]]
    if item is None:
        return Decision(outcome=False)
    left = decode_undecided(item)
    key = keys.copy(left.undecided.conflict.key)
    copy = decode_copy((yield (key,))[key])
    decision = decode.decision(snapshot[wanted[1]])
    alive = snapshot[wanted[2]] is not None
    return share_rules.expire(left, decision, copy, runner.clock.wall(), alive=alive)


# What callers see.


def _first(_runner: Runner) -> Op[dict[str, Item]]:
    page = Range(keys.SHARED, limit=LISTED)
    items = (yield Read(page, longest=ITEM_LIMIT)).ranges[page]
    return {keys.shared_of(item.key): item for item in items}


def _waiting() -> Op[SharesWaiting]:
    first = {each.key: each.number for each in (yield from first_waiting(AT_ONCE))}
    decisions: dict[str, tuple[str, ...]] = {}
    for item in (yield from every(keys.UNDECIDED)):
        left = readable(decode_undecided, item)
        if left is not None:
            name = left.undecided.conflict.key
            decisions[name] = (*decisions.get(name, ()), left.decision)
    return SharesWaiting(first=first, decisions=decisions)


def _view(
    key: str,
    copy: SharedCopy | None,
    waiting: SharesWaiting,
    refusal: SharedRefusal | None,
    trouble: str,
) -> SharedView:
    refused = "" if copy is None else copy.refused
    if refusal is not None:
        refused = f"{refusal.reason}: {refusal.detail}"
    known = copy or SharedCopy(key=key, bus="")
    return SharedView(
        key=key,
        value=msgspec.json.decode(known.value),
        swarm=known.swarm,
        agent=known.agent,
        revision=known.revision,
        written_at=known.written_at or None,
        stored_at=known.at or None,
        waiting=known.writes - waiting.first[key] + 1 if key in waiting.first else 0,
        decisions=waiting.decisions.get(key, ()),
        refused=refused,
        trouble=trouble,
    )


def _signed_before(own: OwnSwarm, found: Iterable[SharedRead], now: float) -> list[SharedCopy]:
    """The values of our swarm that stand on the bus, and that an earlier key signed."""
    copies = [each.after for each in found if each.refusal is None]
    stand = [each for each in copies if each is not None and each.item and each.swarm == own.name]
    valid = registry.valid_keys(own.keys, now)
    return [each for each in stand if valid and each.signed_by != valid[0].fingerprint]


def _tended(done: SharesPosted, trouble: str) -> SharedTended:
    found = done.settled.values()
    return SharedTended(
        posted=sum(isinstance(each, ValueShared) for each in found),
        decisions=tuple([each.decision for each in found if isinstance(each, ShareUndecided)]),
        trouble=trouble,
    )
