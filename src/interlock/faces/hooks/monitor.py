"""The monitor of the plugin for Claude Code: ``hook claude monitor``.

Claude Code starts a monitor of a plugin with an interactive session, and each line that it prints
begins a turn.  This one prints a line when mail waits for an idle agent.  The line says that there
is mail, and not what it says: nothing confirms that a line is read, so the mail stays unread until
a hook of the turn has shown it.

The hook in the background (``rewake.py``) answers within a second; the monitor leaves it that time,
and speaks only if the agent is still idle.  It acknowledges nothing, and ends with the session.  It
renews the session in the store, and locks a small file, so that a session has one monitor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from interlock.core.safe_text import foreign
from interlock.faces.hooks.actions import connected, join
from interlock.faces.hooks.event import HookEvent
from interlock.faces.hooks.hosts import HookAnswer, Host
from interlock.faces.hooks.rewake import (
    RENEW,
    SessionOver,
    ending_with,
    is_interactive,
    only_one,
)
from interlock.faces.hooks.state import HookState
from interlock.nouns.messages.message import SHOWN_LIMIT

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.messages.message import Received

_FIRST = 5.0
"""Seconds that the hook in the background has to wake the agent."""
_PAUSE = 2.0
"""Seconds between two looks at mail that waits."""
_LISTED = 20
_NAMED, _SHORT = 3, 40
"""The most senders that a line names, and characters of a name."""


def watch(host: Host, say: Callable[[str], None]) -> HookAnswer:
    """Say when mail waits for the idle agent of this session, until that ends."""
    session = os.environ.get("CLAUDE_CODE_SESSION_ID", "")
    event = HookEvent("", "", session, os.getcwd())
    if not host.rewakes or not session or not is_interactive(event):
        return HookAnswer(err="interlock hook: no interactive session has started this monitor")
    with only_one(event, "monitor") as first:
        fleet = connected(host, event) if first else None
        if fleet is None:
            return HookAnswer()
        try:
            with fleet, ending_with(os.getppid(), HookState(event).file, float("inf")):
                _watch(fleet, host, event, say)
        except (SessionOver, BrokenPipeError):
            pass
    return HookAnswer()


def _watch(fleet: Fleet, host: Host, event: HookEvent, say: Callable[[str], None]) -> None:
    told: set[str] = set()
    renewed = time.monotonic()
    while True:
        found = fleet.messages.wait(RENEW)
        if time.monotonic() - renewed >= RENEW and os.path.exists(HookState(event).file):
            renewed = time.monotonic()
            join(fleet, host, event)
        if not found:
            continue
        if _new(fleet, event, told):
            threading.Event().wait(_FIRST)
            if new := _new(fleet, event, told):
                told |= {each.id for each in new}
                say(_line(new))
        threading.Event().wait(_PAUSE)


def _new(fleet: Fleet, event: HookEvent, told: set[str]) -> list[Received]:
    """The mail of an idle agent that nothing has shown or announced yet.

    Ids of messages that have left the inbox are deleted from ``told``.
    """
    state = HookState(event).loaded()
    if not state.idle:
        return []
    known = {*told, *state.left, *state.shown}
    limit = min(len(known) + _LISTED, SHOWN_LIMIT)
    mail = fleet.messages.inbox(limit=limit)
    if not mail.more or limit == SHOWN_LIMIT:
        told.intersection_update([each.id for each in mail.messages])
    return [each for each in mail.messages if each.id not in known]


def _line(new: list[Received]) -> str:
    """One line for the model; each further one would be an event of its own."""
    senders = list(dict.fromkeys(each.sender for each in new))
    named = ", ".join([foreign(each, _SHORT) for each in senders[:_NAMED]])
    others = f" and {len(senders) - _NAMED} more" if len(senders) > _NAMED else ""
    asked = "one asks you to stop; " if any(each.kind == "stop" for each in new) else ""
    many = "1 message waits" if len(new) == 1 else f"{len(new)} messages wait"
    from_whom = f"from {named}{others}; {asked}read them: interlock inbox --ack"
    return f"interlock: {many} for you, {from_whom}"
