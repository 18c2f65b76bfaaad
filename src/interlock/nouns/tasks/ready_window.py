"""What there is to claim: a small window of the tasks that are ready, best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.core import keys
from interlock.core.validate import EVERYTHING
from interlock.nouns.tasks import decode, progress_rules
from interlock.runtime.runner import Glance, Reading, Runner
from interlock.store import Item, Range, Ref, Snapshot

WIDTH = 32
_LOCAL_WIDTH = 1
"""Inside of a transaction nobody takes the first one from us."""
_DUE_WIDTH = 12


class Window(Struct, frozen=True):
    """What there is to choose from: places, best first, and those of tasks whose time has come.

    ``later`` are the first of those whose time is still to come.
    """

    places: tuple[Item, ...]
    due: tuple[str, ...]
    later: tuple[str, ...]


class Known(Struct, frozen=True):
    """The sets of requirements that there are, as of a revision of the mark that tells of new ones.

    ``fitting`` remembers which of them somebody can do.
    """

    revision: int
    sets: Mapping[str, frozenset[str]]
    fitting: dict[frozenset[str], list[str]]

    def of(self, able: frozenset[str]) -> list[str]:
        """The sets that somebody can do who can do this."""
        if able not in self.fitting:
            every = EVERYTHING in able
            found = [name for name, needed in self.sets.items() if every or needed <= able]
            self.fitting[able] = [keys.NO_REQUIREMENTS, *found]
        return self.fitting[able]


class Windows:
    """Reads them, and remembers which sets of requirements there are."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._known = Known(0, {}, {})
        self.idle: list[str] = []
        """The sets that were last looked at and of which no task was ready."""

    def read(self, able: frozenset[str]) -> Reading[Window]:
        """What is ready for us, best first."""
        known, due = self._known, Range(keys.DUE, limit=_DUE_WIDTH)
        heads = self._heads(known.of(able))
        snapshot = yield Glance((keys.SETS_MARK, due, *heads) if able else (due, *heads))
        mark = snapshot.items.get(keys.SETS_MARK)
        found = snapshot.ranges
        if mark is not None and mark.revision != known.revision:
            self._known = known = yield from self._learn(mark.revision)
            heads = self._heads(known.of(able))
            found = {**found, **(yield tuple(heads)).ranges}
        sets = known.of(able)[1:]
        self.idle = [name for name, head in zip(sets, heads[1:], strict=True) if not found[head]]
        places = [item for head in heads for item in found[head]]
        places.sort(key=lambda item: keys.order(item.key))
        ready = yield from self._awake(found[due])
        later = tuple([item.key for item in found[due] if item.key not in ready])
        return Window(tuple(places), ready, later)

    def heads(self, able: frozenset[str]) -> tuple[Ref, ...]:
        """Where to look for whether anything is ready for us, as far as we know the sets."""
        return (keys.SETS_MARK, *self._heads(self._known.of(able)))

    def current(self, snapshot: Snapshot) -> bool:
        """Whether we know all sets as of a look at these."""
        mark = snapshot[keys.SETS_MARK]
        return (0 if mark is None else mark.revision) == self._known.revision

    def _heads(self, sets: Iterable[str]) -> list[Range]:
        limit = _LOCAL_WIDTH if self._runner.capabilities.local else WIDTH
        return [Range(keys.ready(each), limit=limit) for each in sets]

    def _learn(self, revision: int) -> Reading[Known]:
        """All sets of requirements; what comes after the mark was read is found the next time."""
        sets: dict[str, frozenset[str]] = {}
        page = Range(keys.SETS)
        while True:
            found = (yield (page,)).ranges[page]
            for item in found:
                sets[item.key[len(keys.SETS) :]] = frozenset(decode.names(item))
            if len(found) < page.limit:
                return Known(revision, sets, {})
            page = Range(keys.SETS, found[-1].key)

    def _awake(self, found: Sequence[Item]) -> Reading[tuple[str, ...]]:
        if not found:
            return ()
        rests = resting(found)
        lives = (yield Glance(rests.values())).items if rests else {}
        return awake(found, lives, self._runner.clock.wall())


def resting(found: Sequence[Item]) -> dict[str, str]:
    """Of the tasks that must not begin yet, the liveness keys of those that rest."""
    return {item.key: due.rest for item in found if (due := decode.due(item)) and due.rest}


def awake(found: Sequence[Item], lives: Mapping[str, Item | None], now: float) -> tuple[str, ...]:
    """Of the tasks that must not begin yet, those whose time has come."""
    rests = resting(found)
    return tuple(
        item.key
        for item in found
        if (
            lives[rests[item.key]] is None
            if item.key in rests
            else progress_rules.moment(item.key) <= now
        )
    )
