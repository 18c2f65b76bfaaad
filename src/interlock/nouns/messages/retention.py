"""Retention: delete expired messages in bounded passes.

A pass walks the folders one group at a time: the marks of one agent, the messages of one topic, all
queries. The retention limits bound the cost of a group, however much was sent; inboxes have nothing
to delete and are not walked.

``maintain`` makes a whole pass. A busy sender makes a small pass after a thousand commits, in the
background, and continues where the last one ended; a short-lived command does so at random, and
starts at a random group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.agents.report_service import capable_agent
from interlock.nouns.messages import decode, query_rules, retention_rules
from interlock.nouns.messages.limits import MessageLimits, message_limits
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import ReceiverNote, liveness_key, receiver_note
from interlock.nouns.messages.query import AskOutcome
from interlock.nouns.messages.retention_rules import MarkDeletion, RetentionItem
from interlock.runtime.attempt import DecideOp, Unchecked
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import MOST_PAGE, Pages, looked_up, readable
from interlock.runtime.retention import (
    THING,
    Forgotten,
    RetentionLimits,
    delete_items,
    deletion,
    operations_at_once,
    random_key,
)
from interlock.runtime.retention_clock import (
    CommitPosition,
    commit_position,
    commits_since,
    earlier_time,
)
from interlock.runtime.runner import Runner
from interlock.steps import Op, Pause, Read
from interlock.store import Item, Range, Snapshot

T = TypeVar("T")

BOUND = 10_000
"""Items that a whole pass deletes of each group, at most."""
RECEIVER_NOTE_AGE = 86400.0
"""Seconds for which the note of a dead receiver is kept for the next one."""
RATE_SLOT_AGE = 3600.0
"""Seconds for which a slot of a sender's rate is kept, at least: a window is mostly a second."""
SMALL_PASS = 150
"""Items that a small pass deletes: it takes a few hundredths of a second, so leases are renewed in
time.  If it deleted this many, another small pass follows soon.
"""
SMALL_PASS_GROUPS = 20
SMALL_PASS_READS = 1_000
"""Items that a small pass reads, in addition to what it may delete."""
SINGLE_GROUP_FOLDERS = (keys.IDS, keys.QUERIES, keys.DECISIONS)
"""Folders that are one group."""
_PAUSE = 0.01
"""Seconds between two groups of a small pass, for other work of this process."""
_READ_AT_ONCE = 20_000
"""Items of one group that are read at once, unless more are kept; the rest follows when these are
deleted.
"""
_AT_ONCE = 50
_FIRST_PAGE = 128


class RetentionResult(Struct, frozen=True, kw_only=True):
    """What a pass deleted, what it ended on behalf of others, and what is left.

    ``ids`` are chosen ids that are free again.
    """

    forgotten: int = 0
    ids: int = 0
    reclaimed: int = 0
    left: int = 0

    @property
    def more(self) -> bool:
        """Whether a small pass reached its limit, so there may be more."""
        return self.forgotten + self.ids + self.reclaimed >= SMALL_PASS

    def __add__(self, other: RetentionResult) -> RetentionResult:
        return RetentionResult(
            forgotten=self.forgotten + other.forgotten,
            ids=self.ids + other.ids,
            reclaimed=self.reclaimed + other.reclaimed,
            left=self.left + other.left,
        )


class TopicTrimPlan(Struct, frozen=True, kw_only=True):
    """What to delete from a topic, unless ``trimmed_at`` has changed.

    ``count`` is the number of messages at ``moment``, without those deleted since.
    """

    trimmed_at: int
    going: list[RetentionItem]
    moment: CommitPosition
    count: int


