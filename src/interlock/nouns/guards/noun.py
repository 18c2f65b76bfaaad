"""Operations on guards."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct, field

from interlock.core import keys
from interlock.core.item_outcomes import Allowed, Denied
from interlock.core.outcomes import Listing, NoGuard
from interlock.nouns.guards.results import (
    GuardCheck,
    GuardDropped,
    GuardsDefined,
    GuardView,
)
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Name = Annotated[str, option("name", "the guard, such as calm", positional=True)]
File = Annotated[
    str, option("path", "a file with guards and pipelines, in TOML or JSON", positional=True)
]


class GuardsCheck(Request, frozen=True, kw_only=True):
    """Whether conditions hold."""

    condition: Annotated[
        tuple[str, ...],
        option(
            "things",
            "lock-free=deploy, '!file-exists=STOP', tasks-complete=build., 'command=make test'",
            positional=True,
        ),
    ] = ()
    any: Annotated[bool, option("flag", "one of the conditions is enough")] = False
    file: Annotated[
        str | None, option("path", "check the guards of this file: all, or those of --name")
    ] = None
    name: Annotated[tuple[str, ...], option("names", "a guard of the file, or of the store")] = ()
    root: Annotated[
        str | None,
        option("path", "the folder that the conditions are about (the current one unless set)"),
    ] = field(default=None, name="in")


class GuardsAllow(Request, frozen=True, kw_only=True):
    """Let this host look at the outside for definitions."""

    file: File
    root: Annotated[
        str | None,
        option("path", "the folder that they may look at (that of the file unless set)"),
    ] = None


class GuardsDeny(Request, frozen=True, kw_only=True):
    """Do not look at the outside for definitions any more."""

    file: Annotated[
        str,
        option("path", "a file with guards, or a digest of 'guard permissions'", positional=True),
    ]


class GuardPermissions(Request, frozen=True, kw_only=True):
    """What this host allows."""


class GuardsDefine(Request, frozen=True, kw_only=True):
    """Put guards into the store."""

    file: File


class GuardsList(Request, frozen=True, kw_only=True):
    """All guards."""


class GuardShow(Request, frozen=True, kw_only=True):
    """One guard."""

    guard: Name


class GuardDrop(Request, frozen=True, kw_only=True):
    """Delete a guard."""

    guard: Name


class GuardList(Listing[GuardView], frozen=True, kw_only=True):
    """All guards of the store, by name."""

    listed = "guards"

    guards: tuple[GuardView, ...]


class PermittedGuard(Struct, frozen=True, kw_only=True):
    """A definition with its digest, the commands that it can run, and what else it looks at."""

    guard: str
    digest: str
    runs: tuple[str, ...]
    looks: tuple[str, ...]


class GuardsAllowed(Allowed, frozen=True, kw_only=True, tag="allowed"):
    """This host looks at the outside for these definitions; others of the file do not need it."""

    file: str
    root: str
    guards: tuple[PermittedGuard, ...]


class GuardsDenied(Denied, frozen=True, kw_only=True, tag="denied"):
    """This host does not look at the outside for these definitions.

    ``withdrawn`` is how many of its observations were deleted from the store; ``left`` says why
    none could be.
    """

    file: str
    guards: tuple[str, ...]
    withdrawn: int = 0
    left: str = ""


class GuardPermission(Struct, frozen=True, kw_only=True):
    """A definition that this host allows or denies; ``root`` is the folder that it may look at."""

    digest: str
    allowed: bool
    root: str
    note: str
    since: float


class GuardPermissionList(Listing[GuardPermission], frozen=True, kw_only=True):
    """The list of this host, in ``place``."""

    listed = "permissions"

    place: str
    permissions: tuple[GuardPermission, ...]


def _check(fleet: "FleetCalls", request: GuardsCheck) -> "Op[GuardCheck | NoGuard]":
    from interlock.nouns.guards import requests

    context = fleet.context
    return requests.check(context.runner, requests.asked_in_shell(request), looks=context.looks)


def _looks_here(request: GuardsCheck) -> bool:
    """Whether a check looks at the host that carries it out, without the permission of its owner.

    A guard of the store does so only if the host allows its definition.
    """
    from interlock.nouns.guards import shell
    from interlock.nouns.guards.guard import outside

    return any(outside(shell.parse(word)) for word in request.condition)


def _define(fleet: "FleetCalls", request: GuardsDefine) -> "Op[GuardsDefined]":

    return fleet.guards.define(request.file)


def _list(fleet: "FleetCalls", _request: GuardsList) -> "Op[GuardList]":
    return GuardList(guards=(yield from fleet.guards.list()))


NOUN = Noun(
    name="guard",
    help="conditions that must hold before work moves on",
    calls="interlock.nouns.guards.calls:GuardCalls",
    keys=(
        KeyKind(prefix=keys.GUARDS, read="interlock.nouns.guards.service:decode_guard"),
        KeyKind(
            prefix=keys.OBSERVED,
            read="interlock.nouns.guards.observations:decode_observation",
            repair=DELETE,
        ),
        KeyKind(
            prefix=keys.GATES,
            read="interlock.nouns.guards.gates:decode_gate",
            repair="interlock.nouns.guards.housekeeping:repaired_gate",
        ),
        KeyKind(prefix=keys.GATED, read="interlock.runtime.gates:decode_entry", repair=DELETE),
        KeyKind(prefix=keys.RECHECK, read="interlock.runtime.gates:decode_note", repair=DELETE),
    ),
    waits={keys.GUARDS: "interlock.nouns.guards.guard_wait:wait_targets"},
    why={"guard": "interlock.nouns.guards.views:why"},
    events=True,
    health=Part(36, "interlock.nouns.guards.gate_cycles:health"),
    housekeeping=Part(25, "interlock.nouns.guards.housekeeping:GuardHousekeepingPart"),
    texts=("interlock.nouns.guards.text",),
    operations=(
        Operation(
            name="guard check",
            help="check conditions, and say what would clear those that do not hold",
            request=GuardsCheck,
            outcomes=(GuardCheck, NoGuard),
            needs="store",
            local=_looks_here,
            in_shell="interlock.faces.cli.guard:check",
            act=_check,
            examples=(
                "interlock guard check lock-free=deploy '!file-exists=STOP'",
                "interlock guard check --any branch-merged=fix,into=main 'command=make test'",
                "interlock guard check --file guards.toml --name calm",
            ),
        ),
        Operation(
            name="guard allow",
            help="let this host look at files, branches and commands for guards",
            request=GuardsAllow,
            outcomes=(GuardsAllowed,),
            needs="nothing",
            in_shell="interlock.faces.cli.guard:allow",
            examples=("interlock guard allow guards.toml",),
        ),
        Operation(
            name="guard deny",
            help="stop looking at the outside for the guards of a file",
            request=GuardsDeny,
            outcomes=(GuardsDenied,),
            needs="nothing",
            in_shell="interlock.faces.cli.guard:deny",
            examples=("interlock guard deny guards.toml",),
        ),
        Operation(
            name="guard permissions",
            help="list the definitions that this host allows and denies",
            request=GuardPermissions,
            outcomes=(GuardPermissionList,),
            needs="nothing",
            reads=True,
            in_shell="interlock.faces.cli.guard:permissions",
        ),
        Operation(
            name="guard define",
            help="put the guards of a file into the store, in one commit",
            request=GuardsDefine,
            outcomes=(GuardsDefined,),
            needs="agent",
            act=_define,
            examples=("interlock guard define guards.toml --agent ada",),
        ),
        Operation(
            name="guard list",
            help="list the guards of the store",
            request=GuardsList,
            outcomes=(GuardList,),
            needs="store",
            reads=True,
            act=_list,
        ),
        Operation(
            name="guard show",
            help="show a guard: its definition, its digest and its last observations",
            request=GuardShow,
            outcomes=(GuardView, NoGuard),
            needs="store",
            reads=True,
            call="guards.show",
        ),
        Operation(
            name="guard drop",
            help="delete a guard from the store",
            request=GuardDrop,
            outcomes=(GuardDropped, NoGuard),
            needs="agent",
            call="guards.drop",
            takes=True,
            examples=("interlock guard drop calm --agent ada",),
        ),
    ),
)
