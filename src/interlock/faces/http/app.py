"""The routes of the server, and the order in which a request is checked.

Where a request comes from is checked first (``_AddressCheck``), then its token.
Calls run in threads, since a client of the store blocks: quick ones in a few, and those that may
wait in others, so that no wait holds up a look.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from interlock.errors import BadInput, InterlockError, TooLarge
from interlock.faces import give_back
from interlock.faces.http import assets, mcp
from interlock.faces.http.access import Access, Caller, Refused, needed, require
from interlock.faces.http.events import EventFeed, EventRing, stream
from interlock.faces.http.operations import LONGEST_WAIT, Endpoint, answer, endpoints, error_answer
from interlock.faces.http.overview import OverviewCache
from interlock.faces.http.parts import Parts, works
from interlock.faces.http.sessions import (
    AGENT_HEADER,
    HEADER,
    Handles,
    require_named,
    session_request,
)
from interlock.faces.json_output import encoded
from interlock.nouns.fleet.server_service import ServerPlace
from interlock.runtime.stoppable import stoppable
from interlock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from interlock.client import Fleet
    from interlock.faces.http.clients import Clients
    from interlock.runtime.operation import Request as OperationRequest
    from interlock.steps import Op

T = TypeVar("T")
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

MOST_BODY = 8 * 1024 * 1024
"""Bytes of a body: more than any value that the store takes."""
SLOWEST_BODY = 30.0
"""Seconds in which a body has to arrive."""
QUICK, WAITING = 8, 64
"""Threads for calls that do not wait, and for those that may."""
MOST_STREAMS = 1000


class Server:
    """What all requests share."""

    def __init__(self, clients: Clients, access: Access, longest: float = LONGEST_WAIT) -> None:
        self.longest = longest
        self.clients = clients
        self.access = access
        self.handles = Handles(clients)
        self.mcp = mcp.McpSessions(clients, open_=access.open, longest=longest)
        self.ring = EventRing()
        self.stopping = threading.Event()
        self.streams = 0
        self.overview = OverviewCache()
        self.assets = assets.load()
        self.parts: Parts | None = None
        self._feed: EventFeed | None = None
        self._quick = ThreadPoolExecutor(QUICK, "interlock-call")
        self._waiting = ThreadPoolExecutor(WAITING, "interlock-wait")
        self._waits = 0

    def start(self, address: str) -> None:
        """Begin to follow the record and to do the background work; for the loop that serves."""
        place = ServerPlace(
            url=address, host=os.uname().nodename, pid=os.getpid(), agent=self.access.agent
        )
        background = {**works(place), "models": self.mcp.keep_sweeping}
        self.parts = Parts(self.clients, background)
        self.parts.start()
        self._feed = EventFeed(self.clients, self.ring, asyncio.get_running_loop())
        self._feed.start()

    def stop(self) -> None:
        """End all streams and waits; for the event loop."""
        self.stopping.set()
        self.ring.close()
        if self.parts is not None:
            self.parts.stop()
        if self._feed is not None:
            self._feed.stop()

    def close(self) -> None:
        """Close the store, when all requests are over."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._waiting.shutdown(wait=False, cancel_futures=True)
        if self._feed is not None:
            self._feed.join(2.0)
        if self.parts is not None:
            self.parts.join(2.0)
        self.clients.close()

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Do what does not wait."""
        return await asyncio.get_running_loop().run_in_executor(self._quick, call)

    async def waiting(self, call: Callable[[], T]) -> T:
        """Do what may wait; refused if too many calls wait already."""
        if self._waits >= WAITING:
            raise Refused(503, "too_many", f"{WAITING} calls wait here already; call again later")
        self._waits += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._waiting, call)
        finally:
            self._waits -= 1


def make_app(server: Server) -> ASGIApp:
    """The application that an HTTP server runs."""
    routes = Routes(server)
    app = Starlette(
        routes=[
            Route("/", routes.page, methods=["GET"]),
            Route("/assets/{name:path}", routes.asset, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/mcp", routes.mcp, methods=["POST", "DELETE"]),
            Route("/openapi.json", routes.openapi, methods=["GET"]),
            Route("/api/events", routes.events, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/api/session", routes.session, methods=["POST", "DELETE"]),
            Route("/api/session/beat", routes.beat, methods=["POST"]),
            Route("/api/overview", routes.overview, methods=["GET"]),
            Route("/api/{path:path}", routes.operation, methods=["GET", "POST"]),
        ],
        exception_handlers={Exception: _failed, 404: _no_route, 405: _no_method},
        middleware=[Middleware(_SafeHeaders), Middleware(_AddressCheck, access=server.access)],
        max_body_size=MOST_BODY,
    )
    return app  # noqa: RET504 - mypy knows its type


class Routes:
    """The endpoints."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def page(self, request: Request) -> Response:
        """The page; ``?token=`` becomes a cookie, and leaves the address."""
        return await self._guarded(request, self._page)

    async def _page(self, request: Request) -> Response:
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
        return _asset(request, self._server.assets[assets.INDEX])

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        return await self._guarded(request, self._asset)

    async def _asset(self, request: Request) -> Response:
        found = self._server.assets.get(request.path_params["name"])
        return await _no_route(request, None) if found is None else _asset(request, found)

    async def events(self, request: Request) -> Response:
        """The stream of events."""
        return await self._guarded(request, self._events)

    async def _events(self, request: Request) -> Response:
        server = self._server
        caller = await self._caller(request)
        nouns = frozenset(
            word for each in request.query_params.getlist("noun") for word in each.split(",")
        )
        if server.streams >= MOST_STREAMS:
            raise Refused(503, "too_many", f"{MOST_STREAMS} streams are open here already")
        about = {"version": __version__, "role": caller.role, "agent": caller.agent}
        after = _revision(request.headers.get("last-event-id") or request.query_params.get("after"))
        return _EventResponse(server, stream(server.ring, about, after, nouns))

    async def overview(self, request: Request) -> Response:
        """The first view of the fleet."""
        return await self._guarded(request, self._overview)

    async def _overview(self, request: Request) -> Response:
        await self._caller(request)
        server = self._server
        parts = server.parts.about() if server.parts is not None else []
        body = await server.in_thread(lambda: server.overview.get(server.clients.reader(), parts))
        return _json(200, body)

    async def healthz(self, request: Request) -> Response:
        """Whether the store takes a commit and shows it again."""
        return await self._guarded(request, self._healthz)

    async def _healthz(self, request: Request) -> Response:
        from interlock.faces.http.health import healthz

        server = self._server
        about, status = await server.in_thread(lambda: healthz(server.clients))
        try:
            await self._caller(request)
        except Refused:  # a balancer has no token, and needs no more than this
            return _json(status, encoded({"status": about["status"]}))
        parts = server.parts.about() if server.parts is not None else []
        return _json(status, encoded({**about, "parts": parts}))

    async def mcp(self, request: Request) -> Response:
        """The tools for models."""
        return await self._guarded(request, self._mcp)

    async def _mcp(self, request: Request) -> Response:
        server, caller = self._server, await self._caller(request)
        handle = request.headers.get(mcp.HEADER)
        if request.method == "DELETE":
            ended = await server.in_thread(lambda: server.mcp.end(caller, handle))
            return Response(status_code=204 if ended else 404)
        body, headers = await _body(request), dict(request.headers)
        agent = request.query_params.get("agent", "")
        gone = threading.Event()

        def receive() -> mcp.McpAnswer:
            return server.mcp.receive(body, headers, caller, agent, gone)

        work = asyncio.ensure_future(server.waiting(receive))
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            gone.set()
            found = await work
        finally:
            leaving.cancel()
        more = {"Mcp-Session-Id": found.session} if found.session else {}
        return _json(found.status, found.body, more)

    async def openapi(self, request: Request) -> Response:
        """The description of the API."""
        return await self._guarded(request, self._openapi)

    async def _openapi(self, request: Request) -> Response:
        from interlock.faces.http.openapi import description

        await self._caller(request)
        return _json(200, await self._server.in_thread(description))

    async def metrics(self, request: Request) -> Response:
        """Numbers for a monitor."""
        return await self._guarded(request, self._metrics)

    async def _metrics(self, request: Request) -> Response:
        from interlock.faces.metrics import metrics_text

        await self._caller(request)
        server = self._server
        text = await server.in_thread(lambda: metrics_text(server.clients.reader()))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def session(self, request: Request) -> Response:
        """Begin a session, or end it."""
        return await self._guarded(request, self._session)

    async def _session(self, request: Request) -> Response:
        handles = self._server.handles
        caller = await self._caller(request)
        if request.method == "POST":
            asked = session_request(await _body(request))
            return _json(
                *answer(await self._server.in_thread(lambda: handles.begin(caller, asked)))
            )
        handle = _handle(request)
        return _json(*answer(await self._server.in_thread(lambda: handles.end(caller, handle))))

    async def beat(self, request: Request) -> Response:
        """Renew a session."""
        return await self._guarded(request, self._beat)

    async def _beat(self, request: Request) -> Response:
        caller, handle = await self._caller(request), _handle(request)
        server = self._server

        def beat() -> object:
            session, _ = server.handles.session(caller, handle)
            return server.clients.of_session(session).beat()

        return _json(*answer(await server.in_thread(beat)))

    async def operation(self, request: Request) -> Response:
        """An operation."""
        return await self._guarded(request, self._operation)

    async def _operation(self, request: Request) -> Response:
        caller = await self._caller(request)
        endpoint = endpoints().get(request.path_params["path"])
        if endpoint is None:
            return await _no_route(request, None)
        if request.method == "POST":
            asked = endpoint.from_body(await _body(request), self._server.longest)
        elif endpoint.reads:
            asked = endpoint.from_query(request.query_params.multi_items(), self._server.longest)
        else:
            return await _no_method(request, None)
        changes = endpoint.changes(asked)
        if changes and request.method != "POST":
            raise Refused(405, "wrong_method", "this changes something; send it with POST")
        name = endpoint.operation.name
        require(caller, needed(name, changes=changes), repr(name))
        return await self._carried_out(request, endpoint, asked, caller)

    async def _carried_out(
        self, request: Request, endpoint: Endpoint, asked: OperationRequest, caller: Caller
    ) -> Response:
        server = self._server
        stopped = threading.Event()
        actor = await self._actor(request, caller)
        call = Call(server, endpoint, asked, actor, stopped)
        if not endpoint.joins(asked) and not endpoint.may_wait(asked):
            outcome = await server.in_thread(call.run)
            return _json(*answer(outcome))
        work = asyncio.ensure_future(server.waiting(call.run))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            stopped.set()
            outcome = await work
        finally:
            gone.cancel()
        if outcome is None:
            raise Refused(503, "stopped", "the server ends, or the caller left, while this waited")
        if gone.done() and not gone.cancelled() and (grants := give_back.unused_grants(outcome)):
            await server.in_thread(lambda: give_back.release(call.client(), grants))
        return _json(*answer(outcome))

    async def _actor(self, request: Request, caller: Caller) -> Actor:
        """In whose name a request acts: that of its session, else that of its token."""
        handle = request.headers.get(HEADER)
        actor = Actor(caller.agent, "")
        if handle is not None:
            handles = self._server.handles
            session, agent = await self._server.in_thread(lambda: handles.session(caller, handle))
            actor = Actor(agent, session)
        require_named(request.headers.get(AGENT_HEADER), actor.agent)
        return actor

    async def _caller(self, request: Request) -> Caller:
        access = self._server.access
        access.check_query(request.query_params.keys())
        authorization = request.headers.get("authorization")
        cookie = request.cookies.get(access.cookie)
        if authorization is None and not cookie:
            return access.caller(None, None)
        return await self._server.in_thread(lambda: access.caller(authorization, cookie))

    async def _guarded(self, request: Request, handler: Handler) -> Response:
        """Answer a request; an error becomes its answer."""
        try:
            return await handler(request)
        except InterlockError as error:
            return _error(error)


