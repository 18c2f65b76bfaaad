"""What is measured: an engine, with a floor beside it and a place that is left as it was found.

A floor is the engine's own client doing the reads and writes of an operation as durably, and
nothing else: no slower than what somebody would write who knows the engine well.  Across a network
it reads nothing, since an operation there does not either when nobody is in the way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from typing import ClassVar, Protocol
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from interlock.stores import open_store
from interlock.stores.address import Address, parse

ENTRY = b"x" * 540
HASH = "0" * 64
_SESSION = f"ses_{0:032x}"
_MESSAGE = f"msg_{0:020x}{{}}"


class Act(Struct, frozen=True, gc=False):
    """What an operation reads, writes and deletes, for the name of a lock or a task.

    Keys have ``{}`` where the name belongs; those to be written say how large their value is, and
    ``entry`` is the size of the log entry.
    """

    reads: tuple[str, ...]
    puts: tuple[tuple[str, bytes], ...]
    deletes: tuple[str, ...] = ()
    entry: bytes = ENTRY


ACQUIRE = Act(reads=("locks/{}", "live/session"), puts=(("locks/{}", b"x" * 200),))
PUBLISH = Act(
    reads=("tasks/{}/status",),
    puts=(
        ("tasks/{}/status", b"x" * 19),
        ("tasks/{}/data", b"x" * 53),
        ("ready/-/1000005.1794762331636564/{}", b"{}"),
    ),
    entry=b"x" * 780,
)
CLAIM = Act(
    reads=("tasks/{}/status", "tasks/{}/owner", "live/session", "tasks/{}/data"),
    puts=(
        ("tasks/{}/status", b"x" * 46),
        ("tasks/{}/owner", b"x" * 190),
        (f"claims/{_SESSION}/{{}}", b"x" * 45),
    ),
    deletes=("ready/-/1000005.1794762331636564/{}",),
    entry=b"x" * 1000,
)
COMPLETE = Act(
    reads=("tasks/{}/status", "tasks/{}/owner"),
    puts=(("tasks/{}/status", b"x" * 69),),
    deletes=("tasks/{}/owner", f"claims/{_SESSION}/{{}}"),
    entry=b"x" * 800,
)
ALERT = Act(
    reads=(f"topics/bench/{_MESSAGE}", "paused/bench", "rates/bench/{}"),
    puts=((f"topics/bench/{_MESSAGE}", b"x" * 176), ("rates/bench/{}", b"x" * 18)),
    entry=b"x" * 800,
)
SHARE = Act(
    reads=(f"messages/{_MESSAGE}", "paused/bench", "mailboxes/reader", "rates/bench/{}"),
    puts=(
        (f"messages/{_MESSAGE}", b"x" * 190),
        (f"unread/reader/{_MESSAGE}", b"{}"),
        ("rates/bench/{}", b"x" * 18),
    ),
    entry=b"x" * 1040,
)
_QUERY = f"qry_{0:020x}{{}}"
ASK = Act(
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
REPLY = Act(
    reads=(f"queries/{_QUERY}", f"unread/reader/{_QUERY}", f"live/{_QUERY}"),
    puts=(
        (f"queries/{_QUERY}", b"x" * 360),
        ("answers/0123456789abcdef", b"x" * 48),
        (f"read/reader/{_QUERY}", b"x" * 25),
    ),
    deletes=(f"unread/reader/{_QUERY}", f"open/bench/{_QUERY}", f"live/{_QUERY}"),
    entry=b"x" * 1250,
)


def unlimited(act: Act) -> Act:
    """The same where nobody counts how often somebody sends."""
    return Act(
        reads=tuple([key for key in act.reads if not key.startswith("rates/")]),
        puts=tuple([put for put in act.puts if not put[0].startswith("rates/")]),
        entry=act.entry[:-140],
    )


class Floor(Protocol):
    """A bare client of the engine for a caller that may block."""

    def commit(self, *names: str, act: Act = ACQUIRE) -> None:
        """Do this to all of these."""

    def close(self) -> None:
        """Let go of it."""


class AsyncFloor(Protocol):
    """A bare client of the engine for an event loop."""

    def commit(self, name: str, act: Act = ACQUIRE) -> Awaitable[object]:
        """Do this."""

    async def in_flight(self, rounds: Sequence[Sequence[str]], act: Act = ACQUIRE) -> None:
        """Do this to all of these, as many under way at once as a round has names."""

    async def aclose(self) -> None:
        """Let go of it."""


class Bell(Protocol):
    """The engine's own way to wake another process."""

    def ring(self) -> None:
        """Write what wakes."""

    def hear(self) -> None:
        """Wait for what was written since the last time."""

    def close(self) -> None:
        """Let go of it."""


class Engine(Protocol):
    """An engine to measure."""

    targets: ClassVar[Mapping[str, str]]
    """By the name of the measurement."""
    local: ClassVar[bool]
    """Whether it is in this process, or across a network."""

    def title(self) -> str:
        """What is measured, if that needs to be said."""

    def fresh(self) -> str:
        """The URL of a store that is empty."""

    def floor(self, place: str = "") -> Floor:
        """A floor to measure beside; all of one ``place`` share what they write."""

    def place(self) -> str:
        """Where several processes can have a floor together."""

    async def floor_async(self) -> AsyncFloor:
        """The same for an event loop."""

    def wipe(self) -> None:
        """Remove what would otherwise be given back one by one."""

    def close(self) -> None:
        """Remove everything that was left."""


class NetworkEngine(Engine, Protocol):
    """An engine across a network."""

    address: Address
    idle: ClassVar[frozenset[str]]
    """The kinds of requests that a client may send while it has nothing to do."""

    def bell(self, url: str) -> Bell:
        """A bell in the namespace of this URL."""

    def served(self) -> dict[str, float]:
        """How many requests the server has served, by their kind."""


class Namespaces:
    """Fresh namespaces on one server, all of them under one random name."""

    def __init__(self, url: str, purpose: str = "bench") -> None:
        self.address = parse(url)
        self.root = f"{purpose}-{os.urandom(4).hex()}"
        self.used: list[str] = []
        self._url = url

    def title(self) -> str:
        """The server: what it is, and what an answer of it is worth."""
        with closing(open_store(self._url)) as store:
            info = store.info()
            grade = store.capabilities.durability
        server = info.get("server") or f"{info['engine']} {info['version']}"
        return f"{server}, durability: {grade}"

    def fresh(self) -> str:
        """The URL of a store that is empty."""
        return within(self._url, self.address, self.namespace())

    def namespace(self) -> str:
        """A namespace that nobody used."""
        self.used.append(f"{self.root}/{len(self.used)}")
        return self.used[-1]


def within(url: str, address: Address, namespace: str) -> str:
    """The same server, another namespace."""
    place, _, query = url.partition("?")
    if address.engine == "etcd":
        scheme, _, rest = place.partition("://")
        place = f"{scheme}://{rest.partition('/')[0]}/{namespace}"
        return f"{place}?{query}" if query else place
    options = dict(parse_qsl(query, keep_blank_values=True)) | {"ns": namespace}
    return f"{place}?{urlencode(options, safe='/:@')}"


async def together(
    commit: Callable[[str], Awaitable[object]], rounds: Sequence[Sequence[str]]
) -> None:
    """One worker for each place of a round, each with one commit under way."""

    async def worker(names: Sequence[str]) -> None:
        for name in names:
            await commit(name)

    await asyncio.gather(*map(worker, zip(*rounds, strict=True)))
