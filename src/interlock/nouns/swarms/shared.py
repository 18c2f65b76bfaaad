"""Shared values: what stands on the bus, what a home keeps, and which values a reader accepts.

On the bus, ``shared/{key}`` is the signed envelope and the value beside it (``SharedItem``).

At home
    copies/{key}              SharedCopy       the value as this home last read or wrote it
    shared-writes/{key}/...   SharedWrite      a write that is not on the bus yet
    undecided/{decision}      UndecidedWrite   a write that a person decides about
    conflicts/{id}            StoredConflict   two writes, with both values

**Reading.**  A client with the bus's credentials can put back any item that it ever read there.  So
a home compares what stands there with its copy:

    the same item                           unchanged
    an older item                           rollback
    a newer one that replaced an older
    item than our copy                      rollback: its head was signed before our copy was
    a newer one that replaced our copy,
    or something after it                   newer: accepted

A head names the revision that it replaced, and the commit checked that; a replayed head names one
that is long gone.  A copy stays valid after the key that signed it has ended: it was verified when
it was read.

**Two revisions.**  The revision of a value is what its writers name as their base.  A value that is
signed again, because its key was rotated, is a new item with the same revision (``same_as``).

**The base.**  ``seen`` is the revision that this home last showed to a caller, or wrote.  It
is the base of a write that names none: a copy that only the link has read was seen by no agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.nouns.swarms.envelope import EnvelopeRefused, Reason, TrustedKey, open_envelope
from interlock.nouns.swarms.head import ENVELOPE_LIMIT
from interlock.nouns.swarms.sync_heads import VALUE_LIMIT, SharedHead
from interlock.nouns.swarms.sync_rules import (
    CurrentValue,
    SharedValue,
    WriteConflict,
    WriteUndecided,
)
from interlock.store import Item

ITEM_LIMIT = VALUE_LIMIT + ENVELOPE_LIMIT + 64
"""Bytes of an item on the bus: the envelope, the value, and what is around them."""


class SharedItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shared value as it stands on the bus."""

    envelope: Raw
    value: Raw


class SharedCopy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shared value as this home knows it; ``item`` is 0 while it was neither read nor written.

    ``digest`` is that of its head, ``signed_by`` the key, ``at`` when it was stored, by the bus's
    clock as its writer says.  ``writes`` counts the writes of this home, and ``pending`` is the
    newest one if it is not on the bus yet.  ``refused`` says why something newer that stands on the
    bus does not count.
    """

    key: str
    bus: str
    item: int = 0
    revision: int = 0
    digest: str = ""
    signed_by: str = ""
    write: str = ""
    swarm: str = ""
    agent: str = ""
    value: Raw = Raw(b"null")
    base: int = 0
    written_at: float = 0.0
    at: float = 0.0
    seen: int = 0
    writes: int = 0
    pending: str = ""
    refused: str = ""
    refused_at: float = 0.0


class SharedWrite(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A write on its way to the bus; ``number`` is its place among those of its home to this key.

    It ``follows`` an earlier write of the same home that was not on the bus either: its base is
    then the revision which that one gets.  ``plan`` is the conflict that it is about to win: the
    loser is kept before it is overwritten.
    """

    id: str
    key: str
    bus: str
    agent: str
    value: Raw
    base: int
    written_at: float
    number: int = 0
    follows: str = ""
    plan: WriteConflict | None = None

    @property
    def place(self) -> str:
        """The key of its item."""
        return keys.shared_write(self.key, self.number, self.id)


class UndecidedWrite(Struct, frozen=True, kw_only=True):
    """A write that a decision is about, and the numbers of the writes that it stands for."""

    decision: str
    first: int
    last: int
    bus: str
    agent: str
    undecided: WriteUndecided

    def is_about(self, write: SharedWrite) -> bool:
        """Whether this write is the one, or one that it saw."""
        same_key = self.undecided.conflict.key == write.key
        return same_key and self.first <= write.number <= self.last


