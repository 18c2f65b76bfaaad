"""The wait of a reservation for those in its way, and its end: served, withdrawn, or a deadlock.

The wait is committed first.  The commit that ends a reservation serves its waiters and wakes them;
an expiry sends no signal, so a waiter also looks at the liveness of those in its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.wait import caller_name_of
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations import rules
from interlock.nouns.reservations.conflicts import conflicting
from interlock.nouns.reservations.reading import (
    decode_reservation,
    entries_for,
    parsed,
    record_key,
)
from interlock.nouns.reservations.reservation import Reservation
from interlock.nouns.reservations.service import ReservationService, ReserveOptions
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.deadlock import DeadlockResolver
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, outside, readable
from interlock.runtime.runner import Decided
from interlock.runtime.wait_graph import Blocker, SharedResource, Start, WaitTarget, WaitTargets
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Item, Snapshot

_SLEEP = 1.0
"""The longest sleep of a waiter in seconds."""


class ReservationWait:
    """One wait; the methods are generators for a driver."""

    def __init__(
        self,
        service: ReservationService,
        actor: Actor,
        options: ReserveOptions,
        wanted: Reservation,
        base: int,
    ) -> None:
        self._service = service
        self._runner = service.runner
        self._actor = actor
        self._options = options
        self._wanted = wanted
        self._base = base

    def run(self, queued: r.ReservationQueued) -> Op[r.ReserveOutcome]:
        """Sleep until it is served, or the time is up."""
        clock, allow = self._runner.clock, self._runner.capabilities.allow
        deadline = clock.monotonic() + self._options.wait
        watch = yield OpenWatch(keys.wake(self._wanted.id), 0)
        try:
            while True:
                found = yield from self._granted()
                if found is None:
                    found = yield from self._resolve()
                if found is not None:
                    return found
                left = deadline - clock.monotonic()
                if left <= 0:
                    return (yield from self._give_up(queued))
                expires = yield from self._look()
                if expires is not None:
                    yield NextChanges(watch, min(left, max(expires, 0.002), allow(_SLEEP)))
        finally:
            watch.close()

    def _granted(self) -> Op[r.ReserveOutcome | None]:
        """The outcome, if the reservation was served; a waiter that was dropped queues no more."""
        repository, wanted, base = self._options.repository, self._wanted, self._base
        held, waits = (
            keys.reservation(repository, wanted.id),
            keys.reserve_queue(repository, wanted.id),
        )
        snapshot: Snapshot = yield Read(held, waits)
        if (item := snapshot[held]) is not None:
            granted = decode_reservation(item)
            return r.Reserved(
                token=base + item.revision,
                holder=granted.agent,
                patterns=granted.patterns,
                shared=granted.shared,
                expires_in=granted.ttl,
                grant=granted.id,
            )
        if snapshot[waits] is None:  # its liveness ended while it slept
            entries = yield from outside(entries_for(repository, parsed(wanted)))
            found = conflicting(wanted, entries)
            if found:
                return rules.refuse(wanted, found).outcome
            return r.ReservationConflict(
                holder="", witness="", pattern="", wanted=wanted.patterns[0], since=wanted.since
            )
        return None

    def _look(self) -> Op[float | None]:
        """How long the first in the way lives; None if there was something to settle."""
        repository, wanted = self._options.repository, self._wanted
        entries = yield from outside(entries_for(repository, parsed(wanted)))
        own = next((each.order for each in entries if each.of.id == wanted.id), None)
        found = conflicting(wanted, entries, own)
        lives = list(dict.fromkeys(each.of.live for each in found))[:KEYS_AT_ONCE]
        items: Mapping[str, Item | None] = {}
        if lives:
            items = (yield Read(*lives, times=True)).items
        stale = [each.of.id for each in found if each.of.live in items and not items[each.of.live]]
        if not found or stale:
            yield from self._service.reclaim(self._actor, repository, stale)
            return None
        return min([item.life or 1.0 for item in items.values() if item], default=1.0)

    def _give_up(self, queued: r.ReservationQueued) -> Op[r.ReserveOutcome]:
        """The time is up: keep the place in the queue, or leave it."""
        options, wanted = self._options, self._wanted
        if options.on_conflict == "queue":
            return (yield from self._keep_place(queued))

        def deciding() -> DecideOp[r.ReserveOutcome | None]:
            items = (yield (keys.reservation(options.repository, wanted.id),)).items
            if None not in items.values():
                return Decision(outcome=None)
            entries = yield from entries_for(options.repository, parsed(wanted))
            found = conflicting(wanted, entries)
            outcome = rules.refuse(wanted, found).outcome if found else _conflict_of(queued)
            return rules.withdraw(options.repository, wanted, outcome)

        done: Decided[r.ReserveOutcome | None] = yield from self._runner.change(
            deciding, self._actor
        )
        if done.outcome is None:
            found = yield from self._granted()
            return queued if found is None else found
        if isinstance(done.outcome, r.ReservationConflict):
            return (yield from self._service.timed(done.outcome))
        return done.outcome

    def _keep_place(self, queued: r.ReservationQueued) -> Op[r.ReserveOutcome]:
        """Stay in the queue without a sleeping call: a message says when it is served."""
        repository = self._options.repository
        own = keys.reserve_queue(repository, self._wanted.id)

        def deciding() -> DecideOp[bool]:
            item = (yield (own,)).items[own]
            if item is None:
                return Decision(outcome=False)
            return rules.keep_place(repository, decode_reservation(item))

        if (yield from self._runner.change(deciding, self._actor)).outcome:
            return queued
        found = yield from self._granted()
        return queued if found is None else found

    def _resolve(self) -> Op[r.ReserveOutcome | None]:
        """Withdraw if the wait closed a cycle."""
        repository, wanted = self._options.repository, self._wanted
        wait = rules.wait_of(repository, wanted)

        def withdraw(cycle: tuple[str, ...]) -> DecideOp[r.ReserveOutcome | None]:
            if (yield (wait.wants,))[wait.wants] is None:
                return Decision(outcome=None)
            outcome = r.ReservationDeadlock(patterns=wanted.patterns, cycle=cycle)
            return rules.withdraw(repository, wanted, outcome)

        item = (yield Read(wait.wants))[wait.wants]
        if item is None:
            return None
        start = Start(id=wanted.id, wants=(wait.wants,), asleep=wait, revision=item.created)
        resolver = DeadlockResolver(self._runner)
        pending = callers.pending_grants()
        done = yield from resolver.resolve(self._actor, start, withdraw, None, pending)
        return cast("r.ReserveOutcome | None", done.outcome)


def wait_targets(wanted: tuple[str, ...], base: int) -> ReadOp[WaitTargets]:
    """Reservations that wait, as targets of waits: each one in the way has to end."""
    del base
    found: WaitTargets = {}
    for key in wanted:
        item = (yield Unchecked((key,)))[key]
        waiter = None if item is None else readable(decode_reservation, item)
        found[key] = WaitTarget()
        if item is not None and waiter is not None:
            repository, _ = keys.reservation_of(key)
            entries = yield from entries_for(repository, parsed(waiter))
            blocking = conflicting(waiter, entries, item.created)[:KEYS_AT_ONCE]
            resources = []
            for each in blocking:
                own = record_key(repository, each.of)
                record = (yield Unchecked((own,)))[own]
                if record is not None:
                    resources.append(_resource(own, decode_reservation(record)))
            found[key] = WaitTarget(tuple(resources))
    return found


def _resource(key: str, of: Reservation) -> SharedResource:
    blocker = Blocker(caller_name_of(of), 1, of.id, (of.live,), agent=of.agent)
    return SharedResource(key, (blocker,), None, (key,))


def _conflict_of(queued: r.ReservationQueued) -> r.ReservationConflict:
    first = queued.conflicts[0]
    return r.ReservationConflict(
        holder=first.holder,
        witness=first.witness,
        pattern=first.pattern,
        wanted=first.wanted,
        since=first.since,
        reason=first.reason,
        conflicts=queued.conflicts,
    )
