"""The endpoints: each checks its caller, and replies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from interlock.errors import BadInput, InterlockError
from interlock.faces.http import a2a, assets, mcp
from interlock.faces.http.access import REMEMBERED, Caller, Refused, needed, require
from interlock.faces.http.calls import ActingAgent, carry_out, is_own
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
from interlock.faces.http.sessions import AGENT_HEADER, HEADER, require_named, session_request
from interlock.faces.json_output import encoded
from interlock.runtime import observe
from interlock.version import __version__

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from interlock.faces.http.app import WebServer
    from interlock.faces.http.mcp_session import OpenStream

Handler: TypeAlias = Callable[["Routes", Request], Awaitable[Response]]

MOST_STREAMS = 1000


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
        if token := request.query_params.get("token"):
            await self._server.in_thread(lambda: access.of_token(token))
            kept = urlencode([each for each in parameters if each[0] != "token"])
            response = Response(status_code=303, headers={"Location": f"/?{kept}" if kept else "/"})
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
        if server.streams >= MOST_STREAMS:
            raise Refused(503, "too_many", f"{MOST_STREAMS} streams are open here already")
        about = {"version": __version__, "role": caller.role, "agent": caller.agent}
        after = _revision(request.headers.get("last-event-id") or request.query_params.get("after"))
        content = self._while_allowed(request, stream(server.ring, about, after, nouns))
        return _EventResponse(server, content)

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
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not server.access.open:
            return json_reply(status, encoded({"status": about["status"]}))  # no token is known now
        try:
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
            return self._streamed(request, opened)
        body, headers = await read_body(request), dict(request.headers)
        agent = request.query_params.get("agent", "")
        gone = threading.Event()

        def receive() -> mcp.McpAnswer:
            return server.mcp.receive(body, headers, caller, agent, gone)

        work = server.waiting if server.mcp.may_wait(body) else server.in_thread
        found, _ = await until_left(request, work(receive), gone)
        if found.stream is not None:
            return self._streamed(request, found.stream)
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
        handles = self._server.handles
        caller = await self._caller(request)
        if request.method == "POST":
            asked = session_request(await read_body(request))
            begun = await self._server.in_thread(lambda: handles.begin(caller, asked))
            return json_reply(*answer(begun))
        handle = _handle(request)
        left = await self._server.in_thread(lambda: handles.end(caller, handle))
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
        if request.method == "POST":
            asked = endpoint.from_body(await read_body(request), self._server.longest)
        elif endpoint.reads:
            asked = endpoint.from_query(request.query_params.multi_items(), self._server.longest)
        else:
            return await no_method(request)
        changes = endpoint.changes(asked)
        if changes and request.method != "POST":
            raise Refused(405, "wrong_method", "this changes something; send it with POST")
        actor = await self._actor(request, caller)
        name = endpoint.operation.name
        role = needed(name, changes=changes, given=endpoint.given(asked))
        if role == "admin" and caller.role == "act":
            fleet = self._server.clients.of_agent(actor.agent)
            if await self._server.in_thread(lambda: is_own(fleet, name, asked, actor.agent)):
                role = "act"
        require(caller, role, repr(name))
        return await carry_out(self._server, request, endpoint, asked, actor)

    def _streamed(self, request: Request, stream: OpenStream) -> Response:
        server = self._server
        if server.streams >= MOST_STREAMS:
            server.mcp.closed(stream)
            raise Refused(503, "too_many", f"{MOST_STREAMS} streams are open here already")
        content = self._while_allowed(request, stream.messages.events())
        return _EventResponse(server, content, lambda: server.mcp.closed(stream))

    async def _actor(self, request: Request, caller: Caller) -> ActingAgent:
        """In whose name a request acts: that of its session, else that of its token."""
        handle = request.headers.get(HEADER)
        actor = ActingAgent(caller.agent, "")
        if handle is not None:
            handles = self._server.handles
            session, agent = await self._server.in_thread(lambda: handles.session(caller, handle))
            actor = ActingAgent(agent, session)
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
        authorization = request.headers.get("authorization")
        cookie = request.cookies.get(access.cookie)
        if authorization is None and not cookie:
            return access.caller(None, None)
        return await self._server.in_thread(lambda: access.caller(authorization, cookie))


class _EventResponse(StreamingResponse):
    """A stream of events; the server knows how many are open."""

    def __init__(
        self,
        server: WebServer,
        content: AsyncIterator[bytes],
        ended: Callable[[], None] | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._server = server
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._server.streams -= 1
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
