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

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.drivers import Op, Pause
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.agents.reports import able_of
from interlock.nouns.messages import decode, query_rules, retention, retention_rules, retention_scan
from interlock.nouns.messages.limits import Limits
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.query_rules import AskOutcome
from interlock.nouns.messages.receivers import alive_by, serves
from interlock.nouns.messages.retention_rules import Forgotten, Keep, Mark
from interlock.nouns.messages.retention_scan import (
    WHOLE,
    Tidied,
    Todo,
    following,
    group_of,
    together,
)
from interlock.runtime import commits
from interlock.runtime.commits import Moment
from interlock.runtime.decode import readable
from interlock.runtime.gather import looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.retention_clock import agreed
from interlock.runtime.runner import Decided, DecideOp, Runner, Unchecked
from interlock.runtime.steps import Read
from interlock.store import Item, Range, Snapshot

T = TypeVar("T")

FOLDERS = (
    keys.READ,
    keys.SENT,
    keys.IDS,
    keys.TOPICS,
    keys.QUERIES,
    keys.OPEN,
    keys.ASKING,
    keys.SERVING,
    keys.RATES,
    keys.DECISIONS,
    keys.ABLE,
)
BOUND = 10_000
"""What a round forgets of each group, at most."""
HAND = 86400.0
"""Seconds for which the note of a dead receiver tells the next one what it had in its hands."""
SOME_GROUPS = 20
SOME_LOOKED_AT = 1_000
"""What a small part of a round looks at, besides what it may forget."""
_BREATH = 0.01
"""Seconds between two groups of a small part, in which others of this process go on."""
_LOOKED_AT = 20_000
"""Items of one group that are walked at once, if not so many more are kept; those behind them come
when these are gone."""
_OPERATIONS = 400
_OWN_OPERATIONS = 8
_AT_ONCE = 50
_LEAST_PAGE, _FIRST_PAGE, _MOST_PAGE = 16, 128, 1000
_BYTES = 1_000_000
"""A page of more than this is followed by a smaller one."""


