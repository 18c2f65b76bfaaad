"""Connections without a request: they end, make room for others, and fill no log."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.faces.http.served import Served, served
from tests.faces.shell import PATIENCE, Shell

from interlock.faces.http import connections
from interlock.faces.http.connections import Connection, Connections, Listener, OnceAMinute

FILES = 256
"""Open files that a server may have; far fewer than the connections of a flood."""
LIMITED = ("sh", "-c", f'ulimit -n {FILES} && exec "$0" "$@"')


@pytest.fixture(params=["loopback", "socket"])
def few(request: pytest.FixtureRequest, shell: Shell, tmp_path: Path) -> Iterator[Served]:
    """A server with a low limit of open files."""
    where = ("--socket", str(tmp_path / "up.sock")) if request.param == "socket" else ()
    with served(shell, *where, wrapper=LIMITED) as server:
        yield server


def silent(server: Served, stack: ExitStack, sent: bytes = b"") -> socket.socket:
    """A connection that sends no whole head."""
    connection = server.connection()
    connection.connect()
    found: socket.socket = connection.sock
    stack.callback(found.close)
    found.sendall(sent)
    return found


@pytest.mark.parametrize("sent", [b"", b"GET /api/health HTTP/1.1\r\nHost: "])
def test_a_flood_of_connections_without_a_request_stops_no_other_caller(
    few: Served, sent: bytes
) -> None:
    with few.events() as stream, ExitStack() as stack:
        for _ in range(2 * FILES):
            silent(few, stack, sent)
        began = time.monotonic()
        assert few.get("health").status == 200
        assert time.monotonic() - began < 5.0  # 10 ms on an idle machine
        few.post("lock acquire", {"lock": "flooded"})
        assert stream.until("change", thing="lock/flooded")
    assert few.get("health").status == 200
    few.stop()
    assert few.process.stderr is not None
    assert len(few.process.stderr.read()) < 1000


def answers(most: int, app: Callable[..., Any], ask: Callable[[int], None]) -> None:
    """Serve an application with this limit of connections, while a thread asks at its port."""

    async def serving() -> None:
        bound = Listener(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.bind(("127.0.0.1", 0))
        bound.listen(connections.BACKLOG)
        made: Any = partial(Connection, Connections(most))
        config = uvicorn.Config(app, http=made, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            await asyncio.to_thread(ask, bound.getsockname()[1])
        finally:
            server.should_exit = True
            await running

    asyncio.run(serving())


async def ok(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body"})


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connected(port: int, sent: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    found.sendall(sent)
    return found


def ended(connection: socket.socket) -> bool:
    """Whether the server ended it; waits for that."""
    try:
        return not connection.recv(1000)
    except ConnectionError:
        return True


@pytest.mark.parametrize("before", [b"", HEAD])
def test_a_head_that_comes_byte_by_byte_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """On a new connection, and on one that had a request before."""
    monkeypatch.setattr(connections, "HEAD", 0.3)

    def ask(port: int) -> None:
        with connected(port) as slow:
            if before:
                slow.sendall(before)
                assert b" 200 " in slow.recv(1000)
            slow.settimeout(0.01)
            began = time.monotonic()
            while time.monotonic() - began < PATIENCE:
                try:
                    slow.sendall(b"G")
                    if not slow.recv(1000):
                        return
                except TimeoutError:
                    continue
                except ConnectionError:
                    return
            raise AssertionError

    answers(10, ok, ask)


def test_a_body_that_nobody_reads_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer was sent before the body was, as a refusal is."""
    monkeypatch.setattr(connections, "HEAD", 0.3)

    def ask(port: int) -> None:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        with connected(port, head) as slow:
            assert b" 200 " in slow.recv(1000)
            slow.sendall(b"x")
            assert ended(slow)

    answers(10, ok, ask)


def test_what_has_waited_for_longest_makes_room_and_what_works_does_not() -> None:
    begun, freed = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/long":
            begun.set()
            await asyncio.to_thread(freed.wait, PATIENCE)
        await ok(scope, receive, send)

    def ask(port: int) -> None:
        with ExitStack() as stack:
            long = stack.enter_context(connected(port, HEAD.replace(b"/", b"/long", 1)))
            assert begun.wait(PATIENCE)
            idle = stack.enter_context(connected(port, HEAD))
            assert b" 200 " in idle.recv(1000)
            fresh = stack.enter_context(connected(port))
            late = stack.enter_context(connected(port, HEAD))
            assert ended(idle)
            assert b" 200 " in late.recv(1000)
            again = stack.enter_context(connected(port, HEAD))
            assert ended(fresh)
            assert b" 200 " in again.recv(1000)
            freed.set()
            assert b" 200 " in long.recv(1000)

    answers(3, app, ask)


def test_a_new_connection_is_refused_if_all_work() -> None:
    begun, freed = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.to_thread(freed.wait, PATIENCE)
        await ok(scope, receive, send)

    def ask(port: int) -> None:
        with connected(port, HEAD) as working:
            assert begun.wait(PATIENCE)
            with connected(port) as refused:
                assert ended(refused)
            freed.set()
            assert b" 200 " in working.recv(1000)

    answers(1, app, ask)


def test_without_files_the_listener_fails_once_a_round_and_makes_room() -> None:
    made: list[int] = []
    with Listener(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        bound.setblocking(False)
        bound.exhausted = lambda: made.append(1)
        with connected(bound.getsockname()[1]), no_files():
            for _ in range(2):
                with pytest.raises(OSError, match="Too many open files"):
                    bound.accept()
                with pytest.raises(BlockingIOError):
                    bound.accept()
        bound.accept()[0].close()
    assert made == [1, 1]


@contextmanager
def no_files() -> Iterator[None]:
    """This process can open no file in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_limit_of_open_files_is_raised(shell: Shell) -> None:
    wrapper = ("sh", "-c", 'ulimit -S -n 128 && exec "$0" "$@"')
    with served(shell, wrapper=wrapper) as server:
        assert server.get("health").status == 200
        soft, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft >= min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_a_report_is_said_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("interlock.faces.http.connections.time.monotonic", lambda: now[0])
    logger = logging.getLogger("test_connections")
    monkeypatch.setattr(logger, "handlers", [OnceAMinute()])
    for seconds in (0.0, 1.0, 59.0, 61.0):
        now[0] = seconds
        for error in (OSError(errno.EMFILE, "no files"), OSError(errno.ENFILE, "none at all")):
            logger.error("accept failed\nsocket: 7", exc_info=error)
    said = capsys.readouterr().err.splitlines()
    assert said.count("interlock: accept failed: [Errno 24] no files") == 2
    assert said.count("interlock: accept failed: [Errno 23] none at all") == 2
    assert len(said) == 4


def test_requests_that_are_none_fill_no_log(shell: Shell) -> None:
    with served(shell) as server:
        for _ in range(50):
            with connected(server.port, b"nonsense\r\n\r\n") as wrong:
                assert b" 400 " in wrong.recv(1000)
            server.ask("GET", "/", connection="Upgrade", upgrade="websocket")
        server.stop()
        assert server.process.stderr is not None
        assert server.process.stderr.read().count(b"\n") <= 4
