"""Reserves and releases paths on a store, and waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision
from interlock.errors import StoreTrouble, note_pending
from interlock.nouns.grants import handover
from interlock.nouns.grants.handover import PendingRelease
from interlock.nouns.grants.service import GrantService
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations import rules
from interlock.nouns.reservations.conflicts import (
    PatternEntry,
    QueuedReservation,
    conflicting,
    own_entries,
    same,
)
from interlock.nouns.reservations.reading import (
    Live,
    decode_reservation,
    entries_for,
    granted_live,
    held_by,
    learn,
    parsed,
    queue_of,
    record_key,
    records_of,
)
from interlock.nouns.reservations.reservation import Reservation
from interlock.nouns.reservations.rules import EndingReservations
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import KEYS_AT_ONCE, OWN_OPERATIONS
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read

FOLLOWED = 20
"""Waiters that one commit looks at, beside a reservation that ends."""
ENDED_AT_ONCE = 2
"""Stale reservations that one commit ends, which may have many patterns each."""
RELIED = 8
"""Reservations in the way that the commit of a wait checks."""


class ReserveOptions(Struct, frozen=True, kw_only=True):
    """What a caller reserves, where, and what is to happen if it conflicts."""

    repository: str
    patterns: tuple[str, ...]
    shared: bool = False
    ttl: float | None = None
    reason: str = ""
    tree: str = ""
    fold: bool = False
    on_conflict: r.OnConflict = "deny"
    wait: float = 0.0


class ReservationService:
    """Every operation on reservations; the methods are generators for a driver."""

    def __init__(self, runner: Runner, grants: GrantService) -> None:
        self.runner = runner
        self.grants = grants

    def reserve(self, identity: Identity, options: ReserveOptions) -> Op[r.ReserveOutcome]:
        """Reserve all of it, or nothing; an interrupted call leaves nothing behind."""
        base = yield from self.runner.base()
        wanted, local_caller = self._wanted(identity, options)
        own_handover = handover.current(self.grants)
        releases = partial(self._pending, identity.actor, options.repository, wanted)
        own_handover.add(wanted.id, releases)
        try:
            outcome = yield from self._reserve(identity, options, wanted, base)
            if isinstance(outcome, r.ReservationQueued) and options.wait:
                from interlock.nouns.reservations.wait import ReservationWait  # most do not wait

                wait = ReservationWait(self, identity.actor, options, wanted, base)
                outcome = yield from wait.run(outcome)
        except (StoreTrouble, GeneratorExit) as error:
            for release in releases():
                self.grants.add_pending(release)
            own_handover.remove(wanted.id)
            note_pending(error)
            raise
        except BaseException:
            yield from self.grants.release_or_queue(*releases())
            own_handover.remove(wanted.id)
            raise
        if not isinstance(outcome, outcomes.Granted):
            own_handover.remove(wanted.id)
        elif local_caller is not None:
            held = keys.reservation(options.repository, outcome.grant)
            self.grants.holders.add(local_caller, (held,), outcome.token or 0)
        return outcome

    def _wanted(
        self, identity: Identity, options: ReserveOptions
    ) -> tuple[Reservation, callers.LocalCaller | None]:
        actor, id_ = identity.actor, self.runner.new_id("rsv")
        local_caller = None if identity.caller else self.grants.current_caller()
        caller = callers.caller_terms(identity.caller, local_caller)
        stays = options.on_conflict == "queue" or not options.wait
        own = options.ttl is not None and stays
        wanted = Reservation(
            id=id_,
            agent=actor.agent,
            session=actor.session,
            patterns=options.patterns,
            live=keys.live(id_ if own else actor.session),
            since=self.runner.clock.wall(),
            ttl=options.ttl,
            shared=options.shared,
            reason=options.reason,
            tree=options.tree,
            fold=options.fold,
            caller=caller.caller,
            indexed=caller.indexed,
            also=caller.also,
            announce=options.on_conflict == "queue" and not options.wait,
        )
        return wanted, local_caller

    def _reserve(
        self, identity: Identity, options: ReserveOptions, wanted: Reservation, base: int
    ) -> Op[r.ReserveOutcome]:
        while True:
            done: Decided[r.ReserveOutcome | str] = yield from self.runner.change(
                lambda: self._deciding(identity, options, wanted, base), identity.actor
            )
            if isinstance(done.outcome, str):
                continue  # stale reservations were ended, and their waiters served
            if isinstance(done.outcome, r.Reserved) and done.revision is not None:
                return replace(done.outcome, token=base + done.revision)
            if isinstance(done.outcome, r.ReservationConflict):
                return (yield from self.timed(done.outcome))
            return done.outcome

    def _deciding(
        self, identity: Identity, options: ReserveOptions, wanted: Reservation, base: int
    ) -> DecideOp[r.ReserveOutcome | str]:
        repository = options.repository
        own = (keys.live(identity.actor.session),) if identity.joined else ()
        yield (keys.reserved_mark(repository), *own)
        entries = yield from entries_for(repository, parsed(wanted))
        known: Live = {}
        mine = yield from self._own(repository, wanted, entries, base)
        if mine is not None:
            return rules.extend(wanted, *mine)
        found = conflicting(wanted, entries)
        yield from learn(known, [each.of.live for each in found])
        stale = [each.of.id for each in found if not known[each.of.live]]
        if stale:
            return (yield from self._ending(repository, stale, known))
        waiting: tuple[QueuedReservation, ...] = ()
        if not found or options.on_conflict == "warn":
            granted = replace(wanted, live=granted_live(wanted))
            return rules.grant(repository, granted, found)
        # A refusal, and a place in the queue, rely on holders that are there and alive.
        relied = found[:RELIED]
        yield tuple(dict.fromkeys(each.of.live for each in relied))
        yield tuple(record_key(repository, each.of) for each in relied)
        if options.on_conflict == "queue" or options.wait:
            waiting = yield from queue_of(repository)
            listed = bool(options.wait)
            return rules.queue(repository, wanted, found, len(waiting), listed=listed)
        return rules.refuse(wanted, found)

    def _own(
        self,
        repository: str,
        wanted: Reservation,
        entries: Iterable[PatternEntry],
        base: int,
    ) -> ReadOp[tuple[Reservation, int] | None]:
        """A living reservation of the caller for the same, with its token.

        The commit checks its liveness key: one that is gone never comes back, and another agent may
        rely on that at this moment.
        """
        first = wanted.patterns[0]
        mine = [
            each.of.id
            for each in entries
            if each.of.agent == wanted.agent and each.of.pattern == first and not each.of.queued
        ][:KEYS_AT_ONCE]
        if not mine:
            return None
        items = (yield tuple(keys.reservation(repository, id_) for id_ in mine)).items
        for item in items.values():
            if item is None:
                continue
            found = decode_reservation(item)
            if same(found, wanted) and (yield (found.live,)).items[found.live] is not None:
                return found, base + item.revision
        return None

    def _ending(
        self, repository: str, ids: Sequence[str], known: Live | None = None
    ) -> DecideOp[str]:
        """End some stale reservations or waiters, and serve those that waited for them."""
        live = {} if known is None else known
        ended = yield from records_of(repository, ids[:ENDED_AT_ONCE])
        yield from learn(live, [each.live for each in ended])
        ended = [each for each in ended if not live[each.live]]
        ending = yield from self._surroundings(repository, ended, live)
        return rules.reclaim(ending, live.__getitem__, self.runner.clock.wall())

    def _surroundings(
        self, repository: str, ended: Sequence[Reservation], known: Live
    ) -> ReadOp[EndingReservations]:
        """What the end of reservations changes: waiters, and all that these depend on."""
        yield (keys.reserved_mark(repository),)
        waiting = yield from queue_of(repository)
        gone = [PatternEntry(each, 0) for of in ended for each in own_entries(of, queued=False)]
        affected = [each for each in waiting if not ended or conflicting(each.of, gone)]
        affected = sorted(affected, key=lambda each: each.order)[:FOLLOWED]
        wanted = dict.fromkeys(one for each in affected for one in parsed(each.of))
        entries = (yield from entries_for(repository, wanted)) if wanted else ()
        own = tuple(dict.fromkeys(each.of.live for each in affected))
        if own:  # a waiter is served only while it lives
            known.update({key: item is not None for key, item in (yield own).items.items()})
        lives: list[str] = []
        for each in affected:
            lives += [found.of.live for found in conflicting(each.of, entries, each.order)]
        yield from learn(known, lives)
        room = self.runner.capabilities.max_operations - OWN_OPERATIONS - len(known) - 8
        return EndingReservations(
            repository=repository,
            ended=tuple(ended),
            queue=tuple(affected),
            entries=tuple(entries),
            room=room,
        )

    def release(
        self,
        actor: Actor,
        repository: str,
        chosen: Callable[[Reservation, int], bool],
        *,
        holder: str = "",
        reason: str = "",
    ) -> Op[r.Unreserved | r.ReservationBroken | None]:
        """End the reservations of an agent that are chosen, with their waits; None if none is."""
        base = yield from self.runner.base()
        agent, texts, following = holder or actor.agent, list[str](), list[str]()

        def deciding() -> DecideOp[r.UnreserveOutcome | None]:
            own = yield from held_by(repository, agent, base)
            found = [each for each, token in own if chosen(each, token)]
            if not found:
                return Decision(outcome=None)
            known: Live = {}
            ending = yield from self._surroundings(repository, found[:ENDED_AT_ONCE], known)
            yield tuple(
                key
                for each in ending.ended
                for key in (
                    keys.reservation(repository, each.id),
                    keys.reserve_queue(repository, each.id),
                )
            )
            now, by = self.runner.clock.wall(), actor.agent if holder else ""
            return rules.release(ending, known.__getitem__, now, by=by, reason=reason)

        while True:
            done: Decided[r.UnreserveOutcome | None] = yield from self.runner.change(
                deciding, actor, urgent=True
            )
            if not isinstance(done.outcome, r.Unreserved | r.ReservationBroken):
                break
            texts += done.outcome.patterns
            following += done.outcome.next
        if not texts:
            return None
        ended, after = tuple(dict.fromkeys(texts)), tuple(dict.fromkeys(following))
        if holder:
            return r.ReservationBroken(
                holder=holder, patterns=ended, token=None, reason=reason, next=after
            )
        return r.Unreserved(patterns=ended, next=after)

    def reclaim(self, actor: Actor, repository: str, ids: Sequence[str]) -> Op[bool]:
        """End these if they are stale, and serve the waiters; returns whether something changed."""
        done: Decided[str] = yield from self.runner.change(
            lambda: self._ending(repository, ids), actor
        )
        return done.outcome == "reclaimed"

    def _pending(self, actor: Actor, repository: str, wanted: Reservation) -> tuple[PendingRelease]:
        def run() -> Op[None]:
            yield from self.release(actor, repository, lambda each, _: each.id == wanted.id)

        return (PendingRelease(wanted.id, rules.thing(wanted.id), run),)

    def timed(self, outcome: r.ReservationConflict) -> Op[r.ReservationConflict]:
        """A conflict with the time that its holder lives at least."""
        first = outcome.conflicts[0].id if outcome.conflicts else ""
        item = (yield Read(keys.live(first), times=True))[keys.live(first)] if first else None
        return outcome if item is None else replace(outcome, expires_in=item.life)
