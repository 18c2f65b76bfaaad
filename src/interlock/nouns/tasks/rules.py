"""Decisions about one task: the acts of ``task.py``, one function each.

An act on a claim first finds out whose it is: the claimant has the claim, had one that ended
(``fenced``), or never had one (``not_owner``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.validate import quote
from interlock.errors import BadInput
from interlock.nouns.grants.pool import BreakNote
from interlock.nouns.tasks import progress_rules, task
from interlock.nouns.tasks.task import (
    Claimant,
    Claimed,
    ClaimRequest,
    Spec,
    State,
    TaskOwner,
    TaskResult,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import TaskChanges, TaskFacts

CLAIM_SIZE = 16
"""The most operations that a claim takes."""
END_SIZE = 12
"""The most operations that the end of a task takes which concerns no other."""


def publish(
    changes: TaskChanges, id_: str, spec: Spec
) -> Decision[task.Published | task.TaskExists]:
    """Publish a task; one that exists already stays as it is."""
    if (status := changes.facts.status(id_)) is not None:
        return Decision(outcome=task.TaskExists(task=id_, state=status.state))
    ended = progress_rules.read_needs(changes, spec.needs)
    unknown = next((need for need in spec.needs if not changes.exists(need)), None)
    if unknown is not None:
        raise BadInput(
            f"task {id_!r} needs {unknown!r}, which does not exist; publish that first,"
            " or both together: interlock task import FILE;"
            " leave out needs that were completed long ago"
        )
    status = progress_rules.create(changes, id_, spec)
    outcome = task.Published(task=id_, state=status.state, ended=ended)
    return changes.decision(outcome, "task.publish", f"task/{id_}")


def claim(
    changes: TaskChanges, request: ClaimRequest, spec: Spec | None, place: str = ""
) -> Decision[task.ClaimOutcome | str]:
    """Claim a pending task; ``stale`` if its worker is lost, ``expired`` if it is too late.

    Without a spec it is blind: the facts are a guess that the commit checks, and perhaps the key
    ``place`` of its entry in the ``ready`` index.
    """
    status, id_ = changes.facts.status(request.task), request.task
    if status is None:
        return Decision(
            outcome=task.NoTask(task=id_, state="unknown", reason=f"there is no task {id_}")
        )
    if changes.is_hidden(status):
        return Decision(outcome=task.TaskBlocked(task=id_, reason=task.HIDDEN_REASON))
    match status.state:
        case "pending":
            return _claim(changes, request, status, spec, place)
        case "running":
            return _taken(changes, id_)
        case "blocked":
            return Decision(outcome=_blocked(changes, id_, status))
        case _:
            over = task.NoTask(task=id_, state=status.state, reason=_over(id_, status))
            return Decision(outcome=over)


def reclaim(changes: TaskChanges, id_: str, chance: float, entry: str = "") -> Decision[str]:
    """End a claim whose liveness is gone, and count the attempt.

    ``entry`` is its key in the ``claims`` index; an entry without a claim is deleted.
    """
    status, held = changes.facts.status(id_), changes.facts.claim(id_)
    other = held is not None and entry not in ("", keys.claims(held.session, id_))
    if status is None or status.state != "running" or other:
        return _without_claim(changes, id_, entry)
    if held is not None:
        if changes.facts.alive(held):
            return Decision(outcome="alive")
        changes.end_claim(id_, held)
    agent, session = ("", "") if held is None else (held.agent, held.session)
    why = f"{agent or 'its worker'} was lost"
    after = progress_rules.count_failure(
        changes, id_, "reclaim", chance, reason=why, session=session
    )
    changes.task_event("reclaimed", agent)
    if after.state == "dead":
        changes.task_event("dead", agent)
    return changes.decision("reclaimed", "task.reclaim", f"task/{id_}")


def _without_claim(changes: TaskChanges, id_: str, entry: str) -> Decision[str]:
    if not entry or not changes.facts.has(entry):
        return Decision(outcome="gone")
    changes.rely(entry, keys.owner(id_))
    changes.delete(entry)
    return changes.decision("tidied", "task.tidy", f"task/{id_}")


def release(changes: TaskChanges, claimant: Claimant) -> Decision[task.ReleaseOutcome]:
    """Put a task back in the queue without counting an attempt."""
    found = _own_claim(changes, claimant, "task.release")
    if isinstance(found, Decision):
        return found
    id_, (_, held) = claimant.task, found
    changes.end_claim(id_, held)
    changes.move(id_, "release", "pending")
    changes.make_ready(id_, changes.facts.spec(id_))
    changes.task_event("released", held.agent)
    return changes.decision(task.TaskReleased(task=id_), "task.release", f"task/{id_}")


def take_back(changes: TaskChanges, claimant: Claimant) -> Decision[task.ReleaseOutcome | None]:
    """Release a claim that its caller never learned of, if it was committed."""
    held = changes.facts.claim(claimant.task)
    if held is None or held.id != claimant.claim:
        return Decision(outcome=None)
    return release(changes, claimant)


def complete(
    changes: TaskChanges,
    claimant: Claimant,
    result: Raw | None,
    hangers: Sequence[str],
    *,
    more: bool,
) -> Decision[task.CompleteOutcome]:
    """Complete a task and unblock its dependents, as far as they fit into this commit.

    ``hangers`` are dependents of it; ``more`` says that there may be others: they were too many,
    or one may have been published since they were listed.
    """
    id_ = claimant.task
    if _ended_by(changes, claimant, ("complete",)) is not None:
        return Decision(outcome=task.TaskCompleted(task=id_, already=True))
    found = _own_claim(changes, claimant, "task.complete")
    if isinstance(found, Decision):
        return found
    status, held = found
    _end_complete(changes, id_, status, held, result)
    begun, rest = progress_rules.unblock(changes, id_, hangers)
    if status.awaited and (rest or more):
        changes.put(keys.todo(id_), {})
    outcome = task.TaskCompleted(task=id_, unblocked=begun)
    return changes.decision(outcome, "task.complete", f"task/{id_}")


def _end_complete(
    changes: TaskChanges, id_: str, status: TaskStatus, held: TaskOwner, result: Raw | None
) -> None:
    """Make a task complete, for the worker that has it."""
    changes.end_claim(id_, held)
    changes.move(
        id_,
        "complete",
        "complete",
        awaited=False,
        gated=False,
        since=changes.now,
        by=held.agent,
        token=changes.facts.tokens[id_],
        session=held.session,
    )
    _keep_result(changes, id_, status, held, result=result)
    if status.deadline is not None:  # a task that failed needs it for a retry
        changes.delete(keys.deadline(id_))
    changes.task_event("completed", held.agent, id_)


def complete_several(changes: TaskChanges, ends: Sequence[task.TaskEnd]) -> list[str]:
    """Complete those of these tasks whose end concerns no other task and no guard; returns them.

    The others are left as they are: each of them ends by a commit of its own (``complete``).
    """
    ended = []
    for end in ends:
        id_, facts = end.claimant.task, changes.facts
        if not ends_simply(facts, end):
            continue
        if changes.size + END_SIZE > facts.max_operations:
            break
        status, held = facts.status(id_), facts.claim(id_)
        assert status is not None  # noqa: S101 - it ends simply
        assert held is not None  # noqa: S101
        changes.rely(*held.live)
        _end_complete(changes, id_, status, held, end.result)
        ended.append(id_)
    return ended


def ends_simply(facts: TaskFacts, end: task.TaskEnd) -> bool:
    """Whether a completion is that of the worker, and concerns no other task and no guard."""
    id_ = end.claimant.task
    status, held = facts.status(id_), facts.claim(id_)
    if status is None or held is None or status.awaited or status.gated or status.evidence:
        return False
    return end.claimant.speaks_for(held, facts.tokens[id_]) and facts.alive(held)


def complete_and_claim(
    changes: TaskChanges, end: task.TaskEnd, request: ClaimRequest, spec: Spec | None
) -> Decision[task.TaskCompleted | None]:
    """Complete a task that ends simply, and claim one that is simply ready; else do nothing."""
    ended = complete_several(changes, (end,))
    claimed = claim_several(changes, ((request, spec, ""),))
    if not ended or not claimed:
        return Decision(outcome=None)
    outcome = task.TaskCompleted(task=ended[0], next=claimed[0])
    return changes.decision(outcome, "task.complete", f"task/{ended[0]}")


def fail(
    changes: TaskChanges,
    claimant: Claimant,
    reason: str,
    error: Raw | None,
    chance: float,
    *,
    retry: bool,
) -> Decision[task.FailOutcome]:
    """Fail an attempt: the task rests and is retried, or it has ended."""
    id_ = claimant.task
    ends: tuple[State, ...] = ("blocked", "pending", "failed", "dead")
    if (ended := _ended_by(changes, claimant, ends)) is not None:
        return Decision(outcome=_failed(changes, id_, ended, already=True))
    found = _own_claim(changes, claimant, "task.fail")
    if isinstance(found, Decision):
        return found
    status, held = found
    cause = {
        "reason": reason,
        "by": held.agent,
        "token": changes.facts.tokens[id_],
        "session": held.session,
    }
    changes.end_claim(id_, held)
    if retry:
        after = progress_rules.count_failure(changes, id_, "fail", chance, **cause)
    else:
        attempts, since = status.attempts + 1, changes.now
        after = changes.move(id_, "fail", "failed", attempts=attempts, since=since, **cause)
    _keep_result(changes, id_, status, held, error=error)
    changes.task_event("dead" if after.state == "dead" else "failed", held.agent)
    return changes.decision(_failed(changes, id_, after), "task.fail", f"task/{id_}")


def _keep_result(
    changes: TaskChanges,
    id_: str,
    status: TaskStatus,
    held: TaskOwner,
    *,
    result: Raw | None = None,
    error: Raw | None = None,
) -> None:
    """Write what came of an attempt; without that, delete what came of an earlier one."""
    if result is not None or error is not None:
        kept = TaskResult(
            by=held.agent,
            at=changes.now,
            token=changes.facts.tokens[id_],
            result=UNSET if result is None else result,
            error=UNSET if error is None else error,
        )
        changes.put(keys.result(id_), kept)
    elif status.attempts:
        changes.delete(keys.result(id_))


def beat(
    changes: TaskChanges, claimant: Claimant, session_ttl: float
) -> Decision[task.BeatOutcome]:
    """Renew the liveness of a claim; one that expired is not revived."""
    found = _own_claim(changes, claimant, "task.beat")
    if isinstance(found, Decision):
        return found
    _, held = found
    ttl = held.ttl or session_ttl
    outcome = task.TaskExtended(
        task=claimant.task,
        holder=held.agent,
        token=changes.facts.tokens[claimant.task],
        expires_in=ttl,
        grant=held.id,
    )
    renew = Write(held.live[0], liveness_value(held, claimant.task), ttl)
    return Decision(outcome=outcome, puts=(renew,), quiet=True)


def progress(
    changes: TaskChanges, claimant: Claimant, part: float, doing: str
) -> Decision[task.ProgressOutcome]:
    """Note how far the work on a claim is; the end of the claim deletes that."""
    found = _own_claim(changes, claimant, "task.progress")
    if isinstance(found, Decision):
        return found
    (status, held), id_ = found, claimant.task
    outcome = task.ProgressNoted(task=id_, progress=part, doing=doing)
    if (status.progress, status.doing) == (part, doing):
        return Decision(outcome=outcome)
    changes.set_status(id_, replace(status, progress=part, doing=doing))
    changes.task_event("progress", held.agent)
    decision = changes.decision(outcome, "task.progress", f"task/{id_}")
    said = {"progress": part} | ({"doing": doing} if doing else {})
    return replace(decision, events=tuple(replace(each, details=said) for each in decision.events))


def cancel(changes: TaskChanges, id_: str, agent: str, reason: str) -> Decision[task.CancelOutcome]:
    """End a task as failed; its worker finds its claim fenced at its next act."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    if status.state == "failed" and status.reason.startswith(_CANCELLED):
        return Decision(outcome=task.TaskCancelled(task=id_, already=True))
    if status.state not in OPEN:
        over = f"it is {status.state} already; nothing is left to cancel"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=over))
    _cancel(changes, id_, status, agent, reason)
    return changes.decision(task.TaskCancelled(task=id_), "task.cancel", f"task/{id_}")


