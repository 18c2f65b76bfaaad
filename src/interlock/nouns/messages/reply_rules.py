"""Answering: a question gets one answer, in the commit that ends it for all.

The answerer is the recipient, or an agent with the ability; a person may answer a question that no
agent answered (``query_rules.py`` has the states). If the asker no longer waits, because the
question went to a person, the answer is also sent as a message.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.thing_names import message_thing
from interlock.nouns.messages import human_decision, send_rules
from interlock.nouns.messages.human_decision import HumanDecision
from interlock.nouns.messages.message import ABLE, BODY_LIMIT, StoredMessage, Unread
from interlock.nouns.messages.query_rules import (
    TRANSITIONS,
    CachedAnswer,
    Late,
    NotAsked,
    Query,
    Replied,
    ReplyOutcome,
    State,
    UnknownQuery,
    expire,
    transition,
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
    agent, answer = context.agent, context.answer
    able = query.to.startswith(ABLE) and context.able and agent != query.agent
    if agent != query.to and not able:
        return Decision(outcome=NotAsked(query=id_, agent=query.to))
    if query.state == "answered" and (query.by, bytes(query.answer)) == (agent, bytes(answer)):
        return Decision(outcome=Replied(query=id_, to=query.agent))
    if query.state not in TRANSITIONS["reply"][0]:
        return Decision(outcome=Late(query=id_, state=query.state, by=query.by))
    if query.state == "open" and not context.alive:
        late: Decision[Any] = expire(query, context.now, context.decision_id)
        state: State = "handed" if query.person and context.decision_id else "expired"
        return replace(late, outcome=Late(query=id_, state=state))
    return _answered(query, "reply", context)


def resolve(query: Query, context: ReplyContext) -> Decision[ReplyOutcome]:
    """Answer a question that went to a person."""
    return _answered(query, "resolve", context)


def _answered(query: Query, act: str, context: ReplyContext) -> Decision[ReplyOutcome]:
    agent, now = context.agent, context.now
    done = transition(query, act, answer=context.answer, by=agent, replied=now)
    read, _ = send_rules.ack_writes(agent, (query.id,) if context.unread else (), now)
    closed = _closed(context) if query.state == "handed" else ()
    as_message = _answer_message(done, context.message) if query.state == "handed" else ()
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


def _closed(context: ReplyContext) -> tuple[Write, ...]:
    if context.closes is None:
        return ()
    return human_decision.resolve(
        context.closes, context.closes.id, context.agent, context.answer, context.now
    ).puts


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
