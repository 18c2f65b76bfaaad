"""The token of the user: who gets in with it, where it is kept, and where it is not shown."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route
from tests.faces.http.served import Served, served
from tests.faces.shell import COMMAND, PATIENCE, Shell, until

from interlock.errors import NotAllowed
from interlock.faces.http import app as app_module
from interlock.faces.http import user_token
from interlock.faces.http.access import Access
from interlock.faces.http.operations import endpoints
from interlock.faces.http.server import _access
from interlock.nouns.fleet.server_noun import UpRequest

STATIC = {"/", "/assets/{name:path}", "/.well-known/agent-card.json", "/healthz"}
"""What a stranger may have: files of the package, what A2A asks for, whether the store works."""
ADDRESS = re.compile(r"serving http://(\S+)/\?token=(\S+) as ")


def routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Each method and path that a server has."""
    made: list[Any] = []
    monkeypatch.setattr(app_module, "Starlette", lambda **options: made.extend(options["routes"]))
    server: Any = SimpleNamespace(access=None)
    app_module.make_app(server)
    assert made
    for route in made:
        assert isinstance(route, Route)
        for method in sorted(route.methods or ()):
            for name in endpoints() if route.path == "/api/{path:path}" else [""]:
                path = re.sub(r"\{path:path\}", name, route.path)
                if path not in STATIC:
                    yield method, re.sub(r"\{\w+:path\}", "x", path)


def printed(shell: Shell) -> str:
    """The address that ``interlock open`` prints, as soon as the server has announced itself."""
    done = until(lambda: (done := shell.run("open")).status == 0 and done)
    found: str = done.out.rstrip("\n")
    return found


def test_another_user_gets_nothing_from_any_route(
    up: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, count = up.stranger(), 0
    for method, path in routes(monkeypatch):
        for headers in ({}, {"authorization": f"Bearer {'0' * 72}"}, {"cookie": "interlock=x"}):
            found = stranger.ask(method, path, b"{}", content_type="application/json", **headers)
            assert found.status == 401, (method, path, found.body)
            assert up.token.encode() not in found.body
            count += 1
    assert count > 300
    assert set(stranger.ask("GET", "/healthz").json) == {"status"}
    card = stranger.ask("GET", "/.well-known/agent-card.json").json
    assert card["skills"] == []


def test_the_answer_to_a_stranger_says_in_one_line_where_the_token_is(up: Served) -> None:
    found = up.stranger().get("health")
    assert "'interlock open' prints the address with the token" in found.json["message"]
    assert found.headers["www-authenticate"] == "Bearer"


def test_the_printed_address_opens_the_page_and_leaves_no_token_in_it(shell: Shell) -> None:
    shell.exported["INTERLOCK_SERVER_DIR"] = str(shell.folder / "server")
    process = shell.start("up", "--port", "0")
    assert process.stdout is not None
    said = ADDRESS.match(process.stdout.readline())
    assert said
    connection = http.client.HTTPConnection(said[1], timeout=PATIENCE)
    connection.request("GET", f"/?token={said[2]}&view=tasks")
    found = connection.getresponse()
    found.read()
    assert (found.status, found.headers["location"]) == (303, "/?view=tasks")
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cache-control"] == "no-store"
    cookie = re.split("; *", found.headers["set-cookie"])
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie)
    for headers, status in (({"Cookie": cookie[0]}, 200), ({}, 401)):
        connection.request("GET", "/api/health", headers=headers)
        again = connection.getresponse()
        again.read()
        assert again.status == status
    connection.close()
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_the_token_stays_valid_when_a_server_starts_again(shell: Shell) -> None:
    with served(shell) as first:
        token = first.token
    with served(shell) as second, served(shell) as third:
        assert second.token == third.token == token
        assert second.get("health").status == 200
    file = shell.folder / "server" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.unlink()
    with served(shell) as other:
        assert other.token != token
        assert other.get("health", headers={"authorization": f"Bearer {token}"}).status == 401


def test_servers_that_start_together_make_one_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INTERLOCK_SERVER_DIR", str(tmp_path / "server"))
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: user_token.made(), range(32)))
    assert len(set(made)) == 1
    assert made[0] == (user_token.kept(), "")


