"""Why a pipeline does not go on: the leaf that fails, who can clear it, since when.

The guards are checked again, as the next ``advance`` would, and nothing is written.  The chain
leads to the thing that the leaf is about: the lock, the semaphore, the task or the other pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys, validate
from interlock.core.safe_text import foreign
from interlock.core.validate import quote, span
from interlock.nouns.guards.gate_cycles import cycle_from, cycle_text
from interlock.nouns.guards.hosts import who_looks
from interlock.nouns.pipelines.pipeline import PipelineRun
from interlock.nouns.pipelines.pipeline_reader import decode_run
from interlock.nouns.pipelines.service import PipelineService
from interlock.runtime.why import Why
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.client_context import Context


def pipeline(context: Context, name: str) -> Op[Why]:
    """Explain a pipeline."""
    id_ = validate.name(name, "pipeline id")
    own, thing = keys.pipeline(id_), f"pipeline/{id_}"
    run = decode_run((yield Read(own))[own])
    if run is None:
        return Why(
            thing=thing,
            blocked=False,
            because="there is no such pipeline",
            clear=f"start one: interlock pipeline start NAME --id {quote(id_)} --agent NAME",
            state="unknown",
        )
    if run.state != "running":
        said = f": {foreign(run.reason)}" if run.reason else ""
        clear = "nothing is left to do" if run.state == "complete" else "start another one"
        return Why(
            thing=thing,
            blocked=False,
            because=f"it is {run.state}{said}",
            clear=clear,
            by=run.by,
            since=run.since,
            state=run.state,
        )
    service = PipelineService(context.runner, context.settings, context.tasks.moment)
    found = yield from service.hindrance(id_)
    if found is None:
        return _free(context, id_, run)
    before = run.blocked_by
    same = before is not None and (before.guard, before.leaf) == (found.guard, found.leaf)
    cycle = yield from cycle_from(thing)
    looks = yield from who_looks(found.facts)
    return Why(
        thing=thing,
        blocked=True,
        because=f"{_where(run)}; {foreign(found.guard)}: {foreign(found.leaf)}: {found.reason}",
        clear=", ".join(found.acts) or "see its definition",
        by=", ".join(found.by),
        since=before.since if before is not None and same else None,
        meanwhile=(*((cycle_text(cycle),) if cycle else ()), *looks),
        state=run.state,
        guard=found.guard,
        leaf=found.leaf,
        leads_to=(found.thing,) if found.thing else (),
        cycle=cycle,
    )


def _free(context: Context, id_: str, run: PipelineRun) -> Why:
    lasts = span(context.runner.clock.wall() - run.since)
    return Why(
        thing=f"pipeline/{id_}",
        blocked=False,
        because=f"{_where(run)} for {lasts}, and nothing blocks the next step",
        clear=f"interlock pipeline advance {quote(id_)} --agent NAME",
        by=run.by,
        since=run.since,
        state=run.state,
    )


def _where(run: PipelineRun) -> str:
    return f"in phase {foreign(run.phase)}" if run.phase else "before its first phase"
