"""What one caller, one wait or one end may not do to others."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.faces.http.served import Served, served
from tests.faces.http.test_mcp import begin, call
from tests.faces.shell import Shell, until

from interlock.errors import BadInput
from interlock.faces.http import app, events, mcp, routes
from interlock.faces.http import clients as clients_module
from interlock.faces.http.access import Access, Caller, Refused, StoreTokens
from interlock.faces.http.clients import Clients
from interlock.faces.http.events import EventFeed, EventRing, RingEvent
from interlock.faces.http.mcp import McpSessions
from interlock.faces.http.operations import endpoints
from interlock.faces.http.routes import Routes
from interlock.faces.http.shares import SHARE
from interlock.faces.mcp.agent import ConnectedAgent
from interlock.faces.mcp.protocol import ToolCall
from interlock.faces.mcp.tools import ToolSet
from interlock.stores.memory import MemoryStore

ADA = Caller("act", "ada")


@pytest.fixture
def clients() -> Any:
    found = Clients(MemoryStore)
    yield found
    found.close()


@pytest.fixture
def models(clients: Clients) -> McpSessions:
    return McpSessions(clients, longest=50.0)


def message(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def tool(name: str, **arguments: Any) -> bytes:
    return message("tools/call", name=name, arguments=arguments)


def said(models: McpSessions, body: bytes, caller: Caller = ADA, agent: str = "") -> Any:
    return json.loads(models.receive(body, {}, caller, agent, threading.Event()).body)


def test_only_a_call_that_asks_to_wait_takes_a_place_of_those_that_wait(
    models: McpSessions,
) -> None:
    assert models.may_wait(tool("task_next", wait="30s"))
    assert models.may_wait(tool("query", who="bob", text="?"))
    assert models.may_wait(b"[%s]" % tool("lock_acquire", lock="x", wait="forever"))
    short = (message("ping"), tool("task_next"), tool("lock_release", lock="x"), b"no JSON")
    assert not any(map(models.may_wait, short))
    assert not models.may_wait(tool("lock_acquire", lock="x", wait="nonsense"))


@pytest.mark.parametrize("operation", ["request/result", "request/send"])
def test_the_wait_for_a_result_is_a_wait_and_is_cut(operation: str) -> None:
    endpoint = endpoints()[operation]
    given = {"request": "r1"} if operation.endswith("result") else {"swarm": "b", "to": "*"}
    named = {name: value for name, value in given.items() if name in endpoint.fields}
    asked = endpoint.from_body(json.dumps({**named, "wait": "1h"}).encode(), 50.0)
    assert asked.wait == 50.0  # type: ignore[attr-defined]
    assert endpoint.may_wait(asked)
    assert not endpoint.may_wait(endpoint.from_body(json.dumps(named).encode(), 50.0))


def test_a_client_that_left_before_its_call_began_acquires_nothing(
    models: McpSessions, clients: Clients
) -> None:
    gone = threading.Event()
    gone.set()
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = message("tools/call", name="lock_acquire", arguments={"lock": "x"}, _meta=meta)
    headers = {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "lock_acquire",
    }
    models.receive(body, headers, ADA, "", gone)
    assert not clients.reader().locks.list()


def test_a_call_after_the_end_begins_no_session(clients: Clients) -> None:
    agent = ConnectedAgent(
        ToolSet(), lambda name: clients.begin(name, ttl=30, via="mcp"), name="ada"
    )
    agent.call(ToolCall("lock_acquire", {"lock": "x"}, ""))
    agent.leave()
    answer = agent.call(ToolCall("lock_acquire", {"lock": "zombie"}, ""))
    assert answer.failed
    assert "connect again" in answer.text
    assert not clients.reader().locks.list()


def test_a_batch_is_of_one_version_alone(models: McpSessions) -> None:
    headers = {"mcp-protocol-version": "2025-06-18"}
    with pytest.raises(BadInput, match="2025-03-26"):
        models.receive(b"[%s]" % message("ping"), headers, ADA, "", threading.Event())
    with pytest.raises(BadInput, match="2025-11-25"):
        models.receive(message("ping"), {"mcp-protocol-version": "1"}, ADA, "", threading.Event())
    assert said(models, b"[%s]" % message("ping")) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_an_id_is_no_error_and_a_failed_beginning_gets_no_handle(models: McpSessions) -> None:
    def began(id_: str, **params: Any) -> str:
        body = json.dumps({"jsonrpc": "2.0", "id": id_, "method": "initialize", "params": params})
        return models.receive(body.encode(), {}, ADA, "", threading.Event()).session

    assert began("error", protocolVersion="2025-11-25")
    assert not began("x" * 100)


def test_a_session_that_was_swept_says_so_with_the_next_answer(models: McpSessions) -> None:
    said(models, tool("lock_acquire", lock="x"))
    models.sweep(-1)
    assert "your session expired" in str(said(models, tool("inbox")))
    assert "your session expired" not in str(said(models, tool("inbox")))


def test_one_caller_does_not_use_up_the_sessions_of_all(
    models: McpSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "MOST", 4)
    for number in range(5):
        said(models, message("ping"), agent=f"ada/{number}")  # the idle ones make room
    for name in ("a", "b"):
        said(models, tool("inbox"), agent=f"ada/{name}")
    with pytest.raises(Refused, match="2 sessions"):
        said(models, message("ping"), agent="ada/c")
    assert said(models, message("ping"), Caller("act", "eve"))["result"] == {}
    models.sweep(-1)


def test_callers_that_may_only_look_use_up_no_sessions(
    models: McpSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "MOST", 4)
    for name in ("eve", "mal"):
        for number in range(5):
            said(models, message("ping"), Caller("read", name), agent=f"{name}/{number}")
    for name in ("ada/a", "ada/b"):
        assert "error" not in said(models, tool("inbox"), agent=name)
    models.sweep(-1)


def test_one_caller_does_not_take_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_QUEUED", 4)
    clients = Clients(MemoryStore)
    web = app.WebServer(clients, Access(agent="maria", tokens=StoreTokens(clients)))
    going = threading.Event()

    async def asked(who: str, count: int) -> list[object]:
        SHARE.set(who)
        calls = [web.in_thread(lambda: going.wait(60)) for _ in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def both() -> tuple[list[object], list[object]]:
        many = asyncio.create_task(asked("mal", 20))
        await asyncio.sleep(0)
        one = asyncio.create_task(asked("ada", 1))
        asyncio.get_running_loop().call_later(0.05, going.set)
        return await many, await one

    many, one = asyncio.run(both())
    refused = [each for each in many if isinstance(each, Refused)]
    assert len(refused) == 20 - (app.QUICK + 4) // 2
    assert all("the other" in str(each) for each in refused)
    assert one == [True]
    web.close()


def test_models_sign_with_the_key_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []
    begun: Any = vars(clients_module)["begun"]

    def spied(*args: Any, key: str | None = None, **options: Any) -> Any:
        keys.append(key)
        return begun(*args, **options)

    monkeypatch.setattr(clients_module, "begun", spied)
    found = Clients(MemoryStore, key="secret")
    said(McpSessions(found, longest=50.0), tool("lock_acquire", lock="x"))
    assert set(keys) == {"secret"}
    found.close()


def test_a_session_that_is_over_leaves_no_thread(clients: Clients) -> None:
    before = set(threading.enumerate())
    fleet = clients.of_agent("ada")
    for _ in range(2):
        session = fleet.agents.join(ttl=60).session
        with clients.of_session(session, "ada").kept():
            pass
        clients.forget_session(session)
    assert not [each for each in set(threading.enumerate()) - before if "beat" in each.name]


def test_no_client_opens_the_store_again_after_the_end() -> None:
    found = Clients(MemoryStore)
    found.reader()
    found.close()
    with pytest.raises(Exception, match="the server ends"):
        found.reader()


def test_a_reader_that_does_not_read_has_a_bounded_share_of_the_ring() -> None:
    ring = EventRing()
    ring.add([RingEvent(each, "lock", b"x" * 100_000) for each in range(1, 51)], 50)
    number, sizes = 0, []
    while number < ring.end:
        found = ring.since(number)
        assert found is not None
        sizes.append(len(found[0]))
        number = found[1]
    assert sum(sizes) == 5_000_000
    assert max(sizes) <= events.MOST_WRITTEN + 100_000
    assert ring.since(0, {"task"}) == (b"", 50)


def test_a_reader_before_the_first_look_at_the_store_is_told_when_it_is_there(
    clients: Clients,
) -> None:
    async def reading() -> bytes:
        ring = EventRing()
        stream = events.stream(ring, {}, None)
        found = await anext(stream) + await anext(stream)
        assert b'"away"' in found
        EventFeed(clients, ring, asyncio.get_running_loop())._begin(7)
        return await anext(stream)

    found = asyncio.run(reading())
    assert b'"back"' in found
    assert b"event: resync" in found


def test_a_stream_ends_when_its_token_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REMEMBERED", 0.0)
    known = [True, True, False]

    class Checked(Routes):
        async def _caller(self, _: Any) -> Caller:
            if not known.pop(0):
                raise Refused(401, "unauthorized", "it is revoked")
            return ADA

    async def content() -> AsyncIterator[bytes]:
        for each in (b"1", b"2", b"3", b"4"):
            yield each

    async def read() -> list[bytes]:
        server: Any = None
        request: Any = None
        return [each async for each in Checked(server)._while_allowed(request, content())]

    assert asyncio.run(read()) == [b"1", b"2"]


class NoTokens:
    def caller(self, _: str) -> Caller | None:
        return None

    def met(self, _: str) -> bool:
        return False


def test_an_unknown_cookie_does_not_lock_an_open_server() -> None:
    access = Access(agent="maria", tokens=NoTokens())
    assert access.caller(None, "of another server").agent == "maria"
    with pytest.raises(Refused, match="not known"):
        access.caller("Bearer x", None)
    with pytest.raises(Refused, match="not known"):
        Access(agent="maria", tokens=NoTokens(), open_=False).caller(None, "x")


def test_a_noun_that_there_is_not_is_refused(up: Served) -> None:
    found = up.ask("GET", "/api/events?noun=loks")
    assert found.status == 400
    assert "lock" in found.json["message"]


def test_a_wrong_method_names_the_right_ones(up: Served) -> None:
    assert up.ask("POST", "/").headers["allow"] in ("GET, HEAD", "HEAD, GET")
    assert up.get("lock acquire").headers["allow"] == "POST"
    assert up.ask("GET", "/api/health", authorization="Bearer x").headers["www-authenticate"]


def test_a_caller_that_left_at_once_keeps_nothing(up: Served) -> None:
    body = b'{"lock": "left-at-once"}'
    request = f"POST /api/lock/acquire HTTP/1.1\r\n{up.lines}Content-Type: application/json\r\n"
    head = request.encode() + b"Content-Length: %d\r\n\r\n" % len(body)
    with up.events("?noun=lock") as stream:
        with socket.create_connection((up.name, up.port)) as line:
            line.sendall(head + body)
        events_of_it: list[str] = []
        while len(events_of_it) < 2:
            if "left-at-once" in str((found := stream.next()).data):
                events_of_it.append(found.data["event"])
    assert events_of_it == ["lock:acquired", "lock:released"]


def test_an_end_releases_what_models_hold_and_answers_those_that_wait(shell: Shell) -> None:
    shell.run("lock", "acquire", "busy", "--agent", "bob")
    with served(shell, "--as", "maria") as server:
        one = begin(server, "?agent=m1")
        call(server, one, "lock_acquire", lock="mine")
        found: list[str] = []
        waiting = threading.Thread(
            target=lambda: found.append(call(server, one, "lock_acquire", lock="busy", wait="40s"))
        )
        waiting.start()
        until(lambda: "m1" in shell.run("lock", "show", "busy").out)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        waiting.join(20)
        assert "the connection ended" in found[0]
        assert server.process.stderr is not None
        assert b"Traceback" not in server.process.stderr.read()
    listed = shell.run("lock", "list").out
    assert "mine" not in listed
    assert "m1" not in shell.run("lock", "show", "busy").out
