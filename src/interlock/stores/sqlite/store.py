"""SQLiteStore: the waist's methods on one SQLite file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import apsw

from interlock import file_mark
from interlock.descriptors import is_refused
from interlock.errors import (
    OutcomeUnknown,
    StoreAway,
    StoreClosed,
    StoreDamaged,
    StoreMissing,
    StoreReadOnly,
    StoreTrouble,
    StoreUnsuitable,
)
from interlock.store import (
    Answer,
    Capabilities,
    Committed,
    Conflict,
    Extent,
    Finding,
    Item,
    Put,
    Ref,
    Scope,
    Snapshot,
    StoreMark,
    Txn,
    View,
    Work,
    conflict,
)
from interlock.stores.derived import BlockingStore, RenewalWork
from interlock.stores.marks import (
    decode_mark,
    mark_facts,
    needs_empty,
    not_filled_by,
    reached,
    replaceable,
)
from interlock.stores.sqlite import files, fork, schema
from interlock.stores.sqlite.connection import (
    Later,
    ReadConnection,
    WriteConnection,
    close_connection,
)
from interlock.stores.sqlite.fork import guard
from interlock.stores.sqlite.notify import Notifier
from interlock.stores.sqlite.writer import PATIENCE, WriteQueue, Writer
from interlock.thread_calls import in_call, one_call

if TYPE_CHECKING:
    from interlock.stores.sqlite.watch import ChangeFeed, SQLiteWatch

T = TypeVar("T")
RETRIES = 3
"""How often an opening is repeated if a restore replaces its files."""
_RESTORE = 0.02
"""Seconds between these."""


_WALL = "SELECT unixepoch('now', 'subsec')"
_EXTENT = "SELECT (SELECT count(*) FROM log), (SELECT value FROM meta WHERE name = 'trimmed')"


_FED_FROM = """SELECT (SELECT max(value) FROM meta WHERE name IN ('trimmed', 'loaded')),
  (SELECT value FROM meta WHERE name = 'quiet')"""
"""The revision up to which the log does not say which keys were touched; and the mark, if any."""


class MovingWork(Generic[T]):
    """The work of a transaction that may run in a store with a mark; ``done`` has its result."""

    moves = True

    def __init__(self, engine: WriteConnection, act: Callable[[], T], move: str) -> None:
        self.done: list[T] = []
        self._engine = engine
        self._act = act
        self._move = move

    def __call__(self, _view: View) -> None:
        """Act, if the store is filled by this move."""
        mark = self._engine.mark
        if self._move and (mark is None or (mark.state, mark.move) != ("filling", self._move)):
            raise not_filled_by(self._move, mark, self._engine.shown)
        self.done.append(self._act())


class SQLiteStore(BlockingStore):
    """One file, many processes, no server."""

    movable = True

    def __init__(self, path: str, *, create: bool = True, patience: float = PATIENCE) -> None:
        self.path = os.path.realpath(path)  # once: SQLite names its other files by the real path
        guard.check(self.path)
        kind = files.prepare(self.path, create=create)
        given = os.path.abspath(path)
        if given.startswith("//"):  # as in sqlite:////var/store.db: one name, not a link
            given = given[1:]
        self._given = given
        self.capabilities = self._declare(kind)
        self._pid = os.getpid()
        self._forked = False
        self._reading = threading.Lock()
        self._making_feed = threading.Lock()
        self._reader: ReadConnection | None = None
        self._has_read = False
        self._resting = self._closed = False
        with one_call(), guard.changing:
            self._open(patience)
            guard.add(self)

    def _declare(self, kind: str) -> Capabilities:
        return Capabilities(
            engine="sqlite",
            durability="process" if kind in files.VOLATILE else "power loss",
            clock="machine",
            push=True,
            transacts=True,
            one_machine=True,
            consecutive=True,
            latency=0.002,
            min_ttl=0.5,
            max_operations=100_000,
            max_value=5 * 256 * 1024,
            max_bytes=1 << 30,
        )

    def _open(self, patience: float) -> None:
        db = self._connect()
        folder = self.path + files.SIDE
        self._notifier = Notifier(folder)
        try:
            files.make_side_folder(folder)
            self._write_queue = WriteQueue(folder)
        except StoreTrouble:
            db.close()
            raise
        except OSError as error:
            db.close()
            if error.errno in files.FULL:
                raise files.full(self.path) from None
            if is_refused(error):
                raise
            raise StoreReadOnly(f"{folder}: {error.strerror}; change its permissions") from None
        self._engine, self._writer = self._make_writer(db, patience)
        self._engine.wal.share(f"{folder}/synced", self._opened_at, ReadConnection(db).revision)
        self._made_feed: ChangeFeed | None = None

    def _make_writer(self, db: apsw.Connection, patience: float) -> tuple[WriteConnection, Writer]:
        engine = WriteConnection(db, self.path, self._notifier.notify, self._files)
        return engine, Writer(engine, self._write_queue, patience)

    @property
    def missing(self) -> bool:
        """Whether the file was deleted or replaced under us: no call succeeds any more."""
        return self._files.look() or bool(self._engine.moved)

    @property
    def outage(self) -> str:
        """Why nothing is answered any more, if the file is gone or was moved."""
        return self._files.gone or self._engine.moved

    def read(
        self,
        *refs: Ref,
        times: bool = False,  # noqa: ARG002 - it always has them
        fresh: bool = True,  # noqa: ARG002 - always
        longest: int | None = None,
    ) -> Snapshot:
        """All the refs at one revision, which is durable; a writer does not block it."""
        snapshot = self._read(refs, longest)
        self._wait_until_durable(snapshot.revision)
        return snapshot

    async def read_async(
        self,
        *refs: Ref,
        times: bool = False,  # noqa: ARG002 - as above
        fresh: bool = True,  # noqa: ARG002 - as above
        longest: int | None = None,
    ) -> Snapshot:
        """Read in an event loop, which goes on while a slow disk is busy."""
        snapshot, wal = self._read(refs, longest), self._engine.wal
        if not wal.slow or wal.is_durable(snapshot.revision):
            self._wait_until_durable(snapshot.revision)
        else:
            import asyncio

            await asyncio.to_thread(self._wait_until_durable, snapshot.revision)
        return snapshot

    def _wait_until_durable(self, revision: int) -> None:
        """Return when all up to a revision is durable, as one call of this thread."""
        wal = self._engine.wal
        if not wal.is_durable(revision):
            with one_call():
                wal.wait(revision)

    def _read(self, refs: tuple[Ref, ...], longest: int | None) -> Snapshot:
        """All the refs at one revision, which a power cut may still undo."""
        self._check()
        feed = self._made_feed
        behind = feed.behind if feed is not None else ()
        with one_call(), self._reading:
            first, self._has_read = not self._has_read, True
            snapshot = self._read_by_writer(refs, longest) if first else None
            if snapshot is None:
                try:
                    reader = self._read_connection()
                except apsw.Error as error:  # without a descriptor for it, the other one reads
                    snapshot = self._read_by_writer(refs, longest)
                    if snapshot is None:
                        raise self._engine.translated(error) from error
                else:
                    snapshot = self._snapshot(reader, refs, longest)
        if feed is not None and behind:  # not before: it waits for ``_reading`` under its own lock
            feed.saw(behind, snapshot.revision)
        return snapshot

    def _read_by_writer(self, refs: tuple[Ref, ...], longest: int | None) -> Snapshot | None:
        """A read through the connection that writes; None if that is in use.

        A command often reads once and commits once: it opens no second connection.
        """
        using = self._writer.using
        if not using.acquire(blocking=False):  # never wait here: a fork takes the two in turn
            return None
        try:
            db = self._engine.db
            if db.in_transaction:  # of a commit that waits for its push
                return None
            return self._snapshot(self._make_reader(db), refs, longest)
        finally:
            using.release()

    def _snapshot(
        self, reader: ReadConnection, refs: tuple[Ref, ...], longest: int | None
    ) -> Snapshot:
        """All the refs in one transaction of this connection, which is ours to use now."""
        db, seen = reader.db, self._engine.seen
        try:
            try:  # an exception may come anywhere: no transaction may stay open
                if db.in_transaction:
                    db.execute("ROLLBACK")
                db.execute("BEGIN")
                snapshot = reader.read(*refs, longest=longest)
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
            self._files.check(db)
            if snapshot.revision < seen:
                self._files.went_back(seen, snapshot.revision)
        except apsw.Error as error:
            raise self._engine.translated(error, db) from error
        return snapshot

    def commit(self, txn: Txn) -> Answer:
        """Check and write in one transaction."""
        refused: list[Conflict] = []

        def work(view: View) -> Txn | None:
            refused.clear()
            items = view.read(*txn.asked, longest=_enough(txn)).items
            taken = not txn.quiet and items[txn.asked[0]] is not None
            if taken or not all(check.holds(items[check.key]) for check in txn.checks):
                refused.append(conflict(txn, items))
                return None
            return txn

        self._check()
        committed = self._writer.run(work, whole=True)
        return refused[0] if committed is None else committed

    def transact(self, work: Work) -> Committed | None:
        """Read, decide and commit inside one transaction."""
        self._check()
        return self._writer.run(work)

    def transact_async(self, work: Work) -> Awaitable[Committed | None]:
        """Transact in an event loop; works that wait together share one durable commit."""
        self._check()
        return self._writer.run_async(work)

    def renew(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Put liveness keys again that are alive, in one transaction."""
        work = RenewalWork(puts)
        try:
            self.transact(work)
        except OutcomeUnknown as error:  # to renew twice does no harm
            raise StoreAway(str(error)) from error
        return work.alive

    async def renew_async(self, puts: tuple[Put, ...]) -> frozenset[str]:
        """Renew in an event loop, grouped with the works that wait there."""
        work = RenewalWork(puts)
        try:
            await self.transact_async(work)
        except OutcomeUnknown as error:
            raise StoreAway(str(error)) from error
        return work.alive

    def watch(self, scope: Scope, after: int) -> SQLiteWatch:
        """A feed from this revision on."""
        self._check()
        return self._feed.open(scope, after)

    @property
    def _feed(self) -> ChangeFeed:
        """What feeds all watches; made for the first one, since most commands watch nothing."""
        from interlock.stores.sqlite.watch import ChangeFeed

        with one_call(), self._making_feed:
            if self._made_feed is None:
                feed = ChangeFeed(
                    self._notifier,
                    self._later,
                    self._data_version,
                    self._check,
                    same_files=self._same_files,
                    committed=self._committed,
                )
                self._made_feed = feed
            return self._made_feed

    def sweep(self) -> int:
        """Delete expired liveness keys; they read as absent already."""
        return self._upkeep(lambda: self._engine.sweep(_now()))

    def trim(self, revision: int) -> int:
        """Delete the log up to this revision, but never the number of the latest revision."""
        return self._upkeep(lambda: self._engine.trim(revision))

    def extent(self) -> Extent:
        """How large the log is: counting goes through an index, in 6 ms for 400,000 entries."""
        entries, trimmed = self._ask(lambda reader: reader.one(_EXTENT))
        if not isinstance(trimmed, int):
            raise StoreDamaged(
                f"{self.path} does not say how far its record was trimmed ({trimmed!r:.40});"
                " restore a copy"
            )
        return Extent(entries, trimmed)

    def wall(self) -> float:
        """The time of the machine's clock, even if this process uses another clock."""
        return self._ask(lambda reader: float(reader.one(_WALL)[0]))

    def mark(self) -> StoreMark | None:
        """Why it accepts no commits."""
        revision, mark = self._ask(ReadConnection.standing)
        self._wait_until_durable(revision)
        return mark

    def set_mark(self, new: StoreMark | None, old: StoreMark | None) -> bool:
        """Replace the mark, if it still is the old one."""
        engine = self._engine

        def change() -> bool:
            if not replaceable(engine.mark, old):
                return reached(engine.mark, new)
            if needs_empty(new, old) and not engine.empty():
                return False
            engine.set_mark(new)
            return True

        return self._moving(change)

    def load(self, move: str, items: Sequence[Item]) -> None:
        """Write items and entries as they are in another store, in one transaction."""
        self._moving(lambda: self._engine.load(items), move)

    def erase(self, move: str) -> int:
        """Delete some of the loaded items."""
        return self._moving(self._engine.erase, move)

    def _moving(self, act: Callable[[], T], move: str = "") -> T:
        """Do something inside a transaction, although the store has a mark."""
        work = MovingWork(self._engine, act, move)
        self.transact(work)
        return work.done[-1]

    def info(self) -> dict[str, object]:
        """Facts about this store for a person."""
        items, entries, trimmed, revision = self._ask(
            lambda reader: (
                *reader.one(
                    "SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM log),"
                    " (SELECT value FROM meta WHERE name='trimmed')"
                ),
                reader.revision(),
            )
        )
        return {
            "engine": "sqlite",
            "path": self.path,
            "format": schema.FORMAT,
            "sqlite": apsw.sqlite_lib_version(),
            "file_system": files.file_system(self.path),
            "durability": self.capabilities.durability,
            "bytes": _size(self.path),
            "wal_bytes": _size(self.path + "-wal"),
            "revision": revision,
            "items": items,
            "entries": entries,
            "trimmed": trimmed or None,
            "doorbells": self._try_socket(),
            **mark_facts(self.mark()),
        }

    def examine(self) -> list[Finding]:
        """What is well and what is not with the file and its place."""
        from interlock.stores.sqlite.examine import findings

        return list(findings(self))

    def check(self) -> list[str]:
        """What the engine finds wrong with the file, for the doctor; it reads all of it."""
        rows = self._ask(lambda reader: reader.db.execute("PRAGMA quick_check").fetchall())
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def held_up_by(self) -> int | None:
        """The process that has the write lock at this moment, if any."""
        return self._write_queue.holder()

    def close(self) -> None:
        """Close the file; acknowledged commits stay."""
        if self._pid != os.getpid():
            guard.notice()
        if self._closed or self._forked:
            return
        self._closed = True
        idle = self._writer.close()
        if in_call():  # of this thread: it may be using what is closed here
            return
        if self._made_feed is not None:
            self._made_feed.close()
        self._notifier.close()
        with guard.changing, self._reading:
            if self._reader is not None:
                close_connection(self._reader.db, self._files)
            if idle:
                self._engine.close()
                self._engine.wal.close()
            guard.discard(self)

    def rest(self) -> bool:
        """Close all connections for the moment of a fork; False if we could not stop in time."""
        if self._closed:
            return True
        if in_call():  # the program forks inside of a call of this very thread
            return False
        if not self._writer.using.acquire(timeout=fork.PATIENCE):
            return False
        if not self._reading.acquire(timeout=fork.PATIENCE):
            self._writer.using.release()
            return False
        if not self._engine.wal.using.acquire(timeout=fork.PATIENCE):
            self._reading.release()
            self._writer.using.release()
            return False
        self._files.recheck(self._engine.db)
        self._files.rest()
        if self._reader is not None:
            close_connection(self._reader.db, self._files)
        self._reader = None
        self._engine.close()
        self._resting = True
        return True

    def wake(self) -> None:
        """After a fork, in the parent: open the connections again."""
        if self._resting:
            with suppress(apsw.Error):  # the next call meets the error, and reports it
                try:
                    db = schema.open_first(self.path)
                except StoreTrouble as error:
                    self._files.gone = self._files.gone or str(error)
                else:
                    schema.configure(db)
                    self._engine.attach(db)
                    with suppress(StoreMissing):
                        self._files.begin(db)
            self._resting = False
            self._engine.wal.using.release()
            self._reading.release()
            self._writer.using.release()

    def abandon(self) -> None:
        """After a fork, in the child: open connections are the parent's, and are never closed."""
        self._forked = True
        if not self._resting:
            import ctypes

            for db in (self._engine.db, self._reader and self._reader.db):
                if db is not None:
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
        self._write_queue.close()
        self._engine.wal.abandon()
        if self._made_feed is not None:
            self._made_feed.abandon()

    def _connect(self) -> apsw.Connection:
        """Open the file, again if a restore replaces it and its log at this moment."""
        left = RETRIES
        while True:
            self._files = files.OpenFiles(self._given, self.path)
            before = files.identity(self.path)
            try:
                return self._connect_once()
            except StoreMissing:
                if not left or files.identity(self.path) == before:
                    raise
            except apsw.Error as error:
                # The log may be replaced a moment after the file.
                again = isinstance(error, apsw.IOError) or files.identity(self.path) != before
                if not left or not again:
                    raise schema.translated(error, self.path) from error
            left -= 1
            time.sleep(_RESTORE)

    def _connect_once(self) -> apsw.Connection:
        marked = file_mark.read(self.path)
        db = schema.open_first(self.path)
        try:
            schema.configure(db)
            schema.establish(db, self.path)
            self._begin_boot(db)
            self._opened_at, self.mark_at_opening = ReadConnection(db).standing()
            self._files.begin(db)
            if not marked:
                files.mark_logs(self.path)
        except BaseException:
            db.close()
            raise
        return db

    def _begin_boot(self, db: apsw.Connection) -> None:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'replica'").fetchone():
            raise StoreUnsuitable(
                f"{self.path} is the copy of a git store; name that by its URL: git+ssh://..."
            )
        schema.start_boot(db, schema.boot_id())

    def _make_reader(self, db: apsw.Connection) -> ReadConnection:
        return ReadConnection(db)

    def _read_connection(self) -> ReadConnection:
        if self._reader is None:
            db = schema.open_connection(self.path)
            try:
                db.pragma("user_version")  # it opens the log, too
            except BaseException:
                db.close()
                raise
            self._reader = self._make_reader(db)
        return self._reader

    def _check(self) -> None:
        if self._pid != os.getpid():
            guard.notice()
        if self._forked:
            raise StoreClosed("this store was opened before a fork; connect again in the child")
        if self._closed:
            raise StoreClosed("this store was closed; connect again")
        if self._files.look():
            self._files.refuse()

    def _later(self, revision: int) -> tuple[Later, int, StoreTrouble | None]:
        """The next log rows, durable, how far the log was trimmed, and the error of a mark.

        How far it was trimmed is asked last, so no gap is missed.
        """
        rows, (trimmed, mark) = self._ask(
            lambda reader: (reader.later(revision), reader.one(_FED_FROM))
        )
        self._wait_until_durable(rows[-1][0] if rows else 0)
        error = self._engine.refuse(decode_mark(mark)) if isinstance(mark, str) else None
        return rows, int(trimmed), error

    def _same_files(self) -> bool:
        """Whether our files are those of the store, as after a read."""
        try:
            with one_call(), self._reading:
                self._files.check(self._read_connection().db)
        except (StoreTrouble, apsw.Error):
            return False
        return True

    def _committed(self) -> int:
        """The latest revision that this object committed."""
        return self._engine.seen

    def _data_version(self) -> int:
        return self._ask(lambda reader: int(str(reader.db.pragma("data_version"))))

    def _ask(self, question: Callable[[ReadConnection], T]) -> T:
        self._check()
        try:
            with one_call(), self._reading:
                reader = self._read_connection()
                answer = question(reader)
                self._files.check(reader.db)
                return answer
        except apsw.Error as error:
            raise self._engine.translated(error) from error

    def _upkeep(self, act: Callable[[], int]) -> int:
        """Do something inside a transaction that is no commit of a caller."""
        changed = 0

        def work(_: View) -> None:
            nonlocal changed
            changed = act()

        self.transact(work)
        return changed

    def _try_socket(self) -> str:
        socket = self._notifier.open_socket()
        if socket is None:
            return self._notifier.trouble
        socket.close()
        return "ok"


def _enough(txn: Txn) -> int | None:
    """The longest value that a commit needs to read; None if it compares values."""
    return None if any(check.kind == "has" for check in txn.checks) else txn.longest


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
