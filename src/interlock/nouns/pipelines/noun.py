"""The declaration of pipelines: their requests, operations, keys, and what they add to others."""

from typing import Annotated, TypeAlias, get_args

from interlock.core import keys
from interlock.core.outcomes import GivenFenced
from interlock.nouns.pipelines import pipeline as core
from interlock.nouns.pipelines.pipeline import MOST, PipelineList, PipelineView
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Given, Operation, Request, option

Names: TypeAlias = tuple[str, ...]
Pipeline = Annotated[str, option("name", "the id of the pipeline", positional=True)]


class PipelineDefine(Request, frozen=True, kw_only=True):
    """Define pipelines."""

    file: Annotated[str, option("path", "a definition file, in TOML or JSON", positional=True)]
    given: Given = ()


class PipelineStart(Request, frozen=True, kw_only=True):
    """Start a pipeline."""

    name: Annotated[str, option("name", "the name of its definition", positional=True)]
    id: Annotated[
        str | None,
        option("name", "its id, which no other pipeline may have; generated if left out"),
    ] = None
    given: Given = ()


class PipelineAdvance(Request, frozen=True, kw_only=True):
    """Take the next step."""

    pipeline: Pipeline
    phase: Annotated[
        str | None, option("name", "only from this phase; else from the phase that it is in")
    ] = None
    given: Given = ()


class PipelinesList(Request, frozen=True, kw_only=True):
    """Pipelines by id."""

    state: Annotated[
        Names, option("names", f"only in these states: {', '.join(core.PIPELINE_STATES)}")
    ] = ()
    after: Annotated[str | None, option("name", "start after this id")] = None
    limit: Annotated[
        int, option("int", "how many pipelines to list at most", least=1, most=MOST)
    ] = core.LISTED


class PipelineShow(Request, frozen=True, kw_only=True):
    """One pipeline."""

    pipeline: Pipeline


class PipelineCancel(Request, frozen=True, kw_only=True):
    """End a pipeline."""

    pipeline: Pipeline
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""
    given: Given = ()


NOUN = Noun(
    gates={"pipeline": "interlock.nouns.pipelines.service:move_on"},
    gate_flags={"pipeline": "interlock.nouns.pipelines.pipeline_reader:set_gated"},
    name="pipeline",
    help="phases that follow each other, each behind its guards",
    calls="interlock.nouns.pipelines.calls:PipelineCalls",
    keys=(
        KeyKind(prefix=keys.PIPELINES, read="interlock.nouns.pipelines.pipeline_reader:decode_run"),
        KeyKind(prefix=keys.DEFINITIONS, read="interlock.nouns.pipelines.pipeline_reader:examine"),
    ),
    why={"pipeline": "interlock.nouns.pipelines.why:pipeline"},
    ids={"pipeline": "pip_"},
    health=Part(35, "interlock.nouns.pipelines.health:health"),
    gauges="interlock.nouns.pipelines.metrics:pipeline_gauges",
    housekeeping=Part(30, "interlock.nouns.pipelines.housekeeping:PipelineHousekeepingPart"),
    history="interlock.nouns.pipelines.history:PipelineHistory",
    events=True,
    texts=("interlock.nouns.pipelines.text",),
    operations=(
        Operation(
            name="pipeline define",
            help="define the pipelines of a file, for those that start from now on",
            request=PipelineDefine,
            outcomes=(core.PipelineDefined, GivenFenced),
            needs="agent",
            call="pipelines.define",
            examples=("interlock pipeline define release.toml --agent ada",),
        ),
        Operation(
            name="pipeline start",
            help="start a pipeline; it enters its first phase if the guard passes",
            request=PipelineStart,
            outcomes=get_args(core.StartOutcome),
            needs="agent",
            call="pipelines.start",
            takes=True,
            examples=("interlock pipeline start release --id r1 --agent ada",),
        ),
        Operation(
            name="pipeline advance",
            help="say that a phase is done: the pipeline goes on if its guards pass",
            request=PipelineAdvance,
            outcomes=get_args(core.AdvanceOutcome),
            needs="agent",
            call="pipelines.advance",
            takes=True,
            examples=(
                "interlock pipeline advance r1 --agent ada",
                "interlock pipeline advance r1 --phase test --agent ada",
            ),
        ),
        Operation(
            name="pipeline list",
            help="list pipelines by id: phase, state, and what blocks them",
            request=PipelinesList,
            outcomes=(PipelineList,),
            needs="store",
            reads=True,
            pages=True,
            call="pipelines.list",
            examples=("interlock pipeline list --state running,failed",),
        ),
        Operation(
            name="pipeline show",
            help="show one pipeline: its phase, what blocks it, what it holds, its tasks",
            request=PipelineShow,
            outcomes=(PipelineView, core.UnknownPipeline),
            needs="store",
            reads=True,
            call="pipelines.show",
        ),
        Operation(
            name="pipeline cancel",
            help="end a pipeline; it releases what it holds and cancels its open tasks",
            request=PipelineCancel,
            outcomes=get_args(core.CancelOutcome),
            needs="agent",
            call="pipelines.cancel",
            takes=True,
            examples=("interlock pipeline cancel r1 'the release is off' --agent ada",),
        ),
    ),
)
