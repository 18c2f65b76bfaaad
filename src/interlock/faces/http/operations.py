"""An operation as an endpoint: from bytes to a request, and from an outcome to bytes.

``POST /api/lock/acquire`` takes the fields of the request as a JSON object; an operation that only
reads is also a ``GET`` with the fields as parameters.  The answer is what the command prints with
``--json``.  Not offered is what the tools for models leave out, too: what concerns the process or
the folder of a command, files of this host, and streams.

A success has the status 200, a refusal 409, or 404 where there is no such thing; an error has the
status of its class (``errors.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from interlock import registry
from interlock.core import validate
from interlock.core.decision import Outcome
from interlock.core.safe_text import error_fields, one_line, quoted
from interlock.errors import BadInput, InterlockError, StoreTrouble, TooLarge
from interlock.faces.json_output import encoded
from interlock.faces.mcp.tools import McpTool, is_tool
from interlock.runtime.operation import Field, Operation, Request

if TYPE_CHECKING:
    from interlock.faces.mcp.jsonrpc import Json

LONGEST_WAIT = 50.0
"""Seconds that a call waits at most: clients and proxies give up after a minute."""
CHANGING = {"inbox": "ack", "swarm trust": "forgive"}
"""Operations that read unless this flag is given."""
_LEFT_OUT = {
    "agent log": frozenset({"upload"}),
    "maintain": frozenset({"guards", "for"}),
    "observe": frozenset({"noun", "after"}),
}
"""Fields for work that has no end or needs a file."""
_NOT_OFFERED = frozenset({"record export"})
"""What writes a file or a stream."""
_DEEPEST = 64


class Endpoint:
    """One operation of the API."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.path = path_of(operation.name)
        self._tool = McpTool(operation, local=False)
        left_out = _LEFT_OUT.get(operation.name, frozenset())
        self.fields = {
            name: each for name, each in self._tool.fields.items() if name not in left_out
        }

    @property
    def reads(self) -> bool:
        """Whether it is also a GET."""
        return self.operation.reads

    def changes(self, request: Request) -> bool:
        """Whether a request may change anything."""
        flag = CHANGING.get(self.operation.name)
        return not self.reads or (flag is not None and bool(getattr(request, flag)))

    def joins(self, request: Request) -> bool:
        """Whether a request may wait, and so needs a session that lives as long."""
        return self.operation.joins is not None and self.operation.joins(request)

    def may_wait(self, request: Request) -> bool:
        """Whether a call may take long, since it waits for something."""
        named = {each.name: getattr(request, each.attribute) for each in self.fields.values()}
        return self._tool.may_wait(named)

    def from_body(self, body: bytes, longest: float = LONGEST_WAIT) -> Request:
        """The request that a JSON object asks for."""
        try:
            given = msgspec.json.decode(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadInput(f"the body is no JSON ({error}); send one object") from None
        if not isinstance(given, dict):
            raise BadInput("the body is an object with the fields of the request")
        return self._request(given, longest, strict=True)

    def from_query(
        self, parameters: Iterable[tuple[str, str]], longest: float = LONGEST_WAIT
    ) -> Request:
        """The request that the parameters of a GET ask for; a list has several of one name."""
        given: Json = {}
        for name, text in parameters:
            field = self.fields.get(name)
            if field is not None and field.repeats:
                given.setdefault(name, []).append(text)
            elif name in given:
                raise BadInput(f"{quoted(name)} is given twice; give it once")
            else:
                given[name] = text if field is None else _parsed(field, text)
        return self._request(given, longest, strict=False)

    def _request(self, given: Json, longest: float, *, strict: bool) -> Request:
        known = self.fields
        if unknown := [name for name in given if name not in known]:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise BadInput(f"there is no field {quoted(unknown[0])} here; {takes}")
        if missing := [each for each in known.values() if each.required and each.name not in given]:
            raise BadInput(f"{missing[0].name} is missing: {missing[0].help}")
        for name, value in given.items():
            given[name] = _checked(known[name], value)
        self._tool.cut_wait(given, longest)
        try:
            return msgspec.convert(given, self.operation.request, strict=strict)
        except msgspec.ValidationError as error:
            raise BadInput(one_line(str(error))) from None


@cache
def endpoints() -> Mapping[str, Endpoint]:
    """All operations of the API, by their paths below ``/api/``."""
    tools = [each for each in registry.operations() if is_tool(each, local=False)]
    offered = [each for each in tools if each.name not in _NOT_OFFERED]
    return {path_of(each.name): Endpoint(each) for each in offered}


def path_of(name: str) -> str:
    """The path of an operation: ``task/next``."""
    return name.replace(" ", "/")


def answer(outcome: object) -> tuple[int, bytes]:
    """The status and the body for an outcome."""
    status = outcome.http_status if isinstance(outcome, Outcome) else 200
    return status, encoded(outcome)


def error_answer(error: Exception) -> tuple[int, bytes, dict[str, str]]:
    """The status, the body and the headers for an error: the one place that decides them."""
    if not isinstance(error, InterlockError):
        log(error)
        said = f"unexpected {type(error).__name__}; the log of the server has more"
        return 500, encoded({"error": "internal", "message": said}), {}
    later = error.http_status in (StoreTrouble.http_status, HTTPStatus.TOO_MANY_REQUESTS)
    return error.http_status, encoded(error_fields(error)), {"Retry-After": "1"} if later else {}


def log(error: BaseException) -> None:
    """Write an unforeseen error to the log of the server."""
    import traceback

    sys.stderr.write("".join(traceback.format_exception(error)))


def _parsed(field: Field, text: str) -> object:
    """The parameter of a GET as JSON would have it."""
    if field.kind == "flag":
        if text not in ("true", "false"):
            raise BadInput(f"{field.name} is true or false")
        return text == "true"
    if field.kind in ("json", "values"):
        try:
            return msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise BadInput(f"{field.name} is no JSON; write a text in quotes") from None
    if field.kind in ("int", "count"):
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal():
            raise BadInput(f"{field.name} is a whole number")
        return int(text) if len(text) <= len(str(field.most)) + 1 else field.most + 1
    return text


def _checked(field: Field, value: object) -> object:
    """The value of a field, held to what a type alone does not say."""
    if field.kind == "int" and isinstance(value, float) and value.is_integer():
        value = int(value)  # a number of JSON is whole by its value
    if field.kind == "int" and isinstance(value, int) and not isinstance(value, bool):
        if not field.least <= value <= field.most:
            raise BadInput(f"{field.name} is out of bounds; give {field.least} to {field.most}")
    elif field.kind in ("json", "values") and _depth(value) > _DEEPEST:
        raise TooLarge(f"{field.name} is nested too deeply; {_DEEPEST} levels are allowed")
    elif field.kind == "duration" and value is not None:
        text: Any = value
        validate.wait_time(text) if field.forever else validate.duration(text, field.name)
    return value


def _depth(value: object) -> int:
    """How deeply a value is nested; it need not be exact beyond the limit."""
    depth, level = 0, [value]
    while level and depth <= _DEEPEST:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        depth += 1
        level = [each for each in inner if isinstance(each, dict | list)]
    return depth
