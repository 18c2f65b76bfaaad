"""Acquires, renews and releases grants on a store, for locks, slots and several at once.

``pool_wait.py`` has the wait of a request that is not granted at once, and ``handover.py`` what
becomes of a grant that its caller gave up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Outcome, Proof
from interlock.errors import (
    InterlockError,
    Lapsed,
    StoreBusy,
    StoreInUse,
    StoreTrouble,
    note_pending,
)
from interlock.nouns.grants import handover, rules
from interlock.nouns.grants.handover import PendingRelease, PendingReleases
from interlock.nouns.grants.lock import LockBusy
from interlock.nouns.grants.pool import BreakNote, Grant, Pool
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.nouns.grants.pool_reader import (
    PoolReader,
    decide_on,
    decode_break_note,
    decode_pool,
    grant_ids,
)
from interlock.nouns.grants.request import BreakRequest, GrantRequest, GrantTarget, HolderRequest
from interlock.runtime import callers, reads
from interlock.runtime.attempt import ALIVE, DecideOp, ReadOp
from interlock.runtime.callers import LocalCaller
from interlock.runtime.given import holds
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import looked_up, outside
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot
from interlock.thread_calls import in_call

if TYPE_CHECKING:
    from interlock.nouns.grants.guarded import GrantGate

T = TypeVar("T")


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
            token, pools = outcome.token or 0, self._requested[grant]
            if len(self._granted) < callers.MOST_REMEMBERED:
                for key in pools:
                    self._granted[key, token] = None
            else:  # most of these expired without a release
                self._may_have(pools)
        del self._requested[grant]

    def unanswered(self, grant: str, *, refused: bool) -> None:
        """An error ended the request; one that ``refused`` it left no grant."""
        pools = self._requested.pop(grant, ())
        if not refused:
            self._may_have(pools)

    def _may_have(self, pools: tuple[str, ...]) -> None:
        if len(self._uncertain) <= callers.MOST_REMEMBERED:  # beyond that, pools() is None
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
        if len(self._uncertain) > callers.MOST_REMEMBERED:  # a search for them is as quick by then
            return None
        asked = [key for some in tuple(self._requested.values()) for key in some]
        return {*asked, *[key for key, _ in tuple(self._granted)], *tuple(self._uncertain)}


class GrantService(PendingReleases):
    """Every operation on pools; the methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self.holders = callers.LocalHolders()
        self.own = OwnPools()
        self.current_caller: Callable[[], LocalCaller | None] = callers.current
        """The current task or thread; a test that plays several processes in one sets it."""

    def acquire(
        self,
        identity: Identity,
        target: GrantTarget,
        *,
        ttl: float | None = None,
        max_hold: float | None = None,
        metadata: object = None,
        token: int | None = None,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
        gate: GrantGate | None = None,
    ) -> Op[Any]:
        """Take it, or queue for it until the wait is over; an interrupted call leaves nothing.

        With a ``gate`` every commit that grants or queues checks its guards.
        """
        runner, actor = self.runner, identity.actor
        if (base := runner.token_base) is None:
            base = yield from runner.base()
        local_caller = None if identity.caller else self.current_caller()
        request = GrantRequest(
            target=target,
            grant=runner.new_id("grt"),
            agent=actor.agent,
            session=actor.session,
            caller=identity.caller if local_caller is None else local_caller.name,
            ttl=ttl,
            max_hold=max_hold,
            metadata=metadata,
            token=token,
            whole_session=identity.whole_session,
            session_ttl=identity.session_ttl,
            listed=identity.listed,
        )
        ends = 0.0
        if wait:
            ends = runner.clock.monotonic() + wait
            terms = callers.caller_terms(identity.caller, local_caller)
            request = replace(request, wait=True, indexed=terms.indexed, also=terms.also)
        own_handover, wanted = handover.current(self), target.keys
        while True:
            # Before the attempt: the keeper may release some of them during it.
            pending = self.pending_grants() if identity.whole_session else ()
            grant = request.grant
            own_handover.add(grant, partial(self._pending_releases, identity, target, grant))
            self.own.requested(grant, wanted)
            try:
                attempt = AcquireAttempt(self, identity, request, base, given, gate)
                done = yield from attempt.commit()
                outcome = with_commit_token(done.outcome, base, done.revision)
                if not isinstance(outcome, outcomes.Granted) or outcome.grant != grant:
                    outcome = yield from attempt.followed(outcome, done.revision, ends)
                self.own.answered(grant, outcome)
                if pending or len(wanted) > 1:
                    outcome = yield from self._without_given_up(
                        actor, request, base, outcome, pending
                    )
            except (StoreTrouble, GeneratorExit) as error:
                # The store does not answer, or this generator was closed: release it later.
                self.own.unanswered(grant, refused=False)
                self.release_later(identity, target, grant)
                own_handover.remove(grant)
                note_pending(error)
                raise
            except BaseException as error:
                self.own.unanswered(grant, refused=isinstance(error, InterlockError))
                yield from self.abandon(identity, target, grant)
                own_handover.remove(grant)
                raise
            if isinstance(outcome, outcomes.Granted):
                self.holders.add(local_caller, wanted, outcome.token or 0)
                return outcome
            own_handover.remove(grant)
            if not isinstance(outcome, outcomes.Gone):
                return outcome  # one that holds nothing blocks no other caller
            request = replace(request, grant=runner.new_id("grt"))

    def _without_given_up(
        self,
        actor: Actor,
        request: GrantRequest,
        base: int,
        outcome: Any,  # noqa: ANN401 - as the target makes it
        pending: Collection[str],
    ) -> Op[Any]:
        """The outcome; ``Gone`` instead of a grant that its caller gave up."""
        if isinstance(outcome, outcomes.Granted) and outcome.grant in pending:
            # A call for the whole session found the grant of an attempt that was given up.
            yield from self._release_earlier(outcome.grant)
            outcome = outcomes.Gone()
        if isinstance(outcome, outcomes.Gone) and len(request.keys) > 1:
            # One of its pools may still have it.
            yield from self.decide(rules.abandon, actor, request, base)
        return outcome

    def _release_earlier(self, grant: str) -> Op[None]:
        """Release the pending grant, before a new request."""
        yield from self.release_pending()
        if grant in self.pending_grants():
            raise StoreBusy("an earlier grant could not be released yet; retry")

    def release_later(self, identity: Identity, target: GrantTarget, grant: str) -> None:
        """Release a grant, or end the wait for it, later."""
        self.add_pending(*self._pending_releases(identity, target, grant))

    def abandon(self, identity: Identity, target: GrantTarget, grant: str) -> Op[None]:
        """Release a grant, or end the wait for it; later, if not now."""
        return self.release_or_queue(*self._pending_releases(identity, target, grant))

    def _pending_releases(
        self, identity: Identity, target: GrantTarget, grant: str
    ) -> tuple[PendingRelease]:
        request = GrantRequest(target=target, grant=grant, agent="", session="")

        def run() -> Op[None]:
            base = yield from self.runner.base()
            yield from self.decide(rules.abandon, identity.actor, request, base)

        return (PendingRelease(grant, target.thing, run),)

    def decide(
        self,
        decide: Callable[[GrantRequest, PoolFacts, float], Decision[T]],
        actor: Actor,
        request: GrantRequest,
        base: int,
        *,
        hopeful: bool = True,
    ) -> Op[T]:
        """Carry out a decision about this request."""
        done: Decided[T] = yield from self.runner.change(
            lambda: decide_on(self.runner, base, request.keys, partial(decide, request)),
            actor,
            hopeful=hopeful,
        )
        return with_commit_token(done.outcome, base, done.revision)

    def release(
        self,
        actor: Actor,
        target: GrantTarget,
        *,
        token: int | None = None,
        grant: str = "",
        weights: tuple[tuple[str, int], ...] = (),
    ) -> Op[Any]:
        """Release a grant; the first waiters that fit have it with the same commit.

        Inside of another call of this thread the keeper does it, if it is known which grant it is.
        """
        request = HolderRequest(
            target=target,
            agent=actor.agent,
            session=actor.session,
            token=token,
            grant=grant,
            weights=weights,
        )
        try:
            return (yield from self._release(actor, request))
        except StoreInUse:
            if not in_call():  # a handler that ran inside of this call raised it
                raise
            if token is None and (token := self.holders.last_token(target.keys[0])) is None:
                raise
            later = partial(self._release, actor, replace(request, token=token))
            self.add_pending(PendingRelease(grant, target.thing, later))
            return replace(target.released(target.things, ()), later=True)

    def _release(self, actor: Actor, request: HolderRequest) -> Op[Any]:
        base = yield from self.runner.base()
        wanted, token = request.target.keys, request.token

        def deciding() -> DecideOp[Outcome]:
            reader = PoolReader(self.runner, base)
            reader.learn((yield wanted).items)
            held = rules.held_grant(reader.facts.pool(wanted[0]), request)
            yield from reader.look_ahead(*(() if held is None else held.live))
            now = self.runner.clock.wall()
            return (yield from reader.decide(lambda facts: rules.release(request, facts, now)))

        done: Decided[Outcome] = yield from self.runner.change(
            deciding, actor, recalled(self.runner, wanted), urgent=True
        )
        if isinstance(done.outcome, outcomes.Released):
            self.holders.remove(wanted, token)
            self.own.released(wanted, token)
        elif isinstance(done.outcome, outcomes.Fenced) and token is not None:
            self.own.released(wanted, token)
        return (yield from self._with_break_note(request, done.outcome))

    def break_grant(
        self,
        actor: Actor,
        target: GrantTarget,
        reason: str,
        *,
        holder: str = "",
        token: int | None = None,
    ) -> Op[Any]:
        """End the grant of another agent; the waiters are served with the same commit."""
        request = BreakRequest(
            target=target, by=actor.agent, reason=reason, holder=holder, token=token
        )
        decide = partial(rules.break_grant, request)
        return self.change_pool(actor, target.keys[0], decide, urgent=True)

    def change_pool(
        self,
        actor: Actor,
        key: str,
        decide: Callable[[PoolFacts, float], Decision[T]],
        *,
        urgent: bool = False,
    ) -> Op[T]:
        """Carry out a decision about one pool."""
        base = yield from self.runner.base()
        done: Decided[T] = yield from self.runner.change(
            lambda: decide_on(self.runner, base, (key,), decide), actor, urgent=urgent
        )
        return done.outcome

    def heartbeat(
        self,
        actor: Actor,
        target: GrantTarget,
        *,
        token: int | None = None,
        session_ttl: float = 0.0,
    ) -> Op[Any]:
        """Renew the liveness of a grant; an expired one is not revived."""
        request = HolderRequest(
            target=target, agent=actor.agent, session=actor.session, token=token
        )
        base = yield from self.runner.base()
        (key,) = target.keys
        grant: Grant | None = None

        def deciding() -> DecideOp[Outcome]:
            nonlocal grant
            reader = PoolReader(self.runner, base)
            reader.learn((yield (key,)).items)
            grant = rules.held_grant(reader.facts.pool(key), request)
            ttl = session_ttl
            if grant is not None and grant.ttl is None:
                ttl = yield from session_ttl_of(grant.session, session_ttl)
            return (yield from reader.decide(lambda facts: rules.beat(request, facts, ttl)))

        done: Decided[Outcome] = yield from self.runner.change(deciding, actor)
        if isinstance(done.outcome, outcomes.Granted) and grant is not None and grant.max_hold:
            live: Snapshot = yield Read(*grant.live, times=True)
            return replace(done.outcome, expires_in=expires_in(live.items) or 0.0)
        return (yield from self._with_break_note(request, done.outcome))

    def _with_break_note(self, request: HolderRequest, outcome: Outcome) -> Op[Any]:
        """The refusal, with the operator and the reason if an operator ended the grant."""
        if isinstance(outcome, outcomes.Granted | outcomes.Released):
            return outcome
        for thing in request.target.things:
            for note in (yield from outside(break_notes(thing))):
                if _is_of(note, request):
                    return request.target.fenced(by=note.by, reason=note.reason)
        return outcome

    def check(self, proof: Proof) -> Op[bool]:
        """Whether the grant of a proof still exists and lives."""
        base = yield from self.runner.base()
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


