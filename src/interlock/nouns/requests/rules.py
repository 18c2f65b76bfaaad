"""Requests: attempts, escalation, and which result counts; ``request.py`` has the states.

**Attempts.**  An attempt that reached the bus and that the receiver has not taken in is repeated
after 60, 120 and 240 seconds, with the same id.  One that waits in the outbox is not: it is on its
way, and posted when the bus is back.  After the last one the request is escalated: a person gets a
decision with the fallbacks.  A late answer still ends the request, and closes the decision.

    local_execution    acts: a task in our own store does the work instead
    alternative_swarm  acts: a new request to another swarm does the work instead
    queue_for_later    does nothing that the asker did not ask for: the attempts start again

    give_up            does nothing: the request ends without a result

So ``queue_for_later`` is the default when no person decides within an hour, and the request of a
night ends by itself when its swarm is back.  The other two may do the work twice, if the receiver
has done it already and its result is lost; a person decides that.  After the deadline, and in the
last hour before it, there is no later: then ``give_up`` is the default, a day after.

A person who chooses ``alternative_swarm`` names the swarm; without a name, the better of two that
can do it is asked.  If that swarm cannot be asked, the person is asked again, with the reason.

**The timeout** of an attempt counts once, for the circuit breaker and the reputation, and only if
the attempt reached the bus: while the bus is away the request waits in the outbox, and the peer is
not to blame.  It counts before the next attempt at the latest.  The timeout of a request that was
taken in counts at its deadline: until then the receiver may work on it.

**Results.**  The signature says which swarm answers; that must be the swarm that was asked.  An
agent with a key of its own answers requests to itself, or to an ability.  The
result names the digest of a request's head; that must be a head of this request, so no result can
be moved to another request.  The first result counts.  The same content again changes nothing.
Other content is an equivocation: it is refused and kept in quarantine, and counts as a conflict in
the reputation of the swarm.

All times are those of the sender's home.  A clock that runs ahead repeats an attempt early, which
is harmless; one that was set back makes the next step due at once.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core.safe_text import foreign
from interlock.nouns.messages.decision import DecisionOption, HumanDecision
from interlock.nouns.requests.request import (
    RETRY_AFTER,
    TRANSITIONS,
    ArrivedResult,
    OutgoingRequest,
    RequestFinding,
)
from interlock.nouns.swarms.head import ABILITY, ALL_AGENTS
from interlock.nouns.swarms.results import SwarmStatus

DECIDE_IN = 3600.0
"""Seconds until an escalation takes its default."""
DECIDE_LATE = 24 * 3600.0
"""Seconds until a request whose deadline passed, or is near, ends without a decision."""
_CLOCK_SET_BACK = 30.0

StepKind: TypeAlias = Literal["time_out", "retry", "escalate"]
EscalationReason: TypeAlias = Literal[
    "task_unclaimed", "swarm_unavailable", "deadline_passed", "message_refused"
]
ResultRefusedFor: TypeAlias = Literal[
    "unknown_request", "wrong_swarm", "wrong_agent", "wrong_head", "cancelled", "equivocation"
]

_WHY: dict[EscalationReason, str] = {
    "task_unclaimed": "no agent of the swarm took the request in",
    "swarm_unavailable": "all agents of the swarm are offline",
    "deadline_passed": "no answer came before the deadline",
    "message_refused": "the message cannot be sent, and is in quarantine",
}
_STATUS: dict[SwarmStatus, str] = {
    "online": "",
    "degraded": "the swarm is degraded: it has no agent, or its entry or its process is missing",
    "offline": "the swarm is offline",
}


class RequestStep(Struct, frozen=True, kw_only=True):
    """The next thing to do for an open request, and when."""

    kind: StepKind
    at: float


class ResultAccepted(Struct, frozen=True, kw_only=True):
    """The result counts: what to store of the request and of the finding, in one commit."""

    request: OutgoingRequest
    finding: RequestFinding


class ResultRepeated(Struct, frozen=True, kw_only=True):
    """The same result was accepted before; it can be deleted from the bus."""


class ResultRefused(Struct, frozen=True, kw_only=True):
    """The result does not count, and why."""

    reason: ResultRefusedFor
    detail: str
    repeated: bool = False
    """Another result of the same request was refused for this before."""

    @property
    def conflict(self) -> bool:
        """Whether it counts as a conflict in the reputation of the swarm.

        Each request counts once: anyone can put a signed result on the bus again.
        """
        return self.reason == "equivocation" and not self.repeated


def transition(request: OutgoingRequest, act: str, **changes: object) -> OutgoingRequest:
    """The request after an action that its state allows; no other function changes a state."""
    allowed, state = TRANSITIONS[act]
    if request.state not in allowed:
        raise AssertionError(f"{act} of a request that is {request.state}")
    return replace(request, state=state, **changes)


# Attempts.


def next_step(request: OutgoingRequest) -> RequestStep | None:
    """The next step of a request and its time; None if only an answer or a person moves it."""
    if request.state != "open":
        return None
    step = RequestStep(kind="escalate", at=request.deadline)
    timeout = request.deadline
    if request.posted is None:
        return step
    if request.taken is None:
        step = min(_after_attempt(request, request.posted), step, key=lambda each: each.at)
        timeout = request.posted + request.timeout
    if request.timed_out:
        return step
    return RequestStep(kind="time_out", at=min(timeout, step.at))


def _after_attempt(request: OutgoingRequest, posted: float) -> RequestStep:
    done = request.attempt - request.first
    if done < len(RETRY_AFTER):
        return RequestStep(kind="retry", at=posted + RETRY_AFTER[done])
    last = max(request.timeout, RETRY_AFTER[0])
    return RequestStep(kind="escalate", at=posted + last)


def due_step(request: OutgoingRequest, now: float) -> StepKind | None:
    """What is to be done now; also if the clock was set back since the last attempt.

    A process that comes after the deadline sends no further attempt, which would be expired.
    """
    step = next_step(request)
    if step is None:
        return None
    if step.kind == "retry" and now >= request.deadline:
        return "escalate"
    waits = request.posted if request.taken is None else None
    set_back = waits is not None and now < waits - _CLOCK_SET_BACK
    return step.kind if now >= step.at or set_back else None


def post(request: OutgoingRequest, now: float) -> OutgoingRequest:
    """The last attempt reached the bus."""
    return request if request.posted is not None else replace(request, posted=now)


def take(request: OutgoingRequest, now: float) -> OutgoingRequest:
    """The receiver has taken it in; a repeated receipt changes nothing."""
    return request if request.taken is not None else replace(request, taken=now)


def time_out(request: OutgoingRequest) -> OutgoingRequest:
    """The timeout of the last attempt is counted, once."""
    return replace(request, timed_out=True)


def retry(request: OutgoingRequest, head: str, now: float) -> OutgoingRequest:
    """Another attempt, with the digest of its new head."""
    return _attempt(transition(request, "retry"), head, now)


def resume(request: OutgoingRequest, head: str, now: float) -> OutgoingRequest:
    """Start the attempts again (``queue_for_later``)."""
    opened = transition(request, "resume", decision="", reason="", first=request.attempt + 1)
    return _attempt(opened, head, now)


def _attempt(request: OutgoingRequest, head: str, now: float) -> OutgoingRequest:
    return replace(
        request,
        attempt=request.attempt + 1,
        sent=now,
        posted=None,
        timed_out=False,
        heads=_with(request.heads, head),
    )


def _with(heads: tuple[str, ...], head: str) -> tuple[str, ...]:
    return heads if head in heads else (*heads, head)


def cancel(
    request: OutgoingRequest, reason: str, now: float, replaced_by: str = ""
) -> OutgoingRequest:
    """End a request without an answer: its asker, or a fallback that does the work instead."""
    return transition(request, "cancel", reason=reason, ended=now, replaced_by=replaced_by)


# Escalation.


def escalation_reason(
    request: OutgoingRequest, now: float, status: SwarmStatus
) -> EscalationReason:
    """Why a request is escalated now; ``status`` is that of its swarm."""
    if now >= request.deadline:
        return "deadline_passed"
    return "swarm_unavailable" if status == "offline" else "task_unclaimed"


def escalate(
    request: OutgoingRequest,
    reason: EscalationReason,
    decision: str,
    now: float,
    status: SwarmStatus = "online",
) -> tuple[OutgoingRequest, HumanDecision]:
    """Escalate an open request: what to store of it, and the decision with this id."""
    asked = question(request, reason, decision, now, status=status)
    return transition(request, "escalate", decision=decision, reason=reason), asked


def ask_again(
    request: OutgoingRequest, decision: str, why: str, now: float
) -> tuple[OutgoingRequest, HumanDecision]:
    """The option that a person chose has no effect: another decision, which says why."""
    reason: EscalationReason = request.reason or "task_unclaimed"  # type: ignore[assignment]
    asked = question(request, reason, decision, now, why=why)
    return transition(request, "ask_again", decision=decision), asked


def question(
    request: OutgoingRequest,
    reason: EscalationReason,
    decision: str,
    now: float,
    *,
    status: SwarmStatus = "online",
    why: str = "",
) -> HumanDecision:
    """The decision about a request without an answer; ``why`` says what did not help."""
    later = now + DECIDE_IN < request.deadline and reason != "deadline_passed"
    said = [_WHY[reason], "" if reason == "swarm_unavailable" else _STATUS[status], why]
    asked = {
        "type": reason,
        "request_id": request.id,
        "target_swarm": request.to_swarm,
        "target_agent": request.to_agent,
        "task_type": request.task_type,
        "attempts": request.attempt,
        "swarm_status": status,
        "reason": "; ".join(filter(None, said)),
        "fallback_options": [each.name for each in _options(later=later)],
    }
    return HumanDecision(
        id=decision,
        about=f"request/{request.id}",
        agent=request.agent,
        question=Raw(msgspec.json.encode(asked)),
        at=now,
        options=_options(later=later),
        default="queue_for_later" if later else "give_up",
        deadline=now + (DECIDE_IN if later else DECIDE_LATE),
    )


def _options(*, later: bool) -> tuple[DecisionOption, ...]:
    queue = DecisionOption(
        name="queue_for_later", text="send it again, until its deadline", acts=False
    )
    end = DecisionOption(name="give_up", text="end the request without a result", acts=False)
    return (
        DecisionOption(name="local_execution", text="do the work in this swarm instead"),
        queue if later else end,
        DecisionOption(
            name="alternative_swarm",
            text='ask another swarm instead: {"option": "alternative_swarm", "swarm": NAME}',
        ),
    )


# Results.


def accept_result(
    request: OutgoingRequest | None, arrived: ArrivedResult, now: float
) -> ResultAccepted | ResultRepeated | ResultRefused:
    """Judge a result whose signature was verified."""
    if request is None or request.id != arrived.request:
        detail = f"no request {foreign(arrived.request)} was sent, or it is deleted by now"
        return ResultRefused(reason="unknown_request", detail=detail)
    if arrived.signer != request.to_swarm:
        detail = f"{foreign(arrived.signer)} signed it; {foreign(request.to_swarm)} was asked"
        return ResultRefused(reason="wrong_swarm", detail=detail)
    named = request.to_agent != ALL_AGENTS and not request.to_agent.startswith(ABILITY)
    if named and arrived.agent not in ("", request.to_agent):
        detail = f"{foreign(arrived.agent)} signed it; {foreign(request.to_agent)} was asked"
        return ResultRefused(reason="wrong_agent", detail=detail)
    if arrived.in_reply_to not in request.heads:
        detail = f"it answers another request than {foreign(request.id)}"
        return ResultRefused(reason="wrong_head", detail=detail)
    if request.state == "answered" and arrived.content == request.content:
        return ResultRepeated()
    return _refused_by_state(request) or _accepted(request, arrived, now)


def _refused_by_state(request: OutgoingRequest) -> ResultRefused | None:
    if request.state == "answered":
        detail = (
            f"{foreign(request.to_swarm)} signed two different results of {foreign(request.id)}"
        )
        return ResultRefused(reason="equivocation", detail=detail, repeated=request.equivocated)
    if request.state == "cancelled":
        detail = f"{foreign(request.id)} was cancelled: {foreign(request.reason)}"
        return ResultRefused(reason="cancelled", detail=detail)
    return None


def _accepted(request: OutgoingRequest, arrived: ArrivedResult, now: float) -> ResultAccepted:
    taken = request.taken or now
    answered = transition(request, "answer", ended=now, content=arrived.content, taken=taken)
    finding = RequestFinding(
        request=arrived.request,
        from_swarm=arrived.signer,
        status=arrived.status,
        executed_by=arrived.executed_by,
        executed_at=arrived.executed_at,
        result_posted_at=arrived.posted_at,
        result=arrived.result if arrived.status == "success" else Raw(b"null"),
        error=arrived.error if arrived.status == "error" else "",
        confidence=arrived.confidence,
        citations=arrived.citations,
    )
    return ResultAccepted(request=answered, finding=finding)
