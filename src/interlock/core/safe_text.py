r"""Text that is safe to print on a terminal.

Many clients write to a store, and a file can be edited: a holder's name may contain an escape
sequence, a line that looks like an answer, or a mark that reverses the line.  All text for people
goes through here, and characters that do not print are spelled out: ``\x1b``, ``\n``, ``\u202e``.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")

_SHOWN = 40
_VALUES = ("metadata", "data", "result", "error", "question", "answer")


def printable(text: str) -> str:
    """The text with every character spelled out that does not print as itself."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def printable_lines(text: str) -> str:
    """A text with its line breaks and tabs, and every other character spelled out."""
    return "\n".join(
        ["\t".join([printable(part) for part in line.split("\t")]) for line in text.split("\n")]
    )


def one_line(text: str) -> str:
    """The text of a message on one line: a line break is a space."""
    return printable(" ".join(text.split()))


def quoted(text: str) -> str:
    """A word of the caller in quotes, shortened."""
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def all_printable(value: T) -> T:
    """A copy in which every text is printable at every depth, but for values of callers.

    A struct names its texts of several lines in ``of_lines``.
    """
    return _copy(value)  # type: ignore[return-value]  # each value becomes one of its own type


def _copy(value: object) -> object:
    match value:
        case str():
            return printable(value)
        case Struct():
            # Values are shown as JSON, where a line break has its own spelling: plain after that.
            names = (name for name in value.__struct_fields__ if name not in _VALUES)
            copied = {name: _copy(getattr(value, name)) for name in names}
            for name in getattr(value, "of_lines", ()):
                copied[name] = printable_lines(getattr(value, name))
            return replace(value, **copied)
        case tuple() | list():
            return type(value)(_copy(part) for part in value)
        case dict():
            return {_copy(key): _copy(part) for key, part in value.items()}
        case _:
            return value
