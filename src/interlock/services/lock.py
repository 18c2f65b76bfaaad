"""Locks on a store: what to read for each decision, and how to wait.

Waiting: the wait is committed first (so that it survives nothing but is seen by everybody), then
the waiter sleeps on a signal of its own.  Whoever releases hands over in the same commit and
signals just the successor.  A lapse is no signal, so each waiter also sets a timer for the moment
when the holder's liveness may lapse, a little later for each place in the queue.

Only the successor is woken by a hand-over.  If it dies with the lock, those behind it still have
the timer of the holder before, which may be minutes away; so nobody sleeps for long without a
look: a second at the head of the queue, five seconds at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core import lock as core
from interlock.core.decision import Decision
from interlock.driving import Op
from interlock.errors import InterlockError, Lapsed, StoreTrouble
from interlock.services import states
from interlock.services.runner import ALIVE, Deciding, Done, Glance, Reading, Runner, Who
from interlock.services.steps import Open, Read, Take
from interlock.store import Item, Range, Snapshot

T = TypeVar("T")
Settled: TypeAlias = core.Acquired | core.Reclaimed | core.Busy | core.Gone
Found: TypeAlias = core.Acquired | core.Reclaimed | core.Waiting | core.Gone

_WAITERS_AT_ONCE = 16
_KEYS_AT_ONCE = 100
_BEHIND_EACH_OTHER = 0.02
_NAP = 1.0
_LONGEST_NAP = 5.0


class Seat(Struct, frozen=True, kw_only=True):
    """Whose hands a grant goes into: the session, and whether the store knows that it lives."""

    who: Who
    session_ttl: float = 0.0
    joined: bool = False
    whole_session: bool = False


class Shown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lock as a person sees it."""

    lock: str
    state: str
    holder: str = ""
    token: int | None = None
    since: float | None = None
    expires_in: float | None = None
    max_hold: float | None = None
    session: str = ""
    metadata: Any = None
    waiters: tuple[str, ...] = ()


