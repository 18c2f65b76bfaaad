"""Queries: a question to one agent, or to whoever is able, and one answer to it.

    ask ──> open ──reply──> answered
              │ ├──cancel──────────────> cancelled
              │ ├──time is up──────────> expired
              │ ├──would never end─────> deadlock
              │ └──nobody answers──> handed ──reply, resolve──> answered
              │                         └──cancel──> cancelled
              └ (asked again with the same id, and the same words: the same query)

``TRANSITIONS`` is the table of these; nothing changes a state but ``transition``.

``queries/{id}`` is the question and how it stands.  It may be answered while ``live/{id}`` lives,
which is put with the question for as long as the asker is ready to wait: so the engine's clock
says what is too late, whoever restarts meanwhile, and an asker that was killed leaves nothing open
for ever.  Asker and answerer only meet in this item: an asker that comes back asks with the same
id, and waits on, or has the answer; an answerer that comes back finds the question in its inbox.

A question may outlast the wait for it: an asker that knows its id may go away and come back.  So
the wait is listed by itself (``waits``), and ends by itself (``leave``); asked again, it is listed
again.  Whoever comes back with a longer time than the question had gives it that.

A question to an ability is one message on the topic ``?ability``.  The first answer wins; in the
same commit the question disappears for all others.

A person is asked (``human_decision.py``) if the asker wants that and no agent answers.
Nobody waits then: the answer arrives as a message.
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
"""From where each act leads to where."""

TIMEOUT = 30.0
OPEN_LIMIT = 1000


def agent_share(limit: int) -> int:
    """How many of the questions that may be open one agent may have: half, so others can ask."""
    return limit - limit // 2


class Query(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A question as it is stored; ``to`` is an agent, or ``?ability``.

    ``apart`` is whether its answer stands under ``replies/{id}``.

    ``room`` are the places that it takes while it is open (``query_quota.py``).

    ``waits`` is where the wait of its asker is listed (``core/wait.py``), and what keeps it alive
    if that is a key of its own; empty while nobody waits.
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
        """Where it waits to be read."""
        if self.to.startswith(ABLE):
            return keys.topic(self.to, self.id)
        return keys.unread(self.to, self.id)

    @property
    def listings(self) -> tuple[str, ...]:
        """All that says that it is open, and ends with that."""
        own = keys.open_query(self.agent, self.id)
        return self.mark, own, keys.live(self.id), *self.waits, *self.room


class QuotaSlot(Struct, frozen=True):
    """Which open question has a place."""

    query: str


class CachedAnswer(Struct, frozen=True):
    """Which query answered a question last."""

    query: str


class Asked(Success, frozen=True, kw_only=True, tag="asked"):
    """It is open; ``to`` was told."""

    query: str
    to: str


class Answered(Success, frozen=True, kw_only=True, tag="answered"):
    """The answer, who gave it and when; ``age`` if it was given to an earlier question."""

    query: str
    answer: Any
    by: str
    age: float | None = None
    replied_at: float | None = None


class TimedOut(Refusal, frozen=True, kw_only=True, tag="timed_out"):
    """Nobody answered in time; ``over`` if it had ended already when it was asked again."""

    query: str
    to: str
    timeout: float
    over: bool = False


class QueryCancelled(outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The asker does not want to know any more."""

    query: str


class TakenBack(Refusal, frozen=True, kw_only=True, tag="taken_back"):
    """The question was taken back while somebody waited for its answer: there is none."""

    query: str


class NobodyToAsk(outcomes.Away, frozen=True, kw_only=True, tag="away"):
    """Nobody is there who could answer."""

    to: str


class QueryDeadlock(outcomes.Deadlock, frozen=True, kw_only=True, tag="deadlock"):
    """Waiting would never end: ``cycle`` names who waits for each other, beginning with you."""

    query: str
    cycle: tuple[str, ...]


class Handed(Refusal, frozen=True, kw_only=True, tag="handed"):
    """A person is asked; the answer will come as a message."""

    query: str
    decision: str


class TooMany(Refusal, frozen=True, kw_only=True, tag="too_many"):
    """So many questions are open that no more are taken, of ``agent`` or, without one, of all.

    ``by`` is who has how many open: those with the most.  ``retry_in`` is how many seconds the
    first of those that are open has left: after that there is room, if not sooner.
    """

    counted = True
    exit_status = 3
    open: int
    limit: int
    agent: str = ""
    by: Mapping[str, int] = {}
    retry_in: float | None = None


