"""Queries: the decisions that ask, answer, cancel and end a question; ``query.py`` has the states.

A question gets one answer, in the commit that ends it for all. The answerer is the recipient, or an
agent with the ability; a person may answer a question that no agent answered. If the asker no
longer waits, because the question went to a person, the answer is also sent as a message. Resolving
a decision is one commit with its effects, such as the answer to the query that it is about.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.thing_names import message_thing
from interlock.nouns.messages import decision_rules, send_rules
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.messages.message import ABLE, BODY_LIMIT, StoredMessage, Unread
from interlock.nouns.messages.query import (
    TRANSITIONS,
    Asked,
    AskOutcome,
    CachedAnswer,
    CancelOutcome,
    Handed,
    Late,
    NobodyToAsk,
    NotAsked,
    Query,
    QueryAnswered,
    QueryCancelled,
    QueryDeadlock,
    QueryExists,
    QueryState,
    QuotaSlot,
    Replied,
    ReplyOutcome,
    TakenBack,
    TimedOut,
    TooMany,
    UnknownQuery,
)
from interlock.nouns.messages.send_rules import SenderState


class AskContext(Struct, frozen=True, kw_only=True):
    """The stored state when an agent asks.

    ``before`` is the query with this id, ``alive`` whether it can still be answered; ``here`` is
    whether an agent can answer; ``hold`` asks even if none can. ``full`` means that the quota is
    used up. ``notes`` list the wait.
    """

    before: Query | None = None
    alive: bool = True
    here: bool = True
    hold: bool = False
    full: bool = False
    notes: tuple[Write, ...] = ()
    least: float = 0.0


def ask(
    query: Query, ask: AskContext, sender_state: SenderState, now: float, decision_id: str
) -> Decision[AskOutcome]:
    """Deliver a question; if it was asked before, return its state.

    ``decision_id`` is the id of the decision if a person is to answer.
    """
    if ask.before is not None:
        return _asked_again(query, ask.before, ask, now, decision_id)
    if ask.full:
        return Decision(outcome=TooMany(open=0, limit=0))
    if (refused := send_rules.refusal(query.agent, sender_state, now, hold=ask.hold)) is not None:
        return refused
    query = replace(query, at=now)
    sender_writes = tuple(send_rules.sender_writes(query.agent, sender_state, now))
    if not ask.here and not ask.hold:
        if not query.person:
            return Decision(outcome=NobodyToAsk(to=query.to))
        handed = _handed(query, decision_id, now, sender_writes)
        return replace(handed, events=(Event("query:asked", query.agent), *handed.events))
    return Decision(
        outcome=Asked(query=query.id, to=query.to),
        verb="query.ask",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            Write(keys.query(query.id), query),
            Write(query.mark, Unread(query.urgent, query.trace)),
            Write(keys.open_query(query.agent, query.id), {"to": query.to}),
            Write(keys.live(query.id), {"for": query.to}, max(query.timeout, ask.least)),
            *[Write(place, QuotaSlot(query.id)) for place in query.room],
            *sender_writes,
            *ask.notes,
        ),
        events=(Event("query:asked", query.agent),),
    )


def _asked_again(
    query: Query, before: Query, ask: AskContext, now: float, decision_id: str
) -> Decision[AskOutcome]:
    """The same id, recipient and text are the same question."""
    if before.agent != query.agent:
        return Decision(outcome=QueryExists(query=query.id))
    if before.to != query.to or _text(before) != _text(query):
        return Decision(outcome=QueryExists(query=query.id, ours=True))
    if before.state != "open":
        return Decision(outcome=_final(outcome_of(before)))
    if not ask.alive:
        ended = expire(before, now, decision_id)
        return replace(ended, outcome=_final(ended.outcome))
    longer = query.timeout > before.timeout
    live = Write(keys.live(query.id), {"for": before.to}, max(query.timeout, ask.least))
    resumed = replace(
        before, session=query.session, waits=query.waits, timeout=max(query.timeout, before.timeout)
    )
    return Decision(
        outcome=Asked(query=query.id, to=before.to),
        verb="query.resume",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(Write(keys.query(query.id), resumed), *([live] if longer else ()), *ask.notes),
        deletes=tuple([key for key in before.waits if key not in query.waits]),
    )


def _text(query: Query) -> bytes:
    return codec.canonical(bytes(query.question))


def _final(outcome: AskOutcome) -> AskOutcome:
    """Mark a timeout as final: the question will not be answered under this id."""
    return replace(outcome, over=True) if isinstance(outcome, TimedOut) else outcome


def leave(query: Query, waits: tuple[str, ...], timeout: float) -> Decision[AskOutcome]:
    """End the asker's wait that these keys list; the question stays open.

    ``timeout`` is how long that asker waited.
    """
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    outcome = TimedOut(query=query.id, to=query.to, timeout=timeout)
    if not waits or query.waits != waits:  # another process of the asker waits now
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="query.leave",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(Write(keys.query(query.id), replace(query, waits=())),),
        deletes=waits,
    )


def outcome_of(query: Query) -> AskOutcome:  # noqa: PLR0911 - one for each state
    """The outcome that the asker gets for a stored question."""
    match query.state:
        case "open":
            return Asked(query=query.id, to=query.to)
        case "answered":
            replied = query.replied or None
            return QueryAnswered(
                query=query.id, answer=query.answer, by=query.by, replied_at=replied
            )
        case "cancelled":
            return TakenBack(query=query.id)
        case "handed":
            return Handed(query=query.id, decision=query.decision)
        case "deadlock":
            return QueryDeadlock(query=query.id, cycle=query.cycle)
        case "away":
            return NobodyToAsk(to=query.to)
        case "expired":
            return TimedOut(query=query.id, to=query.to, timeout=query.timeout)


def _handed(
    query: Query, decision_id: str, now: float, sender_writes: tuple[Write, ...] = ()
) -> Decision[AskOutcome]:
    asked = HumanDecision(
        id=decision_id,
        about=f"query/{query.id}",
        agent=query.agent,
        question=query.question,
        at=now,
    )
    handed = transition(query, "hand", decision=decision_id)
    return Decision(
        outcome=Handed(query=query.id, decision=decision_id),
        verb="query.hand",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            Write(keys.query(query.id), handed),
            *decision_rules.opening(asked, now),
            *sender_writes,
        ),
        events=(Event("query:handed", query.agent),),
    )


def transition(query: Query, act: str, **changes: object) -> Query:
    """The question after an action that its state allows; no other function changes a state."""
    allowed, state = TRANSITIONS[act]
    if query.state not in allowed:
        raise AssertionError(f"{act} of a query that is {query.state}")
    return replace(query, state=state, room=(), **changes)


def cancel(query: Query | None, id_: str, agent: str) -> Decision[CancelOutcome]:
    """Cancel a question; only its asker may."""
    if query is None:
        return Decision(outcome=UnknownQuery(unknown=(id_,), query=id_))
    if agent != query.agent:
        return Decision(outcome=NotAsked(query=id_, agent=query.agent))
    if query.state == "cancelled":
        return Decision(outcome=QueryCancelled(query=id_))
    if query.state not in TRANSITIONS["cancel"][0]:
        return Decision(outcome=Late(query=id_, state=query.state, by=query.by))
    deletes = (*query.listings, *([keys.decision(query.decision)] if query.decision else ()))
    return Decision(
        outcome=QueryCancelled(query=id_),
        verb="query.cancel",
        thing=f"query/{id_}",
        puts=(Write(keys.query(id_), transition(query, "cancel")),),
        deletes=deletes,
        events=(Event("query:cancelled", agent),),
    )


def expire(query: Query, now: float, decision_id: str = "") -> Decision[AskOutcome]:
    """End a question without an answer; it goes to a person if the asker allowed that."""
    outcome = TimedOut(query=query.id, to=query.to, timeout=query.timeout)
    return _unanswered(query, "expire", outcome, now, decision_id)


def abandon(query: Query, now: float, decision_id: str) -> Decision[AskOutcome]:
    """End a question whose recipient is gone; it goes to a person if the asker allowed that."""
    return _unanswered(query, "abandon", NobodyToAsk(to=query.to), now, decision_id)


def _unanswered(
    query: Query, act: str, outcome: AskOutcome, now: float, decision_id: str
) -> Decision[AskOutcome]:
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    if query.person and decision_id:
        return replace(_handed(query, decision_id, now), deletes=query.listings)
    return _ended(query, act, outcome)


def refuse(query: Query, cycle: tuple[str, ...]) -> Decision[AskOutcome]:
    """End a question whose wait closes a cycle."""
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    outcome = QueryDeadlock(query=query.id, cycle=cycle)
    return _ended(query, "refuse", outcome, cycle=cycle)


def _ended(query: Query, act: str, outcome: AskOutcome, **changes: object) -> Decision[AskOutcome]:
    ended = transition(query, act, **changes)
    return Decision(
        outcome=outcome,
        verb=f"query.{act}",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(Write(keys.query(query.id), ended),),
        deletes=query.listings,
        events=(Event(f"query:{ended.state}", query.agent),),
    )


class ReplyContext(Struct, frozen=True, kw_only=True):
    """An answer, its author, and the stored state when it is given.

    ``able`` is whether the author has the ability that was asked for, ``alive`` whether the
    question can still be answered, ``unread`` whether it is in the author's inbox. ``message`` is
    the id of the message to an asker that no longer waits; ``closes`` is the decision that this
    answer resolves, ``decision_id`` the id of the decision if the answer is late.
    """

    agent: str
    answer: Raw
    now: float
    able: bool = True
    alive: bool = True
    unread: bool = False
    message: str = ""
    decision_id: str = ""
    closes: HumanDecision | None = None


def reply(query: Query | None, id_: str, context: ReplyContext) -> Decision[ReplyOutcome]:
    """Answer a question once."""
    if query is None:
        return Decision(outcome=UnknownQuery(unknown=(id_,), query=id_))
    agent, said = context.agent, context.answer
    able = query.to.startswith(ABLE) and context.able and agent != query.agent
    if agent != query.to and not able:
        return Decision(outcome=NotAsked(query=id_, agent=query.to))
    if query.state == "answered" and (query.by, bytes(query.answer)) == (agent, bytes(said)):
        return Decision(outcome=Replied(query=id_, to=query.agent))
    if query.state not in TRANSITIONS["reply"][0]:
        return Decision(outcome=Late(query=id_, state=query.state, by=query.by))
    if query.state == "open" and not context.alive:
        late: Decision[Any] = expire(query, context.now, context.decision_id)
        state: QueryState = "handed" if query.person and context.decision_id else "expired"
        return replace(late, outcome=Late(query=id_, state=state))
    return answer(query, "reply", context)


def answer(query: Query, act: str, context: ReplyContext) -> Decision[ReplyOutcome]:
    """End a question with its answer; ``act`` is ``reply``, or ``resolve`` for a decision."""
    agent, now = context.agent, context.now
    done = transition(query, act, answer=context.answer, by=agent, replied=now)
    read, _ = send_rules.ack_writes(agent, (query.id,) if context.unread else (), now)
    closed: tuple[Write, ...] = ()
    as_message: tuple[Write, ...] = ()
    if query.state == "handed":
        as_message = _answer_message(done, context.message)
        if (open_ := context.closes) is not None:
            closed = decision_rules.close(open_, agent, context.answer, now).puts
    return Decision(
        outcome=Replied(query=query.id, to=query.agent),
        verb=f"query.{act}",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            *_kept(done),
            Write(keys.last_answer(query.to, bytes(query.question)), CachedAnswer(query.id)),
            *as_message,
            *closed,
            *read,
        ),
        deletes=query.listings,
        events=(
            Event("query:replied", agent),
            *[Event("decision:resolved", agent, message_thing(write.key)) for write in closed],
        ),
    )


def _kept(query: Query) -> tuple[Write, ...]:
    """The question with its answer; an answer too large for one item gets its own."""
    if len(bytes(query.question)) + len(bytes(query.answer)) <= BODY_LIMIT:
        return (Write(keys.query(query.id), query),)
    alone = replace(query, answer=Raw(b"null"), apart=True)
    return Write(keys.query(query.id), alone), Write(keys.reply(query.id), query.answer)


def _answer_message(query: Query, message: str) -> tuple[Write, ...]:
    said = StoredMessage(
        id=message,
        kind="answer",
        sender=query.by,
        at=query.replied,
        to=(query.agent,),
        reply_to=query.id,
        data=query.answer,
        trace=query.trace,
    )
    return (
        Write(keys.message(message), said),
        Write(keys.unread(query.agent, message), Unread(trace=query.trace)),
    )
