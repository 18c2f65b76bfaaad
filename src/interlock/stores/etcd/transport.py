"""Channels to etcd: one endpoint at a time, each call once.

Blocking callers use gRPC's synchronous channel, so that no thread stands between them and the
answer; event loops use ``grpc.aio``, with a channel for each loop, dropped when the loop is gone.
The feed of a store (watch.py) is a stream on the synchronous channel.

A request is a ``(method, message)``; a ``RequestBatch`` has several.  Nothing is retried here, but
for one case in which nothing can have happened: a login that ran out is renewed first.

An endpoint that cannot be reached or does not answer in time is left for the next one, with a
new connection even if there is only one: the old one may be dead without knowing it.  It is
closed a little later, so that calls which are still under way can come to their end.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import methodcaller
from typing import Any, TypeAlias

from interlock.errors import StoreRefused
from interlock.steps import finish_future
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.errors import SILENT, AuthDisabled, TokenExpired, translated
from interlock.stores.network import CONNECT, LARGEST_REPLY, REPLY, Unanswered, Unsent

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

Metadata: TypeAlias = tuple[tuple[str, str], ...]
EtcdRequest: TypeAlias = "tuple[str, Any] | RequestBatch | SentCall | LogIn | DirectRequest"

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
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 10_000),  # etcd disconnects a client that pings more than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.enable_http_proxy", 0),
)
_CLOSING = 0.3
_serialized = methodcaller("SerializeToString")
"""The bytes of any message."""
# A member that lost its leader says so instead of answering from what it has.
_BARE: Metadata = (("hasleader", "true"),)


class RequestBatch:
    """Several requests at once; the answers in the same order, or the first trouble.

    ``within`` is how long each of them is waited for.
    """

    __slots__ = ("requests", "within")

    def __init__(self, requests: Iterable[tuple[str, Any]], within: float = REPLY) -> None:
        self.requests = tuple(requests)
        self.within = within


class DirectRequest:
    """A request that goes past gRPC: a function of server.py, on an endpoint or the present one."""

    __slots__ = ("function", "number")

    def __init__(self, function: Callable[[Address, int], Any], number: int | None = None) -> None:
        self.function = function
        self.number = number


class SentCall:
    """The end of a call that was sent without waiting; how it ended does not matter."""

    __slots__ = ("call",)

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - gRPC's call
        self.call = call

    def wait(self) -> None:
        """Wait until it has ended; it has a limit of its own."""
        with suppress(Exception):
            self.call.result()

    async def wait_async(self) -> None:
        """Wait in an event loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def finish(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish_future, ended)

        self.call.add_done_callback(finish)
        await ended


class LogIn:
    """Get a token for the user of the address, if it names one."""


class EndpointChannel:
    """A channel to one endpoint, and the calls that can be made on it."""

    def __init__(self, channel: Any, number: int) -> None:  # noqa: ANN401 - of either kind
        self.channel = channel
        self.number = number
        self.calls = {
            method: channel.unary_unary(
                method,
                request_serializer=_serialized,
                response_deserializer=answer.FromString,
            )
            for method, answer in ANSWERS.items()
        }


