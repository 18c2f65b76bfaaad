"""Facts from outside of the store: branches, files and commands, as this host sees them.

A host looks only if it allowed the definition (``allowed.py``); the caller asks that first.

Every look has a time limit, and none raises an error: a repository, a file or a command that cannot
be looked at gives an observation without a value, which says why.

The time of an observation is when the host began to look; for a command it is when it ended.

A command runs below a supervisor.  It sees the root as its working directory, an empty input, and
of the environment PATH, HOME, LANG, TZ and the names that its leaf lists.  When it ends, all that
it started ends too.  A status above 128 can mean that a signal ended the command, as in a shell:
137 after SIGKILL.  A command that cannot be started has no status, so that a missing command never
counts as one that failed; but a shell that does not find a command ends with the status 127, which
is its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.clock import Clock
from interlock.nouns.guards.condition import (
    BranchNeed,
    CleanNeed,
    CommandNeed,
    FileNeed,
    MergedNeed,
    Observation,
    OutsideNeed,
    TextNeed,
)
from interlock.nouns.guards.sighting import Sighting, in_parallel, last_line, shown, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.nouns.guards.outside_files import PathNeed
    from interlock.nouns.guards.outside_git import GitNeed
    from interlock.runtime.processes.supervised import Ended, Supervision

SLACK_SECONDS = 30.0
"""How much longer than its own limit a command may take: its helper process starts and ends."""

_ALWAYS = ("PATH", "HOME", "LANG", "TZ")
_SHELL = "/bin/sh"


class Look(NamedTuple):
    """Some needs, the function that answers them, and the seconds that it has."""

    needs: tuple[OutsideNeed, ...]
    work: Callable[[], Mapping[Any, Sighting]]
    seconds: float


def observe(
    needs: Collection[OutsideNeed],
    root: Path,
    *,
    host: str,
    clock: Clock,
    within: Supervision | None = None,
) -> dict[OutsideNeed, Observation]:
    """Look at all that is asked, side by side, below this root or in its repository.

    ``host`` is ``identity.host_name()``, as in sessions.  An interrupt ends all commands that run;
    so does another thread that stops the supervision ``within`` which they run.
    """
    if not needs:
        return {}
    from interlock.runtime.processes.supervised import Supervision

    with nullcontext(within) if within is not None else Supervision() as supervision:
        looks = list(_looks(dict.fromkeys(needs), os.fspath(root), supervision))
        answers = in_parallel([(partial(_answer, look, clock), look.seconds) for look in looks])
    observed: dict[OutsideNeed, Observation] = {}
    for look, answer in zip(looks, answers, strict=True):
        found, at = answer or ({}, clock.wall())
        for need in look.needs:
            seen = found.get(need) or unknown(f"there is no answer after {look.seconds:g} s")
            observed[need] = Observation(
                value=seen.value, says=seen.says, host=host, at=at, digest=seen.digest
            )
    return observed


def _looks(needs: Iterable[OutsideNeed], root: str, supervision: Supervision) -> Iterator[Look]:
    """One look at the repository, one at each file, one for each command."""
    branches: list[GitNeed] = []
    paths: dict[str, list[PathNeed]] = {}
    for need in needs:
        match need:
            case BranchNeed() | CleanNeed() | MergedNeed():
                branches.append(need)
            case FileNeed() | TextNeed():
                paths.setdefault(need.path, []).append(need)
            case CommandNeed():
                yield _command_look(need, root, supervision)
    if branches:
        yield _git_look(branches, root, supervision)
    yield from (_file_look(path, asked, root) for path, asked in paths.items())


def _command_look(need: CommandNeed, root: str, supervision: Supervision) -> Look:
    from interlock.runtime.processes.supervised import LONGEST

    def work() -> dict[OutsideNeed, Sighting]:
        return {need: _run(need, root, supervision)}

    seconds = need.timeout if 0 < need.timeout < LONGEST else LONGEST
    return Look((need,), work, seconds + SLACK_SECONDS)


def _git_look(needs: Sequence[GitNeed], root: str, supervision: Supervision) -> Look:
    from interlock.nouns.guards import outside_git

    return Look(
        tuple(needs), partial(outside_git.look, needs, root, supervision), outside_git.SECONDS
    )


def _file_look(path: str, needs: Sequence[PathNeed], root: str) -> Look:
    from interlock.nouns.guards import outside_files as files

    patterns = sum(isinstance(need, TextNeed) and bool(need.pattern) for need in needs)
    seconds = files.FILE_SECONDS + files.PATTERN_SECONDS * patterns
    return Look(tuple(needs), partial(files.look, root, path, needs), seconds)


def _answer(look: Look, clock: Clock) -> tuple[Mapping[Any, Sighting], float]:
    """What is seen, and when."""
    begun = clock.wall()
    try:
        found = look.work()
    except Exception as error:  # noqa: BLE001 - one look that fails does not spoil the others
        found = dict.fromkeys(look.needs, unknown(f"looking failed: {error!r}"))
    return found, clock.wall() if isinstance(look.needs[0], CommandNeed) else begun


# Commands.


def _run(need: CommandNeed, root: str, supervision: Supervision) -> Sighting:
    """The exit status of a command; unknown if it does not start, or does not end in time."""
    if problem := _problem(need):
        return unknown(f"the command {problem}")
    words = (_SHELL, "-c", *need.run) if need.shell else need.run
    ended = supervision.run(
        words, folder=root, environment=_environment(need.env), seconds=need.timeout
    )
    return _sighting(shown(" ".join(need.run)), need.timeout, ended)


def _environment(names: Iterable[str]) -> dict[str, str]:
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
    from interlock.runtime.processes.supervised import MOST

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
