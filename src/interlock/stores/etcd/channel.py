"""A channel to one endpoint of etcd: its connection, and the calls that can be made on it.

A channel that failed is left.  Until its last call has ended it must not connect again by itself,
so gRPC's own pauses are as long as they can be; ``reconnect.py`` says when there is a new one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import methodcaller
from typing import Any, TypeAlias

from interlock.errors import StoreRefused
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.network import CONNECT, LARGEST_REPLY, REPLY
from interlock.stores.reconnect import LONGEST

# gRPC's core writes remarks about connections to stderr; a command of Interlock prints one line
# about what is wrong.  gRPC reads its setting once, so the environment is restored afterwards for
# other readers; a setting of the user stays as it is.
_VERBOSITY = "GRPC_VERBOSITY"
_ours = _VERBOSITY not in os.environ
os.environ.setdefault(_VERBOSITY, "NONE")

import grpc  # noqa: E402 - after its setting
import grpc.aio  # noqa: E402

if _ours:
    del os.environ[_VERBOSITY]

RpcError = grpc.RpcError
Secrets: TypeAlias = grpc.ChannelCredentials
CLOSED = (ValueError, grpc.FutureCancelledError)
"""What a blocking call raises if its channel is closed, and an async one."""
CLOSED_ASYNC = grpc.aio.UsageError

Metadata: TypeAlias = tuple[tuple[str, str], ...]

RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
GRANT = "/etcdserverpb.Lease/LeaseGrant"
REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
TIME_TO_LIVE = "/etcdserverpb.Lease/LeaseTimeToLive"
STATUS = "/etcdserverpb.Maintenance/Status"
ALARM = "/etcdserverpb.Maintenance/Alarm"
MEMBERS = "/etcdserverpb.Cluster/MemberList"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
WATCH = "/etcdserverpb.Watch/Watch"

# KeepAlive is a stream in both directions.  With one message each way it has the bytes of a plain
# call, and can be made like one.
ANSWERS: dict[str, Any] = {
    RANGE: rpc.RangeResponse,
    TXN: rpc.TxnResponse,
    GRANT: rpc.LeaseGrantResponse,
    REVOKE: rpc.LeaseRevokeResponse,
    KEEP_ALIVE: rpc.LeaseKeepAliveResponse,
    TIME_TO_LIVE: rpc.LeaseTimeToLiveResponse,
    STATUS: rpc.StatusResponse,
    ALARM: rpc.AlarmResponse,
    MEMBERS: rpc.MemberListResponse,
    AUTHENTICATE: rpc.AuthenticateResponse,
}

_OPTIONS = (
    ("grpc.enable_retries", 0),  # a commit must never be sent twice
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.max_receive_message_length", LARGEST_REPLY),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT * 1000)),  # also the limit for connecting
    # A channel that failed is left; until its last call has ended it must not connect again.
    ("grpc.initial_reconnect_backoff_ms", int(LONGEST * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(LONGEST * 1000)),
    ("grpc.keepalive_time_ms", 10_000),  # etcd disconnects a client that pings more than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
)
_serialized = methodcaller("SerializeToString")
"""The bytes of any message."""


class RequestBatch:
    """Several requests at once; the answers in the same order, or the first trouble.

    ``within`` is how long each of them is waited for.
    """

    __slots__ = ("requests", "within")

    def __init__(self, requests: Iterable[tuple[str, Any]], within: float = REPLY) -> None:
        self.requests = tuple(requests)
        self.within = within


class EndpointChannel:
    """A channel to one endpoint, and the calls that can be made on it.

    ``loop`` is the event loop that it belongs to; None for blocking callers.
    """

    def __init__(
        self,
        target: str,
        number: int,
        secrets: Secrets | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        kind: Any = grpc if loop is None else grpc.aio  # with the same two names
        self.channel: Any = (
            kind.insecure_channel(target, options=_OPTIONS)
            if secrets is None
            else kind.secure_channel(target, secrets, options=_OPTIONS)
        )
        self.number = number
        self.loop = loop
        self.made = time.monotonic()
        self.under_way = 0
        """Calls that have not ended."""
        self.calls = {
            method: self.channel.unary_unary(
                method,
                request_serializer=_serialized,
                response_deserializer=answer.FromString,
            )
            for method, answer in ANSWERS.items()
        }

    def answer(
        self, request: tuple[str, Any] | RequestBatch, metadata: Metadata, within: float
    ) -> Any:  # noqa: ANN401 - each method has its own
        """The answer, for a blocking caller."""
        if not isinstance(request, RequestBatch):
            method, message = request
            return self.calls[method](message, timeout=within, metadata=metadata)
        if len(request.requests) == 1:  # without the threads that a future needs
            ((method, message),) = request.requests
            return [self.calls[method](message, timeout=within, metadata=metadata)]
        futures = [
            self.calls[method].future(message, timeout=within, metadata=metadata)
            for method, message in request.requests
        ]
        return [future.result() for future in futures]

    async def answer_async(
        self, request: tuple[str, Any] | RequestBatch, metadata: Metadata, within: float
    ) -> Any:  # noqa: ANN401
        """The answer, in the event loop of this channel."""
        if not isinstance(request, RequestBatch):
            method, message = request
            return await self.calls[method](message, timeout=within, metadata=metadata)
        calls = [
            self.calls[method](message, timeout=within, metadata=metadata)
            for method, message in request.requests
        ]
        return await asyncio.gather(*calls)

    def stream(self, requests: Iterator[Any], metadata: Metadata) -> Any:  # noqa: ANN401 - gRPC's call
        """A stream of watch answers, for a thread that reads it."""
        make = self.channel.stream_stream(
            WATCH,
            request_serializer=_serialized,
            response_deserializer=rpc.WatchResponse.FromString,
        )
        return make(requests, metadata=metadata)

    def close(self) -> None:
        """Close it, from any thread; that of an event loop is closed there."""
        if self.loop is None:
            self.channel.close()
        elif not self.loop.is_closed():
            with suppress(RuntimeError):  # closed this moment
                self.loop.call_soon_threadsafe(_end, self.loop, self.channel)


def limited(request: tuple[str, Any] | RequestBatch, within: float) -> float:
    """How long a request is waited for: as its caller has time, or less if it says so itself."""
    return min(within, request.within) if isinstance(request, RequestBatch) else within


def secrets(address: Address) -> Secrets:
    """What TLS needs, read from the files that the address names."""
    files = {name: _file(address, name) for name in ("ca", "cert", "key")}
    try:
        return grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
    except ValueError as error:
        raise StoreRefused(f"{address.shown} needs cert= and key= together ({error})") from None


def _file(address: Address, name: str) -> bytes | None:
    path = address.options.get(name)
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StoreRefused(
            f"{address.shown} needs the file of {name}={path}, which cannot be read"
            f" ({error.strerror}); check the path"
        ) from None


def _end(loop: asyncio.AbstractEventLoop, channel: grpc.aio.Channel) -> None:
    """Called in the loop that the channel belongs to."""
    task = loop.create_task(channel.close())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
"""A loop holds its tasks only weakly."""
