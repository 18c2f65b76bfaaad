"""The reference store: a dictionary under one mutex.  Read it first.

It keeps every promise of the waist but durability, for the threads and tasks of one process.
Its clock is given, so that tests decide when a key expires.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import Clock, SystemClock
from interlock.errors import StoreClosed
from interlock.steps import wait_for_future
from interlock.store import (
    LIVE,
    LOG,
    Answer,
    Capabilities,
    Change,
    Check,
    Committed,
    Extent,
    Finding,
    Item,
    Log,
    Put,
    Range,
    Ref,
    Resync,
    Scope,
    Snapshot,
    StoreMark,
    Txn,
    Work,
    conflict,
    covers,
    scopes,
)
from interlock.stores.derived import BlockingStore, RenewalWork, finish_from_thread
from interlock.stores.marks import (
    needs_empty,
    not_filled_by,
    reached,
    refusal,
    replaceable,
)
from interlock.thread_calls import one_call

AT_ONCE = 1000
"""Entries that one call of ``trim`` deletes at most."""


class _Row(Struct, frozen=True):
    value: bytes
    revision: int
    created: int
    entry: str
    hash: str
    expires: float | None


class MemoryStore(BlockingStore):
    """Everything in this process, gone with it."""

    movable = True

    capabilities = Capabilities(
        engine="memory",
        durability="none",
        clock="given",
        push=True,
        transacts=True,
        one_machine=True,
        consecutive=True,
        latency=0.0,
        min_ttl=0.5,
        max_operations=100_000,
        max_value=5 * 256 * 1024,
        max_bytes=1 << 30,
    )

    def __init__(self, clock: Clock | None = None, keep: int = 1_000_000) -> None:
        self._clock = clock or SystemClock()
        self._keep = keep
        self._mutex = threading.RLock()
        self._rows: dict[str, _Row] = {}
        self._order: list[str] = []
        self._history: list[Change] = []
        self._trimmed = 0
        self._begins = 0
        self._revision = 0
        self._mark: StoreMark | None = None
        self._watches: list[MemoryWatch] = []
        self._closed = False
        self._name = ""
        self._users = 1

    @classmethod
    def shared(cls, name: str) -> MemoryStore:
        """The store of this name in this process; a new one if no client has it open."""
        with _naming:
            store = _named.get(name)
            if store is None:
                store = _named[name] = cls()
                store._name = name
            else:
                store._users += 1
            return store

    def read(
        self,
        *refs: Ref,
        times: bool = False,  # noqa: ARG002 - it always has them
        fresh: bool = True,  # noqa: ARG002 - always
        longest: int | None = None,
    ) -> Snapshot:
        """All the refs at one revision."""
        with self._mutex:
            self._open()
            items = {ref: self._item(ref, longest) for ref in refs if isinstance(ref, str)}
            ranges = {ref: self._many(ref, longest) for ref in refs if not isinstance(ref, str)}
            return Snapshot(self._revision, items, ranges)

    def commit(self, txn: Txn) -> Answer:
        """Check, then write; no reader sees half of it."""
        with one_call(), self._mutex:
            self._open_to_commits()
            if not self._holds(txn):
                return conflict(txn, {key: self._item(key) for key in txn.asked})
            self._apply(txn)
            return Committed(self._revision, {key: self._item(key) for key in txn.asked})

    def transact(self, work: Work) -> Committed | None:
        """Decide and commit under the mutex."""
        with one_call(), self._mutex:
            self._open_to_commits()
            txn = work(self)
            if txn is None:
                return None
            self._apply(txn)
            committed = Committed(self._revision, {})
            while getattr(work, "more", False):
                if (txn := work.again(self)) is not None:  # type: ignore[attr-defined]
                    self._apply(txn)
            return committed

    async def transact_async(self, work: Work) -> Committed | None:
        """The mutex is only ever held for microseconds, so there is nothing to wait for."""
        return self.transact(work)

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive."""
        work = RenewalWork(puts)
        self.transact(work)
        return work.alive

    def watch(self, scope: Scope, after: int) -> MemoryWatch:
        """A feed from this revision on."""
        with self._mutex:
            self._open()
            watch = MemoryWatch(self, scopes(scope), after)
            self._watches.append(watch)
            return watch

    def info(self) -> dict[str, object]:
        """A few facts."""
        return {"engine": "memory", "items": len(self._rows), "revision": self._revision}

    def examine(self) -> list[Finding]:
        """Nothing can be wrong with it."""
        return [Finding(verdict="warn", name="memory", fact="gone with this process")]

    def sweep(self) -> int:
        """Delete expired liveness keys; they read as absent already."""
        with self._mutex:
            gone = [key for key in self._order if self._expired(self._rows[key])]
            for key in gone:
                self._remove(key)
            return len(gone)

    def trim(self, revision: int) -> int:
        """Delete the log up to this revision, and the history of the feed."""
        with self._mutex:
            old = [item for item in self._entries(Log(limit=AT_ONCE)) if item.revision <= revision]
            for item in old:
                self._remove(item.key)
            if old:
                self._begins = old[-1].revision
                self._forget(self._begins)
            return len(old)

    def extent(self) -> Extent:
        """How large the log is."""
        with self._mutex:
            start = bisect_left(self._order, LOG)
            end = bisect_left(self._order, LOG[:-1] + chr(ord(LOG[-1]) + 1))
            return Extent(end - start, self._begins)

    def wall(self) -> float:
        """What time it is by the clock that was given."""
        return self._clock.wall()

    @property
    def missing(self) -> bool:
        """Whether everything is in another store."""
        return self._mark is not None and self._mark.state == "moved"

    def mark(self) -> StoreMark | None:
        """Why it accepts no commits."""
        return self._mark

    def set_mark(self, new: StoreMark | None, old: StoreMark | None) -> bool:
        """Replace the mark, if it still is the old one."""
        with self._mutex:
            self._open()
            if not replaceable(self._mark, old):
                return reached(self._mark, new)
            if needs_empty(new, old) and any(not key.startswith(LIVE) for key in self._rows):
                return False
            known = (
                self._revision if self._mark is None else max(self._revision, self._mark.revision)
            )
            if new is None:
                self._revision = known
                self._forget(known)
            else:
                new = replace(new, revision=max(new.revision, known))
            self._mark = new
            for watch in self._watches:  # one of a moved store ends
                watch.wake()
            return True

    def load(self, move: str, items: Sequence[Item]) -> None:
        """Write items as they are in another store."""
        with self._mutex:
            self._filled_by(move)
            for item in items:
                if item.key not in self._rows:
                    insort(self._order, item.key)
                expires = item.expires_in
                if expires is not None:
                    expires += self._clock.monotonic()
                self._rows[item.key] = _Row(
                    item.value, item.revision, item.created, item.entry, item.hash, expires
                )

    def erase(self, move: str) -> int:
        """Delete everything that was loaded."""
        with self._mutex:
            self._filled_by(move)
            gone = len(self._rows)
            self._rows.clear()
            self._order.clear()
            return gone

    def close(self) -> None:
        """Refuse all calls and wake the waiters; a shared store closes with its last user."""
        with _naming:
            self._users -= 1
            if self._users > 0:
                return
            if _named.get(self._name) is self:
                del _named[self._name]
        with self._mutex:
            self._closed = True
            for watch in self._watches:
                watch.wake()

    def _open(self) -> None:
        if self._closed:
            raise StoreClosed("this store was closed; connect again")

    def _open_to_commits(self) -> None:
        self._open()
        if self._mark is not None:
            raise refusal(self._mark, self._where)

    @property
    def _where(self) -> str:
        return f"memory:{self._name}"

    def _filled_by(self, move: str) -> None:
        self._open()
        if self._mark is None or (self._mark.state, self._mark.move) != ("filling", move):
            raise not_filled_by(move, self._mark, self._where)

    def _expired(self, row: _Row) -> bool:
        return row.expires is not None and row.expires <= self._clock.monotonic()

    def _item(self, key: str, longest: int | None = None) -> Item | None:
        row = self._rows.get(key)
        if row is None or self._expired(row):
            return None
        left = None if row.expires is None else row.expires - self._clock.monotonic()
        item = Item(key, row.value, row.revision, row.created, row.entry, row.hash, left)
        return item if key.startswith(LOG) else item.at_most(longest)

    def _many(self, ref: Range | Log, longest: int | None) -> tuple[Item, ...]:
        if isinstance(ref, Log):
            return self._entries(ref)
        start = bisect_left(self._order, max(ref.prefix, ref.after))
        found: list[Item] = []
        for at in range(start, len(self._order)):  # a slice would copy all the keys that follow
            key = self._order[at]
            if not key.startswith(ref.prefix) or len(found) == ref.limit:
                break
            item = self._item(key, longest)
            if item is not None and key != ref.after:
                found.append(item)
        return tuple(found)

    def _entries(self, ref: Log) -> tuple[Item, ...]:
        rows = [
            Item(key, row.value, row.revision, row.created, row.entry, row.hash)
            for key, row in self._rows.items()
            if key.startswith(LOG) and ref.after < row.revision < (ref.before or inf)
        ]
        rows.sort(key=lambda item: item.revision)
        return tuple(rows[-ref.limit :] if ref.last else rows[: ref.limit])

    def _holds(self, txn: Txn) -> bool:
        checks: Iterable[Check] = txn.checks
        if not txn.quiet:
            checks = (Check(LOG + txn.id, "absent"), *txn.checks)
        return all(check.holds(self._item(check.key)) for check in checks)

    def _apply(self, txn: Txn) -> None:
        self._revision += 1
        changed: list[Change] = []
        if not txn.quiet:
            self._write(LOG + txn.id, txn.entry, txn, None)
            changed.append(Change(self._revision, LOG + txn.id, value=txn.entry))
        for put in txn.puts:
            expires = None if put.ttl is None else self._clock.monotonic() + put.ttl
            self._write(put.key, put.value, txn, expires)
            changed.append(Change(self._revision, put.key))
        for key in txn.deletes:
            if key in self._rows:
                self._remove(key)
                if not key.startswith(LIVE):
                    changed.append(Change(self._revision, key, deleted=True))
        changed.extend(Change(self._revision, key) for key in txn.signals)
        if not txn.quiet:
            self._publish(changed)

    def _write(self, key: str, value: bytes, txn: Txn, expires: float | None) -> None:
        old = self._rows.get(key)
        if old is None:
            insort(self._order, key)
        elif self._expired(old):
            old = None
        created = self._revision if old is None else old.created
        stamp = (txn.id, txn.hash)
        if txn.quiet:
            stamp = ("", "") if old is None else (old.entry, old.hash)
        self._rows[key] = _Row(value, self._revision, created, *stamp, expires)

    def _remove(self, key: str) -> None:
        del self._rows[key]
        del self._order[bisect_left(self._order, key)]

    def _publish(self, changed: list[Change]) -> None:
        self._history.extend(changed)
        if len(self._history) > self._keep:
            self._forget(self._history[-self._keep // 2].revision)
        for watch in self._watches:
            if any(covers(watch.scopes, change.key) for change in changed):
                watch.wake()

    def _forget(self, revision: int) -> None:
        self._history = [change for change in self._history if change.revision > revision]
        self._trimmed = max(self._trimmed, revision)

    def _since(self, watch: MemoryWatch) -> list[Change | Resync]:
        self._open()
        if watch.after < self._trimmed:
            watch.after = self._revision
            return [Resync(self._revision)]
        fresh = bisect_left(self._history, watch.after + 1, key=lambda change: change.revision)
        found = [c for c in self._history[fresh:] if covers(watch.scopes, c.key)]
        watch.after = self._revision
        if not found and self._mark is not None and self._mark.state == "moved":
            raise refusal(self._mark, self._where)
        return list(found)


_named: dict[str, MemoryStore] = {}
_naming = threading.Lock()
"""Held while a shared store is opened or closed."""


class MemoryWatch:
    """A feed of some scopes for one reader."""

    def __init__(self, store: MemoryStore, scopes: tuple[str, ...], after: int) -> None:
        self.scopes = scopes
        self.after = after
        self._store = store
        self._rung = threading.Condition(store._mutex)  # noqa: SLF001 - one module, one mutex
        self._sleeper: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the reader; called under the mutex."""
        self._rung.notify_all()
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            finish_from_thread(sleeper)

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """What changed since the last call; waits for the first change, at most so long."""
        with self._rung:
            found: list[Change | Resync] = []

            def arrived() -> bool:
                found[:] = self._store._since(self)  # noqa: SLF001
                return bool(found)

            self._rung.wait_for(arrived, timeout)
            return found

    async def take_async(self, timeout: float | None) -> list[Change | Resync]:
        """Wait in an event loop."""
        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        while True:
            with self._rung:
                found = self._store._since(self)  # noqa: SLF001
                if found or (ends is not None and loop.time() >= ends):
                    return found
                self._sleeper = future = loop.create_future()
            left = None if ends is None else ends - loop.time()
            try:
                await wait_for_future(future, left)
            finally:
                with self._rung:  # a later commit must not call a loop that is gone
                    self._sleeper = None

    def close(self) -> None:
        """Stop listening."""
        with self._rung:
            if self in self._store._watches:  # noqa: SLF001
                self._store._watches.remove(self)  # noqa: SLF001
