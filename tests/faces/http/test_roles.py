"""What a valid token of each role may do, and what it may not do to the others."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.faces.http.served import Answered, Served, served
from tests.faces.http.test_access import bearer, begun, code
from tests.faces.http.test_mcp import begin, call
from tests.faces.shell import PATIENCE, Shell, until

from interlock.faces.http import app, roles
from interlock.faces.http.access import Access, Caller, Refused
from interlock.faces.http.app import WebServer
from interlock.faces.http.clients import Clients
from interlock.faces.http.operations import CHANGING, endpoints
from interlock.faces.http.replies import MOST_INNER
from interlock.faces.http.roles import ACT, ADMIN, ADMIN_FIELDS, OWN, least, needed
from interlock.faces.http.shares import Shares
from interlock.runtime.operation import MOST_BODY
from interlock.stores.memory import MemoryStore

OFFERED = {each.operation.name: each for each in endpoints().values()}
TABLE = Path(__file__).with_name("roles.txt")
ROLES = ("read", "act", "admin")
JSON = {"content_type": "application/json"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A store with tasks, a schedule and pipelines of an admin, and with two guards."""
    folder = tmp_path_factory.mktemp("fleet")
    shell = Shell(folder, INTERLOCK_AGENT="lead", INTERLOCK_GUARDS_DIR=f"{folder}/allowed")
    assert shell.run("init").status == 0
    (shell.folder / "guards.toml").write_text(
        '[guard.calm]\nwhen = { lock_free = "storm" }\n'
        f"[guard.ran]\nwhen = {{ command = ['touch', '{shell.folder}/ran'] }}\n"
    )
    (shell.folder / "release.toml").write_text('[[pipeline.release.phase]]\nname = "one"\n')
    for words in (
        ("guard", "define", "guards.toml"),
        ("pipeline", "define", "release.toml"),
        ("pipeline", "start", "release", "--id", "theirs"),
        ("task", "add", "theirs", "--title", "deploy", "--guard", "calm", "--evidence", "calm"),
        ("task", "add", "given-up"),
        ("task", "cancel", "given-up"),
        ("schedule", "add", "nightly", "--every", "1h"),
    ):
        done = shell.run(*words)
        assert done.status == 0, done
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def server(fleet: Shell) -> Iterator[Served]:
    with served(fleet, "--require-token") as found:
        yield found


@pytest.fixture(scope="module")
def tokens(fleet: Shell) -> dict[str, dict[str, str]]:
    """The header of a token of each role, which speaks for the agent of that name."""
    made = {}
    for role in ROLES:
        done = fleet.run("up", "--token", role, "--as", role, "--json")
        made[role] = bearer(done.json["token"])
    return made


# ---- the table


def cells(name: str, field: str = "") -> str:
    """What each role may do: yes, no, or only with what its agent began itself (own)."""
    role = least(name) if not field else needed(name, changes=True, given=(field,))
    if not field and name in ADMIN and not OFFERED[name].reads:
        role = "admin"
    found = []
    for each in ROLES:
        word = "yes" if ROLES.index(each) >= ROLES.index(role) else "no"
        found.append("own" if each == "act" and role == "admin" and name in OWN else word)
    return " ".join(f"{each:5}" for each in found).rstrip()


def rows() -> list[str]:
    found = [f"{'':28}" + " ".join(f"{each:5}" for each in ROLES).rstrip()]
    for name in sorted(OFFERED):
        found.append(f"{name:28}{cells(name)}")
        if field := CHANGING.get(name) or ADMIN_FIELDS.get(name):
            found.append(f"{f'{name}, {field}':28}{cells(name, field)}")
    return found


def test_the_table_says_what_each_role_may_do() -> None:
    """A new operation needs its line here: what a ``read`` and an ``act`` token can do with it."""
    assert TABLE.read_text().splitlines() == rows()


def test_every_operation_that_changes_something_has_a_role_that_was_chosen() -> None:
    """A new one belongs into ACT or ADMIN (roles.py); until then it needs an admin."""
    changing = {name for name, each in OFFERED.items() if not each.reads or name in CHANGING}
    assert changing == ACT | ADMIN
    assert not ACT & ADMIN
    assert set(ADMIN_FIELDS) <= ACT
    assert set(OWN) <= ADMIN | set(ADMIN_FIELDS)
    for name, field in ADMIN_FIELDS.items():
        assert field in OFFERED[name].fields


