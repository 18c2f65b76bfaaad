"""Room for another question: so many may be open, and one agent may have half of them.

Questions whose time is up may still be listed, since whoever asked them is gone.  Whoever finds no
room therefore ends some of those first.
"""

from __future__ import annotations

from collections import Counter

from interlock.core import keys
from interlock.core.query import TooMany, share
from interlock.driving import Op
from interlock.services.gather import looked_up, outside
from interlock.services.message.limits import Depths
from interlock.services.message.sleep import expire
from interlock.services.runner import Glance, Reading, Runner, Who
from interlock.store import Range

_AT_ONCE = 32
"""So many questions of the past are ended by one who finds no room."""
_LOOK = 1.0
"""Seconds after which it is looked again for such questions."""
_NAMED = 3


class Room:
    """How many questions are open, as one client knows."""

    def __init__(self, runner: Runner, limit: int) -> None:
        self._runner = runner
        self._limit = limit
        self._depths = Depths(limit, runner.clock)
        self._open: dict[str, str] = {}
        """All that were open at the last count, each with who asked it."""
        self._looked = float("-inf")

    def enter(self, who: Who) -> Op[TooMany | None]:
        """Take room for one question, until it is ``settled``; or why there is none."""
        if not (yield from self._full(who.agent)):
            return None
        if (yield from self._cleared(who)) and not (yield from self._full(who.agent)):
            return None
        return self._refusal(who.agent)

    def settled(self) -> None:
        """Whoever entered has asked, or has not."""
        self._depths.settled(keys.OPEN)

    def _full(self, agent: str) -> Op[bool]:
        def room() -> Reading[int]:
            self._open = yield from _listed(self._limit)
            own = Counter(self._open.values())[agent]
            return min(self._limit - len(self._open), share(self._limit) - own)

        return (yield from outside(self._depths.closed(keys.OPEN, room)))

    def _cleared(self, who: Who) -> Op[bool]:
        """End some whose time is up; whether there were any."""
        now = self._runner.clock.monotonic()
        if now < self._looked + _LOOK:
            return False
        self._looked = now
        lives = yield from looked_up(map(keys.live, self._open))
        over = [id_ for id_ in self._open if lives[keys.live(id_)] is None]
        for id_ in over[:_AT_ONCE]:
            yield from expire(self._runner, who, id_)
        return bool(over)

    def _refusal(self, agent: str) -> TooMany:
        by, own = Counter(self._open.values()), share(self._limit)
        if own <= by[agent] < self._limit:
            return TooMany(open=by[agent], limit=own, agent=agent, by={agent: by[agent]})
        most = dict(by.most_common(_NAMED))
        return TooMany(open=len(self._open), limit=self._limit, by=most)


def _listed(most: int) -> Reading[dict[str, str]]:
    """The open questions, up to so many, each with who asked it."""
    found: dict[str, str] = {}
    page = Range(keys.OPEN)
    while True:
        items = (yield Glance((page,))).ranges[page]
        for item in items:
            agent, id_ = keys.open_of(item.key)
            found[id_] = agent
        if len(items) < page.limit or len(found) >= most:
            return found
        page = Range(keys.OPEN, items[-1].key)
