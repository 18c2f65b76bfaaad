"""What the screen shows, as data: rows of cells, and the declared operations that help with a row.

Text comes from any client of the store, so every cell and every name is made printable here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from interlock import registry
from interlock.core.safe_text import one_line
from interlock.core.validate import span
from interlock.faces.http.overview import overview
from interlock.faces.json_output import encoded
from interlock.nouns.messages.decision_noun import DecisionsList
from interlock.nouns.messages.feed_noun import MessagesList
from interlock.nouns.messages.inbox_noun import InboxShow
from interlock.runtime.operation import fields

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.messages.decision import DecisionView
    from interlock.nouns.messages.message import Received
    from interlock.runtime.operation import Operation, Request

Tone: TypeAlias = Literal["", "good", "warn", "bad", "dim", "busy"]
"""What a colour means; the screen chooses the colour."""

TONES: dict[str, Tone] = {
    "alive": "good", "busy": "busy", "waiting": "warn", "idle": "dim", "lapsed": "bad",
    "running": "busy", "blocked": "warn", "complete": "good", "failed": "bad", "dead": "bad",
    "dropped": "dim", "held": "busy", "stale": "bad", "reserved": "warn", "open": "warn",
    "half_open": "warn", "closed": "good", "cancelled": "dim", "denied": "dim",
    "decision": "warn", "paused": "warn", "queued": "warn", "testing": "busy",
    "landing": "busy", "bounced": "bad", "merged": "good", "active": "good", "ended": "dim",
    "full": "warn", "passed": "good", "unknown": "dim", "outside": "dim",
}  # fmt: skip
"""The colours of states."""
ZOOMS = (600.0, 60.0, 3600.0, 21600.0)
"""Seconds that the timeline goes back: at first, and as ``z`` changes it."""
MOST = 500
"""Rows of a view."""
FEED = 100
"""Messages that are shown."""
LONGEST = 400
"""Characters of a cell."""
RESERVED = frozenset("jkgGhlwqoz")
"""Keys of the screen itself, which no action has."""
_REASON = "reason"
_ACTIONS: dict[str, tuple[str, str, str, bool]] = {
    "stop": ("s", "stop", _REASON, True),
    "agent pause": ("p", "pause", _REASON, True),
    "agent resume": ("r", "resume", "", False),
    "agent ack": ("x", "acknowledge its death", "", False),
    "send": ("m", "mail", "body", False),
    "task requeue": ("u", "requeue", _REASON, True),
    "task cancel": ("c", "cancel", _REASON, True),
    "task retry": ("t", "retry", "", False),
    "task drop": ("d", "drop", _REASON, True),
    "task note": ("n", "note", "text", False),
    "lock break": ("b", "break", _REASON, True),
    "sem break": ("b", "break", _REASON, True),
    "ack": ("x", "acknowledge", "", False),
    "reply": ("a", "answer", "text", False),
    "decision resolve": ("a", "answer", "text", False),
    "pipeline advance": ("v", "advance", "", True),
    "pipeline cancel": ("c", "cancel", _REASON, True),
    "swarm trust": ("f", "forgive", "", True),
    "swarm deny": ("d", "deny", _REASON, True),
    "quarantine release": ("r", "release", "", True),
    "quarantine drop": ("d", "drop", "", True),
    "request cancel": ("c", "cancel", _REASON, True),
    "unreserve": ("b", "break", _REASON, True),
    "merge cancel": ("c", "cancel", _REASON, True),
    "schedule pause": ("p", "pause", _REASON, True),
    "schedule resume": ("r", "resume", "", False),
    "schedule drop": ("d", "drop", "", True),
    "guard drop": ("d", "drop", "", True),
    "budget drop": ("d", "drop the limit", "", True),
}
"""The operations that the screen offers: key, label, the field to ask for, is it destructive."""


class Action(Struct, frozen=True, kw_only=True):
    """An operation on a row, with the fields that are known.

    ``asks`` is the field that the person gives; ``destructive`` says that it ends or deletes
    something, so that the screen asks first.
    """

    key: str
    label: str
    operation: str
    given: dict[str, Any]
    asks: str = ""
    destructive: bool = False

    @property
    def declared(self) -> Operation:
        """Its declaration."""
        return registry.find(self.operation)

    def request(self, text: str = "") -> Request:
        """The request, with the text that the person gave."""
        given = dict(self.given)
        if self.asks and text:
            given[self.asks] = text
        return self.declared.request(**given)


def action(operation: str, **given: Any) -> Action | None:  # noqa: ANN401 - fields of a request
    """An action with these fields; None if the screen does not offer the operation."""
    known = _ACTIONS.get(operation)
    if known is None:
        return None
    key, label, asks, destructive = known
    return Action(
        key=key, label=label, operation=operation, given=given, asks=asks, destructive=destructive
    )


def actions(*found: Action | None) -> tuple[Action, ...]:
    """Those that the screen offers, one for each key."""
    return tuple({each.key: each for each in reversed(found) if each is not None}.values())[::-1]


def offered() -> dict[str, set[str]]:
    """Every operation that the screen offers, with the fields that it asks for."""
    known = {
        name: {field.attribute for field in fields(registry.find(name).request)}
        for name in _ACTIONS
    }
    return {name: {asks} & known[name] for name, (_, _, asks, _) in _ACTIONS.items()}


class TableRow(Struct, frozen=True, kw_only=True):
    """A row: its cells, and the thing that ``why`` and ``record explain`` know it by."""

    key: str
    cells: tuple[str, ...]
    tone: Tone = ""
    thing: str = ""
    detail: str = ""
    actions: tuple[Action, ...] = ()

    @property
    def name(self) -> str:
        """Its thing, as it is shown."""
        return one_line(self.thing[:LONGEST]) or self.cells[0]

    def has(self, words: Sequence[str]) -> bool:
        """Whether it has all of these words, in lower case."""
        text = " ".join((*self.cells, self.thing)).casefold()
        return all(word in text for word in words)

    def action(self, key: str) -> Action | None:
        """The action with this key."""
        return next((each for each in self.actions if each.key == key), None)

    def offers(self, action: Action) -> bool:
        """Whether its action with this key carries out the same operation."""
        own = self.action(action.key)
        return own is not None and own.operation == action.operation


class Column(Struct, frozen=True):
    """A column, and how wide a terminal has to be to show it."""

    title: str
    least: int = 0


class TableView(Struct, frozen=True, kw_only=True):
    """One view: columns and rows, and what an empty one says; ``more`` if rows were left out.

    ``toned`` is the column that has the colour of its row.
    """

    name: str
    columns: tuple[Column, ...]
    empty: str
    toned: int = 1
    rows: tuple[TableRow, ...] = ()
    more: bool = False


class ScreenData(Struct, frozen=True, kw_only=True):
    """One reading of the store: the view that was asked for, and the numbers of all."""

    view: TableView
    counts: Mapping[str, int]
    tasks: Mapping[str, int]
    agents: int
    unread: int
    questions: int
    revision: int


class ViewSource:
    """Carries out the reading operations of one reading; ``unread`` are ids of messages to you.

    ``decisions`` and ``queries`` are the questions that are open: to a person, and to agents.
    ``zoom`` is how many seconds the timeline goes back.
    """

    def __init__(self, fleet: Fleet, zoom: float = ZOOMS[0]) -> None:
        self.fleet = fleet
        self.zoom = zoom
        self.agent = fleet.context.agent or ""
        self.now = time.time()
        self.overview = overview(fleet)
        self.decisions: Sequence[DecisionView] = self.act(DecisionsList()).decisions
        asked = MessagesList(kind="query", open=True, limit=FEED)
        self.queries: Sequence[Received] = self.act(asked).messages
        self.unread: frozenset[str] = frozenset()
        if self.agent:
            inbox = self.act(InboxShow(limit=MOST))
            self.unread = frozenset(each.id for each in inbox.messages)

    def act(self, request: Request) -> Any:  # noqa: ANN401 - as the operation answers
        """The answer of an operation."""
        return self.fleet.act(request)

    def ago(self, moment: float | None) -> str:
        """How long ago a moment is."""
        return "" if moment is None else span(max(0.0, self.now - moment))


def read_screen(
    fleet: Fleet, view: Callable[[ViewSource], TableView], zoom: float = ZOOMS[0]
) -> ScreenData:
    """Read the numbers of all views, and the rows of one."""
    source = ViewSource(fleet, zoom)
    found = source.overview
    tasks: dict[str, int] = found["tasks"]
    ended = tasks.get("complete", 0) + tasks.get("dropped", 0)
    alive = sum(each["state"] == "alive" for each in found["agents"])
    questions = len(source.decisions) + len(source.queries)
    return ScreenData(
        view=view(source),
        counts={
            "person": len(found["needs_person"]),
            "agents": alive,
            "tasks": sum(tasks.values()) - ended,
            "locks": len(found["locks"]) + len(found["semaphores"]),
            "messages": len(source.unread),
            "questions": questions,
            "pipelines": sum(each["state"] == "running" for each in found["pipelines"]),
        },
        tasks=tasks,
        agents=alive,
        unread=len(source.unread),
        questions=questions,
        revision=found["revision"],
    )


def cells(*values: object) -> tuple[str, ...]:
    """The cells of a row, each on one line, printable, and no longer than a screen is wide."""
    return tuple(one_line(str(each)[:LONGEST]) for each in values)


def lines(text: str) -> str:
    """A text of several lines, each printable; a long one is cut."""
    return "\n".join(one_line(line) for line in text[: LONGEST * 10].splitlines())


def text_of(value: object) -> str:
    """A value of a caller: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else encoded(value).decode()


def left(seconds: float | None) -> str:
    """How much time is left."""
    if seconds is None:
        return ""
    return "over" if seconds < 0 else span(seconds)
