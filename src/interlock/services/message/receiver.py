"""Receiving: everything that comes for an agent, in order, until it is acknowledged.

A receiver reads what waits, then listens from that revision on: to the inbox of its agent, to every
topic that it hears, and to its list of subscriptions.  What it has given out and nobody has
acknowledged is given out again after ``redeliver`` seconds, and to the next receiver at once: that
is how a message survives whoever dies with it in its hands.

Nothing is held in memory but places and order; bodies are read when they are given out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import inbox, keys
from interlock.core.inbox import Cursor, Seen
from interlock.core.message import Acknowledged, NotYours, Received
from interlock.driving import Op
from interlock.services.gather import KEYS_AT_ONCE, looked_up
from interlock.services.message import reading
from interlock.services.message.reading import Found, Topic
from interlock.services.runner import Runner, Who
from interlock.services.steps import Open, Take
from interlock.store import Change, Resync, Watch

if TYPE_CHECKING:
    from interlock.services.message.acking import Acking

REDELIVER = 60.0
PORTION = KEYS_AT_ONCE


class Receiver:
    """What comes for one agent; whoever opened it closes it.

    ``can`` are the abilities whose questions it takes.
    """

    def __init__(
        self,
        runner: Runner,
        acking: Acking,
        who: Who,
        can: Iterable[str] = (),
        redeliver: float = REDELIVER,
    ) -> None:
        self._runner = runner
        self._acking = acking
        self._who = who
        self._can = tuple(can)
        self._redeliver = redeliver
        self._watch: Watch | None = None
        self._topics: dict[str, Topic] = {}
        self._upto: dict[str, int] = {}
        """Up to which revision each topic was read."""
        self._waiting: dict[str, Found] = {}
        """What is to be given out."""
        self._given: dict[str, tuple[Found, int, float]] = {}
        """What was given out: how often, and when it is to come again."""

    def take(self, timeout: float | None) -> Op[list[Received]]:
        """What came, in order; waits for the first message, at most so long."""
        clock = self._runner.clock
        ends = None if timeout is None else clock.monotonic() + timeout
        while True:
            if self._watch is None or self._is_due():
                yield from self._begin()
            if found := (yield from self._give_out()):
                return found
            if self._waiting or self._missed():
                continue
            left = None if ends is None else ends - clock.monotonic()
            changes = yield Take(self._watch, self._nap(left))  # type: ignore[arg-type]
            if not changes and left is not None and left <= 0:
                return []
            yield from self._hear(changes)

    def ack(self, ids: Sequence[str]) -> Op[Acknowledged | NotYours]:
        """Acknowledge messages that were given out here, or any others of this agent."""
        listens = self._watch is not None  # otherwise we do not know what else is unread
        known = [id_ for id_ in ids if listens and id_ in self._given]
        others = [id_ for id_ in ids if id_ not in known]
        seen = self._seen(known)
        begins: dict[str, Cursor] = {name: each.cursor for name, each in self._topics.items()}
        done = yield from self._acking.acknowledge(self._who, known, seen, begins)
        self._forget(known, seen)
        if not others:
            return done
        more = yield from self._acking.ack(self._who, others, self._can)
        self._forget(others, ())
        messages = (*done.messages, *more.messages)
        return replace(more, messages=messages, already=(*done.already, *more.already))

    def close(self) -> None:
        """Stop listening; what was not acknowledged is delivered to whoever comes next."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> Op[None]:
        """Read all that waits, and listen from there on.

        What came while we read is left to the watch: it may have come after something that we
        have not read.
        """
        self.close()
        agent = self._who.agent
        found, revision = yield from reading.waiting(agent)
        self._topics = yield from reading.topics(agent, self._can)
        for name, topic in self._topics.items():
            found += (yield from reading.unheard(topic))[0]
            self._upto[name] = revision
        scopes = (
            keys.unread(agent),
            keys.subscription(agent),
            *[keys.topic(name) for name in self._topics],
        )
        self._watch = yield Open(scopes, revision)
        unread = {each.id: each for each in found if each.seq <= revision}
        self._given = {
            id_: given
            for id_, given in self._given.items()
            if id_ in unread or id_.startswith(reading.MISSED)
        }
        self._waiting.clear()
        for each in unread.values():
            self._await(each)

    def _await(self, found: Found) -> None:
        _, _, due = self._given.get(found.id, (found, 0, 0.0))
        if due <= self._runner.clock.monotonic():
            self._waiting.setdefault(found.id, found)

    def _hear(self, changes: Sequence[Change | Resync]) -> Op[None]:
        """Take in what changed; a change of subscriptions, or a gap, means to read anew."""
        agent = self._who.agent
        if any(
            isinstance(each, Resync) or each.key.startswith(keys.SUBSCRIPTIONS) for each in changes
        ):
            self.close()
            return
        came = [each for each in changes if isinstance(each, Change)]
        for each in came:
            if each.deleted:
                self._waiting.pop(keys.last(each.key), None)
                self._given.pop(keys.last(each.key), None)
        wanted = [each.key for each in came if not each.deleted]
        items = yield from looked_up(wanted)
        own = keys.unread(agent)
        for key in dict.fromkeys(wanted):
            item = items[key]
            if item is None:
                continue
            if key.startswith(own):
                self._await(reading.mark(item))
            else:
                topic = self._topics[keys.topic_of(key)]
                for found in reading.heard(topic, [item]):
                    self._await(found)
        for each in came:
            if each.key.startswith(keys.TOPICS):
                name = keys.topic_of(each.key)
                self._upto[name] = max(self._upto[name], each.revision)

    def _give_out(self) -> Op[list[Received]]:
        """Some of what waits, the urgent first; each until it is acknowledged."""
        first = sorted(self._waiting.values(), key=lambda each: each.order)[:PORTION]
        told = [reading.missed(topic) for topic in self._topics.values() if self._is_news(topic)]
        for each in told:
            place = Found(id=each.id, seq=each.seq, key="", topic=each.type)
            self._given[each.id] = (place, 1, float("inf"))
        due = self._runner.clock.monotonic() + self._redeliver
        for found, message in (yield from reading.bodies(first)):
            _, times, _ = self._given.get(found.id, (found, 0, 0.0))
            self._given[found.id] = (found, times + 1, due)
            told.append(replace(message, attempt=times + 1))
        for found in first:
            self._waiting.pop(found.id, None)
        return told

    def _is_news(self, topic: Topic) -> bool:
        return topic.missed and reading.missed(topic).id not in self._given

    def _missed(self) -> bool:
        return any(map(self._is_news, self._topics.values()))

    def _is_due(self) -> bool:
        """Whether something was given out, and is to come again if it is still unread."""
        now = self._runner.clock.monotonic()
        return any(due <= now for _, _, due in self._given.values())

    def _nap(self, left: float | None) -> float | None:
        now = self._runner.clock.monotonic()
        due = min((due for _, _, due in self._given.values()), default=float("inf")) - now
        if left is None:
            return None if due == float("inf") else max(due, 0.0)
        return max(min(left, due), 0.0)

    def _seen(self, ids: Iterable[str]) -> tuple[Seen, ...]:
        """Of the messages of topics among these: what is still unread beside them."""
        found: dict[str, dict[str, int]] = {}
        for id_ in ids:
            place = self._given[id_][0]
            if place.topic:
                found.setdefault(place.topic, {})[id_] = place.seq
        return tuple(
            Seen(
                topic=topic, messages=messages, pending=self._pending(topic), upto=self._upto[topic]
            )
            for topic, messages in found.items()
        )

    def _pending(self, topic: str) -> list[int]:
        held = [*self._waiting.values(), *[found for found, _, _ in self._given.values()]]
        return sorted({each.seq for each in held if each.topic == topic})

    def _forget(self, ids: Iterable[str], seen: Iterable[Seen]) -> None:
        for id_ in ids:
            self._given.pop(id_, None)
            self._waiting.pop(id_, None)
        for each in seen:
            topic = self._topics.get(each.topic)
            if topic is not None:
                cursor = inbox.moved(topic.cursor, each)
                self._topics[each.topic] = replace(topic, cursor=cursor)
