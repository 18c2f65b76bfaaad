"""Why a branch is bounced, or a queue is held: in words that say what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.core.safe_text import foreign, printable, printable_lines
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.rules import Bounce
from interlock.nouns.merges.store_files import named_store_files, way_out

if TYPE_CHECKING:
    from interlock.nouns.merges.repository import MergedTree
    from interlock.nouns.merges.rules import QueuedMerge
    from interlock.nouns.reservations.reservation import ReservationOverlap

_NAMED = 5


def bounce(cause: core.BounceCause, reason: str, files: Sequence[str] = ()) -> Bounce:
    """Why a branch comes back, as text that a store can keep: git allows any bytes in a name."""
    return Bounce(
        cause=cause,
        reason=printable_lines(reason)[: core.REASON],
        files=tuple([printable(name) for name in files[: core.FILES]]),
    )


def in_conflict(target: str, merged: MergedTree) -> Bounce:
    """A branch that git cannot merge, with its files."""
    said = f"it conflicts with {foreign(target)} in {named(merged.conflicts)}"
    if merged.unrelated:
        said = f"it and {foreign(target)} have unrelated histories"
    reason = f"{said}; rebase the branch onto {foreign(target)}, and submit it again"
    return bounce("conflict", reason, merged.conflicts)


def missing(found: QueuedMerge) -> Bounce:
    """A commit that the repository of the server does not have."""
    said = f"the repository of the server does not have commit {found.merge.commit[:12]}"
    return bounce("missing", f"{said}; submit it from that repository, or with --remote NAME")


def with_store_files(files: tuple[str, ...]) -> Bounce:
    """A branch with files that no merge may bring."""
    reason = (
        f"it has {named_store_files(files)}; take them out ({way_out(files)}), commit that, and"
        " submit it again"
    )
    return bounce("failed", reason, files)


def reserved_by(overlaps: Sequence[ReservationOverlap]) -> Bounce:
    """The holders of the files, and what to do."""
    said = [
        f"{foreign(each.witness)} (by {foreign(each.holder)}"
        f"{f', who says {foreign(each.reason)}' if each.reason else ''})"
        for each in overlaps
    ]
    return bounce(
        "reserved",
        f"it changes files that others have reserved: {_few(said)}; ask them, wait for them, or"
        " submit it with --override REASON",
        [each.witness for each in overlaps],
    )


def overwrites(target: str, folder: str, error: str) -> str:
    """Why a target cannot move: its folder could not follow."""
    return printable(
        f"{foreign(target)} is checked out in {foreign(folder)}, where the merge would overwrite"
        f" changes ({foreign(error)});"
        " commit, stash or remove them there"
    )


def left_behind(target: str, folder: str, attempt: core.MergeAttempt, error: str) -> str:
    """The target has moved, and its folder has the files of the old commit."""
    follow = f"git read-tree -m -u {attempt.base[:12]} {attempt.tip[:12]}"
    return printable(
        f"{foreign(target)} has moved, and its folder {foreign(folder)} has not followed"
        f" ({foreign(error)}); commit nothing"
        f" there, which would take the merge back: remove the cause, or run '{follow}' there"
    )


def named(names: Sequence[str]) -> str:
    """A few of these names."""
    return _few([foreign(each) for each in names[: _NAMED + 1]], len(names))


def _few(texts: Sequence[str], count: int = 0) -> str:
    more = max(count, len(texts)) - _NAMED
    few = ", ".join(texts[:_NAMED])
    return f"{few} and {more} more" if more > 0 else few
