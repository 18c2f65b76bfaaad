"""Several locks and slots at once on a store; ``service.py`` has the operations on their pools."""

from __future__ import annotations

from interlock.core.decision import Proof
from interlock.drivers import Op
from interlock.nouns.grants import several as core
from interlock.nouns.grants.service import GrantService
from interlock.runtime.identity import Actor, Identity


class SeveralService:
    """Every operation on several things; the methods are generators for a driver."""

    def __init__(self, grants: GrantService) -> None:
        self._grants = grants

    def acquire(
        self,
        identity: Identity,
        parts: tuple[core.ThingRequest, ...],
        *,
        ttl: float | None = None,
        max_hold: float | None = None,
        metadata: object = None,
        wait: float | None = None,
        given: tuple[Proof, ...] = (),
    ) -> Op[core.AcquireOutcome]:
        """Take all of them, or queue for all of them until the wait is over; or take none."""
        request = core.SeveralGrantRequest(
            parts=parts,
            grant="",
            agent="",
            session="",
            ttl=ttl,
            max_hold=max_hold,
            metadata=metadata,
        )
        return self._grants.acquire(identity, request, wait=wait, given=given)

    def release(
        self,
        actor: Actor,
        things: tuple[str, ...],
        *,
        token: int | None = None,
        grant: str = "",
        weights: tuple[tuple[str, int], ...] = (),
    ) -> Op[core.ReleaseOutcome]:
        """Release all of them with one commit."""
        request = core.SeveralHolderRequest(
            things=things,
            weights=weights,
            agent=actor.agent,
            session=actor.session,
            token=token,
            grant=grant,
        )
        return self._grants.release(actor, request)
