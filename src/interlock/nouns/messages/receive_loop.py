"""Messages given out one after the other, for a loop.

    ask for the next ──> the one before is done ──> acknowledged, together with others

A message is done when its handler comes back for the next: an exception, a break or a kill in
between leaves it unread, so it comes again.  What is done is acknowledged before the next message
is given out, so it never comes again while that is handled.  The same commit notes the next one, so
that it counts as delivered if its handler is killed (``serving.py``).  ``take`` gives out all that
came, and acknowledges it with one commit.

Trouble of the store ends nothing: what was done is acknowledged, and what came is given out, when
it is over.

A message in the hands of whoever got it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from interlock.drivers import Op, Pause
from interlock.errors import BadInput, StoreClosed, StoreMissing, StoreTrouble
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import Acknowledged, File, Kind, Received, UnknownMessages
from interlock.nouns.messages.presence import ReceiverPresence, receiver_notes
from interlock.nouns.messages.query_rules import ReplyOutcome
from interlock.nouns.messages.receiver import NEVER, REDELIVER, InboxReceiver
from interlock.runtime.outage import OutageLog
from interlock.runtime.stoppable import stoppable

RETRY_AFTER = 0.5
"""Seconds after which a store that is away is asked again."""


class ReceiveOptions(Struct, frozen=True, kw_only=True):
    """How somebody receives: see ``MessageCalls.recv``."""

    can: tuple[str, ...] | None = None
    timeout: float | None = None
    ack: bool = True
    redeliver: float = REDELIVER


class ReceiveLoop:
    """All that comes for us, one by one; a chore of the client, which sees to its end."""

    def __init__(self, calls: MessageCalls, terms: ReceiveOptions) -> None:
        self._calls = calls
        self._terms = terms
        self._context = calls.context
        self._clock = calls.context.runner.clock
        self._duty = ReceiverPresence(calls.context, terms.can or ())
        self._stays = terms.timeout != 0.0
        """Whether it waits for what comes; whoever only takes what is there need not say so."""
        self._receiver: InboxReceiver | None = None
        self._outage_log = OutageLog("receiving messages")
        self._came: deque[Received] = deque()
        self._at_hand: tuple[str, ...] = ()
        self._done: list[str] = []
        self._guard = threading.RLock()
        """Behind this they change: whoever acknowledges need not be who receives."""
        self.closed = False

    def next(self) -> Op[Received | None]:
        """The next message; None when nothing came in time, or when it is closed."""
        self._finish()
        found = yield from self._persist(1)
        return found[0] if found else None

    def take(self) -> Op[tuple[Received, ...]]:
        """All that came, as soon as there is anything; none when the time is up, likewise."""
        self._finish()
        return (yield from self._persist(None))

    def ack(self, ids: Sequence[str]) -> Op[Acknowledged | UnknownMessages]:
        """Acknowledge messages now."""
        if self._receiver is None:
            able = yield from self._calls.abilities(None)
            actor = self._calls.context.me().actor
            return (yield from self._calls.acking.ack(actor, list(ids), able))
        outcome = yield from self._receiver.ack(ids)
        self._settled(ids)
        return outcome

    def reply(self, id_: str, answer: object) -> Op[ReplyOutcome]:
        """Answer a question, which acknowledges it."""
        outcome = yield from self._calls.reply(id_, answer, can=self._terms.can or ())
        self._settled((id_,))
        if self._receiver is not None:
            self._receiver.forget((id_,))
        return outcome

    def leave(self) -> Op[None]:
        """Nobody comes back for now: acknowledge what is done; what is at hand stays unread."""
        self._at_hand = ()
        try:
            yield from self._flush()
        except StoreTrouble as trouble:  # it comes again
            self._outage_log.tell(trouble)

    def end(self) -> Op[None]:
        """Take no more messages; what is at hand, or was not given out, stays unread."""
        self.closed = True
        self._context.keeper.remove_job(self)
        yield from self.leave()
        yield from self._duty.end()
        if self._receiver is not None:
            self._receiver.close()

    def wait(self) -> float:
        """As a chore: there is nothing to do in between."""
        return NEVER

    def run(self) -> Op[None]:
        """As a chore, likewise."""
        yield from ()

    def finish(self, trouble: str) -> Op[None]:
        """The client closes."""
        if trouble:
            self.closed = True
        else:
            yield from self.end()

    def _persist(self, most: int | None) -> Op[tuple[Received, ...]]:
        limit = self._terms.timeout
        ends = None if limit is None else self._clock.monotonic() + limit
        while self._goes_on():
            try:
                yield from self._rejoin()
                yield from self._more(ends, most)
            except StoreClosed:
                if self._goes_on():
                    raise
                break
            except StoreTrouble as trouble:
                late = ends is not None and self._clock.monotonic() >= ends
                if late or self._context.no_retry or isinstance(trouble, StoreMissing):
                    raise
                self._outage_log.tell(trouble)
                yield Pause(self._context.runner.capabilities.allow(RETRY_AFTER))
                continue
            self._outage_log.over()
            found = self._given(most)
            if found or (ends is not None and self._clock.monotonic() >= ends):
                return found
        return ()

    def _more(self, ends: float | None, most: int | None) -> Op[None]:
        """See that something is there to be given out, if it comes in time.

        What is done is acknowledged before that.
        """
        with self._guard:
            coming = {each.id: each.attempt for each in list(self._came)[:most]}
        yield from self._flush(coming)
        if coming:
            return
        receiver = yield from self._open(whole=most is None or not self._terms.ack)
        left = None if ends is None else max(0.0, ends - self._clock.monotonic())
        found = (yield from stoppable(receiver.take(left), self._is_to_look)) or ()
        with self._guard:
            self._came.extend(found)

    def _open(self, *, whole: bool) -> Op[InboxReceiver]:
        if self._receiver is None:
            can = yield from self._calls.abilities(self._terms.can)
            others = yield from receiver_notes(self._context.me().actor.agent)
            self._receiver = self._calls.receiver(can=can, redeliver=self._terms.redeliver)
            self._receiver.earlier = [each.given for each in others.standing]
            self._context.keeper.add_job(self)
        if self._stays:
            yield from self._duty.begin(whole=whole)
        return self._receiver

    def _rejoin(self) -> Op[None]:
        """Go on under the same name with another session, if ours is over."""
        if self._is_over():
            yield from self._context.rejoin(self._context.identity)
            if self._receiver is not None:
                self._receiver.follow(self._context.me().actor)

    def _is_over(self) -> bool:
        lease = self._context.session_lease
        rejoins = self._context.rejoins(self._context.identity) and not self._context.no_retry
        return rejoins and lease is not None and not lease.alive()

    def _goes_on(self) -> bool:
        return not self.closed

    def _is_to_look(self) -> bool:
        return self.closed or self._is_over() or (self._stays and not self._duty.stands)

    def _given(self, most: int | None) -> tuple[Received, ...]:
        with self._guard:
            many = len(self._came) if most is None else min(most, len(self._came))
            found = tuple([self._came.popleft() for _ in range(many)])
            self._at_hand = tuple([each.id for each in found])
        for each in found:
            if self._receiver is not None:
                self._receiver.begun(each.id)
        return found

    def _finish(self) -> None:
        """Whoever asks for more is done with what it has."""
        with self._guard:
            if self._terms.ack and self._at_hand:
                self._done += self._at_hand
            self._at_hand = ()

    def _settled(self, ids: Sequence[str]) -> None:
        """Whoever settled these is done with them, and need not be given them."""
        with self._guard:
            self._at_hand = tuple([each for each in self._at_hand if each not in ids])
            self._came = deque(each for each in self._came if each.id not in ids)

    def _flush(self, coming: dict[str, int] | None = None) -> Op[None]:
        """Acknowledge what is done, and note with that what is given out next."""
        done = tuple(self._done)
        if done and self._receiver is not None:
            hand = coming or {}
            yield from self._receiver.settle(done, self._duty.has(hand))
            self._duty.noted(hand)
            self._done = [each for each in self._done if each not in done]


class ReceivedMessage:
    """What a message says, the same for blocking and for async receivers."""

    def __init__(self, received: Received, reception: ReceiveLoop) -> None:
        self.received = received
        self._reception = reception

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id} from {self.sender}>"

    @property
    def id(self) -> str:
        """Its id: the same each time that it is delivered."""
        return self.received.id

    @property
    def kind(self) -> Kind:
        """What it is: an alert, a query, an answer, something shared, a stop, mail, or missed."""
        return self.received.kind

    @property
    def sender(self) -> str:
        """The agent that sent it."""
        return self.received.sender

    @property
    def at(self) -> float:
        """When it was sent, by the clock of its sender."""
        return self.received.at

    @property
    def seq(self) -> int:
        """Its place in the order: it grows with each message, whoever sent it."""
        return self.received.seq

    @property
    def to(self) -> tuple[str, ...]:
        """Whom it is to."""
        return self.received.to

    @property
    def type(self) -> str:
        """The type of an alert, or of what is shared."""
        return self.received.type

    @property
    def subject(self) -> str:
        """The subject of a mail."""
        return self.received.subject

    @property
    def thread(self) -> str:
        """The thread that a mail belongs to."""
        return self.received.thread

    @property
    def reply_to(self) -> str:
        """The mail, or the query, that it answers."""
        return self.received.reply_to

    @property
    def urgent(self) -> bool:
        """Whether it is to be read first."""
        return self.received.urgent

    @property
    def data(self) -> Any:  # noqa: ANN401 - whatever JSON can say
        """Its body: of a query, the question."""
        return self.received.data

    @property
    def attempt(self) -> int:
        """How often it was given out: more than once if a receiver died with it, or was too slow.

        It may be one too many if a receiver of this name died before the message came.
        """
        return self.received.attempt

    @property
    def expires_in(self) -> float | None:
        """How long a question could be answered when it was given out, in seconds."""
        return self.received.expires_in

    def _file(self) -> File:
        if self.received.file is None:
            raise BadInput(f"no file comes with {self.id}; look at message.data")
        return self.received.file


def ids_of(messages: Iterable[ReceivedMessage | str]) -> list[str]:
    """The ids of messages, each given as it came or by its id."""
    found = [each.id if isinstance(each, ReceivedMessage) else each for each in messages]
    if not all(isinstance(each, str) for each in found):
        raise BadInput("ack takes messages one by one; for several write ack(*messages)")
    return found
