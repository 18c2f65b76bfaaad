"""Conditions for guards: what must hold before work moves on.

    from interlock import guard

    calm = guard.lock_free("deploy") & ~guard.file_exists("STOP")
    ready = guard.tasks_complete("build.") | guard.pipeline_complete("nightly")

Conditions are combined with ``&``, ``|`` and ``~``, or with ``all_of``, ``any_of`` and ``not_``;
``and``, ``or`` and ``not`` would lose a part, and are a ``TypeError``.  A condition is true, false
or unknown; an unknown one never passes, and neither does its opposite.

A guard is a condition with a name, and what its failure means to the things that it gates:

    fleet.guards.define(guard.named("calm", calm, on_failure=guard.retry("30s", 5)))

Each function checks its arguments at once: a name that no lock, task or branch can have is
``BadInput``.  Conditions about branches, files and commands are answered by hosts that allow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from interlock.nouns.guards.condition import COMMAND_SECONDS, AllOf, AnyOf, Condition, Not
from interlock.nouns.guards.guard import (
    MAX_AGE,
    BlockAction,
    FailureAction,
    Guard,
    WarnAction,
    fail,
    guard,
    retry,
)
from interlock.nouns.guards.leaf_kinds import build, validated

__all__ = [
    "Condition", "Guard", "all_of", "any_of", "block", "branch_clean", "branch_exists",
    "branch_merged", "command", "fail", "file_contains", "file_exists", "lock_free", "lock_held",
    "named", "no_blocked_tasks", "not_", "pipeline_complete", "pipeline_in_phase", "retry",
    "semaphore_available", "tasks_complete", "warn",
]  # fmt: skip


def named(
    name: str,
    condition: Condition,
    *,
    on_failure: FailureAction | None = None,
    max_age: float | str = MAX_AGE,
) -> Guard:
    """A guard: a condition with a name.

    ``on_failure`` is ``block()`` unless set, or ``warn()``, ``retry(...)``, ``fail(...)``.  Facts
    from outside count for ``max_age``.
    """
    return guard(name, condition, on_failure, max_age)


def block() -> FailureAction:
    """The gated step waits."""
    return BlockAction()


def warn() -> FailureAction:
    """The gated step is allowed, and the failure is recorded."""
    return WarnAction()


def lock_free(lock: str) -> Condition:
    """No agent holds the lock."""
    return build("lock_free", {"lock": lock})


def lock_held(lock: str, *, by: str | None = None) -> Condition:
    """An agent holds the lock; with ``by``, that agent."""
    return _leaf("lock_held", lock=lock, by=by)


def semaphore_available(semaphore: str, *, slots: int = 1) -> Condition:
    """So many slots of the semaphore are free; unknown while it has no capacity."""
    return build("semaphore_available", {"semaphore": semaphore, "slots": slots})


def tasks_complete(
    prefix: str = "",
    *,
    state: str | None = None,
    requires: str | None = None,
    needs: str | None = None,
    label: str | None = None,
    none_ok: bool = False,
) -> Condition:
    """Every task that is selected is complete; if none is selected, only with ``none_ok``.

    The ids of the tasks begin with ``prefix``; they are in this ``state``, have this requirement
    and this ``label``, and need this task.
    """
    chosen = {"state": state, "requires": requires, "needs": needs, "label": label}
    return _leaf("tasks_complete", prefix=prefix, none_ok=none_ok, **chosen)


def no_blocked_tasks(
    prefix: str = "",
    *,
    state: str | None = None,
    requires: str | None = None,
    needs: str | None = None,
    label: str | None = None,
) -> Condition:
    """No task that is selected is blocked, dead or failed; see ``tasks_complete``."""
    chosen = {"state": state, "requires": requires, "needs": needs, "label": label}
    return _leaf("no_blocked_tasks", prefix=prefix, **chosen)


def pipeline_in_phase(pipeline: str, phase: str) -> Condition:
    """The pipeline is in this phase now."""
    return build("pipeline_in_phase", {"pipeline": pipeline, "phase": phase})


def pipeline_complete(pipeline: str) -> Condition:
    """The pipeline has left its last phase."""
    return build("pipeline_complete", {"pipeline": pipeline})


def branch_exists(branch: str) -> Condition:
    """The repository has this local branch."""
    return build("branch_exists", {"branch": branch})


def branch_clean(branch: str) -> Condition:
    """The worktree that has the branch checked out has no changes; true if none has it."""
    return build("branch_clean", {"branch": branch})


def branch_merged(branch: str, into: str) -> Condition:
    """Every commit of the branch is in the other one.  A squash merge is not seen."""
    return build("branch_merged", {"branch": branch, "into": into})


def file_exists(path: str) -> Condition:
    """There is a file or folder of this name below the root."""
    return build("file_exists", {"path": path})


def file_contains(path: str, text: str | None = None, *, pattern: str | None = None) -> Condition:
    """The file has this text, or text that this pattern (a regular expression) matches."""
    return _leaf("file_contains", path=path, text=text, pattern=pattern)


def command(
    run: str | Sequence[str],
    *,
    shell: bool = False,
    expect: int | Literal["success", "failure"] = 0,
    timeout: float | str = COMMAND_SECONDS,
    env: Iterable[str] = (),
) -> Condition:
    """The command ends with the expected status: 0, another number, or any ``failure``.

    A text is split into words; with ``shell`` a shell gets it as it is.  The command runs for
    ``timeout`` at most, and gets only the variables of the environment that ``env`` names.
    """
    return _leaf("command", run=run, shell=shell, expect=expect, timeout=timeout, env=env)


def all_of(*conditions: Condition) -> Condition:
    """Every one of these."""
    return validated(AllOf(of=conditions))


def any_of(*conditions: Condition) -> Condition:
    """At least one of these."""
    return validated(AnyOf(of=conditions))


def not_(condition: Condition) -> Condition:
    """The opposite; the opposite of unknown is unknown."""
    return validated(Not(of=condition))


def _leaf(kind: str, **given: object) -> Condition:
    return build(kind, {name: value for name, value in given.items() if value is not None})
