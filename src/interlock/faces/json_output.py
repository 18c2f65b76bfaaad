"""Answers as JSON: complete, even, and harmless to a terminal.

Complete: every field is there, also where it has its default.  Even: a moment is given in seconds
and, beside it, as ISO 8601 in UTC (``since`` and ``since_iso``); a duration is in seconds, to the
millisecond; a list has its name and a ``count``.  Harmless: characters that do not print are
escaped, so that a name in a store cannot turn a line round or hide one (see ``core/safe_text.py``).

What is stored is not encoded here: this is for readers of answers alone.  ``schema.py`` says the
same as JSON schemas, from the same ``members``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

ISO: Final = "_iso"
"""What the name of a moment ends with where it is written as ISO 8601."""

MOMENTS: Final = frozenset(
    (
        "at", "deadline", "failed_run", "heard", "last_heartbeat", "last_run", "loser_timestamp",
        "next_run", "next_runs", "not_before", "resolved", "since", "started", "until",
        "winner_timestamp",
    )
)  # fmt: skip
"""Fields with seconds since 1970; so are all whose names end with ``_at``."""

DURATIONS: Final = frozenset(
    (
        "age", "begins_in", "deadline_in", "every", "expires_in", "held", "max_age", "max_hold",
        "next_probe_in", "pace", "rests", "retry_in", "seconds", "timeout", "waited", "window",
    )
)  # fmt: skip
"""Fields with a number of seconds."""

_DIGITS: Final = 3
_BEYOND_BMP: Final = 0xFFFF

Sort: TypeAlias = Literal["moment", "duration", "opaque", "plain"]
"""The kind of a field; a value from a user is opaque, and is not changed."""


class Member(NamedTuple):
    """One field of an answer: its name in Python, its name in JSON, and what it holds."""

    attribute: str
    name: str
    sort: Sort


_members: dict[type[Struct], tuple[Member, ...]] = {}


def encoded(answer: object) -> bytes:
    """An answer as one line of JSON, without its end."""
    return spelled(msgspec.json.encode(complete(answer)).decode()).encode()


def spelled(text: str) -> str:
    """JSON without line breaks, with an escape for each character that does not print."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def complete(value: object) -> object:
    """What is to be encoded for a value: all of it."""
    match value:
        case Struct():
            return _object(value)
        case tuple() | list():
            return [complete(part) for part in value]
        case Mapping():
            return {key: complete(part) for key, part in value.items()}
        case _:
            return value


def members(kind: type[Struct]) -> tuple[Member, ...]:
    """The fields of an answer in their order; then what its class computes for JSON."""
    if (found := _members.get(kind)) is None:
        found = _members[kind] = _find_members(kind)
    return found


def iso(moment: float | None) -> str | None:
    """A moment as ISO 8601 in UTC, to the millisecond; None if it is unknown."""
    if not moment:
        return None
    milliseconds = round(moment * 1000)
    try:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    except (OverflowError, ValueError, OSError):  # no such moment: a store can be edited
        return None
    return f"{whole}.{milliseconds % 1000:03d}Z"


def tag(kind: type[Struct]) -> tuple[str, str] | None:
    """The name and the value of the field that says which answer it is, if it has one."""
    config = kind.__struct_config__
    return None if config.tag is None else (str(config.tag_field), str(config.tag))


def _object(value: Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (tagged := tag(type(value))) is not None:
        found[tagged[0]] = tagged[1]
    for attribute, name, sort in members(type(value)):
        part = getattr(value, attribute)
        if sort == "moment":
            found[name] = part
            found[name + ISO] = [*map(iso, part)] if isinstance(part, tuple) else iso(part)
        elif sort == "duration":
            found[name] = None if part is None else round(part, _DIGITS)
        else:
            found[name] = part if sort == "opaque" else complete(part)
    return found


def _find_members(kind: type[Struct]) -> tuple[Member, ...]:
    annotations: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    own = [Member(each, name, _sort(name, str(annotations[each]))) for each, name in names]
    also: tuple[str, ...] = getattr(kind, "also_in_json", ())
    return (*own, *(Member(name, name, "opaque") for name in also))


def _sort(name: str, annotation: str) -> Sort:
    if "float" in annotation:
        if name in MOMENTS or name.endswith("_at"):
            return "moment"
        return "duration" if name in DURATIONS else "plain"
    return "opaque" if annotation in ("Any", "typing.Any") else "plain"


def _spelled(sign: str) -> str:
    """A character as it is, or as its escape in JSON if it does not print."""
    if sign.isprintable():
        return sign
    code = ord(sign)
    if code <= _BEYOND_BMP:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
