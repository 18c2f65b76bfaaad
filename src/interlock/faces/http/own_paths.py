"""What the server offers beside the operations, as its description has it."""

from __future__ import annotations

from typing import Any

from interlock.core import validate
from interlock.faces.http.a2a_card import PATH
from interlock.faces.schema import Schema

NAME: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": validate.NAME_LIMIT,
    "pattern": validate.NAME_PATTERN,
}
_HANDLE = "The handle of a session, from POST /api/session; without one the caller's own name acts."
_EVENTS = "Server-sent events: hello, change, resync and store; the id of a change is its revision."
_SESSION: Schema = {
    "type": "object",
    "properties": {
        "agent": {**NAME, "description": "its name; the caller's own unless given"},
        "ttl": {
            "type": "number", "minimum": 1, "maximum": 86400,
            "description": "seconds that it lives after its last request",
        },
        "can": {"type": "array", "items": NAME, "description": "its abilities"},
    },
    "additionalProperties": False,
}  # fmt: skip


def response(said: str, shape: Schema) -> dict[str, Any]:
    """A response with a body."""
    return {"description": said, "content": {"application/json": {"schema": shape}}}


_ERROR = {"default": response("an error", {"$ref": "#/$defs/Error"})}
_OBJECT = response("done", {"type": "object"})


def own_paths() -> dict[str, Any]:
    """The paths, each with its methods."""
    stream = {"200": {"description": _EVENTS, "content": {"text/event-stream": {}}}, **_ERROR}
    after = {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}}
    healthz = {"200": _OBJECT, "503": _OBJECT}
    all_ = "what needs a person, agents, tasks, locks and problems in one answer"
    events = "follow every event as it is recorded"
    works = "whether the store takes a commit and shows it again"
    return {
        **_sessions(),
        **_a2a(),
        "/api/overview": {"get": _method("overview", all_)},
        "/api/events": {"get": _method("events", events, parameters=[after], responses=stream)},
        "/healthz": {"get": _method("healthz", works, responses=healthz)},
    }


def session_header(*, required: bool) -> Schema:
    """The header that says in which session a request acts."""
    where = {"name": "Interlock-Session", "in": "header", "schema": {"type": "string"}}
    return {**where, "description": _HANDLE, "required": required}


def _sessions() -> dict[str, Any]:
    header = session_header(required=True)
    begin = "begin a session; its handle is for the header Interlock-Session"
    end = "end a session, which releases what it holds"
    return {
        "/api/session": {
            "post": _method("session_begin", begin, requestBody=_body(_SESSION)),
            "delete": _method("session_end", end, parameters=[header]),
        },
        "/api/session/beat": {
            "post": _method("session_beat", "renew a session", parameters=[header])
        },
    }


def _a2a() -> dict[str, Any]:
    """A request of JSON-RPC has a description of its own: that of the A2A protocol."""
    card = "the card of the fleet for other frameworks (A2A)"
    rpc = "JSON-RPC of A2A, versions 1.0 and 0.3: SendMessage, GetTask, CancelTask"
    return {
        PATH: {"get": _method("a2a_card", card)},
        "/a2a": {"post": _method("a2a", rpc, requestBody=_body({}))},
    }


def _method(id_: str, summary: str, **more: object) -> dict[str, Any]:
    answers = {"responses": {"200": _OBJECT, **_ERROR}}
    return {"operationId": id_, "summary": summary, **answers, **more}


def _body(shape: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": shape}}}
