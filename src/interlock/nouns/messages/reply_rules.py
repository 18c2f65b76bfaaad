"""Answering: a question has one answer, and the commit that gives it ends the question for all.

The answerer was asked by name, or is able to do what was asked for; a person may answer what
nobody else did (``query_rules.py`` has the states).  An answer to somebody who does not wait any
more, because a person was asked, is also sent as a message.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.messages import human_decision as matters
from interlock.nouns.messages import send_rules
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
    """An answer: who gives it, and what is known when it is given.

    ``able`` is whether it can do what a question to an ability asks for, ``alive`` whether the
    asker may still wait, ``unread`` whether the question waits in our inbox.  ``message`` is the id
    under which it is sent to an asker that does not wait any more; ``closes`` is what a person was
    asked about it, ``matter`` the id under which one is asked if it comes too late.
    """

    agent: str
    answer: Raw
    now: float
    able: bool = True
    alive: bool = True
    unread: bool = False
    message: str = ""
    matter: str = ""
    closes: HumanDecision | None = None


def reply(query: Query | None, id_: str, given: ReplyContext) -> Decision[ReplyOutcome]:
    """Answer a question that was put to us, once."""
    if query is None:
        return Decision(outcome=UnknownQuery(unknown=(id_,), query=id_))
    agent, answer = given.agent, given.answer
    able = query.to.startswith(ABLE) and given.able and agent != query.agent
    if agent != query.to and not able:
        return Decision(outcome=NotAsked(query=id_, agent=query.to))
    if query.state == "answered" and (query.by, bytes(query.answer)) == (agent, bytes(answer)):
        return Decision(outcome=Replied(query=id_, to=query.agent))
    if query.state not in TRANSITIONS["reply"][0]:
        return Decision(outcome=Late(query=id_, state=query.state, by=query.by))
    if query.state == "open" and not given.alive:
        late: Decision[Any] = expire(query, given.now, given.matter)
        state: State = "handed" if query.person and given.matter else "expired"
        return replace(late, outcome=Late(query=id_, state=state))
    return _answered(query, "reply", given)


def resolve(query: Query, given: ReplyContext) -> Decision[ReplyOutcome]:
    """A person answered what nobody else did."""
    return _answered(query, "resolve", given)


def _answered(query: Query, act: str, given: ReplyContext) -> Decision[ReplyOutcome]:
    agent, now = given.agent, given.now
    done = transition(query, act, answer=given.answer, by=agent, replied=now)
    read, _ = send_rules.ack_writes(agent, (query.id,) if given.unread else (), now)
    closed = _closed(given) if query.state == "handed" else ()
    told = _told(done, given.message) if query.state == "handed" else ()
    return Decision(
        outcome=Replied(query=query.id, to=query.agent),
        verb=f"query.{act}",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            *_kept(done),
            Write(keys.answer(query.to, bytes(query.question)), CachedAnswer(query.id)),
            *told,
            *closed,
            *read,
        ),
        deletes=query.listings,
        events=(
            Event("query:replied", agent),
            *[Event("decision:resolved", agent, keys.spoken(write.key)) for write in closed],
        ),
    )


def _kept(query: Query) -> tuple[Write, ...]:
    """A question with its answer; one that does not fit beside it has an item of its own."""
    if len(bytes(query.question)) + len(bytes(query.answer)) <= BODY_LIMIT:
        return (Write(keys.query(query.id), query),)
    alone = replace(query, answer=Raw(b"null"), apart=True)
    return Write(keys.query(query.id), alone), Write(keys.reply(query.id), query.answer)


def _closed(given: ReplyContext) -> tuple[Write, ...]:
    if given.closes is None:
        return ()
    return matters.resolve(given.closes, given.closes.id, given.agent, given.answer, given.now).puts


def _told(query: Query, message: str) -> tuple[Write, ...]:
    """The answer as a message, and the end of what a person was asked."""
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
