"""Receiving: deliver an agent's messages in order, until they are acknowledged.

A receiver reads the state at one revision, then watches from that revision on: the agent's inbox,
its topics and its subscriptions. So messages from all of these are delivered in commit order; an
engine that is not ``ordered`` keeps the order within the inbox and within each topic.

A delivered message that is not acknowledged is delivered again after ``redeliver`` seconds, and to
the next receiver at once, so it survives a receiver that is killed. Two receivers with one name
both get everything; neither redelivers a message that the other has acknowledged. A stop for
earlier sessions is not delivered (``stops.py``).

A cursor advances to the first unread message, so a receiver must know all unread ones: it keeps its
entries until it has read the whole state again.

One thread or task takes; any may acknowledge at the same time. The receiver's state is behind one
lock, which is not held during a read, a commit or a wait. So delivery checks again that a message
is still unread and still subscribed to.

The receiver holds only keys and order in memory. Bodies are read on delivery, usually in the same
request as the changes that announced them. An engine may send new messages with their changes
(``Change.written``). Then nothing is read: they were unread at the revision of the change, and the
watch has reported every change of the subscriptions before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Write
from interlock.core.validate import ALL_ABILITIES
from interlock.nouns.messages import (
    decode,
    inbox_reader,
    inbox_rules,
    inbox_service,
    log_lines,
    stops,
)
from interlock.nouns.messages.inbox_reader import InboxEntry, TopicState
from interlock.nouns.messages.inbox_rules import Cursor, TopicAcks
from interlock.nouns.messages.inbox_service import combine
from interlock.nouns.messages.message import ABLE, Acknowledged, Received, UnknownMessages
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up, readable
from interlock.runtime.runner import REMEMBERED_BYTES, Runner
from interlock.steps import NextChanges, Op, OpenWatch
from interlock.store import LIVE, Change, Item, Resync, Watch

REDELIVER = 60.0
PORTION = KEYS_AT_ONCE * 4 // 5
"""Messages delivered at once: all that is read with them fits into one request."""
FEW = KEYS_AT_ONCE // 3
"""Changes that one request can fetch with everything needed to deliver them."""
NEVER = float("inf")


class Delivery(Struct, frozen=True):
    """A delivered message: how often, and when it is due for redelivery."""

    entry: InboxEntry
    attempts: int
    due: float


class DeliveryQueue:
    """The entries to deliver: urgent ones first, then in the order of sending.

    A heap ticket of a dropped entry stays until it is popped.
    """

    def __init__(self, found: Iterable[InboxEntry] = ()) -> None:
        self._entries = {each.id: each for each in found}
        self._tickets = [(each.order, each.id) for each in self._entries.values()]
        heapify(self._tickets)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[InboxEntry]:
        return iter(self._entries.values())

    def __contains__(self, id_: str) -> bool:
        return id_ in self._entries

    def add(self, found: InboxEntry) -> None:
        """Queue an entry, unless it is queued."""
        if found.id not in self._entries:
            self._entries[found.id] = found
            heappush(self._tickets, (found.order, found.id))

    def first(self, most: int) -> list[InboxEntry]:
        """The first entries; they stay until they are dropped."""
        found: list[InboxEntry] = []
        popped: list[tuple[tuple[bool, int], str]] = []
        while self._tickets and len(found) < most:
            ticket = heappop(self._tickets)
            each = self._entries.get(ticket[1])
            if each is not None and popped[-1:] != [ticket]:  # queued again: two tickets
                found.append(each)
                popped.append(ticket)
        for ticket in popped:
            heappush(self._tickets, ticket)
        return found

    def drop(self, id_: str) -> bool:
        """Remove an entry; return whether it was queued."""
        return self._entries.pop(id_, None) is not None


class InboxReceiver:
    """The messages of one agent; the caller closes it.

    ``can`` are the abilities whose questions it takes. With ``only``, a type of alerts, it receives
    nothing else.
    """

    def __init__(
        self,
        runner: Runner,
        actor: Actor,
        can: Iterable[str] = (),
        redeliver: float = REDELIVER,
        *,
        only: str = "",
    ) -> None:
        self._runner = runner
        self._who = actor
        self._can = tuple(can)
        self._redeliver = redeliver
        self._only = only
        self._watch: Watch | None = None
        self._topics: dict[str, TopicState] = {}
        self._upto: dict[str, int] = {}
        """The revision up to which each topic was read."""
        self._queue = DeliveryQueue()
        """Entries to deliver."""
        self._delivered: dict[str, Delivery] = {}
        self._unconfirmed: set[str] = set()
        """Entries of the first read: they may have been acknowledged while it ran."""
        self._prefetched: Mapping[str, Item | None] = {}
        """Items that came, or were read, with the last changes, for the next delivery only."""
        self._told: AbstractSet[str] = frozenset()
        """The ids of the messages among these that came: they were unread a moment ago."""
        self.earlier: Sequence[Callable[[Mapping[str, int]], Mapping[str, int]]] = ()
        """Each returns how often another receiver of this name delivered the unread entries."""
        self._earlier_attempts: dict[str, int] = {}
        """How often others delivered the entries that were unread when this one began."""
        self._lock = threading.RLock()  # a signal handler may call close

    def take(self, timeout: float | None) -> Op[list[Received]]:
        """Messages in order; wait for the first, until the timeout."""
        clock = self._runner.clock
        ends = None if timeout is None else clock.monotonic() + timeout
        self._requeue_due()
        listened = self._watch is None or bool(self._queue)
        if self._watch is not None and self._queue:  # urgent ones may have come
            yield from self._listen(self._watch, 0.0)
        while True:
            watch = self._watch or (yield from self._begin())
            self._requeue_due()
            if self._has_any():
                found = yield from self._deliver()
                if found:
                    return found
                if found is None or self._has_any():
                    continue
            left = None if ends is None else ends - clock.monotonic()
            if left is not None and left <= 0 and listened:
                return []
            yield from self._listen(watch, self._timeout(left))
            listened = True

    def ack(self, ids: Sequence[str]) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages that were delivered here, or any others of this agent."""
        with self._lock:
            others = [id_ for id_ in ids if id_ not in self._delivered]
        done: list[Acknowledged | UnknownMessages] = [(yield from self.ack_delivered(ids))]
        if others:
            more = inbox_service.ack(self._runner, self._who, others, self._can)
            done.append((yield from more))
            self.discard(others)
        return combine(ids, done)

    def ack_delivered(
        self, ids: Iterable[str], notes: tuple[Write, ...] = ()
    ) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages that were delivered here and are still unread.

        The ``notes`` are written in the same commit, if there is anything to acknowledge.
        """
        with self._lock:
            known = {id_: self._delivered[id_].entry for id_ in ids if id_ in self._delivered}
            topic_acks = self._topic_acks(known.values())
            begins = {each.topic: self._topics[each.topic].cursor for each in topic_acks}
        if not known:
            return Acknowledged()
        done = yield from inbox_service.acknowledge(
            self._runner, self._who, tuple(known), topic_acks, begins, notes=notes
        )
        with self._lock:
            self.discard(known)
            for each in topic_acks:
                if topic := self._topics.get(each.topic):
                    still = inbox_rules.under_subscription(each, topic.terms)
                    self._merge_cursor(topic, inbox_rules.advance(topic.cursor, still))
        return done

    def discard(self, ids: Iterable[str]) -> None:
        """Do not redeliver these: they are acknowledged."""
        with self._lock:
            for id_ in ids:
                self._delivered.pop(id_, None)
                self._earlier_attempts.pop(id_, None)
                self._queue.drop(id_)

    def started(self, id_: str) -> None:
        """A handler starts with this message now: its redelivery time counts from here."""
        with self._lock:
            if (given := self._delivered.get(id_)) is not None and given.due < NEVER:
                self._delivered[id_] = replace(given, due=self._due())

    def follow(self, actor: Actor) -> None:
        """Receive for the session that follows ours."""
        self._who = actor

    def close(self) -> None:
        """Stop watching; unacknowledged messages are delivered to the next receiver."""
        self._prefetched, self._told = {}, frozenset()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self) -> Op[Watch]:
        """Read the state at one revision, and watch from there on."""
        agent = self._who.agent
        found, revision = yield from inbox_reader.unread_entries(agent)
        every = yield from inbox_reader.topics_of(agent, self._can)
        topics = {name: each for name, each in every.items() if self._only in ("", name)}
        for topic in topics.values():
            found += (yield from inbox_reader.unread_in_topic(topic))[0]
        topic_prefixes = (
            (keys.TOPICS,) if ALL_ABILITIES in self._can else tuple(map(keys.topic, topics))
        )
        own = () if self._only else (keys.unread(agent),)
        scopes = (*own, keys.subscription(agent), *topic_prefixes)
        self._watch = yield OpenWatch(scopes, revision)
        wanted = [each for each in found if self._only in ("", each.topic)]
        with self._lock:
            unread = {each.id: each for each in wanted if each.seq <= revision}
            self._reset(topics, unread, revision)
        return self._watch

    def _reset(
        self, topics: dict[str, TopicState], found: dict[str, InboxEntry], revision: int
    ) -> None:
        """Replace the known state; later changes come from the watch."""
        self._delivered = {
            id_: given
            for id_, given in self._delivered.items()
            if id_ in found or (not given.entry.key and given.entry.topic in topics)
        }
        self._topics = topics
        self._upto = dict.fromkeys(topics, revision)
        self._queue = DeliveryQueue(
            each for each in found.values() if each.id not in self._delivered
        )
        self._unconfirmed = {each.id for each in self._queue}
        order = {each.id: each.seq for each in self._queue.first(PORTION)}
        for given in self.earlier:
            for id_, times in given(order).items():
                self._earlier_attempts[id_] = self._earlier_attempts.get(id_, 0) + times
        self.earlier = ()

    def _listen(self, watch: Watch, timeout: float | None) -> Op[None]:
        changes = yield NextChanges(watch, timeout)
        try:
            yield from self._apply(changes)
        except BaseException:  # the watch reports a change once, so read the state again
            self.close()
            raise

    def _apply(self, changes: Sequence[Change | Resync]) -> Op[None]:
        """Apply changes; a changed subscription or a gap requires a new read of the state."""
        self._prefetched, self._told = {}, frozenset()
        fresh: list[Change] = []
        deleted: list[Change] = []
        for change in changes:
            if isinstance(change, Resync) or change.key.startswith(keys.SUBSCRIPTIONS):
                self.close()
                return
            (deleted if change.deleted else fresh).append(change)
        with self._lock:
            trimmed_topics = {name for each in deleted if (name := self._drop_deleted(each))}
            fresh = [each for each in fresh if self._concerns(each)]
        if trimmed_topics:
            yield from self._read_trims(trimmed_topics)
        if not fresh:
            return
        few = fresh if len(fresh) <= FEW else []
        items: Mapping[str, Item | None] | None = None
        if few and not deleted:
            items = inbox_reader.sent_along(few)
        if items is not None:
            self._told = frozenset([keys.id_of(each.key) for each in few])
            self._prefetched = items
        else:
            along = inbox_reader.keys_to_deliver(self._who.agent, [each.key for each in few])
            timed = any(key.startswith(LIVE) for key in along)
            items = yield from looked_up([*[each.key for each in fresh], *along], times=timed)
            if along:
                self._prefetched = items
        with self._lock:
            for each in fresh:
                self._enqueue(each, items[each.key])

    def _concerns(self, change: Change) -> bool:
        return change.key.startswith(keys.UNREAD) or self._topic(change) is not None

    def _topic(self, change: Change) -> TopicState | None:
        """The topic of a change, if this receiver reads it."""
        name = keys.topic_of(change.key)
        if name not in self._topics and name.startswith(ABLE):
            begins = inbox_rules.first_cursor(inbox_reader.ALL_MESSAGES, 0)
            self._topics[name] = TopicState(
                name=name, wanted=inbox_reader.ALL_MESSAGES, cursor=begins
            )
        return self._topics.get(name)

    def _enqueue(self, change: Change, item: Item | None) -> None:
        """Queue an entry that still exists."""
        topic: TopicState | None = None
        if change.key.startswith(keys.UNREAD):
            found = [] if item is None else [inbox_reader.entry_of_mark(item)]
        else:
            topic = self._topics[keys.topic_of(change.key)]
            found = [] if item is None else list(inbox_reader.topic_entries(topic, [item]))
        for each in found:
            if each.id not in self._delivered:
                self._queue.add(each)
        if topic is not None:
            self._upto[topic.name] = max(self._upto.get(topic.name, 0), change.revision)

    def _drop_deleted(self, change: Change) -> str:
        """Drop a deleted entry; return the topic of one that was deleted before it was read.

        A direct message or a question was acknowledged or answered. A delivered message of a topic
        can still be acknowledged after its deletion.
        """
        id_ = keys.id_of(change.key)
        waited = self._queue.drop(id_)
        topic = keys.topic_of(change.key) if change.key.startswith(keys.TOPICS) else ""
        if not topic or topic.startswith(ABLE):
            self._delivered.pop(id_, None)
            return ""
        return topic if waited else ""

    def _read_trims(self, names: Iterable[str]) -> Op[None]:
        """Update the deletions of these topics."""
        items = yield from looked_up(map(keys.trimmed, names))
        with self._lock:
            for key, item in items.items():
                topic = self._topics[keys.topic_of(key)]
                trimmed = readable(decode.trimmed, item)
                self._topics[topic.name] = replace(topic, trimmed=trimmed)

    def _deliver(self) -> Op[list[Received] | None]:
        """Deliver queued entries, urgent ones first; None if the state must be read again."""
        with self._lock:
            first = self._queue.first(PORTION)
            wanted = [*[each.key for each in first], *self._keys_to_check(first)]
        known, self._prefetched, self._told = self._prefetched, {}, frozenset()
        items = dict(known)
        if unknown := [key for key in wanted if key not in known]:
            items |= yield from looked_up(unknown)
        if inbox_reader.subscriptions_changed(self._topics, items):
            self.close()
            return None
        questions = [each for each in first if each.key.startswith(keys.QUERIES)]
        lives: Mapping[str, Item | None] = {}
        if questions:
            lives = yield from inbox_reader.question_lives(questions, known)
            yield from inbox_service.end_expired_questions(self._runner, self._who, lives)
        old_stops: AbstractSet[str] = frozenset()
        if urgent := [each for each in first if each.urgent]:
            old_stops = yield from stops.skip_old_stops(self._runner, self._who, urgent, items)
        if lost := {each.topic for each in first if items[each.key] is None}:
            yield from self._read_trims([each for each in lost if each and each[0] != ABLE])
        with self._lock:
            messages = self._messages_of(first, old_stops, items, lives)
        if questions:
            self._remember_questions(questions, items)
        log_lines.delivered(self._who.agent, messages)
        return messages

    def _remember_questions(
        self, questions: Sequence[InboxEntry], items: Mapping[str, Item | None]
    ) -> None:
        """Keep questions as they were read: across a network, a reply then needs no read."""
        if self._runner.capabilities.transacts:
            return
        for each in questions:
            mark = items.get(keys.unread(self._who.agent, each.id))
            asked = items.get(each.key)
            if mark is None or asked is None:
                continue
            if len(asked.value) <= REMEMBERED_BYTES:
                self._runner.remember(mark.key, mark)
                self._runner.remember(asked.key, asked)

    def _messages_of(
        self,
        first: Sequence[InboxEntry],
        old_stops: AbstractSet[str],
        items: Mapping[str, Item | None],
        lives: Mapping[str, Item | None],
    ) -> list[Received]:
        """The messages of entries that are still unread, and notices of missed ones."""
        messages = [
            inbox_reader.missed_notice(each)
            for each in self._topics.values()
            if self._has_missed(each)
        ]
        for each in messages:
            place = InboxEntry(id=each.id, seq=each.seq, key="", topic=each.type)
            self._delivered[each.id] = Delivery(place, 1, NEVER)
        waits = [each for each in first if each.id in self._queue and each.id not in old_stops]
        for found, message in inbox_reader.decoded_entries(waits, items, lives):
            if not self._is_acknowledged(found, items, lives):
                messages.append(self._record_delivery(found, message))
        for found in first:
            self._queue.drop(found.id)
            self._unconfirmed.discard(found.id)
            if items[found.key] is None:  # it must not hold back a cursor
                self._delivered.pop(found.id, None)
            elif found.id in old_stops:  # retried later: its earlier session may have ended then
                self._delivered[found.id] = Delivery(found, 0, self._due())
        return messages

    def _keys_to_check(self, first: Iterable[InboxEntry]) -> Iterable[str]:
        """Keys that show whether another receiver has acknowledged these."""
        agent = self._who.agent
        for each in first:
            if each.id in self._told:
                continue
            if each.topic:
                yield from inbox_reader.topic_state_keys(agent, each.topic)
            elif (
                each.id in self._delivered or each.id in self._unconfirmed
            ):  # the watch reports others
                yield keys.unread(agent, each.id)

    def _is_acknowledged(
        self, found: InboxEntry, items: Mapping[str, Item | None], lives: Mapping[str, Item | None]
    ) -> bool:
        agent = self._who.agent
        gone = bool(lives) and lives.get(keys.live(found.id), found) is None
        if found.topic:
            if (cursor := items.get(keys.cursor(agent, found.topic))) is not None:
                self._merge_cursor(self._topics[found.topic], readable(decode.cursor, cursor))
            gone = gone or self._topics[found.topic].cursor.has(found.seq)
        else:
            gone = gone or items.get(keys.unread(agent, found.id), found) is None
        if gone:
            self._delivered.pop(found.id, None)
        return gone

    def _merge_cursor(self, topic: TopicState, cursor: Cursor | None) -> None:
        if cursor is not None:
            self._topics[topic.name] = replace(
                topic, cursor=inbox_rules.merged(topic.cursor, cursor)
            )

    def _record_delivery(self, found: InboxEntry, message: Received) -> Received:
        """Deliver one message, and schedule its redelivery."""
        before = self._delivered.get(found.id)
        given = Delivery(found, 1 if before is None else before.attempts + 1, self._due())
        self._delivered[found.id] = given
        attempt = given.attempts + self._earlier_attempts.get(found.id, 0)
        return message if attempt == message.attempt else replace(message, attempt=attempt)

    def _due(self) -> float:
        """When an unacknowledged message that is delivered now becomes due."""
        return self._runner.clock.monotonic() + self._redeliver

    def _has_any(self) -> bool:
        """Whether there is something to deliver."""
        return bool(self._queue) or any(map(self._has_missed, self._topics.values()))

    def _has_missed(self, topic: TopicState) -> bool:
        if topic.trimmed is None:
            return False
        return topic.missed and inbox_reader.missed_notice(topic).id not in self._delivered

    def _requeue_due(self) -> None:
        now = self._runner.clock.monotonic()
        with self._lock:
            for given in self._delivered.values():
                if given.due <= now:
                    self._queue.add(given.entry)

    def _timeout(self, left: float | None) -> float | None:
        now = self._runner.clock.monotonic()
        with self._lock:
            due = min((given.due for given in self._delivered.values()), default=NEVER) - now
        wait = max(min(NEVER if left is None else left, due), 0.0)
        return None if wait == NEVER else wait

    def _topic_acks(self, places: Iterable[InboxEntry]) -> tuple[TopicAcks, ...]:
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
                told=inbox_reader.missed_ids(messages),
                terms=self._topics[topic].terms,
                traces={id_: traces[id_] for id_ in messages},
            )
            for topic, messages in found.items()
        )

    def _pending(self, topic: str) -> list[int]:
        held = [*self._queue, *[given.entry for given in self._delivered.values()]]
        return sorted({each.seq for each in held if each.topic == topic})
