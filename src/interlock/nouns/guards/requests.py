"""What commands about guards ask for: conditions as words of a shell, and definition files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.core.safe_text import printable, quoted
from interlock.core.validate import closest_names
from interlock.errors import BadInput
from interlock.nouns.guards import checking, shell
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.rules import leaves_of

if TYPE_CHECKING:
    from interlock.nouns.guards.definition import Definitions
    from interlock.nouns.guards.noun import (
        GuardsAllow,
        GuardsAllowed,
        GuardsCheck,
        GuardsDenied,
        GuardsDeny,
    )


def asked(request: GuardsCheck) -> checking.GuardsToCheck:
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
    return checking.asked([*conditions, *named], any_of=request.any, root=request.root)


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


def guards_of_file(file: str) -> tuple[g.Guard, ...]:
    """The named guards of a file."""
    found = tuple(_read(file).guards.values())
    if not found:
        raise BadInput(f"{printable(file)} has no guard with a name; define one as [guard.NAME]")
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
        note = f"{guard.name} of {request.file}"[: allowed.NOTE_LIMIT // 4]
        root = allowed.allow(g.digest(guard), root, note).root
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


def deny(request: GuardsDeny) -> GuardsDenied:
    """Take the definitions of a file off the list of this host."""
    from interlock.nouns.guards import allowed
    from interlock.nouns.guards.noun import GuardsDenied

    guards = _outside(request.file)
    for guard in guards:
        allowed.deny(g.digest(guard))
    return GuardsDenied(file=request.file, guards=tuple(guard.name for guard in guards))


def _read(file: str) -> Definitions:
    from interlock.nouns.guards.definition import read  # readers that plain conditions do not need

    return read(file)


def _outside(file: str) -> list[g.Guard]:
    return [guard for guard in _read(file).all_guards if g.outside(guard.condition)]


def _run(leaf: c.BaseCondition) -> str:
    """A command that a leaf runs; ``git status`` runs what the repository configures."""
    import shlex

    if isinstance(leaf, c.BranchClean):
        return f"git status in the worktree of branch {leaf.branch}"
    run: tuple[str, ...] = getattr(leaf, "run", ())
    return f"sh -c {shlex.quote(run[0])}" if getattr(leaf, "shell", False) else shlex.join(run)
