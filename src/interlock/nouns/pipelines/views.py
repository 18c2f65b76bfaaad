"""What list and show say about pipelines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from interlock.core import keys
from interlock.nouns.pipelines import phase_tasks
from interlock.nouns.pipelines.definition import PipelineDefinition
from interlock.nouns.pipelines.pipeline import (
    PhaseGrant,
    PhaseTaskState,
    PipelineList,
    PipelineRun,
    PipelineView,
    UnknownPipeline,
)
from interlock.nouns.pipelines.pipeline_reader import decode_definition, decode_run
from interlock.nouns.tasks.task_reader import decode_status
from interlock.runtime.reads import Pages, looked_up, readable
from interlock.steps import Op, Read

PAGE = 200


def list_pipelines(states: Collection[str], after: str | None, limit: int) -> Op[PipelineList]:
    """Pipelines by id."""
    found: list[PipelineView] = []
    pages = Pages(keys.PIPELINES, "" if after is None else keys.pipeline(after), PAGE)
    while not pages.finished:
        for item in (yield from pages.read(PAGE)):
            run = readable(decode_run, item)
            if run is None or (states and run.state not in states):
                continue
            if len(found) == limit:
                return PipelineList(pipelines=tuple(found), more=found[-1].pipeline)
            found.append(view(keys.pipeline_of(item.key), run))
    return PipelineList(pipelines=tuple(found))


def show_pipeline(pipeline: str) -> Op[PipelineView | UnknownPipeline]:
    """One pipeline, with its phases and the tasks of the present one."""
    own = keys.pipeline(pipeline)
    run = decode_run((yield Read(own))[own])
    if run is None:
        return UnknownPipeline(unknown=(pipeline,))
    key = keys.definition(run.definition, run.digest)
    definition = readable(decode_definition, (yield Read(key))[key])
    return view(pipeline, run, definition, (yield from _tasks(pipeline, run, definition)))


def _tasks(
    pipeline: str, run: PipelineRun, definition: PipelineDefinition | None
) -> Op[tuple[PhaseTaskState, ...]]:
    phases = () if definition is None else definition.phases
    ids = [
        phase_tasks.task_id(pipeline, task.id)
        for phase in phases
        if phase.name == run.phase
        for task in phase.tasks
    ]
    items = yield from looked_up(map(keys.status, ids))
    statuses = {id_: readable(decode_status, items[keys.status(id_)]) for id_ in ids}
    return tuple(
        PhaseTaskState(task=id_, state="unknown" if status is None else status.state)
        for id_, status in statuses.items()
    )


def view(
    pipeline: str,
    run: PipelineRun,
    definition: PipelineDefinition | None = None,
    tasks: Sequence[PhaseTaskState] = (),
) -> PipelineView:
    """A pipeline, for display."""
    return PipelineView(
        pipeline=pipeline,
        definition=run.definition,
        state=run.state,
        phase=run.phase,
        started=run.started,
        since=run.since,
        by=run.by,
        phases=() if definition is None else tuple(each.name for each in definition.phases),
        attempt=run.attempt,
        asked=run.asked,
        blocked_by=run.blocked_by,
        reason=run.reason,
        holds=tuple(map(_held, run.grants)),
        tasks=tuple(tasks),
        digest="" if definition is None else run.digest,
    )


def _held(grant: PhaseGrant) -> str:
    return grant.thing if grant.weight == 1 else f"{grant.thing}={grant.weight}"
