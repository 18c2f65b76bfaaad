"""A server that is hostile or broken: whatever it announces, memory and time are bounded."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

import pytest

INFO = b"redis_version:7.4.0\r\nrole:master\r\n"
GREETING = b"+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n0\r\n*0\r\n$%d\r\n%b\r\n$-1\r\n" % (len(INFO), INFO)
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:1\r\n"
MEMORY = 200
"""MiB that a client may take beyond what it has at the beginning."""

SOON = 20.0
"""Seconds, on a machine that is busy with other things."""

CLIENT = """
import asyncio, json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from interlock.errors import StoreTrouble
from interlock.stores.address import parse
from interlock.stores.redis import RedisStore
import interlock.stores.redis.async_connections, time

def most():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))

def blocking(url):
    store = RedisStore(parse(url), patience=0.1)
    try:
        store.open()
        store.watch("p/", 0).take(1)
    finally:
        store.close()

async def in_loop(url):
    store = RedisStore(parse(url), patience=0.1)
    try:
        await store.open_async()
        await store.watch("p/", 0).take_async(1)
    finally:
        await store.close_async()

before, found = most(), []
for client in (blocking, lambda url: asyncio.run(in_loop(url))):
    began = time.monotonic()
    try:
        client(sys.argv[1])
    except StoreTrouble as error:
        found.append([type(error).__name__, str(error), time.monotonic() - began])
print(json.dumps({"errors": found, "mib": most() - before}))
"""


def answer(request: bytes, evil: Callable[[], Iterable[bytes]], stage: str) -> Iterable[bytes]:
    """What the server says: as Redis does, up to the stage at which it becomes evil."""
    if b"SETNAME" in request and stage != "greeting":
        return [GREETING]
    if b"SUBSCRIBE" in request and stage == "published":
        channel = request.split(b"\r\n")[4]
        return chain([SUBSCRIBED % (len(channel), channel)], evil())
    if b"EVALSHA" in request and stage in ("subscribed", "published"):
        asks_for_rights = b"bell:" in request.split(b"\r\n")[-2]
        return [b"*0\r\n" if asks_for_rights else b"*3\r\n:0\r\n:0\r\n:1\r\n"]
    return evil()


@contextmanager
def server(evil: Callable[[], Iterable[bytes]], stage: str) -> Iterator[str]:
    """A server that is evil from a stage on; its URL."""

    def serve(connected: socket.socket) -> None:
        with connected, suppress(OSError):
            while request := connected.recv(65536):
                for words in answer(request, evil, stage):
                    connected.sendall(words)

    threads = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    threads.append(threading.Thread(target=serve, args=(connected,)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for thread in threads:
            thread.join()


EVIL: dict[str, Callable[[], Iterable[bytes]]] = {
    "elements": lambda: [b"*2000000000\r\n"],
    "elements inside": lambda: [b"*2\r\n:1\r\n*2000000000\r\n"],
    "pushed": lambda: [b">2000000000\r\n"],
    "a map": lambda: [b"%2000000000\r\n"],
    "a set": lambda: [b"~2000000000\r\n"],
    "many digits": lambda: [b"*" + b"9" * 5000 + b"\r\n"],
    "in pieces": lambda: [b"*20000", b"00000\r", b"\n"],
    "behind half a line end": lambda: [b"+a\n$100\r\n*2000000000\r\n"],
    "bytes": lambda: [b"$2000000000\r\n"],
    "text": lambda: [b"=2000000000\r\n"],
    "depth": lambda: repeat(b"*1\r\n" * 10_000),
    "a line": lambda: chain([b"+"], repeat(b"a" * 65536)),
    "digits": lambda: chain([b":"], repeat(b"1" * 65536)),
    "empty arrays": lambda: chain([b"*1000000\r\n"], repeat(b"*0\r\n" * 10_000)),
}


@pytest.mark.parametrize("stage", ["greeting", "script", "subscribed", "published"])
@pytest.mark.parametrize("name", EVIL)
def test_what_a_server_announces_takes_neither_memory_nor_time(name: str, stage: str) -> None:
    with server(EVIL[name], stage) as url:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # A watch may take it for an outage that ends each time it connects, until its time is up.
    assert len(said["errors"]) == 2 or stage == "published"
    for kind, line, seconds in said["errors"]:
        assert kind in ("StoreUnsuitable", "StoreAway"), line
        assert "\n" not in line
        assert len(line) < 300
        assert "speak" in line or "is not a Redis server" in line
        assert seconds < SOON
    assert said["mib"] < MEMORY
