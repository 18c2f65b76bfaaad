"""The server of a merge queue: one round after the other, while it holds the lock of the target.

A round looks at git, concludes what the target contains, and tries the next batch.  ``merge.py``
has the theory.  Every change in the store is one commit that checks the token of the lock; every
change in git is one that may be repeated, or compares before it moves.  So the server may be killed
at any step, and the next round of any server continues from what git and the store say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.errors import Lost
from interlock.nouns.grants.held_grant import HeldPools, take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.merges import merge as core
from interlock.nouns.merges import rules
from interlock.nouns.merges.checking import GuardStopped, Verdict, allowed_guards
from interlock.nouns.merges.endings import (
    Ended,
    MergeEndings,
    Round,
    ServeOptions,
    in_conflict,
    missing,
    named,
    overwrites,
    reserved_by,
)
from interlock.nouns.merges.merge import Attempt, MergeTarget
from interlock.nouns.merges.repository import (
    GitFailed,
    GuardFolder,
    Repository,
    Seen,
)
from interlock.nouns.merges.rules import Bounce, PrefixSearch, QueuedMerge
from interlock.nouns.merges.service import MergeService, QueueState, lock_name, read_queue
from interlock.nouns.reservations.repository import find
from interlock.nouns.reservations.views import conflicts
from interlock.runtime.identity import Actor
from interlock.runtime.processes.supervised import Supervision
from interlock.steps import InThread, NextChanges, Op, OpenWatch, Read
from interlock.store import Range

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.reservations.repository import Repository as Reserving

T = TypeVar("T")

IDLE = 1.0
"""Seconds at most until an idle server notices that it lost its lock."""
HELD = 5.0
"""Seconds until a server that is kept from merging looks again."""


class Batch(Struct, frozen=True, kw_only=True):
    """Merges one on the other: ``tips[n]`` has the first n+1; ``conflict`` if the first has one."""

    merges: tuple[QueuedMerge, ...]
    tips: tuple[str, ...]
    conflict: Bounce | None = None


class Tenure(Struct, frozen=True, kw_only=True):
    """One server while it holds the lock: its actor, which is given the lock, and its token.

    ``fence`` is what git has to find before it moves a local target.
    """

    actor: Actor
    token: int
    fence: str
    folder: GuardFolder


class MergeServer:
    """Serves one target; its methods are generators for a driver."""

    def __init__(
        self,
        context: Context,
        repository: Repository,
        options: ServeOptions,
        say: Callable[[str], None],
        told: Callable[[Ended], None],
    ) -> None:
        self._context = context
        self._runner = context.runner
        self._service = MergeService(context.runner)
        self._repository = repository
        self._options = options
        self._name = options.target
        self._say = say
        self._endings = MergeEndings(self._service, repository, options, say, told)
        self._supervision = Supervision()

    def serve(self) -> Op[core.MergesServed]:
        """Serve until the driver is interrupted, or nothing is left to do.

        A store that does not answer is waited for, unless the queue is only to be drained.
        """
        yield from allowed_guards(self._options.guard.guards)
        if self._options.drain:
            return (yield from self._serve())
        outage = self._context.outage(f"the merge queue of {self._name}")
        return (yield from outage.through(lambda _left: self._serve(), validate.FOREVER))

    def _serve(self) -> Op[core.MergesServed]:
        while True:
            held = yield from self._take()
            if (yield from _then(self._until_lost(held), held.end)):
                endings = self._endings
                return core.MergesServed(
                    target=self._name, merged=endings.merged, bounced=endings.bounced
                )
            self._say(f"the lock of {self._name} was lost, or its guard stopped; beginning again")

    def _until_lost(self, held: HeldPools) -> Op[bool]:
        """Serve with the lock; False if that was lost."""
        try:
            yield from self._serve_with(held)
        except (Lost, GuardStopped):
            return False
        return True

    def _take(self) -> Op[HeldPools]:
        wait = 0.0 if self._options.drain else validate.FOREVER
        target = LockTarget(lock_name(self._name))
        terms = GrantTerms(wait=wait, metadata={"guard": self._options.guard.text})
        held = yield from take(self._context, target, self._stop_guard, terms)
        if self._context.client is not None:
            self._context.client.keep()
        return held

    def _stop_guard(self) -> None:
        """End the guard that runs: the lock is lost, so its verdict counts for nothing."""
        self._supervision.stop()

    def _serve_with(self, held: HeldPools) -> Op[None]:
        """Round after round, with the lock."""
        options, repository = self._options, self._repository
        identity = self._context.me().actor
        actor = replace(identity, given=(held.proof,))
        token = held.grant.token or 0
        fence = "" if options.remote else (yield InThread(partial(self._fence, token)))
        folder: GuardFolder = yield InThread(partial(repository.guard_folder, self._name, token))
        opening = MergeTarget(
            server=identity.agent,
            guard=options.guard.text,
            remote=options.remote,
            since=self._runner.clock.wall(),
        )
        yield from self._endings.own(actor, self._service.open_target(actor, self._name, opening))
        yield InThread(folder.remove_others)
        tenure = Tenure(actor=actor, token=token, fence=fence, folder=folder)
        yield from _then(self._rounds(held, tenure), folder.removing)

    def _rounds(self, held: HeldPools, tenure: Tenure) -> Op[None]:
        while True:
            held.raise_if_lost()
            queue = yield from read_queue(self._name)
            done: Round = yield from self._round(tenure, queue)
            if done == "progress":
                continue
            if self._options.drain:
                return
            yield from self._idle(held, queue.revision, IDLE if done == "empty" else HELD)

    def _fence(self, token: int) -> str:
        return self._repository.fence(self._name, token)

    def _idle(self, held: HeldPools, after: int, most: float) -> Op[None]:
        """Sleep until the queue changes; the lock may be lost in that time."""
        clock = self._runner.clock
        ends = clock.monotonic() + most if most > IDLE else validate.FOREVER
        watch = yield OpenWatch(keys.merge_waiting(self._name), after)
        try:
            while not held.lost() and clock.monotonic() < ends:
                if (yield NextChanges(watch, min(IDLE, max(ends - clock.monotonic(), 0.0)))):
                    return
        finally:
            watch.close()

    # A round.

    def _round(self, tenure: Tenure, queue: QueueState) -> Op[Round]:
        try:
            if queue.waiting or queue.target.attempt is not None:
                return (yield from self._try(tenure, queue))
            yield from self._endings.clean_up(queue)
        except GitFailed as failed:
            return (yield from self._endings.hold(tenure.actor, str(failed)))
        return "empty"

    def _try(self, tenure: Tenure, queue: QueueState) -> Op[Round]:
        """Conclude what is merged, then try the next batch."""
        actor = tenure.actor
        seen: Seen = yield InThread(partial(self._look, queue))
        if not seen.base:
            where = f"at {self._options.remote}" if self._options.remote else "here"
            said = f"there is no branch {self._name} {where}; create it, with a first commit"
            return (yield from self._endings.hold(actor, said))
        if done := (yield from self._endings.conclude(actor, queue, seen)):
            left = tuple(each for each in queue.waiting if each not in done)
            if not left:
                return "progress"
            queue = replace(queue, waiting=left)
            seen = replace(seen, kept=seen.kept - {each.merge.commit for each in done})
        yield from self._endings.clean_up(queue, seen)
        lost = next((each for each in queue.waiting if each.merge.commit not in seen.kept), None)
        if lost is not None:
            return (yield from self._endings.bounce(actor, lost, missing(lost)))
        if not queue.waiting:
            return "empty"
        if (found := (yield from self._reserved(queue, seen))) is not None:
            return (yield from self._endings.bounce(actor, *found))
        return (yield from self._try_batch(tenure, queue, seen))

    def _reserved(self, queue: QueueState, seen: Seen) -> Op[tuple[QueuedMerge, Bounce] | None]:
        """The first branch of the next batch that changes files which another agent reserved."""
        place: Reserving = yield InThread(partial(find, self._repository.folder))
        page = Range(keys.reserved(place.name), limit=1)
        if not (yield Read(page)).ranges[page]:  # most often there are none
            return None
        for each in queue.waiting[: self._options.batch]:
            merge = each.merge
            if merge.override:
                continue
            files: tuple[str, ...] = yield InThread(
                partial(self._repository.changed_files, seen.base, merge.commit)
            )
            if overlaps := (yield from conflicts(place, files, merge.by)):
                return each, reserved_by(overlaps)
        return None

    def _try_batch(self, tenure: Tenure, queue: QueueState, seen: Seen) -> Op[Round]:
        with Supervision() as self._supervision:
            if self._options.guard.command:  # it starts while the batch is built
                yield InThread(self._supervision.prepare)
            return (yield from self._try_one_batch(tenure, queue, seen))

    def _try_one_batch(self, tenure: Tenure, queue: QueueState, seen: Seen) -> Op[Round]:
        batch: Batch = yield InThread(partial(self._build, seen.base, queue.waiting))
        if batch.conflict is not None:
            return (yield from self._endings.bounce(tenure.actor, batch.merges[0], batch.conflict))
        attempt = Attempt(
            merges=tuple(each.id for each in batch.merges),
            base=seen.base,
            tip=batch.tips[-1],
            token=tenure.token,
            since=self._runner.clock.wall(),
        )
        beginning = self._service.begin(tenure.actor, self._name, attempt)
        yield from self._endings.own(tenure.actor, beginning)
        return (yield from self._judge(tenure, seen, batch, attempt))

    def _look(self, queue: QueueState) -> Seen:
        """Look at git; commits that it has and does not keep are kept from here on."""
        options, wanted = self._options, {each.merge.commit for each in queue.waiting}
        branches = [each.merge.branch for each in queue.waiting]
        seen = self._repository.look(self._name, options.remote, branches)
        unkept = [each for each in wanted - seen.kept if self._repository.has(each)]
        for commit in unkept:
            self._repository.keep(commit)
        return self._repository.look(self._name, "", branches) if unkept else seen

    def _build(self, base: str, waiting: Sequence[QueuedMerge]) -> Batch:
        """Merge the first branches one on the other; a conflict with an earlier one ends it."""
        tips: list[str] = []
        for each in waiting[: self._options.batch]:
            onto = tips[-1] if tips else base
            merged = self._repository.merge(onto, each.merge.commit)
            if not merged.tree:
                if tips:  # it may fit when the branches before it are merged, or are not
                    break
                return Batch(merges=(each,), tips=(), conflict=in_conflict(self._name, merged))
            message = _message(each)
            parents = (onto, each.merge.commit)
            tips.append(self._repository.commit(merged.tree, parents, message))
        return Batch(merges=tuple(waiting[: len(tips)]), tips=tuple(tips))

    # Testing and landing.

    def _judge(self, tenure: Tenure, seen: Seen, batch: Batch, attempt: Attempt) -> Op[Round]:
        """Find the longest prefix that passes, land it, and bounce the branch that fails."""
        actor, folder = tenure.actor, tenure.folder
        search, verdict = PrefixSearch(size=len(batch.tips)), Verdict(passed=True)
        while number := search.next:
            if self._options.guard.text:
                self._say(f"testing {named([m.merge.branch for m in batch.merges[:number]])}")
            found = yield from self._check(folder, seen.base, batch.tips[number - 1])
            search = search.after(number, passed=found.passed)
            verdict = verdict if found.passed else found
        if search.passed:
            merges = batch.merges[: search.passed]
            landing = replace(
                attempt, merges=tuple(m.id for m in merges), tip=batch.tips[search.passed - 1]
            )
            landed = yield from self._land(tenure, seen, landing, merges)
            if landed != "progress" or search.culprit is None:
                return landed
            queue = yield from read_queue(self._name)
            now: Seen = yield InThread(partial(self._look, queue))
            yield from self._endings.conclude(actor, queue, now)
            if now.base != landing.tip:  # the failure was found on another target
                return "progress"
        if search.culprit is None:
            return "progress"
        reason = verdict.reason
        if search.culprit == 0:
            bare = yield from self._check(folder, seen.base, seen.base)
            if not bare.passed:
                reason = f"{self._name} itself does not pass, also without this branch: {reason}"
        why = Bounce(cause="failed", reason=reason)
        return (yield from self._endings.bounce(actor, batch.merges[search.culprit], why))

    def _check(self, folder: GuardFolder, base: str, commit: str) -> Op[Verdict]:
        """Run the guard on a commit; after a failure a second time."""
        guard, verdict = self._options.guard, Verdict(passed=True)
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
                verdict = Verdict(passed=False, reason=f"it cannot be checked out: {failed}")
                continue
            verdict = yield from guard.check(self._runner, folder.path, about, self._supervision)
            if verdict.passed:
                break
        return verdict

    def _land(
        self, tenure: Tenure, seen: Seen, landing: Attempt, merges: Sequence[QueuedMerge]
    ) -> Op[Round]:
        """Move the target, from the commit that was tested on to the one that passed."""
        actor = tenure.actor
        repository, name = self._repository, self._name
        if seen.checkout:
            unsafe: str = yield InThread(
                partial(repository.unsafe_to_follow, seen.checkout, landing.base, landing.tip)
            )
            if unsafe:
                return (
                    yield from self._endings.hold(actor, overwrites(name, seen.checkout, unsafe))
                )
        service = self._service
        if not (yield from self._endings.own(actor, service.land(actor, name, landing, merges))):
            return "progress"
        error: str = yield InThread(partial(self._move, landing, tenure.fence))
        if not error:
            return "progress"
        now: Seen = yield InThread(partial(repository.look, name, self._options.remote))
        contained = all(each.merge.commit in now.contained for each in merges)
        moved = rules.after_move(landing.tip, landing.base, now.base, error, contained=contained)
        if moved == "held":
            return (yield from self._endings.hold(actor, f"{name} cannot be moved: {error}"))
        self._say(f"{name} moved; building again")
        return "progress"

    def _move(self, landing: Attempt, fence: str) -> str:
        if remote := self._options.remote:
            return self._repository.push(self._name, remote, landing.base, landing.tip)
        return self._repository.move(self._name, landing.base, landing.tip, fence)


def _then(op: Op[T], cleanup: Callable[[], Op[object]]) -> Op[T]:
    """Carry out an operation and clean up; one that is dropped can take no further step."""
    try:
        outcome = yield from op
    except GeneratorExit:
        raise
    except BaseException:
        yield from cleanup()
        raise
    yield from cleanup()
    return outcome


def _message(found: QueuedMerge) -> str:
    merge = found.merge
    return (
        f"Merge {merge.branch} into {merge.into}\n\n"
        f"Interlock-Merge: {found.id}\nInterlock-Author: {merge.by}\n"
    )
