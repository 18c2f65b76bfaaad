"""A real server as a process, and the requests that tests send to it."""

from __future__ import annotations

import copy
import http.client
import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from tests.faces.shell import COMMAND, PATIENCE, Shell


class Answered(NamedTuple):
    """The answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)  # with a limit, it fails while the queue is full
        self.sock.settimeout(PATIENCE)


class Served:
    """One server; it listens on a free port of this machine, or on a Unix socket."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: dict[str, str],
        wrapper: tuple[str, ...] = (),
    ) -> None:
        where = () if {"--port", "--socket"} & set(options) else ("--port", "0")
        self.process = subprocess.Popen(
            [*wrapper, *COMMAND, "up", "--json", *where, *options],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read().decode())
        self.about = json.loads(line)
        self.url: str = self.about["url"]
        self.token: str = self.about["token"]
        self.unix = "" if self.url.startswith("http") else self.url
        self.host = self.url.removeprefix("http://").rstrip("/")
        self.name, _, port = self.host.rpartition(":")
        self.port = 0 if self.unix else int(port)

    def connection(self) -> http.client.HTTPConnection:
        if self.unix:
            return _UnixConnection(self.unix)
        return http.client.HTTPConnection(self.name, self.port, timeout=PATIENCE)

    def named(self, headers: dict[str, str]) -> dict[str, str]:
        """Headers by their names, with the token of the server unless they have another one."""
        if self.token and not {"authorization", "cookie"} & set(headers):
            headers = {**headers, "authorization": f"Bearer {self.token}"}
        return {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def lines(self) -> str:
        """The headers Host and Authorization of a request that a test writes itself."""
        return f"Host: {self.host}\r\nAuthorization: Bearer {self.token}\r\n"

    def stranger(self) -> Self:
        """The same server for a caller who has no token."""
        found = copy.copy(self)
        found.token = ""
        return found

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answered:
        """Send one request as it is; ``content_type`` is the header Content-Type."""
        connection = self.connection()
        try:
            connection.request(method, path, body, self.named(headers))
            response = connection.getresponse()
            return Answered(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, operation: str, given: object = None, **headers: str) -> Answered:
        """Carry out an operation."""
        body = b"" if given is None else json.dumps(given).encode()
        headers = {"content_type": "application/json"} | headers
        return self.ask("POST", f"/api/{operation.replace(' ', '/')}", body, **headers)

    def get(self, operation: str, headers: dict[str, str] | None = None, **given: Any) -> Answered:
        """Look at something."""
        query = f"?{urlencode(given, doseq=True)}" if given else ""
        path = f"/api/{operation.replace(' ', '/')}{query}"
        return self.ask("GET", path, None, **(headers or {}))

    @contextmanager
    def events(self, query: str = "", **headers: str) -> Iterator[Events]:
        """An open stream of changes; the block begins when its first event has come."""
        with self.stream(f"/api/events{query}", **headers) as found:
            found.hello = found.next()
            assert found.hello.name == "hello"
            yield found

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Events]:
        """An open stream of server-sent events."""
        found = Events(self, path, headers)
        try:
            yield found
        finally:
            found.close()

    def stop(self) -> int:
        """Ask it to end, and return its status."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    id: str
    data: Any


class Events:
    """A stream that is read in a thread."""

    hello: Event

    def __init__(
        self, served: Served, path: str, headers: dict[str, str], body: bytes | None = None
    ) -> None:
        self._connection = served.connection()
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, body, headers=served.named(headers))
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self._found = queue.SimpleQueue[Event | None]()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        parts: dict[str, str] = {}
        try:
            for line in self.response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    parts[name] = value
                elif parts.get("event"):
                    data = json.loads(parts["data"])
                    self._found.put(Event(parts["event"], parts.get("id", ""), data))
                    parts = {}
        except (OSError, ValueError, AttributeError, http.client.HTTPException):  # closed here
            pass
        self._found.put(None)

    def next(self) -> Event:
        found = self._found.get(timeout=PATIENCE)
        assert found is not None, "the stream ended"
        return found

    def until(self, name: str, **data: Any) -> Event:
        """The next event of this name with these data."""
        while True:
            found = self.next()
            if found.name == name and data.items() <= found.data.items():
                return found

    def ended(self) -> bool:
        """Whether the server ended the stream; waits for that."""
        while (found := self._found.get(timeout=PATIENCE)) is not None:
            assert found.name != "hello"
        return True

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


@contextmanager
def served(shell: Shell, *options: str, wrapper: tuple[str, ...] = ()) -> Iterator[Served]:
    """A server of a store for a while."""
    shell.exported.setdefault("INTERLOCK_SERVER_DIR", str(shell.folder / "server"))
    environment = shell.environment()
    server = Served(shell.folder, *options, environment=environment, wrapper=wrapper)
    try:
        yield server
    finally:
        server.stop()
        for stream in (server.process.stdout, server.process.stderr):
            if stream is not None:
                stream.close()


def rss(pid: int) -> int:
    """The memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
