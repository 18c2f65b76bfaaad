"""Prompts and resources: what a host may show its user, or put before its model.

The primer, a prompt and a resource, says how an agent works with the others here.  The other
resources are text that the store has now: the board (tasks, locks, agents) and the inbox of the
agent; a client can subscribe to them (``subscriptions.py``).  Hosts that offer none of this to
their model lose nothing, since all of it can be had by tools, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from interlock import registry
from interlock.core.safe_text import quoted
from interlock.faces.mcp.jsonrpc import INVALID_PARAMS, Json, ProtocolError, cacheable
from interlock.faces.mcp.updates import BOARD, INBOX, PRIMER
from interlock.faces.mcp.words import INSTRUCTIONS, LONGEST
from interlock.runtime.text import render

if TYPE_CHECKING:
    from interlock.client import Fleet

_PROMPT = "primer"
_STEPS = (
    "1. Look at the board: the resource interlock://board, or the tools task_list and lock_list.\n"
    "2. Claim one task with task_next, and do it.\n"
    "3. Before you change what others may change, acquire its lock; release it when you are done.\n"
    "4. End the task: task_done with a result, or task_fail with the reason.\n"
    "5. Read what came along with the answers; answer questions with reply."
)
_RESOURCES = (
    (BOARD, "board", "open tasks, held locks and agents, as they are now"),
    (INBOX, "inbox", "the unread messages of this agent"),
    (PRIMER, "primer", "how to work with the other agents here"),
)
_FRESH = 0


class Reading:
    """Answers about prompts and resources; ``client`` is that of the agent."""

    def __init__(self, client: Callable[[], Fleet]) -> None:
        self._client = client
        self._methods: dict[str, Callable[[Json], Json]] = {
            "prompts/list": lambda _: {"prompts": [_prompt()]},
            "prompts/get": self._get,
            "resources/list": lambda _: {"resources": list(map(_resource, _RESOURCES))},
            "resources/templates/list": lambda _: {"resourceTemplates": []},
            "resources/read": self._read,
        }

    def answer(self, method: str, params: Json, *, stateless: bool) -> Json | None:
        """The result of a method; None if it is none of these."""
        found = self._methods.get(method)
        if found is None:
            return None
        result = found(params)
        if not stateless:
            return result
        if method == "resources/read":
            return {**result, **cacheable(_FRESH)}
        return {**result, **(cacheable() if method.endswith("/list") else _COMPLETE)}

    def _get(self, params: Json) -> Json:
        if params.get("name") != _PROMPT:
            raise ProtocolError(INVALID_PARAMS, f"there is one prompt, {_PROMPT}")
        message = {"role": "user", "content": {"type": "text", "text": _primer()}}
        return {"description": _prompt()["description"], "messages": [message]}

    def _read(self, params: Json) -> Json:
        uri = params.get("uri")
        if uri not in (BOARD, INBOX, PRIMER):
            said = f"there is no resource {quoted(str(uri)[:100])}; see resources/list"
            raise ProtocolError(INVALID_PARAMS, said, {"uri": str(uri)[:200]})
        text = _primer() if uri == PRIMER else self._from_store(uri)
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text[:LONGEST]}]}

    def _from_store(self, uri: str) -> str:
        fleet = self._client()
        return _board(fleet) if uri == BOARD else render(fleet.messages.inbox())


_COMPLETE: Json = {"resultType": "complete"}


def _primer() -> str:
    return f"{INSTRUCTIONS}\n\n{_STEPS}"


def _board(fleet: Fleet) -> str:
    parts = []
    for name in ("task list", "lock list", "agent list"):
        listed = fleet.act(registry.find(name).request(), remote=True)
        parts.append(f"{name.partition(' ')[0]}s:\n{render(listed)}")
    return "\n\n".join(parts)


def _prompt() -> Json:
    return {"name": _PROMPT, "description": "how to work with the other agents here"}


def _resource(about: tuple[str, str, str]) -> Json:
    uri, name, description = about
    return {"uri": uri, "name": name, "description": description, "mimeType": "text/plain"}