class AcquireAttempt(Struct, eq=False):
    """One attempt of a service to carry out a request for a grant.

    ``reader`` is what the decision read, if that was more than the pool.
    """

    grants: GrantService
    identity: Identity
    request: GrantRequest
    base: int
    given: tuple[Proof, ...]
    gate: GrantGate | None
    reader: PoolReader | None = None

    def commit(self) -> Op[Decided[Any]]:
        """Decide and commit."""
        runner, actor = self.grants.runner, self.identity.actor
        guess = None if runner.capabilities.transacts else self._guess(runner)
        if self.gate is not None:
            return self.gate.change(self._deciding, actor, guess)
        return runner.change(self._deciding, actor, guess)

    def followed(self, outcome: Outcome, revision: int | None, ends: float) -> Op[Any]:
        """The outcome that the caller gets: after its wait, or with the time that a grant lives."""
        request, reader = self.request, self.reader
        if isinstance(outcome, outcomes.Granted):  # an existing grant
            return (yield from measured(request, outcome, always=False))
        if isinstance(outcome, outcomes.Waiting):
            from interlock.nouns.grants.pool_wait import PoolWait  # most calls do not wait

            wait = PoolWait(
                self.grants, self.identity, request, self.base, self.given, gate=self.gate
            )
            queued = None if revision is None else reader
            return (yield from wait.run(ends, revision or 0, queued))
        if isinstance(outcome, outcomes.Busy):
            return (yield from timed(request, outcome, reader))
        return outcome

    def _deciding(self) -> DecideOp[Outcome]:
        identity, request, base = self.identity, self.request, self.base
        runner, target = self.grants.runner, request.target
        own = (keys.live(identity.actor.session),) if identity.joined else ()
        wanted, now = target.keys, runner.clock.wall()
        items = (yield wanted + own).items
        if own and items[own[0]] is None:
            raise Lapsed(f"session {identity.actor.session} expired; join again")
        for proof in self.given:
            if not (yield from holds(proof, base, request.agent)):
                return Decision(outcome=target.given_fenced(proof.thing))
        if request.token is not None:
            for note in (yield from break_notes(target.thing)):
                if (note.token, note.holder) == (request.token, request.agent):
                    return Decision(outcome=target.fenced(by=note.by, reason=note.reason))
        decoded: dict[str, Pool | None] = {}
        if len(wanted) == 1:
            item = items[wanted[0]]
            pool = None if item is None else decode_pool(item, base)
            if (quick := rules.acquire_uncontended(request, pool, now)) is not None:
                return quick
            decoded = {wanted[0]: pool}
        reader = PoolReader(runner, base)
        reader.learn(items, decoded=decoded)
        self.reader = reader
        if request.token is not None:
            request = yield from _with_session_ttl(request, reader)
        yield from reader.look_ahead(lists=request.wait)
        decision = yield from reader.decide(partial(rules.acquire, request, now=now))
        reader.note_written(decision)
        return decision

    def _guess(self, runner: Runner) -> dict[str, Item | None]:
        """The guess that a lock is free, and a semaphore as this client left it."""
        guess: dict[str, Item | None] = {}
        for want in self.request.target.demands:
            if want.key.startswith(keys.LOCKS):
                guess[want.key] = None
                continue
            known = runner.recall(want.key)
            if not known and want.capacity is None:
                guess = {}
                break
            guess |= known or {want.key: None}
        if self.identity.joined:
            guess[keys.live(self.identity.actor.session)] = ALIVE
        return guess


