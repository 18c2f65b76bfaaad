"""How a plan gets into a store: with one commit, or hidden until the last of many.

What fits into one commit is published with one.  Anything larger is a *batch*: an item that looks
like a task but has an id that nobody can mean (``+imp_...``).  Every task of the plan is written
as blocked, hanging on the batch alone, in commits of bounded size.  The last commit completes the
batch.  In that moment all of them are there for everybody; they are moved on to their real needs,
or into the queue, as tasks are whose need was completed.

    (absent) ──first commit──> blocked ──all are there──> complete
                                  │
                                  └──somebody else has one of the ids──> failed ──> (absent)

While the batch is not complete, its tasks are *hidden*: nobody can claim, cancel or need them, and
nobody else can publish under their ids.  A batch that cannot be finished is taken back: marked as
failed, emptied in bounded commits, and forgotten.  Whoever adds to a batch checks it in the same
commit, so nothing can be added any more once it is marked.  It may have been taken back and begun
again meanwhile, even by the same plan: the moment at which it was begun tells one from the other.

Whoever publishes keeps a liveness key.  A batch without one was left behind by somebody who died.
The same plan, repeated, goes on with it; another plan that wants one of its ids takes it back.

A small plan leaves a complete batch behind, too: that is how a repeated one is recognized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from interlock.core import codec, keys, outcomes
from interlock.core.decision import Decision, Refusal, Success
from interlock.errors import TooLarge
from interlock.nouns.tasks import plan, progress_rules
from interlock.nouns.tasks.plan import Plan, PlanTask
from interlock.nouns.tasks.task import Spec, State, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges

TTL = 60.0
"""Seconds without a sign of life after which others may take a batch back."""
VERB = "task.import"
_OPERATIONS = 10
"""That publishing one task may take, at most."""
_TAKEN_BACK = 4
_ENVELOPE = 512
"""Bytes of a task besides its data and its names."""


class Imported(Success, frozen=True, kw_only=True, tag="imported"):
    """The whole plan is there for everybody; ``later`` are tasks that must not begin yet."""

    plan: str
    tasks: int
    ready: int
    blocked: int
    later: int = 0


class Checked(Success, frozen=True, kw_only=True, tag="checked"):
    """The plan could be published as it is; nothing was written."""

    plan: str
    tasks: int
    ready: int
    blocked: int
    later: int = 0


Good = TypeVar("Good", Imported, Checked)


class PlanExists(outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """This plan was published before, or one of its ids is in use; nothing was written."""

    plan: str
    reason: str
    task: str = ""
    state: State | str = ""


class CommitLimits(Struct, frozen=True, kw_only=True, gc=False):
    """What one commit may take: operations, bytes of its entry, and bytes of all that it writes."""

    operations: int
    text: int
    size: int


class StaleBatch(Struct, frozen=True, gc=False):
    """A batch that has to be taken back before anything else."""

    batch: str


class BatchLabel(Struct, frozen=True, kw_only=True):
    """What a batch says about its plan."""

    digest: str
    tasks: int


class BatchStart(Struct, frozen=True, kw_only=True, gc=False):
    """When publishing a plan began, and by whom: its tasks are as old as that."""

    at: float
    by: str


class PlanCheck(Struct, frozen=True, kw_only=True):
    """How a plan and a store fit together; ``refused`` if they do not."""

    refused: PlanExists | StaleBatch | None = None
    ready: int = 0
    blocked: int = 0
    later: int = 0
    begun: BatchStart | None = None
    """By whom, if somebody began it as a batch."""


def check_store(changes: TaskChanges, wanted: Plan) -> PlanCheck:
    """Look at everything that publishing a plan depends on, before anything is written."""
    batch = wanted.batch
    progress_rules.read_needs(changes, wanted.outside, (batch, *wanted.places))
    status, label = changes.status(batch), None
    if status is not None:
        label = changes.facts.spec(batch)
        if (refused := _other(wanted, status, label)) is not None:
            return PlanCheck(refused=refused)
    for id_ in wanted.places:
        if (refused := in_use(changes, wanted, id_)) is not None:
            return PlanCheck(refused=refused)
    _all_there(changes, wanted)
    return _counted(changes, wanted, label)


def _all_there(changes: TaskChanges, wanted: Plan) -> None:
    """See that what a plan needs besides its own tasks exists."""
    progress_rules.read_needs(changes, wanted.outside)
    changes.facts.need_all(lambda need: progress_rules.exists(changes, need), wanted.outside)
    if missing := [need for need in wanted.outside if not progress_rules.exists(changes, need)]:
        raise plan.unknown(wanted, missing)


def _other(wanted: Plan, status: TaskStatus, label: Spec) -> PlanExists | StaleBatch | None:
    """What a batch of this id says against publishing a plan."""
    if _digest(label) != wanted.digest:
        why = f"another plan was imported under the id {wanted.id}; give another one with --id"
        return PlanExists(plan=wanted.id, reason=why)
    if status.state == "complete":
        why = f"this plan was imported before, by {label.by}; its tasks stay as they are"
        return PlanExists(plan=wanted.id, reason=why)
    return StaleBatch(wanted.batch) if status.state == "failed" else None


def in_use(changes: TaskChanges, wanted: Plan, id_: str) -> PlanExists | StaleBatch | None:
    """What the id of a task says against publishing a plan."""
    status = changes.status(id_)
    if status is None or status.on == wanted.batch:
        return None
    if not progress_rules.is_hidden(changes, status):
        why = f"there is a task {id_} already; give yours another id, or take it out of the plan"
        return PlanExists(plan=wanted.id, task=id_, state=status.state, reason=why)
    other = changes.status(status.on)
    if other is None or other.state == "failed" or not changes.facts.has(keys.live(status.on)):
        return StaleBatch(status.on)
    why = f"task {id_} belongs to an import that is under way; retry when that has ended"
    return PlanExists(plan=wanted.id, task=id_, state="blocked", reason=why)


def _counted(changes: TaskChanges, wanted: Plan, label: Spec | None) -> PlanCheck:
    blocked = later = 0
    at = changes.now if label is None else label.at
    for draft in wanted.drafts:
        if any(need in wanted.places or not _met(changes, need) for need in draft.needs):
            blocked += 1
        elif draft.not_before is not None:
            moment = wanted.spec(draft, at, "").not_before
            later += moment is not None and moment > changes.now
    return PlanCheck(
        ready=len(wanted.drafts) - blocked - later,
        blocked=blocked,
        later=later,
        begun=None if label is None else BatchStart(at=label.at, by=label.by),
    )


def _met(changes: TaskChanges, need: str) -> bool:
    status = changes.status(need)
    return status is not None and status.state == "complete"


def answer(kind: type[Good], wanted: Plan, found: PlanCheck) -> Good:
    """The good answer: it is published, or could be."""
    return kind(
        plan=wanted.id,
        tasks=len(wanted.drafts),
        ready=found.ready,
        blocked=found.blocked,
        later=found.later,
    )


def publish_whole(
    changes: TaskChanges, wanted: Plan, begun: BatchStart
) -> Decision[Imported | PlanExists | StaleBatch | None]:
    """Publish a plan with one commit; None if somebody began it as a batch."""
    found = check_store(changes, wanted)
    if found.refused is not None:
        return Decision(outcome=found.refused)
    if found.begun is not None:
        return Decision(outcome=None)
    specs = {draft.id: wanted.spec(draft, begun.at, begun.by) for draft in wanted.drafts}
    progress_rules.read_requirement_sets(changes, specs.values())
    _label(changes, wanted, begun, "complete")
    for id_, spec in specs.items():
        progress_rules.create(changes, id_, spec)
    return changes.decision(
        answer(Imported, wanted, found), VERB, progress_rules.record_name(wanted.batch)
    )


def add_portion(
    changes: TaskChanges,
    wanted: Plan,
    drafts: Sequence[PlanTask],
    begun: BatchStart,
    *,
    first: bool,
    alive: bool,
) -> Decision[PlanExists | StaleBatch | None]:
    """Write some tasks of a plan, hidden; those that are there already stay as they are.

    The ``first`` of these commits makes the batch.  ``alive`` says that a sign of life is due.
    """
    status = changes.status(wanted.batch)
    if not _is(status, begun) and (status is not None or not first):
        return Decision(outcome=StaleBatch(wanted.batch))
    ids = [draft.id for draft in drafts]
    changes.facts.need_statuses(ids)
    for id_ in ids:
        if (refused := in_use(changes, wanted, id_)) is not None:
            return Decision(outcome=refused)
    specs = {
        each.id: wanted.spec(each, begun.at, begun.by)
        for each in drafts
        if changes.status(each.id) is None
    }
    if status is not None and not specs:
        return Decision(outcome=None)
    if status is None:
        _all_there(changes, wanted)
        _label(changes, wanted, begun, "blocked")
    if alive or status is None:
        _beat(changes, wanted.batch)
    for id_, spec in specs.items():
        progress_rules.create(changes, id_, spec, wanted.batch)
    return changes.decision(None, VERB, progress_rules.record_name(wanted.batch))


def complete_batch(
    changes: TaskChanges, wanted: Plan, begun: BatchStart, hangers: Sequence[str], *, more: bool
) -> Decision[StaleBatch | bool]:
    """All of them are there: let everybody see them; whether some are left to be moved on."""
    status = changes.status(wanted.batch)
    if status is not None and status.state == "complete":
        return Decision(outcome=True)
    if not _is(status, begun):
        return Decision(outcome=StaleBatch(wanted.batch))
    changes.set_status(wanted.batch, TaskStatus(state="complete", since=changes.now))
    changes.delete(keys.live(wanted.batch))
    _, rest = progress_rules.unblock(changes, wanted.batch, hangers)
    if rest or more:
        changes.put(keys.todo(wanted.batch), {})
    return changes.decision(bool(rest or more), VERB, progress_rules.record_name(wanted.batch))


def mark_failed(changes: TaskChanges, batch: str, own: str = "") -> Decision[bool]:
    """Mark a batch that is to be taken back: one that was left behind, or that of our ``own`` plan.

    The answer is whether it is marked.
    """
    status = changes.status(batch)
    if status is None or status.state != "blocked":
        return Decision(outcome=status is not None and status.state == "failed")
    live = keys.live(batch)
    if not own or _digest(changes.facts.spec(batch)) != own:
        if changes.facts.has(live):
            return Decision(outcome=False)
        changes.rely(live)
    changes.delete(live)
    changes.set_status(batch, TaskStatus(state="failed", since=changes.now))
    return changes.decision(True, VERB, progress_rules.record_name(batch))


def delete_portion(
    changes: TaskChanges, batch: str, hangers: Sequence[str], *, more: bool
) -> Decision[bool]:
    """Take away some of the tasks of a batch that is marked, and at last the batch itself."""
    status = changes.status(batch)
    if status is None or status.state != "failed":
        return Decision(outcome=False)
    changes.rely(keys.status(batch))
    changes.facts.need_statuses(hangers)
    for id_ in hangers:
        changes.delete(keys.hangs(batch, id_))
        if (held := changes.status(id_)) is not None and held.on == batch:
            changes.rely(keys.status(id_))
            changes.delete(keys.data(id_), keys.status(id_))
    if not more:
        changes.delete(keys.data(batch), keys.status(batch))
    return changes.decision(more, VERB, progress_rules.record_name(batch))


def check_sizes(wanted: Plan, most: int) -> None:
    """See that each task fits into an item of the store, before any is written."""
    for draft in wanted.drafts:
        if (size := _weight(draft)) > most:
            raise TooLarge(
                f"task {draft.id!r} has about {size} bytes with all its needs; this store takes"
                f" {most}: put a task in between that stands for many needs; nothing was published"
            )


def _weight(draft: PlanTask) -> int:
    """The bytes that a task takes, or a few more."""
    names = (*draft.needs, *draft.requires, *draft.labels)
    return _ENVELOPE + len(bytes(draft.data)) + sum(map(len, names)) + 3 * len(names)


def fits(wanted: Plan, room: CommitLimits) -> bool:
    """Whether a plan can be published with one commit."""
    return len(next(portions(wanted, room))) == len(wanted.drafts)


def portions(wanted: Plan, room: CommitLimits) -> Iterator[Sequence[PlanTask]]:
    """A plan in parts, each for one commit."""
    first = operations = text = size = 0
    for number, draft in enumerate(wanted.drafts):
        more = progress_rules.ENTRY_TEXT + progress_rules.ENTRY_NAMES * len(draft.id)
        heavy = more + _weight(draft)
        operations, text, size = operations + _OPERATIONS, text + more, size + heavy
        over = operations > room.operations or text > room.text or size > room.size
        if over and number > first:
            yield wanted.drafts[first:number]
            first, operations, text, size = number, _OPERATIONS, more, heavy
    yield wanted.drafts[first:]


def deletes_per_commit(room: int) -> int:
    """How many tasks one commit may take back."""
    return max(1, room // (_TAKEN_BACK + 1))


def _digest(label: Spec) -> str:
    return msgspec.json.decode(label.data, type=BatchLabel).digest


def _label(changes: TaskChanges, wanted: Plan, begun: BatchStart, state: State) -> None:
    label = Raw(codec.encode(BatchLabel(digest=wanted.digest, tasks=len(wanted.drafts))))
    changes.put(keys.data(wanted.batch), Spec(at=begun.at, by=begun.by, data=label))
    waits = state == "blocked"
    changes.set_status(wanted.batch, TaskStatus(state=state, since=begun.at, awaited=waits))


def _is(status: TaskStatus | None, begun: BatchStart) -> bool:
    """Whether this is the batch that was begun then, and nobody gave it up."""
    return status is not None and (status.state, status.since) == ("blocked", begun.at)


def _beat(changes: TaskChanges, batch: str) -> None:
    changes.put(keys.live(batch), {"for": progress_rules.record_name(batch)}, TTL)
