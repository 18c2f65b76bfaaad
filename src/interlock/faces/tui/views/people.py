"""What needs a person, the agents, their messages and their questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from interlock.faces.tui.screen_data import (
    FEED,
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
    text_of,
)
from interlock.nouns.messages.feed_noun import MessagesList

if TYPE_CHECKING:
    from interlock.nouns.messages.message import Received


def person(source: ViewSource) -> TableView:
    """What needs a person, with what helps."""
    rows = []
    for at, each in enumerate(source.overview["needs_person"]):
        kind, id_ = each["kind"], str(each["id"])
        rows.append(
            TableRow(
                key=f"{kind} {id_} {at}",
                cells=cells(kind.replace("_", " "), each["text"], source.ago(each["since"])),
                tone=TONES.get(kind, "bad"),
                thing=f"quarantine/{id_}" if kind == "quarantine" else id_,
                detail=lines(each.get("remedy") or each["text"]),
                actions=actions(*[action(a["operation"], **_fields(a)) for a in each["actions"]]),
            )
        )
    return TableView(
        name="person",
        columns=(Column("what"), Column("says"), Column("since", 60)),
        toned=0,
        empty="Nothing needs a person.\n\nDecisions, dead letters, dead or stuck agents and"
        " refused messages appear here.",
        rows=tuple(rows),
    )


def _fields(offer: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an action of the overview, as a request has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in offer["fields"].items()
    }


def agents(source: ViewSource) -> TableView:
    """The sessions: what each agent does and holds, and its last heartbeat."""
    rows = []
    for each in source.overview["agents"]:
        name = each["agent"]
        state = (each["status"] or "alive") if each["state"] == "alive" else "lapsed"
        paused = each["paused"] is not None
        rows.append(
            TableRow(
                key=each["session"],
                cells=cells(
                    name,
                    f"{state}, paused" if paused else state,
                    each["doing"] or each["note"],
                    ", ".join(each["holds"]),
                    source.ago(each["since"]),
                    source.ago(each["heard"] or each["last_heartbeat"]),
                    f"{each['pid']} on {each['host']}",
                ),
                tone=TONES.get("paused" if paused else state, ""),
                thing=f"agent/{name}",
                actions=actions(
                    action("stop", who=name),
                    action("agent resume" if paused else "agent pause", name=name),
                    action("send", who=(name,)),
                    action("agent ack", name=name) if state == "lapsed" else None,
                ),
            )
        )
    return TableView(
        name="agents",
        columns=(
            Column("agent"), Column("state"), Column("doing"), Column("holds", 80),
            Column("since", 60), Column("heard", 90), Column("process", 110),
        ),
        empty="No agent has a session.\n\nStart one: interlock run --agent ada -- PROGRAM",
        rows=tuple(rows),
    )  # fmt: skip


def messages(source: ViewSource) -> TableView:
    """The last messages of all agents; those to you can be acknowledged."""
    found = source.act(MessagesList(limit=FEED))
    return TableView(
        name="messages",
        columns=(
            Column("from"), Column("to"), Column("kind", 80), Column("text"), Column("ago", 60),
        ),
        empty="No message was sent.\n\nAgents reach you with: interlock send"
        f" {source.agent or 'NAME'} 'hello' --hold",
        toned=3,
        rows=tuple(_message(source, each) for each in found.messages),
        more=found.more is not None,
    )  # fmt: skip


def _message(source: ViewSource, message: Received) -> TableRow:
    body, asks, mine = text_of(message.data), message.kind == "query", message.id in source.unread
    return TableRow(
        key=message.id,
        cells=cells(
            message.sender,
            ", ".join(message.to) or "subscribers",
            f"{message.kind} {message.type}".strip(),
            message.subject or body,
            source.ago(message.at),
        ),
        tone="" if not mine else "bad" if message.urgent else "warn",
        thing=message.id,
        detail=lines(f"{message.subject}\n{body}".strip()),
        actions=actions(
            action("reply", id=message.id) if mine and asks else None,
            action("ack", id=(message.id,)) if mine and not asks else None,
            action("send", who=(message.sender,)) if message.sender else None,
        ),
    )


def questions(source: ViewSource) -> TableView:
    """Open decisions first, then open questions to agents."""
    rows = []
    for each in source.decisions:
        asked = text_of(each.question)
        options = [f"{option.option}: {option.text}".rstrip(": ") for option in each.options]
        rows.append(
            TableRow(
                key=each.decision,
                cells=cells(
                    each.agent,
                    "a person",
                    asked,
                    " | ".join(option.option for option in each.options),
                    source.ago(each.at),
                    left(None if each.deadline is None else each.deadline - source.now),
                ),
                tone="warn",
                thing=each.decision,
                detail=lines("\n".join([asked, *options])),
                actions=actions(action("decision resolve", id=each.decision)),
            )
        )
    for asks in source.queries:
        row = _message(source, asks)
        middle = (", ".join(asks.to) or "an able agent", row.cells[3], "", row.cells[4])
        rows.append(replace(row, cells=(row.cells[0], *cells(*middle), left(asks.expires_in))))
    return TableView(
        name="questions",
        columns=(
            Column("asked by"), Column("asks"), Column("question"), Column("options", 80),
            Column("ago", 60), Column("time left", 90),
        ),
        empty="No question is open.\n\nAn agent asks one with:"
        " interlock query bob 'Deploy?' --person --agent ada",
        rows=tuple(rows),
    )  # fmt: skip
