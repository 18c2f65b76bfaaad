"""What can be decided about tasks: the acts of ``task.py``, one function each.

Every act on behalf of a claim begins with whose it is: the one who works on the task now, one
whose claim is over (``fenced``), or one who never did (``not_owner``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.validate import shell
from interlock.errors import BadInput
from interlock.nouns.grants.pool import Break
from interlock.nouns.tasks import progress_rules, task
from interlock.nouns.tasks.task import (
    Claimant,
    Claimed,
    ClaimRequest,
    Spec,
    State,
    TaskClaim,
    TaskResult,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import TaskChanges


def publish(board: TaskChanges, id_: str, spec: Spec) -> Decision[task.Published | task.TaskExists]:
    """Put a task where everybody finds it; one that is there already stays as it is."""
    if (status := board.facts.status(id_)) is not None:
        return Decision(outcome=task.TaskExists(task=id_, state=status.state))
    ended = progress_rules.read_needs(board, spec.needs)
    unknown = next((need for need in spec.needs if not progress_rules.exists(board, need)), None)
    if unknown is not None:
        raise BadInput(
            f"task {id_!r} needs {unknown!r}, which does not exist; publish that first,"
            " or both together: interlock task import FILE; what was completed long ago, leave out"
        )
    status = progress_rules.create(board, id_, spec)
    outcome = task.Published(task=id_, state=status.state, ended=ended)
    return board.decision(outcome, "task.publish", f"task/{id_}")


def claim(
    board: TaskChanges, ask: ClaimRequest, spec: Spec | None, place: str = ""
) -> Decision[task.ClaimOutcome | str]:
    """Take a task that is pending; ``stale`` if its worker is lost, ``expired`` if it is too late.

    Without a spec it is blind: all that is known is a guess that the commit checks, and perhaps
    its ``place`` among those that are ready.
    """
    status, id_ = board.facts.status(ask.task), ask.task
    if status is None:
        return Decision(
            outcome=task.NoTask(task=id_, state="unknown", reason=f"there is no task {id_}")
        )
    if progress_rules.is_hidden(board, status):
        return Decision(outcome=task.Blocked(task=id_, reason=progress_rules.HIDDEN_REASON))
    match status.state:
        case "pending":
            return _claim(board, ask, status, spec, place)
        case "running":
            return _taken(board, id_)
        case "blocked":
            return Decision(outcome=_blocked(id_, status))
        case _:
            over = task.NoTask(task=id_, state=status.state, reason=_over(id_, status))
            return Decision(outcome=over)


def reclaim(
    board: TaskChanges, id_: str, chance: float, reason: str = "", entry: str = ""
) -> Decision[str]:
    """End a claim whose liveness is gone, and count the attempt.

    ``entry`` is where it was found among the claims; one that stands for nothing is taken away.
    """
    status, held = board.facts.status(id_), board.facts.claim(id_)
    other = held is not None and entry not in ("", keys.claims(held.session, id_))
    if status is None or status.state != "running" or other:
        return _tidied(board, id_, entry)
    if held is not None:
        if board.facts.alive(held):
            return Decision(outcome="alive")
        board.end_claim(id_, held)
    agent = "" if held is None else held.agent
    session = "" if held is None else held.session
    blame = progress_rules.FailureCause(
        reason or f"{agent or 'its worker'} was lost", session=session
    )
    after = progress_rules.count_failure(board, id_, "reclaim", blame, chance)
    board.tell("reclaimed", agent)
    if after.state == "dead":
        board.tell("dead", agent)
    return board.decision("reclaimed", "task.reclaim", f"task/{id_}")


def _tidied(board: TaskChanges, id_: str, entry: str) -> Decision[str]:
    if not entry or not board.facts.has(entry):
        return Decision(outcome="gone")
    board.rely(entry, keys.owner(id_))
    board.delete(entry)
    return board.decision("tidied", "task.tidy", f"task/{id_}")


def release(board: TaskChanges, who: Claimant) -> Decision[task.ReleaseOutcome]:
    """Give a task back to the queue; that is no failed attempt."""
    status, held = _held(board, who)
    if status is None or held is None:
        return _refused(board, who, status, "task.release")
    if not _lives(board, held):
        return _lapsed(board, who, status, "task.release")
    board.end_claim(who.task, held)
    board.move(who.task, "release", "pending")
    board.make_ready(who.task, board.facts.spec(who.task))
    board.tell("released", held.agent)
    return board.decision(task.TaskReleased(task=who.task), "task.release", f"task/{who.task}")


def complete(
    board: TaskChanges, who: Claimant, result: Raw | None, hangers: Sequence[str], *, more: bool
) -> Decision[task.CompleteOutcome]:
    """The task is done; what hangs on it is moved on, as far as this commit has room.

    ``hangers`` are tasks that hang on it; ``more`` says that there may be others: they were too
    many, or one may have come since they were listed.
    """
    id_ = who.task
    status, held = _held(board, who)
    if status is None or held is None:
        if status is not None and status.state == "complete" and who.ended(status):
            return Decision(outcome=task.Completed(task=id_, already=True))
        return _refused(board, who, status, "task.complete")
    if not _lives(board, held):
        return _lapsed(board, who, status, "task.complete")
    token = board.facts.tokens[id_]
    board.end_claim(id_, held)
    board.move(
        id_,
        "complete",
        "complete",
        awaited=False,
        since=board.now,
        by=held.agent,
        token=token,
        session=held.session,
    )
    if result is not None:
        kept = TaskResult(by=held.agent, at=board.now, token=token, result=result)
        board.put(keys.result(id_), kept)
    elif status.attempts:  # that of an attempt before this one
        board.delete(keys.result(id_))
    if status.deadline is not None:  # no other end is final: a task that is sent back needs it
        board.delete(keys.deadline(id_))
    board.tell("completed", held.agent)
    begun, rest = progress_rules.unblock(board, id_, hangers)
    if status.awaited and (rest or more):
        board.put(keys.todo(id_), {})
    outcome = task.Completed(task=id_, unblocked=begun)
    return board.decision(outcome, "task.complete", f"task/{id_}")


def fail(
    board: TaskChanges, who: Claimant, reason: str, error: Raw | None, chance: float, *, retry: bool
) -> Decision[task.FailOutcome]:
    """The attempt failed: the task rests and is tried again, or it is over."""
    id_ = who.task
    status, held = _held(board, who)
    if status is None or held is None:
        if status is not None and status.state in _AFTER_FAILURE and who.ended(status):
            return Decision(outcome=_failed(board, id_, status, already=True))
        return _refused(board, who, status, "task.fail")
    if not _lives(board, held):
        return _lapsed(board, who, status, "task.fail")
    token = board.facts.tokens[id_]
    board.end_claim(id_, held)
    if retry:
        blame = progress_rules.FailureCause(reason, held.agent, token, held.session)
        after = progress_rules.count_failure(board, id_, "fail", blame, chance)
    else:
        after = board.move(
            id_,
            "fail",
            "failed",
            attempts=status.attempts + 1,
            since=board.now,
            reason=reason,
            by=held.agent,
            token=token,
            session=held.session,
        )
    if error is not None:
        kept = TaskResult(by=held.agent, at=board.now, token=token, error=error)
        board.put(keys.result(id_), kept)
    elif status.attempts:
        board.delete(keys.result(id_))
    board.tell("dead" if after.state == "dead" else "failed", held.agent)
    return board.decision(_failed(board, id_, after), "task.fail", f"task/{id_}")


def beat(board: TaskChanges, who: Claimant, session_ttl: float) -> Decision[task.BeatOutcome]:
    """Renew what keeps the claim alive; one that lapsed is not revived."""
    status, held = _held(board, who)
    if status is None or held is None:
        return _refused(board, who, status, "task.beat")
    if not _lives(board, held):
        return _lapsed(board, who, status, "task.beat")
    ttl = held.ttl or session_ttl
    outcome = task.TaskExtended(
        task=who.task,
        holder=held.agent,
        token=board.facts.tokens[who.task],
        expires_in=ttl,
        grant=held.id,
    )
    renew = Write(held.live[0], tag(held, who.task), ttl)
    return Decision(outcome=outcome, puts=(renew,), quiet=True)


def cancel(board: TaskChanges, id_: str, agent: str, reason: str) -> Decision[task.CancelOutcome]:
    """Nobody is to do this; whoever works on it is told when it next speaks up."""
    status = board.facts.status(id_)
    if status is None or progress_rules.is_hidden(board, status):
        return Decision(outcome=_absent(id_, status))
    if status.state == "failed" and status.reason.startswith(_CANCELLED):
        return Decision(outcome=task.TaskCancelled(task=id_, already=True))
    if status.state in ("complete", "failed", "dead"):
        over = f"it is {status.state} already; nothing is left to cancel"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=over))
    held = board.facts.claim(id_)
    if held is not None:
        board.end_claim(id_, held)
    elif status.state == "pending" and not status.due:
        board.delete(board.facts.spec(id_).place(id_))
    said = f"{_CANCELLED} {agent}" + (f": {reason}" if reason else "")
    board.move(id_, "cancel", "failed", since=board.now, by=agent, reason=said)
    board.tell("cancelled", agent)
    return board.decision(task.TaskCancelled(task=id_), "task.cancel", f"task/{id_}")


def requeue(
    board: TaskChanges, id_: str, by: str, reason: str, token: int | None
) -> Decision[task.RequeueOutcome]:
    """An operator ends the claim of a worker; that is no failed attempt."""
    status = board.facts.status(id_)
    if status is None or progress_rules.is_hidden(board, status):
        return Decision(outcome=_absent(id_, status))
    held = board.facts.claim(id_)
    if status.state != "running" or held is None:
        why = f"it is {status.state}; only a task that somebody works on can be requeued"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=why))
    own = board.facts.tokens[id_]
    if token not in (None, own):
        fenced = task.TaskFenced(task=id_, state=status.state, holder=held.agent, token=own)
        return Decision(outcome=fenced)
    board.end_claim(id_, held)
    board.move(id_, "release", "pending")
    board.make_ready(id_, board.facts.spec(id_))
    note = Break(
        grant=held.id,
        holder=held.agent,
        session=held.session,
        token=own,
        by=by,
        at=board.now,
        reason=reason,
    )
    board.put(keys.broken(f"task/{id_}", held.id), note)
    board.tell("requeued", held.agent)
    outcome = task.TaskRequeued(task=id_, holder=held.agent, token=own, reason=reason)
    return replace(board.decision(outcome, "task.requeue", f"task/{id_}"), reason=reason)


def retry(board: TaskChanges, id_: str, agent: str) -> Decision[task.RetryOutcome]:
    """Send back a task that failed, with all its attempts."""
    status = board.facts.status(id_)
    if status is None or progress_rules.is_hidden(board, status):
        return Decision(outcome=_absent(id_, status))
    if status.state not in ("failed", "dead"):
        reason = f"it is {status.state}; only what failed or is dead can be sent back"
        return Decision(outcome=task.Unchanged(task=id_, state=status.state, reason=reason))
    spec = board.facts.spec(id_)
    at = progress_rules.first_unmet_need(board, id_, spec.needs, 0)
    missed = status.deadline is not None and progress_rules.is_deadline_over(
        board, id_, status.deadline
    )
    kept = {"attempts": 0, "deadline": None if missed else status.deadline}
    if at is None:
        board.move(id_, "retry", "pending", **kept)
        board.begin(id_, spec)
    else:
        on = spec.needs[at]
        board.move(id_, "retry", "blocked", since=board.now, on=on, place=at, **kept)
        board.hang(id_, on)
    board.tell("retried", agent)
    state: State = "pending" if at is None else "blocked"
    return board.decision(task.Retried(task=id_, state=state), "task.retry", f"task/{id_}")


def tag(claim: TaskClaim, id_: str) -> dict[str, str]:
    """What a liveness key says to a person who reads the store."""
    return (
        {"agent": claim.agent}
        if claim.ttl is None
        else {
            "agent": claim.agent,
            "for": f"task/{id_}",
        }
    )


_CANCELLED = "cancelled by"
_AFTER_FAILURE = ("pending", "failed", "dead")


def _claim(
    board: TaskChanges, ask: ClaimRequest, status: TaskStatus, spec: Spec | None, place: str
) -> Decision[task.ClaimOutcome | str]:
    id_ = ask.task
    if not progress_rules.is_due(board, status):
        return Decision(outcome=_resting(board, id_, status))
    if spec is not None and progress_rules.is_late(board, id_, status):
        progress_rules.expire_one(board, id_)
        return board.decision("expired", "task.expire", f"task/{id_}")
    live = keys.live(ask.session if ask.ttl is None else ask.claim)
    held = TaskClaim(
        id=ask.claim,
        agent=ask.agent,
        session=ask.session,
        live=(live,),
        since=board.now,
        ttl=ask.ttl,
        attempt=status.attempts + 1,
        caller=ask.caller,
        blind=spec is None and not place,
    )
    board.move(id_, "claim", "running", since=board.now)
    board.rely(keys.owner(id_))
    board.put(keys.owner(id_), held)
    board.put(keys.claims(ask.session, id_), held.live)
    if ask.ttl is not None:
        board.put(live, tag(held, id_), ask.ttl)
    if spec is not None and not status.due:
        place = spec.place(id_)
    for key in (*ask.listed, *([place] if place else ())):
        board.delete(key)
    board.tell("claimed", ask.agent)
    outcome = Claimed(
        task=id_,
        holder=ask.agent,
        expires_in=ask.ttl or ask.session_ttl,
        data=None if spec is None else spec.data,
        attempt=held.attempt,
        priority=task.PRIORITY if spec is None else spec.priority,
        grant=ask.claim,
        requires=() if spec is None else spec.requires,
    )
    return board.decision(outcome, "task.claim", f"task/{id_}")


def _taken(board: TaskChanges, id_: str) -> Decision[task.ClaimOutcome | str]:
    held = board.facts.claim(id_)
    if held is None or not board.facts.alive(held):
        return Decision(outcome="stale")
    return Decision(outcome=task.Taken(task=id_, holder=held.agent, since=held.since))


def _blocked(id_: str, status: TaskStatus) -> task.Blocked:
    return task.Blocked(
        task=id_, on=status.on, reason=f"it needs {status.on}, which is not complete"
    )


def _resting(board: TaskChanges, id_: str, status: TaskStatus) -> task.Blocked:
    left = max(0.0, progress_rules.due_moment(status.due) - board.now)
    word = "rests after a failed attempt" if status.attempts else "must not begin yet"
    return task.Blocked(task=id_, reason=f"it {word}", retry_in=round(left, 3))


def _over(id_: str, status: TaskStatus) -> str:
    if status.state == "complete":
        return f"{status.by} completed it"
    return (
        f"it is {status.state} ({status.reason}); to send it back:"
        f" interlock task retry {shell(id_)}"
    )


def _held(board: TaskChanges, who: Claimant) -> tuple[TaskStatus | None, TaskClaim | None]:
    """How the task stands, and the claim of whoever speaks, if it works on it."""
    status = board.facts.status(who.task)
    held = None if status is None else board.facts.claim(who.task)
    if held is None or not who.speaks_for(held, board.facts.tokens[who.task]):
        return status, None
    return status, held


def _lives(board: TaskChanges, held: TaskClaim) -> bool:
    """Whether a claim lives; then the decision stands only as long as it does."""
    board.rely(*held.live)
    return board.facts.alive(held)


def _lapsed(
    board: TaskChanges, who: Claimant, status: TaskStatus, verb: str
) -> Decision[task.TaskFenced]:
    """The claim lapsed, and nobody took the task yet: it is over all the same."""
    return board.refuse(task.TaskFenced(task=who.task, state=status.state), verb, who.task)


def _refused(
    board: TaskChanges, who: Claimant, status: TaskStatus | None, verb: str
) -> Decision[task.TaskFenced | task.TaskNotOwner]:
    """Not the one who works on it: refused, and recorded once in a while."""
    if status is None:
        return Decision(outcome=task.TaskNotOwner(task=who.task, state="unknown"))
    held = board.facts.claim(who.task)
    if _was_ours(board, who, status, held):
        return board.refuse(_fenced(board, who, status), verb, who.task)
    outcome = task.TaskNotOwner(
        task=who.task, state=status.state, holder="" if held is None else held.agent
    )
    return board.refuse(outcome, verb, who.task)


def _was_ours(
    board: TaskChanges, who: Claimant, status: TaskStatus, held: TaskClaim | None
) -> bool:
    """Whether whoever speaks may have worked on this task before: its token could be of a claim."""
    if who.token is None:
        return bool(status.session) and status.session == who.session
    newest = board.facts.newest[who.task] if held is None else board.facts.tokens[who.task] - 1
    return board.facts.oldest[who.task] < who.token <= newest


def _fenced(board: TaskChanges, who: Claimant, status: TaskStatus) -> task.TaskFenced:
    held = board.facts.claim(who.task)
    if held is None:
        return task.TaskFenced(task=who.task, state=status.state)
    token = board.facts.tokens[who.task]
    return task.TaskFenced(task=who.task, state=status.state, holder=held.agent, token=token)


def _failed(
    board: TaskChanges, id_: str, status: TaskStatus, *, already: bool = False
) -> task.Failed:
    left = max(0.0, progress_rules.due_moment(status.due) - board.now) if status.due else None
    return task.Failed(
        task=id_,
        state=status.state,
        attempts=status.attempts,
        retry_in=None if left is None else round(left, 3),
        already=already,
    )


def _absent(id_: str, status: TaskStatus | None) -> task.Unchanged:
    """There is no such task, or not yet."""
    if status is None:
        return task.Unchanged(task=id_, state="unknown", reason=f"there is no task {id_}")
    return task.Unchanged(task=id_, state=status.state, reason=progress_rules.HIDDEN_REASON)
