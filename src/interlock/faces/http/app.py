"""The application: what all requests share, the table of routes, and what is checked before them.

Where a request comes from is checked first (``_AddressCheck``), then its token.
Calls run in threads, since a client of the store blocks: quick ones in a few, and those that may
wait in others, so that no wait holds up a look.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.routing import Route

from interlock.errors import StoreAway, StoreTrouble
from interlock.faces.http import assets, mcp
from interlock.faces.http.a2a_card import PATH
from interlock.faces.http.access import Access, Refused
from interlock.faces.http.events import EventFeed, EventRing
from interlock.faces.http.health import healthz
from interlock.faces.http.operations import LONGEST_WAIT
from interlock.faces.http.overview import OverviewCache
from interlock.faces.http.parts import Parts, Work, works
from interlock.faces.http.replies import error_reply, failed, no_method, no_route
from interlock.faces.http.routes import Routes
from interlock.faces.http.sessions import Handles
from interlock.faces.http.shares import SHARE, Shares
from interlock.nouns.fleet.server_service import ServerPlace

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from interlock.faces.http.clients import Clients

T = TypeVar("T")

QUICK, WAITING = 8, 256
"""Threads for calls that do not wait, and for those that may."""
MOST_QUEUED = 512
"""Calls that do not wait, and have no thread yet, since the store is slow or away."""
MOST_STREAMS = 1000
SHORT_BODY = 4096
"""Bytes of a body that is parsed in less time than a thread takes to begin."""
MOST_STRANGERS = 64
"""Calls with a token that was never right here, and is not yet looked up."""
_HEALTH = 3.0
"""Seconds after which a store that does not answer counts as failing."""


class WebServer:
    """What all requests share."""

    def __init__(self, clients: Clients, access: Access, longest: float = LONGEST_WAIT) -> None:
        self.longest = longest
        self.clients = clients
        self.access = access
        self.handles = Handles(clients)
        self.mcp = mcp.McpSessions(clients, longest=longest)
        self.ring = EventRing()
        self.stopping = threading.Event()
        self.streams = Shares(MOST_STREAMS, "streams are open")
        self.overview = OverviewCache()
        self.assets = assets.load()
        self.works: dict[str, Work] = {}
        """Further work in the background."""
        self.parts: Parts | None = None
        self._feed: EventFeed | None = None
        self._quick = ThreadPoolExecutor(QUICK, "interlock-call")
        self._waiting = ThreadPoolExecutor(WAITING, "interlock-wait")
        self._strange = ThreadPoolExecutor(1, "interlock-token")
        self._waits = Shares(WAITING, "calls wait")
        self._calls = Shares(QUICK + MOST_QUEUED, "calls are in work")
        self._strangers: dict[object, asyncio.Future[Any]] = {}
        """The looks for tokens that are under way, by the headers that carry the token."""
        self._health = ThreadPoolExecutor(1, "interlock-health")
        self._checking: asyncio.Future[tuple[dict[str, Any], int]] | None = None

    def start(self, address: str) -> None:
        """Begin to follow the record and to do the background work; for the loop that serves."""
        place = ServerPlace(
            url=address,
            host=os.uname().nodename,
            pid=os.getpid(),
            agent=self.access.agent,
            proof=self.access.proof(address),
        )
        background = {**works(place), **self.works, "models": self.mcp.keep_sweeping}
        self.parts = Parts(self.clients, background)
        self.parts.start()
        self._feed = EventFeed(self.clients, self.ring, asyncio.get_running_loop())
        self._feed.start()

    def stop(self) -> None:
        """End all streams and waits; for the event loop."""
        self.stopping.set()
        self.ring.close()
        self.mcp.stop()
        if self.parts is not None:
            self.parts.stop()
        if self._feed is not None:
            self._feed.stop()

    def close(self) -> None:
        """Close the store, when all requests are over."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._waiting.shutdown(wait=False, cancel_futures=True)
        self._health.shutdown(wait=False, cancel_futures=True)
        self._strange.shutdown(wait=False, cancel_futures=True)
        if self._feed is not None:
            self._feed.join(2.0)
        if self.parts is not None:
            self.parts.join(2.0)
        self.clients.close()

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Do what does not wait; refused if too many calls, or those of this caller, have begun."""
        with self._calls.place(SHARE.get()):
            return await asyncio.get_running_loop().run_in_executor(self._quick, call)

    async def of_stranger(self, presented: object, call: Callable[[], T]) -> T:
        """Look up a token that any program may have made up; one at a time, beside all else.

        Requests that present the same share a look: many may come at once with a new token.
        """
        look: asyncio.Future[T] | None = self._strangers.get(presented)
        if look is None:
            if len(self._strangers) >= MOST_STRANGERS:
                said = "many unknown tokens are looked up; call again soon"
                raise Refused(429, "too_many", said)
            look = asyncio.get_running_loop().run_in_executor(self._strange, call)
            self._strangers[presented] = look
            look.add_done_callback(lambda _: self._strangers.pop(presented))
        return await asyncio.shield(look)  # a caller that leaves ends only its own wait

    async def health(self) -> tuple[dict[str, Any], int]:
        """The answer of ``/healthz``, soon also while the store hangs; all callers share a look."""
        if self._checking is None or self._checking.done():
            loop = asyncio.get_running_loop()
            self._checking = loop.run_in_executor(self._health, healthz, self.clients)
        try:
            return await asyncio.wait_for(asyncio.shield(self._checking), _HEALTH)
        except TimeoutError:
            said = f"the store has not answered for {_HEALTH:g} s"
            about = {"status": "failing", "error": StoreAway.code, "message": said}
            return about, StoreTrouble.http_status

    async def parsed(self, body: bytes, parse: Callable[[], T]) -> T:
        """What a body says; a long one is parsed in a thread, since the loop has to go on."""
        return parse() if len(body) <= SHORT_BODY else await self.in_thread(parse)

    async def waiting(self, call: Callable[[], T], who: str) -> T:
        """Do what may wait; refused if too many calls wait already, of all or of this caller."""
        with self._waits.place(who):
            return await asyncio.get_running_loop().run_in_executor(self._waiting, call)


def make_app(server: WebServer) -> ASGIApp:
    """The application that an HTTP server runs."""
    routes = Routes(server)
    app = Starlette(
        routes=[
            Route("/", routes.page, methods=["GET"]),
            Route("/assets/{name:path}", routes.asset, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/mcp", routes.mcp, methods=["GET", "POST", "DELETE"]),
            *_a2a_routes(routes),
            Route("/openapi.json", routes.openapi, methods=["GET"]),
            Route("/api/events", routes.events, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/api/session", routes.session, methods=["POST", "DELETE"]),
            Route("/api/session/beat", routes.beat, methods=["POST"]),
            Route("/api/overview", routes.overview, methods=["GET"]),
            Route("/api/{path:path}", routes.operation, methods=["GET", "POST"]),
        ],
        exception_handlers={Exception: failed, 404: no_route, 405: no_method},
        middleware=[Middleware(_SafeHeaders), Middleware(_AddressCheck, access=server.access)],
    )
    return app  # noqa: RET504 - mypy knows its type


def _a2a_routes(routes: Routes) -> list[Route]:
    places = ("/a2a/agents/{agent:path}", "/a2a/skills/{skill:path}", "/a2a")
    return [
        Route(PATH, routes.fleet_card, methods=["GET"]),
        *(Route(place + PATH, routes.card, methods=["GET"]) for place in places),
        *(Route(place, routes.a2a, methods=["POST"]) for place in places),
    ]


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
                await error_reply(error)(scope, receive, send)
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
