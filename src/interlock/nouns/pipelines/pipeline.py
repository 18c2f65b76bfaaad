"""Pipelines that were started: their states, and the outcomes of every operation on them.

    start ──> running, before its first phase ──> running, in a phase ──> ... ──> complete
                        │                             │
                        └─────────────────────────────┴── failed, cancelled

``TRANSITIONS`` is the table of these; only ``transition`` changes a state.

A pipeline is one item: the phase that it is in, and all that its next step depends on.  So a step
is one commit that checks one item: of two agents that advance it at once, one succeeds, and the
other finds an item that has changed, with the name of the agent that changed it.

It keeps the definition that it was started with.  The definition is an item of its own, under the
digest of its content, and never changes; ``definitions/{name}`` says which one the next pipeline
starts with.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always

PipelineState: TypeAlias = Literal["running", "complete", "failed", "cancelled"]
PIPELINE_STATES: tuple[PipelineState, ...] = get_args(PipelineState)

TRANSITIONS: dict[str, tuple[tuple[PipelineState, ...], PipelineState]] = {
    "enter": (("running",), "running"),
    "block": (("running",), "running"),
    "complete": (("running",), "complete"),
    "fail": (("running",), "failed"),
    "cancel": (("running",), "cancelled"),
}
"""Each act: the states that it may start from, and the state that it leads to."""

LISTED = 100
MOST = 1000
REASON_LIMIT = 16 * 1024


class PhaseGrant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lock or slots that a pipeline holds: the thing (``sem/builds``), and the grant's id."""

    thing: str
    grant: str
    weight: int = 1


class BlockedBy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The guard that keeps a pipeline where it is, its leaf that decides, and since when."""

    own_words = ("reason",)

    guard: str
    leaf: str
    reason: str
    since: float


class PipelineRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline that was started.

    ``phase`` is the name of its phase, empty before the first one.  ``since`` is when it entered
    the phase, or ended.  ``by`` is the agent that moved it last, ``starter`` the one that started
    it.  ``asked`` says that an agent wants it to go on, so it goes on by itself when the guard
    passes.  ``attempt`` counts failed checks of the guard behind its phase, ``entering`` those of
    the guard before the next one.  ``grants`` are the things that it holds, and ``reason`` is why
    it ended.  ``gated`` says that gates wait for its next step, and ``closing`` that it has ended
    and some of its tasks are still to be cancelled.
    """

    state: PipelineState
    definition: str
    digest: str
    started: float
    since: float
    by: str
    starter: str = ""
    phase: str = ""
    attempt: int = 0
    entering: int = 0
    asked: bool = False
    blocked_by: BlockedBy | None = None
    reason: str = ""
    grants: tuple[PhaseGrant, ...] = ()
    trace: str = ""
    gated: bool = False
    closing: bool = False


class CurrentDefinition(Struct, frozen=True, kw_only=True):
    """The definition that the next pipeline of a name starts with."""

    digest: str
    by: str
    at: float


def transition(run: PipelineRun, act: str, **changes: object) -> PipelineRun:
    """The pipeline after an act; its state must allow the act."""
    begins, ends = TRANSITIONS[act]
    if run.state not in begins:
        raise AssertionError(f"{act} does not start from {run.state}")
    return replace(run, state=ends, **changes)


# Outcomes.


class DefinedPipeline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A definition; ``already`` if it was the current one before."""

    pipeline: str
    digest: str
    phases: tuple[str, ...]
    already: bool = False


class PipelineDefined(item_outcomes.Defined, frozen=True, kw_only=True, tag="defined"):
    """The next pipelines of these names start with these definitions.

    ``outside`` are the guards that ask for facts from outside of the store: they stay unknown until
    a host that allows them looks.  ``allowed`` are those that ``host``, this one, allows.
    """

    pipelines: tuple[DefinedPipeline, ...]
    outside: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    host: str = ""


class PipelineStarted(Success, frozen=True, kw_only=True, tag="started"):
    """The pipeline is in its first phase, or waits before it (``phase`` is empty) for a guard.

    ``cycle`` are things that wait for each other, this pipeline among them.
    """

    own_words = ("reason",)

    pipeline: str
    definition: str
    phase: str = ""
    guard: str = ""
    leaf: str = ""
    reason: str = ""
    acts: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()


class PipelineExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A pipeline of this id exists already, and stays as it is."""

    pipeline: str
    definition: str
    state: PipelineState
    phase: str = ""


