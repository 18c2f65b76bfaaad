"""Release grants that no caller will ever use: their answer did not reach the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from interlock.core.outcomes import Acquired

if TYPE_CHECKING:
    from interlock.client import Fleet


_KINDS = ("lock", "semaphore", "things", "task", "patterns")


def unused_grants(outcome: object) -> tuple[Acquired, ...]:
    """The grants that an outcome brings: its own, those of one commit, the claim of the next."""
    found = outcome if isinstance(outcome, Acquired) else getattr(outcome, "next", None)
    return (found, *getattr(found, "others", ())) if isinstance(found, Acquired) else ()


def things_of(grant: Acquired) -> tuple[str, tuple[str, ...]]:
    """The kind of a grant (``_KINDS``), and the names of what it is of."""
    kind = next(name for name in _KINDS if hasattr(grant, name))
    named = getattr(grant, kind)
    return kind, named if isinstance(named, tuple) else (named,)


def release(fleet: Fleet, grants: Iterable[Acquired]) -> None:
    """Release them."""
    releases: dict[str, Callable[..., object]] = {
        "lock": fleet.locks.release,
        "semaphore": fleet.semaphores.release,
        "things": fleet.several.release,
        "task": fleet.tasks.release,
        "patterns": fleet.reservations.unreserve,
    }
    for grant in grants:
        kind, things = things_of(grant)
        releases[kind](*things, token=grant.token)
