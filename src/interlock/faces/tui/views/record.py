"""The record, and the timeline that is made of it."""

from __future__ import annotations

from interlock.core.validate import span
from interlock.faces.tui.screen_data import Column, TableRow, TableView, ViewSource, cells, lines
from interlock.faces.tui.spans import Spans, bar
from interlock.nouns.record.noun import RecordLog

RECORD = 200
"""Entries of the record that are shown."""
HISTORY = 2000
"""Entries that the timeline is made of."""
WIDE = 60
"""Characters of a bar."""


def record(source: ViewSource) -> TableView:
    """The last entries, the newest first."""
    found = source.act(RecordLog(limit=RECORD)).entries
    rows = [
        TableRow(
            key=str(each.revision),
            cells=cells(
                each.revision,
                each.verb or "void",
                each.thing,
                each.agent or "-",
                each.outcome,
                source.ago(each.at),
                each.trace,
            ),
            thing=each.thing,
            detail=lines(each.reason),
        )
        for each in reversed(found)
    ]
    return TableView(
        name="record",
        columns=(
            Column("revision"), Column("verb"), Column("thing"), Column("agent"),
            Column("outcome", 80), Column("ago", 60), Column("trace", 130),
        ),
        empty="The record is empty: nothing was changed yet.",
        rows=tuple(rows),
        more=len(found) == RECORD,
    )  # fmt: skip


def timeline(source: ViewSource) -> TableView:
    """Who held what and who waited for it, until now; ``z`` changes how far it goes back."""
    spans = Spans()
    for entry in source.act(RecordLog(limit=HISTORY)).entries:
        spans.add(entry)
    since, now = source.now - source.zoom, source.now
    rows = []
    for (thing, kind), found in spans.lanes(since, now).items():
        said = [each.words(now) for each in found]
        holds = [each.agent for each in found if each.ends is None]
        word = "waits" if kind == "waiting" else "has it"
        rows.append(
            TableRow(
                key=f"{thing} {kind}",
                cells=(
                    *cells(thing if kind == "held" else "└ waiting"),
                    bar(found, since, now, WIDE),
                    *cells(f"{', '.join(holds)} {word}" if holds else ""),
                ),
                tone="warn" if kind == "waiting" else "busy" if holds else "dim",
                thing=thing,
                detail=lines("\n".join(reversed(said))),
            )
        )
    ends = "now"
    begins = f"{span(source.zoom)} ago"
    return TableView(
        name="timeline",
        columns=(
            Column("thing"), Column(f"{begins}{ends:>{WIDE - len(begins)}}"), Column("now", 90),
        ),
        empty=f"Nothing was held in the last {span(source.zoom)}.\n\nz looks further back, or hold"
        " something: interlock lock run deploy --agent ada -- PROGRAM",
        rows=tuple(rows),
    )  # fmt: skip
