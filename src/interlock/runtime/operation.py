"""The declaration of an operation: everything that a face needs to know to offer it.

A request is a keyword-only struct whose fields carry their own description, so that a command
line, a JSON schema and a reference page all come from the same lines:

    class Show(Request):
        lock: Annotated[str, option("name", "the lock", positional=True)]

Kinds: name, names (``rust,gpu``; may be given several times), text, int, duration (``30s`` or
seconds), json, flag, count, things (``lock/merge``, ``sem/builds=2``; may be given several times),
body (text of any length, ``-`` for stdin), values (``FIELD=JSON``; may be given several times),
grants (``lock/deploy=TOKEN``; may be given several times), path (a file or folder of the host that
carries the request out, so no request from another host may have it) and command (the words of a
program to run, to the end of the line).

A list of names may stand before other words (``send WHO... BODY``): the last words are those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from msgspec import NODEFAULT, UNSET, Meta, Struct
from msgspec.structs import fields as struct_fields

from interlock.core import validate
from interlock.errors import NotAllowed

if TYPE_CHECKING:
    from interlock.steps import Op

    Kind: TypeAlias = Literal[
        "name", "names", "text", "int", "duration", "json", "flag", "count", "things", "command",
        "body", "values", "grants", "path", "patterns",
    ]  # fmt: skip
    Need: TypeAlias = Literal["nothing", "store", "agent", "session"]
    """What a command needs: each one includes those before it; a ``session`` knows its agent."""

Duration: TypeAlias = str | float

GREATEST = 2**53
"""The largest integer that every reader of JSON represents exactly."""
MOST_BODY = 2**20
"""Bytes of a request over a network, unless its operation takes more."""


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The arguments of an operation; each field describes itself."""


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
    waits: bool = False

    @property
    def option(self) -> str:
        """Its name on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times, and so has several values."""
        return self.kind in ("names", "things", "grants", "patterns")

    @property
    def takes_value(self) -> bool:
        """Whether a value follows it on a command line."""
        return self.kind not in ("flag", "count")


class Operation(Struct, frozen=True, kw_only=True):
    """One operation, with the same name in every face.

    needs      what it needs: nothing, a store, an agent's name, a session
    call       the call that carries it out (``locks.acquire``): positional fields are its first
               arguments, those of ``spread`` one by one, and all others go by their names
    then       continues with the outcome of that call, for example to add hints
    act        carries it out where the request is not just that call; without either it belongs to
               the command line alone, since it concerns this process or folder
    grants     whether it may return a grant, which is released if the caller is interrupted
    joins      whether a request needs a session that lives while it runs, as a queued wait does
    lines      the types of a stream's lines, as JSON
    local      whether a request looks at the host that carries it out, or runs a program there; so
               does each one that gives a path.  ``carry_out`` refuses it from another host
    reads      whether it changes nothing
    takes      whether it only takes, changes or ends what is there: where no store was made it is
               an error, as for an operation that reads
    creates    whether the command line makes the file that ``--store`` names, if there is none
    pages      whether it returns a page, and says how to get the next
    most_body  the bytes of a request over a network; more if one value may have a megabyte, since
               JSON makes it longer
    in_shell   the function that the command line calls instead of printing the outcome: it runs a
               program or follows a stream
    """

    name: str
    help: str
    request: type[Request]
    outcomes: tuple[type, ...]
    needs: Need
    call: str = ""
    spread: str = ""
    then: Callable[[Any], Op[Any]] | None = None
    act: Callable[[Any, Any], Op[Any]] | None = None
    grants: bool = False
    joins: Callable[[Any], bool] | None = None
    local: Callable[[Any], bool] | None = None
    lines: tuple[type, ...] = ()
    reads: bool = False
    takes: bool = False
    creates: bool = False
    pages: bool = False
    most_body: int = MOST_BODY
    in_shell: str = ""
    aliases: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    def waits(self, request: Request) -> bool:
        """Whether a request waits for what is not there yet, or follows what comes."""
        if self.joins is not None and self.joins(request):
            return True
        if getattr(request, "loop", False):
            return True
        if getattr(request, "counts", False):
            return False
        follows: bool | None = getattr(request, "follow", None)
        if follows is not None:
            return follows
        lasting = [field for field in fields(self.request) if field.waits]
        return bool(self.lines) or any(getattr(request, each.attribute) != 0 for each in lasting)

    def is_local(self, request: Request) -> bool:
        """Whether a request is about the files or programs of the host that carries it out."""
        paths = [field for field in fields(self.request) if field.kind == "path"]
        if any(getattr(request, field.attribute) != field.default for field in paths):
            return True
        return self.local is not None and self.local(request)

    def carry_out(
        self,
        fleet: Any,  # noqa: ANN401 - ``FleetCalls``
        request: Request,
        *,
        remote: bool = False,
    ) -> Op[Any]:
        """The operation that a request asks for, for either driver.

        The grants that it relies on (``given``) hold for every call that it makes.  ``remote`` says
        that the request comes from another host: ``NotAllowed`` if it is about this one.
        """
        if remote and self.is_local(request):
            raise NotAllowed(
                f"this '{self.name}' would use files or programs of the host that carries it out;"
                f" run 'interlock {self.name}' on that host"
            )
        if given := getattr(request, "given", ()):
            fleet = fleet.relying(fleet.context, given)
        if self.act is not None:
            return self.act(fleet, request)
        if not self.call:
            raise TypeError(
                f"'{self.name}' concerns this process or folder, so that only the command line"
                f" carries it out: run 'interlock {self.name}'"
            )
        noun, _, method = self.call.rpartition(".")
        named = {each.attribute: getattr(request, each.attribute) for each in fields(self.request)}
        named.pop("given", None)
        first = [named.pop(each.attribute) for each in fields(self.request) if each.positional]
        if self.spread:
            first = list(first[0])
        op: Op[Any] = getattr(getattr(fleet, noun) if noun else fleet, method)(*first, **named)
        return op if self.then is None else _continued(op, self.then)


def _continued(op: Op[Any], then: Callable[[Any], Op[Any]]) -> Op[Any]:
    return (yield from then((yield from op)))


def waits(request: Any) -> bool:  # noqa: ANN401 - any request with a wait
    """Whether a request may have to wait, and so needs a session that lives while it waits."""
    return validate.wait_time(request.wait) > 0


def option(
    kind: Kind,
    help: str,  # noqa: A002
    *,
    positional: bool = False,
    least: int = 0,
    most: int = GREATEST,
    forever: bool = False,
    waits: bool = False,
) -> Meta:
    """What a field of a request means, and how a face takes it.

    ``least`` and ``most`` are for numbers; ``forever`` is for durations that need not end,
    ``waits`` for those that the call may last: a face with a limit cuts them to it.
    """
    bounds = {"least": least, "most": most, "forever": forever, "waits": waits or forever}
    return Meta(description=help, extra={"kind": kind, "positional": positional, **bounds})


Given: TypeAlias = Annotated[
    tuple[str, ...],
    option("grants", "only while this grant lives; give it for each, by its token"),
]


@cache
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
                extra["waits"],
            )
        )
    return tuple(found)
