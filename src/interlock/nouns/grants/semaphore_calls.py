"""The calls of semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from interlock.core import keys, validate
from interlock.core.validate import CAPACITY
from interlock.nouns.grants import semaphore as semaphores
from interlock.nouns.grants.calls import acquire
from interlock.nouns.grants.request import GrantTerms
from interlock.nouns.grants.semaphore import SemaphoreView, SlotsTarget
from interlock.runtime.calls import Calls, D, call, grants
from interlock.runtime.given import Given
from interlock.steps import Op


class SemaphoreCalls(Calls[D]):
    """Semaphores, by name."""

    @grants
    def acquire(
        self,
        name: str,
        *,
        weight: int = 1,
        capacity: int | None = None,
        ttl: float | str | None = None,
        wait: float | str = 0,
        max_hold: float | str | None = None,
        metadata: object = None,
        token: int | None = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Op[semaphores.AcquireOutcome]:
        """Take slots of a semaphore, or say how many there are.

        The first request that names a ``capacity`` makes the semaphore; one that names another
        is refused.  With the ``token`` of a grant it is kept (``AlreadyHeld``), or gets more
        (``Increased``).  No request overtakes a waiter, so a large ``weight`` is never starved.
        ``wait``, ``ttl``, ``max_hold``, ``given`` and ``guard`` are as for locks.
        """
        terms = GrantTerms(
            wait=wait,
            ttl=ttl,
            max_hold=max_hold,
            metadata=metadata,
            token=token,
            given=given,
            guard=guard,
        )
        target = partial(SlotsTarget, name, weight, capacity)
        return acquire(self.context, "a wait for slots", target, terms)

    @call
    def release(self, name: str, *, token: int | None = None) -> Op[semaphores.ReleaseOutcome]:
        """Release slots; the first waiters that fit have them with the same commit."""
        actor = self.context.me().actor
        return self.context.grants.release(actor, SlotsTarget(name), token=validate.token(token))

    @call
    def heartbeat(self, name: str, *, token: int | None = None) -> Op[semaphores.BeatOutcome]:
        """Renew a grant; an expired one is not revived."""
        identity = self.context.me()
        return self.context.grants.heartbeat(
            identity.actor,
            SlotsTarget(name),
            token=validate.token(token),
            session_ttl=identity.session_ttl,
        )

    beat = heartbeat

    @call
    def resize(self, name: str, capacity: int) -> Op[semaphores.Resized]:
        """Set the capacity for all callers; no holder loses a slot."""
        from interlock.nouns.grants import semaphore

        actor, name = self.context.me().actor, SlotsTarget(name).name
        capacity = validate.count(capacity, "capacity", CAPACITY)
        decide = partial(semaphore.resize, name, capacity, agent=actor.agent)
        return self.context.grants.change_pool(actor, keys.semaphore(name), decide)

    @call
    def remove(
        self, name: str
    ) -> Op[semaphores.Removed | semaphores.SlotsFull | semaphores.NoSemaphore]:
        """Remove a semaphore, unless it has holders or waiters."""
        from interlock.nouns.grants import semaphore

        actor, name = self.context.me().actor, SlotsTarget(name).name
        decide = partial(semaphore.remove, name)
        return self.context.grants.change_pool(actor, keys.semaphore(name), decide)

    @call
    def break_(
        self, name: str, reason: str, *, holder: str = "", token: int | None = None
    ) -> Op[semaphores.BreakOutcome]:
        """End the grant of a holder of slots, alive or not: for operators.

        ``holder`` or ``token`` say which grant, where there are several; otherwise as for locks.
        """
        actor, target = self.context.me().actor, SlotsTarget(name)
        return self.context.grants.break_grant(
            actor,
            target,
            holder=validate.name(holder, "agent name") if holder else "",
            reason=validate.reason(reason),
            token=validate.token(token),
        )

    @call
    def list(self) -> Op[tuple[SemaphoreView, ...]]:
        """All semaphores."""
        from interlock.nouns.grants import views

        return views.semaphores(self.context.runner)

    @call
    def show(self, name: str) -> Op[SemaphoreView | semaphores.NoSemaphore]:
        """One semaphore: its holders, their tokens, its queue."""
        from interlock.nouns.grants import views

        return views.semaphore(self.context.runner, SlotsTarget(name).name)
