"""What callers ask about guards: checks, definitions, and what this host allows.

A check is of conditions of the caller's own, of guards, and of names of stored guards.  A command
gives conditions as words of a shell, and guards in definition files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.clock import Clock, SystemClock
from interlock.core import validate
from interlock.core.outcomes import NoGuard
from interlock.core.safe_text import foreign, printable, quoted
from interlock.core.validate import closest_names
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards import shell
from interlock.nouns.guards.leaf_kinds import validated
from interlock.nouns.guards.results import GuardCheck
from interlock.nouns.guards.rules import leaves_of
from interlock.nouns.guards.service import check_now, find_guards, own_guard, report, store_needs
from interlock.runtime.runner import Runner
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.guards.definition import Definitions
    from interlock.nouns.guards.noun import (
        GuardPermissionList,
        GuardsAllow,
        GuardsAllowed,
        GuardsCheck,
    )

_SHORT = 12
"""The fewest digits of a digest that name it."""
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


def check(
    runner: Runner | None, asked: GuardsToCheck, *, looks: bool = True
) -> Op[GuardCheck | NoGuard]:
    """Carry a check out; without a runner, one that needs no store."""
    clock: Clock = SystemClock() if runner is None else runner.clock
    named = (yield from find_guards(asked.names)) if asked.names else []
    if isinstance(named, NoGuard):
        return named
    guards = [*asked.guards, *named]
    results = yield from check_now(runner, guards, clock, own_root=asked.root, looks=looks)
    return report(results)


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


# What commands ask.


def asked_in_shell(request: GuardsCheck) -> GuardsToCheck:
    """What a command asks to check."""
    if not (request.condition or request.file or request.name):
        raise BadInput(
            "what is to be checked? give conditions such as lock-free=deploy, --file or --name"
        )
    if request.any and not request.condition:
        raise BadInput("--any is for conditions; each guard must pass by itself")
    conditions = [shell.parse(word) for word in request.condition]
    named: list[object] = list(request.name)
    if request.file is not None:
        named = list(_chosen(_read(request.file), request))
    return asked([*conditions, *named], any_of=request.any, root=request.root)


def _chosen(found: Definitions, request: GuardsCheck) -> tuple[g.Guard, ...]:
    """The guards of a file that a command names; all if it names none."""
    known = {guard.name: guard for guard in found.all_guards}
    if not known:
        raise BadInput(f"{printable(str(request.file))} has no guard; define one as [guard.NAME]")
    for name in request.name:
        if validate.name(name, "guard name") not in known:
            close = closest_names(name, known) or list(known)[:3]
            raise BadInput(
                f"{printable(str(request.file))} has no guard {quoted(name)};"
                f" it has {', '.join(map(printable, close))}"
            )
    return tuple([known[validate.name(name)] for name in request.name] or known.values())


def with_files(what: Iterable[object]) -> Iterator[object]:
    """Guards, and those of the files among them."""
    for each in what:
        if isinstance(each, str | os.PathLike):
            yield from guards_of_file(os.fspath(each))
        else:
            yield each


def guards_of_file(file: str) -> tuple[g.Guard, ...]:
    """The named guards of a file."""
    read = _read(file)
    if not (found := tuple(read.guards.values())):
        more = "; for its pipelines: interlock pipeline define FILE" if read.pipelines else ""
        raise BadInput(
            f"{printable(file)} has no guard with a name; define one as [guard.NAME]{more}"
        )
    return found


def allow(request: GuardsAllow) -> GuardsAllowed:
    """Put the definitions of a file on the list of this host."""
    from interlock.nouns.guards import allowed
    from interlock.nouns.guards.noun import GuardsAllowed, PermittedGuard

    guards = _outside(request.file)
    folder = os.path.dirname(os.path.abspath(request.file))
    root = folder if request.root is None else os.path.abspath(request.root)
    permitted = []
    for guard in guards:
        root = allowed.allow(g.digest(guard), root, _note(guard.name, request.file)).root
        looks = [leaf for leaf in leaves_of(guard.condition) if g.outside(leaf)]  # type: ignore[arg-type]
        runs = [leaf for leaf in looks if isinstance(leaf, c.Command | c.BranchClean)]
        others = [leaf for leaf in looks if leaf not in runs]
        permitted.append(
            PermittedGuard(
                guard=guard.name,
                digest=g.digest(guard),
                runs=tuple(dict.fromkeys(map(_run, runs))),
                looks=tuple(dict.fromkeys(map(shell.leaf_text, others))),
            )
        )
    return GuardsAllowed(file=request.file, root=root, guards=tuple(permitted))


def deny(file: str) -> dict[str, str]:
    """Take definitions off the list of this host; returns their names, by their digests.

    They are those of a file, or the one of a digest on the list.
    """
    from interlock.nouns.guards import allowed

    if re.fullmatch(f"[0-9a-f]{{{_SHORT},}}", file) and not os.path.exists(file):
        named, notes = _listed(file)
    else:
        if not os.path.exists(file):
            raise BadInput(
                f"there is no file {quoted(file)}; name a file, or a digest that"
                " 'interlock guard permissions' shows"
            )
        named = {g.digest(guard): guard.name for guard in _outside(file)}
        notes = {digest: _note(name, file) for digest, name in named.items()}
    for digest, note in notes.items():
        allowed.deny(digest, note)
    return named


def _note(name: str, file: str) -> str:
    """What the list of this host says of a definition."""
    from interlock.nouns.guards import allowed

    return f"{name} of {file}"[: allowed.NOTE_LIMIT // 4]


def _listed(digest: str) -> tuple[dict[str, str], dict[str, str]]:
    """The definition of the list whose digest begins like this: its name and its note."""
    from interlock.nouns.guards import allowed

    found = [each for each in allowed.listed() if each.digest.startswith(digest)]
    if len(found) != 1:
        few = "several entries" if found else "no entry"
        raise BadInput(f"{few} of this host's list: {digest}; see 'interlock guard permissions'")
    own, note = found[0].digest, found[0].note
    return {own: note.partition(" of ")[0] or digest[:_SHORT]}, {own: note}


def permissions() -> GuardPermissionList:
    """The list of this host."""
    from interlock.nouns.guards import allowed
    from interlock.nouns.guards.noun import GuardPermission, GuardPermissionList

    found = []
    for each in allowed.listed():
        entry = each if isinstance(each, allowed.AllowedDefinition) else None
        found.append(
            GuardPermission(
                digest=each.digest,
                allowed=entry is not None,
                root="" if entry is None else entry.root,
                note=each.note,
                since=each.since,
            )
        )
    return GuardPermissionList(place=allowed.place(), permissions=tuple(found))


def _read(file: str) -> Definitions:
    from interlock.nouns.guards.definition import read  # readers that plain conditions do not need

    return read(file)


def _outside(file: str) -> list[g.Guard]:
    return [guard for guard in _read(file).all_guards if g.outside(guard.condition)]


def _run(leaf: c.BaseCondition) -> str:
    """A command that a leaf runs; ``git status`` runs what the repository configures."""
    import shlex

    if isinstance(leaf, c.BranchClean):
        return f"git status in the worktree of branch {foreign(leaf.branch)}"
    run: tuple[str, ...] = getattr(leaf, "run", ())
    return f"sh -c {shlex.quote(run[0])}" if getattr(leaf, "shell", False) else shlex.join(run)
