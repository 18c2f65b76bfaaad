"""Sending: whether somebody may, and the writes that make it true.

    to some    the message, a mark for each reader, and the turn that it took, in one commit
    to all     the message and the turn

A sender that was never heard of gets a mailbox with its first message, so that it can be answered.
Somebody unknown is no reader: most likely its name was misspelled.  Whoever knows better may have
the message held for it.

What is sent may acknowledge what it comes from in the same commit: handed on or answered, and never
both or neither.  If one of these messages does not wait for the sender any more, somebody was
quicker, maybe we ourselves before a crash: then nothing is sent, so the effect happens once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.messages import rate_limit as rate
from interlock.nouns.messages.message import (
    ALL,
    AlreadyAcknowledged,
    Halted,
    InboxFull,
    Limited,
    MessageExists,
    PausedAgent,
    ReadMark,
    Refused,
    Resumed,
    SenderPause,
    SendOutcome,
    Sent,
    StoredMessage,
    UnknownAgent,
    Unread,
)
from interlock.nouns.messages.rate_limit import Rate

T = TypeVar("T")

MAILBOX: dict[str, object] = {}
"""What stands in the item of a mailbox: that it is there says all.  So it can be put, and checked,
without having been read."""
REFUSAL_WINDOW = 60.0
GUARD = "limits.pause_after"
"""Who paused a sender that kept sending too much: the setting that says so."""


class SenderState(Struct, frozen=True, kw_only=True):
    """What is known about a sender and those it sends to.

    ``registered``  whether the sender has a mailbox, as far as we know
    ``unknown``     those without one
    ``full``        somebody for whom too much waits, and how much is allowed
    ``slots``       when the sender used its turns; ``slot`` is the one that is free
    ``marked``      whether a refusal was recorded not long ago
    ``violations``  when the sender was refused for its rate, if it is paused after so many
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
    """How a message goes: ``hold`` it for whoever is unknown; ``acks`` end with it.

    ``chosen`` is whether the sender chose its id, which is marked as taken then.
    """

    hold: bool = False
    chosen: bool = False
    acks: tuple[str, ...] = ()


class AckPlan(Struct, frozen=True, kw_only=True):
    """What was found of the messages to acknowledge.

    ``waiting`` are to the sender alone, ``heard`` are of topics, whose cursors ``moves`` move.
    ``already`` were acknowledged before; of the ``unknown`` nobody knows.
    """

    waiting: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    moves: tuple[Write, ...] = ()
    already: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


NO_ACKS = AckPlan()


class PauseState(Struct, frozen=True, kw_only=True):
    """Whether somebody has a mailbox, and who paused it."""

    known: bool
    paused: SenderPause | None


def refusal(sender: str, facts: SenderState, now: float, *, hold: bool) -> Decision[Refused] | None:
    """Why it cannot be sent; None if nothing is in the way."""
    if (halt := facts.paused) is not None:
        return Decision(
            outcome=Halted(agent=sender, by=halt.by, since=halt.since, reason=halt.reason)
        )
    if facts.unknown and not hold:
        return Decision(outcome=UnknownAgent(unknown=facts.unknown))
    if facts.rate.limit and facts.slot is None:
        limit, window = facts.rate.limit, facts.rate.window
        wait = rate.retry_in(facts.slots, facts.rate, now)
        refused = Limited(agent=sender, limit=limit, window=window, retry_in=wait)
        if facts.pause_after:
            return _violated(refused, sender, facts, now)
        return _noted(refused, sender, "limited", facts)
    if facts.full is not None:
        agent, depth = facts.full
        return _noted(InboxFull(agent=agent, depth=depth), sender, "full", facts)
    return None


def refusal_key(sender: str) -> str:
    """The mark that a refusal of this sender was recorded not long ago."""
    return keys.refused(f"post/{keys.part(sender)}")


def _noted(outcome: Refused, sender: str, word: str, facts: SenderState) -> Decision[Refused]:
    """A refusal, recorded once in a while and otherwise without a trace."""
    if facts.marked:
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="message.refuse",
        thing=f"agent/{sender}",
        puts=(Write(refusal_key(sender), {"for": word}, REFUSAL_WINDOW),),
        events=(Event(f"message:{word}", sender),),
    )


def _violated(outcome: Limited, sender: str, facts: SenderState, now: float) -> Decision[Refused]:
    """A refusal that counts: after so many within a minute the sender is paused."""
    since = [at for at in facts.violations if abs(now - at) < REFUSAL_WINDOW]
    times = [*since, now]
    if len(times) < facts.pause_after:
        counted = {"for": "limited", "times": times}
        put = Write(refusal_key(sender), counted, REFUSAL_WINDOW)
        noted = _noted(outcome, sender, "limited", facts)
        return replace(noted, puts=(put,), quiet=not noted.verb)
    reason = f"{len(times)} messages too many within a minute"
    paused = SenderPause(agent=sender, by=GUARD, since=now, reason=reason)
    return Decision(
        outcome=Halted(agent=sender, by=GUARD, since=now, reason=reason),
        verb="agent.pause",
        thing=f"agent/{sender}",
        puts=(Write(keys.paused(sender), paused),),
        deletes=(refusal_key(sender),),
        events=(Event("agent:paused", sender),),
    )