class Locks:
    """Every operation on locks, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.owed: deque[tuple[Seat, str, str]] = deque()
        """Grants and waits that nobody wants any more and that could not be taken back yet."""
        self.on_owed: Callable[[], None] = lambda: None
        """Called when there is something to take back; whoever drives the keeper sets it."""

    def owe(self, seat: Seat, name: str, grant: str) -> None:
        """Take this back later."""
        self.owed.append((seat, name, grant))
        self.on_owed()

    def acquire(
        self,
        seat: Seat,
        name: str,
        *,
        ttl: float | None = None,
        max_hold: float | None = None,
        metadata: object = None,
        token: int | None = None,
        wait: float | None = None,
        given: tuple[core.Proof, ...] = (),
    ) -> Op[core.AcquireOutcome]:
        """Take the lock, or queue for it until the wait is over; interrupted, leave no trace."""
        base = yield from self._runner.base()
        deadline = None if wait is None else self._runner.clock.monotonic() + wait
        while True:
            command = core.Acquire(
                lock=name,
                grant=self._runner.new_id("grt"),
                agent=seat.who.agent,
                session=seat.who.session,
                ttl=ttl,
                max_hold=max_hold,
                metadata=metadata,
                token=token,
                whole_session=seat.whole_session,
                session_ttl=seat.session_ttl,
                wait=bool(wait),
            )
            try:
                outcome = yield from self._acquire(seat, command, base, deadline, given)
            except (StoreTrouble, GeneratorExit):
                # The store does not answer, or nobody drives us any more: later, then.
                self.owe(seat, name, command.grant)
                raise
            except BaseException:
                yield from self.give_up(seat, name, command.grant)
                raise
            if not isinstance(outcome, core.Gone):
                return outcome

    def give_up(self, seat: Seat, name: str, grant: str) -> Op[None]:
        """Take back whatever of a grant or a wait reached the store; later, if not now."""
        try:
            yield from self._take_back(seat, name, grant)
        except (InterlockError, GeneratorExit) as error:
            self.owe(seat, name, grant)
            if not isinstance(error, InterlockError):
                raise
        except BaseException:
            self.owe(seat, name, grant)
            raise

    def pay(self) -> Op[None]:
        """Take back what is owed, up to the first that cannot be yet: no lease may wait for it."""
        while self.owed:
            debt = self.owed.popleft()
            yield from self.give_up(*debt)
            if debt in self.owed:
                return

    def release(self, who: Who, name: str, *, token: int | None = None) -> Op[core.ReleaseOutcome]:
        """Give it back; the next waiter has it with the same commit."""
        base = yield from self._runner.base()
        caller = core.Caller(lock=name, agent=who.agent, session=who.session, token=token)

        def deciding() -> Deciding[core.ReleaseOutcome]:
            lock = states.lock((yield (key,))[key], base)
            live = yield from heirs(lock, caller)
            return core.release(lock, caller, live.keys(), self._runner.clock.wall())

        key = keys.lock(name)
        done: Done[core.ReleaseOutcome] = yield from self._runner.change(
            deciding, who, self._runner.recall(key), urgent=True
        )
        return done.outcome

    def heartbeat(
        self, who: Who, name: str, *, token: int | None = None, session_ttl: float = 0.0
    ) -> Op[core.BeatOutcome]:
        """Renew what keeps the grant alive."""
        base = yield from self._runner.base()
        caller = core.Caller(lock=name, agent=who.agent, session=who.session, token=token)

        held: core.Lock | None = None

        def deciding() -> Deciding[core.BeatOutcome]:
            nonlocal held
            held = states.lock((yield (keys.lock(name),))[keys.lock(name)], base)
            live = yield from own_liveness(held, caller)
            ttl = session_ttl
            if held is not None and held.grant.ttl is None:
                ttl = yield from _session_ttl(held.grant.session, session_ttl)
            return core.beat(held, caller, live.keys(), ttl)

        done: Done[core.BeatOutcome] = yield from self._runner.change(deciding, who)
        if isinstance(done.outcome, core.Extended) and held is not None and held.grant.max_hold:
            live: Snapshot = yield Read(*held.grant.live, times=True)
            return replace(done.outcome, expires_in=_expires_in(live.items) or 0.0)
        return done.outcome

    def show(self, name: str) -> Op[Shown]:
        """The lock, its holder and its queue."""
        base = yield from self._runner.base()
        snapshot: Snapshot = yield Read(keys.lock(name))
        lock = states.lock(snapshot[keys.lock(name)], base)
        if lock is None:
            return Shown(lock=name, state="free")
        live: Snapshot = yield Read(*lock.grant.live, times=True)
        return _shown(name, lock, live.items)

    def list(self) -> Op[tuple[Shown, ...]]:
        """All locks that are held, by name."""
        base = yield from self._runner.base()
        locks: dict[str, core.Lock] = {}
        for item in (yield from every(keys.LOCKS)):
            lock = states.lock(item, base)
            if lock is not None:
                locks[keys.name(item.key.removeprefix(keys.LOCKS))] = lock
        wanted = (key for lock in locks.values() for key in lock.grant.live)
        live = yield from looked_up(wanted, times=True)
        return tuple(_shown(name, lock, live) for name, lock in locks.items())

    def check(self, proof: core.Proof) -> Op[bool]:
        """Whether the grant of a proof is still the one that holds."""
        snapshot: Snapshot = yield Read(keys.lock(proof.lock))
        lock = states.lock(snapshot[keys.lock(proof.lock)], 0)
        if lock is None:
            return False
        live: Snapshot = yield Read(*lock.grant.live)
        return core.proves(lock, proof, _present(live.items).keys())

    def standing(self, names: Iterable[str]) -> Op[frozenset[str]]:
        """The grants that hold these locks."""
        items = yield from looked_up(keys.lock(name) for name in names)
        found = (states.readable_lock(item, 0) for item in items.values() if item is not None)
        return frozenset(lock.grant.id for lock in found if lock is not None)

    def lifetimes(self, name: str, grant: str) -> Op[dict[str, float]]:
        """How long the grant's own liveness keys live from now on; empty if it is not ours."""
        key, own = keys.lock(name), (keys.live(grant), keys.limit(grant))
        snapshot: Snapshot = yield Read(key, *own, times=True)
        lock = states.lock(snapshot[key], 0)
        if lock is None or lock.grant.id != grant:
            return {}
        return {key: item.expires_in or 0.0 for key in own if (item := snapshot[key])}

    def _acquire(
        self,
        seat: Seat,
        command: core.Acquire,
        base: int,
        deadline: float | None,
        given: tuple[core.Proof, ...],
    ) -> Op[core.AcquireOutcome | core.Gone]:
        runner = self._runner
        own = (keys.live(seat.who.session),) if seat.joined else ()
        refs = (keys.lock(command.lock), *own)

        def deciding() -> Deciding[core.AcquireOutcome | core.Waiting]:
            snapshot = yield refs
            if seat.joined and snapshot.items[refs[1]] is None:
                raise Lapsed(f"session {seat.who.session} lapsed; join again")
            for proof in given:
                if not (yield from _holds(proof)):
                    return Decision(outcome=core.Fenced(lock=proof.lock))
            lock = states.lock(snapshot.items[refs[0]], base)
            found = yield from liveness(lock)
            live, call = found.keys(), command
            alive = lock is not None and core.alive(lock.grant, live)
            left.clear()
            left.update(found if alive else {})
            if lock is not None and command.token is not None and alive:
                # What may be extended is the holder's session, by its own ttl and not by ours.
                ttl = yield from _session_ttl(lock.grant.session, command.session_ttl)
                call = replace(command, session_ttl=ttl)
            return core.acquire(lock, call, live, runner.clock.wall())

        left: dict[str, Item] = {}
        guess: dict[str, Item | None] = {refs[0]: None}
        if own:
            guess[refs[1]] = ALIVE
        done = yield from runner.change(deciding, seat.who, guess)
        outcome = done.outcome
        if isinstance(outcome, core.Waiting):
            until = (deadline or 0.0, done.revision or 0)
            return (yield from self._wait(seat, command, base, until, given))
        if isinstance(outcome, core.Busy):
            return (yield from self._timed(outcome, left))
        return _stamped(outcome, base, done.revision)

    def _wait(
        self,
        seat: Seat,
        command: core.Acquire,
        base: int,
        until: tuple[float, int],
        given: tuple[core.Proof, ...],
    ) -> Op[core.AcquireOutcome | core.Gone]:
        """Sleep until our turn comes, the holder may have lapsed, or the deadline."""
        deadline, revision = until
        clock = self._runner.clock
        mine = (command.lock, command.grant)
        watch = yield Open(keys.wake(command.grant), revision)
        try:
            while True:
                found, nap = yield from self._look_at(command, base)
                if nap is None:
                    found = found or (yield from self._decide(core.look, seat, *mine, base))
                    if not isinstance(found, core.Waiting):
                        return (yield from self._confirm(seat, command, found, given))
                    continue
                left = deadline - clock.monotonic()
                if left <= 0:
                    final = yield from self._decide(core.withdraw, seat, *mine, base)
                    return (yield from self._confirm(seat, command, final, given))
                yield Take(watch, min(left, nap))
        finally:
            watch.close()

    def _look_at(self, command: core.Acquire, base: int) -> Op[tuple[Found | None, float | None]]:
        """The grant if it is ours by now, else how long we may sleep.

        Neither if there is something to decide: a free or stale lock, or a turn that came and
        went while we were away.
        """
        key = keys.lock(command.lock)
        own = keys.live(command.session if command.ttl is None else command.grant)
        mine = (own,) if command.max_hold is None else (own, keys.limit(command.grant))
        snapshot: Snapshot = yield Read(key, *mine)
        lock = states.lock(snapshot[key], base)
        if lock is None:
            return None, None
        if lock.grant.id == command.grant:
            if not core.alive(lock.grant, _present(snapshot.items).keys()):
                return None, None
            if command.ttl is not None:  # a commit follows at once, to stretch it
                self._runner.remember(key, cast("Item", snapshot[key]))
            return core.granted(command.lock, lock.grant), None
        place = next((i for i, w in enumerate(lock.waiters) if w.id == command.grant), None)
        if place is None:
            return None, None
        live: Snapshot = yield Read(*lock.grant.live, times=True)
        if not core.alive(lock.grant, _present(live.items).keys()):
            return None, None
        soonest = max(_expires_in(live.items) or 0.0, self._runner.capabilities.grain / 4)
        lapse = soonest + place * _BEHIND_EACH_OTHER + 0.001
        return None, min(lapse, _NAP * (1 + place / 2), _LONGEST_NAP)

    def _decide(
        self, decide: Callable[..., Decision[T]], seat: Seat, name: str, grant: str, base: int
    ) -> Op[T]:
        def deciding() -> Deciding[T]:
            key = keys.lock(name)
            lock = states.lock((yield (key,))[key], base)
            live = yield from liveness(lock)
            return decide(lock, name, grant, live.keys(), self._runner.clock.wall())

        done = yield from self._runner.change(deciding, seat.who)
        return _stamped(done.outcome, base, done.revision)

    def _confirm(
        self,
        seat: Seat,
        command: core.Acquire,
        outcome: Settled,
        given: tuple[core.Proof, ...],
    ) -> Op[core.AcquireOutcome | core.Gone]:
        """Agree to a grant that came while we slept, if what it relies on still holds.

        One commit stretches its short ttl as asked, or gives it back.
        """
        if isinstance(outcome, core.Busy):
            return (yield from self._timed(outcome, {}))
        if isinstance(outcome, core.Gone):
            return outcome
        if command.ttl is None and not given:
            return replace(outcome, expires_in=_least(command.session_ttl, command.max_hold))
        base = yield from self._runner.base()
        caller = core.Caller(
            lock=command.lock, agent=seat.who.agent, session=seat.who.session, token=outcome.token
        )

        def deciding() -> Deciding[core.BeatOutcome | core.ReleaseOutcome]:
            key = keys.lock(command.lock)
            lock = states.lock((yield (key,))[key], base)
            for proof in given:
                if not (yield from _holds(proof)):
                    live = yield from heirs(lock, caller)
                    back = core.release(lock, caller, live.keys(), self._runner.clock.wall())
                    return replace(back, outcome=core.Fenced(lock=proof.lock))
            live = yield from own_liveness(lock, caller)
            return core.beat(lock, caller, live.keys(), command.session_ttl)

        guess = self._runner.recall(keys.lock(command.lock))
        done = yield from self._runner.change(deciding, seat.who, guess)
        if isinstance(done.outcome, core.Extended):
            left = _least(done.outcome.expires_in, command.max_hold)
            return replace(outcome, expires_in=left)
        if isinstance(done.outcome, core.Fenced) and done.outcome.lock != command.lock:
            return done.outcome
        return core.Gone(lock=command.lock)

    def _timed(self, outcome: core.Busy, live: Mapping[str, Item]) -> Op[core.Busy]:
        """A busy answer also says how long its holder lives at least."""
        left = _expires_in(live)
        if left is None:
            shown = yield from self.show(outcome.lock)
            left = shown.expires_in
        return replace(outcome, expires_in=left)

    def _take_back(self, seat: Seat, name: str, grant: str) -> Op[None]:
        """Leave the queue, or release."""
        base = yield from self._runner.base()
        outcome = yield from self._decide(core.withdraw, seat, name, grant, base)
        if isinstance(outcome, core.Granted):
            yield from self.release(seat.who, name, token=outcome.token)


