"""An engine to measure: fresh stores that leave nothing behind, and a floor.

A floor is the engine's own client doing the reads and writes of an operation as durably, and
nothing else: as quick as an expert in this engine would write it.  Across a network a floor reads
nothing, since an uncontended operation there does not read either.  The floor of SQLite is a bare
file beside the measured one, with the same tables, through one cursor of apsw.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from typing import ClassVar, Protocol, cast
from urllib.parse import parse_qsl, urlencode

import apsw
from msgspec import Struct
from msgspec.structs import replace

from interlock.errors import BadInput
from interlock.stores import file_of, is_git, open_store
from interlock.stores.address import Address, parse
from interlock.stores.sqlite import schema

ENTRY = b"x" * 540
HASH = "0" * 64
_READ = "SELECT key, value, revision, created, entry, hash, expires FROM item WHERE key = ?"
_REVISION = """SELECT max((SELECT max(revision) FROM log),
  (SELECT value FROM meta WHERE name = 'quiet'))"""
_PUT = "INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?, ?, ?, NULL)"
_DELETE = "DELETE FROM item WHERE key = ?"
_LOG = "INSERT INTO log VALUES (?, ?, ?, ?, ?)"
_SESSION = f"ses_{0:032x}"
_MESSAGE = f"msg_{0:020x}{{}}"


class FloorCommit(Struct, frozen=True, gc=False):
    """The reads, writes and deletes of one operation, for the name of a lock or a task.

    Keys have ``{}`` in place of the name.  Values and the log ``entry`` have the size that the
    operation's own have.
    """

    reads: tuple[str, ...]
    puts: tuple[tuple[str, bytes], ...]
    deletes: tuple[str, ...] = ()
    entry: bytes = ENTRY


ACQUIRE = FloorCommit(reads=("locks/{}", "live/session"), puts=(("locks/{}", b"x" * 200),))
PUBLISH = FloorCommit(
    reads=("tasks/{}/status",),
    puts=(
        ("tasks/{}/status", b"x" * 19),
        ("tasks/{}/data", b"x" * 53),
        ("ready/-/1000005.1794762331636564/{}", b"{}"),
    ),
    entry=b"x" * 780,
)
CLAIM = FloorCommit(
    reads=("tasks/{}/status", "tasks/{}/owner", "live/session", "tasks/{}/data"),
    puts=(
        ("tasks/{}/status", b"x" * 46),
        ("tasks/{}/owner", b"x" * 190),
        (f"claims/{_SESSION}/{{}}", b"x" * 45),
    ),
    deletes=("ready/-/1000005.1794762331636564/{}",),
    entry=b"x" * 1000,
)
COMPLETE = FloorCommit(
    reads=("tasks/{}/status", "tasks/{}/owner"),
    puts=(("tasks/{}/status", b"x" * 69),),
    deletes=("tasks/{}/owner", f"claims/{_SESSION}/{{}}"),
    entry=b"x" * 800,
)
ALERT = FloorCommit(
    reads=(f"topics/bench/{_MESSAGE}", "paused/bench", "rates/bench/{}"),
    puts=((f"topics/bench/{_MESSAGE}", b"x" * 176), ("rates/bench/{}", b"x" * 18)),
    entry=b"x" * 800,
)
SHARE = FloorCommit(
    reads=(f"messages/{_MESSAGE}", "paused/bench", "mailboxes/reader", "rates/bench/{}"),
    puts=(
        (f"messages/{_MESSAGE}", b"x" * 190),
        (f"unread/reader/{_MESSAGE}", b"{}"),
        ("rates/bench/{}", b"x" * 18),
    ),
    entry=b"x" * 1040,
)
_QUERY = f"qry_{0:020x}{{}}"
ASK = FloorCommit(
    reads=(f"queries/{_QUERY}", "paused/bench", "mailboxes/reader", "rates/bench/{}"),
    puts=(
        (f"queries/{_QUERY}", b"x" * 260),
        (f"unread/reader/{_QUERY}", b"{}"),
        (f"open/bench/{_QUERY}", b"x" * 16),
        (f"live/{_QUERY}", b"x" * 17),
        ("rates/bench/{}", b"x" * 18),
    ),
    entry=b"x" * 1150,
)
REPLY = FloorCommit(
    reads=(f"queries/{_QUERY}", f"unread/reader/{_QUERY}", f"live/{_QUERY}"),
    puts=(
        (f"queries/{_QUERY}", b"x" * 360),
        ("answers/0123456789abcdef", b"x" * 48),
        (f"read/reader/{_QUERY}", b"x" * 25),
    ),
    deletes=(f"unread/reader/{_QUERY}", f"open/bench/{_QUERY}", f"live/{_QUERY}"),
    entry=b"x" * 1250,
)


def without_rate_limit(kind: FloorCommit) -> FloorCommit:
    """The commit of a sender without a rate limit."""
    return FloorCommit(
        reads=tuple([key for key in kind.reads if not key.startswith("rates/")]),
        puts=tuple([put for put in kind.puts if not put[0].startswith("rates/")]),
        entry=kind.entry[:-140],
    )


class EngineFloor(Protocol):
    """A bare client of the engine for a caller that may block."""

    def commit(self, *names: str, kind: FloorCommit = ACQUIRE) -> None:
        """Make a commit of this kind for each of the names."""

    def close(self) -> None:
        """Close the client."""


class AsyncFloor(ABC):
    """A bare client of the engine for an event loop."""

    @abstractmethod
    def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> Awaitable[object]:
        """Make a commit of this kind."""

    async def in_flight(self, rounds: Sequence[Sequence[str]], kind: FloorCommit = ACQUIRE) -> None:
        """Commit each of the names, with as many under way at once as a round has names."""

        async def worker(names: Sequence[str]) -> None:
            for name in names:
                await self.commit(name, kind)

        await asyncio.gather(*map(worker, zip(*rounds, strict=True)))

    @abstractmethod
    async def aclose(self) -> None:
        """Close the client."""


class WakeUp(Protocol):
    """The engine's own way to wake another process."""

    def send(self) -> None:
        """Write what wakes."""

    def wait(self) -> None:
        """Wait for the next write."""

    def close(self) -> None:
        """Close the client."""


