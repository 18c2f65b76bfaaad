"""Waits in the background until mail comes for an idle agent, and wakes it: ``hook HOST wake``.

Claude Code starts a hook with ``asyncRewake`` beside the ``Stop`` hook, does not wait for it, and
begins a turn with its standard error if it ends with status 2.  So this process sleeps while the
agent is idle, which the ``Stop`` hook notes, and ends with the mail of the agent as its text.  The
mail stays unread until the next event of the session, as after every hook.

    one of them        the first one of a session has a file lock, and the others end at once
    not in the way     a host that runs it and waits for it would stand still; so it ends at once
                       unless the variables of Claude Code say that this is an interactive session
    never left behind  it ends with its host, with its session, and after a day
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from interlock.faces.hooks.actions import SESSION_TTL, connected, join
from interlock.faces.hooks.event import HookEvent, read
from interlock.faces.hooks.hosts import STOP, HookAnswer, Host
from interlock.faces.hooks.main import WAKE
from interlock.faces.hooks.notices import fitted, unread_messages
from interlock.faces.hooks.state import HookState

if TYPE_CHECKING:
    from interlock.client import Fleet

WOKEN = 2
"""The exit status that wakes the agent."""
LONGEST = 86_400
"""Seconds that it waits at most; the host ends it then."""
RENEW = SESSION_TTL / 6
"""Seconds between two renewals of the session, which lives while its host does."""
_LOOK = 5.0
"""Seconds between two looks whether the host and the session are still there."""
_PAUSE = 1.0
"""Seconds between two looks at mail that came during a turn, which shows it by itself."""


class SessionOver(Exception):
    """The host or the session has ended."""


def wait_and_wake(host: Host, data: bytes) -> HookAnswer:
    """Sleep until there is mail for the idle agent of a session; the answer wakes it."""
    named = next(name for name, means in host.events.items() if means == STOP)
    event = read(host, data.decode("utf-8", "replace"), named)
    if not host.rewakes or not is_interactive(event):
        return HookAnswer()
    with only_one(event, WAKE) as first:
        fleet = connected(host, event) if first else None
        if fleet is None:
            return HookAnswer()
        try:
            with fleet, ending_with(os.getppid(), HookState(event).file, LONGEST):
                return HookAnswer(err=_mail_of_idle(fleet, host, event), status=WOKEN)
        except SessionOver:
            return HookAnswer()


def is_interactive(event: HookEvent) -> bool:
    """Whether Claude Code runs this, in a session with a person: other hosts may wait for it."""
    entry = os.environ.get("CLAUDE_CODE_ENTRYPOINT", "cli")
    return os.environ.get("CLAUDE_CODE_SESSION_ID") == event.session and entry == "cli"


@contextmanager
def only_one(event: HookEvent, what: str) -> Iterator[bool]:
    """Whether no other process of this kind waits for this session already."""
    path = f"{HookState(event).file}.{what}"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def ending_with(parent: int, state: str, longest: float) -> Iterator[None]:
    """A block that ends with its host, after a time, and when the session's file is removed."""
    ends, there = time.monotonic() + longest, [os.path.exists(state)]

    def look(*_: object) -> None:
        gone = there[0] and not os.path.exists(state)
        there[0] = os.path.exists(state)
        if gone or os.getppid() != parent or time.monotonic() > ends:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise SessionOver

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _mail_of_idle(fleet: Fleet, host: Host, event: HookEvent) -> str:
    """Wait until the agent is idle and has mail that it was not shown."""
    renewed = time.monotonic()
    while True:
        found = fleet.messages.wait(RENEW)
        if found and (text := _new(fleet, event)):
            return text
        if time.monotonic() - renewed >= RENEW:
            renewed = time.monotonic()
            join(fleet, host, event)
        if found:  # it is shown by the turn that runs, or waits for an answer
            threading.Event().wait(_PAUSE)


def _new(fleet: Fleet, event: HookEvent) -> str:
    """The mail that an idle agent was not shown yet; empty during a turn."""
    if not HookState(event).loaded().idle:
        return ""
    with HookState(event) as state:
        text = fitted(list(unread_messages(fleet, state, stops="once")))
        state.idle = not text
    return text
