"""The ends of merges: the server concludes, bounces and holds them, and cleans up after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct

from interlock.core import keys
from interlock.core.outcomes import GivenFenced
from interlock.errors import Lost
from interlock.nouns.merges import bounces
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.checking import MergeGuard
from interlock.nouns.merges.merge import MergeAttempt
from interlock.nouns.merges.repository import MergeRepository, TargetRefs
from interlock.nouns.merges.rules import Bounce, QueuedMerge
from interlock.nouns.merges.service import MergeService, QueueState, decode_merge, read_in_use
from interlock.runtime.given import fenced
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, readable
from interlock.steps import InThread, Op

T = TypeVar("T")

MergeEnd: TypeAlias = core.MergeDone | core.MergeBounced
RoundResult: TypeAlias = Literal["progress", "empty", "held"]


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How a target is served.

    ``remote`` is where the target is, if it is not a local branch.  With ``drain`` the server ends
    when nothing waits, or nothing can be merged.
    """

    target: str
    repository: str
    guard: MergeGuard
    remote: str = ""
    batch: int = core.BATCH
    keep_branches: bool = False
    drain: bool = False

    @property
    def queue(self) -> str:
        """The queue of the target."""
        return core.queue_name(self.repository, self.target)


class MergeEndings:
    """The ends of the merges of one target, in the store and in git; generators for a driver."""

    def __init__(
        self,
        service: MergeService,
        repository: MergeRepository,
        options: ServeOptions,
        say: Callable[[str], None],
        told: Callable[[MergeEnd], None],
    ) -> None:
        self._service = service
        self._repository = repository
        self._options = options
        self._name, self._queue = options.target, options.queue
        self._say = say
        self._told = told
        self._strange: set[str] = set()
        """Kept commits of which the store knows no merge: their submit may be under way."""
        self._clean = False
        """Whether the last step took away all kept commits that git had."""
        self.merged = self.bounced = 0
        self.held = ""
        """Why nothing could be merged when that was last tried and failed."""

    def own(self, actor: Actor, op: Op[T]) -> Op[T]:
        """A commit of the server; Lost if its lock has gone to another one."""
        outcome = yield from fenced(op, self._service.runner, actor)
        if isinstance(outcome, GivenFenced):
            raise Lost(f"{outcome.given} is no longer ours; start the server again")
        return outcome

    def follow(self, attempt: MergeAttempt | None, refs: TargetRefs) -> Op[str]:
        """Let the folder of a target follow that an earlier server has moved; returns why not."""
        if attempt is None or not attempt.landing or refs.base != attempt.tip or not refs.checkout:
            return ""
        following = partial(self._repository.follow, refs.checkout, attempt.base, attempt.tip)
        error: str = yield InThread(following)
        return bounces.left_behind(self._name, refs.checkout, attempt, error) if error else ""

    def conclude(self, actor: Actor, queue: QueueState, refs: TargetRefs) -> Op[list[QueuedMerge]]:
        """End the merges that the target contains; returns them."""
        done = [each for each in queue.waiting if each.merge.commit in refs.contained]
        if not done:
            return []
        yield from self.own(actor, self._service.conclude(actor, self._queue, done, refs.base))
        for each in done:
            self.merged += 1
            self._told(_done(each, refs.base))
        gone = frozenset(each.merge.commit for each in done)
        yield from self._forget(refs, done, gone)
        self._clean = refs.kept <= gone
        return done

    def bounce(self, actor: Actor, found: QueuedMerge, why: Bounce) -> Op[RoundResult]:
        """Take a branch out of the queue that cannot be merged, and notify its author."""
        bouncing = self._service.bounce(actor, self._queue, found, why)
        if (yield from self.own(actor, bouncing)):
            self.bounced += 1
            merge = found.merge
            self._told(
                core.MergeBounced(
                    merge=found.id,
                    branch=merge.branch,
                    into=merge.into,
                    cause=why.cause,
                    reason=why.reason,
                    files=why.files,
                )
            )
            yield from self._forget(TargetRefs(base=""), (), (merge.commit,))
        return "progress"

    def hold(self, actor: Actor, reason: str, *, moved: bool = False) -> Op[RoundResult]:
        """Say why nothing can be merged now; ``moved`` if the target may have moved already."""
        self.held = reason
        holding = self._service.hold(actor, self._queue, reason, moved=moved)
        if (yield from self.own(actor, holding)) or self._options.drain:
            self._say(f"nothing can be merged: {reason}")
        return "held"

    def clean_up(self, queue: QueueState, refs: TargetRefs | None = None) -> Op[None]:
        """Delete the refs that an earlier server, a cancel or another submit has left in git."""
        waiting = {each.merge.commit for each in queue.waiting}
        self._strange -= waiting
        clean, self._clean = self._clean, False
        if refs is None:
            if clean:
                return
            refs = yield InThread(partial(self._refs, ()))
        left = refs.kept - waiting - self._strange
        if not left:
            return
        known: list[QueuedMerge] = []
        for item in (yield from every(keys.MERGES)):
            merge = readable(decode_merge, item)
            if merge is not None and not left.isdisjoint((merge.commit, *merge.replaced)):
                known.append(QueuedMerge(id=keys.merge_of(item.key), merge=merge))
        over = {each.merge.commit for each in known} | {
            commit for each in known for commit in each.merge.replaced
        }
        self._strange |= left - over
        merged = [
            each
            for each in known
            if each.merge.state == "merged" and each.merge.queue == self._queue
        ]
        now: TargetRefs = yield InThread(
            partial(self._refs, [each.merge.branch for each in merged])
        )
        yield from self._forget(now, merged, left & over)

    def _refs(self, branches: Sequence[str]) -> TargetRefs:
        remote = self._options.remote
        return self._repository.refs(self._name, remote, branches, fetch=False)

    def _forget(
        self, refs: TargetRefs, merged: Sequence[QueuedMerge], commits: Iterable[str]
    ) -> Op[None]:
        """Delete branches that are merged, and stop keeping commits, unless another merge needs it.

        Another merge may wait for the same commit; a branch may wait for another target, or be a
        target itself.
        """
        used = yield from read_in_use(self._options.repository)
        deleted = {
            each.merge.branch: each.merge.commit
            for each in merged
            if not self._options.keep_branches and each.merge.branch not in used.branches
        }
        deleted.pop(self._name, None)
        yield InThread(partial(self._delete, refs, deleted, set(commits) - used.commits))

    def _delete(self, refs: TargetRefs, branches: dict[str, str], commits: set[str]) -> None:
        here = {
            name: commit
            for name, commit in branches.items()
            if refs.branches.get(name) == commit and name not in refs.checked_out
        }
        self._repository.forget(here, commits)
        if self._options.remote:
            self._repository.forget_remote(self._options.remote, branches, commits)


def _done(found: QueuedMerge, tip: str) -> core.MergeDone:
    merge = found.merge
    return core.MergeDone(
        merge=found.id,
        branch=merge.branch,
        into=merge.into,
        commit=merge.commit,
        merged_as=tip,
    )
