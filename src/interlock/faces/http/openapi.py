"""The description of the API (OpenAPI 3.1), made from the declarations of operations.

A request has the fields of its declaration, with the bounds that ``core/validate.py`` applies, as
far as a schema can say them: it never refuses what the server accepts.  An answer is described as
``interlock schema`` describes it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as kinds

from interlock.core import validate
from interlock.core.decision import Outcome
from interlock.faces import schema as schemas
from interlock.faces.http.access import CODES
from interlock.faces.http.examples import examples
from interlock.faces.http.operations import CHANGING, Endpoint, endpoints
from interlock.faces.http.own_paths import NAME, own_paths, response, session_header
from interlock.faces.http.roles import ADMIN_FIELDS, OWN, needed
from interlock.faces.mcp.tools import in_argument_words
from interlock.faces.schema import Schema
from interlock.runtime.operation import Field, Operation
from interlock.version import __version__

_DURATION: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": validate.LONGEST},
        {"type": "string", "pattern": rf"^\s*(?:{validate.DURATION_PATTERN})\s*$"},
    ]
}
_FOREVER: Schema = {"anyOf": [*_DURATION["anyOf"], {"const": "forever"}]}
_KINDS: dict[str, Schema] = {
    "body": {"type": "string"},
    "count": {"type": "integer", "minimum": 0},
    "duration": _DURATION,
    "flag": {"type": "boolean"},
    "grants": {"type": "string", "minLength": 1},
    "json": {},
    "name": NAME,
    "names": NAME,
    "text": {"type": "string"},
    "things": {"type": "string", "minLength": 1},
    "values": {"type": "object"},
}


@cache
def description() -> bytes:
    """The whole description, as JSON."""
    return msgspec.json.encode(openapi())


def openapi() -> dict[str, Any]:
    """The whole description."""
    definitions: dict[type[msgspec.Struct], Schema] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints().values():
        paths[f"/api/{endpoint.path}"] = _path(endpoint, definitions)
    paths |= own_paths()
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Interlock",
            "version": __version__,
            "summary": "Tasks, locks, semaphores and messages for fleets of agents.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**schemas.named(definitions), "Error": _error()},
        },
    }
    placed: dict[str, Any] = _placed(whole)
    return placed


def request_schema(endpoint: Endpoint) -> Schema:
    """The body of a request."""
    types = {each.encode_name: each.type for each in _fields(endpoint)}
    properties = {name: _field(each, types[name]) for name, each in endpoint.fields.items()}
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required := [each.name for each in endpoint.fields.values() if each.required]:
        found["required"] = required
    return found


def _path(endpoint: Endpoint, definitions: dict[type[msgspec.Struct], Schema]) -> dict[str, Any]:
    operation = endpoint.operation
    answers = schemas.answers_of(operation.name, definitions)
    about = {
        "summary": in_argument_words(operation.help),
        "tags": [operation.name.partition(" ")[0]],
        "responses": _responses(answers),
    }
    session = session_header(required=operation.needs == "session")
    shown = examples(endpoint)
    named = {str(number): {"value": each} for number, each in enumerate(shown, 1)}
    body = {"application/json": {"schema": request_schema(endpoint), "examples": named}}
    id_ = operation.name.replace(" ", "_")
    whole: dict[str, Any] = {
        "post": {
            "operationId": id_,
            **about,
            "description": _role(operation),
            "parameters": [session],
            "requestBody": {"required": bool(_required(endpoint)), "content": body},
        }
    }
    if endpoint.reads:
        whole["get"] = {
            "operationId": f"{id_}_get",
            **about,
            "parameters": [*_parameters(endpoint, shown[0]), session],
        }
    return whole


def _role(operation: Operation) -> str:
    """Which role an operation needs, in words."""
    name = operation.name
    said = f"Needs the role {needed(name, changes=not operation.reads)}"
    if field := CHANGING.get(name) or ADMIN_FIELDS.get(name):
        said += f", and with {field} the role {needed(name, changes=True, given=(field,))}"
    if name in OWN:
        said += "; for what the caller's own agent began, act"
    return f"{said}."


def _parameters(endpoint: Endpoint, shown: dict[str, Any]) -> list[Schema]:
    properties = request_schema(endpoint)["properties"]
    found = []
    for name, field in endpoint.fields.items():
        described: Schema = {"name": name, "in": "query", "required": field.required}
        shape = {key: each for key, each in properties[name].items() if key != "description"}
        if field.kind in ("json", "values"):
            described["content"] = {"application/json": {"schema": shape}}
        else:
            described["schema"] = _without_null(shape)
            if name in shown and name != CHANGING.get(endpoint.operation.name):
                described["example"] = shown[name]
        found.append({**described, "description": properties[name]["description"]})
    return found


def _required(endpoint: Endpoint) -> list[str]:
    return [each.name for each in endpoint.fields.values() if each.required]


def _fields(endpoint: Endpoint) -> tuple[kinds.Field, ...]:
    info = kinds.type_info(endpoint.operation.request)
    assert isinstance(info, kinds.StructType)  # noqa: S101 - for type checkers
    return info.fields


def _field(field: Field, kind: kinds.Type) -> Schema:
    inside = kind.type if isinstance(kind, kinds.Metadata) else kind
    types = inside.types if isinstance(inside, kinds.UnionType) else (inside,)
    shape = _shape(field, types)
    if field.repeats:
        shape = {"type": "array", "items": shape}
    if any(isinstance(each, kinds.NoneType) for each in types):
        shape = {"anyOf": [shape, {"type": "null"}]}
    return {**shape, "description": in_argument_words(field.help)}


def _shape(field: Field, types: tuple[kinds.Type, ...]) -> Schema:
    for each in types:
        if isinstance(each, kinds.LiteralType):
            return {"enum": list(each.values)}
    if field.kind == "int":
        return {"type": "integer", "minimum": field.least, "maximum": field.most}
    if field.kind == "duration" and field.forever:
        return dict(_FOREVER)
    if field.kind == "name" and field.default == "":
        return {"type": "string", "maxLength": validate.NAME_LIMIT}
    return dict(_KINDS.get(field.kind, NAME))


def _without_null(shape: Schema) -> Schema:
    """What a parameter in an address can be."""
    some = [each for each in shape.get("anyOf", ()) if each != {"type": "null"}]
    if not some:
        return shape
    return some[0] if len(some) == 1 else {**shape, "anyOf": some}


def _responses(answers: list[tuple[type, Schema]]) -> dict[str, Any]:
    by_status: dict[int, list[Schema]] = {}
    for kind, shape in answers:
        status = kind.http_status if issubclass(kind, Outcome) else 200
        by_status.setdefault(status, []).append(shape)
    error = {"$ref": "#/$defs/Error"}
    found = {}
    for status in sorted({*by_status, 400, 403, 404, 409}):
        shapes = by_status.get(status, [])
        if status != 200:  # noqa: PLR2004
            shapes = [*shapes, error]
        if not shapes:
            continue
        said = "done" if status == 200 else "not done"  # noqa: PLR2004
        shape = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        found[str(status)] = response(said, shape)
    return {**found, "default": response("an error", error)}


def _error() -> Schema:
    """An error of the API: one of the tree, or one of the server itself."""
    known = schemas.named({})["Error"]
    codes = sorted({*known["properties"]["error"]["enum"], *CODES})
    return {**known, "properties": {**known["properties"], "error": {"enum": codes}}}


def _placed(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The same with references to where OpenAPI has its schemas."""
    if isinstance(value, dict):
        return {
            key: re.sub(r"^#/\$defs/", "#/components/schemas/", each)
            if key == "$ref" and isinstance(each, str)
            else _placed(each)
            for key, each in value.items()
        }
    return [_placed(each) for each in value] if isinstance(value, list) else value
