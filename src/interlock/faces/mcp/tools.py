"""The tools, made from the declarations of operations.

A tool has the name of its operation (``task_next`` for ``task next``), its help as the description
and its fields as the arguments, with their own help.  So a tool and a command cannot differ.

The default set is what an agent needs in an ordinary day, since a host puts every tool into the
context of its model: ten tools, and of their arguments all but the few that are rarely needed
(``RARE``; they are accepted all the same).  ``--tools`` adds others.

No tool are: what only the command line does, since it runs a program or concerns its own folder;
the beginning, the renewal and the end of a session, which belong to the connection; and, unless the
server is started with ``--local``, what reads or writes files of this host, since a host may run
tools without asking its user.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import msgspec

from interlock import registry
from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.faces.mcp.jsonrpc import Json
from interlock.runtime.operation import Field, Operation, Request, fields

DEFAULT = (
    "task next", "task done", "task fail", "task add", "lock acquire", "lock release", "send",
    "inbox", "query", "reply",
)  # fmt: skip
BY_CONNECTION = frozenset({"agent join", "agent beat", "agent leave"})
"""What the connection does by itself."""
RARE = frozenset({"backoff", "backoff_most", "cached", "given", "max_hold", "token"})
"""Arguments that the default set does not list: a session needs no token, for example."""
_STREAMED = frozenset({"follow"})
"""Arguments of a stream: a tool answers once."""
_TYPES = {
    "body": "string", "count": "integer", "duration": "string", "flag": "boolean", "int": "integer",
    "name": "string", "path": "string", "text": "string", "values": "object",
}  # fmt: skip
_LIST = {"type": "array", "items": {"type": "string"}}
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_LEAST: dict[str, Any] = {
    "int": 1,
    "json": None,
    "names": ("x",),
    "things": ("lock/x",),
    "patterns": ("x",),
}


class McpTool:
    """An operation as a tool; ``brief`` leaves out the arguments that are rarely needed."""

    def __init__(self, operation: Operation, *, local: bool, brief: bool = False) -> None:
        self.operation = operation
        self.name = tool_name(operation.name)
        self._local = local
        self._brief = brief

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The arguments that it takes, by name."""
        left_out = _STREAMED if self._local else _STREAMED | _paths(self.operation)
        return {each.name: each for each in _fields(self.operation) if each.name not in left_out}

    @cached_property
    def listed(self) -> Json:
        """What ``tools/list`` says of it."""
        shown = [each for each in self.fields.values() if not self._brief or each.name not in RARE]
        properties = {each.name: _described(each) for each in shown}
        schema: Json = {"type": "object", "properties": properties}
        if required := [each.name for each in shown if each.required]:
            schema["required"] = required
        about = {
            "name": self.name,
            "description": in_argument_words(self.operation.help),
            "inputSchema": schema,
        }
        return about | ({"annotations": {"readOnlyHint": True}} if self.operation.reads else {})

    def request(self, arguments: Mapping[str, Any], longest: float) -> tuple[Request, bool]:
        """The request that these arguments ask for; whether its wait was cut to the longest."""
        known = self.fields
        if unknown := [name for name in arguments if name not in known]:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise BadInput(f"{self.name} has no argument {quoted(unknown[0])}; {takes}")
        given = {name: _value(known[name], said) for name, said in arguments.items()}
        given = {name: said for name, said in given.items() if said is not None}
        if missing := [each for each in known.values() if each.required and each.name not in given]:
            raise BadInput(f"{self.name} needs {missing[0].name}: {missing[0].help}")
        cut = self.cut_wait(given, longest)
        try:
            return msgspec.convert(given, self.operation.request, strict=False), cut
        except msgspec.ValidationError as error:
            raise BadInput(f"{self.name}: {error}") from None

    def may_wait(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments may take long, since it waits for something."""
        waits = [each for each in self.fields.values() if each.waits]
        return any(_is_wait(arguments.get(each.name, each.default)) for each in waits)

    def cut_wait(self, given: Json, longest: float) -> bool:
        """Limit how long the call waits: a host gives up on a call that takes too long."""
        for field in self.fields.values():
            if not field.waits:
                continue
            if field.name not in given and field.default is not None:
                continue
            asked = validate.wait_time(given[field.name]) if field.name in given else None
            if asked is None and not field.forever:
                continue  # it has a limit of its own
            if asked is None or asked > longest:
                given[field.name] = longest
                return True
        return False


class ToolSet:
    """The tools of one server."""

    def __init__(self, words: Iterable[str] = ("default",), *, local: bool = False) -> None:
        self._local = local
        self._wanted = _wanted(words, local=local)
        self._tools: dict[str, McpTool] = {}

    def find(self, name: str) -> McpTool | None:
        """The tool of this name, if it is in the set; imports its noun alone."""
        if name not in self._tools:
            brief = self._wanted.get(name)
            if brief is None:
                return None
            operation = registry.find(_operation_name(name))
            self._tools[name] = McpTool(operation, local=self._local, brief=brief)
        return self._tools[name]

    def has(self, name: str) -> bool:
        """Whether it is in the set."""
        return name in self._wanted

    @property
    def names(self) -> frozenset[str]:
        """The names of all tools of the set."""
        return frozenset(self._wanted)

    def listed(self) -> list[Json]:
        """What ``tools/list`` says."""
        return [tool.listed for name in self._wanted if (tool := self.find(name)) is not None]


def is_tool(operation: Operation, *, local: bool) -> bool:
    """Whether an operation can be a tool; ``local`` if it may use files of this host."""
    if not (operation.call or operation.act) or operation.name in BY_CONNECTION:
        return False
    return local or not operation.is_local(_least(operation))


def tool_name(operation: str) -> str:
    """The name of the tool for an operation."""
    return operation.replace(" ", "_")


def in_argument_words(text: str, arguments: Container[str] | None = None) -> str:
    """A text that names arguments (``next``), not the options of a shell (``--next``).

    With ``arguments`` only these; other options are those of a command that the text names.
    """

    def argument(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return name if arguments is None or name in arguments else found[0]

    return _OPTION.sub(argument, text)


def _operation_name(tool: str) -> str:
    return tool.replace("_", " ")


def _wanted(words: Iterable[str], *, local: bool) -> dict[str, bool]:
    """The names of the tools that these words mean, and whether each is brief."""
    found: dict[str, bool] = {}
    for word in words:
        if word == "default":
            found |= dict.fromkeys(map(tool_name, DEFAULT), True)
            continue
        tools = [each for each in _meant(word) if is_tool(each, local=local)]
        if not tools:
            nouns = ", ".join(registry.words())
            raise BadInput(
                f"there is no tool {quoted(word)}; give default, all,"
                f" a noun ({nouns}) or a command, such as task list"
            )
        found |= {tool_name(each.name): False for each in tools}
    return found


def _meant(word: str) -> tuple[Operation, ...]:
    if word == "all":
        return registry.operations()
    if word in registry.words():
        return registry.verbs(word)
    try:
        return (registry.find(_operation_name(word)),)
    except KeyError:
        return ()


def _least(operation: Operation) -> Request:
    """A request with what is required and nothing else."""
    given = {
        each.attribute: _LEAST.get(each.kind, "x")
        for each in fields(operation.request)
        if each.required
    }
    return operation.request(**given)


def _fields(operation: Operation) -> Iterator[Field]:
    return (each for each in fields(operation.request) if each.kind != "command")


@cache
def _paths(operation: Operation) -> frozenset[str]:
    return frozenset(each.name for each in fields(operation.request) if each.kind == "path")


def _described(field: Field) -> Json:
    kind = _LIST if field.repeats else {"type": _TYPES[field.kind]} if field.kind in _TYPES else {}
    return {**kind, "description": in_argument_words(field.help)}


def _is_wait(said: Any) -> bool:  # noqa: ANN401 - an argument that is not checked yet
    try:
        return said is None or validate.wait_time(said) > 0
    except BadInput:  # it is refused at once
        return False


def _value(field: Field, said: object) -> object:
    """An argument as its request takes it; a model may write one name where a list is due."""
    if field.repeats and isinstance(said, str):
        return [said]
    if field.kind == "int" and isinstance(said, str) and said.removeprefix("-").isdecimal():
        said = int(said) if len(said) <= len(str(field.most)) else field.most + 1
    if field.kind == "int" and isinstance(said, int) and not field.least <= said <= field.most:
        raise BadInput(f"{field.name} is out of bounds; give {field.least} to {field.most}")
    return said
