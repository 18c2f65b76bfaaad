"""The declaration of branches: watch one for the fleet, and rebase a worktree."""

from typing import Annotated, get_args

from interlock.core import keys
from interlock.nouns.branches import branch as core
from interlock.runtime.noun import KeyKind, Noun
from interlock.runtime.operation import Duration, Given, Operation, Request, option

Remote = Annotated[str | None, option("text", "the remote of git that the branch is at: origin")]


class BranchWatch(Request, frozen=True, kw_only=True):
    """Alert all agents when a branch moves."""

    branch: Annotated[str, option("name", "the branch", positional=True)] = "main"
    remote: Remote = None
    least: Annotated[
        Duration | None, option("duration", "time between two looks after a move; 0.5s, remote 5s")
    ] = None
    most: Annotated[
        Duration | None, option("duration", "time between two looks at rest; 10s, remote 60s")
    ] = None
    once: Annotated[bool, option("flag", "look once, and end")] = False
    ttl: Annotated[
        Duration, option("duration", "another watcher may take over so long after a crash")
    ] = 30.0


class BranchRebase(Request, frozen=True, kw_only=True):
    """Rebase the branch that this folder has checked out."""

    onto: Annotated[str, option("name", "the branch to stand on")] = "main"
    remote: Remote = None
    report: Annotated[
        str | None, option("name", "the agent that gets a conflict as a message; you, unless set")
    ] = None
    given: Given = ()


NOUN = Noun(
    name="branch",
    help="branches that are watched, and worktrees that follow",
    group="Branches",
    calls="interlock.nouns.branches.calls:BranchCalls",
    keys=(
        KeyKind(prefix=keys.WATCHED_BRANCHES, read="interlock.nouns.branches.calls:decode_watched"),
    ),
    events=True,
    texts=("interlock.nouns.branches.text",),
    operations=(
        Operation(
            name="watch-branch",
            help="alert all agents (main_updated) each time a branch moves",
            request=BranchWatch,
            outcomes=(core.BranchWatched,),
            lines=(core.BranchUpdated,),
            needs="agent",
            in_shell="interlock.faces.cli.merge:watch_branch",
            examples=(
                "interlock watch-branch main --agent watcher",
                "interlock watch-branch main --remote origin --agent watcher",
            ),
        ),
        Operation(
            name="rebase",
            help="rebase the branch of this folder; a conflict leaves the folder as it was",
            request=BranchRebase,
            outcomes=get_args(core.RebaseOutcome),
            needs="agent",
            call="branches.rebase",
            local=lambda _request: True,
            examples=("interlock rebase --onto main --agent ada",),
        ),
    ),
)
