"""The questions that the screen asks: a text or a reason, and the help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from interlock.core.safe_text import one_line
from interlock.faces.tui.screen_data import Action, TableRow


class ConfirmDialog(ModalScreen[str | None]):
    """Asks before an action, for its text or its reason; gives None if it is not wanted."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, action: Action, rows: Sequence[TableRow]) -> None:
        super().__init__()
        self._action = action
        self._rows = rows

    def compose(self) -> ComposeResult:
        """The dialog."""
        action, rows = self._action, self._rows
        named = ", ".join(_named(row, action) for row in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""  # noqa: PLR2004
        with Vertical(classes="destructive" if action.destructive else ""):
            yield Static(Text(f"{action.label.capitalize()} {named}{more}?"), classes="title")
            yield Static(Text(f"interlock {action.operation}: {action.declared.help}"))
            if action.asks:
                yield Input(placeholder=_PLACEHOLDERS.get(action.asks, "text"))
            yield Static(Text("enter: do it   esc: leave it"), classes="hint")

    def on_mount(self) -> None:
        """The text is typed at once; without one, Enter confirms."""
        if self._action.asks:
            self.query_one(Input).focus()
        else:
            self._bindings.bind("enter", "confirm", "do it")

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        """Do it; a text that the operation cannot do without has to be there."""
        text = event.value.strip()
        if not text and self._action.asks != "reason":
            return
        if not text and self._action.destructive:
            self.query_one(".hint", Static).update(Text("a reason is recorded; write one, or esc"))
            return
        self.dismiss(text)

    def action_confirm(self) -> None:
        """Do it."""
        self.dismiss("")

    def action_cancel(self) -> None:
        """Leave it."""
        self.dismiss(None)


def _named(row: TableRow, action: Action) -> str:
    """The row, and which of several holders the action is about."""
    own = row.action(action.key) or action
    holder = own.given.get("holder")
    return f"{row.name}{f' of {one_line(holder)}' if holder else ''}"


_PLACEHOLDERS = {"reason": "the reason, which is recorded and shown", "text": "your answer"}


class ActionMenu(ModalScreen[Action | None]):
    """The actions of a row, to choose from."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, row: TableRow) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical():
            yield Static(Text(self._row.name), classes="title")
            yield OptionList(
                *[
                    Option(Text.assemble((f" {each.key} ", "reverse"), f" {each.label}"))
                    for each in self._row.actions
                ]
            )

    @on(OptionList.OptionSelected)
    def chosen(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(self._row.actions[event.option_index])

    def on_key(self, event: object) -> None:
        """The key of an action chooses it."""
        found = [each for each in self._row.actions if each.key == getattr(event, "key", "")]
        if found:
            self.dismiss(found[0])

    def action_cancel(self) -> None:
        """None."""
        self.dismiss(None)


class ViewMenu(ModalScreen[str | None]):
    """All views, to choose from."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,o", "cancel", "cancel")]

    def __init__(self, labels: Mapping[str, str], here: str) -> None:
        super().__init__()
        self._labels = labels
        self._here = here

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical():
            yield Static(Text("Views"), classes="title")
            yield OptionList(*[Option(label, id=name) for name, label in self._labels.items()])

    def on_mount(self) -> None:
        """Begin at the view that is shown."""
        self.query_one(OptionList).highlighted = list(self._labels).index(self._here)

    @on(OptionList.OptionSelected)
    def chosen(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(event.option_id)

    def on_key(self, event: events.Key) -> None:
        """J and k move, as elsewhere; another letter goes to the next view that begins with it."""
        menu, key = self.query_one(OptionList), event.character or ""
        if key == "j":
            menu.action_cursor_down()
        elif key == "k":
            menu.action_cursor_up()
        elif key.isalpha():
            at, names = menu.highlighted or 0, list(self._labels)
            order = [*range(at + 1, len(names)), *range(at + 1)]
            fits = [each for each in order if names[each].startswith(key)]
            menu.highlighted = fits[0] if fits else at

    def action_cancel(self) -> None:
        """None."""
        self.dismiss(None)


HELP = """\
1 … 0   a view; tab goes to the next one
o       all views, to choose from
j k     down and up; g G: first and last
/       filter by words; esc clears it
enter   what can be done with the row
        its key does it at once, a capital
        one for all filtered rows
w       why it is blocked, who can clear it
h       its history, from the record
z       timeline: how far it goes back
l       the log of events, or none
ctrl+r  read again now
q       quit
"""


class HelpDialog(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "close", "close")
    ]

    def compose(self) -> ComposeResult:
        """The keys."""
        with Vertical():
            yield Static(Text("Keys"), classes="title")
            yield Static(Text(HELP))

    def action_close(self) -> None:
        """Close it."""
        self.dismiss()