def test_an_operation_without_a_role_needs_an_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed("task next", changes=True) == "act"
    monkeypatch.setattr(roles, "ACT", ACT - {"task next"})
    assert needed("task next", changes=True) == least("task next") == "admin"
    assert needed("task list", changes=True) == "act"  # as a tool, which acts as an agent
    assert needed("task list", changes=False) == "read"


@pytest.mark.parametrize("role", ROLES)
def test_the_server_does_as_the_table_says(
    server: Served, tokens: dict[str, dict[str, str]], role: str
) -> None:
    """Each operation with each role: a body that is no JSON shows who was heard."""
    for line in TABLE.read_text().splitlines()[1:]:
        name, may = line[:28].strip(), line[28:].split()[ROLES.index(role)]
        if "," in name:
            continue
        expected = (403, "wrong_role") if may == "no" else (400, "bad_input")
        found = server.ask("POST", f"/api/{name.replace(' ', '/')}", b"{", **JSON, **tokens[role])
        assert code(found) == expected, name


# ---- what belongs to others


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("task edit", {"task": "theirs", "remove_guard": ["calm"]}),
    ("task edit", {"task": "theirs", "evidence": []}),
    ("task edit", {"task": "theirs", "text": "rm -rf /"}),
    ("task edit", {"task": "theirs", "data": {"run": "rm -rf /"}}),
    ("task edit", {"task": "theirs", "add_needs": ["given-up"]}),
    ("task edit", {"task": "theirs", "priority": 1}),
    ("task retry", {"task": "given-up"}),
    ("task cancel", {"task": "theirs"}),
    ("task drop", {"tasks": ["theirs"]}),
    ("task requeue", {"task": "theirs", "reason": "x"}),
    ("task add", {"task": "given-up", "text": "mine now", "again": True}),
    ("schedule add", {"schedule": "nightly", "every": "1s", "replace": True}),
    ("pipeline advance", {"pipeline": "theirs"}),
    ("pipeline cancel", {"pipeline": "theirs"}),
    ("budget count", {"input": 5, "task": "theirs"}),
    ("budget uncount", {"thing": "agent/act"}),
    ("merge cancel", {"merge": "m"}),
    ("request cancel", {"request": "r"}),
    ("unreserve", {"all": True, "holder": "lead", "reason": "x"}),
    ("swarm shared", {"key": "k", "accept": True}),
    ("swarm trust", {"name": "bank", "forgive": True}),
    ("lock break", {"lock": "held", "reason": "x"}),
    ("agent pause", {"name": "lead"}),
    ("guard drop", {"guard": "calm"}),
    ("stop", {"who": "lead"}),
]


@pytest.mark.parametrize(("name", "given"), OTHERS, ids=lambda each: json.dumps(each)[:50])
def test_an_act_token_changes_nothing_that_others_began(
    server: Served, tokens: dict[str, dict[str, str]], name: str, given: dict[str, Any]
) -> None:
    def state() -> list[bytes]:
        looks: tuple[tuple[str, dict[str, str]], ...] = (
            ("task show", {"task": "theirs"}), ("task show", {"task": "given-up"}),
            ("pipeline show", {"pipeline": "theirs"}), ("schedule show", {"schedule": "nightly"}),
            ("budget show", {}), ("guard list", {}),
        )  # fmt: skip
        return [server.get(each, tokens["read"], **asked).body for each, asked in looks]

    before = state()
    assert code(server.post(name, given, **tokens["act"])) == (403, "wrong_role")
    assert state() == before


