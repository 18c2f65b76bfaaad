"""Queries: a question to an agent or to an ability, and its one answer.

    ask ──> open ──reply──> answered
              │ ├──cancel──────────────> cancelled
              │ ├──time is up──────────> expired
              │ ├──would never end─────> deadlock
              │ └──no agent answers──> handed ──reply, resolve──> answered
              │                           └──cancel──> cancelled
              └ (asked again with the same id and the same text: the same query)

``TRANSITIONS`` is the table of these moves; only ``transition`` changes a state.

``queries/{id}`` holds the question and its state. It can be answered while ``live/{id}`` exists;
the asker puts that key for as long as it waits. So the engine's clock decides what is too late, a
restart of either side changes nothing, and the question of a killed asker expires. Asker and
answerer share only this item: an asker that restarts asks with the same id and waits on or gets the
answer; an answerer that restarts finds the question in its inbox.

A question may outlive the wait for it, since an asker that knows the id can return. So the wait is
listed separately (``waits``) and ends separately (``leave``). An asker that returns with a longer
timeout extends the question.

A question to an ability is one message in the topic ``?ability``. The first answer wins; the same
commit removes the question from all inboxes.

If the asker allows it and no agent answers, the question goes to a person (``human_decision.py``).
The asker stops waiting then, and the answer arrives as a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys, outcomes
from interlock.core.decision import Decision, Event, Refusal, Success, Write
from interlock.core.outcomes import always
from interlock.nouns.messages import send_rules
from interlock.nouns.messages.human_decision import HumanDecision
from interlock.nouns.messages.message import ABLE, Refused, Unread
from interlock.nouns.messages.send_rules import SenderState

State: TypeAlias = Literal["open", "answered", "cancelled", "expired", "deadlock", "handed"]

TRANSITIONS: dict[str, tuple[tuple[State, ...], State]] = {
    "reply": (("open", "handed"), "answered"),
    "resolve": (("handed",), "answered"),
    "cancel": (("open", "handed"), "cancelled"),
    "expire": (("open",), "expired"),
    "refuse": (("open",), "deadlock"),
    "hand": (("open",), "handed"),
}
"""For each action: the states that allow it, and the state after it."""

TIMEOUT = 30.0
OPEN_LIMIT = 1000


def agent_share(limit: int) -> int:
    """The share of open questions that one agent may have: half, so that others can ask."""
    return limit - limit // 2


class Query(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A question as it is stored; ``to`` is an agent or ``?ability``.

    ``apart`` means that the answer is stored under ``replies/{id}``. ``room`` are the quota slots
    that it holds while it is open (``query_quota.py``). ``waits`` are the keys that list the
    asker's wait (``core/wait.py``), with its liveness key if it has its own; empty while the asker
    does not wait.
    """

    id: str
    agent: str
    to: str
    question: Raw
    at: float
    timeout: float
    session: str = ""
    waits: tuple[str, ...] = ()
    room: tuple[str, ...] = ()
    type: str = ""
    urgent: bool = False
    person: bool = False
    state: State = "open"
    answer: Raw = Raw(b"null")
    apart: bool = False
    by: str = ""
    replied: float = 0.0
    decision: str = ""
    cycle: tuple[str, ...] = ()
    trace: str = ""

    @property
    def mark(self) -> str:
        """The key of its unread mark."""
        if self.to.startswith(ABLE):
            return keys.topic(self.to, self.id)
        return keys.unread(self.to, self.id)

    @property
    def listings(self) -> tuple[str, ...]:
        """All keys that exist only while it is open."""
        own = keys.open_query(self.agent, self.id)
        return self.mark, own, keys.live(self.id), *self.waits, *self.room


class QuotaSlot(Struct, frozen=True):
    """The open question that holds a slot of the quota."""

    query: str


class CachedAnswer(Struct, frozen=True):
    """The last query that answered a question."""

    query: str


class Asked(Success, frozen=True, kw_only=True, tag="asked"):
    """The question is open and delivered to ``to``."""

    query: str
    to: str


class Answered(Success, frozen=True, kw_only=True, tag="answered"):
    """The answer, its author and its time; ``age`` if it was given to an earlier question."""

    query: str
    answer: Any
    by: str
    age: float | None = None
    replied_at: float | None = None


class TimedOut(Refusal, frozen=True, kw_only=True, tag="timed_out"):
    """No answer came in time; ``over`` if the question had already expired."""

    query: str
    to: str
    timeout: float
    over: bool = False


