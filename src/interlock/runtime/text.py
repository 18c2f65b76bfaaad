"""Outcomes as text for people: short, aligned, times in words, colour only on a terminal.

The text of an outcome is a function of its noun, found by the name of the outcome's class.  That
function gets ``Foreign`` strings, which an f-string quotes where they are no plain name; so each
line break and escape sequence in the text, and each sentence outside of quotes and bars, is
Interlock's.  This module has the helpers that the texts share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from interlock import registry
from interlock.core.safe_text import all_foreign, bars, foreign, printable
from interlock.core.validate import span

if TYPE_CHECKING:
    from interlock.core.outcomes import GuardBlocked, NoGuard

Text: TypeAlias = Callable[[Any, "Paint"], str]
"""Makes the text of an outcome."""

_GAP = "  "
_LEAST = 8
"""The columns that a cell keeps, however narrow the terminal is."""
_COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"}


class Paint:
    """Colours text, or leaves it plain; ``width`` is that of the terminal, if there is one."""

    def __init__(self, *, colour: bool, width: int | None = None) -> None:
        self._colour = colour
        self.width = width

    def __call__(self, colour: str, text: str) -> str:
        """The text in this colour."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colour else f"{text}"


def render(outcome: object, *, colour: bool = False, width: int | None = None) -> str:
    """An outcome as text, without a final newline; some tables fit into a ``width``."""
    return renderer(type(outcome))(all_foreign(outcome), Paint(colour=colour, width=width))


def renderer(outcome: type) -> Text:
    """What makes the text for an outcome."""
    for module in registry.texts(outcome.__module__):
        texts: dict[str, Text] = registry.load(f"{module}:TEXTS")
        if (found := texts.get(outcome.__name__)) is not None:
            return found
    raise KeyError(outcome.__name__)


def barred(
    text: str, paint: Paint, *, lines: int | None = None, characters: int | None = None
) -> list[str]:
    """What another agent wrote, each line behind a bar, so that none can imitate Interlock."""
    return bars(text, lines=lines, characters=characters, bar=paint("dim", "|"))


def reason_lines(text: str, paint: Paint) -> str:
    """A reason of another agent for the lines below one of Interlock; empty if there is none."""
    return "".join([f"\n{line}" for line in barred(text, paint)]) if text else ""


def joined(texts: Iterable[str], by: str = ", ") -> str:
    """Texts as an f-string writes them, one after the other."""
    return by.join([f"{each}" for each in texts])


def lasting(seconds: float | None) -> str:
    """A duration in words, if it is known: ``0.3 s``, ``12 s``, ``15 min``."""
    if seconds is None:
        return "a while"
    return f"{seconds:.1f} s" if seconds < 1 else span(seconds)


def since(moment: float) -> str:
    """How long ago a moment is: ``12 s``."""
    return lasting(max(time.time() - moment, 0.0))


def ago(moment: float | None) -> str:
    """A moment in words: ``12 s ago``."""
    if moment is None:
        return ""
    seconds = time.time() - moment
    return f"in {lasting(-seconds)}" if seconds < -1 else f"{since(moment)} ago"


def ended(by: str) -> str:
    """Who ended a grant, as the end of a sentence; empty if no operator did."""
    return f"; {by} ended it" if by else ""


def lives(expires_in: float | None) -> str:
    """How long a grant lives, as the end of a sentence."""
    return f", expires in {lasting(expires_in)}" if expires_in else ""


_RESOLVE = "release what you hold, answer your open questions, then retry"


def never_ends(cycle: Sequence[str], then: str = _RESOLVE) -> str:
    """Why a wait was refused, and what to do."""
    way = joined((*cycle, cycle[0]), " -> ")
    return f"waiting would never end ({way}); {then}"


def new_holders(names: Sequence[str]) -> str:
    """Who has it now, as the end of a sentence."""
    if not names:
        return ""
    return f"; {joined(names)} {'has' if len(names) == 1 else 'have'} some now"


