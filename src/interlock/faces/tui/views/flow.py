"""What moves work on: pipelines, guards and schedules."""

from __future__ import annotations

from interlock.faces.tui.screen_data import (
    MOST,
    TONES,
    Column,
    TableRow,
    TableView,
    ViewSource,
    action,
    actions,
    cells,
    left,
    lines,
)
from interlock.nouns.fleet.noun import WhyRequest
from interlock.nouns.guards.noun import GuardsList
from interlock.nouns.schedules.noun import SchedulesList


def pipelines(source: ViewSource) -> TableView:
    """The pipelines, and the condition that keeps each."""
    rows = []
    for each in source.overview["pipelines"]:
        id_, blocked = each["pipeline"], each["blocked_by"]
        runs = each["state"] == "running"
        state = "blocked" if runs and blocked else each["state"]
        why = f"{blocked['leaf']}: {blocked['reason']}" if blocked else each["reason"]
        rows.append(
            TableRow(
                key=id_,
                cells=cells(
                    id_,
                    state,
                    each["phase"],
                    why,
                    ", ".join(each["holds"]),
                    source.ago(each["since"]),
                ),
                tone=TONES.get(state, ""),
                thing=f"pipeline/{id_}",
                detail=lines(why),
                actions=actions(
                    action("pipeline advance", pipeline=id_) if runs else None,
                    action("pipeline cancel", pipeline=id_) if runs else None,
                ),
            )
        )
    return TableView(
        name="pipelines",
        columns=(
            Column("pipeline"), Column("state"), Column("phase"), Column("waits for", 70),
            Column("holds", 100), Column("since", 60),
        ),
        empty="No pipeline was started.\n\nDefine and start one: interlock pipeline --help",
        rows=tuple(rows),
    )  # fmt: skip


def schedules(source: ViewSource) -> TableView:
    """When each publishes its next task, and what became of the last one."""
    found = source.act(SchedulesList(limit=MOST))
    rows = [
        TableRow(
            key=each.schedule,
            cells=cells(
                each.schedule,
                each.state,
                each.when,
                "" if each.next_run is None else left(each.next_run - source.now),
                each.last_task,
                each.failure or each.reason,
            ),
            tone="bad" if each.failure else TONES.get(each.state, ""),
            thing=f"schedule/{each.schedule}",
            detail=lines(each.failure),
            actions=actions(
                action("schedule pause", schedule=each.schedule)
                if each.state == "active"
                else None,
                action("schedule resume", schedule=each.schedule)
                if each.state == "paused"
                else None,
                action("schedule drop", schedule=each.schedule),
            ),
        )
        for each in found.schedules
    ]
    return TableView(
        name="schedules",
        columns=(
            Column("schedule"), Column("state"), Column("when", 60), Column("next in"),
            Column("last task", 90), Column("says", 80),
        ),
        empty="Nothing is scheduled.\n\nPublish a task again and again: interlock schedule add"
        " nightly --every 1d --agent ada",
        rows=tuple(rows),
        more=bool(found.more),
    )  # fmt: skip


def guards(source: ViewSource) -> TableView:
    """Whether each passes; one that looks at files or commands is not asked to look from here."""
    rows = []
    for each in source.act(GuardsList()).guards:
        why = None if each.outside else source.act(WhyRequest(thing=f"guard/{each.guard}"))
        state = "outside" if why is None else why.state
        rows.append(
            TableRow(
                key=each.guard,
                cells=cells(
                    each.guard,
                    state,
                    each.condition,
                    each.because if why is None else why.because,
                ),
                tone="warn" if why is not None and why.blocked else TONES.get(state, ""),
                thing=f"guard/{each.guard}",
                actions=actions(action("guard drop", guard=each.guard)),
            )
        )
    return TableView(
        name="guards",
        columns=(Column("guard"), Column("state"), Column("condition"), Column("says", 80)),
        empty="No guard is defined.\n\nDefine those of a file: interlock guard define guards.toml"
        " --agent ada",
        rows=tuple(rows),
    )