def _with_session_ttl(request: GrantRequest, reader: PoolReader) -> ReadOp[GrantRequest]:
    """The request with the ttl of the holder's session, which may not be the caller's."""
    pool = reader.facts.pool(request.keys[0])
    for grant in () if pool is None else pool.grants:
        if (grant.token, grant.agent) == (request.token, request.agent):
            ttl = yield from session_ttl_of(grant.session, request.session_ttl)
            return replace(request, session_ttl=ttl)
    return request


def break_notes(thing: str) -> ReadOp[list[BreakNote]]:
    """The notes about the grants of a thing that operators ended, the latest first."""
    page = Range(keys.broken(thing))
    items = (yield (page,)).ranges[page]
    found = [
        note for item in items if (note := reads.readable(decode_break_note, item)) is not None
    ]
    return sorted(found, key=lambda note: -note.at)


def expires_in(items: Mapping[str, Item | None]) -> float | None:
    """The least time left; None if one of them is gone, or it is not known."""
    times = [0.0 if item is None else item.life or 0.0 for item in items.values()]
    return min(times, default=0.0) or None


def session_ttl_of(session: str, otherwise: float) -> ReadOp[float]:
    """How long a session lives after a beat."""
    from interlock.nouns.agents.session_service import decode_session  # few calls need it

    key = keys.session(session)
    found = decode_session((yield (key,))[key])
    return otherwise if found is None else found.ttl


