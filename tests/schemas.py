"""What commands print as JSON, held to the schemas that ``interlock schema`` prints.

The words of JSON Schema that our schemas use, and no others: an unknown one is a mistake here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from interlock import registry
from interlock.faces.cli.parse import split
from interlock.faces.schema import Schema, schema
from interlock.runtime.operation import fields

_NOTES = {"$schema", "$defs", "title", "description"}
_TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def check_output(words: Sequence[str | bytes], out: str) -> None:
    """Each line that a command printed with ``--json`` is as the schema of the command says."""
    name = _printed_as_json(words)
    if name is None:
        return
    for line in out.splitlines():
        check(name, json.loads(line))


def check(name: str, answer: object) -> None:
    """An answer is as the schema of the command says."""
    found = _schema(name)
    wrong = list(errors(answer, found, found))
    assert not wrong, f"interlock {name} --json: {wrong[0]}: {answer}"


def errors(value: Any, wanted: Schema, whole: Schema, place: str = "$") -> Iterator[str]:
    """What is wrong with a value, if anything."""
    for word, argument in wanted.items():
        if word not in _NOTES:
            yield from _CHECKS[word](value, argument, wanted, whole, place)


def _ref(value: Any, ref: str, _: Schema, whole: Schema, place: str) -> Iterator[str]:
    yield from errors(value, whole["$defs"][ref.removeprefix("#/$defs/")], whole, place)


def _any_of(
    value: Any,
    some: Sequence[Schema],
    _: Schema,
    whole: Schema,
    place: str,
) -> Iterator[str]:
    tried = [list(errors(value, each, whole, place)) for each in some]
    if all(tried):
        tag = value.get("outcome") if isinstance(value, dict) else None
        fitting = [wrong for wrong in tried if tag and f"{place}.outcome" not in wrong[0]]
        yield "; or ".join(wrong[0] for wrong in fitting or tried)


def _type(value: Any, names: str | list[str], _: Schema, __: Schema, place: str) -> Iterator[str]:
    for name in [names] if isinstance(names, str) else names:
        if isinstance(value, _TYPES[name]) and (name == "boolean") == isinstance(value, bool):
            return
    yield f"{place} is {value!r}, not {names}"


def _const(value: Any, wanted: object, _: Schema, __: Schema, place: str) -> Iterator[str]:
    if value != wanted:
        yield f"{place} is {value!r}, not {wanted!r}"


def _enum(value: Any, some: Sequence[object], _: Schema, __: Schema, place: str) -> Iterator[str]:
    if value not in some:
        yield f"{place} is {value!r}, none of {some}"


def _pattern(value: Any, pattern: str, _: Schema, __: Schema, place: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(pattern, value):
        yield f"{place} is {value!r}, not {pattern}"


def _required(value: Any, names: Sequence[str], _: Schema, __: Schema, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{place}.{name} is missing" for name in names if name not in value)


def _properties(
    value: Any,
    known: dict[str, Schema],
    _: Schema,
    whole: Schema,
    place: str,
) -> Iterator[str]:
    for name in [name for name in known if isinstance(value, dict) and name in value]:
        yield from errors(value[name], known[name], whole, f"{place}.{name}")


def _additional(
    value: Any,
    others: bool | Schema,
    wanted: Schema,
    whole: Schema,
    place: str,
) -> Iterator[str]:
    known = wanted.get("properties", {})
    for name in [name for name in value if name not in known] if isinstance(value, dict) else ():
        if isinstance(others, dict):
            yield from errors(value[name], others, whole, f"{place}.{name}")
        elif not others:
            yield f"{place}.{name} is not in the schema"


def _items(value: Any, each: Schema, _: Schema, whole: Schema, place: str) -> Iterator[str]:
    for number, part in enumerate(value if isinstance(value, list) else ()):
        yield from errors(part, each, whole, f"{place}[{number}]")


_CHECKS: dict[str, Any] = {
    "$ref": _ref,
    "additionalProperties": _additional,
    "anyOf": _any_of,
    "const": _const,
    "enum": _enum,
    "items": _items,
    "pattern": _pattern,
    "properties": _properties,
    "required": _required,
    "type": _type,
}


@cache
def _schema(name: str) -> Schema:
    return schema(name)


def _printed_as_json(words: Sequence[str | bytes]) -> str | None:
    """The name of the command, if all that it prints is JSON of ours."""
    text = [word if isinstance(word, str) else word.decode("utf-8", "replace") for word in words]
    ours = text[: text.index("--")] if "--" in text else text
    if "--json" not in ours or {"--help", "-h", "--checker"}.intersection(ours):
        return None
    name, _ = split(text)
    try:
        operation = registry.find(name)
    except KeyError:  # an error: of which command does not matter
        return "lock list"
    runs = any(field.kind == "command" for field in fields(operation.request))
    return None if runs else name
