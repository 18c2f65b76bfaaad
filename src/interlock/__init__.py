"""Claims, locks and messages for fleets of agents.

One file on a laptop, one cluster in production.  Start with ``connect``; ``interlock.aio`` has
the same names for event loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.version import __version__

if TYPE_CHECKING:
    from interlock import aio as aio
    from interlock import errors as errors
    from interlock.client import Fleet, Held, connect
    from interlock.client_messages import Message
    from interlock.core.decision import Proof, Refusal, Success
    from interlock.core.outcomes import (
        Acquired,
        Away,
        Broken,
        Busy,
        Cancelled,
        Deadlock,
        Exists,
        Extended,
        Fenced,
        Full,
        GivenFenced,
        Gone,
        Granted,
        Nothing,
        NotOwner,
        Paused,
        Released,
        Unknown,
        Waiting,
    )
    from interlock.errors import (
        BadInput,
        Changed,
        Deadlocked,
        InterlockError,
        Lapsed,
        Lost,
        NotAllowed,
        StoreTrouble,
        Unavailable,
    )
    from interlock.nouns.agents.logs import Uploaded
    from interlock.nouns.agents.report import Reported, Unreported
    from interlock.nouns.agents.session import (
        DeathsAcknowledged,
        Joined,
        Leaving,
        Left,
        NoDeath,
        Renewed,
        SessionLapsed,
    )
    from interlock.nouns.grants.lock import (
        AlreadyFree,
        LockAcquired,
        LockBroken,
        LockBusy,
        LockDeadlock,
        LockExtended,
        LockFenced,
        LockGone,
        LockGranted,
        LockNotOwner,
        LockReleased,
        LockWaiting,
        Reclaimed,
    )
    from interlock.nouns.grants.semaphore import (
        AlreadyHeld,
        Increased,
        NoHolder,
        NoSemaphore,
        NotHolder,
        Removed,
        Resized,
        SlotsAcquired,
        SlotsBroken,
        SlotsDeadlock,
        SlotsFenced,
        SlotsFull,
        SlotsGone,
        SlotsGranted,
        SlotsReleased,
        SlotsWaiting,
    )
    from interlock.nouns.grants.several import (
        SeveralAcquired,
        SeveralBusy,
        SeveralDeadlock,
        SeveralFenced,
        SeveralGone,
        SeveralNotOwner,
        SeveralReleased,
        SeveralWaiting,
    )
    from interlock.nouns.messages.human_decision import AlreadyResolved, Resolved, UnknownDecision
    from interlock.nouns.messages.message import (
        Acknowledged,
        AlreadyAcknowledged,
        Halted,
        InboxFull,
        Limited,
        MessageExists,
        NobodyToStop,
        NotSubscribed,
        PausedAgent,
        Resumed,
        Sent,
        Subscribed,
        UnknownAgent,
        UnknownMessages,
        Unsubscribed,
    )
    from interlock.nouns.messages.query_rules import (
        Answered,
        Asked,
        Handed,
        Late,
        NobodyToAsk,
        NotAsked,
        QueryCancelled,
        QueryDeadlock,
        QueryExists,
        Replied,
        TakenBack,
        TimedOut,
        TooMany,
        UnknownQuery,
    )
    from interlock.nouns.messages.retention_rules import Forgotten
    from interlock.nouns.messages.views import Arrived, NothingUnread
    from interlock.nouns.record.outcomes import Anchored, Exported
    from interlock.nouns.tasks.plan_rules import Checked, Imported, PlanExists
    from interlock.nouns.tasks.progress_rules import Expired, Moved
    from interlock.nouns.tasks.task import (
        Blocked,
        Claimed,
        Completed,
        Failed,
        NoTask,
        Published,
        Retried,
        Taken,
        TaskCancelled,
        TaskDeadlock,
        TaskExists,
        TaskExtended,
        TaskFenced,
        TaskNotOwner,
        TaskReleased,
        TaskRequeued,
        Unchanged,
    )
    from interlock.runtime.identity import trace
    from interlock.runtime.maintain import Maintained

_HOMES = {
    "interlock.client": ("Fleet", "Held", "connect"),
    "interlock.client_messages": ("Message",),
    "interlock.core.outcomes": (
        "Acquired", "Away", "Broken", "Busy", "Cancelled", "Deadlock", "Exists", "Extended",
        "Fenced", "Full", "GivenFenced", "Gone", "Granted", "NotOwner", "Nothing", "Paused",
        "Released", "Unknown", "Waiting",
    ),
    "interlock.nouns.tasks.plan_rules": ("Checked", "Imported", "PlanExists"),
    "interlock.core.decision": ("Proof", "Refusal", "Success"),
    "interlock.nouns.tasks.progress_rules": ("Expired", "Moved"),
    "interlock.nouns.grants.lock": (
        "AlreadyFree", "LockAcquired", "LockBroken", "LockBusy", "LockDeadlock", "LockExtended",
        "LockFenced", "LockGone", "LockGranted", "LockNotOwner", "LockReleased", "LockWaiting",
        "Reclaimed",
    ),
    "interlock.nouns.agents.logs": ("Uploaded",),
    "interlock.nouns.messages.human_decision": ("AlreadyResolved", "Resolved", "UnknownDecision"),
    "interlock.nouns.messages.message": (
        "Acknowledged", "AlreadyAcknowledged", "Halted", "InboxFull", "Limited", "MessageExists",
        "NobodyToStop", "NotSubscribed", "PausedAgent", "Resumed", "Sent", "Subscribed",
        "UnknownAgent", "UnknownMessages", "Unsubscribed",
    ),
    "interlock.nouns.messages.query_rules": (
        "Answered", "Asked", "Handed", "Late", "NobodyToAsk", "NotAsked", "QueryCancelled",
        "QueryDeadlock", "QueryExists", "Replied", "TakenBack", "TimedOut", "TooMany",
        "UnknownQuery",
    ),
    "interlock.nouns.agents.report": ("Reported", "Unreported"),
    "interlock.nouns.messages.retention_rules": ("Forgotten",),
    "interlock.nouns.grants.semaphore": (
        "AlreadyHeld", "Increased", "NoHolder", "NoSemaphore", "NotHolder", "Removed", "Resized",
        "SlotsAcquired", "SlotsBroken", "SlotsDeadlock", "SlotsFenced", "SlotsFull", "SlotsGone",
        "SlotsGranted", "SlotsReleased", "SlotsWaiting",
    ),
    "interlock.nouns.agents.session": (
        "DeathsAcknowledged", "Joined", "Leaving", "Left", "NoDeath", "Renewed", "SessionLapsed",
    ),
    "interlock.nouns.grants.several": (
        "SeveralAcquired", "SeveralBusy", "SeveralDeadlock", "SeveralFenced", "SeveralGone",
        "SeveralNotOwner", "SeveralReleased", "SeveralWaiting",
    ),
    "interlock.nouns.tasks.task": (
        "Blocked", "Claimed", "Completed", "Failed", "NoTask", "Published", "Retried", "Taken",
        "TaskCancelled", "TaskDeadlock", "TaskExists", "TaskExtended", "TaskFenced", "TaskNotOwner",
        "TaskReleased", "TaskRequeued", "Unchanged",
    ),
    "interlock.nouns.record.outcomes": ("Anchored", "Exported"),
    "interlock.errors": (
        "BadInput", "Changed", "Deadlocked", "InterlockError", "Lapsed", "Lost", "NotAllowed",
        "StoreTrouble", "Unavailable",
    ),
    "interlock.runtime.maintain": ("Maintained",),
    "interlock.nouns.messages.views": ("Arrived", "NothingUnread"),
    "interlock.runtime.identity": ("trace",),
}  # fmt: skip
_MODULES = ("aio", "errors")
"""What ``import interlock`` is enough for, too."""

__all__ = [
    "Acknowledged", "Acquired", "AlreadyAcknowledged", "AlreadyFree", "AlreadyHeld",
    "AlreadyResolved", "Anchored", "Answered", "Arrived", "Asked", "Away", "BadInput", "Blocked",
    "Broken", "Busy", "Cancelled", "Changed", "Checked", "Claimed", "Completed", "Deadlock",
    "Deadlocked", "DeathsAcknowledged", "Exists", "Expired", "Exported", "Extended", "Failed",
    "Fenced", "Fleet", "Forgotten", "Full", "GivenFenced", "Gone", "Granted", "Halted", "Handed",
    "Held", "Imported", "InboxFull", "Increased", "InterlockError", "Joined", "Lapsed", "Late",
    "Leaving", "Left", "Limited", "LockAcquired", "LockBroken", "LockBusy", "LockDeadlock",
    "LockExtended", "LockFenced", "LockGone", "LockGranted", "LockNotOwner", "LockReleased",
    "LockWaiting", "Lost", "Maintained", "Message", "MessageExists", "Moved", "NoDeath", "NoHolder",
    "NoSemaphore", "NoTask", "NobodyToAsk", "NobodyToStop", "NotAllowed", "NotAsked", "NotHolder",
    "NotOwner", "NotSubscribed", "Nothing", "NothingUnread", "Paused", "PausedAgent", "PlanExists",
    "Proof", "Published", "QueryCancelled", "QueryDeadlock", "QueryExists", "Reclaimed", "Refusal",
    "Released", "Removed", "Renewed", "Replied", "Reported", "Resized", "Resolved", "Resumed",
    "Retried", "Sent", "SessionLapsed", "SeveralAcquired", "SeveralBusy", "SeveralDeadlock",
    "SeveralFenced", "SeveralGone", "SeveralNotOwner", "SeveralReleased", "SeveralWaiting",
    "SlotsAcquired", "SlotsBroken", "SlotsDeadlock", "SlotsFenced", "SlotsFull", "SlotsGone",
    "SlotsGranted", "SlotsReleased", "SlotsWaiting", "StoreTrouble", "Subscribed", "Success",
    "Taken", "TakenBack", "TaskCancelled", "TaskDeadlock", "TaskExists", "TaskExtended",
    "TaskFenced", "TaskNotOwner", "TaskReleased", "TaskRequeued", "TimedOut", "TooMany",
    "Unavailable", "Unchanged", "Unknown", "UnknownAgent", "UnknownDecision", "UnknownMessages",
    "UnknownQuery", "Unreported", "Unsubscribed", "Uploaded", "Waiting", "__version__", "connect",
    "trace",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, once: a command pays only for what it needs."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"interlock.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(import_module(home), name))
    raise AttributeError(f"module 'interlock' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, also those that nobody has used yet: an editor or a shell completes them."""
    return sorted({*globals(), *__all__, *_MODULES})