class QueryExists(outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """Somebody else asked under this id, or (``ours``) we did, and something else."""

    query: str
    ours: bool = False


class Replied(Success, frozen=True, kw_only=True, tag="replied"):
    """The asker has the answer."""

    query: str
    to: str


class Late(Refusal, frozen=True, kw_only=True, tag="late"):
    """Too late, or in vain: ``state`` says how the question ended; ``mine`` if we asked it."""

    query: str
    state: State
    by: str = ""
    mine: bool = False


class NotAsked(outcomes.NotOwner, frozen=True, kw_only=True, tag="not_owner"):
    """Somebody else was asked, or asked."""

    query: str
    agent: str


class UnknownQuery(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """There is no such question, or none any more; ``mine`` if one of ours was meant."""

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
    """What is known when somebody asks.

    ``before`` is what stands under the id, ``alive`` whether that may still be answered; ``here``
    whether anybody may answer; ``hold`` to ask even so.  ``full`` says that too many are open.
    ``notes`` list the wait.
    """

    before: Query | None = None
    alive: bool = True
    here: bool = True
    hold: bool = False
    full: bool = False
    notes: tuple[Write, ...] = ()
    least: float = 0.0


def ask(
    query: Query, ask: AskContext, facts: SenderState, now: float, matter: str
) -> Decision[AskOutcome]:
    """Put a question where whoever is asked finds it; asked before, find out how it stands.

    ``matter`` is the id under which a person would be asked.
    """
    if ask.before is not None:
        return _again(query, ask.before, ask, now, matter)
    if ask.full:
        return Decision(outcome=TooMany(open=0, limit=0))
    if (refused := send_rules.refusal(query.agent, facts, now, hold=ask.hold)) is not None:
        return refused
    query = replace(query, at=now)
    own = (*send_rules.slot_writes(query.agent, facts, now), *send_rules.mailbox_writes(facts))
    if not ask.here and not ask.hold:
        if not query.person:
            return Decision(outcome=NobodyToAsk(to=query.to))
        handed = _handed(query, matter, now, own)
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
            *own,
            *ask.notes,
        ),
        events=(Event("query:asked", query.agent),),
    )


def _again(
    query: Query, before: Query, ask: AskContext, now: float, matter: str
) -> Decision[AskOutcome]:
    """The same id, to the same agent, in the same words: the same question."""
    if before.agent != query.agent:
        return Decision(outcome=QueryExists(query=query.id))
    if before.to != query.to or _said(before) != _said(query):
        return Decision(outcome=QueryExists(query=query.id, ours=True))
    if before.state != "open":
        return Decision(outcome=_over(outcome_of(before)))
    if not ask.alive:
        ended = expire(before, now, matter)
        return replace(ended, outcome=_over(ended.outcome))
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


def _said(query: Query) -> bytes:
    return codec.canonical(bytes(query.question))


def _over(outcome: AskOutcome) -> AskOutcome:
    """The same to whoever asks again: what has timed out will not be answered under its id."""
    return replace(outcome, over=True) if isinstance(outcome, TimedOut) else outcome


def leave(query: Query, waits: tuple[str, ...], timeout: float) -> Decision[AskOutcome]:
    """Its asker, listed there, waits no more; the question stays open.

    ``timeout`` is how long that asker was ready to wait.
    """
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    outcome = TimedOut(query=query.id, to=query.to, timeout=timeout)
    if not waits or query.waits != waits:  # somebody else waits by now
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
    """How a question stands, to whoever asked it."""
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
    query: Query, matter: str, now: float, own: tuple[Write, ...] = ()
) -> Decision[AskOutcome]:
    """Let a person answer."""
    asked = HumanDecision(
        id=matter, about=f"query/{query.id}", agent=query.agent, question=query.question, at=now
    )
    handed = replace(query, state="handed", decision=matter, room=())
    return Decision(
        outcome=Handed(query=query.id, decision=matter),
        verb="query.hand",
        thing=f"query/{query.id}",
        trace=query.trace,
        puts=(
            Write(keys.query(query.id), handed),
            Write(keys.decision(matter), asked),
            *own,
        ),
        events=(Event("query:handed", query.agent),),
    )


def transition(query: Query, act: str, **changes: object) -> Query:
    """A question after an act, which must be one that its state allows."""
    allowed, state = TRANSITIONS[act]
    if query.state not in allowed:
        raise AssertionError(f"{act} of a query that is {query.state}")
    return replace(query, state=state, room=(), **changes)


def cancel(query: Query | None, id_: str, agent: str) -> Decision[CancelOutcome]:
    """Take a question back; only who asked it can."""
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


def expire(query: Query, now: float, matter: str = "") -> Decision[AskOutcome]:
    """The time is up: nobody answered.  A person is asked if the asker said so."""
    if query.state != "open":
        return Decision(outcome=outcome_of(query))
    if query.person and matter:
        handed = _handed(query, matter, now)
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
    """Waiting would never end."""
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
