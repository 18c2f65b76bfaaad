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
        request, key = rpc.TxnRequest(), self._namespace.key
        compares, writes, looks = request.compare, request.success, request.failure
        for check in txn.checks:
            self._compare(compares, check, seen)
        _changed(compares, key(TRIMMED), rpc.Compare.LESS, known + 1)
        if not txn.quiet:
            entry = key(LOG + txn.id)
            _created(compares, entry, rpc.Compare.EQUAL)
            value = wrapped(txn.entry, txn.id, txn.hash, quiet=False)
            _put(writes, entry, value)
        self._add_puts(request, txn, puts, leases, seen)
        for each in dict.fromkeys(txn.deletes):
            delete = writes.add().delete_range
            delete.key = key(each)
            delete.prev_kv = each.startswith(LIVE)
        for each in dict.fromkeys(txn.signals):
            _put(writes, self._namespace.signal(each), b"", signal)
        for each in dict.fromkeys(txn.reads):
            writes.add().range.key = key(each)
        for each in (TRIMMED, *wanted_keys(txn, puts=seen is not None)):
            looks.add().range.key = key(each)
        return request

    def _add_puts(
        self,
        request: rpc.TxnRequest,
        txn: Txn,
        puts: Iterable[Put],
        leases: Mapping[str, int],
        seen: SeenItems | None,
    ) -> None:
        key = self._namespace.key
        creation = {check.key: check.created for check in txn.checks}
        for put in puts:
            stamp, created = (txn.id, txn.hash), creation.get(put.key, 0)
            if seen is not None:
                old = seen.items[put.key]
                created = 0 if old is None else old.created
                if txn.quiet:
                    stamp = ("", "") if old is None else (old.entry, old.hash)
                _same(request.compare, key(put.key), seen.raw[put.key])
            if created > self._namespace.floor or put.ttl is not None:
                created = 0  # etcd knows it; of a liveness key it is not asked
            value = wrapped(
                put.value, *stamp, quiet=txn.quiet, plain=is_readable(put.key), created=created
            )
            write = _put(request.success, key(put.key), value, leases.get(put.key, 0))
            if put.ttl is not None:
                write.prev_kv = True
                write.ignore_lease = put.key not in leases

    def _compare(self, compares: Compares, check: Check, seen: SeenItems | None) -> None:
        key = self._namespace.key(check.key)
        match check.kind:
            case "absent":
                _created(compares, key, rpc.Compare.EQUAL)
            case "exists":
                _created(compares, key, rpc.Compare.GREATER)
            case "at" | "has" if seen is not None:  # it was read, and is like that
                _same(compares, key, seen.raw[check.key])
            case "at":
                revision = check.revision - self._namespace.shift
                if revision <= 0:  # 0 is what etcd says of a key that is not there
                    _created(compares, key, rpc.Compare.LESS)
                else:
                    _changed(compares, key, rpc.Compare.EQUAL, revision)
            case "has":
                self._compare_payload(compares, key, check)

    def _compare_payload(self, compares: Compares, key: bytes, check: Check) -> None:
        """That an item has a payload: by the write that had it, or by how a plain item begins."""
        if raw := self._written(check):
            _changed(compares, key, rpc.Compare.EQUAL, raw)
            return
        first, end = plain_bounds(check.value)
        for result, bound in ((rpc.Compare.GREATER, first), (rpc.Compare.LESS, end)):
            # A key that is not there never passes.
            compares.add(key=key, target=rpc.Compare.VALUE, result=result, content=bound)


def wanted_keys(txn: Txn, *, puts: bool) -> tuple[str, ...]:
    """The keys that an attempt brings back: the asked ones, and those whose puts keep something."""
    kept = (put.key for put in txn.puts) if puts else ()
    return tuple(dict.fromkeys((*txn.asked, *kept)))


def _same(compares: Compares, key: bytes, raw: int) -> None:
    """That nothing was written since etcd's own revision ``raw``; 0 if nothing was there."""
    if not raw:
        _created(compares, key, rpc.Compare.EQUAL)
    else:
        _changed(compares, key, rpc.Compare.EQUAL, raw)


def _created(compares: Compares, key: bytes, result: rpc.Compare.Result) -> None:
    """Compare with zero, which stands for a key that is not there."""
    compares.add(key=key, target=rpc.Compare.CREATE, result=result, create_revision=0)


def _changed(compares: Compares, key: bytes, result: rpc.Compare.Result, revision: int) -> None:
    """Compare with the last write; a key that is not there has 0."""
    compares.add(key=key, target=rpc.Compare.MOD, result=result, mod_revision=revision)


def _put(writes: Writes, key: bytes, value: bytes, lease: int = 0) -> rpc.PutRequest:
    """Add a write."""
    put = writes.add().put
    put.key = key
    put.value = value
    put.lease = lease
    return put


def is_readable(key: str) -> bool:
    """Whether people look at this with ``etcdctl``: what a task is, and how it stands."""
    return key.startswith("tasks/")
