"""Deletes tasks that ended long ago, in bounded parts: each continues after the last.

No index lists tasks by the time of their end, since completing a task would have to write it.  So
all tasks are read by their keys, page by page: a *scan* is from the first to the last of them.

    complete       is deleted as it is read, if it is old enough
    failed, dead   is a suspect as it is read; the next scan deletes it at its end, if it read no
                   task that needs it (``retention_rules.py``)
    too many       a scan counts; the next one deletes the tasks that ended first

``maintain`` makes whole scans.  A client that lives long makes a part of one after a thousand
commits, and a short command does so at random, and begins anywhere.  A long scan that left nothing
to do writes a survey (``meta/over``): until a task can be old enough, or too many can have ended,
clients read only that.

The data of a task come before its status in key order, so a scan has read the data when it reads
the status.  Batches come before all tasks: the tasks of a complete batch are read after it, and
while one is not complete, it is unknown which tasks need which.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.tasks import retention_rules
from interlock.nouns.tasks.retention_rules import EndedTask, RetentionSurvey
from interlock.nouns.tasks.task import BATCH, Spec, TaskStatus
from interlock.nouns.tasks.task_reader import TaskReader, decode_spec, decode_status
from interlock.runtime import retention_clock
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import FIRST_PAGE, MOST_PAGE, Pages, readable
from interlock.runtime.retention import Forgotten, RetentionLimits, random_key
from interlock.runtime.retention_clock import CommitPosition, RecordedTime
from interlock.runtime.runner import Decided, Runner
from interlock.settings import Settings
from interlock.steps import Op, Pause, Read
from interlock.store import Item, Log, Snapshot

BOUND = 10_000
"""The bound of tasks that a pass of maintenance deletes, or a few more."""
SCANS = 3
"""Scans of one pass: to count, to delete complete tasks, and to delete failed ones."""
SOME = 100
SOME_READ = 1_000
SOME_PAGE = 250
"""The bounds of a small part of a scan: it ends between two renewals."""
_BREATH = 0.01
"""Seconds between two pages of a small part, for other work of this process."""
_AT_ONCE = 60
_LONG = 1_000
"""A scan of more items than this writes its survey."""
_SURVEY = codec.Decoder(RetentionSurvey)
_OLDEST, _NEWEST = Log(limit=1), retention_clock.NEWEST


class TasksDeleted(Struct, frozen=True, kw_only=True):
    """How many tasks a pass deleted, and how many are left to delete."""

    forgotten: int = 0
    left: int = 0


class RetentionFacts(Struct, frozen=True, kw_only=True):
    """What is known before a scan, as of a revision.

    The ``mark`` of needs is a revision.  ``now`` is the present time by the record and by our
    clock, and ``said`` are times of the record.
    """

    revision: int
    mark: int
    survey: RetentionSurvey | None
    said: tuple[RecordedTime, ...]
    now: float


class TaskRetention:
    """Scans that delete old tasks, as generators for a driver."""

    def __init__(self, runner: Runner, keep: RetentionLimits) -> None:
        self._runner = runner
        self._keep = keep
        self._scan: RetentionScan | None = None
        self._cut = 0
        self._suspects: dict[str, EndedTask] = {}
        self._began = False
        self._last_survey: RetentionSurvey | None = None
        """The survey of the last scan, if that left nothing to do at once."""
        self._limit = FIRST_PAGE
        self._left = 0

    def read_facts(self) -> Op[RetentionFacts]:
        """Read the last survey, the mark of needs, and the present time by the record.

        A client that writes much before it deletes reads this first: later only its own entries
        are among the newest.
        """
        snapshot: Snapshot = yield Read(keys.NEEDED, keys.FINISHED, _OLDEST, _NEWEST)
        needed = snapshot[keys.NEEDED]
        newest = retention_clock.recorded_times(snapshot.ranges[_NEWEST])
        here, writer = self._runner.clock.wall(), self._runner.chain.writer
        now = retention_clock.median_time(here, newest, writer)
        engine = yield from retention_clock.engine_time()
        return RetentionFacts(
            revision=snapshot.revision,
            mark=0 if needed is None else needed.revision,
            survey=readable(_survey, snapshot[keys.FINISHED]),
            said=(*retention_clock.recorded_times(snapshot.ranges[_OLDEST]), *newest),
            now=now if engine is None else min(now, engine),
        )

    def run(
        self, actor: Actor, bound: int = BOUND, first: RetentionFacts | None = None
    ) -> Op[TasksDeleted]:
        """Make whole scans until nothing is left to delete, or ``bound`` tasks are deleted."""
        done = self._left = 0
        first = facts = first or (yield from self.read_facts())
        for _ in range(0 if (yield from self._is_settled(facts)) else SCANS):
            scan, self._left = (yield from self._start(actor, facts, "")), 0
            while not scan.pages.finished:
                done += yield from self._page(actor, scan, MOST_PAGE, max(bound - done, 0))
            done += yield from self._end(actor, scan)
            if self._last_survey is not None:
                break
            facts = replace((yield from self.read_facts()), now=first.now)
        return TasksDeleted(forgotten=done, left=self._left)

    def some(self, actor: Actor) -> Op[bool]:
        """Make a small part of a scan; whether it reached its bound, so that there may be more."""
        if self._scan is None:
            facts = yield from self.read_facts()
            if (yield from self._may_wait(facts)):
                return False
            after = "" if self._began else random_key(self._runner, keys.TASKS)
            self._scan = yield from self._start(actor, facts, after)
            self._began = True
        scan, done, items_read = self._scan, 0, 0
        while done < SOME and not scan.pages.finished:
            items_read += min(scan.pages.limit, SOME_PAGE)
            if items_read > SOME_READ:
                break
            done += yield from self._page(actor, scan, SOME_PAGE, SOME_PAGE)
            yield Pause(self._runner.capabilities.allow(_BREATH))
        if scan.pages.finished:
            self._scan = None
            done += yield from self._end(actor, scan)
        return done >= SOME

    def _may_wait(self, facts: RetentionFacts) -> Op[bool]:
        survey = self._last_survey
        if survey is not None:
            came = yield from self._came(survey, facts)
            if survey.rests(self._keep, facts.now, came):
                return True
        return not self._suspects and (yield from self._is_settled(facts))

    def _is_settled(self, facts: RetentionFacts) -> Op[bool]:
        """Whether a client wrote a survey, and no task can have become due since."""
        if (survey := facts.survey) is None:
            return False
        return survey.settles(self._keep, facts.now, (yield from self._came(survey, facts)))

    def _came(self, survey: RetentionSurvey, facts: RetentionFacts) -> Op[int]:
        """How many tasks can have ended since: no more than there were commits."""
        before = CommitPosition(revision=survey.revision, entries=survey.entries)
        few = self._keep.count // retention_rules.PART
        return (yield from retention_clock.commits_since(before, facts.revision, few))

    def _start(self, actor: Actor, facts: RetentionFacts, after: str) -> Op[RetentionScan]:
        suspects, self._suspects = self._suspects, {}
        if suspects:
            yield from self._runner.change(_suspect, actor)
        position = yield from retention_clock.commit_position(facts.revision)
        return RetentionScan(
            facts,
            position.entries,
            self._keep.age,
            cut=self._cut,
            suspects=suspects,
            pages=Pages(keys.TASKS, after, self._limit),
        )

    def _page(self, actor: Actor, scan: RetentionScan, most: int, bound: int) -> Op[int]:
        """Read the next page of a scan, and delete its expired complete tasks."""
        some = scan.learn_page((yield from scan.pages.read(most)))
        self._limit = scan.pages.limit
        expired = scan.expired(some)
        scan.suspect(each for each in expired if not each.complete)
        complete = {each.task: each for each in expired if each.complete}
        chosen = dict(islice(complete.items(), bound))
        done = yield from self._delete(actor, chosen, None)
        gone = chosen if done == len(chosen) else {}
        scan.keep([each for each in some if each.task not in gone])
        self._left += len(complete) - len(chosen)
        return done

    def _end(self, actor: Actor, scan: RetentionScan) -> Op[int]:
        """Delete failed tasks that no task needs, and prepare the next scan."""
        if not scan.whole:
            return 0
        done = 0
        if scan.sure:
            done = yield from self._delete(actor, scan.suspects, scan.mark)
        cut = retention_rules.count_cut(scan.kept_revisions, self._keep.count)
        again = bool(scan.new_suspects) or cut > scan.cut
        self._cut, self._suspects = cut, scan.new_suspects
        self._last_survey = None if again else scan.survey
        if not again:
            yield from self._note(actor, scan)
        return done

    def _note(self, actor: Actor, scan: RetentionScan) -> Op[None]:
        """Write the survey of a long scan that left nothing to do."""
        survey = scan.survey

        def deciding() -> DecideOp[None]:
            item = (yield (keys.FINISHED,))[keys.FINISHED]
            return retention_rules.note(survey, readable(_survey, item))

        if scan.pages.items > _LONG and survey.settles(self._keep, survey.at, 0):
            yield from self._runner.change(deciding, actor)

    def _delete(self, actor: Actor, chosen: Mapping[str, EndedTask], mark: int | None) -> Op[int]:
        """Delete these in portions; failed ones only if the mark of needs is still ``mark``."""
        done = 0
        base = yield from self._runner.base()
        room = TaskReader(self._runner, base).facts.max_operations
        for some in _portions(chosen.values(), room - retention_rules.OPERATIONS):
            left = True
            while left:
                try:
                    changed: Decided[Forgotten] = yield from self._runner.change(
                        partial(self._deciding, some, base, mark), actor
                    )
                except (StoreDamaged, TooLarge):  # other tasks are not affected; doctor names it
                    break
                done += changed.outcome.count
                if mark is not None and changed.outcome.count and changed.revision:
                    mark = changed.revision
                left = bool(changed.outcome.left)
        return done

    def _deciding(
        self, chosen: Sequence[EndedTask], base: int, mark: int | None
    ) -> DecideOp[Forgotten]:
        reader, failed = TaskReader(self._runner, base), mark is not None
        if failed:
            needed = (yield (keys.NEEDED,))[keys.NEEDED]
            if mark != (0 if needed is None else needed.revision):
                return Decision(outcome=Forgotten())
        reader.learn((yield tuple(_relied(chosen))).items)
        decide = partial(
            retention_rules.delete,
            aims={each.task: base + each.revision for each in chosen},
            failed=failed,
            labels={each.task: each.labels for each in chosen if each.labels},
        )
        return (yield from reader.change(decide))


def retention_limits(settings: Settings | None) -> RetentionLimits:
    """The limits for ended tasks, from the settings or the defaults."""
    found = (settings or Settings()).task()
    return RetentionLimits(
        age=found.get("keep", retention_rules.KEEP),
        count=int(found.get("kept", retention_rules.KEPT)),
    )


def _suspect() -> DecideOp[None]:
    yield from ()
    return retention_rules.suspect()


def _survey(item: Item | None) -> RetentionSurvey | None:
    return _SURVEY.read_if_present(item)


def _portions(chosen: Iterable[EndedTask], room: int) -> Iterator[list[EndedTask]]:
    """The tasks in portions, each for one commit with so many operations."""
    some: list[EndedTask] = []
    size = 0
    for each in chosen:
        if some and (len(some) == _AT_ONCE or size + each.operations > room):
            yield some
            some, size = [], 0
        some.append(each)
        size += each.operations
    if some:
        yield some


def _relied(chosen: Iterable[EndedTask]) -> Iterator[str]:
    for each in chosen:
        yield keys.status(each.task)
        yield keys.todo(each.task)
        yield keys.notes(each.task)


SUSPECTS = 1_000
"""The most failed tasks of which a scan finds out whether a task needs them."""


class RetentionScan:
    """One scan; ``whole`` if it begins with the first task.

    ``cut`` and ``suspects`` come from the scan before: tasks that ended up to this revision are too
    many, and this scan finds out which suspects are needed.
    """

    def __init__(
        self,
        facts: RetentionFacts,
        entries: int,
        age: float,
        *,
        cut: int,
        suspects: dict[str, EndedTask],
        pages: Pages,
    ) -> None:
        self.mark = facts.mark
        self.cut = cut
        self.suspects = suspects
        self.new_suspects: dict[str, EndedTask] = {}
        """The suspects of the next scan."""
        self.pages = pages
        self.whole = not pages.after
        self.sure = True
        """Whether all tasks that may need others were read: no import runs, none is damaged."""
        self.kept_revisions = array("q")
        """The revisions at which the tasks ended that stay."""
        self._facts = facts
        self._entries = entries
        self._age = age
        self._oldest = facts.now
        self._young = retention_rules.young(facts.said, age, facts.now)
        self._tried = frozenset(suspects)
        self._data: Item | None = None

    @property
    def survey(self) -> RetentionSurvey:
        """The tasks that stay, as of the start: a task that ends later is no older."""
        return RetentionSurvey(
            revision=self._facts.revision,
            at=self._facts.now,
            oldest=self._oldest,
            count=len(self.kept_revisions),
            entries=self._entries,
        )

    def learn_page(self, items: Sequence[Item]) -> list[EndedTask]:
        """Learn the items of a page; returns its ended tasks."""
        found = [each for item in items if (each := self._learn(item)) is not None]
        self._young = min(self._young, retention_rules.young(found, self._age, self._facts.now))
        return found

    def expired(self, some: Sequence[EndedTask]) -> list[EndedTask]:
        """The ended tasks of a page that are too old or too many."""
        return retention_rules.expired(some, self._facts.now - self._age, self._young, self.cut)

    def suspect(self, some: Iterable[EndedTask]) -> None:
        """Make these suspects of the next scan, unless they are suspects of this one."""
        for each in some:
            if each.task not in self._tried and len(self.new_suspects) < SUSPECTS:
                self.new_suspects[each.task] = each

    def keep(self, some: Sequence[EndedTask]) -> None:
        """Count these as tasks that stay."""
        self.kept_revisions.extend(each.revision for each in some)
        self._oldest = min([self._oldest, *(each.at for each in some)])

    def _learn(self, item: Item) -> EndedTask | None:
        if item.key.endswith("/data"):
            self._data = item
        if not item.key.endswith("/status"):
            return None
        task = keys.task_of(item.key)
        data = self._data if self._data and self._data.key == keys.data(task) else None
        status, spec = readable(decode_status, item), readable(decode_spec, data)
        if status is None or spec is None:
            self.sure = False
            return None
        return self._learn_task(task, item.revision, status, spec)

    def _learn_task(
        self, task: str, revision: int, status: TaskStatus, spec: Spec
    ) -> EndedTask | None:
        if status.state != "complete":
            self.sure = self.sure and not task.startswith(BATCH)
            for need in spec.needs:
                self.suspects.pop(need, None)
        return retention_rules.ended_task(task, revision, status, spec)
