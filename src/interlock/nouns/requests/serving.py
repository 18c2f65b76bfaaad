"""Serving: a worker whose tasks are requests of other swarms.

The end of a task and the result in the outbox are one commit (``answer_service.py``), which carries
the token of the claim: a worker that lost its claim stores no result.

Execution is at least once: a worker may die after it did the work and before it committed.  An
executor that must not do the work twice uses the id of the request, or the token, with what it
changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from interlock.core import validate
from interlock.errors import InterlockError, NotAllowed
from interlock.nouns.requests.answer_service import Answer, OwnSwarmMoved, SignedAnswer, error_body
from interlock.nouns.requests.exchange import requirement
from interlock.nouns.requests.request import (
    ResultStatus,
    require_citations,
    require_confidence,
)
from interlock.nouns.swarms.head import ABILITY, BODY_LIMIT, require_body
from interlock.nouns.tasks.task import Claimant
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    CompleteOutcome,
    FailOutcome,
    TaskCompleted,
    TaskFailed,
)
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.claim_handle import ClaimHandle
    from interlock.nouns.tasks.held_claim import Ending
    from interlock.nouns.tasks.next_claim import NextClaim

REASON = 1000


def sender_of(task: str) -> tuple[str, str]:
    """The swarm and the id of the request that a task is."""
    request, _, swarm = task.partition("@")
    return swarm, request


def answer_claim(
    context: Context,
    claimed: Claimed,
    status: ResultStatus,
    body: bytes,
    *,
    confidence: float | None = None,
    citations: tuple[str, ...] = (),
    then: NextClaim | None = None,
) -> Op[CompleteOutcome | FailOutcome]:
    """End a claimed request with its result, and post that.

    ``body`` is the result as JSON, or the error as a text of JSON.  A task that is no request of
    another swarm is completed, or failed, as any task.  So is a request if its result cannot be
    signed now: the work is done, and a process with a key answers later (``Answers.sweep``).
    ``then`` claims the next task in the same commit.
    """
    service, actor = context.requests, context.me().actor
    answers, home = service.answers, service.home
    swarm, request = sender_of(claimed.task)
    received = yield from answers.received(swarm, request)
    if received is None:
        return (yield from _end(context, claimed, status, body, then=then))
    answer = Answer(
        status=status,
        body=Raw(require_body(body)),
        by=actor.agent,
        at=round(home.now(), 3),
        confidence=confidence,
        citations=citations,
    )
    again = False
    while True:
        own = yield from home.own(fresh=again)
        try:
            yield from home.ready(own, actor)
            signed = yield from answers.sign(own, received, answer)
        except NotAllowed as error:
            _warn("the result of request %s is stored, and waits for a key: %s", request, error)
            return (yield from _end(context, claimed, status, body, then=then))
        try:
            outcome = yield from _end(context, claimed, status, body, (own, signed), then=then)
        except OwnSwarmMoved:
            again = True
            continue
        if outcome and not getattr(outcome, "already", False):
            yield from answers.post(actor, own, signed)
        return outcome


def _end(
    context: Context,
    claimed: Claimed,
    status: ResultStatus,
    body: bytes,
    reply: tuple[OwnSwarm, SignedAnswer] | None = None,
    *,
    then: NextClaim | None,
) -> Op[CompleteOutcome | FailOutcome]:
    """Step 7: complete or fail the task, with the reply to its asker in the same commit."""
    actor, answers = context.me().actor, context.requests.answers
    claimant = Claimant(
        task=claimed.task, agent=actor.agent, session=actor.session, token=claimed.token
    )
    along = None if reply is None else answers.along(*reply)
    known = None if reply is None else answers.guess(reply[1])
    if status == "success":
        return (
            yield from context.tasks.complete(actor, claimant, Raw(body), along, known, then=then)
        )
    said = str(msgspec.json.decode(body))[:REASON]
    return (
        yield from context.tasks.fail(
            actor, claimant, said, Raw(body), retry=False, along=along, known=known, then=then
        )
    )


class RequestReply(Struct, frozen=True, kw_only=True):
    """A result with what its executor says of it; a handler may return one instead of a result."""

    result: Any = None
    confidence: float | None = None
    citations: tuple[str, ...] = ()


class ServedRequest:
    """A request that this worker carries out, as its handler sees it."""

    def __init__(self, claim: ClaimHandle[Any]) -> None:
        self.claim = claim
        self._data = claim.data if isinstance(claim.data, dict) else {}
        self.about: dict[str, Any] = self._data.get("request") or {}
        """What its sender signed: ``from_swarm``, ``from_agent``, ``task_type`` and others."""

    @property
    def id(self) -> str:
        """Its id, which each attempt to carry it out has."""
        return str(self.about.get("id") or self.claim.task)

    @property
    def payload(self) -> Any:  # noqa: ANN401 - any JSON value
        """What the asker sent; the data of a task that is no request."""
        return self._data.get("payload") if self.about else self.claim.data

    @property
    def from_swarm(self) -> str:
        """The swarm that asks."""
        return str(self.about.get("from_swarm", ""))

    @property
    def from_agent(self) -> str:
        """The agent that asks."""
        return str(self.about.get("from_agent", ""))

    @property
    def task_type(self) -> str:
        """The type of the task."""
        return str(self.about.get("task_type", ""))

    @property
    def attempt(self) -> int:
        """Which attempt to carry it out this is, from 1 on."""
        return self.claim.attempt

    @property
    def token(self) -> int | None:
        """The token of the claim: it grows with every attempt."""
        return self.claim.outcome.token

    @property
    def lost(self) -> bool:
        """Whether the claim is lost, so that another worker may begin."""
        return self.claim.lost


Ended: TypeAlias = "tuple[Ending, type[Any]]"
"""The operation that ends a claim, and the outcome of one that succeeds."""


def abilities(context: Context, can: Iterable[str]) -> tuple[str, ...]:
    """What a worker for requests can do: these abilities, and to be its agent."""
    wanted = validate.abilities(can)
    if validate.ALL_ABILITIES in wanted:
        return wanted
    agent = context.me().actor.agent
    return (*[f"{ABILITY}{each.removeprefix(ABILITY)}" for each in wanted], requirement(agent))


def settled(context: Context, request: ServedRequest, work: Callable[[], object]) -> Ended:
    """Do the work; how the claim is to be ended.  An interrupt is raised, and releases it."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return _erred(context, request, error)
    return _done(context, request, result)


