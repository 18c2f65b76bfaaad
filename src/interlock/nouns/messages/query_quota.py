"""The quota of open questions: a limit for all agents, and half of it for one agent.

Each open question holds two slots, one of all and one of its agent. The commit that asks takes
them, and the commit that ends the question frees them. A slot is an item, and asking checks that it
does not exist: so the limits are exact, and two askers conflict only if they pick the same slot.

An expired question keeps its slots if its asker is gone. So does a question that a client of an
older version ended, which knows no slots. A client that finds no free slot ends some expired
questions and frees the slots of both kinds; so does maintenance.
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
from interlock.nouns.messages.query_rules import TooMany, agent_share
from interlock.nouns.messages.query_wait import expire_query
from interlock.runtime.decide import DecideOp, ReadOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.store import Item, Range

_AT_ONCE = 32
"""Expired questions that a client ends when it finds no free slot."""
_TIMED = 64
"""Open questions whose time left is read for a refusal."""
_LOOK_EVERY = 1.0
"""Seconds until the next look for expired questions, if there were none."""
_LEAST = 0.1
_NAMED = 3


class QueryQuota:
    """The quota as one client knows it."""

    def __init__(self, runner: Runner, limit: int) -> None:
        self._runner = runner
        self._limit = limit
        self._last_look = float("-inf")

    def guess(self, agent: str) -> tuple[str, ...]:
        """Two slots that are probably free; none if the limit is 0."""
        if not self._limit:
            return ()
        return tuple(
            keys.query_slot(whose, self._runner.random_below(most))
            for whose, most in self._folders(agent).items()
        )

    def take(
        self, agent: str, guess: Sequence[str], items: Mapping[str, Item | None]
    ) -> ReadOp[tuple[str, ...]]:
        """Two free slots, those of the guess if they are free; none if the quota is used up."""
        found: list[str] = []
        for key, (whose, most) in zip(guess, self._folders(agent).items(), strict=True):
            slot: str | None = key
            if items[key] is not None:
                slot = yield from self._free(whose, most)
            if slot is None:
                return ()
            found.append(slot)
        return tuple(found)

    def _folders(self, agent: str) -> dict[str, int]:
        """The folders of slots, for all and for one agent, and their sizes."""
        return {"": self._limit, agent: agent_share(self._limit)}

    def _free(self, whose: str, most: int) -> ReadOp[str | None]:
        while True:
            used = yield from _used_slots(keys.query_slot(whose))
            every_one = (keys.query_slot(whose, number) for number in range(most))
            free = [key for key in every_one if key not in used]
            if not free:
                return None
            slot = free[self._runner.random_below(len(free))]
            if (yield (slot,))[slot] is None:  # else another process took it
                return slot

    def clear_expired(self, actor: Actor) -> Op[bool]:
        """End some expired questions; return whether there were any."""
        now = self._runner.clock.monotonic()
        if now < self._last_look + self._runner.capabilities.allow(_LOOK_EVERY):
            return False
        slots = yield from every(keys.ASKING)
        used = {
            item.key: note.query for item in slots if (note := readable(decode.quota_slot, item))
        }
        lives = yield from looked_up([keys.live(id_) for id_ in used.values()])
        expired = {id_: None for id_ in used.values() if lives[keys.live(id_)] is None}
        if not expired:
            self._last_look = now
        for id_ in list(expired)[:_AT_ONCE]:
            yield from expire_query(self._runner, actor, id_)
            own = tuple([key for key, query in used.items() if query == id_])
            yield from self._runner.change(partial(_free_slots, own, id_), actor)
        return bool(expired)

    def refusal(self, agent: str) -> Op[TooMany]:
        """The refusal: who has open questions, and when the first of them expires."""
        listed = dict(map(_asker_of, (yield from every(keys.OPEN, most=self._limit))))
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


def _used_slots(folder: str) -> ReadOp[set[str]]:
    found: set[str] = set()
    page = Range(folder)
    while True:
        items = (yield Unchecked((page,))).ranges[page]
        found.update(item.key for item in items)
        if len(items) < page.limit:
            return found
        page = Range(folder, items[-1].key)


def _asker_of(item: Item) -> tuple[str, str]:
    """The id of an open question, and its asker."""
    agent, id_ = keys.open_query_of(item.key)
    return id_, agent


def _free_slots(slots: tuple[str, ...], query: str) -> DecideOp[None]:
    """Free the slots of a question that has ended: a client of an older version left them."""
    items = (yield (keys.query(query), *slots)).items
    own = [(key, items[key]) for key in slots]
    gone = [key for key, item in own if item and decode.quota_slot(item).query == query]
    if not gone or decode.is_open_query(items[keys.query(query)]):
        return Decision(outcome=None)
    return Decision(outcome=None, verb="query.forget", thing=f"query/{query}", deletes=tuple(gone))