def cancel_open(changes: TaskChanges, ids: Sequence[str], agent: str, reason: str) -> int:
    """Cancel those of these tasks that are not over; returns how many."""
    changes.facts.need_statuses(ids)
    found = {id_: status for id_ in ids if (status := changes.facts.status(id_)) is not None}
    left = {id_: status for id_, status in found.items() if status.state in OPEN}
    changes.facts.need_all(changes.facts.claim, left)
    waiting = [id_ for id_, status in left.items() if status.state == "pending" and not status.due]
    changes.facts.need_all(changes.facts.spec, waiting)
    for id_, status in left.items():
        _cancel(changes, id_, status, agent, reason)
    return len(left)


def _cancel(
    changes: TaskChanges, id_: str, status: task.TaskStatus, agent: str, reason: str
) -> None:
    held = changes.facts.claim(id_)
    if held is not None:
        changes.end_claim(id_, held)
    elif status.state == "pending" and not status.due:
        changes.delete(changes.facts.spec(id_).ready_key(id_))
    said = f"{_CANCELLED} {agent}" + (f": {reason}" if reason else "")
    changes.move(id_, "cancel", "failed", since=changes.now, by=agent, reason=said)
    changes.task_event("cancelled", agent, id_)


def requeue(
    changes: TaskChanges, id_: str, by: str, reason: str, token: int | None
) -> Decision[task.RequeueOutcome]:
    """End the claim of a worker for an operator, without counting an attempt."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    held = changes.facts.claim(id_)
    if status.state != "running" or held is None:
        why = f"it is {status.state}; only a running task can be requeued"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=why))
    own = changes.facts.tokens[id_]
    if token not in (None, own):
        fenced = task.TaskFenced(task=id_, state=status.state, holder=held.agent, token=own)
        return Decision(outcome=fenced)
    changes.end_claim(id_, held)
    changes.move(id_, "release", "pending")
    changes.make_ready(id_, changes.facts.spec(id_))
    note = BreakNote(
        grant=held.id,
        holder=held.agent,
        session=held.session,
        token=own,
        by=by,
        at=changes.now,
        reason=reason,
    )
    changes.put(keys.broken(f"task/{id_}", held.id), note)
    changes.task_event("requeued", held.agent)
    outcome = task.TaskRequeued(task=id_, holder=held.agent, token=own, reason=reason)
    return replace(changes.decision(outcome, "task.requeue", f"task/{id_}"), reason=reason)


def retry(changes: TaskChanges, id_: str, agent: str) -> Decision[task.RetryOutcome]:
    """Put a failed or dead task back in the queue, with all its attempts."""
    status = changes.facts.status(id_)
    if status is None or changes.is_hidden(status):
        return Decision(outcome=absent(id_, status))
    if status.state not in ("failed", "dead"):
        reason = f"it is {status.state}; only a failed or dead task can be sent back"
        if status.state == "dropped":
            reason = f"it was dropped; publish it again: interlock task add {quote(id_)} --again"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=reason))
    spec = changes.facts.spec(id_)
    at = progress_rules.first_unmet_need(changes, id_, spec.needs, 0)
    missed = status.deadline is not None and changes.is_deadline_over(id_, status.deadline)
    kept = {"attempts": 0, "deadline": None if missed else status.deadline}
    if at is None:
        changes.move(id_, "retry", "pending", **kept)
        changes.make_pending(id_, spec)
    else:
        on = spec.needs[at]
        changes.move(id_, "retry", "blocked", since=changes.now, on=on, place=at, **kept)
        changes.block_on(id_, on)
    changes.task_event("retried", agent)
    after = changes.status(id_)
    state: State = "pending" if after is None else after.state
    return changes.decision(task.Retried(task=id_, state=state), "task.retry", f"task/{id_}")


def liveness_value(claim: TaskOwner, id_: str) -> dict[str, str]:
    """The value of a liveness key, for an operator who reads the store."""
    return {"agent": claim.agent} | ({} if claim.ttl is None else {"for": f"task/{id_}"})


_CANCELLED = "cancelled by"
OPEN: tuple[task.State, ...] = ("blocked", "pending", "running")
"""The states of a task that is not over."""


def _claim(
    changes: TaskChanges, request: ClaimRequest, status: TaskStatus, spec: Spec | None, place: str
) -> Decision[task.ClaimOutcome | str]:
    id_ = request.task
    if not changes.is_due(status):
        return Decision(outcome=_resting(changes, id_, status))
    if spec is not None and changes.is_late(id_, status):
        progress_rules.expire_one(changes, id_)
        return changes.decision("expired", "task.expire", f"task/{id_}")
    outcome = _begin(changes, request, status, spec, place)
    return changes.decision(outcome, "task.claim", f"task/{id_}")


def _begin(
    changes: TaskChanges, request: ClaimRequest, status: TaskStatus, spec: Spec | None, place: str
) -> Claimed:
    """Take a pending task out of the queue, for a worker."""
    id_ = request.task
    outcome = _hold(changes, request, status, spec, blind=spec is None and not place)
    if spec is not None and not status.due:
        place = spec.ready_key(id_)
    for key in (*request.listed, *([place] if place else ())):
        changes.delete(key)
    changes.task_event("claimed", request.agent, id_)
    return outcome


def claim_several(
    changes: TaskChanges, wanted: Sequence[tuple[ClaimRequest, Spec | None, str]]
) -> list[Claimed]:
    """Claim tasks of the queue, best first: each with its spec, or blindly, and its entry.

    It stops at the first task that is not simply ready: what has a guard, a deadline or a rest, or
    is in the queue by mistake, is claimed by a commit of its own (``claim``).
    """
    claimed = []
    for request, spec, place in wanted:
        status = changes.facts.status(request.task)
        if status is None or status.state != "pending" or status.due or status.guards:
            break
        if status.deadline is not None or changes.size + CLAIM_SIZE > changes.facts.max_operations:
            break
        claimed.append(_begin(changes, request, status, spec, place))
    return claimed


def create_claimed(changes: TaskChanges, request: ClaimRequest, spec: Spec) -> Claimed:
    """Write a new task that a waiting worker has from the beginning; see ``create``."""
    status = progress_rules.create(changes, request.task, spec, queued=False)
    outcome = _hold(changes, request, status, spec)
    changes.task_event("claimed", request.agent, request.task)
    return outcome


def _hold(
    changes: TaskChanges,
    request: ClaimRequest,
    status: TaskStatus,
    spec: Spec | None,
    *,
    blind: bool = False,
) -> Claimed:
    """Make a worker the owner of a pending task."""
    id_ = request.task
    live = keys.live(request.session if request.ttl is None else request.claim)
    held = TaskOwner(
        id=request.claim,
        agent=request.agent,
        session=request.session,
        live=(live,),
        since=changes.now,
        ttl=request.ttl,
        attempt=status.attempts + 1,
        caller=request.caller,
        blind=blind,
    )
    changes.move(id_, "claim", "running", since=changes.now)
    changes.rely(keys.owner(id_))
    changes.put(keys.owner(id_), held)
    changes.put(keys.claims(request.session, id_), held.live)
    if request.ttl is not None:
        changes.put(live, liveness_value(held, id_), request.ttl)
    return Claimed(
        task=id_,
        holder=request.agent,
        expires_in=request.ttl or request.session_ttl,
        data=None if spec is None else spec.data,
        attempt=held.attempt,
        priority=task.PRIORITY if spec is None else spec.priority,
        grant=request.claim,
        requires=() if spec is None else spec.requires,
        title="" if spec is None else spec.title,
        text="" if spec is None else spec.text,
        labels=() if spec is None else spec.labels,
    )


def _taken(changes: TaskChanges, id_: str) -> Decision[task.ClaimOutcome | str]:
    held = changes.facts.claim(id_)
    if held is None or not changes.facts.alive(held):
        return Decision(outcome="stale")
    return Decision(outcome=task.Taken(task=id_, holder=held.agent, since=held.since))


def _blocked(changes: TaskChanges, id_: str, status: TaskStatus) -> task.TaskBlocked:
    if status.guard:
        left = max(0.0, keys.due_at(status.due) - changes.now) if status.due else None
        return task.TaskBlocked(
            task=id_,
            guard=status.guard,
            reason=f"guard {status.guard} does not pass",
            retry_in=None if left is None else round(left, 3),
        )
    return task.TaskBlocked(
        task=id_, on=status.on, reason=f"it needs {status.on}, which is not complete"
    )


def _resting(changes: TaskChanges, id_: str, status: TaskStatus) -> task.TaskBlocked:
    left = max(0.0, keys.due_at(status.due) - changes.now)
    word = "rests after a failed attempt" if status.attempts else "must not begin yet"
    return task.TaskBlocked(task=id_, reason=f"it {word}", retry_in=round(left, 3))


def _over(id_: str, status: TaskStatus) -> str:
    if status.state == "complete":
        return f"{status.by} completed it"
    back = f"to send it back: interlock task retry {quote(id_)}"
    if status.state == "dropped":
        back = f"to publish it again: interlock task add {quote(id_)} --again"
    return f"it is {status.state} ({status.reason}); {back}"


def _ended_by(
    changes: TaskChanges, claimant: Claimant, states: tuple[State, ...]
) -> TaskStatus | None:
    """The status of a task that the claimant has brought into one of these states before."""
    status = changes.facts.status(claimant.task)
    if status is None or status.state not in states or not claimant.ended(status):
        return None
    return status


def _own_claim(
    changes: TaskChanges, claimant: Claimant, verb: str
) -> tuple[TaskStatus, TaskOwner] | Decision[task.TaskFenced | task.TaskNotOwner]:
    """The status and the live claim of the claimant, which the commit checks; else a refusal."""
    facts, id_ = changes.facts, claimant.task
    status = facts.status(id_)
    if status is None:
        return Decision(outcome=task.TaskNotOwner(task=id_, state="unknown"))
    held = facts.claim(id_)
    ours = held is not None and claimant.speaks_for(held, facts.tokens[id_])
    if held is not None and ours:
        changes.rely(*held.live)
        if facts.alive(held):
            return status, held
    refusal: task.TaskFenced | task.TaskNotOwner
    if not ours and not _was_ours(changes, claimant, status, held):
        holder = "" if held is None else held.agent
        refusal = task.TaskNotOwner(task=id_, state=status.state, holder=holder)
    elif ours or held is None:
        refusal = task.TaskFenced(task=id_, state=status.state)
    else:
        token = facts.tokens[id_]
        refusal = task.TaskFenced(task=id_, state=status.state, holder=held.agent, token=token)
    return changes.refuse(refusal, verb, id_)


def _was_ours(
    changes: TaskChanges, claimant: Claimant, status: TaskStatus, held: TaskOwner | None
) -> bool:
    """Whether the claimant may have had a claim: its token is one that a claim could have."""
    facts, id_ = changes.facts, claimant.task
    if claimant.token is None:
        return bool(status.session) and status.session == claimant.session
    newest = facts.newest[id_] if held is None else facts.tokens[id_] - 1
    return facts.oldest[id_] < claimant.token <= newest


def _failed(
    changes: TaskChanges, id_: str, status: TaskStatus, *, already: bool = False
) -> task.TaskFailed:
    left = max(0.0, keys.due_at(status.due) - changes.now) if status.due else None
    return task.TaskFailed(
        task=id_,
        state="pending" if status.state == "blocked" else status.state,
        attempts=status.attempts,
        retry_in=None if left is None else round(left, 3),
        already=already,
    )


def last_attempt(status: TaskStatus | None) -> dict[str, object]:
    """Which claim ended last, and why: its worker may ask again."""
    if status is None or not status.token:
        return {}
    return {
        "reason": status.reason,
        "by": status.by,
        "token": status.token,
        "session": status.session,
    }


def absent(id_: str, status: TaskStatus | None) -> task.Unchanged:
    """Nothing changed: the task does not exist, or is still hidden."""
    if status is None:
        return task.Unchanged(task=id_, state="unknown", reason=f"there is no task {id_}")
    return task.Unchanged(task=id_, state=status.state, reason=task.HIDDEN_REASON)
