"""Acquiring, waiting and giving back on a store: what locks, slots and several at once share.

Waiting: the wait is committed first (so that it survives nothing but is seen by everybody), then
the waiter sleeps on a signal of its own.  Whoever gives back serves the next ones in the same
commit and signals just them.  A lapse is no signal, so each waiter also sets a timer for the
moment when somebody before it may lapse, a little later for each place in the queue.

Only who is served is woken.  If it dies with its grant, those behind it still have the timer of
the holder before, which may be minutes away; so nobody sleeps for long without a look: a second at
the head of the queue, five seconds at its end.

A wait that can never end is refused: each waiter reads the graph after its wait is committed, and
again with every nap, and the youngest of a circle withdraws (``core/deadlock.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import answers, keys, lock, queue
from interlock.core.decision import Decision, Outcome
from interlock.core.pool import Pool, Proof, proves
from interlock.core.queue import Ask, Caller
from interlock.driving import Op
from interlock.errors import InterlockError, Lapsed, StoreTrouble
from interlock.services import callers, states
from interlock.services.callers import Someone
from interlock.services.deadlock import Deadlocks
from interlock.services.gather import Gathering, looked_up, outside
from interlock.services.runner import ALIVE, Deciding, Done, Reading, Runner, Who
from interlock.services.steps import Open, Read, Take
from interlock.store import Item, Snapshot

T = TypeVar("T")

_BEHIND_EACH_OTHER = 0.02
_NAP = 1.0
_LONGEST_NAP = 5.0
_REMEMBERED = 4096


class Seat(Struct, frozen=True, kw_only=True):
    """Whose hands a grant goes into: the session, and whether the store knows that it lives.

    ``caller`` is who waits, if it is neither a task nor a thread of ours: see ``core/pool.py``.
    """

    who: Who
    session_ttl: float = 0.0
    joined: bool = False
    whole_session: bool = False
    caller: str = ""


class Queues:
    """Every operation on pools, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._deadlocks = Deadlocks(runner)
        self._held: dict[tuple[str, int], Someone] = {}
        self.owed: deque[tuple[Seat, Ask[Any]]] = deque()
        """Grants and waits that nobody wants any more and that could not be taken back yet."""
        self.on_owed: Callable[[], None] = lambda: None
        """Called when there is something to take back; whoever drives the keeper sets it."""
        self.speaks: Callable[[], Someone | None] = callers.current
        """Who of this process speaks; whoever plays several processes in one sets it."""

    def acquire(
        self, seat: Seat, ask: Ask[Any], *, wait: float | None = None, given: tuple[Proof, ...] = ()
    ) -> Op[Any]:
        """Take it, or queue for it until the wait is over; interrupted, leave no trace.

        The ask says what; the rest of its terms is filled in here.
        """
        base = yield from self._runner.base()
        deadline = None if wait is None else self._runner.clock.monotonic() + wait
        ask = self._on_terms(seat, ask, wait=bool(wait))
        while True:
            try:
                outcome = yield from self._acquire(seat, ask, base, deadline, given)
                if isinstance(outcome, answers.Gone) and len(ask.keys) > 1:
                    yield from self._take_back(seat, ask)  # some of it may be left
            except (StoreTrouble, GeneratorExit):
                # The store does not answer, or nobody drives us any more: later, then.
                self.owe(seat, ask)
                raise
            except BaseException:
                yield from self.give_up(seat, ask)
                raise
            if not isinstance(outcome, answers.Gone):
                self._note(ask, outcome)
                return outcome
            ask = replace(ask, grant=self._runner.new_id("grt"))

    def owe(self, seat: Seat, ask: Ask[Any]) -> None:
        """Take this back later."""
        self.owed.append((seat, ask))
        self.on_owed()

    def give_up(self, seat: Seat, ask: Ask[Any]) -> Op[None]:
        """Take back whatever of a grant or a wait reached the store; later, if not now."""
        try:
            yield from self._take_back(seat, ask)
        except (InterlockError, GeneratorExit) as error:
            self.owe(seat, ask)
            if not isinstance(error, InterlockError):
                raise
        except BaseException:
            self.owe(seat, ask)
            raise

    def let_go(self) -> set[str]:
        """The grants among what is owed."""
        return {ask.grant for _, ask in self.owed.copy()}

    def pay(self) -> Op[None]:
        """Take back what is owed, up to the first that cannot be yet: no lease may wait for it."""
        while self.owed:
            debt = self.owed.popleft()
            yield from self.give_up(*debt)
            if debt in self.owed:
                return

    def release(self, who: Who, caller: Caller[Any]) -> Op[Any]:
        """Give it back; whoever waits first has it with the same commit."""
        base = yield from self._runner.base()

        def deciding() -> Deciding[Outcome]:
            gathering = Gathering(self._runner, base)
            gathering.learn((yield caller.keys).items)
            now = self._runner.clock.wall()
            return (yield from gathering.decide(lambda known: queue.release(caller, known, now)))

        done: Done[Outcome] = yield from self._runner.change(
            deciding, who, self._recall(caller.keys), urgent=True
        )
        if isinstance(done.outcome, answers.Released):
            self._forget(caller)
        return done.outcome

    def heartbeat(self, who: Who, caller: Caller[Any], session_ttl: float = 0.0) -> Op[Any]:
        """Renew what keeps the grant alive."""
        base = yield from self._runner.base()
        key = caller.keys[0]
        held: Pool | None = None

        def deciding() -> Deciding[Outcome]:
            nonlocal held
            gathering = Gathering(self._runner, base)
            gathering.learn((yield (key,)).items)
            held = gathering.facts.pool(key)
            grant = queue.carried(held, caller)
            ttl = session_ttl
            if grant is not None and grant.ttl is None:
                ttl = yield from _session_ttl(grant.session, session_ttl)
            return (yield from gathering.decide(lambda known: queue.beat(caller, known, ttl)))

        done: Done[Outcome] = yield from self._runner.change(deciding, who)
        grant = queue.carried(held, caller)
        if isinstance(done.outcome, answers.Granted) and grant is not None and grant.max_hold:
            live: Snapshot = yield Read(*grant.live, times=True)
            return replace(done.outcome, expires_in=expires_in(live.items) or 0.0)
        return done.outcome

    def check(self, proof: Proof) -> Op[bool]:
        """Whether the grant of a proof is still there, and lives."""
        return (yield from outside(_holds(proof)))

    def standing(self, wanted: Iterable[str]) -> Op[frozenset[tuple[str, str]]]:
        """Which grants these pools have."""
        items = yield from looked_up(wanted)
        pools = {k: states.readable_pool(item, 0) for k, item in items.items() if item is not None}
        return frozenset((key, g.id) for key, pool in pools.items() if pool for g in pool.grants)

    def lifetimes(self, key: str, grant: str) -> Op[dict[str, float]]:
        """How long the grant's own liveness keys live from now on; empty if it is not ours."""
        own = (keys.live(grant), keys.limit(grant))
        snapshot: Snapshot = yield Read(key, *own, times=True)
        pool = states.pool(snapshot[key], 0)
        if pool is None or pool.grant(grant) is None:
            return {}
        return {key: item.expires_in or 0.0 for key in own if (item := snapshot[key])}

    def _on_terms(self, seat: Seat, ask: Ask[Any], *, wait: bool) -> Ask[Any]:
        """The ask of this caller: who it is, and whether others must find what it waits for."""
        someone = None if seat.caller else self.speaks()
        caller = seat.caller or (someone.name if someone else "")
        indexed = wait and (bool(seat.caller) or bool(someone and someone.holds))
        return replace(
            ask,
            grant=self._runner.new_id("grt"),
            agent=seat.who.agent,
            session=seat.who.session,
            caller=caller,
            whole_session=seat.whole_session,
            session_ttl=seat.session_ttl,
            wait=wait,
            indexed=indexed,
        )

    def _note(self, ask: Ask[Any], outcome: object) -> None:
        """Remember who of us has what: a caller that holds nothing is in nobody's way."""
        someone = self.speaks()
        if (
            someone is None
            or ask.caller != someone.name
            or not isinstance(outcome, answers.Granted)
        ):
            return
        if len(self._held) >= _REMEMBERED:
            someone.holds.add(self)  # from now on it may always hold something
            return
        for key in ask.keys:
            self._held[key, outcome.token or 0] = someone
            someone.holds.add((self, key, outcome.token or 0))

    def _forget(self, caller: Caller[Any]) -> None:
        """Who speaks for its session without a token gives back what it got last."""
        for key in caller.keys:
            token = caller.token
            if token is None:
                token = max((token for held, token in tuple(self._held) if held == key), default=0)
            if (someone := self._held.pop((key, token), None)) is not None:
                someone.holds.discard((self, key, token))

    def _recall(self, wanted: tuple[str, ...]) -> dict[str, Item | None]:
        """A guess, if we know all of them."""
        known: dict[str, Item | None] = {}
        if self._runner.capabilities.local:
            return known
        for key in wanted:
            known |= self._runner.recall(key)
        return known if len(known) == len(wanted) else {}

    def _acquire(
        self,
        seat: Seat,
        ask: Ask[Any],
        base: int,
        deadline: float | None,
        given: tuple[Proof, ...],
    ) -> Op[Outcome]:
        runner = self._runner
        own = (keys.live(seat.who.session),) if seat.joined else ()
        wanted = ask.keys
        last: Gathering | None = None

        def deciding() -> Deciding[Outcome]:
            nonlocal last
            items = (yield (*wanted, *own)).items
            if own and items[own[0]] is None:
                raise Lapsed(f"session {seat.who.session} lapsed; join again")
            for proof in given:
                if not (yield from _holds(proof)):
                    return Decision(outcome=ask.fenced(proof.thing))
            last = Gathering(runner, base)
            last.learn(items)
            call = ask if ask.token is None else (yield from self._extending(ask, last))
            now = runner.clock.wall()
            return (yield from last.decide(lambda known: queue.acquire(call, known, now)))

        guess: dict[str, Item | None] = self._guess(ask)
        if own:
            guess[own[0]] = ALIVE
        done: Done[Outcome] = yield from runner.change(deciding, seat.who, guess)
        outcome = done.outcome
        if isinstance(outcome, answers.Granted):
            stamped = _stamped(outcome, base, done.revision)
            fresh = outcome.grant == ask.grant
            return stamped if fresh else (yield from self._measured(ask, stamped, always=False))
        if isinstance(outcome, answers.Waiting):
            return (
                yield from self._wait(seat, ask, base, (deadline or 0.0, done.revision or 0), given)
            )
        if isinstance(outcome, answers.Busy):
            return (yield from self._timed(ask, outcome, last))
        return outcome

    def _guess(self, ask: Ask[Any]) -> dict[str, Item | None]:
        """A lock is free, and a semaphore as we left it, unless we learn otherwise."""
        guess: dict[str, Item | None] = {}
        if self._runner.capabilities.local:
            return guess  # nothing to save: it reads inside of its transaction
        for want in ask.wants:
            if want.key.startswith(keys.LOCKS):
                guess[want.key] = None
            else:
                known = self._runner.recall(want.key)
                if not known and want.capacity is None:
                    return {}
                guess |= known or {want.key: None}
        return guess

    def _extending(self, ask: Ask[Any], gathering: Gathering) -> Reading[Ask[Any]]:
        """What may be extended is the holder's session, by its own ttl and not by ours."""
        pool = gathering.facts.pool(ask.keys[0])
        for grant in () if pool is None else pool.grants:
            if (grant.token, grant.agent) == (ask.token, ask.agent):
                ttl = yield from _session_ttl(grant.session, ask.session_ttl)
                return replace(ask, session_ttl=ttl)
        return ask

    def _wait(
        self,
        seat: Seat,
        ask: Ask[Any],
        base: int,
        until: tuple[float, int],
        given: tuple[Proof, ...],
    ) -> Op[Outcome]:
        """Sleep until our turn comes, somebody before us may have lapsed, or the deadline."""
        deadline, revision = until
        clock = self._runner.clock
        watch = yield Open(keys.wake(ask.grant), revision)
        try:
            while True:
                found, nap, pools = yield from self._look_at(ask, base)
                if nap is None:
                    found = found or (yield from self._decide(queue.look, seat, ask, base))
                    if not isinstance(found, answers.Waiting):
                        return (yield from self._confirm(seat, ask, found, given))
                    continue
                if ask.indexed and self.owed:
                    yield from self.pay()  # others cannot know that we let go of it
                let_go = self.let_go() | callers.let_go()
                done = yield from self._deadlocks.refuse(seat.who, ask, base, pools, let_go)
                if done.outcome is not None:
                    refused = _stamped(done.outcome, base, done.revision)
                    return (yield from self._confirm(seat, ask, refused, given))
                left = deadline - clock.monotonic()
                if left <= 0:
                    final = yield from self._decide(queue.withdraw, seat, ask, base)
                    return (yield from self._confirm(seat, ask, final, given))
                yield Take(watch, min(left, nap))
        finally:
            watch.close()

    def _look_at(
        self, ask: Ask[Any], base: int
    ) -> Op[tuple[Outcome | None, float | None, dict[str, Pool | None]]]:
        """The grant if it is ours by now, else how long we may sleep; and the pools.

        Neither if there is something to decide: nobody is in the way any more, somebody before us
        is dead, or a turn came and went while we were away.
        """
        own = keys.live(ask.session if ask.ttl is None else ask.grant)
        mine = (own,) if ask.max_hold is None else (own, keys.limit(ask.grant))
        snapshot: Snapshot = yield Read(*ask.keys, *mine)
        seen = {key: states.pool(snapshot[key], base) for key in ask.keys}
        pools = list(seen.values())
        held = [pool.grant(ask.grant) for pool in pools if pool is not None]
        if pools[0] is not None and held[0] is not None and len(held) == len(pools):
            if None in held or None in [snapshot[key] for key in held[0].live]:
                return None, None, seen
            self._remember(ask, snapshot)
            standing = queue.Standing("granted", tuple(filter(None, pools)), held[0])
            return ask.answer(standing), None, seen
        return None, (yield from self._nap(ask, pools)), seen

    def _nap(self, ask: Ask[Any], pools: list[Pool | None]) -> Op[float | None]:
        """How long we may sleep: until somebody before us may have lapsed, and never for long."""
        places = [None if pool is None else pool.place(ask.grant) for pool in pools]
        if None in places:
            return None
        queues = [(pool, place or 0) for pool, place in zip(pools, places, strict=True) if pool]
        if all(place == 0 and _served(pool) for pool, place in queues):
            return None
        if any(pool.never(pool.waiters[place]) for pool, place in queues):
            return None
        live = yield from looked_up(_before(queues), times=True)
        if None in live.values():
            return None
        place = max(place for _, place in queues)
        soonest = max(expires_in(live) or 0.0, self._runner.capabilities.grain / 4)
        lapse = soonest + place * _BEHIND_EACH_OTHER + 0.001
        return min(lapse, _NAP * (1 + place / 2), _LONGEST_NAP)

    def _decide(
        self, decide: Callable[..., Decision[T]], seat: Seat, ask: Ask[Any], base: int
    ) -> Op[T]:
        def deciding() -> Deciding[T]:
            gathering = Gathering(self._runner, base)
            gathering.learn((yield ask.keys).items)
            now = self._runner.clock.wall()
            return (yield from gathering.decide(lambda known: decide(ask, known, now)))

        done: Done[T] = yield from self._runner.change(deciding, seat.who)
        return _stamped(done.outcome, base, done.revision)

    def _confirm(
        self, seat: Seat, ask: Ask[Any], outcome: Outcome, given: tuple[Proof, ...]
    ) -> Op[Outcome]:
        """Agree to a grant that came while we slept, if what it relies on still holds.

        One commit stretches its short ttl as asked, or gives it back.
        """
        if isinstance(outcome, answers.Busy):
            return (yield from self._timed(ask, outcome, None))
        if not isinstance(outcome, answers.Granted):
            return outcome
        if (ask.ttl is None or outcome.grant != ask.grant) and not given:
            return (yield from self._measured(ask, outcome))
        base = yield from self._runner.base()

        def deciding() -> Deciding[Decision[Any] | Outcome | str]:
            gathering = Gathering(self._runner, base)
            gathering.learn((yield ask.keys).items)
            now = self._runner.clock.wall()
            for proof in given:
                if not (yield from _holds(proof)):
                    back = yield from gathering.decide(lambda k: queue.abandon(ask, k, now))
                    return replace(back, outcome=ask.fenced(proof.thing))
            return (yield from gathering.decide(lambda k: queue.agree(ask, k)))

        done = yield from self._runner.change(deciding, seat.who, self._recall(ask.keys))
        if done.outcome == "agreed":
            return (yield from self._measured(ask, outcome))
        if isinstance(done.outcome, Outcome):
            return done.outcome
        gone: Outcome = ask.answer(queue.Standing("gone"))
        return gone

    def _measured(
        self, ask: Ask[Any], outcome: answers.Granted, *, always: bool = True
    ) -> Op[answers.Granted]:
        """How long a grant that is not of this moment lives: its maximum hold began before."""
        if ask.max_hold is not None or outcome.grant != ask.grant:
            limit = keys.limit(outcome.grant)
            item = (yield Read(limit, times=True))[limit]
            if item is not None:
                ttl = outcome.expires_in or ask.ttl or ask.session_ttl
                return replace(outcome, expires_in=_least(ttl, item.expires_in))
        return replace(outcome, expires_in=ask.ttl or ask.session_ttl) if always else outcome

    def _remember(self, ask: Ask[Any], snapshot: Snapshot) -> None:
        """A commit follows at once, to stretch the ttl."""
        if ask.ttl is not None:
            for key in ask.keys:
                if (item := snapshot[key]) is not None:
                    self._runner.remember(key, item)

    def _timed(self, ask: Ask[Any], outcome: Outcome, last: Gathering | None) -> Op[Outcome]:
        """A busy answer also says how long its holder lives at least."""
        if not isinstance(outcome, lock.Busy) or not outcome.holder:
            return outcome
        key = ask.keys[0]
        pool = last.facts.pools.get(key) if last else states.pool((yield Read(key))[key], 0)
        if pool is None or not pool.grants:
            return outcome
        wanted = pool.grants[0].live
        left = None if last is None else expires_in({each: last.times.get(each) for each in wanted})
        if left is None:
            left = expires_in((yield Read(*wanted, times=True)).items)
        return replace(outcome, expires_in=left)

    def _take_back(self, seat: Seat, ask: Ask[Any]) -> Op[None]:
        """Leave the queues, or release."""
        base = yield from self._runner.base()
        yield from self._decide(queue.abandon, seat, ask, base)


