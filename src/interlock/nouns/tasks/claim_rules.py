"""Decisions about claims: a task is claimed, kept, reported on, and lost.

An act on a claim first finds out whose it is (``own_claim``): the claimant has the claim, had one
that ended (``fenced``), or never had one (``not_owner``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.nouns.tasks import progress_rules, task, task_outcomes
from interlock.nouns.tasks.task import (
    Claimant,
    ClaimRequest,
    Spec,
    TaskOwner,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_outcomes import Claimed

CLAIM_SIZE = 16
"""The most operations that a claim takes."""


def claim(
    changes: TaskChanges, request: ClaimRequest, spec: Spec | None, place: str = ""
) -> Decision[task_outcomes.ClaimOutcome | str]:
    """Claim a pending task; ``stale`` if its worker is lost, ``expired`` if it is too late.

    Without a spec it is blind: the facts are a guess that the commit checks, and perhaps the key
    ``place`` of its entry in the ``ready`` index.
    """
    status, id_ = changes.facts.status(request.task), request.task
    if status is None:
        return Decision(
            outcome=task_outcomes.NoTask(
                task=id_, state="unknown", reason=f"there is no task {foreign(id_)}"
            )
        )
    if changes.is_hidden(status):
        return Decision(outcome=task_outcomes.TaskBlocked(task=id_, reason=task.HIDDEN_REASON))
    match status.state:
        case "pending":
            return _claim(changes, request, status, spec, place)
        case "running":
            return _taken(changes, id_)
        case "blocked":
            return Decision(outcome=_blocked(changes, id_, status))
        case _:
            over = task_outcomes.NoTask(task=id_, state=status.state, reason=_over(id_, status))
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
    why = f"{foreign(agent) if agent else 'its worker'} was lost"
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


def beat(
    changes: TaskChanges, claimant: Claimant, session_ttl: float
) -> Decision[task_outcomes.BeatOutcome]:
    """Renew the liveness of a claim; one that expired is not revived."""
    found = own_claim(changes, claimant, "task.beat")
    if isinstance(found, Decision):
        return found
    _, held = found
    ttl = held.ttl or session_ttl
    outcome = task_outcomes.TaskExtended(
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
) -> Decision[task_outcomes.ProgressOutcome]:
    """Note how far the work on a claim is; the end of the claim deletes that."""
    found = own_claim(changes, claimant, "task.progress")
    if isinstance(found, Decision):
        return found
    (status, held), id_ = found, claimant.task
    outcome = task_outcomes.ProgressNoted(task=id_, progress=part, doing=doing)
    if (status.progress, status.doing) == (part, doing):
        return Decision(outcome=outcome)
    changes.set_status(id_, replace(status, progress=part, doing=doing))
    changes.task_event("progress", held.agent)
    decision = changes.decision(outcome, "task.progress", f"task/{id_}")
    said = {"progress": part} | ({"doing": doing} if doing else {})
    return replace(decision, events=tuple(replace(each, details=said) for each in decision.events))


def liveness_value(claim: TaskOwner, id_: str) -> dict[str, str]:
    """The value of a liveness key, shown to operators."""
    return {"agent": claim.agent} | ({} if claim.ttl is None else {"for": f"task/{id_}"})


def _claim(
    changes: TaskChanges, request: ClaimRequest, status: TaskStatus, spec: Spec | None, place: str
) -> Decision[task_outcomes.ClaimOutcome | str]:
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
    if request.listed:
        changes.delete(*request.listed)
    if place:
        changes.delete(place)
    changes.task_event("claimed", request.agent, id_)
    return outcome


def claim_several(
    changes: TaskChanges,
    wanted: Sequence[tuple[ClaimRequest, Spec | None, str]],
    *,
    ahead: bool = False,
) -> list[Claimed]:
    """Claim tasks of the queue, best first: each with its spec, or blindly, and its entry.

    It stops at the first task that is not simply ready: what has a guard, a deadline or a rest, or
    is in the queue by mistake, is claimed by a commit of its own (``claim``).

    ``ahead`` says that one worker begins them one after the other.  If it is killed, each of them
    counts that as a failed attempt.  So a task that may be the reason, since it failed before, is
    claimed alone then, and so is one that has no attempt to lose.
    """
    claimed: list[Claimed] = []
    all_fit = changes.room >= CLAIM_SIZE * len(wanted)
    for request, spec, place in wanted:
        status = changes.facts.status(request.task)
        if status is None or status.state != "pending" or status.due or status.guards:
            break
        if status.deadline is not None or (not all_fit and changes.room < CLAIM_SIZE):
            break
        alone = ahead and (status.attempts > 0 or spec is None or not spec.retries)
        if alone and claimed:
            break
        claimed.append(_begin(changes, request, status, spec, place))
        if alone:
            break
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
    id_, owner = request.task, keys.owner(request.task)
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
    changes.facts.relied[owner] = None
    changes.put(owner, held)
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


def _taken(changes: TaskChanges, id_: str) -> Decision[task_outcomes.ClaimOutcome | str]:
    held = changes.facts.claim(id_)
    if held is None or not changes.facts.alive(held):
        return Decision(outcome="stale")
    return Decision(outcome=task_outcomes.Taken(task=id_, holder=held.agent, since=held.since))


def _blocked(changes: TaskChanges, id_: str, status: TaskStatus) -> task_outcomes.TaskBlocked:
    if status.guard:
        left = max(0.0, keys.due_at(status.due) - changes.now) if status.due else None
        return task_outcomes.TaskBlocked(
            task=id_,
            guard=status.guard,
            reason=f"guard {foreign(status.guard)} does not pass",
            retry_in=None if left is None else round(left, 3),
        )
    return task_outcomes.TaskBlocked(
        task=id_, on=status.on, reason=f"it needs {foreign(status.on)}, which is not complete"
    )


def _resting(changes: TaskChanges, id_: str, status: TaskStatus) -> task_outcomes.TaskBlocked:
    left = max(0.0, keys.due_at(status.due) - changes.now)
    word = "rests after a failed attempt" if status.attempts else "must not begin yet"
    return task_outcomes.TaskBlocked(task=id_, reason=f"it {word}", retry_in=round(left, 3))


def _over(id_: str, status: TaskStatus) -> str:
    if status.state == "complete":
        return f"{foreign(status.by)} completed it"
    back = f"to send it back: interlock task retry {quote(id_)}"
    if status.state == "dropped":
        back = f"to publish it again: interlock task add {quote(id_)} --again"
    return f"it is {status.state} ({foreign(status.reason)}); {back}"


def own_claim(
    changes: TaskChanges, claimant: Claimant, verb: str
) -> tuple[TaskStatus, TaskOwner] | Decision[task_outcomes.TaskFenced | task_outcomes.TaskNotOwner]:
    """The status and the live claim of the claimant, which the commit checks; else a refusal."""
    facts, id_ = changes.facts, claimant.task
    status = facts.status(id_)
    if status is None:
        return Decision(outcome=task_outcomes.TaskNotOwner(task=id_, state="unknown"))
    held = facts.claim(id_)
    ours = held is not None and claimant.speaks_for(held, facts.tokens[id_])
    if held is not None and ours:
        changes.rely(*held.live)
        if facts.alive(held):
            return status, held
    refusal: task_outcomes.TaskFenced | task_outcomes.TaskNotOwner
    if not ours and not _was_ours(changes, claimant, status, held):
        holder = "" if held is None else held.agent
        refusal = task_outcomes.TaskNotOwner(task=id_, state=status.state, holder=holder)
    elif ours or held is None:
        refusal = task_outcomes.TaskFenced(task=id_, state=status.state)
    else:
        token = facts.tokens[id_]
        refusal = task_outcomes.TaskFenced(
            task=id_, state=status.state, holder=held.agent, token=token
        )
    return changes.refuse(refusal, verb, id_, claimant.agent)


def _was_ours(
    changes: TaskChanges, claimant: Claimant, status: TaskStatus, held: TaskOwner | None
) -> bool:
    """Whether the claimant may have had a claim: its token is one that a claim could have."""
    facts, id_ = changes.facts, claimant.task
    if claimant.token is None:
        return bool(status.session) and status.session == claimant.session
    newest = facts.newest[id_] if held is None else facts.tokens[id_] - 1
    return facts.oldest[id_] < claimant.token <= newest
