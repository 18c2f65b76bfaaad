"""The feed of some scopes: pub/sub while a connection lives, the log for everything else.

Each commit publishes the keys that it changed, to a channel for each key and each of its folders,
and to the root channel, which has the entries too.  Within a connection the server loses nothing:
it disconnects a listener that is too slow.  So a watch

    joins       listens on its channels, on any connection that it can get,
    looks       reads what it missed since its position from the log (since.lua),
    listens     takes what is published from then on, and drops what is not after its position,

and starts over when its connection ends.  Its position is its only state, so it can move between
threads and event loops.  A watch of the root channel sees the revisions without gaps, and looks
again if there is one; a watch that gets nothing looks now and then anyway, so that a server that
was replaced cannot keep it waiting.

``WatchPosition`` is how far a watch has got, though a commit may arrive in pieces: a commit that
concerns several channels is published on each of them, one after the other, and a watch of more
than one may have the first piece when the connection ends or when it looks into the log.  So a
revision is behind the position only when a later one arrived.  Until then the watch asks the log
for it again, and leaves out the keys that it has.

A new message is published with what its commit wrote (``Change.written``), so its receiver need not
read it.  A watch passes that on if its ``take`` slept until it came, the commit was later than the
begin of that sleep, by the server's clock, and this store object has not committed since: a call of
``take`` is not to overlook anything that was done before it, such as an acknowledgement.  Nor if
the sleep took longer than it should have: a process that was suspended reads.

A watch of a blocking caller listens on a connection of its own (``BlockingSubscription``).  In an
event loop all watches share one connection (async_connections.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hiredis import ProtocolError, ReplyError

from interlock.errors import StoreClosed, StoreMoved
from interlock.steps import Op, Pause, drive, drive_async, restart_call
from interlock.store import LOG, Change, Resync
from interlock.stores.network import REPLY, Unanswered, Unsent, pauses
from interlock.stores.redis.scripts import SINCE, changes, pack
from interlock.stores.redis.transport import boot_time

if TYPE_CHECKING:
    from interlock.stores.redis.async_connections import LoopSubscription
    from interlock.stores.redis.store import RedisStore
    from interlock.stores.redis.transport import Connection, RedisTransport


LOOK = 10.0
"""Seconds of silence after which a watch looks into the log by itself; twice as many each time that
it looked in vain, up to six times as many."""
_LONGEST = 6
PAGE = 1000
"""Entries that one look goes through."""
PING = 1.5
"""Seconds of silence after which a listener asks whether the server is still there; twice as many
each time that it was for nothing, up to ``LONGEST`` times as many, unless another call is in
trouble."""
LONGEST = 14
PING_REQUEST = pack(("PING",))
LATE = 0.2
"""Seconds beyond its time after which a sleep was too long."""


class _Either:
    """A step that threads and event loops perform in different ways."""

    __slots__ = ("perform", "perform_async")

    def __init__(
        self,
        perform: Callable[[RedisTransport], object],
        perform_async: Callable[[RedisTransport], Awaitable[object]],
    ) -> None:
        self.perform = perform
        self.perform_async = perform_async


class RedisWatch:
    """A feed of some scopes for one reader."""

    def __init__(self, store: RedisStore, scopes: tuple[str, ...], after: int) -> None:
        self._scopes = scopes
        self._store = store
        # Entries are published on the root channel only.
        self._root = any(not scope or scope.startswith(LOG) for scope in scopes)
        self._asked = ("",) if self._root else scopes
        self.channels = tuple([store.channel_prefix + scope.encode() for scope in self._asked])
        self.position = WatchPosition(after, pieces=len(self.channels) > 1)
        self._life = store.life
        self._subscription: BlockingSubscription | LoopSubscription | None = None
        self._behind = True
        self._due = 0.0
        self._patience = 1
        self._closed = False

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """What changed since the last call; waits for the first change, at most so long."""
        self._store.check()
        self._leave_unless_served(None)
        return drive(self._take(timeout), self._store.transport)

    async def take_async(self, timeout: float | None) -> list[Change | Resync]:
        """Wait in an event loop."""
        from asyncio import get_running_loop

        self._store.check()
        self._leave_unless_served(get_running_loop())
        return await drive_async(self._take(timeout), self._store.transport)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._leave(well=True)

    def _take(self, timeout: float | None) -> Op[list[Change | Resync]]:
        ends = None if timeout is None else time.monotonic() + timeout
        delays = pauses()
        telling: Unsent | Unanswered | None = None
        while not self._closed:
            within = self._store.reply_within()
            try:
                found = yield from self._next(ends)
            except (Unsent, Unanswered) as error:
                self._leave(well=False)
                if telling is None or within == REPLY:  # what had little time says little
                    telling = error
                yield from self._wait(telling, next(delays), ends)
                found = []
            except BaseException as error:
                self._leave(well=False)  # it may be in the middle of a message
                if isinstance(error, StoreMoved):
                    self._store.note_moved(error)
                raise
            else:
                if self._store.away is not None:
                    self._store.note_answer()
                restart_call()
            if found or (ends is not None and time.monotonic() >= ends):
                return found
        raise StoreClosed("this watch was closed; open another")

    def _next(self, ends: float | None) -> Op[list[Change | Resync]]:
        """The next changes; none if it is time to look at the clock."""
        now = time.monotonic()
        if self._subscription is None:
            self._behind = True
            if ends is None or ends > now:
                within = self._store.reply_within()
                self._subscription = yield _Either(
                    lambda transport: BlockingSubscription.join(transport, self.channels, within),
                    lambda transport: transport.loops().join(self.channels, within),
                )
        if self._behind or now >= self._due:
            found = yield from self._look()
            if found or self._behind or self._subscription is None:
                return found
        now = time.monotonic()
        until = self._due if ends is None else min(self._due, ends)
        seconds = max(0.0, until - now)
        subscription: Any = self._subscription  # of the kind that the driver wants
        began = max(self._store.transport.earliest(), self._store.committed)
        payloads = yield _Either(
            lambda _: subscription.receive(seconds), lambda _: subscription.receive_async(seconds)
        )
        return self._changes(payloads, began if subscription.slept else None)

    def _wait(self, error: Exception, pause: float, ends: float | None) -> Op[None]:
        """Pause during an outage, unless it has lasted too long or the time is up."""
        store = self._store
        store.check()  # closed in the meantime: that is why
        store.note_outage(error)
        since = store.away
        now = time.monotonic()
        if since is not None and now - since > store.patience:
            raise store.away_error(error) from error
        if ends is not None:
            pause = min(pause, max(0.0, ends - now))
        yield Pause(pause)

    def _look(self) -> Op[list[Change | Resync]]:
        """What the log has after the position."""
        asked = (str(self.position.after), str(PAGE), *self._asked)
        kind, position, done, *pairs = yield from self._store.once(SINCE, asked)
        wait = LOOK * self._patience * random.uniform(0.8, 1.2)  # noqa: S311 - spreading
        self._due = time.monotonic() + wait
        self._patience = min(2 * self._patience, _LONGEST)
        self._behind = not done
        if kind or self._server_restarted():
            self.position.reach(position)
            return [Resync(position)]
        found = [
            change
            for revision, tokens in zip(pairs[::2], pairs[1::2], strict=True)
            for change in changes(self._scopes, revision, tokens)
            if self.position.is_new(change)
        ]
        self.position.reach(position)
        return list(found)

    def _server_restarted(self) -> bool:
        """Whether a server that may have lost data was started since the last look."""
        server = self._store.server
        before, self._life = self._life, self._store.life
        return bool(before) and before != self._life and server is not None and server.loses_data

    def _changes(self, payloads: Sequence[bytes], began: int | None) -> list[Change | Resync]:
        """The changes in some payloads, up to the first gap.

        The written items come along if they are later than ``began``, when the sleep began.
        """
        found: list[Change | Resync] = []
        for payload in payloads:
            at, before, _ = payload.split(b" ", 2)
            revision, previous = int(at), int(before)
            if not revision:  # no change: the log has something to say
                self._behind = True
                break
            self._patience = 1
            if revision <= self.position.after:
                continue
            if self._root and previous > self.position.after:
                self._behind = True
                break
            start = len(at) + len(before) + 2
            fresh = began is not None and revision > max(began, self._store.committed)
            piece = changes(self._scopes, revision, payload, start, written=fresh)
            found.extend(self.position.receive(revision, previous, piece))
        return found

    def _leave_unless_served(self, loop: object) -> None:
        """Give up a subscription in another loop, or one that ended."""
        if self._subscription is not None and not self._subscription.serves(loop):
            self._leave(well=False)

    def _leave(self, *, well: bool) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.leave(well=well)


class WatchPosition:
    """The watch has everything up to ``after``, and some keys of the revision that has begun."""

    def __init__(self, after: int, *, pieces: bool) -> None:
        self.after = after
        self._pieces = pieces
        self._begun = 0
        self._passed_on: set[str] = set()

    def is_new(self, change: Change) -> bool:
        """Whether the reader does not know of this one yet."""
        if change.revision == self._begun:
            return change.key not in self._passed_on
        return change.revision > self.after

    def receive(self, revision: int, previous: int, changes: Iterable[Change]) -> list[Change]:
        """What is new in a piece of this revision; ``previous`` is the one recorded before it."""
        found = [change for change in changes if self.is_new(change)]
        if not self._pieces:
            self.after = revision
            return found
        if revision != self._begun:
            self.after, self._begun, self._passed_on = max(self.after, previous), revision, set()
        self._passed_on.update(change.key for change in found)
        return found

    def reach(self, revision: int) -> None:
        """Nothing is missing up to this revision."""
        self.after, self._begun = revision, 0


class Silence:
    """When a listener that receives nothing asks for a sign of life, and when it gives up."""

    def __init__(self, transport: RedisTransport, now: float) -> None:
        self.patience = 1
        self._transport = transport
        self._heard = now
        self._asked: float | None = None

    def end(self, now: float) -> None:
        """A word came."""
        self._heard, self._asked = now, None

    def due(self) -> float:
        """When to ask; and once it was asked, when to give up."""
        if self._asked is None:
            doubted = self._transport.doubted > self._heard
            return self._heard + PING * (1 if doubted else self.patience)
        # Who did not listen for a while asks first, and gives the answer its time.
        return max(self._heard + REPLY, self._asked + REPLY - PING)

    def ask(self, now: float) -> None:
        """Note that a ping is sent now; Unanswered if the last one had no answer."""
        if self._asked is not None:
            raise Unanswered(f"no sign of life for {REPLY:.0f} s")
        self._asked = now
        self.patience = min(2 * self.patience, LONGEST)


class BlockingSubscription:
    """A connection that listens on some channels; an idle one may listen on others later."""

    def __init__(self, transport: RedisTransport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._channels: frozenset[bytes] = frozenset()
        self._left = False
        self.slept = False
        """Whether the last call slept until something came, and not for too long."""
        self.silence = Silence(transport, time.monotonic())

    @classmethod
    def join(
        cls, transport: RedisTransport, channels: tuple[bytes, ...], within: float
    ) -> BlockingSubscription:
        """Listen on these channels: it gets everything that is published from now on."""
        subscription = transport.idle_subscription() or cls(transport, transport.dial(within))
        try:
            subscription.listen(channels)
        except BaseException as error:
            subscription.close()
            if isinstance(error, (Unsent, Unanswered)):
                subscription.fail(error)
                transport.empty()  # the idle ones are no better
            raise
        return subscription

    def listen(self, channels: tuple[bytes, ...]) -> None:
        """Subscribe, and wait until that is confirmed for each of them."""
        connection = self._connection
        connection.busy = True
        self._channels = frozenset(channels)
        unconfirmed = set(channels)
        connection.send(pack(("SUBSCRIBE", *channels)))
        try:
            while unconfirmed:
                reply = connection.receive()
                if isinstance(reply, ReplyError):
                    raise self._transport.meaning(reply)
                if reply[0] == b"subscribe":
                    unconfirmed.discard(reply[1])
        except (LookupError, TypeError) as error:
            raise Unanswered(f"it does not speak Redis ({error})") from error
        self.silence.end(time.monotonic())
        self._transport.note_answer()
        connection.busy = False

    def fail(self, error: Exception) -> None:
        """The server may be away, unless we cut the connection ourselves."""
        if not (self._left or self._transport.closed):
            self._transport.fail(self._connection, error)

    def serves(self, loop: object) -> bool:
        """Whether a caller can go on with it: not one in an event loop."""
        return loop is None

    def receive(self, seconds: float) -> list[bytes]:
        """The published payloads; none if the time is up.  Unanswered if the server is silent."""
        self._connection.busy, self.slept = True, False
        started = boot_time()
        try:
            at_hand = self._connection.reader.has_data() or self._connection.readable(0.0)
            payloads = self._listened(time.monotonic() + seconds)
        except (Unsent, Unanswered) as error:
            self.fail(error)
            raise
        else:
            self.slept = not at_hand and boot_time() < started + seconds + LATE
            return payloads
        finally:
            self._connection.busy = False
            if self._left:
                self.close()

    def _listened(self, ends: float) -> list[bytes]:
        silence = self.silence
        while True:
            payloads = self._parsed()
            if payloads:
                silence.patience = 1
                return payloads
            now = time.monotonic()
            # Not longer than this: another call may meet an outage first.
            if self._connection.readable(max(0.0, min(ends, silence.due(), now + PING) - now)):
                self._connection.feed()
                silence.end(time.monotonic())
                self._transport.note_answer()
                continue
            now = time.monotonic()
            if now >= silence.due():
                silence.ask(now)
                self._connection.send(PING_REQUEST)
            if now >= ends:
                return []

    def leave(self, *, well: bool) -> None:
        """Stop listening; a good subscription is kept for the next watch."""
        if self._connection.busy:  # a thread listens: wake it, and it will close
            self._left = True
            self._connection.cut()
        elif well and self._unsubscribed():
            self._transport.keep_subscription(self)
        else:
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._transport.drop(self._connection)

    def _unsubscribed(self) -> bool:
        try:
            self._connection.send(pack(("UNSUBSCRIBE", *self._channels)))
        except (Unsent, Unanswered):
            return False
        return True

    def _parsed(self) -> list[bytes]:
        """The payloads that have arrived in full; what earlier channels left is dropped."""
        found: list[bytes] = []
        reader = self._connection.reader
        try:
            while (reply := reader.gets()) is not False:
                if reply[0] == b"message" and reply[1] in self._channels:
                    found.append(reply[2])
        except (ProtocolError, LookupError, TypeError) as error:
            raise Unanswered(f"it does not speak Redis ({error})") from error
        return found