class Actor(NamedTuple):
    """In whose name a request acts; without a session as a shell command does."""

    agent: str
    session: str


class Call:
    """One request for an operation, carried out in a thread."""

    def __init__(
        self,
        server: Server,
        endpoint: Endpoint,
        asked: OperationRequest,
        actor: Actor,
        stopped: threading.Event,
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._asked = asked
        self._actor = actor
        self._stopped = stopped

    def client(self) -> Fleet:
        """The client that the request acts through."""
        clients, actor = self._server.clients, self._actor
        if actor.session:
            return clients.of_session(actor.session).fleet
        return clients.of_agent(actor.agent)

    def run(self) -> Any:  # noqa: ANN401 - as the operation answers
        """The outcome; None if the call was stopped while it waited."""
        clients, actor = self._server.clients, self._actor
        waits = self._endpoint.joins(self._asked)
        if actor.session and waits:
            with clients.of_session(actor.session).kept() as fleet:
                return self._act(fleet)
        if waits:
            with clients.joined(actor.agent) as fleet:
                return self._act(fleet)
        return self._act(self.client())

    def _act(self, fleet: Fleet) -> Any:  # noqa: ANN401
        from interlock.client import METHODS
        from interlock.nouns.fleet.calls import FleetCalls

        operation = self._endpoint.operation

        def carry_out(calls: FleetCalls, asked: OperationRequest) -> Op[Any]:
            return stoppable(operation.carry_out(calls, asked, remote=True), self._is_over)

        method = METHODS["grants" if operation.grants else "call"](carry_out)
        return method(FleetCalls(fleet.context), self._asked)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or self._server.stopping.is_set()


class _EventResponse(StreamingResponse):
    """A stream of events; the server knows how many are open."""

    def __init__(self, server: Server, content: Any) -> None:  # noqa: ANN401
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._server.streams -= 1


class _AddressCheck:
    """Refuses what a foreign page may have sent, before anything else is done."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            path = scope["path"]
            link = scope["method"] == "GET" and (path == "/" or path.startswith("/assets/"))
            try:
                self._access.check_address(headers.get("host"), headers, link=link)
            except Refused as error:
                await _error(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _SafeHeaders:
    """Adds the headers that every answer has."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [
            (name.lower().encode(), value.encode()) for name, value in assets.SAFE_HEADERS.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, sending)


async def _body(request: Request) -> bytes:
    """The body of a request, within its limits."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise Refused(415, "wrong_type", "send application/json")
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            return await request.body()
    except TimeoutError:
        raise Refused(408, "too_slow", "the body did not arrive in time; send it again") from None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, headers=headers, media_type=asset.type)


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    more = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body, status, more, media_type="application/json")


def _error(error: Exception) -> Response:
    return _json(*error_answer(error))


async def _failed(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", None)
    if status == TooLarge.http_status:
        return _error(TooLarge(f"a body has at most {MOST_BODY} bytes"))
    return _error(error)


async def _no_route(request: Request, _: Exception | None) -> Response:
    path = request.url.path[:80]
    return _error(Refused(404, "no_route", f"there is nothing at {path!r}; see /openapi.json"))


async def _no_method(request: Request, _: Exception | None) -> Response:
    said = f"{request.method[:20]} is not for this path; see /openapi.json"
    response = _error(Refused(405, "wrong_method", said))
    response.headers["Allow"] = "POST" if request.method == "GET" else "GET, POST"
    return response
