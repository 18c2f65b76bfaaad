"""Commands of a definition: they run below a supervisor, and their exit status is the fact.

A command sees the root as its working directory, an empty input, and of the environment PATH, HOME,
LANG, TZ and the names that its leaf lists.  When it ends, all that it started ends too.

A status above 128 can mean that a signal ended the command, as in a shell: 137 after SIGKILL.  A
command that cannot be started has no status, so that a missing command never counts as one that
failed; but a shell that does not find a command ends with the status 127, which is its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from interlock.nouns.guards.condition import CommandNeed
from interlock.nouns.guards.sighting import Sighting, last_line, shown, unknown
from interlock.runtime.processes.supervised import MOST, Ended, Supervision

SLACK_SECONDS = 30.0
"""How much longer than its own limit a command may take: its helper process starts and ends."""

_ALWAYS = ("PATH", "HOME", "LANG", "TZ")
_SHELL = "/bin/sh"


def look(need: CommandNeed, root: str, supervision: Supervision) -> Sighting:
    """The exit status of a command; unknown if it does not start, or does not end in time."""
    if problem := _problem(need):
        return unknown(f"the command {problem}")
    words = (_SHELL, "-c", *need.run) if need.shell else need.run
    ended = supervision.run(
        words, folder=root, environment=environment(need.env), seconds=need.timeout
    )
    return _sighting(shown(" ".join(need.run)), need.timeout, ended)


def environment(names: Iterable[str]) -> dict[str, str]:
    """The variables of this process that a command sees."""
    kept = {name: os.environ[name] for name in (*_ALWAYS, *names) if name in os.environ}
    return {"PATH": os.defpath, **kept}


def _problem(need: CommandNeed) -> str:
    if not need.run or not need.run[0]:
        return "is empty"
    if need.shell and len(need.run) != 1:
        return "of a shell is one text, not several words"
    if not need.timeout > 0:
        return "has no time to run: its timeout is not above 0"
    try:
        words = [os.fsencode(word) for word in need.run]
    except UnicodeEncodeError:
        return "cannot be written in UTF-8"
    return "has a zero byte in it" if any(b"\0" in word for word in words) else ""


def _sighting(name: str, limit: float, ended: Ended) -> Sighting:
    line = last_line(ended.out.tail or ended.out.head)
    said = f": {line}" if line else ""
    if not ended.clean:
        said += "; a process that it started could not be ended"
    match ended.how:
        case "ended":
            how = f"was ended by {_signal(ended.signal)}," if ended.signal else "ended with"
            says = f"{name} {how} status {ended.status}{said}"
            return Sighting(value=ended.status, says=says, digest=_digest(ended))
        case "late":
            return unknown(f"{name} did not end within {limit:g} s{said}")
        case "too much":
            return unknown(f"{name} wrote more than {MOST >> 20} MiB and was ended{said}")
        case "no folder":
            return unknown(f"the root cannot be entered: {ended.says}")
        case "not started":
            return unknown(f"{name} cannot be run: {ended.says}")
        case "stopped":
            return unknown(f"{name} was stopped{f': {ended.says}' if ended.says else ''}")


def _digest(ended: Ended) -> str:
    from hashlib import sha256

    return sha256(f"{ended.status}\n{ended.out.digest}".encode()).hexdigest()


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
