"""The gates of tasks: guards before a claim, and guards of the evidence before a completion.

A task with guards comes to its gate when nothing else keeps it: its needs are complete, its moment
has come, its rest is over.  It enters the queue if all of its guards pass, and is blocked under one
of them (``TaskStatus.guard``) if not.  The claim checks the guards again, since facts may have
changed; if they do not pass then, the task goes back to its gate.

A completion checks the guards of the evidence.  While they do not pass, the claim stays with its
worker.

                before a claim                           of the evidence
    block       the task waits for the facts that keep   the completion is refused
                it (``nouns/guards/gates.py``)
    warn        the step is taken; an event and the entry name the guard
    retry       as block; a failure is counted once in each delay, and after ``limit`` more
                failures the task fails                  the attempt fails
    fail        the task fails, with the message         the attempt fails, with the message
    unknown     as block, and nothing is counted: only ``warn`` lets it pass

The delay of ``retry`` is a liveness key.  A check before it is over may pass, but counts nothing.
At a gate the task is listed in ``due``, so that any worker checks it again when the delay is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, ObservedFact
from interlock.core.safe_text import foreign
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import GateFact, Hindrance, hindrance_of
from interlock.nouns.tasks import end_rules, progress_rules, rules, task_outcomes
from interlock.nouns.tasks.progress_rules import Expired, Moved
from interlock.nouns.tasks.task import Claimant, DueEntry, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges


class GuardRefusal(Struct, frozen=True, kw_only=True):
    """A guard that does not let a task pass: what keeps it, and what the guard asks for then.

    A guard that is unknown asks to wait.
    """

    result: Literal["failed", "unknown"]
    action: g.FailureAction
    hindrance: Hindrance

    @property
    def entry(self) -> str:
        """The guard and the reason, for the record and for a task that fails by it."""
        at = self.hindrance
        leaf = foreign(at.leaf) if at.leaf else ""
        said = [f"guard {foreign(at.guard)}", leaf, at.stored or at.reason]
        return ": ".join([part for part in said if part])


class GuardsChecked(Struct, frozen=True, kw_only=True):
    """What the guards of a task say: the one that refuses, and those that only warn.

    ``observed`` are the facts from outside that this relies on, for the record.
    """

    refusal: GuardRefusal | None = None
    warned: tuple[GuardRefusal, ...] = ()
    observed: tuple[ObservedFact, ...] = ()


def judge(
    names: Sequence[str],
    guards: Mapping[str, g.Guard],
    results: Mapping[str, g.GuardResult],
    observed: tuple[ObservedFact, ...] = (),
) -> GuardsChecked:
    """What these guards mean for a task; a name without a guard is unknown."""
    found = [
        _refusal(guards[name], results[name]) if name in guards else _undefined(name)
        for name in names
        if name not in guards or results[name].result != "passed"
    ]
    closed = [each for each in found if not isinstance(each.action, g.WarnAction)]
    return GuardsChecked(
        refusal=min(closed, key=_rank, default=None),
        warned=tuple([each for each in found if isinstance(each.action, g.WarnAction)]),
        observed=observed,
    )


def _rank(refusal: GuardRefusal) -> int:
    """One that ends the task comes first, one that is only unknown last."""
    if refusal.result == "unknown":
        return 2
    return 0 if isinstance(refusal.action, g.FailAction) else 1


def _refusal(guard: g.Guard, result: g.GuardResult) -> GuardRefusal:
    at = hindrance_of(guard, result)
    return GuardRefusal(
        result="failed" if result.result == "failed" else "unknown",
        action=guard.on_failure,
        hindrance=replace(at, facts=(*at.facts, definition_fact(guard.name))),
    )


def _undefined(name: str) -> GuardRefusal:
    return GuardRefusal(
        result="unknown",
        action=g.BlockAction(),
        hindrance=Hindrance(
            guard=name,
            leaf="",
            reason="the store has no guard of this name",
            acts=(f"define guard {foreign(name)}: interlock guard define FILE",),
            facts=(definition_fact(name),),
        ),
    )


def definition_fact(name: str) -> GateFact:
    """The definition of a guard: another one may open the gate."""
    return GateFact(fact=f"guard/{name}")


# Before a claim.


def settle_gate(
    changes: TaskChanges, id_: str, checked: GuardsChecked
) -> Decision[task_outcomes.TaskBlocked | Moved | str]:
    """Let a task at its gate enter the queue, or keep it; too late, it is a dead letter."""
    status = changes.facts.status(id_)
    if changes.is_late(id_, status):
        progress_rules.expire_one(changes, id_)
        return changes.decision(Expired(tasks=1), "task.expire", f"task/{id_}")
    if checked.refusal is not None:
        return keep(changes, id_, checked, checked.refusal)
    spec = changes.facts.spec(id_)
    progress_rules.read_requirement_sets(changes, [spec])
    changes.move(id_, "unblock", "pending", **rules.last_attempt(status))
    changes.enter_queue(id_, spec)
    changes.task_event("ready", "")
    decision = changes.decision(Moved(tasks=1), "task.ready", f"task/{id_}")
    return replace(decision, observed=checked.observed)


def keep(
    changes: TaskChanges, id_: str, checked: GuardsChecked, refusal: GuardRefusal
) -> Decision[task_outcomes.TaskBlocked | str]:
    """A guard does not pass: the task stays at its gate, or goes back to it, or it fails."""
    status, guard = changes.facts.status(id_), refusal.hindrance.guard
    if status is None:
        raise AssertionError(f"there is no task {id_}")
    failures = status.failures if status.guard == guard else 0
    resting = bool(failures and status.due) and not changes.is_due(status)
    delay, failure = _counted(refusal, failures, resting=resting)
    if failure:
        return _fail(changes, id_, status, checked, failure)
    due = status.due if resting else keys.due(changes.now + delay, id_) if delay else ""
    outcome = blocked(id_, refusal, keys.due_at(due) - changes.now if due else None)
    if (status.guard, status.due) != (guard, due):
        _leave_queue(changes, id_, status)
        changes.move(
            id_,
            "gate",
            "blocked",
            since=status.since if status.guard else changes.now,
            guard=guard,
            failures=failures + bool(delay),
            due=due,
            **rules.last_attempt(status),
        )
        changes.put(keys.behind_guard(guard, id_), {})
        if due:
            changes.put(due, DueEntry(keys.guard_rest(id_)))
    elif (gate := changes.facts.gate(id_)) is not None and gate.facts:
        return Decision(outcome=outcome)
    if delay:
        rest = max(delay, changes.facts.min_ttl)
        changes.put(keys.guard_rest(id_), {"for": f"task/{id_}"}, rest)
        changes.wake_workers(changes.facts.spec(id_))  # they look when the delay is over
    changes.task_event("blocked", "")
    decision = changes.decision(outcome, "task.block", f"task/{id_}")
    return replace(decision, reason=refusal.entry, observed=checked.observed)


def _counted(refusal: GuardRefusal, failures: int, *, resting: bool) -> tuple[float, str]:
    """The delay after which the guard is counted again, or the reason to fail."""
    action = refusal.action
    if refusal.result == "failed":
        if isinstance(action, g.FailAction):
            return 0.0, action.message
        if isinstance(action, g.RetryAction) and not resting:
            if failures >= action.limit:
                return 0.0, f"{refusal.entry} (failure {failures + 1})"
            return action.delay, ""
    return 0.0, ""


def _fail(
    changes: TaskChanges, id_: str, status: TaskStatus, checked: GuardsChecked, reason: str
) -> Decision[str]:
    """The task fails by its guard, before any worker began it."""
    _leave_queue(changes, id_, status)
    if status.due:
        changes.delete(keys.guard_rest(id_))
    changes.move(id_, "gate", "failed", since=changes.now, reason=reason)
    changes.task_event("failed", "")
    decision = changes.decision("failed", "task.fail", f"task/{id_}")
    return replace(decision, reason=reason, observed=checked.observed)


def _leave_queue(changes: TaskChanges, id_: str, status: TaskStatus) -> None:
    if status.state == "pending" and not status.due:
        changes.delete(changes.facts.spec(id_).ready_key(id_))


def blocked(
    id_: str, refusal: GuardRefusal, retry_in: float | None = None
) -> task_outcomes.TaskBlocked:
    """The answer to a claim of a task that a guard keeps."""
    at = refusal.hindrance
    return task_outcomes.TaskBlocked(
        task=id_,
        reason=at.reason,
        retry_in=None if retry_in is None else round(max(retry_in, 0.0), 3),
        guard=at.guard,
        result=refusal.result,
        leaf=at.leaf,
        acts=at.acts,
    )


# Before a completion.


def refuse_completion(
    changes: TaskChanges,
    claimant: Claimant,
    checked: GuardsChecked,
    refusal: GuardRefusal,
    chance: float,
) -> Decision[task_outcomes.CompleteOutcome]:
    """A guard of the evidence does not pass: the claim stays as it is, or the attempt fails."""
    id_, at = claimant.task, refusal.hindrance
    status = changes.facts.status(id_)
    failures = 0 if status is None else status.failures
    rest = keys.guard_rest(id_)
    resting = bool(failures) and changes.facts.has(rest)
    delay, failure = _counted(refusal, failures, resting=resting)
    decision: Decision[Any]
    if failure:
        if failures:
            changes.delete(rest)
        ended = end_rules.fail(changes, claimant, failure, None, chance, retry=True)
        decision = cast("Decision[Any]", ended)
        return replace(
            decision,
            outcome=_evidence_failed(ended.outcome, refusal, failure),
            reason=failure,
            observed=checked.observed,
        )
    least, counts = changes.facts.min_ttl, isinstance(refusal.action, g.RetryAction)
    outcome = task_outcomes.EvidenceMissing(
        task=id_,
        guard=at.guard,
        result=refusal.result,
        leaf=at.leaf,
        reason=at.reason,
        acts=at.acts,
        failures=failures + bool(delay) if counts else 0,
        retry_in=_again(refusal, least) if refusal.result == "failed" else None,
    )
    if delay and status is not None:
        changes.set_status(id_, replace(status, failures=failures + 1))
        changes.put(rest, {"for": f"task/{id_}"}, max(delay, least))
        decision = changes.decision(outcome, "task.complete", f"task/{id_}")
    else:
        decision = changes.refuse(outcome, "task.complete", id_, claimant.agent)
    if not decision.changes:
        return decision
    return replace(decision, reason=refusal.entry, observed=checked.observed)


def _again(refusal: GuardRefusal, least: float) -> float | None:
    """The longest time until a guard that is checked a limited number of times counts again."""
    action = refusal.action
    return max(action.delay, least) if isinstance(action, g.RetryAction) else None


def _evidence_failed(
    failed: task_outcomes.FailOutcome, refusal: GuardRefusal, reason: str
) -> task_outcomes.CompleteOutcome:
    if not isinstance(failed, task_outcomes.TaskFailed):
        return failed
    return task_outcomes.EvidenceFailed(
        task=failed.task,
        state=failed.state,
        attempts=failed.attempts,
        guard=refusal.hindrance.guard,
        leaf=refusal.hindrance.leaf,
        reason=reason,
        retry_in=failed.retry_in,
    )
