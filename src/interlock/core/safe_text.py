r"""Text that is safe to print on a terminal.

Many clients write to a store, and a file can be edited: a holder's name may contain an escape
sequence, a line that looks like an answer, or a mark that reverses the line.  All text for people
goes through here, and characters that do not print are spelled out: ``\x1b``, ``\n``, ``\u202e``.

A reader, also a model, has to see which words are Interlock's.  A text of another agent stands

    in a sentence        as ``foreign`` writes it: a plain name as it is, other text in quotes
    on lines of its own  behind a bar (``bars``): reasons, subjects, bodies
    in a command         as ``validate.quote`` writes it: one word of a shell

An outcome is copied before its text is made: each text in the copy is a ``Foreign``, which an
f-string writes as ``foreign`` does.  So no noun has to quote the fields of its outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import SupportsIndex, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.validate import NAME_LIMIT, ONE_WORD
from interlock.errors import BadInput, InterlockError

T = TypeVar("T")

_SHOWN = 40
SENTENCES = frozenset({
    "acts", "because", "clear", "detail", "finding", "meanwhile", "problem", "remedy", "trouble",
    "warning",
})  # fmt: skip
"""Fields that Interlock wrote, in each struct; it quotes the names in them."""
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


def error_fields(error: InterlockError) -> dict[str, object]:
    """An error as JSON: the mistakes of a plan and cycles of needs have fields of their own."""
    fields: dict[str, object] = {"error": error.code, "message": one_line(str(error))}
    if isinstance(error, BadInput) and error.mistakes:
        fields["mistakes"] = [one_line(each) for each in error.mistakes]
    if isinstance(error, BadInput) and error.cycles:
        fields["cycles"] = error.cycles
    return fields


def foreign(text: str, most: int = NAME_LIMIT) -> str:
    """A name or a few words of another agent, for a sentence of Interlock.

    A plain name stays as it is.  Other text is shortened and put in quotes; quotes inside it, and
    characters that do not print or can be taken for others, are spelled out.
    """
    if ONE_WORD.issuperset(text) and 0 < len(text) <= most:
        return text
    cut = text if len(text) <= most else text[:most] + "..."
    if not (cut.isascii() and cut.isprintable()):
        from interlock.core.lookalikes import spelled_out  # few texts need it

        cut = spelled_out(cut)
    return "'" + cut.replace("'", r"\x27") + "'"


def foreign_names(texts: Iterable[str], by: str = ", ") -> str:
    """Names of other agents, for a sentence."""
    return by.join([foreign(each) for each in texts])


def bars(
    text: str, *, lines: int | None = None, characters: int | None = None, bar: str = "|"
) -> list[str]:
    """A text of another agent on lines of its own, each behind a bar; a longer text is cut.

    No line can imitate a line of Interlock: a newline alone begins one, and each has its bar.
    """
    whole = text.rstrip("\n")
    split = whole[:characters].split("\n")
    shown = [f"  {bar} {printable(each)}" for each in split[:lines]]
    if len(whole) > len("\n".join(split[:lines])):
        shown.append(f"    ... (cut; all {len(text)} characters: --json)")
    return shown


class Foreign(str):
    """A text of another agent, which an f-string writes as ``foreign`` does."""

    __slots__ = ()

    def __getitem__(self, key: SupportsIndex | slice) -> Foreign:
        return Foreign(super().__getitem__(key))

    def __format__(self, spec: str) -> str:
        return format(foreign(str(self)) if self else "", spec)


def quoted(text: str) -> str:
    """A word of the caller in quotes, shortened."""
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def all_foreign(value: T) -> T:
    """A copy in which every text is foreign and printable, but for values of callers.

    A struct names its texts of several lines in ``of_lines``, and in ``own_words`` the sentences
    that Interlock made.
    """
    return _copy(value, Foreign)  # type: ignore[return-value]  # each value becomes one of its type


def _copy(value: object, text: Callable[[str], str]) -> object:
    match value:
        case str():
            return text(printable(value))
        case Struct():
            # Values are shown as JSON, where a line break has its own spelling: plain after that.
            own = getattr(value, "own_words", ())
            names = (name for name in value.__struct_fields__ if name not in _VALUES)
            copied = {
                name: _copy(getattr(value, name), str if name in own or name in SENTENCES else text)
                for name in names
            }
            for name in getattr(value, "of_lines", ()):
                copied[name] = printable_lines(getattr(value, name))
            return replace(value, **copied)
        case tuple() | list():
            return type(value)(_copy(part, text) for part in value)
        case dict():
            return {_copy(key, text): _copy(part, text) for key, part in value.items()}
        case _:
            return value
