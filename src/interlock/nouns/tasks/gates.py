"""The gates of tasks on a store: checked inside of decisions, and looked at from outside.

``gate_rules.py`` has the theory.  Only tasks with guards or evidence come here, so a plain task
pays neither a read nor an import.

A decision reads the definitions of the guards and the facts of the store, and its commit checks
them.  For facts from outside it relies on what hosts have stored.  A claim that finds none lets
this host look, once in each call, if the host allows the guard.  A completion always lets this host
look first: evidence from before the work proves nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import (
    Gate,
    decode_gate,
    merged,
    stop_waiting,
    wait_for,
)
from interlock.nouns.guards.observations import (
    Observed,
    observations,
    outside_needs,
    stored_observations,
)
from interlock.nouns.guards.service import check_inside, decode_guard, observed_facts
from interlock.nouns.tasks import gate_rules, task_outcomes
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks.gate_rules import GuardRefusal, GuardsChecked
from interlock.nouns.tasks.progress_rules import Moved
from interlock.nouns.tasks.task import Claimant
from interlock.nouns.tasks.task_reader import TaskReader, decode_status
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import life_or, outside, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op, Read
from interlock.store import LIVE, Snapshot

T = TypeVar("T")

# Inside a decision.


def find_guards(names: Sequence[str]) -> ReadOp[dict[str, g.Guard]]:
    """The guards of these names that the store has."""
    items = (yield tuple(map(keys.guard, names))).items
    found = {name: items[keys.guard(name)] for name in names}
    return {name: decode_guard(item) for name, item in found.items() if item is not None}


def check(names: Sequence[str], observed: Observed, now: float) -> ReadOp[GuardsChecked]:
    """Check the guards of these names."""
    return (yield from _check(names, (yield from find_guards(names)), observed, now))


def _check(
    names: Sequence[str], guards: dict[str, g.Guard], observed: Observed, now: float
) -> ReadOp[GuardsChecked]:
    results = yield from check_inside(list(guards.values()), observed, now)
    by_name = dict(zip(guards, results, strict=True))
    return gate_rules.judge(names, guards, by_name, observed_facts(results))


def move_on(
    runner: Runner, base: int, task: str, observed: Observed | None = None
) -> DecideOp[Any]:
    """Let a task at its gate enter the queue if its guards pass now; else it waits further.

    The outcome is the answer to a claim while it waits (``TaskBlocked``), ``Moved`` if it is ready,
    ``Expired`` or ``failed`` if it ended, and ``gone`` if no guard keeps it.
    """
    reader, key = TaskReader(runner, base), keys.status(task)
    reader.learn((yield (key,)).items)
    status = reader.facts.statuses[task]
    if status is None or not status.guard:
        left = yield from stop_waiting(f"task/{task}")
        verb = "guard.clear" if left.changes else ""
        return replace(left, outcome="gone", verb=verb, thing=f"task/{task}" if verb else "")
    checked = yield from check(status.guards, observed or {}, runner.clock.wall())
    decision = yield from reader.change(
        lambda changes: gate_rules.settle_gate(changes, task, checked)
    )
    return (yield from _waiting(runner, base, decision, checked))


def claimed(
    runner: Runner, base: int, reader: TaskReader, decision: Decision[T]
) -> DecideOp[T | task_outcomes.TaskBlocked | str]:
    """The decision that claims a task, if its guards pass; else one that brings it to its gate."""
    task = decision.thing.removeprefix("task/")
    status = reader.facts.statuses[task]
    names = () if status is None else status.guards
    checked = yield from check(names, {}, runner.clock.wall())
    refusal = checked.refusal
    if refusal is None:
        return _recorded(decision, checked)
    kept = yield from reader.change(
        lambda changes: gate_rules.keep(changes, task, checked, refusal)
    )
    return (yield from _waiting(runner, base, kept, checked))


def _waiting(
    runner: Runner, base: int, decision: Decision[Any], checked: GuardsChecked
) -> DecideOp[Any]:
    """The decision that keeps a task, with the facts that the task waits for."""
    blocked, refusal = decision.outcome, checked.refusal
    if not isinstance(blocked, task_outcomes.TaskBlocked) or refusal is None:
        return decision
    thing, at = f"task/{blocked.task}", refusal.hindrance
    gate = Gate(
        facts=(),
        guard=at.guard,
        leaf=at.leaf,
        reason=at.stored or at.reason,
        since=runner.clock.wall(),
    )
    waiting = yield from wait_for(runner, base, thing, at.facts, gate)
    if waiting.changes and not decision.verb:  # it waits for another fact of the same leaf
        decision = replace(decision, verb="task.block", thing=thing)
    return merged(decision, [waiting])


def completed(
    runner: Runner,
    reader: TaskReader,
    claimant: Claimant,
    decision: Decision[task_outcomes.CompleteOutcome | task_types.LookFirst],
    observed: Observed | None,
) -> DecideOp[task_outcomes.CompleteOutcome | task_types.LookFirst]:
    """The decision that completes a task, if its evidence passes; else a refusal.

    Without ``observed`` facts from outside, it asks for them if the evidence needs any.
    """
    status = reader.facts.statuses[claimant.task]
    names = () if status is None else status.evidence
    guards = yield from find_guards(names)
    if observed is None and (some := tuple(filter(outside_needs, guards.values()))):
        return Decision(outcome=task_types.LookFirst(some))
    checked = yield from _check(names, guards, observed or {}, runner.clock.wall())
    refusal, chance = checked.refusal, runner.random_below(1000) / 1000
    if refusal is not None:
        return (
            yield from reader.change(
                lambda changes: gate_rules.refuse_completion(
                    changes, claimant, checked, refusal, chance
                )
            )
        )
    if isinstance(decision.outcome, task_outcomes.TaskCompleted) and checked.warned:
        warned = tuple([each.hindrance.guard for each in checked.warned])
        decision = replace(decision, outcome=replace(decision.outcome, warned=warned))
    return _recorded(decision, checked)


def _recorded(decision: Decision[T], checked: GuardsChecked) -> Decision[T]:
    """A decision that the guards let pass, with what it relies on, for its entry."""
    warned = [f"warned by {each.entry}" for each in checked.warned]
    agent = decision.events[0].agent if decision.events else ""
    return replace(
        decision,
        events=(*decision.events, *[Event("task:warned", agent) for _ in warned]),
        reason="; ".join(warned),
        observed=checked.observed,
    )


# Around decisions.


def check_again(
    runner: Runner, actor: Actor, task: str, observed: Observed | None = None
) -> Op[task_outcomes.TaskBlocked | Moved | str]:
    """Check the gate of a task now, since facts may have changed without a commit."""
    base = yield from runner.base()
    done = yield from runner.change(partial(move_on, runner, base, task, observed), actor)
    outcome: task_outcomes.TaskBlocked | Moved | str = done.outcome
    return outcome


def check_refused(
    runner: Runner, actor: Actor, blocked: task_outcomes.TaskBlocked, *, look: bool
) -> Op[tuple[task_outcomes.TaskBlocked | None, bool]]:
    """Check the guard again that keeps a task from being claimed; None if it does not keep it now.

    With ``look`` this host looks at the outside first, if the guard is unknown; the second value
    says whether it did.
    """
    found: object = blocked
    if not blocked.result:  # it comes from the status alone
        found = yield from check_again(runner, actor, blocked.task)
    unknown = isinstance(found, task_outcomes.TaskBlocked) and found.result == "unknown"
    looks = look and unknown
    if looks and (observed := (yield from look_for(runner, blocked.task))):
        found = yield from check_again(runner, actor, blocked.task, observed)
    return (found if isinstance(found, task_outcomes.TaskBlocked) else None), looks


def check_some(runner: Runner, actor: Actor, tasks: Iterable[str]) -> Op[tuple[int, float | None]]:
    """Check the gates of these tasks; how many moved on, and when a holder expires next.

    A grant that expires is no commit, so no gate is checked by it.  Nothing is written for a task
    that still waits.
    """
    base, moved = (yield from runner.base()), 0
    soonest: float | None = None
    for task in tasks:
        try:
            decision, left = yield from _timed(
                move_on(runner, base, task), runner.capabilities.allow
            )
            if decision.changes:
                outcome = yield from check_again(runner, actor, task)
                moved += isinstance(outcome, Moved)
            elif left is not None:
                soonest = left if soonest is None else min(left, soonest)
        except (StoreDamaged, TooLarge):  # of this task; doctor names it
            continue
    return moved, soonest


def _timed(reading: ReadOp[T], allow: Callable[[float], float]) -> Op[tuple[T, float | None]]:
    """Run the reads of a decision outside of one, and find out which liveness ends first."""
    soonest: float | None = None
    try:
        refs = next(reading)
        while True:
            timed = any(isinstance(ref, str) and ref.startswith(LIVE) for ref in refs)
            snapshot: Snapshot = yield Read(*refs, times=timed)
            for key, item in snapshot.items.items() if timed else ():
                if key.startswith(LIVE) and item is not None and item.expires_in is not None:
                    left = life_or(item, allow)
                    soonest = left if soonest is None else min(soonest, left)
            refs = reading.send(snapshot)
    except StopIteration as done:
        return done.value, soonest


def look_for(runner: Runner, task: str) -> Op[Observed]:
    """The facts from outside for the guards of a task.

    This host looks for those that it allows, and stores what it sees, which checks the gates that
    wait for it; for the others the facts say which host could look.
    """
    key = keys.status(task)
    status = decode_status((yield Read(key))[key])
    guards = yield from outside(find_guards(() if status is None else status.guards))
    return (yield from observations(runner, list(guards.values()), runner.clock))


def gate_of(task: str) -> Op[Gate | None]:
    """What a task at its gate waits for."""
    key = keys.gate(f"task/{task}")
    return readable(decode_gate, (yield Read(key))[key])


def refusal_now(runner: Runner, names: Sequence[str]) -> Op[GuardRefusal | None]:
    """What keeps a task now, of these guards; nothing is written, and this host does not look."""
    now = runner.clock.wall()
    guards = yield from outside(find_guards(names))
    observed = yield from stored_observations(guards.values(), now)
    return (yield from outside(_check(names, guards, observed, now))).refusal