class BenchEngine(ABC):
    """An engine to measure."""

    targets: ClassVar[Mapping[str, str]]
    """By the name of the measurement."""
    local: ClassVar[bool] = True
    """Whether it is in this process, or across a network."""

    def title(self) -> str:
        """The heading of the table, if it needs one."""
        return ""

    @abstractmethod
    def fresh(self) -> str:
        """The URL of an empty store."""

    @abstractmethod
    def floor(self, location: str = "") -> EngineFloor:
        """A floor; those of one location share what they write."""

    @abstractmethod
    def floor_location(self) -> str:
        """A location for floors of several processes."""

    @abstractmethod
    async def floor_async(self) -> AsyncFloor:
        """A floor for an event loop."""

    def peers(self) -> Mapping[str, Callable[[], Awaitable[AsyncFloor]]]:
        """Floors through clients of others, by their names."""
        return {}

    def kind(self, kind: FloorCommit) -> FloorCommit:
        """The commit of an operation by name on this engine."""
        return kind

    @abstractmethod
    def wipe(self) -> None:
        """Remove grants and claims that clients would otherwise release one by one."""

    def close(self) -> None:
        """Remove everything that was left."""
        self.wipe()


class SQLiteEngine(BenchEngine):
    """Files in a folder of their own, on the disk of a path or of the temporary folder."""

    targets: ClassVar[Mapping[str, str]] = {
        "acquire": "at most 1.6",
        "acquire-async": "at most 2.5",
        "share": "under 0.35 of its time",
        "in-flight": "at least 0.25",
        "claim": "at most 1.6",
        "claim-async": "at most 2.5",
        "tasks-in-flight": "at least 0.20",
        "drain": "at least 0.60; ",
        "told": "p95 at most 5 ms",
        "alert": "at most 1.6",
        "messages-in-flight": "at least 0.20",
        "heard-here": "p95 at most 2 ms",
        "heard": "p95 at most 5 ms",
        "query": "p95 at most 10 ms",
        "flooded": "at most 2",
        "requests": "p95 at most 10 ms",
        "requests-in-flight": "",
        "crowd": "500 /s, p95 3 ms; ",
        "cold": "at most 5",
        "warm": "at most 2",
        "mcp-start": "at most 7",
        "memory": "60 MB",
    }

    def __init__(self, path: str | None = None) -> None:
        disk = path if path is None or os.path.isdir(path) else os.path.dirname(path) or "."
        self._folder = tempfile.mkdtemp(prefix="interlock-bench-", dir=disk)

    def fresh(self) -> str:
        """The path of a store that does not exist yet."""
        return self._path("bench")

    def floor(self, location: str = "") -> SQLiteFloor:
        """A bare file."""
        return SQLiteFloor(location or self.floor_location())

    def floor_location(self) -> str:
        """The path of a bare file."""
        return self._path("floor")

    async def floor_async(self) -> AsyncSQLiteFloor:
        """A bare file in an event loop; the engine itself never waits."""
        return AsyncSQLiteFloor(self.floor())

    def wipe(self) -> None:
        """Nothing to do: on this engine one commit releases everything."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}-{os.urandom(4).hex()}.db")


class SQLiteFloor:
    """A bare file beside the measured one."""

    def __init__(self, path: str) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = schema.open_connection(path)
        schema.configure(self._db)
        schema.establish(self._db, path)
        self._execute = self._db.cursor().execute
        self._revision = 0

    def commit(self, *names: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this for all of the names in one durable commit."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        (last,) = cast("tuple[int | None]", execute(_REVISION).fetchone())
        self._revision = last or 0
        for name in names:
            self._one(execute, name, kind)
        execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _one(self, execute: Callable[..., apsw.Cursor], name: str, kind: FloorCommit) -> None:
        self._revision = revision = self._revision + 1
        id_ = f"txn_{revision:032x}"
        for key in kind.reads:
            execute(_READ, (key.format(name),)).fetchone()
        touched = []
        for key, value in kind.puts:
            execute(_PUT, (key.format(name), value, revision, revision, id_, HASH))
            touched.append("+" + key)
        for key in kind.deletes:
            execute(_DELETE, (key.format(name),))
            touched.append("-" + key)
        execute(_LOG, (revision, id_, kind.entry, HASH, "\n".join(touched)))


class AsyncSQLiteFloor(AsyncFloor):
    """The bare file in an event loop; what is under way concurrently is one durable commit."""

    def __init__(self, floor: SQLiteFloor) -> None:
        self._floor = floor

    async def commit(self, name: str, kind: FloorCommit = ACQUIRE) -> None:
        """Do this."""
        self._floor.commit(name, kind=kind)

    async def in_flight(self, rounds: Sequence[Sequence[str]], kind: FloorCommit = ACQUIRE) -> None:
        """One durable commit for each round."""
        for names in rounds:
            self._floor.commit(*names, kind=kind)

    async def aclose(self) -> None:
        """Close the file."""
        self._floor.close()


class NetworkEngine(BenchEngine):
    """An engine across a network: fresh namespaces, all of them under one random name."""

    local: ClassVar[bool] = False
    idle: ClassVar[frozenset[str]]
    """The kinds of requests that an idle client may send."""

    def __init__(self, url: str, purpose: str = "bench") -> None:
        self.address = parse(url)
        self.root = f"{purpose}-{os.urandom(4).hex()}"
        self.used: list[str] = []
        self._url = url

    def title(self) -> str:
        """The server, and how durable its answers are."""
        with closing(open_store(self._url)) as store:
            info = store.info()
            grade = store.capabilities.durability
        server = info.get("server") or f"{info['engine']} {info['version']}"
        return f"{server}, durability: {grade}"

    def fresh(self) -> str:
        """The URL of an empty store."""
        return with_namespace(self._url, self.address, self.floor_location())

    def floor_location(self) -> str:
        """An unused namespace."""
        self.used.append(f"{self.root}/{len(self.used)}")
        return self.used[-1]

    def kind(self, kind: FloorCommit) -> FloorCommit:
        """A claim by name deletes nothing: its entry in an index is deleted later."""
        return replace(kind, deletes=())

    @abstractmethod
    def wake_up(self, url: str) -> WakeUp:
        """The engine's own wake-up, in the namespace of this URL."""

    @abstractmethod
    def served(self) -> dict[str, float]:
        """How many requests the server has served, by their kind."""