class EtcdTransport:
    """Sends requests to the endpoint that answers."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.targets = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts
        ]
        self.number = random.randrange(len(self.targets))  # noqa: S311 - spread the fleet
        self._lock = threading.Lock()
        self._link: EndpointChannel | None = None
        self._loops: dict[asyncio.AbstractEventLoop, EndpointChannel] = {}
        self._old: list[tuple[float, Any]] = []
        self._secrets: grpc.ChannelCredentials | None = None
        self._metadata: Metadata = _BARE
        self._unawaited: set[Any] = set()
        self._closed = False

    def call(self, request: EtcdRequest) -> Any:  # noqa: ANN401 - each method has its own answer
        """The answer."""
        if isinstance(request, DirectRequest):
            return request.function(self.address, self._endpoint(request))
        if isinstance(request, SentCall):
            return request.wait()
        metadata = self._metadata
        if isinstance(request, LogIn):
            return self._log_in(metadata)
        try:
            return self._call(request, metadata)
        except TokenExpired:
            self._log_in(metadata)
            try:
                return self._call(request, self._metadata)
            except TokenExpired as error:
                raise Unsent(str(error)) from error

    async def call_async(self, request: EtcdRequest) -> Any:  # noqa: ANN401
        """Send from an event loop."""
        if isinstance(request, DirectRequest):
            number = self._endpoint(request)
            return await asyncio.to_thread(request.function, self.address, number)
        if isinstance(request, SentCall):
            return await request.wait_async()
        metadata = self._metadata
        if isinstance(request, LogIn):
            return await self._log_in_async(metadata)
        try:
            return await self._call_async(request, metadata)
        except TokenExpired:
            await self._log_in_async(metadata)
            try:
                return await self._call_async(request, self._metadata)
            except TokenExpired as error:
                raise Unsent(str(error)) from error

    def send_unawaited(self, requests: Iterable[tuple[str, Any]]) -> list[Any]:
        """Send these without waiting for answers, and return the calls: they may get lost."""
        calls: list[Any] = []
        with suppress(ValueError, Unsent):  # closed
            link = self.link()
            for method, message in requests:
                call = link.calls[method].future(message, timeout=REPLY, metadata=self._metadata)
                self._unawaited.add(call)  # gRPC cancels a call without a reference
                call.add_done_callback(self._unawaited.discard)
                calls.append(call)
        return calls

    def stream(self, link: EndpointChannel, requests: Iterator[Any]) -> Any:  # noqa: ANN401 - gRPC's call
        """A stream of watch answers, for a thread that reads it."""
        make = link.channel.stream_stream(
            WATCH,
            request_serializer=_serialized,
            response_deserializer=rpc.WatchResponse.FromString,
        )
        return make(requests, metadata=self._metadata)

    def link(self) -> EndpointChannel:
        """The channel for blocking callers."""
        link = self._link
        if link is not None:
            return link
        with self._lock:
            if self._closed:
                raise Unsent("closed")
            if self._link is None:
                self._link = self._made(grpc)
            return self._link

    def leave(self, link: EndpointChannel) -> None:
        """This endpoint does not answer: go on with the next one, over a new connection."""
        with self._lock:
            if link is self._link:
                self._link = None
            elif link in self._loops.values():
                self._loops = {k: v for k, v in self._loops.items() if v is not link}
            else:
                return  # others noticed before
            if link.number == self.number:
                self.number = (self.number + 1) % len(self.targets)
            now = time.monotonic()
            ended = [old for moment, old in self._old if now - moment > REPLY + 1]
            self._old = [pair for pair in self._old if pair[1] not in ended]
            self._old.append((now, link.channel))
        _close(ended)

    def failed(self, error: Any) -> Exception:  # noqa: ANN401 - it has more than its type says
        """What an error of gRPC means."""
        code = error.code()
        return translated(
            self.address.shown, code.name if code else "UNKNOWN", error.details() or ""
        )

    def close(self) -> None:
        """Cut everything, from any thread."""
        loops = self._cut()
        for loop, link in loops.items():
            if not loop.is_closed():
                with suppress(RuntimeError):  # closed this moment
                    loop.call_soon_threadsafe(_end, loop, link.channel)

    async def close_async(self) -> None:
        """Close everything, and wait until nothing is left in this event loop."""
        here = asyncio.get_running_loop()
        for loop, link in self._cut().items():
            if loop is here:
                await link.channel.close()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_end, loop, link.channel)

    def _endpoint(self, request: DirectRequest) -> int:
        return self.number if request.number is None else request.number

    def _await_sent(self) -> None:
        """Let requests arrive that no caller waits for, if that takes but a moment."""
        ends = time.monotonic() + _CLOSING
        for call in tuple(self._unawaited):
            with suppress(Exception):  # how it ended does not matter
                call.result(timeout=max(0.0, ends - time.monotonic()))

    def _cut(self) -> dict[asyncio.AbstractEventLoop, EndpointChannel]:
        self._await_sent()
        with self._lock:
            self._closed = True
            channels = [old for _, old in self._old]
            if self._link is not None:
                channels.append(self._link.channel)
            loops, self._loops, self._link, self._old = self._loops, {}, None, []
        _close(channels)
        return loops

    def _call(self, request: tuple[str, Any] | RequestBatch, metadata: Metadata) -> Any:  # noqa: ANN401
        link = self._link or self.link()
        try:
            if isinstance(request, RequestBatch):
                if len(request.requests) == 1:  # without the threads that a future needs
                    ((method, message),) = request.requests
                    return [link.calls[method](message, timeout=request.within, metadata=metadata)]
                futures = [
                    link.calls[method].future(message, timeout=request.within, metadata=metadata)
                    for method, message in request.requests
                ]
                return [future.result() for future in futures]
            method, message = request
            return link.calls[method](message, timeout=REPLY, metadata=metadata)
        except RpcError as error:
            raise self._met(link, error, request) from None
        except (ValueError, grpc.FutureCancelledError) as error:  # the channel was closed
            raise Unanswered("closed") from error

    async def _call_async(self, request: tuple[str, Any] | RequestBatch, metadata: Metadata) -> Any:  # noqa: ANN401
        link = self._link_async()
        try:
            if isinstance(request, RequestBatch):
                calls = [
                    link.calls[method](message, timeout=request.within, metadata=metadata)
                    for method, message in request.requests
                ]
                return await asyncio.gather(*calls)
            method, message = request
            return await link.calls[method](message, timeout=REPLY, metadata=metadata)
        except RpcError as error:
            raise self._met(link, error, request) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # the channel was closed, not the task
                raise Unanswered("closed") from None
            raise
        except grpc.aio.UsageError as error:
            raise Unanswered("closed") from error

    def _link_async(self) -> EndpointChannel:
        loop = asyncio.get_running_loop()
        link = self._loops.get(loop)
        if link is not None:
            return link
        with self._lock:
            if self._closed:
                raise Unsent("closed")
            self._loops = {k: v for k, v in self._loops.items() if not k.is_closed()}
            link = self._loops[loop] = self._made(grpc.aio)
            return link

    def _made(self, kind: Any) -> EndpointChannel:  # noqa: ANN401 - grpc or grpc.aio: the same two names
        number = self.number
        target = self.targets[number]
        if not self.address.tls:
            return EndpointChannel(kind.insecure_channel(target, options=_OPTIONS), number)
        if self._secrets is None:
            self._secrets = _credentials(self.address)
        return EndpointChannel(kind.secure_channel(target, self._secrets, options=_OPTIONS), number)

    def _met(
        self, link: EndpointChannel, error: RpcError, request: tuple[str, Any] | RequestBatch
    ) -> Exception:
        failed = self.failed(error)
        if isinstance(failed, Unsent | Unanswered):
            self.leave(link)
        if isinstance(request, RequestBatch) and str(failed) == SILENT:
            return Unanswered(f"silent for {request.within:g} s")
        return failed

    def _log_in(self, before: Metadata) -> None:
        if self._metadata is before and self.address.user:
            try:
                self._logged_in(self._call(self._login(), _BARE))
            except AuthDisabled:
                self._metadata = _BARE

    async def _log_in_async(self, before: Metadata) -> None:
        if self._metadata is before and self.address.user:
            try:
                self._logged_in(await self._call_async(self._login(), _BARE))
            except AuthDisabled:
                self._metadata = _BARE

    def _login(self) -> tuple[str, Any]:
        user, password = self.address.user, self.address.password
        return AUTHENTICATE, rpc.AuthenticateRequest(name=user, password=password)

    def _logged_in(self, answer: rpc.AuthenticateResponse) -> None:
        self._metadata = (*_BARE, ("token", answer.token))


def _credentials(address: Address) -> grpc.ChannelCredentials:
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


def _close(channels: Iterable[Any]) -> None:
    for channel in channels:
        if not isinstance(channel, grpc.aio.Channel):  # an async one ends without a reference
            channel.close()


def _end(loop: asyncio.AbstractEventLoop, channel: grpc.aio.Channel) -> None:
    """Called in the loop that the channel belongs to."""
    task = loop.create_task(channel.close())
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
"""A loop holds its tasks only weakly."""
