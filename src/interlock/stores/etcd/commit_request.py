"""The request of a commit: a Txn of etcd with its compares, its writes and its reads.

Messages are added in place: one that is made by itself is copied into the request, which takes
three times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from interlock.store import LIVE, LOG, Check, Item, Put, Txn
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.encoding import Namespace, plain_bounds, wrapped

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

Items: TypeAlias = dict[str, Item | None]
Compares: TypeAlias = "RepeatedCompositeFieldContainer[rpc.Compare]"
Writes: TypeAlias = "RepeatedCompositeFieldContainer[rpc.RequestOp]"

TRIMMED = "meta/trimmed"
"""Written by each trim of the log; also where the mark of a store stands."""
_EQUAL, _GREATER, _LESS = rpc.Compare.EQUAL, rpc.Compare.GREATER, rpc.Compare.LESS
_CREATE, _MOD, _VALUE = rpc.Compare.CREATE, rpc.Compare.MOD, rpc.Compare.VALUE


class SeenItems(Struct, frozen=True):
    """Items as they were read, and by which of etcd's own revisions each was written (0: none)."""

    items: Items
    raw: dict[str, int]


class CommitRequests:
    """Makes the requests of one namespace.

    ``written`` is the write that is known to have the payload of a check; 0 if none is.
    """

    def __init__(self, namespace: Namespace, written: Callable[[Check], int]) -> None:
        self._namespace = namespace
        self._written = written
        self._trimmed = namespace.key(TRIMMED)

    def request(
        self,
        txn: Txn,
        puts: Iterable[Put],
        leases: Mapping[str, int],
        signal: int,
        seen: SeenItems | None,
        *,
        known: int,
    ) -> rpc.TxnRequest:
        """The request of a transaction; ``known`` is the last trim that its sender knows."""
        request, prefix = rpc.TxnRequest(), self._namespace.prefix
        compares, writes, looks = request.compare, request.success, request.failure
        names = {key: prefix + key.encode() for key in wanted_keys(txn, puts=seen is not None)}
        for check in txn.checks:
            self._compare(compares, names[check.key], check, seen)
        _changed(compares, self._trimmed, _LESS, known + 1)
        if not txn.quiet:
            entry = names[LOG + txn.id]
            _created(compares, entry, _EQUAL)
            write = writes.add().put
            write.key, write.value = entry, wrapped(txn.entry, txn.id, txn.hash, quiet=False)
        self._add_puts(request, txn, puts, leases, seen, names=names)
        for each in dict.fromkeys(txn.deletes):
            delete = writes.add().delete_range
            delete.key = prefix + each.encode()
            delete.prev_kv = each.startswith(LIVE)
        for each in dict.fromkeys(txn.signals):
            write = writes.add().put
            write.key, write.lease = self._namespace.signal(each), signal
        for each in dict.fromkeys(txn.reads):
            writes.add().range.key = names[each]
        looks.add().range.key = self._trimmed
        for name in names.values():
            looks.add().range.key = name
        return request

    def _add_puts(
        self,
        request: rpc.TxnRequest,
        txn: Txn,
        puts: Iterable[Put],
        leases: Mapping[str, int],
        seen: SeenItems | None,
        *,
        names: Mapping[str, bytes],
    ) -> None:
        floor, prefix, quiet = self._namespace.floor, self._namespace.prefix, txn.quiet
        creation = {check.key: check.created for check in txn.checks} if floor else {}
        writes, by, digest, created = request.success, txn.id, txn.hash, 0
        for put in puts:
            key = put.key
            name = names.get(key) or prefix + key.encode()
            if floor:
                created = creation.get(key, 0)
            if seen is not None:
                old = seen.items[key]
                created = 0 if old is None else old.created
                if quiet:
                    by, digest = ("", "") if old is None else (old.entry, old.hash)
                _same(request.compare, name, seen.raw[key])
            if created > floor or put.ttl is not None:
                created = 0  # etcd knows it; of a liveness key it is not asked
            write = writes.add().put
            write.key = name
            write.value = wrapped(
                put.value, by, digest, quiet=quiet, plain=is_readable(key), created=created
            )
            if put.ttl is not None:
                write.lease = leases.get(key, 0)
                write.prev_kv = True
                write.ignore_lease = key not in leases

    def _compare(
        self, compares: Compares, name: bytes, check: Check, seen: SeenItems | None
    ) -> None:
        match check.kind:
            case "absent":
                _created(compares, name, _EQUAL)
            case "exists":
                _created(compares, name, _GREATER)
            case "at" | "has" if seen is not None:  # it was read, and is like that
                _same(compares, name, seen.raw[check.key])
            case "at":
                revision = check.revision - self._namespace.shift
                if revision <= 0:  # 0 is what etcd says of a key that is not there
                    _created(compares, name, _LESS)
                else:
                    _changed(compares, name, _EQUAL, revision)
            case "has":
                self._compare_payload(compares, name, check)

    def _compare_payload(self, compares: Compares, name: bytes, check: Check) -> None:
        """That an item has a payload: by the write that had it, or by how a plain item begins."""
        if raw := self._written(check):
            _changed(compares, name, _EQUAL, raw)
            return
        first, end = plain_bounds(check.value)
        for result, bound in ((_GREATER, first), (_LESS, end)):
            # A key that is not there never passes.
            compares.add(key=name, target=_VALUE, result=result, content=bound)


def wanted_keys(txn: Txn, *, puts: bool) -> tuple[str, ...]:
    """The keys that an attempt brings back: the asked ones, and those whose puts keep something."""
    wanted: dict[str, None] = {} if txn.quiet else {LOG + txn.id: None}
    for check in txn.checks:
        wanted[check.key] = None
    for key in txn.reads:
        wanted[key] = None
    if puts:
        for put in txn.puts:
            wanted[put.key] = None
    return tuple(wanted)


def _same(compares: Compares, name: bytes, raw: int) -> None:
    """That nothing was written since etcd's own revision ``raw``; 0 if nothing was there."""
    if not raw:
        _created(compares, name, _EQUAL)
    else:
        _changed(compares, name, _EQUAL, raw)


def _created(compares: Compares, name: bytes, result: rpc.Compare.Result) -> None:
    """Compare with zero, which stands for a key that is not there."""
    compare = compares.add()
    compare.key, compare.target, compare.result = name, _CREATE, result
    compare.create_revision = 0


def _changed(compares: Compares, name: bytes, result: rpc.Compare.Result, revision: int) -> None:
    """Compare with the last write; a key that is not there has 0."""
    compare = compares.add()
    compare.key, compare.target, compare.result = name, _MOD, result
    compare.mod_revision = revision


def is_readable(key: str) -> bool:
    """Whether people look at this with ``etcdctl``: what a task is, and how it stands."""
    return key.startswith("tasks/")