def guard_blocked(outcome: GuardBlocked, paint: Paint) -> str:
    """Which guard does not let it pass, why, and what would clear it; several nouns answer so."""
    guard = f"guard {outcome.guard} {'is unknown' if outcome.result == 'unknown' else 'failed'}"
    message = f" ({outcome.message})" if outcome.message else ""
    retry = f"; retry in {lasting(outcome.retry_in)}" if outcome.retry_in is not None else ""
    why = f"{guard}{message}: {outcome.leaf}: {outcome.reason}{retry}"
    first = f"{paint('yellow', 'blocked')} {outcome.thing}: {why}"
    if not outcome.acts:
        return first
    return "\n".join([f"{first}; to clear it:", *[f"  {act}" for act in outcome.acts]])


def no_guard(outcome: NoGuard, paint: Paint) -> str:
    """There is none, and how to get one."""
    word = paint("yellow", "nothing")
    return f"{word}: the store has no guard {outcome.guard}; define it: interlock guard define FILE"


def columns(rows: Sequence[Sequence[str]], *, gap: str = _GAP) -> list[str]:
    """Rows with their cells under each other; measured without colours."""
    rows = [[f"{cell}" for cell in row] for row in rows]
    widths = _widths(rows)
    return [
        gap.join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    paint: Paint,
    cut: Sequence[str] = (),
    leave: Sequence[str] = (),
) -> str:
    """Rows below their titles.

    If they are wider than the terminal, cells of the columns ``cut`` are shortened, the widest
    first; those of the last one only if that is not enough.  On a terminal that is narrower still,
    the columns ``leave`` are left out, one after the other.
    """
    cells = [tuple([f"{cell}" for cell in row]) for row in (titles, *rows)]
    if cut and paint.width is not None:
        cells, left = _fitting(cells, paint.width, cut), list(leave)
        while left and _row_width(cells) > paint.width:
            name = left.pop(0)
            if name in titles:
                place = list(titles).index(name)
                titles = [each for each in titles if each != name]
                cells = [(*row[:place], *row[place + 1 :]) for row in cells]
    first, *others = cells
    return "\n".join(columns([[paint("dim", title) for title in first], *others]))


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(_width(row[place]) for row in rows) for place in range(len(rows[0]))]


def _row_width(rows: Sequence[Sequence[str]]) -> int:
    """The columns of a terminal that the rows of a table take."""
    widths = _widths(rows)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _fitting(
    rows: Sequence[Sequence[str]], width: int, cut: Sequence[str]
) -> list[tuple[str, ...]]:
    """The rows, with cells of these columns cut so that a row fits; the last one only at last."""
    places = [rows[0].index(name) for name in cut if name in rows[0]]
    widths, over = _widths(rows), _row_width(rows) - width
    for some in (places[:-1], places[-1:]):
        while over > 0 and some:
            widest = max(some, key=lambda place: widths[place])
            if widths[widest] <= _LEAST:
                break
            widths[widest] -= 1
            over -= 1
    return [tuple(map(shortened, row, widths)) for row in rows]


def shortened(cell: str, width: int) -> str:
    """A text that takes no more than these columns of a terminal; the end of a longer one is cut.

    A text that is cut has no colours.
    """
    if _width(cell) <= width:
        return cell
    left, found = width - 1, ""
    for sign in _plain(cell):
        left -= _width(sign)
        if left < 0:
            break
        found += sign
    return found + "\N{HORIZONTAL ELLIPSIS}"


def listed(facts: Iterable[tuple[str, str]]) -> str:
    """Facts with their names before them; empty facts are left out."""
    return "\n".join(columns([fact for fact in facts if fact[1]]))


def state(state: str, paint: Paint) -> str:
    """A state in its colour."""
    return paint("red" if state in ("stale", "lapsed") else "green", state)


def as_json(value: object) -> str:
    """Metadata as it was given."""
    if value is None:
        return ""
    import msgspec

    return printable(msgspec.json.encode(value, enc_hook=str).decode())


def short_json(value: object, most: int) -> str:
    """A value in a few words; one that is cut stands in quotes, since its own may be cut off."""
    text = as_json(value)
    return text if len(text) <= most else foreign(text, most)


def _width(cell: str) -> int:
    """The columns that a text takes on a terminal."""
    text = _plain(cell)
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    wide = sum(east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(category(sign) in ("Mn", "Me", "Cf") for sign in text)


def _plain(cell: str) -> str:
    """A text without its colours."""
    if "\033" not in cell:
        return cell
    import re

    return re.sub(r"\033\[\d+m", "", cell)
