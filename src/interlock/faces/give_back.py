"""Release a grant that no caller will ever use: its answer did not reach the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from interlock.core.outcomes import Acquired

if TYPE_CHECKING:
    from interlock.client import Fleet


def unused_grant(outcome: object) -> Acquired | None:
    """The grant that an outcome brings: its own, or the claim of the next task."""
    found = outcome if isinstance(outcome, Acquired) else getattr(outcome, "next", None)
    return found if isinstance(found, Acquired) else None


def things_of(grant: Acquired) -> tuple[str, tuple[str, ...]]:
    """The kind of a grant (lock, semaphore, things, task), and the names of what it is of."""
    kind = next(name for name in ("lock", "semaphore", "things", "task") if hasattr(grant, name))
    named = getattr(grant, kind)
    return kind, named if isinstance(named, tuple) else (named,)


def release(fleet: Fleet, grant: Acquired) -> None:
    """Release it."""
    kind, things = things_of(grant)
    releases: dict[str, Callable[..., object]] = {
        "lock": fleet.locks.release,
        "semaphore": fleet.semaphores.release,
        "things": fleet.several.release,
        "task": fleet.tasks.release,
    }
    releases[kind](*things, token=grant.token)
