"""Tasks, locks, semaphores and messages for fleets of AI agents.

One file on a laptop, one cluster in production.  Start with ``connect``; ``interlock.aio`` has the
same names for event loops.  ``interlock.outcomes`` has all that a call can return; each outcome can
be written ``interlock.Acquired``, too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # without typing: a command imports that when the collector is off
if TYPE_CHECKING:
    from types import ModuleType

    from interlock import aio as aio
    from interlock import errors as errors
    from interlock import guard as guard
    from interlock import outcomes as outcomes
    from interlock.client import Fleet, connect
    from interlock.client_blocks import Held
    from interlock.client_messages import Message
    from interlock.core.decision import Proof, Refusal, Success
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
        Unproven,
    )
    from interlock.outcomes import *  # noqa: F403 - each is a name of the package, too
    from interlock.runtime.identity import trace
    from interlock.version import __version__

_HOMES = {
    "interlock.client": ("Fleet", "connect"),
    "interlock.client_blocks": ("Held",),
    "interlock.client_messages": ("Message",),
    "interlock.core.decision": ("Proof", "Refusal", "Success"),
    "interlock.errors": (
        "BadInput", "Changed", "Deadlocked", "InterlockError", "Lapsed", "Lost",
        "NotAllowed", "StoreTrouble", "Unavailable", "Unproven",
    ),
    "interlock.runtime.identity": ("trace",),
    "interlock.version": ("__version__",),
}  # fmt: skip
_MODULES = ("aio", "errors", "guard", "outcomes")

__all__ = [
    "BadInput", "Changed", "Deadlocked", "Fleet", "Held", "InterlockError", "Lapsed", "Lost",
    "Message", "NotAllowed", "Proof", "Refusal", "StoreTrouble", "Success", "Unavailable",
    "Unproven", "__version__", "aio", "connect", "errors", "guard", "outcomes", "trace",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a command pays only for what it needs."""
    if name in _MODULES:
        return _imported(f"interlock.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(_imported(home), name))
    if name[:1].isupper():  # else it is a module that is about to be imported
        outcomes = _imported("interlock.outcomes")
        if name in outcomes.__all__:
            return globals().setdefault(name, getattr(outcomes, name))
    raise AttributeError(f"module 'interlock' has no attribute {name!r}")


def _imported(module: str) -> ModuleType:
    from importlib import import_module  # most commands need no name of this package

    return import_module(module)


def __dir__() -> list[str]:
    """Public names, also those that are not imported yet: an editor or a shell completes them."""
    return sorted({*globals(), *__all__})