def expires_in(items: Mapping[str, Item | None]) -> float | None:
    """The least time left; None if one of them is gone."""
    times = [0.0 if item is None else item.expires_in or 0.0 for item in items.values()]
    return min(times, default=0.0) or None


def _before(queues: Iterable[tuple[Pool, int]]) -> list[str]:
    """The liveness of who is in our way: the holders, and while there is room who waits first.

    Somebody dead behind the first is in nobody's way yet, and cannot be cleared away either.
    """
    found: list[str] = []
    for pool, place in queues:
        found.extend(key for grant in pool.grants for key in grant.live)
        ahead = pool.waiters[:1] if place and pool.room > 0 else ()
        found.extend(waiter.live for waiter in ahead)
    return found


def _served(pool: Pool) -> bool:
    """Whether whoever waits first can have it now."""
    first = pool.waiters[0]
    return pool.fits(first.weight, more=bool(first.into))


def _holds(proof: Proof) -> Reading[bool]:
    """Whether a grant is still there, in all of its pools, and lives."""
    wanted = tuple([keys.of(thing) for thing in proof.thing.split("+")])
    items = (yield wanted).items
    pools = [states.pool(items[key], 0) for key in wanted]
    grants = [None if pool is None else pool.grant(proof.grant) for pool in pools]
    if None in grants or grants[0] is None:
        return False
    live = (yield grants[0].live).items
    return proves(pools[0], proof, {key for key, item in live.items() if item is not None})


def _session_ttl(session: str, otherwise: float) -> Reading[float]:
    key = keys.session(session)
    found = states.session((yield (key,))[key])
    return otherwise if found is None else found.ttl


def _stamped(outcome: T, base: int, revision: int | None) -> T:
    """A grant that this very commit wrote has its revision for a token."""
    if isinstance(outcome, answers.Granted) and outcome.token is None and revision is not None:
        return replace(outcome, token=base + revision)
    return outcome


def _least(*seconds: float | None) -> float | None:
    """The shortest of these spans; none of them says nothing."""
    return min((span for span in seconds if span), default=None)
