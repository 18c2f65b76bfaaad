"""The ends of claims in the loop of a blocking worker that are carried out together.

Where tasks are very short, the commit costs far more than the work.  So ``serve``, and a loop whose
user asked for it (``ahead``), claims some tasks ahead with one commit, works on them one after the
other, puts off their ends, and carries these out with the commit that claims the next ones.
``WORK`` bounds what that may delay: all tasks that are claimed together are to take no longer, by
what the last ones took, so it concerns tasks of a fraction of a millisecond only.  A kill in that
time leaves as many tasks that are claimed, and work that was done and not ended, which is done
again.

A loop that stays in a block, or after it, keeps no other waiting: after ``LONGEST`` another thread
ends what is put off, and releases the claims that were made ahead.  Any call of the loop's thread
ends what is put off first.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from interlock.errors import InterlockError
from interlock.steps import drive
from interlock.threads import background, going_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.client import Fleet
    from interlock.client_tasks import Claim
    from interlock.nouns.tasks.held_claim import HeldClaim
    from interlock.nouns.tasks.worker import WorkerLoop

LONGEST = 0.05
"""Seconds after which another thread ends what is put off, or twice that."""
WORK = 0.005
"""Seconds of work that a loop claims ahead, and after which it puts off no further end."""
MOST_AHEAD = 16
"""The most tasks that it claims with one commit, however many its user asks for."""


class PutOffEnd(NamedTuple):
    """A claim that is still to be ended, and the error of its block."""

    claim: Claim
    holding: HeldClaim
    error: BaseException | None


class PutOffEnds:
    """The claims of one loop that are still to be ended, in the order of their blocks.

    The thread of the loop calls this; ``end_alone`` and ``go_on_without`` may be called by any.
    """

    def __init__(self, fleet: Fleet, worker_loop: WorkerLoop, most: int) -> None:
        self.most = most
        """The most tasks that are claimed together."""
        self.together = False
        """Whether ends are put off, to be carried out together."""
        self._fleet = fleet
        self._worker_loop = worker_loop
        self._waiting: list[PutOffEnd] = []
        self.ending = threading.RLock()
        """Held while claims are ended, since any thread may have to do it, and ``close`` waits."""
        self._thread = 0
        self._late_end: LateEnd | None = None
        self._clock = fleet.context.runner.clock.monotonic
        self._began = 0.0
        """When the work began whose ends are put off."""
        self._ahead = 1
        """How many tasks are claimed together."""
        self.steps = 0
        """Counts the steps of the loop."""
        _loops.add(self)

    def add(self, end: PutOffEnd, *, watched: bool) -> None:
        """Put off the end of a block; if it is ``watched``, for ``LONGEST`` at most."""
        with self.ending:  # another thread may be about to end the earlier ones
            self._thread = threading.get_ident()
            self._waiting.append(end)
            self._fleet.context.put_off[self._thread] = self.end_alone
        if watched:
            self._watch()

    def includes(self, claim: Claim) -> bool:
        """Whether the end of this claim is put off; one that another thread ends now is not."""
        with self.ending:
            return bool(self._waiting) and self._waiting[-1].claim is claim

    def end_if_waiting(self, claim: Claim) -> None:
        """End what is put off, if this claim is a part of it: its caller asks how it ended."""
        with self.ending:
            if any(each.claim is claim for each in self._waiting):
                self.end_alone()

    @property
    def keep_others_waiting(self) -> bool:
        """Whether something is put off, or claimed ahead."""
        return bool(self._waiting) or self._worker_loop.has_ahead

    def next_ahead(self) -> HeldClaim | None:
        """The next claim that was made ahead; None if there is none, or the others are to end."""
        self.steps += 1
        waiting = self._waiting  # another thread may replace it
        if waiting and (self._clock() - self._began > WORK or waiting[-1].error is not None):
            return None
        return self._worker_loop.take_ahead()

    def begin(self) -> None:
        """The next block begins; the claims that were made ahead wait for its end."""
        if self.together:
            if not self._waiting:
                self._began = self._clock()
            self.watch_ahead()

    def watch_ahead(self) -> None:
        """Have the claims that were made ahead released if the loop does not go on."""
        if self._worker_loop.has_ahead:
            self._watch()

    def end_with_claims(self, loop: object) -> None:
        """End what is put off, and claim the next tasks with it."""
        found: list[PutOffEnd] = []
        try:
            with self.ending:
                found, self._waiting = self._waiting, []
                if found:
                    self._fleet.context.put_off.pop(self._thread, None)
                    self._adapt(len(found))
                    pending = self._fleet.context.grants.has_pending  # earlier claims may stand
                    self._end(found, 1 if pending else self._ahead, loop)
        except BaseException:  # an interrupt: the end of the loop ends them, again if need be
            self._waiting = found
            raise

    def end_alone(self) -> None:
        """End what is put off, without a claim of the next task."""
        found: list[PutOffEnd] = []
        try:
            with self.ending:
                found, self._waiting = self._waiting, []
                if found:
                    self._end(found, 0, None)
                    # Not before: till then, a call of that thread waits for us.
                    self._fleet.context.put_off.pop(self._thread, None)
        except BaseException:  # an interrupt: the end of the loop ends them, again if need be
            self._waiting = [*found, *self._waiting]
            raise

    def go_on_without(self) -> None:
        """The loop does not go on: end what is put off, and release the claims ahead."""
        self._ahead = 1
        self._worker_loop.give_back()
        self.end_alone()

    def open(self) -> None:
        """The loop begins."""
        self.together = self.most > 1 and not self._worker_loop.one_by_one
        self._fleet.context.loops.add(self.end_all)

    def end_all(self) -> None:
        """The client is about to close: end what is done, release the rest, claim nothing more."""
        self._worker_loop.stop("the client was closed")
        self.go_on_without()

    def close(self) -> None:
        """The loop is over."""
        self._fleet.context.loops.discard(self.end_all)
        try:
            self.end_alone()
        except BaseException:
            left, self._waiting = self._waiting, []
            self._fleet.context.put_off.pop(self._thread, None)
            _warn("%d tasks were not ended, and go back: interrupted", len(left))
            _give_up(left)
            raise
        finally:
            if self._late_end is not None:
                self._late_end.stop()
                self._late_end = None

    def _adapt(self, count: int) -> None:
        """Choose how many to claim together, by what the last ones took."""
        if not self.together:
            return
        took = self._clock() - self._began
        if took > WORK:
            self._ahead = max(1, self._ahead // 2)
        elif count >= self._ahead and took <= WORK / 2:
            self._ahead = min(2 * self._ahead, self.most)

    def _end(self, found: Sequence[PutOffEnd], limit: int, loop: object) -> None:
        ended = frozenset[str]()
        if len(found) > 1 or limit > 1:
            ended = self._end_together(found, limit, loop)
        for claim, holding, error in found:
            if claim.task in ended:
                holding.ended_together()
            elif limit:
                claim.end_with_next(error, self._worker_loop)
            else:
                claim.end_now(error, log=False)

    def _end_together(self, found: Sequence[PutOffEnd], limit: int, loop: object) -> frozenset[str]:
        """Complete with one commit what can be completed so; returns those tasks."""
        plain = [each.holding.plain_end() for each in found if each.error is None]
        ends = [end for end in plain if end is not None]
        if not ends:
            return frozenset()
        try:
            op = self._worker_loop.end_and_claim(ends, limit, ahead=True)
            ended, claims = drive(op, self._fleet.store)
        except InterlockError:  # each by itself then, which waits if the store is away
            return frozenset()
        self._worker_loop.keep_ahead(claims, loop)
        return ended

    def forget(self) -> None:
        """After a fork, in the child: the claims are those of the parent, and so are its locks."""
        self.ending = threading.RLock()
        self._waiting, self._late_end = [], None
        self._fleet.context.put_off.clear()
        self._fleet.context.loops.clear()

    def _watch(self) -> None:
        if self._late_end is None:
            self._late_end = LateEnd(self)
        self._late_end.begin()


_loops: WeakSet[PutOffEnds] = WeakSet()
"""Those of this process."""


def _forget_all() -> None:
    for each in tuple(_loops):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)


def _warn(said: str, *about: object) -> None:
    import logging

    logging.getLogger("interlock").warning(said, *about)


def _give_up(found: Sequence[PutOffEnd]) -> None:
    """Have the keeper release those that are not ended."""
    for each in found:
        each.holding.give_up()


class LateEnd:
    """A thread that ends the claims that are put off if the loop does not go on.

    The body of a loop may sleep or wait now and then, even for what waits for the end of the task.
    The thread sleeps while nothing is put off.  A loop that goes on wakes it once in ``LONGEST`` at
    most.
    """

    def __init__(self, ends: PutOffEnds) -> None:
        self._ends = ends
        self._wanted = threading.Event()
        self._over = threading.Event()
        name = "interlock-late-end"
        background(going_on(self._run, name, self._over), name).start()

    def begin(self) -> None:
        """Something was put off."""
        if not self._wanted.is_set():
            self._wanted.set()

    def stop(self) -> None:
        """The loop is over."""
        self._over.set()
        self._wanted.set()

    def _run(self) -> None:
        ends = self._ends
        while self._wanted.wait() and not self._over.is_set():
            step, waits = ends.steps, ends.keep_others_waiting
            self._over.wait(LONGEST)
            if step != ends.steps:
                continue
            if waits:
                ends.go_on_without()
                continue
            self._wanted.clear()
            if ends.keep_others_waiting or self._over.is_set():
                self._wanted.set()
