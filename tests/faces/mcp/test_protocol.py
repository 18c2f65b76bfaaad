"""Messages in, messages out: what the two eras of the protocol ask for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from interlock.faces.mcp.jsonrpc import HANDSHAKE, STATELESS
from interlock.faces.mcp.protocol import (
    MOST_CALLS,
    MOST_IN_BATCH,
    ToolAnswer,
    ToolCall,
    ToolServer,
)

VERSION = "io.modelcontextprotocol/protocolVersion"
META = {
    VERSION: STATELESS[-1],
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wire:
    """A server with two tools, and what it sent: ``echo`` answers, ``wait`` waits to be stopped."""

    def __init__(self, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self.sent: list[Any] = []
        self.calls: list[ToolCall] = []
        self.server = ToolServer(
            instructions="be kind",
            tools=lambda: [{"name": "echo", "inputSchema": {"type": "object"}}],
            has_tool=lambda name: name in ("echo", "wait", "broken"),
            call=self._call,
            start=start or (lambda work: work()),
        )

    def _call(self, call: ToolCall) -> ToolAnswer:
        self.calls.append(call)
        if call.tool == "broken":
            raise ZeroDivisionError
        if call.tool == "wait":
            call.stopped.wait(60)
        return ToolAnswer(json.dumps(call.arguments), failed="fail" in call.arguments)

    def say(self, message: object) -> Any:
        """The answer to a message; None if there is none yet."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        before = len(self.sent)
        self.server.receive(data, lambda answer: self.sent.append(json.loads(answer or b"null")))
        return self.sent[before] if len(self.sent) > before else None

    def ask(self, method: str, params: object = None, id_: object = 1) -> Any:
        asked = {"jsonrpc": "2.0", "id": id_, "method": method}
        return self.say(asked if params is None else asked | {"params": params})


def call(tool: str, arguments: object = None, **meta: object) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments, **meta}


def test_the_handshake_agrees_on_a_version_that_both_know() -> None:
    wire = Wire()
    for version in HANDSHAKE:
        found = wire.ask("initialize", {"protocolVersion": version})["result"]
        assert found["protocolVersion"] == version
    later = wire.ask("initialize", {"protocolVersion": "2099-01-01"})["result"]
    assert later["protocolVersion"] == HANDSHAKE[-1]
    assert later["capabilities"] == {"tools": {}}
    assert later["serverInfo"]["name"] == "interlock"
    assert later["instructions"] == "be kind"


def test_a_stateless_client_needs_no_handshake() -> None:
    wire = Wire()
    found = wire.ask("server/discover", {"_meta": META})["result"]
    assert found["supportedVersions"] == list(STATELESS)
    assert found["resultType"] == "complete"
    assert found["ttlMs"] > 0
    listed = wire.ask("tools/list", {"_meta": META})["result"]
    assert listed["cacheScope"] == "private"
    answer = wire.ask("tools/call", call("echo", {"a": 1}, _meta=META))["result"]
    assert answer == {"content": [{"type": "text", "text": '{"a": 1}'}], "resultType": "complete"}


def test_each_message_says_its_own_era() -> None:
    """A client in the field sends ``initialize`` after ``server/discover`` on one pipe."""
    wire = Wire()
    assert "result" in wire.ask("server/discover", {"_meta": META})
    assert "result" in wire.ask("initialize", {"protocolVersion": HANDSHAKE[-1]})
    assert wire.ask("tools/list")["result"].keys() == {"tools"}
    assert wire.ask("ping")["result"] == {}
    assert wire.ask("tools/list", {"_meta": META})["result"]["resultType"] == "complete"


def test_a_stateless_request_of_another_version_is_told_which_ones_there_are() -> None:
    meta = META | {VERSION: "2025-11-25"}
    error = Wire().ask("tools/list", {"_meta": meta})["error"]
    assert error["code"] == -32022
    assert error["data"] == {"supported": list(STATELESS), "requested": "2025-11-25"}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("server/discover", None, -32602),
        ("tools/list", {"_meta": {VERSION: STATELESS[0]}}, -32602),
        ("tools/list", {"_meta": META | {VERSION: 7}}, -32602),
        ("tools/list", {"cursor": "2"}, -32602),
        ("ping", {"_meta": META}, -32601),
        ("resources/list", None, -32601),
        ("initialize", {}, -32602),
        ("tools/call", None, -32602),
        ("tools/call", {"name": 5}, -32602),
        ("tools/call", {"name": "nothing"}, -32602),
        ("tools/call", {"name": "echo", "arguments": [1]}, -32602),
        ("tools/list", [1], -32602),
    ],
)
def test_a_wrong_request_is_answered_with_the_code_of_the_protocol(
    method: str, params: object, code: int
) -> None:
    answer = Wire().ask(method, params, "seven")
    assert answer["id"] == "seven"
    assert answer["error"]["code"] == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": NaN}', -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        (b"7", -32600),
        (b'"ping"', -32600),
        (b"null", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
        (b"[" + b",".join([b"1"] * (MOST_IN_BATCH + 1)) + b"]", -32600),
    ],
)
def test_what_is_no_message_is_refused_and_the_connection_goes_on(data: bytes, code: int) -> None:
    wire = Wire()
    assert wire.say(data)["error"]["code"] == code
    assert wire.ask("ping")["result"] == {}