class QueryCancelled(outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The asker cancelled the question."""

    query: str


class TakenBack(Refusal, frozen=True, kw_only=True, tag="taken_back"):
    """The asker cancelled the question while this caller waited for its answer."""

    query: str


class NobodyToAsk(outcomes.Away, frozen=True, kw_only=True, tag="away"):
    """No agent that could answer is present."""

    to: str


class QueryDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: ``cycle`` lists the agents that wait for each other, you first."""

    query: str
    cycle: tuple[str, ...]


class Handed(Refusal, frozen=True, kw_only=True, tag="handed"):
    """The question went to a person; the answer will arrive as a message."""

    query: str
    decision: str


class TooMany(Refusal, frozen=True, kw_only=True, tag="too_many"):
    """The limit of open questions is reached, for ``agent`` or, if that is empty, for all.

    ``by`` counts the open questions of the agents with the most. ``retry_in`` is the number of
    seconds until the first of the open questions expires.
    """

    counted = True
    exit_status = 3
    http_status = 429
    open: int
    limit: int
    agent: str = ""
    by: Mapping[str, int] = {}
    retry_in: float | None = None


class QueryExists(outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """Another agent used this id, or (``ours``) the caller did for a different question."""

    query: str
    ours: bool = False


class Replied(Success, frozen=True, kw_only=True, tag="replied"):
    """The asker has the answer."""

    query: str
    to: str


class Late(Refusal, frozen=True, kw_only=True, tag="late"):
    """The question has already ended, in ``state``; ``mine`` if the caller asked it."""

    query: str
    state: State
    by: str = ""
    mine: bool = False


class NotAsked(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """The question belongs to another agent."""

    query: str
    agent: str


class UnknownQuery(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such question exists, or none any more; ``mine`` if the caller's own was meant."""

    what: Literal["query"] = always("query")
    query: str
    mine: bool = False


AskOutcome: TypeAlias = (
    Asked
    | Answered
    | TimedOut
    | TakenBack
    | NobodyToAsk
    | QueryDeadlock
    | Handed
    | TooMany
    | QueryExists
    | Refused
    | outcomes.GivenFenced
)
ReplyOutcome: TypeAlias = Replied | Late | NotAsked | UnknownQuery | outcomes.GivenFenced
CancelOutcome: TypeAlias = QueryCancelled | Late | NotAsked | UnknownQuery | outcomes.GivenFenced


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
    sender_writes = (
        *send_rules.slot_writes(query.agent, sender_state, now),
        *send_rules.mailbox_writes(sender_state),
    )
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
        before,
        session=query.session,
        waits=query.waits,
        timeout=max(query.timeout, before.timeout),
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


def outcome_of(query: Query) -> AskOutcome:
    """The outcome that the asker gets for a stored question."""
    match query.state:
        case "open":
            return Asked(query=query.id, to=query.to)
        case "answered":
            replied = query.replied or None
            return Answered(query=query.id, answer=query.answer, by=query.by, replied_at=replied)
        case "cancelled":
            return TakenBack(query=query.id)
        case "handed":
            return Handed(query=query.id, decision=query.decision)
        case "deadlock":
            return QueryDeadlock(query=query.id, cycle=query.cycle)
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
    handed = replace(query, state="handed", decision=decision_id, room=())
    return Decision(
        outcome=Handed(query=query.id, decision=decision_id),
        verb="query.hand",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            Write(keys.query(query.id), handed),
            Write(keys.decision(decision_id), asked),
            *sender_writes,
        ),
        events=(Event("query:handed", query.agent),),
    )


def transition(query: Query, act: str, **changes: object) -> Query:
    """The question after an action that its state allows."""
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
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    if query.person and decision_id:
        handed = _handed(query, decision_id, now)
        return replace(handed, deletes=query.listings)
    return Decision(
        outcome=TimedOut(query=query.id, to=query.to, timeout=query.timeout),
        verb="query.expire",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(Write(keys.query(query.id), transition(query, "expire")),),
        deletes=query.listings,
        events=(Event("query:expired", query.agent),),
    )


def refuse(query: Query, cycle: tuple[str, ...]) -> Decision[AskOutcome]:
    """End a question whose wait closes a cycle."""
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    return Decision(
        outcome=QueryDeadlock(query=query.id, cycle=cycle),
        verb="query.refuse",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(Write(keys.query(query.id), transition(query, "refuse", cycle=cycle)),),
        deletes=query.listings,
        events=(Event("query:deadlock", query.agent),),
    )