class Tidying:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, limits: Limits) -> None:
        self._runner = runner
        self._limits = limits
        self._room = min(runner.capabilities.max_operations - _OWN_OPERATIONS, _OPERATIONS)
        self._acts: dict[str, Callable[[Actor, str, int], Op[Tidied]]] = {
            keys.READ: self._marks,
            keys.SENT: self._marks,
            keys.IDS: self._ids,
            keys.TOPICS: self._topic,
            keys.QUERIES: self._queries,
            keys.OPEN: self._open,
            keys.ASKING: self._places,
            keys.SERVING: self._serving,
            keys.RATES: self._rates,
            keys.DECISIONS: self._decisions,
            keys.ABLE: self._able,
        }
        self._place: tuple[int, str] | None = None
        self._looked = 0
        self._whole = True
        # At which moment a topic had how many messages.
        self._counts: dict[str, tuple[Moment, int]] = {}
        self._todo: dict[str, Todo] = {}
        self._id = ""
        self._now = 0.0
        """What time it is for this pass."""

    def run(self, actor: Actor, bound: int = BOUND) -> Op[Tidied]:
        """Make a whole round, and forget ``bound`` items of each group at most."""
        done, self._id, self._whole = Tidied(), "", True
        self._now = yield from agreed(self._runner)
        first = [Range(folder, limit=1) for folder in FOLDERS]
        snapshot: Snapshot = yield Read(*first)
        for page in first:
            group = group_of(page.prefix, snapshot.ranges[page])
            while group:
                done = together(done, (yield from self._one(actor, page.prefix, group, bound)))
                group = yield from following(page.prefix, group)
        return done

    def some(self, actor: Actor) -> Op[Tidied]:
        """Make a small part of a round, which begins where the last part ended."""
        done, self._looked, self._whole = Tidied(), 0, False
        self._now = yield from agreed(self._runner)
        number, group = self._place or self._anywhere()
        for _ in range(SOME_GROUPS):
            folder, before = FOLDERS[number], group
            group = yield from following(folder, group)
            if not group:
                number = (number + 1) % len(FOLDERS)
                continue
            part = yield from self._one(actor, folder, group, retention_scan.SOME)
            done = together(done, part)
            yield Pause(_BREATH)
            if done.more or self._looked >= SOME_LOOKED_AT:
                group = before if (part.forgotten or part.ids) and part.left else group
                break
        self._place = (number, group)
        return done

    def _anywhere(self) -> tuple[int, str]:
        number = self._runner.random_below(len(FOLDERS))
        letter = chr(ord("0") + self._runner.random_below(ord("z") - ord("0") + 1))
        folder = FOLDERS[number]
        return number, "" if folder in WHOLE else f"{folder}{letter}/"

    def _one(self, actor: Actor, folder: str, group: str, bound: int) -> Op[Tidied]:
        """One group; what cannot be read is left: doctor names it."""
        try:
            return (yield from self._acts[folder](actor, group, bound))
        except (StoreDamaged, TooLarge):
            return Tidied(left=1)

    def _keep(self, count: int) -> Keep:
        return Keep(age=self._limits.keep, count=count)

    def _over(self, group: str, at: Callable[[Item], float | None], count: int) -> Op[list[Mark]]:
        """What of a group is to go, oldest first."""
        marks = yield from self._walk(
            group, lambda item: Mark(item.key, item.created, readable(at, item)), _enough(count)
        )
        return self._going(marks, count)

    def _going(self, marks: Sequence[Mark], count: int) -> list[Mark]:
        return retention_rules.over(marks, self._keep(count), self._now)

    # ---- what was read, and what was sent -------------------------------------------------------

    def _marks(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        going = yield from self._over(group, decode.read_at, self._limits.kept)
        done = 0
        for start in range(0, min(len(going), bound), _AT_ONCE):
            some = [each.key for each in going[start : min(start + _AT_ONCE, bound)]]
            for aims in retention.portions((yield from retention.aims(some)), self._room):
                done += yield from self._change(actor, partial(retention.marks, aims))
        return Tidied(forgotten=done, left=max(len(going) - bound, 0))

    def _ids(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Ids that were chosen long ago.

        They stand in no order of time, so all are looked at, page by page; a small part of a round
        goes on where the last one ended.
        """
        done = 0
        while True:
            page = Range(group, self._id, _MOST_PAGE)
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            self._looked += len(items)
            going = [item.key for item in items if self._is_old(decode.read_at, item)]
            some = going[: bound - done]
            over = partial(self._is_old, decode.read_at)
            done += yield from self._drop(actor, "message.forget", some, over)
            if len(some) < len(going):
                return Tidied(ids=done, left=1)
            self._id = items[-1].key if len(items) == page.limit else ""
            if not self._id or (not self._whole and self._looked >= SOME_LOOKED_AT):
                return Tidied(ids=done, left=bool(self._id))

    # ---- topics ---------------------------------------------------------------------------------

    def _topic(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        topic = keys.topic_of(group)
        if topic.startswith(ABLE):
            return (yield from self._asked(actor, group, bound))
        todo = None if self._whole else self._todo.pop(group, None)
        if todo is None:
            if not self._whole and (yield from self._is_settled(group)):
                return Tidied()
            todo = yield from self._survey(group)
        some, done, seen = todo.going[:bound], 0, todo.seen
        for start in range(0, len(some), self._room):
            part = some[start : start + self._room]
            changed = yield from self._runner.change(
                partial(retention.alerts, topic, part, seen), actor
            )
            done, seen = done + changed.outcome.count, changed.revision or -1
        left = todo.going[len(some) :]
        self._counts[group] = todo.moment, todo.count - done
        if left and done == len(some):
            self._todo[group] = replace(todo, seen=seen, going=left, count=todo.count - done)
        return Tidied(forgotten=done, left=len(todo.going) - done)

    def _survey(self, group: str) -> Op[Todo]:
        key, most = keys.trimmed(keys.topic_of(group)), self._limits.alerts
        before: Snapshot = yield Read(key)  # whoever forgets some of it meanwhile changes this
        moment = yield from commits.moment(before.revision)
        marks = yield from self._walk(group, _letter, _enough(most))
        return Todo(
            seen=retention.revision(before[key]),
            going=self._going(marks, most),
            moment=moment,
            count=len(marks),
        )

    def _is_settled(self, group: str) -> Op[bool]:
        """Whether nothing of a topic is to go: its first page is not old, and few can have come.

        A commit brings one message at most, so not more than there were commits since the last
        count.  A topic that is full is counted again when a quarter of it can have come.
        """
        page = Range(group, "", _FIRST_PAGE)
        snapshot: Snapshot = yield Read(page)
        items, most = snapshot.ranges[page], self._limits.alerts
        self._looked += len(items)
        if any(self._is_old(decode.sent_at, item) for item in items):
            return False
        if len(items) < page.limit:
            return len(items) <= most
        counted, count = self._counts.get(group, (Moment(revision=0), 0))
        enough = most + most // 4 - count
        return (yield from commits.since(counted, snapshot.revision, enough)) <= enough

    def _asked(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Questions to whoever is able that are over, or gone."""
        marks = yield from self._walk(group, lambda item: item.key)
        found = yield from looked_up([keys.query(keys.last(each)) for each in marks])
        over = [each for each in marks if not retention.is_open(found[keys.query(keys.last(each))])]
        done = yield from self._drop(actor, "query.forget", over[:bound], lambda _: True)
        return Tidied(forgotten=done, left=max(len(over) - bound, 0))

    # ---- queries --------------------------------------------------------------------------------

    def _queries(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        going = yield from self._over(group, retention.ended, self._limits.alerts)
        wanted = [each.key for each in going[:bound]]
        portion = max(1, min(self._room // 5, _AT_ONCE))
        done = 0
        for start in range(0, len(wanted), portion):
            some = tuple(wanted[start : start + portion])
            done += yield from self._change(actor, partial(retention.queries, some))
        return Tidied(forgotten=done, left=len(going) - len(wanted))

    def _open(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Questions that nobody can answer any more, and of which nobody said so."""
        ids = yield from self._walk(group, lambda item: keys.last(item.key))
        lives = yield from looked_up(map(keys.live, ids))
        lapsed = [id_ for id_ in ids if lives[keys.live(id_)] is None]
        done = 0
        for id_ in lapsed[:bound]:
            deciding = partial(self._expire, id_, group + id_, self._runner.new_id("dec"))
            outcome = (yield from self._runner.change(deciding, actor)).outcome
            done += not isinstance(outcome, Forgotten)
        return Tidied(reclaimed=done, left=max(len(lapsed) - bound, 0))

    def _expire(self, id_: str, listed: str, matter: str) -> DecideOp[AskOutcome | Forgotten]:
        found = decode.query((yield (keys.query(id_),))[keys.query(id_)])
        if found is None or found.state != "open":
            return retention_rules.dropped("query.forget", (listed,), 0)
        if (yield Unchecked((keys.live(id_),)))[keys.live(id_)] is not None:
            return Decision(outcome=Forgotten())
        return query_rules.expire(found, self._runner.clock.wall(), matter)

    def _places(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Places of questions that are open no more: an older client ended them."""
        found = yield from self._walk(group, lambda item: (item.key, readable(_asks, item)))
        taken = {key: id_ for key, id_ in found if id_}
        asked = yield from looked_up(map(keys.query, taken.values()))
        ended = {
            key: keys.live(id_)
            for key, id_ in taken.items()
            if not retention.is_open(asked[keys.query(id_)])
        }

        def over(item: Item) -> bool:
            return readable(_asks, item) == taken[item.key]

        yield from self._drop(actor, "query.forget", list(ended)[:bound], over, ended)
        return Tidied()

    # ---- what else there is ---------------------------------------------------------------------

    def _serving(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Callers that take messages no more."""
        found = yield from self._walk(group, lambda item: (item.key, readable(serves, item)))
        lives = yield from looked_up([note.live for _, note in found if note])
        dead = {key: note for key, note in found if note and lives[note.live] is None}
        old = {key: note.live for key, note in dead.items() if note.at + HAND < self._now}
        new = {key: note for key, note in dead.items() if key not in old and not note.over}

        def over(item: Item) -> bool:  # who began again has another item, or another liveness key
            return readable(alive_by, item) == old[item.key]

        done = yield from self._drop(actor, "agent.forget", list(old)[:bound], over, old)
        for key, note in list(new.items())[: max(bound - done, 0)]:
            done += yield from self._change(actor, partial(retention.receiver, key, note))
        return Tidied(reclaimed=done)

    def _able(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Those who were able to do something, and are gone."""
        found = yield from self._walk(group, lambda item: (item.key, readable(able_of, item)))
        lives = yield from looked_up([each.live for _, each in found if each])
        dead = {key: each.live for key, each in found if each and lives[each.live] is None}

        def over(item: Item) -> bool:
            return getattr(readable(able_of, item), "live", "") == dead[item.key]

        yield from self._drop(actor, "agent.forget", list(dead)[:bound], over, dead)
        return Tidied()

    def _rates(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        """Turns of somebody who has sent nothing for long: nobody counts them."""
        yield from self._old(actor, group, bound, "agent.forget", decode.moment)
        return Tidied()

    def _decisions(self, actor: Actor, group: str, bound: int) -> Op[Tidied]:
        done = yield from self._old(actor, group, bound, "decision.forget", retention.resolved)
        return Tidied(forgotten=done)

    def _old(
        self, actor: Actor, group: str, bound: int, verb: str, at: Callable[[Item], float | None]
    ) -> Op[int]:
        """What has been over for long, and still is when it goes."""
        going = yield from self._over(group, at, _LOOKED_AT)
        gone = [each.key for each in going[:bound]]
        return (yield from self._drop(actor, verb, gone, partial(self._is_old, at)))

    def _is_old(self, at: Callable[[Item], float | None], item: Item) -> bool:
        ended = readable(at, item)
        return ended is not None and ended + self._limits.keep < self._now

    def _drop(
        self,
        actor: Actor,
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
                actor, partial(retention.others, verb, some, over, lives)
            )
        return done

    def _walk(self, group: str, seen: Callable[[Item], T], most: int = _LOOKED_AT) -> Op[list[T]]:
        """What is to be known of the first items of a group; bodies are read, and not kept."""
        found: list[T] = []
        after, limit = "", _FIRST_PAGE
        while len(found) < most:
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

    def _change(self, actor: Actor, deciding: Callable[[], DecideOp[Forgotten]]) -> Op[int]:
        done: Decided[Forgotten] = yield from self._runner.change(deciding, actor)
        return done.outcome.count


def _asks(item: Item) -> str:
    """The question that has a place."""
    return decode.asking(item).query


def _letter(item: Item) -> Mark:
    """A message to all: when it was sent, and by whom."""
    message = readable(decode.message, item)
    if message is None:
        return Mark(item.key, item.created, None)
    return Mark(item.key, item.created, message.at, message.sender)


def _enough(count: int) -> int:
    """As much of a group as tells what is to go if so many stay."""
    return max(_LOOKED_AT, count + BOUND)
