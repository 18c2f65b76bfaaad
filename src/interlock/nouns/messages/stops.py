"""Stops: requests to end a session, received without touching the rest of the inbox.

A stop is for the sessions of an agent that exist when it is sent. A later session is the next
incarnation: it skips the stop, and acknowledges it once none of the earlier sessions lives, since a
plain receive loop among them may still have to read it. Every session that existed obeys, because
each reads the stop from its own watch, independent of acknowledgements. A session that obeys
acknowledges the stop when it takes no more work; if it is killed before that, the next incarnation
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.errors import StoreClosed, StoreDamaged, StoreTrouble
from interlock.nouns.messages import (
    decode,
    inbox_reader,
)
from interlock.nouns.messages.inbox_reader import InboxEntry
from interlock.nouns.messages.inbox_service import acknowledge
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import NextChanges, Op, OpenWatch, Pause, Read
from interlock.store import Change, Item, Resync, Snapshot, Watch

RETRY_AFTER = 0.5
"""Seconds between two attempts while the store is unreachable."""
CHECK_EVERY = 1.0
"""Seconds between two checks of whether a listening thread is still needed."""
RECHECK_AFTER = 5.0
"""Seconds between two checks of whether a session lives for which an old stop was sent."""


class StopNotice(Struct, frozen=True, kw_only=True):
    """A request to end the session."""

    id: str
    sender: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{foreign(self.sender)} asked: {foreign(self.reason)}"
            if self.reason
            else f"{foreign(self.sender)} asked"
        )


class Stops:
    """The stops for one session, each reported once; the caller closes it."""

    def __init__(self, runner: Runner, actor: Actor) -> None:
        self._runner = runner
        self._who = actor
        self._since: int | None = None
        """The revision at which our session began."""
        self._watch: Watch | None = None
        self._new_entries: dict[str, int] = {}
        """Inbox entries that were not examined yet, and their revisions."""
        self._reported: dict[str, StopNotice] = {}
        self._old_stops: dict[str, int] = {}
        """Stops for earlier sessions, while one of these lives, and their revisions."""
        self._due = 0.0

    def for_other_thread(self) -> Stops:
        """Another listener, for another thread: a stop is reported by one of the two."""
        other = Stops(self._runner, self._who)
        other._reported = self._reported
        return other

    @property
    def inbox(self) -> str:
        """The prefix under which a stop appears."""
        return keys.unread(self._who.agent)

    def take(self, timeout: float | None) -> Op[list[StopNotice]]:
        """The stops that arrived; wait for the first, until the timeout."""
        ends = None if timeout is None else self._runner.clock.monotonic() + timeout
        while True:
            if self._watch is None:
                yield from self._begin()
            if found := (yield from self._examine()):
                return found
            left = self._time_left(ends)
            changes = yield NextChanges(self._watch, left)  # type: ignore[arg-type]  # it is open
            if not changes and ends is not None and self._runner.clock.monotonic() >= ends:
                return []
            self._apply(changes)

    def listen(
        self, obey: Callable[[StopNotice], None], wanted: Callable[[], bool] | None = None
    ) -> Op[None]:
        """Report each stop, through outages; in a thread, while ``wanted`` is true."""
        nap = None if wanted is None else CHECK_EVERY
        try:
            while wanted is None or wanted():
                try:
                    found = yield from self.take(nap)
                except StoreClosed:
                    return
                except StoreTrouble:
                    yield Pause(self._runner.capabilities.allow(RETRY_AFTER))
                    continue
                for stop in found:
                    obey(stop)
        finally:
            self.close()

    def among(self, changes: Iterable[Change]) -> Op[list[StopNotice]]:
        """The stops among changes that another watch of the inbox received."""
        self._collect(changes)
        return (yield from self._examine())

    def ack(self) -> Op[None]:
        """Acknowledge the reported stops: neither this session nor the next gets them again."""
        if self._reported:
            yield from acknowledge(self._runner, self._who, tuple(self._reported))

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> Op[None]:
        """Read the unread entries, and watch from there on."""
        if self._since is None:
            own = keys.agent_session(self._who.agent, self._who.session)
            snapshot: Snapshot = yield Read(own)
            item = snapshot[own]
            self._since = snapshot.revision if item is None else item.created
        found, revision = yield from inbox_reader.unread_entries(self._who.agent)
        self._new_entries.update({each.id: each.seq for each in found if each.urgent})
        self._watch = yield OpenWatch(self.inbox, revision)

    def _apply(self, changes: Sequence[Change | Resync]) -> None:
        if any(isinstance(each, Resync) for each in changes):
            self.close()  # the next call reads all unread entries
        self._collect(each for each in changes if isinstance(each, Change))

    def _collect(self, changes: Iterable[Change]) -> None:
        for each in changes:
            if not each.deleted and each.key.startswith(self.inbox):
                self._new_entries.setdefault(keys.id_of(each.key), each.revision)

    def _time_left(self, ends: float | None) -> float | None:
        """Seconds until the next deadline; None for no limit."""
        moments = [*([] if ends is None else [ends]), *([self._due] if self._old_stops else [])]
        return max(0.0, min(moments) - self._runner.clock.monotonic()) if moments else None

    def _examine(self) -> Op[list[StopNotice]]:
        """The stops for this session among new entries; those for earlier ones are skipped."""
        new_entries = {
            id_: seq for id_, seq in self._new_entries.items() if id_ not in self._reported
        }
        stops = (yield from self._stops(new_entries)) if new_entries else []
        since = self._since or 0
        self._old_stops |= {
            each.id: new_entries[each.id] for each in stops if new_entries[each.id] < since
        }
        yield from self._clear_old()
        for id_ in new_entries:
            self._new_entries.pop(id_, None)
        meant = [each for each in stops if new_entries[each.id] >= since]
        return [each for each in meant if self._reported.setdefault(each.id, each) is each]

    def _clear_old(self) -> Op[None]:
        """Acknowledge skipped stops once no session lives that they were sent to."""
        now = self._runner.clock.monotonic()
        if self._old_stops and now >= self._due:
            for id_ in (yield from _acknowledge_old(self._runner, self._who, self._old_stops)):
                del self._old_stops[id_]
            self._due = now + self._runner.capabilities.allow(RECHECK_AFTER)

    def _stops(self, new_entries: Iterable[str]) -> Op[list[StopNotice]]:
        """Read the bodies of urgent entries, and of entries that are already acknowledged."""
        marks = yield from looked_up(keys.unread(self._who.agent, id_) for id_ in new_entries)
        wanted = [
            keys.message(keys.id_of(key))
            for key, item in marks.items()
            if item is None or inbox_reader.entry_of_mark(item).urgent
        ]
        found: list[StopNotice] = []
        for item in (yield from looked_up(wanted)).values():
            with suppress(StoreDamaged):
                message = None if item is None else decode.message(item)
                if message is not None and message.kind == "stop":
                    said = msgspec.json.decode(message.data)
                    reason = said if isinstance(said, str) else ""
                    found.append(StopNotice(id=message.id, sender=message.sender, reason=reason))
        return found


def skip_old_stops(
    runner: Runner,
    actor: Actor,
    found: Iterable[InboxEntry],
    items: Mapping[str, Item | None],
) -> Op[set[str]]:
    """The stops among these that were sent before our session began; none without a session."""
    urgent = [each for each in found if each.urgent and not each.topic]
    sent = {each.id: each.seq for each in urgent if _is_stop(items[each.key])}
    if not sent:
        return set()
    own = keys.agent_session(actor.agent, actor.session)
    item = (yield Read(own))[own]
    earlier = {id_: seq for id_, seq in sent.items() if item is not None and seq < item.created}
    if earlier:
        yield from _acknowledge_old(runner, actor, earlier)
    return set(earlier)


def _acknowledge_old(runner: Runner, actor: Actor, earlier: Mapping[str, int]) -> Op[list[str]]:
    """Acknowledge old stops that no live session can still need; ``earlier`` has their revisions.

    All are older than our session, so it does not count. If the store refuses, the stops stay and
    are found again.
    """
    sessions = yield from every(keys.agent_session(actor.agent))
    began = {keys.live(keys.id_of(item.key)): item.created for item in sessions}
    lives = yield from looked_up(began)
    there = [began[key] for key, item in lives.items() if item is not None]
    done = [id_ for id_, sent in earlier.items() if all(sent < each for each in there)]
    try:
        if done:
            yield from acknowledge(runner, actor, done)
    except StoreTrouble:
        return []
    return done


def _is_stop(item: Item | None) -> bool:
    message = None if item is None else readable(decode.message, item)
    return message is not None and message.kind == "stop"
