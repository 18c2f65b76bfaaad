"""``interlock mcp`` as a host sees it: from its start to the first lock, and a warm call.

The floor of a start is an interpreter that does nothing; that of a call is the same call in Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import interlock
from interlock.bench.engine import BenchEngine
from interlock.bench.measuring import Row, Sizes, percentile, timed

_WARM = 20
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench"}}


class _Server:
    """A server, and what a host says to it, one request at a time."""

    def __init__(self, path: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"INTERLOCK_STORE": path, "INTERLOCK_AGENT": "bench"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "interlock", "mcp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, method: str, params: dict[str, Any]) -> str:
        """The answer, as text."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        assert self._process.stdout is not None  # noqa: S101
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().decode()

    def call(self, tool: str, lock: str) -> None:
        """Call a tool that takes a lock."""
        answer = self.ask("tools/call", {"name": tool, "arguments": {"lock": lock}})
        if "acquired" not in answer and "released" not in answer:
            raise RuntimeError(answer)

    def end(self) -> None:
        """End it by the end of its input."""
        self._process.communicate()


@contextmanager
def _server(path: str) -> Iterator[_Server]:
    server = _Server(path)
    try:
        yield server
    finally:
        server.end()


def first_lock(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """From the start of a server to its first lock, with what a host asks before that."""
    path = engine.fresh()
    interlock.connect(path).close()
    bare, ours = [], []
    for number in range(size.cold_starts):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", "pass"], check=True)
        bare.append(time.perf_counter() - began)
        began = time.perf_counter()
        with _server(path) as server:
            server.ask("initialize", _HELLO)
            server.ask("tools/list", {})
            server.call("lock_acquire", f"first.{number}")
            ours.append(time.perf_counter() - began)
    yield timed("mcp, start to first lock", ours, bare, engine.targets["mcp-start"])


def warm_call(engine: BenchEngine, size: Sizes) -> Iterator[Row]:
    """A lock by a tool, beside the same call in Python; the limit leaves 0.3 ms for the pipe."""
    path = engine.fresh()
    spans: dict[bool, list[float]] = {False: [], True: []}
    with interlock.connect(path, agent="python") as fleet, _server(path) as server:
        for number in range(-_WARM, size.one_by_one // 3):
            for by_tool in (False, True):
                began = time.perf_counter()
                if by_tool:
                    server.call("lock_acquire", "tool")
                else:
                    fleet.locks.acquire("python")
                took = time.perf_counter() - began
                if number >= 0:
                    spans[by_tool].append(took)
            fleet.locks.release("python")
            server.call("lock_release", "tool")
    python = percentile(spans[False], 0.5) * 1000
    limit = f"at most {1.5 * python + 0.3:.2f} ms here"
    yield timed("mcp, warm lock acquire", spans[True], spans[False], limit)
