"""Redis: fresh namespaces of a server, and the protocol spoken by hand for the floor.

The floor runs a script that writes the same bytes as a commit, without checks and notifications.
One request at a time goes through a blocking socket; in an event loop, requests share a connection,
and those of one iteration of the loop share a system call.  If redis-py is installed, the same
script is measured through that client, too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import import_module
from importlib.util import find_spec
from ssl import SSLWantReadError
from typing import Any, ClassVar

from hiredis import Reader, ReplyError

from interlock.bench.engine import ACQUIRE, ENTRY, HASH, AsyncFloor, FloorCommit, NetworkEngine
from interlock.stores.address import Address, parse
from interlock.stores.redis import RedisStore
from interlock.stores.redis.scripts import pack
from interlock.stores.redis.server import facts

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


class RedisEngine(NetworkEngine):
    """A Redis or Valkey server."""

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
        "requests": "p95 at most 15 ms",
        "requests-in-flight": "at least 500 /s",
        "handoff": "at most 3",
        "publish": "at most 2",
        "idle": "at most 50 /s",
    }
    idle: ClassVar[frozenset[str]] = frozenset(("eval", "evalsha", "fcall"))

    def floor(self, location: str = "") -> RedisFloor:
        """A bare connection."""
        return RedisFloor(self._connected(), location or self.floor_location())

    async def floor_async(self) -> AsyncRedisFloor:
        """A bare connection in an event loop."""
        return AsyncRedisFloor(self._connected(), self.floor_location())

    def peers(self) -> Mapping[str, Callable[[], Awaitable[AsyncFloor]]]:
        """The redis-py client, if it is installed."""
        if find_spec("redis") is None or self.address.tls:
            return {}

        async def redis_py() -> RedisPyFloor:
            return RedisPyFloor(self.address, await self.floor_async())

        return {"redis-py": redis_py}

    def wake_up(self, url: str) -> RedisWakeUp:
        """A stream of its own beside the store."""
        return RedisWakeUp(self._connected(), parse(url).namespace)

    def served(self) -> dict[str, float]:
        """The scripts; the server also counts the commands inside them, which are left out."""
        found = facts(self._command("INFO", "commandstats"))
        return {
            name.removeprefix("cmdstat_"): float(stats.partition(",")[0].removeprefix("calls="))
            for name, stats in found.items()
            if name.removeprefix("cmdstat_") in self.idle
        }

    def wipe(self) -> None:
        """Remove the keys of all namespaces that were used."""
        names = [*RedisStore(self.address).keys, *_FLOOR, "wake"]
        for namespace in self.used:
            self._command("UNLINK", *(f"{{{namespace}}}:{name}" for name in names))

    def _command(self, *words: str) -> Any:  # noqa: ANN401 - any reply
        with closing(RedisConnection(self._connected())) as connection:
            return connection.command(words)

    def _connected(self) -> socket.socket:
        """A socket on which the client is logged in."""
        return RedisStore(self.address).transport.dial().sock


_FLOOR = ("floor:items", "floor:log", "floor:ids")


class RedisConnection:
    """A blocking socket and the parser of replies."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = Reader()

    def command(self, words: Sequence[str | bytes]) -> Any:  # noqa: ANN401 - any reply
        """The reply to a command."""
        self._sock.sendall(pack(tuple(words)))
        gets = self._reader.gets
        while (reply := gets()) is False:
            self._reader.feed(self._sock.recv(_CHUNK))
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class RedisFloor(RedisConnection):
    """One script at a time."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        super().__init__(sock)
        self._start = _start(self.command(("SCRIPT", "LOAD", _SCRIPT)), namespace)

    def commit(self, *names: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this for all of the names, one after the other."""
        for name in names:
            self.command((*self._start, *_arguments(name, kind)))


class AsyncRedisFloor(AsyncFloor):
    """One connection for all requests; replies come in the order of the requests."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        self._start = _start(RedisConnection(sock).command(("SCRIPT", "LOAD", _SCRIPT)), namespace)
        self._sock = sock
        self._reader = Reader()
        self._waiting = deque[asyncio.Future[Any]]()
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._pending = getattr(sock, "pending", None)  # of TLS: decrypted bytes
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> asyncio.Future[Any]:
        """Do this."""
        request = pack(self.request(name, kind))
        future = self._loop.create_future()
        if not self._waiting:
            self._sock.send(request)
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(request)
        self._waiting.append(future)
        return future

    def request(self, name: str, kind: FloorCommit = ACQUIRE) -> tuple[str | bytes, ...]:
        """The command of that commit."""
        return (*self._start, *_arguments(name, kind))

    async def aclose(self) -> None:
        """Close the socket."""
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


class RedisPyFloor(AsyncFloor):
    """The script of the floor through redis-py."""

    def __init__(self, address: Address, floor: AsyncRedisFloor) -> None:
        server: dict[str, object] = {"unix_socket_path": address.socket}
        if address.hosts:
            host, port = address.hosts[0]
            server = {"host": host, "port": port}
        self._client = import_module("redis.asyncio").Redis(
            **server,
            db=address.db,
            username=address.user or None,
            password=address.password or None,
        )
        self._floor = floor

    def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> Awaitable[object]:
        """Do this."""
        reply: Awaitable[object] = self._client.execute_command(*self._floor.request(name, kind))
        return reply

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        await self._floor.aclose()


class RedisWakeUp(RedisConnection):
    """An entry in a stream, and a blocking read of that stream."""

    def __init__(self, sock: socket.socket, namespace: str) -> None:
        super().__init__(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE, 0))
        self._key = f"{{{namespace}}}:wake"
        self._last: str | bytes = "0-0"

    def send(self) -> None:
        """Write an entry."""
        self.command(("XADD", self._key, "*", "e", ENTRY))

    def wait(self) -> None:
        """Wait for the next entry."""
        read = ("XREAD", "BLOCK", str(_PATIENCE * 1000), "STREAMS", self._key, self._last)
        self._last = self.command(read)[0][1][-1][0]


def _start(sha: bytes, namespace: str) -> tuple[str | bytes, ...]:
    return ("EVALSHA", sha, str(len(_FLOOR)), *(f"{{{namespace}}}:{name}" for name in _FLOOR))


def _arguments(name: str, kind: FloorCommit) -> list[str | bytes]:
    words: list[str | bytes] = [f"txn_{name:0>26}", kind.entry, HASH, str(len(kind.puts))]
    for key, value in kind.puts:
        words += [key.format(name), _STAMP + value]
    return words + [key.format(name) for key in kind.deletes]


_STAMP = b"1700000000000000 1700000000000000 0 txn_%026d %s " % (0, HASH.encode())
