"""The server of a merge queue: one round after the other, while it holds the lock of the target.

A round looks at git, concludes what the target contains, and tries the next batch.  ``merge.py``
has the theory.  Every change in the store is one commit that checks the token of the lock; every
change in git is one that may be repeated, or compares before it moves.  So the server may be killed
at any step, and the next round of any server continues from what git and the store say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, Lost
from interlock.nouns.grants.held_grant import HeldPools, take
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.merges import merge as core
from interlock.nouns.merges.batch import BatchMerger, ServerTerm
from interlock.nouns.merges.bounces import missing
from interlock.nouns.merges.checking import GuardStopped, allowed_guards
from interlock.nouns.merges.endings import MergeEnd, MergeEndings, RoundResult, ServeOptions
from interlock.nouns.merges.git_process import GitFailed
from interlock.nouns.merges.guard_folder import GuardFolder
from interlock.nouns.merges.merge import MergeTarget
from interlock.nouns.merges.repository import MergeRepository, TargetRefs
from interlock.nouns.merges.service import MergeService, QueueState, lock_name, read_queue
from interlock.steps import InThread, NextChanges, Op, OpenWatch

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.runtime.identity import Actor

T = TypeVar("T")

IDLE = 1.0
"""Seconds at most until an idle server notices that it lost its lock."""
HELD = 5.0
"""Seconds until a server that is kept from merging looks again."""


class MergeServer:
    """Serves one target; its methods are generators for a driver."""

    def __init__(
        self,
        context: Context,
        repository: MergeRepository,
        options: ServeOptions,
        say: Callable[[str], None],
        told: Callable[[MergeEnd], None],
    ) -> None:
        self._context = context
        self._runner = context.runner
        self._service = MergeService(context.runner)
        self._repository = repository
        self._options = options
        self._name, self._queue = options.target, options.queue
        self._say = say
        self._endings = MergeEndings(self._service, repository, options, say, told)
        self._batches = BatchMerger(self._service, repository, options, self._endings, say)

    def serve(self) -> Op[core.ServeOutcome]:
        """Serve until the driver is interrupted, or nothing is left to do.

        A store that does not answer is waited for, unless the queue is only to be drained.
        """
        yield from allowed_guards(self._options.guard.guards)
        if self._options.drain:
            return (yield from self._serve())
        outage = self._context.outage(f"the merge queue of {foreign(self._name)}")
        return (yield from outage.through(lambda _left: self._serve(), validate.FOREVER))

    def _serve(self) -> Op[core.ServeOutcome]:
        while True:
            held = yield from self._take()
            if last := (yield from _then(self._until_lost(held), held.end)):
                return self._outcome(last)
            self._say(
                f"the lock of {foreign(self._name)} was lost, or its guard stopped; beginning again"
            )

    def _outcome(self, last: RoundResult) -> core.ServeOutcome:
        endings = self._endings
        done = {"merged": endings.merged, "bounced": endings.bounced}
        if last == "held":
            return core.MergesHeld(target=self._name, reason=endings.held, **done)
        return core.MergesServed(target=self._name, **done)

    def _until_lost(self, held: HeldPools) -> Op[RoundResult | None]:
        """Serve with the lock until the end, as the last round says; None if that was lost."""
        try:
            return (yield from self._serve_with(held))
        except (Lost, GuardStopped):
            return None

    def _take(self) -> Op[HeldPools]:
        wait = 0.0 if self._options.drain else validate.FOREVER
        target = LockTarget(lock_name(self._queue))
        terms = GrantTerms(wait=wait, metadata={"guard": self._options.guard.text})
        held = yield from take(self._context, target, self._batches.stop_guard, terms)
        if self._context.client is not None:
            self._context.client.keep()
        return held

    def _serve_with(self, held: HeldPools) -> Op[RoundResult]:
        """Round after round, with the lock."""
        options, repository = self._options, self._repository
        identity = self._context.me().actor
        actor = replace(identity, given=(held.proof,))
        token = held.grant.token or 0
        fence = "" if options.remote else (yield InThread(partial(self._fence, token)))
        folder: GuardFolder = yield InThread(partial(GuardFolder, repository, self._name, token))
        opening = MergeTarget(
            server=identity.agent,
            guard=options.guard.text,
            remote=options.remote,
            since=self._runner.clock.wall(),
        )
        yield from self._endings.own(actor, self._service.open_target(actor, self._queue, opening))
        yield from self._adopt(actor)
        yield InThread(folder.remove_others)
        term = ServerTerm(actor=actor, token=token, fence=fence, folder=folder)
        return (yield from _then(self._rounds(held, term), folder.removing))

    def _adopt(self, actor: Actor) -> Op[None]:
        """Take the branches of this repository out of the queue of an earlier version."""
        for each in (yield from read_queue(self._name)).waiting:
            if (yield InThread(partial(self._repository.has, each.merge.commit))):
                adopting = self._service.adopt(actor, each, self._options.repository)
                yield from self._endings.own(actor, adopting)

    def _rounds(self, held: HeldPools, term: ServerTerm) -> Op[RoundResult]:
        while True:
            held.raise_if_lost()
            queue = yield from read_queue(self._queue)
            done: RoundResult = yield from self._round(term, queue)
            if done == "progress":
                continue
            if self._options.drain:
                return done
            yield from self._idle(held, queue.revision, IDLE if done == "empty" else HELD)

    def _fence(self, token: int) -> str:
        try:
            return self._repository.fence(self._name, token)
        except GitFailed as failed:
            raise BadInput(f"{self._name} cannot be served here: {failed}; check that") from None

    def _idle(self, held: HeldPools, after: int, most: float) -> Op[None]:
        """Sleep until the queue changes; the lock may be lost in that time."""
        clock = self._runner.clock
        ends = clock.monotonic() + most if most > IDLE else validate.FOREVER
        watch = yield OpenWatch(keys.merge_waiting(self._queue), after)
        try:
            while not held.lost() and clock.monotonic() < ends:
                if (yield NextChanges(watch, min(IDLE, max(ends - clock.monotonic(), 0.0)))):
                    return
        finally:
            watch.close()

    # A round.

    def _round(self, term: ServerTerm, queue: QueueState) -> Op[RoundResult]:
        try:
            if queue.waiting or queue.target.attempt is not None:
                return (yield from self._try(term, queue))
            yield from self._endings.clean_up(queue)
        except GitFailed as failed:
            return (yield from self._endings.hold(term.actor, str(failed), moved=True))
        return "empty"

    def _try(self, term: ServerTerm, queue: QueueState) -> Op[RoundResult]:
        """Conclude what is merged, then try the next batch."""
        actor, endings = term.actor, self._endings
        refs: TargetRefs = yield InThread(partial(self._batches.refs, queue))
        if not refs.base:
            where = f"at {foreign(self._options.remote)}" if self._options.remote else "here"
            said = (
                f"there is no branch {foreign(self._name)} {where}; create it, with a first commit"
            )
            return (yield from endings.hold(actor, said))
        if behind := (yield from endings.follow(queue.target.attempt, refs)):
            return (yield from endings.hold(actor, behind, moved=True))
        if done := (yield from endings.conclude(actor, queue, refs)):
            left = tuple(each for each in queue.waiting if each not in done)
            if not left:
                return "progress"
            queue = replace(queue, waiting=left)
            refs = replace(refs, kept=refs.kept - {each.merge.commit for each in done})
        yield from endings.clean_up(queue, refs)
        lost = next((each for each in queue.waiting if each.merge.commit not in refs.kept), None)
        if lost is not None:
            return (yield from endings.bounce(actor, lost, missing(lost)))
        if not queue.waiting:
            return "empty"
        return (yield from self._batches.run(term, queue, refs))


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
