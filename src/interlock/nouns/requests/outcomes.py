"""What the calls of requests and of the quarantine answer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always
from interlock.nouns.requests.audit import AuditEntry
from interlock.nouns.requests.exchange import EntryKind
from interlock.nouns.requests.request import RequestState, ResultStatus


class RequestSent(Success, frozen=True, kw_only=True, tag="requested"):
    """The request is durable at home; it is also on the bus, unless it is ``spooled``.

    A spooled request is posted as soon as the bus answers; ``reason`` says why it waits.
    ``warning`` says that the other swarm lists no such receiver, with names that are close.
    """

    own_words = ("reason",)

    request: str
    to_swarm: str
    to_agent: str
    deadline: float
    spooled: bool = False
    reason: str = ""
    warning: str = ""


class RequestExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A request was sent under this id before, and stays as it is.

    ``differs`` says that it asks for something else: it has another payload, type or receiver.
    """

    request: str
    state: RequestState
    differs: bool = False


class SwarmNotAllowed(Refusal, frozen=True, kw_only=True, tag="not_allowed"):
    """The swarm is not on our list."""

    exit_status = 3
    http_status = 403
    swarm: str


class RequestLimited(Refusal, frozen=True, kw_only=True, tag="rate_limited"):
    """The agent made as many requests to this swarm as it may; retry after ``retry_in`` seconds."""

    http_status = 429
    agent: str
    swarm: str
    limit: int
    window: float
    retry_in: float


class SwarmUnavailable(Refusal, frozen=True, kw_only=True, tag="unavailable"):
    """Nothing is sent to this swarm for now: it did not answer, or its record is bad.

    ``unable`` means that no swarm which is online can do it, if any would do (``*``).
    """

    http_status = 429
    swarm: str
    reason: Literal["circuit_open", "conflicts", "timeouts", "unable"]
    retry_in: float


class SwarmQueueFull(item_outcomes.Full, frozen=True, kw_only=True, tag="full"):
    """Too many requests wait for this swarm."""

    swarm: str
    depth: int
    limit: int
    retry_in: float


class RequestAnswered(item_outcomes.Answered, frozen=True, kw_only=True, tag="answered"):
    """The result of a request."""

    request: str
    from_swarm: str
    executed_by: str
    executed_at: float
    result_posted_at: float
    result: Any = None
    status: ResultStatus = "success"
    confidence: float | None = None
    citations: tuple[str, ...] = ()


class RequestFailed(item_outcomes.Failed, Refusal, frozen=True, kw_only=True, tag="failed"):
    """The swarm that was asked answered with an error."""

    request: str
    from_swarm: str
    executed_by: str
    executed_at: float
    result_posted_at: float
    error: str
    status: ResultStatus = "error"
    confidence: float | None = None
    citations: tuple[str, ...] = ()


class RequestOpen(Refusal, frozen=True, kw_only=True, tag="unanswered"):
    """There is no result yet; the request goes on, with further attempts until its deadline.

    ``reason`` says what it waits for: the bus, the receiver, or a person (``decision``); ``next``
    what happens next, and ``next_at`` when.  ``warning`` is that of the call that sent it.
    """

    own_words = ("reason", "next")

    request: str
    to_swarm: str
    to_agent: str
    state: RequestState
    attempt: int
    reason: str
    next: str = ""
    next_at: float | None = None
    decision: str = ""
    warning: str = ""


class RequestOver(outcomes.Gone, frozen=True, kw_only=True, tag="gone"):
    """The request has ended and there is no result: it was cancelled, or the result is deleted."""

    request: str
    state: RequestState
    reason: str
    replaced_by: str = ""


class RequestCancelled(item_outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """The request has ended; a result that comes later is not accepted."""

    request: str
    already: bool = False


class UnknownRequest(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such request was sent from here, or it was deleted after its deadline."""

    what: Literal["request"] = always("request")


SendRefusal: TypeAlias = (
    RequestExists | SwarmNotAllowed | RequestLimited | SwarmUnavailable | SwarmQueueFull
)
ResultOutcome: TypeAlias = (
    RequestAnswered | RequestFailed | RequestOpen | RequestOver | UnknownRequest
)
SendRequestOutcome: TypeAlias = (
    RequestSent | SendRefusal | RequestAnswered | RequestFailed | RequestOpen | RequestOver
)


class RequestView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request, for display; ``from_swarm`` is set for a request that we received.

    state    of a sent one: open, escalated, answered or cancelled; of a received one: received,
             running, answered, and acknowledged when its asker has taken the result
    step     how many of the ten steps are done, as far as this home knows
    place    where it is: the outbox, the bus, a swarm, the agent that works on it, a decision
    reason   what it waits for, or why it ended
    next     what happens next, at ``next_at`` if nothing else happens before
    """

    own_words = ("next",)

    request: str
    state: str
    task_type: str
    agent: str
    priority: int
    at: float
    deadline: float
    to_swarm: str = ""
    to_agent: str = ""
    from_swarm: str = ""
    attempt: int = 1
    step: int = 0
    place: str = ""
    reason: str = ""
    next: str = ""
    next_at: float | None = None
    task: str = ""
    decision: str = ""
    ended_at: float | None = None


class RequestList(Listing[RequestView], frozen=True, kw_only=True):
    """Requests by id; ``more`` is the last one if there are more: received ones as ID@SWARM."""

    listed: ClassVar[str] = "requests"

    requests: tuple[RequestView, ...]
    more: str | None = None


class AuditList(Listing[AuditEntry], frozen=True, kw_only=True):
    """The last events of a day, oldest first; ``earlier`` if the day has more before them."""

    listed: ClassVar[str] = "events"

    events: tuple[AuditEntry, ...]
    earlier: bool = False


class AuditWritten(Success, frozen=True, kw_only=True, tag="written"):
    """The daily files are up to date, up to a revision of the record.

    ``missed`` says that entries which were not copied yet are gone from the record: copy more
    often, or have the record keep more.
    """

    folder: str
    lines: int
    revision: int
    missed: bool = False
    deleted: tuple[str, ...] = ()


class AuditBusy(outcomes.Busy, frozen=True, kw_only=True, tag="busy"):
    """Another process writes to this folder at the moment."""

    folder: str


class QuarantineView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in quarantine; ``releasable`` says whether an operator may let it in."""

    id: str
    kind: EntryKind
    reason: str
    detail: str
    at: float
    releasable: bool = False
    message: str = ""
    request: str = ""
    swarm: str = ""
    agent: str = ""
    key: str = ""
    payload: Any = None


class QuarantineList(Listing[QuarantineView], frozen=True, kw_only=True):
    """Messages in quarantine, oldest first; ``more`` is the last id if there are more."""

    listed: ClassVar[str] = "messages"

    messages: tuple[QuarantineView, ...]
    more: str | None = None


class QuarantineReleased(outcomes.Released, frozen=True, kw_only=True, tag="released"):
    """The message is taken in; ``task`` is its task, and ``already`` says that it was before."""

    id: str
    task: str = ""
    already: bool = False


class QuarantineKept(Refusal, frozen=True, kw_only=True, tag="kept"):
    """The message cannot be released, and stays."""

    id: str
    reason: str
    detail: str


class QuarantineDropped(Success, frozen=True, kw_only=True, tag="discarded"):
    """These messages are deleted."""

    dropped: tuple[str, ...]


class UnknownQuarantine(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such message is in quarantine."""

    what: Literal["quarantine"] = always("quarantine")
