"""The wait of a caller for the guards of its gate.

The caller holds nothing for that time, and stands in no queue.  It sleeps until something may have
changed that a failing leaf depends on:

    the store        a watch of the items: locks, slots, tasks, pipelines, the definitions
    a holder's end   no watch reports an expiry, so a timer is set for the first that may come
    the outside      this host looks again, if it allows the guard: after a second, and after twice
                     as long each time, up to the maximum age of the guard.  If it does not, it asks
                     hosts that do (``live/wants/{guard}/{id}``, for their pollers); a signal
                     reports what another host saw, and it reads that again at the same pace
    ``retry``        a timer for the delay; until then the guard is not checked

A watch wakes and the state decides: after each sleep the guards are checked again.

In the wait graph a guard has a resource for each lock that it certainly wants free: a ``lock_free``
that is the whole condition, or a part of ``all``.  Every other condition may become true at any
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Refusal, Write
from interlock.core.outcomes import GuardBlocked, NoGuard
from interlock.errors import StoreTrouble
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.nouns.grants.pool_wait import wait_targets as pool_targets
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import observed_fact
from interlock.nouns.guards.observations import outside_needs
from interlock.nouns.guards.request_gate import GateResult, RequestGate, Unobserved, is_final
from interlock.nouns.guards.rules import failing
from interlock.nouns.guards.service import decode_guard
from interlock.nouns.guards.store_facts import key_of_need
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import ReadBeforeWait, read_before_wait, readable
from interlock.runtime.wait_graph import WaitTarget, WaitTargets, glanced
from interlock.steps import NextChanges, Op, OpenWatch, Pause
from interlock.store import ALIVE, Change, Item, Resync, Watch

FIRST_LOOK = 1.0
"""Seconds until this host looks at the outside again for the first time."""
ASKED = 180.0
"""Seconds that other hosts look for a wait, unless it asks again; it does at each wake-up."""
_LONGEST_SLEEP = 60.0
_BETWEEN_CHECKS = 0.02
"""Seconds between two checks at least: an item may change a thousand times in a second."""
_BETWEEN_SCANS = 0.1
"""Seconds between two checks that read many tasks."""
_SCOPES = 64
"""Items that are watched one by one; if there are more, their folders are."""


class GuardWait:
    """One wait for the guards of a gate; the methods are generators for a driver."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate = gate
        self._clock = gate.runner.clock
        self._allow = gate.runner.capabilities.allow
        self._least = gate.runner.capabilities.min_ttl
        self._pace: dict[str, float] = {}
        self._due: dict[str, float] = {}
        """When this host looks again for each guard, by its digest."""
        self._id = gate.runner.new_id("wai")
        self._asks: dict[str, float] = {}
        """When other hosts have to be asked again to look for a guard, by its digest."""

    def run(
        self, ends: float, before_sleep: Callable[[GuardBlocked], Op[Refusal | None]]
    ) -> Op[Refusal | None]:
        """Wait until all guards pass (None); a refusal if they cannot, or when the time is up.

        ``before_sleep`` is called with the guard that does not pass, and may refuse the wait.
        """
        outcome = yield from self._wait(ends, before_sleep)
        if self._asks:
            ended = [Write(keys.wants(key, self._id), {}, self._least) for key in self._asks]
            with suppress(StoreTrouble):  # else it expires
                yield from self._gate.runner.change(partial(_asking, ended), Actor())
        return outcome

    def _wait(
        self, ends: float, before_sleep: Callable[[GuardBlocked], Op[Refusal | None]]
    ) -> Op[Refusal | None]:
        watch: Watch | None = None
        watched: tuple[str, ...] = ()
        self._gate.drop_others()  # a signal may have come since they were read
        try:
            while True:
                read = yield from self._check()
                refused = self._gate.refusal(read.result)
                if refused is None or isinstance(refused, NoGuard) or is_final(refused):
                    return refused
                assert isinstance(read.result, GateResult)  # noqa: S101 - for type checkers
                now = self._clock.monotonic()
                if (over := self._count_retries(read.result, now)) is not None:
                    return over
                if now >= ends:
                    return refused
                if (never := (yield from before_sleep(refused))) is not None:
                    return never
                asleep = _Asleep(read.result)
                scopes = self._scopes(asleep)
                if watch is None or scopes != watched:
                    if watch is not None:
                        watch.close()
                    watch, watched = (yield OpenWatch(scopes, read.revision)), scopes
                yield from self._ask_hosts(asleep, now)
                wakes = min(ends, self._wakes(asleep, read.items, now))
                yield from self._sleep(watch, asleep, wakes)
        finally:
            if watch is not None:
                watch.close()

    def _check(self) -> Op[ReadBeforeWait[GateResult | Unobserved | NoGuard]]:
        """Check the guards, after a look at the outside if one is due.

        A watch then begins before the look, so that it reports what another host sees after it.
        """
        self._gate.drop_old()
        read = yield from read_before_wait(self._gate.check())
        began = read.revision
        while isinstance(read.result, Unobserved):
            yield from self._gate.look(read.result.guards)
            read = yield from read_before_wait(self._gate.check())
        return replace(read, revision=began)

    def _ask_hosts(self, asleep: _Asleep, now: float) -> Op[None]:
        """Ask the hosts that allow these guards to look again and again."""
        lives = self._allow(ASKED)
        puts = []
        for guard in asleep.outside:
            digest = g.digest(guard)
            if digest not in self._gate.here and self._asks.get(digest, -inf) <= now:
                self._asks[digest] = now + lives / 3
                puts.append(Write(keys.wants(digest, self._id), observed_fact(guard).entry, lives))
        if puts:
            yield from self._gate.runner.change(partial(_asking, puts), Actor())

    def _count_retries(self, found: GateResult, now: float) -> GuardBlocked | None:
        """Count the checks that were due; the refusal, if a guard had all of its retries."""
        for guard, result in found.closed:
            action = guard.on_failure
            if result.result != "failed" or not isinstance(action, g.RetryAction):
                continue
            count, due = self._gate.retries.get(guard.name, (-1, -inf))
            if now < due:
                continue
            if count + 1 >= action.limit:
                return replace(self._gate.refusal_of(result), retry_in=None)
            self._gate.retries[guard.name] = (count + 1, now + action.delay)
        return None

    def _scopes(self, asleep: _Asleep) -> tuple[str, ...]:
        """What a watch has to report: the items of the failing leaves, and the definitions."""
        found = {*self._gate.definitions}
        for need in asleep.needs:
            found.add(key_of_need(need) or keys.TASKS)
        for guard in asleep.outside:
            if (digest := g.digest(guard)) not in self._gate.here:
                found.add(keys.wake_observed(digest))
        if len(found) > _SCOPES:
            found = {key if key.startswith(keys.WAKE) else _folder(key) for key in found}
        return tuple(sorted(found))

    def _wakes(self, asleep: _Asleep, items: Mapping[str, Item | None], now: float) -> float:
        """When to check again, if nothing changes before."""
        found = [now + self._allow(_LONGEST_SLEEP)]
        found += [self._gate.retries[guard.name][1] for guard in asleep.resting]
        found += [self._looks_again(guard, now) for guard in asleep.outside]
        grain = self._gate.runner.capabilities.grain
        for left in _lifetimes(asleep.needs, items):
            found.append(now + max(left, grain / 4) + 0.002)
        return min(found)

    def _looks_again(self, guard: g.Guard, now: float) -> float:
        """When this host looks again for a guard; each time it is longer until then."""
        digest = g.digest(guard)
        if self._due.get(digest, -inf) <= now:
            first = self._allow(FIRST_LOOK)
            longer = min(2 * self._pace.get(digest, 0.0), guard.max_age)
            self._pace[digest] = max(first, longer)
            self._due[digest] = now + self._pace[digest]
        return self._due[digest]

    def _sleep(self, watch: Watch, asleep: _Asleep, wakes: float) -> Op[None]:
        began = self._clock.monotonic()
        while (left := wakes - self._clock.monotonic()) > 0:
            changes: Sequence[Change | Resync] = yield NextChanges(watch, left)
            if any(asleep.concerns(change) for change in changes):
                break
        gap = self._allow(_BETWEEN_SCANS if asleep.filters else _BETWEEN_CHECKS)
        if (rest := began + gap - self._clock.monotonic()) > 0:
            yield Pause(rest)
        self._drop(asleep, self._clock.monotonic())

    def _drop(self, asleep: _Asleep, now: float) -> None:
        """Drop the observations of guards for which a look is due, or costs only a read."""
        for guard in asleep.resting:
            if self._gate.retries[guard.name][1] <= now:
                self._gate.drop(guard)
        for guard in asleep.outside:
            digest = g.digest(guard)
            if digest not in self._gate.here or self._due[digest] <= now:
                self._gate.drop(guard)


