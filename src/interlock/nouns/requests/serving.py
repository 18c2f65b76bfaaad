"""Serving: a worker whose tasks are requests of other swarms.

The end of a task and the result in the outbox are one commit (``answer_service.py``), which carries
the token of the claim: a worker that lost its claim stores no result.

Execution is at least once: a worker may die after it did the work and before it committed.  An
executor that must not do the work twice uses the id of the request, or the token, with what it
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Raw

from interlock.nouns.requests.answer_service import Answer, error_body
from interlock.nouns.requests.request import ResultStatus
from interlock.nouns.swarms.head import require_body
from interlock.nouns.tasks.task import Claimant, Claimed, CompleteOutcome, FailOutcome
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.requests.service import RequestService

REASON = 1000


def sender_of(task: str) -> tuple[str, str]:
    """The swarm and the id of the request that a task is."""
    request, _, swarm = task.partition("@")
    return swarm, request


def answer_claim(
    context: Context,
    service: RequestService,
    claimed: Claimed,
    status: ResultStatus,
    body: bytes,
    confidence: float | None = None,
    citations: tuple[str, ...] = (),
) -> Op[CompleteOutcome | FailOutcome]:
    """End a claimed request with its result, and post that.

    ``body`` is the result as JSON, or the error as a text of JSON.  A task that is no request of
    another swarm is completed, or failed, as any task.
    """
    home, actor = service.home, context.me().actor
    own = yield from home.own()
    swarm, request = sender_of(claimed.task)
    received = yield from service.answers.received(swarm, request)
    claimant = Claimant(
        task=claimed.task, agent=actor.agent, session=actor.session, token=claimed.token
    )
    signed, along = None, None
    if received is not None:
        answer = Answer(
            status=status,
            body=Raw(require_body(body)),
            by=actor.agent,
            at=round(home.now(), 3),
            confidence=confidence,
            citations=citations,
        )
        signed = service.answers.sign(own, received, answer)
        along = service.answers.along(signed)
    outcome: Any
    if status == "success":
        outcome = yield from context.tasks.complete(actor, claimant, Raw(body), along)
    else:
        import msgspec

        said = str(msgspec.json.decode(body))[:REASON]
        outcome = yield from context.tasks.fail(
            actor, claimant, said, Raw(body), retry=False, along=along
        )
    if signed is not None and outcome and not getattr(outcome, "already", False):
        yield from service.answers.post(actor, own, signed)
    return outcome  # type: ignore[no-any-return]


def failed(error: BaseException) -> bytes:
    """The body of an answer that says what went wrong."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return bytes(error_body(said))
