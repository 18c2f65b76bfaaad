"""Letting go of tasks that have been over for long, in bounded parts: each goes on after the last.

Nothing lists tasks by the moment of their end, since completing one would have to write that.  So
they are walked by their keys, page by page: a *round* is from the first to the last of them.

    complete       goes as it is met, if it is old enough
    failed, dead   is suspected as it is met; a whole round later it goes, if no task met by then
                   needs it (``core/forgetting.py``)
    too many       are counted by a whole round; the next one lets go of those that ended first

``maintain`` makes whole rounds.  A client that lives long makes a part of one after a thousand
commits; after a round that left nothing to do it rests until something can be old enough, or too
many can have come.  A command that ends at once makes a part by chance, and begins anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf

from msgspec import Struct

from interlock.core import forgetting as core
from interlock.core import keys
from interlock.core.board import Board
from interlock.core.decision import Decision
from interlock.core.forgetting import Past
from interlock.core.retention import Forgotten, Keep
from interlock.core.task import BATCH, Spec, Status
from interlock.driving import Op, Pause
from interlock.errors import StoreDamaged, TooLarge
from interlock.services.gather import FIRST_PAGE, LEAST_PAGE, MOST_PAGE, PAGE_BYTES
from interlock.services.runner import Deciding, Done, Runner, Who
from interlock.services.states import readable
from interlock.services.steps import Read
from interlock.services.task import states
from interlock.services.task.facts import Facts
from interlock.settings import Settings
from interlock.store import Item, Range, Snapshot

BOUND = 10_000
"""Tasks that a pass of maintenance lets go of."""
ROUNDS = 3
"""Of one pass: to count, to let go of what is complete, and of what failed."""
SOME = 100
SOME_LOOKED_AT = 1_000
SOME_PAGE = 250
"""What a small part of a round lets go of, or looks at: it is over between two renewals."""
SUSPECTS = 1_000
_BREATH = 0.01
"""Seconds between two pages of a small part, in which others of this process go on."""
_AT_ONCE = 60
_PART = 64
"""After a round nobody looks again for so small a part of what is kept, if something stays that
is old: a task that failed and is needed."""


class Forgot(Struct, frozen=True, kw_only=True):
    """What a pass let go of, and what is left."""

    forgotten: int = 0
    left: int = 0


class Round:
    """How far a round has come, and what it knows.

    ``cut`` and ``suspects`` are from the round before: those that ended up to this revision are too
    many, and of those that failed nobody was looked for who needs them.
    """

    def __init__(self, start: Snapshot, *, cut: int, suspects: dict[str, int], after: str) -> None:
        self.revision = start.revision
        self.mark = _revision(start[keys.NEEDED])
        self.cut = cut
        self.tried = frozenset(suspects)
        self.suspects = suspects
        self.fresh: dict[str, int] = {}
        self.after = after
        self.whole = not after
        self.sure = True
        """Whether all was met that may need a task: no import is under way, and all can be read."""
        self.stay = array("q")
        """At which revisions those ended that stay."""
        self.oldest = inf
        self.over = False
        self._data: Item | None = None

    def meet(self, items: Sequence[Item]) -> list[Past]:
        """Know what a page says; those that are over."""
        found = [each for item in items if (each := self._met(item)) is not None]
        self.after = items[-1].key if items else self.after
        return found

    def _met(self, item: Item) -> Past | None:
        kind, task = item.key.rpartition("/")[2], keys.task_of(item.key)
        if kind == "data":
            self._data = item
        if kind != "status":
            return None
        data = self._data if self._data and self._data.key == keys.data(task) else None
        status, spec = readable(states.status, item), readable(states.spec, data)
        if status is None or spec is None:
            self.sure = False
            return None
        return self._learn(task, item.revision, status, spec)

    def _learn(self, task: str, revision: int, status: Status, spec: Spec) -> Past | None:
        if status.state != "complete":
            self.sure = self.sure and not task.startswith(BATCH)
            for need in spec.needs:
                self.suspects.pop(need, None)
        return core.past(task, revision, status, spec)

    def leave(self, some: Sequence[Past], going: Sequence[Past]) -> None:
        """Let these stay for now; of those that would go, one that failed is suspected."""
        for each in going:
            if not each.complete and each.task not in self.tried and len(self.fresh) < SUSPECTS:
                self.fresh[each.task] = each.revision
        gone = {each.task for each in going if each.complete}
        staying = [each for each in some if each.task not in gone]
        self.stay.extend(each.revision for each in staying)
        self.oldest = min([self.oldest, *(each.at for each in staying)])


class Forgetting:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, keep: Keep) -> None:
        self._runner = runner
        self._keep = keep
        self._round: Round | None = None
        self._cut = 0
        self._suspects: dict[str, int] = {}
        self._began = False
        self._rests: tuple[float, int] = (0.0, 0)
        """Until which moment and which revision there is nothing to do."""
        self._limit = FIRST_PAGE
        self._left = 0

    def run(self, who: Who, bound: int = BOUND) -> Op[Forgot]:
        """Make whole rounds until nothing more can go, or so many went."""
        done = self._left = 0
        for _ in range(ROUNDS):
            around = self._start((yield Read(keys.NEEDED)), "")
            self._left = 0
            while not around.over:
                done += yield from self._page(who, around, MOST_PAGE, bound - done)
            done += yield from self._end(who, around)
            if not self._again:
                break
        return Forgot(forgotten=done, left=self._left)

    def some(self, who: Who) -> Op[bool]:
        """Make a small part of a round; whether it did as much as it may: there may be more."""
        if self._round is None:
            start: Snapshot = yield Read(keys.NEEDED)
            if self._is_resting(start.revision):
                return False
            self._round = self._start(start, "" if self._began else self._anywhere())
            self._began = True
        around, done, looked = self._round, 0, 0
        while done < SOME and not around.over:
            looked += min(self._limit, SOME_PAGE)
            if looked > SOME_LOOKED_AT:
                break
            done += yield from self._page(who, around, SOME_PAGE, SOME_LOOKED_AT)
            yield Pause(_BREATH)
        if around.over:
            self._round = None
            done += yield from self._end(who, around)
        return done >= SOME

    @property
    def _again(self) -> bool:
        return self._rests == (0.0, 0)

    def _is_resting(self, revision: int) -> bool:
        moment, full = self._rests
        return self._runner.clock.wall() < moment and revision < full

    def _anywhere(self) -> str:
        letter = chr(ord("0") + self._runner.random_below(ord("z") - ord("0") + 1))
        return f"{keys.TASKS}{letter}"

    def _start(self, start: Snapshot, after: str) -> Round:
        suspects, self._suspects = self._suspects, {}
        return Round(start, cut=self._cut, suspects=suspects, after=after)

    def _page(self, who: Who, around: Round, most: int, bound: int) -> Op[int]:
        """Look at the next page of a round, and let go of what is complete there."""
        page = Range(keys.TASKS, around.after, min(self._limit, most))
        items: tuple[Item, ...] = (yield Read(page)).ranges[page]
        around.over = len(items) < page.limit
        large = sum(len(item.value) for item in items) > PAGE_BYTES
        self._limit = max(LEAST_PAGE, page.limit // 4) if large else min(most, page.limit * 4)
        some = around.meet(items)
        now = self._runner.clock.wall()
        going = core.going(some, self._keep.age, around.cut, now)
        around.leave(some, going)
        complete = [each for each in going if each.complete]
        self._left += max(len(complete) - max(bound, 0), 0)
        return (yield from self._let_go(who, _aims(complete[: max(bound, 0)]), None))

    def _end(self, who: Who, around: Round) -> Op[int]:
        """Let go of what failed and nobody needs; and know when to look again."""
        if not around.whole:
            return 0
        cut = core.cut(around.stay, self._keep.count)
        done = 0
        if around.sure:
            done = yield from self._let_go(who, around.suspects, around.mark)
        again = bool(around.fresh) or cut > around.cut
        self._cut, self._suspects = cut, around.fresh
        self._rests = (0.0, 0) if again else self._rest(around)
        return done

    def _rest(self, around: Round) -> tuple[float, int]:
        age, count = self._keep.age, self._keep.count
        moment = max(around.oldest + age, self._runner.clock.wall() + age / _PART)
        return moment, around.revision + max(count - len(around.stay), count // _PART)

    def _let_go(self, who: Who, aims: Mapping[str, int], mark: int | None) -> Op[int]:
        """Forget these in portions; with a ``mark`` of those who need what failed."""
        done, left = 0, iter(aims.items())
        base = yield from self._runner.base()
        room = Facts(self._runner, base).known.room
        while some := dict(islice(left, max(1, min(room // core.OPERATIONS - 1, _AT_ONCE)))):
            try:
                changed: Done[Forgotten] = yield from self._runner.change(
                    partial(self._deciding, some, base, mark), who
                )
            except (StoreDamaged, TooLarge):  # nobody else's trouble; doctor names it
                continue
            done += changed.outcome.count
            mark = changed.revision if mark is not None and changed.revision else mark
        return done

    def _deciding(
        self, aims: Mapping[str, int], base: int, mark: int | None
    ) -> Deciding[Forgotten]:
        facts = Facts(self._runner, base)
        if mark is not None:
            needed = yield (keys.NEEDED,)
            if _revision(needed[keys.NEEDED]) != mark:
                return Decision(outcome=Forgotten())
            facts.learn(needed.items)
        facts.learn((yield tuple(_relied(aims))).items)
        seen = {task: base + revision for task, revision in aims.items()}
        now, failed = self._runner.clock.wall(), mark is not None
        return (
            yield from facts.decide(
                lambda known: core.forget(Board(known, now), seen, failed=failed)
            )
        )


def kept(settings: Settings | None) -> Keep:
    """How long tasks that are over stay, and how many: as it is set, and as usual otherwise."""
    found = (settings or Settings()).task()
    return Keep(age=found.get("keep", core.KEEP), count=int(found.get("kept", core.KEPT)))


def _aims(some: Sequence[Past]) -> dict[str, int]:
    return {each.task: each.revision for each in some}


def _relied(tasks: Mapping[str, int]) -> Iterator[str]:
    for task in tasks:
        yield keys.status(task)
        yield keys.todo(task)


def _revision(item: Item | None) -> int:
    return 0 if item is None else item.revision
