"""Acquires, renews and releases grants on a store, for locks, slots and several at once.

``waiting.py`` has the wait of a request that is not granted at once.

A grant or a wait that its caller gave up, and that could not be released yet, is a *pending
release*: the keeper releases it when the store answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Outcome, Proof
from interlock.core.thing_names import thing_of
from interlock.drivers import Op, Read
from interlock.errors import InterlockError, Lapsed, StoreBusy, StoreTrouble
from interlock.nouns.grants import rules
from interlock.nouns.grants.decode import decode_break_note, decode_pool, grant_ids
from interlock.nouns.grants.pool import BreakNote, Pool
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import BreakRequest, GrantRequest, HolderRequest
from interlock.nouns.grants.waiting import (
    PoolWaits,
    expires_in,
    recalled,
    session_ttl_of,
    with_commit_token,
)
from interlock.runtime import callers, handover, reads
from interlock.runtime.callers import LocalCaller
from interlock.runtime.decide import ALIVE, DecideOp, ReadOp
from interlock.runtime.given import holds
from interlock.runtime.handover import Handover
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import looked_up, outside
from interlock.runtime.runner import Decided, Runner
from interlock.store import Item, Range, Snapshot

_MOST_REMEMBERED = 4096


class PendingRelease(Struct, frozen=True, eq=False):
    """A grant that is to be released, its thing, and the operation that releases it."""

    grant: str
    thing: str
    run: Callable[[], Op[None]]


class OwnPools:
    """The pools that one client may have a grant of, so that ``leave`` need not search for them.

    It may name too many, never too few: a requested pool counts, a request that ended in an error
    counts, and a pool that was released without a token still counts.
    """

    def __init__(self) -> None:
        self._requested: dict[str, tuple[str, ...]] = {}
        self._granted: dict[tuple[str, int], None] = {}
        self._uncertain: dict[str, None] = {}

    def requested(self, grant: str, pools: tuple[str, ...]) -> None:
        """A request for these pools begins."""
        self._requested[grant] = pools

    def answered(self, grant: str, outcome: object) -> None:
        """The request was granted or refused."""
        if isinstance(outcome, outcomes.Granted):
            for key in self._requested[grant]:
                if len(self._granted) < _MOST_REMEMBERED:
                    self._granted[key, outcome.token or 0] = None
                else:  # most of these expired without a release
                    self._may_have((key,))
        del self._requested[grant]

    def unanswered(self, grant: str, *, refused: bool) -> None:
        """An error ended the request; one that ``refused`` it left no grant."""
        pools = self._requested.pop(grant, ())
        if not refused:
            self._may_have(pools)

    def _may_have(self, pools: tuple[str, ...]) -> None:
        if len(self._uncertain) <= _MOST_REMEMBERED:  # beyond that, pools() is None
            self._uncertain.update(dict.fromkeys(pools))

    def released(self, pools: tuple[str, ...], token: int | None) -> None:
        """A grant was released, or is over; without a token it is unknown which one."""
        if token is not None:
            for key in pools:
                self._granted.pop((key, token), None)
        else:
            self._may_have(pools)
            for each in [each for each in tuple(self._granted) if each[0] in pools]:
                self._granted.pop(each, None)

    def pools(self) -> Collection[str] | None:
        """All of them; None if there were too many."""
        if len(self._uncertain) > _MOST_REMEMBERED:  # a search for them is as quick by then
            return None
        asked = [key for some in tuple(self._requested.values()) for key in some]
        return {*asked, *[key for key, _ in tuple(self._granted)], *tuple(self._uncertain)}


class GrantService:
    """Every operation on pools; the methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting = PoolWaits(runner)
        self._held: dict[tuple[str, int], LocalCaller] = {}
        self._own = OwnPools()
        runner.settling.on_unsettled = self._notify
        self.pending: deque[PendingRelease] = deque()
        """Grants and waits that were given up, and could not be released yet."""
        self.has_new_pending = False
        """Whether some of these were not tried yet."""
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is a new pending release; the driver of the keeper sets it."""
        self.handovers: set[Handover] = set()
        """The handovers of ``with`` blocks."""
        self.abandoned: deque[Handover] = deque()
        """The handovers that were abandoned outside of a block."""
        self.wake_keeper: Callable[..., object] = lambda *_: None
        """Wakes the driver of the keeper, which sets it; it takes no lock, so it is always safe."""
        self.on_abandoned_grant: Callable[[str], None] = lambda _grant: None
        """Called with an abandoned grant, so that it is not renewed."""
        self.current_caller: Callable[[], LocalCaller | None] = callers.current
        """The current task or thread; a test that plays several processes in one sets it."""

    def acquire(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        *,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
    ) -> Op[Any]:
        """Take it, or queue for it until the wait is over; an interrupted call leaves nothing.

        The request names the pools; the fields of its caller are filled in here.
        """
        base = yield from self._runner.base()
        deadline = self._runner.clock.monotonic() + wait if wait else None
        local_caller = None if identity.caller else self.current_caller()
        request = self._completed(identity, request, local_caller, wait=bool(wait))
        own_handover = handover.current(self)
        wanted = request.keys
        while True:
            # Before the attempt: the keeper may release some of them during it.
            pending = self.pending_grants() if identity.whole_session else frozenset()
            own_handover.add(request.grant, partial(self._pending_releases, identity, request))
            self._own.requested(request.grant, wanted)
            try:
                outcome = yield from self._acquire(identity, request, base, deadline, given)
                self._own.answered(request.grant, outcome)
                if isinstance(outcome, outcomes.Granted) and outcome.grant in pending:
                    # A call for the whole session found the grant of an attempt that was given up.
                    yield from self._release_earlier(outcome.grant)
                    outcome = outcomes.Gone()
                if isinstance(outcome, outcomes.Gone) and len(wanted) > 1:
                    yield from self._abandon_now(
                        identity, request
                    )  # one of its pools may still have it
            except (StoreTrouble, GeneratorExit):
                # The store does not answer, or this generator was closed: release it later.
                self._own.unanswered(request.grant, refused=False)
                self.release_later(identity, request)
                own_handover.remove(request.grant)
                raise
            except BaseException as error:
                self._own.unanswered(request.grant, refused=isinstance(error, InterlockError))
                yield from self.abandon(identity, request)
                own_handover.remove(request.grant)
                raise
            if not isinstance(outcome, outcomes.Granted):
                own_handover.remove(request.grant)
            if not isinstance(outcome, outcomes.Gone):
                self._add_holder(local_caller, request, outcome)
                return outcome
            request = replace(request, grant=self._runner.new_id("grt"))

    def _release_earlier(self, grant: str) -> Op[None]:
        """Release the pending grant, before a new request."""
        yield from self.release_pending()
        if grant in self.pending_grants():
            raise StoreBusy("an earlier grant could not be released yet; retry")

    def release_later(self, identity: Identity, request: GrantRequest[Any]) -> None:
        """Release the grant or the wait of a request later."""
        self.add_pending(*self._pending_releases(identity, request))

    def add_pending(self, release: PendingRelease) -> None:
        """Add a pending release."""
        self.pending.append(release)
        self.has_new_pending = True
        self.on_pending()

    @property
    def has_pending(self) -> bool:
        """Whether there is something to settle or to release."""
        return bool(self.pending or self._runner.settling.unsettled)

    def _notify(self) -> None:
        self.on_pending()

    def abandon(self, identity: Identity, request: GrantRequest[Any]) -> Op[None]:
        """Release the grant or the wait of a request, if the store has it; later, if not now."""
        yield from self.release_or_queue(*self._pending_releases(identity, request))

    def release_or_queue(self, release: PendingRelease) -> Op[None]:
        """Release it now or later, once no request that may grant it can still arrive."""
        try:
            yield from self._runner.settling.settle_all()
            yield from release.run()
        except (InterlockError, GeneratorExit) as error:
            self.add_pending(release)
            if not isinstance(error, InterlockError):
                raise
        except BaseException:
            self.add_pending(release)
            raise

    def pending_grants(self) -> set[str]:
        """The ids of the grants among the pending releases."""
        self.collect_abandoned()
        return {release.grant for release in self.pending.copy()}

    def collect_abandoned(self) -> bool:
        """Add the grants of abandoned handovers to the pending releases; whether there were any.

        A handover is removed last, so an exception in between loses none.
        """
        abandoned = [
            own_handover for own_handover in tuple(self.handovers) if own_handover.abandoned
        ]
        abandoned += tuple(self.abandoned)
        for own_handover in abandoned:
            for release in own_handover.pending_releases():
                self.pending.append(release)
                self.has_new_pending = True
                self.on_abandoned_grant(release.grant)
            if own_handover.held is not None:
                own_handover.held.drop()
            self.handovers.discard(own_handover)
            with suppress(ValueError):
                self.abandoned.remove(own_handover)
        return bool(abandoned)

    def release_pending(self) -> Op[None]:
        """Settle unknown transactions, then run the pending releases.

        It stops at the first that fails, so that renewals need not wait.  A release is removed
        after it ran, so an interrupt in between loses none.
        """
        self.collect_abandoned()
        self.has_new_pending = False
        try:
            yield from self._runner.settling.settle_all()
        except InterlockError:
            return
        while self.pending:
            try:
                release = self.pending[0]
            except IndexError:  # another thread was faster
                return
            try:
                yield from release.run()
            except InterlockError:
                self.pending.rotate(-1)
                return
            with suppress(ValueError):
                self.pending.remove(release)

    def release(self, actor: Actor, request: HolderRequest[Any]) -> Op[Any]:
        """Release a grant; the first waiters that fit have it with the same commit."""
        base = yield from self._runner.base()

        def deciding() -> DecideOp[Outcome]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield request.keys).items)
            held = rules.held_grant(reader.facts.pool(request.keys[0]), request)
            if held is not None:
                reader.learn((yield held.live).items)
            now = self._runner.clock.wall()
            return (yield from reader.decide(lambda facts: rules.release(request, facts, now)))

        done: Decided[Outcome] = yield from self._runner.change(
            deciding, actor, recalled(self._runner, request.keys), urgent=True
        )
        if isinstance(done.outcome, outcomes.Released):
            self.remove_holder(request.keys, request.token)
            self._own.released(request.keys, request.token)
        elif isinstance(done.outcome, outcomes.Fenced) and request.token is not None:
            self._own.released(request.keys, request.token)
        return (yield from self._with_break_note(request, done.outcome))

    def break_grant(self, actor: Actor, request: BreakRequest[Any]) -> Op[Any]:
        """End the grant of another agent; the waiters are served with the same commit."""
        base = yield from self._runner.base()

        def deciding() -> DecideOp[Outcome]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield (request.key,)).items)
            now = self._runner.clock.wall()
            return (yield from reader.decide(lambda facts: rules.break_grant(request, facts, now)))

        done: Decided[Outcome] = yield from self._runner.change(deciding, actor, urgent=True)
        return done.outcome

    def _with_break_note(self, request: HolderRequest[Any], outcome: Outcome) -> Op[Any]:
        """The refusal, with the operator and the reason if an operator ended the grant."""
        if isinstance(outcome, outcomes.Granted | outcomes.Released):
            return outcome
        for key in request.keys:
            for note in (yield from outside(break_notes(thing_of(key)))):
                if _is_of(note, request):
                    return request.broken_by(note)
        return outcome

    def own_pools(self) -> Collection[str] | None:
        """The pools that this client may have a grant of; None if there are too many."""
        return self._own.pools()

    def heartbeat(
        self, actor: Actor, request: HolderRequest[Any], session_ttl: float = 0.0
    ) -> Op[Any]:
        """Renew the liveness of a grant."""
        base = yield from self._runner.base()
        key = request.keys[0]
        held: Pool | None = None

        def deciding() -> DecideOp[Outcome]:
            nonlocal held
            reader = PoolReader(self._runner, base)
            reader.learn((yield (key,)).items)
            held = reader.facts.pool(key)
            grant = rules.held_grant(held, request)
            ttl = session_ttl
            if grant is not None and grant.ttl is None:
                ttl = yield from session_ttl_of(grant.session, session_ttl)
            return (yield from reader.decide(lambda facts: rules.beat(request, facts, ttl)))

        done: Decided[Outcome] = yield from self._runner.change(deciding, actor)
        grant = rules.held_grant(held, request)
        if isinstance(done.outcome, outcomes.Granted) and grant is not None and grant.max_hold:
            live: Snapshot = yield Read(*grant.live, times=True)
            return replace(done.outcome, expires_in=expires_in(live.items) or 0.0)
        return (yield from self._with_break_note(request, done.outcome))

    def check(self, proof: Proof) -> Op[bool]:
        """Whether the grant of a proof still exists and lives."""
        base = yield from self._runner.base()
        return (yield from outside(holds(proof, base)))

    def grants_in(
        self, wanted: Iterable[str], *, fresh: bool = True
    ) -> Op[frozenset[tuple[str, str]]]:
        """The grants that these pools, and tasks by their owner keys, have now."""
        items = yield from looked_up(wanted, fresh=fresh)
        found = [(key, grant_ids(item)) for key, item in items.items() if item is not None]
        return frozenset((key, grant) for key, grants in found for grant in grants)

    def break_note(self, wanted: Iterable[str]) -> Op[BreakNote | None]:
        """The note of an operator that ended a grant, under one of these keys."""
        items = yield from looked_up(wanted)
        return next(
            filter(None, (reads.readable(decode_break_note, i) for i in items.values())), None
        )

    def lifetimes(self, key: str, grant: str) -> Op[dict[str, float]]:
        """How long the own liveness keys of a grant live from now on; empty if it is gone."""
        own = (keys.live(grant), keys.max_hold(grant))
        snapshot: Snapshot = yield Read(key, *own, times=True)
        pool = decode_pool(snapshot[key], 0)
        if pool is None or pool.grant(grant) is None:
            return {}
        return {key: item.expires_in or 0.0 for key in own if (item := snapshot[key])}

    def _completed(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        local_caller: LocalCaller | None,
        *,
        wait: bool,
    ) -> GrantRequest[Any]:
        """The request with the fields of its caller."""
        terms = callers.caller_terms(identity.caller, local_caller)
        return replace(
            request,
            grant=self._runner.new_id("grt"),
            agent=identity.actor.agent,
            session=identity.actor.session,
            caller=terms.caller,
            whole_session=identity.whole_session,
            session_ttl=identity.session_ttl,
            wait=wait,
            indexed=wait and terms.indexed,
            also=terms.also if wait else (),
            listed=identity.listed,
        )

    def _add_holder(
        self, local_caller: LocalCaller | None, request: GrantRequest[Any], outcome: object
    ) -> None:
        """Note which task or thread holds it: one that holds nothing blocks no other caller."""
        if local_caller is not None and isinstance(outcome, outcomes.Granted):
            self.add_holder(local_caller, request.keys, outcome.token or 0)

    def add_holder(self, local_caller: LocalCaller, wanted: tuple[str, ...], token: int) -> None:
        """Add a pending release."""
        if len(self._held) >= _MOST_REMEMBERED:
            local_caller.holds.add(self)  # from now on it counts as a holder
            return
        for key in wanted:
            self._held[key, token] = local_caller
            local_caller.holds.add((self, key, token))

    def remove_holder(self, wanted: tuple[str, ...], token: int | None) -> None:
        """Remove the holder; a release without a token means the last grant of the pool."""
        for key in wanted:
            last = token
            if last is None:
                last = max([token for held, token in tuple(self._held) if held == key], default=0)
            if (local_caller := self._held.pop((key, last), None)) is not None:
                local_caller.holds.discard((self, key, last))

    def _acquire(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        base: int,
        deadline: float | None,
        given: tuple[Proof, ...],
    ) -> Op[Outcome]:
        runner = self._runner
        known: list[PoolReader] = []
        guess: dict[str, Item | None] = self._guess(request)
        if identity.joined:
            guess[keys.live(identity.actor.session)] = ALIVE
        done: Decided[Outcome] = yield from runner.change(
            lambda: self._deciding(identity, request, base, given, known), identity.actor, guess
        )
        outcome = done.outcome
        if isinstance(outcome, outcomes.Granted):
            got = with_commit_token(outcome, base, done.revision)
            if got.grant != request.grant:  # an existing grant
                got = yield from self._waiting.measured(request, got, always=False)
            return got
        if isinstance(outcome, outcomes.Waiting):
            until = (deadline or 0.0, done.revision or 0)
            return (yield from self._waiting.wait((identity, request, base), until, given, self))
        if isinstance(outcome, outcomes.Busy):
            return (yield from self._waiting.timed(request, outcome, known[-1] if known else None))
        return outcome

    def _deciding(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        base: int,
        given: tuple[Proof, ...],
        known: list[PoolReader],
    ) -> DecideOp[Outcome]:
        """One attempt to acquire; adds its reader to ``known`` if it read more than the pool."""
        own = (keys.live(identity.actor.session),) if identity.joined else ()
        wanted, now = request.keys, self._runner.clock.wall()
        items = (yield (*wanted, *own)).items
        if own and items[own[0]] is None:
            raise Lapsed(f"session {identity.actor.session} lapsed; join again")
        for proof in given:
            if not (yield from holds(proof, base, request.agent)):
                return Decision(outcome=request.fenced(proof.thing))
        if request.token is not None:
            for note in (yield from break_notes(request.thing)):
                if (note.token, note.holder) == (request.token, request.agent):
                    return Decision(outcome=request.broken_by(note))
        if len(wanted) == 1:
            pool = decode_pool(items[wanted[0]], base)
            if (quick := rules.acquire_uncontended(request, pool, now)) is not None:
                return quick
        reader = PoolReader(self._runner, base)
        reader.learn(items)
        known.append(reader)
        call = (
            request
            if request.token is None
            else (yield from self._with_session_ttl(request, reader))
        )
        return (yield from reader.decide(lambda facts: rules.acquire(call, facts, now)))

    def _guess(self, request: GrantRequest[Any]) -> dict[str, Item | None]:
        """The guess that a lock is free, and a semaphore as this client left it."""
        guess: dict[str, Item | None] = {}
        if self._runner.capabilities.transacts:
            return guess  # it reads inside of its transaction, so a guess saves nothing
        for want in request.demands:
            if want.key.startswith(keys.LOCKS):
                guess[want.key] = None
            else:
                known = self._runner.recall(want.key)
                if not known and want.capacity is None:
                    return {}
                guess |= known or {want.key: None}
        return guess

    def _with_session_ttl(
        self, request: GrantRequest[Any], reader: PoolReader
    ) -> ReadOp[GrantRequest[Any]]:
        """The request with the ttl of the holder's session, which may not be the caller's."""
        pool = reader.facts.pool(request.keys[0])
        for grant in () if pool is None else pool.grants:
            if (grant.token, grant.agent) == (request.token, request.agent):
                ttl = yield from session_ttl_of(grant.session, request.session_ttl)
                return replace(request, session_ttl=ttl)
        return request

    def _pending_releases(
        self, identity: Identity, request: GrantRequest[Any]
    ) -> tuple[PendingRelease]:
        """The pending release of a request."""
        return (
            PendingRelease(
                request.grant, request.thing, lambda: self._abandon_now(identity, request)
            ),
        )

    def _abandon_now(self, identity: Identity, request: GrantRequest[Any]) -> Op[None]:
        """Leave the queues, or release the grant."""
        base = yield from self._runner.base()
        yield from self._waiting.decide(rules.abandon, identity, request, base)


def break_notes(thing: str) -> ReadOp[list[BreakNote]]:
    """The notes about the grants of a thing that operators ended, the latest first."""
    page = Range(keys.broken(thing))
    items = (yield (page,)).ranges[page]
    found = [
        note for item in items if (note := reads.readable(decode_break_note, item)) is not None
    ]
    return sorted(found, key=lambda note: -note.at)


def _is_of(note: BreakNote, request: HolderRequest[Any]) -> bool:
    """Whether a note is about the grant that a request speaks for."""
    if request.grant:
        return note.grant == request.grant
    if request.token is None:
        return note.session == request.session
    return (note.token, note.holder) == (request.token, request.agent)
