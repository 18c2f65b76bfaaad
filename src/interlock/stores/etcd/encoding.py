"""How keys and values stand in etcd.

    {namespace}/{key}        an item
    {namespace}/{key}<NUL>   a signal: right behind its key, so that a watch of the key or of its
                             folder sees it, and no key can be the same

    {namespace}/log/<NUL>{revision}<NUL>   an entry that was loaded from another store

The value of an item is a small header and the payload.  The header says who wrote it, the stamp,
and whether that write was quiet, so that a watch can leave it out.  An item of a task is plain
JSON, for people to read: there the stamp is the last member.

A namespace may be filled from another store, and go on with its revisions.  etcd numbers every
write by itself, so all revisions of such a namespace are etcd's plus a ``shift``, and a loaded item
has its revisions in its header.  ``floor`` is the revision at which the filling began: everything
up to it was loaded.  An item that was loaded and written since keeps its ``created`` in its header.
"""

from __future__ import annotations

import struct

from interlock.errors import StoreDamaged
from interlock.store import ENGINE_KEYS, LIVE, LOG, Item, Range
from interlock.store import Log as LogRef
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.network import STAMP, stamped, unstamped

_HEADER = struct.Struct(">BHH")
_NUMBERS, _NUMBER = struct.Struct(">QQ"), struct.Struct(">Q")
_QUIET, _LOADED, _CREATED = 1, 2, 4
"""Flags of a header: it has the revision and the creation of a loaded item, or its creation."""
NUL = b"\0"


