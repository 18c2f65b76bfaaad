"""One batch of a merge queue: its branches are merged one on the other, tested, and landed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.safe_text import foreign
from interlock.errors import Lost
from interlock.nouns.merges import bounces, rules
from interlock.nouns.merges.bounces import bounce, named
from interlock.nouns.merges.checking import CandidateVerdict
from interlock.nouns.merges.commits import CommitWriter
from interlock.nouns.merges.endings import MergeEndings, RoundResult, ServeOptions
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.guard_folder import GuardFolder
from interlock.nouns.merges.merge import MergeAttempt
from interlock.nouns.merges.repository import MergeRepository, TargetRefs
from interlock.nouns.merges.reserved_files import (
    BatchFiles,
    ReservationComparer,
    ReservationComparison,
)
from interlock.nouns.merges.rules import Bounce, PrefixSearch, QueuedMerge
from interlock.nouns.merges.service import MergeService, QueueState, read_queue
from interlock.runtime.processes.supervised import Supervision
from interlock.steps import InThread, Op

if TYPE_CHECKING:
    from interlock.runtime.identity import Actor

T = TypeVar("T")


class MergeBatch(Struct, frozen=True, kw_only=True):
    """Merges one on the other: ``tips[n]`` has the first n+1; or why the first cannot be merged."""

    merges: tuple[QueuedMerge, ...]
    tips: tuple[str, ...]
    bounce: Bounce | None = None


class ServerTerm(Struct, frozen=True, kw_only=True):
    """One server while it holds the lock: its actor, which is given the lock, and its token.

    ``fence`` is what git has to find before it moves a local target.
    """

    actor: Actor
    token: int
    fence: str
    folder: GuardFolder


class TargetMove(Struct, frozen=True, kw_only=True):
    """Why git did not move the target; or why the folder that has it did not follow."""

    refused: str = ""
    left_behind: str = ""


class BatchMerger:
    """Tries batches of one target; its methods are generators for a driver."""

    def __init__(
        self,
        service: MergeService,
        repository: MergeRepository,
        options: ServeOptions,
        endings: MergeEndings,
        say: Callable[[str], None],
    ) -> None:
        self._service = service
        self._repository = repository
        self._options = options
        self._name, self._queue = options.target, options.queue
        self._endings = endings
        self._reservations = ReservationComparer(repository, options.target)
        self._say = say
        self._supervision = Supervision()

    def stop_guard(self) -> None:
        """End the guard that runs: the lock is lost, so its verdict counts for nothing."""
        self._supervision.stop()

    def refs(self, queue: QueueState) -> TargetRefs:
        """The refs of git; commits that it has and does not keep are kept from here on."""
        remote, wanted = self._options.remote, {each.merge.commit for each in queue.waiting}
        branches = [each.merge.branch for each in queue.waiting]
        refs = self._repository.refs(self._name, remote, branches)
        unkept = [each for each in wanted - refs.kept if self._repository.has(each)]
        for commit in unkept:
            self._repository.keep(commit)
        if not unkept:
            return refs
        return self._repository.refs(self._name, remote, branches, fetch=False)

    def run(self, term: ServerTerm, queue: QueueState, refs: TargetRefs) -> Op[RoundResult]:
        """Try the first branches of a queue."""
        waiting = queue.waiting[: self._options.batch]
        if (found := (yield from self._reservations.compare(waiting, refs)).found) is not None:
            return (yield from self._endings.bounce(term.actor, *found))
        with Supervision() as self._supervision:
            if self._options.guard.command:  # it starts while the batch is built
                yield InThread(self._supervision.prepare)
            return (yield from self._run(term, waiting, refs))

    def _run(
        self, term: ServerTerm, waiting: Sequence[QueuedMerge], refs: TargetRefs
    ) -> Op[RoundResult]:
        batch: MergeBatch = yield InThread(partial(self._build_all, term, refs.base, waiting))
        if batch.bounce is not None:
            return (yield from self._endings.bounce(term.actor, batch.merges[0], batch.bounce))
        attempt = MergeAttempt(
            merges=tuple(each.id for each in batch.merges),
            base=refs.base,
            tip=batch.tips[-1],
            token=term.token,
            since=self._service.runner.clock.wall(),
        )
        beginning = self._service.begin(term.actor, self._queue, attempt)
        yield from self._endings.own(term.actor, beginning)
        return (yield from self._judge(term, refs, batch, attempt))

    # Building.

    def _build_all(self, term: ServerTerm, base: str, waiting: Sequence[QueuedMerge]) -> MergeBatch:
        """Merge the branches while the folder of the guard is made."""
        if not self._options.guard.text:
            return self._build(base, waiting)
        with term.folder.being_made(base):
            return self._build(base, waiting)

    def _build(self, base: str, waiting: Sequence[QueuedMerge]) -> MergeBatch:
        """Merge the branches one on the other; a conflict with an earlier one ends it.

        So does one that brings files of a store: it bounces when it is the first.
        """
        with CommitWriter(self._repository) as writer:
            built = self._build_with(writer, base, waiting)
        if not built.tips:
            return built
        good, files = self._repository.store_files(base, built.tips)
        if not good:
            said = bounces.with_store_files(files)
            return MergeBatch(merges=built.merges[:1], tips=(), bounce=said)
        return MergeBatch(merges=built.merges[:good], tips=built.tips[:good])

    def _build_with(
        self, writer: CommitWriter, base: str, waiting: Sequence[QueuedMerge]
    ) -> MergeBatch:
        tips: list[str] = []
        for each in waiting:
            onto = tips[-1] if tips else base
            merged = self._repository.merge(onto, each.merge.commit)
            if not merged.tree:
                if tips:  # it may fit when the branches before it are merged, or are not
                    break
                conflict = bounces.in_conflict(self._name, merged)
                return MergeBatch(merges=(each,), tips=(), bounce=conflict)
            parents = (onto, each.merge.commit)
            tips.append(writer.commit(merged.tree, parents, _message(each)))
        return MergeBatch(merges=tuple(waiting[: len(tips)]), tips=tuple(tips))

    # Testing.

    def _judge(
        self, term: ServerTerm, refs: TargetRefs, batch: MergeBatch, attempt: MergeAttempt
    ) -> Op[RoundResult]:
        """Find the longest prefix that passes, land it, and bounce the branch that fails."""
        search, verdict = PrefixSearch(size=len(batch.tips)), CandidateVerdict(passed=True)
        while number := search.next:
            if self._options.guard.text:
                self._say(f"testing {named([m.merge.branch for m in batch.merges[:number]])}")
            found = yield from self._check(term.folder, refs.base, batch.tips[number - 1])
            search = search.after(number, passed=found.passed)
            verdict = verdict if found.passed else found
        if search.passed:
            merges, tip = batch.merges[: search.passed], batch.tips[search.passed - 1]
            landing = replace(attempt, merges=tuple(each.id for each in merges), tip=tip)
            landed = yield from self._land(term, refs, landing, merges)
            if landed != "progress" or search.culprit is None:
                return landed
            queue = yield from read_queue(self._queue)
            now: TargetRefs = yield InThread(partial(self.refs, queue))
            yield from self._endings.conclude(term.actor, queue, now)
            if now.base != landing.tip:  # the failure was found on another target
                return "progress"
        if search.culprit is None:
            return "progress"
        before = batch.tips[search.culprit - 1] if search.culprit else refs.base
        reason = yield from self._reason(term.folder, refs.base, before, verdict)
        culprit = batch.merges[search.culprit]
        return (yield from self._endings.bounce(term.actor, culprit, bounce("failed", reason)))

    def _reason(
        self, folder: GuardFolder, base: str, before: str, verdict: CandidateVerdict
    ) -> Op[str]:
        """Why a branch fails, after a look at the commit ``before`` it.

        GitFailed if that one cannot be checked out, either: then no branch is to blame.
        """
        if verdict.untested:
            yield InThread(partial(folder.check_out, before))
        elif before == base and not (yield from self._check(folder, base, base)).passed:
            return (
                f"{foreign(self._name)} itself does not pass, also without this branch:"
                f" {verdict.reason}"
            )
        return verdict.reason

    def _check(self, folder: GuardFolder, base: str, commit: str) -> Op[CandidateVerdict]:
        """Run the guard on a commit; after a failure a second time."""
        guard, verdict = self._options.guard, CandidateVerdict(passed=True)
        if not guard.text:
            return verdict
        about = {
            "INTERLOCK_MERGE_TARGET": self._name,
            "INTERLOCK_MERGE_BASE": base,
            "INTERLOCK_MERGE_COMMIT": commit,
        }
        for _ in range(2):
            try:
                yield InThread(partial(folder.check_out, commit))
            except GitFailed as failed:  # a submodule that cannot be had, say
                said = f"it cannot be checked out: {failed}"
                return CandidateVerdict(passed=False, reason=said, untested=True)
            runner = self._service.runner
            verdict = yield from guard.check(runner, folder.path, about, self._supervision)
            if verdict.passed:
                break
        return verdict

    # Landing.

    def _land(
        self,
        term: ServerTerm,
        refs: TargetRefs,
        landing: MergeAttempt,
        merges: Sequence[QueuedMerge],
    ) -> Op[RoundResult]:
        """Move the target, from the commit that was tested on to the one that passed.

        Files may have been reserved during the test, and until the commit that says it lands.
        """
        actor, endings, name = term.actor, self._endings, self._name
        compared = yield from self._reservations.compare(merges, refs)
        if compared.found is not None:
            return (yield from endings.bounce(actor, *compared.found))
        checkout, unsafe = yield from self._checkout(landing)
        if unsafe:
            return (yield from endings.hold(actor, bounces.overwrites(name, checkout, unsafe)))
        result = yield from self._say_landing(term, refs, landing, merges, compared)
        if isinstance(result, tuple):
            return (yield from endings.bounce(actor, *result))
        if result != "landing":
            return "progress"
        return (yield from self._move_target(term, landing, merges, checkout))

    def _move_target(
        self,
        term: ServerTerm,
        landing: MergeAttempt,
        merges: Sequence[QueuedMerge],
        checkout: str,
    ) -> Op[RoundResult]:
        moving = partial(self._move, landing, term.fence, checkout)
        if self._options.remote:
            moving = partial(self._push, landing)
        moved: TargetMove = yield InThread(moving)
        if moved.refused:
            return (yield from self._not_moved(term, landing, merges, moved.refused))
        if moved.left_behind:
            said = bounces.left_behind(self._name, checkout, landing, moved.left_behind)
            return (yield from self._endings.hold(term.actor, said, moved=True))
        return "progress"

    def _say_landing(
        self,
        term: ServerTerm,
        refs: TargetRefs,
        landing: MergeAttempt,
        merges: Sequence[QueuedMerge],
        compared: ReservationComparison,
    ) -> Op[rules.LandResult]:
        """Commit that the batch lands; a second time if that needs the files of its branches."""
        actor, land = term.actor, partial(self._service.land, term.actor, self._queue, landing)
        result: rules.LandResult = yield from self._endings.own(actor, land(merges, compared))
        if result != "uncompared":
            return result
        files = yield from self._reservations.files(merges, refs)
        if not isinstance(files, BatchFiles):
            return files
        compared = replace(compared, files=files)
        return (yield from self._endings.own(actor, land(merges, compared)))

    def _checkout(self, landing: MergeAttempt) -> Op[tuple[str, str]]:
        """The folder that has the target now, as a test takes long, and why it could not follow."""
        if self._options.remote:
            return "", ""
        repository = self._repository
        now: TargetRefs = yield InThread(partial(repository.refs, self._name))
        if not (folder := now.checkout):
            return "", ""
        trying = partial(repository.unsafe_to_follow, folder, landing.base, landing.tip)
        return folder, (yield InThread(trying))

    def _push(self, landing: MergeAttempt) -> TargetMove:
        remote, base, tip = self._options.remote, landing.base, landing.tip
        return TargetMove(refused=self._repository.push(self._name, remote, base, tip))

    def _move(self, landing: MergeAttempt, fence: str, checkout: str) -> TargetMove:
        """Move a local target, and let its folder follow: both, or neither."""
        return _to_the_end(partial(self._move_and_follow, landing, fence, checkout))

    def _move_and_follow(self, landing: MergeAttempt, fence: str, checkout: str) -> TargetMove:
        repository, base, tip = self._repository, landing.base, landing.tip
        if refused := repository.move(self._name, base, tip, fence):
            return TargetMove(refused=refused)
        return TargetMove(left_behind=repository.follow(checkout, base, tip) if checkout else "")

    def _not_moved(
        self,
        term: ServerTerm,
        landing: MergeAttempt,
        merges: Sequence[QueuedMerge],
        error: str,
    ) -> Op[RoundResult]:
        """What to do after git refused to move the target, or did not say that it did."""
        name, remote = self._name, self._options.remote
        if not remote and (yield InThread(partial(self._repository.is_fenced, name, term.fence))):
            raise Lost(f"another server has begun to serve {name}; start this one again")
        now: TargetRefs = yield InThread(partial(self._repository.refs, name, remote))
        contained = all(each.merge.commit in now.contained for each in merges)
        result = rules.after_move(landing.tip, landing.base, now.base, error, contained=contained)
        if result == "held":
            return (
                yield from self._endings.hold(
                    term.actor, f"{foreign(name)} cannot be moved: {error}"
                )
            )
        self._say(f"{name} moved; building again")
        return "progress"


def _to_the_end(work: Callable[[], T]) -> T:
    """Carry out work that a signal must not cut in two: it is raised when the work is done."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _message(found: QueuedMerge) -> str:
    merge = found.merge
    return (
        f"Merge {merge.branch} into {merge.into}\n\n"
        f"Interlock-Merge: {found.id}\nInterlock-Author: {merge.by}\n"
    )
