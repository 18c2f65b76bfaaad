"""The connections to the file: one that reads, and one that runs jobs in a transaction.

Neither of them makes anything durable: that is for ``Wal``, after the write lock is released.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import apsw
from msgspec import Struct
from msgspec.structs import replace

from interlock.clock import milliseconds
from interlock.errors import InterlockError, StoreAway, StoreMissing, StoreTrouble
from interlock.store import (
    LIVE,
    LOG,
    Committed,
    Item,
    Log,
    Range,
    Ref,
    Snapshot,
    StoreMark,
    Txn,
    Work,
)
from interlock.stores.marks import decode_mark, encode_mark, refusal
from interlock.stores.sqlite import schema
from interlock.stores.sqlite.files import OpenFiles
from interlock.stores.sqlite.notify import CommitNote
from interlock.stores.sqlite.wal import Wal

if TYPE_CHECKING:
    import asyncio


JOBS_BETWEEN_LOOKS = 500
WAL_TO_RESTART = 16 << 20
WAL_TO_TRUNCATE = 48 << 20
TRIMMED_AT_ONCE = 1000
"""Entries that go in one transaction, which others have to wait for."""
ERASED_AT_ONCE = 10_000

_COLUMNS = "key, value, revision, created, entry, hash, expires"
_ONE = "SELECT * FROM item WHERE key = ?"
_MANY = f"""SELECT {_COLUMNS} FROM item
  WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"""  # noqa: S608 - a constant
_SHORT = (
    "key, iif(length(value) > ?, length(value), value), revision, created, entry, hash, expires"
)
"""SQLite knows the length of a value without loading it."""
_SHORT_MANY = f"""SELECT {_SHORT} FROM item
  WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"""  # noqa: S608 - a constant
_ENTRY = "SELECT id, value, revision, hash FROM log WHERE id = ?"
_FIRST = """SELECT id, value, revision, hash FROM log
  WHERE revision > ? AND revision < ? ORDER BY revision LIMIT ?"""
_LAST = """SELECT id, value, revision, hash FROM log
  WHERE revision > ? AND revision < ? ORDER BY revision DESC LIMIT ?"""
_GREATEST = 2**63 - 1
_REVISION = """SELECT max(
  (SELECT coalesce(max(revision), 0) FROM log),
  (SELECT value FROM meta WHERE name = 'quiet'))"""
_BEGIN = f"BEGIN IMMEDIATE; {_REVISION}"
_PUT = """INSERT INTO item VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET
  value = ?2, created = iif(expires <= ?7, ?3, created), revision = ?3, entry = ?4, hash = ?5,
  expires = ?6"""
_PUT_QUIETLY = """INSERT INTO item VALUES (?1, ?2, ?3, ?3, '', '', ?4) ON CONFLICT DO UPDATE SET
  value = ?2, created = iif(expires <= ?5, ?3, created), entry = iif(expires <= ?5, '', entry),
  hash = iif(expires <= ?5, '', hash), revision = ?3, expires = ?4"""
_LATER = "SELECT revision, id, value, touched FROM log WHERE revision > ? ORDER BY revision LIMIT ?"
_OLDEST = """SELECT max(revision) FROM
  (SELECT revision FROM log WHERE revision <= ? ORDER BY revision LIMIT ?)"""
_EXPIRED = "DELETE FROM item WHERE key >= 'live/' AND key < 'live0' AND expires <= ?"
NANO = 1_000_000_000
ROWS_AT_ONCE = 500
_TEXT = frozenset((str,))
_AT_ONCE = 32
"""Keys that are asked for with one question, at most."""

Row = tuple[str, bytes, int, int, str, str, int | None]
EntryRow = tuple[str, bytes, int, str]
Later = list[tuple[int, str, bytes, str]]


class WriteJob(Struct, eq=False):
    """One transaction on its way, and where its answer goes."""

    work: Work
    ends: float
    whole: bool = False
    waiter: threading.Lock | None = None
    future: asyncio.Future[None] | None = None
    timer: asyncio.TimerHandle | None = None
    txn: Txn | None = None
    answer: Committed | None = None
    error: BaseException | None = None

    def result(self) -> Committed | None:
        """The answer, or the exception that ended it."""
        if self.error is not None:
            raise self.error
        return self.answer


class ReadConnection:
    """Reads through one connection; inside a transaction if the caller began one."""

    def __init__(self, db: apsw.Connection) -> None:
        self.make_item: Callable[[Row], Item | None] = item_of
        """Makes an item of a row; None if it expired."""
        self.attach(db)

    def attach(self, db: apsw.Connection) -> None:
        """Use another connection to the same file, as after a fork."""
        self.db = db
        self._execute = db.execute

    def read(self, *refs: Ref, longest: int | None = None) -> Snapshot:
        """All the refs as this transaction sees them."""
        keys: list[str] = []
        ranges: dict[Range | Log, tuple[Item, ...]] = {}
        try:
            for ref in refs:
                if isinstance(ref, str):
                    keys.append(ref)
                else:
                    ranges[ref] = self._many(ref, longest)
            items = self.items(keys) if longest is None else self._short_items(keys, longest)
        except UnicodeDecodeError as error:
            raise _no_text(error) from error
        return Snapshot(self.revision(), items, ranges)

    def items(self, keys: Sequence[str]) -> dict[str, Item | None]:
        """What stands under these keys: several are asked for at once, as far as that pays."""
        found: dict[str, Item | None] = dict.fromkeys(keys)
        number, make = len(keys), self.make_item
        if number > _AT_ONCE:
            for start in range(0, number, _AT_ONCE):
                found.update(ReadConnection.items(self, keys[start : start + _AT_ONCE]))
            return found
        rows: Any = self._execute(_some(number), keys).fetchall() if keys else ()
        for row in rows:
            found[row[0]] = make(row)
        if len(rows) < number:
            for key in keys:
                if found[key] is None and key.startswith(LOG):  # entries stand in another table
                    found[key] = self._stored(key)
        return found

    def item(self, key: str) -> Item | None:
        """The item under a key, unless it expired."""
        return self._stored(key)

    def _stored(self, key: str) -> Item | None:
        if key.startswith(LOG):
            row = self._execute(_ENTRY, (key[len(LOG) :],)).fetchone()
            return None if row is None else _entry(row)
        row = self._execute(_ONE, (key,)).fetchone()
        return None if row is None else self.make_item(row)

    def _short_items(self, keys: Sequence[str], longest: int) -> dict[str, Item | None]:
        """What stands under these keys, without the values that are longer."""
        found: dict[str, Item | None] = {}
        for key in keys:
            found[key] = self.item(key) if key.startswith(LOG) else None
        asked = [key for key in found if not key.startswith(LOG)]
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            query = _some_short(len(some))
            rows = cast("list[Row]", self._execute(query, (longest, *some)).fetchall())
            found.update((row[0], self._short_item(row)) for row in rows)
        return found

    def _short_item(self, row: Row) -> Item | None:
        """An item; the length of a value that is left out stands in its place."""
        value: object = row[1]
        item = self.make_item(row)
        if item is None or not isinstance(value, int):
            return item
        return replace(item, value=b"", omitted=value)

    def revision(self) -> int:
        """The revision of the latest commit."""
        return self.standing()[0]

    def standing(self, sql: str = _REVISION) -> tuple[int, StoreMark | None]:
        """The revision of the latest commit, and the mark that stands in its place."""
        return self._judged(self.one(sql)[0])

    def _judged(self, found: object) -> tuple[int, StoreMark | None]:
        if isinstance(found, str):  # a text is greater than every number
            mark = decode_mark(found)
            return mark.revision, mark
        if not isinstance(found, int):
            raise apsw.CorruptError(f"the revision is {found!r:.40}")
        return found, None

    def later(self, revision: int) -> Later:
        """The next log rows after a revision."""
        return cast("Later", self._execute(_LATER, (revision, ROWS_AT_ONCE)).fetchall())

    def one(self, sql: str, bindings: tuple[object, ...] = ()) -> tuple[Any, ...]:
        """The one row that a question must have."""
        return cast("tuple[Any, ...]", self._execute(sql, bindings).fetchone())

    def _many(self, ref: Range | Log, longest: int | None) -> tuple[Item, ...]:
        if isinstance(ref, Log):
            return self._entries(ref)
        found: list[Item] = []
        after, limit = ref.after, ref.limit
        end = ref.prefix + "\U0010ffff"
        make = self.make_item if longest is None else self._short_item
        while True:
            first = max(ref.prefix, after + "\0")  # SQLite seeks by one bound, and walks to others
            bounds = (first, end, limit)
            if longest is None:
                rows = cast("list[Row]", self._execute(_MANY, bounds).fetchall())
            else:
                rows = cast("list[Row]", self._execute(_SHORT_MANY, (longest, *bounds)).fetchall())
            found += [item for row in rows if (item := make(row)) is not None]
            if len(rows) < limit or len(found) >= limit:
                return tuple(found[:limit])
            after = rows[-1][0]

    def _entries(self, ref: Log) -> tuple[Item, ...]:
        order = _LAST if ref.last else _FIRST
        bounds = (ref.after, ref.before or _GREATEST, ref.limit)
        rows = cast("list[EntryRow]", self._execute(order, bounds).fetchall())
        return tuple(_entry(row) for row in (reversed(rows) if ref.last else rows))


class WriteConnection(ReadConnection):
    """The connection that writes: the owner of the write lock runs jobs in one transaction."""

    sends_written = True
    """Whether a watch is sent what a commit wrote."""
    make_wal = Wal

    def __init__(
        self,
        db: apsw.Connection,
        path: str,
        notify: Callable[[Sequence[CommitNote]], None],
        files: OpenFiles,
    ) -> None:
        self.files = files
        self.seen = 0
        """The highest revision that this object committed: the store never goes back behind it."""
        self._wait: float | None = None
        self.wal = self.make_wal(path)
        self._durable_changes = 0
        super().__init__(db)
        self.notify = notify
        self._path = path
        self.shown = path
        """The store in messages about its mark."""
        self._touched: list[CommitNote] = []
        self._kept = 0
        self._last = 0
        self._quiet = 0
        self._jobs = 0
        self.mark: StoreMark | None = None
        """The mark of the store, as this transaction sees it: only works that move it may run."""
        self.moved = ""
        """That the store was moved, once a job of this connection was refused for it."""
        self._cache: dict[str, Item | None] = {}

    def attach(self, db: apsw.Connection) -> None:
        """Use another connection to the same file, as after a fork."""
        super().attach(db)
        # One cursor for all statements: making one costs as much as a short statement does.  It
        # holds no read open, since each transaction ends with a statement of this same cursor.
        self._execute = db.cursor().execute
        self._wait = None
        # We do that ourselves: `Wal`.
        db.execute("PRAGMA synchronous=NORMAL").fetchall()
        self.wal.reopen()
        self._durable_changes = 0

    def begin(self, wait: float) -> None:
        """Open the transaction; BusyError if another program prevents that for so long."""
        if self.files.gone:
            self.files.refuse()
        if self.wal.trouble:
            raise StoreAway(self.wal.trouble)
        if wait != self._wait:
            self._wait = wait
            self.db.set_busy_timeout(milliseconds(wait))
        self._kept = len(self._touched)
        if self.db.in_transaction:  # an exception interrupted its rollback
            self.rollback()
        row: Any = self._execute(_BEGIN).fetchone()
        if self.wal.fd < 0:
            self.wal.prepare()
        last, self.mark = row[0], None
        if type(last) is not int:
            last, self.mark = self._judged(last)
        self._last = last
        if last < self.seen:
            self.files.went_back(self.seen, last)
        self._quiet = 0
        self._cache.clear()

    def revision(self) -> int:
        """The revision of the latest job in this transaction."""
        return self._last

    def read(self, *refs: Ref, longest: int | None = None) -> Snapshot:
        """All the refs as this transaction sees them; jobs of one group often ask for the same."""
        if longest is not None:
            return super().read(*refs, longest=longest)
        cache = self._cache
        try:
            if cache or not _TEXT.issuperset(map(type, refs)):
                return self._read_further(refs)
            items = self.items(refs)  # type: ignore[arg-type]  # all of them are keys
        except UnicodeDecodeError as error:
            raise _no_text(error) from error
        cache.update(items)
        return Snapshot(self._last, items)

    def _read_further(self, refs: tuple[Ref, ...]) -> Snapshot:
        """Refs that are not all keys, or not the first that this transaction reads."""
        if len(refs) == 1 and isinstance(refs[0], str):
            return Snapshot(self._last, {refs[0]: self.item(refs[0])})
        cache, keys = self._cache, [ref for ref in refs if isinstance(ref, str)]
        if asked := [key for key in keys if key not in cache]:
            cache.update(self.items(asked))
        ranges = {ref: self._many(ref, None) for ref in refs if not isinstance(ref, str)}
        return Snapshot(self._last, {key: cache[key] for key in keys}, ranges)

    def item(self, key: str) -> Item | None:
        """The item under one key, from the cache of this transaction."""
        cache = self._cache
        if key not in cache:
            cache[key] = self._stored(key)
        return cache[key]

    def run(self, job: WriteJob) -> None:
        """Run one job; what its work raises is its own affair, the engine's errors are not."""
        job.txn, job.answer, job.error = None, None, None
        if self.mark is not None and not getattr(job.work, "moves", False):
            job.error = self.refuse(self.mark)
            return
        try:
            txn = job.work(self)
        except apsw.Error:
            raise
        except Exception as error:  # noqa: BLE001 - handed to the caller of this very job
            job.error = error
            return
        if txn is not None:
            self._apply(txn)
            job.txn = txn
            asked = {key: self.item(key) for key in txn.asked} if job.whole else {}
            job.answer = Committed(self._last, asked)
            while getattr(job.work, "more", False):
                if (txn := job.work.again(self)) is not None:  # type: ignore[attr-defined]
                    self._apply(txn)

    def commit(self) -> None:
        """Make it visible, and keep the write-ahead log in bounds; it is not durable by that."""
        if self._quiet:
            self._execute("UPDATE meta SET value = ? WHERE name = 'quiet'", (self._quiet,))
        self._execute("COMMIT")
        self.seen = self._last
        if self._jobs >= JOBS_BETWEEN_LOOKS:
            self._jobs = 0
            self._bound_wal()

    def make_durable(self) -> None:
        """Return when what the last transactions committed, and what they read, is durable."""
        changes = self.db.total_changes()
        # A mark has no revision of its own, nor has upkeep, so a revision says nothing of them.
        if changes == self._durable_changes and self.mark is None:
            self.wal.wait(self._last)
        else:
            self.wal.sync(self._last)
            self._durable_changes = changes

    def close(self) -> None:
        """Close the file; the rest of its log is never written into another file."""
        close_connection(self.db, self.files)
        self.wal.reopen()

    def rollback(self) -> None:
        """Undo everything of this transaction."""
        del self._touched[self._kept :]
        with suppress(apsw.Error):  # what failed before is the error that counts
            if self.db.in_transaction:
                self._execute("ROLLBACK")

    def trim(self, revision: int) -> int:
        """Delete the oldest entries up to a revision; the latest revision stays known."""
        last = self.one(_OLDEST, (revision, TRIMMED_AT_ONCE))[0]
        if last is None:
            return 0
        self._quiet = self._last  # written down with the commit: the row that says it may go
        self._cache.clear()
        self._execute("UPDATE meta SET value = ? WHERE name = 'trimmed'", (last,))
        self._execute("DELETE FROM log WHERE revision <= ?", (last,))
        return self.db.changes()

    def sweep(self, now: int) -> int:
        """Delete expired liveness keys."""
        self._execute(_EXPIRED, (now,))
        return self.db.changes()

    def refuse(self, mark: StoreMark) -> StoreTrouble:
        """The error of a caller that meets this mark; remembered if the store was moved."""
        error = refusal(mark, self.shown)
        self.moved = str(error) if mark.state == "moved" else ""
        return error

    def set_mark(self, new: StoreMark | None) -> None:
        """Replace the mark, in this transaction; it stands in the place of the quiet revision."""
        old, self.mark = self.mark, new
        if new is not None:
            new = replace(new, revision=max(new.revision, self._last))
        value = self._last if new is None else encode_mark(new)
        self._quiet = 0  # else the commit would write that of an earlier job over it
        self._execute("UPDATE meta SET value = ? WHERE name = 'quiet'", (value,))
        if new is None and old is not None and old.state == "filling":
            # Of loaded entries it is not known which keys they touched.
            self._execute("INSERT OR REPLACE INTO meta VALUES ('loaded', ?)", (self._last,))

    def empty(self) -> bool:
        """Whether the store has no items, other than liveness keys, and no entries."""
        return not self.one(
            "SELECT EXISTS (SELECT 1 FROM item WHERE expires IS NULL) OR EXISTS (SELECT 1 FROM log)"
        )[0]

    def load(self, items: Sequence[Item]) -> None:
        """Write items and entries as they are, in this transaction."""
        self._cache.clear()
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for item in items:
            if item.key.startswith(LOG):
                id_ = item.key[len(LOG) :]
                self._execute(
                    "INSERT OR IGNORE INTO log VALUES (?, ?, ?, ?, '')",
                    (item.revision, id_, item.value, item.hash),
                )
                continue
            expires = None if item.expires_in is None else now + int(item.expires_in * NANO)
            self._execute(
                "INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(item.key, item.value, item.revision, item.created, item.entry, item.hash),
                    expires,
                ),
            )

    def erase(self) -> int:
        """Delete some of the loaded items, in this transaction."""
        self._cache.clear()
        for table, key in (("log", "revision"), ("item", "key")):
            self._execute(
                f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} LIMIT ?)",  # noqa: S608
                (ERASED_AT_ONCE,),
            )
            if gone := self.db.changes():
                return gone
        return 0

    def doubt_touched(self) -> None:
        """It is unknown whether the commits are durable: what they wrote is not passed on."""
        self._touched = [replace(commit, durable=False) for commit in self._touched]

    def take_touched(self) -> list[CommitNote]:
        """The commits since this was last asked, for the notifier."""
        touched, self._touched = self._touched, []
        return touched

    def translated(self, error: apsw.Error, db: apsw.Connection | None = None) -> InterlockError:
        """The engine's complaint in our words; ``db`` is ours to ask what became of the file."""
        if self.files.recheck(db):
            return StoreMissing(self.files.gone)
        return schema.translated(error, self._path, db)

    def times(self) -> tuple[int, int]:
        """When the ttl of a put starts, and up to when keys have expired, as the clock says."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return now, now

    def _apply(self, txn: Txn) -> None:
        self._last = revision = self._last + 1
        self._jobs += 1
        starts, now = self.times()
        id_, hash_, quiet = txn.id, txn.hash, txn.quiet
        execute, uncache, lines = self._execute, self._cache.pop, []
        for put in txn.puts:
            key, ttl = put.key, put.ttl
            uncache(key, None)
            lines.append("+" + key)
            expires = None if ttl is None else starts + int(ttl * NANO)
            if quiet:
                execute(_PUT_QUIETLY, (key, put.value, revision, expires, now))
            else:
                execute(_PUT, (key, put.value, revision, id_, hash_, expires, now))
        for key in txn.deletes:
            uncache(key, None)
            execute("DELETE FROM item WHERE key = ?", (key,))
            if self.db.changes() and not key.startswith(LIVE):
                lines.append("-" + key)
        if quiet:
            self._quiet = revision
            return
        if txn.signals:
            lines += ["!" + key for key in txn.signals]
        execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
            (revision, id_, txn.entry, hash_, "\n".join(lines)),
        )
        entry = LOG + id_
        uncache(entry, None)
        puts = txn.puts if self.sends_written else ()
        self._touched.append(CommitNote(revision, entry, lines, puts))

    def _bound_wal(self) -> None:
        """SQLite checkpoints every 1,000 pages by itself; where that is not enough, insist."""
        # A reader may be in the way, or the disk: the commit stands, and a later one tries.
        with suppress(apsw.Error, OSError):
            size = os.stat(self._path + "-wal").st_size
            if size >= WAL_TO_RESTART:
                self._wait = None
                self.db.set_busy_timeout(50)
                large = size >= WAL_TO_TRUNCATE
                self.db.wal_checkpoint(
                    mode=apsw.SQLITE_CHECKPOINT_TRUNCATE
                    if large
                    else apsw.SQLITE_CHECKPOINT_RESTART
                )


def close_connection(db: apsw.Connection, files: OpenFiles) -> None:
    """Close a connection; if its store is gone, without a checkpoint into what stands there."""
    if files.recheck(db):
        with suppress(apsw.Error):
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.close()


@cache
def _some(number: int) -> str:
    """The query for this number of keys; SQLite caches each prepared statement.

    It takes two thirds of the time of ``key IN (...)``, which sorts the keys in a table first.
    """
    return " UNION ALL ".join([_ONE] * number)


@cache
def _some_short(number: int) -> str:
    """The query for this number of keys that leaves long values out."""
    return f"SELECT {_SHORT} FROM item WHERE key IN ({', '.join('?' * number)})"  # noqa: S608


def item_of(row: Row) -> Item | None:
    """The item of a row, judged by the clock of this machine; None if it expired."""
    key, value, revision, created, entry, hash_, expires = row
    if expires is None:
        return Item(*row)
    left = expires - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    if left <= 0:
        return None
    return Item(key, value, revision, created, entry, hash_, left / NANO)


def _no_text(error: UnicodeDecodeError) -> apsw.Error:
    return apsw.CorruptError(f"text that is no text: {error.reason}")


def _entry(row: EntryRow) -> Item:
    id_, value, revision, hash_ = row
    return Item(LOG + id_, value, revision, revision, id_, hash_)
