"""The nine views: what each shows of the answers of declared operations, and what it offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from interlock.faces.tui.board import (
    MOST,
    Column,
    Row,
    Source,
    Tone,
    View,
    action,
    actions,
    cells,
    left,
    lines,
    text_of,
)
from interlock.nouns.messages.decision_noun import DecisionsList
from interlock.nouns.messages.feed_noun import MessagesList
from interlock.nouns.record.noun import RecordLog
from interlock.nouns.requests.noun import RequestsList
from interlock.nouns.requests.quarantine_noun import QuarantinedList
from interlock.nouns.swarms.noun import SwarmTrust
from interlock.nouns.tasks.view_noun import TasksList

if TYPE_CHECKING:
    from interlock.nouns.messages.message import Received
    from interlock.nouns.tasks.task_view import ListedTask

FEED = 100
"""Messages that are shown."""
RECORD = 200
"""Entries of the record that are shown."""
CHAIN = 20
"""Lines of a chain of waits."""
_TONES: dict[str, Tone] = {
    "alive": "good", "busy": "busy", "waiting": "warn", "idle": "dim", "lapsed": "bad",
    "running": "busy", "blocked": "warn", "complete": "good", "failed": "bad", "dead": "bad",
    "dropped": "dim", "held": "busy", "stale": "bad", "reserved": "warn", "open": "warn",
    "half_open": "warn", "closed": "good", "cancelled": "dim", "denied": "dim",
    "decision": "warn", "paused": "warn",
}  # fmt: skip
_ORDER = ("running", "dead", "failed", "blocked", "pending")


def _person(source: Source) -> View:
    rows = []
    for at, each in enumerate(source.overview["needs_person"]):
        kind, id_ = each["kind"], str(each["id"])
        rows.append(
            Row(
                key=f"{kind} {id_} {at}",
                cells=cells(kind.replace("_", " "), each["text"], source.ago(each["since"])),
                tone=_TONES.get(kind, "bad"),
                thing=f"quarantine/{id_}" if kind == "quarantine" else id_,
                detail=lines(each.get("remedy") or each["text"]),
                actions=actions(*[action(a["operation"], **_fields(a)) for a in each["actions"]]),
            )
        )
    return View(
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


def _agents(source: Source) -> View:
    rows = []
    for each in source.overview["agents"]:
        name = each["agent"]
        state = (each["status"] or "alive") if each["state"] == "alive" else "lapsed"
        rows.append(
            Row(
                key=each["session"],
                cells=cells(
                    name,
                    state,
                    each["doing"] or each["note"],
                    ", ".join(each["holds"]),
                    source.ago(each["since"]),
                    source.ago(each["heard"] or each["last_heartbeat"]),
                    f"{each['pid']} on {each['host']}",
                ),
                tone=_TONES.get(state, ""),
                thing=f"agent/{name}",
                actions=actions(
                    action("stop", who=name),
                    action("agent pause", name=name),
                    action("agent resume", name=name),
                    action("send", who=(name,)),
                    action("agent ack", name=name) if state == "lapsed" else None,
                ),
            )
        )
    return View(
        name="agents",
        columns=(
            Column("agent"), Column("state"), Column("doing"), Column("holds", 80),
            Column("since", 60), Column("heard", 90), Column("process", 110),
        ),
        empty="No agent has a session.\n\nStart one: interlock run --agent ada -- PROGRAM",
        rows=tuple(rows),
    )  # fmt: skip


def _tasks(source: Source) -> View:
    found = source.act(TasksList(limit=MOST))
    order = {state: at for at, state in enumerate(_ORDER)}
    tasks = sorted(found.tasks, key=lambda each: (order.get(each.state, 9), -each.priority))
    return View(
        name="tasks",
        columns=(
            Column("task"), Column("state"), Column("title", 70), Column("worker"),
            Column("progress", 90), Column("since", 60), Column("why", 80),
        ),
        empty="No task is open.\n\nPublish one: interlock task add build --agent ada",
        rows=tuple(_task(source, each) for each in tasks),
        more=bool(found.more),
    )  # fmt: skip


def _task(source: Source, task: ListedTask) -> Row:
    id_, state = task.task, "stale" if task.stale else task.state
    runs, waits = task.state == "running", task.state in ("pending", "blocked")
    return Row(
        key=id_,
        cells=cells(
            id_,
            state,
            task.title,
            task.holder or task.by,
            "" if task.progress is None else f"{_bar(task.progress)} {task.progress:4.0%}",
            source.ago(task.since),
            task.reason or (f"needs {task.on}" if task.on else "") or task.leaf or task.doing,
        ),
        tone=_TONES.get(state, ""),
        thing=f"task/{id_}",
        actions=actions(
            action("task requeue", task=id_, token=task.token) if runs else None,
            action("task cancel", task=id_) if runs or waits else None,
            action("task drop", tasks=(id_,)) if waits else None,
            action("task retry", task=id_) if not runs and not waits else None,
            action("task note", task=id_),
            action("stop", who=task.holder) if task.holder else None,
        ),
    )


def _bar(part: float, width: int = 8) -> str:
    full = round(max(0.0, min(1.0, part)) * width)
    return "█" * full + "░" * (width - full)


def _locks(source: Source) -> View:
    graph = WaitPicture(source.overview)
    rows = []
    for each in source.overview["locks"]:
        thing = f"lock/{each['lock']}"
        held = action("lock break", lock=each["lock"], token=each["token"])
        rows.append(
            Row(
                key=thing,
                cells=cells(
                    thing,
                    each["state"],
                    each["holder"],
                    ", ".join(each["waiters"]),
                    source.ago(each["since"]),
                    left(each["expires_in"]),
                ),
                tone=_TONES.get(each["state"], ""),
                thing=thing,
                detail=lines(graph.around(thing)),
                actions=actions(held if each["holder"] else None),
            )
        )
    for each in source.overview["semaphores"]:
        name, holders = each["semaphore"], each["holders"]
        thing = f"sem/{name}"
        used = each["capacity"] - each["available"]
        stale = any(held["state"] == "stale" for held in holders)
        busy: Tone = "warn" if each["waiters"] else "busy" if used else "good"
        first = holders[0] if holders else None
        rows.append(
            Row(
                key=thing,
                cells=cells(
                    thing,
                    f"{used} of {each['capacity']}",
                    ", ".join(held["holder"] for held in holders),
                    ", ".join(waiter["agent"] for waiter in each["waiters"]),
                    source.ago(min((held["since"] for held in holders), default=None)),
                    "",
                ),
                tone="bad" if stale else busy,
                thing=thing,
                detail=lines(graph.around(thing)),
                actions=actions(
                    action(
                        "sem break", semaphore=name, holder=first["holder"], token=first["token"]
                    )
                    if first
                    else None
                ),
            )
        )
    return View(
        name="locks",
        columns=(
            Column("thing"), Column("state"), Column("holder"), Column("waiting"),
            Column("held for", 60), Column("expires", 90),
        ),
        empty="No lock is held.\n\nHold one: interlock lock run deploy --agent ada -- PROGRAM",
        rows=tuple(rows),
    )  # fmt: skip


class WaitPicture:
    """Holders and waiters as lines; a cycle is named where it closes."""

    def __init__(self, overview: Mapping[str, Any]) -> None:
        self._holders: dict[str, list[str]] = {}
        self._waiters: dict[str, list[str]] = {}
        for each in overview["locks"]:
            thing = f"lock/{each['lock']}"
            self._holders[thing] = [each["holder"]] if each["holder"] else []
            self._waiters[thing] = list(each["waiters"])
        for each in overview["semaphores"]:
            thing = f"sem/{each['semaphore']}"
            self._holders[thing] = [held["holder"] for held in each["holders"]]
            self._waiters[thing] = [waiter["agent"] for waiter in each["waiters"]]

    def around(self, thing: str) -> str:
        """The holders of a thing and what they wait for, then the agents that it blocks."""
        found: list[str] = []
        for holder in self._holders.get(thing, []):
            self._behind(holder, thing, (), found)
        self._blocked(thing, 1, (), found)
        return "\n".join(found[:CHAIN])

    def _behind(self, agent: str, thing: str, path: tuple[str, ...], found: list[str]) -> None:
        indent = "· " * len(path)
        if agent in path or len(found) > CHAIN:
            found.append(f"{indent}{agent} holds {thing}: a cycle, so this wait cannot end")
            return
        wanted = [each for each, waiting in self._waiters.items() if agent in waiting]
        then = f", and waits for {', '.join(wanted)}" if wanted else ""
        found.append(f"{indent}{agent} holds {thing}{then}")
        for each in wanted:
            for holder in self._holders.get(each, []):
                self._behind(holder, each, (*path, agent), found)

    def _blocked(self, thing: str, depth: int, path: tuple[str, ...], found: list[str]) -> None:
        for agent in self._waiters.get(thing, []):
            if agent in path or len(found) > CHAIN:
                continue
            held = [
                each
                for each, holders in self._holders.items()
                if agent in holders and self._waiters.get(each)
            ]
            then = f", and holds {', '.join(held)}" if held else ""
            found.append(f"{'· ' * depth}{agent} waits for {thing}{then}")
            for each in held:
                self._blocked(each, depth + 1, (*path, agent), found)


def _messages(source: Source) -> View:
    found = source.act(MessagesList(limit=FEED))
    return View(
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


def _message(source: Source, message: Received) -> Row:
    body, asks, mine = text_of(message.data), message.kind == "query", message.id in source.unread
    return Row(
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


def _questions(source: Source) -> View:
    rows = []
    for each in source.act(DecisionsList()).decisions:
        asked = text_of(each.question)
        options = [f"{option.name}: {option.text}".rstrip(": ") for option in each.options]
        rows.append(
            Row(
                key=each.decision,
                cells=cells(
                    each.agent,
                    "a person",
                    asked,
                    " | ".join(option.name for option in each.options),
                    source.ago(each.at),
                    left(None if each.deadline is None else each.deadline - source.now),
                ),
                tone="warn",
                thing=each.decision,
                detail=lines("\n".join([asked, *options])),
                actions=actions(action("decision resolve", id=each.decision)),
            )
        )
    for asks in source.act(MessagesList(kind="query", open=True, limit=FEED)).messages:
        row = _message(source, asks)
        told = (", ".join(asks.to) or "an able agent", row.cells[3], "", row.cells[4])
        rows.append(replace(row, cells=(row.cells[0], *cells(*told), left(asks.expires_in))))
    return View(
        name="questions",
        columns=(
            Column("asked by"), Column("asks"), Column("question"), Column("options", 80),
            Column("ago", 60), Column("time left", 90),
        ),
        empty="No question is open.\n\nAn agent asks one with:"
        " interlock query bob 'Deploy?' --person --agent ada",
        rows=tuple(rows),
    )  # fmt: skip


def _pipelines(source: Source) -> View:
    rows = []
    for each in source.overview["pipelines"]:
        id_, blocked = each["pipeline"], each["blocked_by"]
        runs = each["state"] == "running"
        state = "blocked" if runs and blocked else each["state"]
        why = f"{blocked['leaf']}: {blocked['reason']}" if blocked else each["reason"]
        rows.append(
            Row(
                key=id_,
                cells=cells(
                    id_,
                    state,
                    each["phase"],
                    why,
                    ", ".join(each["holds"]),
                    source.ago(each["since"]),
                ),
                tone=_TONES.get(state, ""),
                thing=f"pipeline/{id_}",
                detail=lines(why),
                actions=actions(
                    action("pipeline advance", pipeline=id_) if runs else None,
                    action("pipeline cancel", pipeline=id_) if runs else None,
                ),
            )
        )
    return View(
        name="pipelines",
        columns=(
            Column("pipeline"), Column("state"), Column("phase"), Column("waits for", 70),
            Column("holds", 100), Column("since", 60),
        ),
        empty="No pipeline was started.\n\nDefine and start one: interlock pipeline --help",
        rows=tuple(rows),
    )  # fmt: skip


def _swarms(source: Source) -> View:
    rows = []
    for peer in source.act(SwarmTrust()):
        state = str(peer.breaker.state) if peer.allowed else "denied"
        rows.append(
            Row(
                key=f"swarm/{peer.swarm}",
                cells=cells(
                    peer.swarm, state, "peer", f"{peer.rate} requests a minute at most", ""
                ),
                tone=_TONES.get(state, ""),
                actions=actions(
                    action("swarm trust", name=peer.swarm, forgive=True),
                    action("swarm deny", name=peer.swarm),
                ),
            )
        )
    rows += [
        Row(
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
            Row(
                key=each.request,
                cells=cells(
                    each.to_swarm,
                    each.state,
                    "request",
                    f"{each.task_type} by {each.agent}: {each.place or each.reason}",
                    source.ago(each.at),
                ),
                tone=_TONES.get(each.state, ""),
                thing=each.request,
                detail=lines(f"{each.reason}\n{each.next}".strip()),
                actions=actions(cancel if is_open else None),
            )
        )
    return View(
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


def _record(source: Source) -> View:
    found = source.act(RecordLog(limit=RECORD)).entries
    rows = [
        Row(
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
    return View(
        name="record",
        columns=(
            Column("revision"), Column("verb"), Column("thing"), Column("agent"),
            Column("outcome", 80), Column("ago", 60), Column("trace", 130),
        ),
        empty="The record is empty: nothing was changed yet.",
        rows=tuple(rows),
        more=len(found) == RECORD,
    )  # fmt: skip


VIEWS: dict[str, Callable[[Source], View]] = {
    "person": _person,
    "agents": _agents,
    "tasks": _tasks,
    "locks": _locks,
    "messages": _messages,
    "questions": _questions,
    "pipelines": _pipelines,
    "swarms": _swarms,
    "record": _record,
}
"""The views by name, in the order of their keys."""