def with_namespace(url: str, address: Address, namespace: str) -> str:
    """The URL of another namespace on the same server."""
    base, _, query = url.partition("?")
    if address.engine == "etcd":
        scheme, _, rest = base.partition("://")
        base = f"{scheme}://{rest.partition('/')[0]}/{namespace}"
        return f"{base}?{query}" if query else base
    options = dict(parse_qsl(query, keep_blank_values=True)) | {"ns": namespace}
    return f"{base}?{urlencode(options, safe='/:@')}"


def local(url: str | None) -> BenchEngine:
    """SQLite, on the disk of the named file or folder."""
    if url is not None and (":" in url.partition("/")[0]) and not url.startswith("sqlite:"):
        scheme = url.partition(":")[0]
        raise BadInput(
            f"bench knows no floor for {scheme!r:.40}; name a store of SQLite, Redis or etcd"
        )
    return SQLiteEngine(None if url is None else file_of(url))


def network(url: str, purpose: str = "bench") -> NetworkEngine:
    """The engine of a URL; the names of its namespaces begin with the purpose."""
    if is_git(url):
        raise BadInput(
            "bench knows no floor for git; name a store of SQLite, Redis or etcd,"
            " or measure a remote with: python tools/git_race.py --url URL"
        )
    if parse(url).engine == "redis":
        from interlock.bench.redis import RedisEngine

        return RedisEngine(url, purpose)
    from interlock.bench.etcd import EtcdEngine

    return EtcdEngine(url, purpose)
