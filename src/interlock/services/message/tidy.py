"""Forgetting what is over: one bounded pass, which goes on where the last one ended.

The folders are walked one group at a time: the marks of one agent, the messages of one topic, all
queries.  What is kept bounds what a group costs to walk, however much was sent; and nobody walks
the inboxes, in which nothing is over.

``maintain`` makes a whole round.  Whoever sends a lot makes a small part of one after a thousand
commits, where nobody waits for it; a command that ends at once leaves it to chance, and begins
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from interlock.core import keys, query, retention
from interlock.core.decision import Decision
from interlock.core.message import ABLE
from interlock.core.query import AskOutcome
from interlock.core.retention import Forgotten, Keep, Mark
from interlock.driving import Op
from interlock.errors import StoreDamaged, TooLarge
from interlock.services.gather import looked_up
from interlock.services.message import forgetting, states
from interlock.services.message.limits import Limits
from interlock.services.message.serving import alive_by
from interlock.services.runner import Deciding, Done, Glance, Runner, Who
from interlock.services.states import readable
from interlock.services.steps import Read
from interlock.store import Item, Range, Snapshot

T = TypeVar("T")

FOLDERS = (
    keys.READ,
    keys.SENT,
    keys.TOPICS,
    keys.QUERIES,
    keys.OPEN,
    keys.SERVING,
    keys.RATES,
    keys.DECISIONS,
)
_WHOLE = (keys.QUERIES, keys.DECISIONS)
"""Folders that are one group."""
BOUND = 10_000
"""What a round forgets of each group, at most."""
SOME_GROUPS = 20
SOME_LOOKED_AT = 5_000
SOME = 500
"""What a small part of a round looks at, and forgets: it is over in a tenth of a second, so that
leases are renewed in time.  If it forgot so much, another part follows at once."""
_LOOKED_AT = 20_000
"""Items of one group that are walked at once; those behind them come when these are gone."""
_OPERATIONS = 400
_OWN_OPERATIONS = 8
_AT_ONCE = 50
_LEAST_PAGE, _MOST_PAGE = 16, 1000
_BYTES = 1_000_000
"""A page of more than this is followed by a smaller one."""


class Tidied(Struct, frozen=True, kw_only=True):
    """What was forgotten; what was over though nobody had said so; what is left."""

    forgotten: int = 0
    reclaimed: int = 0
    left: int = 0

    @property
    def more(self) -> bool:
        """Whether a small part of a round did as much as it may: there may be more."""
        return self.forgotten + self.reclaimed >= SOME


class Tidying:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self._runner = runner
        self._limits = limits
        self._room = min(runner.capabilities.max_operations - _OWN_OPERATIONS, _OPERATIONS)
        self._acts: dict[str, Callable[[Who, str, int], Op[Tidied]]] = {
            keys.READ: self._marks,
            keys.SENT: self._marks,
            keys.TOPICS: self._topic,
            keys.QUERIES: self._queries,
            keys.OPEN: self._open,
            keys.SERVING: self._serving,
            keys.RATES: self._rates,
            keys.DECISIONS: self._decisions,
        }
        self._place: tuple[int, str] | None = None
        self._looked = 0

    def run(self, who: Who, bound: int = BOUND) -> Op[Tidied]:
        """Make a whole round, and forget ``bound`` items of each group at most."""
        done = Tidied()
        first = [Range(folder, limit=1) for folder in FOLDERS]
        snapshot: Snapshot = yield Read(*first)
        for page in first:
            group = _group(page.prefix, snapshot.ranges[page])
            while group:
                done = _sum(done, (yield from self._one(who, page.prefix, group, bound)))
                group = yield from _next(page.prefix, group)
        return done

    def some(self, who: Who) -> Op[Tidied]:
        """Make a small part of a round, which begins where the last part ended."""
        done, self._looked = Tidied(), 0
        number, group = self._place or self._anywhere()
        for _ in range(SOME_GROUPS):
            folder, before = FOLDERS[number], group
            group = yield from _next(folder, group)
            if not group:
                number = (number + 1) % len(FOLDERS)
                continue
            part = yield from self._one(who, folder, group, SOME)
            done = _sum(done, part)
            if done.more or self._looked >= SOME_LOOKED_AT:
                group = before if part.forgotten and part.left else group
                break
        self._place = (number, group)
        return done

    def _anywhere(self) -> tuple[int, str]:
        number = self._runner.random_below(len(FOLDERS))
        letter = chr(ord("0") + self._runner.random_below(ord("z") - ord("0") + 1))
        folder = FOLDERS[number]
        return number, "" if folder in _WHOLE else f"{folder}{letter}/"

    def _one(self, who: Who, folder: str, group: str, bound: int) -> Op[Tidied]:
        """One group; what cannot be read is left: doctor names it."""
        try:
            return (yield from self._acts[folder](who, group, bound))
        except (StoreDamaged, TooLarge):
            return Tidied(left=1)

    def _keep(self, count: int) -> Keep:
        return Keep(age=self._limits.keep, count=count)

    def _over(self, group: str, at: Callable[[Item], float | None], count: int) -> Op[list[Mark]]:
        """What of a group is to go, oldest first."""
        marks = yield from self._walk(
            group, lambda item: Mark(item.key, item.created, readable(at, item))
        )
        return retention.over(marks, self._keep(count), self._runner.clock.wall())

    # ---- what was read, and what was sent -------------------------------------------------------

    def _marks(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        going = yield from self._over(group, lambda item: states.read(item).at, self._limits.kept)
        done = 0
        for start in range(0, min(len(going), bound), _AT_ONCE):
            some = [each.key for each in going[start : min(start + _AT_ONCE, bound)]]
            for aims in forgetting.portions((yield from forgetting.aims(some)), self._room):
                done += yield from self._change(who, partial(forgetting.marks, aims))
        return Tidied(forgotten=done, left=max(len(going) - bound, 0))

    # ---- topics ---------------------------------------------------------------------------------

    def _topic(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        topic = keys.topic_of(group)
        if topic.startswith(ABLE):
            return (yield from self._asked(who, group, bound))
        key = keys.trimmed(topic)
        before: Snapshot = yield Read(key)  # whoever forgets some of it meanwhile changes this
        going = yield from self._over(
            group, lambda item: states.message(item).at, self._limits.alerts
        )
        seen, done = forgetting.revision(before[key]), 0
        for start in range(0, min(len(going), bound), self._room):
            some = going[start : min(start + self._room, bound)]

            changed = yield from self._runner.change(
                partial(forgetting.alerts, topic, some, seen), who
            )
            done, seen = done + changed.outcome.count, changed.revision or -1
        return Tidied(forgotten=done, left=len(going) - done)

    def _asked(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        """Questions to whoever is able that are over, or gone."""
        marks = yield from self._walk(group, lambda item: item.key)
        found = yield from looked_up([keys.query(keys.last(each)) for each in marks])
        over = [
            each for each in marks if not forgetting.is_open(found[keys.query(keys.last(each))])
        ]
        done = yield from self._drop(who, "query.forget", over[:bound], lambda _: True)
        return Tidied(forgotten=done, left=max(len(over) - bound, 0))

    # ---- queries --------------------------------------------------------------------------------

    def _queries(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        going = yield from self._over(group, forgetting.ended, self._limits.alerts)
        wanted = [each.key for each in going[:bound]]
        portion = max(1, min(self._room // 4, _AT_ONCE))
        done = 0
        for start in range(0, len(wanted), portion):
            some = tuple(wanted[start : start + portion])
            done += yield from self._change(who, partial(forgetting.queries, some))
        return Tidied(forgotten=done, left=len(going) - len(wanted))

    def _open(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        """Questions that nobody can answer any more, and of which nobody said so."""
        ids = yield from self._walk(group, lambda item: keys.last(item.key))
        lives = yield from looked_up(map(keys.live, ids))
        lapsed = [id_ for id_ in ids if lives[keys.live(id_)] is None]
        done = 0
        for id_ in lapsed[:bound]:
            deciding = partial(self._expire, id_, group + id_, self._runner.new_id("dec"))
            outcome = (yield from self._runner.change(deciding, who)).outcome
            done += not isinstance(outcome, Forgotten)
        return Tidied(reclaimed=done, left=max(len(lapsed) - bound, 0))

    def _expire(self, id_: str, listed: str, matter: str) -> Deciding[AskOutcome | Forgotten]:
        found = states.query((yield (keys.query(id_),))[keys.query(id_)])
        if found is None or found.state != "open":
            return retention.dropped("query.forget", (listed,), 0)
        if (yield Glance((keys.live(id_),)))[keys.live(id_)] is not None:
            return Decision(outcome=Forgotten())
        return query.expire(found, self._runner.clock.wall(), matter)

    # ---- what else there is ---------------------------------------------------------------------

    def _serving(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        """Callers that take messages no more."""
        found = yield from self._walk(group, lambda item: (item.key, readable(alive_by, item)))
        lives = yield from looked_up([live for _, live in found if live])
        dead = {key: live for key, live in found if live and lives[live] is None}

        def over(item: Item) -> bool:  # who began again has another item, or another liveness key
            return readable(alive_by, item) == dead[item.key]

        done = yield from self._drop(who, "agent.forget", list(dead)[:bound], over, dead)
        return Tidied(reclaimed=done)

    def _rates(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        """Turns of somebody who has sent nothing for long: nobody counts them."""
        yield from self._old(who, group, bound, "agent.forget", states.moment)
        return Tidied()

    def _decisions(self, who: Who, group: str, bound: int) -> Op[Tidied]:
        done = yield from self._old(who, group, bound, "decision.forget", forgetting.resolved)
        return Tidied(forgotten=done)

    def _old(
        self, who: Who, group: str, bound: int, verb: str, at: Callable[[Item], float | None]
    ) -> Op[int]:
        """What has been over for long, and still is when it goes."""
        going = yield from self._over(group, at, _LOOKED_AT)
        gone = [each.key for each in going[:bound]]
        now = self._runner.clock.wall()

        def over(item: Item) -> bool:
            ended = readable(at, item)
            return ended is not None and ended + self._limits.keep < now

        return (yield from self._drop(who, verb, gone, over))

    def _drop(
        self,
        who: Who,
        verb: str,
        gone: Sequence[str],
        over: Callable[[Item], bool],
        lives: Mapping[str, str] | None = None,
    ) -> Op[int]:
        """Delete these, if they are there, and over; ``lives`` must not live."""
        done = 0
        for start in range(0, len(gone), self._room // 2):
            some = tuple(gone[start : start + self._room // 2])
            done += yield from self._change(
                who, partial(forgetting.others, verb, some, over, lives)
            )
        return done

    def _walk(self, group: str, seen: Callable[[Item], T]) -> Op[list[T]]:
        """What is to be known of the first items of a group; bodies are read, and not kept."""
        found: list[T] = []
        after, limit = "", 128
        while len(found) < _LOOKED_AT:
            page = Range(group, after, limit)
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            found.extend(map(seen, items))
            self._looked += len(items)
            if len(items) < limit:
                break
            after = items[-1].key
            large = sum(len(item.value) for item in items) > _BYTES
            limit = max(_LEAST_PAGE, limit // 4) if large else min(_MOST_PAGE, limit * 4)
        return found

    def _change(self, who: Who, deciding: Callable[[], Deciding[Forgotten]]) -> Op[int]:
        done: Done[Forgotten] = yield from self._runner.change(deciding, who)
        return done.outcome.count


def _next(folder: str, group: str) -> Op[str]:
    """The group behind another one, or the first; empty if there is none."""
    if group and folder in _WHOLE:
        return ""
    after = f"{group[:-1]}0" if group else ""  # the character behind '/'
    page = Range(folder, after, 1)
    return _group(folder, (yield Read(page)).ranges[page])


def _group(folder: str, first: Sequence[Item]) -> str:
    if not first:
        return ""
    return folder if folder in _WHOLE else f"{folder}{first[0].key.split('/', 2)[1]}/"


def _sum(one: Tidied, other: Tidied) -> Tidied:
    return Tidied(
        forgotten=one.forgotten + other.forgotten,
        reclaimed=one.reclaimed + other.reclaimed,
        left=one.left + other.left,
    )
