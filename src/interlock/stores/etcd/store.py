"""EtcdStore: an etcd server or cluster behind the waist; this module opens, reads and maintains.

Revisions are etcd's own, so in an etcd that others use too they also move by what others do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from interlock.errors import StoreMoved, StoreNewer, StoreUnsuitable
from interlock.steps import Op
from interlock.store import (
    Answer,
    Capabilities,
    Extent,
    Finding,
    Item,
    Log,
    Put,
    Range,
    Ref,
    Scope,
    Snapshot,
    StoreMark,
    Txn,
    scopes,
)
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import MEMBERS, RANGE, STATUS, TXN
from interlock.stores.etcd.commit_request import TRIMMED
from interlock.stores.etcd.commits import LOADED, EtcdCommits
from interlock.stores.etcd.encoding import NUL, Namespace, wrapped
from interlock.stores.etcd.errors import Compacted
from interlock.stores.etcd.leases import Leases
from interlock.stores.etcd.moving import EtcdMoving
from interlock.stores.etcd.server import Quota, findings, fixed_in, moment, probe
from interlock.stores.etcd.transport import DirectRequest, EtcdTransport, LogIn
from interlock.stores.etcd.watch import EtcdWatch, WatchStream
from interlock.stores.marks import decode_mark, mark_facts
from interlock.stores.network import (
    OPENING,
    PATIENCE,
    NetworkStore,
    SendRequest,
    Unanswered,
    Unsent,
    driven,
)

FORMAT = 3
COMMON = 2
"""The format of a namespace that was never filled from another store."""
LEAST = (3, 4)
_FORMAT_KEY = "meta/format"
_AT_ONCE = 126
_TRIMMED_AT_ONCE = 8 * _AT_ONCE
_ALIEN = ("parsing HTTP/2", "http1.x")

_log = logging.getLogger("interlock")
_warned: set[str] = set()
"""Of which stores this process was warned."""


class EtcdStore(NetworkStore):
    """A namespace in an etcd."""

    transport: EtcdTransport
    capabilities = Capabilities(
        engine="etcd",
        durability="power loss",
        clock="server",
        push=True,
        transacts=False,
        one_machine=False,
        consecutive=False,
        latency=0.01,
        min_ttl=2.0,
        max_operations=126,
        max_value=5 * 256 * 1024,
        max_bytes=23 << 16,  # its requests have 1.5 MiB by default
        grain=1.0,
        ordered=False,
        max_items=2_000_000,  # 536 bytes each, measured with tasks: half of the default quota
    )

    def __init__(self, address: Address, *, patience: float = PATIENCE) -> None:
        transport = EtcdTransport(address)
        super().__init__(transport, address.shown, patience=patience)
        self.address = address
        self.version = ""
        self.format = COMMON
        self.caution = ""
        self.namespace = Namespace(address.namespace)
        self.feed = WatchStream(self, transport, self.namespace)
        self.quota = Quota(self, address)
        self._leases = Leases(self, transport)
        self._commits = EtcdCommits(self, self.namespace, self._leases)
        self._moving = EtcdMoving(self, self.namespace, self._leases, self._commits)
        self.mark_at_opening: StoreMark | None = None

    def watch(self, scope: Scope, after: int) -> EtcdWatch:
        """Every change in a scope, or in one of several, after a revision."""
        self.check()
        watch = EtcdWatch(self.feed, self.namespace, scopes(scope), after)
        self.feed.begin(watch)
        return watch

    def prepare(self, ttls: Sequence[float]) -> None:
        """Ask for the leases of liveness keys with these ttls, for the next commit."""
        self.check()
        self._leases.prepare(ttls)

    @driven
    def mark(self) -> Op[StoreMark | None]:
        """Why it accepts no commits."""
        return (yield from self._moving.read())[0]

    @driven
    def set_mark(self, new: StoreMark | None, old: StoreMark | None) -> Op[bool]:
        """Replace the mark, if it still is the old one."""
        return self._moving.set(new, old)

    @driven
    def load(self, move: str, items: Sequence[Item]) -> Op[None]:
        """Write items and entries as they are in another store."""
        return self._moving.load(move, items)

    @driven
    def erase(self, move: str) -> Op[int]:
        """Delete some of the loaded items."""
        return self._moving.erase(move)

    def close(self) -> None:
        """Close all connections; acknowledged commits stay."""
        super().close()
        if not self.inherited:
            self.feed.close()

    async def close_async(self) -> None:
        """Close, and wait until nothing is left in this event loop."""
        await super().close_async()
        if not self.inherited:
            self.feed.close()

    def _open(self) -> Op[None]:
        status = yield from self._first_answer()
        self.version = status.version
        if _version(status.version) < LEAST:
            raise StoreUnsuitable(
                f"{self.where} is etcd {status.version}, which is too old; run 3.4 or newer"
            )
        yield from self.request_with_retries(LogIn())
        yield from self._agree_on_format()
        self.quota.note_status(status)
        if needed := fixed_in(status.version):
            yield from self._be_cautious(needed)

    def _be_cautious(self, needed: str) -> Op[None]:
        """Renew without trust in leases, unless the only member can have no former leader."""
        members = yield from self.request_with_retries((MEMBERS, rpc.MemberListRequest()))
        if len(members.members) > 1:
            self._commits.fresh = True
            self.caution = (
                f"{self.where} is a cluster of etcd {self.version}, whose former leader may end"
                f" leases that were renewed; install {needed} or newer"
                " (until then each renewal is a write)"
            )
            if self.where not in _warned:
                _warned.add(self.where)
                _log.warning("%s", self.caution)

    def _first_answer(self) -> Op[rpc.StatusResponse]:
        """Ask each endpoint once; if none answers, find out whether one ever could."""
        request, met, began = (STATUS, rpc.StatusRequest()), "", time.monotonic()
        for _ in self.transport.targets:
            try:
                status: rpc.StatusResponse = yield SendRequest(request)
            except (Unsent, Unanswered) as error:
                self.check()
                met = str(error)
            else:
                return status
        for number in range(len(self.transport.targets)):
            yield SendRequest(DirectRequest(probe, number))
        if any(part in met for part in _ALIEN):  # it hung up on the probe
            raise StoreUnsuitable(f"{self.where} is not an etcd server; check host and port")
        if time.monotonic() - began > OPENING:
            raise self.away_error(Unanswered(met))
        status = yield from self.request_with_retries(request)
        return status

    def _agree_on_format(self) -> Op[None]:
        one = self.namespace.one(_FORMAT_KEY)
        wanted = (
            one,
            self.namespace.one(TRIMMED),
            self.namespace.one(LOADED),
            self.namespace.first_keys(2),
        )
        ops = [rpc.RequestOp(range=each) for each in wanted]
        answers = yield from self.request_with_retries((TXN, rpc.TxnRequest(success=ops)))
        answer, marks, counted, first = (each.range for each in answers.responses)
        self.made = any(kv.key != one.key for kv in first.kvs)
        self._commits.note_loaded(counted.kvs)
        self.feed.note_mark(b"", answers.header.revision)
        for kv in marks.kvs:
            value = self.namespace.item(kv).value
            self.feed.note_mark(value, answers.header.revision)
            if value[:1] == b"{":
                self.mark_at_opening = decode_mark(value)
            else:  # else no commit knows it, and the first one finds the mark
                self._commits.trimmed = kv.mod_revision
        if not answer.kvs:
            yield from self._set_format(
                rpc.Compare(key=one.key, target=rpc.Compare.CREATE, create_revision=0)
            )
            answer = yield from self.request_with_retries(
                (RANGE, one)
            )  # another client may have been first
        kept = answer.kvs[0]
        found = int(self.namespace.item(kept).value)
        if found < COMMON:  # what we write from now on, an older version cannot read
            yield from self._set_format(
                rpc.Compare(key=one.key, target=rpc.Compare.MOD, mod_revision=kept.mod_revision)
            )
        self.format = max(found, COMMON)
        if found > FORMAT:
            raise StoreNewer(
                f"{self.where} has format {found}, this Interlock knows {FORMAT}; update Interlock"
            )

    def _set_format(self, unless_changed: rpc.Compare) -> Op[None]:
        value = wrapped(str(COMMON).encode(), "", "", quiet=True)
        put = rpc.RequestOp(put=rpc.PutRequest(key=self.namespace.key(_FORMAT_KEY), value=value))
        yield from self.request_with_retries(
            (TXN, rpc.TxnRequest(compare=[unless_changed], success=[put]))
        )

    def _read(self, refs: tuple[Ref, ...], *, times: bool, longest: int | None) -> Op[Snapshot]:
        while True:
            try:
                revision, found = yield from self._ranges(refs)
                break
            except Compacted:  # between two of its requests
                continue
        left: dict[str, float | None] = {}
        if times:
            leases = {each.key: each.lease for kvs in found.values() for each in kvs if each.lease}
            named = {self.namespace.name(key): lease for key, lease in leases.items()}
            left = yield from self._leases.times(named)
        items: dict[str, Item | None] = {}
        ranges: dict[Range | Log, tuple[Item, ...]] = {}
        for ref in refs:
            some = self._items(found[ref], left)
            if longest is not None and not isinstance(ref, Log):
                some = [item.at_most(longest) for item in some]
            if isinstance(ref, str):
                items[ref] = some[0] if some else None
            else:
                last = isinstance(ref, Log) and ref.last
                ranges[ref] = tuple(reversed(some)) if last else tuple(some)
        return Snapshot(revision + self.namespace.shift, items, ranges)

    def _items(self, kvs: list[rpc.KeyValue], left: dict[str, float | None]) -> list[Item]:
        found: list[Item] = []
        for kv in kvs:
            item = self.namespace.item(kv)
            if item.key in left:
                expires_in = left[item.key]
                if expires_in is None:  # it expired a moment ago
                    continue
                item = self.namespace.item(kv, expires_in)
            found.append(item)
        return found

    def _ranges(self, refs: tuple[Ref, ...]) -> Op[tuple[int, dict[Ref, list[rpc.KeyValue]]]]:
        """All the refs at one revision, in as few requests as there can be."""
        wanted: dict[Ref, rpc.RangeRequest] = {}
        for ref in refs:
            request = self.namespace.one(ref) if isinstance(ref, str) else self.namespace.many(ref)
            if request is not None:
                wanted[ref] = request
        revision = 0
        found: dict[Ref, list[rpc.KeyValue]] = {ref: [] for ref in refs}
        pairs = list(wanted.items())
        for start in range(0, len(pairs) or 1, _AT_ONCE):
            some = pairs[start : start + _AT_ONCE]
            revision, answers = yield from self._some([each for _, each in some], revision)
            for (ref, request), answer in zip(some, answers, strict=False):
                found[ref] = kvs = list(answer.kvs)
                if isinstance(ref, Range) and any(kv.key.endswith(NUL) for kv in kvs):
                    found[ref] = yield from self._page(ref.limit, request, answer, revision)
        for ref in refs:
            if isinstance(ref, Log) and (earlier := self.namespace.loaded(ref)) is not None:
                _, (answer,) = yield from self._some([earlier], revision)
                kvs = [*found[ref], *answer.kvs] if ref.last else [*answer.kvs, *found[ref]]
                found[ref] = kvs[: ref.limit]
        return revision, found

    def _some(self, requests: list[rpc.RangeRequest], revision: int) -> Op[tuple[int, list[Any]]]:
        """No more than fit in one transaction, at a revision, or at the present one."""
        for request in requests if revision else ():
            request.revision = revision
        if len(requests) > 1:
            together = rpc.TxnRequest()
            for request in requests:
                together.success.add(range=request)
            answer = yield from self.request_with_retries((TXN, together))
            return revision or answer.header.revision, [each.range for each in answer.responses]
        one = requests[0] if requests else rpc.RangeRequest(key=self.namespace.key(_FORMAT_KEY))
        answer = yield from self.request_with_retries((RANGE, one))
        return revision or answer.header.revision, [answer]

    def _page(
        self, limit: int, request: rpc.RangeRequest, answer: rpc.RangeResponse, revision: int
    ) -> Op[list[rpc.KeyValue]]:
        """A page without the signals in it, filled up again."""
        found = [kv for kv in answer.kvs if not kv.key.endswith(NUL)]
        while answer.more and len(found) < limit:
            request.key = answer.kvs[-1].key + NUL
            request.revision = revision
            answer = yield from self.request_with_retries((RANGE, request))
            found += [kv for kv in answer.kvs if not kv.key.endswith(NUL)]
        return found[:limit]

    def _commit(self, txn: Txn) -> Op[Answer]:
        yield from self.quota.check(txn)
        try:
            return (yield from self._commits.commit(txn))
        except StoreMoved as error:
            self.note_moved(error)
            raise

    def _renew(self, puts: tuple[Put, ...]) -> Op[frozenset[str]]:
        kept = yield from self._commits.renew(puts)
        rest = tuple([put for put in puts if put.key not in kept])
        return kept if not rest else kept | (yield from super()._renew(rest))

    @driven
    def info(self) -> Op[dict[str, object]]:
        """Facts about this store for a person."""
        status = yield from self.request_with_retries((STATUS, rpc.StatusRequest()))
        members = yield from self.request_with_retries((MEMBERS, rpc.MemberListRequest()))
        most = yield from self.quota.limit()
        key, end = self.namespace.scope("")
        count = rpc.RangeRequest(key=key, range_end=end, count_only=True)
        items = yield from self.request_with_retries((RANGE, count))
        names = {member.id: member.name for member in members.members}
        return {
            "engine": "etcd",
            "version": status.version,
            "endpoints": ",".join(self.transport.targets),
            "namespace": self.address.namespace,
            "durability": self.capabilities.durability,
            "format": self.format,
            "revision": items.header.revision + self.namespace.shift,
            "items": items.count,
            "db_bytes": status.db_size,
            "db_bytes_in_use": status.db_size_in_use,
            "quota_bytes": most,
            "members": ",".join(sorted(names.values())),
            "leader": names.get(status.leader, "none"),
            **mark_facts((yield from self._moving.read())[0]),
        }

    @driven
    def examine(self) -> Op[list[Finding]]:
        """What is well and what is not."""
        return findings(self)

    @driven
    def sweep(self) -> Op[int]:
        """Delete nothing: leases do it."""
        yield from ()
        return 0

    @driven
    def trim(self, revision: int) -> Op[int]:
        """Oldest first, so an interruption leaves no hole; a watch ignores it."""
        ref = Log(before=revision + 1, limit=_TRIMMED_AT_ONCE)
        if (yield from self._moving.read())[0] is not None:  # a marked store does not change
            return 0
        keys: list[bytes] = []
        for oldest in (self.namespace.loaded(ref), self.namespace.many(ref)):
            if oldest is not None and not keys:
                oldest.keys_only = True
                old = yield from self.request_with_retries((RANGE, oldest))
                keys = [kv.key for kv in old.kvs]
        value = wrapped(str(revision).encode(), "", "", quiet=True)
        mark = rpc.RequestOp(put=rpc.PutRequest(key=self.namespace.key(TRIMMED), value=value))
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            deletes = [rpc.RequestOp(delete_range=rpc.DeleteRangeRequest(key=key)) for key in some]
            marks = () if start else (mark,)  # what comes after it is kept out by its own void
            yield from self.request_with_retries((TXN, rpc.TxnRequest(success=[*marks, *deletes])))
        return len(keys)

    @driven
    def extent(self) -> Op[Extent]:
        """How large the log is."""
        answer = yield from self.request_with_retries((RANGE, self.namespace.count()))
        return Extent(answer.count)

    @driven
    def wall(self) -> Op[float | None]:
        """What time it is by the server's clock."""
        return (yield from self.request_with_retries(DirectRequest(moment)))  # type: ignore[no-any-return]


def _version(text: str) -> tuple[int, int]:
    numbers = [int(part) for part in text.split(".")[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) > 1 else (0, 0)
