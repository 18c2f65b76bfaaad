"""Commits: one transaction of etcd each, with the leases that it needs.

A Txn becomes compares (the checks, and that its entry is absent), then its writes in this order:
entry, puts, deletes, signals, so that watches see them in this order; then the keys to be read.

Two things etcd cannot check or keep by itself, because they are inside the value:
  has      compares a payload
  quiet    keeps the stamp of the last recorded write
For these the items are read first and the transaction also checks that they did not change; if
that is all that failed, it starts over.  Two kinds of ``has`` need no read: a plain item begins
with its payload, so etcd can compare the beginning; and of an item that was read for an earlier
``has`` it is known which write had this payload.

The void that keeps a late request out is an entry, and entries are trimmed in time.  So each trim
writes ``meta/trimmed``, and every commit checks that nothing was trimmed since its sender last
knew: a request that is older than the last trim is always refused.  The same key has the mark of a
store that accepts no commits (``moving.py``).

In a namespace that was filled from another store the revisions of loaded items are inside their
values, too.  So a check of one reads it first; and since etcd does not know when such an item was
created, the writer keeps that: from its check, if that has it, else from a read.

As a rule renewals write nothing: the leases of the keys are kept alive.  A store knows the leases
of the keys that it put itself, so an idle session costs one keep-alive and nothing else
(``renew``); the leases of other keys are read first (``_kept_alive``).

``fresh`` is for a cluster whose former leader may revoke leases that were renewed elsewhere: there
no lease is ever renewed.  A renewal puts its keys with new leases, which a former leader does not
know, or knows the true end of; a lease that it revokes has no key any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from interlock.errors import OutcomeUnknown, StoreAway, StoreBusy, StoreTrouble
from interlock.steps import Op
from interlock.store import LIVE, LOG, Answer, Check, Committed, Conflict, Put, Txn, conflict
from interlock.stores.derived import renewal
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import RANGE, TXN, RequestBatch
from interlock.stores.etcd.commit_request import (
    TRIMMED,
    CommitRequests,
    Items,
    SeenItems,
    is_readable,
    wanted_keys,
)
from interlock.stores.etcd.encoding import Namespace, is_plain
from interlock.stores.etcd.errors import NoLease
from interlock.stores.etcd.leases import Leases
from interlock.stores.marks import decode_mark, refusal
from interlock.stores.network import REPLY

if TYPE_CHECKING:
    from interlock.stores.network import NetworkStore


LOADED = "meta/loaded"
"""The shift and the floor of a namespace that was filled from another store."""
_ATTEMPTS = 64
_TRIES_PER_TTL, _LEAST_REPLY = 4, 0.5
_MEMORY = 4096
_COMPARES = 128
"""The most that etcd takes."""
_NO_KEYS: frozenset[str] = frozenset()


class _Own(Struct, frozen=True):
    """A liveness key that we put ourselves."""

    lease: int
    seconds: int
    value: bytes


class EtcdCommits:
    """Carries transactions out on one store."""

    def __init__(self, store: NetworkStore, namespace: Namespace, leases: Leases) -> None:
        self._store = store
        self._namespace = namespace
        self._leases = leases
        self._own: dict[str, _Own] = {}
        self._had: dict[str, tuple[bytes, int]] = {}
        """The payloads of items, each with the write that it was read from."""
        self._requests = CommitRequests(namespace, self._written)
        self.fresh = False
        self.trimmed = 0
        """The revision at which the log was last trimmed, as far as we know."""

    def commit(self, txn: Txn) -> Op[Answer]:
        """Check and write, all or nothing."""
        if txn.quiet and not self.fresh and _renews(txn):
            renewed = yield from self._kept_alive(txn)
            if renewed is not None:
                return renewed
        seen: SeenItems | None = None
        ended: NoLease | None = None
        ends = time.monotonic() + self._store.patience
        for number in range(_ATTEMPTS):
            if seen is None and self._reads_first(txn, again=number > 0):
                _, kvs = yield from self._look(wanted_keys(txn, puts=True))
                seen = self._seen(kvs)
                self._note_payloads(txn, seen)
                if not _holds(txn, seen.items):
                    return conflict(txn, seen.items)
            try:
                answer = yield from self._try(txn, seen)
            except NoLease as error:
                ended = error
                if time.monotonic() > ends:
                    break
                continue
            if isinstance(answer, Committed | Conflict):
                return answer
            seen = answer
        if ended is not None:
            raise StoreAway(
                f"{self._store.where} is too slow: leases ended before a commit could use them;"
                " nothing happened"
            ) from ended
        raise StoreBusy("too many others change the same thing; retry")

    def _reads_first(self, txn: Txn, *, again: bool) -> bool:
        """Whether it needs to know something that is inside of values."""
        if txn.quiet and txn.puts:
            return True
        payloads = [check for check in txn.checks if check.kind == "has"]
        if payloads and (again or not self._all_comparable(txn, payloads)):
            return True
        floor = self._namespace.floor
        if not floor:
            return False
        known = set()
        for check in txn.checks:
            if check.kind == "at" and 0 < check.revision <= floor:
                return True
            if check.kind == "absent" or check.created:
                known.add(check.key)
        return any(put.ttl is None and put.key not in known for put in txn.puts)

    def _all_comparable(self, txn: Txn, payloads: list[Check]) -> bool:
        """Whether etcd can compare all of these without a read."""
        if self._namespace.floor or len(txn.checks) + len(payloads) + 2 > _COMPARES:
            return False
        for check in payloads:
            plain = is_readable(check.key) and is_plain(check.value)
            if not plain and not self._written(check):
                return False
        return True

    def _written(self, check: Check) -> int:
        """The write that is known to have this payload; 0 if none is."""
        value, raw = self._had.get(check.key, (b"", 0))
        return raw if value == check.value else 0

    def _note_payloads(self, txn: Txn, seen: SeenItems) -> None:
        for check in txn.checks:
            item = seen.items[check.key]
            if check.kind == "has" and item is not None:
                self._had[check.key] = (item.value, seen.raw[check.key])
        while len(self._had) > _MEMORY:
            with suppress(RuntimeError, StopIteration):  # another thread was quicker
                self._had.pop(next(iter(self._had)), None)

    def renew(self, puts: tuple[Put, ...]) -> Op[frozenset[str]]:
        """Keep alive the leases of keys that this store put itself; returns these keys.

        Other keys, and keys that another client deleted, take a commit.  A client that deletes a
        liveness key ends its lease, and one that puts it again keeps the lease, so a lease that can
        be kept alive has its key.  If a client dies between the deletion and the end of the lease,
        we learn of it with our next commit, or our next look at our grants.
        """
        found = [] if self.fresh else [(put, self._own_lease(put)) for put in puts]
        own = [(put, lease) for put, lease in found if lease is not None]
        if not own:
            return frozenset()
        granted = yield from self._leases.keep_alive([lease for _, lease in own], _within(puts))
        renewed = set()
        for (put, _), seconds in zip(own, granted, strict=True):
            if seconds == self._seconds(put):
                renewed.add(put.key)
            else:
                self._own.pop(put.key, None)
        return frozenset(renewed)

    def _own_lease(self, put: Put) -> int | None:
        """The lease of a key, if this store put the same value there with the same ttl."""
        mine = self._own.get(put.key)  # one look: another thread may remove it
        same = mine is not None and (mine.seconds, mine.value) == (self._seconds(put), put.value)
        return mine.lease if mine is not None and same else None

    def _seconds(self, put: Put) -> int:
        return self._leases.seconds(put.ttl or 0.0)

    def _try(self, txn: Txn, seen: SeenItems | None) -> Op[Answer | SeenItems | None]:
        """One attempt; the items as they stand if only what we added to the checks failed."""
        puts = _puts_by_key(txn)
        kept, ttls, made = _NO_KEYS, dict[str, float](), list[int]()
        if touches_liveness := _touches_liveness(txn):
            kept = self._keys_with_lease(txn)
            ttls = {
                key: put.ttl for key, put in puts.items() if put.ttl is not None and key not in kept
            }
        if ttls:
            made = yield from self._leases.grant(ttls.values())
        try:
            leases, signal = dict(zip(ttls, made, strict=True)), 0
            if txn.signals:
                signal = yield from self._leases.signal(len(txn.signals))
            known = self.trimmed  # another thread may learn more before the answer is here
            request = self._requests.request(txn, puts.values(), leases, signal, seen, known=known)
        except BaseException:
            self._leases.revoke(made)
            raise
        try:
            within = _within(txn.puts) if txn.quiet and _renews(txn) else REPLY
            answer = yield from self._asked(request, within, txn.id)
        except NoLease:  # it was revoked, or the commit took longer than the lease
            self._leases.forget_signal()
            self._leases.revoke(made)
            raise
        except (OutcomeUnknown, GeneratorExit):
            raise  # it may happen yet, so the leases must stay until they expire
        except Exception:
            self._leases.revoke(made)
            raise
        if answer.succeeded:
            if touches_liveness:
                yield from self._replace_leases(txn, answer, kept, leases)
            revision = answer.header.revision + self._namespace.shift
            reads = tuple(dict.fromkeys(txn.reads)) if txn.reads else ()
            return Committed(revision, self._items(_found(reads, answer)) if reads else {})
        self._leases.revoke(made)
        learnt = yield from self._learn(answer, known)
        return self._refused(txn, answer, seen, learnt=learnt)

    def _replace_leases(
        self, txn: Txn, answer: rpc.TxnResponse, kept: frozenset[str], leases: dict[str, int]
    ) -> Op[None]:
        """End the leases that a commit replaced, and start those again that it kept."""
        replaced = self._replaced(answer, kept)
        own = {mine.lease for mine in self._own.values()} if replaced else ()
        with suppress(StoreTrouble):  # the commit has happened
            # Another client may keep alive the leases that are not ours.
            yield from self._leases.end([lease for lease in replaced if lease not in own])
            yield from self._restart_leases(txn, answer, kept)
        self._leases.revoke(replaced)
        self._remember(txn, leases)

    def _asked(self, request: rpc.TxnRequest, within: float, once: str | None = None) -> Op[Any]:
        """The answer to a request that is waited for so long."""
        if within < REPLY:
            (answer,) = yield from self._store.request_with_retries(
                RequestBatch([(TXN, request)], within), once
            )
            return answer
        return (yield from self._store.request_with_retries((TXN, request), once))

    def _replaced(self, answer: rpc.TxnResponse, kept: frozenset[str]) -> list[int]:
        """The leases of liveness keys that were deleted, or put again with another lease."""
        same = {self._namespace.key(key) for key in kept}
        leases: list[int] = []
        for each in answer.responses:
            if each.HasField("put"):
                if each.put.prev_kv.key not in same:
                    leases.append(each.put.prev_kv.lease)
            elif each.HasField("delete_range"):
                leases += [kv.lease for kv in each.delete_range.prev_kvs]
        return [lease for lease in leases if lease]

    def _restart_leases(self, txn: Txn, answer: rpc.TxnResponse, kept: frozenset[str]) -> Op[None]:
        """Start again the leases of liveness keys that were put again and kept them."""
        if not kept:
            return
        old = {kv.key: kv.lease for each in answer.responses if (kv := each.put.prev_kv).key}
        puts = tuple(put for put in txn.puts if put.key in kept)
        leases = [old.get(self._namespace.key(put.key), 0) for put in puts]
        granted = yield from self._leases.keep_alive(leases)
        if granted != [self._seconds(put) for put in puts]:
            yield from self.commit(renewal(puts))

    def _refused(
        self, txn: Txn, answer: rpc.TxnResponse, seen: SeenItems | None, *, learnt: bool
    ) -> Conflict | SeenItems | None:
        """The conflict; the fresh items, or None, if only what we added to the checks failed."""
        found = self._seen(_found(wanted_keys(txn, puts=seen is not None), answer))
        guessed = any(check.kind == "has" for check in txn.checks)
        if (seen is not None or learnt or guessed) and _holds(txn, found.items):
            return None if seen is None else found
        return conflict(txn, found.items)

    def _learn(self, answer: rpc.TxnResponse, known: int) -> Op[bool]:
        """Whether a refusal shows that the log was trimmed since ``known``; raises for a mark."""
        marks = answer.responses[0].range.kvs
        self.refuse_marked(marks)
        mark = max((kv.mod_revision for kv in marks), default=0)
        self.trimmed = max(self.trimmed, mark)
        if mark <= known:
            return False
        one = self._namespace.one(LOADED)  # the namespace may have been filled in the meantime
        self.note_loaded((yield from self._store.request_with_retries((RANGE, one))).kvs)
        return True

    def refuse_marked(self, kvs: Iterable[rpc.KeyValue]) -> None:
        """Raise if what stands in the place of the last trim is a mark."""
        for kv in kvs:
            value = self._namespace.item(kv).value
            if value[:1] == b"{":
                raise refusal(decode_mark(value), self._store.where)

    def note_loaded(self, kvs: Iterable[rpc.KeyValue]) -> None:
        """Learn how the revisions of this namespace are counted."""
        for kv in kvs:
            shift, _, floor = self._namespace.item(kv).value.partition(b" ")
            self._namespace.shift, self._namespace.floor = int(shift), int(floor)

    def _remember(self, txn: Txn, leases: dict[str, int]) -> None:
        """Know the leases of what we put; what we deleted is no longer ours."""
        for key in (*leases, *txn.deletes):
            self._own.pop(key, None)
        for put in txn.puts:
            if put.key in leases:
                self._own[put.key] = _Own(leases[put.key], self._seconds(put), put.value)
        if len(self._own) > _MEMORY:
            with suppress(RuntimeError, StopIteration):  # another thread was quicker
                self._own.pop(next(iter(self._own)), None)

    def _kept_alive(self, txn: Txn) -> Op[Answer | None]:
        """Keep alive what is there already, with the checks as of one moment right before.

        That is as if all of it happened at that moment: a key that is deleted after it has
        lost its lease, so a keep-alive has no effect.  None if it takes a write after all:
        another ttl, or another value.
        """
        within = _within(txn.puts)
        revision, kvs = yield from self._look((TRIMMED, *wanted_keys(txn, puts=True)), within)
        trim = kvs.pop(TRIMMED)
        self.refuse_marked(() if trim is None else (trim,))
        items = self._items(kvs)
        asked = {key: items[key] for key in txn.asked}
        if not _holds(txn, items):
            return conflict(txn, items)
        for put in txn.puts:
            item = items[put.key]
            if item is None or item.value != put.value:
                return None
        leases = [kv.lease for put in txn.puts if (kv := kvs[put.key]) is not None]
        if not all(leases):
            return None
        granted = yield from self._leases.keep_alive(leases, within)
        as_wanted = granted == [self._seconds(put) for put in txn.puts]
        return Committed(revision, asked) if as_wanted else None

    def _keys_with_lease(self, txn: Txn) -> frozenset[str]:
        """Liveness keys that are put again and known to exist: they keep their lease.

        With another lease, a client that keeps the first one alive would do so in vain.
        """
        if txn.quiet or self.fresh:
            return frozenset()
        there = {check.key for check in txn.checks if check.kind == "exists"}
        gone = {*txn.deletes}
        return frozenset(
            put.key
            for put in txn.puts
            if put.ttl is not None and put.key in there and put.key not in gone
        )

    def _look(
        self, keys: tuple[str, ...], within: float = REPLY
    ) -> Op[tuple[int, dict[str, rpc.KeyValue | None]]]:
        """These keys at one moment, and which."""
        request = rpc.TxnRequest()
        for key in keys:
            request.success.add().range.key = self._namespace.key(key)
        answer = yield from self._asked(request, within)
        return answer.header.revision + self._namespace.shift, _found(keys, answer)

    def _seen(self, kvs: dict[str, rpc.KeyValue | None]) -> SeenItems:
        raw = {key: 0 if kv is None else kv.mod_revision for key, kv in kvs.items()}
        return SeenItems(self._items(kvs), raw)

    def _items(self, kvs: dict[str, rpc.KeyValue | None]) -> Items:
        item = self._namespace.item
        return {key: None if kv is None else item(kv) for key, kv in kvs.items()}


def _renews(txn: Txn) -> bool:
    """Whether a quiet transaction only puts liveness keys again that it knows to exist."""
    if not txn.puts or txn.deletes or txn.signals:
        return False
    there = {check.key for check in txn.checks if check.kind == "exists"}
    return all(put.ttl is not None and put.key in there for put in txn.puts)


def _puts_by_key(txn: Txn) -> dict[str, Put]:
    """What it puts: etcd takes each key once; as elsewhere, a deletion is last."""
    puts = {put.key: put for put in txn.puts}
    for key in txn.deletes:
        puts.pop(key, None)
    return puts


def _touches_liveness(txn: Txn) -> bool:
    """Whether it puts or deletes liveness keys, so that leases may have to end."""
    for put in txn.puts:
        if put.ttl is not None:
            return True
    return bool(txn.deletes) and any(key.startswith(LIVE) for key in txn.deletes)


def _within(puts: tuple[Put, ...]) -> float:
    """How long to wait for the answer to a renewal: a second try is left in the shortest ttl."""
    shortest = min(put.ttl or REPLY for put in puts)
    return min(REPLY, max(shortest / _TRIES_PER_TTL, _LEAST_REPLY))


def _holds(txn: Txn, items: Items) -> bool:
    own = txn.quiet or items[LOG + txn.id] is None
    return own and all(check.holds(items[check.key]) for check in txn.checks)


def _found(keys: tuple[str, ...], answer: rpc.TxnResponse) -> dict[str, rpc.KeyValue | None]:
    """The reads, which are the last operations of every transaction."""
    reads: Any = answer.responses[len(answer.responses) - len(keys) :]
    return {
        key: read.range.kvs[0] if read.range.kvs else None
        for key, read in zip(keys, reads, strict=True)
    }