class _Asleep:
    """What a wait depends on while its caller sleeps."""

    def __init__(self, found: GateResult) -> None:
        self.resting: list[g.Guard] = []
        """Guards that are checked again when their delay is over."""
        self.outside: list[g.Guard] = []
        """Guards with a failing leaf about the outside."""
        self.needs: dict[c.FactNeed, None] = {}
        """Needs of failing leaves about the store."""
        for guard, result in found.closed:
            if result.result == "failed" and isinstance(guard.on_failure, g.RetryAction):
                self.resting.append(guard)
                continue
            outside = set(outside_needs(guard))
            wanted = [leaf.need for leaf in failing(result.evaluation)]
            if any(need in outside for need in wanted):
                self.outside.append(guard)
            self.needs.update(
                {need: None for need in wanted if need is not None and need not in outside}
            )
        self.filters = [
            keys.TASKS + keys.encode(need.filter.prefix)
            for need in self.needs
            if isinstance(need, c.TasksNeed)
        ]

    def concerns(self, change: Change | Resync) -> bool:
        """Whether a change may matter; a watch of tasks reports all of them."""
        if isinstance(change, Resync) or not change.key.startswith(keys.TASKS):
            return True
        return any(change.key.startswith(prefix) for prefix in self.filters)


def _asking(puts: Sequence[Write]) -> DecideOp[str]:
    yield from ()
    return Decision(outcome="asked", puts=tuple(puts), quiet=True)