def test_a_notification_or_an_answer_gets_no_answer() -> None:
    wire = Wire()
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
        {"jsonrpc": "2.0", "method": "no/such/thing", "params": [1]},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {}},
    ):
        assert wire.say(message) is None


def test_a_batch_is_answered_by_one_message() -> None:
    wire = Wire()
    asked = {"jsonrpc": "2.0", "method": "ping"}
    answers = wire.say([asked | {"id": 1}, asked, 7, asked | {"id": "1"}])
    assert [each["id"] for each in answers] == [1, None, "1"]
    assert wire.say([asked]) is None


def test_a_wrong_answer_in_a_batch_does_not_take_the_place_of_another() -> None:
    wire = Wire()
    pings = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
    answers = wire.say([{"jsonrpc": "1.0", "result": 1}, *pings])
    assert [each["id"] for each in answers] == [1, 2]


def test_a_tool_that_breaks_is_an_error_that_the_model_reads() -> None:
    wire = Wire()
    assert wire.ask("tools/call", call("broken"))["result"]["isError"]
    assert wire.ask("tools/call", call("echo", {"fail": 1}))["result"]["isError"]
    assert "isError" not in wire.ask("tools/call", call("echo"))["result"]


class Threads:
    def __init__(self) -> None:
        self.all: list[threading.Thread] = []

    def __call__(self, work: Callable[[], None]) -> None:
        self.all.append(threading.Thread(target=work))
        self.all[-1].start()

    def join(self) -> None:
        for thread in self.all:
            thread.join(60)


def test_a_waiting_call_holds_up_neither_ping_nor_cancel_and_a_cancelled_one_is_not_answered() -> (
    None
):
    threads = Threads()
    wire = Wire(threads)
    assert wire.ask("tools/call", call("wait"), 7) is None
    assert wire.ask("tools/call", call("wait"), "7") is None
    assert wire.ask("ping", id_=8)["result"] == {}
    assert wire.ask("tools/call", call("wait"), 7)["error"]["code"] == -32600, "the id is in use"
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    wire.say(cancel | {"params": {"requestId": "7"}})
    wire.say(cancel | {"params": {"requestId": 99}})
    threads.all[1].join(60)
    assert wire.sent[-1:] == [None], "the cancelled call ended without an answer"
    assert threads.all[0].is_alive(), "7 and '7' are two requests"
    wire.server.close()
    threads.join()
    assert wire.sent[-1]["id"] == 7, "at the end of the connection a call is still answered"


def test_a_cancelled_call_of_a_batch_does_not_hold_up_the_others() -> None:
    threads = Threads()
    wire = Wire(threads)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("wait")}
    assert wire.say([asked, {"jsonrpc": "2.0", "id": 2, "method": "ping"}]) is None
    wire.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    threads.join()
    assert [each["id"] for each in wire.sent[-1]] == [2]


def test_one_connection_runs_a_bounded_number_of_calls() -> None:
    threads = Threads()
    wire = Wire(threads)
    for number in range(MOST_CALLS):
        assert wire.ask("tools/call", call("wait"), number) is None
    assert wire.ask("tools/call", call("wait"), "one more")["error"]["code"] == -32000
    wire.server.close()
    threads.join()
    assert wire.ask("ping", id_="still")["result"] == {}


def test_a_call_knows_the_name_of_its_client() -> None:
    wire = Wire()
    wire.ask("initialize", {"protocolVersion": HANDSHAKE[0], "clientInfo": {"name": "Codex"}})
    wire.ask("tools/call", call("echo"))
    meta = META | {"io.modelcontextprotocol/clientInfo": {"name": "Claude Code"}}
    wire.ask("tools/call", call("echo", _meta=meta))
    wire.ask("tools/call", call("echo", _meta=META | {"io.modelcontextprotocol/clientInfo": 5}))
    assert [each.client for each in wire.calls] == ["Codex", "Claude Code", "Claude Code"]