def test_an_agent_edits_retries_and_drops_what_it_or_its_sub_agent_published(
    server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    act = tokens["act"]
    sub = begun(server, act, agent="act/planner")
    for who, task in ((act, "own"), (sub, "own/part")):
        assert server.post("task add", {"task": task, "guard": ["calm"]}, **who).status == 200
        edited = server.post("task edit", {"task": task, "remove_guard": ["calm"]}, **act)
        assert edited.json["changed"]["guards"]["new"] == []
        assert server.post("task cancel", {"task": task}, **act).status == 200
        assert server.post("task retry", {"task": task}, **act).status == 200
        assert server.post("task cancel", {"task": task}, **act).status == 200
        assert server.post("task add", {"task": task, "again": True}, **act).status == 200
        assert server.post("task drop", {"tasks": [task]}, **act).status == 200
    assert server.post("task add", {"task": "fresh", "again": True}, **act).status == 200
    for _ in range(2):
        given = {"schedule": "mine", "every": "1h", "replace": True}
        assert server.post("schedule add", given, **act).status == 200
    assert server.post("pipeline start", {"name": "release", "id": "mine"}, **act).status == 200
    assert server.post("pipeline advance", {"pipeline": "mine"}, **act).status == 200


def test_an_admin_changes_what_others_began(
    server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    assert server.post("task add", {"task": "edited"}, **tokens["act"]).status == 200
    for role, status in (("read", 403), ("act", 200), ("admin", 200)):
        given = {"task": "edited", "priority": len(role)}
        assert server.post("task edit", given, **tokens[role]).status == status


def test_a_model_over_http_does_no_more_than_its_token(
    server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    act = begin(server, "?agent=act/model", **tokens["act"])
    said = call(server, act, "task_add", task="given-up", text="mine now", again=True)
    assert "wrong_role" in said
    assert "published" in call(server, act, "task_add", task="of-model", again=True)


def test_a_claim_that_another_agent_has_cannot_be_ended_with_its_token(
    fleet: Shell, server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    assert fleet.run("task", "add", "held").status == 0
    held = fleet.run("task", "claim", "held", "--json").json["token"]
    lock = fleet.run("lock", "acquire", "held", "--json").json["token"]
    for name in ("beat", "done", "fail", "release"):
        found = server.post(f"task {name}", {"task": "held", "token": held}, **tokens["act"])
        assert (found.status, found.json["outcome"]) == (409, "not_owner"), name
    for name in ("beat", "release"):
        found = server.post(f"lock {name}", {"lock": "held", "token": lock}, **tokens["act"])
        assert (found.status, found.json["outcome"]) == (409, "not_owner"), name
    for each in ("agent", "session", "via", "by"):
        found = server.post(
            "task note", {"task": "held", "text": "x", each: "lead"}, **tokens["act"]
        )
        assert code(found) == (400, "bad_input")


def test_messages_of_others_stay_as_they_are(
    fleet: Shell, server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    sent = fleet.run("send", "bob", "hello", "--hold", "--json").json["message"]
    asked = fleet.run(
        "query", "bob", "may I?", "--hold", "--timeout", "0.01s", "--person", "--json"
    )
    query = asked.json["query"]
    server.post("ack", {"ids": [sent]}, **tokens["act"])
    for name, given in (("reply", {"id": query, "text": "yes"}), ("cancel", {"id": query})):
        found = server.post(name, given, **tokens["act"])
        assert (found.status, found.json["outcome"]) == (409, "not_owner"), name
    assert sent in fleet.run("inbox", "--agent", "bob", "--json").out


# ---- budgets


def test_an_agent_counts_for_itself_and_its_tasks_within_bounds_and_an_admin_takes_it_back(
    fleet: Shell, server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    act, admin = tokens["act"], tokens["admin"]
    assert server.post("budget set", {"thing": "fleet", "tokens": 10**9}, **admin).status == 200
    for given in ({"input": 10**9 + 1}, {"cost": "10001"}, {"agent": "lead", "input": 1}):
        assert code(server.post("budget count", given, **act)) == (400, "bad_input")
    server.post("task add", {"task": "counted"}, **act)
    given = {"input": 10**9, "task": "counted"}
    assert server.post("budget count", given, **act).json["agent"] == "act"
    assert "used up" in fleet.run("task", "claim", "counted").err
    taken = server.post("budget uncount", {"thing": "agent/act", "reason": "false"}, **admin)
    assert taken.json["tokens"] == 10**9
    assert fleet.run("task", "claim", "counted").status == 0
    logged = fleet.run("record", "log", "--verb", "budget.uncount").out
    assert "admin" in logged
    assert "false" in logged
    assert server.post("budget drop", {"thing": "fleet"}, **admin).status == 200


# ---- guards


def test_a_question_from_another_host_runs_no_command_and_shows_the_last_look(
    fleet: Shell, server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    ran = fleet.folder / "ran"
    assert fleet.run("guard", "allow", "guards.toml").status == 0
    act = tokens["act"]
    model = begin(server, "?agent=act/asks", **act)

    def asked() -> list[str]:
        why = server.get("why", headers=tokens["read"], thing="guard/ran")
        check = server.post("guard check", {"name": ["ran"]}, **act)
        server.get("guard show", headers=tokens["read"], guard="ran")
        server.get("health", headers=tokens["read"])
        call(server, model, "inbox")
        return [why.body.decode(), check.body.decode()]

    for said in asked():
        assert "no host has looked" in said
    assert not ran.exists()
    assert fleet.run("guard", "check", "--name", "ran").status == 0  # the owner, on this host
    ran.unlink()
    for said in asked():
        assert "ended with status 0, 0" in said
        assert "ago (host" in said
    assert not ran.exists()


# ---- bodies


def raw(server: Served, head: str, body: bytes = b"") -> tuple[int, Any]:
    """The answer to a request of which no more is sent."""
    with socket.create_connection((server.name, server.port), timeout=PATIENCE) as sent:
        sent.sendall(f"{head}\r\nHost: {server.host}\r\n\r\n".encode() + body)
        found = b""
        while b"\r\n\r\n" not in found or not found.endswith(b"}"):
            part = sent.recv(65536)
            assert part, found
            found += part
    top, _, text = found.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(text)["error"]


def post(path: str, *headers: str) -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Content-Type: application/json", *headers])


def test_a_role_is_checked_before_a_byte_of_the_body_is_read(
    server: Served, tokens: dict[str, dict[str, str]]
) -> None:
    size = "Content-Length: 1000000"
    read = f"Authorization: {tokens['read']['authorization']}"
    for path in ("/api/task/add", "/api/task/edit", "/api/budget/set", "/api/session"):
        assert raw(server, post(path, size, read)) == (403, "wrong_role")
        assert raw(server, post(path, size)) == (401, "unauthorized")
    for path in ("/mcp", "/a2a", "/api/health"):
        assert raw(server, post(path, size)) == (401, "unauthorized")


@pytest.mark.parametrize(
    "path", ["/api/task/add", "/api/session", "/mcp", "/api/task/done", "/a2a"]
)
def test_a_body_above_its_limit_is_refused(
    server: Served, tokens: dict[str, dict[str, str]], path: str
) -> None:
    most = MOST_BODY * (2 if path in ("/api/task/done", "/a2a") else 1)
    act = f"Authorization: {tokens['act']['authorization']}"
    assert raw(server, post(path, f"Content-Length: {most + 1}", act)) == (413, "too_large")
    chunk = b"%x\r\n%s\r\n" % (most + 1, b" " * (most + 1))
    assert raw(server, post(path, "Transfer-Encoding: chunked", act), chunk) == (413, "too_large")
    found = server.ask("POST", path, b"{" + b" " * (most - 2) + b"}", **JSON, **tokens["act"])
    assert found.status != 413


@pytest.mark.parametrize("path", ["/api/health", "/api/task/add", "/api/session", "/mcp", "/a2a"])
def test_a_body_of_very_many_lists_is_refused_before_it_is_parsed(
    server: Served, tokens: dict[str, dict[str, str]], path: str
) -> None:
    for each in (b"[]", b"{}", b"[[[[]]]]"):
        parts = MOST_INNER // each.count(each[-1:]) + 1
        body = b'{"data":[%s]}' % b",".join([each] * parts)
        found = server.ask("POST", path, body, **JSON, **tokens["act"])
        assert code(found) == (413, "too_large")


@pytest.mark.parametrize(
    "body",
    [b"[" * 500_000, b'{"data":' * 50_000, b'{"data":' + b"1" * 900_000 + b"}", b'{"data":1e999}'],
    ids=lambda body: body[:12].decode(),
)
def test_a_body_that_no_parser_takes_is_refused(
    server: Served, tokens: dict[str, dict[str, str]], body: bytes
) -> None:
    for path in ("/api/task/add", "/mcp", "/a2a", "/api/session"):
        found = server.ask("POST", path, body, **JSON, **tokens["act"])
        assert found.status in (200, 400), path
        assert found.json["error"], path


def test_a_long_body_is_parsed_beside_the_loop() -> None:
    clients = Clients(MemoryStore)
    web = WebServer(clients, Access(agent="maria", tokens=_NoTokens()))

    async def threads() -> tuple[int, int]:
        short = await web.parsed(b"x" * app.SHORT_BODY, threading.get_ident)
        return short, await web.parsed(b"x" * (app.SHORT_BODY + 1), threading.get_ident)

    short, long = asyncio.run(threads())
    assert short == threading.get_ident() != long
    web.close()


class _NoTokens:
    def met(self, _: str) -> bool:
        return False

    def caller(self, _: str) -> Caller | None:
        return None


# ---- shares


def test_many_requests_with_one_new_token_share_a_look_and_many_tokens_are_refused() -> None:
    web = WebServer(Clients(MemoryStore), Access(agent="maria", tokens=_NoTokens()))
    begun, looked = threading.Event(), list[str]()

    def look(token: str) -> str:
        assert begun.wait(PATIENCE)
        looked.append(token)
        return token

    def of_stranger(token: str) -> asyncio.Task[str]:
        return asyncio.ensure_future(web.of_stranger(token, partial(look, token)))

    async def ask() -> tuple[list[str], list[str | BaseException]]:
        leaves, *same = [of_stranger("one") for _ in range(4 * app.MOST_STRANGERS)]
        others = [of_stranger(f"t{number}") for number in range(app.MOST_STRANGERS)]
        await asyncio.sleep(0)
        leaves.cancel()
        begun.set()
        found = await asyncio.gather(*same)
        return found, await asyncio.gather(*others, return_exceptions=True)

    found, strange = asyncio.run(ask())
    assert set(found) == {"one"}
    assert looked.count("one") == 1
    refused = [each for each in strange if isinstance(each, Refused)]
    assert [each.http_status for each in refused] == [429]
    web.close()


def test_no_caller_has_more_places_than_it_leaves_to_others() -> None:
    shares = Shares(8, "calls wait")
    with ExitStack() as taken:
        for _ in range(4):
            taken.enter_context(shares.place("one"))
        with pytest.raises(Refused, match="4 calls wait here for you") as refused:
            shares.check("one")
        assert refused.value.http_status == 429
        for who in ("two", "two", "three", "four"):
            taken.enter_context(shares.place(who))
        with pytest.raises(Refused, match="8 calls wait here already") as refused:
            shares.check("five")
        assert refused.value.http_status == 503
    shares.check("one")


def opened(server: Served, path: str, token: dict[str, str], stack: ExitStack) -> socket.socket:
    """A request that stays open until the end of the block."""
    line = stack.enter_context(socket.create_connection((server.name, server.port), PATIENCE))
    head = f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nAuthorization: {token['authorization']}"
    line.sendall(f"{head}\r\n\r\n".encode())
    return line


@pytest.fixture
def second(fleet: Shell) -> dict[str, str]:
    """Another token of the same agent and role."""
    return bearer(fleet.run("up", "--token", "read", "--as", "read", "--json").json["token"])


def test_a_caller_that_holds_its_share_of_waits_leaves_the_others_working(
    server: Served, tokens: dict[str, dict[str, str]], second: dict[str, str]
) -> None:
    def wait(token: dict[str, str]) -> Answered:
        return server.get("wait", token, timeout="0.05s")

    with ExitStack() as stack:
        for _ in range(app.WAITING // 2):
            opened(server, "/api/wait?timeout=45s", tokens["read"], stack)
        until(lambda: wait(tokens["read"]).status == 429)
        refused = wait(tokens["read"])
        assert "end one of yours first" in refused.json["message"]
        assert refused.headers["retry-after"]
        for other in (tokens["act"], second):
            assert wait(other).json == {"outcome": "nothing"}


def test_a_caller_that_holds_its_share_of_streams_leaves_the_others_working(
    server: Served, tokens: dict[str, dict[str, str]], second: dict[str, str]
) -> None:
    with ExitStack() as stack:
        for _ in range(app.MOST_STREAMS // 2):
            line = opened(server, "/api/events", tokens["read"], stack)
            assert line.recv(12) == b"HTTP/1.1 200"
        assert code(server.get("events", tokens["read"])) == (429, "too_many")
        for other in (tokens["act"], second):
            with server.events(**other):
                pass
