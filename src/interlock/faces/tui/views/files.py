"""Files that are reserved, branches that are to be merged, and what agents spend."""

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
from interlock.nouns.budgets.noun import BudgetShow
from interlock.nouns.merges.noun import MergesList
from interlock.nouns.reservations.noun import ReservationsRequest


def files(source: ViewSource) -> TableView:
    """Which agent edits what."""
    found = source.act(ReservationsRequest(all=True, limit=MOST))
    rows = [
        TableRow(
            key=each.id,
            cells=cells(
                "  ".join(each.patterns),
                each.state,
                each.holder,
                each.repository,
                source.ago(each.since),
                left(each.expires_in),
                each.reason,
            ),
            tone=TONES.get(each.state, ""),
            thing=f"reservation/{each.id}",
            detail=lines(each.reason),
            actions=actions(
                action(
                    "unreserve",
                    patterns=each.patterns,
                    holder=each.holder,
                    repository=each.repository,
                )
            ),
        )
        for each in found.reservations
    ]
    return TableView(
        name="files",
        columns=(
            Column("files"), Column("state"), Column("holder"), Column("repository", 110),
            Column("since", 60), Column("expires", 90), Column("reason", 80),
        ),
        empty="No file is reserved.\n\nAn agent reserves what it edits: interlock reserve"
        " 'src/*.py' --agent ada",
        rows=tuple(rows),
        more=found.more,
    )  # fmt: skip


def merges(source: ViewSource) -> TableView:
    """The queue in its order, then what left it; details say who serves it."""
    found = source.act(MergesList(all=True, limit=MOST))
    targets = {each.target: each for each in found.targets}
    rows = []
    for each in found.merges:
        target = targets.get(each.into)
        served = "no server for this queue: interlock merge serve -- make test"
        if target is not None and target.server:
            served = f"{target.server} serves {target.target}; {target.waiting} waiting"
        held = target.held if target is not None else ""
        waits = each.place > 0
        rows.append(
            TableRow(
                key=each.merge,
                cells=cells(
                    each.branch,
                    each.state,
                    each.place or "",
                    each.into,
                    each.by,
                    source.ago(each.ended_at or each.at),
                    f"{each.cause}: {each.reason}" if each.cause else each.reason,
                ),
                tone=TONES.get(each.state, ""),
                thing=f"merge/{each.merge}",
                detail=lines("\n".join(filter(None, (held, served if waits else "", each.reason)))),
                actions=actions(action("merge cancel", merge=each.merge) if waits else None),
            )
        )
    return TableView(
        name="merges",
        columns=(
            Column("branch"), Column("state"), Column("place"), Column("into", 60),
            Column("by", 50), Column("ago", 60), Column("says", 80),
        ),
        empty="No branch waits.\n\nServe a queue: interlock merge serve --agent queue -- make test",
        rows=tuple(rows),
    )  # fmt: skip


def budgets(source: ViewSource) -> TableView:
    """The fleet first, then agents and tasks, with their limits."""
    rows = []
    for each in source.act(BudgetShow()).budgets:
        limited = each.limit_tokens is not None or each.limit_cost is not None
        state = "used up" if each.over else "limited" if limited else "counted"
        rows.append(
            TableRow(
                key=each.thing,
                cells=cells(
                    each.thing,
                    state,
                    f"{each.tokens:,}",
                    "" if each.limit_tokens is None else f"{each.limit_tokens:,}",
                    f"{each.cost:,.2f}",
                    "" if each.limit_cost is None else f"{each.limit_cost:,.2f}",
                    each.reason,
                ),
                tone="bad" if each.over else "busy" if limited else "dim",
                thing="" if each.thing in ("fleet", "agent/*") else each.thing,
                actions=actions(action("budget drop", thing=each.thing) if limited else None),
            )
        )
    return TableView(
        name="budgets",
        columns=(
            Column("budget"), Column("state"), Column("tokens"), Column("limit", 50),
            Column("cost", 60), Column("limit ", 70), Column("reason", 90),
        ),
        empty="Nothing is counted yet.\n\nSet a limit: interlock budget set fleet --cost 50"
        " --agent maria",
        rows=tuple(rows),
    )  # fmt: skip
