"""The calls of several locks and slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from interlock.core import validate
from interlock.nouns.grants import several
from interlock.nouns.grants.calls import acquire
from interlock.nouns.grants.request import GrantTerms
from interlock.runtime.calls import Calls, D, call, grants
from interlock.runtime.given import Given
from interlock.steps import Op


class SeveralCalls(Calls[D]):
    """Several locks and slots at once."""

    @grants
    def acquire(
        self,
        *things: str,
        ttl: float | str | None = None,
        wait: float | str = 0,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Op[several.AcquireOutcome]:
        """Take all of these with one commit, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``.
        With ``wait`` it queues for all of them at once, and gets all of them at once.
        A semaphore must be there already, or have its capacity in the settings.
        ``guard`` is as for locks.
        """
        terms = GrantTerms(
            wait=wait, ttl=ttl, max_hold=max_hold, metadata=metadata, given=given, guard=guard
        )
        return acquire(
            self.context, several.SeveralTarget.about, partial(several.target_of, things), terms
        )

    @call
    def release(self, *things: str, token: int | None = None) -> Op[several.ReleaseOutcome]:
        """Give all of these back with one commit."""
        actor, target = self.context.me().actor, several.target_of(things)
        said = zip(target.parts, things, strict=True)
        weights = [(part.thing, part.weight) for part, text in said if several.is_weighted(text)]
        return self.context.grants.release(
            actor, target, token=validate.token(token), weights=tuple(weights)
        )
