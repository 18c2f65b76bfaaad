"""The history of pipelines, from entries of the record."""

from __future__ import annotations

from msgspec.structs import replace

from interlock.core.decision import Event
from interlock.core.entry import RecordLine
from interlock.core.history import HistoryEvent, NounHistory
from interlock.core.safe_text import foreign

_SAID = ("advanced", "blocked", "failed", "cancelled", "warned")


class PipelineHistory(NounHistory):
    """Pipelines: started, advanced, blocked, warned, completed, failed, cancelled.

    ``says`` has the phase, or the guard that kept the pipeline, as the entry does, and which host
    saw the facts from outside.
    """

    words = ("pipeline",)

    def _event(self, line: RecordLine, event: Event) -> HistoryEvent:
        found = super()._event(line, event)
        if event.name.startswith("pipeline:") and found.what in _SAID:
            seen = [
                f"{foreign(each.condition)} seen by {foreign(each.host)}" for each in line.observed
            ]
            why = foreign(line.reason) if found.what == "cancelled" and line.reason else line.reason
            return replace(found, says="; ".join([*filter(None, (why,)), *seen]))
        return found
