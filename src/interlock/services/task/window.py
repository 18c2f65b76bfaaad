"""What there is to claim: a small window of the tasks that are ready, best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.core import flow, keys
from interlock.core.words import EVERYTHING
from interlock.services.runner import Glance, Reading, Runner
from interlock.services.task import states
from interlock.store import Item, Range

WIDTH = 32
_LOCAL_WIDTH = 1
"""Inside of a transaction nobody takes the first one from us."""
_DUE_WIDTH = 16


class Window(Struct, frozen=True):
    """What there is to choose from: places, best first, and those of tasks whose time has come."""

    places: tuple[Item, ...]
    due: tuple[str, ...]


class Windows:
    """Reads them, and remembers which sets of requirements there are."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._sets: dict[str, frozenset[str]] = {}

    def read(self, able: frozenset[str]) -> Reading[Window]:
        """What is ready for us, best first."""
        limit = _LOCAL_WIDTH if self._runner.capabilities.local else WIDTH
        sets, due = Range(keys.SETS), Range(keys.DUE, limit=_DUE_WIDTH)
        heads = [Range(keys.ready(each), limit=limit) for each in self._known(able)]
        snapshot = yield ((sets, due, *heads) if able else (due, *heads))
        places = [item for head in heads for item in snapshot.ranges[head]]
        if able and (fresh := (yield from self._fresh(snapshot.ranges[sets], sets))):
            more = [Range(keys.ready(each), limit=limit) for each in self._fitting(fresh, able)]
            later = (yield tuple(more)).ranges if more else {}
            places += [item for head in more for item in later[head]]
        places.sort(key=lambda item: keys.order(item.key))
        awake = yield from self._awake(snapshot.ranges[due])
        return Window(tuple(places), awake)

    def _known(self, able: frozenset[str]) -> list[str]:
        """The sets of requirements that we know of and can do; nothing is required of most."""
        if not able:
            return [keys.NO_REQUIREMENTS]
        return [keys.NO_REQUIREMENTS, *self._fitting(self._sets, able)]

    def _fresh(self, found: Sequence[Item], page: Range) -> Reading[list[str]]:
        """The sets of requirements that we did not know yet."""
        fresh = []
        while True:
            for item in found:
                name = item.key[len(keys.SETS) :]
                if name not in self._sets:
                    self._sets[name] = frozenset(states.names(item))
                    fresh.append(name)
            if len(found) < page.limit:
                return fresh
            page = Range(keys.SETS, found[-1].key)
            found = (yield (page,)).ranges[page]

    def _fitting(self, sets: Iterable[str], able: frozenset[str]) -> list[str]:
        if EVERYTHING in able:
            return list(sets)
        return [each for each in sets if self._sets[each] <= able]

    def _awake(self, found: Sequence[Item]) -> Reading[tuple[str, ...]]:
        if not found:
            return ()
        rests = resting(found)
        lives = (yield Glance(rests.values())).items if rests else {}
        return awake(found, lives, self._runner.clock.wall())


def resting(found: Sequence[Item]) -> dict[str, str]:
    """Of the tasks that must not begin yet, the liveness keys of those that rest."""
    return {item.key: due.rest for item in found if (due := states.due(item)) and due.rest}


def awake(found: Sequence[Item], lives: Mapping[str, Item | None], now: float) -> tuple[str, ...]:
    """Of the tasks that must not begin yet, those whose time has come."""
    rests = resting(found)
    return tuple(
        item.key
        for item in found
        if (lives[rests[item.key]] is None if item.key in rests else flow.moment(item.key) <= now)
    )
