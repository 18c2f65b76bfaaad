"""The guard of a merge queue: a command, and guards of the store, in a folder with one commit.

The command passes with status 0.  It has in its environment

    INTERLOCK_MERGE_TARGET   the target
    INTERLOCK_MERGE_BASE     the commit of the target that the candidate was built on
    INTERLOCK_MERGE_COMMIT   the candidate, which is checked out in the current folder

A guard of the store is evaluated with that folder as its root.  Its definition comes from the store
that every agent may write to, so this host has to allow it (``interlock guard allow``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.core import validate
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.errors import BadInput, NotAllowed
from interlock.steps import InThread, Op

if TYPE_CHECKING:
    from interlock.nouns.guards.guard import Guard
    from interlock.runtime.processes.supervised import Ended, Supervision
    from interlock.runtime.runner import Runner

LIMIT = 3600.0
"""Seconds that a command may take by default."""
_KEPT = 16 * 1024
_SAID = 2000
"""Characters of the end of its output that the author of a bounced branch gets."""
_OWN = ("INTERLOCK_SESSION", "INTERLOCK_CALLER", "INTERLOCK_AGENT", "INTERLOCK_TOKEN")


class GuardStopped(Exception):
    """The guard was stopped, so it says nothing."""


class CandidateVerdict(Struct, frozen=True, kw_only=True):
    """Whether a candidate passes, and if not why; ``untested`` if it cannot be checked out."""

    passed: bool
    reason: str = ""
    untested: bool = False


class MergeGuard(Struct, frozen=True, kw_only=True):
    """What has to pass: a command, guards of the store, or nothing at all."""

    command: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    limit: float = LIMIT

    @property
    def text(self) -> str:
        """The guard in a line."""
        import shlex

        command = (shlex.join(self.command),) if self.command else ()
        return " and ".join([*command, *[f"guard {foreign(name)}" for name in self.guards]])

    def check(
        self, runner: Runner, folder: str, about: dict[str, str], supervision: Supervision
    ) -> Op[CandidateVerdict]:
        """Check the commit in a folder."""
        if self.guards:
            verdict = yield from self._check_guards(runner, folder)
            if not verdict.passed:
                return verdict
        if not self.command:
            return CandidateVerdict(passed=True)
        ended: Ended = yield InThread(partial(self._run, folder, about, supervision))
        return self._verdict(ended)

    def _run(self, folder: str, about: dict[str, str], supervision: Supervision) -> Ended:
        from interlock.runtime.processes.supervised import LONGEST

        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OWN and not name.startswith("GIT_")
        }
        return supervision.run(
            self.command,
            folder=folder,
            environment={**kept, **about},
            seconds=min(self.limit, LONGEST),
            kept=_KEPT,
            most=float("inf"),
        )

    def _verdict(self, ended: Ended) -> CandidateVerdict:

        program = quote(self.command[0])
        match ended.how:
            case "not started":
                raise BadInput(
                    f"the guard {program} cannot be run ({ended.says}); check its name and PATH"
                )
            case "no folder" | "stopped":
                raise GuardStopped(ended.says)
            case "late":
                why = f"{self.text} did not end within {validate.span(self.limit)}"
            case _ if ended.status == 0:
                return CandidateVerdict(passed=True)
            case _:
                why = f"{self.text} ended with status {ended.status}"
        output = (ended.out.tail or ended.out.head)[-_SAID:].decode("utf-8", "replace").strip()
        return CandidateVerdict(passed=False, reason=f"{why}\n{output}" if output else why)

    def _check_guards(self, runner: Runner, folder: str) -> Op[CandidateVerdict]:
        from interlock.nouns.guards.service import check_now, own_guard, report

        guards = yield from allowed_guards(self.guards)
        plain = [own_guard([each.condition], any_of=False) for each in guards]
        for guard, own in zip(guards, plain, strict=True):
            found = report((yield from check_now(runner, [own], runner.clock, own_root=folder)))
            if found.outcome != "passed":
                leaf = next((each for each in found.leaves if each.verdict != "true"), None)
                said = f": {foreign(leaf.condition)}: {leaf.reason}" if leaf else ""
                return CandidateVerdict(
                    passed=False, reason=f"guard {foreign(guard.name)} {found.outcome}{said}"
                )
        return CandidateVerdict(passed=True)


def allowed_guards(names: Sequence[str]) -> Op[list[Guard]]:
    """The guards of these names; refused if the store has none, or this host does not allow it."""
    from interlock.core.outcomes import NoGuard
    from interlock.nouns.guards.allowed import allowed
    from interlock.nouns.guards.guard import digest
    from interlock.nouns.guards.observations import outside_needs
    from interlock.nouns.guards.service import find_guards

    found = yield from find_guards(names)
    if isinstance(found, NoGuard):
        raise BadInput(
            f"the store has no guard {found.guard!r}; define it: interlock guard define FILE"
        )
    for guard in found:
        if outside_needs(guard) and (yield InThread(partial(allowed, digest(guard)))) is None:
            raise NotAllowed(
                f"guard {guard.name!r} looks at files, branches or commands, and this host does"
                " not allow it; a person has to read its file and allow it here"
            )
    return found
