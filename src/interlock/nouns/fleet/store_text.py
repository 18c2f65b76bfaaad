"""Facts about a store in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.safe_text import printable
from interlock.runtime.text import listed

if TYPE_CHECKING:
    from interlock.runtime.text import Paint, Text


def facts(outcome: dict[str, object], paint: Paint) -> str:
    """A line for each fact."""
    return listed((paint("dim", _named(name)), _fact(name, fact)) for name, fact in outcome.items())


def _named(name: str) -> str:
    """``wal_bytes`` is shown as a size, so that is its name."""
    words = ["size" if word == "bytes" else word for word in name.split("_")]
    return " ".join(words)


def _fact(name: str, fact: object) -> str:
    match fact:
        case int() if "bytes" in name.split("_"):
            return _size(fact)
        case list() | tuple():
            return ", ".join(_fact(name, part) for part in fact)
        case dict():
            return ", ".join(f"{_named(part)} {_fact(part, fact[part])}" for part in fact)
        case True | False:
            return "yes" if fact else "no"
        case _:
            return "" if fact is None else printable(str(fact))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:  # noqa: PLR2004 - that many make one of the next unit
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


TEXTS: dict[str, Text] = {
    "dict": facts,
}
"""The text of each outcome, by the name of its class."""
