"""Looks at the outside again and again, for gates that wait for it.

A gate that waits for a branch, a file or a command has an entry with its guard, and so has a call
that waits on a host which does not allow the guard.  A host that allows it looks, and stores what
it saw; if that is news, the gates are checked again and the callers are woken
(``observations.share``).

Every client of a store can write an entry.  So a poller asks only for the guards on the list of its
host (``awaited_guards.py``), and reads the list again before each look.

The pace of a guard is one second at first.  It doubles while this host sees the same, up to half of
the maximum age: so what is stored stays new enough, and a look that sees the same is no news.  The
pace is one second again after a change, and when something else waits for the guard.  The pause
after a look is at least as long as the look took.

Each look has a thread of its own, and so a slow command does not hold up another guard.  Guards
without commands that look below the same root share a look, since one git process can answer for
many branches.

Many agents of a host may poll, but only one of them looks for a guard below the same root:

    live/looks/{guard}/{host}/{root}   lives for 15 seconds, and is renewed three times in it

If that poller dies, another one follows when the key has expired.  Pollers of different hosts do
not wait for each other: they may see different files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from interlock.clock import Clock
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import InterlockError, StoreClosed
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.awaited_guards import (
    ENTRIES,
    allowed_folders,
    awaited_guards,
    digest_of,
    names_not_allowed,
)
from interlock.nouns.guards.observations import Observed, allowed_roots, look, outside_needs, share
from interlock.nouns.guards.results import GuardsLooked
from interlock.nouns.guards.rules import Facts
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.outage import AGAIN, PASSING, OutageLog
from interlock.runtime.reads import OWN_OPERATIONS
from interlock.steps import InThread, NextChanges, Op, OpenWatch, Pause
from interlock.store import Change, Resync
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.runtime.processes.supervised import Supervision

FIRST = 1.0
"""Seconds between the first two looks."""
LIVES = 15.0
"""Seconds that a poller counts as the one that looks for a guard, unless it renews that."""
AT_ONCE = 8
"""Looks with commands that run at once, at most."""
NAP = 0.2
"""Seconds after which a poller checks whether a look has ended, or whether it has to stop."""
LATER = 30.0
"""Seconds until the next attempt of a poller that cannot look: its list may be damaged."""
_NOBODY = {"by": ""}
_FREE = codec.encode(_NOBODY)
_SLOW = (c.CommandNeed, c.CleanNeed)


# The pace.


class LookPace(Struct, frozen=True, kw_only=True):
    """How often a guard is looked at: the last pause in seconds, and when the next look is due."""

    seconds: float
    due: float


def first_pace(now: float) -> LookPace:
    """Look at once."""
    return LookPace(seconds=0.0, due=now)


def next_pace(
    pace: LookPace, max_age: float, now: float, *, took: float = 0.0, changed: bool = False
) -> LookPace:
    """The pace after a look that took so many seconds and ended now."""
    seconds = FIRST if changed else max(FIRST, min(pace.seconds * 2, max_age / 2))
    return LookPace(seconds=seconds, due=now + max(seconds, took))


# What a poller knows.


class PolledGuard:
    """A guard that gates wait for, and that this host allows."""

    def __init__(self, digest: str, guard: g.Guard, root: str, now: float) -> None:
        self.digest = digest
        self.guard = guard
        self.root = root
        self.claim = keys.looks(digest, host_name(), codec.digest(root.encode())[:16])
        """The key of the poller that looks for it."""
        self.slow = any(isinstance(need, _SLOW) for need in outside_needs(guard))
        self.pace = first_pace(now)
        self.claimed = self.ours = False
        """Whether this poller is the one that looks."""
        self.looking = False
        self.again = True
        """Whether its gates have to be checked even without news: one of them is new."""
        self.calls: frozenset[str] = frozenset()
        """The calls on other hosts that wait for it."""
        self._values: list[object] | None = None

    def wanted(self, now: float) -> None:
        """Something else waits for it."""
        self.again = True
        self.pace = first_pace(now)

    def looked(self, seen: Observed, took: float, now: float) -> None:
        """A look has ended; without an answer if the host does not allow the guard any more."""
        facts = seen.get(self.digest, {})
        values = [getattr(facts.get(need), "value", None) for need in outside_needs(self.guard)]
        changed = self._values is not None and values != self._values
        self._values, self.looking = values, False
        self.pace = next_pace(self.pace, self.guard.max_age, now, took=took, changed=changed)


class EndedLook(NamedTuple):
    """The guards of a look, what it saw, and how many seconds it took."""

    guards: Sequence[PolledGuard]
    seen: dict[str, Facts]
    took: float


class OutsidePoller:
    """Looks for the gates of one store, with the permissions of one user of this host.

    ``round`` looks once at all that gates wait for.  ``run`` goes on, at the pace of each guard.
    """

    def __init__(self, context: Context) -> None:
        from _queue import SimpleQueue

        self.looks = 0
        self.looked_at: dict[str, None] = {}
        """The names of the guards that it looked at."""
        self.changed: dict[str, None] = {}
        """The names of the guards that there was news about."""
        self.not_allowed: dict[str, None] = {}
        """The names of the guards that gates wait for, and that this host does not allow."""
        self.on_not_allowed: Callable[[str], object] = lambda _name: None
        """Called once for each of them."""
        self.also: Callable[[], Op[None]] | None = None
        """Other work, which each round begins with."""
        self._context = context
        self._runner = context.runner
        self._clock = context.runner.clock
        self._own = {"by": self._runner.new_id("pol")}
        self._guards: dict[str, PolledGuard] = {}
        self._ended: SimpleQueue[EndedLook] = SimpleQueue()
        self._supervision: Supervision | None = None
        self._slow = 0
        self._found_at = self._find_at = float("-inf")
        self._stopped = False

    @property
    def report(self) -> GuardsLooked:
        """What it has done so far."""
        return GuardsLooked(
            looks=self.looks,
            guards=tuple(self.looked_at),
            changed=tuple(self.changed),
            not_allowed=tuple(self.not_allowed),
        )

    def stop(self) -> None:
        """End the commands that run, and the loop soon after; any thread may call it."""
        self._stopped = True
        if self._supervision is not None:
            self._supervision.stop()

    def round(self) -> Op[GuardsLooked]:
        """Look once at all guards that gates wait for and that this host allows."""
        yield from self._find(others=True)
        guards = list(self._guards.values())
        if guards:
            asking = {each.digest: each.guard for each in guards}
            seen: dict[str, Facts] = yield InThread(partial(_look, asking, self._clock, None))
            yield from self._store([EndedLook(guards, seen, 0.0)])
        return self.report

    # The loop.

    def run(self, ends: float = float("inf"), *, patient: bool = False) -> Op[None]:
        """Look at the pace of each guard until this monotonic moment, or until ``stop``.

        It goes on through an outage of the store.  A ``patient`` poller goes on after other errors,
        too, and logs them.
        """
        from interlock.runtime.processes.supervised import Supervision

        self._supervision = Supervision()
        complaints, dropped = OutageLog("looking for guards"), False
        try:
            while not self._over(ends):
                try:
                    yield from self._rounds(ends)
                    complaints.over()
                except StoreClosed:
                    return
                except InterlockError as trouble:
                    passing = isinstance(trouble, PASSING)
                    if not patient and (not passing or self._context.no_retry):
                        raise
                    if not self._context.store.outage:  # else the store logged it
                        complaints.warn(trouble)
                    yield from self._rest(AGAIN if passing else LATER, ends)
        except GeneratorExit:  # no further step can be taken
            dropped = True
            raise
        finally:
            self.stop()
            if not dropped and not self._context.store.outage:
                with suppress(InterlockError):
                    yield from self._release()

    def _over(self, ends: float) -> bool:
        return self._stopped or self._clock.monotonic() >= ends

    def _rest(self, seconds: float, ends: float) -> Op[None]:
        left = self._runner.capabilities.allow(seconds)
        while left > 0 and not self._over(ends):
            yield Pause(min(NAP, left))
            left -= NAP

    def _rounds(self, ends: float) -> Op[None]:
        """Look for all that waits now, then for what follows, until the watch has lost history."""
        revision = yield from self._find(others=True)
        for each in self._guards.values():
            each.wanted(self._clock.monotonic())
        watch = yield OpenWatch(keys.GATED, revision)
        try:
            while not self._over(ends):
                if self.also is not None:
                    yield from self.also()
                yield from self._claim_due()
                yield from self._store(list(self._all_ended()))
                self._start_due()
                left = max(0.0, min(NAP, ends - self._clock.monotonic()))
                changes = yield NextChanges(watch, left)
                if any(isinstance(each, Resync) for each in changes):
                    return
                self._follow(each for each in changes if isinstance(each, Change))
        finally:
            watch.close()

    def _follow(self, changes: Iterable[Change]) -> None:
        """Notice new entries of gates."""
        for each in changes:
            if each.deleted or not each.key.startswith(ENTRIES):
                continue
            known = self._guards.get(digest_of(each.key))
            if known is None:
                self._find_at = min(self._find_at, self._found_at + FIRST)
            else:
                known.wanted(self._clock.monotonic())

    # What gates wait for.

    def _find(self, *, others: bool) -> Op[int]:
        """Read which guards gates wait for; returns the revision.

        ``others`` asks also for those that this host does not allow.
        """
        self._found_at, self._find_at = self._clock.monotonic(), float("inf")
        roots: dict[str, str] = yield InThread(allowed_folders)
        found, revision = yield from awaited_guards(list(roots))
        for digest in [each for each in self._guards if each not in found]:
            del self._guards[digest]
        for digest, (guard, calls) in found.items():
            known = self._guards.get(digest)
            if known is None or known.root != roots[digest]:
                known = PolledGuard(digest, guard, roots[digest], self._found_at)
                self._guards[digest] = known
            elif calls - known.calls:
                known.wanted(self._found_at)
            known.calls = calls
        if others:
            yield from self._find_others()
        return revision

    def _find_others(self) -> Op[None]:
        names = yield from names_not_allowed(self._guards)
        new = [name for name in names if name not in self.not_allowed]
        self.not_allowed = names
        for name in new:
            self.on_not_allowed(name)

    def _claim_due(self) -> Op[None]:
        """Look for new entries and permissions, and stay the poller that looks."""
        now = self._clock.monotonic()
        renew = now >= self._found_at + LIVES / 3
        if now >= self._find_at or renew:
            yield from self._find(others=not renew)
        elif all(each.claimed for each in self._guards.values()):
            return
        yield from self._claim()

    def _claim(self) -> Op[None]:
        waiting = list(self._guards.values())
        most = (self._runner.capabilities.max_operations - OWN_OPERATIONS) // 2
        for start in range(0, len(waiting), most):
            some = waiting[start : start + most]
            work = partial(self._claiming, [each.claim for each in some])
            done = yield from self._runner.change(work, Actor(), hopeful=False)
            for each in some:
                each.ours, each.claimed = each.claim in done.outcome, True

    def _claiming(self, claims: Sequence[str]) -> DecideOp[Collection[str]]:
        items = (yield tuple(claims)).items
        own = codec.encode(self._own)
        ours = [key for key, i in items.items() if i is None or i.value in (own, _FREE)]
        ttl = self._runner.capabilities.allow(LIVES)
        puts = tuple([Write(key, self._own, ttl) for key in ours])
        return Decision(outcome=frozenset(ours), puts=puts, quiet=True)

    def _release(self) -> Op[None]:
        """Let another poller look at once."""
        claims = [each.claim for each in self._guards.values() if each.ours]
        most = (self._runner.capabilities.max_operations - OWN_OPERATIONS) // 2
        for start in range(0, len(claims), most):
            work = partial(self._releasing, claims[start : start + most])
            yield from self._runner.change(work, Actor(), hopeful=False)

    def _releasing(self, claims: Sequence[str]) -> DecideOp[str]:
        items = (yield tuple(claims)).items
        own, ttl = codec.encode(self._own), self._runner.capabilities.min_ttl
        ours = [key for key, item in items.items() if item is not None and item.value == own]
        puts = tuple([Write(key, _NOBODY, ttl) for key in ours])
        return Decision(outcome="released", puts=puts, quiet=True)

    # Looking.

    def _start_due(self) -> None:
        """Start the looks that are due, each in a thread."""
        now = self._clock.monotonic()
        ready = [each for each in self._guards.values() if each.ours and not each.looking]
        for group in _groups(each for each in ready if each.pace.due <= now):
            if group[0].slow and self._slow >= AT_ONCE:
                continue
            self._slow += group[0].slow
            for each in group:
                each.looking = True
            try:
                background(partial(self._look, group), "interlock-look").start()
            except RuntimeError:  # no thread can start now
                self._ended.put(EndedLook(group, {}, 0.0))

    def _look(self, guards: Sequence[PolledGuard]) -> None:
        """In a thread of its own."""
        began, seen = self._clock.monotonic(), dict[str, Facts]()
        try:
            asking = {each.digest: each.guard for each in guards}
            seen = _look(asking, self._clock, self._supervision)
        except Exception as error:  # noqa: BLE001 - one look that fails does not end the others
            _warn(error)
        finally:
            self._ended.put(EndedLook(guards, seen, self._clock.monotonic() - began))

    def _all_ended(self) -> Iterator[EndedLook]:
        while not self._ended.empty():
            ended = self._ended.get()
            self._slow -= ended.guards[0].slow
            yield ended

    def _store(self, ended: Sequence[EndedLook]) -> Op[None]:
        """Store what looks saw, and set the pace of their guards."""
        if not ended:
            return
        seen: dict[str, Facts] = {}
        polled: dict[str, PolledGuard] = {}
        for done in ended:
            seen |= done.seen
            for each in done.guards:
                each.looked(done.seen, done.took, self._clock.monotonic())
                polled[each.digest] = each
        if self._stopped:  # its commands were ended, and say nothing
            return
        guards = {key: polled[key].guard for key in seen}
        again = [key for key in guards if polled[key].again]
        actor = self._context.identity.actor
        news = yield from share(self._runner, guards, seen, actor, again)
        for key in again:
            polled[key].again = False
        self.looks += len(guards)
        self.looked_at.update(dict.fromkeys(guard.name for guard in guards.values()))
        self.changed.update(dict.fromkeys(guards[key].name for key in news))


def _look(
    asking: Mapping[str, g.Guard], clock: Clock, within: Supervision | None
) -> dict[str, Facts]:
    """What this host sees for those of these guards that it still allows."""
    return look(asking, allowed_roots(asking), clock, within)


def _warn(error: Exception) -> None:
    import logging

    logging.getLogger("interlock").warning("a look for guards failed: %r", error)


def _groups(due: Iterable[PolledGuard]) -> list[list[PolledGuard]]:
    """The guards that share a look: those of one root that run no commands."""
    groups: dict[str, list[PolledGuard]] = {}
    for each in due:
        groups.setdefault(each.digest if each.slow else each.root, []).append(each)
    return list(groups.values())
