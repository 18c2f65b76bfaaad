"""Workers of this process that wait, and tasks that are claimed for them as they are created.

A task that this process creates for others, such as a request of another swarm, need not go through
the queue while a worker of the process waits for such a task: the commit that creates it also
claims it.  That saves a commit, and the worker begins at once.

Only a worker that found nothing ready takes part, so no task is overtaken.  A worker reserves a
slot before the commit, and gets the claim, or the slot back, after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.nouns.tasks.held_claim import HeldClaim, hold_claim, release_later
from interlock.nouns.tasks.task import ClaimRequest, can_do
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.runtime import callers
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context


class WaitingWorker(Protocol):
    """A worker of this process, as those that create tasks see it."""

    @property
    def can(self) -> Sequence[str]:
        """What it is able to do."""

    def reserve(self) -> ReservedSlot | None:
        """A slot for one more task; none if it is busy, or does not wait."""

    def give(self, slot: ReservedSlot, claim: HeldClaim | None) -> None:
        """Its claim, or the slot back."""


class ReservedSlot(Struct, frozen=True, kw_only=True, eq=False):
    """A slot of a worker for one task, and the terms of its claim."""

    worker: WaitingWorker
    context: Context
    ttl: float | None
    caller: str
    claim: str
    sent: float
    wakes: bool = False
    """Whether the worker sleeps in a watch, which the commit has to wake."""

    def request(self, task: str) -> ClaimRequest:
        """The request to claim a task for it."""
        identity = self.context.identity
        return ClaimRequest(
            task=task,
            claim=self.claim,
            agent=identity.actor.agent,
            session=identity.actor.session,
            ttl=self.ttl,
            session_ttl=identity.session_ttl,
            caller=self.caller,
        )

    def fill(self, claimed: Claimed, token: int) -> Op[None]:
        """The commit of the claim succeeded."""
        data = msgspec.json.decode(claimed.data)
        found = replace(claimed, token=token, data=data)
        held = yield from hold_claim(self.context, found, self.ttl, self.sent, self.caller)
        self.worker.give(self, held)

    def empty(self) -> None:
        """No claim was made."""
        self.worker.give(self, None)

    def unknown(self, task: str) -> None:
        """The commit was interrupted: release the claim, if it was made."""
        release_later(self.context, task, self.claim)
        self.worker.give(self, None)


def reserved_slot(
    worker: WaitingWorker, context: Context, ttl: float | None, *, wakes: bool = False
) -> ReservedSlot:
    """A slot of a worker with these terms."""
    runner = context.runner
    return ReservedSlot(
        worker=worker,
        context=context,
        ttl=ttl,
        caller=callers.new_name(),
        claim=runner.new_id("clm"),
        sent=runner.clock.monotonic(),
        wakes=wakes,
    )


def reserve(workers: Sequence[WaitingWorker], requires: Sequence[str]) -> ReservedSlot | None:
    """A slot of one of these workers that waits and is able to do this."""
    for worker in tuple(workers):
        if can_do(worker.can, requires):
            slot = worker.reserve()
            if slot is not None:
                return slot
    return None