async def settled_async(context: Context, request: ServedRequest, work: Awaitable[object]) -> Ended:
    """Await the work; how the claim is to be ended.  A cancellation is raised, and releases it."""
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - it is the answer
        return _erred(context, request, error)
    return _done(context, request, result)


def _done(context: Context, request: ServedRequest, result: object) -> Ended:
    reply = result if isinstance(result, RequestReply) else RequestReply(result=result)
    try:
        body = validate.payload(reply.result, "result", BODY_LIMIT)
        confidence = require_confidence(reply.confidence)
        citations = require_citations(reply.citations)
    except InterlockError as error:
        return _erred(context, request, error)

    def ending(then: NextClaim | None) -> Op[Any]:
        return answer_claim(
            context,
            request.claim.outcome,
            "success",
            body,
            confidence=confidence,
            citations=citations,
            then=then,
        )

    return ending, TaskCompleted


def _warn(said: str, *about: object) -> None:
    import logging

    logging.getLogger("interlock").warning(said, *about)


def _erred(context: Context, request: ServedRequest, error: Exception) -> Ended:
    _warn("request %s failed: %s", request.id, error)
    said = str(error) if isinstance(error, RequestError) else _named(error)

    def ending(then: NextClaim | None) -> Op[Any]:
        claimed = request.claim.outcome
        body = bytes(error_body(said))
        return answer_claim(context, claimed, "error", body, then=then)

    return ending, TaskFailed


class RequestError(Exception):
    """An answer with the status ``error`` and exactly this text."""


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
