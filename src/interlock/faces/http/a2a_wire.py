"""A2A as JSON, in both versions of the protocol: requests in, tasks and errors out.

Each request says by the name of its method which version it speaks, and is answered in that one:

                      1.0                          0.3
    methods           SendMessage, GetTask, ...    message/send, tasks/get, ...
    role of a caller  ROLE_USER                    user
    part              {"text": "..."}              {"kind": "text", "text": "..."}
    state             TASK_STATE_COMPLETED         completed
    result of a send  {"task": {...}}              {"kind": "task", ...}
    answer at once    returnImmediately: true      blocking: false

Inside, everything has the shape of 1.0.  Nothing here reads a store.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct

from interlock.core.safe_text import foreign, one_line, quoted
from interlock.nouns.tasks.rules import is_cancelled

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from interlock.nouns.tasks.task import State
    from interlock.nouns.tasks.task_view import TaskView

Json: TypeAlias = dict[str, Any]
Version: TypeAlias = Literal["1.0", "0.3"]
Act: TypeAlias = Literal["send", "get", "cancel", "card", "stream", "push", "list"]
T = TypeVar("T")

METHODS: dict[str, tuple[Version, Act]] = {
    "SendMessage": ("1.0", "send"),
    "GetTask": ("1.0", "get"),
    "CancelTask": ("1.0", "cancel"),
    "GetExtendedAgentCard": ("1.0", "card"),
    "ListTasks": ("1.0", "list"),
    "SendStreamingMessage": ("1.0", "stream"),
    "SubscribeToTask": ("1.0", "stream"),
    "CreateTaskPushNotificationConfig": ("1.0", "push"),
    "GetTaskPushNotificationConfig": ("1.0", "push"),
    "ListTaskPushNotificationConfigs": ("1.0", "push"),
    "DeleteTaskPushNotificationConfig": ("1.0", "push"),
    "message/send": ("0.3", "send"),
    "tasks/get": ("0.3", "get"),
    "tasks/cancel": ("0.3", "cancel"),
    "agent/getAuthenticatedExtendedCard": ("0.3", "card"),
    "tasks/list": ("0.3", "list"),
    "message/stream": ("0.3", "stream"),
    "tasks/resubscribe": ("0.3", "stream"),
    "tasks/pushNotificationConfig/set": ("0.3", "push"),
    "tasks/pushNotificationConfig/get": ("0.3", "push"),
    "tasks/pushNotificationConfig/list": ("0.3", "push"),
    "tasks/pushNotificationConfig/delete": ("0.3", "push"),
}
CODES = {
    "PARSE_ERROR": -32700,
    "INVALID_REQUEST": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": -32602,
    "TASK_NOT_FOUND": -32001,
    "TASK_NOT_CANCELABLE": -32002,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": -32003,
    "UNSUPPORTED_OPERATION": -32004,
    "CONTENT_TYPE_NOT_SUPPORTED": -32005,
    "VERSION_NOT_SUPPORTED": -32009,
}
"""The codes of errors, by the reason that version 1.0 gives with them."""
STATES: dict[State, str] = {
    "blocked": "submitted",
    "pending": "submitted",
    "running": "working",
    "complete": "completed",
    "failed": "failed",
    "dead": "failed",
    "dropped": "rejected",
}
"""The state of a task for callers; one that failed since it was cancelled is ``canceled``."""
ENDED = frozenset({"completed", "failed", "canceled", "rejected"})
MOST_PARTS = 100
MOST_ID = 256
_VERSIONS = re.compile(r"(?:0\.3|1\.\d{1,4})(?:\.\d{1,4})?")


class A2AError(Exception):
    """A request that gets an error of the protocol; ``more`` are details as texts."""

    def __init__(self, reason: str, message: str, **more: str) -> None:
        super().__init__(message)
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}
        info["domain"] = "a2a-protocol.org"
        details: list[Json] = [{**info, "metadata": more} if more else {**info}]
        self.error: Json = {"code": CODES[reason], "message": one_line(message), "data": details}


class A2ARequest(NamedTuple):
    """A request of either version."""

    id: str | int
    version: Version
    act: Act
    params: Json


class _Part(Struct, kw_only=True):
    text: str | None = None
    data: Any = UNSET
    metadata: dict[str, Any] | None = None


class _Message(Struct, kw_only=True, rename="camel"):
    message_id: str
    parts: list[dict[str, Any]]
    role: Literal["user", "ROLE_USER"]
    context_id: str | None = None
    task_id: str | None = None
    metadata: dict[str, Any] | None = None


class _Configuration(Struct, kw_only=True, rename="camel"):
    blocking: bool | None = None
    return_immediately: bool | None = None
    history_length: int | None = None
    push_notification_config: Any = None
    task_push_notification_config: Any = None


class _Send(Struct, kw_only=True):
    message: _Message
    configuration: _Configuration | None = None
    metadata: dict[str, Any] | None = None


class TaskParams(Struct, kw_only=True, rename="camel"):
    """Which task, and how many messages of its history."""

    id: str
    history_length: int | None = None


class SentMessage(NamedTuple):
    """What a caller sent: the whole message in the shape of 1.0, and its parts for a task."""

    id: str
    message: Json
    text: str
    skill: str
    task: str
    history_length: int | None
    waits: bool


def parse(body: bytes, version: str | None) -> A2ARequest:
    """The request in a body; A2AError if it is none.  ``version`` is that of the header."""
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise A2AError("PARSE_ERROR", "the body is not JSON in UTF-8") from None
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        raise A2AError("INVALID_REQUEST", 'send one object with "jsonrpc": "2.0"; no batch')
    id_, method, params = found.get("id"), found.get("method"), found.get("params")
    if not _is_id(id_):
        raise A2AError("INVALID_REQUEST", "a request has an id: a text or a whole number")
    if not isinstance(method, str):
        raise A2AError("INVALID_REQUEST", "a request has a method")
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise A2AError("METHOD_NOT_FOUND", f"there is no method {quoted(method)}; give one of"
                       f" {known}")  # fmt: skip
    if version and not _VERSIONS.fullmatch(version.strip()):
        raise A2AError("VERSION_NOT_SUPPORTED", "this server speaks the versions 1.0 and 0.3")
    if not isinstance(params, dict | None):
        raise A2AError("INVALID_PARAMS", "params is an object")
    return A2ARequest(id_, *METHODS[method], params or {})


def request_id(body: bytes) -> str | int | None:
    """The id of a request that may be wrong in any other way."""
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    id_ = found.get("id") if isinstance(found, dict) else None
    return id_ if _is_id(id_) else None


def sent_message(params: Json) -> SentMessage:
    """What a caller sent; A2AError if it cannot become a task."""
    sent = converted(params, _Send)
    given, how = sent.message, sent.configuration or _Configuration()
    if how.push_notification_config or how.task_push_notification_config:
        raise A2AError("PUSH_NOTIFICATION_NOT_SUPPORTED", "leave the push notification out, and"
                       " ask for the task from time to time")  # fmt: skip
    parts = _parts(given.parts)
    message: Json = {
        "messageId": _short(given.message_id, "messageId"),
        "role": "ROLE_USER",
        "parts": parts,
    }
    if given.context_id:
        message["contextId"] = _short(given.context_id, "contextId")
    if given.metadata:
        message["metadata"] = given.metadata
    return SentMessage(
        id=given.message_id,
        message=message,
        text="\n\n".join(each["text"] for each in parts if "text" in each),
        skill=_skill(given.metadata or {}) or _skill(sent.metadata or {}),
        task=given.task_id or "",
        history_length=how.history_length,
        waits=how.return_immediately is not True and how.blocking is not False,
    )


def converted(params: Json, kind: type[T]) -> T:
    """Parameters of a type; A2AError says which of them is wrong."""
    try:
        return msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`$.", "`params.")
        raise A2AError("INVALID_PARAMS", said) from None


def _parts(given: list[Json]) -> list[Json]:
    if not 0 < len(given) <= MOST_PARTS:
        raise A2AError("INVALID_PARAMS", f"a message has 1 to {MOST_PARTS} parts")
    return [_part(each) for each in given]


def _part(given: Json) -> Json:
    """A part in the shape of 1.0: text, or data."""
    part = converted(given, _Part)
    if part.text is not None and part.data is UNSET:
        found: Json = {"text": part.text}
    elif part.data is not UNSET and part.text is None:
        found = {"data": part.data}
    else:
        raise A2AError("CONTENT_TYPE_NOT_SUPPORTED", "a part is a text or data (JSON); for a file,"
                       " put its address into the text")  # fmt: skip
    return {**found, "metadata": part.metadata} if part.metadata else found


def _skill(metadata: Json) -> str:
    found = metadata.get("skill", metadata.get("skillId", ""))
    if not isinstance(found, str):
        raise A2AError("INVALID_PARAMS", "the skill in the metadata is a text")
    return found


def _short(text: str, what: str) -> str:
    if not 0 < len(text) <= MOST_ID:
        raise A2AError("INVALID_PARAMS", f"a {what} has 1 to {MOST_ID} characters")
    return text


def _is_id(value: object) -> TypeIs[str | int]:
    return isinstance(value, str | int) and not isinstance(value, bool)


# ---- answers


def answered(request: A2ARequest, result: Json) -> bytes:
    """The answer to a request."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": result})


