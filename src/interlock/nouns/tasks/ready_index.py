"""Reads the index of ready tasks: a small window of the best ones, by sets of requirements.

A worker reads one range of ready tasks for each set that it can do.  What it can do is named by its
call, or else is what its session reports, which the same read brings: the last known report says
which sets to read, and they are read again if it has changed.

A set without a ready task costs every claim a read, and is deleted in time.  A commit that makes a
task ready relies on its set, or writes it (``task_change.py``).  The danger is a task that becomes
ready while its set is deleted, since no worker would find it.  On a local engine reading and
deleting are one transaction.  Across a network they are three steps:

    1. write the set again, marked as leaving: a commit that relied on the set conflicts, and a
       commit that reads it from now on writes it again, without the mark
    2. read whether a task is ready: all commits that relied on the set before step 1 are visible
    3. delete the set if none is, and only if it still is the marked one of step 2

A failure between the steps leaves a set that workers read, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.core import keys, validate
from interlock.core.decision import Decision, Write
from interlock.nouns.tasks.task import can_do
from interlock.nouns.tasks.task_reader import change, decode_due, decode_names, is_leaving
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import every_inside, readable
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op, Read
from interlock.store import Item, Range, Ref, Snapshot

WIDTH = 32
"""Across a network; inside of a transaction no other worker takes the first task."""
_DUE_WIDTH = 12


class ReadyWindow(Struct, frozen=True):
    """Ready tasks to choose from (``places``, best first), and the keys of due tasks.

    ``later`` are the keys of the first tasks that are not due yet.
    """

    places: tuple[Item, ...]
    due: tuple[str, ...]
    later: tuple[str, ...]


class Abilities(Struct, frozen=True):
    """What a caller can do: what its call names, and what this session reports, if it is set."""

    named: frozenset[str]
    session: str = ""


class ReportedAbilities(Struct, frozen=True):
    """What a session reports that it can do, as of a revision of its report."""

    session: str
    revision: int
    can: frozenset[str]


class RequirementSets(Struct, frozen=True):
    """The listed sets of requirements, as of a revision of the mark that changes with them.

    ``fitting`` caches the sets for each combination of abilities.
    """

    revision: int
    sets: Mapping[str, frozenset[str]]
    fitting: dict[frozenset[str], list[str]]

    def of(self, able: frozenset[str]) -> list[str]:
        """The sets that a worker with these abilities can do."""
        if able not in self.fitting:
            found = [name for name, needed in self.sets.items() if can_do(able, needed)]
            none = [keys.NO_REQUIREMENTS] if can_do(able, ()) else []
            self.fitting[able] = [*none, *found]
        return self.fitting[able]


class ReadyWindowReader:
    """Reads windows of ready tasks, and remembers the sets of requirements."""

    def __init__(self, runner: Runner, wall: Callable[[], float]) -> None:
        self._runner = runner
        self._wall = wall
        self._known = RequirementSets(0, {}, {})
        self._reported = ReportedAbilities("", 0, frozenset())
        self.idle: list[str] = []
        """The sets without a ready task at the last read."""

    def read(self, abilities: Abilities, wanted: int = 1) -> ReadOp[ReadyWindow]:
        """Read the tasks that are ready for a worker with these abilities: so many, or more."""
        due, own = Range(keys.DUE, limit=_DUE_WIDTH), _report_key(abilities)
        while True:
            known, able = self._known, self._able(abilities)
            heads = self._heads(known.of(able), wanted)
            mark_key = (keys.SETS_MARK,) if able else ()
            snapshot = yield Unchecked((*own, *mark_key, due, *heads))
            if self._learn_report(abilities, snapshot):
                break
        mark = snapshot.items.get(keys.SETS_MARK)
        found = snapshot.ranges
        if mark is not None and mark.revision != known.revision:
            self._known = known = yield from self._learn(mark.revision)
            heads = self._heads(known.of(able), wanted)
            found = {**found, **(yield tuple(heads)).ranges}
        self.idle = [
            name
            for name, head in zip(known.of(able), heads, strict=True)
            if not found[head] and name != keys.NO_REQUIREMENTS
        ]
        places = [item for head in heads for item in found[head]]
        if len(heads) > 1:
            places.sort(key=lambda item: keys.ready_order(item.key))
        ready = yield from self._awake(found[due])
        later = tuple([item.key for item in found[due] if item.key not in ready])
        return ReadyWindow(tuple(places), ready, later)

    def fits(self, abilities: Abilities, place: str) -> bool:
        """Whether a worker with these abilities can do a ready task, as far as we know its set."""
        return keys.ready_set(place) in self._known.of(self._able(abilities))

    def heads(self, abilities: Abilities) -> tuple[Ref, ...]:
        """What to read to see whether a task is ready for us, in the sets that we know."""
        heads = self._heads(self._known.of(self._able(abilities)))
        return (keys.SETS_MARK, *_report_key(abilities), *heads)

    def current(self, abilities: Abilities, snapshot: Snapshot) -> bool:
        """Whether we know all sets and what we can do as of this snapshot of ``heads``."""
        mark = snapshot[keys.SETS_MARK]
        known = (0 if mark is None else mark.revision) == self._known.revision
        return known and self._learn_report(abilities, snapshot)

    def _able(self, abilities: Abilities) -> frozenset[str]:
        """All abilities, as far as we know the report."""
        known = self._reported
        if known.can and known.session == abilities.session:
            return abilities.named | known.can
        return abilities.named

    def _learn_report(self, abilities: Abilities, snapshot: Snapshot) -> bool:
        """Remember the report of this snapshot; whether we can do the same as we knew."""
        if not abilities.session:
            return True
        item, known = snapshot[keys.report(abilities.session)], self._reported
        revision = 0 if item is None else item.revision
        if known.revision == revision and known.session == abilities.session:
            return True
        before, self._reported = self._able(abilities), _reported(abilities.session, item)
        return self._able(abilities) == before

    def _heads(self, sets: Iterable[str], wanted: int = 1) -> list[Range]:
        limit = wanted if self._runner.capabilities.transacts else max(wanted, WIDTH)
        return [Range(keys.ready(each), limit=limit) for each in sets]

    def _learn(self, revision: int) -> ReadOp[RequirementSets]:
        """Read all sets of requirements; later ones change the mark again."""
        sets: dict[str, frozenset[str]] = {}
        for item in (yield from every_inside(keys.SETS)):
            sets[item.key[len(keys.SETS) :]] = frozenset(decode_names(item))
        return RequirementSets(revision, sets, {})

    def _awake(self, found: Sequence[Item]) -> ReadOp[tuple[str, ...]]:
        if not found:
            return ()
        rests = rest_keys(found)
        lives = (yield Unchecked(rests.values())).items if rests else {}
        return due_now(found, lives, self._wall())


def abilities_of(identity: Identity, can: Iterable[str] | None) -> Abilities:
    """These abilities; None are those that the session reports."""
    if can is None:
        return Abilities(frozenset(), identity.actor.session if identity.joined else "")
    return Abilities(frozenset(validate.abilities(can)))


def all_abilities(abilities: Abilities) -> Op[frozenset[str]]:
    """What a caller can do now."""
    if not abilities.session:
        return abilities.named
    key = keys.report(abilities.session)
    return abilities.named | _reported(abilities.session, (yield Read(key))[key]).can


def _report_key(abilities: Abilities) -> tuple[str, ...]:
    return (keys.report(abilities.session),) if abilities.session else ()


def _reported(session: str, item: Item | None) -> ReportedAbilities:
    if item is None:
        return ReportedAbilities(session, 0, frozenset())
    from interlock.nouns.agents.report_service import decode_report

    report = readable(decode_report, item)
    can = frozenset(() if report is None else report.can)
    return ReportedAbilities(session, item.revision, can)


def rest_keys(found: Sequence[Item]) -> dict[str, str]:
    """The liveness keys of rests, by their keys in the ``due`` index."""
    return {item.key: due.rest for item in found if (due := decode_due(item)) and due.rest}


def due_now(found: Sequence[Item], lives: Mapping[str, Item | None], now: float) -> tuple[str, ...]:
    """The keys of the ``due`` index whose rest is over or whose moment has come."""
    rests = rest_keys(found)
    return tuple(
        item.key
        for item in found
        if (lives[rests[item.key]] is None if item.key in rests else keys.due_at(item.key) <= now)
    )


SETS_AT_ONCE = 16
_VERB, _THING = "task.tidy", "tasks"


def delete_idle_sets(runner: Runner, actor: Actor, sets: Sequence[str]) -> Op[int]:
    """Delete the sets of these that have no ready task; returns how many."""
    local = runner.capabilities.transacts
    if not local:
        marked: Decided[int] = yield from runner.change(lambda: _marking(sets), actor)
        if not marked.outcome:
            return 0
    done: Decided[int] = yield from runner.change(lambda: _deleting(sets, marked=not local), actor)
    return done.outcome


def restore_set(runner: Runner, actor: Actor, place: str) -> Op[bool]:
    """List the set of a ready task, if a client of an older version has missed that."""
    task = keys.task_in_index(place)
    done: Decided[bool] = yield from change(
        runner,
        actor,
        (keys.data(task), keys.requirement_set(keys.ready_set(place))),
        lambda changes: changes.listed(task, _VERB),
    )
    return done.outcome


def _marking(sets: Iterable[str]) -> DecideOp[int]:
    """Step 1, for sets without a ready task."""
    found: Snapshot = yield tuple([keys.requirement_set(name) for name in sets])
    idle = yield from _idle(found.items)
    puts = [Write(key, (*names, names[0])) for key, names in idle.items()]
    if not puts:
        return Decision(outcome=0)
    return Decision(outcome=len(puts), verb=_VERB, thing=_THING, puts=tuple(puts))


def _deleting(sets: Iterable[str], *, marked: bool) -> DecideOp[int]:
    """Steps 2 and 3; without a mark (``marked``), both are one transaction."""
    found: Snapshot = yield tuple([keys.requirement_set(name) for name in sets])
    own = {
        key: item
        for key, item in found.items.items()
        if item is not None and (is_leaving(item) or not marked)
    }
    idle = yield from _idle(own)
    if not idle:
        return Decision(outcome=0)
    mark = Write(keys.SETS_MARK, {})
    return Decision(outcome=len(idle), verb=_VERB, thing=_THING, puts=(mark,), deletes=tuple(idle))


def _idle(items: Mapping[str, Item | None]) -> ReadOp[dict[str, tuple[str, ...]]]:
    """The requirements of the sets of these that have no ready task."""
    known = {key: readable(decode_names, item) for key, item in items.items() if item is not None}
    sets = {key: tuple(dict.fromkeys(names)) for key, names in known.items() if names}
    heads = {key: Range(keys.ready(key.removeprefix(keys.SETS)), limit=1) for key in sets}
    ranges = (yield Unchecked(heads.values())).ranges if heads else {}
    return {key: names for key, names in sets.items() if not ranges[heads[key]]}
