"""What a command and an idle client cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import interlock
from interlock.bench.engine import Engine
from interlock.bench.table import Row, timed


def cold_start(engine: Engine, quick: bool) -> Iterator[Row]:
    """A cold ``interlock lock acquire``, beside an interpreter that does nothing."""
    path = engine.fresh()
    interlock.connect(path).close()
    ours: list[float] = []
    bare: list[float] = []
    for number in range(8 if quick else 40):
        bare.append(_seconds([sys.executable, "-c", "pass"]))
        arguments = ["lock", "acquire", f"cold.{number}", "--agent", "bench", "--store", path]
        ours.append(_seconds([sys.executable, "-m", "interlock", *arguments]))
    yield timed("cold lock acquire", ours, bare, engine.targets["cold"])


def idle_memory(engine: Engine, quick: bool) -> Iterator[Row]:  # noqa: ARG001 - one size
    """The resident memory of a client that is connected and waits."""
    path = engine.fresh()
    for kind, program in (("blocking", _BLOCKING), ("async", _ASYNC)):
        resident, target = _memory(path, program), engine.targets["memory"]
        yield Row(name=f"idle client, {kind}", p50=resident, unit="MB", target=target)


_BLOCKING = """
import sys, interlock
with interlock.connect(sys.argv[1], agent="idle") as fleet:
    with fleet.lock("idle"):
        print("ready", flush=True); sys.stdin.read()
"""
_ASYNC = """
import asyncio, sys
from interlock import aio
async def main():
    async with await aio.connect(sys.argv[1], agent="idle") as fleet:
        async with fleet.lock("idle"):
            print("ready", flush=True); await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def _memory(path: str, program: str) -> float:
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # noqa: S603
        try:
            assert client.stdout is not None  # noqa: S101 - it is a pipe
            client.stdout.readline()
            with open(f"/proc/{client.pid}/status", encoding="ascii") as status:
                resident = next(line for line in status if line.startswith("VmRSS"))
            return int(resident.split()[1]) / 1024
        finally:
            client.communicate()


def _seconds(command: list[str]) -> float:
    """The wall time of a command, with its byte code cached as it is on a machine in use."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603
    return time.perf_counter() - began