def liveness(lock: core.Lock | None) -> Reading[dict[str, Item]]:
    """The holder's liveness; and if it is gone, who would be next."""
    if lock is None:
        return {}
    live = _present((yield lock.grant.live).items)
    if not core.alive(lock.grant, live.keys()):
        live |= yield from _next_alive(lock)
    return live


def heirs(lock: core.Lock | None, caller: core.Caller) -> Reading[dict[str, Item]]:
    """For a release: who would be next, or whether a refusal was recorded not long ago."""
    if lock is None:
        return {}
    if core.carried(lock.grant, caller):
        return (yield from _next_alive(lock))
    return _present((yield (keys.refused(lock.grant.id),)).items)


def own_liveness(lock: core.Lock | None, caller: core.Caller) -> Reading[dict[str, Item]]:
    """For a renewal: the caller's liveness, or whether a refusal was recorded not long ago."""
    if lock is None:
        return {}
    carried = core.carried(lock.grant, caller)
    refs = lock.grant.live if carried else (keys.refused(lock.grant.id),)
    return _present((yield refs).items)


def _next_alive(lock: core.Lock) -> Reading[dict[str, Item]]:
    """The liveness of the first waiter that lives: the dead before it stay dead, unchecked."""
    for start in range(0, len(lock.waiters), _WAITERS_AT_ONCE):
        some = lock.waiters[start : start + _WAITERS_AT_ONCE]
        live = _present((yield Glance(dict.fromkeys(waiter.live for waiter in some))).items)
        first = core.next_alive(lock, live.keys())
        if first is not None:
            return _present((yield (first.live,)).items)
    return {}


