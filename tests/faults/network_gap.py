"""A program: an engine and a client in a network namespace, which is down for 16 s.

    unshare -rn python -m tests.faults.network_gap redis FOLDER

Prints the things that are held at the end and that no caller got, one a line.
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
"""The last retransmission of TCP comes within this time after the gap."""


def main(engine: str, folder: Path) -> None:
    """Print the things that are left."""
    _loopback("up")
    kind = {"redis": RedisServer, "etcd": EtcdServer}[engine]
    with (
        kind(folder) as server,
        interlock.connect(server.url(), agent="ada", ttl=90) as ada,
        interlock.connect(server.url(), agent="bob", ttl=90) as bob,
    ):
        bob.tasks.publish("t")
        granted: set[str] = set()
        takes = {
            "lock/x": lambda: ada.locks.acquire("x"),
            "sem/x": lambda: ada.semaphores.acquire("x", capacity=1),
            "task/t": lambda: ada.tasks.claim("t"),
        }
        calls = [Thread(target=_take, args=(granted, *each)) for each in takes.items()]
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
        sys.stdout.writelines(f"{name}\n" for name in held if name not in granted)


def _take(granted: set[str], thing: str, call: Callable[[], object]) -> None:
    try:
        if isinstance(call(), interlock.Granted):
            granted.add(thing)
    except StoreTrouble as trouble:
        sys.stderr.write(f"{thing}: {type(trouble).__name__}\n")


def _loopback(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