class Namespace:
    """Keys and values of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{namespace}/".encode()
        self._cut = len(self.prefix)
        self._live = self.prefix + LIVE.encode()
        self._log = self.prefix + LOG.encode()
        self._past = self._log + NUL
        self.shift = 0
        self.floor = 0

    def key(self, key: str) -> bytes:
        """Where an item stands."""
        return self.prefix + key.encode()

    def signal(self, key: str) -> bytes:
        """Where a signal for this key is put."""
        return self.prefix + key.encode() + NUL

    def name(self, key: bytes) -> str:
        """The key of an item, or the one that a signal is for."""
        return key[self._cut :].rstrip(NUL).decode()

    def past(self, revision: int) -> bytes:
        """Where a loaded entry stands."""
        return self._past + b"%020d" % revision + NUL

    def item(self, kv: rpc.KeyValue, expires_in: float | None = None) -> Item:
        """What stands there."""
        data, name = kv.value, kv.key[self._cut :]
        revision, created = kv.mod_revision + self.shift, kv.create_revision + self.shift
        try:
            if data[:1] == b"{":
                value, stamp = unstamped(data)
                by, hash_, *more = stamp.decode().split(" ")
                revision, created = _plain_numbers(more, revision, created)
                return Item(name.decode(), value, revision, created, by, hash_, expires_in)
            flags, entry, digest = _HEADER.unpack_from(data)
            start = _HEADER.size
            if flags & _LOADED:
                revision, created = _NUMBERS.unpack_from(data, start)
                start += _NUMBERS.size
            elif flags & _CREATED:
                (created,) = _NUMBER.unpack_from(data, start)
                start += _NUMBER.size
            by = data[start : start + entry].decode()
            start += entry
            return Item(
                LOG + by if kv.key.startswith(self._past) else name.decode(),
                data[start + digest :],
                revision,
                created,
                by,
                data[start : start + digest].decode(),
                expires_in,
            )
        except (struct.error, ValueError) as error:
            raise _foreign(kv.key) from error

    def one(self, key: str) -> rpc.RangeRequest:
        """Asks for one item."""
        return rpc.RangeRequest(key=self.prefix + key.encode())

    def many(self, ref: Range | LogRef) -> rpc.RangeRequest | None:
        """Asks for the items of a ref; None if there can be none.

        The order of the log is that of its revisions, and etcd keeps its keys only by name: it
        goes through all entries of the log for each such request, and sends the ones asked for.
        """
        if isinstance(ref, LogRef):
            after, before = max(ref.after, self.floor) - self.shift, ref.before - self.shift
            if ref.before and before <= after + 1:  # to etcd a greatest revision of 0 is none
                return None
            return rpc.RangeRequest(
                key=self._log + b"\x01",  # behind the loaded ones
                range_end=_after(self._log),
                limit=ref.limit,
                min_create_revision=after + 1,
                max_create_revision=before - 1 if ref.before else 0,
                sort_target=rpc.RangeRequest.CREATE,
                sort_order=rpc.RangeRequest.DESCEND if ref.last else rpc.RangeRequest.ASCEND,
            )
        prefix = self.key(ref.prefix)
        start, end = prefix, _after(prefix)
        if ref.after:
            start = max(prefix, self.key(ref.after) + NUL)
        if start >= end:
            return None
        return rpc.RangeRequest(key=start, range_end=end, limit=ref.limit)

    def loaded(self, ref: LogRef) -> rpc.RangeRequest | None:
        """Asks for the loaded entries of a ref; None if there can be none."""
        if ref.after >= self.floor:
            return None
        return rpc.RangeRequest(
            key=self._past + b"%020d" % (ref.after + 1),
            range_end=self._past + b"%020d" % ref.before if ref.before else _after(self._past),
            limit=ref.limit,
            sort_target=rpc.RangeRequest.KEY,
            sort_order=rpc.RangeRequest.DESCEND if ref.last else rpc.RangeRequest.ASCEND,
        )

    def count(self) -> rpc.RangeRequest:
        """Asks how many entries there are."""
        return rpc.RangeRequest(key=self._log, range_end=_after(self._log), count_only=True)

    def first_keys(self, count: int) -> rpc.RangeRequest:
        """Asks for the first keys, with those of the engine."""
        end = _after(self.prefix)
        return rpc.RangeRequest(key=self.prefix, range_end=end, limit=count, keys_only=True)

    def scope(self, scope: str) -> tuple[bytes, bytes]:
        """The range that a watch of this scope covers, signals included."""
        key = self.key(scope)
        if not scope or scope[-1] == "/":
            return key, _after(key)
        return key, key + b"\x01"

    def plain_ranges(self) -> list[tuple[bytes, bytes]]:
        """The ranges of all keys, the log included, but liveness and the keys of the engine."""
        own = sorted((self.key(key), self.key(key) + NUL) for key in ENGINE_KEYS)
        start, found = self.prefix, []
        for first, end in sorted([*own, (self._live, _after(self._live))]):
            found.append((start, first))
            start = end
        return [*found, (start, _after(self.prefix))]

    def is_live(self, key: bytes) -> bool:
        """Whether this is a liveness key, whose end is no change."""
        return key.startswith(self._live)

    def is_log(self, key: bytes) -> bool:
        """Whether this is an entry, whose value a watch brings along."""
        return key.startswith(self._log)


def wrapped(
    value: bytes, entry: str, hash_: str, *, quiet: bool, plain: bool = False, created: int = 0
) -> bytes:
    """The value to write for a payload; ``plain`` if people are to read it.

    ``created`` is that of an item that was loaded before; 0 if etcd knows it.
    """
    if plain and is_plain(value):
        more = f" c{created}" if created else ""
        return stamped(value, f"{entry} {hash_}{more}{' quiet' if quiet else ''}".encode())
    flags = (_QUIET if quiet else 0) | (_CREATED if created else 0)
    return _headed(flags, entry, hash_, _NUMBER.pack(created) if created else b"", value)


def is_plain(value: bytes) -> bool:
    """Whether this payload can stand as JSON with its stamp: an object without a like member."""
    return value[:1] == b"{" and value[-1:] == b"}" and STAMP not in value


def plain_bounds(value: bytes) -> tuple[bytes, bytes]:
    """Every plain item with this payload is between these two, and no other item is."""
    start = stamped(value, b"")[: -len(b'"}')]
    return start, _after(start)


def loaded(item: Item, *, plain: bool) -> bytes:
    """The value to write for an item as it is in another store; no watch sees it."""
    if plain and is_plain(item.value):
        stamp = f"{item.entry} {item.hash} r{item.revision}.{item.created} quiet"
        return stamped(item.value, stamp.encode())
    numbers = _NUMBERS.pack(item.revision, item.created)
    return _headed(_QUIET | _LOADED, item.entry, item.hash, numbers, item.value)


def _headed(flags: int, entry: str, hash_: str, numbers: bytes, value: bytes) -> bytes:
    one, two = entry.encode(), hash_.encode()
    return b"%b%b%b%b%b" % (_HEADER.pack(flags, len(one), len(two)), numbers, one, two, value)


def _plain_numbers(words: list[str], revision: int, created: int) -> tuple[int, int]:
    """The revision and the creation in the stamp of a plain item, where it has them."""
    for word in words:
        if word[:1] == "c":
            return revision, int(word[1:])
        if word[:1] == "r":
            first, _, second = word[1:].partition(".")
            return int(first), int(second)
    return revision, created


def is_quiet(value: bytes) -> bool:
    """Whether the write of this value wakes no watch."""
    if value[:1] == b"{":
        return value.endswith(b' quiet"}')
    return bool(value) and bool(value[0] & _QUIET)


def _after(prefix: bytes) -> bytes:
    """The end of everything that starts like this; UTF-8 never ends in 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _foreign(key: bytes) -> StoreDamaged:
    return StoreDamaged(
        f"etcd has something under {key[:80]!r} that Interlock did not write;"
        " remove it, or take another namespace"
    )