@pytest.fixture
def token_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a token that is kept."""
    monkeypatch.setenv("INTERLOCK_SERVER_DIR", str(tmp_path / "server"))
    user_token.made()
    return tmp_path / "server" / "token"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_token_that_others_could_read_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    for use in (user_token.made, user_token.kept):
        with pytest.raises(NotAllowed, match="other users may read it; remove it"):
            use()


def test_a_token_that_is_no_file_of_this_user_is_refused(token_file: Path, tmp_path: Path) -> None:
    shutil.move(token_file, tmp_path / "elsewhere")
    token_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAllowed, match="is a link"):
        user_token.made()
    token_file.unlink()
    token_file.mkdir()
    with pytest.raises(NotAllowed, match="is no file"):
        user_token.made()
    token_file.rmdir()
    os.mkfifo(token_file)
    with pytest.raises(NotAllowed, match="is no file"):
        user_token.made()
    token_file.unlink()
    for wrong in ("", "x", "il_user_" + "g" * 64, "il_user_" + "0" * 65):
        token_file.write_text(wrong)
        token_file.chmod(0o600)
        with pytest.raises(NotAllowed, match="something else in it"):
            user_token.made()
    token_file.unlink()
    token_file.parent.chmod(0o777)
    with pytest.raises(NotAllowed, match="chmod go-w"):
        user_token.made()


def test_the_folder_is_that_for_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("INTERLOCK_SERVER_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert user_token.path() == f"{tmp_path}/.local/state/interlock/server/token"
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    assert user_token.path() == f"{tmp_path}/state/interlock/server/token"


@pytest.mark.parametrize(
    ("folder", "why"),
    [("file", b"file/server/token cannot be written"), ("repository", b"is inside of the work")],
)
def test_without_a_folder_the_token_is_for_one_run_and_that_is_said(
    shell: Shell, folder: str, why: bytes
) -> None:
    (shell.folder / "file").touch()
    (shell.folder / "repository" / ".git").mkdir(parents=True)
    shell.exported["INTERLOCK_SERVER_DIR"] = str(shell.folder / folder / "server")
    with served(shell) as first, served(shell) as second:
        assert first.token != second.token
        assert first.get("health").status == 200
        message = first.stranger().get("health").json["message"]
        assert "printed its address with the token when it started" in message
        assert printed(shell) in (first.url, second.url)
        first.stop()
        assert first.process.stderr is not None
        said = first.process.stderr.read()
        assert b"for this run alone" in said
        assert why in said


def test_open_prints_the_token_for_servers_of_this_user_alone(shell: Shell) -> None:
    with served(shell) as server:
        assert printed(shell) == f"{server.url}?token={server.token}"
        assert shell.run("open", "--json").json["token"] == server.token
        token = shell.folder / "server" / "token"
        token.write_text(f"il_user_{'0' * 64}\n")
        assert printed(shell) == server.url
        token.unlink()
        assert printed(shell) == server.url


def test_the_words_that_start_a_browser_have_a_ticket_that_works_once(shell: Shell) -> None:
    browser = shell.folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shell.folder}/shown\n')
    browser.chmod(0o700)
    shell.exported["BROWSER"] = f"{browser} %s"
    with served(shell) as server:
        printed(shell)
        assert shell.run("open", "--browser", "--json").json["opened"]
        shown = (shell.folder / "shown").read_text().strip()
        assert server.token not in shown
        path = shown.removeprefix(server.url.rstrip("/"))
        stranger = server.stranger()
        found = stranger.ask("GET", path)
        assert found.status == 303
        assert f"={server.token};" in found.headers["set-cookie"]
        assert stranger.ask("GET", path).status == 401


def test_a_ticket_is_short_lived_and_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    token, other = (f"il_user_{digit * 64}" for digit in "01")
    ticket = user_token.ticket(token, 1000.0)
    assert user_token.is_ticket(ticket, token, 1059.0)
    assert not user_token.is_ticket(ticket, token, 1060.0)
    assert not user_token.is_ticket(ticket, other, 1000.0)
    for wrong in ("", ".", "..", ticket[:-1], f"9{ticket}", "\udcff", "x" * 5000):
        assert not user_token.is_ticket(wrong, token, 1000.0)
    tokens: Any = None
    access = Access(agent="ada", tokens=tokens, own=user_token.UserToken(token), open_=False)
    monkeypatch.setattr("interlock.faces.http.access.time.time", lambda: 1000.0)
    assert access.exchanged(ticket) == token
    assert access.exchanged(ticket) == ticket


def test_what_is_logged_has_no_token(shell: Shell) -> None:
    """Neither the output, if it is a file, nor the store, nor what the server says later."""
    shell.exported["INTERLOCK_SERVER_DIR"] = str(shell.folder / "server")
    log = shell.folder / "up.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "up", "--port", "0"],
            cwd=shell.folder, env=shell.environment(), stdout=file, stderr=file,
        )  # fmt: skip
    try:
        address = printed(shell)
        token = (shell.folder / "server" / "token").read_text().strip()
        assert address.endswith(f"?token={token}")
        url = address.partition("?")[0].rstrip("/")
        name, port = url.removeprefix("http://").split(":")
        with socket.create_connection((name, int(port)), timeout=PATIENCE) as line:
            line.sendall(f"GET /?token={token}\r\n\r\n".encode())
            assert line.recv(1000)
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    said = log.read_text()
    assert "'interlock open' prints the address with it" in said
    for place in filter(Path.is_file, shell.folder.rglob("*")):
        if place != shell.folder / "server" / "token":
            assert token.encode() not in place.read_bytes(), place


def test_open_wants_no_token_and_says_what_that_means(shell: Shell) -> None:
    with served(shell, "--open", "--as", "maria") as server:
        assert server.token == ""
        assert server.post("task add", {"task": "t"}).status == 200
        assert server.get("task show", task="t").json["published_by"] == "maria"
        assert printed(shell) == server.url
        assert not (shell.folder / "server").exists()
        server.stop()
        assert server.process.stderr is not None
        said = server.process.stderr.read().decode()
        assert "every user and container of this machine may do everything here" in said


@pytest.mark.parametrize("words", [("--host", "192.0.2.1"), ("--host", "0"), ("--require-token",)])
def test_open_is_for_this_machine_alone(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.run("up", "--open", *words)
    assert (done.status, "--open is for a server on this machine" in done.err) == (2, True)


def test_the_token_of_the_user_is_not_for_servers_beyond_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INTERLOCK_SERVER_DIR", str(tmp_path / "server"))
    tokens: Any = None
    for request in (UpRequest(host="192.0.2.1"), UpRequest(require_token=True)):
        access = _access(request, "ada", tokens)
        assert (access.open, access.own) == (False, None)
        assert not (tmp_path / "server").exists()
    for host in ("127.0.0.1", "::1", "localhost"):
        access = _access(UpRequest(host=host), "ada", tokens)
        assert access.own is not None
        assert access.own.token == user_token.kept()


def test_tokens_of_the_store_are_accepted_beside_that_of_the_user(
    up: Served, tokens: dict[str, str]
) -> None:
    read = {"authorization": f"Bearer {tokens['read']}"}
    assert up.get("health", headers=read).status == 200
    assert up.post("lock acquire", {"lock": "x"}, **read).status == 403
    assert up.ask("GET", "/metrics", None, **read).status == 200


def test_a_flood_of_unknown_tokens_stops_no_caller_with_a_token(
    up: Served, tokens: dict[str, str]
) -> None:
    """Made-up tokens are looked up one at a time, in a line of their own with an end."""
    met = {"authorization": f"Bearer {tokens['read']}"}
    assert up.get("health", headers=met).status == 200

    def guess(number: int) -> set[int]:
        wrong = {"authorization": f"Bearer il_{number:012x}_{'0' * 64}"}
        return {up.get("health", headers=wrong).status for _ in range(5)}

    with ThreadPoolExecutor(100) as threads:
        guesses = [threads.submit(guess, number) for number in range(100)]
        for _ in range(5):
            assert up.get("health").status == 200
            assert up.get("health", headers=met).status == 200
        assert set().union(*(each.result() for each in guesses)) <= {401, 429}
