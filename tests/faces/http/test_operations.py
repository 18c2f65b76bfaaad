"""The API offers the declared operations, all of them and no other, in the same words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.faces.http.served import Served
from tests.for_each import for_each

from interlock import registry
from interlock.errors import BadInput, TooLarge
from interlock.faces.http.openapi import openapi
from interlock.faces.http.operations import endpoints
from interlock.faces.mcp.tools import BY_CONNECTION, in_argument_words, is_tool
from interlock.runtime.operation import fields

OPERATIONS = {each.name: each for each in registry.operations()}
OFFERED = {each.operation.name for each in endpoints().values()}
DESCRIBED = openapi()
FILES = {
    "guard define", "key list", "key new", "key revoke", "key rotate", "pipeline define",
    "record anchor", "record export", "task import",
}  # fmt: skip
OWN = {
    "/api/session", "/api/session/beat", "/api/overview", "/api/events", "/healthz", "/a2a",
    "/.well-known/agent-card.json",
}  # fmt: skip


def test_every_operation_is_offered_or_has_a_reason_not_to_be() -> None:
    shell = {each.name for each in OPERATIONS.values() if not (each.call or each.act)}
    local = {
        name
        for name, each in OPERATIONS.items()
        if name not in shell | BY_CONNECTION and not is_tool(each, local=False)
    }
    assert set(OPERATIONS) - shell - BY_CONNECTION - local - {"record export"} == OFFERED
    assert FILES - {"record export"} <= local


def test_every_operation_is_described_and_nothing_else_is() -> None:
    paths = {f"/api/{name.replace(' ', '/')}" for name in OFFERED}
    assert set(DESCRIBED["paths"]) == paths | OWN
    for name in OFFERED:
        methods = DESCRIBED["paths"][f"/api/{name.replace(' ', '/')}"]
        assert set(methods) == ({"get", "post"} if OPERATIONS[name].reads else {"post"})


@for_each("name", sorted(OFFERED))
def test_a_description_says_what_the_declaration_says(name: str) -> None:
    operation = OPERATIONS[name]
    post = DESCRIBED["paths"][f"/api/{name.replace(' ', '/')}"]["post"]
    assert post["summary"] == in_argument_words(operation.help)
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    known = {each.name: each for each in fields(operation.request)}
    endpoint = endpoints()[name.replace(" ", "/")]
    assert set(schema["properties"]) == set(endpoint.fields) <= set(known)
    left_out = {each for each in known if each not in endpoint.fields}
    assert all(
        known[each].kind in ("path", "command")
        or each in {"follow", "guards", "for", "noun", "after", "upload"}
        for each in left_out
    )
    for field, shape in schema["properties"].items():
        assert shape["description"] == in_argument_words(known[field].help)
    assert schema.get("required", []) == [
        each.name for each in endpoint.fields.values() if each.required
    ]


def test_every_reference_of_the_description_leads_somewhere() -> None:
    schemas = DESCRIBED["components"]["schemas"]
    found = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend([each for key, each in value.items() if key == "$ref"])
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(DESCRIBED)
    assert len(found) > 100
    assert {each.removeprefix("#/components/schemas/") for each in found} <= set(schemas)
    assert len({each["operationId"] for each in _methods()}) == len(_methods())


def _methods() -> list[dict[str, Any]]:
    return [method for path in DESCRIBED["paths"].values() for method in path.values()]


def test_the_server_serves_its_description(up: Served) -> None:
    assert up.ask("GET", "/openapi.json").json == json.loads(json.dumps(DESCRIBED))


ACQUIRE = endpoints()["lock/acquire"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "an object"),
        (b"null", "an object"),
        (b"{}", "lock is missing"),
        (b'{"lock": "m", "x": 1}', "no field 'x'"),
        (b'{"lock": 5}', "Expected `str`"),
        (b'{"lock": "m", "token": -1}', "out of bounds"),
        (b'{"lock": "m", "token": 1e300}', "out of bounds"),
        (b'{"lock": "m", "token": true}', "Expected"),
        (b'{"lock": "m", "wait": "soon"}', "is not like"),
        (b'{"lock": "m", "ttl": -1}', "out of bounds"),
        (b'{"lock": "\\ud800"}', "no JSON"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_wrong(body: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ACQUIRE.from_body(body)


def test_deep_values_are_refused() -> None:
    deep = b'{"lock": "m", "metadata": ' + b"[" * 200 + b"]" * 200 + b"}"
    with pytest.raises(TooLarge, match="too deep"):
        ACQUIRE.from_body(deep)


def test_a_wait_is_cut_to_the_longest() -> None:
    for wait in ("forever", "1h", 3600):
        request: Any = ACQUIRE.from_body(json.dumps({"lock": "m", "wait": wait}).encode())
        assert request.wait == 50.0
    short: Any = ACQUIRE.from_body(b'{"lock": "m", "wait": "2s"}')
    assert short.wait == "2s"


def test_parameters_of_a_get_become_a_request() -> None:
    found: Any = endpoints()["task/list"].from_query(
        [("state", "ready"), ("state", "running"), ("all", "true"), ("limit", "7")]
    )
    assert (found.state, found.all, found.limit) == (("ready", "running"), True, 7)
    for wrong in [("all", "yes"), ("limit", "x"), ("limit", "9" * 400), ("nothing", "1")]:
        with pytest.raises(BadInput):
            endpoints()["task/list"].from_query([wrong])
    with pytest.raises(BadInput, match="twice"):
        endpoints()["task/list"].from_query([("limit", "1"), ("limit", "2")])
