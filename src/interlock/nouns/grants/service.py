"""Acquiring and giving back on a store: what locks, slots and several at once share.

``waiting.py`` has what happens in between, if it does not happen at once.
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
from interlock.drivers import Op
from interlock.errors import InterlockError, Lapsed, StoreBusy, StoreTrouble
from interlock.nouns.grants import rules
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
from interlock.runtime import callers, decode, handover
from interlock.runtime.callers import LocalCaller
from interlock.runtime.decide import ALIVE, DecideOp, ReadOp
from interlock.runtime.gather import looked_up, outside
from interlock.runtime.given import holds
from interlock.runtime.handover import Handover
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

_REMEMBERED = 4096


class PendingRelease(Struct, frozen=True, eq=False):
    """A grant that is to be taken back, of what, and how."""

    grant: str
    thing: str
    run: Callable[[], Op[None]]


class OwnPools:
    """The pools that one client may have something of, so that nobody has to look for them.

    It may name too many, and never too few: what is asked for counts, what was answered by an
    error counts, and what is given back without a token counts on.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[str, ...]] = {}
        self._granted: dict[tuple[str, int], None] = {}
        self._perhaps: dict[str, None] = {}

    def asks(self, grant: str, pools: tuple[str, ...]) -> None:
        """A grant of these is asked for, until it is answered."""
        self._asked[grant] = pools

    def answered(self, grant: str, outcome: object) -> None:
        """It was granted or refused."""
        if isinstance(outcome, outcomes.Granted):
            for key in self._asked[grant]:
                if len(self._granted) < _REMEMBERED:
                    self._granted[key, outcome.token or 0] = None
                else:  # most of these lapsed, and nobody gave them back
                    self._may_have((key,))
        del self._asked[grant]

    def unanswered(self, grant: str, *, refused: bool) -> None:
        """An error ended it; one that ``refused`` it left nothing behind."""
        pools = self._asked.pop(grant, ())
        if not refused:
            self._may_have(pools)

    def _may_have(self, pools: tuple[str, ...]) -> None:
        if len(self._perhaps) <= _REMEMBERED:  # beyond that nobody counts on it
            self._perhaps.update(dict.fromkeys(pools))

    def released(self, pools: tuple[str, ...], token: int | None) -> None:
        """It was given back, or is over; without a token nobody knows which grant that was."""
        if token is not None:
            for key in pools:
                self._granted.pop((key, token), None)
        else:
            self._may_have(pools)
            for each in [each for each in tuple(self._granted) if each[0] in pools]:
                self._granted.pop(each, None)

    def pools(self) -> Collection[str] | None:
        """All of them; None if there were too many to count."""
        if len(self._perhaps) > _REMEMBERED:  # looking for them is as quick by then
            return None
        asked = [key for some in tuple(self._asked.values()) for key in some]
        return {*asked, *[key for key, _ in tuple(self._granted)], *tuple(self._perhaps)}


