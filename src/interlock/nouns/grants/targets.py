"""What a ``with`` block may want to hold: a lock, slots, or several things at once."""

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
    """On what terms a block wants what it wants."""

    wait: float | str
    ttl: float | str | None
    max_hold: float | str | None
    metadata: object
    given: Given


class BlockTarget(Protocol):
    """What a block wants to hold."""

    @property
    def things(self) -> tuple[str, ...]:
        """All of it, as people name it."""

    def settings(self, context: Context) -> Mapping[str, float]:
        """What the settings say about it."""

    def acquire(self, context: Context, terms: BlockTerms) -> Op[Any]:
        """Ask for it."""

    def request(self, grant: str) -> GrantRequest[Any]:
        """What is to be taken back if it cannot be given back."""

    def release(self, context: Context, grant: str, token: int | None) -> Op[Any]:
        """Give it back."""


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
        """Those of this lock."""
        return context.settings.lock(self.name, context.runner.capabilities.min_ttl)

    def acquire(self, context: Context, terms: BlockTerms) -> Op[lock.AcquireOutcome]:
        """Ask for it."""
        return LockCalls(context).acquire(self.name, **_asked(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """The lock under this grant."""
        return lock.LockGrantRequest(lock=self.name, grant=grant, agent="", session="")

    def release(self, context: Context, grant: str, token: int | None) -> Op[lock.ReleaseOutcome]:
        """Give it back."""
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
        """Those of this semaphore."""
        return context.settings.semaphore(self.name, context.runner.capabilities.min_ttl)

    def acquire(self, context: Context, terms: BlockTerms) -> Op[semaphore.AcquireOutcome]:
        """Ask for them."""
        calls = SemaphoreCalls(context)
        return calls.acquire(self.name, weight=self.weight, capacity=self.capacity, **_asked(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """The slots under this grant."""
        from interlock.nouns.grants import semaphore

        return semaphore.SlotsGrantRequest(semaphore=self.name, grant=grant, agent="", session="")

    def release(
        self, context: Context, grant: str, token: int | None
    ) -> Op[semaphore.ReleaseOutcome]:
        """Give them back."""
        return context.semaphores.release(context.me().actor, self.name, token=token, grant=grant)


class SeveralTarget(Struct, frozen=True):
    """Several things at once."""

    named: tuple[str, ...]

    @property
    def things(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(part.thing for part in parsed(self.named))

    def settings(self, context: Context) -> Mapping[str, float]:
        """None: each of them may have others."""
        del context
        parsed(self.named)
        return {}

    def acquire(self, context: Context, terms: BlockTerms) -> Op[several.AcquireOutcome]:
        """Ask for all of them."""
        return SeveralCalls(context).acquire(*self.named, **_asked(terms))

    def request(self, grant: str) -> GrantRequest[Any]:
        """All of them under this grant."""
        from interlock.nouns.grants import several

        return several.SeveralGrantRequest(
            parts=parsed(self.named), grant=grant, agent="", session=""
        )

    def release(
        self, context: Context, grant: str, token: int | None
    ) -> Op[several.ReleaseOutcome]:
        """Give all of them back."""
        return context.several.release(context.me().actor, self.things, token=token, grant=grant)


def _asked(terms: BlockTerms) -> dict[str, Any]:
    return {
        "ttl": terms.ttl,
        "wait": terms.wait,
        "max_hold": terms.max_hold,
        "metadata": terms.metadata,
        "given": terms.given,
    }
