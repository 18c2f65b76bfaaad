"""Sending: whether an agent may send, and the writes that send a message.

    direct     the message, an unread mark for each recipient and a rate slot, in one commit
    by topic   the message and a rate slot

A new sender gets a mailbox with its first message, so that others can reply. An unknown recipient
is refused, since its name is probably misspelled; with ``hold`` it gets a mailbox that keeps the
message.

The **rate** of a sender is a number of messages in a sliding window, measured by slots
(``core/rate.py``). Sending takes a free slot in the same commit, so no window has more than
``limit`` messages, from any number of processes of one sender. A slot holds exactly the time of the
message that took it, so the times that messages show keep the rate too.

A send may acknowledge received messages in the same commit, so that a message is handled exactly
once: both happen, or neither. If one of these messages is no longer unread, another process handled
it, maybe our own before a crash; then nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import REFUSAL_WINDOW, Decision, Event, Write
from interlock.core.rate import Rate, slot_retry_in
from interlock.core.thing_names import message_thing_by_id
from interlock.nouns.agents.session_rules import SenderPause
from interlock.nouns.messages.message import (
    ALL,
    AgentResumed,
    AlreadyAcknowledged,
    Halted,
    InboxFull,
    Limited,
    MessageExists,
    PausedAgent,
    ReadMark,
    Refused,
    SendOutcome,
    Sent,
    StoredMessage,
    UnknownAgent,
    Unread,
)

T = TypeVar("T")

MAILBOX: dict[str, object] = {}
"""The value of a mailbox: its existence is all that matters, so it can be put and checked without
having been read.
"""
GUARD = "limits.pause_after"
"""The name of the setting that pauses a sender, given as the one who paused it."""


class SenderState(Struct, frozen=True, kw_only=True):
    """The stored state of a sender and its recipients that decides whether it may send.

    ``registered``  the sender is known to have a mailbox
    ``unknown``     recipients without a mailbox
    ``full``        a recipient whose inbox is full, and the limit
    ``slots``       when the sender used its rate slots; ``slot`` is a free one
    ``marked``      a refusal was recorded within the last minute
    ``violations``  when the sender exceeded its rate, if violations pause it
    """

    paused: SenderPause | None = None
    exists: bool = False
    registered: bool = True
    unknown: tuple[str, ...] = ()
    full: tuple[str, int] | None = None
    rate: Rate = Rate()
    slots: Mapping[int, float | None] = {}
    slot: int | None = None
    marked: bool = False
    pause_after: int = 0
    violations: tuple[float, ...] = ()


class SendOptions(Struct, frozen=True, kw_only=True):
    """How a message is sent.

    ``hold`` keeps it for unknown recipients; ``acks`` are acknowledged in the same commit;
    ``chosen`` means that the sender chose the id, which is then marked as taken.
    """

    hold: bool = False
    chosen: bool = False
    acks: tuple[str, ...] = ()


class AckPlan(Struct, frozen=True, kw_only=True):
    """The state of the messages that a send acknowledges.

    ``waiting`` are direct messages, ``from_topics`` messages of topics, and ``moves`` the writes
    of their cursors. ``already`` were acknowledged before; ``unknown`` are not in the inbox.
    """

    waiting: tuple[str, ...] = ()
    from_topics: tuple[str, ...] = ()
    moves: tuple[Write, ...] = ()
    already: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


NO_ACKS = AckPlan()


class PauseState(Struct, frozen=True, kw_only=True):
    """Whether an agent has a mailbox, and its pause."""

    known: bool
    paused: SenderPause | None


def refusal(sender: str, state: SenderState, now: float, *, hold: bool) -> Decision[Refused] | None:
    """Why the sender may not send; None if it may."""
    if (halt := state.paused) is not None:
        return Decision(
            outcome=Halted(agent=sender, by=halt.by, since=halt.since, reason=halt.reason)
        )
    if state.unknown and not hold:
        return Decision(outcome=UnknownAgent(unknown=state.unknown))
    if state.rate.limit and state.slot is None:
        limit, window = state.rate.limit, state.rate.window
        wait = slot_retry_in(state.slots, state.rate, now)
        refused = Limited(agent=sender, limit=limit, window=window, retry_in=wait)
        if state.pause_after:
            return _violation(refused, sender, state, now)
        return _recorded(refused, sender, "limited", state)
    if state.full is not None:
        agent, depth = state.full
        return _recorded(InboxFull(agent=agent, depth=depth), sender, "full", state)
    return None


def refusal_key(sender: str) -> str:
    """The key of the mark that a refusal of this sender was recorded."""
    return keys.refusal_mark("post", sender, "message.refuse")


def _recorded(outcome: Refused, sender: str, word: str, state: SenderState) -> Decision[Refused]:
    """A refusal, recorded at most once in the window."""
    if state.marked:
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="message.refuse",
        thing=f"agent/{sender}",
        puts=(Write(refusal_key(sender), {"for": word}, REFUSAL_WINDOW),),
        events=(Event(f"message:{word}", sender),),
    )


def _violation(outcome: Limited, sender: str, state: SenderState, now: float) -> Decision[Refused]:
    """A refusal that counts: too many within a minute pause the sender."""
    since = [at for at in state.violations if abs(now - at) < REFUSAL_WINDOW]
    times = [*since, now]
    if len(times) < state.pause_after:
        counted = {"for": "limited", "times": times}
        put = Write(refusal_key(sender), counted, REFUSAL_WINDOW)
        recorded = _recorded(outcome, sender, "limited", state)
        return replace(recorded, puts=(put,), quiet=not recorded.verb)
    reason = f"{len(times)} messages too many within a minute"
    paused = SenderPause(agent=sender, by=GUARD, since=now, reason=reason)
    halted = Halted(agent=sender, by=GUARD, since=now, reason=reason)
    return _paused(paused, halted, deletes=(refusal_key(sender),))


def send(
    message: StoredMessage,
    state: SenderState,
    now: float,
    options: SendOptions,
    acks: AckPlan = NO_ACKS,
) -> Decision[SendOutcome]:
    """Send a message to its recipients, or to the subscribers of its topic."""
    if state.exists:
        return Decision(outcome=MessageExists(message=message.id))
    if acks.already or acks.unknown:
        return Decision(outcome=AlreadyAcknowledged(messages=acks.already, unknown=acks.unknown))
    if (refused := refusal(message.sender, state, now, hold=options.hold)) is not None:
        return refused
    if message.at != now:
        message = replace(message, at=now)  # that of its slot, so that readers can check the rate
    sender, message_id, kind = message.sender, message.id, message.kind
    puts = _delivered(message)
    if kind == "mail":
        puts.insert(0, Write(keys.sent(sender, message_id), ReadMark(now)))
    if options.chosen:
        puts.append(Write(keys.chosen_id(message_id), ReadMark(now)))
    puts += sender_writes(sender, state, now)
    events = [Event("message:sent", sender, f"message/{message_id}")]
    deletes: tuple[str, ...] = ()
    if acks is not NO_ACKS:
        read, deletes = ack_writes(sender, acks.waiting, now)
        puts += (*read, *acks.moves)
        ended = (*acks.waiting, *acks.from_topics)
        events += [Event("message:received", sender, message_thing_by_id(each)) for each in ended]
    if kind == "stop":  # also an event in the history of its recipients
        events += [Event("agent:stop", each, f"agent/{each}") for each in message.to]
    return Decision(
        outcome=Sent(
            message=message_id,
            kind=kind,
            to=message.to,
            type=message.type,
            thread=message.thread,
        ),
        verb="message.send" if kind == "mail" else f"message.{kind}",
        thing=f"alert/{message.type}" if kind == "alert" else f"message/{message_id}",
        puts=tuple(puts),
        deletes=deletes,
        events=tuple(events),
    )


def topic_of(message: StoredMessage) -> str:
    """The topic of a message; empty for a direct message."""
    if message.kind == "alert":
        return message.type
    return ALL if message.to == (ALL,) else ""


def notice_writes(message: StoredMessage, agents: Iterable[str] = ()) -> Iterable[Write]:
    """The writes of a message that the fleet itself sends, in the commit that it is about.

    It takes no rate slot.  Its recipients get mailboxes, and so do these ``agents``.
    """
    yield from _delivered(message)
    for agent in dict.fromkeys((*message.to, *agents)):
        yield Write(keys.mailbox(agent), MAILBOX)


def _delivered(message: StoredMessage) -> list[Write]:
    if to_all := topic_of(message):
        return [Write(keys.topic(to_all, message.id), message)]
    mark = Unread(message.urgent, message.trace)
    unread = [Write(keys.unread(each, message.id), mark) for each in message.to]
    return [Write(keys.message(message.id), message), *unread]


def sender_writes(sender: str, state: SenderState, now: float) -> list[Write]:
    """The writes of a rate slot, and the mailboxes of a new sender and of unknown recipients."""
    writes = []
    if state.slot is not None:
        writes.append(Write(keys.rate_slot(sender, state.slot), now))
    if not state.registered:
        writes.append(Write(keys.mailbox(sender), MAILBOX))
    if state.unknown:
        writes += [Write(keys.mailbox(agent), MAILBOX) for agent in state.unknown]
    return writes


def ack_writes(
    agent: str, ids: Iterable[str], now: float
) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """The puts and deletes that acknowledge direct messages."""
    known = tuple(ids)
    puts = tuple([Write(keys.read(agent, each), ReadMark(now)) for each in known])
    return puts, tuple([keys.unread(agent, each) for each in known])


def pause(
    current: PauseState, agent: str, by: str, reason: str, now: float
) -> Decision[PausedAgent | UnknownAgent]:
    """Do not let an agent send."""
    before = current.paused
    if not current.known and before is None:
        return Decision(outcome=UnknownAgent(unknown=(agent,), hold=False))
    if before is not None and (before.by, before.reason) == (by, reason):
        return Decision(outcome=PausedAgent(agent=agent))
    paused = SenderPause(agent=agent, by=by, since=now, reason=reason)
    return _paused(paused, PausedAgent(agent=agent))


def _paused(pause: SenderPause, outcome: T, deletes: tuple[str, ...] = ()) -> Decision[T]:
    return Decision(
        outcome=outcome,
        verb="agent.pause",
        thing=f"agent/{pause.agent}",
        puts=(Write(keys.paused(pause.agent), pause),),
        deletes=deletes,
        events=(Event("agent:paused", pause.agent),),
    )


def resume(current: PauseState, agent: str) -> Decision[AgentResumed | UnknownAgent]:
    """Let an agent send again."""
    if not current.known and current.paused is None:
        return Decision(outcome=UnknownAgent(unknown=(agent,), hold=False))
    if current.paused is None:
        return Decision(outcome=AgentResumed(agent=agent, already=True))
    return Decision(
        outcome=AgentResumed(agent=agent),
        verb="agent.resume",
        thing=f"agent/{agent}",
        deletes=(keys.paused(agent),),
        events=(Event("agent:resumed", agent),),
    )
