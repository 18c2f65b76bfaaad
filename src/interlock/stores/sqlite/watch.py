"""The feed of changes: read from the log table, woken by notifications.

One ChangeFeed serves all watches of a store object.  A notification makes it read the new log rows
once and append the matching changes to each watch.  In a blocking program one of the waiting
threads listens for all of them.  In an event loop the notification socket is one more file
descriptor; a commit in that very loop wakes it without the socket, if no thread and no other loop
listens: these must not depend on when that loop continues.

A new watch reads the log from its revision on.  The watch of one signal leaves that to its first
``take``: its waiter mostly reads something before it sleeps, and a read at the revision of the
watch shows that nothing came in between (``saw``).  If the mark of its folder stands since an
earlier wait, nothing can have come without a datagram, and nothing is read.

A datagram has what its commit changed.  If it is the commit after the last one that the feed knows,
the log need not be read.  A signal for one watch alone has no order to keep, and needs no log.

A datagram also has what the commit wrote, a moment after that was durable.  A watch passes it on if
it is fresh and our files still are those of the store, as they would be for a read: a process that
was suspended may find a datagram of an hour ago, and reads.  A watch of more than a signal passes
it on only to a ``take`` that waited for it, and only if this process has not committed since: what
was done before a call of ``take`` is not to be overlooked by that call.

While a watch waits, ``PRAGMA data_version`` shows every second whether the file changed without a
notification.  That backstop is for a committer that was killed before it notified, and for
sandboxes that forbid sockets; latency does not depend on it otherwise.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from interlock.errors import StoreMoved, StoreTrouble
from interlock.steps import finish_future, wait_for_future
from interlock.store import LOG, TOLD, WAKE, Change, Item, Resync, Scope, scopes
from interlock.stores.derived import finish_from_thread
from interlock.stores.sqlite.connection import ROWS_AT_ONCE
from interlock.stores.sqlite.notify import (
    Notice,
    NoticeRow,
    Notifier,
    NotifySocket,
    around,
    notices_of,
    signal_folder,
)

if TYPE_CHECKING:
    import asyncio

BACKSTOP = 1.0
FRESH = 200_000_000
"""Nanoseconds for which the notice of a datagram counts: less than the shortest ttl."""

Rows = list[tuple[int, str, bytes, str]]


class LoopListener:
    """One event loop that listens: its next look by itself, and whether it was called."""

    __slots__ = ("called", "loop", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.timer: asyncio.TimerHandle | None = None
        self.called = False


class ChangeFeed:
    """New log rows, read once and delivered to every watch that they concern."""

    def __init__(
        self,
        notifier: Notifier,
        later: Callable[[int], tuple[Rows, int, StoreTrouble | None]],
        data_version: Callable[[], int],
        check: Callable[[], None],
        *,
        same_files: Callable[[], bool],
        committed: Callable[[], int],
    ) -> None:
        self.check = check
        self._same_files = same_files
        self._committed = committed
        self._notifier = notifier
        self._later = later
        self._data_version = data_version
        self._lock = threading.RLock()
        self._guard = threading.Condition(self._lock)
        self._index = WatchIndex()
        self.behind: tuple[SQLiteWatch, ...] = ()
        """The watches that may have missed something between their revision and their mark."""
        self._socket: NotifySocket | None = None
        self._without_socket = False
        self._marked: dict[str, int] = {}
        """The folders of signals whose marks stand, with a revision that was read after that."""
        self._untaken = 0
        """The revision of the last signal that no watch was there for."""
        self._seen = 0
        self._version = -1
        self._looked = 0.0
        """When a thread last looked whether the file had changed."""
        self._moved: StoreMoved | None = None
        self._listener: object = None
        self._loops: dict[asyncio.AbstractEventLoop, LoopListener] = {}

    def open(self, scope: Scope, after: int) -> SQLiteWatch:
        """A watch of this scope that has seen everything up to ``after``."""
        watch = SQLiteWatch(self, scopes(scope))
        with self._lock:
            if self._socket is None and not self._without_socket:
                self._socket = self._notifier.open_socket()
                self._without_socket = self._socket is None
            if self._socket is not None:
                folder = watch.folder
                watch.marks = self._socket.listen(watch.scopes if folder is None else (folder,))
            lone = not self._index.watches
            if lone:
                self._looked = time.monotonic()
            if watch.is_signal and (lone or self._seen <= after):
                if not self._told_since(watch, after):
                    self.behind = (*self.behind, watch)
                self._seen = after if lone else self._seen
                watch.signalled = after
            else:
                self._catch_up(watch, after)
            self._index.add(watch)
            return watch

    def _told_since(self, watch: SQLiteWatch, after: int) -> bool:
        """Whether each signal to this watch after that revision is, or will be, a datagram here."""
        since = self._marked.get(watch.folder or "")
        return since is not None and max(since, self._seen, self._untaken) <= after

    def saw(self, behind: tuple[SQLiteWatch, ...], revision: int) -> None:
        """A read that began after these watches were opened found the store at this revision."""
        with self._lock:
            same = [watch for watch in behind if revision <= watch.signalled]
            self._no_longer_behind(same, revision)

    def _no_longer_behind(self, watches: Sequence[SQLiteWatch], revision: int) -> None:
        """All up to this revision is known, which was read after these watches had their marks."""
        for watch in watches:
            if watch.folder is not None and watch in self.behind and self._socket is not None:
                self._marked.setdefault(watch.folder, revision)
        self.behind = tuple([watch for watch in self.behind if watch not in watches])

    def close_watch(self, watch: SQLiteWatch) -> None:
        """Remove a watch from the feed."""
        with self._lock:
            if watch in self.behind:
                self.behind = tuple([each for each in self.behind if each is not watch])
            if watch in self._index.watches:
                self._index.remove(watch)
                keep, socket = watch.folder is not None, self._socket
                if socket is not None and not socket.unlisten(watch.marks, keep=keep):
                    self._marked.pop(watch.folder or "", None)

    def take(self, watch: SQLiteWatch) -> list[Change | Resync]:
        """The changes that have arrived for this watch, once."""
        with self._lock:
            found, watch.arrived = watch.arrived, []
            return found

    def wait(self, watch: SQLiteWatch, timeout: float | None) -> None:
        """Block until the watch has something, at most so long; look once at least."""
        ends = None if timeout is None else time.monotonic() + timeout
        me, looked = object(), False
        try:
            while True:
                with self._lock:
                    self._keep_up(watch)
                    if watch.arrived:
                        return
                    self.refuse(watch)
                    left = BACKSTOP if ends is None else min(BACKSTOP, ends - time.monotonic())
                    if left <= 0 and looked:
                        return
                    looked = True
                    if self._listener is not None:
                        self._guard.wait(max(left, 0.0))
                        continue
                    self._listener, socket = me, self._socket
                self._listen(socket, max(left, 0.0))
        finally:  # an exception may come anywhere: then the next waiter listens
            if self._listener is me:
                with self._lock:
                    self._listener = None
                    self._guard.notify_all()

    def refuse(self, watch: SQLiteWatch) -> None:
        """Raise if nothing can arrive for this watch any more."""
        self.check()
        if self._moved is not None and not watch.arrived:
            raise StoreMoved(str(self._moved), self._moved.place)

    def sleep(self, watch: SQLiteWatch, loop: asyncio.AbstractEventLoop) -> None:
        """Have the event loop wake this watch, at once if a thread delivered something to it."""
        with self._lock:
            listener = self._loops.get(loop) or self._add_loop(loop)
            if listener.timer is None:
                listener.timer = loop.call_later(BACKSTOP, self._on_backstop, listener)
            self._keep_up(watch)
            if watch.arrived:
                watch.wake()

    def _keep_up(self, watch: SQLiteWatch) -> None:
        """Read the log before a watch sleeps that may have missed something."""
        if watch in self.behind:
            self._pump(notified=True)

    def _add_loop(self, loop: asyncio.AbstractEventLoop) -> LoopListener:
        """Add a loop that listens, and drop the closed ones."""
        self._loops = {
            each: listener for each, listener in self._loops.items() if not each.is_closed()
        }
        listener = self._loops[loop] = LoopListener(loop)
        if self._socket is not None:
            loop.add_reader(self._socket.socket.fileno(), self._on_notification)
            self._socket.answer = self._answer
        return listener

    def close(self) -> None:
        """Remove the socket, and wake the waiters, which find the store closed."""
        with self._lock:
            for listener in self._loops.values():
                if listener.timer is not None:
                    listener.timer.cancel()
                with suppress(RuntimeError):  # that loop is closed
                    if self._socket is not None:
                        listener.loop.remove_reader(self._socket.socket.fileno())
            if self._socket is not None:
                self._socket.close()
            self._socket, self._loops, self._marked = None, {}, {}
            self._wake_all()
            self._guard.notify_all()

    def abandon(self) -> None:
        """In the child of a fork: close the parent's socket, and leave its files alone."""
        if self._socket is not None:
            self._socket.socket.close()
        self._socket, self._loops, self._index, self.behind = None, {}, WatchIndex(), ()
        self._marked = {}
        self._lock = threading.RLock()
        self._guard = threading.Condition(self._lock)

    def _listen(self, socket: NotifySocket | None, timeout: float) -> None:
        """Wait for the socket on behalf of all threads, and deliver what is new to the watches."""
        if socket is None:
            time.sleep(timeout)
        notified = socket is not None and socket.wait(timeout)
        with self._lock:
            self._listener = None
            self._guard.notify_all()
            rung = notified and self._socket is not None and self._ring(self._socket.drain())
            if rung and time.monotonic() < self._looked + BACKSTOP:
                return
            self._looked = time.monotonic()  # signals must not keep the backstop away
            self._pump(notified=notified and not rung)

    def _answer(self) -> bool:
        """Whether the loop that commits is the only one to listen: it needs no socket."""
        loop = _running()
        listener = None if loop is None else self._loops.get(loop)
        if listener is None or len(self._loops) > 1 or self._listener is not None:
            return False
        if not listener.called:
            listener.called = True
            listener.loop.call_soon(self._on_call, listener)
        return True

    def _on_call(self, listener: LoopListener) -> None:
        listener.called = False
        with self._lock:
            self._pump_or_wake(notified=True)

    def _on_notification(self) -> None:
        with self._lock:
            # The datagrams belong to a thread that listens.
            socket = None if self._listener is not None else self._socket
            if socket is None or not self._ring(socket.drain()):
                self._pump_or_wake(notified=True)

    def _on_backstop(self, listener: LoopListener) -> None:
        with self._lock:
            listener.timer = None
            self._pump_or_wake(notified=False)
            if listener.loop in self._loops and any(watch.sleeper for watch in self._index.watches):
                listener.timer = listener.loop.call_later(BACKSTOP, self._on_backstop, listener)

    def _pump_or_wake(self, *, notified: bool) -> None:
        """A callback has no caller for an error: wake all watches, so that they meet it."""
        try:
            self._pump(notified=notified)
        except StoreTrouble:
            self._wake_all()

    def _wake_all(self) -> None:
        for watch in self._index.watches:
            watch.wake()

    def _ring(self, datagrams: list[bytes]) -> bool:
        """Deliver the signals that datagrams name; False if the log has to be read.

        Only to watches of that one key, which have no other change to keep the order with.
        """
        notices = notices_of(datagrams)
        if notices is None:
            return False
        for notice in notices:
            rows = [row for row in notice.rows if row.revision > self._seen]
            if self._follows(rows):
                for row in rows:
                    sent = notice.sent if row.revision > self._committed() else 0
                    self._index.give(row.revision, row.lines, self._current(notice, row), sent)
                    self._seen = row.revision
                self._index.wake()
            elif not self._signal(notice, rows):
                return False
        self._guard.notify_all()
        return True

    def _follows(self, rows: Sequence[NoticeRow]) -> bool:
        """Whether these are all commits since the last one that the feed knows.

        A watch that is behind may have missed a commit of this process before its mark was made.
        """
        position = self._seen
        skipped = set[int]() if self._socket is None else self._socket.skipped
        for row in rows:
            while position + 1 in skipped:
                position += 1
            if row.revision != position + 1:
                return False
            position = row.revision
        if self.behind or not self._index.watches:
            return False
        skipped.difference_update([each for each in tuple(skipped) if each <= position])
        return True

    def _signal(self, notice: Notice, rows: Sequence[NoticeRow]) -> bool:
        """Deliver signals out of their order, if there is nothing else; False if there is."""
        found = [(row, row.signals) for row in rows]
        for _, signals in found:
            if signals is None or not self._index.only_signals(signals):
                return False
        for row, signals in found:
            for key in signals or ():
                if not self._index.signal(key, row.revision, self._current(notice, row)):
                    self._untaken = max(self._untaken, row.revision)
        return True

    def _current(self, notice: Notice, row: NoticeRow) -> tuple[Item, ...]:
        """What a commit wrote; nothing, if a reader should read that by itself."""
        age = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - notice.sent
        if not row.written or not 0 <= age < FRESH or not self._same_files():
            return ()
        return tuple([Item(key, value, row.revision, 0) for key, value in row.written.items()])

    def _pump(self, *, notified: bool) -> None:
        """Deliver what is new to the watches."""
        if not notified:
            version = self._data_version()
            if version == self._version:
                return
            self._version = version
        seen, self._seen = self._seen, self._advance(self._index, self._seen)
        self._no_longer_behind(self.behind, self._seen)
        late = not notified and any(watch.arrived for watch in self._index.watches)
        if late and self._socket is not None:
            self._socket.mark_again()  # no datagram came: the marks may have been removed
        if self._moved is not None:
            self._wake_all()
        if (self._seen > seen or self._moved) and self._listener is not None:  # threads wait, too
            self._guard.notify_all()
            if self._socket is not None:
                self._socket.wake()

    def _catch_up(self, watch: SQLiteWatch, after: int) -> None:
        if not self._index.watches:
            self._seen = after  # no other watch relies on it: a long log need not be read
        self._pump(notified=True)
        self._advance(WatchIndex(watch), after, self._seen)

    def _advance(self, index: WatchIndex, position: int, end: int | None = None) -> int:
        """Deliver what came after a position to these watches; returns the new position."""
        gap = False
        while end is None or position < end:
            rows, trimmed, error = self._later(position)
            gap = gap or trimmed > position
            last = len(rows) < ROWS_AT_ONCE  # a later commit notifies again
            if last and isinstance(error, StoreMoved):
                self._moved = error
            if end is not None:
                rows = [row for row in rows if row[0] <= end]
            if not rows:
                position = max(position, trimmed)
                break
            position = max(rows[-1][0], trimmed)
            if not gap:
                index.deliver(rows)
            if last:
                break
        for watch in index.watches if gap else ():
            watch.resync(position)
        return position