def wait_targets(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """These guards as targets of waits."""
    items = yield from glanced(wanted)
    guards = {key: readable(decode_guard, item) for key, item in items.items() if item is not None}
    locks = {
        key: [keys.lock(leaf.lock) for leaf in _wanted_free(guard.condition)]
        for key, guard in guards.items()
        if guard is not None
    }
    pools = yield from pool_targets(tuple({lock for some in locks.values() for lock in some}), base)
    return {
        key: WaitTarget(
            tuple(
                replace(resource, keys=(*resource.keys, key))
                for lock in dict.fromkeys(locks.get(key, ()))
                for resource in pools[lock].resources
            )
        )
        for key in wanted
    }


def _wanted_free(condition: c.Condition) -> Iterator[c.LockFree]:
    """The locks without which a condition cannot be true."""
    if isinstance(condition, c.LockFree):
        yield condition
    for part in condition.of if isinstance(condition, c.AllOf) else ():
        yield from _wanted_free(part)


def _lifetimes(needs: Iterable[c.FactNeed], items: Mapping[str, Item | None]) -> Iterator[float]:
    """How long each holder lives at least that these needs ask about."""
    for need in needs:
        item = items.get(key_of_need(need))
        pool = None if item is None or isinstance(need, c.PipelineNeed) else readable_pool(item, 0)
        for grant in () if pool is None else pool.grants:
            live = [items.get(key) for key in grant.live]
            times = [each.life or 0.0 for each in live if each and each.expires_in != ALIVE]
            if None not in live and times:  # an expired one does not count any more
                yield min(times)


def _folder(key: str) -> str:
    return key.partition("/")[0] + "/"
