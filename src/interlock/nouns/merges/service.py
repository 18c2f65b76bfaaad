"""Merges on a store: submitted, cancelled, and moved on by the server of their target.

Each method is one commit.  Those of the server are made by an actor that is given the lock of the
target, so that each of them checks that its token is the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.nouns.merges import merge as core
from interlock.nouns.merges import rules
from interlock.nouns.merges.merge import Merge, MergeAttempt, MergeTarget, WaitingMerge
from interlock.nouns.merges.rules import Bounce, QueuedMerge
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Decided, Runner
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.nouns.merges.reserved_files import ReservationComparison

T = TypeVar("T")

_MERGE = codec.Decoder(Merge)
_WAITING = codec.Decoder(WaitingMerge)
_TARGET = codec.Decoder(MergeTarget)
decode_waiting = _WAITING.read
NO_TARGET = MergeTarget()


def decode_merge(item: Item | None) -> Merge | None:
    """A merge."""
    return _MERGE.read_if_present(item)


def decode_target(item: Item | None) -> MergeTarget:
    """The target of a queue; an empty one if no server ever served it."""
    return NO_TARGET if item is None else _TARGET.read(item)


def revision_of(item: Item | None) -> int:
    """The revision that wrote an item; 0 if there is none."""
    return 0 if item is None else item.revision


def lock_name(queue: str) -> str:
    """The lock that the server of a queue holds."""
    return f"merge/{queue}"


class QueueState(Struct, frozen=True, kw_only=True):
    """The queue of a target: its waiting merges in their order; a watch may begin at a revision."""

    target: MergeTarget
    waiting: tuple[QueuedMerge, ...]
    revision: int


def read_queue(queue: str) -> Op[QueueState]:
    """Read a queue; damaged items are left out."""
    own = keys.merge_target(queue)
    snapshot: Snapshot = yield Read(own)
    entries = yield from in_order(keys.merge_waiting(queue))
    merges = yield from looked_up(keys.merge(each.merge) for each in entries)
    found = []
    for each in entries:
        merge = readable(decode_merge, merges[keys.merge(each.merge)])
        if merge is not None and merge.state == "waiting":
            found.append(QueuedMerge(id=each.merge, merge=merge))
    state = decode_target(snapshot[own])
    return QueueState(target=state, waiting=tuple(found), revision=snapshot.revision)


def in_order(folder: str) -> Op[list[WaitingMerge]]:
    """The entries of a queue, the first one first: by the revisions that created them."""
    items = sorted((yield from every(folder)), key=lambda item: (item.created, item.key))
    found = [readable(decode_waiting, item) for item in items]
    return [each for each in found if each is not None]


class InUse(Struct, frozen=True, kw_only=True):
    """What merges that wait need: their commits, their branches and all targets."""

    commits: frozenset[str]
    branches: frozenset[str]


def read_in_use(repository: str) -> Op[InUse]:
    """Read what must not be deleted in a repository, since a queue of any target needs it."""
    targets = yield from every(keys.MERGE_TARGETS)
    entries = yield from every(keys.MERGES_WAITING)
    waiting = [readable(decode_waiting, item) for item in entries]
    merges = yield from looked_up(keys.merge(each.merge) for each in waiting if each is not None)
    found = [readable(decode_merge, item) for item in merges.values() if item is not None]
    names = [keys.merge_waiting_of(item.key) for item in entries]
    names += [(keys.merge_target_of(item.key), "") for item in targets]
    parts = [(*core.parts_of_queue(queue), branch) for queue, branch in names]
    own = [(target, branch) for its, target, branch in parts if its in ("", repository)]
    return InUse(
        commits=frozenset(each.commit for each in found if each is not None),
        branches=frozenset(name for both in own for name in both),
    )


class MergeService:
    """What callers and servers do with merges, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def submit(self, actor: Actor, id_: str, fresh: Merge) -> Op[core.SubmitOutcome]:
        """Queue a branch."""
        own, entry = keys.merge_target(fresh.queue), keys.merge_waiting(fresh.queue, fresh.branch)

        def deciding() -> DecideOp[core.SubmitOutcome]:
            items = (yield (own, entry)).items
            waiting = None
            if (there := items[entry]) is not None:
                before = decode_waiting(there).merge
                merge = decode_merge((yield (keys.merge(before),)).items[keys.merge(before)])
                if merge is not None and merge.state == "waiting":
                    waiting = QueuedMerge(id=before, merge=merge)
            return rules.submit(id_, fresh, waiting, decode_target(items[own]))

        done: Decided[core.SubmitOutcome] = yield from self.runner.change(deciding, actor)
        return done.outcome

    def cancel(self, actor: Actor, id_: str, reason: str) -> Op[core.CancelOutcome]:
        """Take a branch out of the queue."""
        now = self.runner.clock.wall()

        def deciding() -> DecideOp[core.CancelOutcome]:
            merge = decode_merge((yield (keys.merge(id_),)).items[keys.merge(id_)])
            if merge is None:
                return Decision(outcome=core.UnknownMerge(unknown=(id_,)))
            own = keys.merge_target(merge.queue)
            target = decode_target((yield (own,)).items[own])
            found = QueuedMerge(id=id_, merge=merge)
            return rules.cancel(found, target, actor.agent, reason, now)

        done: Decided[core.CancelOutcome] = yield from self.runner.change(deciding, actor)
        return done.outcome

    def find(self, name: str, into: str = "", repository: str = "") -> Op[str]:
        """The id of a merge by its id, its beginning, or a branch that waits; empty if unknown.

        A branch of this repository comes first.
        """
        from interlock.runtime.reads import whole_id

        if name.startswith("mrg_"):
            return (yield from whole_id(name, keys.MERGES))
        waiting: list[tuple[bool, int, Item]] = []
        for item in (yield from every(keys.MERGES_WAITING)):
            queue, branch = keys.merge_waiting_of(item.key)
            its, target = core.parts_of_queue(queue)
            if branch == name and into in ("", target):
                waiting.append((its != repository, item.created, item))
        if waiting:
            return decode_waiting(min(waiting, key=lambda each: each[:2])[2]).merge
        return (yield from self._last_of(name, into, repository))

    def _last_of(self, branch: str, into: str, repository: str) -> Op[str]:
        """The merge of this branch that ended last."""
        found: list[tuple[bool, str]] = []
        for item in (yield from every(keys.MERGES)):
            merge = readable(decode_merge, item)
            if merge is not None and merge.branch == branch and into in ("", merge.into):
                found.append((merge.repository == repository, keys.merge_of(item.key)))
        return max(found)[1] if found else ""  # ids grow with time

    def wait(self, id_: str, seconds: float) -> Op[Merge | None]:
        """Wait until a merge has ended; returns it as it is by then."""
        clock, key = self.runner.clock, keys.merge(id_)
        ends = clock.monotonic() + seconds
        snapshot: Snapshot = yield Read(key)
        watch = yield OpenWatch(key, snapshot.revision)
        try:
            while True:
                merge = decode_merge(snapshot[key])
                left = ends - clock.monotonic()
                if merge is None or merge.state != "waiting" or left <= 0:
                    return merge
                yield NextChanges(watch, min(left, self.runner.capabilities.allow(60.0)))
                snapshot = yield Read(key)
        finally:
            watch.close()

    # The server.

    def open_target(self, actor: Actor, name: str, server: MergeTarget) -> Op[MergeTarget]:
        """Begin to serve a target."""
        return self._on_target(
            actor, name, lambda it: rules.open_target(name, it, server, actor.agent)
        )

    def adopt(self, actor: Actor, found: QueuedMerge, repository: str) -> Op[bool]:
        """Move a branch from a queue of earlier versions to that of its repository."""

        def deciding() -> DecideOp[bool]:
            merge = decode_merge((yield (keys.merge(found.id),)).items[keys.merge(found.id)])
            if merge != found.merge:
                return Decision(outcome=False)
            return rules.adopt(found, repository)

        return (yield from self.runner.change(deciding, actor)).outcome

    def begin(self, actor: Actor, name: str, attempt: MergeAttempt) -> Op[MergeTarget]:
        """Try a batch."""
        return self._on_target(actor, name, lambda it: rules.begin(name, it, attempt))

    def hold(self, actor: Actor, name: str, reason: str, *, moved: bool) -> Op[bool]:
        """Say why nothing can be merged now."""
        now = self.runner.clock.wall()
        holding = partial(rules.hold, name, reason=reason, agent=actor.agent, now=now, moved=moved)
        return self._on_target(actor, name, lambda it: holding(target=it))

    def land(
        self,
        actor: Actor,
        name: str,
        attempt: MergeAttempt,
        batch: Sequence[QueuedMerge],
        compared: ReservationComparison,
    ) -> Op[rules.LandResult]:
        """Say that the ref is about to move, unless its files were reserved since a comparison."""
        own, mark = keys.merge_target(name), keys.reserved_mark(core.parts_of_queue(name)[0])

        def deciding() -> DecideOp[rules.LandResult]:
            items = (yield (own, mark, *[keys.merge(each.id) for each in batch])).items
            stored = {each.id: decode_merge(items[keys.merge(each.id)]) for each in batch}
            known, reserved = revision_of(items[mark]) == compared.revision, None
            if not known and compared.files is not None:
                known, reserved = True, (yield from compared.files.conflict(compared.revision))
            target = decode_target(items[own])
            land = partial(rules.land, name, target, attempt, batch, stored)
            return land(compared=known, reserved=reserved)

        return (yield from self.runner.change(deciding, actor)).outcome

    def conclude(self, actor: Actor, name: str, merges: Sequence[QueuedMerge], tip: str) -> Op[int]:
        """End merges that the target contains; a few commits for many."""
        done = 0
        for start in range(0, len(merges), core.MOST_BATCH // 2):
            some = merges[start : start + core.MOST_BATCH // 2]
            notices = [self.runner.new_id("msg") for _ in some]
            deciding = partial(self._concluding, name, some, tip, notices)
            done += (yield from self.runner.change(deciding, actor)).outcome
        return done

    def _concluding(
        self, name: str, merges: Sequence[QueuedMerge], tip: str, notices: Sequence[str]
    ) -> DecideOp[int]:
        own, now = keys.merge_target(name), self.runner.clock.wall()
        items = (yield (own, *[keys.merge(each.id) for each in merges])).items
        stored = [(each.id, decode_merge(items[keys.merge(each.id)])) for each in merges]
        found = [QueuedMerge(id=id_, merge=merge) for id_, merge in stored if merge is not None]
        return rules.conclude(name, decode_target(items[own]), found, tip, now=now, notices=notices)

    def bounce(self, actor: Actor, name: str, found: QueuedMerge, why: Bounce) -> Op[bool]:
        """Take a branch out of the queue that cannot be merged."""
        own, notice = keys.merge_target(name), self.runner.new_id("msg")

        def deciding() -> DecideOp[bool]:
            items = (yield (own, keys.merge(found.id))).items
            merge, now = decode_merge(items[keys.merge(found.id)]), self.runner.clock.wall()
            if merge is None or merge.commit != found.merge.commit:
                return Decision(outcome=False)
            stored = QueuedMerge(id=found.id, merge=merge)
            target = decode_target(items[own])
            return rules.bounce(name, target, stored, why, now=now, notice=notice)

        return (yield from self.runner.change(deciding, actor)).outcome

    def _on_target(
        self, actor: Actor, name: str, decide: Callable[[MergeTarget], Decision[T]]
    ) -> Op[T]:
        own = keys.merge_target(name)

        def deciding() -> DecideOp[T]:
            return decide(decode_target((yield (own,)).items[own]))

        return (yield from self.runner.change(deciding, actor)).outcome
