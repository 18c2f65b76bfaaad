"""The acts that would clear a leaf: who does what.

An act is one line for a person.  It names the agent that can do it, where the fact does.  The act
for an unknown leaf is to make it known; what it says then may still be no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_rules import NAMED, RULES, STUCK, few, slots, tasks, which


def act(leaf: c.BaseCondition, fact: object, *, wanted: bool) -> str:
    """The act that would make a leaf true, or false, when it is not that."""
    rule = RULES[type(leaf)]
    if type(fact) is not rule.fact:
        need = rule.need(leaf)
        return _MAKE_KNOWN[type(need)](need)
    if isinstance(fact, c.Observation):
        return _outside(leaf, fact, wanted=wanted)
    return _STORE[type(leaf)](leaf, fact, wanted)


def _lock(leaf: c.LockFree | c.LockHeld, fact: c.LockFact, wanted: bool) -> str:
    if isinstance(leaf, c.LockFree) == wanted:
        return f"{fact.holder} releases lock {leaf.lock}"
    agent = (leaf.by if isinstance(leaf, c.LockHeld) else "") or "an agent"
    before = f"{fact.holder} releases lock {leaf.lock}, then " if fact.holder else ""
    return f"{before}{agent} acquires {'it' if before else f'lock {leaf.lock}'}"


def _semaphore(leaf: c.SemaphoreAvailable, fact: c.SemaphoreFact, wanted: bool) -> str:
    name = f"semaphore {leaf.semaphore}"
    if fact.capacity is None:
        return f"an agent acquires a slot of {name} and says its capacity"
    if not wanted:
        return f"an agent acquires {slots(fact.available - leaf.slots + 1)} of {name}"
    if leaf.slots > fact.capacity:
        return f"an operator resizes {name} to {leaf.slots} or more"
    who = few(fact.holders) or "its holder"
    verb = "release" if len(fact.holders) > 1 else "releases"
    return f"{who} {verb} {slots(leaf.slots - fact.available)} of {name}"


def _complete(leaf: c.TasksComplete, fact: c.TasksFact, wanted: bool) -> str:
    found = sum(fact.states.values())
    incomplete = found - fact.states.get("complete", 0)
    if incomplete:
        return _each(fact.open, incomplete, leaf.filter, "complete")
    if fact.partial:
        return f"narrow the filter: there are more tasks{which(leaf.filter)} than were read"
    if wanted or found:
        return f"publish a task{which(leaf.filter)}"
    return f"publish a task{which(leaf.filter)} that is not complete"


def _unblocked(leaf: c.NoBlockedTasks, fact: c.TasksFact, wanted: bool) -> str:
    stuck = sum(fact.states.get(state, 0) for state in STUCK)
    if stuck:
        some = [each for each in fact.open if each[1] in STUCK]
        return _each(some, stuck, leaf.filter, "unblock")
    if fact.partial:
        return f"narrow the filter: there are more tasks{which(leaf.filter)} than were read"
    del wanted  # only a filter without such a task is true
    return f"publish a task{which(leaf.filter)} that needs another one"


def _each(some: Iterable[tuple[str, str, str]], count: int, chosen: c.TaskFilter, verb: str) -> str:
    """The acts for a few tasks by name, or for more by their number and the first of them."""
    named = [_task(*each) for each in some]
    if named and count <= min(len(named), NAMED):
        return ", ".join(named)
    return f"{verb} {tasks(count, chosen)}" + (f"; first: {named[0]}" if named else "")


def _task(id_: str, state: str, worker: str) -> str:
    if state in ("failed", "dead"):
        return f"retry task {id_} ({state})"
    if state == "blocked":
        return f"complete the needs of task {id_}"
    return f"complete task {id_} ({f'{worker} works on it' if worker else f'it is {state}'})"


def _in_phase(leaf: c.PipelineInPhase, fact: c.PipelineFact, wanted: bool) -> str:
    if not wanted:
        return f"advance pipeline {leaf.pipeline} beyond phase {leaf.phase}"
    return _start(leaf.pipeline, fact) or f"advance pipeline {leaf.pipeline} to phase {leaf.phase}"


def _ended(leaf: c.PipelineComplete, fact: c.PipelineFact, wanted: bool) -> str:
    if not wanted:
        return f"start pipeline {leaf.pipeline} again"
    here = f"advance pipeline {leaf.pipeline} to its end (it is in phase {fact.phase})"
    return _start(leaf.pipeline, fact) or here


def _start(name: str, fact: c.PipelineFact) -> str:
    if fact.state == "running":
        return ""
    return f"start pipeline {name}" + (f" again (it is {fact.state})" if fact.state else "")


_STORE: dict[type, Callable[[Any, Any, bool], str]] = {
    c.LockFree: _lock,
    c.LockHeld: _lock,
    c.SemaphoreAvailable: _semaphore,
    c.TasksComplete: _complete,
    c.NoBlockedTasks: _unblocked,
    c.PipelineInPhase: _in_phase,
    c.PipelineComplete: _ended,
}


def _outside(leaf: c.BaseCondition, fact: c.Observation, *, wanted: bool) -> str:
    is_status = isinstance(fact.value, int) and not isinstance(fact.value, bool)
    if not (is_status if isinstance(leaf, c.Command) else isinstance(fact.value, bool)):
        host = f"host {fact.host}" if fact.host else "a host"
        return f"{host} looks again" + (f" ({fact.says})" if fact.says else "")
    return _OUTSIDE[type(leaf)](leaf)[0 if wanted else 1]


def _contains(leaf: c.FileContains) -> tuple[str, str]:
    sought = repr(leaf.text) if leaf.text else f"text that matches {leaf.pattern!r}"
    return f"write {sought} into file {leaf.path}", f"remove {sought} from file {leaf.path}"


def _command(leaf: c.Command) -> tuple[str, str]:
    name = f"command `{command_line(leaf)}`"
    if leaf.expect == "failure":
        return f"make {name} fail", f"make {name} succeed"
    if leaf.expect == 0:
        return f"make {name} succeed", f"make {name} fail"
    return f"make {name} end with status {leaf.expect}", f"make {name} end with another status"


def command_line(command: c.Command | c.CommandNeed) -> str:
    """A command as a person types it."""
    import shlex

    return command.run[0] if command.shell else shlex.join(command.run)


_OUTSIDE: dict[type, Callable[[Any], tuple[str, str]]] = {
    c.BranchExists: lambda leaf: (f"create branch {leaf.branch}", f"delete branch {leaf.branch}"),
    c.BranchClean: lambda leaf: (
        f"commit or undo the changes in the worktree of branch {leaf.branch}",
        f"change a file in the worktree of branch {leaf.branch}",
    ),
    c.BranchMerged: lambda leaf: (
        f"merge branch {leaf.branch} into {leaf.into}",
        f"commit something to branch {leaf.branch}",
    ),
    c.FileExists: lambda leaf: (f"create file {leaf.path}", f"remove file {leaf.path}"),
    c.FileContains: _contains,
    c.Command: _command,
}
"""The acts that make a leaf about the outside true, and false."""


def _read(what: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda need: f"read {what(need)} again when the store answers"


def _allow(has: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda need: f"run `guard allow` on a host that has {has(need)}"


def _repository(need: c.BranchNeed | c.CleanNeed | c.MergedNeed) -> str:
    return f"the repository of branch {need.branch}"


def _folder(need: c.FileNeed | c.TextNeed) -> str:
    return f"the folder of file {need.path}"


_MAKE_KNOWN: dict[type, Callable[[Any], str]] = {
    c.LockNeed: _read(lambda need: f"lock {need.lock}"),
    c.SemaphoreNeed: _read(lambda need: f"semaphore {need.semaphore}"),
    c.TasksNeed: _read(lambda need: f"the tasks{which(need.filter)}"),
    c.PipelineNeed: _read(lambda need: f"pipeline {need.pipeline}"),
    c.BranchNeed: _allow(_repository),
    c.CleanNeed: _allow(_repository),
    c.MergedNeed: _allow(_repository),
    c.FileNeed: _allow(_folder),
    c.TextNeed: _allow(_folder),
    c.CommandNeed: _allow(lambda need: f"command `{command_line(need)}`"),
}
