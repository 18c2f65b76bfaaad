"""Housekeeping of pipelines: deletes those that ended long ago, and definitions without any.

An ended pipeline stays as long as an ended task does (the setting ``keep`` of tasks).  A definition
stays while it is the current one of its name, or a pipeline has it.  Definitions are read before
pipelines: a pipeline that starts later with an old definition needs a ``define`` in between, which
writes the definition again, and then it is not deleted.
"""

from __future__ import annotations

from interlock.core import keys
from interlock.nouns.pipelines.pipeline_reader import decode_current, decode_run, is_current
from interlock.nouns.tasks.retention import retention_limits
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, readable
from interlock.steps import Op
from interlock.store import Item


class PipelineHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about pipelines."""

    def expired(self, now: float) -> Op[list[Item]]:
        """The pipelines that ended long ago, and the definitions that nothing uses."""
        age = retention_limits(self.work.settings).age
        definitions = yield from every(keys.DEFINITIONS, most=self.work.bound)
        pipelines = yield from every(keys.PIPELINES)
        runs = {item.key: readable(decode_run, item) for item in pipelines}
        if None in runs.values():  # a damaged one may need any definition
            definitions = []
        old = [
            item
            for item in pipelines
            if (run := runs[item.key]) is not None
            and run.state != "running"
            and run.since < now - age
        ]
        used = {keys.definition(run.definition, run.digest) for run in runs.values() if run}
        for item in definitions:
            if is_current(item.key) and (current := readable(decode_current, item)) is not None:
                used.add(f"{item.key}/{current.digest}")
        return [*old, *[d for d in definitions if not is_current(d.key) and d.key not in used]]
