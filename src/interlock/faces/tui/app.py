"""The screen: tabs with counts, a table, details, the log, and a status bar.

It holds no state of the fleet but its last data; the threads of ``reader.py`` send it
messages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Input, RichLog, Static

from interlock.core.safe_text import one_line, printable
from interlock.faces.tui import bars
from interlock.faces.tui.dialogs import ActionMenu, ConfirmDialog, HelpDialog, ViewMenu
from interlock.faces.tui.reader import Opens, ScreenReader, explain, perform
from interlock.faces.tui.screen_data import ZOOMS, Action, ScreenData, TableRow, TableView, Tone
from interlock.faces.tui.views import VIEWS
from interlock.runtime.text import render

if TYPE_CHECKING:
    from interlock.runtime.observe import Observed

LOG_LINES = 2000
_PARTS = (
    "head", "tabs", "banner", "filter", "table", "empty", "details", "log", "hints", "status",
)  # fmt: skip
SHORT = 12
"""Rows below which only the lines that matter are shown."""
LOG_SHOWN = 24
"""Rows from which on the log is shown at first."""
COLOURS: dict[Tone, str] = {
    "": "", "good": "green", "busy": "cyan", "warn": "yellow", "bad": "bold red", "dim": "dim",
}  # fmt: skip


class TopApp(App[None]):
    """``interlock top``."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "interlock top"
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("question_mark", "help", "help"),
        Binding("slash", "filter", "filter"),
        Binding("enter", "act", "act"),
        Binding("escape", "clear", "clear"),
        Binding("j", "move(1)", "down"),
        Binding("k", "move(-1)", "up"),
        Binding("g", "edge('top')", "first"),
        Binding("G", "edge('bottom')", "last"),
        Binding("l", "toggle_log", "log"),
        Binding("ctrl+r", "reread", "read again"),
        Binding("tab", "next(1)", "next view", priority=True),
        Binding("shift+tab", "next(-1)", "view before", priority=True),
        Binding("o", "views", "all views"),
        Binding("z", "zoom", "zoom of the timeline"),
        *[
            Binding(key, f"view('{name}')", name)
            for key, name in zip(bars.DIGITS, VIEWS, strict=False)
        ],
    ]

    class DataRead(Message):
        """The store was read."""

        def __init__(self, data: ScreenData) -> None:
            super().__init__()
            self.data = data

    class Seen(Message):
        """Events were recorded."""

        def __init__(self, found: Sequence[Observed]) -> None:
            super().__init__()
            self.found = found

    class Trouble(Message):
        """The store does not answer."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Answered(Message):
        """Actions are done; each succeeded or not, and said something."""

        def __init__(self, done: list[tuple[bool, str]], label: str) -> None:
            super().__init__()
            self.done = done
            self.label = label

    class Explained(Message):
        """What is known of a thing: the answer to the question (the key of a row, and a word)."""

        def __init__(self, question: tuple[str, str], text: str) -> None:
            super().__init__()
            self.question = question
            self.text = text

    def __init__(self, opens: Opens, *, place: str, agent: str, view: str, every: float) -> None:
        super().__init__()
        self._opens = opens
        self._place, self._agent = place, agent
        self._showing = view
        self._data: ScreenData | None = None
        self._read_at = time.monotonic()
        self._trouble = ""
        self._words: tuple[str, ...] = ()
        self._rows: dict[str, TableRow] = {}
        self._shape: tuple[str, tuple[tuple[str, int], ...]] = ("", ())
        self._counts: dict[str, int] = {}
        self._question: tuple[str, str] | None = None
        self.reader = ScreenReader(
            opens,
            view,
            every,
            on_data=lambda data: self.post_message(self.DataRead(data)),
            on_events=lambda found: self.post_message(self.Seen(found)),
            on_trouble=lambda text: self.post_message(self.Trouble(text)),
        )

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(id="head")
        yield Static(id="tabs")
        yield Static(id="banner")
        yield Input(id="filter", placeholder="filter: words that a row has", compact=True)
        yield DataTable(id="table", cursor_type="row", zebra_stripes=False, header_height=1)
        yield Static(id="empty")
        yield Static(id="details")
        log = RichLog(id="log", max_lines=LOG_LINES, wrap=False, markup=False, highlight=False)
        log.can_focus = False
        yield log
        yield Static(id="hints")
        yield Static(id="status")

    def on_mount(self) -> None:
        """Begin to read; the clock moves on between readings."""
        self.query_one("#log").set_class(self.size.height >= LOG_SHOWN, "shown")
        self.table.focus()
        self._paint()
        self.reader.start()
        self.set_interval(1.0, self._paint_bars)

    def on_unmount(self) -> None:
        """End without waiting for the store."""
        self.reader.stop()

    @property
    def _has_widgets(self) -> bool:
        """Whether all widgets are there: events come before the first and after the last."""
        return len(self.query(", ".join(f"#{name}" for name in _PARTS))) == len(_PARTS)

    @property
    def table(self) -> DataTable[Text]:
        """The table."""
        return self.query_one("#table", DataTable)

    @property
    def row(self) -> TableRow | None:
        """The row under the cursor."""
        rows = list(self._rows.values()) if self._has_widgets else []
        if not rows:
            return None
        at = self.table.cursor_row
        return rows[at] if 0 <= at < len(rows) else None

    # What the threads say

    @on(DataRead)
    def data_read(self, message: DataRead) -> None:
        """Show the data, if it is of the open view."""
        if message.data.view.name != self._showing:
            return
        if self._trouble:
            self._log_line("the store answers again", "green")
        self._data, self._trouble = message.data, ""
        self._read_at = time.monotonic()
        self._counts = dict(message.data.counts)
        self._paint()

    @on(Trouble)
    def store_trouble(self, message: Trouble) -> None:
        """Say that the store does not answer; the last data stays."""
        if self._trouble != message.text:
            self._log_line(message.text, "bold red")
        self._trouble = message.text
        self._paint_bars()

    @on(Seen)
    def events_seen(self, message: Seen) -> None:
        """Add events to the log."""
        for each in message.found[-LOG_LINES:]:
            bad = each.event.partition(":")[2] in ("failed", "lapsed", "dead", "fenced", "expired")
            self._log_line(render(each), "yellow" if bad else "")

    @on(Answered)
    def answered(self, message: Answered) -> None:
        """Say how actions went."""
        good = sum(each for each, _ in message.done)
        for went, text in message.done:
            self._log_line(f"you: {text.partition(chr(10))[0]}", "green" if went else "bold red")
        first = next((text for went, text in message.done if not went), "")
        text = message.done[0][1] if len(message.done) == 1 else f"{message.label}: {good} done"
        if first and len(message.done) > 1:
            text += f", {len(message.done) - good} not done: {first}"
        if good == len(message.done):
            self.notify(one_line(text), timeout=6, markup=False)
        else:
            self.notify(one_line(text), severity="warning", timeout=6, markup=False)
        self.reader.refresh()

    @on(Explained)
    def explained(self, message: Explained) -> None:
        """Show what is known of a thing, unless the person went elsewhere before the answer."""
        if self._has_widgets and message.question == self._question:
            self._detail(message.text)

    def _log_line(self, text: str, style: str = "") -> None:
        for line in text.splitlines()[: int(self._has_widgets)]:
            self.query_one("#log", RichLog).write(Text(one_line(line), style=style))

    # Painting

    def _paint(self) -> None:
        if not self._has_widgets:
            return
        self._paint_bars()
        data = self._data
        view = None if data is None or data.view.name != self._showing else data.view
        if view is None:
            self._show_empty("reading the store ..." if not self._trouble else "")
            return
        rows = [row for row in view.rows if row.has(self._words)]
        if not rows:
            self._rows = {}
            self._show_empty(bars.no_row(view))
        else:
            self.query_one("#empty").display = False
            self.table.display = True
            if self.focused is None:  # it lost the focus while it was hidden
                self.table.focus()
            self._fill(view, rows)
        self._paint_hints()

    def _show_empty(self, text: str) -> None:
        self.table.display = False
        empty = self.query_one("#empty", Static)
        empty.display = True
        empty.update(Text(text, justify="center"))
        self._detail("")

    def _fill(self, view: TableView, rows: Sequence[TableRow]) -> None:
        """Change only the cells that changed, so that the cursor and the scroll stay."""
        width = self.size.width
        visible = [at for at, column in enumerate(view.columns) if column.least <= width]
        widths = bars.widths(view, rows, visible, width)
        columns = tuple((view.columns[at].title, widths[at]) for at in visible)
        keys = [row.key for row in rows]
        old, table = self._rows, self.table
        if self._shape == (view.name, columns) and list(old) == keys:
            for row in rows:
                if old[row.key].cells != row.cells or old[row.key].tone != row.tone:
                    for number, text in enumerate(_texts(row, visible, view.toned)):
                        table.update_cell(row.key, str(number), text)
        else:
            at, top = table.cursor_row, table.scroll_y
            same = self._shape[0] == view.name
            keep = self.row.key if self.row is not None and same else ""
            table.clear(columns=True)
            for number, (title, wide) in enumerate(columns):
                table.add_column(Text(title), key=str(number), width=wide)
            for row in rows:
                table.add_row(*_texts(row, visible, view.toned), key=row.key)
            at = keys.index(keep) if keep in keys else min(at, len(keys) - 1)
            self._rows = {row.key: row for row in rows}
            table.move_cursor(row=at if same else 0, scroll=False)
            table.scroll_to(y=top if same else 0, animate=False)
            self._shape = (view.name, columns)
        self._rows = {row.key: row for row in rows}

    def _paint_bars(self) -> None:
        if not self._has_widgets:
            return
        self.query_one("#head", Static).update(bars.head(self._place, self._data))
        tabs = bars.tabs(self._showing, self._counts, self.size.width)
        self.query_one("#tabs", Static).update(tabs)
        line = bars.status(
            self._data,
            trouble=self._trouble,
            age=time.monotonic() - self._read_at,
            words=self._words,
            rows=len(self._rows),
            agent=self._agent,
        )
        self.query_one("#status", Static).update(line)
        banner = self.query_one("#banner", Static)
        banner.set_class(bool(self._trouble), "shown")
        if self._trouble:
            banner.update(Text(f"The store does not answer: {one_line(self._trouble)}"))

    def _paint_hints(self) -> None:
        self.query_one("#hints", Static).update(bars.hints(self.row))

    def _detail(self, text: str) -> None:
        details = self.query_one("#details", Static)
        details.set_class(bool(text), "shown")
        details.update(Text("\n".join(map(printable, text.splitlines()))))

    # What the person does

    @on(DataTable.RowHighlighted)
    def highlighted(self) -> None:
        """Show what is known of a row without asking the store."""
        if not self._has_widgets:
            return
        row = self.row
        if row is not None and (self._question is None or row.key != self._question[0]):
            self._question = None
            self._detail(row.detail)
        self._paint_hints()

    @on(DataTable.RowSelected)
    def action_act(self) -> None:
        """Offer the actions of the row."""
        row = self.row
        if row is not None and row.actions:
            self.push_screen(ActionMenu(row), lambda chosen: self._ask(chosen, [row]))

    def on_key(self, event: events.Key) -> None:
        """The key of an action of the row; a capital one is for all filtered rows that have it."""
        if len(self.screen_stack) > 1 or self.query_one("#filter").has_focus or self.row is None:
            return
        key = event.character or ""
        if key.isalpha() and key.isupper() and key != "G":
            chosen = self.row.action(key.lower())
            if chosen is not None:  # in other rows the key may stand for another operation
                event.stop()
                self._ask(chosen, [row for row in self._rows.values() if row.offers(chosen)])
            return
        found = self.row.action(key)
        if found is not None:
            event.stop()
            event.prevent_default()
            self._ask(found, [self.row])
        elif key in ("w", "h") and self.row.thing:
            event.stop()
            word = "why" if key == "w" else "history"
            question = self._question = (self.row.key, word)
            self._detail(f"{word} of {self.row.name} ...")
            explain(
                self._opens,
                self.row.thing,
                word,
                lambda text: self.post_message(self.Explained(question, text)),
            )
        elif key == "r":
            event.stop()
            self.reader.refresh()

    def _ask(self, action: Action | None, rows: Sequence[TableRow]) -> None:
        """Ask for a text or a confirmation, if one is needed, and then act."""
        if action is None or not rows:
            return
        if action.asks or action.destructive or len(rows) > 1:
            self.push_screen(
                ConfirmDialog(action, rows), lambda text: self._act(action, rows, text)
            )
        else:
            self._act(action, rows, "")

    def _act(self, action: Action, rows: Sequence[TableRow], text: str | None) -> None:
        if text is None:
            return
        own = [row.action(action.key) or action for row in rows]
        requests = [each.request(text) for each in own]
        label = action.label
        perform(self._opens, requests, lambda done: self.post_message(self.Answered(done, label)))

    def action_view(self, name: str) -> None:
        """Another view."""
        if name == self._showing:
            return
        self._showing = name
        self._rows = {}
        self._question = None
        self._detail("")
        self.reader.show(name)
        self._paint()

    def action_views(self) -> None:
        """Choose a view."""
        self.push_screen(ViewMenu(bars.LABELS, self._showing), self._view_chosen)

    def _view_chosen(self, name: str | None) -> None:
        if name:
            self.action_view(name)

    def action_zoom(self) -> None:
        """How far the timeline goes back: the next of a few lengths."""
        at = ZOOMS.index(self.reader.zoom)
        self.reader.zoom = ZOOMS[(at + 1) % len(ZOOMS)]
        self.reader.refresh()

    def action_next(self, step: int) -> None:
        """The view beside this one."""
        names = list(VIEWS)
        self.action_view(names[(names.index(self._showing) + step) % len(names)])

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        table = self.table
        table.move_cursor(row=max(0, min(table.row_count - 1, table.cursor_row + step)))

    def action_edge(self, edge: str) -> None:
        """The first row, or the last."""
        self.table.move_cursor(row=0 if edge == "top" else self.table.row_count - 1)

    def action_toggle_log(self) -> None:
        """Show or hide the log."""
        self.query_one("#log").toggle_class("shown")

    def action_reread(self) -> None:
        """Read again now."""
        self.reader.refresh()

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpDialog())

    def action_filter(self) -> None:
        """Write a filter."""
        found = self.query_one("#filter", Input)
        found.add_class("shown")
        found.focus()

    @on(Input.Changed, "#filter")
    def filtered(self, event: Input.Changed) -> None:
        """Filter while it is written."""
        self._words = tuple(event.value.casefold().split())
        self._paint()

    @on(Input.Submitted, "#filter")
    def filter_done(self) -> None:
        """Keep the filter, and go back to the rows."""
        self.query_one("#filter").set_class(False, "shown")
        self.table.focus()

    def action_clear(self) -> None:
        """Clear the filter, and close what is open."""
        found = self.query_one("#filter", Input)
        found.value = ""
        found.remove_class("shown")
        self._question = None
        self._detail("")
        self.table.focus()

    def on_resize(self) -> None:
        """Narrow terminals show fewer columns, and short ones fewer lines."""
        self.set_class(self.size.height < SHORT, "short")
        self._paint()

    async def action_quit(self) -> None:
        """Leave at once."""
        self.reader.stop()
        self.exit()


def _texts(row: TableRow, visible: Sequence[int], toned: int) -> list[Text]:
    """The cells as text without markup; one of them has the colour of the row."""
    style = COLOURS[row.tone]
    return [
        Text(row.cells[at], style=style if at == toned else "", no_wrap=True, overflow="ellipsis")
        for at in visible
    ]
