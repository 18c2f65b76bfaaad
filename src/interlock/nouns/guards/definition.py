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

A file and all that it includes are one set: a guard may be named in any file of it, and is defined
once.  Every error says the file and the line, the mistake, and what the author probably meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.nouns.guards.condition_reader import ConditionReader, DefinitionTable
from interlock.nouns.guards.guard import Guard
from interlock.nouns.guards.leaf_fields import meant
from interlock.nouns.guards.source import DefinitionSource
from interlock.nouns.pipelines.definition import PipelineDefinition, guards_of
from interlock.nouns.pipelines.definition_reader import PipelineReader

_KEYS = ("include", "guard", "pipeline")
_GUARD = ("when", "on_failure", "max_age")


class Definitions(Struct, frozen=True, kw_only=True):
    """The guards and pipelines of a set of files."""

    guards: Mapping[str, Guard]
    pipelines: Mapping[str, PipelineDefinition]
    files: tuple[str, ...] = ()

    @property
    def all_guards(self) -> tuple[Guard, ...]:
        """The guards by name, then those of phases that are none of them."""
        phases = (guard for each in self.pipelines.values() for guard in guards_of(each))
        named = self.guards.values()
        return (*named, *(guard for guard in phases if guard not in named))


def read(path: str) -> Definitions:
    """The definitions in a file, and in those that it includes."""
    from interlock.nouns.guards.definition_files import load

    return define(load(path))


def define(sources: Iterable[DefinitionSource]) -> Definitions:
    """The definitions in these files, which are one set."""
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
