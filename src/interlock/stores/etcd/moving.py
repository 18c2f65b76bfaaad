"""Marks and loading: how a namespace is closed to commits, and filled from another store.

The mark stands in ``meta/trimmed``, which every commit compares.  Renewals are no commits here: the
owner of a lease keeps it alive without a word about the namespace.  So after ``moving`` was set all
liveness keys get new leases, with their full time, and the old ones are revoked: a renewal then
needs a commit, which is refused.

``meta/loaded`` has the shift and the floor of a namespace that was filled (``encoding.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.steps import Op
from interlock.store import ENGINE_KEYS, LIVE, LOG, Item, Put, StoreMark, Txn
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import RANGE, REVOKE, TIME_TO_LIVE, TXN, RequestBatch
from interlock.stores.etcd.commit_request import TRIMMED
from interlock.stores.etcd.commits import LOADED, EtcdCommits
from interlock.stores.etcd.encoding import Namespace, loaded, wrapped
from interlock.stores.etcd.errors import NoLease
from interlock.stores.etcd.leases import Leases
from interlock.stores.marks import (
    decode_mark,
    encode_mark,
    needs_empty,
    not_filled_by,
    reached,
    replaceable,
)

if TYPE_CHECKING:
    from interlock.stores.etcd.store import EtcdStore

FILLED = b"3"
"""The format of a namespace that was filled: an earlier version does not know about the shift."""
_AT_ONCE = 60
_OPERATIONS, _BYTES = 120, 1 << 20
_ERASED_AT_ONCE = 1000


class EtcdMoving:
    """The mark of one namespace, and what a move does to it."""

    def __init__(
        self, store: EtcdStore, namespace: Namespace, leases: Leases, commits: EtcdCommits
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._leases = leases
        self._commits = commits

    def read(self) -> Op[tuple[StoreMark | None, int, int]]:
        """The mark, which of etcd's revisions wrote it, and the present one."""
        keys = (TRIMMED, LOADED)
        ops = [rpc.RequestOp(range=self._namespace.one(key)) for key in keys]
        answer = yield from self._store.request_with_retries((TXN, rpc.TxnRequest(success=ops)))
        marks, counted = (each.range.kvs for each in answer.responses)
        self._commits.note_loaded(counted)
        now = answer.header.revision
        if not marks:
            return None, 0, now
        value = self._namespace.item(marks[0]).value
        mark = decode_mark(value) if value[:1] == b"{" else None
        if mark is not None:
            mark = replace(mark, revision=now + self._namespace.shift)
        return mark, marks[0].mod_revision, now

    def set(self, new: StoreMark | None, old: StoreMark | None) -> Op[bool]:
        """Replace the mark, if it still is the old one."""
        while True:
            found, written, now = yield from self.read()
            if not replaceable(found, old):
                if not reached(found, new):
                    return False
                break
            text = b"0" if new is None else encode_mark(new).encode()
            puts = [self._put(TRIMMED, text)]
            compares = [self._unchanged(written)]
            if needs_empty(new, old):
                compares += [self._without_keys(*each) for each in self._namespace.plain_ranges()]
            if new is not None and new.state == "filling":
                shift = max(self._namespace.shift, new.revision - now)
                puts.append(self._put(LOADED, b"%d %d" % (shift, now + shift)))
                puts.append(self._put("meta/format", FILLED))
            look = [self._look(*each) for each in self._namespace.plain_ranges()]
            request = rpc.TxnRequest(compare=compares, success=puts, failure=look)
            answer = yield from self._store.request_with_retries((TXN, request))
            if answer.succeeded:
                yield from self.read()
                break
            if needs_empty(new, old) and any(each.range.kvs for each in answer.responses):
                return reached((yield from self.read())[0], new)
        if new is not None and new.state == "moving":
            yield from self._end_leases()
        return True

    def load(self, move: str, items: Sequence[Item]) -> Op[None]:
        """Write items and entries as they are in another store."""
        written = yield from self._filled_by(move)
        whole = Put("load", b"".join([item.value for item in items]))
        yield from self._store.quota.check(Txn(id="load", puts=(whole,)))
        for portion in _portions(items):
            ttls = [item.expires_in for item in portion if item.expires_in is not None]
            leases = iter((yield from self._leases.grant(ttls)) if ttls else ())
            puts = [
                rpc.RequestOp(
                    put=rpc.PutRequest(
                        key=self._place(item),
                        value=loaded(item, plain=item.key.startswith("tasks/")),
                        lease=next(leases) if item.expires_in is not None else 0,
                    )
                )
                for item in portion
            ]
            yield from self._carry_out(move, written, puts)

    def erase(self, move: str) -> Op[int]:
        """Delete some of the loaded items."""
        written = yield from self._filled_by(move)
        start, end = self._namespace.scope("")
        page = rpc.RangeRequest(key=start, range_end=end, limit=_ERASED_AT_ONCE, keys_only=True)
        found = yield from self._store.request_with_retries((RANGE, page))
        own = {self._namespace.key(key) for key in ENGINE_KEYS}
        keys = [kv.key for kv in found.kvs if kv.key not in own]
        for first in range(0, len(keys), _OPERATIONS):
            deletes = [
                rpc.RequestOp(delete_range=rpc.DeleteRangeRequest(key=key))
                for key in keys[first : first + _OPERATIONS]
            ]
            yield from self._carry_out(move, written, deletes)
        return len(keys)

    def _place(self, item: Item) -> bytes:
        if item.key.startswith(LOG):
            return self._namespace.past(item.revision)
        return self._namespace.key(item.key)

    def _carry_out(self, move: str, written: int, ops: list[rpc.RequestOp]) -> Op[None]:
        request = rpc.TxnRequest(compare=[self._unchanged(written)], success=ops)
        if not (yield from self._store.request_with_retries((TXN, request))).succeeded:
            found, _, _ = yield from self.read()
            raise not_filled_by(move, found, self._store.where)

    def _filled_by(self, move: str) -> Op[int]:
        """Which of etcd's revisions wrote the mark of this move."""
        found, written, _ = yield from self.read()
        if found is None or (found.state, found.move) != ("filling", move):
            raise not_filled_by(move, found, self._store.where)
        return written

    def _unchanged(self, written: int) -> rpc.Compare:
        """That the mark is the one of this revision of etcd; 0 if there is nothing."""
        return rpc.Compare(
            key=self._namespace.key(TRIMMED),
            target=rpc.Compare.MOD,
            result=rpc.Compare.EQUAL,
            mod_revision=written,
        )

    def _without_keys(self, start: bytes, end: bytes) -> rpc.Compare:
        """That there is no key from ``start`` up to ``end``: none is created at revision 0."""
        return rpc.Compare(
            key=start,
            range_end=end,
            target=rpc.Compare.CREATE,
            result=rpc.Compare.EQUAL,
            create_revision=0,
        )

    def _look(self, start: bytes, end: bytes) -> rpc.RequestOp:
        request = rpc.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        return rpc.RequestOp(range=request)

    def _put(self, key: str, value: bytes) -> rpc.RequestOp:
        kept = wrapped(value, "", "", quiet=True)
        return rpc.RequestOp(put=rpc.PutRequest(key=self._namespace.key(key), value=kept))

    def _end_leases(self) -> Op[None]:
        """Give every liveness key a new lease, which no client knows, and end the old one.

        The new one is started when the old one has ended, and has as much time: so it lives no
        shorter than the last renewal of a client allows.
        """
        start, end = self._namespace.scope(LIVE)
        while True:
            page = rpc.RangeRequest(key=start, range_end=end, limit=_AT_ONCE)
            kvs = list((yield from self._store.request_with_retries((RANGE, page))).kvs)
            if not kvs:
                return
            start = kvs[-1].key + b"\0"
            held = [kv for kv in kvs if kv.lease]
            requests = [(TIME_TO_LIVE, rpc.LeaseTimeToLiveRequest(id=kv.lease)) for kv in held]
            answers = yield from self._store.request_with_retries(RequestBatch(requests))
            granted = [max(1, answer.granted) for answer in answers]
            fresh = yield from self._leases.grant(granted)
            for kv, lease in zip(held, fresh, strict=True):
                yield from self._move_to_lease(kv, lease)
            yield from self._end([kv.lease for kv in held])
            yield from self._leases.keep_alive(fresh)

    def _move_to_lease(self, kv: rpc.KeyValue, lease: int) -> Op[None]:
        unchanged = rpc.Compare(
            key=kv.key,
            target=rpc.Compare.MOD,
            result=rpc.Compare.EQUAL,
            mod_revision=kv.mod_revision,
        )
        put = rpc.RequestOp(put=rpc.PutRequest(key=kv.key, value=kv.value, lease=lease))
        request = rpc.TxnRequest(compare=[unchanged], success=[put])
        yield from self._store.request_with_retries((TXN, request))  # else it has just expired

    def _end(self, leases: Iterable[int]) -> Op[None]:
        """End leases, many at once; the ones that are gone already make no difference."""
        requests = [(REVOKE, rpc.LeaseRevokeRequest(id=lease)) for lease in leases]
        if not requests:
            return
        try:
            yield from self._store.request_with_retries(RequestBatch(requests))
        except NoLease:
            for request in requests:
                with suppress(NoLease):
                    yield from self._store.request_with_retries(request)


def _portions(items: Sequence[Item]) -> Iterator[list[Item]]:
    """As many items as fit into one transaction each."""
    portion: list[Item] = []
    size = 0
    for item in items:
        if portion and (len(portion) == _OPERATIONS or size + len(item.value) > _BYTES):
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += len(item.value) + len(item.key) + 200
    if portion:
        yield portion
