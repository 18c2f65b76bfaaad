"""No agent acts under a name of Interlock or of its user; a person acts under its own."""

from __future__ import annotations

import asyncio
import getpass
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.faces.http.served import Served, served
from tests.faces.shell import COMMAND, Shell
from tests.nouns.merges.repositories import TestRepository

import interlock
from interlock import aio
from interlock.client import begun
from interlock.core.validate import own_agent_name
from interlock.errors import BadName
from interlock.steps import drive
from interlock.stores import open_store

RESERVED = ("interlock", "System.", "us\u0435r", "person:another", "merge/main", "Reservations")
LIKE_OWN_NAMES = (
    *("pipeline:r1", "PIPELINE:r1", "p1pel1ne:r1", "pipeline\uff1ar1", "pip\u0435line:r1"),
    *("merge/main", "merge\u2215main", "m\u0435rge/main", "_merge/main", "reservations"),
    *("interlock/doctor", "interlock:up", "!/interlock/x", "SYSTEM:up", "us\u0435r/root"),
    *("reservat1ons", "reservation\u0455", "pipe|ine:r1"),
)
FREE = (
    *("merge", "merge-bot", "merger/a", "pipeline", "pipeline-7", "my/merge/x", "reservation-7"),
    *("my/system", "user-interface/a"),
)
SAID = "is reserved"


def person() -> str:
    return f"person:{getpass.getuser()}"


@pytest.fixture
def shop(bare: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    repository = TestRepository(tmp_path / "shop", bare=False)
    repository.branch("feat", {"new": "x\n"})
    bare.folder = repository.folder
    assert bare.run("init").status == 0
    return bare


@pytest.mark.parametrize("name", RESERVED)
def test_no_client_begins_under_a_reserved_name(tmp_path: Path, name: str) -> None:
    url = f"{tmp_path}/store.db"

    async def connected() -> None:
        await aio.connect(url, agent=name)

    with pytest.raises(BadName, match=SAID):
        interlock.connect(url, agent=name)
    with pytest.raises(BadName, match=SAID):
        asyncio.run(connected())


@pytest.mark.parametrize("name", LIKE_OWN_NAMES)
def test_no_agent_holds_or_sends_under_a_name_of_interlock_itself(name: str) -> None:
    with pytest.raises(BadName, match=SAID):
        own_agent_name(name)


@pytest.mark.parametrize("name", FREE)
def test_a_name_that_only_has_such_a_word_is_free(name: str) -> None:
    assert own_agent_name(name) == name


def test_interlock_itself_holds_and_sends_under_its_own_names(shop: Shell) -> None:
    Path(shop.folder, "p.toml").write_text(
        '[[pipeline.p.phase]]\nname = "a"\nhold = ["lock/merge"]\n'
    )
    assert shop.run("pipeline", "define", "p.toml", "--agent", "ada").status == 0
    assert shop.run("pipeline", "start", "p", "--id", "r1", "--agent", "ada").status == 0
    assert "pipeline:r1" in shop.run("lock", "show", "merge").out
    assert shop.run("reserve", "a.py", "--ttl", "1m", "--agent", "ada").status == 0
    queued = ("reserve", "a.py", "--ttl", "1m", "--on-conflict", "queue", "--agent", "bob")
    assert shop.run(*queued).status == 1
    assert shop.run("unreserve", "--all", "--agent", "ada").status == 0
    assert shop.run("merge", "submit", "feat", "--agent", "bob").status == 0
    served = shop.run("merge", "serve", "--drain", "--unguarded", "--agent", "ada")
    assert served.status == 0, served
    inbox = shop.run("inbox", "--agent", "bob").out
    assert "from reservations" in inbox
    assert "from merge/main" in inbox


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize(
    "words",
    [
        ("send", "ada", "hello"),
        ("task", "next"),
        ("lock", "acquire", "merge"),
        ("agent", "join"),
        ("mcp",),
        ("wake", "ada", "--say", "hello"),
        ("up", "--token", "act"),
    ],
    ids=" ".join,
)
def test_no_command_acts_under_a_reserved_name(
    shell: Shell, words: tuple[str, ...], name: str
) -> None:
    option = shell.run(*words, "--agent", name)
    assert option.status == 2, option
    assert SAID in option.err
    shell.exported["INTERLOCK_AGENT"] = name
    variable = shell.run(*words)
    assert variable.status == 2, variable
    assert SAID in variable.err


@pytest.mark.parametrize("name", RESERVED)
def test_no_session_over_http_has_a_reserved_name(up: Served, name: str) -> None:
    begun = up.post("session", {"agent": name})
    assert begun.status == 400
    assert SAID in begun.json["message"]


def test_no_agent_of_mcp_over_http_has_a_reserved_name(up: Served) -> None:
    asked: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    asked["params"] = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "x", "version": "1"}}
    body = json.dumps(asked).encode()
    for name in ("interlock", "person:another"):
        path = f"/mcp?agent={name}"
        found = up.ask("POST", path, body, content_type="application/json")
        assert SAID in found.body.decode()


@pytest.mark.parametrize("name", RESERVED)
def test_no_token_and_no_page_has_a_reserved_name(shell: Shell, name: str) -> None:
    made = shell.run("up", "--token", "act", "--as", name)
    assert made.status == 2
    assert SAID in made.err
    page = subprocess.run(
        [*COMMAND, "up", "--port", "0", "--as", name],
        cwd=shell.folder, env=shell.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert page.returncode == 2
    assert SAID in page.stderr


def test_a_person_acts_under_its_own_name_at_a_shell(shell: Shell) -> None:
    assert shell.run("send", "ada", "hello", "--hold", "--agent", person()).status == 0
    token = shell.json("up", "--token", "admin", "--as", person())[1]
    assert token["agent"] == person()
    assert person() in shell.run("inbox", "--agent", "ada").out


@pytest.mark.parametrize("variable", ["CLAUDECODE", "CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID"])
def test_a_coding_agent_is_no_person(shell: Shell, variable: str) -> None:
    shell.exported[variable] = "0a1b2c3d-1111-4222-8333-444455556666"
    refused = shell.run("send", "ada", "hello", "--hold", "--agent", person())
    assert refused.status == 2
    assert SAID in refused.err
    token = shell.run("up", "--token", "admin", "--as", person())
    assert token.status == 2
    assert SAID in token.err


def test_the_page_acts_as_the_person_who_starts_it(shell: Shell) -> None:
    with served(shell) as page:
        assert page.about["agent"] == person()
        assert page.post("send", {"who": ["ada"], "body": "hello", "hold": True}).status == 200
        begun = page.post("session", {})
        assert begun.status == 200
        headers = {"interlock_session": begun.json["handle"]}
        assert page.post("session/beat", None, **headers).status == 200
        assert page.post("session", {"agent": "person:another"}).status == 400
    assert shell.run("inbox", "--agent", "ada").out.count(person()) == 1


def test_what_an_older_store_has_of_such_names_can_be_read_and_not_used(shell: Shell) -> None:
    with begun(open_store(f"{shell.folder}/.interlock/store.db", create=False)) as fleet:
        op = fleet.context.sessions.join("interlock", ttl=600.0, session="ses_old", listed=True)
        drive(op, fleet.store)
    assert "interlock" in shell.run("agent", "list").out
    assert shell.run("agent", "show", "interlock").status == 0
    refused = shell.run("lock", "acquire", "merge", "--session", "ses_old")
    assert refused.status == 2
    assert SAID in refused.err