class GrantService:
    """Every operation on pools, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting = PoolWaits(runner)
        self._held: dict[tuple[str, int], LocalCaller] = {}
        self._own = OwnPools()
        runner.settling.on_unsettled = self._notify
        self.pending: deque[PendingRelease] = deque()
        """Grants and waits that nobody wants any more and that could not be taken back yet."""
        self.has_new_pending = False
        """Whether some of that was not tried yet."""
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is something to take back; whoever drives the keeper sets it."""
        self.handovers: set[Handover] = set()
        """What callers have in blocks."""
        self.abandoned: deque[Handover] = deque()
        """What was abandoned otherwise."""
        self.wake_keeper: Callable[..., object] = lambda *_: None
        """Wakes who drives the keeper, at any moment: it takes no lock.  That sets it."""
        self.on_abandoned_grant: Callable[[str], None] = lambda _grant: None
        """Called with a grant that its caller has lost, so that it is not renewed."""
        self.current_caller: Callable[[], LocalCaller | None] = callers.current
        """Who of this process speaks; whoever plays several processes in one sets it."""

    def acquire(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        *,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
    ) -> Op[Any]:
        """Take it, or queue for it until the wait is over; interrupted, leave no trace.

        The ask says what; the rest of its terms is filled in here.
        """
        base = yield from self._runner.base()
        deadline = self._runner.clock.monotonic() + wait if wait else None
        local_caller = None if identity.caller else self.current_caller()
        request = self._on_terms(identity, request, local_caller, wait=bool(wait))
        own_handover = handover.current(self)
        wanted = request.keys
        while True:
            # Before the attempt: the keeper may take something back meanwhile.
            pending = self.pending_grants() if identity.whole_session else frozenset()
            own_handover.add(request.grant, partial(self._debts, identity, request))
            self._own.asks(request.grant, wanted)
            try:
                outcome = yield from self._acquire(identity, request, base, deadline, given)
                self._own.answered(request.grant, outcome)
                if isinstance(outcome, outcomes.Granted) and outcome.grant in pending:
                    # A session as a whole found a grant of an attempt that was given up.
                    yield from self._taken_back(outcome.grant)
                    outcome = outcomes.Gone()
                if isinstance(outcome, outcomes.Gone) and len(wanted) > 1:
                    yield from self._take_back(identity, request)  # some of it may be left
            except (StoreTrouble, GeneratorExit):
                # The store does not answer, or nobody drives us any more: later, then.
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

    def _taken_back(self, grant: str) -> Op[None]:
        """Take back what is owed of a grant, before it is asked for anew."""
        yield from self.release_pending()
        if grant in self.pending_grants():
            raise StoreBusy("an earlier grant could not be given back yet; try again")

    def release_later(self, identity: Identity, request: GrantRequest[Any]) -> None:
        """Take this back later."""
        self.add_pending(*self._debts(identity, request))

    def add_pending(self, release: PendingRelease) -> None:
        """The same for anything that is granted."""
        self.pending.append(release)
        self.has_new_pending = True
        self.on_pending()

    @property
    def has_pending(self) -> bool:
        """Whether there is something to settle or to take back."""
        return bool(self.pending or self._runner.settling.unsettled)

    def _notify(self) -> None:
        self.on_pending()

    def abandon(self, identity: Identity, request: GrantRequest[Any]) -> Op[None]:
        """Take back whatever of a grant or a wait reached the store; later, if not now."""
        yield from self.release_or_queue(*self._debts(identity, request))

    def release_or_queue(self, release: PendingRelease) -> Op[None]:
        """Take back anything that is granted, once no request that may grant it can arrive."""
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
        """The grants among what is owed."""
        self.collect_abandoned()
        return {release.grant for release in self.pending.copy()}

    def collect_abandoned(self) -> bool:
        """Owe what is on tickets that were abandoned; whether there were any.

        A ticket goes last: whatever strikes in between, it is found again.
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
        """Settle what is unknown, then take back what is owed.

        Up to the first that cannot be done yet: no lease may wait for it.  A debt goes when it is
        paid, so an interrupt in between loses none.
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
            except IndexError:  # another thread was quicker
                return
            try:
                yield from release.run()
            except InterlockError:
                self.pending.rotate(-1)
                return
            with suppress(ValueError):
                self.pending.remove(release)

    def release(self, actor: Actor, request: HolderRequest[Any]) -> Op[Any]:
        """Give it back; whoever waits first has it with the same commit."""
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
        """End the grant of another; those who wait have it with the same commit."""
        base = yield from self._runner.base()

        def deciding() -> DecideOp[Outcome]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield (request.key,)).items)
            now = self._runner.clock.wall()
            return (yield from reader.decide(lambda facts: rules.break_grant(request, facts, now)))

        done: Decided[Outcome] = yield from self._runner.change(deciding, actor, urgent=True)
        return done.outcome

    def _with_break_note(self, request: HolderRequest[Any], outcome: Outcome) -> Op[Any]:
        """A refusal, with who ended the grant and why, if an operator did."""
        if isinstance(outcome, outcomes.Granted | outcomes.Released):
            return outcome
        for key in request.keys:
            for note in (yield from outside(break_notes(thing_of(key)))):
                if _is_of(note, request):
                    return request.broken_by(note)
        return outcome

    def own_pools(self) -> Collection[str] | None:
        """The pools that this client may have something of; None if it lost count."""
        return self._own.pools()

    def heartbeat(
        self, actor: Actor, request: HolderRequest[Any], session_ttl: float = 0.0
    ) -> Op[Any]:
        """Renew what keeps the grant alive."""
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
        """Whether the grant of a proof is still there, and lives."""
        base = yield from self._runner.base()
        return (yield from outside(holds(proof, base)))

    def grants_in(self, wanted: Iterable[str]) -> Op[frozenset[tuple[str, str]]]:
        """Which grants these pools, and tasks by their owners, have."""
        items = yield from looked_up(wanted)
        found = [(key, decode.granted(item)) for key, item in items.items() if item is not None]
        return frozenset((key, grant) for key, grants in found for grant in grants)

    def break_note(self, wanted: Iterable[str]) -> Op[BreakNote | None]:
        """What an operator noted who ended a grant, under one of these keys."""
        items = yield from looked_up(wanted)
        return next(filter(None, (decode.readable(decode.broken, i) for i in items.values())), None)

    def lifetimes(self, key: str, grant: str) -> Op[dict[str, float]]:
        """How long the grant's own liveness keys live from now on; empty if it is not ours."""
        own = (keys.live(grant), keys.max_hold(grant))
        snapshot: Snapshot = yield Read(key, *own, times=True)
        pool = decode.pool(snapshot[key], 0)
        if pool is None or pool.grant(grant) is None:
            return {}
        return {key: item.expires_in or 0.0 for key in own if (item := snapshot[key])}

    def _on_terms(
        self,
        identity: Identity,
        request: GrantRequest[Any],
        local_caller: LocalCaller | None,
        *,
        wait: bool,
    ) -> GrantRequest[Any]:
        """The ask of this caller: who it is, and whether others must find what it waits for."""
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
        """Remember who of us has what: a caller that holds nothing is in nobody's way."""
        if local_caller is not None and isinstance(outcome, outcomes.Granted):
            self.add_holder(local_caller, request.keys, outcome.token or 0)

    def add_holder(self, local_caller: LocalCaller, wanted: tuple[str, ...], token: int) -> None:
        """The same for anything that is granted."""
        if len(self._held) >= _REMEMBERED:
            local_caller.holds.add(self)  # from now on it may always hold something
            return
        for key in wanted:
            self._held[key, token] = local_caller
            local_caller.holds.add((self, key, token))

    def remove_holder(self, wanted: tuple[str, ...], token: int | None) -> None:
        """Who speaks for its session without a token gives back what it got last."""
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
            if got.grant != request.grant:  # one that we have for longer
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
        """One attempt to acquire; leaves what it came to know, if that was more than the pool."""
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
            pool = decode.pool(items[wanted[0]], base)
            if (quick := rules.acquire_uncontended(request, pool, now)) is not None:
                return quick
        reader = PoolReader(self._runner, base)
        reader.learn(items)
        known.append(reader)
        call = request if request.token is None else (yield from self._extending(request, reader))
        return (yield from reader.decide(lambda facts: rules.acquire(call, facts, now)))

    def _guess(self, request: GrantRequest[Any]) -> dict[str, Item | None]:
        """A lock is free, and a semaphore as we left it, unless we learn otherwise."""
        guess: dict[str, Item | None] = {}
        if self._runner.capabilities.transacts:
            return guess  # nothing to save: it reads inside of its transaction
        for want in request.demands:
            if want.key.startswith(keys.LOCKS):
                guess[want.key] = None
            else:
                known = self._runner.recall(want.key)
                if not known and want.capacity is None:
                    return {}
                guess |= known or {want.key: None}
        return guess

    def _extending(
        self, request: GrantRequest[Any], reader: PoolReader
    ) -> ReadOp[GrantRequest[Any]]:
        """What may be extended is the holder's session, by its own ttl and not by ours."""
        pool = reader.facts.pool(request.keys[0])
        for grant in () if pool is None else pool.grants:
            if (grant.token, grant.agent) == (request.token, request.agent):
                ttl = yield from session_ttl_of(grant.session, request.session_ttl)
                return replace(request, session_ttl=ttl)
        return request

    def _debts(self, identity: Identity, request: GrantRequest[Any]) -> tuple[PendingRelease]:
        """What takes a grant or a wait back."""
        return (
            PendingRelease(
                request.grant, request.thing, lambda: self._take_back(identity, request)
            ),
        )

    def _take_back(self, identity: Identity, request: GrantRequest[Any]) -> Op[None]:
        """Leave the queues, or release."""
        base = yield from self._runner.base()
        yield from self._waiting.decide(rules.abandon, identity, request, base)


def break_notes(thing: str) -> ReadOp[list[BreakNote]]:
    """The notes about grants of a thing that operators ended, the latest first."""
    page = Range(keys.broken(thing))
    items = (yield (page,)).ranges[page]
    found = [note for item in items if (note := decode.readable(decode.broken, item)) is not None]
    return sorted(found, key=lambda note: -note.at)


def _is_of(note: BreakNote, request: HolderRequest[Any]) -> bool:
    """Whether a note is about the grant that a request speaks for."""
    if request.grant:
        return note.grant == request.grant
    if request.token is None:
        return note.session == request.session
    return (note.token, note.holder) == (request.token, request.agent)
