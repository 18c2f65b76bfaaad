"""Definition files: guards and pipelines in TOML or JSON.

    include = ["common.toml"]

    [guard.calm]
    when = [{lock_free = "deploy"}, {not = {file_exists = "STOP"}}]
    on_failure = {retry = "30s", limit = 5}
    max_age = "60s"

    [pipeline.release]

    [[pipeline.release.phase]]
    name = "build"
    tasks = [{id = "build.linux"}, {id = "build.mac"}]
    post = [{tasks_complete = "build."}]

    [[pipeline.release.phase]]
    name = "merge"
    pre = ["calm"]
    hold = ["lock/merge"]

A condition is one of

    {lock_free = "deploy"}                           a leaf: its kind, and its main field
    {lock_held = {lock = "deploy", by = "ada"}}      a leaf with more fields
    {any = [...]}   {all = [...]}   {not = {...}}    a combination
    [...]                                            all of these
    "tested"                                         the condition of the guard "tested"

A file and all that it includes are one set: a guard may be named in any file of it, and is defined
once.  A guard that is named in a condition is inlined: only its condition counts, not its action;
guards that name each other in a cycle are refused.  Every error says the file and the line, the
mistake, and what the author probably meant.

``definition`` is the inverse: the lines of a guard in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_kinds import (
    KINDS,
    LeafKind,
    empty,
    fields_of,
    kind_of,
    meant,
    too_deep,
    too_many,
)
from interlock.nouns.guards.source import DefinitionSource, Path, load

if TYPE_CHECKING:
    from interlock.nouns.pipelines.definition import PipelineDefinition

_KEYS = ("include", "guard", "pipeline")
_GUARD = ("when", "on_failure", "max_age")
_GROUPS = ("all", "any")
_ACTIONS = "'block', 'warn', {retry = \"30s\", limit = 5} or {fail = \"why\"}"
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Definitions(Struct, frozen=True, kw_only=True):
    """The guards and pipelines of a set of files."""

    guards: Mapping[str, g.Guard]
    pipelines: Mapping[str, PipelineDefinition]
    files: tuple[str, ...] = ()

    @property
    def all_guards(self) -> tuple[g.Guard, ...]:
        """The guards by name, then those of phases that are none of them."""
        from interlock.nouns.pipelines.definition import guards_of

        phases = (guard for each in self.pipelines.values() for guard in guards_of(each))
        named = self.guards.values()
        return (*named, *(guard for guard in phases if guard not in named))


def read(path: str) -> Definitions:
    """The definitions in a file, and in those that it includes."""
    return define(load(path))


def define(sources: Iterable[DefinitionSource]) -> Definitions:
    """The definitions in these files, which are one set."""
    from interlock.nouns.pipelines.definition_reader import PipelineReader

    some = list(sources)
    for source in some:
        _check_keys(source)
    guards = _tables(some, "guard")
    pipelines = _tables(some, "pipeline")
    for table in guards.values():
        table.check_keys("a guard", _GUARD)
    reader = ConditionReader(guards)
    return Definitions(
        guards={name: reader.guard(name) for name in guards},
        pipelines={
            name: PipelineReader(reader, table, name).pipeline()
            for name, table in pipelines.items()
        },
        files=tuple(source.name for source in some),
    )


def _check_keys(source: DefinitionSource) -> None:
    for key in source.values:
        if key not in _KEYS:
            hint = " or ".join(f"[{kind}.{key}]" for kind in _KEYS[1:])
            known = meant(key, _KEYS)
            said = known if known.startswith("did") else f"a name stands in {hint}"
            raise source.wrong((key,), f"there is no {quoted(key)} in a definition; {said}")


def _tables(sources: Iterable[DefinitionSource], kind: str) -> dict[str, DefinitionTable]:
    """The tables of a kind in all files, by name."""
    found: dict[str, DefinitionTable] = {}
    for source in sources:
        named: Any = source.values.get(kind, {})
        if not isinstance(named, dict):
            raise source.wrong((kind,), f"{kind!r} has a table for each name, as in [{kind}.NAME]")
        for name, values in named.items():
            table = DefinitionTable(source, (kind, name), values)
            try:
                legal = validate.name(name, f"{kind} name")
            except BadInput as error:
                raise table.wrong(error) from None
            if not isinstance(values, dict):
                raise table.wrong(f"{kind} {quoted(name)} is a table, as in [{kind}.NAME]")
            if legal in found:
                other = found[legal]
                place = other.source.place(other.path)
                raise table.wrong(f"{kind} {quoted(name)} is defined in {place} already; keep one")
            found[legal] = table
    return found


# Conditions.


class DefinitionTable(Struct, frozen=True):
    """A table of a definition file, and where it is."""

    source: DefinitionSource
    path: Path
    values: dict[str, Any]

    def wrong(self, error: str | BadInput, *steps: str | int) -> BadInput:
        """The error for a value in this table."""
        return self.source.wrong((*self.path, *steps), error)

    def check_keys(self, what: str, known: tuple[str, ...]) -> None:
        """Refuse keys that are not known."""
        for key in self.values:
            if key not in known:
                raise self.wrong(f"{what} has no field {quoted(key)}; {meant(key, known)}", key)


class ReadCondition(Struct, frozen=True):
    """A condition, how deep it is, and how many leaves it has."""

    condition: c.Condition
    depth: int = 1
    leaves: int = 1


class ConditionReader:
    """Reads conditions, and inlines the guards that they name."""

    def __init__(self, guards: Mapping[str, DefinitionTable]) -> None:
        self._guards = guards
        self._read: dict[str, ReadCondition] = {}
        self._reading: list[str] = []

    def guard(self, name: str) -> g.Guard:
        """The guard of this name."""
        table = self._guards[name]
        return g.Guard(
            name=name,
            condition=self._named(name).condition,
            on_failure=read_action(table, "on_failure"),
            max_age=read_age(table, "max_age"),
        )

    def condition(self, table: DefinitionTable, field: str) -> c.Condition:
        """The condition in a field of a table."""
        path = (*table.path, field)
        return self._condition(table.source, path, table.values[field], 1).condition

    def named(self, name: str) -> g.Guard | None:
        """The guard of a name as a file has it, if there is one."""
        legal = _legal(name)
        return self.guard(legal) if legal in self._guards else None

    def unknown(self, name: str) -> str:
        """The error for a guard that does not exist."""
        if any(mark in name for mark in "={"):
            return f"a text names a guard; write a condition as {KINDS['lock_free'].example}"
        if not self._guards:
            return f"there is no guard {quoted(name)} in this file; define it here as [guard.NAME]"
        return f"there is no guard {quoted(name)}; {meant(name, self._guards)}"

    def _named(self, name: str) -> ReadCondition:
        if name not in self._read:
            table = self._guards[name]
            if "when" not in table.values:
                like = f"when = [{KINDS['lock_free'].example}]"
                raise table.wrong(f"the guard has no condition; add {like}")
            self._reading.append(name)
            path = (*table.path, "when")
            self._read[name] = self._condition(table.source, path, table.values["when"], 1)
            self._reading.pop()
        return self._read[name]

    def _condition(
        self, source: DefinitionSource, path: Path, value: object, level: int
    ) -> ReadCondition:
        if level > c.DEPTH:
            raise source.wrong(path, too_deep())
        match value:
            case str():
                return self._inlined(source, path, value, level)
            case [only]:
                return self._condition(source, (*path, 0), only, level + 1)
            case list():
                return self._group(source, path, "all", value, level)
            case dict() if len(value) == 1:
                (key,) = value
                return self._keyed(source, (*path, key), key, value[key], level)
            case dict():
                raise source.wrong(path, _not_one_key(value))
            case _:
                said = f"a condition is a table such as {KINDS['lock_free'].example}"
                raise source.wrong(path, f"{said}, not {value!r:.40}")

    def _inlined(
        self, source: DefinitionSource, path: Path, given: str, level: int
    ) -> ReadCondition:
        name = _legal(given)
        if name not in self._guards:
            raise source.wrong(path, self.unknown(given))
        if name in self._reading:
            cycle = [*self._reading[self._reading.index(name) :], name]
            said = " -> ".join(cycle)
            raise source.wrong(path, f"guards name each other in a cycle: {said}; drop one name")
        found = self._named(name)
        if found.depth + level - 1 > c.DEPTH:
            raise source.wrong(path, too_deep())
        return found

    def _keyed(
        self, source: DefinitionSource, path: Path, key: str, value: object, level: int
    ) -> ReadCondition:
        if key in _GROUPS:
            if not isinstance(value, list):
                raise source.wrong(path, f"{key!r} takes a list of conditions, not {value!r:.40}")
            return self._group(source, path, key, value, level)
        if key == "not":
            below = self._condition(source, path, value, level + 1)
            return ReadCondition(c.Not(of=below.condition), below.depth + 1, below.leaves)
        if key not in KINDS:
            known = meant(key, [*KINDS, *_GROUPS, "not"])
            raise source.wrong(path, f"there is no condition {quoted(key)}; {known}")
        return ReadCondition(_leaf(source, path, KINDS[key], value))

    def _group(
        self, source: DefinitionSource, path: Path, word: str, values: list[Any], level: int
    ) -> ReadCondition:
        if not values:
            raise source.wrong(path, empty(word))
        below = [
            self._condition(source, (*path, place), value, level + 1)
            for place, value in enumerate(values)
        ]
        leaves = sum(each.leaves for each in below)
        if leaves > c.LEAVES:
            raise source.wrong(path, too_many())
        some = tuple(each.condition for each in below)
        group = c.AllOf(of=some) if word == "all" else c.AnyOf(of=some)
        return ReadCondition(group, 1 + max(each.depth for each in below), leaves)


def _not_one_key(value: Mapping[str, object]) -> str:
    """The error for a table that is no condition, since it has no key or several."""
    kinds = [KINDS[key] for key in value if key in KINDS]
    if len(kinds) == 1 and all(key in kinds[0].fields for key in value if key not in KINDS):
        return f"the fields of {kinds[0].name} go into a table: {kinds[0].example}"
    keys = f"; this one has {', '.join(map(quoted, value))}" if value else ""
    return f"a condition is one key with its value: {KINDS['lock_free'].example}{keys}"


def _legal(name: str) -> str:
    """The name as it is kept: some characters can be written in two ways."""
    try:
        return validate.name(name, "guard name")
    except BadInput:
        return name


def _leaf(source: DefinitionSource, path: Path, kind: LeafKind, value: object) -> c.Condition:
    given = value if isinstance(value, dict) else {kind.main: value}
    values: dict[str, object] = {}
    for field, each in given.items():
        try:
            values[field] = kind.field(field, each)
        except BadInput as error:
            raise source.wrong((*path, field), error) from None
    try:
        return kind.make(values)
    except BadInput as error:
        raise source.wrong(path, error) from None


def read_action(table: DefinitionTable, field: str) -> g.FailureAction:
    """The action in a field of a table; block if there is none."""
    value = table.values.get(field, "block")
    try:
        return _action(value)
    except BadInput as error:
        raise table.wrong(error, field) from None


def _action(value: object) -> g.FailureAction:
    if value == "block":
        return g.BlockAction()
    if value == "warn":
        return g.WarnAction()
    if isinstance(value, dict) and set(value) == {"retry", "limit"}:
        return g.retry(value["retry"], value["limit"])
    if isinstance(value, dict) and set(value) == {"fail"}:
        return g.fail(value["fail"])
    raise BadInput(f"on_failure is {_ACTIONS}, not {value!r:.60}")


def read_age(table: DefinitionTable, field: str) -> float:
    """The maximum age in a field of a table."""
    try:
        return g.age(table.values.get(field, g.MAX_AGE))
    except BadInput as error:
        raise table.wrong(error, field) from None


# A guard as a file has it.


def definition(guard: g.Guard) -> tuple[str, ...]:
    """The lines of the table of a guard in TOML."""
    lines = [f"[guard.{_key_text(guard.name)}]", f"when = {_when_text(guard.condition)}"]
    if guard.on_failure != g.BlockAction():
        lines.append(f"on_failure = {_action_text(guard.on_failure)}")
    if guard.max_age != g.MAX_AGE:
        lines.append(f"max_age = {_text(_seconds(guard.max_age))}")
    return tuple(lines)


def _when_text(condition: c.Condition) -> str:
    some = condition.of if isinstance(condition, c.AllOf) else (condition,)
    return f"[{', '.join(map(_condition_text, some))}]"


def _condition_text(condition: c.Condition) -> str:
    match condition:
        case c.AllOf():
            return f"{{all = [{', '.join(map(_condition_text, condition.of))}]}}"
        case c.AnyOf():
            return f"{{any = [{', '.join(map(_condition_text, condition.of))}]}}"
        case c.Not():
            return f"{{not = {_condition_text(condition.of)}}}"
        case _:
            return _leaf_text(condition)


def _leaf_text(leaf: c.BaseCondition) -> str:
    kind, fields = kind_of(leaf), dict(fields_of(leaf))
    if list(fields) == [kind.main]:
        return f"{{{kind.name} = {_value_text(fields[kind.main])}}}"
    inner = ", ".join(f"{name} = {_field_text(name, value)}" for name, value in fields.items())
    return f"{{{kind.name} = {{{inner}}}}}"


def _field_text(name: str, value: object) -> str:
    if name == "timeout" and isinstance(value, float):
        return _text(_seconds(value))
    return _value_text(value)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    return str(value)


def _action_text(action: g.FailureAction) -> str:
    match action:
        case g.RetryAction():
            delay = _text(_seconds(action.delay))
            return f"{{retry = {delay}, limit = {action.limit}}}"
        case g.FailAction():
            return f"{{fail = {_text(action.message)}}}"
        case g.WarnAction():
            return '"warn"'
        case _:
            return '"block"'


def _seconds(seconds: float) -> str:
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def _key_text(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return f'"{"".join(_characters(text))}"'


def _characters(text: str) -> Iterable[str]:
    for sign in text:
        if sign in _ESCAPED:
            yield _ESCAPED[sign]
        elif sign.isprintable():
            yield sign
        else:
            yield f"\\U{ord(sign):08X}"