class MessageRetention:
    """The passes; its methods are generators for a driver."""

    def __init__(self, runner: Runner, limits: MessageLimits) -> None:
        self._runner = runner
        self._limits = limits
        self._batch = operations_at_once(runner)
        self._position: tuple[int, str] | None = None
        self._reads = 0
        self._is_whole = True
        # The number of messages in a topic, and when it was counted.
        self._counts: dict[str, tuple[CommitPosition, int]] = {}
        self._plans: dict[str, TopicTrimPlan] = {}
        self._id_position = ""
        self._actor = Actor()
        self._now = 0.0
        """The time of this pass."""

    def run(self, actor: Actor, bound: int = BOUND) -> Op[RetentionResult]:
        """Make a whole pass; delete at most ``bound`` items of each group."""
        done, self._id_position, self._is_whole = RetentionResult(), "", True
        self._actor = actor
        self._now = yield from earlier_time(self._runner)
        first = [Range(folder, limit=1) for folder in FOLDERS]
        snapshot: Snapshot = yield Read(*first)
        for page in first:
            group = _group_of(page.prefix, snapshot.ranges[page])
            while group:
                done += yield from self._group(page.prefix, group, bound)
                group = yield from _next_group(page.prefix, group)
        return done

    def some(self, actor: Actor) -> Op[RetentionResult]:
        """Make a small pass, which starts where the last one ended."""
        done, self._reads, self._is_whole = RetentionResult(), 0, False
        self._actor = actor
        self._now = yield from earlier_time(self._runner)
        number, group = self._position or self._anywhere()
        for _ in range(SMALL_PASS_GROUPS):
            folder, before = FOLDERS[number], group
            group = yield from _next_group(folder, group)
            if not group:
                number = (number + 1) % len(FOLDERS)
                continue
            part = yield from self._group(folder, group, SMALL_PASS)
            done += part
            yield Pause(self._runner.capabilities.allow(_PAUSE))
            if done.more or self._reads >= SMALL_PASS_READS:
                group = before if (part.forgotten or part.ids) and part.left else group
                break
        self._position = (number, group)
        return done

    def _anywhere(self) -> tuple[int, str]:
        number = self._runner.random_below(len(FOLDERS))
        folder = FOLDERS[number]
        start = random_key(self._runner, folder)
        return number, "" if folder in SINGLE_GROUP_FOLDERS else f"{start}/"

    def _group(self, folder: str, group: str, bound: int) -> Op[RetentionResult]:
        """One group; unreadable items are left for doctor to report."""
        try:
            return (yield from self.passes[folder](self, group, bound))
        except (StoreDamaged, TooLarge):
            return RetentionResult(left=1)

    # ---- marks of read and sent messages ---------------------------------------------------------

    def _pass_marks(self, group: str, bound: int) -> Op[RetentionResult]:
        going = yield from self._expired(group, decode.read_at, self._limits.kept)
        done = 0
        for start in range(0, min(len(going), bound), _AT_ONCE):
            some = [each.key for each in going[start : min(start + _AT_ONCE, bound)]]
            for deletions in retention_rules.batches(
                (yield from _mark_deletions(some)), self._batch
            ):
                done += yield from self._change(partial(_delete_marks, deletions))
        return RetentionResult(forgotten=done, left=max(len(going) - bound, 0))

    def _pass_ids(self, group: str, bound: int) -> Op[RetentionResult]:
        """Delete ids that were chosen long ago.

        They are not ordered by time, so all are read, page by page; a small pass continues where
        the last one ended.
        """
        done = 0
        is_old = partial(self._is_old, decode.read_at)
        pages = Pages(group, self._id_position, MOST_PAGE)
        while True:
            items = yield from pages.read(MOST_PAGE)
            self._reads += len(items)
            going = [item.key for item in items if is_old(item)]
            some = going[: bound - done]
            done += yield from delete_items(
                self._runner, self._actor, some, is_old, verb="message.forget"
            )
            if len(some) < len(going):
                return RetentionResult(ids=done, left=1)
            self._id_position = "" if pages.finished else pages.after
            if not self._id_position or (not self._is_whole and self._reads >= SMALL_PASS_READS):
                return RetentionResult(ids=done, left=bool(self._id_position))

    # ---- topics ---------------------------------------------------------------------------------

    def _pass_topic(self, group: str, bound: int) -> Op[RetentionResult]:
        topic = keys.topic_of(group)
        if topic.startswith(ABLE):
            return (yield from self._pass_ability_topic(group, bound))
        todo = None if self._is_whole else self._plans.pop(group, None)
        if todo is None:
            if not self._is_whole and (yield from self._is_settled(group)):
                return RetentionResult()
            todo = yield from self._survey(group)
        some, done, trimmed_at = todo.going[:bound], 0, todo.trimmed_at
        for start in range(0, len(some), self._batch):
            part = some[start : start + self._batch]
            deciding = partial(_trim_topic, topic, part, trimmed_at)
            changed = yield from self._runner.change(deciding, self._actor)
            done, trimmed_at = done + changed.outcome.count, changed.revision or -1
        left = todo.going[len(some) :]
        self._counts[group] = todo.moment, todo.count - done
        if left and done == len(some):
            self._plans[group] = replace(
                todo, trimmed_at=trimmed_at, going=left, count=todo.count - done
            )
        return RetentionResult(forgotten=done, left=len(todo.going) - done)

    def _survey(self, group: str) -> Op[TopicTrimPlan]:
        key, most = keys.trimmed(keys.topic_of(group)), self._limits.alerts
        before: Snapshot = yield Read(key)  # changes with each deletion in the topic
        moment = yield from commit_position(before.revision)
        marks = yield from self._walk(group, _topic_item, _items_to_read(most))
        return TopicTrimPlan(
            trimmed_at=_revision_of(before[key]),
            going=self._expired_of(marks, most),
            moment=moment,
            count=len(marks),
        )

    def _is_settled(self, group: str) -> Op[bool]:
        """Whether a topic has nothing to delete: its first page is recent, and few can be new.

        A commit adds one message at most, so there are at most as many new ones as commits since
        the last count. A full topic is counted again when a quarter of it can be new.
        """
        page = Range(group, "", _FIRST_PAGE)
        snapshot: Snapshot = yield Read(page)
        items, most = snapshot.ranges[page], self._limits.alerts
        self._reads += len(items)
        if any(self._is_old(decode.sent_at, item) for item in items):
            return False
        if len(items) < page.limit:
            return len(items) <= most
        counted, count = self._counts.get(group, (CommitPosition(revision=0), 0))
        enough = most + most // 4 - count
        return (yield from commits_since(counted, snapshot.revision, enough)) <= enough

    def _pass_ability_topic(self, group: str, bound: int) -> Op[RetentionResult]:
        marks = yield from self._walk(group, lambda item: item.key)
        found = yield from looked_up([keys.query(keys.id_of(each)) for each in marks])
        over = [
            each for each in marks if not decode.is_open_query(found[keys.query(keys.id_of(each))])
        ]
        done = yield from delete_items(
            self._runner, self._actor, over[:bound], lambda _: True, verb="query.forget"
        )
        return RetentionResult(forgotten=done, left=max(len(over) - bound, 0))

    # ---- queries and decisions ------------------------------------------------------------------

    def _pass_queries(self, group: str, bound: int) -> Op[RetentionResult]:
        going = yield from self._expired(group, _query_ended_at, self._limits.alerts)
        wanted = [each.key for each in going[:bound]]
        portion = max(1, min(self._batch // 5, _AT_ONCE))
        done = 0
        for start in range(0, len(wanted), portion):
            some = tuple(wanted[start : start + portion])
            done += yield from self._change(partial(_delete_queries, some))
        return RetentionResult(forgotten=done, left=len(going) - len(wanted))

    def _pass_open_queries(self, group: str, bound: int) -> Op[RetentionResult]:
        """End expired questions whose asker has not."""
        ids = yield from self._walk(group, lambda item: keys.id_of(item.key))
        lives = yield from looked_up(map(keys.live, ids))
        expired = [id_ for id_ in ids if lives[keys.live(id_)] is None]
        done = 0
        for id_ in expired[:bound]:
            deciding = partial(self._expire, id_, group + id_, self._runner.new_id("dec"))
            outcome = (yield from self._runner.change(deciding, self._actor)).outcome
            done += not isinstance(outcome, Forgotten)
        return RetentionResult(reclaimed=done, left=max(len(expired) - bound, 0))

    def _expire(self, id_: str, listed: str, decision_id: str) -> DecideOp[AskOutcome | Forgotten]:
        found = decode.query((yield (keys.query(id_),))[keys.query(id_)])
        if found is None or found.state != "open":
            return deletion("query.forget", (listed,), 0)
        if (yield Unchecked((keys.live(id_),)))[keys.live(id_)] is not None:
            return Decision(outcome=Forgotten())
        return query_rules.expire(found, self._runner.clock.wall(), decision_id)

    def _pass_quota_slots(self, group: str, bound: int) -> Op[RetentionResult]:
        """Free quota slots of ended questions: a client of an older version ended them."""
        taken = yield from self._walk(
            group, lambda item: (item.key, readable(decode.slot_query, item))
        )
        asked = yield from looked_up(keys.query(id_) for _, id_ in taken if id_)
        ended = {
            key: keys.live(id_)
            for key, id_ in taken
            if id_ and not decode.is_open_query(asked[keys.query(id_)])
        }
        yield from self._delete_dead("query.forget", ended, _slot_live, bound)
        return RetentionResult()

    def _pass_decisions(self, group: str, bound: int) -> Op[RetentionResult]:
        done = yield from self._delete_old(group, bound, "decision.forget", _resolved_at)
        return RetentionResult(forgotten=done)

    # ---- receivers, abilities, rate slots -------------------------------------------------------

    def _pass_receivers(self, group: str, bound: int) -> Op[RetentionResult]:
        found = yield from self._walk(group, lambda item: (item.key, readable(receiver_note, item)))
        lives = yield from looked_up([note.live for _, note in found if note])
        dead = {key: note for key, note in found if note and lives[note.live] is None}
        old = {
            key: note.live for key, note in dead.items() if note.at + RECEIVER_NOTE_AGE < self._now
        }
        new = {key: note for key, note in dead.items() if key not in old and not note.over}
        done = yield from self._delete_dead("agent.forget", old, liveness_key, bound)
        for key, note in list(new.items())[: max(bound - done, 0)]:
            done += yield from self._change(partial(_mark_dead_receiver, key, note))
        return RetentionResult(reclaimed=done)

    def _pass_abilities(self, group: str, bound: int) -> Op[RetentionResult]:
        found = yield from self._walk(group, lambda item: (item.key, readable(_able_live, item)))
        lives = yield from looked_up([live for _, live in found if live])
        dead = {key: live for key, live in found if live and lives[live] is None}
        yield from self._delete_dead("agent.forget", dead, _able_live, bound)
        return RetentionResult()

    def _pass_rates(self, group: str, bound: int) -> Op[RetentionResult]:
        """Delete slots that are free since long: a sender that goes on writes them again."""
        age = max(RATE_SLOT_AGE, self._limits.rate.window)

        def old(item: Item) -> bool:
            used = readable(decode.slot_used_at, item)
            return used is not None and used + age < self._now

        found = yield from self._walk(group, lambda item: item.key if old(item) else "")
        gone = list(filter(None, found))[:bound]
        yield from delete_items(self._runner, self._actor, gone, old, verb="agent.forget")
        return RetentionResult()

    # ---- what the passes share ------------------------------------------------------------------

    def _expired(
        self, group: str, at: Callable[[Item], float | None], count: int
    ) -> Op[list[RetentionItem]]:
        """The items of a group to delete, oldest first."""
        marks = yield from self._walk(
            group,
            lambda item: RetentionItem(item.key, item.created, readable(at, item)),
            _items_to_read(count),
        )
        return self._expired_of(marks, count)

    def _expired_of(self, marks: Sequence[RetentionItem], count: int) -> list[RetentionItem]:
        limits = RetentionLimits(age=self._limits.keep, count=count)
        return retention_rules.expired_items(marks, limits, self._now)

    def _delete_old(
        self, group: str, bound: int, verb: str, at: Callable[[Item], float | None]
    ) -> Op[int]:
        """Delete items that ended long ago, checked again by the commit."""
        going = yield from self._expired(group, at, _READ_AT_ONCE)
        gone, is_old = [each.key for each in going[:bound]], partial(self._is_old, at)
        return (yield from delete_items(self._runner, self._actor, gone, is_old, verb=verb))

    def _is_old(self, at: Callable[[Item], float | None], item: Item) -> bool:
        ended = readable(at, item)
        return ended is not None and ended + self._limits.keep < self._now

    def _delete_dead(
        self,
        verb: str,
        dead: Mapping[str, str],
        live: Callable[[Item], str],
        bound: int,
    ) -> Op[int]:
        """Delete items whose liveness keys are gone, unless they have another one by now."""

        def over(item: Item) -> bool:
            return readable(live, item) == dead[item.key]

        return delete_items(
            self._runner, self._actor, list(dead)[:bound], over, verb=verb, lives=dead
        )

    def _walk(
        self, group: str, convert: Callable[[Item], T], most: int = _READ_AT_ONCE
    ) -> Op[list[T]]:
        """Read the first items of a group, and keep what ``convert`` returns for each."""
        found: list[T] = []
        pages = Pages(group, limit=_FIRST_PAGE)
        while not pages.finished and pages.items < most:
            found.extend(map(convert, (yield from pages.read())))
        self._reads += pages.items
        return found

    def _change(self, deciding: Callable[[], DecideOp[Forgotten]]) -> Op[int]:
        return (yield from self._runner.change(deciding, self._actor)).outcome.count

    passes: ClassVar[dict[str, Callable[[MessageRetention, str, int], Op[RetentionResult]]]] = {
        keys.READ: _pass_marks,
        keys.SENT: _pass_marks,
        keys.IDS: _pass_ids,
        keys.TOPICS: _pass_topic,
        keys.QUERIES: _pass_queries,
        keys.OPEN: _pass_open_queries,
        keys.ASKING: _pass_quota_slots,
        keys.SERVING: _pass_receivers,
        keys.RATES: _pass_rates,
        keys.DECISIONS: _pass_decisions,
        keys.ABLE: _pass_abilities,
    }


FOLDERS = tuple(MessageRetention.passes)


def _topic_item(item: Item) -> RetentionItem:
    """A message of a topic: when and by whom it was sent."""
    message = readable(decode.message, item)
    if message is None:
        return RetentionItem(item.key, item.created, None)
    return RetentionItem(item.key, item.created, message.at, message.sender)


def _items_to_read(count: int) -> int:
    """How many items of a group to read if ``count`` are kept."""
    return max(_READ_AT_ONCE, count + BOUND)


def _mark_deletions(marks: Sequence[str]) -> Op[list[MarkDeletion]]:
    """What to delete with these marks; questions and unreadable messages are kept."""
    wanted = {each: keys.message(keys.id_of(each)) for each in marks}
    items = yield from looked_up(key for key in wanted.values() if not key.startswith(keys.QUERIES))
    found: list[MarkDeletion] = []
    for each, key in wanted.items():
        item = items.get(key)
        message = None if item is None else readable(decode.message, item)
        if item is None or message is not None:
            found.append(retention_rules.mark_deletion(each, message))
    return found


def _delete_marks(deletions: Sequence[MarkDeletion]) -> DecideOp[Forgotten]:
    """Delete marks, and messages without another mark; the commit checks all marks."""
    wanted = dict.fromkeys(key for each in deletions for key in (each.mark, *each.others))
    items = (yield tuple(wanted)).items
    return retention_rules.delete_marks(
        deletions, {key for key, item in items.items() if item is not None}
    )


def _trim_topic(topic: str, some: Sequence[RetentionItem], trimmed_at: int) -> DecideOp[Forgotten]:
    """Delete messages of a topic, unless another process did since revision ``trimmed_at``."""
    item = (yield (keys.trimmed(topic),))[keys.trimmed(topic)]
    if _revision_of(item) != trimmed_at:
        return Decision(outcome=Forgotten())
    return retention_rules.trim(topic, some, decode.trimmed(item))


def _delete_queries(some: Sequence[str]) -> DecideOp[Forgotten]:
    items = (yield tuple(some)).items
    found = [query for key in some if (query := decode.query(items[key])) is not None]
    notes = (
        (yield tuple(dict.fromkeys(map(retention_rules.answer_key, found)))).items if found else {}
    )
    answers = {key: decode.cached_answer(item) for key, item in notes.items()}
    return retention_rules.delete_queries(found, answers)


def _mark_dead_receiver(key: str, note: ReceiverNote) -> DecideOp[Forgotten]:
    """Mark a dead receiver's note, which stays for the next receiver."""
    item = (yield (key,))[key]
    stands = None if item is None else readable(receiver_note, item)
    live = (yield Unchecked((note.live,)))[note.live]
    if stands != note or live is not None:
        return Decision(outcome=Forgotten())
    put = Write(key, replace(note, over=True))
    return Decision(outcome=Forgotten(count=1), verb="agent.forget", thing=THING, puts=(put,))


def _slot_live(item: Item) -> str:
    return keys.live(decode.slot_query(item))


def _able_live(item: Item) -> str:
    return capable_agent(item).live


def _query_ended_at(item: Item) -> float | None:
    found = decode.query(item)
    return None if found is None else retention_rules.ended_at(found)


def _resolved_at(item: Item) -> float | None:
    found = decode.decision(item)
    return found.resolved if found is not None and found.state != "open" else None


def _revision_of(item: Item | None) -> int:
    return 0 if item is None else item.revision


def _next_group(folder: str, group: str) -> Op[str]:
    """The next group of a folder, or the first; empty if there is none."""
    if group and folder in SINGLE_GROUP_FOLDERS:
        return ""
    after = f"{group[:-1]}0" if group else ""  # the character after '/'
    page = Range(folder, after, 1)
    return _group_of(folder, (yield Read(page)).ranges[page])


def _group_of(folder: str, first: Sequence[Item]) -> str:
    """The group of the first item; empty if there is none."""
    if not first:
        return ""
    return folder if folder in SINGLE_GROUP_FOLDERS else f"{folder}{first[0].key.split('/', 2)[1]}/"


class MessageHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about messages and queries."""

    def reclaim(self) -> Op[None]:
        """End expired questions, and delete old messages: one walk finds both."""
        limits = message_limits(self.work.settings)
        done = yield from MessageRetention(self.work.runner, limits).run(self.work.actor)
        self.work.reclaimed += done.reclaimed
        self.work.left += done.left
        self.work.deleted_messages += done.forgotten
