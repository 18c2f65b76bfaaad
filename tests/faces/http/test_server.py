"""``interlock up`` as a process: it answers, streams, and ends at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

from tests.faces.http.served import Served, served
from tests.faces.shell import Shell

MAIN = "from interlock.faces.cli.main import main; main()"


def test_an_operation_answers_what_its_command_prints(up: Served, home: Shell) -> None:
    assert up.post("task add", {"task": "t1", "title": "a"}).status == 200
    shown = home.run("task", "show", "t1", "--json").json
    assert up.get("task show", task="t1").json == shown
    assert shown["published_by"] == "maria"


def test_a_refusal_has_the_status_409_and_its_outcome(up: Served, home: Shell) -> None:
    assert up.post("lock acquire", {"lock": "m"}).json["outcome"] == "acquired"
    again = home.run("lock", "acquire", "m", "--agent", "bob", "--json")
    assert again.status == 1
    assert again.json["holder"] == "maria"
    held = up.post("lock acquire", {"lock": "m", "token": 1})
    assert (held.status, held.json["outcome"]) == (409, "fenced")
    nothing = up.post("task claim", {"task": "none"})
    assert (nothing.status, nothing.json["outcome"]) == (404, "nothing")


def test_an_event_reaches_an_open_stream(up: Served, home: Shell) -> None:
    with up.events() as events:
        assert events.hello.data["agent"] == "maria"
        assert events.hello.data["role"] == "admin"
        home.run("lock", "acquire", "seen", "--agent", "bob")
        found = events.until("change", thing="lock/seen", agent="bob")
        assert found.data["event"] == "lock:acquired"
        assert int(found.id) == found.data["revision"] > events.hello.data["revision"]


def test_a_stream_goes_on_after_the_last_event_that_its_reader_has(up: Served) -> None:
    with up.events() as events:
        up.post("lock acquire", {"lock": "first"})
        first = events.until("change", thing="lock/first")
    up.post("lock acquire", {"lock": "second"})
    with up.events(last_event_id=first.id) as events:
        assert events.next().data["thing"] == "lock/second"


def test_a_reader_whose_place_is_gone_is_told_to_read_all_again(up: Served) -> None:
    for place in ("0", "999999999"):
        with up.events(last_event_id=place) as events:
            assert events.next().name == "resync"


def test_the_overview_is_made_of_what_the_operations_answer(up: Served) -> None:
    up.post("task add", {"task": "overview/1"})
    found = up.get("overview").json
    assert found["tasks"]["pending"] >= 1
    assert {"needs_person", "agents", "locks", "problems"} <= set(found)


def test_healthz_commits_and_reads(up: Served) -> None:
    found = up.ask("GET", "/healthz")
    assert found.status == 200
    assert found.json["status"] == "ok"
    assert found.json["revision"] > 0


def test_the_server_ends_at_once_though_streams_and_waits_are_open(home: Shell) -> None:
    with served(home) as server, server.events() as events:
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5.0  # 0.2 s on an idle machine
        assert events.ended()


def test_a_unix_socket_is_for_its_owner_alone_and_goes_with_the_server(
    home: Shell, tmp_path: Path
) -> None:
    place = str(tmp_path / "up.sock")
    with served(home, "--socket", place) as server:
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o600
        assert server.get("health").status == 200
        assert server.stop() == 0
    assert not os.path.exists(place)


def test_open_prints_the_address_of_a_server_that_runs(up: Served, home: Shell) -> None:
    assert home.run("open", "--json").json["url"].startswith("http://127.0.0.1:")
    assert home.run("open").out.startswith("http://127.0.0.1:")
    assert up.url.startswith("http://127.0.0.1:")


def test_open_says_what_to_do_if_no_server_runs(shell: Shell) -> None:
    done = shell.run("open")
    assert done.status == 1
    assert "interlock up" in done.out


def test_wrong_usage_says_what_to_do(home: Shell, up: Served, tmp_path: Path) -> None:
    taken = home.run("up", "--port", str(up.port))
    assert taken.status == 2
    assert "choose another --port" in taken.err
    (tmp_path / "file").write_text("mine")
    socket = home.run("up", "--socket", str(tmp_path / "file"))
    assert (socket.status, "is no socket" in socket.err) == (2, True)
    assert (tmp_path / "file").read_text() == "mine"
    assert "the roles are read, act, admin" in home.run("up", "--token", "root").err
    assert "give one of" in home.run("up", "--token", "act", "--list-tokens").err
    assert home.run("up", "--token", "read", "--quiet").out.startswith("il_")  # not shown again


def test_without_the_packages_of_the_web_it_says_how_to_get_them(home: Shell) -> None:
    code = "import sys; sys.modules['uvicorn'] = None\n" + MAIN
    done = subprocess.run(
        [sys.executable, "-c", code, "up"],
        cwd=home.folder,
        env=home.environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"pip install 'interlock[web]'" in done.stderr
