"""What is reserved: lists, conflicts of a change, why a path is blocked, problems, housekeeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from interlock.core import keys
from interlock.core.safe_text import foreign
from interlock.core.validate import command, quote, span
from interlock.errors import BadInput, StoreDamaged, TooLarge
from interlock.nouns.reservations import pattern as patterns
from interlock.nouns.reservations import reservation as r
from interlock.nouns.reservations.conflicts import PatternEntry, PatternIndex, conflicting, overlap
from interlock.nouns.reservations.reading import (
    Live,
    decode_entry,
    decode_reservation,
    entries_for,
    held_by,
    learn,
)
from interlock.nouns.reservations.repository import ReservedRepository, find
from interlock.nouns.reservations.reservation import Reservation
from interlock.nouns.reservations.rules import thing
from interlock.nouns.reservations.service import ReservationService
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.reads import every, every_inside, looked_up, outside, readable
from interlock.runtime.why import Queued, Why
from interlock.steps import Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.reservations.pattern import Pattern
    from interlock.runtime.attempt import ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

FEW = 20
"""Paths up to which only entries that may overlap are read."""


def unreserve(
    service: ReservationService,
    actor: Actor,
    repository: str,
    texts: tuple[str, ...],
    token: int | None,
    *,
    holder: str,
    reason: str,
) -> Op[r.UnreserveOutcome]:
    """End reservations, or say whose they are."""
    wanted = frozenset(texts)

    def chosen(each: Reservation, its: int) -> bool:
        if token is not None and its != token:
            return False
        return not wanted or wanted == frozenset(each.patterns)

    done = yield from service.release(actor, repository, chosen, holder=holder, reason=reason)
    if done is not None:
        return done
    if token is not None:
        return r.ReservationFenced(token=token)
    others = yield from outside(
        entries_for(repository, [patterns.parse(text) for text in texts] if texts else [])
    )
    for each in others:
        if each.of.pattern in wanted and each.of.agent != actor.agent and not each.of.queued:
            return r.ReservationNotOwner(patterns=texts, holder=each.of.agent)
    return r.NothingReserved(patterns=texts)


def list_reservations(
    runner: Runner,
    place: ReservedRepository,
    texts: tuple[str, ...],
    holder: str,
    limit: int,
    *,
    everywhere: bool = False,
) -> Op[r.ReservationList]:
    """The reservations of a repository, or of all of them; those in the queue last."""
    base = yield from runner.base()
    if everywhere:
        items = yield from every(keys.RESERVATIONS, keys.RESERVE_QUEUE)
    elif holder:
        return (yield from _list_of_holder(place, texts, holder, limit, base))
    else:
        items = yield from every(keys.reservation(place.name), keys.reserve_queue(place.name))
    read = [(item, readable(decode_reservation, item)) for item in items]
    found = [
        Listed(each, base + item.revision, *_of_key(item.key))
        for item, each in read
        if each is not None and (not holder or each.agent == holder)
    ]
    return (yield from _listing("" if everywhere else place.name, found, texts, limit, place))


class Listed(NamedTuple):
    """A reservation with its token, its repository, and whether it waits."""

    of: Reservation
    token: int
    repository: str
    queued: bool


def _of_key(key: str) -> tuple[str, bool]:
    return keys.reservation_of(key)[0], key.startswith(keys.RESERVE_QUEUE)


def _list_of_holder(
    place: ReservedRepository, texts: tuple[str, ...], holder: str, limit: int, base: int
) -> Op[r.ReservationList]:
    """Those of one holder, which an index names."""
    own = yield from outside(held_by(place.name, holder, base))
    queue = yield from every(keys.reserve_queue(place.name))
    waiting = {keys.id_of(item.key) for item in queue}
    found = [Listed(each, token, place.name, each.id in waiting) for each, token in own]
    return (yield from _listing(place.name, found, texts, limit, place))


def _listing(
    repository: str,
    found: list[Listed],
    texts: tuple[str, ...],
    limit: int,
    place: ReservedRepository,
) -> Op[r.ReservationList]:
    if texts:
        found = [each for each in found if _touches(each.of, texts, place)]
    found.sort(key=lambda each: (each.queued, each.of.since, each.token))
    live = yield from looked_up((each.of.live for each in found[:limit]), times=True)
    views = [_view(each, live[each.of.live]) for each in found[:limit]]
    return r.ReservationList(
        repository=repository, reservations=tuple(views), more=len(found) > limit
    )


def _touches(each: Reservation, texts: tuple[str, ...], place: ReservedRepository) -> bool:
    fold = each.fold or place.fold
    mine = [patterns.parse(text, fold=fold) for text in texts]
    theirs = [patterns.parse(text, fold=fold) for text in each.patterns]
    return any(patterns.overlaps(one, other) for one in mine for other in theirs)


def _view(listed: Listed, live: Item | None) -> r.ReservationView:
    each, queued = listed.of, listed.queued
    return r.ReservationView(
        patterns=each.patterns,
        holder=each.agent,
        state="stale" if live is None else "queued" if queued else "reserved",
        shared=each.shared,
        since=each.since,
        token=None if queued else listed.token,
        expires_in=None if live is None else live.life,
        reason=each.reason,
        worktree=each.tree,
        session=each.session,
        id=each.id,
        repository=listed.repository,
    )


class ChangedFiles(NamedTuple):
    """Files that an agent changes."""

    agent: str
    paths: tuple[Pattern, ...]


def exact_paths(place: ReservedRepository, paths: Sequence[str]) -> tuple[Pattern, ...]:
    """Paths that exist, each once; BadInput or TooLarge for one that cannot be reserved."""
    return tuple([patterns.exact(path, fold=place.fold) for path in dict.fromkeys(paths)])


def conflicts(
    place: ReservedRepository, paths: Sequence[str], agent: str, tree: str = ""
) -> Op[tuple[r.ReservationOverlap, ...]]:
    """The living reservations of other agents that cover one of these paths, each once."""
    changes = (ChangedFiles(agent, exact_paths(place, paths)),)
    return (yield from outside(conflicts_inside(place, changes, tree)))[0]


def conflicts_inside(
    place: ReservedRepository, changes: Sequence[ChangedFiles], tree: str = "", since: int = 0
) -> ReadOp[list[tuple[r.ReservationOverlap, ...]]]:
    """As ``conflicts``, for each of several changes, but read by a decision.

    The commit does not check what it reads: that is for the mark of the repository.  Reservations
    that were granted up to the revision ``since`` may be left out.
    """
    entries = yield from _entries_of_paths(place.name, changes, since)
    index = PatternIndex(each for each in entries if not each.of.queued)
    asking = [_asking(change.agent, (), place, tree) for change in changes]
    found = [_covering(index, *each) for each in zip(asking, changes, strict=True)]
    live: Live = {}
    yield from learn(live, [each.of.live for one in found for _, each in one])
    return [
        tuple(overlap(mine, each, path) for path, each in one if live[each.of.live])
        for mine, one in zip(asking, found, strict=True)
    ]


def _covering(
    index: PatternIndex, mine: Reservation, change: ChangedFiles
) -> list[tuple[Pattern, PatternEntry]]:
    """The reservations that conflict with a change, each with the first path that it covers."""
    found: dict[str, tuple[Pattern, PatternEntry]] = {}
    for path in change.paths:
        for each in conflicting(mine, index.candidates(path), path=path):
            found.setdefault(each.of.id, (path, each))
    return list(found.values())


def _entries_of_paths(
    repository: str, changes: Sequence[ChangedFiles], since: int
) -> ReadOp[list[PatternEntry]]:
    wanted = dict.fromkeys(path for change in changes for path in change.paths)
    if not wanted:
        return []
    if len(wanted) <= FEW:
        return (yield from entries_for(repository, wanted))
    items = yield from every_inside(keys.reserved(repository))
    return [
        PatternEntry(decode_entry(each), each.created) for each in items if each.revision > since
    ]


def _asking(
    agent: str, texts: tuple[str, ...], place: ReservedRepository, tree: str
) -> Reservation:
    return Reservation(
        id="",
        agent=agent,
        session="",
        patterns=texts,
        live="",
        since=0.0,
        tree=tree,
        fold=place.fold,
    )


# Why.


def why_path(context: Context, name: str) -> Op[Why]:
    """Explain who may edit a path."""
    place = find()
    texts = place.patterns(patterns.escaped(place.relative(name)))
    found = yield from _explained(context, place, texts, name)
    if found is not None:
        return found
    return Why(
        thing=f"path/{name}",
        blocked=False,
        because="nothing reserves it",
        clear=f"reserve it: interlock reserve {quote(name)} --agent NAME",
    )


def why_plain(context: Context, name: str) -> Op[Why | None]:
    """Explain a path that is reserved; None for any other name."""
    try:
        place = find()
        texts = place.patterns(patterns.escaped(place.relative(name)))
        for text in texts:
            patterns.parse(text)
    except (BadInput, TooLarge):
        return None
    return (yield from _explained(context, place, texts, name))


def _explained(
    context: Context, place: ReservedRepository, texts: tuple[str, ...], name: str
) -> Op[Why | None]:
    wanted = [patterns.parse(text, fold=place.fold) for text in texts]
    entries = yield from outside(entries_for(place.name, wanted))
    covering = conflicting(_asking("", texts, place, ""), entries)
    live = yield from looked_up((each.of.live for each in covering), times=True)
    holding = [each.of for each in covering if live[each.of.live] and not each.of.queued]
    waiting = [each.of for each in covering if live[each.of.live] and each.of.queued]
    if not holding and not waiting:
        return None
    now = context.runner.clock.wall()
    said = [
        f"{foreign(each.agent)} has reserved {each.pattern!r}"
        f"{' for reading, shared' if each.shared else ''} for {span(now - each.since)}"
        f"{f': {foreign(each.reason)}' if each.reason else ''}"
        for each in holding
    ]
    first = holding[0] if holding else waiting[0]
    item = live[first.live]
    return Why(
        thing=f"path/{name}",
        blocked=bool(holding),
        because="; ".join(said) or f"{foreign(first.agent)} waits for {first.pattern!r}",
        clear=f"wait for it: interlock reserve {quote(name)} --on-conflict queue --agent NAME;"
        f" ask: interlock query {quote(first.agent)} 'when are you done with it?'; or end it:"
        f" interlock unreserve {quote(first.pattern)} --holder {quote(first.agent)} --reason WHY",
        by=", ".join(dict.fromkeys(each.agent for each in holding)),
        since=first.since,
        expires_in=None if item is None else item.life,
        waiters=tuple(Queued(agent=each.agent, weight=1, since=each.since) for each in waiting),
        state="reserved" if holding else "free",
    )


# Health and housekeeping.


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Reservations that are stale or held for long, and waiters that wait for long."""
    now, found = checkup.runner.clock.wall(), list[tuple[Reservation, bool]]()
    for prefix in (keys.RESERVATIONS, keys.RESERVE_QUEUE):
        items = yield from checkup.read(prefix)
        read = [readable(decode_reservation, item) for item in items]
        found += [(each, prefix == keys.RESERVE_QUEUE) for each in read if each is not None]
    live = yield from looked_up(each.live for each, _ in found)
    problems = []
    for each, queued in found:
        what = " ".join(each.patterns)
        if live[each.live] is None:
            problems.append(
                Problem(
                    kind="stale",
                    says=f"{foreign(what)}: {foreign(each.agent)} stopped renewing its reservation",
                    remedy="reserve it, or run 'interlock maintain'",
                    thing=thing(each.id),
                    agent=each.agent,
                    since=each.since,
                )
            )
            continue
        lasts, patience = now - each.since, checkup.patience
        if lasts > (patience.waiting if queued else patience.held):
            did = "has waited for it" if queued else "has reserved it"
            problems.append(
                Problem(
                    kind="waiting" if queued else "stuck",
                    says=f"{foreign(what)}: {foreign(each.agent)} {did} for {span(lasts)}",
                    remedy=f"see {command(f'interlock reservations {quote(each.patterns[0])}')}",
                    thing=thing(each.id),
                    agent=each.agent,
                    since=each.since,
                )
            )
    return problems


class ReservationHousekeepingPart(HousekeepingPart):
    """The part of a pass that is about reservations."""

    def reclaim(self) -> Op[None]:
        """End stale reservations and waits, and serve the waiters."""
        from interlock.nouns.grants.service import GrantService

        work = self.work
        items = yield from every(keys.RESERVATIONS, keys.RESERVE_QUEUE)
        read = {item.key: readable(decode_reservation, item) for item in items}
        known = {key: each for key, each in read.items() if each is not None}
        live = yield from looked_up(each.live for each in known.values())
        service = ReservationService(work.runner, GrantService(work.runner))
        for key, each in known.items():
            if live[each.live] is not None:
                continue
            if work.reclaimed >= work.bound:
                work.left += 1
                continue
            repository, id_ = keys.reservation_of(key)
            try:
                changed = yield from service.reclaim(work.actor, repository, (id_,))
            except (StoreDamaged, TooLarge):  # the others need not wait for it; doctor names it
                work.left += 1
                continue
            work.reclaimed += changed
        for repository in {keys.reservation_of(key)[0] for key in known}:
            if any(key.startswith(keys.reserve_queue(repository)) for key in known):
                yield from service.reclaim(work.actor, repository, ())
