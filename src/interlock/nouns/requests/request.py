"""Requests: what an agent asked of another swarm, as the sender's home store keeps it.

    make ──> open ──answer──────────────────────────────────> answered
              │ ^ └──cancel──────────────────────────────────> cancelled
       retry  └─┘ └──no answer after all attempts,───> escalated ──answer──> answered
                     or its deadline passed                │ └──cancel───> cancelled
                  ^                                        │ └──ask again──┐ ^
                  └────────────resume (queue_for_later)────┘               └─┘

``TRANSITIONS`` is the table of these moves; ``rules.py`` has the decisions.

The id stays the same over all attempts, and so does the message's id, which the receiver keeps
until the deadline: an attempt that arrives twice is taken in once.  Each attempt is signed again,
with a later expiry, so it has another head.  A result binds the head of the attempt that was taken
in, which may be any of them: ``heads`` has the digests of all.

The **timeout** ends the wait of the asker, not the request.  The **deadline** never moves; the
receiver takes nothing in after it, and a request that is still open then is escalated.

A request that the receiver has taken in (``taken``) is a task in its home store: it is not sent
again and not escalated before the deadline, however long the work takes.

A **finding** is the stored result.  It is kept for an hour; the request keeps its digest until the
deadline, so that a second result with other bytes is still noticed.

Priorities: a request has 1 to 10, the higher the more urgent; a task orders by lower numbers.  The
map is 10 minus the priority, which keeps the default of both, 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, validate
from interlock.errors import BadInput, TooLarge
from interlock.nouns.swarms.head import RequestHead, digest, milliseconds

RequestState: TypeAlias = Literal["open", "escalated", "answered", "cancelled"]
Act: TypeAlias = Literal["request", "inform", "escalate"]
ResultStatus: TypeAlias = Literal["success", "error"]

TRANSITIONS: dict[str, tuple[tuple[RequestState, ...], RequestState]] = {
    "retry": (("open",), "open"),
    "answer": (("open", "escalated"), "answered"),
    "escalate": (("open",), "escalated"),
    "resume": (("escalated",), "open"),
    "ask_again": (("escalated",), "escalated"),
    "cancel": (("open", "escalated"), "cancelled"),
}
"""For each action: the states that allow it, and the state after it."""

TIMEOUT = 30.0
LEASE = 60.0
"""Seconds that a claim on a request's task lives without its worker."""
RETRY_AFTER = (60.0, 120.0, 240.0)
"""Seconds after an attempt until the next one."""
DEADLINE = 24 * 3600.0
FINDING_KEPT = 3600.0
CITATIONS_LIMIT = 64
CITATION_LIMIT = 1024
CITATIONS_SIZE = 8 * 1024
"""Bytes of all citations together: they are a part of the head."""
PRIORITY, LEAST_PRIORITY, GREATEST_PRIORITY = 5, 1, 10


class OutgoingRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as its sender stores it; the body is an item of its own.  Times are in seconds.

    ``attempt``    the number of the last attempt, ``first`` that of the first one since it was made
                   or resumed
    ``sent``       when the last attempt was signed; ``posted`` when it reached the bus
    ``timed_out``  the timeout of the last attempt was counted
    ``taken``      when the receiver took it in
    ``heads``      the digests of all heads that were signed
    ``probe``      it is the one request that goes through while the circuit breaker is half open
    ``record_probe``  it is the one that a peer with a bad record gets every ten minutes
    ``notice``     the asker does not wait, so it gets a message with the result
    ``content``    the digest of the result that was accepted
    ``replaced_by``  the task or the request that does the work instead
    """

    id: str
    message: str
    agent: str
    to_swarm: str
    to_agent: str
    task_type: str
    made: float
    deadline: float
    sent: float
    heads: tuple[str, ...]
    source_hash: str
    source_size: int
    from_swarm: str = ""
    act: Act = "request"
    priority: int = PRIORITY
    timeout: float = TIMEOUT
    correlation_id: str = ""
    reply_to: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()
    probe: bool = False
    record_probe: bool = False
    notice: bool = False
    state: RequestState = "open"
    attempt: int = 1
    first: int = 1
    posted: float | None = None
    timed_out: bool = False
    taken: float | None = None
    decision: str = ""
    ended: float | None = None
    reason: str = ""
    content: str = ""
    equivocated: bool = False
    replaced_by: str = ""


def head_of(request: OutgoingRequest, *, swarm: str, bus: str, key: str, now: float) -> RequestHead:
    """The head of the present attempt, to be signed now; it expires with the deadline."""
    return RequestHead(
        message_id=request.message,
        request_id=request.id,
        act=request.act,
        from_swarm=swarm,
        from_agent=request.agent,
        to_swarm=request.to_swarm,
        to_agent=request.to_agent,
        task_type=request.task_type,
        priority=request.priority,
        request_timeout_ms=milliseconds(request.timeout),
        correlation_id=request.correlation_id,
        reply_to=request.reply_to,
        timestamp=milliseconds(now),
        expires=milliseconds(request.deadline),
        deadline=milliseconds(request.deadline),
        attempt=request.attempt,
        source_hash=request.source_hash,
        source_size=request.source_size,
        confidence=request.confidence,
        citations=request.citations,
        key=key,
        bus=bus,
    )


def with_head(request: OutgoingRequest, head: RequestHead) -> OutgoingRequest:
    """The request with the digest of the head of its present attempt."""
    found = digest(head)
    heads = request.heads if found in request.heads else (*request.heads, found)
    return replace(request, heads=heads)


class ArrivedResult(Struct, frozen=True, kw_only=True):
    """A result from the bus, after its signature was verified; ``signer`` is the verified swarm.

    ``agent`` is the one whose own key signed; it is empty for the key of the swarm.  ``posted_at``
    is the time in its head.
    """

    request: str
    signer: str
    in_reply_to: str
    status: ResultStatus
    source_hash: str
    executed_by: str
    executed_at: float
    posted_at: float
    agent: str = ""
    result: Raw = Raw(b"null")
    error: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()

    @property
    def content(self) -> str:
        """The digest of what it says; signing it again, with a later expiry, changes nothing."""
        said = (self.request, self.status, self.source_hash, self.executed_by, self.executed_at)
        return codec.digest(codec.encode(said))


class RequestFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a request as the asker reads it; kept for ``FINDING_KEPT`` seconds."""

    request: str
    from_swarm: str
    status: ResultStatus
    executed_by: str
    executed_at: float
    result_posted_at: float
    result: Raw = Raw(b"null")
    error: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()


def require_confidence(value: float | None) -> float | None:
    """Return what a sender says of its body, if it is a number from 0 to 1."""
    if value is None:
        return None
    known: object = value
    if not isinstance(known, int | float) or not 0 <= known <= 1:
        raise BadInput("the confidence is a number from 0 to 1")
    return float(known)


def require_citations(values: Iterable[str]) -> tuple[str, ...]:
    """Return the citations of a body, if there are not too many for its head."""
    found = tuple(validate.require_iterable(values, "citations"))
    if len(found) > CITATIONS_LIMIT:
        raise BadInput(f"{len(found)} citations are given; {CITATIONS_LIMIT} are allowed")
    for each in found:
        if not validate.text(each, "citation", CITATION_LIMIT):
            raise BadInput("a citation is empty; leave it out")
    if (size := len(codec.encode(found))) > CITATIONS_SIZE:
        raise TooLarge(
            f"the citations have {size} bytes; {CITATIONS_SIZE} are allowed:"
            " put them in the payload"
        )
    return found


def task_priority(priority: int) -> int:
    """The priority of the task for a request, lower first."""
    validate.integer(priority, "priority of a request", LEAST_PRIORITY, GREATEST_PRIORITY)
    return GREATEST_PRIORITY - priority
