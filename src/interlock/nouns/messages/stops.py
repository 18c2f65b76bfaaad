"""Stops: what asks a session to end, heard without a touch on anything else in the inbox.

A stop is meant for the sessions of an agent that were there when it was sent.  Whoever came later
is the next incarnation: it passes over the stop, and acknowledges it away once none of those is
left, since a plain loop among them may still have to find it in the inbox.  All who were there and
listen here obey: a stop is heard from the watch, so it does not matter who acknowledges it first.
Whoever obeyed does so when it takes no more work; killed before that, it leaves that to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from interlock.core import keys
from interlock.drivers import Op, Pause
from interlock.errors import StoreClosed, StoreDamaged, StoreTrouble
from interlock.nouns.messages import acknowledging, decode, reading
from interlock.nouns.messages.acknowledging import Acknowledger
from interlock.runtime.gather import looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.runtime.steps import NextChanges, OpenWatch, Read
from interlock.store import Change, Resync, Snapshot, Watch

RETRY_AFTER = 0.5
"""Seconds after which a store that is away is asked again."""
CHECK_EVERY = 1.0
"""Seconds after which whoever listens in a thread looks whether it still is to."""
RECHECK_AFTER = 5.0
"""Seconds after which it is asked again whether anybody is left for whom an old stop was."""


class StopNotice(Struct, frozen=True, kw_only=True):
    """Somebody asked us to end."""

    id: str
    sender: str
    reason: str

    def __str__(self) -> str:
        return f"{self.sender} asked: {self.reason}" if self.reason else f"{self.sender} asked"


class Stops:
    """The stops for one session, each told once; whoever opened it closes it."""

    def __init__(self, runner: Runner, actor: Actor) -> None:
        self._runner = runner
        self._who = actor
        self._since: int | None = None
        """The revision at which our session began."""
        self._watch: Watch | None = None
        self._unsure: dict[str, int] = {}
        """What came and was not looked at yet, and when."""
        self._told: dict[str, StopNotice] = {}
        self._past: dict[str, int] = {}
        """Those for whoever was there before us, while one of these lives; and when they came."""
        self._due = 0.0

    def apart(self) -> Stops:
        """One to listen with in another thread: what one of them told, the other does not."""
        other = Stops(self._runner, self._who)
        other._told = self._told
        return other

    @property
    def inbox(self) -> str:
        """The folder in which a stop appears."""
        return keys.unread(self._who.agent)

    def take(self, timeout: float | None) -> Op[list[StopNotice]]:
        """Those that came; waits for the first, at most so long."""
        ends = None if timeout is None else self._runner.clock.monotonic() + timeout
        while True:
            if self._watch is None:
                yield from self._begin()
            if found := (yield from self._look()):
                return found
            left = self._left(ends)
            changes = yield NextChanges(self._watch, left)  # type: ignore[arg-type]  # it is open
            if not changes and ends is not None and self._runner.clock.monotonic() >= ends:
                return []
            self._hear(changes)

    def listen(
        self, obey: Callable[[StopNotice], None], wanted: Callable[[], bool] | None = None
    ) -> Op[None]:
        """Tell of each stop, through outages; in a thread, as long as it is wanted."""
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
        """Those that some changes of the inbox brought, whoever heard of these."""
        self._note(changes)
        return (yield from self._look())

    def ack(self) -> Op[None]:
        """We obeyed: it need not be told again, to us or to the next incarnation."""
        if self._told:
            yield from Acknowledger(self._runner).acknowledge(self._who, tuple(self._told))

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> Op[None]:
        """Look at what waits already, and listen from there on."""
        if self._since is None:
            own = keys.present(self._who.agent, self._who.session)
            snapshot: Snapshot = yield Read(own)
            item = snapshot[own]
            self._since = snapshot.revision if item is None else item.created
        found, revision = yield from reading.unread_entries(self._who.agent)
        self._unsure.update({each.id: each.seq for each in found if each.urgent})
        self._watch = yield OpenWatch(self.inbox, revision)

    def _hear(self, changes: Sequence[Change | Resync]) -> None:
        if any(isinstance(each, Resync) for each in changes):
            self.close()  # and look at all that waits
        self._note(each for each in changes if isinstance(each, Change))

    def _note(self, changes: Iterable[Change]) -> None:
        for each in changes:
            if not each.deleted and each.key.startswith(self.inbox):
                self._unsure.setdefault(keys.last(each.key), each.revision)

    def _left(self, ends: float | None) -> float | None:
        """How long to sleep at most."""
        moments = [*([] if ends is None else [ends]), *([self._due] if self._past else [])]
        return max(0.0, min(moments) - self._runner.clock.monotonic()) if moments else None

    def _look(self) -> Op[list[StopNotice]]:
        """Which of what came is a stop for us; one for those before us is passed over."""
        unsure = {id_: seq for id_, seq in self._unsure.items() if id_ not in self._told}
        stops = (yield from self._stops(unsure)) if unsure else []
        since = self._since or 0
        self._past |= {each.id: unsure[each.id] for each in stops if unsure[each.id] < since}
        yield from self._clear()
        for id_ in unsure:
            self._unsure.pop(id_, None)
        meant = [each for each in stops if unsure[each.id] >= since]
        return [each for each in meant if self._told.setdefault(each.id, each) is each]

    def _clear(self) -> Op[None]:
        """Acknowledge away what was passed over, as soon as nobody is left for whom it was."""
        now = self._runner.clock.monotonic()
        if self._past and now >= self._due:
            for id_ in (
                yield from acknowledging.acknowledge_old_stops(
                    Acknowledger(self._runner), self._who, self._past
                )
            ):
                del self._past[id_]
            self._due = now + self._runner.capabilities.allow(RECHECK_AFTER)

    def _stops(self, unsure: Iterable[str]) -> Op[list[StopNotice]]:
        """Bodies are read of what is urgent, or acknowledged so soon that nobody can tell."""
        marks = yield from looked_up(keys.unread(self._who.agent, id_) for id_ in unsure)
        wanted = [
            keys.message(keys.last(key))
            for key, item in marks.items()
            if item is None or reading.entry_of_mark(item).urgent
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
