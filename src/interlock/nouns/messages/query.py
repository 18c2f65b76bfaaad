"""Queries: stored values and outcomes of a question to an agent or to an ability.

    ask ──> open ──reply──> answered
              │ ├──cancel──────────────> cancelled
              │ ├──time is up──────────> expired
              │ ├──would never end─────> deadlock
              │ ├──recipient is gone───> away
              │ └──no agent answers──> handed ──reply, resolve──> answered
              │                           └──cancel──> cancelled
              └ (asked again with the same id and the same text: the same query)

``TRANSITIONS`` is the table of these moves; ``query_rules.py`` has the decisions.

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

If the asker allows it and no agent answers, the question is handed to a person as a decision
(``decision.py``), which is open until the person resolves it. The asker stops waiting then, and the
answer arrives as a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

from interlock.core import item_outcomes, keys, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import always
from interlock.nouns.messages.message import ABLE, Refused, SendOutcome, UnknownMessages

QueryState: TypeAlias = Literal[
    "open", "answered", "cancelled", "expired", "deadlock", "away", "handed"
]

TRANSITIONS: dict[str, tuple[tuple[QueryState, ...], QueryState]] = {
    "reply": (("open", "handed"), "answered"),
    "resolve": (("handed",), "answered"),
    "cancel": (("open", "handed"), "cancelled"),
    "expire": (("open",), "expired"),
    "refuse": (("open",), "deadlock"),
    "abandon": (("open",), "away"),
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
    that it holds while it is open (``limits.py``). ``waits`` are the keys that list the
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
    state: QueryState = "open"
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


class QueryAnswered(item_outcomes.Answered, frozen=True, kw_only=True, tag="answered"):
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


class QueryCancelled(item_outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The asker cancelled the question."""

    query: str


class TakenBack(Refusal, frozen=True, kw_only=True, tag="taken_back"):
    """The asker cancelled the question while this caller waited for its answer."""

    query: str


class NobodyToAsk(item_outcomes.Away, frozen=True, kw_only=True, tag="away"):
    """No agent that could answer is present, or none any more."""

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


class QueryExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
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
    state: QueryState
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
    | QueryAnswered
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


ReplyOutcome: TypeAlias = Replied | Late | NotAsked | UnknownQuery | SendOutcome | UnknownMessages


CancelOutcome: TypeAlias = QueryCancelled | Late | NotAsked | UnknownQuery | outcomes.GivenFenced
