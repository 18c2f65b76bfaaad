"""The tools for models over HTTP: the official client in each era, sessions and attacks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.faces.http.served import Answered, Served
from tests.faces.shell import Shell

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def _used(url: str, mode: str) -> tuple[str, list[str], list[Any]]:
    from mcp.client.client import Client

    async with Client(f"{url}mcp?agent=mcp-{mode}", mode=mode) as client:
        listed = await client.list_tools()
        answers = [
            await client.call_tool("task_add", {"task": mode, "requires": [mode], "priority": -99}),
            await client.call_tool("task_next", {"can": [mode]}),
            await client.call_tool("task_done", {"task": mode}),
            await client.call_tool("lock_acquire", {}),
        ]
        return client.protocol_version, [each.name for each in listed.tools], answers


async def _in_each_era(url: str) -> dict[str, tuple[str, list[str], list[Any]]]:
    found = await asyncio.gather(*(_used(url, mode) for mode in VERSIONS))
    return dict(zip(VERSIONS, found, strict=True))


def test_the_official_client_works_with_the_server_in_each_era(up: Served) -> None:
    for mode, (agreed, names, answers) in asyncio.run(_in_each_era(up.url)).items():
        assert agreed == VERSIONS[mode]
        assert {"task_next", "lock_acquire"} <= set(names)
        assert [each.is_error for each in answers] == [False, False, False, True]
        assert answers[1].content[0].text.startswith(f"claimed {mode}, token ")


def ask(
    server: Served, method: str, params: dict[str, Any], query: str = "", **headers: str
) -> Answered:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    body = json.dumps(message).encode()
    headers = {"content_type": "application/json"} | headers
    return server.ask("POST", f"/mcp{query}", body, **headers)


def begin(server: Served, query: str = "", **headers: str) -> dict[str, str]:
    params = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "host", "version": "1"}}
    found = ask(server, "initialize", params, query, **headers)
    assert found.json["result"]["protocolVersion"] == "2025-11-25"
    return {**headers, "mcp_session_id": found.headers["mcp-session-id"]}


def call(server: Served, session: dict[str, str], tool: str, **arguments: Any) -> str:
    found = ask(server, "tools/call", {"name": tool, "arguments": arguments}, **session)
    text: str = found.json["result"]["content"][0]["text"]
    return text


def test_a_session_is_its_handle_and_its_end_releases_what_it_holds(
    up: Served, home: Shell
) -> None:
    one, two = begin(up, "?agent=m1"), begin(up, "?agent=m2")
    assert call(up, one, "lock_acquire", lock="mcp").startswith("acquired mcp")
    assert "m1" in call(up, two, "lock_acquire", lock="mcp")
    assert up.ask("DELETE", "/mcp", None, **one).status == 204
    assert home.run("lock", "acquire", "mcp", "--agent", "eve").status == 0
    assert ask(up, "tools/list", {}, **one).status == 404


def test_prompts_and_resources_say_what_the_store_has(up: Served, home: Shell) -> None:
    one = begin(up, "?agent=reader")
    home.run("send", "reader", "look at the board", "--agent", "eve", "--hold")
    listed = ask(up, "resources/list", {}, **one).json["result"]["resources"]
    texts = {
        each["name"]: ask(up, "resources/read", {"uri": each["uri"]}, **one).json["result"]
        for each in listed
    }
    assert "look at the board" in texts["inbox"]["contents"][0]["text"]
    assert "tasks:" in texts["board"]["contents"][0]["text"]
    assert ask(up, "prompts/list", {}, **one).json["result"]["prompts"][0]["name"] == "primer"
    primer = ask(up, "prompts/get", {"name": "primer"}, **one).json["result"]["messages"]
    assert "task_next" in primer[0]["content"]["text"]
    wrong = ask(up, "resources/read", {"uri": "file:///etc/passwd"}, **one).json["error"]
    assert wrong["code"] == -32602


def stateless(server: Served, tool: str, query: str, **arguments: Any) -> Answered:
    params = {"name": tool, "arguments": arguments, "_meta": STATELESS}
    headers = {
        "mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": tool,
    }  # fmt: skip
    return ask(server, "tools/call", params, query, **headers)


def test_a_request_that_stands_alone_acts_as_the_agent_of_its_address(
    up: Served, home: Shell
) -> None:
    done = stateless(up, "lock_acquire", "?agent=alone", lock="alone").json["result"]
    assert done["content"][0]["text"].startswith("acquired alone")
    assert home.run("lock", "show", "alone", "--json").json["holder"] == "alone"
    nameless = stateless(up, "lock_acquire", "", lock="alone").json["result"]
    assert nameless["isError"]
    assert "?agent=NAME" in nameless["content"][0]["text"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mcp_protocol_version": "2025-11-25"},
        {"mcp_method": "tools/list"},
        {"mcp_name": "task_next"},
        {"mcp_name": "=?base64?!?="},
    ],
)
def test_headers_that_are_not_those_of_the_body_are_refused(
    up: Served, wrong: dict[str, str]
) -> None:
    params = {"name": "lock_acquire", "arguments": {"lock": "x"}, "_meta": STATELESS}
    right = {
        "mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call",
        "mcp_name": "lock_acquire",
    }  # fmt: skip
    found = ask(up, "tools/call", params, "?agent=h", **(right | wrong))
    assert (found.status, found.json["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"a":1}'])
def test_a_message_that_is_none_is_refused(up: Served, body: bytes) -> None:
    found = up.ask("POST", "/mcp", body, content_type="application/json")
    assert found.status in (200, 202, 400)
    assert found.status == 202 or "error" in found.json


def test_a_token_decides_for_whom_a_model_speaks(closed: Served, tokens: dict[str, str]) -> None:
    act = {"authorization": f"Bearer {tokens['act']}"}
    other = ask(closed, "initialize", {"protocolVersion": "2025-11-25"}, "?agent=bob", **act)
    assert (other.status, other.json["error"]) == (403, "wrong_agent")
    own = begin(closed, "?agent=act/sub", **act)
    assert call(closed, own, "lock_acquire", lock="mcp-token").startswith("acquired")
    stolen = {**own, "authorization": f"Bearer {tokens['admin']}"}
    assert ask(closed, "tools/list", {}, **stolen).status == 404
    looking = begin(closed, "", authorization=f"Bearer {tokens['read']}")
    assert "wrong_role" in call(closed, looking, "lock_acquire", lock="x")
    assert ask(closed, "tools/list", {}).status == 401
