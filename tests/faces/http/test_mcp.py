"""The tools for models over HTTP: the official client in each era, sessions and attacks."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from tests.faces.http.served import Answered, Events, Served, served
from tests.faces.mcp.sdk import VERSIONS, Used, check, used
from tests.faces.shell import Shell

from interlock.faces.http.access import Caller, Refused
from interlock.faces.http.clients import Clients
from interlock.faces.http.mcp import McpSessions
from interlock.stores.memory import MemoryStore

STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def _in_each_era(url: str) -> dict[str, Used]:
    found = await asyncio.gather(*(used(f"{url}mcp?agent=mcp-{mode}", mode) for mode in VERSIONS))
    return dict(zip(VERSIONS, found, strict=True))


def test_the_official_client_works_with_the_server_in_each_era(home: Shell) -> None:
    with served(home, "--open") as server:
        for mode, found in asyncio.run(_in_each_era(server.url)).items():
            check(mode, found)


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


# Updates of resources.

BOARD, INBOX = "interlock://board", "interlock://inbox"


def listen(server: Served, query: str, *uris: str, id_: object = 7) -> Events:
    """A subscription of the stateless era; its first message is the acknowledgement."""
    params = {"notifications": {"resourceSubscriptions": list(uris)}, "_meta": STATELESS}
    message = {"jsonrpc": "2.0", "id": id_, "method": "subscriptions/listen", "params": params}
    return Events(
        server, f"/mcp{query}", {
            "content_type": "application/json", "mcp_protocol_version": "2026-07-28",
            "mcp_method": "subscriptions/listen",
        }, json.dumps(message).encode(),
    )  # fmt: skip


def test_an_agent_hears_of_its_own_mail_on_the_stream_of_its_session(
    up: Served, home: Shell
) -> None:
    one = begin(up, "?agent=hears")
    assert ask(up, "resources/subscribe", {"uri": INBOX}, **one).json["result"] == {}
    home.run("send", "other", "not for hears", "--agent", "eve", "--hold")
    home.run("send", "hears", "before the stream", "--agent", "eve", "--hold")
    with up.stream("/mcp", **one) as first:
        assert first.next().data["params"] == {"uri": INBOX}
    with up.stream("/mcp", **one) as again:
        assert again.next().data["params"] == {"uri": INBOX}, "the first may not have arrived"
        ask(up, "resources/unsubscribe", {"uri": INBOX}, **one)
        ask(up, "resources/subscribe", {"uri": BOARD}, **one)
        home.run("task", "add", "heard", "--agent", "eve")
        assert again.next().data["params"] == {"uri": BOARD}
        with up.stream("/mcp", **one) as newest:
            assert again.ended(), "a new connection takes over"
            assert up.ask("DELETE", "/mcp", None, **one).status == 204
            assert newest.next().data["params"] == {"uri": BOARD}
            assert newest.ended()


def test_a_stream_of_the_stateless_era_begins_with_what_is_promised(
    up: Served, home: Shell
) -> None:
    stream = listen(up, "?agent=alone", INBOX, "interlock://nothing", id_="mine")
    said = stream.next().data
    assert said["method"] == "notifications/subscriptions/acknowledged"
    assert said["params"]["notifications"] == {"resourceSubscriptions": [INBOX]}
    home.run("send", "alone", "hello", "--agent", "eve", "--hold")
    update = stream.next().data
    assert update["method"] == "notifications/resources/updated"
    own = {"io.modelcontextprotocol/subscriptionId": "mine"}
    assert update["params"] == {"uri": INBOX, "_meta": own}
    stream.close()


def test_subscriptions_that_cannot_be_had_are_refused(up: Served) -> None:
    one = begin(up, "?agent=refused")
    wrong = ask(up, "resources/subscribe", {"uri": "file:///etc/passwd"}, **one).json["error"]
    assert wrong["code"] == -32602
    lost = ask(up, "resources/subscribe", {"uri": BOARD}, "?agent=refused").json["error"]
    assert "begin with initialize" in lost["message"]
    assert up.ask("GET", "/mcp").status == 405
    assert up.ask("GET", "/mcp", None, mcp_session_id="x").status == 404
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
    for params, query in (
        ({}, "?agent=r"), ({"notifications": {"resourceSubscriptions": "x"}}, "?agent=r"),
        ({"notifications": {"resourceSubscriptions": [INBOX]}}, ""),
    ):  # fmt: skip
        found = ask(up, "subscriptions/listen", {**params, "_meta": STATELESS}, query, **headers)
        assert (found.status, found.json["error"]["code"]) == (400, -32602)


def test_a_server_that_ends_answers_its_subscriptions_and_ends_their_streams(home: Shell) -> None:
    with served(home) as server:
        stream = listen(server, "?agent=late", BOARD)
        stream.next()
        one = begin(server, "?agent=handle")
        with server.stream("/mcp", **one) as other:
            assert server.stop() == 0
            result = stream.until("message", id=7).data["result"]
            assert result["resultType"] == "complete"
            assert stream.ended()
            assert other.ended()
        stream.close()


def test_an_open_stream_counts_as_use_of_its_session() -> None:
    store = MemoryStore()
    clients, caller = Clients(lambda: store), Caller(agent="maria", role="admin", owner=True)
    sessions = McpSessions(clients, longest=5.0)
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    message["params"] = {"protocolVersion": "2025-11-25"}
    begun = sessions.receive(json.dumps(message).encode(), {}, caller, "ada", threading.Event())
    stream = sessions.stream(caller, begun.session)
    sessions.sweep(idle=-1.0)
    sessions.closed(stream)
    sessions.closed(sessions.stream(caller, begun.session))
    sessions.sweep(idle=-1.0)
    with pytest.raises(Refused, match="begin with initialize"):
        sessions.stream(caller, begun.session)
    clients.close()