class WatchIndex:
    """Some watches by their scopes: what a change costs does not grow with their number."""

    def __init__(self, *watches: SQLiteWatch) -> None:
        self.watches: list[SQLiteWatch] = []
        self._by_scope: dict[str, list[SQLiteWatch]] = {}
        self._tops: dict[str, int] = {}
        """How many watches there are below each uppermost folder; the empty one covers all."""
        for watch in watches:
            self.add(watch)

    def add(self, watch: SQLiteWatch) -> None:
        """Add a watch under all of its scopes."""
        self.watches.append(watch)
        for scope in watch.scopes:
            self._by_scope.setdefault(scope, []).append(watch)
            top = scope[: scope.find("/") + 1]
            self._tops[top] = self._tops.get(top, 0) + 1

    def remove(self, watch: SQLiteWatch) -> None:
        """Remove a watch."""
        self.watches.remove(watch)
        for scope in watch.scopes:
            self._by_scope[scope].remove(watch)
            if not self._by_scope[scope]:
                del self._by_scope[scope]
            top = scope[: scope.find("/") + 1]
            self._tops[top] -= 1
            if not self._tops[top]:
                del self._tops[top]

    def only_signals(self, keys: dict[str, int]) -> bool:
        """Whether every watch that one of these keys concerns is of that key alone."""
        for key in keys:
            for watch in self._watching(key):
                if len(watch.scopes) > 1 or watch.scopes[0] not in keys:
                    return False
        return True

    def signal(self, key: str, revision: int, written: tuple[Item, ...]) -> bool:
        """Deliver a signal before its log row is read, and not again with the row.

        Returns whether a watch was there for it.
        """
        watches = self._by_scope.get(key, ())
        for watch in watches:
            if revision > watch.signalled:
                watch.signalled = revision
                watch.arrived.append(Change(revision, key, written=written))
                watch.wake()
        return bool(watches)

    def deliver(self, rows: Rows) -> None:
        """Give each watch what concerns it of these log rows, and wake those with changes.

        No key is in two scopes of one watch, so no change comes twice.
        """
        for revision, id_, value, touched in rows:
            for watch in self._watching(LOG + id_):
                watch.arrived.append(Change(revision, LOG + id_, value=value))
            self.give(revision, touched.split("\n") if touched else ())
        self.wake()

    def give(
        self,
        revision: int,
        lines: Iterable[str],
        written: tuple[Item, ...] = (),
        sent: float = 0,
    ) -> None:
        """Give each watch what concerns it of the lines of one commit.

        What it has ``written`` is for signals, and for a ``take`` that began before ``sent``.
        """
        tops = self._tops
        everything = "" in tops
        for line in lines:
            if not everything and line[1 : line.find("/") + 1] not in tops:
                continue  # as most of what a commit writes
            key, deleted = line[1:], line[0] == "-"
            for watch in self._watching(key):
                if revision > watch.signalled:
                    told = key.startswith(TOLD) and (watch.is_signal or watch.asked < sent)
                    along = written if told else ()
                    watch.arrived.append(Change(revision, key, deleted=deleted, written=along))

    def wake(self) -> None:
        """Wake those with changes."""
        for watch in self.watches:
            if watch.arrived:
                watch.wake()

    def _watching(self, key: str) -> Sequence[SQLiteWatch]:
        """The watches that cover this key: by itself, by one of its folders, or by everything."""
        by_scope, found = self._by_scope, list[SQLiteWatch]()
        if key[: key.find("/") + 1] not in self._tops and "" not in self._tops:
            return ()  # as most of what a commit writes
        for scope in around(key):
            if scope in by_scope:
                found += by_scope[scope]
        return found


