"""Receive messages one after the other, in a loop.

    ask for the next ──> the previous one is done ──> it is acknowledged, together with others

A message is done when its handler asks for the next one; after an exception, a break or a kill it
stays unread and is delivered again. A finished message is acknowledged before the next one is
delivered. The same commit notes the next one, so that it counts as delivered if its handler is
killed (``presence.py``). ``take`` delivers everything that is unread, and acknowledges it in one
commit.

The loop continues through outages of the store: it acknowledges and delivers when the store is
back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from interlock.errors import BadInput, StoreClosed, StoreMissing, StoreMoved, StoreTrouble
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.inbox_service import ack
from interlock.nouns.messages.message import Acknowledged, File, Kind, Received, UnknownMessages
from interlock.nouns.messages.presence import ReceiverPresence, receiver_notes
from interlock.nouns.messages.query import ReplyOutcome
from interlock.nouns.messages.receiver import NEVER, REDELIVER, InboxReceiver
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.outage import OutageLog
from interlock.runtime.stoppable import stoppable
from interlock.steps import Op, Pause

_PERMANENT = (StoreMissing, StoreMoved)
RETRY_AFTER = 0.5
"""Seconds between two attempts while the store is unreachable."""


class ReceiveOptions(Struct, frozen=True, kw_only=True):
    """How a loop receives: see ``MessageCalls.recv``."""

    can: tuple[str, ...] | None = None
    timeout: float | None = None
    ack: bool = True
    redeliver: float = REDELIVER


class ReceiveLoop:
    """The messages of an agent, one by one; a background job of the client, which ends it."""

    what = "acknowledgements"

    def __init__(self, calls: MessageCalls, options: ReceiveOptions) -> None:
        self._calls = calls
        self._options = options
        self.context = calls.context
        self._clock = calls.context.runner.clock
        self._presence = ReceiverPresence(calls.context, options.can or ())
        self._waits = options.timeout != 0.0
        """Whether it waits for messages: only then it announces itself."""
        self._receiver: InboxReceiver | None = None
        self._outage_log = OutageLog("receiving messages")
        self._queued: deque[Received] = deque()
        self._current: tuple[str, ...] = ()
        self._done: list[str] = []
        self._lock = threading.RLock()
        """Guards the lists above: another thread than the receiving one may acknowledge."""
        self.closed = False

    def next(self) -> Op[Received | None]:
        """The next message; None after the timeout, or when it is closed."""
        self._mark_done()
        messages = yield from self._receive(1)
        return messages[0] if messages else None

    def take(self) -> Op[tuple[Received, ...]]:
        """All unread messages once there are any; none after the timeout, or when closed."""
        self._mark_done()
        return (yield from self._receive(None))

    def ack(self, ids: Sequence[str]) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages now."""
        if self._receiver is None:
            able = yield from self._calls.abilities(None)
            actor = self.context.me().actor
            return (yield from ack(self.context.runner, actor, ids, able))
        outcome = yield from self._receiver.ack(ids)
        self._drop(ids)
        return outcome

    def reply(self, id_: str, answer: object) -> Op[ReplyOutcome]:
        """Answer a question, which acknowledges it."""
        outcome = yield from self._calls.reply(id_, answer, can=self._options.can or ())
        self._drop((id_,))
        if self._receiver is not None:
            self._receiver.discard((id_,))
        return outcome

    def leave(self) -> Op[None]:
        """Acknowledge finished messages; the current one stays unread until the handler returns."""
        self._current = ()
        try:
            yield from self._acknowledge_done()
        except StoreTrouble as trouble:  # it is delivered again
            self._outage_log.warn(trouble)

    def end(self) -> Op[None]:
        """Take no more messages; the current one and queued ones stay unread."""
        self.closed = True
        self.context.keeper.remove_job(self)
        yield from self.leave()
        yield from self._presence.end()
        if self._receiver is not None:
            self._receiver.close()

    def wait(self) -> float:
        """As a background job: never due."""
        return NEVER

    def run(self) -> Op[None]:
        """As a background job: does nothing."""
        yield from ()

    def finish(self, trouble: str) -> Op[None]:
        """The client closes."""
        if trouble:
            self.closed = True
        else:
            yield from self.end()

    def _receive(self, most: int | None) -> Op[tuple[Received, ...]]:
        limit = self._options.timeout
        ends = None if limit is None else self._clock.monotonic() + limit
        while self._is_running():
            try:
                yield from self._rejoin()
                yield from self._fetch(ends, most)
            except StoreClosed:
                if self._is_running():
                    raise
                break
            except StoreTrouble as trouble:
                late = ends is not None and self._clock.monotonic() >= ends
                if late or self.context.no_retry or isinstance(trouble, _PERMANENT):
                    raise
                self._outage_log.warn(trouble)
                yield Pause(self.context.runner.capabilities.allow(RETRY_AFTER))
                continue
            self._outage_log.over()
            messages = self._pop(most)
            if messages or (ends is not None and self._clock.monotonic() >= ends):
                return messages
        return ()

    def _fetch(self, ends: float | None, most: int | None) -> Op[None]:
        """Fetch messages to deliver, after acknowledging the finished ones."""
        with self._lock:
            upcoming = {each.id: each.attempt for each in list(self._queued)[:most]}
        yield from self._acknowledge_done(upcoming)
        if upcoming:
            return
        receiver = yield from self._open(whole=most is None or not self._options.ack)
        left = None if ends is None else max(0.0, ends - self._clock.monotonic())
        messages = (yield from stoppable(receiver.take(left), self._is_interrupted)) or ()
        with self._lock:
            self._queued.extend(messages)

    def _open(self, *, whole: bool) -> Op[InboxReceiver]:
        if self._receiver is None:
            can = yield from self._calls.abilities(self._options.can)
            others = yield from receiver_notes(self.context.me().actor.agent)
            self._receiver = self._calls.receiver(can=can, redeliver=self._options.redeliver)
            self._receiver.earlier = [each.deliveries for each in others.current]
            self.context.keeper.add_job(self)
        if self._waits:
            yield from self._presence.begin(whole=whole)
        return self._receiver

    def _rejoin(self) -> Op[None]:
        """Continue with another session of the same name, if ours has ended."""
        if self._session_ended():
            yield from self.context.rejoin(self.context.identity)
            if self._receiver is not None:
                self._receiver.follow(self.context.me().actor)

    def _session_ended(self) -> bool:
        lease = self.context.session_lease
        rejoins = self.context.rejoins(self.context.identity) and not self.context.no_retry
        return rejoins and lease is not None and not lease.alive()

    def _is_running(self) -> bool:
        return not self.closed

    def _is_interrupted(self) -> bool:
        return self.closed or self._session_ended() or (self._waits and not self._presence.is_valid)

    def _pop(self, most: int | None) -> tuple[Received, ...]:
        with self._lock:
            many = len(self._queued) if most is None else min(most, len(self._queued))
            messages = tuple([self._queued.popleft() for _ in range(many)])
            self._current = tuple([each.id for each in messages])
        for each in messages:
            if self._receiver is not None:
                self._receiver.started(each.id)
        return messages

    def _mark_done(self) -> None:
        """Asking for more means that the current messages are done."""
        with self._lock:
            if self._options.ack and self._current:
                self._done += self._current
            self._current = ()

    def _drop(self, ids: Sequence[str]) -> None:
        """Drop messages that were acknowledged or answered."""
        with self._lock:
            self._current = tuple([each for each in self._current if each not in ids])
            self._queued = deque(each for each in self._queued if each.id not in ids)

    def _acknowledge_done(self, upcoming: dict[str, int] | None = None) -> Op[None]:
        """Acknowledge finished messages, and note in the same commit what is delivered next."""
        done = tuple(self._done)
        if done and self._receiver is not None:
            delivered = upcoming or {}
            yield from self._receiver.ack_delivered(done, self._presence.note_writes(delivered))
            self._presence.note_committed(delivered)
            self._done = [each for each in self._done if each not in done]


