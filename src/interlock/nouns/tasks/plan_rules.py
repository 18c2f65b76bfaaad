"""How a plan gets into a store: with one commit, or hidden until the last of many.

A plan that fits into one commit is published with one.  A larger one is a *batch*: an item like a
task, with an id that no task can have (``+imp_...``).  Each task of the plan is written as blocked,
hanging on the batch alone, in commits of bounded size.  The last commit completes the batch.  With
it all tasks become visible; like other dependents of a complete need, they move on to their real
needs, or into the queue.

    (absent) ──first commit──> blocked ──all are there──> complete
                                  │
                                  └──another task has one of the ids──> failed ──> (absent)

While the batch is not complete, its tasks are *hidden*: no agent can claim, cancel or need them,
and no other agent can publish under their ids.  A batch that cannot be finished is deleted: marked
as failed, emptied in bounded commits, and removed.  A commit that adds to a batch checks it, so
nothing can be added once it is marked.  A batch may have been deleted and begun again, even by the
same plan: the moment of its start distinguishes the two.

The importing client renews a liveness key.  A batch without one was left behind by a client that
died.  The same plan, repeated, continues it; another plan that wants one of its ids deletes it.

A small plan also leaves a complete batch behind, by which a repeated import is recognized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from interlock.core import codec, keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.errors import TooLarge
from interlock.nouns.tasks import plan, progress_rules
from interlock.nouns.tasks.plan import Plan, PlanTask
from interlock.nouns.tasks.task import Spec, State, TaskStatus
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import Checked, Imported, PlanExists

TTL = 60.0
"""The ttl of the liveness key, after which other clients may delete a batch."""
VERB = "task.import"
_OPERATIONS = 10
"""The most operations that publishing one task takes."""
_DELETE_OPERATIONS = 4
"""The most operations that deleting one hidden task takes, without its labels."""
_ENVELOPE = 512
"""Bytes of a task in addition to its data and its names."""
LABEL_TEXT = 80
"""Bytes of a label in an entry of the record, in addition to the names in its key."""


class CommitLimits(Struct, frozen=True, kw_only=True, gc=False):
    """The limits of one commit: operations, bytes of its entry, and bytes that it writes."""

    operations: int
    text: int
    size: int


class StaleBatch(Struct, frozen=True, gc=False):
    """A batch that has to be deleted before the plan can be published."""

    batch: str


class BatchLabel(Struct, frozen=True, kw_only=True):
    """The data of a batch."""

    digest: str
    tasks: int


class BatchStart(Struct, frozen=True, kw_only=True, gc=False):
    """When an import began, and by which agent: its tasks are as old as that."""

    at: float
    by: str


class PlanCheck(Struct, frozen=True, kw_only=True):
    """A plan that could be published as it is, and the start of its batch, if it has one."""

    checked: Checked
    begun: BatchStart | None = None


def check_store(changes: TaskChanges, wanted: Plan) -> PlanCheck | PlanExists | StaleBatch:
    """Check all that publishing a plan depends on, before anything is written."""
    batch = wanted.batch
    progress_rules.read_needs(changes, wanted.outside, (batch, *wanted.places))
    status, label = changes.status(batch), None
    if status is not None:
        label = changes.facts.spec(batch)
        if (refused := _other(wanted, status, label)) is not None:
            return refused
    for id_ in wanted.places:
        if (refused := in_use(changes, wanted, id_)) is not None:
            return refused
    _check_outside_needs(changes, wanted)
    begun = None if label is None else BatchStart(at=label.at, by=label.by)
    return PlanCheck(checked=_counted(changes, wanted, begun), begun=begun)


def _check_outside_needs(changes: TaskChanges, wanted: Plan) -> None:
    """Check that the needs outside of the plan exist."""
    progress_rules.read_needs(changes, wanted.outside)
    changes.facts.need_all(changes.exists, wanted.outside)
    if missing := [need for need in wanted.outside if not changes.exists(need)]:
        raise plan.unknown(wanted, missing)


def _other(wanted: Plan, status: TaskStatus, label: Spec) -> PlanExists | StaleBatch | None:
    """Why an existing batch of this id prevents publishing; None if it does not."""
    if digest_of(label) != wanted.digest:
        why = (
            f"another plan was imported under the id {foreign(wanted.id)}; to change that into this"
            " one use"
            " --update, to see what would change --dry-run; else give another --id"
        )
        return PlanExists(plan=wanted.id, reason=why)
    if status.state == "complete":
        why = f"this plan was imported before, by {foreign(label.by)}; its tasks stay as they are"
        return PlanExists(plan=wanted.id, reason=why)
    return StaleBatch(wanted.batch) if status.state == "failed" else None


def in_use(changes: TaskChanges, wanted: Plan, id_: str) -> PlanExists | StaleBatch | None:
    """Why an existing task of this id prevents publishing; None if it does not."""
    status = changes.status(id_)
    if status is None or status.on == wanted.batch:
        return None
    if not changes.is_hidden(status):
        why = (
            f"there is a task {foreign(id_)} already; give yours another id, take it out of the"
            " plan, or"
            " change that task with --update"
        )
        return PlanExists(plan=wanted.id, task=id_, state=status.state, reason=why)
    other = changes.status(status.on)
    if other is None or other.state == "failed" or not changes.facts.has(keys.live(status.on)):
        return StaleBatch(status.on)
    why = f"task {foreign(id_)} belongs to an import that is under way; retry when that has ended"
    return PlanExists(plan=wanted.id, task=id_, state="blocked", reason=why)


def _counted(changes: TaskChanges, wanted: Plan, begun: BatchStart | None) -> Checked:
    blocked = later = guarded = 0
    at = changes.now if begun is None else begun.at
    for draft in wanted.drafts:
        if any(need in wanted.places or not _met(changes, need) for need in draft.needs):
            blocked += 1
        elif draft.not_before is not None:
            moment = wanted.spec(draft, at, "").not_before
            soon = moment is None or moment <= changes.now
            later += not soon
            guarded += soon and bool(draft.guard)
        else:
            guarded += bool(draft.guard)
    tasks = len(wanted.drafts)
    return Checked(
        plan=wanted.id,
        tasks=tasks,
        ready=tasks - blocked - later - guarded,
        blocked=blocked,
        later=later,
        guarded=guarded,
    )


def _met(changes: TaskChanges, need: str) -> bool:
    status = changes.status(need)
    return status is not None and status.state == "complete"


def publish_whole(
    changes: TaskChanges, wanted: Plan, begun: BatchStart
) -> Decision[Imported | PlanExists | StaleBatch | None]:
    """Publish a plan with one commit; None if it was begun as a batch."""
    found = check_store(changes, wanted)
    if not isinstance(found, PlanCheck):
        return Decision(outcome=found)
    if found.begun is not None:
        return Decision(outcome=None)
    specs = {draft.id: wanted.spec(draft, begun.at, begun.by) for draft in wanted.drafts}
    progress_rules.read_requirement_sets(changes, specs.values())
    write_label(changes, wanted, begun, "complete")
    for id_, spec in specs.items():
        progress_rules.create(changes, id_, spec)
    imported = Imported(**asdict(found.checked))
    return changes.decision(imported, VERB, progress_rules.record_name(wanted.batch))


def add_portion(
    changes: TaskChanges,
    wanted: Plan,
    drafts: Sequence[PlanTask],
    begun: BatchStart,
    *,
    first: bool,
    alive: bool,
) -> Decision[PlanExists | StaleBatch | None]:
    """Write some tasks of a plan, hidden; existing ones stay as they are.

    The ``first`` of these commits makes the batch.  ``alive`` says to renew its liveness key.
    """
    status = changes.status(wanted.batch)
    if not _is_open(status, begun) and (status is not None or not first):
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
        _check_outside_needs(changes, wanted)
        write_label(changes, wanted, begun, "blocked")
    if alive or status is None:
        tag = {"for": progress_rules.record_name(wanted.batch)}
        changes.put(keys.live(wanted.batch), tag, TTL)
    for id_, spec in specs.items():
        progress_rules.create(changes, id_, spec, wanted.batch)
    return changes.decision(None, VERB, progress_rules.record_name(wanted.batch))


def complete_batch(
    changes: TaskChanges, wanted: Plan, begun: BatchStart, hangers: Sequence[str], *, more: bool
) -> Decision[StaleBatch | bool]:
    """Complete the batch, which makes all its tasks visible; whether some are still to unblock."""
    status = changes.status(wanted.batch)
    if status is not None and status.state == "complete":
        return Decision(outcome=True)
    if not _is_open(status, begun):
        return Decision(outcome=StaleBatch(wanted.batch))
    changes.set_status(wanted.batch, TaskStatus(state="complete", since=changes.now))
    changes.delete(keys.live(wanted.batch))
    _, rest = progress_rules.unblock(changes, wanted.batch, hangers)
    if rest or more:
        changes.put(keys.todo(wanted.batch), {})
    return changes.decision(bool(rest or more), VERB, progress_rules.record_name(wanted.batch))


def mark_failed(changes: TaskChanges, batch: str, own: str = "") -> Decision[bool]:
    """Mark a batch for deletion: one that was left behind, or that of our ``own`` plan.

    Returns whether it is marked.
    """
    status = changes.status(batch)
    if status is None or status.state != "blocked":
        return Decision(outcome=status is not None and status.state == "failed")
    live = keys.live(batch)
    if not own or digest_of(changes.facts.spec(batch)) != own:
        if changes.facts.has(live):
            return Decision(outcome=False)
        changes.rely(live)
    changes.delete(live)
    changes.set_status(batch, TaskStatus(state="failed", since=changes.now))
    return changes.decision(True, VERB, progress_rules.record_name(batch))


def delete_portion(
    changes: TaskChanges, batch: str, hangers: Sequence[str], *, more: bool
) -> Decision[bool]:
    """Delete some tasks of a marked batch, and with the last of them the batch itself."""
    status = changes.status(batch)
    if status is None or status.state != "failed":
        return Decision(outcome=False)
    changes.rely(keys.status(batch))
    changes.facts.need_statuses(hangers)
    hidden = {id_: None for id_ in hangers if (each := changes.status(id_)) and each.on == batch}
    changes.facts.need_all(changes.facts.labels, hidden)
    for number, id_ in enumerate(hangers):
        labels = changes.facts.labels(id_) if id_ in hidden else ()
        room = changes.facts.max_operations - changes.size
        if number and len(labels) + 2 * _DELETE_OPERATIONS > room:
            more = True
            break
        changes.delete(keys.hangs(batch, id_))
        if id_ in hidden:
            changes.rely(keys.status(id_))
            changes.list_labels(id_, (), labels)
            changes.delete(keys.data(id_), keys.status(id_))
    if not more:
        changes.delete(keys.data(batch), keys.status(batch))
    return changes.decision(more, VERB, progress_rules.record_name(batch))


def check_sizes(wanted: Plan, most: int) -> None:
    """Check that each task fits into an item of the store, before any is written."""
    for draft in wanted.drafts:
        if (size := weight(draft)) > most:
            raise TooLarge(
                f"task {draft.id!r} has about {size} bytes with all its needs; this store takes"
                f" {most}: put a task in between that stands for many needs; nothing was published"
            )


def weight(draft: PlanTask) -> int:
    """An upper estimate of the bytes of a task."""
    names = (*draft.needs, *draft.requires, *draft.labels, *draft.guard, *draft.evidence)
    said = 4 * (len(draft.title) + len(draft.text))
    return _ENVELOPE + len(bytes(draft.data)) + said + sum(map(len, names)) + 3 * len(names)


def fits(wanted: Plan, limits: CommitLimits) -> bool:
    """Whether a plan can be published with one commit."""
    return len(next(portions(wanted, limits))) == len(wanted.drafts)


def portions(wanted: Plan, limits: CommitLimits) -> Iterator[Sequence[PlanTask]]:
    """The tasks of a plan in portions, each for one commit."""
    first = operations = text = size = 0
    for number, draft in enumerate(wanted.drafts):
        more = progress_rules.ENTRY_TEXT + progress_rules.ENTRY_NAMES * len(draft.id)
        more += sum(LABEL_TEXT + 3 * (len(label) + len(draft.id)) for label in draft.labels)
        heavy = more + weight(draft)
        needed = _OPERATIONS + len(draft.labels)
        operations, text, size = operations + needed, text + more, size + heavy
        over = operations > limits.operations or text > limits.text or size > limits.size
        if over and number > first:
            yield wanted.drafts[first:number]
            first, operations, text, size = number, needed, more, heavy
    yield wanted.drafts[first:]


def deletes_per_commit(room: int) -> int:
    """How many tasks one commit may delete."""
    return max(1, room // (_DELETE_OPERATIONS + 1))


def digest_of(label: Spec) -> str:
    """The digest of the plan of a batch."""
    return msgspec.json.decode(label.data, type=BatchLabel).digest


def write_label(changes: TaskChanges, wanted: Plan, begun: BatchStart, state: State) -> None:
    """Write the batch of a plan."""
    label = Raw(codec.encode(BatchLabel(digest=wanted.digest, tasks=len(wanted.drafts))))
    changes.put(keys.data(wanted.batch), Spec(at=begun.at, by=begun.by, data=label))
    waits = state == "blocked"
    changes.set_status(wanted.batch, TaskStatus(state=state, since=begun.at, awaited=waits))


def _is_open(status: TaskStatus | None, begun: BatchStart) -> bool:
    """Whether this is the batch that was begun then, and it is not marked."""
    return status is not None and (status.state, status.since) == ("blocked", begun.at)