class SQLiteWatch:
    """The changes in some scopes for one reader."""

    def __init__(self, feed: ChangeFeed, scopes: tuple[str, ...]) -> None:
        self.scopes = scopes
        self.arrived: list[Change | Resync] = []
        self.sleeper: asyncio.Future[None] | None = None
        self.is_signal = len(scopes) == 1 and scopes[0].startswith(WAKE) and scopes[0][-1] != "/"
        """Whether it waits for one signal alone."""
        self.folder = signal_folder(scopes)
        """The folder that its mark names instead of the signal."""
        self.marks: tuple[str, ...] = ()
        """The names of the files that ask for it."""
        self.asked = math.inf
        """Since when a ``take`` waits, in nanoseconds of the monotonic clock."""
        self.signalled = 0
        """The revision of the last signal that came before its log row, or where it begins."""
        self._feed = feed

    def resync(self, revision: int) -> None:
        """Changes up to this revision are unknown: the reader has to read the state."""
        self.arrived = [Resync(revision)]
        self.wake()

    def wake(self) -> None:
        """Wake the task that waits for this watch, in the thread of its loop."""
        sleeper = self.sleeper
        if sleeper is None:
            return
        if sleeper.get_loop() is _running():
            finish_future(sleeper)
        else:
            finish_from_thread(sleeper)

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """What changed since the last call; waits for the first change, at most so long."""
        self._feed.check()
        self.asked = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        try:
            self._feed.wait(self, timeout)
        finally:
            self.asked = math.inf
        return self._feed.take(self)

    async def take_async(self, timeout: float | None) -> list[Change | Resync]:
        """Wait in an event loop."""
        self._feed.refuse(self)
        if not self.arrived:
            import asyncio

            loop = asyncio.get_running_loop()
            self.sleeper = loop.create_future()
            self.asked = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            try:
                self._feed.sleep(self, loop)
                await wait_for_future(self.sleeper, timeout)
            finally:
                self.sleeper, self.asked = None, math.inf
            self._feed.refuse(self)
        return self._feed.take(self)

    def close(self) -> None:
        """Stop listening."""
        self._feed.close_watch(self)


def _running() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread; asked only when there is one somewhere."""
    import asyncio

    return asyncio._get_running_loop()  # noqa: SLF001 - it asks for nothing
