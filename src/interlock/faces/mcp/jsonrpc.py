"""The messages of the protocol: JSON-RPC, its errors, and the era that a message is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Json: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[bytes], None]
Id: TypeAlias = str | int

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = ("2026-07-28",)
META = "io.modelcontextprotocol/"
_VERSION, _CAPABILITIES = f"{META}protocolVersion", f"{META}clientCapabilities"
CLIENT = f"{META}clientInfo"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
NO_METHOD = -32601
INVALID_PARAMS = -32602
INTERNAL = -32603
TOO_MANY = -32000
WRONG_VERSION = -32022

_CACHED = 3_600_000
"""Milliseconds for which a client may keep the list of tools: it changes with the command line."""
_SHORT = 100


class ProtocolError(Exception):
    """A message that cannot be answered with a result."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


def stateless_version(message: object) -> str | None:
    """The version that a message of the stateless era names; None for any other message."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(_VERSION) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None


def is_stateless(method: str, params: Json) -> bool:
    """Whether a request is of the stateless era; raises ProtocolError if it is a wrong one."""
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        meta = {}
    if method != "server/discover" and _VERSION not in meta and _CAPABILITIES not in meta:
        return False
    if missing := [key for key in (_VERSION, _CAPABILITIES) if key not in meta]:
        raise ProtocolError(INVALID_PARAMS, f"params._meta needs {' and '.join(missing)}")
    version = meta[_VERSION]
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, f"{_VERSION} is a text")
    if version not in STATELESS:
        known = {"supported": list(STATELESS), "requested": version[:_SHORT]}
        raise ProtocolError(WRONG_VERSION, "this version of the protocol is not supported", known)
    return True


def cacheable(milliseconds: int = _CACHED) -> Json:
    """What a result of the stateless era says about how long it may be kept."""
    return {"resultType": "complete", "ttlMs": milliseconds, "cacheScope": "private"}


def method_and_params(message: Json) -> tuple[str | None, Json]:
    """The method and the parameters of a message; no method if it is an answer."""
    if message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, 'a message has "jsonrpc": "2.0"')
    if "method" not in message and ("result" in message or "error" in message):
        return None, {}
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str):
        raise ProtocolError(INVALID_REQUEST, "a message has a method")
    if not isinstance(params, dict | None):
        raise ProtocolError(INVALID_PARAMS, "params is an object")
    return method, params or {}


def is_id(value: object) -> TypeIs[Id]:
    """Whether a value can be the id of a request."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def as_object(message: object) -> Json:
    """A message; ProtocolError if it is no JSON object."""
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "a message is a JSON object")
    return message


def request_id(message: Json) -> Id | None:
    """The id of a request; None for a notification."""
    if "id" in message and not is_id(message["id"]):
        raise ProtocolError(INVALID_REQUEST, "the id of a request is a text or a whole number")
    return message.get("id")


def is_answered(message: object) -> bool:
    """Whether a message gets an answer, unless its call is cancelled."""
    if not isinstance(message, dict):
        return True
    if "method" not in message:
        return "result" not in message and "error" not in message
    return "id" in message


def client_name(info: object) -> str:
    """The name of a client, from what it says about itself."""
    name = info.get("name") if isinstance(info, dict) else None
    return name if isinstance(name, str) else ""


def result_message(id_: Id, result: Json) -> bytes:
    """The answer to a request."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": result})


def error_message(id_: Id | None, error: ProtocolError) -> bytes:
    """The answer to a message that cannot be answered with a result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "error": error.error})


def notification(method: str, params: Json) -> bytes:
    """A message that gets no answer."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})