class StoredConflict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conflict with both values; ``decision`` if a person decides, or has decided, about it."""

    id: str
    conflict: WriteConflict
    at: float
    decision: str = ""


class OpenedShared(Struct, frozen=True, kw_only=True):
    """A value on the bus whose signature fits: its head, and the revisions of the item."""

    head: SharedHead
    digest: str
    value: Raw
    item: int

    @property
    def revision(self) -> int:
        """The revision of the value, which its writers name as their base."""
        return self.head.same_as or self.item


_ITEM = codec.Decoder(SharedItem)
decode_copy = codec.Decoder(SharedCopy).read_if_present
decode_write = codec.Decoder(SharedWrite).read
decode_undecided = codec.Decoder(UndecidedWrite).read
decode_conflict = codec.Decoder(StoredConflict).read

SharedOrder: TypeAlias = Literal["newer", "unchanged", "rollback"]


SharedReason: TypeAlias = Reason | Literal["rollback", "wrong_key", "deleted"]


class SharedRefusal(Struct, frozen=True, kw_only=True):
    """Why an item on the bus does not count."""

    reason: SharedReason
    detail: str


def open_shared(
    item: Item, key: str, trusted: Mapping[str, TrustedKey], bus: str
) -> OpenedShared | SharedRefusal:
    """The value of an item on this bus, or why it does not count.

    The length comes first, then the signature, then the value.
    """
    if item.size > ITEM_LIMIT:
        return _no("too_large", f"the item has {item.size} bytes, above {ITEM_LIMIT}")
    try:
        stands = _ITEM.decode(item.value)
    except codec.UNREADABLE:
        return _no("malformed", "it is no envelope with a value")
    found = open_envelope(bytes(stands.envelope), SharedHead, trusted.get, bus=bus, now=0.0)
    if isinstance(found, EnvelopeRefused):
        return _no(found.reason, found.detail)
    value = Raw(bytes(stands.value))
    opened = OpenedShared(head=found.head, digest=found.digest, value=value, item=item.revision)
    return _misplaced(opened, key, bus) or opened


def _misplaced(found: OpenedShared, key: str, bus: str) -> SharedRefusal | None:
    head = found.head
    if head.bus != bus:
        return _no("wrong_bus", "it was signed for another bus")
    if head.shared_key != key:
        return _no("wrong_key", f"it was signed for {head.shared_key}")
    if not head.has_value(bytes(found.value)) or not _is_json(found.value):
        return _no("body_mismatch", "the value is not the one that was signed")
    return None


def _no(reason: SharedReason, detail: str) -> SharedRefusal:
    return SharedRefusal(reason=reason, detail=detail)


def _is_json(value: Raw) -> bool:
    try:
        msgspec.json.decode(value)
    except codec.UNREADABLE:
        return False
    return True


def judge_shared(copy: SharedCopy | None, found: OpenedShared, bus: str) -> SharedOrder:
    """A value that stands on the bus against our copy."""
    if found.head.replaces >= found.item:
        return "rollback"  # the bus was set back since it was signed
    if copy is None or not copy.item or copy.bus != bus:
        return "newer"
    if found.item == copy.item:
        return "unchanged" if found.digest == copy.digest else "rollback"
    newer = found.item > copy.item and found.head.replaces >= copy.item
    return "newer" if newer else "rollback"


def judge_item(
    copy: SharedCopy | None, item: Item, key: str, trusted: Mapping[str, TrustedKey], bus: str
) -> OpenedShared | SharedRefusal | None:
    """What an item on the bus is, compared with our copy: newer, refused, or None: what we have.

    Our copy was verified when it was read, so its item need not be again: the key that signed it
    may have ended since.
    """
    here = copy if copy is not None and copy.bus == bus else None
    found = open_shared(item, key, trusted, bus)
    if isinstance(found, SharedRefusal):
        return None if here is not None and here.item == item.revision else found
    match judge_shared(here, found, bus):
        case "newer":
            return found
        case "unchanged":
            return None
        case "rollback":
            said = f"it replaced revision {found.head.replaces}, and this home read a later one"
            return _no("rollback", said)


def moved(copy: SharedCopy, bus: str) -> SharedCopy:
    """The copy on this bus: revisions of another bus say nothing here, the value is still shown."""
    if copy.bus == bus:
        return copy
    return replace(copy, bus=bus, item=0, revision=0, digest="", base=0, seen=0)


def taken_in(copy: SharedCopy | None, found: OpenedShared, bus: str) -> SharedCopy:
    """The copy after a value was accepted."""
    return replace(
        moved(copy or SharedCopy(key=found.head.shared_key, bus=bus), bus),
        item=found.item,
        revision=found.revision,
        digest=found.digest,
        signed_by=found.head.key,
        write=found.head.write_id,
        swarm=found.head.from_swarm,
        agent=found.head.agent,
        value=found.value,
        base=found.head.base,
        written_at=found.head.timestamp / 1000,
        at=found.head.bus_time / 1000,
        refused="",
        refused_at=0.0,
    )


def current_value(found: OpenedShared, now: float, age: float | None) -> CurrentValue:
    """A value on the bus as the rules compare it; ``age`` as the engine of the bus measured it."""
    head = found.head
    shared = SharedValue(
        value=found.value, swarm=head.from_swarm, base=head.base, written_at=head.timestamp / 1000
    )
    at = head.bus_time / 1000 if age is None else now - age
    return CurrentValue(shared=shared, revision=found.revision, item=found.item, at=at, age=age)


def known_value(copy: SharedCopy, now: float, age: float | None) -> CurrentValue:
    """Our copy as the rules compare it, if that is what stands on the bus."""
    shared = SharedValue(
        value=copy.value, swarm=copy.swarm, base=copy.base, written_at=copy.written_at
    )
    at = copy.at if age is None else now - age
    return CurrentValue(shared=shared, revision=copy.revision, item=copy.item, at=at, age=age)


def overwritten(copy: SharedCopy | None, found: OpenedShared, own: str) -> WriteConflict | None:
    """The conflict that a write of our swarm has lost, if this value won it.

    Its writer did not see our write: its base is another revision than the one that it replaced.
    """
    head = found.head
    if copy is None or copy.swarm != own or head.from_swarm == own or head.same_as:
        return None
    if head.replaces != copy.item or head.base == copy.revision:
        return None
    at = head.bus_time / 1000
    return WriteConflict(
        key=head.shared_key,
        winner=head.from_swarm,
        loser=own,
        winner_value=found.value,
        loser_value=copy.value,
        winner_timestamp=at,
        loser_timestamp=copy.at,
        time_diff_ms=round(abs(at - copy.at) * 1000, 3),
        resolution="last_write_wins",
    )
