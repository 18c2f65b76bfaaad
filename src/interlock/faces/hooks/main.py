"""The entry point of ``interlock hook HOST [EVENT]``.

The host waits for it at every edit, so it imports little, and it ends within a bounded time.  A
failure before an edit refuses the edit and says why, since a reservation may be in the way; at any
other event it is a line on stderr, and the agent goes on.
"""

from __future__ import annotations

import os
import sys

from interlock.core.safe_text import one_line
from interlock.faces.hooks.event import BadEvent, HookEvent, read
from interlock.faces.hooks.hosts import (
    BEFORE,
    END,
    FOR_A_PERSON,
    HOSTS,
    START,
    STOP,
    SUB_STOP,
    HookAnswer,
    Host,
    context,
    deny,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # what signal is made of, without its enumerations

LONGEST_INPUT = 16 * 1024 * 1024
WAKE = "wake"
"""The word of the hook that waits in the background, in place of an event."""
MONITOR = "monitor"
"""The word of the monitor of a plugin, which has no input."""
_BLOCKS = 2
"""The exit status that refuses a tool, of hosts that know none by JSON alone."""
_USAGE = f"interlock hook: name the host: {', '.join(HOSTS)}; see 'interlock hook --help'"
_WAY_OUT = (
    "to go on without this check, start the agent with INTERLOCK_HOOK=open; to remove it:"
    " interlock setup {host} --remove"
)


class _TooLate(Exception):
    """The store did not answer in time."""


def main(words: list[str]) -> int:
    """Answer one event; returns the exit status."""
    if words[:1] == ["git"] and words[1:]:
        from interlock.faces.hooks.git import run

        return run(words[1])
    host = HOSTS.get(words[0]) if words else None
    if host is None:
        sys.stderr.write(_USAGE + "\n")
        return 1
    if os.environ.get("INTERLOCK_HOOK") == "off":
        return 0
    named = words[1] if words[1:] else ""
    if named == MONITOR:
        answer = watched(host)
    else:
        data = sys.stdin.buffer.read(LONGEST_INPUT)
        answer = woken(host, data) if named == WAKE else answered(host, data, named)
    if answer.out:
        # Hosts read JSON in UTF-8; stdout may have another encoding.
        sys.stdout.buffer.write(answer.out.encode() + b"\n")
        sys.stdout.buffer.flush()
    if answer.err:
        sys.stderr.write(answer.err + "\n")
    return answer.status


def woken(host: Host, data: bytes) -> HookAnswer:
    """Wait for mail of an idle agent; a failure wakes no agent."""
    import logging

    from interlock.faces.hooks.rewake import wait_and_wake

    logging.getLogger("interlock").setLevel(logging.ERROR)  # its text is for the model
    try:
        return wait_and_wake(host, data)
    except Exception as error:  # noqa: BLE001 - the text of a failure is not for the model
        return HookAnswer(err=f"interlock hook: {error}", status=1)


def watched(host: Host) -> HookAnswer:
    """Print a line for each time that mail waits for an idle agent; a failure prints none."""
    import logging

    from interlock.faces.hooks.monitor import watch

    logging.getLogger("interlock").setLevel(logging.ERROR)
    try:
        return watch(host, lambda line: print(line, flush=True))  # noqa: T201 - for the model
    except Exception as error:  # noqa: BLE001 - the text of a failure is not for the model
        return HookAnswer(err=f"interlock hook: {error}", status=1)


def answered(host: Host, data: bytes, named: str = "") -> HookAnswer:
    """The answer to an event; a failure is part of it."""
    event: HookEvent | None = None
    try:
        event = read(host, data.decode("utf-8", "replace"), named)
        seconds = 20.0 if event.means != END else 1.2
        previous = _signal.signal(_signal.SIGALRM, _late)
        _signal.setitimer(_signal.ITIMER_REAL, seconds)
        try:
            from interlock.faces.hooks.actions import act

            return act(host, event)
        finally:
            _signal.setitimer(_signal.ITIMER_REAL, 0)
            _signal.signal(_signal.SIGALRM, previous)
    except Exception as error:  # noqa: BLE001 - the host must get an answer
        return failed(host, event, error, named)


def failed(host: Host, event: HookEvent | None, error: Exception, named: str = "") -> HookAnswer:
    """The answer after a failure: closed before an edit, else a line for the user."""
    said = one_line(str(error)) or type(error).__name__
    if not isinstance(error, BadEvent) and type(error).__module__ == "builtins":
        said = f"unexpected {type(error).__name__}: {said}"
    for_a_person = isinstance(error, FOR_A_PERSON)
    before = host.events.get(named) == BEFORE if event is None else event.means == BEFORE
    if not before or os.environ.get("INTERLOCK_HOOK") == "open":
        # An exit status of 2 would keep some hosts from ever stopping.
        means = event.means if event is not None else host.events.get(named, "")
        if for_a_person and means == START and event is not None:
            text = f"interlock: {said}. Until then edits are denied: ask the person you work for."
            return context(host, event.named, text)._replace(err=f"interlock hook: {said}")
        quiet = host.shape not in ("claude", "codex", "gemini") or means in (STOP, SUB_STOP)
        return HookAnswer(err=f"interlock hook: {said}", status=0 if quiet else 1)
    reason = (
        f"interlock: {said}. Do not go around that: stop, and ask the person you work for."
        if for_a_person
        else f"interlock cannot check whether another agent has reserved this file: {said};"
        f" {_WAY_OUT.format(host=host.name)}"
    )
    if event is None:  # the shape that the host expects may be another one
        return HookAnswer(out=deny(host, named, reason).out, err=reason, status=_BLOCKS)
    return deny(host, event.named, reason)


def _late(*_: object) -> None:
    raise _TooLate("the store did not answer in time; run 'interlock doctor'")
