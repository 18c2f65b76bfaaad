"""Every outcome of every call, for ``match``: ``case outcomes.Claimed(task=t, token=n):``.

An outcome is imported when it is first used, so that a program pays only for what it needs.  Each
is a name of ``interlock``, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core.outcomes import (
        Acquired,
        Allowed,
        Answered,
        Away,
        Blocked,
        Broken,
        Busy,
        Cancelled,
        Completed,
        Deadlock,
        Defined,
        Denied,
        Exists,
        Extended,
        Failed,
        Fenced,
        Full,
        GivenFenced,
        Gone,
        Granted,
        GuardBlocked,
        NoGuard,
        Nothing,
        NotOwner,
        Paused,
        Released,
        Unknown,
        Waiting,
    )
    from interlock.nouns.agents.log_rules import Uploaded
    from interlock.nouns.agents.report_rules import Reported, Unreported
    from interlock.nouns.agents.session_rules import (
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
    from interlock.nouns.guards.results import GuardDropped, GuardsDefined, GuardsLooked
    from interlock.nouns.messages.decision import (
        AlreadyResolved,
        NoSuchOption,
        OwnDecision,
        Resolved,
        UnknownDecision,
    )
    from interlock.nouns.messages.message import (
        Acknowledged,
        AlreadyAcknowledged,
        Arrived,
        Halted,
        InboxFull,
        Limited,
        MessageExists,
        NobodyToStop,
        NothingUnread,
        NotSubscribed,
        PausedAgent,
        Resumed,
        Sent,
        Subscribed,
        UnknownAgent,
        UnknownMessages,
        Unsubscribed,
    )
    from interlock.nouns.messages.query import (
        Asked,
        Handed,
        Late,
        NobodyToAsk,
        NotAsked,
        QueryAnswered,
        QueryCancelled,
        QueryDeadlock,
        QueryExists,
        Replied,
        TakenBack,
        TimedOut,
        TooMany,
        UnknownQuery,
    )
    from interlock.nouns.pipelines.pipeline import (
        Overtaken,
        PipelineAdvanced,
        PipelineBlocked,
        PipelineCancelled,
        PipelineCompleted,
        PipelineDefined,
        PipelineExists,
        PipelineFailed,
        PipelineStarted,
        UnknownDefinition,
        UnknownPipeline,
    )
    from interlock.nouns.record.noun import Anchored, Exported
    from interlock.nouns.requests.outcomes import (
        AuditBusy,
        AuditWritten,
        QuarantineDropped,
        QuarantineKept,
        QuarantineReleased,
        RequestAnswered,
        RequestCancelled,
        RequestExists,
        RequestFailed,
        RequestLimited,
        RequestOpen,
        RequestOver,
        RequestSent,
        SwarmNotAllowed,
        SwarmQueueFull,
        SwarmUnavailable,
        UnknownQuarantine,
        UnknownRequest,
    )
    from interlock.nouns.swarms.results import (
        Forgiven,
        KeyMade,
        KeyRevoked,
        KeyRotated,
        NameTaken,
        NotRegistered,
        SwarmAllowed,
        SwarmDenied,
        SwarmNotSynced,
        SwarmRegistered,
        SwarmRevokedKey,
        SwarmSynced,
        UnknownSwarm,
    )
    from interlock.nouns.swarms.sync_results import (
        SharesFull,
        ShareSpooled,
        ShareUndecided,
        UnknownShared,
        ValueShared,
    )
    from interlock.nouns.tasks.progress_rules import Expired, Moved
    from interlock.nouns.tasks.task import (
        Checked,
        Claimed,
        EvidenceFailed,
        EvidenceMissing,
        Imported,
        NoTask,
        PlanExists,
        Published,
        Retried,
        Taken,
        TaskBlocked,
        TaskCancelled,
        TaskCompleted,
        TaskDeadlock,
        TaskExists,
        TaskExtended,
        TaskFailed,
        TaskFenced,
        TaskNotOwner,
        TaskReleased,
        TaskRequeued,
        Unchanged,
    )
    from interlock.runtime.housekeeping import Maintained
    from interlock.runtime.retention import Forgotten

HOMES = {
    "interlock.core.outcomes": (
        "Acquired", "Allowed", "Answered", "Away", "Blocked", "Broken", "Busy", "Cancelled",
        "Completed", "Deadlock", "Defined", "Denied", "Exists", "Extended", "Failed", "Fenced",
        "Full", "GivenFenced", "Gone", "Granted", "GuardBlocked", "NoGuard", "NotOwner", "Nothing",
        "Paused", "Released", "Unknown", "Waiting",
    ),
    "interlock.nouns.agents.log_rules": ("Uploaded",),
    "interlock.nouns.agents.report_rules": ("Reported", "Unreported"),
    "interlock.nouns.agents.session_rules": (
        "DeathsAcknowledged", "Joined", "Leaving", "Left", "NoDeath", "Renewed",
        "SessionLapsed",
    ),
    "interlock.nouns.grants.lock": (
        "AlreadyFree", "LockAcquired", "LockBroken", "LockBusy", "LockDeadlock",
        "LockExtended", "LockFenced", "LockGone", "LockGranted", "LockNotOwner",
        "LockReleased", "LockWaiting", "Reclaimed",
    ),
    "interlock.nouns.grants.semaphore": (
        "AlreadyHeld", "Increased", "NoHolder", "NoSemaphore", "NotHolder", "Removed",
        "Resized", "SlotsAcquired", "SlotsBroken", "SlotsDeadlock", "SlotsFenced",
        "SlotsFull", "SlotsGone", "SlotsGranted", "SlotsReleased", "SlotsWaiting",
    ),
    "interlock.nouns.grants.several": (
        "SeveralAcquired", "SeveralBusy", "SeveralDeadlock", "SeveralFenced", "SeveralGone",
        "SeveralNotOwner", "SeveralReleased", "SeveralWaiting",
    ),
    "interlock.nouns.guards.results": ("GuardDropped", "GuardsDefined", "GuardsLooked"),
    "interlock.nouns.messages.decision": (
        "AlreadyResolved", "NoSuchOption", "OwnDecision", "Resolved", "UnknownDecision",
    ),
    "interlock.nouns.messages.message": (
        "Acknowledged", "AlreadyAcknowledged", "Arrived", "Halted", "InboxFull", "Limited",
        "MessageExists", "NobodyToStop", "NotSubscribed", "NothingUnread", "PausedAgent", "Resumed",
        "Sent", "Subscribed", "UnknownAgent", "UnknownMessages", "Unsubscribed",
    ),
    "interlock.nouns.messages.query": (
        "Asked", "Handed", "Late", "NobodyToAsk", "NotAsked", "QueryAnswered", "QueryCancelled",
        "QueryDeadlock", "QueryExists", "Replied", "TakenBack", "TimedOut", "TooMany",
        "UnknownQuery",
    ),
    "interlock.nouns.pipelines.pipeline": (
        "Overtaken", "PipelineAdvanced", "PipelineBlocked", "PipelineCancelled",
        "PipelineCompleted", "PipelineDefined", "PipelineExists", "PipelineFailed",
        "PipelineStarted", "UnknownDefinition", "UnknownPipeline",
    ),
    "interlock.nouns.record.noun": ("Anchored", "Exported"),
    "interlock.nouns.requests.outcomes": (
        "AuditBusy", "AuditWritten", "QuarantineDropped", "QuarantineKept", "QuarantineReleased",
        "RequestAnswered", "RequestCancelled", "RequestExists", "RequestFailed", "RequestLimited",
        "RequestOpen", "RequestOver", "RequestSent", "SwarmNotAllowed", "SwarmQueueFull",
        "SwarmUnavailable", "UnknownQuarantine", "UnknownRequest",
    ),
    "interlock.nouns.swarms.results": (
        "Forgiven", "KeyMade", "KeyRevoked", "KeyRotated", "NameTaken", "NotRegistered",
        "SwarmAllowed", "SwarmDenied", "SwarmNotSynced", "SwarmRegistered", "SwarmRevokedKey",
        "SwarmSynced", "UnknownSwarm",
    ),
    "interlock.nouns.swarms.sync_results": (
        "ShareSpooled", "ShareUndecided", "SharesFull", "UnknownShared", "ValueShared",
    ),
    "interlock.nouns.tasks.progress_rules": ("Expired", "Moved"),
    "interlock.nouns.tasks.task": (
        "Checked", "Claimed", "EvidenceFailed", "EvidenceMissing", "Imported", "NoTask",
        "PlanExists", "Published", "Retried", "Taken", "TaskBlocked", "TaskCancelled",
        "TaskCompleted", "TaskDeadlock", "TaskExists", "TaskExtended", "TaskFailed", "TaskFenced",
        "TaskNotOwner", "TaskReleased", "TaskRequeued", "Unchanged",
    ),
    "interlock.runtime.housekeeping": ("Maintained",),
    "interlock.runtime.retention": ("Forgotten",),
}  # fmt: skip
"""Where each outcome is defined."""

__all__ = [
    "Acknowledged", "Acquired", "Allowed", "AlreadyAcknowledged", "AlreadyFree", "AlreadyHeld",
    "AlreadyResolved", "Anchored", "Answered", "Arrived", "Asked", "AuditBusy", "AuditWritten",
    "Away", "Blocked", "Broken", "Busy", "Cancelled", "Checked", "Claimed", "Completed", "Deadlock",
    "DeathsAcknowledged", "Defined", "Denied", "EvidenceFailed", "EvidenceMissing", "Exists",
    "Expired", "Exported", "Extended", "Failed", "Fenced", "Forgiven", "Forgotten", "Full",
    "GivenFenced", "Gone", "Granted", "GuardBlocked", "GuardDropped", "GuardsDefined",
    "GuardsLooked", "Halted", "Handed", "Imported", "InboxFull", "Increased", "Joined", "KeyMade",
    "KeyRevoked", "KeyRotated", "Late", "Leaving", "Left", "Limited", "LockAcquired", "LockBroken",
    "LockBusy", "LockDeadlock", "LockExtended", "LockFenced", "LockGone", "LockGranted",
    "LockNotOwner", "LockReleased", "LockWaiting", "Maintained", "MessageExists", "Moved",
    "NameTaken", "NoDeath", "NoGuard", "NoHolder", "NoSemaphore", "NoSuchOption", "NoTask",
    "NobodyToAsk", "NobodyToStop", "NotAsked", "NotHolder", "NotOwner", "NotRegistered",
    "NotSubscribed", "Nothing", "NothingUnread", "Overtaken", "OwnDecision", "Paused",
    "PausedAgent", "PipelineAdvanced", "PipelineBlocked", "PipelineCancelled", "PipelineCompleted",
    "PipelineDefined", "PipelineExists", "PipelineFailed", "PipelineStarted", "PlanExists",
    "Published", "QuarantineDropped", "QuarantineKept", "QuarantineReleased", "QueryAnswered",
    "QueryCancelled", "QueryDeadlock", "QueryExists", "Reclaimed", "Released", "Removed", "Renewed",
    "Replied", "Reported", "RequestAnswered", "RequestCancelled", "RequestExists", "RequestFailed",
    "RequestLimited", "RequestOpen", "RequestOver", "RequestSent", "Resized", "Resolved", "Resumed",
    "Retried", "Sent", "SessionLapsed", "SeveralAcquired", "SeveralBusy", "SeveralDeadlock",
    "SeveralFenced", "SeveralGone", "SeveralNotOwner", "SeveralReleased", "SeveralWaiting",
    "ShareSpooled", "ShareUndecided", "SharesFull", "SlotsAcquired", "SlotsBroken", "SlotsDeadlock",
    "SlotsFenced", "SlotsFull", "SlotsGone", "SlotsGranted", "SlotsReleased", "SlotsWaiting",
    "Subscribed", "SwarmAllowed", "SwarmDenied", "SwarmNotAllowed", "SwarmNotSynced",
    "SwarmQueueFull", "SwarmRegistered", "SwarmRevokedKey", "SwarmSynced", "SwarmUnavailable",
    "Taken", "TakenBack",
    "TaskBlocked", "TaskCancelled", "TaskCompleted", "TaskDeadlock", "TaskExists", "TaskExtended",
    "TaskFailed", "TaskFenced", "TaskNotOwner", "TaskReleased", "TaskRequeued", "TimedOut",
    "TooMany", "Unchanged", "Unknown", "UnknownAgent", "UnknownDecision", "UnknownDefinition",
    "UnknownMessages", "UnknownPipeline", "UnknownQuarantine", "UnknownQuery", "UnknownRequest",
    "UnknownShared", "UnknownSwarm", "Unreported", "Unsubscribed", "Uploaded", "ValueShared",
    "Waiting",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import an outcome when it is first used."""
    from importlib import import_module

    for home, names in HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(import_module(home), name))
    raise AttributeError(f"module 'interlock.outcomes' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All outcomes, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
