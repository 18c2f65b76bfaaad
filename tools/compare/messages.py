"""Messages: a process sends, another receives and acknowledges, and each message arrives once.

With one at a time, the sender keeps a pace, so that no message waits behind another one; else it
keeps many under way and sends as quickly as it can.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from tools.compare.peer import TEXT, Peer, Work

if TYPE_CHECKING:
    from interlock import Fleet, aio

_BATCH = 64
_STREAM = "compare"


class Messages(Peer):
    """A sender and a receiver."""

    def prepare(self, work: Work) -> None:
        """Create what both need, before the run."""

    def send(self, work: Work) -> None:
        """Send ``work.count`` messages and note each before its call, ``work.at_once`` at once."""
        raise NotImplementedError

    def receive(self, work: Work) -> None:
        """Receive, note and acknowledge until all messages came."""
        raise NotImplementedError


def paced(work: Work) -> Iterator[int]:
    """The numbers to send one at a time, each noted at its moment."""
    begin = time.monotonic()
    for number in range(work.count):
        time.sleep(max(0.0, begin + number * work.pace - time.monotonic()))
        work.note(number)
        yield number


async def in_flight(work: Work, send: Callable[[int], Awaitable[object]]) -> None:
    """Send all numbers, so many at once."""
    numbers = iter(range(work.count))

    async def some() -> None:
        for number in numbers:
            work.note(number)
            await send(number)

    await asyncio.gather(*(some() for _ in range(work.at_once)))


class Interlock(Messages):
    """Interlock on SQLite: data that is shared with one agent."""

    name = "interlock"
    title = "Interlock, SQLite, share"
    lacks = ""
    packages = ("interlock", "apsw")
    ours = True

    def send(self, work: Work) -> None:
        """The blocking client one at a time, the asyncio client for many."""
        import interlock

        if work.at_once > 1:
            asyncio.run(self._send_many(work))
            return
        with interlock.connect(self.place, agent="sender") as fleet:
            work.begin()
            for number in paced(work):
                _sent(self._post(fleet, number))

    async def _send_many(self, work: Work) -> None:
        from interlock import aio
        from interlock.bench.operations import NO_LIMIT, limit_rate

        async def send(number: int) -> None:
            _sent(await self._post(fleet, number))

        async with await aio.connect(self.place, agent="sender") as fleet:
            limit_rate(fleet.messages, NO_LIMIT)  # as ``rate = 0`` in the settings does
            work.begin()
            await in_flight(work, send)

    def _post(self, fleet: Fleet | aio.Fleet, number: int) -> Any:  # noqa: ANN401 - of either client
        return fleet.messages.share("receiver", "compare", {"number": number, "text": TEXT})

    def receive(self, work: Work) -> None:
        """The loop of either client; many are acknowledged together."""
        import interlock

        if work.at_once > 1:
            asyncio.run(self._receive_many(work))
            return
        with interlock.connect(self.place, agent="receiver") as fleet:
            fleet.messages.subscribe("compare")
            work.begin()
            for message in fleet.messages.recv():
                work.note(message.data["number"])
                if len(work.notes) == work.count:
                    break

    async def _receive_many(self, work: Work) -> None:
        from interlock import aio

        async with await aio.connect(self.place, agent="receiver") as fleet:
            await fleet.messages.subscribe("compare")
            receiver = fleet.messages.recv(ack=False)
            work.begin()
            while len(work.notes) < work.count:
                came = await receiver.take()
                for message in came:
                    work.note(message.data["number"])
                await receiver.ack(*came)

    def subscribe(self, work: Work) -> None:
        """Several subscribers in one process: each receives all alerts."""
        asyncio.run(self._subscribe(work))

    async def _subscribe(self, work: Work) -> None:
        from interlock import aio

        async def receive(fleet: aio.Fleet) -> None:
            receiver = fleet.messages.recv(ack=False)
            left = work.count
            while left:
                came = await receiver.take()
                for message in came:
                    work.note(message.data["number"])
                left -= len(came)
                await receiver.ack(*came)

        async with AsyncExitStack() as stack:
            fleets: list[aio.Fleet] = []
            for number in range(work.at_once):
                name = f"subscriber.{work.worker}.{number}"
                store = fleets[0].store if fleets else None
                fleet = await aio.connect(self.place, agent=name, store=store)
                fleets.append(await stack.enter_async_context(fleet))
                await fleet.messages.subscribe("compare")
            work.begin()
            await asyncio.gather(*map(receive, fleets))


class InterlockRedis(Interlock):
    """Interlock on Redis: data that is shared with one agent."""

    name = "interlock-redis"
    title = "Interlock, Redis, share"
    server = "redis"
    packages = ("interlock", "hiredis")
    beside = "interlock-redis"


class InterlockEtcd(Interlock):
    """Interlock on etcd: data that is shared with one agent."""

    name = "interlock-etcd"
    title = "Interlock, etcd, share"
    server = "etcd"
    packages = ("interlock", "grpcio")
    beside = "interlock-etcd"


class InterlockAlert(Interlock):
    """Interlock on SQLite: an alert to its subscribers."""

    name = "interlock-alert"
    title = "Interlock, SQLite, alert"
    beside = "interlock-alert"

    def _post(self, fleet: Fleet | aio.Fleet, number: int) -> Any:  # noqa: ANN401 - of either client
        return fleet.messages.alert("compare", {"number": number, "text": TEXT})


class InterlockAlertRedis(InterlockAlert):
    """Interlock on Redis: an alert to its subscribers."""

    name = "interlock-alert-redis"
    title = "Interlock, Redis, alert"
    server = "redis"
    packages = ("interlock", "hiredis")
    beside = "interlock-alert-redis"


class JetStream(Messages):
    """A stream of NATS with a durable consumer; each message is synced before it is answered."""

    name = "jetstream"
    title = "NATS JetStream"
    lacks = "fencing, record"
    keeps = "every message synced"
    server = "nats"
    packages = ("nats-py",)

    def prepare(self, work: Work) -> None:  # noqa: ARG002 - of the interface
        """The stream, without the messages of an earlier run."""
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        import nats
        from nats.js.errors import NotFoundError

        async with await nats.connect(self.place) as client:
            stream = client.jetstream()
            with suppress(NotFoundError):  # in the first run
                await stream.delete_stream(_STREAM)
            await stream.add_stream(name=_STREAM, subjects=[_STREAM])

    def send(self, work: Work) -> None:
        asyncio.run(self._send(work))

    async def _send(self, work: Work) -> None:
        import nats

        async with await nats.connect(self.place) as client:
            stream = client.jetstream()

            async def send(number: int) -> None:
                await stream.publish(_STREAM, f"{number} {TEXT}".encode())

            work.begin()
            if work.at_once > 1:
                await in_flight(work, send)
                return
            for number in paced(work):
                await send(number)

    def receive(self, work: Work) -> None:
        asyncio.run(self._receive(work))

    async def _receive(self, work: Work) -> None:
        import nats

        async with await nats.connect(self.place) as client:
            subscription = await client.jetstream().subscribe(_STREAM, durable="receiver")
            work.begin()
            async for message in subscription.messages:
                work.note(int(message.data.split()[0]))
                await message.ack()
                if len(work.notes) == work.count:
                    break


class RedisStream(Messages):
    """A stream of Redis with a consumer group, by redis-py; many are sent in pipelines."""

    name = "redis-stream"
    title = "Redis stream, redis-py"
    lacks = "lease, fencing, record"
    server = "redis"
    packages = ("redis",)
    beside = "interlock-redis"

    def prepare(self, work: Work) -> None:  # noqa: ARG002 - of the interface
        self._client().xgroup_create(_STREAM, "receivers", mkstream=True)

    def send(self, work: Work) -> None:
        """One after the other, or a pipeline for as many as are sent at once."""
        client = self._client()
        work.begin()
        if work.at_once == 1:
            for number in paced(work):
                client.xadd(_STREAM, {"number": number, "text": TEXT})
            return
        for first in range(0, work.count, work.at_once):
            pipeline = client.pipeline(transaction=False)
            for number in range(first, min(first + work.at_once, work.count)):
                work.note(number)
                pipeline.xadd(_STREAM, {"number": number, "text": TEXT})
            pipeline.execute()

    def receive(self, work: Work) -> None:
        client = self._client()
        work.begin()
        while len(work.notes) < work.count:
            found = client.xreadgroup(
                "receivers", "receiver", {_STREAM: ">"}, count=_BATCH, block=1000
            )
            for _, came in found:
                for _, fields in came:
                    work.note(int(fields[b"number"]))
                client.xack(_STREAM, "receivers", *(id_ for id_, _ in came))

    def _client(self) -> Any:  # noqa: ANN401 - its types differ between versions
        from redis import Redis

        # The replies of the second protocol, which are lists.
        return Redis.from_url(self.place.partition("?")[0], protocol=2)


def _sent(outcome: object) -> None:
    from interlock import Sent

    assert isinstance(outcome, Sent), outcome  # noqa: S101 - nothing limits it


PEERS: tuple[type[Messages], ...] = (
    Interlock,
    JetStream,
    InterlockRedis,
    RedisStream,
    InterlockEtcd,
)
