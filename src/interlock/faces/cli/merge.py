"""``merge serve`` and ``watch-branch``: they serve a queue, or watch, until a signal ends them.

Each branch that is merged or bounced is a line: words, or JSON with ``--json``.  What the server
is doing goes to the standard error.  A signal ends it at once, also in the middle of a merge, but
not between the move of a branch and of the folder that has it checked out: the next server
continues from what git says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.core.safe_text import foreign, printable
from interlock.errors import BadInput
from interlock.faces.cli.command import answer, note, stoppable
from interlock.faces.cli.connect import CommandIdentity, opened, speak_up, tell, tell_if_new
from interlock.faces.cli.parse import Parsed

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.branches.branch import BranchUpdated
    from interlock.nouns.branches.noun import BranchWatch
    from interlock.nouns.merges.merge import MergeBounced, MergeDone
    from interlock.nouns.merges.noun import MergeServe


def serve(parsed: Parsed) -> int:
    """Serve a queue in a session of its own."""
    request: MergeServe = parsed.request
    with _session(parsed, request.ttl) as fleet:
        tests = " ".join(map(printable, request.command or request.guard))
        behind = f"behind {tests}" if tests else "without a test"
        serving = (
            f"serving {foreign(request.target)} as {foreign(str(fleet.context.agent))}, {behind};"
            " stop with Ctrl-C"
        )
        if tests or request.unguarded:
            note(serving)
        outcome = fleet.merges.serve(
            request.target,
            command=request.command,
            guard=request.guard,
            remote=request.remote,
            batch=request.batch,
            timeout=request.timeout,
            keep_branches=request.keep_branches,
            drain=request.drain,
            unguarded=request.unguarded,
            say=lambda text: note(printable(text)),
            told=lambda ended: _tell(parsed, ended),
        )
    return answer(parsed, outcome)


def watch_branch(parsed: Parsed) -> int:
    """Watch a branch in a session of its own."""
    request: BranchWatch = parsed.request
    with _session(parsed, request.ttl) as fleet:
        if not request.once:
            note(
                f"watching {foreign(request.branch)} as {foreign(str(fleet.context.agent))}; stop"
                " with Ctrl-C"
            )
        outcome = fleet.branches.watch(
            request.branch,
            remote=request.remote,
            least=request.least,
            most=request.most,
            once=request.once,
            told=lambda moved: _tell(parsed, moved),
        )
    return answer(parsed, outcome)


def _session(parsed: Parsed, ttl: float | str) -> Fleet:
    """A session that lives while this command does."""
    stoppable()
    identity = CommandIdentity(parsed.common, anew=True)
    if not identity.agent:
        raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
    fleet = opened(
        identity.store,
        agent=identity.agent,
        ttl=validate.duration(ttl, "ttl"),
        trace=identity.trace,
        key=identity.key,
    )
    tell(parsed, fleet)
    tell_if_new(fleet.store)
    speak_up()
    return fleet


def _tell(parsed: Parsed, ended: MergeDone | MergeBounced | BranchUpdated) -> None:
    answer(parsed, ended)
