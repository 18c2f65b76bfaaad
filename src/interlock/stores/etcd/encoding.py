"""How keys and values stand in etcd.

    {namespace}/{key}        an item
    {namespace}/{key}<NUL>   a signal: right behind its key, so that a watch of the key or of its
                             folder sees it, and no key can be the same

The value of an item is a small header and the payload.  The header says who wrote it, the stamp,
and whether that write was quiet, so that a watch can leave it out.  An item of a task is plain
JSON, for people to read: there the stamp is the last member.
"""

from __future__ import annotations

import struct

from interlock.errors import StoreDamaged
from interlock.store import LIVE, LOG, Item, Range
from interlock.store import Log as LogRef
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.network import stamped, unstamped

_HEADER = struct.Struct(">BHH")
_QUIET = 1
NUL = b"\0"


class Namespace:
    """Keys and values of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"{namespace}/".encode()
        self._cut = len(self.prefix)
        self._live = self.prefix + LIVE.encode()
        self._log = self.prefix + LOG.encode()

    def key(self, key: str) -> bytes:
        """Where an item stands."""
        return self.prefix + key.encode()

    def signal(self, key: str) -> bytes:
        """Where a signal for this key is put."""
        return self.prefix + key.encode() + NUL

    def name(self, key: bytes) -> str:
        """The key of an item, or the one that a signal is for."""
        return key[self._cut :].rstrip(NUL).decode()

    def item(self, kv: rpc.KeyValue, expires_in: float | None = None) -> Item:
        """What stands there."""
        data = kv.value
        try:
            if data[:1] == b"{":
                value, stamp = unstamped(data)
                by, hash_, *_ = stamp.decode().split(" ")
                name = kv.key[self._cut :].decode()
                return Item(name, value, kv.mod_revision, kv.create_revision, by, hash_, expires_in)
            _, entry, hash_ = _HEADER.unpack_from(data)
            start = _HEADER.size + entry
            return Item(
                kv.key[self._cut :].decode(),
                data[start + hash_ :],
                kv.mod_revision,
                kv.create_revision,
                data[_HEADER.size : start].decode(),
                data[start : start + hash_].decode(),
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
            if 0 < ref.before <= ref.after + 1:  # to etcd a greatest revision of 0 is none at all
                return None
            return rpc.RangeRequest(
                key=self._log,
                range_end=_after(self._log),
                limit=ref.limit,
                min_create_revision=ref.after + 1,
                max_create_revision=max(ref.before - 1, 0),
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

    def count(self) -> rpc.RangeRequest:
        """Asks how many entries there are."""
        return rpc.RangeRequest(key=self._log, range_end=_after(self._log), count_only=True)

    def scope(self, scope: str) -> tuple[bytes, bytes]:
        """The range that a watch of this scope covers, signals included."""
        key = self.key(scope)
        if not scope or scope[-1] == "/":
            return key, _after(key)
        return key, key + b"\x01"

    def is_live(self, key: bytes) -> bool:
        """Whether this is a liveness key, whose end is no change."""
        return key.startswith(self._live)

    def is_log(self, key: bytes) -> bool:
        """Whether this is an entry, whose value a watch brings along."""
        return key.startswith(self._log)


def wrapped(value: bytes, entry: str, hash_: str, *, quiet: bool, plain: bool = False) -> bytes:
    """The value to write for a payload; ``plain`` if people are to read it."""
    if plain and value[:1] == b"{" and value[-1:] == b"}":
        return stamped(value, f"{entry} {hash_}{' quiet' if quiet else ''}".encode())
    one, two = entry.encode(), hash_.encode()
    return b"%b%b%b%b" % (_HEADER.pack(_QUIET if quiet else 0, len(one), len(two)), one, two, value)


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
