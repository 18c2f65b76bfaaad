"""The targets of a ``with`` block: a lock, slots, or several things at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from interlock.drivers import Op
from interlock.nouns.grants import lock
from interlock.nouns.grants.calls import LockCalls, SemaphoreCalls, SeveralCalls, named, parsed
from interlock.nouns.grants.request import GrantRequest
from interlock.runtime.context import Context
from interlock.runtime.given import Given

if TYPE_CHECKING:
    from interlock.nouns.grants import semaphore, several


class BlockTerms(Struct, frozen=True, kw_only=True):
    """The terms of a block."""

    wait: float | str
    ttl: float | str | None
    max_hold: float | str | None
    metadata: object
    given: Given


class BlockTarget(Protocol):
    """The things that a block holds."""

    @property
    def things(self) -> tuple[str, ...]:
        """The things, as users name them."""

    def settings(self, context: Context) -> Mapping[str, float]:
        """The settings for it."""

    def acquire(self, context: Context, terms: BlockTerms) -> Op[Any]:
        """Acquire it."""

    def request(self, grant: str) -> GrantRequest[Any]:
        """The request of a grant, for its pending release."""

    def release(self, context: Context, grant: str, token: int | None) -> Op[Any]:
        """Release it."""


class LockTarget(Struct, frozen=True):
    """One lock."""

    name: str

    def __post_init__(self) -> None:
        force_setattr(self, "name", named(self.name, "lock"))

    @property
    def things(self) -> tuple[str, ...]:
        """The lock."""
        return (f"lock/{self.name}",)

    def settings(self, context: Context) -> Mapping[str, float]:
        """The settings of this lock."""
        return context.settings.lock(self.name, context.runner.capabilities.min_ttl)

    def acquire(self, context: Context, terms: BlockTerms) -> Op[lock.AcquireOutcome]:
        """Acquire it."""
        return LockCalls(context).acquire(self.name, **_terms(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """The lock under this grant."""
        return lock.LockGrantRequest(lock=self.name, grant=grant, agent="", session="")

    def release(self, context: Context, grant: str, token: int | None) -> Op[lock.ReleaseOutcome]:
        """Release it."""
        return context.locks.release(context.me().actor, self.name, token=token, grant=grant)


class SlotsTarget(Struct, frozen=True):
    """Slots of one semaphore."""

    name: str
    weight: int = 1
    capacity: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "name", named(self.name, "semaphore"))

    @property
    def things(self) -> tuple[str, ...]:
        """The semaphore."""
        return (f"sem/{self.name}",)

    def settings(self, context: Context) -> Mapping[str, float]:
        """The settings of this semaphore."""
        return context.settings.semaphore(self.name, context.runner.capabilities.min_ttl)

    def acquire(self, context: Context, terms: BlockTerms) -> Op[semaphore.AcquireOutcome]:
        """Acquire them."""
        calls = SemaphoreCalls(context)
        return calls.acquire(self.name, weight=self.weight, capacity=self.capacity, **_terms(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """The slots under this grant."""
        from interlock.nouns.grants import semaphore

        return semaphore.SlotsGrantRequest(semaphore=self.name, grant=grant, agent="", session="")

    def release(
        self, context: Context, grant: str, token: int | None
    ) -> Op[semaphore.ReleaseOutcome]:
        """Release them."""
        return context.semaphores.release(context.me().actor, self.name, token=token, grant=grant)


class SeveralTarget(Struct, frozen=True):
    """Several things at once."""

    named: tuple[str, ...]

    @property
    def things(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(part.thing for part in parsed(self.named))

    def settings(self, context: Context) -> Mapping[str, float]:
        """None: each thing may have other settings."""
        del context
        parsed(self.named)
        return {}

    def acquire(self, context: Context, terms: BlockTerms) -> Op[several.AcquireOutcome]:
        """Acquire all of them."""
        return SeveralCalls(context).acquire(*self.named, **_terms(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """All of them under this grant."""
        from interlock.nouns.grants import several

        return several.SeveralGrantRequest(
            parts=parsed(self.named), grant=grant, agent="", session=""
        )

    def release(
        self, context: Context, grant: str, token: int | None
    ) -> Op[several.ReleaseOutcome]:
        """Release all of them."""
        return context.several.release(context.me().actor, self.things, token=token, grant=grant)


def _terms(terms: BlockTerms) -> dict[str, Any]:
    return {
        "ttl": terms.ttl,
        "wait": terms.wait,
        "max_hold": terms.max_hold,
        "metadata": terms.metadata,
        "given": terms.given,
    }
