"""How far the work on a claim is, as its worker reports it while it works.

A worker may report as often as it likes: ``report`` only remembers the last word.  The keeper
commits it, the first one at once and then one in ``PACE`` seconds for each claim, so that a report
never blocks the work, and its cost is bounded.  It is committed with the token of the claim into
the status of the task, where the end of the claim deletes it with the rest of its state.
A report that is not committed when the claim ends is dropped: the end says more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from interlock.core import validate
from interlock.errors import BadInput
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.tasks.held_claim import HeldClaim

PACE = 5.0
"""Seconds between two reports about one claim."""
AGAIN = 1.0
"""Seconds until a failed report is retried."""
NEVER = float("inf")


class WorkReport(NamedTuple):
    """How far the work is, from 0 to 1, and what is being done."""

    part: float
    doing: str


def part_of(text: str) -> float | str:
    """A part that was written: 0.4, or 40%; anything else stays as it is, and is refused later."""
    percent = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        return text
    return number / 100 if percent else number


def work_report(part: float, doing: str) -> WorkReport:
    """A validated report."""
    if type(part) not in (int, float) or not 0 <= part <= 1:
        raise BadInput(f"progress is a number from 0 to 1, like 0.4 or 40%, not {part!r:.40}")
    said = validate.one_line(doing, "text about the progress", "say it in fewer words")
    return WorkReport(round(float(part), 4), said)


class ClaimReporter:
    """Reports the progress of the claims of a client; a background job of its keeper."""

    what = "reports of progress"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = context.runner.clock
        self._allow = context.runner.capabilities.allow
        self._guard = threading.RLock()  # a signal handler may need it, too
        self._waiting: dict[HeldClaim, WorkReport] = {}
        self._said: dict[HeldClaim, float] = {}
        self._due = NEVER

    def report(self, claim: HeldClaim, report: WorkReport) -> None:
        """Report this soon, if nothing newer comes first; any thread may call it."""
        with self._guard:
            self._waiting[claim] = report
            due = self._due_of(claim)
            sooner = due < self._due
            self._due = min(due, self._due)
        if sooner:
            self._context.wake()

    def wait(self) -> float:
        """Seconds until the next report is due."""
        return max(0.0, self._due - self._clock.monotonic())

    def run(self) -> Op[None]:
        """Commit the reports that are due."""
        with self._guard:
            now = self._clock.monotonic()
            self._due = now + self._allow(AGAIN)
            due = [each for each in self._waiting if self._due_of(each) <= now]
        for claim in due:
            report = self._waiting[claim]
            if not claim.released:
                yield from claim.say_progress(report)
            with self._guard:
                self._said[claim] = now
                if self._waiting[claim] is report:
                    del self._waiting[claim]
        with self._guard:
            for claim in [each for each in (*self._waiting, *self._said) if each.released]:
                self._waiting.pop(claim, None)
                self._said.pop(claim, None)
            self._due = min(map(self._due_of, self._waiting), default=NEVER)

    def finish(self, trouble: str) -> Op[None]:  # noqa: ARG002 - as all background jobs
        """Stop reporting: a report ends with its claim."""
        self._due = NEVER
        yield from ()

    def _due_of(self, claim: HeldClaim) -> float:
        return self._said.get(claim, -NEVER) + self._allow(PACE)
