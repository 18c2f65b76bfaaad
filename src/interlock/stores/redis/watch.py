"""The feed of some scopes: bells while a connection lives, the log for everything else.

Each commit publishes what it touched, to a channel for each key and each of its folders, and to
the root channel, which has the entries too.  Within a connection the server loses nothing: a
listener that is too slow is disconnected, not skipped.  So a watch

    joins       listens on its channels, on whatever connection it can get,
    looks       into the log for what it missed since its position (since.lua),
    hears       what is published from then on, and drops what is not after its position,

and starts over whenever its connection ends.  Its position is all it has to remember, so it can
move between threads and event loops.  Whoever listens on the root channel sees the revisions
without gaps, and looks again if there is one; and a watch that hears nothing looks now and then
anyway, so that a server that was replaced behind our back cannot keep it waiting.

How far a watch has got, though a commit may arrive in pieces.

A commit that concerns several channels is published on each of them, one after the other, and
whoever listens to more than one may have heard the first piece when the connection ends or when it
is time to look into the log.  So a revision is behind us only when a later one was heard.  Until
then the log is asked for it again, and the keys that were told by then are left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from interlock.drivers import Op, Pause, drive, drive_async
from interlock.errors import StoreClosed
from interlock.store import LOG, Change, Resync
from interlock.stores.network import Unanswered, Unsent, pauses
from interlock.stores.redis.scripts import SINCE, changes
from interlock.stores.redis.subscriptions import BlockingSubscription

if TYPE_CHECKING:
    from interlock.stores.redis.store import RedisStore
    from interlock.stores.redis.transport import RedisTransport


LOOK = 10.0
"""Seconds of silence after which a watch looks into the log by itself; twice as many each time that
it looked in vain, up to six times as many."""
_LONGEST = 6
PAGE = 1000
"""Entries that one look goes through."""


class ChannelSubscription(Protocol):
    """Where a watch listens."""

    def serves(self, loop: object) -> bool:
        """Whether a caller in this event loop, or in none, can go on with it."""

    def leave(self, *, well: bool) -> None:
        """Stop listening; ``well`` if its connection can serve somebody else."""


class _Join:
    """Listen on the channels of a watch."""

    __slots__ = ("watch",)

    def __init__(self, watch: RedisWatch) -> None:
        self.watch = watch

    def perform(self, wire: RedisTransport) -> ChannelSubscription:
        return BlockingSubscription.join(wire, self.watch.channels)

    def perform_async(self, wire: RedisTransport) -> Awaitable[ChannelSubscription]:
        return wire.loops().join(self.watch.channels)


class _Hear:
    """Wait for what is published, at most so long."""

    __slots__ = ("seat", "seconds")

    def __init__(self, seat: Any, seconds: float) -> None:  # noqa: ANN401 - of either kind
        self.seat = seat
        self.seconds = seconds

    def perform(self, _wire: RedisTransport) -> list[bytes]:
        return self.seat.hear(self.seconds)  # type: ignore[no-any-return]

    def perform_async(self, _wire: RedisTransport) -> Awaitable[list[bytes]]:
        return self.seat.hear_async(self.seconds)  # type: ignore[no-any-return]


class RedisWatch:
    """A feed of some scopes for one reader."""

    def __init__(self, store: RedisStore, scopes: tuple[str, ...], after: int) -> None:
        self._scopes = scopes
        self._store = store
        # Entries are told on the root channel only.
        self._root = any(not scope or scope.startswith(LOG) for scope in scopes)
        self._asked = ("",) if self._root else scopes
        self.channels = tuple([store.bell + scope.encode() for scope in self._asked])
        self.position = WatchPosition(after, pieces=len(self.channels) > 1)
        self._life = store.life
        self._seat: ChannelSubscription | None = None
        self._behind = True
        self._due = 0.0
        self._patience = 1
        self._closed = False

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """What changed since the last call; waits for the first change, at most so long."""
        self._store.check()
        self._sit(None)
        return drive(self._take(timeout), self._store.wire)

    async def take_async(self, timeout: float | None) -> list[Change | Resync]:
        """The same for an event loop."""
        from asyncio import get_running_loop

        self._store.check()
        self._sit(get_running_loop())
        return await drive_async(self._take(timeout), self._store.wire)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        self._leave(well=True)

    def _take(self, timeout: float | None) -> Op[list[Change | Resync]]:
        ends = None if timeout is None else time.monotonic() + timeout
        delays = pauses()
        while not self._closed:
            try:
                found = yield from self._next(ends)
            except (Unsent, Unanswered) as error:
                self._leave(well=False)
                yield from self._wait(error, next(delays), ends)
                found = []
            except BaseException:
                self._leave(well=False)  # it may be in the middle of a message
                raise
            else:
                if self._store.away is not None:
                    self._store.back()
            if found or (ends is not None and time.monotonic() >= ends):
                return found
        raise StoreClosed("this watch was closed; open another")

    def _next(self, ends: float | None) -> Op[list[Change | Resync]]:
        """Whatever comes next; nothing if it is time to look at the clock."""
        now = time.monotonic()
        if self._seat is None:
            self._behind = True
            if ends is None or ends > now:
                self._seat = yield _Join(self)
        if self._behind or now >= self._due:
            found = yield from self._look()
            if found or self._behind or self._seat is None:
                return found
        now = time.monotonic()
        until = self._due if ends is None else min(self._due, ends)
        return self._made((yield _Hear(self._seat, max(0.0, until - now))))

    def _wait(self, error: Exception, pause: float, ends: float | None) -> Op[None]:
        """Pause during an outage, unless it has lasted too long or the time is up."""
        store = self._store
        store.check()  # closed meanwhile: that is why
        store.met(error)
        since = store.away
        now = time.monotonic()
        if since is not None and now - since > store.patience:
            raise store.gone(error) from error
        if ends is not None:
            pause = min(pause, max(0.0, ends - now))
        yield Pause(pause)

    def _look(self) -> Op[list[Change | Resync]]:
        """What the log has after the position."""
        asked = (str(self.position.after), str(PAGE), *self._asked)
        kind, position, *rest = yield from self._store.once(SINCE, asked)
        wait = LOOK * self._patience * random.uniform(0.8, 1.2)  # noqa: S311 - spreading
        self._due = time.monotonic() + wait
        self._patience = min(2 * self._patience, _LONGEST)
        if kind or self._reborn():
            self._behind = False
            self.position.reach(position)
            return [Resync(position)]
        done, *told = rest
        found = [
            change
            for revision, tokens in zip(told[::2], told[1::2], strict=True)
            for change in changes(self._scopes, revision, tokens)
            if self.position.untold(change)
        ]
        self._behind = not done
        self.position.reach(position)
        return list(found)

    def _reborn(self) -> bool:
        """Whether a server that may have forgotten something was started since the last look."""
        grade = self._store.grade
        before, self._life = self._life, self._store.life
        return bool(before) and before != self._life and grade is not None and grade.forgets

    def _made(self, payloads: Sequence[bytes]) -> list[Change | Resync]:
        """The changes that payloads tell, up to the first gap."""
        found: list[Change | Resync] = []
        for payload in payloads:
            told, before, _ = payload.split(b" ", 2)
            revision, previous = int(told), int(before)
            self._patience = 1
            if revision <= self.position.after:
                continue
            if self._root and previous > self.position.after:
                self._behind = True
                break
            start = len(told) + len(before) + 2
            piece = changes(self._scopes, revision, payload, start)
            found.extend(self.position.hear(revision, previous, piece))
        return found

    def _sit(self, loop: object) -> None:
        """Give up a seat in another loop, or one that ended."""
        if self._seat is not None and not self._seat.serves(loop):
            self._leave(well=False)

    def _leave(self, *, well: bool) -> None:
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.leave(well=well)


class WatchPosition:
    """Everything up to ``after`` was told, and some keys of the revision that has begun."""

    def __init__(self, after: int, *, pieces: bool) -> None:
        self.after = after
        self._pieces = pieces
        self._begun = 0
        self._told: set[str] = set()

    def untold(self, change: Change) -> bool:
        """Whether the reader does not know of this one yet."""
        if change.revision == self._begun:
            return change.key not in self._told
        return change.revision > self.after

    def hear(self, revision: int, previous: int, changes: Iterable[Change]) -> list[Change]:
        """What is new in a piece of this revision; ``previous`` is the one recorded before it."""
        found = [change for change in changes if self.untold(change)]
        if not self._pieces:
            self.after = revision
            return found
        if revision != self._begun:
            self.after, self._begun, self._told = max(self.after, previous), revision, set()
        self._told.update(change.key for change in found)
        return found

    def reach(self, revision: int) -> None:
        """Nothing is missing up to this revision, whichever that is."""
        self.after, self._begun = revision, 0