def with_commit_token(outcome: T, base: int, revision: int | None) -> T:
    """A grant that this commit wrote, with its revision as the token."""
    if isinstance(outcome, outcomes.Granted) and outcome.token is None and revision is not None:
        return replace(outcome, token=base + revision)
    return outcome


def recalled(runner: Runner, wanted: tuple[str, ...]) -> dict[str, Item | None]:
    """A guess of these items, if all of them are remembered."""
    known: dict[str, Item | None] = {}
    if runner.capabilities.transacts:
        return known
    for key in wanted:
        known |= runner.recall(key)
    return known if len(known) == len(wanted) else {}


def measured(
    request: GrantRequest, outcome: outcomes.Granted, *, always: bool = True
) -> Op[outcomes.Granted]:
    """A grant with the time that it still lives: its maximum hold began with the commit."""
    if request.max_hold is not None or outcome.grant != request.grant:
        limit = keys.max_hold(outcome.grant)
        item = (yield Read(limit, times=True))[limit]
        if item is not None:
            ttl = outcome.expires_in or request.ttl or request.session_ttl
            return replace(outcome, expires_in=_least(ttl, item.expires_in))
    return replace(outcome, expires_in=request.ttl or request.session_ttl) if always else outcome


def timed(request: GrantRequest, outcome: Outcome, last: PoolReader | None) -> Op[Outcome]:
    """A busy outcome with the time that its holder lives at least."""
    if not isinstance(outcome, LockBusy) or not outcome.holder:
        return outcome
    key = request.keys[0]
    pool = last.facts.pools.get(key) if last else decode_pool((yield Read(key))[key], 0)
    if pool is None or not pool.grants:
        return outcome
    wanted = pool.grants[0].live
    if not wanted:
        return outcome
    left = None if last is None else expires_in({each: last.live.get(each) for each in wanted})
    if left is None:
        left = expires_in((yield Read(*wanted, times=True)).items)
    return replace(outcome, expires_in=left)


def _least(*seconds: float | None) -> float | None:
    """The shortest of these spans that are known."""
    return min((span for span in seconds if span), default=None)


def _is_of(note: BreakNote, request: HolderRequest) -> bool:
    """Whether a note is about the grant that a request speaks for."""
    if request.grant:
        return note.grant == request.grant
    if request.token is None:
        return note.session == request.session
    return (note.token, note.holder) == (request.token, request.agent)
