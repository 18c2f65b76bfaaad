"""The rules of the leaves: which fact each needs, what that fact says, and what would clear it.

``rules.py`` opens with all rules in words.  A rule never raises: a fact that is missing, that could
not be had, or that belongs to another need leaves its leaf unknown, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from interlock.core.safe_text import foreign
from interlock.core.validate import span
from interlock.nouns.guards import condition as c

Judgement: TypeAlias = tuple[bool | None, str]
"""Whether it is so, None if that is unknown; and the reason."""

NAMED = 3
"""How many tasks and holders are named."""
STUCK = ("blocked", "dead", "failed")


class LeafRule(Struct, frozen=True):
    """The rule of a kind of leaf: ``judge`` gets the leaf, its fact and the time."""

    need: Callable[[Any], c.FactNeed]
    fact: type
    judge: Callable[[Any, Any, float | None], Judgement]


def judge(rule: LeafRule, leaf: c.BaseCondition, fact: object, now: float | None) -> Judgement:
    """What a fact, or none, says about a leaf."""
    if type(fact) is rule.fact:
        return rule.judge(leaf, fact, now)
    if type(fact) is c.NoFact:
        return None, fact.says
    return None, "it was not looked at" if fact is None else "another fact was found than it needs"


def _lock_free(leaf: c.LockFree, fact: c.LockFact, now: float | None) -> Judgement:
    if not fact.holder:
        return True, f"lock {foreign(leaf.lock)} is free"
    return False, f"{foreign(fact.holder)} holds lock {foreign(leaf.lock)}{_since(fact.since, now)}"


def _lock_held(leaf: c.LockHeld, fact: c.LockFact, now: float | None) -> Judgement:
    if not fact.holder:
        return False, f"lock {foreign(leaf.lock)} is free"
    held = f"{foreign(fact.holder)} holds lock {foreign(leaf.lock)}{_since(fact.since, now)}"
    if leaf.by and leaf.by != fact.holder:
        return False, f"{held}, not {foreign(leaf.by)}"
    return True, held


def _available(leaf: c.SemaphoreAvailable, fact: c.SemaphoreFact, now: float | None) -> Judgement:
    del now
    if fact.capacity is None:
        return None, f"semaphore {foreign(leaf.semaphore)} has no capacity yet"
    free = f"{fact.available} of {slots(fact.capacity)} of semaphore {foreign(leaf.semaphore)} free"
    if fact.available >= leaf.slots:
        return True, free
    held = f" ({few(fact.holders)} hold{'s' * (len(fact.holders) == 1)} some)"
    return False, f"{free}, {leaf.slots} wanted{held if fact.holders else ''}"


def _complete(leaf: c.TasksComplete, fact: c.TasksFact, now: float | None) -> Judgement:
    del now
    found = sum(fact.states.values())
    incomplete = found - fact.states.get("complete", 0)
    if incomplete:
        some = _described(fact.open)
        return False, f"{incomplete} of {tasks(found, leaf.filter)} not complete{some}"
    if fact.partial:
        return None, f"there are more than {tasks(found, leaf.filter)}, and not all were read"
    if not found:
        enough = "; none is needed" if leaf.none_ok else ", and none is not enough"
        return leaf.none_ok, f"there is no task{which(leaf.filter)}{enough}"
    if fact.uncounted:
        return True, f"all tasks{which(leaf.filter)} are complete"
    return True, f"{found} of {tasks(found, leaf.filter)} complete"


def _unblocked(leaf: c.NoBlockedTasks, fact: c.TasksFact, now: float | None) -> Judgement:
    del now
    stuck = sum(fact.states.get(state, 0) for state in STUCK)
    if stuck:
        some = _described(each for each in fact.open if each[1] in STUCK)
        return False, f"{tasks(stuck, leaf.filter)} blocked, dead or failed{some}"
    if fact.partial:
        found = sum(fact.states.values())
        return None, f"there are more than {tasks(found, leaf.filter)}, and not all were read"
    return True, f"no task{which(leaf.filter)} is blocked, dead or failed"


def _in_phase(leaf: c.PipelineInPhase, fact: c.PipelineFact, now: float | None) -> Judgement:
    here = fact.state == "running" and fact.phase == leaf.phase
    return here, _progress(leaf.pipeline, fact, now)


def _ended(leaf: c.PipelineComplete, fact: c.PipelineFact, now: float | None) -> Judgement:
    return fact.state == "complete", _progress(leaf.pipeline, fact, now)


def _progress(name: str, fact: c.PipelineFact, now: float | None) -> str:
    if not fact.state:
        return f"there is no pipeline {foreign(name)}"
    since = _since(fact.since, now)
    if fact.state == "complete":
        return f"pipeline {foreign(name)} is complete{since}"
    state = "" if fact.state == "running" else f"{fact.state} "
    return f"pipeline {foreign(name)} is {state}in phase {foreign(fact.phase)}{since}"


def _observed(leaf: c.BaseCondition, fact: c.Observation, now: float | None) -> Judgement:
    """A host says whether it is so."""
    del leaf, now
    value = fact.value if isinstance(fact.value, bool) else None
    return value, _said(fact, "the host cannot say" if value is None else "the host says so")


def _exit_status(leaf: c.Command, fact: c.Observation, now: float | None) -> Judgement:
    """A host says with which status the command ended."""
    del now
    status = fact.value
    if status is None or isinstance(status, bool):
        return None, _said(fact, "the host cannot say how it ended")
    expected = status != 0 if leaf.expect == "failure" else status == leaf.expect
    return expected, _said(fact, f"it ended with status {status}")


RULES: dict[type, LeafRule] = {
    c.LockFree: LeafRule(lambda leaf: c.LockNeed(leaf.lock), c.LockFact, _lock_free),
    c.LockHeld: LeafRule(lambda leaf: c.LockNeed(leaf.lock), c.LockFact, _lock_held),
    c.SemaphoreAvailable: LeafRule(
        lambda leaf: c.SemaphoreNeed(leaf.semaphore), c.SemaphoreFact, _available
    ),
    c.TasksComplete: LeafRule(lambda leaf: c.TasksNeed(leaf.filter), c.TasksFact, _complete),
    c.NoBlockedTasks: LeafRule(lambda leaf: c.TasksNeed(leaf.filter), c.TasksFact, _unblocked),
    c.PipelineInPhase: LeafRule(
        lambda leaf: c.PipelineNeed(leaf.pipeline), c.PipelineFact, _in_phase
    ),
    c.PipelineComplete: LeafRule(
        lambda leaf: c.PipelineNeed(leaf.pipeline), c.PipelineFact, _ended
    ),
    c.BranchExists: LeafRule(lambda leaf: c.BranchNeed(leaf.branch), c.Observation, _observed),
    c.BranchClean: LeafRule(lambda leaf: c.CleanNeed(leaf.branch), c.Observation, _observed),
    c.BranchMerged: LeafRule(
        lambda leaf: c.MergedNeed(leaf.branch, leaf.into), c.Observation, _observed
    ),
    c.FileExists: LeafRule(lambda leaf: c.FileNeed(leaf.path), c.Observation, _observed),
    c.FileContains: LeafRule(
        lambda leaf: c.TextNeed(leaf.path, leaf.text, leaf.pattern), c.Observation, _observed
    ),
    c.Command: LeafRule(
        lambda leaf: c.CommandNeed(leaf.run, leaf.shell, leaf.timeout, leaf.env),
        c.Observation,
        _exit_status,
    ),
}


# Words


def slots(count: int) -> str:
    """A number of slots."""
    return f"{count} slot" if count == 1 else f"{count} slots"


def tasks(count: int, chosen: c.TaskFilter) -> str:
    """A number of tasks that a filter selects."""
    return f"{count} task{'s' * (count != 1)}{which(chosen)}"


def which(chosen: c.TaskFilter) -> str:
    """The filter, behind the word "tasks"."""
    said = [
        f"{foreign(value)}*" if name == "prefix" else f"with {name} {foreign(value)}"
        for name in chosen.__struct_fields__
        if (value := getattr(chosen, name))
    ]
    return " " + " ".join(said) if said else ""


def few(names: Iterable[str]) -> str:
    """The first few names."""
    some = list(dict.fromkeys(names))
    more = [f"{len(some) - NAMED} more"] if len(some) > NAMED else []
    return ", ".join([*map(foreign, some[:NAMED]), *more])


def _described(some: Iterable[tuple[str, str, str]]) -> str:
    """A few tasks with their states, as the end of a sentence."""
    said = [
        f"{foreign(id_)} is {state}" + (f" ({foreign(worker)} works on it)" if worker else "")
        for id_, state, worker in list(some)[:NAMED]
    ]
    return ": " + ", ".join(said) if said else ""


def _since(moment: float | None, now: float | None) -> str:
    """Since when, as the end of a sentence: how long, if the time is known."""
    if moment is None:
        return ""
    try:
        if now is not None:
            return f", for {span(now - moment)}"
        return time.strftime(", since %Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):  # a number that is no time
        return ""


def _said(fact: c.Observation, otherwise: str) -> str:
    return (fact.says or otherwise) + (f" (host {foreign(fact.host)})" if fact.host else "")


# The acts that would clear a leaf: who does what.  An act is one line for a person.  It names the
# agent that can do it, where the fact does.  The act for an unknown leaf is to make it known; what
# it says then may still be no.


def act(leaf: c.BaseCondition, fact: object, *, wanted: bool) -> str:
    """The act that would make a leaf true, or false, when it is not that."""
    rule = RULES[type(leaf)]
    if type(fact) is not rule.fact:
        need = rule.need(leaf)
        if isinstance(fact, c.NoFact) and fact.hosts:
            return f"check the guard on host {few(fact.hosts)}, which may look"
        return _MAKE_KNOWN[type(need)](need)
    if isinstance(fact, c.Observation):
        return _change_outside(leaf, fact, wanted=wanted)
    return _STORE_ACTS[type(leaf)](leaf, fact, wanted)


def _clear_lock(leaf: c.LockFree | c.LockHeld, fact: c.LockFact, wanted: bool) -> str:
    if isinstance(leaf, c.LockFree) == wanted:
        return f"{foreign(fact.holder)} releases lock {foreign(leaf.lock)}"
    agent = foreign(leaf.by) if isinstance(leaf, c.LockHeld) and leaf.by else "an agent"
    before = (
        f"{foreign(fact.holder)} releases lock {foreign(leaf.lock)}, then " if fact.holder else ""
    )
    return f"{before}{agent} acquires {'it' if before else f'lock {foreign(leaf.lock)}'}"


def _clear_semaphore(leaf: c.SemaphoreAvailable, fact: c.SemaphoreFact, wanted: bool) -> str:
    name = f"semaphore {foreign(leaf.semaphore)}"
    if fact.capacity is None:
        return f"an agent acquires a slot of {name} and says its capacity"
    if not wanted:
        return f"an agent acquires {slots(fact.available - leaf.slots + 1)} of {name}"
    if leaf.slots > fact.capacity:
        return f"an operator resizes {name} to {leaf.slots} or more"
    who = few(fact.holders) or "its holder"
    verb = "release" if len(fact.holders) > 1 else "releases"
    return f"{who} {verb} {slots(leaf.slots - fact.available)} of {name}"


def _clear_incomplete(leaf: c.TasksComplete, fact: c.TasksFact, wanted: bool) -> str:
    found = sum(fact.states.values())
    incomplete = found - fact.states.get("complete", 0)
    if incomplete:
        return _clear_tasks(fact.open, incomplete, leaf.filter, "complete")
    if fact.partial:
        return f"narrow the filter: there are more tasks{which(leaf.filter)} than were read"
    if wanted or found:
        return f"publish a task{which(leaf.filter)}"
    return f"publish a task{which(leaf.filter)} that is not complete"


def _clear_blocked(leaf: c.NoBlockedTasks, fact: c.TasksFact, wanted: bool) -> str:
    stuck = sum(fact.states.get(state, 0) for state in STUCK)
    if stuck:
        some = [each for each in fact.open if each[1] in STUCK]
        return _clear_tasks(some, stuck, leaf.filter, "unblock")
    if fact.partial:
        return f"narrow the filter: there are more tasks{which(leaf.filter)} than were read"
    del wanted  # only a filter without such a task is true
    return f"publish a task{which(leaf.filter)} that needs another one"


def _clear_tasks(
    some: Iterable[tuple[str, str, str]], count: int, chosen: c.TaskFilter, verb: str
) -> str:
    """The acts for a few tasks by name, or for more by their number and the first of them."""
    named = [_clear_task(*each) for each in some]
    if named and count <= min(len(named), NAMED):
        return ", ".join(named)
    return f"{verb} {tasks(count, chosen)}" + (f"; first: {named[0]}" if named else "")


def _clear_task(id_: str, state: str, worker: str) -> str:
    if state in ("failed", "dead"):
        return f"retry task {foreign(id_)} ({state})"
    if state == "blocked":
        return f"unblock task {foreign(id_)}"
    return (
        f"complete task {foreign(id_)}"
        f" ({f'{foreign(worker)} works on it' if worker else f'it is {state}'})"
    )


def _reach_phase(leaf: c.PipelineInPhase, fact: c.PipelineFact, wanted: bool) -> str:
    if not wanted:
        return f"advance pipeline {foreign(leaf.pipeline)} beyond phase {foreign(leaf.phase)}"
    return (
        _start(leaf.pipeline, fact)
        or f"advance pipeline {foreign(leaf.pipeline)} to phase {foreign(leaf.phase)}"
    )


def _reach_end(leaf: c.PipelineComplete, fact: c.PipelineFact, wanted: bool) -> str:
    if not wanted:
        return f"start pipeline {foreign(leaf.pipeline)} again"
    here = (
        f"advance pipeline {foreign(leaf.pipeline)} to its end (it is in phase"
        f" {foreign(fact.phase)})"
    )
    return _start(leaf.pipeline, fact) or here


def _start(name: str, fact: c.PipelineFact) -> str:
    if fact.state == "running":
        return ""
    return f"start pipeline {foreign(name)}" + (
        f" again (it is {fact.state})" if fact.state else ""
    )


_STORE_ACTS: dict[type, Callable[[Any, Any, bool], str]] = {
    c.LockFree: _clear_lock,
    c.LockHeld: _clear_lock,
    c.SemaphoreAvailable: _clear_semaphore,
    c.TasksComplete: _clear_incomplete,
    c.NoBlockedTasks: _clear_blocked,
    c.PipelineInPhase: _reach_phase,
    c.PipelineComplete: _reach_end,
}


def _change_outside(leaf: c.BaseCondition, fact: c.Observation, *, wanted: bool) -> str:
    is_status = isinstance(fact.value, int) and not isinstance(fact.value, bool)
    if not (is_status if isinstance(leaf, c.Command) else isinstance(fact.value, bool)):
        host = f"host {foreign(fact.host)}" if fact.host else "a host"
        return f"{host} looks again" + (f" ({fact.says})" if fact.says else "")
    return _OUTSIDE_ACTS[type(leaf)](leaf)[0 if wanted else 1]


def _change_text(leaf: c.FileContains) -> tuple[str, str]:
    sought = (
        f"the text {foreign(leaf.text)}"
        if leaf.text
        else f"text that matches {foreign(leaf.pattern)}"
    )
    return (
        f"write {sought} into file {foreign(leaf.path)}",
        f"remove {sought} from file {foreign(leaf.path)}",
    )


def _change_command(leaf: c.Command) -> tuple[str, str]:
    name = f"command {foreign(command_line(leaf))}"
    if leaf.expect == "failure":
        return f"make {name} fail", f"make {name} succeed"
    if leaf.expect == 0:
        return f"make {name} succeed", f"make {name} fail"
    return f"make {name} end with status {leaf.expect}", f"make {name} end with another status"


def command_line(command: c.Command | c.CommandNeed) -> str:
    """A command as a person types it."""
    import shlex

    return command.run[0] if command.shell else shlex.join(command.run)


_OUTSIDE_ACTS: dict[type, Callable[[Any], tuple[str, str]]] = {
    c.BranchExists: lambda leaf: (
        f"create branch {foreign(leaf.branch)}",
        f"delete branch {foreign(leaf.branch)}",
    ),
    c.BranchClean: lambda leaf: (
        f"commit or undo the changes in the worktree of branch {foreign(leaf.branch)}",
        f"change a file in the worktree of branch {foreign(leaf.branch)}",
    ),
    c.BranchMerged: lambda leaf: (
        f"merge branch {foreign(leaf.branch)} into {foreign(leaf.into)}",
        f"commit something to branch {foreign(leaf.branch)}",
    ),
    c.FileExists: lambda leaf: (
        f"create file {foreign(leaf.path)}",
        f"remove file {foreign(leaf.path)}",
    ),
    c.FileContains: _change_text,
    c.Command: _change_command,
}
"""The acts that make a leaf about the outside true, and false."""


def _read_again(what: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda need: f"read {what(need)} again when the store answers"


def _allow_look(has: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda need: f"have a person allow it on a host that has {has(need)}"


def _repository(need: c.BranchNeed | c.CleanNeed | c.MergedNeed) -> str:
    return f"the repository of branch {foreign(need.branch)}"


def _folder(need: c.FileNeed | c.TextNeed) -> str:
    return f"the folder of file {foreign(need.path)}"


_MAKE_KNOWN: dict[type, Callable[[Any], str]] = {
    c.LockNeed: _read_again(lambda need: f"lock {foreign(need.lock)}"),
    c.SemaphoreNeed: _read_again(lambda need: f"semaphore {foreign(need.semaphore)}"),
    c.TasksNeed: _read_again(lambda need: f"the tasks{which(need.filter)}"),
    c.PipelineNeed: _read_again(lambda need: f"pipeline {foreign(need.pipeline)}"),
    c.BranchNeed: _allow_look(_repository),
    c.CleanNeed: _allow_look(_repository),
    c.MergedNeed: _allow_look(_repository),
    c.FileNeed: _allow_look(_folder),
    c.TextNeed: _allow_look(_folder),
    c.CommandNeed: _allow_look(lambda need: f"command {foreign(command_line(need))}"),
}
