"""The ends of merges: the server concludes, bounces and holds them, and cleans up after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.outcomes import GivenFenced
from interlock.errors import Lost
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.checking import MergeGuard
from interlock.nouns.merges.repository import MergedTree, Repository, Seen
from interlock.nouns.merges.rules import Bounce, QueuedMerge
from interlock.nouns.merges.service import MergeService, QueueState, decode_merge
from interlock.runtime.given import fenced
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, readable
from interlock.steps import InThread, Op

if TYPE_CHECKING:
    from interlock.nouns.reservations.reservation import Overlap

T = TypeVar("T")

Ended: TypeAlias = core.MergeDone | core.MergeBounced
Round: TypeAlias = Literal["progress", "empty", "held"]


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How a target is served.

    ``remote`` is where the target is, if it is not a local branch.  With ``drain`` the server ends
    when nothing waits, or nothing can be merged.
    """

    target: str
    guard: MergeGuard
    remote: str = ""
    batch: int = core.BATCH
    keep_branches: bool = False
    drain: bool = False


class MergeEndings:
    """The ends of the merges of one target, in the store and in git; generators for a driver."""

    def __init__(
        self,
        service: MergeService,
        repository: Repository,
        options: ServeOptions,
        say: Callable[[str], None],
        told: Callable[[Ended], None],
    ) -> None:
        self._service = service
        self._repository = repository
        self._options = options
        self._name = options.target
        self._say = say
        self._told = told
        self._strange: set[str] = set()
        """Kept commits of which the store knows no merge: their submit may be under way."""
        self.merged = self.bounced = 0

    def own(self, actor: Actor, op: Op[T]) -> Op[T]:
        """A commit of the server; Lost if its lock has gone to another one."""
        outcome = yield from fenced(op, self._service.runner, actor)
        if isinstance(outcome, GivenFenced):
            raise Lost(f"{outcome.given} is no longer ours; start the server again")
        return outcome

    def conclude(self, actor: Actor, queue: QueueState, seen: Seen) -> Op[list[QueuedMerge]]:
        """End the merges that the target contains, after its folder has followed; returns them."""
        attempt, name = queue.target.attempt, self._name
        if attempt is not None and attempt.landing and seen.base == attempt.tip and seen.checkout:
            follow = partial(self._repository.follow, seen.checkout, attempt.base, attempt.tip)
            if error := (yield InThread(follow)):
                self._say(f"{overwrites(name, seen.checkout, error)}; {name} itself has moved")
        done = [each for each in queue.waiting if each.merge.commit in seen.contained]
        if not done:
            return []
        yield from self.own(actor, self._service.conclude(actor, name, done, seen.base))
        for each in done:
            self.merged += 1
            self._told(_done(each, seen.base))
        yield InThread(partial(self._forget, seen, done, done))
        return done

    def bounce(self, actor: Actor, found: QueuedMerge, why: Bounce) -> Op[Round]:
        """Take a branch out of the queue that cannot be merged, and notify its author."""
        bouncing = self._service.bounce(actor, self._name, found, why)
        if (yield from self.own(actor, bouncing)):
            self.bounced += 1
            merge = found.merge
            self._told(
                core.MergeBounced(
                    merge=found.id,
                    branch=merge.branch,
                    into=merge.into,
                    cause=why.cause,
                    reason=why.reason[: core.REASON],
                    files=why.files[: core.FILES],
                )
            )
            yield InThread(partial(self._forget, Seen(base=""), (), (found,)))
        return "progress"

    def hold(self, actor: Actor, reason: str) -> Op[Round]:
        """Say why nothing can be merged now."""
        if (yield from self.own(actor, self._service.hold(actor, self._name, reason))):
            self._say(f"nothing can be merged: {reason}")
        return "held"

    def clean_up(self, queue: QueueState, seen: Seen | None = None) -> Op[None]:
        """Delete the refs that an earlier server, or a cancelled merge, has left in git."""
        waiting = {each.merge.commit for each in queue.waiting}
        self._strange -= waiting
        if seen is None:
            seen = yield InThread(partial(self._repository.look, self._name))
        left = seen.kept - waiting - self._strange
        if not left:
            return
        ended: list[QueuedMerge] = []
        for item in (yield from every(keys.MERGES)):
            merge = readable(decode_merge, item)
            if merge is not None and merge.commit in left:
                ended.append(QueuedMerge(id=keys.merge_of(item.key), merge=merge))
        commits = {each.merge.commit for each in ended if each.merge.state != "waiting"}
        self._strange |= left - commits
        over = [each for each in ended if each.merge.commit in commits]
        merged = [each for each in over if each.merge.state == "merged"]
        names = [each.merge.branch for each in merged]
        now: Seen = yield InThread(partial(self._repository.look, self._name, "", names))
        yield InThread(partial(self._forget, now, merged, over))

    def _forget(
        self, seen: Seen, merged: Sequence[QueuedMerge], over: Sequence[QueuedMerge]
    ) -> None:
        """Delete the branches that are merged, and stop keeping the commits that are over."""
        options, commits = self._options, {each.merge.commit for each in over}
        deleted = {
            each.merge.branch: each.merge.commit
            for each in merged
            if not options.keep_branches and each.merge.branch != self._name
        }
        here = {
            name: commit
            for name, commit in deleted.items()
            if seen.branches.get(name) == commit and name not in seen.checked_out
        }
        self._repository.forget(here, commits)
        if options.remote:
            self._repository.forget_remote(options.remote, deleted, commits)


def _done(found: QueuedMerge, tip: str) -> core.MergeDone:
    merge = found.merge
    return core.MergeDone(
        merge=found.id,
        branch=merge.branch,
        into=merge.into,
        commit=merge.commit,
        merged_as=tip,
    )


def in_conflict(target: str, merged: MergedTree) -> Bounce:
    """A branch that git cannot merge, with its files."""
    files = merged.conflicts
    said = merged.reason or f"it conflicts with {target} in {named(files)}"
    return Bounce(
        cause="conflict",
        reason=f"{said}; rebase the branch onto {target}, and submit it again",
        files=files,
    )


def missing(found: QueuedMerge) -> Bounce:
    """A commit that the repository of the server does not have."""
    said = f"the repository of the server does not have commit {found.merge.commit[:12]}"
    return Bounce(
        cause="missing", reason=f"{said}; submit it from that repository, or with --remote NAME"
    )


def reserved_by(overlaps: Sequence[Overlap]) -> Bounce:
    """The holders of the files, and what to do."""
    said = [
        f"{each.witness} ({each.holder}{f': {each.reason}' if each.reason else ''})"
        for each in overlaps
    ]
    return Bounce(
        cause="reserved",
        reason=f"it changes files that others have reserved: {named(said)}; ask them, wait for"
        " them, or submit it with --override REASON",
        files=tuple(each.witness for each in overlaps),
    )


def overwrites(target: str, folder: str, error: str) -> str:
    """Why the folder of a target cannot follow."""
    return (
        f"{target} is checked out in {folder}, where the merge would overwrite changes ({error});"
        " commit, stash or remove them there"
    )


def named(names: Sequence[str]) -> str:
    """A few of these names."""
    few = ", ".join(names[:5])
    return f"{few} and {len(names) - 5} more" if len(names) > 5 else few  # noqa: PLR2004
