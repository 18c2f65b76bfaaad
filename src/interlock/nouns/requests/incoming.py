"""Envelopes on the bus that are for us: read, and verified with our own trust.

Verifying happens outside of any transaction.  The commit relies on the trust that was used: if a
key is revoked in between, nothing is taken in, and the batch is verified again with the trust as it
is then.  What is refused has no such commit, so it is refused only by a trust that was just read.

Anyone with the credentials of the bus may put values of any size there.  So an envelope is read
only up to the size that one may have, and a body up to the size that its verified head names; of
what is longer, only the size is read.  It is refused as any other rubbish, and deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.requests.cleanup import TakenEnvelope
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    OpenedEnvelope,
    claimed_sender,
    claimed_signers,
    open_envelope,
    too_large,
)
from interlock.nouns.swarms.head import ENVELOPE_LIMIT, MessageHead, RequestHead, ResultHead
from interlock.runtime.reads import BYTES_AT_ONCE, KEYS_AT_ONCE, looked_up, looked_up_within
from interlock.steps import Op, Read
from interlock.store import Change, Item, Range, Resync

if TYPE_CHECKING:
    from interlock.nouns.requests.cleanup import Cleanup
    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

H = TypeVar("H", bound=MessageHead)
B = TypeVar("B", RequestHead, ResultHead)
"""A head with a body."""

STALE = "stale"
"""The outcome of an intake whose trust, or whose own swarm, was not as it was read."""
AT_ONCE = 48
"""Envelopes that are read, verified and committed together, at most."""
_OPERATIONS = 17
"""Operations of one envelope in the commit that takes it in, at most."""
_FEW = 8
"""Envelopes that are read together with their bodies, of which nothing is known before."""
_BODIES_AT_ONCE = BYTES_AT_ONCE
"""Bytes of bodies that are taken in together, by what their heads say."""
_SMALL_BODY = 128 * 1024
"""Bytes of a body that is read together with its envelope, at most."""


class EnvelopeOnBus(Struct, frozen=True, kw_only=True):
    """An envelope as the bus has it, with the key of its body there; empty if it has none."""

    item: Item
    body_key: str
    body: bytes | None = None
    """Its body, if that was read with it."""
    body_size: int = 0
    """The bytes of its body, also if that is too large to be read."""

    @property
    def key(self) -> str:
        """Where it was found."""
        return self.item.key

    @property
    def value(self) -> bytes:
        """Its bytes; none of one that is too large."""
        return self.item.value


class EnvelopesOnBus(Struct, frozen=True, kw_only=True):
    """The envelopes that the bus has for us, by their kinds, in the order of posting."""

    requests: list[EnvelopeOnBus]
    results: list[EnvelopeOnBus]
    receipts: list[EnvelopeOnBus]
    full: bool
    """Whether there may be more."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.requests) + len(self.results) + len(self.receipts)


class VerifiedEnvelopes(Struct, Generic[H], frozen=True, kw_only=True):
    """Envelopes that were verified with a trust: those that are right, and the others."""

    opened: list[tuple[EnvelopeOnBus, OpenedEnvelope[H]]]
    refused: list[tuple[EnvelopeOnBus, EnvelopeRefused]]
    trust: Trust

    @property
    def relied(self) -> dict[str, Item]:
        """The items that the commit relies on."""
        return self.trust.relied([envelope.key for _, envelope in self.opened])

    @property
    def envelopes(self) -> list[EnvelopeOnBus]:
        """All of them, each once: one whose body is wrong is in both lists."""
        both = [*[each for each, _ in self.opened], *[each for each, _ in self.refused]]
        return list({each.key: each for each in both}.values())


