"""JSON schemas of what commands print with ``--json``: ``interlock schema lock acquire``.

They are made from the outcomes of the declared operations, with the same ``members`` by which
answers are encoded, so the two cannot differ.  The schema of a command describes one object: its
answer, a line of its stream, or an error.  Every field is required, since none is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, get_type_hints

from msgspec import Struct
from msgspec import inspect as kinds

from interlock import errors, registry
from interlock.faces.json_output import ISO, members, tag

Schema: TypeAlias = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ELSEWHERE = {
    "bench": "interlock.bench.measuring:Measured",
    "demo": "interlock.demo.results:DemoResult",
    "selftest": "interlock.testing.selftest:Raced",
}
"""Answers of packages that no other command should have to import."""
_CODES = ("failed", "internal", "interrupted")
"""Codes of errors that are not in ``errors.py``: of a demo, of a bug, of Ctrl-C."""
_PLAIN: dict[type[kinds.Type], Schema] = {
    kinds.AnyType: {},
    kinds.BoolType: {"type": "boolean"},
    kinds.FloatType: {"type": "number"},
    kinds.IntType: {"type": "integer"},
    kinds.NoneType: {"type": "null"},
    kinds.StrType: {"type": "string"},
}
_SCALAR: Schema = {"type": ["string", "number", "boolean", "null"]}
_ISO: Schema = {
    "type": ["string", "null"],
    "pattern": r"^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
}
_FACTS: Schema = {
    "type": "object",
    "required": ["engine", "items", "revision", "log_entries", "sealed_entries"],
    "additionalProperties": _SCALAR,
}
"""Facts about a store: each engine has its own beside these."""
_EXPORT = ("ends", "forgotten", "interlock", "key", "mark", "missing", "revision")
"""The first member of each line of an export, which is checked as it was written."""
_OWN: dict[str, Schema] = {
    "record export": {"type": "object", "anyOf": [{"required": [name]} for name in _EXPORT]},
    "schema": {
        "type": "object",
        "anyOf": [{"required": ["$schema", "anyOf"]}, {"required": ["schemas", "count"]}],
    },
    "store info": _FACTS,
}
"""What is no struct."""


def schema(name: str) -> Schema:
    """The schema of what a command prints with ``--json``; KeyError if there is no such command."""
    operation = registry.find(name)
    place = _ELSEWHERE.get(name)
    answers = [*operation.outcomes, *operation.lines, *([_found(place)] if place else [])]
    definitions: dict[type[Struct], Schema] = {}
    refs = [_ref(each, definitions) for each in answers if each is not dict]
    own = [_OWN[name]] if name in _OWN else []
    return {
        "$schema": DRAFT,
        "title": f"interlock {name} --json",
        "description": operation.help,
        "anyOf": [*refs, *own, {"$ref": "#/$defs/Error"}],
        "$defs": {"Error": _error(), **_named(definitions)},
    }


def answers_of(name: str, definitions: dict[type[Struct], Schema]) -> list[tuple[type, Schema]]:
    """The answers of an operation, each with a reference to its schema in ``definitions``.

    An answer that is no struct has its whole schema.
    """
    kinds = [each for each in registry.find(name).outcomes if each is not dict]
    found: list[tuple[type, Schema]] = [(each, _ref(each, definitions)) for each in kinds]
    return [*found, (dict, _OWN[name])] if name in _OWN else found


def named(definitions: dict[type[Struct], Schema]) -> dict[str, Schema]:
    """Schemas by their names, with that of errors; two of one name are a mistake."""
    return {"Error": _error(), **_named(definitions)}


def all_schemas() -> dict[str, Schema]:
    """The schemas of all commands, by their names."""
    return {name: schema(name) for name in registry.names()}


def _found(place: str) -> type:
    from importlib import import_module

    module, _, name = place.partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _error() -> Schema:
    return {
        "type": "object",
        "description": "what went wrong, and what to do",
        "properties": {
            "error": {"enum": sorted({*_codes(errors.InterlockError), *_CODES})},
            "message": {"type": "string"},
            "mistakes": {
                "type": "array",
                "items": {"type": "string"},
                "description": "those of a plan, each by itself",
            },
            "cycles": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "string"}},
                "description": "tasks that would need each other, each from one task to itself",
            },
        },
        "required": ["error", "message"],
        "additionalProperties": False,
    }


def _codes(kind: type[errors.InterlockError]) -> Iterator[str]:
    if kind.__module__ == errors.__name__:
        yield kind.code
    for child in kind.__subclasses__():
        yield from _codes(child)


def _ref(kind: type[Struct], definitions: dict[type[Struct], Schema]) -> Schema:
    """A reference to the schema of a struct, which is made when it is first referred to."""
    if kind not in definitions:
        definitions[kind] = {}  # a struct may hold others of its own kind
        definitions[kind] = _object(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _named(definitions: dict[type[Struct], Schema]) -> dict[str, Schema]:
    found = {kind.__name__: made for kind, made in definitions.items()}
    if len(found) < len(definitions):
        raise TypeError(f"two of {sorted(kind.__name__ for kind in definitions)} share a name")
    return dict(sorted(found.items()))


def _object(kind: type[Struct], definitions: dict[type[Struct], Schema]) -> Schema:
    info = kinds.type_info(kind)
    assert isinstance(info, kinds.StructType)  # noqa: S101 - for type checkers
    types = {field.name: field.type for field in info.fields}
    tagged = tag(kind)
    properties: dict[str, Schema] = {} if tagged is None else {tagged[0]: {"const": tagged[1]}}
    for member in members(kind):
        if member.attribute in types:
            properties[member.name] = _type(types[member.attribute], definitions)
        else:
            computed = get_type_hints(getattr(kind, member.attribute).fget)["return"]
            properties[member.name] = _type(kinds.type_info(computed), definitions)
        if member.sort == "moment":
            several = properties[member.name].get("type") == "array"
            properties[member.name + ISO] = {"type": "array", "items": _ISO} if several else _ISO
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").partition("\n\n")[0].split()),
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _type(kind: kinds.Type, definitions: dict[type[Struct], Schema]) -> Schema:
    match kind:
        case kinds.StructType(cls=cls):
            return _ref(cls, definitions)
        case kinds.UnionType(types=types):
            return _either([_type(each, definitions) for each in types])
        case kinds.LiteralType(values=values):
            return {"enum": list(values)}
        case kinds.VarTupleType(item_type=item):
            return {"type": "array", "items": _type(item, definitions)}
        case kinds.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _type(value, definitions)}
        case _:
            return dict(_PLAIN[type(kind)])


def _either(schemas: list[Schema]) -> Schema:
    """One of several: plain types in one word, all others as alternatives."""
    plain = [each["type"] for each in schemas if set(each) == {"type"}]
    others = [each for each in schemas if set(each) != {"type"}]
    if not others:
        return {"type": plain}
    types: list[Schema] = [{"type": each} for each in plain]
    return {"anyOf": [*others, *types]}
