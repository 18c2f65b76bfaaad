"""The agent behind a connection: one session, in which all of its calls act.

The session begins with the first call, since hosts start servers that they never use; it is renewed
in the background and ends with the connection.  Its agent has the name that the server was started
with, else one that is made of the client's name.  No argument of a tool names the acting agent, so
a model cannot speak for another one.

All calls of a connection are one caller for the detection of deadlocks: a model that waits for one
of its calls does not end another.

If the session expired (the computer slept, the store was away for too long), the next call begins a
new one, and its answer says that everything held is gone.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.core import keys
from interlock.errors import InterlockError, Lapsed, StoreClosed, StoreMissing, StoreMoved
from interlock.faces import give_back
from interlock.faces.mcp import words
from interlock.faces.mcp.protocol import ToolAnswer, ToolCall
from interlock.faces.mcp.tools import McpTool, ToolSet
from interlock.runtime.stoppable import stoppable
from interlock.steps import Op, Read, drive
from interlock.store import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.client import Fleet
    from interlock.core.outcomes import Acquired
    from interlock.nouns.messages.message import Received
    from interlock.runtime.operation import Operation, Request
    from interlock.store import Store

LONGEST_WAIT = 50.0
"""Seconds that a call waits at most, unless set: many hosts give up after a minute."""
_LOOKED_AT = 20
"""Unread messages that are read for an answer."""
_REMEMBERED = 10_000
_STORE_GONE = (Lapsed, StoreClosed, StoreMissing, StoreMoved)
"""After these the next call connects again."""
_ENDED = "the connection ended while this call waited; nothing was acquired or claimed"
_OVER = "the connection has ended, and with it the session; connect again"
_EXPIRED = (
    "--- your session expired, since it was not renewed in time: locks and tasks that you held are"
    " released and may have another owner; a new session begins with the next call ---"
)


class ConnectedAgent:
    """Carries out the calls of one connection; any thread may call it.

    ``connect`` opens the store and begins a session for an agent of this name.  ``permit`` refuses
    what its caller may not do.
    """

    def __init__(
        self,
        tools: ToolSet,
        connect: Callable[[str], Fleet],
        *,
        name: str = "",
        local: bool = False,
        longest_wait: float = LONGEST_WAIT,
        expired: bool = False,
        permit: Callable[[Operation, Request, Fleet], None] | None = None,
    ) -> None:
        self._tools = tools
        self._connect = connect
        self._name = name
        self._local = local
        self._longest = longest_wait
        self._permit = permit
        self._lock = threading.Lock()
        self._fleet: Fleet | None = None
        self._left = False
        self._expired = expired
        """Whether a session expired, and no answer has said so yet."""
        self._told: dict[str, None] = {}
        """The messages that answers have brought along."""
        self._stop = ("", "")
        """The session that was asked to stop, and the words of that."""

    def call(self, call: ToolCall) -> ToolAnswer:
        """Carry a call out; the answer brings along what the agent should know."""
        tool = self._tools.find(call.tool)
        if tool is None:
            raise KeyError(call.tool)
        fleet: Fleet | None = None
        try:
            request, cut = tool.request(call.arguments, self._longest)
            fleet = self._joined(call.client)
            answer = self._carried_out(fleet, tool, request, call, cut=cut)
        except InterlockError as error:
            if isinstance(error, _STORE_GONE):
                self._drop(fleet, expired=isinstance(error, Lapsed))
            answer = ToolAnswer(words.refused(error, tool, self._tools.names), failed=True)
        except Exception as error:  # noqa: BLE001 - the last line of defence
            _log(error)
            said = f"internal: unexpected {type(error).__name__}; the server's log has more"
            answer = ToolAnswer(said, failed=True)
        if call.cancelled:
            return answer
        return answer._replace(text="\n".join([answer.text, *self._along(fleet)]))

    def client(self) -> Fleet:
        """The client of the agent; its session begins now if it has not begun."""
        return self._joined("")

    @property
    def joined(self) -> bool:
        """Whether it has a session."""
        return self._fleet is not None

    @property
    def name(self) -> str:
        """The name of the agent; empty before its first call, unless it was given one."""
        return self._name

    def store(self) -> Store:
        """The store of the agent, opened again if it was removed or replaced."""
        fleet = self._joined("")
        if fleet.store.missing:
            self._drop(fleet, expired=False)
            fleet = self._joined("")
        return fleet.store

    def leave(self) -> None:
        """End the session, which releases everything; no later call begins another one."""
        with self._lock:
            self._left = True
            fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()

    def _joined(self, client: str) -> Fleet:
        with self._lock:
            if self._left:
                raise Lapsed(_OVER)
            fleet = self._fleet
            if fleet is not None and not fleet.store.missing:
                lease = fleet.context.session_lease
                if lease is not None and not lease.alive():
                    self._fleet, self._expired = None, True
                    _close(fleet)
            if self._fleet is None:
                self._name = self._name or _made_name(client)
                self._fleet = self._connect(self._name)
            return self._fleet

    def _drop(self, fleet: Fleet | None, *, expired: bool) -> None:
        with self._lock:
            if fleet is None or self._fleet is not fleet:
                return
            self._fleet, self._expired = None, self._expired or expired
        _close(fleet)

    def _carried_out(
        self, fleet: Fleet, tool: McpTool, request: Request, call: ToolCall, *, cut: bool
    ) -> ToolAnswer:
        if self._permit is not None:
            self._permit(tool.operation, request, fleet)
        outcome = self._act(fleet, tool, request, call)
        if outcome is None:
            return ToolAnswer(_ENDED, failed=True)
        text = words.told(outcome, tool, self._tools.names, self._name)
        if cut and not outcome:
            text += f"\nit waited {self._longest:g} s, the longest that a call here may wait"
        grants = give_back.unused_grants(outcome)
        return ToolAnswer(text, undo=partial(_release, fleet, grants) if grants else None)

    def _act(self, fleet: Fleet, tool: McpTool, request: Request, call: ToolCall) -> Any:  # noqa: ANN401
        """The outcome; None if the call was stopped while it waited."""
        from interlock.client import METHODS
        from interlock.nouns.fleet.calls import FleetCalls

        operation, remote = tool.operation, not self._local

        def waiting(calls: FleetCalls, request: Request) -> Op[Any]:
            op = operation.carry_out(calls, request, remote=remote)
            return stoppable(op, call.stopped.is_set)

        method = METHODS["grants" if operation.grants else "call"](waiting)
        return method(FleetCalls(fleet.context), request)

    def _along(self, fleet: Fleet | None) -> list[str]:
        """What comes along with an answer: that the session expired, a stop, unread messages."""
        expired, self._expired = self._expired, False
        text = ""
        try:
            text = "" if fleet is None else self._mail(fleet)
        except InterlockError:  # the answer matters more
            pass
        except Exception as error:  # noqa: BLE001 - a bug must not hide the answer
            _log(error)
        return list(filter(None, [_EXPIRED if expired else "", self._stop_of(fleet), text]))

    def _mail(self, fleet: Fleet) -> str:
        if not drive(_may_have_mail(self._name), fleet.store):
            return ""
        found = fleet.messages.inbox(limit=_LOOKED_AT)
        stops = [each for each in found.messages if each.kind == "stop"]
        if stops and not self._stop_of(fleet):
            self._stop = _session(fleet), self._asked_to_stop(fleet, stops)
        return self._unread(found.messages, more=found.more)

    def _stop_of(self, fleet: Fleet | None) -> str:
        """The words of a stop; a later session was not asked."""
        session, said = self._stop
        fleet = fleet or self._fleet
        return said if fleet is not None and session == _session(fleet) else ""

    def _unread(self, messages: tuple[Received, ...], *, more: bool) -> str:
        others = [each for each in messages if each.kind != "stop"]
        new = [each for each in others if each.id not in self._told]
        if not new:
            return f"unread: {len(others)}{'+' if more else ''}; call inbox" if others else ""
        while len(self._told) > _REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told |= dict.fromkeys(each.id for each in new)
        return words.mail(new, len(others) - len(new), more=more)

    def _asked_to_stop(self, fleet: Fleet, stops: list[Received]) -> str:
        """The words of a stop for this session; one for an earlier session is not for us."""
        actor = fleet.context.identity.actor
        own = keys.agent_session(actor.agent, actor.session)
        item = drive(_item(own), fleet.store)
        meant = [each for each in stops if item is None or each.seq > item.created]
        if not meant:
            return ""
        data = meant[-1].data
        return words.stop(meant[-1].sender, data if isinstance(data, str) else "")


def _may_have_mail(agent: str) -> Op[bool]:
    """Whether to read the inbox: most agents have no mail, and need not import how to read it."""
    mine, topics = Range(keys.unread(agent), limit=1), Range(keys.TOPICS, limit=1)
    snapshot = yield Read(mine, topics)
    return any(snapshot.ranges[each] for each in (mine, topics))


def _session(fleet: Fleet) -> str:
    return fleet.context.identity.actor.session


def _item(key: str) -> Op[Any]:
    return (yield Read(key))[key]


def _made_name(client: str) -> str:
    """A name for an agent that has none, after its client."""
    word = re.sub(r"[^a-z0-9]+", "-", client[:40].lower()).strip("-")
    return f"{word or 'agent'}-{os.urandom(3).hex()}"


def _release(fleet: Fleet, grants: tuple[Acquired, ...]) -> None:
    with suppress(InterlockError, OSError):  # then they end with the session
        give_back.release(fleet, grants)


def _close(fleet: Fleet) -> None:
    with suppress(InterlockError, OSError):
        fleet.close()


def _log(error: Exception) -> None:
    import traceback

    sys.stderr.write("".join(traceback.format_exception(error)))