def send(
    message: StoredMessage,
    facts: SenderState,
    now: float,
    terms: SendOptions,
    ends: AckPlan = NO_ACKS,
) -> Decision[SendOutcome]:
    """Send it: to those it names, or to all who subscribed to its topic."""
    if facts.exists:
        return Decision(outcome=MessageExists(message=message.id))
    if ends.already or ends.unknown:
        return Decision(outcome=AlreadyAcknowledged(messages=ends.already, unknown=ends.unknown))
    if (refused := refusal(message.sender, facts, now, hold=terms.hold)) is not None:
        return refused
    message = replace(message, at=now)  # as its turn says: a rate is kept by the times shown
    puts, deletes = ack_writes(message.sender, ends.waiting, now)
    id_ = (Write(keys.taken(message.id), ReadMark(message.at)),) if terms.chosen else ()
    written = (
        *_message(message),
        *id_,
        *slot_writes(message.sender, facts, now),
        *mailbox_writes(facts),
        *puts,
        *ends.moves,
    )
    return Decision(
        outcome=Sent(
            message=message.id,
            kind=message.kind,
            to=message.to,
            type=message.type,
            thread=message.thread,
        ),
        verb=f"message.{'send' if message.kind == 'mail' else message.kind}",
        thing=f"alert/{message.type}" if message.kind == "alert" else f"message/{message.id}",
        puts=written,
        deletes=deletes,
        events=(
            Event("message:sent", message.sender, f"message/{message.id}"),
            *_received(message.sender, (*ends.waiting, *ends.heard)),
            *_stops(message),
        ),
    )


def _received(agent: str, ids: Iterable[str]) -> Iterable[Event]:
    return (Event("message:received", agent, keys.said(each)) for each in ids)


def _stops(message: StoredMessage) -> Iterable[Event]:
    """Who is asked to end: that is a part of its own story."""
    if message.kind == "stop":
        yield from (Event("agent:stop", each, f"agent/{each}") for each in message.to)


def topic_of(message: StoredMessage) -> str:
    """The topic of a message to all who subscribed; empty if it is to some."""
    if message.kind == "alert":
        return message.type
    return ALL if message.to == (ALL,) else ""


def _message(message: StoredMessage) -> Iterable[Write]:
    if message.kind == "mail":
        yield Write(keys.sent(message.sender, message.id), ReadMark(message.at))
    if to_all := topic_of(message):
        yield Write(keys.topic(to_all, message.id), message)
        return
    yield Write(keys.message(message.id), message)
    refusal_key = Unread(message.urgent, message.trace)
    yield from (Write(keys.unread(each, message.id), refusal_key) for each in message.to)


def slot_writes(sender: str, facts: SenderState, now: float) -> Iterable[Write]:
    """The turn that sending takes, and the mailbox of somebody new."""
    if facts.slot is not None:
        yield Write(keys.rate(sender, facts.slot), now)
    if not facts.registered:
        yield Write(keys.mailbox(sender), MAILBOX)


def mailbox_writes(facts: SenderState) -> Iterable[Write]:
    """Mailboxes for those who have not come yet."""
    return (Write(keys.mailbox(agent), MAILBOX) for agent in facts.unknown)


def ack_writes(
    agent: str, ids: Iterable[str], now: float
) -> tuple[tuple[Write, ...], tuple[str, ...]]:
    """What acknowledging these messages writes, and what it takes away."""
    known = tuple(ids)
    puts = tuple([Write(keys.read(agent, each), ReadMark(now)) for each in known])
    return puts, tuple([keys.unread(agent, each) for each in known])


def pause(
    standing: PauseState, agent: str, by: str, reason: str, now: float
) -> Decision[PausedAgent | UnknownAgent]:
    """Let an agent send nothing from now on."""
    before = standing.paused
    if not standing.known and before is None:
        return Decision(outcome=UnknownAgent(unknown=(agent,), hold=False))
    if before is not None and (before.by, before.reason) == (by, reason):
        return Decision(outcome=PausedAgent(agent=agent))
    paused = SenderPause(agent=agent, by=by, since=now, reason=reason)
    return Decision(
        outcome=PausedAgent(agent=agent),
        verb="agent.pause",
        thing=f"agent/{agent}",
        puts=(Write(keys.paused(agent), paused),),
        events=(Event("agent:paused", agent),),
    )


def resume(standing: PauseState, agent: str) -> Decision[Resumed | UnknownAgent]:
    """Let an agent send again."""
    if not standing.known and standing.paused is None:
        return Decision(outcome=UnknownAgent(unknown=(agent,), hold=False))
    if standing.paused is None:
        return Decision(outcome=Resumed(agent=agent))
    return Decision(
        outcome=Resumed(agent=agent),
        verb="agent.resume",
        thing=f"agent/{agent}",
        deletes=(keys.paused(agent),),
        events=(Event("agent:resumed", agent),),
    )
