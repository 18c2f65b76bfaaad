"""What every route needs: the body of a request, replies, waits that end when a caller left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from interlock.errors import TooLarge
from interlock.faces.http.access import Refused
from interlock.faces.http.operations import error_answer
from interlock.runtime.operation import MOST_BODY

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")

SLOWEST_BODY = 30.0
"""Seconds in which a body has to arrive."""
MOST_INNER = 20_000
"""Lists and objects in a body: while they are parsed, which takes 10 ms, no other thread runs."""


async def read_body(request: Request, most: int = MOST_BODY) -> bytes:
    """The body of a request, within its limits."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise Refused(415, "wrong_type", "send application/json")
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            body = await _received(request, most)
    except TimeoutError:
        raise Refused(408, "too_slow", "the body did not arrive in time; send it again") from None
    if body.count(b"]") + body.count(b"}") > MOST_INNER:
        raise TooLarge(f"a body has at most {MOST_INNER:,} lists and objects; send less at once")
    return body


async def _received(request: Request, most: int) -> bytes:
    """The body; nothing is read of one whose header says that it is too long."""
    body = bytearray()
    if int(request.headers.get("content-length", 0)) <= most:
        async for part in request.stream():
            body += part
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise TooLarge(f"a body has at most {most:,} bytes here; send less at once")


async def until_left(
    request: Request, work: Awaitable[T], stopped: threading.Event
) -> tuple[T, bool]:
    """The result of work, and whether the caller left; ``stopped`` is set as soon as it did."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        stopped.set()
        return await working, leaving.done() and not leaving.cancelled()
    finally:
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_reply(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """A reply in JSON, which nothing on its way may keep."""
    more = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body, status, more, media_type="application/json")


def error_reply(error: Exception) -> Response:
    """The reply for an error."""
    response = json_reply(*error_answer(error))
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def failed(_: Request, error: Exception) -> Response:
    """The reply for an error that no route expected."""
    return error_reply(error)


async def no_route(request: Request, _: Exception | None = None) -> Response:
    """The reply for a path that leads nowhere."""
    path = request.url.path[:80]
    said = f"there is nothing at {path!r}; see /openapi.json"
    return error_reply(Refused(404, "no_route", said))


async def no_method(request: Request, error: Exception | None = None) -> Response:
    """The reply for a method that is not for this path."""
    said = f"{request.method[:20]} is not for this path; see /openapi.json"
    response = error_reply(Refused(405, "wrong_method", said))
    allowed = getattr(error, "headers", None) or {"Allow": "POST"}  # an operation has no other one
    response.headers["Allow"] = allowed["Allow"]
    return response
