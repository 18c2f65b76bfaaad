"""Conditions: what a guard asks for, as values that are stored, compared and combined.

A condition is a leaf, which asks for one fact, or ``all``, ``any`` or ``not`` of others.  Leaves
about the store (locks, semaphores, tasks, pipelines) are answered by the commit that relies on
them.  Leaves about the outside (branches, files, commands) are answered by a host that looks, and
that must have allowed the definition: see ``allowed.py``.

Conditions are combined with ``&``, ``|`` and ``~``:

    lock_free("deploy") & ~file_exists("STOP")

A fact is asked for by a ``FactNeed``.  Two leaves that ask for the same thing have equal needs, so
it is read once.
"""

from __future__ import annotations

from typing import Literal, NoReturn, TypeAlias

from msgspec import Struct

DEPTH = 32
"""How deep conditions may be nested; a leaf alone has the depth 1."""
LEAVES = 10_000
"""The most leaves of one condition."""
COMMAND_SECONDS = 60.0
"""The time limit of a command, unless its leaf says another."""

Verdict: TypeAlias = Literal["true", "false", "unknown"]


class TaskFilter(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The tasks that meet every condition that is given; an empty field is none.

    ``prefix`` is the beginning of their ids, ``requires`` one requirement, ``needs`` the id of one
    task that they need, ``label`` one label.
    """

    prefix: str = ""
    state: str = ""
    requires: str = ""
    needs: str = ""
    label: str = ""


class BaseCondition(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="if",
):
    """A leaf, or a combination of conditions."""

    def __and__(self, other: Condition) -> AllOf:
        return AllOf(of=(*_flat(AllOf, self), *_flat(AllOf, other)))

    def __or__(self, other: Condition) -> AnyOf:
        return AnyOf(of=(*_flat(AnyOf, self), *_flat(AnyOf, other)))

    def __invert__(self) -> Condition:
        return self.of if isinstance(self, Not) else Not(of=self)  # type: ignore[arg-type]

    def __bool__(self) -> NoReturn:
        # Python would drop one side of `a and b`, and `not a` would always be False.
        raise TypeError("a condition is neither true nor false by itself; combine with & | ~")


class LockFree(BaseCondition, frozen=True, tag="lock_free"):
    """No agent holds the lock; a lock that was never acquired is free."""

    lock: str


class LockHeld(BaseCondition, frozen=True, tag="lock_held"):
    """An agent holds the lock; with ``by``, that agent."""

    lock: str
    by: str = ""


class SemaphoreAvailable(BaseCondition, frozen=True, tag="semaphore_available"):
    """So many slots are free; a semaphore that has no capacity yet is unknown."""

    semaphore: str
    slots: int = 1


class TasksComplete(BaseCondition, frozen=True, tag="tasks_complete"):
    """Every task that the filter selects is complete; if there is none, only with ``none_ok``."""

    filter: TaskFilter = TaskFilter()
    none_ok: bool = False


class NoBlockedTasks(BaseCondition, frozen=True, tag="no_blocked_tasks"):
    """No task that the filter selects is blocked, dead or failed."""

    filter: TaskFilter = TaskFilter()


class PipelineInPhase(BaseCondition, frozen=True, tag="pipeline_in_phase"):
    """The pipeline is in this phase now."""

    pipeline: str
    phase: str


class PipelineComplete(BaseCondition, frozen=True, tag="pipeline_complete"):
    """The pipeline has left its last phase."""

    pipeline: str


class BranchExists(BaseCondition, frozen=True, tag="branch_exists"):
    """The repository has this local branch."""

    branch: str


class BranchClean(BaseCondition, frozen=True, tag="branch_clean"):
    """The worktree that has the branch checked out has no changes; true if none has it."""

    branch: str


class BranchMerged(BaseCondition, frozen=True, tag="branch_merged"):
    """Every commit of the branch is in the other one.  A squash merge is not seen."""

    branch: str
    into: str


class FileExists(BaseCondition, frozen=True, tag="file_exists"):
    """There is a file or folder of this name below the root."""

    path: str


class FileContains(BaseCondition, frozen=True, tag="file_contains"):
    """The file has this text, or text that this pattern (a regular expression) matches."""

    path: str
    text: str = ""
    pattern: str = ""


class Command(BaseCondition, frozen=True, tag="command"):
    """The command ends with the expected status: 0, another number, or any ``failure``.

    It runs without a shell, unless ``shell``; then ``run`` has one element.
    """

    run: tuple[str, ...]
    shell: bool = False
    expect: int | Literal["failure"] = 0
    timeout: float = COMMAND_SECONDS
    env: tuple[str, ...] = ()


class AllOf(BaseCondition, frozen=True, tag="all"):
    """Every one of these."""

    of: tuple[Condition, ...]


class AnyOf(BaseCondition, frozen=True, tag="any"):
    """At least one of these."""

    of: tuple[Condition, ...]


class Not(BaseCondition, frozen=True, tag="not"):
    """The opposite."""

    of: Condition


Condition: TypeAlias = (
    LockFree | LockHeld | SemaphoreAvailable | TasksComplete | NoBlockedTasks | PipelineInPhase
    | PipelineComplete | BranchExists | BranchClean | BranchMerged | FileExists | FileContains
    | Command | AllOf | AnyOf | Not
)  # fmt: skip


# What a leaf asks for, and the facts that answer it.


class LockNeed(Struct, frozen=True, tag=True):
    """The holders of a lock."""

    lock: str


class SemaphoreNeed(Struct, frozen=True, tag=True):
    """The free slots of a semaphore."""

    semaphore: str


class TasksNeed(Struct, frozen=True, tag=True):
    """The tasks that a filter selects, by state."""

    filter: TaskFilter


class PipelineNeed(Struct, frozen=True, tag=True):
    """The phase of a pipeline."""

    pipeline: str


class BranchNeed(Struct, frozen=True, tag=True):
    """Whether a branch exists."""

    branch: str


class CleanNeed(Struct, frozen=True, tag=True):
    """Whether the worktree of a branch has no changes."""

    branch: str


class MergedNeed(Struct, frozen=True, tag=True):
    """Whether a branch is merged into another."""

    branch: str
    into: str


class FileNeed(Struct, frozen=True, tag=True):
    """Whether a file exists."""

    path: str


class TextNeed(Struct, frozen=True, tag=True):
    """Whether a file has a text."""

    path: str
    text: str = ""
    pattern: str = ""


class CommandNeed(Struct, frozen=True, tag=True):
    """The exit status of a command."""

    run: tuple[str, ...]
    shell: bool = False
    timeout: float = COMMAND_SECONDS
    env: tuple[str, ...] = ()


StoreNeed: TypeAlias = LockNeed | SemaphoreNeed | TasksNeed | PipelineNeed
OutsideNeed: TypeAlias = BranchNeed | CleanNeed | MergedNeed | FileNeed | TextNeed | CommandNeed
FactNeed: TypeAlias = StoreNeed | OutsideNeed


class LockFact(Struct, frozen=True, kw_only=True, tag=True):
    """The holder of a lock, empty if it is free, and since when."""

    holder: str = ""
    since: float | None = None


class SemaphoreFact(Struct, frozen=True, kw_only=True, tag=True):
    """The slots of a semaphore; no capacity if it was never used."""

    capacity: int | None = None
    available: int = 0
    holders: tuple[str, ...] = ()


class TasksFact(Struct, frozen=True, kw_only=True, tag=True):
    """How many tasks a filter selects, by state, and a few that are not complete.

    ``open`` has some of them as ``(id, state, worker)``; ``partial`` says that there are more tasks
    than were read.  ``uncounted`` says that all which are not complete were read, and only some of
    the complete ones.  ``last`` has the last task in each state, by its id.
    """

    states: dict[str, int] = {}
    open: tuple[tuple[str, str, str], ...] = ()
    partial: bool = False
    uncounted: bool = False
    last: dict[str, str] = {}


class PipelineFact(Struct, frozen=True, kw_only=True, tag=True):
    """The phase of a pipeline, and its state: running, complete, failed, cancelled, or no such."""

    phase: str = ""
    state: str = ""
    since: float | None = None


class Observation(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The answer of a host to a need about the outside.

    ``value`` is whether it is so, or the exit status of a command; None if the host cannot say, and
    then ``says`` has the reason.  ``digest`` is the SHA-256 of the id of a commit, of the bytes of
    a file, or of the output of a command.
    """

    value: bool | int | None
    says: str
    host: str = ""
    at: float = 0.0
    digest: str = ""


class NoFact(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The fact cannot be had, and why; ``hosts`` are hosts that may look."""

    says: str
    hosts: tuple[str, ...] = ()


Fact: TypeAlias = LockFact | SemaphoreFact | TasksFact | PipelineFact | Observation | NoFact


def _flat(kind: type[AllOf | AnyOf], condition: BaseCondition) -> tuple[Condition, ...]:
    if not isinstance(condition, BaseCondition):
        raise TypeError(f"a condition is combined with conditions, not with {condition!r:.40}")
    return condition.of if isinstance(condition, kind) else (condition,)  # type: ignore[return-value]
