"""Envelopes on the bus that are for us: read, verified with our own trust, and deleted.

Verifying happens outside of any transaction.  ``Trust.revisions`` are those that the commit relies
on: if a key is revoked in between, nothing is taken in, and the batch is verified again with the
trust as it is then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    OpenedEnvelope,
    claimed_sender,
    claimed_signers,
    open_envelope,
)
from interlock.nouns.swarms.head import MessageHead, RequestHead, ResultHead
from interlock.runtime.reads import KEYS_AT_ONCE, OWN_OPERATIONS, looked_up
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.runner import Runner

H = TypeVar("H", bound=MessageHead)
B = TypeVar("B", RequestHead, ResultHead)
"""A head with a body."""

AT_ONCE = 48
"""Envelopes that are read, verified and committed together, at most."""
_OPERATIONS = 16
"""Operations of one envelope in the commit that takes it in, at most."""
_BODIES_AT_ONCE = 4 * 1024 * 1024
"""Bytes of bodies that are taken in together, by what their heads say."""


class OnBus(Struct, frozen=True, kw_only=True):
    """An envelope as the bus has it, with the key of its body there; empty if it has none."""

    key: str
    value: bytes
    body_key: str

    @property
    def keys(self) -> tuple[str, ...]:
        """All that is deleted when it was taken in."""
        return (self.key, self.body_key) if self.body_key else (self.key,)


class EnvelopesOnBus(Struct, frozen=True, kw_only=True):
    """The envelopes that the bus has for us, by their kinds, in the order of posting."""

    requests: list[OnBus]
    results: list[OnBus]
    receipts: list[OnBus]
    limit: int

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.requests) + len(self.results) + len(self.receipts)

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return max(len(self.requests), len(self.results), len(self.receipts)) >= self.limit


class Incoming:
    """What the bus has for one home; its methods are generators for a driver."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._at_once = home.at_once(AT_ONCE, _OPERATIONS)
        self._bodies_at_once = min(_BODIES_AT_ONCE, home.runner.capabilities.max_bytes // 2)

    def look(self, own: OwnSwarm) -> Op[EnvelopesOnBus]:
        """What the bus has for us, up to a page of each kind, with one read."""
        folders = (
            keys.bus_request(own.name),
            keys.bus_result(own.name),
            keys.bus_receipt(own.name),
        )
        pages = [Range(folder, limit=self._at_once) for folder in folders]

        def work(_runner: Runner) -> Op[list[tuple[Item, ...]]]:
            ranges = (yield Read(*pages)).ranges
            return [ranges[page] for page in pages]

        items = yield from self._home.bus.on(own, work)
        requests, results, receipts = map(_envelopes, folders, items)
        return EnvelopesOnBus(
            requests=requests, results=results, receipts=receipts, limit=self._at_once
        )

    def at(self, own: OwnSwarm, folder: str, names: Iterable[str]) -> Op[list[OnBus]]:
        """These envelopes of a folder, as far as they are there."""
        wanted = [folder + name for name in names]

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            return (yield from looked_up(wanted))

        items = yield from self._home.bus.on(own, work)
        return _envelopes(folder, [item for item in items.values() if item is not None])

    def trust(self, own: OwnSwarm, found: Sequence[OnBus], kind: type[MessageHead]) -> Op[Trust]:
        """The trust that these envelopes need: also the keys of agents, if one of these signed.

        The entry of a swarm is read again for a key that is not known: it was rotated, or it is
        that of a new agent.
        """

        def unknown(known: Collection[str]) -> list[OnBus]:
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
        self, found: Sequence[OnBus], kind: type[H], trust: Trust, own: OwnSwarm
    ) -> tuple[list[tuple[OnBus, OpenedEnvelope[H]]], list[tuple[OnBus, EnvelopeRefused]]]:
        """Verify envelopes; nothing of them is believed before."""
        opened: list[tuple[OnBus, OpenedEnvelope[H]]] = []
        refused: list[tuple[OnBus, EnvelopeRefused]] = []
        now = self._home.now()
        for each in found:
            result = open_envelope(
                each.value,
                kind,
                trust.keys.get,
                bus=own.bus_id,
                now=now,
                swarm=own.name,
            )
            if isinstance(result, EnvelopeRefused):
                refused.append((each, result))
            elif (wrong := _misplaced(each, result)) is not None:
                refused.append((each, wrong))
            else:
                opened.append((each, result))
        return opened, refused

    def bodies(self, own: OwnSwarm, wanted: Sequence[OnBus]) -> Op[dict[str, bytes]]:
        """The bodies of these envelopes, by their keys."""
        if not wanted:
            return {}

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            return (yield from looked_up(each.body_key for each in wanted))

        items = yield from self._home.bus.on(own, work)
        return {key: item.value for key, item in items.items() if item is not None}

    def fitting(
        self, opened: Sequence[tuple[OnBus, OpenedEnvelope[B]]]
    ) -> list[tuple[OnBus, OpenedEnvelope[B]]]:
        """The first of these whose bodies fit into one commit; at least one."""
        size = 0
        for place, (_, envelope) in enumerate(opened):
            size += envelope.head.source_size
            if place and size > self._bodies_at_once:
                return list(opened[:place])
        return list(opened)

    def delete(self, own: OwnSwarm, wanted: Iterable[str]) -> Op[None]:
        """Steps 5 and 10."""
        gone = tuple(wanted)

        def deleting(some: tuple[str, ...]) -> DecideOp[None]:
            yield from ()
            thing = f"swarm/{own.name}"
            return Decision(outcome=None, verb="bus.remove", thing=thing, deletes=some)

        def work(runner: Runner) -> Op[None]:
            most = runner.capabilities.max_operations - OWN_OPERATIONS
            for start in range(0, len(gone), most):
                some = gone[start : start + most]
                yield from runner.change(partial(deleting, some), self._home.bus.actor(own))

        yield from self._home.bus.on(own, work)


def _envelopes(folder: str, items: Sequence[Item]) -> list[OnBus]:
    kind, _, rest = folder.partition("/")
    bodies = "" if kind == "ack" else f"{kind}-body/{rest}"
    return [
        OnBus(
            key=item.key,
            value=item.value,
            body_key=bodies and bodies + item.key.removeprefix(folder),
        )
        for item in sorted(items, key=lambda item: item.revision)
    ]


def _misplaced(found: OnBus, opened: OpenedEnvelope[Any]) -> EnvelopeRefused | None:
    """Why a valid envelope does not count where it was found: under the key of another one."""
    head: MessageHead = opened.head
    if not found.key or keys.id_of(found.key) in (head.message_id, head.request_id):
        return None
    detail = f"it was found under {found.key[:200]}"
    return EnvelopeRefused(reason="wrong_request", detail=detail, key=head.key, head=head)


def unchanged(relied: Iterable[str], revisions: Mapping[str, int]) -> ReadOp[bool]:
    """Whether the items of the trust are still as they were read; the commit checks that."""
    wanted = tuple(sorted(relied))
    if not wanted:
        return True
    items = (yield wanted).items
    return all(
        (item := items[key]) is not None and item.revision == revisions.get(key) for key in wanted
    )


def read_all(wanted: Iterable[str]) -> ReadOp[dict[str, Item | None]]:
    """Items of a decision, in portions."""
    found: dict[str, Item | None] = {}
    refs = list(wanted)
    for start in range(0, len(refs), KEYS_AT_ONCE):
        found |= (yield tuple(refs[start : start + KEYS_AT_ONCE])).items
    return found