def looked_up(wanted: Iterable[str], *, times: bool = False) -> Op[dict[str, Item | None]]:
    """Many keys, in portions: one round trip for each."""
    keys_ = list(dict.fromkeys(wanted))
    found: dict[str, Item | None] = {}
    for start in range(0, len(keys_), _KEYS_AT_ONCE):
        snapshot: Snapshot = yield Read(*keys_[start : start + _KEYS_AT_ONCE], times=times)
        found.update(snapshot.items)
    return found


def every(prefix: str) -> Op[list[Item]]:
    """All items under a prefix, in pages."""
    found: list[Item] = []
    after = ""
    while True:
        page = Range(prefix, after)
        items = (yield Read(page)).ranges[page]
        found.extend(items)
        if len(items) < page.limit:
            return found
        after = items[-1].key


def _holds(proof: core.Proof) -> Reading[bool]:
    key = keys.lock(proof.lock)
    lock = states.lock((yield (key,))[key], 0)
    live: dict[str, Item] = {}
    if lock is not None:
        live = _present((yield lock.grant.live).items)
    return core.proves(lock, proof, live.keys())


def _session_ttl(session: str, otherwise: float) -> Reading[float]:
    key = keys.session(session)
    found = states.session((yield (key,))[key])
    return otherwise if found is None else found.ttl


