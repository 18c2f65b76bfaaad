"""Redis: fresh namespaces of a server, and the protocol spoken by hand for the floor.

The floor runs a script that writes the same bytes as a commit does, checks nothing and tells
nobody.  One request at a time goes through a blocking socket; in an event loop, requests share a
connection, and those of one turn of the loop share a system call.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ssl import SSLWantReadError
from typing import Any, ClassVar

from hiredis import Reader, ReplyError

from interlock.bench.engine import ACQUIRE, ENTRY, HASH, Act, Namespaces, together
from interlock.stores.address import parse
from interlock.stores.redis import RedisStore
from interlock.stores.redis.grade import facts
from interlock.stores.redis.packing import pack

_SCRIPT = """
redis.call('XADD', KEYS[2], '*', 'i', ARGV[1], 'e', ARGV[2], 'h', ARGV[3])
redis.call('HSET', KEYS[3], ARGV[1], '1')
local puts = 4 + 2 * tonumber(ARGV[4])
redis.call('HSET', KEYS[1], unpack(ARGV, 5, puts))
if puts < #ARGV then redis.call('HDEL', KEYS[1], unpack(ARGV, puts + 1)) end
return 1
"""
_CHUNK = 1 << 18
_BUFFER = 1 << 20
_PATIENCE = 30


class RedisEngine(Namespaces):
    """A Redis or Valkey server."""

    local: ClassVar[bool] = False
    targets: ClassVar[Mapping[str, str]] = {
        "acquire": "at most 1.6",
        "acquire-async": "at most 1.6",
        "read-first": "at most 2.5",
        "share": "under 0.35 of its time",
        "in-flight": "at least 0.60",
        "claim": "at most 1.6",
        "claim-async": "at most 1.6",
        "tasks-in-flight": "",
        "drain": "",
        "told": "p95 at most 5 ms",
        "alert": "at most 1.6",
        "messages-in-flight": "",
        "heard-here": "p95 at most 2 ms",
        "heard": "p95 at most 5 ms",
        "query": "p95 at most 10 ms",
        "flooded": "at most 2",
        "handoff": "at most 3",
        "publish": "at most 2",
        "idle": "at most 50 /s",
    }
    idle: ClassVar[frozenset[str]] = frozenset(("eval", "evalsha", "fcall"))

    def floor(self, place: str = "") -> RedisFloor:
        """A bare connection."""
        return RedisFloor(self._connected(), place or self.place())

    def place(self) -> str:
        """A namespace."""
        return self.namespace()

    async def floor_async(self) -> AsyncRedisFloor:
        """The same in an event loop."""
        return AsyncRedisFloor(self._connected(), self.namespace())

    def bell(self, url: str) -> RedisBell:
        """A stream of its own beside the store."""
        return RedisBell(self._connected(), parse(url).namespace)

    def served(self) -> dict[str, float]:
        """The scripts; what they call inside is counted by the server too, and is left out."""
        found = facts(self._ask("INFO", "commandstats"))
        return {
            name.removeprefix("cmdstat_"): float(told.partition(",")[0].removeprefix("calls="))
            for name, told in found.items()
            if name.removeprefix("cmdstat_") in self.idle
        }

    def wipe(self) -> None:
        """Remove the keys of all namespaces that were used."""
        names = [*RedisStore(self.address).keys, *_FLOOR, "bell"]
        for namespace in self.used:
            self._ask("UNLINK", *(f"{{{namespace}}}:{name}" for name in names))

    def close(self) -> None:
        """Remove everything."""
        self.wipe()

    def _ask(self, *words: str) -> Any:  # noqa: ANN401 - whatever the server says
        bare = Bare(self._connected())
        try:
            return bare.ask(words)
        finally:
            bare.close()

    def _connected(self) -> socket.socket:
        """A socket on which the server let us in; the rest is up to the floor."""
        return RedisStore(self.address).wire.dial().sock


_FLOOR = ("floor:items", "floor:log", "floor:ids")


class Bare:
    """A blocking socket and the parser of replies."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = Reader()

    def ask(self, words: Sequence[str | bytes]) -> Any:  # noqa: ANN401 - whatever it says
        """The reply to a command."""
        self._sock.sendall(pack(tuple(words)))
        gets = self._reader.gets
        while (reply := gets()) is False:
            self._reader.feed(self._sock.recv(_CHUNK))
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()


class RedisFloor(Bare):
    """One script at a time."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        super().__init__(sock)
        self._start = _start(self.ask(("SCRIPT", "LOAD", _SCRIPT)), namespace)

    def commit(self, *names: str, act: Act = ACQUIRE) -> None:
        """Do this to all of these, one after the other."""
        for name in names:
            self.ask((*self._start, *_arguments(name, act)))


class AsyncRedisFloor:
    """One connection for all who wait; replies come in the order of the requests."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        self._start = _start(Bare(sock).ask(("SCRIPT", "LOAD", _SCRIPT)), namespace)
        self._sock = sock
        self._reader = Reader()
        self._waiting = deque[asyncio.Future[Any]]()
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._pending = getattr(sock, "pending", None)  # of TLS: what was decrypted already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def commit(self, name: str, act: Act = ACQUIRE) -> asyncio.Future[Any]:
        """Do this."""
        request = pack(self.command(name, act))
        future = self._loop.create_future()
        if not self._waiting:
            self._sock.send(request)
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(request)
        self._waiting.append(future)
        return future

    def command(self, name: str, act: Act = ACQUIRE) -> tuple[str | bytes, ...]:
        """The words of that request."""
        return (*self._start, *_arguments(name, act))

    async def in_flight(self, rounds: Sequence[Sequence[str]], act: Act = ACQUIRE) -> None:
        """As many at once as a round has names."""
        await together(lambda name: self.commit(name, act), rounds)

    async def aclose(self) -> None:
        """Let go of the socket."""
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _flush(self) -> None:
        self._sock.sendall(b"".join(self._out))  # a fraction of what the buffer takes
        self._out.clear()

    def _readable(self) -> None:
        with suppress(BlockingIOError, SSLWantReadError):
            data = self._sock.recv(_CHUNK)
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._waiting.popleft().set_result(reply)
            if not data:
                self._loop.remove_reader(self._sock)
                self._waiting.popleft().set_exception(EOFError("the server left"))
            elif self._pending is not None and self._pending():
                self._loop.call_soon(self._readable)


class RedisBell(Bare):
    """An entry in a stream, and a blocking read of that stream."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        super().__init__(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE, 0))
        self._key = f"{{{namespace}}}:bell"
        self._last: str | bytes = "0-0"

    def ring(self) -> None:
        """Write an entry."""
        self.ask(("XADD", self._key, "*", "e", ENTRY))

    def hear(self) -> None:
        """Wait for the next entry."""
        read = ("XREAD", "BLOCK", str(_PATIENCE * 1000), "STREAMS", self._key, self._last)
        self._last = self.ask(read)[0][1][-1][0]


def _start(sha: bytes, namespace: str) -> tuple[str | bytes, ...]:
    return ("EVALSHA", sha, str(len(_FLOOR)), *(f"{{{namespace}}}:{name}" for name in _FLOOR))


def _arguments(name: str, act: Act) -> list[str | bytes]:
    words: list[str | bytes] = [f"txn_{name:0>26}", act.entry, HASH, str(len(act.puts))]
    for key, value in act.puts:
        words += [key.format(name), _STAMP + value]
    return words + [key.format(name) for key in act.deletes]


_STAMP = b"1700000000000000 1700000000000000 0 txn_%026d %s " % (0, HASH.encode())
