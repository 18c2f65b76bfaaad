"""Other frameworks reach the fleet: cards, messages that become tasks, their states, attacks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.faces.http.served import Answered, Served
from tests.faces.shell import PATIENCE, Shell

import interlock
from interlock import Fleet
from interlock.faces.http import a2a_wire as wire
from interlock.faces.http.a2a import A2ATasks
from interlock.faces.http.access import Caller
from interlock.faces.http.clients import Clients
from interlock.nouns.tasks.task import STATES
from interlock.nouns.tasks.task_view import TaskView
from interlock.stores import open_store

CARD = "/.well-known/agent-card.json"
SKILL = "lang/cobol"
BOTH = pytest.mark.parametrize("version", ["1.0", "0.3"])
SEND = {"1.0": "SendMessage", "0.3": "message/send"}
GET = {"1.0": "GetTask", "0.3": "tasks/get"}
CANCEL = {"1.0": "CancelTask", "0.3": "tasks/cancel"}


@pytest.fixture(scope="module")
def cora(home: Shell) -> Iterator[Fleet]:
    """An agent of the fleet that has a skill."""
    place = home.folder / ".interlock" / "store.db"
    with interlock.connect(str(place), agent="cora") as fleet:
        fleet.agents.status("idle", can=[SKILL, "a2a-docs"])
        yield fleet


def rpc(
    server: Served, method: str, params: Any = None, path: str = "/a2a", **headers: str
) -> Answered:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    headers = {"content_type": "application/json"} | headers
    return server.ask("POST", path, json.dumps(body).encode(), **headers)


def result(answer: Answered) -> Any:
    assert answer.status == 200, answer.body
    assert answer.json["id"] == 7
    return answer.json["result"]


def code(answer: Answered) -> int:
    assert answer.status == 200, answer.body
    found: int = answer.json["error"]["code"]
    return found


def message(id_: str, version: str = "1.0", text: str = "Translate it", **more: Any) -> Any:
    """A message that is not waited for, in the shape of a version."""
    part = {"text": text} if version == "1.0" else {"kind": "text", "text": text}
    said: dict[str, Any] = {"messageId": id_, "parts": [part], "metadata": {"skill": SKILL}}
    said["role"] = "ROLE_USER" if version == "1.0" else "user"
    how = {"returnImmediately": True} if version == "1.0" else {"blocking": False}
    return {"message": said | more, "configuration": how}


def sent(server: Served, id_: str, **more: Any) -> str:
    """The id of the task of a message."""
    found: str = result(rpc(server, "SendMessage", message(id_, **more)))["task"]["id"]
    return found


def state(server: Served, task: str, version: str = "1.0") -> str:
    found: str = result(rpc(server, GET[version], {"id": task}))["status"]["state"]
    return found


# ---- cards


def test_the_card_lists_the_abilities_of_the_agents_that_live(
    up: Served, home: Shell, cora: Fleet
) -> None:
    place = home.folder / ".interlock" / "store.db"
    with interlock.connect(str(place), agent="dora") as dora:
        dora.agents.status("idle", can=["a2a-brief", SKILL])
        there = up.ask("GET", CARD).json
    left = up.ask("GET", CARD).json
    assert "a2a-brief" in [each["id"] for each in there["skills"]]
    assert "a2a-brief" not in [each["id"] for each in left["skills"]]
    skill = next(each for each in there["skills"] if each["id"] == SKILL)
    assert skill["tags"] == [SKILL, "lang", "cobol"]
    assert "cora, dora" in skill["description"]


def test_the_card_says_where_and_in_which_versions_and_what_is_not_offered(
    up: Served, cora: Fleet
) -> None:
    card = up.ask("GET", CARD).json
    url = f"http://{up.host}/a2a"
    ways = card["supportedInterfaces"]
    assert [(each["url"], each["protocolVersion"]) for each in ways] == [(url, "1.0"), (url, "0.3")]
    assert (card["url"], card["protocolVersion"]) == (url, "0.3.0")
    assert card["capabilities"]["streaming"] is False
    assert card["capabilities"]["pushNotifications"] is False
    assert card["security"] == [{"token": []}]
    assert up.ask("GET", f"/a2a{CARD}").json == card
    for method in ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"):
        assert result(rpc(up, method)) == card


def test_an_agent_and_a_skill_have_cards_of_their_own(up: Served, cora: Fleet) -> None:
    agent = up.ask("GET", f"/a2a/agents/cora{CARD}").json
    assert [each["id"] for each in agent["skills"]] == ["a2a-docs", SKILL]
    skill = up.ask("GET", f"/a2a/skills/{SKILL}{CARD}").json
    assert [each["id"] for each in skill["skills"]] == [SKILL]
    assert skill["url"] == f"http://{up.host}/a2a/skills/{SKILL}"
    for path in ("/a2a/agents/nobody", "/a2a/skills/nothing", "/a2a/agents/../cora"):
        assert up.ask("GET", path + CARD).status == 404


def test_a_stranger_learns_where_to_show_a_token_and_nothing_of_the_fleet(
    closed: Served, cora: Fleet, tokens: dict[str, str]
) -> None:
    card = closed.ask("GET", CARD).json
    assert card["skills"] == []
    assert card["securitySchemes"]["token"]["httpAuthSecurityScheme"] == {"scheme": "Bearer"}
    assert card["securitySchemes"]["token"]["type"] == "http"
    assert (card["security"], len(card["securityRequirements"])) == ([{"token": []}], 1)
    assert closed.ask("GET", f"/a2a/agents/cora{CARD}").status == 401
    reader = {"authorization": f"Bearer {tokens['read']}"}
    whole = closed.ask("GET", CARD, None, **reader).json
    assert SKILL in [each["id"] for each in whole["skills"]]
    assert result(rpc(closed, "GetExtendedAgentCard", **reader)) == whole
    assert closed.ask("GET", CARD, authorization="Bearer il_x_y").status == 401


# ---- messages


@contextmanager
def worker(fleet: Fleet, answer: object) -> Iterator[list[str]]:
    """A worker that does the next message, and no other task of the shared store."""
    done: list[str] = []
    with fleet.tasks.subscribe(prefix="a2a-") as published:

        def work() -> None:
            for event in published.take(PATIENCE):
                claim = claimed(fleet, event.task)
                fleet.tasks.complete(claim.task, token=claim.token, result=answer)
                done.append(claim.task)

        working = threading.Thread(target=work)
        working.start()
        yield done
        working.join()


def claimed(fleet: Fleet, task: str) -> interlock.Claimed:
    claim = fleet.tasks.claim(task)
    assert isinstance(claim, interlock.Claimed)
    return claim


@BOTH
def test_a_message_is_done_by_a_worker_with_the_skill_and_its_sender_gets_the_result(
    up: Served, cora: Fleet, version: str
) -> None:
    asked = message(f"done-{version}", version) | {"configuration": {}}
    with worker(cora, {"lines": 3}) as done:
        found = result(rpc(up, SEND[version], asked))
    part: dict[str, Any] = {"data": {"lines": 3}}
    if version == "1.0":
        task = found["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    else:
        task, part = found, part | {"kind": "data"}
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert [task["id"]] == done
    assert task["artifacts"][0]["parts"] == [part]
    assert task["history"][0]["messageId"] == f"done-{version}"
    got = result(rpc(up, GET[version], {"id": task["id"], "historyLength": 0}))
    assert got["artifacts"] == task["artifacts"]
    assert "history" not in got


def test_a_message_becomes_a_task_that_requires_the_skill(up: Served, cora: Fleet) -> None:
    parts: list[Any] = [{"text": "First\nline"}, {"data": {"n": [1, None]}}]
    id_ = sent(up, "becomes", parts=parts, contextId="talk-1")
    view = cora.tasks.show(id_)
    assert isinstance(view, TaskView)
    assert (view.requires, view.published_by, view.labels) == ((SKILL,), "maria", ("a2a",))
    assert (view.title, view.text) == ("First line", "First\nline")
    assert view.data["message"]["parts"] == parts
    found = result(rpc(up, "tasks/get", {"id": id_}))
    assert found["contextId"] == "talk-1"
    assert found["history"][0]["parts"][1] == {"kind": "data", "data": {"n": [1, None]}}
    cora.tasks.cancel(id_)


def test_a_message_that_is_sent_again_is_one_task(up: Served, cora: Fleet) -> None:
    with ThreadPoolExecutor(8) as many:
        found = set(many.map(lambda _: sent(up, "twice"), range(8)))
    assert len(found) == 1
    assert sent(up, "thrice") not in found
    other = message("twice", text="Something else")
    assert code(rpc(up, "SendMessage", other)) == -32602
    for id_ in (*found, sent(up, "thrice")):
        cora.tasks.cancel(id_)
        assert state(up, id_) == "TASK_STATE_CANCELED"
    assert {sent(up, "twice")} == found


def test_a_skill_need_not_be_named_where_there_is_one(up: Served, cora: Fleet) -> None:
    asked = message("one-skill", metadata={})
    path = f"/a2a/skills/{SKILL}"
    task = result(rpc(up, "SendMessage", asked, path))["task"]
    assert task["metadata"]["skill"] == SKILL
    assert code(rpc(up, "SendMessage", message("two", metadata={}), "/a2a/agents/cora")) == -32602
    cora.tasks.cancel(task["id"])


def test_an_unknown_skill_is_refused_with_those_that_exist(up: Served, cora: Fleet) -> None:
    for named in ("latin", "", "*"):
        found = rpc(up, "SendMessage", message(f"un-{named}", metadata={"skill": named}))
        assert code(found) == -32602
        assert SKILL in found.json["error"]["message"]
    assert cora.tasks.list(label=["a2a"], title="un-").tasks == ()


@BOTH
def test_a_cancelled_task_is_taken_from_its_worker(up: Served, cora: Fleet, version: str) -> None:
    id_ = sent(up, f"cancel-{version}")
    claim = claimed(cora, id_)
    assert state(up, id_, version) == ("working" if version == "0.3" else "TASK_STATE_WORKING")
    for _ in range(2):
        found = result(rpc(up, CANCEL[version], {"id": id_}))
        assert found["status"]["state"].lower().endswith("canceled")
    assert isinstance(cora.tasks.complete(id_, token=claim.token), interlock.Fenced)


def test_a_task_that_has_ended_cannot_be_cancelled(up: Served, cora: Fleet) -> None:
    id_ = sent(up, "over")
    claim = claimed(cora, id_)
    cora.tasks.complete(id_, token=claim.token, result="done")
    assert code(rpc(up, "CancelTask", {"id": id_})) == -32002
    found = result(rpc(up, "GetTask", {"id": id_}))
    assert found["artifacts"][0]["parts"] == [{"text": "done"}]
    assert code(rpc(up, "SendMessage", message("more", taskId=id_))) == -32004


def test_a_failed_task_says_why(up: Served, cora: Fleet) -> None:
    id_ = sent(up, "fails")
    claim = claimed(cora, id_)
    cora.tasks.fail(id_, "no compiler", token=claim.token, retry=False)
    status = result(rpc(up, "GetTask", {"id": id_}))["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    assert "no compiler" in status["message"]["parts"][0]["text"]


def test_every_state_of_a_task_is_one_of_the_protocol() -> None:
    known = {"submitted", "working", "completed", "failed", "canceled", "rejected"}
    assert set(wire.STATES) == set(STATES)
    assert set(wire.STATES.values()) | {"canceled"} == known
    view = TaskView(task="t", state="failed", priority=5, attempts=0, retries=3)
    assert wire.task_state(view) == "failed"


def test_a_wait_has_an_end_and_the_task_goes_on(up: Served, home: Shell, cora: Fleet) -> None:
    id_ = sent(up, "waits")
    place = str(home.folder / ".interlock" / "store.db")
    clients = Clients(lambda: open_store(place, create=False))
    tasks = A2ATasks(clients, Caller("act", "maria"))
    assert tasks.wait(id_, 0.05, lambda: False).state == "pending"
    assert tasks.wait(id_, 60.0, lambda: True).state == "pending"
    clients.close()
    cora.tasks.cancel(id_)


def test_a_sender_that_leaves_ends_its_wait_and_not_its_task(up: Served, cora: Fleet) -> None:
    asked = message("leaves") | {"configuration": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": asked})
    head = f"POST /a2a HTTP/1.1\r\n{up.lines}Content-Length: {len(body)}\r\n\r\n"
    with (
        cora.tasks.subscribe(prefix="a2a-") as published,
        socket.create_connection((up.name, up.port), timeout=PATIENCE) as leaving,
    ):
        leaving.sendall(f"{head}{body}".encode())
        (event,) = published.take(PATIENCE)
    claim = claimed(cora, event.task)
    cora.tasks.complete(claim.task, token=claim.token)
    assert state(up, claim.task) == "TASK_STATE_COMPLETED"
    assert sent(up, "leaves") == claim.task


# ---- callers


def test_a_caller_sees_its_own_tasks_alone(
    closed: Served, cora: Fleet, tokens: dict[str, str]
) -> None:
    act, admin, read = (
        {"authorization": f"Bearer {tokens[role]}"} for role in ("act", "admin", "read")
    )
    own = result(rpc(closed, "SendMessage", message("own"), **act))["task"]["id"]
    same = result(rpc(closed, "SendMessage", message("own"), **admin))["task"]["id"]
    assert own != same
    for other in (admin, read):
        unknown = rpc(closed, "GetTask", {"id": own}, **other)
        assert code(unknown) == code(rpc(closed, "GetTask", {"id": own[:-1]}, **other)) == -32001
    assert code(rpc(closed, "CancelTask", {"id": own}, **admin)) == -32001
    assert code(rpc(closed, "GetTask", {"id": "before"}, **admin)) == -32001
    for task, caller in ((own, act), (same, admin)):
        assert result(rpc(closed, "CancelTask", {"id": task}, **caller))


def test_a_message_needs_a_token_that_may_act(
    closed: Served, cora: Fleet, tokens: dict[str, str]
) -> None:
    read = {"authorization": f"Bearer {tokens['read']}"}
    for method, params in (("SendMessage", message("role")), ("CancelTask", {"id": "x"})):
        refused = rpc(closed, method, params, **read)
        assert (refused.status, refused.json["error"]) == (403, "wrong_role")
        assert rpc(closed, method, params).status == 401
    assert code(rpc(closed, "GetTask", {"id": "x"}, **read)) == -32001


def test_a_foreign_page_is_refused(up: Served, cora: Fleet) -> None:
    foreign = ({"host": "evil.example"}, {"origin": "https://evil.example"})
    for headers, status in zip(foreign, (421, 403), strict=True):
        assert up.ask("GET", CARD, None, **headers).status == status
        assert rpc(up, "SendMessage", message("foreign"), **headers).status == status
    assert rpc(up, "GetTask", {"id": "x"}, content_type="text/plain").status == 415


# ---- wrong requests


def body(**more: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": "GetTask"} | more).encode()


def sending(**more: Any) -> bytes:
    return body(method="SendMessage", params=message("wrong", **more))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"null", -32600),
        (body(jsonrpc="1.0"), -32600),
        (body(id=None), -32600),
        (body(id=True), -32600),
        (body(id=[1]), -32600),
        (body(method=5), -32600),
        (body(method="tasks/steal"), -32601),
        (body(params=[1]), -32602),
        (body(params={}), -32602),
        (body(params={"id": 5}), -32602),
        (body(params={"id": "a" * 10_000}), -32001),
        (body(params={"id": "../x"}), -32001),
        (body(method="SendStreamingMessage"), -32004),
        (body(method="tasks/resubscribe"), -32004),
        (body(method="ListTasks"), -32004),
        (body(method="tasks/pushNotificationConfig/set"), -32003),
        (body(method="SendMessage", params={"message": {}}), -32602),
        (sending(role="agent"), -32602),
        (sending(messageId=""), -32602),
        (sending(messageId="x" * 300), -32602),
        (sending(contextId="x" * 300), -32602),
        (sending(metadata={"skill": 5}), -32602),
        (sending(metadata={"skill": "a b\u0000"}), -32602),
        (sending(parts=[]), -32602),
        (sending(parts=["x"]), -32602),
        (sending(parts=[{"text": "x"}] * 101), -32602),
        (sending(parts=[{"text": 5}]), -32602),
        (sending(parts=[{"text": "bell \u0007"}]), -32602),
        (sending(parts=[{"text": "x" * 70_000}]), -32602),
        (sending(parts=[{"data": "x" * 1_200_000}]), -32602),
        (sending(parts=[{"data": json.loads("[" * 200 + "]" * 200)}]), -32602),
        (sending(parts=[{"raw": "aGk="}]), -32005),
        (sending(parts=[{"url": "https://x/y"}]), -32005),
        (sending(parts=[{"kind": "file", "file": {"bytes": "aGk="}}]), -32005),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(
    up: Served, cora: Fleet, data: bytes, expected: int
) -> None:
    found = up.ask("POST", "/a2a", data, content_type="application/json")
    assert code(found) == expected
    assert found.json["error"]["message"]
    assert not cora.tasks.list(requires=[SKILL], state=["pending"]).tasks


def test_a_push_notification_and_another_version_are_refused(up: Served, cora: Fleet) -> None:
    asked = message("push")
    asked["configuration"]["taskPushNotificationConfig"] = {"url": "http://169.254.169.254/"}
    assert code(rpc(up, "SendMessage", asked)) == -32003
    asked = message("push", "0.3")
    asked["configuration"]["pushNotificationConfig"] = {"url": "http://localhost/"}
    assert code(rpc(up, "message/send", asked)) == -32003
    assert code(rpc(up, "GetTask", {"id": "x"}, a2a_version="2.0")) == -32009
    assert code(rpc(up, "GetTask", {"id": "x"}, a2a_version="1.0")) == -32001


def test_a_body_that_is_too_large_is_refused(up: Served) -> None:
    assert up.ask("POST", "/a2a", b"x" * (9 << 20), content_type="application/json").status == 413
