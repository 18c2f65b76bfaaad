"""Claims tasks: by name, or the next one that is ready.

The next task is chosen from a small window of the ``ready`` index, best first.  On a local engine
the choice is a part of the transaction, so the order is exact and claims never conflict.  Across a
network other workers may take the same task; a worker that loses chooses from twice as many at its
next attempt, and from half as many after each success, so a single worker keeps the exact order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import InterlockError, StoreDamaged
from interlock.nouns.grants.service import GrantService
from interlock.nouns.tasks import task as task_types
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.claim_attempt import (
    ClaimAttempt,
    ClaimAttempts,
    is_plain,
    session_expired,
)
from interlock.nouns.tasks.housekeeping import TaskHousekeeping
from interlock.nouns.tasks.ready_index import (
    SETS_AT_ONCE,
    WIDTH,
    Abilities,
    ReadyWindow,
    ReadyWindowReader,
    delete_idle_sets,
)
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Identity
from interlock.runtime.reads import outside
from interlock.runtime.runner import Runner
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Item, Range, Snapshot, Watch

if TYPE_CHECKING:
    from interlock.nouns.tasks.next_claim import NextClaim
    from interlock.nouns.tasks.several_claims import SeveralClaims

T = TypeVar("T")

SLOW_PATH = 60.0
"""Seconds for which ``next`` skips its fast path after that found a damaged item.  An attempt there
may leave a claim that has to be released, so it is not made each time."""
_TRIES = 8
_WAKES = 4
"""How many portions of due tasks are made ready before a claim goes on without the rest."""
_HOUSEKEEPING_EVERY = 32
"""After this many calls of ``next`` a worker does a step of housekeeping: lost tasks must come back
even if the queue is never empty."""
_IDLE_SETS = 32
"""How many sets of requirements without a ready task may stay: each costs a read, and listing it
again a write."""
_NAP, _LONGEST_NAP = 5.0, 20.0
"""A waiter looks this often; less and less often while no claim or rest could expire."""
_STUCK = (keys.TODO, keys.CLAIMS, keys.BEHIND_GUARDS)
"""Indexes of tasks that may become ready without a commit, in addition to ``due``."""


class ClaimService(ClaimAttempts):
    """Claims by name and claims of the next task, as generators for a driver."""

    def __init__(
        self, runner: Runner, grants: GrantService, housekeeping: TaskHousekeeping
    ) -> None:
        super().__init__(runner, grants)
        self._housekeeping = housekeeping
        self._allow = runner.capabilities.allow
        self.ready = ReadyWindowReader(runner, housekeeping.wall)
        self.spread = 1
        """From how many of the best ready tasks a claim chooses, across a network."""
        self._calls = 0
        self._fast_path_from = 0.0

    def by_name(
        self, identity: Identity, task: str, *, ttl: float | None, wait: float
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Claim one task; with ``wait``, wait until it can be claimed."""
        if not self.runner.knows_no_budget:
            yield from self._require_budget(identity, task)
        attempt = self.new_attempt(identity, ttl)
        request = self.request_for(attempt, task)
        if not wait:
            claiming = self._claim_named(attempt, request)
            return (yield from self.guarded(attempt, claiming, _claimed))
        from interlock.nouns.tasks.claim_wait import TaskWait

        actor = identity.actor.plain
        attempt.task_wait = TaskWait(self.runner, self._grants, actor, request, attempt.terms)
        best = partial(self._claim_named, attempt, request)
        scope = f"{keys.TASKS}{keys.encode(task)}/"
        waiting = self._retry_until(attempt, scope, wait, best, task=task)
        return (yield from self.guarded(attempt, waiting, _claimed))

    def next(
        self,
        identity: Identity,
        can: Abilities,
        *,
        ttl: float | None,
        wait: float,
        limit: int = 1,
        asleep: Callable[[], None] | None = None,
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Claim the best ready task that we can do; damaged ones are passed over.

        Up to ``limit`` tasks are claimed by one commit, as far as they are simply ready
        (``several_claims.py``).  ``asleep`` is called before each sleep of a wait.
        """
        yield from self._require_budget(identity)
        attempt = self.new_attempt(identity, ttl)
        attempt.limit = limit
        if attempt.began >= self._fast_path_from:
            attempt.asleep = asleep
            best = partial(self._claim_best, attempt, can)
            sleep_on = partial(self._sleep_on, attempt, can)
            waiting = self._retry_until(attempt, keys.WAKE_READY, wait, best, sleep_on)
            try:
                return (yield from self.guarded(attempt, waiting, _claimed))
            except StoreDamaged:
                self._fast_path_from = self.runner.clock.monotonic() + SLOW_PATH
        left = max(0.0, attempt.began + wait - self.runner.clock.monotonic())
        from interlock.nouns.tasks.skip_damaged import claim_readable

        claim = partial(self._claim_affordable, attempt)
        return (yield from claim_readable(self.runner, identity, can, claim, left))

    def following(self, identity: Identity, can: Abilities, ttl: float | None) -> NextClaim | None:
        """The claim of the next task by the commit that ends another one.

        None if the claim has to be made by itself: housekeeping is due, or an item was damaged.
        """
        if not self._may_follow():
            return None
        from interlock.nouns.tasks.next_claim import NextClaim

        return NextClaim(self, identity, can, ttl)

    def several(
        self,
        identity: Identity,
        can: Abilities,
        ttl: float | None,
        limit: int,
        *,
        apart: bool,
        ahead: bool = False,
    ) -> SeveralClaims:
        """Claims of further tasks by the commit that ends others; none where ``following`` is."""
        from interlock.nouns.tasks.several_claims import SeveralClaims

        limit = limit if limit and self._may_follow() else 0
        attempt = self.new_attempt(identity, ttl)
        return SeveralClaims(self, attempt, can, limit, apart=apart, ahead=ahead)

    def _require_budget(self, identity: Identity, task: str = "") -> Op[None]:
        """Refuse a claim of an agent, or of a task, whose budget is used up."""
        if (yield from self.runner.has_budget()):
            from interlock.nouns.budgets.service import require_budget

            yield from require_budget(identity.actor.agent, task)

    def _within_budget(self, attempt: ClaimAttempt, places: Sequence[Item]) -> ReadOp[list[Item]]:
        """The ready tasks whose own budgets are not used up."""
        from interlock.nouns.budgets.service import used_up_tasks

        over = yield from used_up_tasks([keys.task_in_index(place.key) for place in places])
        attempt.over_budget |= over
        return [place for place in places if keys.task_in_index(place.key) not in over]

    def _claim_affordable(self, attempt: ClaimAttempt, task: str) -> Op[task_outcomes.ClaimOutcome]:
        """Claim one task by its name, unless its budget is used up."""
        if self.runner.budgeted:
            from interlock.nouns.budgets.service import used_up_tasks

            if (yield from outside(used_up_tasks([task]))):
                attempt.over_budget |= {task}
                return task_outcomes.NoTask(task=task, reason="its budget is used up")
        return (yield from self.by_name(attempt.identity, task, ttl=attempt.ttl, wait=0.0))

    def _may_follow(self) -> bool:
        """Whether a claim may go along with the end of another task; not where budgets count."""
        if self.runner.budgeted:
            return False
        self._calls += 1
        if not self._calls % _HOUSEKEEPING_EVERY:
            self._calls -= 1  # the call that follows does it
            return False
        return self.runner.clock.monotonic() >= self._fast_path_from

    def _retry_until(
        self,
        attempt: ClaimAttempt,
        scope: str,
        wait: float,
        try_once: Callable[[], Op[task_outcomes.ClaimOutcome]],
        sleep_on: Callable[[bool], Op[bool]] | None = None,
        *,
        task: str = "",
    ) -> Op[task_outcomes.ClaimOutcome]:
        """Try, and retry after each change, until the wait is over.

        ``sleep_on`` is a cheap read before each retry, which knows whether a change ended the
        sleep; it returns whether the wait goes on without one.  A budget may be used up by then.
        """
        ends = self.runner.clock.monotonic() + wait
        watch: Watch | None = None
        try:
            if wait:
                watch = yield OpenWatch(scope, (yield Read(keys.BASE)).revision)
            while True:
                outcome = yield from try_once()
                left = ends - self.runner.clock.monotonic()
                if not _may_change(outcome) or watch is None or left <= 0:
                    return outcome
                yield from require_session(attempt.identity)
                if attempt.task_wait is not None:
                    refused = yield from attempt.task_wait.look()
                    if refused is not None:
                        return refused
                if attempt.asleep is not None:
                    attempt.asleep()
                nap = self._sleep_limit(outcome)
                woken = yield NextChanges(watch, min(left, nap))
                while sleep_on is not None and (yield from sleep_on(bool(woken))):
                    nap = self._next_nap(outcome, 0.0 if woken else nap)
                    if (left := ends - self.runner.clock.monotonic()) <= 0:
                        break
                    woken = yield NextChanges(watch, min(left, nap))
                yield from self._require_budget(attempt.identity, task)
        finally:
            if watch is not None:
                watch.close()

    def _sleep_limit(self, outcome: task_outcomes.ClaimOutcome) -> float:
        """The longest sleep: until a claim or a rest may expire, which no watch reports."""
        match outcome:
            case task_outcomes.Taken(expires_in=left) | task_outcomes.TaskBlocked(retry_in=left):
                soon = left
            case _:
                soon = self._housekeeping.seconds_to_next_look()
        grain = self.runner.capabilities.grain
        longest = self._allow(_NAP)
        return longest if soon is None else min(longest, max(soon, grain / 4) + 0.002)

    def _next_nap(self, outcome: task_outcomes.ClaimOutcome, last: float) -> float:
        """The sleep after one without a change, which lasted so long: twice as long.

        It ends before the first known task or schedule is due; after a change it is short again.
        """
        if not last:
            return self._sleep_limit(outcome)
        nap = min(2 * last, self._allow(_LONGEST_NAP))
        left = self._housekeeping.seconds_to_next_look()
        return nap if left is None else min(nap, left + 0.002)

    def _claim_named(
        self, attempt: ClaimAttempt, request: task_types.ClaimRequest
    ) -> Op[task_outcomes.ClaimOutcome]:
        if attempt.task_wait is not None:
            request = attempt.task_wait.request
        actor, blind = attempt.identity.actor, not self.runner.capabilities.transacts
        while True:
            outcome = yield from self._claim(attempt, request, None, blind=blind)
            if isinstance(outcome, task_outcomes.Claimed):
                return outcome
            if outcome == "stale":
                yield from self._housekeeping.reclaim(actor, request.task)
            elif isinstance(outcome, task_outcomes.TaskBlocked) and outcome.on:
                if not (yield from self._housekeeping.drain(actor, outcome.on)):
                    return outcome
            elif isinstance(outcome, task_outcomes.TaskBlocked) and outcome.guard:
                still = yield from self._check_gate(attempt, outcome)
                if still is not None:
                    return still
            elif not isinstance(outcome, str):
                return outcome
            blind = False

    def _check_gate(
        self, attempt: ClaimAttempt, blocked: task_outcomes.TaskBlocked
    ) -> Op[task_outcomes.TaskBlocked | None]:
        """Check the guard again that keeps a task; None if it does not keep it now."""
        from interlock.nouns.tasks import gates

        actor, look = attempt.identity.actor.plain, not attempt.looked
        still, looked = yield from gates.check_refused(self.runner, actor, blocked, look=look)
        attempt.looked |= looked
        return still

    def _claim_best(self, attempt: ClaimAttempt, able: Abilities) -> Op[task_outcomes.ClaimOutcome]:
        """Claim the best task at this moment; housekeeping comes before the answer ``NoTask``."""
        identity = attempt.identity
        self._calls += 1
        if self._calls % _HOUSEKEEPING_EVERY == 0:
            yield from self._housekeeping.step(identity.actor)
        take = self._claim_optimistically
        if self.runner.capabilities.transacts:
            take = self._claim_in_transaction
        limit = attempt.limit
        if self.runner.budgeted:  # each task is checked for itself
            limit, attempt.over_budget = 1, frozenset()
        for last in (False, True):
            if limit > 1 and (several := (yield from self._claim_several(attempt, able))):
                return several
            outcome = yield from take(attempt, able)
            if outcome is None and attempt.over_budget:
                outcome = yield from self._claim_beyond(attempt, able)
            if self._calls % _HOUSEKEEPING_EVERY == 1 and len(self.ready.idle) > _IDLE_SETS:
                with suppress(InterlockError):  # then a later call does it
                    idle = self.ready.idle[:SETS_AT_ONCE]
                    yield from delete_idle_sets(self.runner, identity.actor, idle)
            if outcome is not None:
                return outcome
            if last or not (yield from self._housekeeping.step(identity.actor)):
                break
        return _no_task(attempt)

    def _claim_beyond(
        self, attempt: ClaimAttempt, able: Abilities
    ) -> Op[task_outcomes.Claimed | None]:
        """Claim the first task after those whose budgets are used up: they fill the window."""
        from interlock.nouns.tasks.skip_damaged import claim_first

        claimed = yield from claim_first(able, partial(self._claim_affordable, attempt))
        if claimed is not None:  # an exception releases it, as any other of this attempt
            request = self.request_for(attempt, claimed.task)
            attempt.unsettled = (replace(request, claim=claimed.grant),)
        return claimed

    def _claim_several(
        self, attempt: ClaimAttempt, able: Abilities
    ) -> Op[task_outcomes.Claimed | None]:
        """Claim several tasks with one commit; None if none is simply ready."""
        from interlock.nouns.tasks.several_claims import SeveralClaims

        found = yield from SeveralClaims(self, attempt, able, attempt.limit).claim()
        if not found.claims:
            return None
        return replace(found.claims[0], others=found.claims[1:])

    def _sleep_on(self, attempt: ClaimAttempt, able: Abilities, woken: bool) -> Op[bool]:
        """Whether no task is ready or due, and after a sleep without a change nothing else is.

        A read makes no other claim conflict.  Across a network the claim chooses from it.
        """
        if woken:
            window = yield from outside(self.ready.read(able))
            self._housekeeping.expect_due(window.later)
            if not window.places and not window.due:
                return True
            attempt.window = window if attempt.limit == 1 else None
            return False
        identity = attempt.identity
        own = (keys.live(identity.actor.session),) if identity.joined else ()
        stuck = [Range(prefix, limit=1) for prefix in _STUCK]
        refs, later = self.ready.heads(able), self._housekeeping.due_ranges()
        snapshot: Snapshot = yield Read(*own, *stuck, *later, *refs)
        if own and snapshot[own[0]] is None:
            raise session_expired(identity)
        if any(found for page, found in snapshot.ranges.items() if page not in later):
            return False
        pages = [snapshot.ranges[page] for page in later]
        return self._housekeeping.nothing_due(pages) and self.ready.current(able, snapshot)

    def _claim_in_transaction(
        self, attempt: ClaimAttempt, able: Abilities
    ) -> Op[task_outcomes.ClaimOutcome | None]:
        """Choose and claim in one transaction."""
        base = yield from self.runner.base()
        identity, request = attempt.identity, self.request_for(attempt, "")
        found: list[ReadyWindow] = []
        woken = 0
        while True:
            attempt.unsettled = (request,)
            enough = woken >= _WAKES
            done = yield from self.runner.change(
                partial(self.choosing, attempt, request, base, able, found, enough=enough),
                identity.actor,
            )
            if isinstance(done.outcome, task_outcomes.Claimed):
                self.narrow()
                return (yield from self.with_token(done.outcome, done, base))
            attempt.unsettled = ()
            if done.outcome == "due":
                woken += 1
                yield from self._housekeeping.wake(identity.actor, found[-1].due)
            elif done.outcome == "expired":
                yield from self._housekeeping.expire_best(identity.actor, found[-1].places[0].key)
            elif done.outcome == "left behind":
                places = [place.key for place in found[-1].places]
                if not (yield from self._housekeeping.delete_ready_entries(identity.actor, places)):
                    return None
            elif isinstance(done.outcome, task_outcomes.TaskBlocked):
                yield from self._check_gate(attempt, done.outcome)
            elif done.outcome == "nothing":
                return None

    def choosing(
        self,
        attempt: ClaimAttempt,
        request: task_types.ClaimRequest,
        base: int,
        able: Abilities,
        found: list[ReadyWindow],
        *,
        enough: bool,
        guarded: bool = True,
    ) -> DecideOp[task_outcomes.ClaimOutcome | str]:
        """Decide to claim the first task of a window that can be claimed; appends the window.

        Unless ``guarded`` is true, a task that has guards is not claimed.
        """
        window = yield from self.ready.read(able)
        found.append(window)
        if window.due and not (enough and window.places):
            return Decision(outcome="due")
        places: Sequence[Item] = window.places
        if self.runner.budgeted:
            places = yield from self._within_budget(attempt, places)
            if not places:
                return Decision(outcome="nothing")
        for place in places:
            one = replace(request, task=keys.task_in_index(place.key))
            decision = yield from self.deciding(
                attempt, one, base, "", blind=False, guarded=guarded
            )
            if decision.changes or decision.outcome == "guarded":
                return decision
        return Decision(outcome="left behind" if window.places else "nothing")

    def _claim_optimistically(
        self, attempt: ClaimAttempt, able: Abilities
    ) -> Op[task_outcomes.ClaimOutcome | None]:
        """Choose, then claim; choose again if another worker was faster."""
        woken = 0
        while True:
            known, attempt.window = attempt.window, None
            window: ReadyWindow = known or (yield from outside(self.ready.read(able)))
            if window.due and not (woken >= _WAKES and window.places):
                woken += 1
                yield from self._housekeeping.wake(attempt.identity.actor, window.due)
                continue
            places = list(window.places)
            if places and self.runner.budgeted:
                places = yield from outside(self._within_budget(attempt, places))
            if not places:
                return None
            for _ in range(_TRIES):
                place = self.pick(places)
                outcome = yield from self._try_entry(attempt, place)
                if isinstance(outcome, task_outcomes.Claimed):
                    return outcome
                if outcome == "expired" or not places:
                    break

    def pick(self, places: list[Item]) -> Item:
        """Choose one of these, and take it out; the best, unless others are after it, too."""
        return places.pop(self.runner.random_below(min(self.spread, len(places))))

    def plain_ones(self, places: Iterable[Item]) -> Iterator[Item]:
        """These entries, up to the first one whose task cannot be guessed from it."""
        return takewhile(is_plain, places)

    def narrow(self) -> None:
        """No other worker was faster: choose from fewer the next time."""
        self.spread = max(1, self.spread // 2)

    def widen(self) -> None:
        """Another worker was faster: choose from more the next time."""
        self.spread = min(2 * self.spread, WIDTH)

    def _try_entry(
        self, attempt: ClaimAttempt, place: Item
    ) -> Op[task_outcomes.ClaimOutcome | str]:
        """Claim the task of this entry; ``expired`` if the deadlines of others may be over, too."""
        actor = attempt.identity.actor
        request = self.request_for(attempt, keys.task_in_index(place.key))
        outcome = yield from self._claim(attempt, request, place, blind=is_plain(place))
        if isinstance(outcome, task_outcomes.Claimed):
            return outcome
        if outcome == "gone":
            self.widen()
        elif outcome == "stale":
            yield from self._housekeeping.reclaim(actor, request.task)
        elif outcome == "expired":
            yield from self._housekeeping.expire_best(actor, place.key)
        elif isinstance(outcome, task_outcomes.TaskBlocked) and outcome.leaf:
            yield from self._check_gate(attempt, outcome)
        elif not isinstance(outcome, str):
            yield from self._housekeeping.delete_ready_entry(actor, place.key)
        return outcome

    def _claim(
        self,
        attempt: ClaimAttempt,
        request: task_types.ClaimRequest,
        place: Item | None,
        *,
        blind: bool,
    ) -> Op[task_outcomes.ClaimOutcome | str]:
        if (base := self.runner.token_base) is None:
            base = yield from self.runner.base()
        key = "" if place is None else place.key
        seeing = partial(self.deciding, attempt, request, base, key, blind=False)
        deciding: Callable[[], DecideOp[task_outcomes.ClaimOutcome | str]] = seeing
        guess = None
        if blind:
            guess = self._guess(attempt, request.task, place)
            first = iter((self.deciding(attempt, request, base, key, blind=True),))
            deciding = lambda: next(first, None) or seeing()  # noqa: E731
        attempt.unsettled = (request,)
        done = yield from self.runner.change(deciding, attempt.identity.actor, guess)
        if isinstance(done.outcome, task_outcomes.Claimed):
            self.narrow()
            return (yield from self.with_token(done.outcome, done, base))
        attempt.unsettled = ()
        return done.outcome


def require_session(identity: Identity) -> Op[None]:
    """Raise if the session of a waiter has expired."""
    own = keys.live(identity.actor.session)
    if identity.joined and (yield Read(own))[own] is None:
        raise session_expired(identity)


def _claimed(outcome: task_outcomes.ClaimOutcome) -> tuple[task_outcomes.Claimed, ...]:
    return (outcome, *outcome.others) if isinstance(outcome, task_outcomes.Claimed) else ()


def _no_task(attempt: ClaimAttempt) -> task_outcomes.NoTask:
    """The answer to ``next`` that finds nothing to claim."""
    reason = "no task that is ready is one that you can do"
    if attempt.over_budget:
        reason = "the ready tasks that you can do have used up their budgets; see 'budget show'"
    return task_outcomes.NoTask(reason=reason)


def _may_change(outcome: task_outcomes.ClaimOutcome) -> bool:
    """Whether waiting may help."""
    if isinstance(outcome, task_outcomes.NoTask):
        return not outcome.task
    return not isinstance(outcome, task_outcomes.Claimed)
