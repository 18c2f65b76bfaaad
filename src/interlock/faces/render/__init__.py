"""Outcomes as people read them: short, aligned, times in words, colour only where it is seen.

One function for each outcome, found by the name of its class behind that of its noun.  What it is
given is plain text already: line breaks and escapes in an answer are our own.

Here is what the texts share; each noun has a file of its own, imported when it is first needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from interlock.core.words import span
from interlock.faces.plain import all_plain, plain

RENDERERS: dict[str, str] = {
    "lock.LockAcquired": "lock:granted",
    "lock.LockExtended": "lock:granted",
    "lock.Reclaimed": "lock:reclaimed",
    "lock.LockBusy": "lock:busy",
    "lock.LockDeadlock": "lock:deadlock",
    "lock.LockFenced": "lock:fenced",
    "lock.LockBroken": "lock:broken",
    "lock.LockReleased": "lock:released",
    "lock.AlreadyFree": "lock:already_free",
    "lock.LockNotOwner": "lock:not_owner",
    "lock.Shown": "lock:shown",
    "lock.LockList": "lock:lock_list",
    "semaphore.SlotsAcquired": "sem:granted",
    "semaphore.AlreadyHeld": "sem:granted",
    "semaphore.Increased": "sem:granted",
    "semaphore.SlotsFull": "sem:full",
    "semaphore.SlotsDeadlock": "sem:deadlock",
    "semaphore.SlotsFenced": "sem:fenced",
    "semaphore.SlotsBroken": "sem:broken",
    "semaphore.NoHolder": "sem:no_holder",
    "semaphore.SlotsReleased": "sem:released",
    "semaphore.NotHolder": "sem:not_holder",
    "semaphore.Resized": "sem:resized",
    "semaphore.Removed": "sem:removed",
    "semaphore.NoSemaphore": "sem:no_semaphore",
    "semaphore.Shown": "sem:shown",
    "sem.SemaphoreList": "sem:semaphore_list",
    "batch.Imported": "plan:imported",
    "batch.Checked": "plan:checked",
    "batch.PlanExists": "plan:exists",
    "several.SeveralAcquired": "several:acquired",
    "several.SeveralBusy": "several:busy",
    "several.SeveralDeadlock": "several:deadlock",
    "several.SeveralFenced": "several:fenced",
    "several.SeveralReleased": "several:released",
    "several.SeveralNotOwner": "several:not_owner",
    "task.Published": "task:published",
    "task.TaskExists": "task:exists",
    "task.Claimed": "task:claimed",
    "task.Taken": "task:taken",
    "task.Blocked": "task:blocked",
    "task.TaskDeadlock": "task:deadlock",
    "task.NoTask": "task:nothing",
    "task.TaskExtended": "task:extended",
    "task.Completed": "task:completed",
    "task.Failed": "task:failed",
    "task.TaskReleased": "task:released",
    "task.TaskFenced": "task:fenced",
    "answers.GivenFenced": "several:given_fenced",
    "task.TaskRequeued": "task:requeued",
    "task.TaskNotOwner": "task:not_owner",
    "task.TaskCancelled": "task:cancelled",
    "task.Retried": "task:retried",
    "task.Unchanged": "task:unchanged",
    "task.TaskEvent": "task:event",
    "shown.Shown": "task:shown",
    "shown.TaskList": "task:task_list",
    "message.Sent": "message:sent",
    "message.Unheard": "message:unheard",
    "message.MessageExists": "message:exists",
    "message.UnknownAgent": "message:unknown",
    "message.NobodyToStop": "message:gone",
    "message.InboxFull": "message:full",
    "message.Limited": "message:limited",
    "message.Halted": "message:halted",
    "message.Acknowledged": "message:acknowledged",
    "message.UnknownMessages": "message:not_yours",
    "message.Subscribed": "message:subscribed",
    "inbox.SubscriptionList": "message:subscriptions",
    "message.Unsubscribed": "message:unsubscribed",
    "message.NotSubscribed": "message:not_subscribed",
    "message.Received": "message:received",
    "message.PausedAgent": "message:paused",
    "message.Resumed": "message:resumed",
    "looking.Inbox": "message:inbox",
    "inbox.InboxAcknowledged": "message:inbox",
    "looking.Arrived": "message:arrived",
    "looking.NothingUnread": "message:nothing",
    "query.TakenBack": "query:taken_back",
    "query.Asked": "query:asked",
    "query.Answered": "query:answered",
    "query.TimedOut": "query:timed_out",
    "query.QueryCancelled": "query:cancelled",
    "query.NobodyToAsk": "query:away",
    "query.QueryDeadlock": "query:deadlock",
    "query.Handed": "query:handed",
    "query.TooMany": "query:too_many",
    "query.QueryExists": "query:taken",
    "query.Replied": "query:replied",
    "query.Late": "query:late",
    "query.NotAsked": "query:not_asked",
    "query.UnknownQuery": "query:no_query",
    "matter.Shown": "query:decision",
    "matter.Resolved": "query:resolved",
    "matter.AlreadyResolved": "query:already",
    "matter.UnknownDecision": "query:no_decision",
    "decision.DecisionList": "query:decision_list",
    "session.DeathsAcknowledged": "agent:deaths_acknowledged",
    "session.Joined": "agent:joined",
    "session.Left": "agent:left",
    "session.NoDeath": "agent:no_death",
    "session.Renewed": "agent:renewed",
    "logs.Uploaded": "agent:uploaded",
    "report.Reported": "agent:reported",
    "report.Unreported": "agent:unreported",
    "agent.AgentList": "agent:agent_list",
    "agent.AgentLog": "agent:agent_log",
    "agent.LogFiles": "agent:log_files",
    "agent.NoLog": "agent:no_log",
    "agent.Nobody": "agent:nobody",
    "record.Entries": "record:entries",
    "record.NoHistory": "record:nothing",
    "story.Story": "record:story",
    "verdict.Verified": "verdict:verified",
    "verdict.Exported": "verdict:exported",
    "verdict.Anchored": "verdict:anchored",
    "why.Why": "fleet:why",
    "health.Health": "fleet:health",
    "maintain.Maintained": "fleet:maintained",
    "fleet.Created": "fleet:created",
    "fleet.StoreExists": "fleet:exists",
    "diagnosis.Diagnosis": "fleet:diagnosis",
    "observed.Observed": "observe:observed",
    "observed.Counters": "observe:counters",
    "race.Raced": "fleet:raced",
    "builtins.dict": "store:facts",
}
"""Where the text for each outcome is made: a file of this folder, and its function."""

_COLOURS = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"}


class Paint:
    """Colours, or their absence."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, colour: str, text: str) -> str:
        """The text in this colour."""
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colour else text