class PipelineAdvanced(Success, frozen=True, kw_only=True, tag="advanced"):
    """The pipeline is in its next phase; ``warned`` are guards that did not pass and only warn."""

    pipeline: str
    phase: str
    warned: tuple[str, ...] = ()


class PipelineCompleted(item_outcomes.Completed, frozen=True, kw_only=True, tag="completed"):
    """The pipeline has left its last phase."""

    pipeline: str
    already: bool = False
    warned: tuple[str, ...] = ()


class PipelineBlocked(outcomes.Blocked, frozen=True, kw_only=True, tag="blocked"):
    """A guard keeps the pipeline in its phase; it goes on by itself when the guard passes.

    ``leaf`` is the condition that decides, ``acts`` would clear it.  ``attempts`` is how often the
    guard failed, if that is limited, and ``retry_in`` when it is checked again.  ``cycle`` are
    things that wait for each other, this pipeline among them: none of them goes on by itself.
    """

    own_words = ("reason",)

    pipeline: str
    phase: str
    guard: str
    leaf: str
    reason: str
    acts: tuple[str, ...] = ()
    attempts: int = 0
    retry_in: float | None = None
    cycle: tuple[str, ...] = ()


class PipelineFailed(item_outcomes.Failed, Refusal, frozen=True, kw_only=True, tag="failed"):
    """A guard ended the pipeline, which has released all that it held."""

    pipeline: str
    phase: str
    reason: str
    guard: str = ""
    leaf: str = ""


class PipelineCancelled(item_outcomes.Cancelled, frozen=True, kw_only=True, tag="cancelled"):
    """An agent ended the pipeline, which has released all that it held.

    ``tasks`` is how many of its tasks were open: they are cancelled, too.
    """

    pipeline: str
    phase: str = ""
    reason: str = ""
    already: bool = False
    tasks: int = 0


class Overtaken(Refusal, frozen=True, kw_only=True, tag="overtaken"):
    """Another agent (``by``) moved the pipeline, which is in another phase now, or has ended."""

    pipeline: str
    state: PipelineState
    phase: str
    by: str
    since: float = 0.0
    reason: str = ""


class UnknownPipeline(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No such pipeline was started, or it was deleted long after its end."""

    what: Literal["pipeline"] = always("pipeline")


class UnknownDefinition(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No pipeline of this name is defined."""

    what: Literal["definition"] = always("definition")


StartOutcome: TypeAlias = (
    PipelineStarted | PipelineExists | PipelineFailed | UnknownDefinition | outcomes.GivenFenced
)
AdvanceOutcome: TypeAlias = (
    PipelineAdvanced | PipelineCompleted | PipelineBlocked | PipelineFailed | Overtaken
    | UnknownPipeline | outcomes.GivenFenced
)  # fmt: skip
CancelOutcome: TypeAlias = PipelineCancelled | Overtaken | UnknownPipeline | outcomes.GivenFenced


# What list and show return.


class PhaseTaskState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that the present phase published."""

    task: str
    state: str


class PipelineView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pipeline, for display; ``phases`` are all phases of its definition."""

    pipeline: str
    definition: str
    state: PipelineState
    phase: str
    started: float
    since: float
    by: str
    phases: tuple[str, ...] = ()
    attempt: int = 0
    asked: bool = False
    blocked_by: BlockedBy | None = None
    reason: str = ""
    holds: tuple[str, ...] = ()
    tasks: tuple[PhaseTaskState, ...] = ()
    digest: str = ""


class PipelineList(Listing[PipelineView], frozen=True, kw_only=True):
    """Pipelines by id; ``more`` is the last id if there are more."""

    listed: ClassVar[str] = "pipelines"

    pipelines: tuple[PipelineView, ...]
    more: str | None = None
