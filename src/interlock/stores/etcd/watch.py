"""The feed: one stream to etcd for all watches of a store.

A stream carries any number of watches of etcd, each under a number that we choose: one for each
scope of a watch.  One thread reads it, appends the changes to the watches and wakes their waiters,
blocking or in an event loop.  The thread starts with the first ``take`` and ends when the stream
breaks and no watch waits; the next ``take`` starts another.

``ScopeWatch`` is one scope, with a position of its own: after a new stream each continues right
behind its position, without a gap, and drops what comes twice.

A server that hangs keeps its connections.  So the waiters check the stream: after a second and a
half of silence they ask for a sign of life, after four the stream is cut and opened at another
endpoint.  Nothing is sent while no watch waits.

etcd serves a watch from a past revision up to 100 ms late, even if nothing happened since but a
write elsewhere.  For a waiter that would be the wait itself.  So the watch of a single key begins
with the present, and a read shows what came in between: the last write of the key, a signal, which
stays for a while under a key of its own, or a Resync if the key was there and no longer is.
Folders, whose readers want each change, begin with the past.

Answers to these reads have a revision that may be ahead of changes still to come (etcd up to
3.4.24 and 3.5.7), so they never move a watch: only changes do, and a Resync.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from interlock.errors import StoreMoved, StoreRefused
from interlock.steps import Op, drive, drive_async, wait_for_future
from interlock.store import WAKE, Change, Resync
from interlock.stores.derived import finish_from_thread
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import RANGE, EndpointChannel, RpcError
from interlock.stores.etcd.commit_request import TRIMMED
from interlock.stores.etcd.encoding import NUL, Namespace, is_quiet
from interlock.stores.etcd.errors import SILENT, Compacted, TokenExpired, translated
from interlock.stores.etcd.transport import EtcdTransport, LogIn
from interlock.stores.marks import decode_mark, refusal
from interlock.stores.network import REPLY, Unanswered, Unsent, pauses
from interlock.threads import background

if TYPE_CHECKING:
    import asyncio

    from interlock.stores.etcd.store import EtcdStore


SILENCE = 1.5
"""Seconds without a word after which a sign of life is asked for."""
_LEAST = 0.01
_SERVED_WITHIN = 0.5
"""Seconds within which etcd serves what a watch has missed."""
_BACKLOG = 10_000
"""Changes that are laid in for a reader who does not come; then etcd keeps them."""


class WatchStream:
    """All watches of one store, and the stream that serves them."""

    def __init__(self, store: EtcdStore, transport: EtcdTransport, namespace: Namespace) -> None:
        self.lock = threading.RLock()
        self.doubles = 0
        """Changes that came again after a break; they were not handed out again."""
        self._store = store
        self.transport = transport
        self._namespace = namespace
        self._numbers = itertools.count(1)
        self._served: dict[int, ScopeWatch] = {}
        self._waiting: set[EtcdWatch] = set()
        self._thread: threading.Thread | None = None
        self._requests: SimpleQueue[Any] | None = None
        self._call: Any = None
        self._heard = self._asked = self._left = time.monotonic()
        self._lost: tuple[float, Exception] | None = None
        self._fatal: Exception | None = None
        self._mark_watch = 0
        self._marked = 0
        """The revision of etcd up to which the mark is known."""
        self._moved: StoreMoved | None = None
        self._denied = False
        self._silent = False
        self._ended = threading.Condition(self.lock)

    def enter(self, watch: EtcdWatch) -> None:
        """A caller begins to wait for this watch."""
        self._store.check()
        with self.lock:
            if not self._waiting:
                self._pass_over(time.monotonic() - self._left)
            self._waiting.add(watch)
            watch.given_up = None

    def leave(self, watch: EtcdWatch) -> None:
        """No caller waits for it any more."""
        with self.lock:
            self._waiting.discard(watch)
            self._left = time.monotonic()

    def keep_served(self, watch: EtcdWatch) -> float:
        """See to it that the watch is served; called under the lock, by its waiter.

        Returns after how many seconds to call it again, if nothing happens.
        """
        self._store.check()
        if self._fatal is not None:
            raise self._fatal
        left = SILENCE
        if self._lost is not None:
            left = self._lost[0] + self._store.patience - time.monotonic()
            if left <= 0:
                self._give_up(*self._lost)
        if watch.given_up is not None:
            raise self._store.away_error(watch.given_up)
        if self._thread is None:
            self._thread = background(self._run, "interlock-etcd")
            self._thread.start()
        elif self._requests is not None:
            for watched in watch.scope_watches:
                if not watched.number:
                    self._serve(watched, self._requests)
            left = min(left, self._listen_for_life(self._requests))
            if self._moved is not None:
                left = min(left, self._end_of(watch, self._moved))
        return min(left, SILENCE)

    def _end_of(self, watch: EtcdWatch, error: StoreMoved) -> float:
        """Raise the error that ends a watch, once it had time to get all that came before."""
        served = max(watched.served for watched in watch.scope_watches)
        if (left := served + _SERVED_WITHIN - time.monotonic()) <= 0:
            raise StoreMoved(str(error), error.place)
        return left

    def begin(self, watch: EtcdWatch) -> None:
        """Serve a new watch at once, if there is a stream: its waiter may have more to do first."""
        with self.lock:
            if self._requests is not None:
                for watched in watch.scope_watches:
                    self._serve(watched, self._requests)

    def present(self, watched: ScopeWatch) -> Op[tuple[rpc.RangeResponse, bool]]:
        """The key of this scope as it stands, with its signal; and whether it was deleted."""
        key, end = self._namespace.scope(watched.scope)
        answer: rpc.RangeResponse = yield from self._store.request_with_retries(
            (RANGE, rpc.RangeRequest(key=key, range_end=end))
        )
        if watched.signal or watched.after <= 0 or any(kv.key == key for kv in answer.kvs):
            return answer, False
        try:
            before = yield from self._store.request_with_retries(
                (RANGE, rpc.RangeRequest(key=key, revision=watched.after))
            )
        except Compacted:
            return answer, True  # the history is gone
        return answer, bool(before.kvs)

    def drop(self, watches: tuple[ScopeWatch, ...]) -> None:
        """Serve these no more."""
        with self.lock:
            for watched in watches:
                number, watched.number = watched.number, 0
                if self._served.pop(number, None) is not None and self._requests is not None:
                    cancel = rpc.WatchCancelRequest(watch_id=number)
                    self._requests.put(rpc.WatchRequest(cancel=cancel))

    def close(self) -> None:
        """End the stream; the waiters find the store closed."""
        with self.lock:
            thread = self._thread
            self._cut()
            self._ended.notify_all()
            self._wake_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _give_up(self, _since: float, error: Exception) -> None:
        """The present waiters waited long enough; the next one has its full patience."""
        for watch in self._waiting:
            watch.given_up = error
        self._lost = (time.monotonic(), error)
        self._wake_all()

    def _pass_over(self, idle: float) -> None:
        """Time without a waiter is no silence, and no outage."""
        now = time.monotonic()
        self._heard = min(self._heard + idle, now)
        self._asked = min(self._asked + idle, now)
        if self._lost is not None:
            self._lost = (min(self._lost[0] + idle, now), self._lost[1])
        self._fatal = None

    def _serve(self, watched: ScopeWatch, requests: SimpleQueue[Any]) -> None:
        watched.number = next(self._numbers)
        watched.served = time.monotonic()
        self._served[watched.number] = watched
        key, end = self._namespace.scope(watched.scope)
        start = 0 if watched.single else watched.after + 1
        create = rpc.WatchCreateRequest(
            key=key, range_end=end, start_revision=start, watch_id=watched.number
        )
        requests.put(rpc.WatchRequest(create=create))

    def _listen_for_life(self, requests: SimpleQueue[Any]) -> float:
        """Ask once after some silence, and cut the stream if no word comes then."""
        now = time.monotonic()
        if self._asked <= self._heard:
            if now < self._heard + SILENCE:
                return max(self._heard + SILENCE - now, _LEAST)
            self._asked = now
            requests.put(rpc.WatchRequest(progress=rpc.WatchProgressRequest()))
        # Who did not listen for a while asks first, and gives the answer its time.
        ends = max(self._heard + REPLY, self._asked + REPLY - SILENCE)
        if now >= ends:
            self._silent = True
            self._cut()
        return max(ends - now, _LEAST)

    def _cut(self) -> None:
        if self._requests is not None:
            self._requests.put(None)
            self._call.cancel()

    def _wake_all(self) -> None:
        for watch in self._waiting:
            watch.wake()

    def _run(self) -> None:
        """The thread: one stream after the other, as long as a watch waits."""
        waits = pauses()
        while True:
            link: EndpointChannel | None = None
            try:
                link = self.transport.enter()
                for count, answer in enumerate(self._stream(link)):
                    if not count:
                        waits = pauses()
                        self._answered()
                    self._deliver(answer)
                error: Exception = Unanswered("the stream ended")
            except RpcError as failed:
                error = Unanswered(SILENT) if self._silent else self.transport.failed(failed)
            except Exception as failed:  # noqa: BLE001 - no caller would see it
                error = failed
            finally:
                if link is not None:
                    self.transport.exit(link)
            if not self._goes_on(link, error, next(waits)):
                return

    def _stream(self, link: EndpointChannel) -> Iterable[rpc.WatchResponse]:
        requests: SimpleQueue[Any] = SimpleQueue()
        with self.lock:
            self._store.check()
            self._requests = requests
            self._silent = False
            self._heard = time.monotonic()
            for watched in [each for watch in self._waiting for each in watch.scope_watches]:
                self._serve(watched, requests)
            self._watch_the_mark(requests, self._marked)
            self._call = self.transport.stream(link, iter(requests.get, None))
            return self._call  # type: ignore[no-any-return]  # gRPC's streams have no types

    def _watch_the_mark(self, requests: SimpleQueue[Any], after: int) -> None:
        """A store that was moved ends all watches."""
        self._mark_watch = next(self._numbers)
        create = rpc.WatchCreateRequest(
            key=self._namespace.key(TRIMMED), start_revision=after + 1, watch_id=self._mark_watch
        )
        requests.put(rpc.WatchRequest(create=create))

    def note_mark(self, value: bytes, revision: int) -> None:
        """Note what stands in the place of the mark, as of one of etcd's revisions."""
        with self.lock:
            self._marked = max(self._marked, revision)
            if value[:1] != b"{" or (mark := decode_mark(value)).state != "moved":
                return
            error = refusal(mark, self._store.where)
            if isinstance(error, StoreMoved):
                self._moved = error
                self._store.note_moved(error)
            self._wake_all()

    def _answered(self) -> None:
        self.transport.note_answer()
        self._store.note_answer()
        with self.lock:
            self._lost = None

    def _goes_on(self, link: EndpointChannel | None, error: Exception, pause: float) -> bool:
        """After a stream: whether there is to be another, and then only after a pause."""
        with self.lock:
            if self._requests is not None:
                self._requests.put(None)  # gRPC waits for more of them in a thread of its own
            self._requests = self._call = None
            for watched in self._served.values():
                watched.number = 0
                watched.unserved = min(self._heard, time.monotonic())
            self._served.clear()
        with suppress(Exception):  # closed: then no server has to know
            self._store.check()
            self._react(link, error)
            with self.lock:
                if self._waiting and self._fatal is None:
                    self._ended.wait(pause)
                self._store.check()
                if self._waiting and self._fatal is None:
                    return True
        with self.lock:
            self._thread = None
            self._wake_all()
        return False

    def _react(self, link: EndpointChannel | None, error: Exception) -> None:
        """Draw the consequences of what broke the stream."""
        if (
            isinstance(error, TokenExpired | StoreRefused)
            and self.transport.address.user
            and not self._denied
        ):
            self._denied = True
            with suppress(Unsent, Unanswered):
                self.transport.call(LogIn())
        elif isinstance(error, Unsent | Unanswered):
            if link is not None:
                self.transport.leave(link, str(error))
            self._store.note_outage(error)
            with self.lock:
                self._lost = self._lost or (time.monotonic(), error)
        else:
            with self.lock:
                self._fatal = error

    def _deliver(self, answer: rpc.WatchResponse) -> None:
        """Hand what arrived to the watch of its scope."""
        with self.lock:
            self._heard = time.monotonic()
            if answer.watch_id == self._mark_watch:
                self._follow_the_mark(answer)
                return
            watched = self._served.get(answer.watch_id)
            if answer.canceled and not answer.compact_revision and (watched or answer.created):
                raise translated(self._store.where, "PERMISSION_DENIED", answer.cancel_reason)
            if watched is None:
                return
            if answer.canceled:
                self._served.pop(watched.number)
                watched.number = 0
                watched.resync(max(answer.compact_revision, watched.begun))
                return
            if answer.created:
                self._denied = False
                watched.begun = answer.header.revision
                if watched.single and watched.begun > watched.after:
                    watched.late(self._heard)
            if answer.events:
                self.doubles += watched.deliver(answer.events)
                if len(watched.reader.arrived) > _BACKLOG:
                    self.drop((watched,))

    def _follow_the_mark(self, answer: rpc.WatchResponse) -> None:
        if answer.canceled and answer.compact_revision and self._requests is not None:
            self._watch_the_mark(self._requests, answer.compact_revision)
        for event in answer.events:
            if event.type == rpc.Event.PUT:
                self.note_mark(self._namespace.item(event.kv).value, event.kv.mod_revision)


