"""The shape of an operation: what a face needs to know to offer it.

A request is a keyword-only struct whose fields carry their own description, so that a command
line, a JSON schema and a reference page all come from the same lines:

    class Show(Request):
        lock: Annotated[str, option("name", "the lock", positional=True)]

Kinds: name, names (``rust,gpu``; may be given several times), text, int, duration (``30s`` or
seconds), json, flag, count, things (``lock/merge``, ``sem/builds=2``; may be given several times),
body (text of any length, ``-`` for stdin), values (``FIELD=JSON``; may be given several times),
grants (``lock/deploy=TOKEN``; may be given several times) and command (the words of a program to
run, to the end of the line).

A list of names may stand before other words (``send WHO... BODY``): the last words are those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from msgspec import NODEFAULT, UNSET, Meta, Struct
from msgspec.structs import fields as struct_fields

if TYPE_CHECKING:
    from interlock.client import Fleet

Kind: TypeAlias = Literal[
    "name", "names", "text", "int", "duration", "json", "flag", "count", "things", "command",
    "body", "values", "grants",
]  # fmt: skip
Need: TypeAlias = Literal["nothing", "store", "agent", "session"]
"""What must be there: each one includes those before it, but for ``session`` an agent is known."""

Duration: TypeAlias = str | float

GREATEST = 2**53
"""The largest number that every reader of JSON can tell from its neighbours."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an operation is asked for; each field says what it means."""


class Field(Struct, frozen=True):
    """One field of a request, as a face sees it; ``attribute`` is its name in Python."""

    name: str
    attribute: str
    kind: Kind
    help: str
    positional: bool
    required: bool
    default: Any
    least: int = 0
    most: int = GREATEST
    forever: bool = False

    @property
    def option(self) -> str:
        """Its name on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times, and so has several values."""
        return self.kind in ("names", "things", "grants")

    @property
    def takes_value(self) -> bool:
        """Whether a value follows it on a command line."""
        return self.kind not in ("flag", "count")


class Operation(Struct, frozen=True, kw_only=True):
    """One thing that can be asked for, in every face under the same words.

    ``act`` carries it out; without one it belongs to the command line alone, since it is about
    this very process or folder.  ``joins`` says whether a request needs a session that lives while
    it runs, as a place in a queue does.  ``lines`` are what a stream has on each line, as JSON.
    """

    name: str
    help: str
    request: type[Request]
    outcomes: tuple[type, ...]
    lines: tuple[type, ...] = ()
    needs: Need
    act: Callable[[Fleet, Any], Any] | None = None
    joins: Callable[[Any], bool] | None = None
    examples: tuple[str, ...] = ()


def option(
    kind: Kind,
    help: str,  # noqa: A002
    *,
    positional: bool = False,
    least: int = 0,
    most: int = GREATEST,
    forever: bool = False,
) -> Meta:
    """What a field of a request means, and how a face takes it.

    ``least`` and ``most`` are for numbers; ``forever`` is for durations that need not end.
    """
    bounds = {"least": least, "most": most, "forever": forever}
    return Meta(description=help, extra={"kind": kind, "positional": positional, **bounds})


Given: TypeAlias = Annotated[
    tuple[str, ...],
    option("grants", "only while this grant lives; give it for each, by its token"),
]


def fields(request: type[Struct]) -> tuple[Field, ...]:
    """The fields of a request, in their order."""
    found = []
    for info in struct_fields(request):
        meta = next(part for part in get_args(info.type) if isinstance(part, Meta))
        extra = meta.extra or {}
        default = None if info.default in (NODEFAULT, UNSET) else info.default
        found.append(
            Field(
                info.encode_name,
                info.name,
                extra["kind"],
                meta.description or "",
                extra["positional"],
                info.required,
                default,
                extra["least"],
                extra["most"],
                extra["forever"],
            )
        )
    return tuple(found)
