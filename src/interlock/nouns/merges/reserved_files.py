"""The files of a batch, compared with the reservations of other agents.

The comparison before a test, and the one before a landing, read the reservations as they are by
then.  Every new reservation of a repository rewrites its mark, so the commit that lands checks that
the mark is the one of that comparison.  If it is another one, the same commit compares the files
with the reservations that it reads itself: only one that conflicts stops the landing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.core import keys
from interlock.errors import BadInput, TooLarge
from interlock.nouns.merges import bounces
from interlock.nouns.merges.bounces import bounce
from interlock.nouns.merges.repository import MergedTree, MergeRepository, TargetRefs
from interlock.nouns.merges.rules import MergeToBounce, QueuedMerge
from interlock.nouns.merges.service import revision_of
from interlock.nouns.reservations.repository import ReservedRepository, find
from interlock.nouns.reservations.views import ChangedFiles, conflicts_inside, exact_paths
from interlock.runtime.reads import outside
from interlock.steps import InThread, Op, Read
from interlock.store import Range, Snapshot

if TYPE_CHECKING:
    from interlock.runtime.attempt import ReadOp


class BatchFiles(Struct, frozen=True, kw_only=True):
    """The files that each branch of a batch changes, except those that may change any file.

    A reservation for one worktree counts if that is ``tree``, the folder of the target.
    """

    place: ReservedRepository
    tree: str
    merges: tuple[QueuedMerge, ...]
    changes: tuple[ChangedFiles, ...]

    def conflict(self, since: int = 0) -> ReadOp[MergeToBounce | None]:
        """The first branch that changes files which another agent reserved after a revision."""
        found = yield from conflicts_inside(self.place, self.changes, self.tree, since)
        for each, overlaps in zip(self.merges, found, strict=True):
            if overlaps:
                return each, bounces.reserved_by(overlaps)
        return None


class ReservationComparison(Struct, frozen=True, kw_only=True):
    """The mark of the reservations that were compared, and a branch that conflicts with one.

    ``files`` are those of the batch, if git was asked for them: most often nothing is reserved.
    """

    revision: int
    files: BatchFiles | None = None
    found: MergeToBounce | None = None


class ReservationComparer:
    """Compares the branches of one target; its methods are generators for a driver."""

    def __init__(self, repository: MergeRepository, target: str) -> None:
        self._repository = repository
        self._target = target

    def compare(
        self, waiting: Sequence[QueuedMerge], refs: TargetRefs
    ) -> Op[ReservationComparison]:
        """Compare the files of these branches with the reservations of this moment."""
        place: ReservedRepository = yield InThread(partial(find, self._repository.folder))
        page, mark = Range(keys.reserved(place.name), limit=1), keys.reserved_mark(place.name)
        snapshot: Snapshot = yield Read(page, mark)
        revision = revision_of(snapshot[mark])
        if not snapshot.ranges[page]:
            return ReservationComparison(revision=revision)
        files = yield from self.files(waiting, refs)
        if not isinstance(files, BatchFiles):
            return ReservationComparison(revision=revision, found=files)
        found = yield from outside(files.conflict())
        return ReservationComparison(revision=revision, files=files, found=found)

    def files(
        self, waiting: Sequence[QueuedMerge], refs: TargetRefs
    ) -> Op[BatchFiles | MergeToBounce]:
        """The files of these branches, or a branch whose files cannot be compared."""
        place: ReservedRepository = yield InThread(partial(find, self._repository.folder))
        merges = tuple([each for each in waiting if not each.merge.override])
        changes: list[ChangedFiles] = []
        for each in merges:
            names: tuple[str, ...] | None = yield InThread(
                partial(self._repository.changed_files, refs.base, each.merge.commit)
            )
            if names is None:
                return each, bounces.in_conflict(self._target, MergedTree(unrelated=True))
            try:
                changes.append(ChangedFiles(each.merge.by, exact_paths(place, names)))
            except (BadInput, TooLarge) as error:  # about its files: the other branches go on
                said = f"its files cannot be compared with reservations: {error}"
                return each, bounce("failed", said)
        tree = refs.checkout or self._repository.common()
        return BatchFiles(place=place, tree=tree, merges=merges, changes=tuple(changes))