class Incoming:
    """What the bus has for one home; its methods are generators for a driver."""

    def __init__(self, home: Home, cleanup: Cleanup) -> None:
        self._home = home
        self._cleanup = cleanup
        self._at_once = home.at_once(AT_ONCE, _OPERATIONS)
        self._bodies_at_once = min(_BODIES_AT_ONCE, home.runner.capabilities.max_bytes // 2)

    def look(self, own: OwnSwarm) -> Op[EnvelopesOnBus]:
        """What the bus has for us, up to a page of each kind, with one read.

        Those that this process has taken in, and not deleted yet, are left out.
        """
        folders = folders_of(own)
        pages = [Range(folder, limit=self._at_once) for folder in folders]

        def work(_runner: Runner) -> Op[list[tuple[Item, ...]]]:
            ranges = (yield Read(*pages, longest=ENVELOPE_LIMIT)).ranges
            return [ranges[page] for page in pages]

        items = yield from self._home.bus.on(own, work)
        full = any(len(each) >= self._at_once for each in items)
        new = [[item for item in each if not self._cleanup.is_taken(item)] for each in items]
        requests, results, receipts = map(_envelopes, folders, new)
        return EnvelopesOnBus(requests=requests, results=results, receipts=receipts, full=full)

    def at(self, own: OwnSwarm, wanted: Sequence[str]) -> Op[EnvelopesOnBus]:
        """The envelopes under these keys, as far as they are there and not taken in by now."""
        wanted = list(dict.fromkeys(wanted))
        folders = folders_of(own)
        by_folder = [[key for key in wanted if key.startswith(folder)] for folder in folders]
        bodies = [
            _body_key(folder, key)
            for folder, some in zip(folders, by_folder, strict=True)
            for key in some
        ]
        few = len(wanted) <= _FEW
        longest = _SMALL_BODY if few else ENVELOPE_LIMIT

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            both = (*wanted, *filter(None, bodies if few else ()))
            return (yield from looked_up(both, longest=longest))

        items = yield from self._home.bus.on(own, work)
        there = [
            [item for key in some if (item := items[key]) and not self._cleanup.is_taken(item)]
            for some in by_folder
        ]
        requests, results, receipts = (
            _envelopes(folder, some, items) for folder, some in zip(folders, there, strict=True)
        )
        return EnvelopesOnBus(requests=requests, results=results, receipts=receipts, full=False)

    def changed(
        self, own: OwnSwarm, changes: Sequence[Change | Resync] | None
    ) -> Op[EnvelopesOnBus]:
        """What these changes put on the bus for us; without changes, everything that is there."""
        if changes is None or not all(isinstance(each, Change) for each in changes):
            return (yield from self.look(own))
        new = {each.key for each in changes if isinstance(each, Change) and not each.deleted}
        if len(new) > self._at_once:
            return (yield from self.look(own))
        return (yield from self.at(own, list(new)))

    def verified(
        self, own: OwnSwarm, found: Sequence[EnvelopeOnBus], kind: type[H], *, again: bool = False
    ) -> Op[VerifiedEnvelopes[H]]:
        """Verify the first of these envelopes, as many as one commit takes.

        It is done ``again`` if the trust that was used the last time has changed.
        """
        found = found[: self._at_once]
        trust = None if again else self._home.remembered_trust()
        if trust is not None:
            opened, refused = self.open(found, kind, trust, own)
            if not refused:
                return VerifiedEnvelopes(opened=opened, refused=refused, trust=trust)
        trust = yield from self._read_trust(own, found, kind)
        opened, refused = self.open(found, kind, trust, own)
        return VerifiedEnvelopes(opened=opened, refused=refused, trust=trust)

    def _read_trust(
        self, own: OwnSwarm, found: Sequence[EnvelopeOnBus], kind: type[MessageHead]
    ) -> Op[Trust]:
        """The trust that these envelopes need: also the keys of agents, if one of these signed.

        The entry of a swarm is read again for a key that is not known: it was rotated, or it is
        that of a new agent.
        """

        def unknown(known: Collection[str]) -> list[EnvelopeOnBus]:
            return [
                each
                for each in found
                if any(name not in known for name in claimed_signers(each.value, kind))
            ]

        trust = yield from self._home.trust(agents=lambda known: bool(unknown(known)))
        swarms = {claimed_sender(each.value, kind) for each in unknown(trust.keys)} - {""}
        if swarms and (yield from self._home.swarms.look_again(own, sorted(swarms))):
            trust = yield from self._home.trust(agents=lambda _: True)
        return trust

    def open(
        self, found: Sequence[EnvelopeOnBus], kind: type[H], trust: Trust, own: OwnSwarm
    ) -> tuple[
        list[tuple[EnvelopeOnBus, OpenedEnvelope[H]]], list[tuple[EnvelopeOnBus, EnvelopeRefused]]
    ]:
        """Verify envelopes; nothing of them is believed before."""
        opened: list[tuple[EnvelopeOnBus, OpenedEnvelope[H]]] = []
        refused: list[tuple[EnvelopeOnBus, EnvelopeRefused]] = []
        now = self._home.now()
        for each in found:
            result = (
                too_large(each.item.omitted, kind)
                if each.item.omitted
                else open_envelope(
                    each.value, kind, trust.keys.get, bus=own.bus_id, now=now, swarm=own.name
                )
            )
            if isinstance(result, EnvelopeRefused):
                refused.append((each, result))
            elif (wrong := _misplaced(each, result)) is not None:
                refused.append((each, wrong))
            else:
                opened.append((each, result))
        return opened, refused

    def with_bodies(
        self, own: OwnSwarm, opened: Sequence[tuple[EnvelopeOnBus, OpenedEnvelope[B]]]
    ) -> Op[list[tuple[EnvelopeOnBus, OpenedEnvelope[B]]]]:
        """These envelopes with their bodies, as far as they are still there.

        Another process may have taken one in by now.  Its body is gone then, but not wrong.
        """
        missing = [each for each, _ in opened if each.body is None]
        limits = {each.body_key: envelope.head.source_size for each, envelope in opened}

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            bodies = {each.body_key: limits[each.body_key] for each in missing}
            return (yield from looked_up_within({**{each.key: 0 for each in missing}, **bodies}))

        items = (yield from self._home.bus.on(own, work)) if missing else {}
        there: dict[str, EnvelopeOnBus] = {}
        for each in missing:
            item, body = items[each.key], items[each.body_key]
            if item is not None and item.revision == each.item.revision:
                there[each.key] = _with_body(each, body)
        return [
            (there.get(each.key, each), envelope)
            for each, envelope in opened
            if each.body is not None or each.key in there
        ]

    def fitting(
        self, opened: Sequence[tuple[EnvelopeOnBus, OpenedEnvelope[B]]]
    ) -> list[tuple[EnvelopeOnBus, OpenedEnvelope[B]]]:
        """The first of these whose bodies fit into one commit; at least one."""
        size = 0
        for place, (_, envelope) in enumerate(opened):
            size += envelope.head.source_size
            if place and size > self._bodies_at_once:
                return list(opened[:place])
        return list(opened)

    def taken(self, actor: Actor, own: OwnSwarm, gone: Iterable[EnvelopeOnBus]) -> Op[None]:
        """These are taken in or refused: steps 5 and 10 follow soon."""
        taken = [TakenEnvelope.of(each.item, each.body_key) for each in gone]
        yield from self._cleanup.add(actor, own, taken=taken)


def folders_of(own: OwnSwarm) -> tuple[str, str, str]:
    """The folders of the bus in which requests, results and receipts arrive for us."""
    return keys.bus_request(own.name), keys.bus_result(own.name), keys.bus_receipt(own.name)


def _body_key(folder: str, key: str) -> str:
    """The key of the body of an envelope; empty if its kind has none."""
    kind, _, rest = folder.partition("/")
    return "" if kind == "ack" else f"{kind}-body/{rest}{key.removeprefix(folder)}"


def _envelopes(
    folder: str, items: Sequence[Item], read: Mapping[str, Item | None] | None = None
) -> list[EnvelopeOnBus]:
    """Envelopes in the order of posting, with the bodies that were ``read``."""
    found = []
    for item in sorted(items, key=lambda item: (item.revision, item.key)):
        body_key = _body_key(folder, item.key)
        body = (read or {}).get(body_key)
        envelope = EnvelopeOnBus(item=item, body_key=body_key)
        whole = body is not None and not body.omitted
        found.append(_with_body(envelope, body) if whole else envelope)
    return found


def _with_body(envelope: EnvelopeOnBus, body: Item | None) -> EnvelopeOnBus:
    if body is None:
        return replace(envelope, body=b"")
    return replace(envelope, body=body.value, body_size=body.size)


def _misplaced(found: EnvelopeOnBus, opened: OpenedEnvelope[Any]) -> EnvelopeRefused | None:
    """Why a valid envelope does not count where it was found: under the key of another one."""
    head: MessageHead = opened.head
    if not found.key or keys.id_of(found.key) in (head.message_id, head.request_id):
        return None
    detail = f"it was found under {found.key[:200]}"
    return EnvelopeRefused(reason="wrong_request", detail=detail, key=head.key, head=head)


def unchanged(relied: Mapping[str, Item]) -> ReadOp[bool]:
    """Whether these items are still as they were read; the commit checks that."""
    if not relied:
        return True
    items = (yield tuple(relied)).items
    return all(
        (item := items[key]) is not None and item.revision == before.revision
        for key, before in relied.items()
    )


def read_all(wanted: Iterable[str]) -> ReadOp[dict[str, Item | None]]:
    """Items of a decision, in portions."""
    found: dict[str, Item | None] = {}
    refs = list(wanted)
    for start in range(0, len(refs), KEYS_AT_ONCE):
        found |= (yield tuple(refs[start : start + KEYS_AT_ONCE])).items
    return found
