"""Claims, locks and messages for fleets of agents.

One file on a laptop, one cluster in production.  Start with ``connect``; ``interlock.aio`` has
the same names for event loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.version import __version__

if TYPE_CHECKING:
    from interlock.client import Fleet, Held, connect
    from interlock.core.lock import (
        Acquired,
        AlreadyFree,
        Busy,
        Extended,
        Fenced,
        NotOwner,
        Proof,
        Reclaimed,
        Released,
    )
    from interlock.errors import (
        BadInput,
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
    "interlock.core.lock": (
        "Acquired", "AlreadyFree", "Busy", "Extended", "Fenced", "NotOwner", "Proof", "Reclaimed",
        "Released",
    ),
    "interlock.errors": (
        "BadInput", "InterlockError", "Lapsed", "Lost", "NotAllowed", "StoreTrouble", "Unavailable",
    ),
    "interlock.services.trace": ("trace",),
}  # fmt: skip

__all__ = [
    "Acquired",
    "AlreadyFree",
    "BadInput",
    "Busy",
    "Extended",
    "Fenced",
    "Fleet",
    "Held",
    "InterlockError",
    "Lapsed",
    "Lost",
    "NotAllowed",
    "NotOwner",
    "Proof",
    "Reclaimed",
    "Released",
    "StoreTrouble",
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
