"""Branches that are watched, and rebases of worktrees: values and outcomes.

A watched branch of a repository, which has the name that its reservations have, is one item: the
commit that was last announced, and how often it moved.  The
commit that writes it also sends the alert (``main_updated`` for ``main``), so each move is
announced once, however many watchers take turns, and moves while no watcher ran are announced
by the next one, as one move.

A rebase never happens in the folder of the agent.  It is done in a folder of its own, and only its
result is carried over, as a merge into a checked out target is: the branch moves by comparison, and
the folder follows by ``read-tree -m -u``.  So a conflict, or a process that is killed at any time,
leaves the folder as it was.  A ref (``refs/interlock/rebases/BRANCH``) has the old commit between
those last two steps; the next rebase finishes them first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from interlock.core import outcomes
from interlock.core.decision import Refusal, Success

LEAST, MOST = 0.5, 10.0
"""Seconds between two looks at a local branch, by default: after a move, and after long quiet."""
REMOTE_LEAST, REMOTE_MOST = 5.0, 60.0


class WatchedBranch(Struct, frozen=True, kw_only=True, gc=False):
    """A branch as it was last announced."""

    commit: str
    at: float
    moves: int = 0


class BranchUpdated(Success, frozen=True, kw_only=True, tag="branch_updated"):
    """The branch moved, and all subscribers of ``alert`` have that in their inboxes.

    ``forced`` if the old commit is not part of the new one any more; ``commits`` are new.
    """

    branch: str
    repository: str
    alert: str
    before: str
    after: str
    commits: int = 0
    forced: bool = False
    remote: str = ""


class BranchWatched(Success, frozen=True, kw_only=True, tag="watched"):
    """The watch has ended."""

    branch: str
    moves: int = 0


class Rebased(Success, frozen=True, kw_only=True, tag="rebased"):
    """The branch of this folder stands on the target now; ``already`` if it did before."""

    branch: str
    onto: str
    before: str
    after: str
    already: bool = False


class RebaseConflict(Refusal, frozen=True, kw_only=True, tag="rebase_conflict"):
    """The branch conflicts in these files; its folder is as it was."""

    own_words = ("reason",)

    branch: str
    onto: str
    files: tuple[str, ...]
    reason: str = ""


class RebaseBlocked(Refusal, frozen=True, kw_only=True, tag="rebase_blocked"):
    """Changes in the folder would be lost, or another agent works there; it is as it was."""

    own_words = ("reason",)

    branch: str
    onto: str
    reason: str


RebaseOutcome: TypeAlias = Rebased | RebaseConflict | RebaseBlocked | outcomes.GivenFenced
NextLook: TypeAlias = Literal["soon", "later"]


def pace(before: float, least: float, most: float, *, moved: bool) -> float:
    """Seconds until the next look: short after a move, then longer and longer."""
    return least if moved else min(max(before, least) * 1.5, most)
