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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO

import interlock
from interlock.bench.engine import BenchEngine
from interlock.bench.measuring import Row, Sizes, percentile, timed
from interlock.errors import BadInput

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
            [sys.executable, "-P", "-m", "interlock", "up", "--open", "--port", "0", "--json"],
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
        return _stream(self.port)

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


def _stream(port: int) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=_LATE)
    found.sendall(_EVENTS)
    head = b""
    while b"event: hello" not in head or not head.endswith(b"\r\n"):
        head += found.recv(65536)
    return found


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
    with (
        interlock.connect(path, agent="python") as fleet,
        server(path) as served,
        _readers(served.port, wanted) as readers,
    ):
        before, began = served.cpu(), time.perf_counter()
        for number in range(wanted):
            fleet.locks.acquire(f"many.{number}")
            time.sleep(max(0.0, began + (number + 1) / EVENTS_A_SECOND - time.perf_counter()))
        lost = readers.readline().strip()
        took, used = time.perf_counter() - began, served.cpu() - before
    target = f"at most 25 % of a core, none lost; lost {lost}"
    yield Row(
        name=f"{STREAMS} streams, {wanted / took:.0f} events a second",
        p50=100 * used / took,
        unit="%",
        target=target,
    )


@contextmanager
def _readers(port: int, wanted: int) -> Iterator[IO[str]]:
    """A process that reads all streams, so that it does not slow down the one that commits."""
    program = f"from {__name__} import read_streams; read_streams({port}, {wanted})"
    words = [sys.executable, "-P", "-c", program]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        process.stdout.readline()
        yield process.stdout
    finally:
        process.kill()
        process.communicate()


def read_streams(port: int, wanted: int) -> None:
    """Open all streams, and print how many events were lost when the last one has come."""
    streams = {_stream(port): 0 for _ in range(STREAMS)}
    rest = dict.fromkeys(streams, b"")
    waiting = selectors.DefaultSelector()
    for each in streams:
        waiting.register(each, selectors.EVENT_READ)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    heard = time.monotonic()
    while min(streams.values()) < wanted and time.monotonic() - heard < _LATE:
        for key, _ in waiting.select(1.0):
            found: socket.socket = key.fileobj  # type: ignore[assignment]  # those that we gave
            heard, data = time.monotonic(), rest[found] + found.recv(1 << 20)
            streams[found] += data.count(_CHANGE)
            rest[found] = data[-(len(_CHANGE) - 1) :]
    sys.stdout.write(f"{sum(wanted - count for count in streams.values())}\n")
    sys.stdout.flush()


def idle_memory(engine: BenchEngine, _: Sizes) -> Iterator[Row]:
    """The resident memory of a server that has answered a call and waits."""
    path = engine.fresh()
    with server(path) as served:
        connection = served.connection()
        _call(connection, "acquire")
        connection.close()
        time.sleep(1.0)  # its background work has begun by then
        yield Row(name="idle server", p50=served.memory(), unit="MB", target="60 MB")