def _field(name: str, about: str) -> Any:  # noqa: ANN401 - the annotation says the type
    """A property that is a field of the received message."""
    return property(attrgetter(f"received.{name}"), doc=about)


class MessageHandle(Calls[D]):
    """A received message as its reader sees it; the blocking and the async client extend it."""

    id: str = _field("id", "Its id, equal in each delivery.")
    kind: Kind = _field("kind", "Its kind: alert, query, answer, share, stop, mail or missed.")
    sender: str = _field("sender", "The agent that sent it.")
    at: float = _field("at", "When it was sent, by the clock of its sender.")
    seq: int = _field("seq", "Its place in the order: it grows with each message of any sender.")
    to: tuple[str, ...] = _field("to", "Its recipients.")
    type: str = _field("type", "The type of an alert, or of shared data.")
    subject: str = _field("subject", "The subject of a mail.")
    thread: str = _field("thread", "The thread that a mail belongs to.")
    reply_to: str = _field("reply_to", "The mail or the query that it answers.")
    urgent: bool = _field("urgent", "Whether it is delivered before messages that are not urgent.")
    data: Any = _field("data", "Its body; for a query, the question.")
    attempt: int = _field(
        "attempt",
        """The number of deliveries: more than one if a receiver was killed or too slow.

        It may be one too high if a receiver of this name was killed before the message arrived.
        """,
    )
    expires_in: float | None = _field(
        "expires_in",
        "How long a question could still be answered when it was delivered, in seconds.",
    )

    def __init__(self, received: Received, loop: ReceiveLoop) -> None:
        super().__init__(loop.context)
        self.received = received
        self._loop = loop

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id} from {self.sender}>"

    @call
    def ack(self) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge it now: it is not delivered again."""
        return self._loop.ack((self.id,))

    @call
    def reply(self, answer: object) -> Op[ReplyOutcome]:
        """Answer a question, which acknowledges it."""
        return self._loop.reply(self.id, answer)

    def _file(self) -> File:
        if self.received.file is None:
            raise BadInput(f"no file comes with {self.id}; look at message.data")
        return self.received.file


def ids_of(messages: Iterable[MessageHandle[Any] | str]) -> list[str]:
    """The ids of messages, each given as a message or as its id."""
    ids = [each.id if isinstance(each, MessageHandle) else each for each in messages]
    if not all(isinstance(each, str) for each in ids):
        raise BadInput("ack takes messages one by one; for several write ack(*messages)")
    return ids
