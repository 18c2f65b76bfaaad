"""Who is heard: hosts, origins, tokens, roles, sessions; and attacks on each."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.faces.http.served import Answered, Served
from tests.faces.shell import PATIENCE, Shell


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def code(answer: Answered) -> tuple[int, str]:
    return answer.status, answer.json["error"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:7700", "127.0.0.1.evil", "127.0.0.1.evil.com:80", "", "[",
        "[::1].evil.com", "[::1].evil.com:80", "[::1]evil.com", "[::1]:80.evil.com", "[::1", "::1",
        "[::1]:", "[127.0.0.1]", "[localhost]", "[fe80::1%25eth0]", "[::1%1]", "localhost.",
        "127.0.0.1.", ".localhost", "localhost:", "localhost:80@evil.com", "localhost:80.evil.com",
        "localhost:-1", "localhost:8o", "localhost:123456", "localhost:1:2", "localhost,evil.com",
        "evil.com@localhost", "localhost@evil.com", "localhost evil.com", "localhost/evil.com",
        "localhost#evil.com", "localhost?evil.com", "localhost\\evil.com", "http://localhost",
        "localhost\xb2", "localhost%2eevil.com", "127.1", "0x7f000001", "2130706433",
        "0177.0.0.1", "*",
    ],
)  # fmt: skip
def test_a_host_that_is_none_of_ours_is_refused(up: Served, host: str) -> None:
    """A page whose name leads to this machine (DNS rebinding) gets nothing."""
    for path in ("/", "/api/health", "/api/events", "/healthz", "/metrics", "/mcp"):
        assert code(up.ask("GET", path, host=host)) == (421, "wrong_host")
    assert code(up.post("lock acquire", {"lock": "x"}, host=host)) == (421, "wrong_host")


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]:80", "[::1]", "LocalHost:65535", "127.0.0.1:1"]
)
def test_every_name_of_this_machine_is_accepted(up: Served, host: str) -> None:
    assert up.get("health", headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": ""},
        {"origin": "http://{host}.evil.com"},
        {"origin": "http://evil.com@{host}"},
        {"origin": "http://{host}@evil.com"},
        {"origin": "http://{host}/"},
        {"origin": "http://{host},http://evil.com"},
        {"origin": "file://{host}"},
        {"origin": "{host}"},
        {"origin": "http://[::1].evil.com"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_a_page_of_another_site_is_refused(up: Served, headers: dict[str, str]) -> None:
    headers = {name: value.replace("{host}", up.host) for name, value in headers.items()}
    assert code(up.post("lock acquire", {"lock": "x"}, **headers)) == (403, "wrong_origin")
    assert code(up.get("health", headers=headers)) == (403, "wrong_origin")


@pytest.mark.parametrize(
    "head",
    [
        "GET /api/health HTTP/1.1\r\nHost: evil.com\r\n{lines}",
        "GET /api/health HTTP/1.1\r\n{lines}Host: evil.com\r\n",
        "GET /api/health HTTP/1.1\r\n{lines}Host: {host}\r\n",
        "GET /api/health HTTP/1.1\r\nAuthorization: Bearer {token}\r\n",
        "GET /api/health HTTP/1.0\r\nAuthorization: Bearer {token}\r\n",
        "GET http://evil.com/api/health HTTP/1.1\r\n{lines}",
        "GET http://evil.com/ HTTP/1.1\r\n{lines}",
        "GET evil.com/api/health HTTP/1.1\r\n{lines}",
        "GET /api/health HTTP/1.1\r\n{lines}Origin: http://{host}\r\nOrigin: http://evil.com\r\n",
    ],
)
def test_a_request_that_names_two_places_or_none_is_refused(up: Served, head: str) -> None:
    asked = head.format(lines=up.lines, host=up.host, token=up.token)
    with socket.create_connection((up.name, up.port), timeout=PATIENCE) as line:
        line.sendall(f"{asked}Connection: close\r\n\r\n".encode())
        status = line.makefile("rb").readline().split()[1]
    assert status in (b"400", b"403", b"404", b"421")


def test_our_own_page_is_heard_and_a_link_to_it_works(up: Served) -> None:
    own = {"origin": f"http://{up.host}", "sec_fetch_site": "same-origin"}
    assert up.get("health", headers=own).status == 200
    assert up.ask("GET", "/", sec_fetch_site="cross-site").status == 200


def test_a_form_of_another_page_cannot_be_sent(up: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        found = up.ask("POST", "/api/lock/acquire", b'{"lock": "x"}', content_type=kind)
        assert code(found) == (415, "wrong_type")


def test_without_a_token_a_closed_server_answers_nothing(closed: Served) -> None:
    for path in ("/api/health", "/api/overview", "/api/events", "/metrics", "/openapi.json"):
        assert code(closed.ask("GET", path)) == (401, "unauthorized")
    assert code(closed.post("lock acquire", {"lock": "x"})) == (401, "unauthorized")
    assert code(closed.post("session")) == (401, "unauthorized")
    assert set(closed.ask("GET", "/healthz").json) == {"status"}


def wrong_tokens(token: str) -> list[str]:
    start, id_, secret = token.split("_")
    return [
        "", "x", token[:-1], token + "0", f"{start}_{id_}_{'0' * 64}", f"{start}__{secret}",
        f"{start}_{id_}", f"{start}_{'0' * 12}_{secret}", "x" * 5000, f"{start}_../{id_}_x",
    ]  # fmt: skip


def test_a_token_that_is_none_is_refused(closed: Served, tokens: dict[str, str]) -> None:
    for wrong in wrong_tokens(tokens["admin"]):
        assert code(closed.get("health", headers=bearer(wrong))) == (401, "unauthorized")
        cookie = {"cookie": f"interlock_{closed.port}={wrong}"}
        assert closed.get("health", headers=cookie).status == 401
    assert closed.get("health", headers={"authorization": tokens["admin"]}).status == 401
    assert closed.get("health", headers=bearer(tokens["read"])).status == 200


def test_a_wrong_token_is_refused_where_none_is_needed(up: Served) -> None:
    assert code(up.get("health", headers=bearer("il_x_y"))) == (401, "unauthorized")


def test_a_token_in_the_address_of_the_api_is_refused(
    closed: Served, tokens: dict[str, str]
) -> None:
    for name in ("token", "access_token", "Token"):
        found = closed.ask("GET", f"/api/health?{name}={tokens['admin']}")
        assert code(found) == (400, "token_in_url")
        assert tokens["admin"] not in found.body.decode()


def test_a_role_does_what_it_is_for_and_no_more(closed: Served, tokens: dict[str, str]) -> None:
    read, act, admin = (bearer(tokens[role]) for role in ("read", "act", "admin"))
    assert closed.get("task list", headers=read).status == 200
    assert code(closed.post("lock acquire", {"lock": "role"}, **read)) == (403, "wrong_role")
    assert code(closed.post("inbox", {"ack": True}, **read)) == (403, "wrong_role")
    assert code(closed.post("session", {}, **read)) == (403, "wrong_role")
    assert closed.post("lock acquire", {"lock": "role"}, **act).json["holder"] == "act"
    given = {"lock": "role", "reason": "a test"}
    assert code(closed.post("lock break", given, **act)) == (403, "wrong_role")
    assert closed.post("lock break", given, **admin).status == 200


def test_a_look_at_swarms_needs_no_more_than_to_read(
    closed: Served, tokens: dict[str, str]
) -> None:
    read, act = bearer(tokens["read"]), bearer(tokens["act"])
    for name in ("swarm list", "swarm trust"):
        for found in (closed.get(name, headers=read), closed.post(name, {}, **read)):
            assert found.json.get("outcome") in (None, "not_registered")
    forgive = {"name": "bank", "forgive": True}
    assert code(closed.post("swarm trust", forgive, **act)) == (403, "wrong_role")
    assert closed.get("swarm trust", headers=read, name="bank", forgive="true").status == 405
    assert closed.post("swarm register", {"name": "x"}, **act).status == 404


def test_the_limits_and_the_work_of_others_are_for_admins(
    closed: Served, tokens: dict[str, str]
) -> None:
    act, admin = bearer(tokens["act"]), bearer(tokens["admin"])
    for name, given in (
        ("budget set", {"thing": "agent/act", "tokens": 5}),
        ("task requeue", {"task": "before", "reason": "x"}),
        ("swarm sync", {}),
        ("unreserve", {"all": True, "holder": "bob", "reason": "x"}),
    ):
        assert code(closed.post(name, given, **act)) == (403, "wrong_role"), name
        assert closed.post(name, given, **admin).status != 403, name
    assert closed.post("budget drop", {"thing": "agent/act"}, **admin).status == 200


@pytest.mark.parametrize("holder", ["", "all", "?rust", "-x", "a b\x00", "x" * 600])
def test_a_holder_is_the_name_of_an_agent(up: Served, holder: str) -> None:
    assert code(up.get("reservations", holder=holder))[0] == 400


def test_a_revoked_token_is_refused_soon(closed: Served, home: Shell) -> None:
    made = home.run("up", "--token", "read", "--json").json
    assert closed.get("health", headers=bearer(made["token"])).status == 200
    assert made["id"] in home.run("up", "--list-tokens").out
    assert made["token"] not in home.run("up", "--list-tokens", "--json").out
    assert home.run("up", "--revoke", made["id"]).status == 0
    ends = time.monotonic() + PATIENCE
    while closed.get("health", headers=bearer(made["token"])).status != 401:
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert home.run("up", "--revoke", made["id"]).status == 1


def test_the_store_and_the_record_have_no_token(home: Shell, tokens: dict[str, str]) -> None:
    secret = tokens["admin"].split("_")[2].encode()
    for place in filter(Path.is_file, home.folder.rglob("store.db*")):
        assert secret not in place.read_bytes()


def test_the_page_turns_a_token_into_a_cookie_that_scripts_cannot_read(
    closed: Served, tokens: dict[str, str]
) -> None:
    found = closed.ask("GET", f"/?token={tokens['act']}&tab=tasks")
    assert (found.status, found.headers["location"]) == (303, "/?tab=tasks")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    sent = {"cookie": cookie.partition(";")[0]}
    assert closed.get("health", headers=sent).status == 200
    assert code(closed.ask("GET", "/?token=il_a_b")) == (401, "unauthorized")
    with closed.events(cookie=sent["cookie"]) as events:
        assert events.hello.data["role"] == "act"


def begun(server: Served, headers: dict[str, str], **given: Any) -> dict[str, str]:
    found = server.post("session", given, **headers)
    assert found.status == 200, found.body
    return {**headers, "interlock_session": found.json["handle"]}


def test_a_session_acts_as_its_agent_and_ends_with_all_that_it_holds(
    up: Served, home: Shell
) -> None:
    bob = begun(up, {}, agent="bob")
    assert up.post("lock acquire", {"lock": "s1"}, **bob).json["holder"] == "bob"
    assert up.post("session/beat", None, **bob).status == 200
    left = up.ask("DELETE", "/api/session", None, **bob)
    assert left.json["released"] == ["s1"]
    assert code(up.post("lock acquire", {"lock": "s1"}, **bob)) == (409, "lapsed")
    assert home.run("lock", "acquire", "s1", "--agent", "eve").status == 0


def test_a_session_without_requests_expires(up: Served, home: Shell) -> None:
    bob = begun(up, {}, agent="bob", ttl=1)
    assert up.post("lock acquire", {"lock": "s2"}, **bob).status == 200
    assert home.run("lock", "acquire", "s2", "--agent", "eve", "--wait", "10s").status == 0
    assert code(up.post("session/beat", None, **bob)) == (409, "lapsed")


def test_a_wait_keeps_its_session_alive(up: Served, home: Shell) -> None:
    assert home.run("lock", "acquire", "s3", "--agent", "eve").status == 0
    bob = begun(up, {}, agent="bob", ttl=1)
    found = up.post("lock acquire", {"lock": "s3", "wait": "2s"}, **bob)
    assert (found.status, found.json["outcome"]) == (409, "busy")
    assert up.post("session/beat", None, **bob).status == 200


def test_sub_agents_have_sessions_of_their_own(closed: Served, tokens: dict[str, str]) -> None:
    token = bearer(tokens["act"])
    one, two = (begun(closed, token, agent=f"act/{name}") for name in ("one", "two"))
    assert closed.post("lock acquire", {"lock": "s4"}, **one).json["holder"] == "act/one"
    found = closed.post("lock acquire", {"lock": "s4"}, **two)
    assert (found.status, found.json["holder"]) == (409, "act/one")


def test_nobody_speaks_for_another_agent(closed: Served, tokens: dict[str, str]) -> None:
    act, admin = bearer(tokens["act"]), bearer(tokens["admin"])
    for name in ("bob", "admin", "actor", "ac"):
        assert code(closed.post("session", {"agent": name}, **act)) == (403, "wrong_agent")
    bob = begun(closed, admin, agent="bob")
    stolen = {**act, "interlock_session": bob["interlock_session"]}
    assert code(closed.post("lock acquire", {"lock": "x"}, **stolen)) == (403, "wrong_agent")
    named = {**act, "interlock_agent": "bob"}
    assert code(closed.post("lock acquire", {"lock": "x"}, **named)) == (403, "wrong_agent")
    for field in ("agent", "session"):
        given = {"lock": "x", field: "bob"}
        assert code(closed.post("lock acquire", given, **act)) == (400, "bad_input")


@pytest.mark.parametrize(
    "handle", ["", "x", "ses_1.2", "ses_../x.y", "ses_" + "0" * 32 + "." + "0" * 64, "é" * 9]
)
def test_a_handle_that_is_none_is_refused(up: Served, handle: str) -> None:
    sent = handle.encode().decode("latin-1")
    found = up.post("lock acquire", {"lock": "x"}, interlock_session=sent)
    assert found.status in (400, 409)
    right = begun(up, {}, agent="bob")["interlock_session"]
    session = json.dumps(right.partition(".")[0])
    assert code(up.post("session/beat", None, interlock_session=f"{session}.0")) == (409, "lapsed")
