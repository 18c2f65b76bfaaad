"""Outcomes as people read them: short, aligned, times in words, colour only where it is seen.

One function for each outcome, found by the name of its class behind that of its noun.  What it is
given is plain text already: line breaks and escapes in an answer are our own.

Here is what the texts share; each noun has a file of its own, imported when it is first needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from interlock.core.plain import all_plain, plain
from interlock.core.validate import span

RENDERERS: dict[str, str] = {
    "LockAcquired": "grants.lock_text:granted",
    "LockExtended": "grants.lock_text:granted",
    "Reclaimed": "grants.lock_text:reclaimed",
    "LockBusy": "grants.lock_text:busy",
    "LockDeadlock": "grants.lock_text:deadlock",
    "LockFenced": "grants.lock_text:fenced",
    "LockBroken": "grants.lock_text:broken",
    "LockReleased": "grants.lock_text:released",
    "AlreadyFree": "grants.lock_text:already_free",
    "LockNotOwner": "grants.lock_text:not_owner",
    "LockView": "grants.lock_text:shown",
    "LockList": "grants.lock_text:lock_list",
    "SlotsAcquired": "grants.semaphore_text:granted",
    "AlreadyHeld": "grants.semaphore_text:granted",
    "Increased": "grants.semaphore_text:granted",
    "SlotsFull": "grants.semaphore_text:full",
    "SlotsDeadlock": "grants.semaphore_text:deadlock",
    "SlotsFenced": "grants.semaphore_text:fenced",
    "SlotsBroken": "grants.semaphore_text:broken",
    "NoHolder": "grants.semaphore_text:no_holder",
    "SlotsReleased": "grants.semaphore_text:released",
    "NotHolder": "grants.semaphore_text:not_holder",
    "Resized": "grants.semaphore_text:resized",
    "Removed": "grants.semaphore_text:removed",
    "NoSemaphore": "grants.semaphore_text:no_semaphore",
    "SemaphoreView": "grants.semaphore_text:shown",
    "SemaphoreList": "grants.semaphore_text:semaphore_list",
    "Imported": "tasks.text:plan_imported",
    "Checked": "tasks.text:plan_checked",
    "PlanExists": "tasks.text:plan_exists",
    "SeveralAcquired": "grants.several_text:acquired",
    "SeveralBusy": "grants.several_text:busy",
    "SeveralDeadlock": "grants.several_text:deadlock",
    "SeveralFenced": "grants.several_text:fenced",
    "SeveralReleased": "grants.several_text:released",
    "SeveralNotOwner": "grants.several_text:not_owner",
    "Published": "tasks.text:published",
    "TaskExists": "tasks.text:exists",
    "Claimed": "tasks.text:claimed",
    "Taken": "tasks.text:taken",
    "Blocked": "tasks.text:blocked",
    "TaskDeadlock": "tasks.text:deadlock",
    "NoTask": "tasks.text:nothing",
    "TaskExtended": "tasks.text:extended",
    "Completed": "tasks.text:completed",
    "Failed": "tasks.text:failed",
    "TaskReleased": "tasks.text:released",
    "TaskFenced": "tasks.text:fenced",
    "GivenFenced": "grants.several_text:given_fenced",
    "TaskRequeued": "tasks.text:requeued",
    "TaskNotOwner": "tasks.text:not_owner",
    "TaskCancelled": "tasks.text:cancelled",
    "Retried": "tasks.text:retried",
    "Unchanged": "tasks.text:unchanged",
    "TaskEvent": "tasks.text:event",
    "TaskView": "tasks.text:task_view",
    "TaskList": "tasks.text:task_list",
    "Sent": "messages.text:sent",
    "SentUnsubscribed": "messages.text:unheard",
    "MessageExists": "messages.text:exists",
    "UnknownAgent": "messages.text:unknown",
    "NobodyToStop": "messages.text:gone",
    "InboxFull": "messages.text:full",
    "Limited": "messages.text:limited",
    "Halted": "messages.text:halted",
    "Acknowledged": "messages.text:acknowledged",
    "UnknownMessages": "messages.text:not_yours",
    "Subscribed": "messages.text:subscribed",
    "SubscriptionList": "messages.text:subscriptions",
    "Unsubscribed": "messages.text:unsubscribed",
    "NotSubscribed": "messages.text:not_subscribed",
    "Received": "messages.text:received",
    "PausedAgent": "messages.text:paused",
    "Resumed": "messages.text:resumed",
    "Inbox": "messages.text:inbox",
    "InboxAcknowledged": "messages.text:inbox",
    "Arrived": "messages.text:arrived",
    "NothingUnread": "messages.text:nothing",
    "TakenBack": "messages.query_text:taken_back",
    "Asked": "messages.query_text:asked",
    "Answered": "messages.query_text:answered",
    "TimedOut": "messages.query_text:timed_out",
    "QueryCancelled": "messages.query_text:cancelled",
    "NobodyToAsk": "messages.query_text:away",
    "QueryDeadlock": "messages.query_text:deadlock",
    "Handed": "messages.query_text:handed",
    "TooMany": "messages.query_text:too_many",
    "QueryExists": "messages.query_text:taken",
    "Replied": "messages.query_text:replied",
    "Late": "messages.query_text:late",
    "NotAsked": "messages.query_text:not_asked",
    "UnknownQuery": "messages.query_text:no_query",
    "DecisionView": "messages.query_text:decision",
    "Resolved": "messages.query_text:resolved",
    "AlreadyResolved": "messages.query_text:already",
    "UnknownDecision": "messages.query_text:no_decision",
    "DecisionList": "messages.query_text:decision_list",
    "DeathsAcknowledged": "agents.text:deaths_acknowledged",
    "Joined": "agents.text:joined",
    "Left": "agents.text:left",
    "NoDeath": "agents.text:no_death",
    "Renewed": "agents.text:renewed",
    "Uploaded": "agents.text:uploaded",
    "Reported": "agents.text:reported",
    "Unreported": "agents.text:unreported",
    "AgentList": "agents.text:agent_list",
    "AgentLog": "agents.text:agent_log",
    "LogFiles": "agents.text:log_files",
    "NoLog": "agents.text:no_log",
    "UnknownAgentName": "agents.text:nobody",
    "Entries": "record.text:entries",
    "NoHistory": "record.text:nothing",
    "Story": "record.text:story",
    "Verified": "record.verdict_text:verified",
    "Exported": "record.verdict_text:exported",
    "Anchored": "record.verdict_text:anchored",
    "Why": "fleet.text:why",
    "Health": "fleet.text:health",
    "Maintained": "fleet.text:maintained",
    "Created": "fleet.text:created",
    "StoreExists": "fleet.text:exists",
    "Diagnosis": "fleet.text:diagnosis",
    "Observed": "fleet.observe_text:observed",
    "Counters": "fleet.observe_text:counters",
    "Raced": "fleet.text:raced",
    "dict": "fleet.store_text:facts",
}
"""Where the text for each outcome is made: the module of its noun, and its function."""

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

    file, _, function = RENDERERS[outcome.__name__].partition(":")
    module = import_module(f"interlock.nouns.{file}")
    found: Callable[[Any, Paint], str] = getattr(module, function)
    return found


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