def _stamped(outcome: T, base: int, revision: int | None) -> T:
    """A grant that this very commit wrote has its revision for a token."""
    if isinstance(outcome, core.Granted) and outcome.token is None and revision is not None:
        return replace(outcome, token=base + revision)
    return outcome


def _least(*seconds: float | None) -> float | None:
    """The shortest of these spans; none of them says nothing."""
    return min((span for span in seconds if span), default=None)


def _present(items: Mapping[str, Item | None]) -> dict[str, Item]:
    return {key: item for key, item in items.items() if item is not None}


def _expires_in(items: Mapping[str, Item | None]) -> float | None:
    """The least time left; None if one of them is gone."""
    times = [0.0 if item is None else item.expires_in or 0.0 for item in items.values()]
    return min(times, default=0.0) or None


def _shown(name: str, lock: core.Lock, live: Mapping[str, Item | None]) -> Shown:
    own = {key: live[key] for key in lock.grant.live}
    alive = all(item is not None for item in own.values())
    left = _expires_in(own)
    return Shown(
        lock=name,
        state="held" if alive else "stale",
        holder=lock.grant.agent,
        token=lock.grant.token,
        since=lock.grant.since,
        expires_in=None if left is None else round(left, 3),
        max_hold=lock.grant.max_hold,
        session=lock.grant.session,
        metadata=lock.grant.metadata,
        waiters=tuple(waiter.agent for waiter in lock.waiters),
    )
