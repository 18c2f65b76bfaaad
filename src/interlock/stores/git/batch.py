"""A batch: the transactions of one git commit, as a file of the branch.

    batches/0000012/000000192.json

The first line is the head of the batch, each further line is one transaction.  Batches are numbered
from 1 on, and each names the SHA-256 of the file before it, so a batch that is changed, lost or put
in between shows.  The batches are the truth of the store: applied in order to an empty replica they
give the same items, the same log and the same revisions on every host.

An expired key is absent for the decisions of a batch only if the head says so (``dead``): no other
host judges that by its own clock.

Values are usually JSON objects and stand in the line as they are, byte for byte, so that a person
can read them; any other value is a string, and bytes that are no text are a list with their base64.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw, Struct

from interlock.store import LIVE, Item, Put, Txn

IN_FOLDER = 16
"""Batches in one folder: a commit writes its list and that of the folders again.

With 64, and log files of 1,000 revisions, the day of ``tests/stores/git/test_size.py`` takes
1.13 MB instead of 0.98.
"""
BATCHES = "batches"


class BatchHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a batch is, beside its transactions.

    before    the SHA-256 of the file of the batch before; empty for the first
    id        distinguishes this batch from any other that is written in its place
    host      the host that wrote it
    revision  that of the store before the batch
    dead      liveness keys that expired for the host, and are gone for all hosts
    beats     liveness keys that the beats of the host renew from now on
    trimmed   the revision up to which entries leave the log; 0 if none do
    mark      the mark that closes the store from now on, empty if it opens; None if it stays
    full      whether the commit has a checkpoint of the state after this batch
    loaded    how many of the last lines are items of another store, not transactions
    erased    whether loaded items were deleted
    """

    batch: int
    before: str
    id: str
    host: str
    revision: int
    dead: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    trimmed: int = 0
    mark: str | None = None
    full: bool = False
    loaded: int = 0
    erased: bool = False


class BatchPut(Struct, frozen=True, omit_defaults=True):
    """A put as a batch holds it."""

    key: str
    value: Raw
    ttl: float | None = None


