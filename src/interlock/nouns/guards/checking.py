"""A check as a caller asks for it: conditions of its own, guards, and names of stored guards."""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct

from interlock.clock import Clock, SystemClock
from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_kinds import validated
from interlock.nouns.guards.results import GuardCheck, NoGuard
from interlock.nouns.guards.service import check_now, find_guards, own_guard, report, store_needs
from interlock.runtime.runner import Runner
from interlock.steps import Op

MOST = 1000
"""The most guards of one check or one definition."""


class GuardsToCheck(Struct, frozen=True, kw_only=True):
    """What to check: guards (one without a name has the caller's conditions), and names.

    ``root`` is the folder that the caller's conditions are about.
    """

    guards: tuple[g.Guard, ...]
    names: tuple[str, ...]
    root: str

    @property
    def needs_store(self) -> bool:
        """Whether only a store can answer."""
        return bool(self.names) or any(map(store_needs, self.guards))

    @property
    def uses_store(self) -> bool:
        """Whether a store could help: other hosts may have looked, or may want to know."""
        return self.needs_store or any(guard.name for guard in self.guards)


def asked(
    what: Iterable[object], *, any_of: bool = False, root: str | os.PathLike[str] | None = None
) -> GuardsToCheck:
    """The legal parts of a check."""
    some = list(what)
    conditions = [validated(each) for each in some if isinstance(each, c.BaseCondition)]
    names = [validate.name(each, "guard name") for each in some if isinstance(each, str)]
    guards = legal_guards(each for each in some if not isinstance(each, c.BaseCondition | str))
    if not some:
        raise BadInput("nothing is to be checked; give a condition such as lock-free=deploy")
    if validate.flag(any_of, "any_of") and not conditions:
        raise BadInput("'any' is for conditions; each guard must pass by itself")
    own = (own_guard(conditions, any_of=any_of),) if conditions else ()
    return GuardsToCheck(
        guards=(*own, *guards), names=tuple(dict.fromkeys(names)), root=_folder(root)
    )


def legal_guards(guards: Iterable[object]) -> tuple[g.Guard, ...]:
    """Guards, each built again of legal parts; two of the same name are refused."""
    found: dict[str, g.Guard] = {}
    for each in guards:
        if not isinstance(each, g.Guard):
            raise BadInput(f"a guard is made by interlock.guard.named; {each!r:.40} is none")
        legal = g.guard(each.name, each.condition, each.on_failure, each.max_age)
        if found.setdefault(legal.name, legal) != legal:
            raise BadInput(f"two guards have the name {quoted(legal.name)}; rename one of them")
    if len(found) > MOST:
        raise TooLarge(f"these are {len(found)} guards; {MOST} at once are allowed")
    return tuple(found.values())


def check(runner: Runner | None, asked: GuardsToCheck) -> Op[GuardCheck | NoGuard]:
    """Carry a check out; without a runner, one that needs no store."""
    clock: Clock = SystemClock() if runner is None else runner.clock
    named = (yield from find_guards(asked.names)) if asked.names else []
    if isinstance(named, NoGuard):
        return named
    guards = [*asked.guards, *named]
    return report((yield from check_now(runner, guards, clock, own_root=asked.root)))


def _folder(root: str | os.PathLike[str] | None) -> str:
    """The folder of the caller's conditions, as an absolute path."""
    if root is None:
        return os.getcwd()
    try:
        path = os.path.abspath(os.path.join(os.getcwd(), root))
        if os.path.isdir(path):
            return path
    except (TypeError, ValueError):
        pass
    raise BadInput(f"{quoted(str(root)[:200])} is not a folder; name the one to look at")
