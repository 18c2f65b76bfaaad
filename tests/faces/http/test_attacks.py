"""Requests that are wrong on purpose, readers that are slow, and a store that goes away."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable

import pytest
from tests.faces.http.served import Served, served
from tests.faces.shell import PATIENCE, Shell

from interlock.faces.http import assets, events
from interlock.faces.http.events import EventRing, RingEvent


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../server.py", "/assets/..%2f..%2fhttp%2fserver.py", "/assets/%2e%2e/x",
        "/assets//etc/passwd", "/assets/index.html%00.png", "/assets/__init__.py", "/assets/",
        "/assets/%2fetc%2fpasswd", "//etc/passwd", "/etc/passwd", "/.git/config", "/api/",
        "/api/lock/../task/list", "/api/Lock/Acquire", "/api/lock%20acquire", "/api/run",
        "/api/store/backup", "/api/" + "x" * 5000,
    ],
)  # fmt: skip
def test_a_path_leads_to_what_is_offered_and_nothing_else(up: Served, path: str) -> None:
    found = up.ask("GET", path)
    assert found.status in (404, 400)
    assert b"root:" not in found.body


def test_the_page_has_a_strict_policy_and_a_mark(up: Served) -> None:
    found = up.ask("GET", "/")
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    again = up.ask("GET", "/", if_none_match=found.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    (script,) = re.findall(r"src=\"(/assets/\w+/main\.js)\"", found.body.decode())
    assert "immutable" in up.ask("GET", script).headers["cache-control"]
    for name in assets.load().files:
        assert up.ask("GET", f"/assets/{name}").status == 200


def test_a_body_that_is_too_large_is_refused(up: Served) -> None:
    found = up.ask("POST", "/api/task/add", b"x" * (9 << 20), content_type="application/json")
    assert found.status == 413
    assert up.get("health").status == 200


def raw(server: Served, data: bytes) -> bytes:
    with socket.create_connection((server.name, server.port), timeout=PATIENCE) as sent:
        sent.sendall(data)
        sent.shutdown(socket.SHUT_WR)
        found = b""
        while part := sent.recv(65536):
            found += part
        return found


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
        b"POST /api/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_harm_nothing(up: Served, data: bytes) -> None:
    try:
        found = raw(up, data)
    except OSError:  # the server closed it before all was sent
        found = b""
    assert b" 200 " not in found[:20]
    assert up.get("health").status == 200


@pytest.mark.parametrize("place", ["x", "-1", "1" * 40, "1.5", "٣"])
def test_a_position_that_is_none_is_refused(up: Served, place: str) -> None:
    sent = place.encode().decode("latin-1")
    assert up.ask("GET", "/api/events", last_event_id=sent).status == 400


def test_a_wait_ends_when_its_caller_leaves(up: Served, home: Shell) -> None:
    assert home.run("lock", "acquire", "left", "--agent", "eve").status == 0
    body = b'{"lock": "left", "wait": "40s"}'
    head = f"POST /api/lock/acquire HTTP/1.1\r\n{up.lines}Content-Length: {len(body)}\r\n"
    with socket.create_connection((up.name, up.port), timeout=PATIENCE) as sent:
        sent.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        wait_until(lambda: len(waiters(up)) == 1)
    wait_until(lambda: waiters(up) == [])


def waiters(up: Served) -> list[object]:
    found: list[object] = up.get("lock show", lock="left").json["waiters"]
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_two_tabs_see_the_same_and_a_closed_one_harms_nothing(up: Served, home: Shell) -> None:
    with up.events() as one, up.events() as two:
        home.run("lock", "acquire", "tab1", "--agent", "eve")
        first = [each.until("change", thing="lock/tab1") for each in (one, two)]
        assert first[0] == first[1]
        one.close()
        home.run("lock", "acquire", "tab2", "--agent", "eve")
        assert two.until("change", thing="lock/tab2")


def event(number: int, size: int = 10) -> RingEvent:
    return RingEvent(number, "lock", b"x" * size)


def test_a_reader_that_is_too_slow_finds_a_gap_and_not_a_hole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 5)
    ring = EventRing()
    ring.restart(100)
    ring.add([event(101), event(102)], 102)
    place = ring.position(101)
    assert place is not None
    assert ring.since(place) == (b"x" * 10, place + 1)
    ring.add([event(number) for number in range(103, 110)], 109)
    assert ring.since(place) is None
    assert ring.position(101) is None
    assert ring.position(104) is not None
    assert ring.position(110) is None


def test_the_ring_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 1000)
    ring = EventRing()
    for number in range(1, 100):
        ring.add([event(number, 100)], number)
    assert ring.position(98) is not None
    assert ring.position(50) is None


def test_a_reader_that_never_reads_holds_up_no_other(up: Served, home: Shell) -> None:
    request = f"GET /api/events HTTP/1.1\r\n{up.lines}\r\n".encode()
    with socket.create_connection((up.name, up.port), timeout=PATIENCE) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(request)
        with up.events() as reader:
            home.run("lock", "acquire", "stalled", "--agent", "eve")
            assert reader.until("change", thing="lock/stalled")


def test_a_store_that_goes_away_and_comes_back_is_said_and_recovered(shell: Shell) -> None:
    with served(shell) as server, server.events() as reader:
        folder = shell.folder / ".interlock"
        shutil.move(folder, shell.folder / "gone")
        reader.until("store", state="away")
        found = server.get("health")
        assert (found.status, found.json["error"]) == (503, "store_missing")
        assert server.ask("GET", "/healthz").status == 503
        asked = b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}'
        assert server.ask("POST", "/a2a", asked, content_type="application/json").status == 503
        shutil.move(shell.folder / "gone", folder)
        reader.until("store", state="back")
        reader.until("resync")
        assert server.post("lock acquire", {"lock": "m"}).status == 200
        assert reader.until("change", thing="lock/m")


def test_a_server_goes_into_no_store_that_a_checkout_puts_in_the_place_of_its_own(
    shell: Shell,
) -> None:
    place, kept = shell.folder / ".interlock" / "store.db", shell.folder / "kept"
    other = Shell(shell.folder, INTERLOCK_STORE=str(shell.folder / "other.db"))
    assert other.run("init").status == 0
    assert other.run("task", "add", "obey", "--agent", "eve").status == 0
    with served(shell) as server, server.events() as reader:
        assert server.post("task add", {"task": "own"}).status == 200
        kept.mkdir()
        for each in (place, *place.parent.glob("store.db-???")):
            each.rename(kept / each.name)
        shutil.copy(shell.folder / "other.db", place)
        reader.until("store", state="away")
        for found in (server.get("task list"), server.post("task add", {"task": "lost"})):
            assert (found.status, found.json["error"]) == (503, "store_gone")
            assert "another file stands at" in found.json["message"]
        for each in kept.iterdir():
            each.rename(place.parent / each.name)
        reader.until("store", state="back")
        assert [each["task"] for each in server.get("task list").json["tasks"]] == ["own"]


def test_a_part_that_fails_is_restarted_and_shown(
    monkeypatch: pytest.MonkeyPatch, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    from interlock.faces.http.clients import Clients
    from interlock.faces.http.parts import Parts
    from interlock.stores import open_store

    monkeypatch.chdir(shell.folder)
    tries, ran = [], threading.Event()

    def work(_: object, stopped: threading.Event) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the disk is on fire")
        ran.set()
        stopped.wait()

    place = os.path.join(shell.folder, ".interlock", "store.db")
    clients = Clients(lambda: open_store(place, create=False))
    parts = Parts(clients, {"work": work})
    parts.start()
    assert ran.wait(PATIENCE)
    about = parts.about()[0]
    assert (about["state"], about["restarts"]) == ("failing", 1)
    assert "the disk is on fire" in about["error"]
    parts.stop()
    parts.join(PATIENCE)
    clients.close()
    assert "work is restarted" in capsys.readouterr().err
