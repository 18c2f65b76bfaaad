"""Receiving: deliver an agent's messages in order, until they are acknowledged.

A receiver reads the state at one revision, then watches from that revision on: the agent's inbox,
its topics and its subscriptions. So messages from all of these are delivered in commit order; an
engine that is not ``ordered`` keeps the order within the inbox and within each topic.

A delivered message that is not acknowledged is delivered again after ``redeliver`` seconds, and to
the next receiver at once, so it survives a receiver that is killed. Two receivers with one name
both get everything; neither redelivers a message that the other has acknowledged. A stop for
earlier sessions is not delivered (``acknowledging.py``).

A cursor advances to the first unread message, so a receiver must know all unread ones: it keeps its
entries until it has read the whole state again.

One thread or task takes; any may acknowledge at the same time. The receiver's state is behind one
lock, which is not held during a read, a commit or a wait. So delivery checks again that a message
is still unread and still subscribed to.

The receiver holds only keys and order in memory. Bodies are read on delivery, usually in the same
request as the changes that announced them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Write
from interlock.core.validate import EVERYTHING
from interlock.drivers import Op
from interlock.nouns.messages import acknowledging, decode, inbox_rules, log_lines, reading
from interlock.nouns.messages.acknowledging import combine
from interlock.nouns.messages.delivery_queue import Delivery, DeliveryQueue
from interlock.nouns.messages.inbox_rules import Cursor, TopicAcks
from interlock.nouns.messages.message import ABLE, Acknowledged, Received, UnknownMessages
from interlock.nouns.messages.reading import InboxEntry, TopicState
from interlock.runtime.decode import readable
from interlock.runtime.gather import KEYS_AT_ONCE, looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.runtime.steps import NextChanges, OpenWatch
from interlock.store import Change, Item, Resync, Watch

if TYPE_CHECKING:
    from interlock.nouns.messages.acknowledging import Acknowledger

REDELIVER = 60.0
PORTION = KEYS_AT_ONCE * 4 // 5
"""Messages delivered at once: all that is read with them fits into one request."""
FEW = KEYS_AT_ONCE // 3
"""Changes that one request can fetch with everything needed to deliver them."""
NEVER = float("inf")


class InboxReceiver:
    """The messages of one agent; the caller closes it.

    ``can`` are the abilities whose questions it takes. With ``only``, a type of alerts, it receives
    nothing else.
    """

    def __init__(
        self,
        runner: Runner,
        acking: Acknowledger,
        actor: Actor,
        can: Iterable[str] = (),
        redeliver: float = REDELIVER,
        *,
        only: str = "",
    ) -> None:
        self._runner = runner
        self._acking = acking
        self._who = actor
        self._can = tuple(can)
        self._redeliver = redeliver
        self._only = only
        self._watch: Watch | None = None
        self._topics: dict[str, TopicState] = {}
        self._upto: dict[str, int] = {}
        """The revision up to which each topic was read."""
        self._line = DeliveryQueue()
        """Entries to deliver."""
        self._given: dict[str, Delivery] = {}
        self._unsure: set[str] = set()
        """Entries of the first read: they may have been acknowledged while it ran."""
        self._at_hand: dict[str, Item | None] = {}
        """Items that were read with the last changes, for the next delivery only."""
        self.earlier: Sequence[Callable[[Mapping[str, int]], Mapping[str, int]]] = ()
        """Each returns how often another receiver of this name delivered the unread entries."""
        self._before: dict[str, int] = {}
        """How often others delivered the entries that were unread when this one began."""
        self._guard = threading.RLock()  # a signal handler may call close

    def take(self, timeout: float | None) -> Op[list[Received]]:
        """Messages in order; wait for the first, until the timeout."""
        clock = self._runner.clock
        ends = None if timeout is None else clock.monotonic() + timeout
        self._remind()
        listened = self._watch is None or bool(self._line)
        if self._watch is not None and self._line:  # urgent ones may have come
            yield from self._listen(self._watch, 0.0)
        while True:
            watch = self._watch or (yield from self._begin())
            self._remind()
            found = yield from self._give_out()
            if found:
                return found
            if found is None or self._line or any(map(self._is_news, self._topics.values())):
                continue
            left = None if ends is None else ends - clock.monotonic()
            if left is not None and left <= 0 and listened:
                return []
            yield from self._listen(watch, self._nap(left))
            listened = True

    def ack(self, ids: Sequence[str]) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages that were delivered here, or any others of this agent."""
        with self._guard:
            others = [id_ for id_ in ids if id_ not in self._given]
        done: list[Acknowledged | UnknownMessages] = [(yield from self.settle(ids))]
        if others:
            done.append((yield from self._acking.ack(self._who, others, self._can)))
            self.forget(others)
        return combine(ids, done)

    def settle(
        self, ids: Iterable[str], notes: tuple[Write, ...] = ()
    ) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge those that were delivered here and not acknowledged since.

        The ``notes`` are written in the same commit, if there is anything to acknowledge.
        """
        with self._guard:
            known = {id_: self._given[id_].found for id_ in ids if id_ in self._given}
            seen = self._seen(known.values())
            begins = {each.topic: self._topics[each.topic].cursor for each in seen}
        if not known:
            return Acknowledged()
        done = yield from self._acking.acknowledge(self._who, tuple(known), seen, begins, notes)
        with self._guard:
            self.forget(known)
            for each in seen:
                if topic := self._topics.get(each.topic):
                    still = inbox_rules.under_subscription(each, topic.terms)
                    self._move(topic, inbox_rules.advance(topic.cursor, still))
        return done

    def forget(self, ids: Iterable[str]) -> None:
        """Do not redeliver these: they are acknowledged."""
        with self._guard:
            for id_ in ids:
                self._given.pop(id_, None)
                self._before.pop(id_, None)
                self._line.drop(id_)

    def begun(self, id_: str) -> None:
        """A handler starts with this message now: its redelivery time counts from here."""
        with self._guard:
            if (given := self._given.get(id_)) is not None and given.due < NEVER:
                self._given[id_] = replace(given, due=self._due())

    def follow(self, actor: Actor) -> None:
        """Receive for the session that follows ours."""
        self._who = actor

    def close(self) -> None:
        """Stop watching; unacknowledged messages are delivered to the next receiver."""
        self._at_hand = {}
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> Op[Watch]:
        """Read the state at one revision, and watch from there on."""
        agent = self._who.agent
        found, revision = yield from reading.unread_entries(agent)
        every = yield from reading.topics_of(agent, self._can)
        topics = {name: each for name, each in every.items() if self._only in ("", name)}
        for topic in topics.values():
            found += (yield from reading.unread_in_topic(topic))[0]
        heard = (keys.TOPICS,) if EVERYTHING in self._can else tuple(map(keys.topic, topics))
        own = () if self._only else (keys.unread(agent),)
        scopes = (*own, keys.subscription(agent), *heard)
        self._watch = yield OpenWatch(scopes, revision)
        wanted = [each for each in found if self._only in ("", each.topic)]
        with self._guard:
            stood = {each.id: each for each in wanted if each.seq <= revision}
            self._stand(topics, stood, revision)
        return self._watch

    def _stand(
        self, topics: dict[str, TopicState], found: dict[str, InboxEntry], revision: int
    ) -> None:
        """Replace the known state; later changes come from the watch."""
        self._given = {
            id_: given
            for id_, given in self._given.items()
            if id_ in found or (not given.found.key and given.found.topic in topics)
        }
        self._topics = topics
        self._upto = dict.fromkeys(topics, revision)
        self._line = DeliveryQueue(each for each in found.values() if each.id not in self._given)
        self._unsure = {each.id for each in self._line}
        order = {each.id: each.seq for each in self._line.first(PORTION)}
        for given in self.earlier:
            for id_, times in given(order).items():
                self._before[id_] = self._before.get(id_, 0) + times
        self.earlier = ()

    def _listen(self, watch: Watch, timeout: float | None) -> Op[None]:
        changes = yield NextChanges(watch, timeout)
        try:
            yield from self._hear(changes)
        except BaseException:  # the watch reports a change once, so read the state again
            self.close()
            raise

    def _hear(self, changes: Sequence[Change | Resync]) -> Op[None]:
        """Apply changes; a changed subscription or a gap requires a new read of the state."""
        came = [each for each in changes if isinstance(each, Change)]
        asked = any(each.key.startswith(keys.SUBSCRIPTIONS) for each in came)
        if asked or len(came) < len(changes):
            self.close()
            return
        with self._guard:
            torn = {name for each in came if (name := self._tears(each))}
            fresh = [each for each in came if not each.deleted and self._concerns(each)]
        yield from self._look_for_trims(torn)
        few = fresh if len(fresh) <= FEW else ()
        along = reading.keys_to_deliver(self._who.agent, [each.key for each in few])
        items = yield from looked_up([*[each.key for each in fresh], *along])
        with self._guard:
            for each in fresh:
                self._join(each, items[each.key])
        self._at_hand = items if along else {}

    def _concerns(self, change: Change) -> bool:
        return change.key.startswith(keys.UNREAD) or self._topic(change) is not None

    def _topic(self, change: Change) -> TopicState | None:
        """The topic of a change, if this receiver reads it."""
        name = keys.topic_of(change.key)
        if name not in self._topics and name.startswith(ABLE):
            begins = inbox_rules.first_cursor(reading.ALL_MESSAGES, 0)
            self._topics[name] = TopicState(name=name, wanted=reading.ALL_MESSAGES, cursor=begins)
        return self._topics.get(name)

    def _join(self, change: Change, item: Item | None) -> None:
        """Queue an entry that still exists."""
        topic: TopicState | None = None
        if change.key.startswith(keys.UNREAD):
            found = [] if item is None else [reading.entry_of_mark(item)]
        else:
            topic = self._topics[keys.topic_of(change.key)]
            found = [] if item is None else list(reading.topic_entries(topic, [item]))
        for each in found:
            if each.id not in self._given:
                self._line.join(each)
        if topic is not None:
            self._upto[topic.name] = max(self._upto.get(topic.name, 0), change.revision)

    def _tears(self, change: Change) -> str:
        """Drop a deleted entry; return the topic of one that was deleted before it was read.

        A direct message or a question was acknowledged or answered. A delivered message of a topic
        can still be acknowledged after its deletion.
        """
        if not change.deleted:
            return ""
        id_ = keys.last(change.key)
        waited = self._line.drop(id_)
        topic = keys.topic_of(change.key) if change.key.startswith(keys.TOPICS) else ""
        if not topic or topic.startswith(ABLE):
            self._given.pop(id_, None)
            return ""
        return topic if waited else ""

    def _look_for_trims(self, names: Iterable[str]) -> Op[None]:
        """Update the deletions of these topics."""
        items = yield from looked_up(map(keys.trimmed, names))
        with self._guard:
            for key, item in items.items():
                topic = self._topics[keys.topic_of(key)]
                trimmed = readable(decode.trimmed, item)
                self._topics[topic.name] = replace(topic, trimmed=trimmed)

    def _give_out(self) -> Op[list[Received] | None]:
        """Deliver queued entries, urgent ones first; None if the state must be read again."""
        with self._guard:
            first = self._line.first(PORTION)
            wanted = [*[each.key for each in first], *self._beside(first)]
        known, self._at_hand = self._at_hand, {}
        items = known | (yield from looked_up([key for key in wanted if key not in known]))
        if reading.subscriptions_changed(self._topics, items):
            self.close()
            return None
        lives = yield from reading.question_lives(first)
        yield from acknowledging.end_expired_questions(self._runner, self._who, lives)
        past = yield from acknowledging.skip_old_stops(self._acking, self._who, first, items)
        lost = {each.topic for each in first if items[each.key] is None}
        yield from self._look_for_trims([each for each in lost if each and each[0] != ABLE])
        with self._guard:
            told = self._handed(first, past, items, lives)
        log_lines.delivered(self._who.agent, told)
        return told

    def _handed(
        self,
        first: Sequence[InboxEntry],
        past: AbstractSet[str],
        items: Mapping[str, Item | None],
        lives: Mapping[str, Item | None],
    ) -> list[Received]:
        """The messages of entries that are still unread, and notices of missed ones."""
        told = [
            reading.missed_notice(each) for each in self._topics.values() if self._is_news(each)
        ]
        for each in told:
            place = InboxEntry(id=each.id, seq=each.seq, key="", topic=each.type)
            self._given[each.id] = Delivery(place, 1, NEVER)
        waits = [each for each in first if each.id in self._line and each.id not in past]
        for found, message in reading.decoded_entries(waits, items, lives):
            if not self._is_settled(found, items, lives):
                told.append(self._hand(found, message))
        for found in first:
            self._line.drop(found.id)
            self._unsure.discard(found.id)
            if items[found.key] is None:  # it must not hold back a cursor
                self._given.pop(found.id, None)
            elif found.id in past:  # check again later: its earlier session may have ended then
                self._given[found.id] = Delivery(found, 0, self._due())
        return told

    def _beside(self, first: Iterable[InboxEntry]) -> Iterable[str]:
        """Keys that show whether another receiver has acknowledged these."""
        agent = self._who.agent
        for each in first:
            if each.topic:
                yield from reading.topic_state_keys(agent, each.topic)
            elif each.id in self._given or each.id in self._unsure:  # the watch reports others
                yield keys.unread(agent, each.id)

    def _is_settled(
        self, found: InboxEntry, items: Mapping[str, Item | None], lives: Mapping[str, Item | None]
    ) -> bool:
        agent = self._who.agent
        gone = lives.get(keys.live(found.id), found) is None
        if found.topic:
            topic = self._topics[found.topic]
            self._move(topic, readable(decode.cursor, items[keys.cursor(agent, found.topic)]))
            gone = gone or self._topics[found.topic].cursor.has(found.seq)
        else:
            gone = gone or items.get(keys.unread(agent, found.id), found) is None
        if gone:
            self._given.pop(found.id, None)
        return gone

    def _move(self, topic: TopicState, cursor: Cursor | None) -> None:
        """Merge a stored cursor into the known one."""
        if cursor is not None:
            self._topics[topic.name] = replace(
                topic, cursor=inbox_rules.merged(topic.cursor, cursor)
            )

    def _hand(self, found: InboxEntry, message: Received) -> Received:
        """Deliver one message, and schedule its redelivery."""
        before = self._given.get(found.id)
        given = Delivery(found, 1 if before is None else before.times + 1, self._due())
        self._given[found.id] = given
        return replace(message, attempt=given.times + self._before.get(found.id, 0))

    def _due(self) -> float:
        """When an unacknowledged message that is delivered now becomes due."""
        return self._runner.clock.monotonic() + self._redeliver

    def _is_news(self, topic: TopicState) -> bool:
        return topic.missed and reading.missed_notice(topic).id not in self._given

    def _remind(self) -> None:
        """Queue unacknowledged deliveries that are due."""
        now = self._runner.clock.monotonic()
        with self._guard:
            for given in self._given.values():
                if given.due <= now:
                    self._line.join(given.found)

    def _nap(self, left: float | None) -> float | None:
        now = self._runner.clock.monotonic()
        with self._guard:
            due = min((given.due for given in self._given.values()), default=NEVER) - now
        nap = max(min(NEVER if left is None else left, due), 0.0)
        return None if nap == NEVER else nap

    def _seen(self, places: Iterable[InboxEntry]) -> tuple[TopicAcks, ...]:
        """The topics of these entries, with everything that is unread in them."""
        found: dict[str, dict[str, int]] = {}
        traces: dict[str, str] = {}
        for place in places:
            if place.topic:
                found.setdefault(place.topic, {})[place.id] = place.seq
                traces[place.id] = place.trace
        return tuple(
            TopicAcks(
                topic=topic,
                messages=messages,
                pending=self._pending(topic),
                upto=self._upto[topic],
                told=reading.missed_ids(messages),
                terms=self._topics[topic].terms,
                traces={id_: traces[id_] for id_ in messages},
            )
            for topic, messages in found.items()
        )

    def _pending(self, topic: str) -> list[int]:
        held = [*self._line, *[given.found for given in self._given.values()]]
        return sorted({each.seq for each in held if each.topic == topic})