class BatchTxn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A transaction as a batch holds it."""

    id: str = ""
    hash: str = ""
    entry: Raw = Raw(b'""')
    puts: tuple[BatchPut, ...] = ()
    deletes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    quiet: bool = False


class LoadedItem(Struct, frozen=True, omit_defaults=True):
    """An item or an entry of another store as a batch holds it."""

    key: str
    value: Raw
    revision: int
    created: int
    entry: str = ""
    hash: str = ""
    expires_in: float | None = None


class DecodedBatch(Struct, frozen=True):
    """A batch as it was read, and the SHA-256 of its file."""

    head: BatchHead
    txns: tuple[Txn, ...]
    items: tuple[Item, ...]
    digest: str


def encode(head: BatchHead, txns: list[Txn], items: Sequence[Item] = ()) -> bytes:
    """The file of a batch."""
    return msgspec.json.Encoder().encode_lines([head, *map(_line, txns), *map(_loaded, items)])


def decode(file: bytes) -> DecodedBatch:
    """The batch of a file; ValueError if it is none."""
    first, _, rest = file.partition(b"\n")
    head = msgspec.json.decode(first, type=BatchHead)
    lines = rest.split(b"\n")[:-1]  # not splitlines: JSON may have a carriage return in it
    first_item = len(lines) - head.loaded
    found = [msgspec.json.decode(line, type=BatchTxn) for line in lines[:first_item]]
    loaded = [msgspec.json.decode(line, type=LoadedItem) for line in lines[first_item:]]
    txns, items = tuple(map(_txn, found)), tuple(map(_item, loaded))
    return DecodedBatch(head, txns, items, digest(file))


def digest(file: bytes) -> str:
    """What the next batch names."""
    return hashlib.sha256(file).hexdigest()


def folder(number: int) -> str:
    """The folder under ``batches`` that a batch is in."""
    return f"{number // IN_FOLDER:07}"


def name(number: int) -> str:
    """The name of the file of a batch."""
    return f"{number:09}.json"


def number_of(name: str) -> int:
    """The number in the name of a file; 0 if it is no batch."""
    stem = name.removesuffix(".json")
    return int(stem) if stem.isascii() and stem.isdigit() else 0


class EntryWords(Struct):
    """The fields of a log entry that a person looks for."""

    agent: str = ""
    verb: str = ""
    thing: str = ""
    outcome: str = ""


def message(txns: list[Txn], head: BatchHead) -> str:
    """The commit message: who did what, for people who look at the git log."""
    lines = list(_words(txns))
    if not lines:
        what = _quiet_words(txns, head)
        if head.mark is not None or head.loaded or head.erased:
            what = f"Load {head.loaded} items" if head.loaded else "Move the store"
        return f"{what}\n\n{_facts(head)}\n"
    first = lines[0] if len(lines) == 1 else f"{lines[0]}, and {len(lines) - 1} more"
    rest = "".join(f"- {each}\n" for each in lines) + "\n" if len(lines) > 1 else ""
    return f"{first}\n\n{rest}{_facts(head)}\n"


def _quiet_words(txns: list[Txn], head: BatchHead) -> str:
    """What quiet transactions do: they have no entry that says it."""
    puts = [put.key for txn in txns for put in txn.puts]
    if others := [key for key in puts if not key.startswith(LIVE)]:
        return f"Write {others[0]}" + (f", and {len(others) - 1} more" if others[1:] else "")
    if puts:
        return f"Renew {len(puts)} liveness keys"
    return f"End {len(head.dead)} expired liveness keys" if head.dead else "Keep the store in order"


def _facts(head: BatchHead) -> str:
    return f"Batch: {head.batch}\nHost: {head.host}"


def _words(txns: list[Txn]) -> Iterator[str]:
    for txn in txns:
        if txn.quiet:
            continue
        try:
            said = msgspec.json.decode(txn.entry, type=EntryWords)
        except msgspec.DecodeError:
            said = EntryWords(verb=txn.id)
        words = " ".join(filter(None, (said.verb or "change", said.thing)))
        who = f"{said.agent}: " if said.agent else ""
        yield f"{who}{words}" + (f" ({said.outcome})" if said.outcome else "")


def to_raw(value: bytes) -> Raw:
    """A value as part of a line."""
    if value[:1] == b"{" and value[-1:] == b"}" and b"\n" not in value:
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            return Raw(value)
    try:
        return Raw(msgspec.json.encode(value.decode()))
    except UnicodeDecodeError:
        return Raw(b'["%b"]' % b64encode(value))


def from_raw(raw: Raw) -> bytes:
    """The value that a line holds."""
    value = bytes(raw)
    if value[:1] == b"{":
        return value
    if value[:1] == b"[":
        return b64decode(value[2:-2])
    return msgspec.json.decode(value, type=str).encode()


def _line(txn: Txn) -> BatchTxn:
    return BatchTxn(
        id="" if txn.quiet else txn.id,
        hash=txn.hash,
        entry=to_raw(txn.entry),
        puts=tuple([BatchPut(put.key, to_raw(put.value), put.ttl) for put in txn.puts]),
        deletes=txn.deletes,
        signals=txn.signals,
        quiet=txn.quiet,
    )


def _loaded(item: Item) -> LoadedItem:
    stamp = (item.revision, item.created, item.entry, item.hash, item.expires_in)
    return LoadedItem(item.key, to_raw(item.value), *stamp)


def _item(found: LoadedItem) -> Item:
    stamp = (found.revision, found.created, found.entry, found.hash, found.expires_in)
    return Item(found.key, from_raw(found.value), *stamp)


def _txn(found: BatchTxn) -> Txn:
    return Txn(
        id=found.id,
        entry=from_raw(found.entry),
        hash=found.hash,
        puts=tuple([Put(put.key, from_raw(put.value), put.ttl) for put in found.puts]),
        deletes=found.deletes,
        signals=found.signals,
        quiet=found.quiet,
    )
