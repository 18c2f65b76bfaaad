"""Claims, locks and messages for fleets of agents.

One file on a laptop, one cluster in production.  Start with ``connect``; ``interlock.aio`` has
the same names for event loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.version import __version__

if TYPE_CHECKING:
    from interlock.client import Fleet, Held, connect
    from interlock.client_messages import Message
    from interlock.core.answers import Acquired, Busy, Deadlock, Fenced, NotOwner, Released
    from interlock.core.lock import AlreadyFree, Extended, Reclaimed
    from interlock.core.message import Limited, Sent
    from interlock.core.pool import Proof
    from interlock.core.query import Answered, TimedOut
    from interlock.core.semaphore import AlreadyHeld, Full, Increased, NotHolder
    from interlock.core.task import Blocked, Claimed, Completed, Nothing, Published, Taken
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
    from interlock.services.trace import trace

_HOMES = {
    "interlock.client": ("Fleet", "Held", "connect"),
    "interlock.client_messages": ("Message",),
    "interlock.core.answers": ("Acquired", "Busy", "Deadlock", "Fenced", "NotOwner", "Released"),
    "interlock.core.lock": ("AlreadyFree", "Extended", "Reclaimed"),
    "interlock.core.message": ("Limited", "Sent"),
    "interlock.core.pool": ("Proof",),
    "interlock.core.query": ("Answered", "TimedOut"),
    "interlock.core.semaphore": ("AlreadyHeld", "Full", "Increased", "NotHolder"),
    "interlock.core.task": (
        "Blocked", "Claimed", "Completed", "Nothing", "Published", "Taken",
    ),
    "interlock.errors": (
        "BadInput", "Changed", "Deadlocked", "InterlockError", "Lapsed", "Lost", "NotAllowed",
        "StoreTrouble", "Unavailable",
    ),
    "interlock.services.trace": ("trace",),
}  # fmt: skip

__all__ = [
    "Acquired",
    "AlreadyFree",
    "AlreadyHeld",
    "Answered",
    "BadInput",
    "Blocked",
    "Busy",
    "Changed",
    "Claimed",
    "Completed",
    "Deadlock",
    "Deadlocked",
    "Extended",
    "Fenced",
    "Fleet",
    "Full",
    "Held",
    "Increased",
    "InterlockError",
    "Lapsed",
    "Limited",
    "Lost",
    "Message",
    "NotAllowed",
    "NotHolder",
    "NotOwner",
    "Nothing",
    "Proof",
    "Published",
    "Reclaimed",
    "Released",
    "Sent",
    "StoreTrouble",
    "Taken",
    "TimedOut",
    "Unavailable",
    "__version__",
    "connect",
    "trace",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a command pays only for what it needs."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(home), name)
    raise AttributeError(f"module 'interlock' has no attribute {name!r}")
