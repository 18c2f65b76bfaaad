"""Channels to etcd: one endpoint at a time, each call once.

Blocking callers use gRPC's synchronous channel, so that no thread stands between them and the
answer; event loops use ``grpc.aio``, with a channel for each loop, dropped when the loop is gone.
The feed of a store (watch.py) is a stream on the synchronous channel.

A request is a ``(method, message)``; a ``RequestBatch`` has several.  Nothing is retried here, but
for one case in which nothing can have happened: a login that ran out is renewed first.

An endpoint that cannot be reached or does not answer in time is left for the next one, with a
new connection even if there is only one: the old one may be dead without knowing it.  It is closed
as soon as no call is under way on it, and connects no more by itself: when to connect again is
decided for the whole client (``reconnect.py``).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from interlock.steps import finish_future
from interlock.stores.address import Address
from interlock.stores.etcd import rpc_pb2 as rpc
from interlock.stores.etcd.channel import (
    AUTHENTICATE,
    CLOSED,
    CLOSED_ASYNC,
    EndpointChannel,
    Metadata,
    RequestBatch,
    RpcError,
    Secrets,
    limited,
    secrets,
)
from interlock.stores.etcd.errors import SILENT, AuthDisabled, TokenExpired, translated
from interlock.stores.network import REPLY, Unanswered, Unsent
from interlock.stores.reconnect import Reconnects

EtcdRequest: TypeAlias = "tuple[str, Any] | RequestBatch | SentCall | LogIn | DirectRequest"

_CLOSING = 0.3
# A member that lost its leader says so instead of answering from what it has.
_BARE: Metadata = (("hasleader", "true"),)


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


class EtcdTransport:
    """Sends requests to the endpoint that answers."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.targets = [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts
        ]
        self.number = random.randrange(len(self.targets))  # noqa: S311 - spread the fleet
        self._lock = threading.RLock()  # a signal handler may call, too
        self._reconnects = Reconnects(len(self.targets))
        self._links: dict[asyncio.AbstractEventLoop | None, EndpointChannel] = {}
        """The channel of blocking callers, under None, and that of each event loop."""
        self._left: set[EndpointChannel] = set()
        """Channels that were left, on which calls are still under way."""
        self._secrets: Secrets | None = None
        self._metadata: Metadata = _BARE
        self._unawaited: set[Any] = set()
        self._closed = False

    def call(self, request: EtcdRequest, within: float = REPLY) -> Any:  # noqa: ANN401 - each method has its own answer
        """The answer."""
        if isinstance(request, DirectRequest):
            return request.function(self.address, self._endpoint(request))
        if isinstance(request, SentCall):
            return request.wait()
        metadata = self._metadata
        if isinstance(request, LogIn):
            return self._log_in(metadata)
        try:
            return self._call(request, metadata, within)
        except TokenExpired:
            self._log_in(metadata)
            try:
                return self._call(request, self._metadata, within)
            except TokenExpired as error:
                raise Unsent(str(error)) from error

    async def call_async(self, request: EtcdRequest, within: float = REPLY) -> Any:  # noqa: ANN401
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
            return await self._call_async(request, metadata, within)
        except TokenExpired:
            await self._log_in_async(metadata)
            try:
                return await self._call_async(request, self._metadata, within)
            except TokenExpired as error:
                raise Unsent(str(error)) from error

    def send_unawaited(self, requests: Iterable[tuple[str, Any]]) -> list[Any]:
        """Send these without waiting for answers, and return the calls: they may get lost."""
        calls: list[Any] = []
        with suppress(ValueError, Unsent):  # closed
            link = self.enter()
            for method, message in requests:
                call = link.calls[method].future(message, timeout=REPLY, metadata=self._metadata)
                self._unawaited.add(call)  # gRPC cancels a call without a reference
                call.add_done_callback(self._unawaited.discard)
                calls.append(call)
            self.exit(link)
        return calls

    def stream(self, link: EndpointChannel, requests: Iterator[Any]) -> Any:  # noqa: ANN401 - gRPC's call
        """A stream of watch answers, for a thread that reads it."""
        return link.stream(requests, self._metadata)

    def enter(self, loop: asyncio.AbstractEventLoop | None = None) -> EndpointChannel:
        """The channel of a loop, or of blocking callers, for a call that ends with ``exit``."""
        with self._lock:
            link = self._links.get(loop) or self._made(loop)
            link.under_way += 1
            return link

    def exit(self, link: EndpointChannel) -> None:
        """A call has ended."""
        with self._lock:
            link.under_way -= 1
            if link.under_way or link not in self._left:
                return
            self._left.discard(link)
        link.close()

    def leave(self, link: EndpointChannel, why: str) -> None:
        """This endpoint does not answer: go on with the next one, over a new connection."""
        with self._lock:
            if self._links.get(link.loop) is not link:
                return  # others noticed before
            del self._links[link.loop]
            if busy := link.under_way > 0:
                self._left.add(link)
            if link.number == self.number:
                self.number = (self.number + 1) % len(self.targets)
        self._reconnects.fail(link.made, why)
        if not busy:
            link.close()

    def note_answer(self) -> None:
        """A server answered."""
        if self._reconnects.away:
            self._reconnects.succeed()

    def failed(self, error: Any) -> Exception:  # noqa: ANN401 - it has more than its type says
        """What an error of gRPC means."""
        code = error.code()
        return translated(
            self.address.shown, code.name if code else "UNKNOWN", error.details() or ""
        )

    def close(self) -> None:
        """Cut everything, from any thread."""
        for link in self._cut():
            link.close()

    async def close_async(self) -> None:
        """Close everything, and wait until nothing is left in this event loop."""
        here = asyncio.get_running_loop()
        for link in self._cut():
            if link.loop is here:
                await link.channel.close()
            else:
                link.close()

    def _endpoint(self, request: DirectRequest) -> int:
        return self.number if request.number is None else request.number

    def _await_sent(self) -> None:
        """Let requests arrive that no caller waits for, if that takes but a moment."""
        ends = time.monotonic() + _CLOSING
        for call in tuple(self._unawaited):
            with suppress(Exception):  # how it ended does not matter
                call.result(timeout=max(0.0, ends - time.monotonic()))

    def _cut(self) -> list[EndpointChannel]:
        self._await_sent()
        with self._lock:
            self._closed = True
            links = [*self._left, *self._links.values()]
            self._left, self._links = set(), {}
        return links

    def _call(
        self, request: tuple[str, Any] | RequestBatch, metadata: Metadata, within: float = REPLY
    ) -> Any:  # noqa: ANN401
        within = limited(request, within)
        link = self.enter()
        try:
            answer = link.answer(request, metadata, within)
        except RpcError as error:
            raise self._met(link, error, within) from None
        except CLOSED as error:  # the channel was closed
            raise Unanswered("closed") from error
        finally:
            self.exit(link)
        self.note_answer()
        return answer

    async def _call_async(
        self, request: tuple[str, Any] | RequestBatch, metadata: Metadata, within: float = REPLY
    ) -> Any:  # noqa: ANN401
        within = limited(request, within)
        link = self.enter(asyncio.get_running_loop())
        try:
            answer = await link.answer_async(request, metadata, within)
        except RpcError as error:
            raise self._met(link, error, within) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # the channel was closed, not the task
                raise Unanswered("closed") from None
            raise
        except CLOSED_ASYNC as error:
            raise Unanswered("closed") from error
        finally:
            self.exit(link)
        self.note_answer()
        return answer

    def _made(self, loop: asyncio.AbstractEventLoop | None) -> EndpointChannel:
        """A new channel; called under the lock."""
        if self._closed:
            raise Unsent("closed")
        self._reconnects.attempt()
        self._links = {
            each: link for each, link in self._links.items() if each is None or not each.is_closed()
        }
        if self.address.tls and self._secrets is None:
            self._secrets = secrets(self.address)
        number = self.number
        link = EndpointChannel(self.targets[number], number, self._secrets, loop)
        self._links[loop] = link
        return link

    def _met(self, link: EndpointChannel, error: RpcError, within: float) -> Exception:
        failed = self.failed(error)
        if isinstance(failed, Unsent | Unanswered):
            self.leave(link, str(failed))
        else:
            self.note_answer()
        if within < REPLY and str(failed) == SILENT:
            return Unanswered(f"silent for {within:.1g} s")
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
