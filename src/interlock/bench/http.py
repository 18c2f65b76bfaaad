"""``interlock up`` as its callers see it: a warm call, an event, many open streams, its memory.

The floor of a call is the same call in Python.  All is measured against a real server process.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import interlock
from interlock.bench.engine import BenchEngine
from interlock.bench.measuring import Row, Sizes, percentile, timed
from interlock.errors import BadInput
from interlock.threads import background

STREAMS, EVENTS_A_SECOND = 100, 500
_WARM = 20
_EVENTS = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHANGE = b"event: change"
_LATE = 30.0


class BenchServer:
    """A server of a store, on a free port."""

    def __init__(self, path: str) -> None:
        environment = {**os.environ, "INTERLOCK_STORE": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "interlock", "up", "--port", "0", "--json", "--as", "bench"],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        said = json.loads(self.process.stdout.readline())
        self.port = int(re.sub(r"\D", "", said["url"].rpartition(":")[2]))

    def connection(self) -> http.client.HTTPConnection:
        """A connection for calls."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_LATE)

    def stream(self) -> socket.socket:
        """An open stream of events, after its first message."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=_LATE)
        found.sendall(_EVENTS)
        head = b""
        while b"event: hello" not in head or not head.endswith(b"\r\n"):
            head += found.recv(65536)
        return found

    def cpu(self) -> float:
        """The seconds of CPU that it took until now."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            parts = file.read().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Its resident memory, in MB."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            resident = next(line for line in status if line.startswith("VmRSS"))
        return int(resident.split()[1]) / 1024


@contextmanager
def server(path: str) -> Iterator[BenchServer]:
    """A server of the store at this path, until the end of the block."""
    if find_spec("uvicorn") is None:
        raise BadInput("a server needs two more packages; run: pip install 'interlock[web]'")
    interlock.connect(path).close()
    served = BenchServer(path)
    try:
        yield served
    finally:
        served.process.terminate()
        served.process.communicate()


def _call(connection: http.client.HTTPConnection, verb: str) -> None:
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/lock/{verb}", b'{"lock": "http"}', headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:  # noqa: PLR2004
        raise RuntimeError(body)


def warm_call(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A lock over HTTP, beside the same call in Python."""
    path = engine.fresh()
    ours, python = [], []
    with interlock.connect(path, agent="python") as fleet, server(path) as served:
        connection = served.connection()
        for number in range(-_WARM, max(1, size.one_by_one // 3)):
            began = time.perf_counter()
            fleet.locks.acquire("python")
            between = time.perf_counter()
            _call(connection, "acquire")
            ended = time.perf_counter()
            if number >= 0:
                python.append(between - began)
                ours.append(ended - between)
            fleet.locks.release("python")
            _call(connection, "release")
        connection.close()
    yield timed("http, warm lock acquire", ours, python, "p50 at most 3 ms")


def event_latency(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From the return of a commit in another process to the event in an open stream."""
    path = engine.fresh()
    spans = []
    with interlock.connect(path, agent="python") as fleet, server(path) as served:
        stream = served.stream()
        for number in range(-_WARM, max(1, size.one_by_one // 10)):
            began = time.perf_counter()
            fleet.locks.acquire(f"event.{number}")
            while _CHANGE not in stream.recv(65536):
                pass
            if number >= 0:
                spans.append(time.perf_counter() - began)
        stream.close()
    quick, late, last = (percentile(spans, share) * 1000 for share in (0.5, 0.95, 0.99))
    target = "p95 at most 100 ms"
    yield Row(name="event to an open stream", p50=quick, p95=late, p99=last, target=target)


def many_streams(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """The CPU of a server with many readers of many events, none of which may be lost."""
    path = engine.fresh()
    seconds = 2.0 if size.one_by_one < 1000 else 8.0  # noqa: PLR2004
    wanted = int(seconds * EVENTS_A_SECOND)
    with interlock.connect(path, agent="python") as fleet, server(path) as served:
        readers = _Readers([served.stream() for _ in range(STREAMS)], wanted)
        before, began = served.cpu(), time.perf_counter()
        readers.start()
        for number in range(wanted):
            fleet.locks.acquire(f"many.{number}")
            time.sleep(max(0.0, began + (number + 1) / EVENTS_A_SECOND - time.perf_counter()))
        lost = readers.finish()
        took, used = time.perf_counter() - began, served.cpu() - before
    target = f"at most 25 % of a core, none lost; lost {lost}"
    yield Row(
        name=f"{STREAMS} streams, {wanted / took:.0f} events a second",
        p50=100 * used / took,
        unit="%",
        target=target,
    )


class _Readers:
    """Reads all streams in a thread, and counts their events."""

    def __init__(self, streams: list[socket.socket], wanted: int) -> None:
        self._streams = dict.fromkeys(streams, 0)
        self._rest = dict.fromkeys(streams, b"")
        self._wanted = wanted
        self._done = threading.Event()
        self._thread = background(self._read, "bench-streams")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> int:
        """Wait for the last event; returns how many were lost."""
        self._done.wait(_LATE)
        self._done.set()
        self._thread.join()
        for stream in self._streams:
            stream.close()
        return sum(self._wanted - count for count in self._streams.values())

    def _read(self) -> None:
        waiting = selectors.DefaultSelector()
        for stream in self._streams:
            waiting.register(stream, selectors.EVENT_READ)
        while not self._done.is_set():
            for key, _ in waiting.select(0.1):
                self._take(key.fileobj)  # type: ignore[arg-type]  # the sockets that we gave
            if min(self._streams.values()) >= self._wanted:
                self._done.set()
        waiting.close()

    def _take(self, stream: socket.socket) -> None:
        data = self._rest[stream] + stream.recv(1 << 20)
        self._streams[stream] += data.count(_CHANGE)
        self._rest[stream] = data[-(len(_CHANGE) - 1) :]


def idle_memory(engine: BenchEngine, _: Sizes) -> Iterator[Row]:
    """The resident memory of a server that has answered a call and waits."""
    path = engine.fresh()
    with server(path) as served:
        connection = served.connection()
        _call(connection, "acquire")
        connection.close()
        time.sleep(1.0)  # its background work has begun by then
        yield Row(name="idle server", p50=served.memory(), unit="MB", target="60 MB")