def failed(id_: str | int | None, error: A2AError) -> bytes:
    """The answer to a request that is wrong."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "error": error.error})


def task_state(view: TaskView) -> str:
    """The state of a task, in the words of 0.3."""
    return "canceled" if is_cancelled(view.state, view.reason) else STATES[view.state]


def message_of(view: TaskView) -> Json:
    """The message that became a task; empty if its data were edited since."""
    found = view.data.get("message") if isinstance(view.data, dict) else None
    return found if isinstance(found, dict) else {}


def task(view: TaskView, history_length: int | None) -> Json:
    """A task in the shape of 1.0."""
    sent = message_of(view)
    context = sent.get("contextId", view.task)
    state = task_state(view)
    status: Json = {"state": state, "timestamp": _time(view.since or view.published_at or 0.0)}
    if said := _says(view, state):
        status["message"] = {
            "messageId": f"{view.task}-{state}", "role": "ROLE_AGENT", "taskId": view.task,
            "contextId": context, "parts": [{"text": said}],
        }  # fmt: skip
    found: Json = {"id": view.task, "contextId": context, "status": status}
    if state == "completed" and view.result is not None:
        part = {"text" if isinstance(view.result, str) else "data": view.result}
        found["artifacts"] = [{"artifactId": "result", "name": "result", "parts": [part]}]
    if sent and (history_length is None or history_length > 0):
        found["history"] = [{**sent, "taskId": view.task, "contextId": context}]
    skills = {"skill": view.requires[0]} if view.requires else {}
    return {**found, "metadata": {**skills, "attempts": view.attempts}}


def _says(view: TaskView, state: str) -> str:
    """What there is to say about a state, in words."""
    if state == "working":
        far = "" if view.progress is None else f" ({view.progress:.0%})"
        return (
            f"{foreign(view.holder)} works on"
            f" it{far}{f': {foreign(view.doing)}' if view.doing else ''}"
        )
    if state in ENDED - {"completed"}:
        error = view.error if isinstance(view.error, str) else ""
        return view.reason or error or f"the task is {view.state}"
    if state == "submitted" and view.reason:
        return f"attempt {view.attempts} failed: {foreign(view.reason)}"
    return ""


def sent_result(version: Version, found: Json) -> Json:
    """A task as the result of a send."""
    return {"task": versioned(version, found)} if version == "1.0" else versioned(version, found)


def versioned(version: Version, found: Json) -> Json:
    """A task in the shape of a version."""
    if version == "1.0":
        word = found["status"]["state"].upper().replace("-", "_")
        return {**found, "status": {**found["status"], "state": f"TASK_STATE_{word}"}}
    older = {**found, "kind": "task", "status": dict(found["status"])}
    if "message" in older["status"]:
        older["status"]["message"] = _older_message(older["status"]["message"])
    if "history" in older:
        older["history"] = [_older_message(each) for each in older["history"]]
    if "artifacts" in older:
        older["artifacts"] = [
            {**each, "parts": [_older_part(part) for part in each["parts"]]}
            for each in older["artifacts"]
        ]
    return older


def _older_message(message: Json) -> Json:
    role = message["role"].removeprefix("ROLE_").lower()
    parts = [_older_part(each) for each in message["parts"]]
    return {**message, "kind": "message", "role": role, "parts": parts}


def _older_part(part: Json) -> Json:
    if "text" in part:
        return {"kind": "text", **part}
    data = part["data"]  # which is an object in 0.3
    return {"kind": "data", **part, "data": data if isinstance(data, dict) else {"value": data}}


def _time(seconds: float) -> str:
    """A moment as the protocol writes it, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
