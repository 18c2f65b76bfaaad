"""A program: in a network of its own, an engine and a client, and no network between them for 16 s.

    unshare -rn python -m tests.faults.gap redis FOLDER

Prints what is held at the end of which nobody was told, one thing a line.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import interlock
from interlock.errors import StoreTrouble
from interlock.testing.servers import EtcdServer, RedisServer

GAP = 16.0
LATE = 32.0
"""TCP tries again for the last time within this time after the gap."""


def main(engine: str, folder: Path) -> None:
    """Say what was left behind."""
    _loopback("up")
    kind = {"redis": RedisServer, "etcd": EtcdServer}[engine]
    with (
        kind(folder) as server,
        interlock.connect(server.url(), agent="ada", ttl=90) as ada,
        interlock.connect(server.url(), agent="bob", ttl=90) as bob,
    ):
        bob.tasks.publish("t")
        told: set[str] = set()
        takes = {
            "lock/x": lambda: ada.locks.acquire("x"),
            "sem/x": lambda: ada.semaphores.acquire("x", capacity=1),
            "task/t": lambda: ada.tasks.claim("t"),
        }
        calls = [Thread(target=_take, args=(told, *each)) for each in takes.items()]
        ada.locks.show("x")  # connected
        _loopback("down")
        began = time.monotonic()
        for call in calls:
            call.start()
        time.sleep(GAP)
        _loopback("up")
        ends = began + GAP + LATE
        for call in calls:
            call.join()
        time.sleep(max(0.0, ends - time.monotonic()))
        (here,) = [each for each in bob.agents.list() if each.session == ada.session]
        held = [name if "/" in name else f"lock/{name}" for name in here.holds]
        sys.stdout.writelines(f"{name}\n" for name in held if name not in told)


def _take(told: set[str], thing: str, call: Callable[[], object]) -> None:
    try:
        if isinstance(call(), interlock.Granted):
            told.add(thing)
    except StoreTrouble as trouble:
        sys.stderr.write(f"{thing}: {type(trouble).__name__}\n")


def _loopback(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
