"""Finds problems of pipelines for ``health``: those that wait for long, and those that failed."""

from __future__ import annotations

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.nouns.pipelines.pipeline import PipelineRun
from interlock.nouns.pipelines.pipeline_reader import decode_run
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import readable
from interlock.steps import Op


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Pipelines that need attention."""
    now, found = checkup.runner.clock.wall(), list[Problem]()
    for item in (yield from checkup.read(keys.PIPELINES)):
        run = readable(decode_run, item)
        if run is not None:
            problem = _problem(keys.pipeline_of(item.key), run, now, checkup.patience.waiting)
            found += [] if problem is None else [problem]
    return found


def _problem(id_: str, run: PipelineRun, now: float, waiting: float) -> Problem | None:
    thing = f"pipeline/{id_}"
    if run.state == "failed":
        return Problem(
            kind="failed",
            says=f"{foreign(thing)}: it failed {span(now - run.since)} ago: {foreign(run.reason)}",
            remedy=f"start another one: interlock pipeline start {quote(run.definition)}"
            " --agent NAME",
            thing=thing,
            agent=run.by,
            since=run.since,
        )
    blocked = run.blocked_by
    if run.state != "running" or blocked is None or now - blocked.since <= waiting:
        return None
    return Problem(
        kind="blocked",
        says=f"{foreign(thing)}: {foreign(blocked.leaf)} of {foreign(blocked.guard)} has kept it"
        " for"
        f" {span(now - blocked.since)}: {blocked.reason}",
        remedy=f"see {command(f'interlock why {quote(thing)}')}",
        thing=thing,
        agent=run.by,
        since=blocked.since,
    )
