"""The decisions about pipelines: how one goes on from phase to phase, and how it ends.

A step leads from one phase to the next one, from the start into the first phase, or from the last
phase to the end.  Between the two stand, in this order:

    the tasks of the phase   all are complete
    its post guard
    the pre guard of the next phase
    what that phase holds    free now (``holding.py``)
    what that phase publishes (``phase_tasks.py``)

The step is taken with one commit, which checks the item of the pipeline, every fact of the store
that a guard relied on, and the pools.  If one of them keeps the pipeline, it stays where it is:

    block    it waits (``asked``).  A phase with ``retries`` counts each call of ``advance`` that
             finds its post guard false; one more than that fails the pipeline
    warn     the step is taken, and an event names the guard
    retry    it waits, and the guard is checked again after the delay, which a liveness key
             measures; a check before that may pass, but a failure is not counted.  After ``limit``
             further failures the pipeline fails
    fail     the pipeline fails, with the message
    unknown  it waits, and nothing is counted; only ``warn`` lets it pass

Each phase counts from zero: the failures of its post guard, and of the pre guard of the next one.
A pipeline that ends releases what it holds with the same commit.  One that is cancelled cancels its
open tasks with it, as ``task cancel`` does: a worker finds its claim fenced at its next act.  Those
that do not fit into the commit follow right after it (``closing``).  A pipeline that fails or is
complete has no open task, since a guard is checked after the tasks of the phase.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, ObservedFact, Write
from interlock.core.safe_text import foreign
from interlock.nouns.guards.gates import Hindrance, hindrance_of
from interlock.nouns.guards.guard import (
    BlockAction,
    FailAction,
    Guard,
    GuardResult,
    RetryAction,
)
from interlock.nouns.pipelines import pipeline as core
from interlock.nouns.pipelines.definition import PhaseDefinition, PipelineDefinition
from interlock.nouns.pipelines.pipeline import BlockedBy, PhaseGrant, PipelineRun

T = TypeVar("T")
Stage: TypeAlias = Literal["post", "pre"]
_VERBS = {
    "blocked": "block", "advanced": "advance", "completed": "complete", "failed": "fail",
    "cancelled": "cancel",
}  # fmt: skip
"""The verb in the record for each event."""


class PhaseStep(Struct, frozen=True, kw_only=True):
    """The phase that a step leaves and the one that it enters; none at the start and the end."""

    leaving: PhaseDefinition | None
    entering: PhaseDefinition | None


class Stay(Struct, frozen=True, kw_only=True):
    """The step is not taken now; ``counted`` is the stage whose failures are one more."""

    hindrance: Hindrance
    counted: Stage | None = None
    delay: float = 0.0


class GiveUp(Struct, frozen=True, kw_only=True):
    """The pipeline fails."""

    reason: str
    hindrance: Hindrance


class RunChange(Struct, frozen=True, kw_only=True):
    """A pipeline that an agent moves: as it was read, or as it is started (``new``).

    ``observed`` are the facts from outside that the step relies on, for the record.
    """

    pipeline: str
    run: PipelineRun
    by: str
    now: float
    new: bool = False
    warned: tuple[str, ...] = ()
    observed: tuple[ObservedFact, ...] = ()
    min_ttl: float = 0.0


class CancelledTasks(Struct, frozen=True, kw_only=True):
    """How many tasks of a pipeline were open, and whether some are still to be cancelled."""

    open: int = 0
    left: bool = False


def fresh(definition: str, digest: str, by: str, now: float, trace: str = "") -> PipelineRun:
    """A pipeline before its first phase."""
    return PipelineRun(
        state="running",
        definition=definition,
        digest=digest,
        started=now,
        since=now,
        by=by,
        starter=by,
        trace=trace,
    )


def next_step(run: PipelineRun, definition: PipelineDefinition) -> PhaseStep:
    """The step that a pipeline is to take."""
    names = [phase.name for phase in definition.phases]
    at = names.index(run.phase) if run.phase else -1
    return PhaseStep(
        leaving=definition.phases[at] if at >= 0 else None,
        entering=definition.phases[at + 1] if at + 1 < len(names) else None,
    )


def overtaken(pipeline: str, run: PipelineRun, expected: str | None) -> core.Overtaken | None:
    """The refusal, if the pipeline has ended or is not in the phase that the caller expects."""
    if run.state == "running" and expected in (None, run.phase):
        return None
    return core.Overtaken(
        pipeline=pipeline,
        state=run.state,
        phase=run.phase,
        by=run.by,
        since=run.since,
        reason=run.reason,
    )


def judge(
    run: PipelineRun,
    phase: PhaseDefinition,
    stage: Stage,
    result: GuardResult,
    *,
    rests: bool,
    explicit: bool,
) -> Stay | GiveUp | None:
    """What a guard that was checked means for a pipeline; None if it may go on.

    ``rests`` says that the delay of a retry is not over, ``explicit`` that a caller asked for the
    step, and not the pipeline itself.
    """
    if result.allowed:
        return None
    guard = phase.post if stage == "post" else phase.pre
    hindrance = hindrance_of(cast("Guard", guard), result)
    failures = (run.attempt if stage == "post" else run.entering) + 1
    delay, limit = 0.0, None
    if result.result == "failed":
        match result.action:
            case FailAction(message=message):
                return GiveUp(reason=message, hindrance=hindrance)
            case RetryAction() if not rests:
                delay, limit = result.action.delay, result.action.limit
            case BlockAction() if stage == "post" and phase.retries and explicit:
                limit = phase.retries
    if limit is None:
        return Stay(hindrance=hindrance)
    if failures > limit:
        reason = f"guard {foreign(result.guard)} failed {failures} times; last: {hindrance.reason}"
        return GiveUp(reason=reason, hindrance=hindrance)
    return Stay(hindrance=hindrance, counted=stage, delay=delay)


# Decisions.  Each is merged with those about pools and tasks of the same step.


def stay(change: RunChange, why: Stay, retry_in: float | None = None) -> Decision[Any]:
    """The pipeline waits for a guard; nothing is written if it waited for the same before."""
    run, at = change.run, why.hindrance
    attempt = run.attempt + (why.counted == "post")
    entering = run.entering + (why.counted == "pre")
    before = run.blocked_by
    same = before is not None and (before.guard, before.leaf) == (at.guard, at.leaf)
    blocked_by = before
    if not same:
        blocked_by = BlockedBy(
            guard=at.guard, leaf=at.leaf, reason=at.stored or at.reason, since=change.now
        )
    after = core.transition(
        run, "block", asked=True, attempt=attempt, entering=entering, blocked_by=blocked_by
    )
    outcome: core.PipelineStarted | core.PipelineBlocked
    if change.new:
        outcome = core.PipelineStarted(
            pipeline=change.pipeline,
            definition=run.definition,
            guard=at.guard,
            leaf=at.leaf,
            reason=at.reason,
            acts=at.acts,
        )
    else:
        outcome = core.PipelineBlocked(
            pipeline=change.pipeline,
            phase=run.phase,
            guard=at.guard,
            leaf=at.leaf,
            reason=at.reason,
            acts=at.acts,
            attempts=entering if why.counted == "pre" else attempt,
            retry_in=why.delay or retry_in,
        )
    if after == run and not change.new:
        return Decision(outcome=outcome)
    said = f"{foreign(at.guard)}: {foreign(at.leaf)}: {at.stored or at.reason}"
    decision = _decision(change, outcome, after, "blocked", said)
    if not why.delay:
        return decision
    rest = Write(
        keys.pipeline_rest(change.pipeline, cast("Stage", why.counted)),
        {"for": f"pipeline/{change.pipeline}"},
        max(why.delay, change.min_ttl),
    )
    return replace(decision, puts=(*decision.puts, rest))


def enter(
    change: RunChange, phase: PhaseDefinition, grants: tuple[PhaseGrant, ...]
) -> Decision[core.PipelineAdvanced | core.PipelineStarted]:
    """The pipeline enters a phase; one that publishes tasks goes on when they are complete."""
    after = core.transition(
        change.run,
        "enter",
        phase=phase.name,
        since=change.now,
        by=change.by,
        attempt=0,
        entering=0,
        asked=bool(phase.tasks),
        blocked_by=None,
        grants=grants,
    )
    outcome: core.PipelineAdvanced | core.PipelineStarted
    if change.new:
        outcome = core.PipelineStarted(
            pipeline=change.pipeline, definition=change.run.definition, phase=phase.name
        )
    else:
        outcome = core.PipelineAdvanced(
            pipeline=change.pipeline, phase=phase.name, warned=change.warned
        )
    return _decision(change, outcome, after, "advanced", f"phase {foreign(phase.name)}")


def complete(change: RunChange) -> Decision[core.PipelineCompleted]:
    """The pipeline leaves its last phase."""
    after = _ended(change, "complete", "")
    outcome = core.PipelineCompleted(pipeline=change.pipeline, warned=change.warned)
    return _decision(change, outcome, after, "completed", "")


def fail(change: RunChange, why: GiveUp) -> Decision[core.PipelineFailed]:
    """A guard ends the pipeline."""
    after = _ended(change, "fail", why.reason)
    outcome = core.PipelineFailed(
        pipeline=change.pipeline,
        phase=change.run.phase,
        reason=why.reason,
        guard=why.hindrance.guard,
        leaf=why.hindrance.leaf,
    )
    return _decision(change, outcome, after, "failed", why.reason)


def cancel(
    change: RunChange, reason: str, tasks: CancelledTasks
) -> Decision[core.PipelineCancelled]:
    """An agent ends the pipeline."""
    after = replace(_ended(change, "cancel", reason), closing=tasks.left)
    outcome = core.PipelineCancelled(
        pipeline=change.pipeline, phase=change.run.phase, reason=reason, tasks=tasks.open
    )
    return _decision(change, outcome, after, "cancelled", reason)


def close(pipeline: str, run: PipelineRun, tasks: CancelledTasks) -> Decision[str]:
    """Further tasks of a pipeline that was cancelled are cancelled."""
    thing = f"pipeline/{pipeline}"
    return Decision(
        outcome="closing" if tasks.left else "closed",
        verb="pipeline.close",
        thing=thing,
        puts=(Write(keys.pipeline(pipeline), replace(run, closing=tasks.left)),),
        trace=run.trace,
        awaited=(keys.ITSELF + thing,) if tasks.left else (),
    )


def _ended(change: RunChange, act: str, reason: str) -> PipelineRun:
    return core.transition(
        change.run,
        act,
        since=change.now,
        by=change.by,
        asked=False,
        blocked_by=None,
        reason=reason,
        grants=(),
    )


def _decision(
    change: RunChange, outcome: T, after: PipelineRun, event: str, reason: str
) -> Decision[T]:
    """The decision with the item of the pipeline; a start has an event more."""
    verb = "start" if change.new else _VERBS[event]
    events = [Event("pipeline:started", change.by)] if change.new else []
    events += [Event("pipeline:warned", change.by) for _ in change.warned]
    events.append(Event(f"pipeline:{event}", change.by))
    warned = [f"warned by {foreign(name)}" for name in change.warned]
    thing = f"pipeline/{change.pipeline}"
    return Decision(
        outcome=outcome,
        verb=f"pipeline.{verb}",
        thing=thing,
        puts=(Write(keys.pipeline(change.pipeline), after),),
        deletes=_rest_of(change, after),
        events=tuple(events),
        trace=change.run.trace,
        reason="; ".join([part for part in (reason, *warned) if part]),
        observed=change.observed,
        awaited=(
            *((thing,) if change.run.gated and event != "blocked" else ()),
            *((keys.ITSELF + thing,) if after.closing else ()),
        ),
        created=(thing,) if change.new else (),
    )


def _rest_of(change: RunChange, after: PipelineRun) -> tuple[str, ...]:
    """The liveness keys of rests, once the pipeline has gone on."""
    if (after.phase, after.state) == (change.run.phase, change.run.state):
        return ()
    counts = {"post": change.run.attempt, "pre": change.run.entering}
    return tuple([keys.pipeline_rest(change.pipeline, each) for each in counts if counts[each]])