class EtcdWatch:
    """The changes in some scopes for one reader: a ScopeWatch for each of them."""

    def __init__(
        self, feed: WatchStream, namespace: Namespace, scopes: tuple[str, ...], after: int
    ) -> None:
        start = max(after, namespace.floor) - namespace.shift
        self.scope_watches = tuple([ScopeWatch(self, namespace, scope, start) for scope in scopes])
        self.given_up: Exception | None = None
        """Why it can no longer be waited for."""
        self.arrived: list[Change | Resync] = []
        if after < namespace.floor:  # which keys the loaded entries touched is not known
            self.arrived.append(Resync(namespace.floor))
        self._feed = feed
        self._rung = threading.Condition(feed.lock)
        self._sleeper: asyncio.Future[None] | None = None

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """What changed since the last call; waits for the first change, at most so long."""
        ends = None if timeout is None else time.monotonic() + timeout
        self._feed.enter(self)
        try:
            while True:
                if self._behind:
                    drive(self._catch_up(), self._feed.transport)
                with self._rung:
                    found, left = self._found(ends)
                    if found or left <= 0:
                        return found
                    if not self._behind:
                        self._rung.wait(left)
        finally:
            self._feed.leave(self)

    async def take_async(self, timeout: float | None) -> list[Change | Resync]:
        """Wait in an event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        ends = None if timeout is None else time.monotonic() + timeout
        self._feed.enter(self)
        try:
            while True:
                if self._behind:
                    await drive_async(self._catch_up(), self._feed.transport)
                with self._rung:
                    found, left = self._found(ends)
                    if found or left <= 0:
                        return found
                    if self._behind:
                        continue
                    self._sleeper = future = loop.create_future()
                await wait_for_future(future, left)
        finally:
            with self._rung:  # the thread must not call a loop that is gone
                self._sleeper = None
            self._feed.leave(self)

    def close(self) -> None:
        """Stop listening."""
        self._feed.drop(self.scope_watches)

    def wake(self) -> None:
        """Wake the waiter of this watch; called under the lock."""
        self._rung.notify_all()
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            finish_from_thread(sleeper)

    def append(self, changes: list[Change]) -> None:
        """Keep what arrived in one of the scopes; called under the lock."""
        self.arrived.extend(changes)
        self.wake()

    def resync(self, revision: int) -> None:
        """Keep one Resync for all scopes that need one; called under the lock."""
        earlier = [each.revision for each in self.arrived if isinstance(each, Resync)]
        self.arrived = [each for each in self.arrived if not isinstance(each, Resync)]
        self.arrived.append(Resync(max([revision, *earlier])))
        self.wake()

    @property
    def _behind(self) -> bool:
        return any(watched.behind for watched in self.scope_watches)

    def _catch_up(self) -> Op[None]:
        for watched in self.scope_watches:
            if watched.behind:
                answer, deleted = yield from self._feed.present(watched)
                with self._rung:
                    watched.caught_up(answer, deleted=deleted)

    def _found(self, ends: float | None) -> tuple[list[Change | Resync], float]:
        """What has arrived, and how long to wait for more before we look again."""
        if self.arrived:
            found, self.arrived = self.arrived, []
            if len(self.scope_watches) > 1:
                found.sort(key=lambda each: each.revision)
            return found, 0.0
        due = self._feed.keep_served(self)
        return [], due if ends is None else min(due, ends - time.monotonic())


SIGNALS_LAST = 10.0
"""Seconds for which a signal can be found for sure; its lease may not be new."""


class ScopeWatch:
    """The changes in one scope; everything is called under the lock of the feed.

    ``after`` and ``begun`` are etcd's own revisions; those of changes have the shift.
    """

    def __init__(self, reader: EtcdWatch, namespace: Namespace, scope: str, after: int) -> None:
        self.scope = scope
        self.after = after
        self.number = 0
        """Under which the stream serves it; 0 if it does not."""
        self.served = 0.0
        """When a stream began to serve it."""
        self.begun = 0
        """The revision of etcd when it began to serve it."""
        self.single = bool(scope) and not scope.endswith("/")
        """Whether it is a key, not a folder."""
        self.signal = self.single and scope.startswith(WAKE)
        self.behind = False
        """Whether something may have come before it was served."""
        self.unserved = time.monotonic()
        """Since when no stream serves it."""
        self.reader = reader
        self._namespace = namespace

    def late(self, now: float) -> None:
        """It is served from now on; what came before is to be seen, if it can be."""
        if self.signal and now - self.unserved > SIGNALS_LAST:
            self.resync(self.begun)
        else:
            self.behind = True
            self.reader.wake()

    def resync(self, revision: int) -> None:
        """Everything up to this revision is gone; go on behind it."""
        self.after = max(self.after, revision)
        self.reader.resync(self.after + self._namespace.shift)

    def deliver(self, events: Iterable[rpc.Event]) -> int:
        """Pass on the changes; returns how many events came for the second time."""
        before, doubles = self.after, 0
        found: list[Change] = []
        for event in events:
            kv = event.kv
            if kv.mod_revision <= before:
                doubles += 1
                continue
            self.after = kv.mod_revision
            change = self._change(event, kv)
            if change is not None:
                found.append(change)
        if found:
            self.reader.append(found)
        return doubles

    def caught_up(self, answer: rpc.RangeResponse, *, deleted: bool) -> None:
        """What came before it was served; what is newer came by itself."""
        self.behind = False
        new = [kv for kv in answer.kvs if kv.mod_revision > self.after]
        if deleted or any(is_quiet(kv.value) and not kv.key.endswith(NUL) for kv in new):
            self.resync(answer.header.revision)  # a quiet write may hide another one
        else:
            new.sort(key=lambda kv: kv.mod_revision)
            self.deliver(rpc.Event(type=rpc.Event.PUT, kv=kv) for kv in new)

    def _change(self, event: rpc.Event, kv: rpc.KeyValue) -> Change | None:
        """What the event is to a reader; None for what is no change."""
        namespace, signal = self._namespace, kv.key.endswith(NUL)
        if event.type == rpc.Event.DELETE:
            if (
                signal or namespace.is_live(kv.key) or namespace.is_log(kv.key)
            ):  # an entry was trimmed
                return None
            return Change(kv.mod_revision + namespace.shift, namespace.name(kv.key), deleted=True)
        if is_quiet(kv.value):
            return None
        revision, name = kv.mod_revision + namespace.shift, namespace.name(kv.key)
        if self.single and not signal:
            return Change(revision, name, item=namespace.item(kv))
        value = namespace.item(kv).value if namespace.is_log(kv.key) and not signal else b""
        return Change(revision, name, value=value)
