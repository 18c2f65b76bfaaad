"""Room for another question: so many may be open, and one agent may have half of them.

Each open question has two places, one of all and one of its agent's, which the commit that asks
takes and the commit that ends it gives back.  A place is an item, and asking checks that it is not
there: so the limits are exact, however many ask at once, and two askers meet only if both pick the
same place.

Questions whose time is up may still have theirs, since whoever asked them is gone.  So may those
that a client of an older version ended, which knows of no places.  A client that finds no room
therefore ends some of the former, and gives back the places of both; so does maintenance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.drivers import Op
from interlock.nouns.messages import decode
from interlock.nouns.messages.query_rules import QuotaSlot, TooMany, agent_share
from interlock.nouns.messages.query_wait import expire_query
from interlock.runtime.decode import readable
from interlock.runtime.gather import every, looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import DecideOp, ReadOp, Runner, Unchecked
from interlock.store import Item, Range

_AT_ONCE = 32
"""So many questions of the past are ended by one who finds no room."""
_TIMED = 64
"""Of so many open questions it is asked how long they may still be answered."""
_LOOK = 1.0
"""Seconds after which it is looked again for questions of the past, if there were none."""
_LEAST = 0.1
_NAMED = 3


class QueryQuota:
    """How many questions may be open, as one client knows."""

    def __init__(self, runner: Runner, limit: int) -> None:
        self._runner = runner
        self._limit = limit
        self._looked = float("-inf")

    def guess(self, agent: str) -> tuple[str, ...]:
        """Two places that are probably free; none if no question may be open."""
        if not self._limit:
            return ()
        return tuple(
            keys.asking(whose, self._runner.random_below(most))
            for whose, most in self._folders(agent).items()
        )

    def take(
        self, agent: str, guess: Sequence[str], items: Mapping[str, Item | None]
    ) -> ReadOp[tuple[str, ...]]:
        """Two places that are free, those of the guess if they are; none if there are none."""
        found: list[str] = []
        for key, (whose, most) in zip(guess, self._folders(agent).items(), strict=True):
            place: str | None = key
            if items[key] is not None:
                place = yield from self._free(whose, most)
            if place is None:
                return ()
            found.append(place)
        return tuple(found)

    def _folders(self, agent: str) -> dict[str, int]:
        """Where the places of all are, and those of one agent, and how many."""
        return {"": self._limit, agent: agent_share(self._limit)}

    def _free(self, whose: str, most: int) -> ReadOp[str | None]:
        """A place that is free, any of them; None if none is."""
        while True:
            taken = yield from _taken(keys.asking(whose))
            every_one = (keys.asking(whose, number) for number in range(most))
            free = [key for key in every_one if key not in taken]
            if not free:
                return None
            place = free[self._runner.random_below(len(free))]
            if (yield (place,))[place] is None:  # else somebody was quicker
                return place

    def cleared(self, actor: Actor) -> Op[bool]:
        """End some whose time is up; whether there were any."""
        now = self._runner.clock.monotonic()
        if now < self._looked + self._runner.capabilities.allow(_LOOK):
            return False
        places = yield from every(keys.ASKING)
        taken = {item.key: note.query for item in places if (note := readable(_asking, item))}
        lives = yield from looked_up([keys.live(id_) for id_ in taken.values()])
        over = {id_: None for id_ in taken.values() if lives[keys.live(id_)] is None}
        if not over:
            self._looked = now
        for id_ in list(over)[:_AT_ONCE]:
            yield from expire_query(self._runner, actor, id_)
            kept = tuple([key for key, query in taken.items() if query == id_])
            yield from self._runner.change(partial(_given_back, kept, id_), actor)
        return bool(over)

    def refusal(self, agent: str) -> Op[TooMany]:
        """Why there is no room: whose questions are open, and when the first of them ends."""
        listed = dict(map(_named, (yield from every(keys.OPEN, most=self._limit))))
        by, own = Counter(listed.values()), agent_share(self._limit)
        some = [keys.live(id_) for id_ in list(listed)[:_TIMED]]
        lives = (yield from looked_up(some, times=True)).values()
        left = [each.expires_in or 0.0 for each in lives if each is not None]
        grain = self._runner.capabilities.grain
        retry_in = round(max(min(left) + grain, _LEAST), 3) if left else None
        if own <= by[agent] < self._limit:
            refused = TooMany(open=by[agent], limit=own, agent=agent, by={agent: by[agent]})
        else:
            most = dict(by.most_common(_NAMED))
            refused = TooMany(open=len(listed), limit=self._limit, by=most)
        return replace(refused, retry_in=retry_in)


def _taken(folder: str) -> ReadOp[set[str]]:
    """The places in a folder that are taken."""
    found: set[str] = set()
    page = Range(folder)
    while True:
        items = (yield Unchecked((page,))).ranges[page]
        found.update(item.key for item in items)
        if len(items) < page.limit:
            return found
        page = Range(folder, items[-1].key)


def _asking(item: Item) -> QuotaSlot:
    return decode.asking(item)


def _named(item: Item) -> tuple[str, str]:
    """The id of an open question, and who asked it."""
    agent, id_ = keys.open_of(item.key)
    return id_, agent


def _given_back(places: tuple[str, ...], query: str) -> DecideOp[None]:
    """Give back the places that a question still has and is not open: an older client ended it."""
    items = (yield (keys.query(query), *places)).items
    kept = [(key, items[key]) for key in places]
    gone = [key for key, item in kept if item and _asking(item).query == query]
    if not gone or decode.is_open_query(items[keys.query(query)]):
        return Decision(outcome=None)
    return Decision(outcome=None, verb="query.forget", thing=f"query/{query}", deletes=tuple(gone))
