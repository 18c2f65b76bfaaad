"""A claim as its block sees it, in the blocking and in the async client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.core.safe_text import foreign
from interlock.errors import InterlockError, Lost, Unproven
from interlock.nouns.grants.handover import Handover
from interlock.nouns.grants.held_grant import HeldHandle
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.held_claim import Ending, HeldClaim
from interlock.runtime.calls import D, call
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.tasks.task import TaskEnd


class ClaimHandle(HeldHandle[D]):
    """A claim as its block sees it; the blocking and the async client extend it.

    In the loop of a worker (``in_loop``) its block raises nothing but interruptions: other errors
    fail the task or are logged, and the worker continues.  A claim that is dropped before it was
    settled is released; the claim of a block lives by the handover of the block.
    """

    _holding: HeldClaim

    def __init__(
        self, working: HeldClaim, *, in_loop: bool = False, handover: Handover | None = None
    ) -> None:
        super().__init__(working)
        if handover is None or not handover.tied:
            working.handover.tie(self)
        self._in_loop = in_loop
        self._entered = False

    @property
    def task(self) -> str:
        """The id of the task."""
        return self._holding.claimed.task

    @property
    def title(self) -> str:
        """What the task is about; empty if its publisher did not say."""
        return self._holding.claimed.title

    @property
    def text(self) -> str:
        """What is to be done, in the words of its publisher."""
        return self._holding.claimed.text

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task."""
        return self._holding.claimed.labels

    @property
    def data(self) -> Any:  # noqa: ANN401 - any JSON value
        """The data of the task."""
        return self._holding.claimed.data

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self._holding.claimed.attempt

    @property
    def outcome(self) -> task_outcomes.Claimed:
        """The outcome of the claim."""
        return self._holding.claimed

    @property
    def settled(self) -> bool:
        """Whether it was completed, failed, released, or given up."""
        return self._holding.released

    @property
    def ended(self) -> str:
        """How it ended: ``completed``, ``failed``, ``released`` or ``lost``; empty till then."""
        return self._holding.ended

    @property
    def troubled(self) -> bool:
        """Whether an attempt to settle it failed."""
        return bool(self._holding.trouble)

    @property
    def forgotten(self) -> bool:
        """Whether its block was not entered, and it is not settled."""
        return not self._entered and not self._holding.released

    @call
    def complete(self, result: object = None) -> Op[task_outcomes.TaskCompleted]:
        """Complete the task; raises Lost if the claim was lost.

        If its evidence does not pass, it raises Unproven, and the claim stays held: complete it
        later, or let the block end, which fails the attempt.
        """
        return self._holding.complete(result)

    @call
    def conclude(self, result: object = None) -> Op[task_outcomes.TaskCompleted]:
        """Complete the task at the end of its work; without evidence, the attempt fails.

        While the store is away this waits, as the end of a block does.
        """
        return self._holding.conclude(result)

    @call
    def conclude_failed(self, reason: str, error: object = None) -> Op[task_outcomes.TaskFailed]:
        """Fail the attempt at the end of its work; it waits while the store is away."""
        return self._holding.conclude_failed(reason, error)

    @call
    def fail(
        self, reason: str, error: object = None, *, retry: bool = True
    ) -> Op[task_outcomes.TaskFailed]:
        """Fail the attempt; ``retry=False`` says that no other attempt can succeed."""
        return self._holding.fail(reason, error, retry=retry)

    @call
    def release(self) -> Op[task_outcomes.TaskReleased]:
        """Return the task to the queue; no attempt is counted."""
        return self._holding.release()

    @call
    def settle(self, ending: Ending, good: type[Any]) -> Op[Any]:
        """End the claim by another operation, which returns an outcome of this kind."""
        return self._holding.settle(ending, good)

    def progress(self, part: float, doing: str = "") -> None:
        """Report how far the work is, from 0 to 1, and what is being done; it does not wait.

        The last word is committed at once, and then every five seconds at most, however often this
        is called: ``task list``, ``task show`` and ``task watch`` show it.
        """
        from interlock.nouns.tasks.claim_reports import work_report

        report = work_report(part, doing)
        if not self._holding.released:
            self.context.claim_reports.report(self._holding, report)

    @call
    def let_go(self) -> Op[None]:
        """Release it, unless it was entered or settled."""
        if self.forgotten:
            yield from self._holding.end(GeneratorExit())

    @call
    def passed_over(self, reason: str) -> Op[None]:
        """Fail the attempt, unless the claim was entered or settled."""
        if not self.forgotten:
            return
        import logging

        log = logging.getLogger("interlock")
        log.warning("task %s failed: %s; use 'with claim:' in the loop", foreign(self.task), reason)
        try:
            yield from self._holding.fail(reason)
        except InterlockError as error:
            self._holding.give_up()
            self._log_error(error)
        except BaseException:
            self._holding.give_up()
            raise

    def end_with(self, result: object) -> None:
        """Have the end of the block complete the task with this result."""
        self._holding.end_with(result)

    def put_off_end(self) -> TaskEnd | None:
        """Put off the end of the block, which is then to be carried out; None if it cannot be."""
        return self._holding.put_off_end()

    def ended_together(self) -> None:
        """A commit has completed it together with others."""
        self._holding.ended_together()

    def give_up(self) -> None:
        """Have the keeper release it as soon as it can."""
        self._holding.give_up()

    def end_by(self, ending: Ending, good: type[Any]) -> None:
        """Have the end of the block settle it by another operation: see ``settle``."""
        self._holding.end_by(ending, good)

    def take_up(self) -> None:
        """Make the caller the one that works on it until it is settled, as entering its block does.

        The waits of the caller hold up the task then, so deadlocks through the task are found.
        """
        self._holding.take_up()

    def _log_error(self, error: BaseException | None) -> bool:
        """Log the error of a block in a loop; whether it was logged, and so is not raised."""
        if not self._in_loop or not isinstance(error, Exception):
            return False
        import logging

        log = logging.getLogger("interlock")
        if isinstance(error, Lost | Unproven):
            log.warning("%s", error)
        elif self.troubled:
            log.warning("task %s could not be settled at once: %s", foreign(self.task), error)
        else:
            log.error("task %s failed", foreign(self.task), exc_info=error)
        return True

    def __repr__(self) -> str:
        return f"<claim of task {self.task}, token {self.token}, attempt {self.attempt}>"
