"""Facts from outside of the store: branches, files and commands, as this host sees them.

A host looks only if it allowed the definition (``allowed.py``); the caller asks that first.

Every look has a time limit, and none raises an error: a repository, a file or a command that cannot
be looked at gives an observation without a value, which says why.

The time of an observation is when the host began to look; for a command it is when it ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from interlock.nouns.guards.sighting import Sighting, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.nouns.guards.outside_files import PathNeed
    from interlock.nouns.guards.outside_git import GitNeed
    from interlock.runtime.processes.supervised import Supervision


class Look(NamedTuple):
    """Some needs, the function that answers them, and the seconds that it has."""

    needs: tuple[OutsideNeed, ...]
    work: Callable[[], Mapping[Any, Sighting]]
    seconds: float


def observe(
    needs: Collection[OutsideNeed], root: Path, *, host: str, clock: Clock
) -> dict[OutsideNeed, Observation]:
    """Look at all that is asked, side by side, below this root or in its repository.

    ``host`` is ``identity.host_name()``, as in sessions.  An interrupt ends all commands that run.
    """
    if not needs:
        return {}
    from interlock.nouns.guards.parallel import in_parallel
    from interlock.runtime.processes.supervised import Supervision

    with Supervision() as supervision:
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
    from interlock.nouns.guards import outside_commands
    from interlock.runtime.processes.supervised import LONGEST

    def work() -> dict[OutsideNeed, Sighting]:
        return {need: outside_commands.look(need, root, supervision)}

    seconds = need.timeout if 0 < need.timeout < LONGEST else LONGEST
    return Look((need,), work, seconds + outside_commands.SLACK_SECONDS)


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
