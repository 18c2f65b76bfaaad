"""Other swarms: the peers, quarantine, and requests."""

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
    lines,
)
from interlock.nouns.requests.noun import RequestsList
from interlock.nouns.requests.quarantine_noun import QuarantinedList
from interlock.nouns.swarms.noun import SwarmTrust


def swarms(source: ViewSource) -> TableView:
    """Peers, what is in quarantine, and requests."""
    rows = []
    for peer in source.act(SwarmTrust()):
        state = str(peer.breaker.state) if peer.allowed else "denied"
        rows.append(
            TableRow(
                key=f"swarm/{peer.swarm}",
                cells=cells(
                    peer.swarm, state, "peer", f"{peer.rate} requests a minute at most", ""
                ),
                tone=TONES.get(state, ""),
                actions=actions(
                    action("swarm trust", name=peer.swarm, forgive=True),
                    action("swarm deny", name=peer.swarm),
                ),
            )
        )
    rows += [
        TableRow(
            key=each.id,
            cells=cells(
                each.swarm or "unknown",
                each.reason,
                "quarantine",
                each.detail,
                source.ago(each.at),
            ),
            tone="bad",
            thing=f"quarantine/{each.id}",
            detail=lines(each.detail),
            actions=actions(
                action("quarantine release", id=each.id) if each.releasable else None,
                action("quarantine drop", ids=(each.id,)),
            ),
        )
        for each in source.act(QuarantinedList(limit=MOST)).messages
    ]
    found = source.act(RequestsList(limit=MOST))
    for each in found.requests:
        is_open = each.state in ("open", "escalated")
        cancel = action("request cancel", request=each.request)
        rows.append(
            TableRow(
                key=each.request,
                cells=cells(
                    each.to_swarm,
                    each.state,
                    "request",
                    f"{each.task_type} by {each.agent}: {each.place or each.reason}",
                    source.ago(each.at),
                ),
                tone=TONES.get(each.state, ""),
                thing=each.request,
                detail=lines(f"{each.reason}\n{each.next}".strip()),
                actions=actions(cancel if is_open else None),
            )
        )
    return TableView(
        name="swarms",
        columns=(
            Column("swarm"), Column("state"), Column("what"), Column("about", 70),
            Column("ago", 60),
        ),
        empty="This home works with no other swarm.\n\nConnect one: interlock swarm register"
        " --help",
        rows=tuple(rows),
        more=bool(found.more),
    )  # fmt: skip
