"""The outcomes of branches in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.runtime.text import joined

if TYPE_CHECKING:
    from interlock.nouns.branches import branch as core
    from interlock.runtime.text import Paint, Text

_SHORT = 12


def _moved(outcome: core.BranchUpdated, paint: Paint) -> str:
    count = f", {outcome.commits} commits" if outcome.commits else ""
    forced = ", by force" if outcome.forced else ""
    at = f" at {outcome.remote}" if outcome.remote else ""
    head = f"{paint('green', 'moved')} {outcome.branch}{at} to {outcome.after[:_SHORT]}"
    return f"{head}{count}{forced}; alert {outcome.alert} sent"


def _watched(outcome: core.BranchWatched, paint: Paint) -> str:
    return f"{paint('green', 'watched')} {outcome.branch}: it moved {outcome.moves} times"


def _rebased(outcome: core.Rebased, paint: Paint) -> str:
    if outcome.already:
        return f"{paint('green', 'rebased')} {outcome.branch} before: it has all of {outcome.onto}"
    head = f"{paint('green', 'rebased')} {outcome.branch} onto {outcome.onto}"
    return f"{head}: {outcome.before[:_SHORT]} is {outcome.after[:_SHORT]} now"


def _conflict(outcome: core.RebaseConflict, paint: Paint) -> str:
    files = joined(outcome.files) or outcome.reason
    head = f"{paint('yellow', 'conflict')} {outcome.branch} onto {outcome.onto}: {files}"
    return f"{head}; nothing here was changed: merge or rebase it by hand"


def _blocked(outcome: core.RebaseBlocked, paint: Paint) -> str:
    return f"{paint('yellow', 'blocked')} {outcome.branch}: {outcome.reason}"


TEXTS: dict[str, Text] = {
    "BranchUpdated": _moved,
    "BranchWatched": _watched,
    "Rebased": _rebased,
    "RebaseConflict": _conflict,
    "RebaseBlocked": _blocked,
}
"""The text of each outcome, by the name of its class."""
