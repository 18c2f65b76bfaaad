"""Grants in use: the leases that a holder relies on, the proof of the grant, and its release.

The blocking and the async ``with`` blocks share this and differ only in how they wait; blocks for a
lock, for slots and for several things differ in their target (``request.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from interlock.client_context import Context
from interlock.core import keys, outcomes, validate
from interlock.core.decision import Outcome, Proof, Write
from interlock.core.outcomes import Granted
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.thing_names import join_things, key_of, split_things
from interlock.errors import Deadlocked, Lost, StoreInUse, StoreTrouble, Unavailable, note_pending
from interlock.nouns.grants import handover
from interlock.nouns.grants.calls import acquire
from interlock.nouns.grants.pool import BreakNote
from interlock.nouns.grants.request import GrantTarget, GrantTerms
from interlock.runtime import callers
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given, proofs
from interlock.runtime.keeper import Lease, WatchedGrant
from interlock.runtime.outage import OutageRetry
from interlock.steps import Op
from interlock.thread_calls import in_call

if TYPE_CHECKING:
    from interlock.nouns.grants import several

_KINDS = {"sem": "semaphore"}
WAITED = 0.05
"""An acquire that took longer may have waited: then it is unknown when its grant began."""


class HeldGrant:
    """A grant that its holder relies on: of a lock, slots, several things, or a task."""

    released = False
    _gone = False
    broken: BreakNote | None = None
    """The note of the operator that ended it, if we have read one."""

    def __init__(
        self,
        context: Context,
        things: tuple[str, ...],
        grant: Granted,
        leases: Sequence[Lease],
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.context = context
        self.things = things
        self.grant = grant
        self.leases = leases
        self.on_lost = on_lost
        """Called when the grant is lost."""
        self.handover = handover.current(context.grants)
        self._watched = WatchedGrant(things, grant.grant, self._lose)
        context.keeper.watch_grant(self._watched)
        for lease in leases:
            lease.listeners.append(self._notify)

    @property
    def proof(self) -> Proof:
        """Ownership as a value that another commit can carry."""
        grant, thing = self.grant, join_things(self.things)
        return Proof(thing=thing, grant=grant.grant, token=grant.token or 0)

    def lost(self) -> bool:
        """Whether it is lost, as far as we know without a read."""
        return self.over_by_now() or self.context.store.missing

    def over_by_now(self) -> bool:
        """Whether it was released, is known to be gone, or has outlived a lease."""
        if self.released or self._gone:
            return True
        for lease in self.leases:  # noqa: SIM110 - there is one, and each task asks
            if not lease.alive():
                return True
        return False

    def raise_if_lost(self) -> None:
        """Raise if it is lost."""
        if self.lost():
            raise self.over()

    def check(self) -> Op[Proof]:
        """The proof, if the store confirms the grant."""
        if self.lost() or not (yield from self.context.grants.check(self.proof)):
            yield from self.learn_reason()
            raise self.over()
        return self.proof

    def learn_reason(self) -> Op[None]:
        """Read the note of an operator that ended it; an error of the store is ignored."""
        if self.broken is None:
            with suppress(StoreTrouble):
                self.broken = yield from self.context.grants.break_note(self._watched.notes)

    def drop(self) -> None:
        """Stop renewing it and watching it."""
        for lease in self.leases:
            if self._notify in lease.listeners:
                lease.listeners.remove(self._notify)
            if lease is not self.context.session_lease:
                self.context.keeper.drop(lease)
        self.context.keeper.unwatch_grant(self._watched)
        self.released = True

    def over(self) -> Lost:
        """The error that says that the grant is lost."""
        what = " and ".join(self.things)
        return Lost(
            f"{what} (token {self.grant.token}) {self.how_it_ended};"
            " stop what relied on it and acquire again"
        )

    @property
    def how_it_ended(self) -> str:
        """How it ended, as a part of a sentence."""
        if self.broken is None:
            return "is no longer ours"
        return f"was ended by {foreign(self.broken.by)}: {foreign(self.broken.reason)}"

    def _warn_pending(self, trouble: str) -> None:
        if self.context.left:  # its session has ended; the program may be ending, too
            return
        import logging

        logging.getLogger("interlock").warning(
            "%s will be released later: %s", " and ".join(self.things), trouble
        )

    def _lose(self, note: BreakNote | None) -> None:
        """The store no longer has the grant."""
        self._gone = True
        self.broken = note
        self._notify()

    def _notify(self) -> None:
        if self.on_lost is not None:
            self.on_lost()


class HeldPools(HeldGrant):
    """A grant of a lock, slots, or several things, with its release."""

    def __init__(
        self,
        context: Context,
        target: GrantTarget,
        grant: Granted,
        leases: Sequence[Lease],
        on_lost: Callable[[], None] | None,
    ) -> None:
        super().__init__(context, target.things, grant, leases, on_lost)
        self.target = target
        self.handover.held = self

    def release(self) -> Op[Any]:
        """Release it and stop renewing it."""
        grants, grant = self.context.grants, self.grant
        pending = (self.context.identity, self.target, grant.grant)
        try:
            self.drop()  # inside of the try: any exception from now on still releases it
            actor = self.context.me().actor
            outcome = yield from grants.release(
                actor, self.target, token=grant.token, grant=grant.grant
            )
        except (StoreTrouble, GeneratorExit) as error:
            grants.release_later(*pending)  # the keeper releases it as soon as it can
            self.handover.close()
            note_pending(error)
            raise
        except BaseException:
            self.drop()
            yield from grants.abandon(*pending)
            self.handover.close()
            raise
        self.handover.close()
        return outcome

    def end(self) -> Op[bool]:
        """The end of a block: release it if it is not yet; returns whether it had been lost."""
        if self.released:
            return False
        lost = self.lost()
        if trouble := self.context.store.outage:  # the end of a block does not wait for the store
            self.context.grants.release_later(self.context.identity, self.target, self.grant.grant)
            self.drop()
            self.handover.close()
            self._warn_pending(trouble)
            return lost
        try:
            outcome = yield from self.release()
        except StoreTrouble as error:
            if isinstance(error, StoreInUse) and not in_call():  # of a handler inside of this call
                raise
            self._warn_pending(str(error))
            return lost
        if not lost and isinstance(outcome, outcomes.Released):
            return False
        yield from self.learn_reason()
        return True


class HeldHandle(Calls[D]):
    """A held grant or claim as its block sees it, in either client."""

    def __init__(self, holding: HeldGrant) -> None:
        super().__init__(holding.context)
        self._holding = holding

    @call
    def check(self) -> Op[Proof]:
        """Ask the store whether it is still held; raises Lost if not.

        Another commit can carry the proof (``given=[held.check()]``); it then happens only while
        this grant lives.
        """
        return self._holding.check()

    @property
    def token(self) -> int:
        """The fencing token: pass it on to the resource that this protects."""
        return self._holding.grant.token or 0

    @property
    def lost(self) -> bool:
        """Whether it is lost; costs nothing, check it often."""
        return self._holding.lost()

    @property
    def reason(self) -> str:
        """Why an operator ended it; empty if none did, or the note was not read yet."""
        note = self._holding.broken
        return "" if note is None else note.reason

    def over(self) -> Lost:
        """The error that says that it is lost."""
        return self._holding.over()


class GrantHandle(HeldHandle[D]):
    """A held grant of a lock, slots, or several things."""

    _holding: HeldPools

    @call
    def release(self) -> Op[Outcome]:
        """Release it before the block ends; returns what ``release`` of its noun returns."""
        return self._holding.release()

    @call
    def end(self) -> Op[bool]:
        """End the block: release it, and return whether it had been lost."""
        return self._holding.end()

    @property
    def outcome(self) -> Granted:
        """The outcome of the acquire: Acquired or Reclaimed."""
        return self._holding.grant


def take(
    context: Context, target: GrantTarget, on_lost: Callable[[], None] | None, terms: GrantTerms
) -> Op[HeldPools]:
    """Acquire for a ``with`` block, which cannot return a refusal: it raises.

    A grant that was lost before the block could begin is released, and we queue again, while the
    session lives and the wait is not over.
    """
    clock = context.runner.clock
    least = context.runner.capabilities.min_ttl
    target, settings = target.configured(context.settings, least)
    ttl, max_hold = context.terms(settings, terms.ttl, terms.max_hold)
    ends = clock.monotonic() + validate.wait_time(terms.wait)
    while True:
        left = max(0.0, ends - clock.monotonic())
        now = replace(terms, ttl=ttl, max_hold=max_hold, wait=left)
        holding = yield from _take_once(context, target, on_lost, now)
        if not holding.lost():
            return holding
        yield from holding.end()
        if clock.monotonic() >= ends:
            raise holding.over()
        if context.rejoins(context.identity) and not context.no_retry:
            yield from OutageRetry(context, "a wait").revive(ends)


def _take_once(
    context: Context, target: GrantTarget, on_lost: Callable[[], None] | None, terms: GrantTerms
) -> Op[HeldPools]:
    clock = context.runner.clock
    sent = clock.monotonic()
    outcome = yield from acquire(context, target.about, lambda: target, terms)
    if not isinstance(outcome, Granted):
        raise _refusal_error(outcome, terms.given, target.things)
    times: dict[str, float] | None = None
    waited = clock.monotonic() - sent > context.runner.capabilities.allow(WAITED)
    if waited and (terms.ttl is not None or terms.max_hold is not None):
        sent = clock.monotonic()
        try:
            times = yield from context.grants.lifetimes(target.keys[0], outcome.grant)
        except BaseException as error:
            context.grants.release_later(context.identity, target, outcome.grant)
            if not isinstance(error, StoreTrouble | GeneratorExit):
                yield from context.grants.release_pending()
            note_pending(error)
            raise
    tag = {"agent": outcome.holder, "for": target.thing}
    leases = list(_leases(context, outcome.grant, terms, tag=tag, sent=sent, times=times))
    return HeldPools(context, target, outcome, leases, on_lost)


def _leases(
    context: Context,
    grant: str,
    terms: GrantTerms,
    *,
    tag: Mapping[str, str],
    sent: float,
    times: Mapping[str, float] | None,
) -> Iterator[Lease]:
    """The leases of a grant: its session or its own, and the maximum hold."""
    if terms.ttl is None and context.session_lease is not None:
        yield context.session_lease
    for key, term, renewable in (
        (keys.live(grant), terms.ttl, True),
        (keys.max_hold(grant), terms.max_hold, False),
    ):
        if term is not None:
            ttl = validate.duration(term)
            left = ttl if times is None else times.get(key, 0.0)
            began = sent + left - ttl
            yield context.keeper.keep(Write(key, tag, ttl), began, renewable=renewable)


def _refusal_error(outcome: object, given: Given = (), things: Sequence[str] = ()) -> Unavailable:
    """The error for a block that cannot begin, because of a refusal or a given grant."""
    from interlock.nouns.grants import lock, semaphore, several

    match outcome:
        case lock.LockDeadlock() | semaphore.SlotsDeadlock() | several.SeveralDeadlock():
            return deadlocked(outcome.cycle, outcome, [key_of(thing) for thing in things])
        case lock.LockBusy(lock=name, holder=holder):
            state = f"held by {foreign(holder)}" if holder else "reserved for the first waiter"
            return Unavailable(
                f"lock {foreign(name)} is {state}; wait longer or retry later", outcome
            )
        case semaphore.SlotsFull(semaphore=name):
            free = f"{outcome.available} of {outcome.capacity} slots are free"
            return Unavailable(f"semaphore {name!r}: {free}; wait longer or retry later", outcome)
        case several.SeveralBusy():
            return Unavailable(_blocked(outcome), outcome)
        case outcomes.GuardBlocked() | outcomes.NoGuard():
            return Unavailable(_guarded(outcome), outcome)
        case lock.LockFenced(lock=name) | semaphore.SlotsFenced(semaphore=name):
            relied = [proof.thing for proof in proofs(given)]
            gone = [thing for thing in relied if thing.partition("/")[2] == name]
        case _:
            gone = list(getattr(outcome, "things", ()))
    what, verb = " or ".join(map(_in_words, gone)), "claim" if _tasks(gone) else "acquire"
    return Unavailable(f"{what}, which this relies on, is no longer ours; {verb} it again", outcome)


def deadlocked(cycle: tuple[str, ...], outcome: object, wanted: Collection[str]) -> Deadlocked:
    """The error that names the cycle of waits, and what to do about it."""
    names, last = foreign_names((*cycle, cycle[0]), " -> "), cycle[-1]
    then = "release what you hold, then retry"
    if last != cycle[0] and (here := callers.holding(wanted)):
        stuck = (
            f"{foreign(last)} holds it in this same {here}, which cannot give it back while it"
            " waits"
        )
        then = f"{stuck}; use another {here}, or no wait"
    return Deadlocked(f"waiting would never end: {names}; {then}", outcome)


def _in_words(thing: str) -> str:
    """The things of a grant in words."""
    parts = [each.partition("/") for each in split_things(thing)]
    return " and ".join(f"{_KINDS.get(kind, kind)} {name!r}" for kind, _, name in parts)


def _guarded(outcome: outcomes.GuardBlocked | outcomes.NoGuard) -> str:
    """Which guard does not pass, and what to do."""
    if isinstance(outcome, outcomes.NoGuard):
        define = "define it: interlock guard define FILE"
        return f"the store has no guard {outcome.guard!r}; {define}"
    says = f"guard {outcome.guard!r} does not let {foreign(outcome.thing)} be acquired"
    why = f"{foreign(outcome.message)}: " if outcome.message else ""
    then = ", or ".join([*outcome.acts[:1], "wait longer"])
    return f"{says}: {why}{foreign(outcome.leaf)}: {outcome.reason}; {then}"


def _tasks(things: Sequence[str]) -> bool:
    return all(thing.startswith("task/") for thing in things)


def _blocked(outcome: several.SeveralBusy) -> str:
    """The message for the first thing that is not available."""
    first = outcome.blocked[0] if outcome.blocked else None
    reason = "" if first is None else str(_refusal_error(first))
    return f"not all of {foreign_names(outcome.things)} can be had; {reason}".rstrip("; ")
