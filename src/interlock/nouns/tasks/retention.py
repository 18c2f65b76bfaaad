"""Letting go of tasks that have been over for long, in bounded parts: each goes on after the last.

Nothing lists tasks by the moment of their end, since completing one would have to write that.  So
they are walked by their keys, page by page: a *round* is from the first to the last of them.

    complete       goes as it is met, if it is old enough
    failed, dead   is suspected as it is met; a whole round later it goes, if no task met by then
                   needs it (``retention_rules.py``)
    too many       are counted by a whole round; the next one lets go of those that ended first

``maintain`` makes whole rounds.  A client that lives long makes a part of one after a thousand
commits, and a command that ends at once does so by chance, and begins anywhere.  A long round that
left nothing to do is written down (``meta/over``): until something can be old enough, or too many
can have come, everybody looks at that alone.

A round through all tasks, from the first key to the last: how far it is, and what it knows.

The data of a task stand before its status, so whoever meets a status has seen what it is.  The
imports stand before all tasks: whatever is complete of them when the round comes by is met as
tasks, and as long as one is not, nobody can say who needs what.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.drivers import Op, Pause
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.messages.retention_rules import Forgotten, RetentionLimits
from interlock.nouns.tasks import decode
from interlock.nouns.tasks import retention_rules as core
from interlock.nouns.tasks.retention_rules import EndedTask, RecordedTime, RetentionSurvey
from interlock.nouns.tasks.task import BATCH, Spec, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime import commits, retention_clock
from interlock.runtime.commits import Moment
from interlock.runtime.decode import decoded, readable
from interlock.runtime.gather import FIRST_PAGE, LEAST_PAGE, MOST_PAGE, PAGE_BYTES
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, Runner
from interlock.runtime.steps import Read
from interlock.settings import Settings
from interlock.store import Item, Log, Range, Snapshot

BOUND = 10_000
"""Tasks that a pass of maintenance lets go of, or a few more."""
ROUNDS = 3
"""Of one pass: to count, to let go of what is complete, and of what failed."""
SOME = 100
SOME_LOOKED_AT = 1_000
SOME_PAGE = 250
"""What a small part of a round lets go of, or looks at: it is over between two renewals."""
_BREATH = 0.01
"""Seconds between two pages of a small part, in which others of this process go on."""
_AT_ONCE = 60
_LONG = 1_000
"""Items of a round that is worth writing down."""
_SURVEY = msgspec.json.Decoder(RetentionSurvey)
_OLDEST, _NEWEST = Log(limit=1), retention_clock.NEWEST


class TasksDeleted(Struct, frozen=True, kw_only=True):
    """What a pass let go of, and what is left."""

    forgotten: int = 0
    left: int = 0


class RetentionFacts(Struct, frozen=True, kw_only=True):
    """What is known before a round, and what time it is by the record and by our clock."""

    snapshot: Snapshot
    said: tuple[RecordedTime, ...]
    now: float


class TaskRetention:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, keep: RetentionLimits) -> None:
        self._runner = runner
        self._keep = keep
        self._round: RetentionScan | None = None
        self._cut = 0
        self._suspects: dict[str, int] = {}
        self._began = False
        self._seen: RetentionSurvey | None = None
        """What a round saw that left nothing to do at once."""
        self._limit = FIRST_PAGE
        self._left = 0

    def look(self) -> Op[RetentionFacts]:
        """What somebody saw of all tasks, what is needed, and what time it is by the record.

        Whoever writes a lot before it forgets something looks first: soon nobody else's entries are
        among the newest.
        """
        snapshot: Snapshot = yield Read(keys.NEEDED, keys.FINISHED, _OLDEST, _NEWEST)
        newest, writer = retention_clock.said(snapshot.ranges[_NEWEST]), self._runner.chain.writer
        now = core.now(self._runner.clock.wall(), newest, writer)
        engine = yield from retention_clock.by_engine()
        return RetentionFacts(
            snapshot=snapshot,
            said=(*retention_clock.said(snapshot.ranges[_OLDEST]), *newest),
            now=now if engine is None else min(now, engine),
        )

    def run(
        self, actor: Actor, bound: int = BOUND, first: RetentionFacts | None = None
    ) -> Op[TasksDeleted]:
        """Make whole rounds until nothing more can go, or so many went."""
        done = self._left = 0
        first = look = first or (yield from self.look())
        for _ in range(0 if (yield from self._is_settled(look)) else ROUNDS):
            around, self._left = (yield from self._start(actor, look, "")), 0
            while not around.over:
                done += yield from self._page(actor, around, MOST_PAGE, max(bound - done, 0))
            done += yield from self._end(actor, around)
            if self._seen is not None:
                break
            look = replace((yield from self.look()), now=first.now)
        return TasksDeleted(forgotten=done, left=self._left)

    def some(self, actor: Actor) -> Op[bool]:
        """Make a small part of a round; whether it did as much as it may: there may be more."""
        if self._round is None:
            look = yield from self.look()
            if (yield from self._is_resting(look)):
                return False
            after = "" if self._began else self._anywhere()
            self._round = yield from self._start(actor, look, after)
            self._began = True
        around, done, looked = self._round, 0, 0
        while done < SOME and not around.over:
            looked += min(self._limit, SOME_PAGE)
            if looked > SOME_LOOKED_AT:
                break
            done += yield from self._page(actor, around, SOME_PAGE, SOME_PAGE)
            yield Pause(self._runner.capabilities.allow(_BREATH))
        if around.over:
            self._round = None
            done += yield from self._end(actor, around)
        return done >= SOME

    def _is_resting(self, look: RetentionFacts) -> Op[bool]:
        seen = self._seen
        if seen is not None:
            came = yield from self._came(seen, look)
            if seen.rests(self._keep, look.now, came):
                return True
        return not self._suspects and (yield from self._is_settled(look))

    def _is_settled(self, look: RetentionFacts) -> Op[bool]:
        """Whether somebody looked at all of them, and nothing can have become due since."""
        survey = readable(_survey, look.snapshot[keys.FINISHED])
        if survey is None:
            return False
        return survey.settles(self._keep, look.now, (yield from self._came(survey, look)))

    def _came(self, seen: RetentionSurvey, look: RetentionFacts) -> Op[int]:
        """How many can have ended since: no more than there were commits."""
        before = Moment(revision=seen.revision, entries=seen.entries)
        few = self._keep.count // core.PART
        return (yield from commits.since(before, look.snapshot.revision, few))

    def _anywhere(self) -> str:
        letter = chr(ord("0") + self._runner.random_below(ord("z") - ord("0") + 1))
        return f"{keys.TASKS}{letter}"

    def _start(self, actor: Actor, look: RetentionFacts, after: str) -> Op[RetentionScan]:
        suspects, self._suspects = self._suspects, {}
        if suspects:
            yield from self._runner.change(_suspecting, actor)
        needed = look.snapshot[keys.NEEDED]
        start = ScanStart(
            moment=(yield from commits.moment(look.snapshot.revision)),
            mark=0 if needed is None else needed.revision,
            now=look.now,
            said=look.said,
        )
        return RetentionScan(start, self._keep.age, cut=self._cut, suspects=suspects, after=after)

    def _page(self, actor: Actor, around: RetentionScan, most: int, bound: int) -> Op[int]:
        """Look at the next page of a round, and let go of what is complete there."""
        page = Range(keys.TASKS, around.after, min(self._limit, most))
        items: tuple[Item, ...] = (yield Read(page)).ranges[page]
        around.over = len(items) < page.limit
        large = sum(len(item.value) for item in items) > PAGE_BYTES
        self._limit = max(LEAST_PAGE, page.limit // 4) if large else min(most, page.limit * 4)
        some = around.meet(items)
        going = around.going(some)
        around.suspect(each for each in going if not each.complete)
        complete = {each.task: each.revision for each in going if each.complete}
        aims = dict(islice(complete.items(), bound))
        done = yield from self._let_go(actor, aims, None)
        gone = aims if done == len(aims) else {}
        around.leave([each for each in some if each.task not in gone])
        self._left += len(complete) - len(aims)
        return done

    def _end(self, actor: Actor, around: RetentionScan) -> Op[int]:
        """Let go of what failed and nobody needs; and know when to look again."""
        if not around.whole:
            return 0
        done = 0
        if around.sure:
            done = yield from self._let_go(actor, around.suspects, around.mark)
        cut = core.count_cut(around.stay, self._keep.count)
        again = bool(around.fresh) or cut > around.cut
        self._cut, self._suspects = cut, around.fresh
        self._seen = None if again else around.survey
        if not again:
            yield from self._note(actor, around)
        return done

    def _note(self, actor: Actor, around: RetentionScan) -> Op[None]:
        """Let everybody know, if it took long to see that nothing is left to do."""
        survey = around.survey

        def deciding() -> DecideOp[None]:
            item = (yield (keys.FINISHED,))[keys.FINISHED]
            return core.note(survey, readable(_survey, item))

        if around.looked > _LONG and survey.settles(self._keep, survey.at, 0):
            yield from self._runner.change(deciding, actor)

    def _let_go(self, actor: Actor, aims: Mapping[str, int], mark: int | None) -> Op[int]:
        """Forget these in portions; of those that failed, if this ``mark`` stands."""
        done, left = 0, iter(aims.items())
        base = yield from self._runner.base()
        room = TaskReader(self._runner, base).facts.max_operations
        while some := dict(islice(left, max(1, min(room // core.OPERATIONS - 1, _AT_ONCE)))):
            try:
                changed: Decided[Forgotten] = yield from self._runner.change(
                    partial(self._deciding, some, base, mark), actor
                )
            except (StoreDamaged, TooLarge):  # nobody else's trouble; doctor names it
                continue
            done += changed.outcome.count
            mark = changed.revision if mark is not None and changed.revision else mark
        return done

    def _deciding(
        self, aims: Mapping[str, int], base: int, mark: int | None
    ) -> DecideOp[Forgotten]:
        reader, failed = TaskReader(self._runner, base), mark is not None
        if failed:
            needed = (yield (keys.NEEDED,))[keys.NEEDED]
            if mark != (0 if needed is None else needed.revision):
                return Decision(outcome=Forgotten())
        reader.learn((yield tuple(_relied(aims))).items)
        seen = {task: base + revision for task, revision in aims.items()}
        now = self._runner.clock.wall()
        return (
            yield from reader.decide(
                lambda facts: core.delete(TaskChanges(facts, now), seen, failed=failed)
            )
        )


def retention_limits(settings: Settings | None) -> RetentionLimits:
    """How long tasks that are over stay, and how many: as it is set, and as usual otherwise."""
    found = (settings or Settings()).task()
    return RetentionLimits(
        age=found.get("keep", core.KEEP), count=int(found.get("kept", core.KEPT))
    )


def _suspecting() -> DecideOp[None]:
    yield from ()
    return core.suspect()


def _survey(item: Item | None) -> RetentionSurvey | None:
    return None if item is None else decoded(_SURVEY, item)


def _relied(tasks: Mapping[str, int]) -> Iterator[str]:
    for task in tasks:
        yield keys.status(task)
        yield keys.todo(task)


SUSPECTS = 1_000
"""Tasks that failed of which a round finds out whether somebody needs them."""


class ScanStart(Struct, frozen=True, kw_only=True):
    """How it stands when a round begins: what the record said last, and so what time it is."""

    moment: Moment
    mark: int
    now: float
    said: tuple[RecordedTime, ...]


class RetentionScan:
    """One round; ``whole`` if it begins with the first task.

    ``cut`` and ``suspects`` are from the round before: those that ended up to this revision are too
    many, and for those that failed nobody was looked for who needs them.
    """

    def __init__(
        self, start: ScanStart, age: float, *, cut: int, suspects: dict[str, int], after: str
    ) -> None:
        self.mark = start.mark
        self.cut = cut
        self.suspects = suspects
        self.fresh: dict[str, int] = {}
        """The suspects of the next round."""
        self.after = after
        self.whole = not after
        self.sure = True
        """Whether all was met that may need a task: no import is under way, and all can be read."""
        self.over = False
        self.looked = 0
        self.stay = array("q")
        """At which revisions those ended that stay."""
        self._start = start
        self._age = age
        self._oldest = start.now
        self._young = core.young(start.said, age, start.now)
        self._tried = frozenset(suspects)
        self._data: Item | None = None

    @property
    def survey(self) -> RetentionSurvey:
        """What stays, as of the beginning: whatever ends later is no older than that."""
        return RetentionSurvey(
            revision=self._start.moment.revision,
            at=self._start.now,
            oldest=self._oldest,
            count=len(self.stay),
            entries=self._start.moment.entries,
        )

    def meet(self, items: Sequence[Item]) -> list[EndedTask]:
        """Know what a page says; those that are over."""
        found = [each for item in items if (each := self._met(item)) is not None]
        self.after = items[-1].key if items else self.after
        self.looked += len(items)
        self._young = min(self._young, core.young(found, self._age, self._start.now))
        return found

    def going(self, some: Sequence[EndedTask]) -> list[EndedTask]:
        """Those of a page that go, as far as their time is concerned."""
        return core.expired(some, self._start.now - self._age, self._young, self.cut)

    def suspect(self, some: Iterable[EndedTask]) -> None:
        """Look for whoever needs these in the next round, unless this one does."""
        for each in some:
            if each.task not in self._tried and len(self.fresh) < SUSPECTS:
                self.fresh[each.task] = each.revision

    def leave(self, some: Sequence[EndedTask]) -> None:
        """These stay for now."""
        self.stay.extend(each.revision for each in some)
        self._oldest = min([self._oldest, *(each.at for each in some)])

    def _met(self, item: Item) -> EndedTask | None:
        if item.key.endswith("/data"):
            self._data = item
        if not item.key.endswith("/status"):
            return None
        task = keys.task_of(item.key)
        data = self._data if self._data and self._data.key == keys.data(task) else None
        status, spec = readable(decode.status, item), readable(decode.spec, data)
        if status is None or spec is None:
            self.sure = False
            return None
        return self._learn(task, item.revision, status, spec)

    def _learn(self, task: str, revision: int, status: TaskStatus, spec: Spec) -> EndedTask | None:
        if status.state != "complete":
            self.sure = self.sure and not task.startswith(BATCH)
            for need in spec.needs:
                self.suspects.pop(need, None)
        return core.ended_task(task, revision, status, spec)
