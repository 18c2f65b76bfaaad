"""The endpoints: each checks its caller, and replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from interlock.errors import BadInput, InterlockError
from interlock.faces.http import a2a, assets, mcp
from interlock.faces.http.access import REMEMBERED, Caller, Refused, require
from interlock.faces.http.calls import ActingAgent, carry_out
from interlock.faces.http.events import stream
from interlock.faces.http.operations import answer, endpoints
from interlock.faces.http.replies import (
    error_reply,
    json_reply,
    no_method,
    no_route,
    read_body,
    until_left,
)
from interlock.faces.http.roles import least
from interlock.faces.http.sessions import AGENT_HEADER, HEADER, require_named, session_request
from interlock.faces.http.shares import SHARE
from interlock.faces.json_output import encoded
from interlock.runtime import observe
from interlock.version import __version__

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from interlock.faces.http.app import WebServer
    from interlock.faces.http.mcp_session import OpenStream

Handler: TypeAlias = Callable[["Routes", Request], Awaitable[Response]]


def answered(handler: Handler) -> Handler:
    """An endpoint whose errors become its reply."""

    @wraps(handler)
    async def answering(self: Routes, request: Request) -> Response:
        try:
            return await handler(self, request)
        except InterlockError as error:
            return error_reply(error)
        except asyncio.CancelledError:
            if not self._server.stopping.is_set():
                raise
            return error_reply(Refused(503, "stopped", "the server ends; call again later"))

    return answering


class Routes:
    """The endpoints."""

    def __init__(self, server: WebServer) -> None:
        self._server = server

    @answered
    async def page(self, request: Request) -> Response:
        """The page; ``?token=`` becomes a cookie, and leaves the address."""
        access = self._server.access
        parameters = request.query_params.multi_items()
        if given := request.query_params.get("token"):
            token = access.exchanged(given)
            await self._of_token(f"Bearer {token}", None)
            kept = urlencode([each for each in parameters if each[0] != "token"])
            place = {"Location": f"/?{kept}" if kept else "/", "Cache-Control": "no-store"}
            response = Response(status_code=303, headers=place)
            response.set_cookie(
                access.cookie, token, httponly=True, samesite="strict", path="/",
                secure=request.url.scheme == "https",
            )  # fmt: skip
            return response
        return _asset(request, self._server.assets.document)

    @answered
    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        found = self._server.assets.get(request.path_params["name"])
        return await no_route(request) if found is None else _asset(request, found)

    @answered
    async def events(self, request: Request) -> Response:
        """The stream of events."""
        server = self._server
        caller = await self._caller(request)
        words = [word for each in request.query_params.getlist("noun") for word in each.split(",")]
        nouns = observe.nouns(filter(None, words))
        server.streams.check(caller.share())
        about = {"version": __version__, "role": caller.role, "agent": caller.agent}
        after = _revision(request.headers.get("last-event-id") or request.query_params.get("after"))
        content = self._while_allowed(request, stream(server.ring, about, after, nouns))
        return _EventResponse(server, caller, content)

    @answered
    async def overview(self, request: Request) -> Response:
        """The first view of the fleet."""
        await self._caller(request)
        server = self._server
        parts = server.parts.about() if server.parts is not None else []
        body = await server.in_thread(lambda: server.overview.get(server.clients.reader(), parts))
        return json_reply(200, body)

    @answered
    async def healthz(self, request: Request) -> Response:
        """Whether the store takes a commit and shows it again."""
        server = self._server
        about, status = await server.health()
        try:
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR and server.access.asked_store(
                *self._presented(request)
            ):
                raise Refused(401, "unauthorized", "no token of the store is known now")  # noqa: TRY301
            await self._caller(request)
        except Refused:  # a balancer has no token, and needs no more than this
            return json_reply(status, encoded({"status": about["status"]}))
        parts = server.parts.about() if server.parts is not None else []
        return json_reply(status, encoded({**about, "parts": parts}))

    @answered
    async def mcp(self, request: Request) -> Response:
        """The tools for models."""
        server, caller = self._server, await self._caller(request)
        handle = request.headers.get(mcp.HEADER)
        if request.method == "DELETE":
            ended = await server.in_thread(lambda: server.mcp.end(caller, handle))
            return Response(status_code=204 if ended else 404)
        if request.method == "GET":
            opened = await server.in_thread(lambda: server.mcp.stream(caller, handle))
            return self._streamed(request, caller, opened)
        body, headers = await read_body(request), dict(request.headers)
        agent = request.query_params.get("agent", "")
        gone = threading.Event()

        def receive() -> mcp.McpAnswer:
            return server.mcp.receive(body, headers, caller, agent, gone)

        waits = await server.parsed(body, lambda: server.mcp.may_wait(body))
        who = caller.share(agent or handle or "")
        work = server.waiting(receive, who) if waits else server.in_thread(receive)
        found, _ = await until_left(request, work, gone)
        if found.stream is not None:
            return self._streamed(request, caller, found.stream)
        more = {"Mcp-Session-Id": found.session} if found.session else {}
        return json_reply(found.status, found.body, more)

    @answered
    async def fleet_card(self, request: Request) -> Response:
        """The card of the fleet, where other frameworks look for it; also for strangers."""
        caller: Caller | None = None
        if self._server.access.open or "authorization" in request.headers:
            caller = await self._caller(request)
        return await a2a.card_reply(self._server, request, caller)

    @answered
    async def card(self, request: Request) -> Response:
        """The card of an agent or of a skill."""
        return await a2a.card_reply(self._server, request, await self._caller(request))

    @answered
    async def a2a(self, request: Request) -> Response:
        """The fleet for other frameworks."""
        return await a2a.reply(self._server, request, await self._caller(request))

    @answered
    async def openapi(self, request: Request) -> Response:
        """The description of the API."""
        from interlock.faces.http.openapi import description

        await self._caller(request)
        return json_reply(200, await self._server.in_thread(description))

    @answered
    async def metrics(self, request: Request) -> Response:
        """Numbers for a monitor."""
        from interlock.faces.metrics import metrics_text

        await self._caller(request)
        server = self._server
        text = await server.in_thread(lambda: metrics_text(server.clients.reader()))
        return Response(text, media_type="text/plain; version=0.0.4")

    @answered
    async def session(self, request: Request) -> Response:
        """Begin a session, or end it."""
        server, handles = self._server, self._server.handles
        caller = await self._caller(request)
        if request.method == "POST":
            require(caller, "act", "a session")
            body = await read_body(request)
            asked = await server.parsed(body, lambda: session_request(body))
            begun = await server.in_thread(lambda: handles.begin(caller, asked))
            return json_reply(*answer(begun))
        handle = _handle(request)
        left = await server.in_thread(lambda: handles.end(caller, handle))
        return json_reply(*answer(left))

    @answered
    async def beat(self, request: Request) -> Response:
        """Renew a session."""
        caller, handle = await self._caller(request), _handle(request)
        server = self._server

        def beat() -> object:
            session, agent = server.handles.session(caller, handle)
            return server.clients.of_session(session, agent).beat()

        return json_reply(*answer(await server.in_thread(beat)))

    @answered
    async def operation(self, request: Request) -> Response:
        """An operation."""
        caller = await self._caller(request)
        endpoint = endpoints().get(request.path_params["path"])
        if endpoint is None:
            return await no_route(request)
        if request.method != "POST" and not endpoint.reads:
            return await no_method(request)
        server, name = self._server, endpoint.operation.name
        require(caller, least(name), repr(name))
        if request.method == "POST":
            body = await read_body(request, endpoint.operation.most_body)
            asked = await server.parsed(body, lambda: endpoint.from_body(body, server.longest))
        else:
            asked = endpoint.from_query(request.query_params.multi_items(), server.longest)
            if endpoint.changes(asked):
                raise Refused(405, "wrong_method", "this changes something; send it with POST")
        actor = await self._actor(request, caller)
        return await carry_out(server, request, endpoint, asked, actor)

    def _streamed(self, request: Request, caller: Caller, stream: OpenStream) -> Response:
        server = self._server
        try:
            server.streams.check(caller.share())
        except Refused:
            server.mcp.closed(stream)
            raise
        content = self._while_allowed(request, stream.messages.events())
        return _EventResponse(server, caller, content, lambda: server.mcp.closed(stream))

    async def _actor(self, request: Request, caller: Caller) -> ActingAgent:
        """In whose name a request acts: that of its session, else that of its token."""
        handle = request.headers.get(HEADER)
        actor = ActingAgent(caller, caller.agent, "")
        if handle is not None:
            handles = self._server.handles
            session, agent = await self._server.in_thread(lambda: handles.session(caller, handle))
            actor = ActingAgent(caller, agent, session)
        require_named(request.headers.get(AGENT_HEADER), actor.agent)
        return actor

    async def _while_allowed(
        self, request: Request, content: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """A stream that ends when its token is revoked."""
        clock = asyncio.get_running_loop().time
        checked = clock()
        async for data in content:
            if clock() - checked >= REMEMBERED:
                try:
                    await self._caller(request)
                except Refused:
                    return
                except InterlockError:  # the store is away: it cannot say
                    pass
                checked = clock()
            yield data

    async def _caller(self, request: Request) -> Caller:
        access = self._server.access
        access.check_query(request.query_params.keys())
        caller = await self._of_token(*self._presented(request))
        SHARE.set(caller.share())
        return caller

    def _presented(self, request: Request) -> tuple[str | None, str | None]:
        cookie = self._server.access.cookie
        return request.headers.get("authorization"), request.cookies.get(cookie)

    async def _of_token(self, authorization: str | None, cookie: str | None) -> Caller:
        """The caller with this header and cookie; the store is asked only if it has to be."""
        server, access = self._server, self._server.access
        token = access.asked_store(authorization, cookie)
        if not token:
            return access.caller(authorization, cookie)
        look = partial(access.caller, authorization, cookie)
        if access.has_met(token):
            return await server.in_thread(look)
        return await server.of_stranger((authorization, cookie), look)


class _EventResponse(StreamingResponse):
    """A stream of events, one of those that its caller may open."""

    def __init__(
        self,
        server: WebServer,
        caller: Caller,
        content: AsyncIterator[bytes],
        ended: Callable[[], None] | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._server = server
        self._caller = caller
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._server.streams.place(self._caller.share()):
                await super().__call__(scope, receive, send)
        finally:
            if self._ended is not None:
                self._ended()


def _handle(request: Request) -> str:
    handle = request.headers.get(HEADER)
    if not handle:
        raise BadInput("which session? send its handle in the header Interlock-Session")
    return handle


def _revision(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:  # noqa: PLR2004
        raise BadInput("a position in the events is a revision, such as 1234")
    return int(text)


def _asset(request: Request, asset: assets.Asset) -> Response:
    headers = {"ETag": asset.etag, "Cache-Control": asset.cached}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, headers=headers, media_type=asset.type)