def render(outcome: object, *, colour: bool = False) -> str:
    """An outcome as text, without a final newline."""
    return renderer(type(outcome))(all_plain(outcome), Paint(colour=colour))


def renderer(outcome: type) -> Callable[[Any, Paint], str]:
    """What makes the text for an outcome."""
    from importlib import import_module

    file, _, function = RENDERERS[key(outcome)].partition(":")
    found: Callable[[Any, Paint], str] = getattr(import_module(f"{__name__}.{file}"), function)
    return found


def key(outcome: type) -> str:
    """The name under which the text for an outcome is found."""
    return f"{outcome.__module__.rpartition('.')[2]}.{outcome.__name__}"


def lasting(seconds: float | None) -> str:
    """A duration in words, if it is known: ``0.3 s``, ``12 s``, ``15 min``."""
    if seconds is None:
        return "a while"
    return f"{seconds:.1f} s" if seconds < 1 else span(seconds)


def since(moment: float) -> str:
    """How long ago a moment is: ``12 s``."""
    return lasting(max(time.time() - moment, 0.0))


def ago(moment: float | None) -> str:
    """A moment in words: ``12 s ago``."""
    if moment is None:
        return ""
    seconds = time.time() - moment
    return f"in {lasting(-seconds)}" if seconds < -1 else f"{since(moment)} ago"


def ended(by: str, reason: str) -> str:
    """Who ended a grant and why, as the end of a sentence; empty if no operator did."""
    return f"; {by} ended it: {reason}" if by else ""


def lives(expires_in: float | None) -> str:
    """How long a grant lives, as the end of a sentence."""
    return f", expires in {lasting(expires_in)}" if expires_in else ""


_UNTIE = "give back what you hold, answer what you are asked, then try again"


def circle(cycle: Sequence[str], then: str = _UNTIE) -> str:
    """Why a wait was refused, and what to do."""
    way = " -> ".join((*cycle, cycle[0]))
    return f"waiting would never end ({way}); {then}"


def heirs(names: Sequence[str]) -> str:
    """Who has it now, as the end of a sentence."""
    if not names:
        return ""
    return f"; {', '.join(names)} {'has' if len(names) == 1 else 'have'} some now"


def columns(rows: Sequence[Sequence[str]], *, gap: str = "  ") -> list[str]:
    """Rows with their cells under each other; measured without colours."""
    widths = [max(_width(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        gap.join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], paint: Paint) -> str:
    """Rows below their titles."""
    return "\n".join(columns([[paint("dim", title) for title in titles], *rows]))


def listed(facts: Iterable[tuple[str, str]]) -> str:
    """Facts with their names before them; those that are empty are left out."""
    return "\n".join(columns([fact for fact in facts if fact[1]]))


def state(state: str, paint: Paint) -> str:
    """How something stands, in the colour of that."""
    return paint("red" if state in ("stale", "lapsed") else "green", state)


def as_json(value: object) -> str:
    """Metadata as it was given."""
    if value is None:
        return ""
    import msgspec

    return plain(msgspec.json.encode(value).decode())


def _width(cell: str) -> int:
    if "\033" not in cell:
        return len(cell)
    import re

    return len(re.sub(r"\033\[\d+m", "", cell))
