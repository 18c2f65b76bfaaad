"""The declaration of merges: their requests, operations, keys, and what they add to others."""

from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias, get_args

from interlock.core import keys
from interlock.nouns.grants.lock import LockBusy
from interlock.nouns.merges import merge as core
from interlock.runtime.noun import KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Names: TypeAlias = tuple[str, ...]
Into = Annotated[str, option("name", "the branch to merge into")]
AnyMerge = Annotated[str, option("name", "the branch, or the id of its merge", positional=True)]
Remote = Annotated[str | None, option("text", "the remote of git that the target is at: origin")]


class MergeSubmit(Request, frozen=True, kw_only=True):
    """Queue a branch to be merged."""

    branch: Annotated[
        str | None, option("name", "the branch; by default the one checked out", positional=True)
    ] = None
    into: Into = "main"
    remote: Remote = None
    wait: Annotated[
        Duration, option("duration", "wait for the end of the merge, so long", forever=True)
    ] = 0.0
    override: Annotated[
        str,
        option("text", "merge it although others have reserved parts of it: the reason, recorded"),
    ] = ""
    given: Given = ()


class MergeCancel(Request, frozen=True, kw_only=True):
    """Take a branch out of the queue."""

    merge: AnyMerge
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""
    into: Annotated[str, option("name", "only if it waits for this target")] = ""
    given: Given = ()


class MergesList(Request, frozen=True, kw_only=True):
    """The branches that wait, in their order."""

    into: Annotated[str | None, option("name", "only those for this target")] = None
    all: Annotated[bool, option("flag", "also those that left the queue")] = False
    limit: Annotated[
        int, option("int", "how many merges to list at most", least=1, most=core.MOST)
    ] = core.LISTED


class MergeShow(Request, frozen=True, kw_only=True):
    """One merge."""

    merge: AnyMerge


class MergeServe(Request, frozen=True, kw_only=True):
    """Merge the branches of a queue, one after the other."""

    exit_words: ClassVar[dict[int, str]] = {}
    """Its outcomes say it: the program that has to pass only decides about a branch."""

    target: Into = "main"
    remote: Remote = None
    guard: Annotated[
        Names, option("names", "guards of the store that must pass, too; this host allows them")
    ] = ()
    batch: Annotated[
        int, option("int", "branches that are tested together", least=1, most=core.MOST_BATCH)
    ] = core.BATCH
    timeout: Annotated[
        Duration | None, option("duration", "how long the program may take; 1h unless set")
    ] = None
    keep_branches: Annotated[bool, option("flag", "do not delete branches that are merged")] = False
    drain: Annotated[
        bool,
        option(
            "flag", "end when nothing waits any more, or with status 1 if nothing can be merged"
        ),
    ] = False
    unguarded: Annotated[
        bool, option("flag", "merge without a test; else a program or a guard is needed")
    ] = False
    ttl: Annotated[
        Duration, option("duration", "another server may take over so long after a crash")
    ] = 30.0
    command: Annotated[
        Names, option("command", "the program that has to pass: make test", positional=True)
    ] = ()


def _submit(fleet: "FleetCalls", request: MergeSubmit) -> "Op[core.SubmitOutcome]":
    return fleet.merges.submit(
        request.branch,
        into=request.into,
        remote=request.remote,
        wait=request.wait,
        override=request.override,
    )


NOUN = Noun(
    name="merge",
    help="a queue of branches, each merged when its guard passes",
    calls="interlock.nouns.merges.calls:MergeCalls",
    keys=(
        KeyKind(prefix=keys.MERGES, read="interlock.nouns.merges.service:decode_merge"),
        KeyKind(prefix=keys.MERGES_WAITING, read="interlock.nouns.merges.service:decode_waiting"),
        KeyKind(prefix=keys.MERGE_TARGETS, read="interlock.nouns.merges.service:decode_target"),
    ),
    why={"merge": "interlock.nouns.merges.views:why"},
    ids={"merge": "mrg_"},
    health=Part(37, "interlock.nouns.merges.views:health"),
    gauges="interlock.nouns.merges.metrics:merge_gauges",
    housekeeping=Part(32, "interlock.nouns.merges.views:MergeHousekeepingPart"),
    history="interlock.nouns.merges.views:MergeHistory",
    events=True,
    texts=("interlock.nouns.merges.text",),
    operations=(
        Operation(
            name="merge submit",
            help="queue a branch; its commit of this moment is merged if the guard passes",
            request=MergeSubmit,
            outcomes=get_args(core.SubmitOutcome),
            needs="agent",
            act=_submit,
            local=lambda _request: True,
            examples=(
                "interlock merge submit feature --agent ada",
                "interlock merge submit feature --into main --wait 30m --agent ada",
            ),
        ),
        Operation(
            name="merge list",
            help="list the branches that wait, in their order, and who serves them",
            request=MergesList,
            outcomes=(core.MergeList,),
            needs="store",
            reads=True,
            call="merges.list",
            examples=("interlock merge list --all",),
        ),
        Operation(
            name="merge show",
            help="show one merge: its place, what it waits for, how it ended",
            request=MergeShow,
            outcomes=(core.MergeView, core.UnknownMerge),
            needs="store",
            reads=True,
            call="merges.show",
        ),
        Operation(
            name="merge cancel",
            help="take a branch out of the queue, unless it lands at this moment",
            request=MergeCancel,
            outcomes=get_args(core.CancelOutcome),
            needs="agent",
            call="merges.cancel",
            takes=True,
            examples=("interlock merge cancel feature 'not yet' --agent ada",),
        ),
        Operation(
            name="merge serve",
            help="merge the branches of a queue one after the other, if the program passes",
            request=MergeServe,
            outcomes=(core.MergesServed, core.MergesHeld, LockBusy),
            lines=(core.MergeDone, core.MergeBounced),
            needs="agent",
            in_shell="interlock.faces.cli.merge:serve",
            examples=(
                "interlock merge serve --target main --agent queue -- make test",
                "interlock merge serve --remote origin --batch 20 --agent queue -- make test",
            ),
        ),
    ),
)
