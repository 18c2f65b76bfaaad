"""The calls of locks, and how semaphores and several things at once are acquired, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from interlock.core import validate
from interlock.nouns.grants.lock import LockTarget
from interlock.nouns.grants.request import GrantTerms, guard_names
from interlock.runtime.calls import Calls, D, call, grants, patiently
from interlock.runtime.given import Given, proofs
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.grants import lock as locks
    from interlock.nouns.grants.guarded import GrantGate
    from interlock.nouns.grants.lock import LockView
    from interlock.nouns.grants.request import GrantTarget


def acquire(
    context: Context, about: str, target: Callable[[], GrantTarget], terms: GrantTerms
) -> Op[Any]:
    """Acquire on the terms of a caller, which are completed from the settings.

    The target is made, and its name validated, after the identity of the caller is known.
    """
    if terms.guard != ():
        terms = replace(terms, guard=guard_names(terms.guard))
    gates: list[GrantGate] = []
    if not terms.wait:
        return _attempt(context, target, terms, gates, terms.wait)
    return patiently(context, about, partial(_attempt, context, target, terms, gates), terms.wait)


def _attempt(
    context: Context,
    target: Callable[[], GrantTarget],
    terms: GrantTerms,
    gates: list[GrantGate],
    wait: float | str,
) -> Op[Any]:
    """One attempt to acquire; all attempts of a call share its gate, which counts retries."""
    patience = context.checked_wait(wait)
    least = context.runner.capabilities.min_ttl
    configured, settings = target().configured(context.settings, least)
    ttl, max_hold = context.terms(settings, terms.ttl, terms.max_hold)
    metadata, token, given = terms.metadata, terms.token, terms.given
    grants, identity = context.grants, context.identity
    acquire: Callable[..., Op[Any]] = grants.acquire
    if terms.guard:
        from interlock.nouns.grants import guarded

        if not gates:
            gates.append(guarded.GrantGate(grants, identity, configured, tuple(terms.guard)))
        acquire = partial(guarded.acquire, grants, gates[0])
    return acquire(
        identity,
        configured,
        ttl=ttl,
        max_hold=max_hold,
        metadata=None if metadata is None else validate.metadata(metadata),
        token=None if token is None else validate.token(token),
        wait=patience,
        given=() if given == () else proofs(given),
    )


class LockCalls(Calls[D]):
    """Locks, by name."""

    @grants
    def acquire(
        self,
        name: str,
        *,
        ttl: float | str | None = None,
        wait: float | str = 0,
        max_hold: float | str | None = None,
        metadata: object = None,
        token: int | None = None,
        given: Given = (),
        guard: str | Sequence[str] = (),
    ) -> Op[locks.AcquireOutcome]:
        """Take a lock, or say who has it.

        With ``wait`` it queues, first come first served, and is woken when its turn comes; a wait
        that could never end is answered with ``Deadlock`` at once, and leaves nothing behind: the
        others in its ``cycle`` go on as soon as this caller gives back what it holds.
        With ``ttl`` the grant lives by itself and must be renewed with ``heartbeat``; without, it
        lives as long as the session.  ``given`` are proofs (``held.check()``) of other grants
        that must still hold in the same commit.
        ``guard`` names guards of the store: it is granted only while all of them pass
        (``GuardBlocked`` says which one does not), and with ``wait`` it waits for them, too.
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
        return acquire(self.context, LockTarget.about, partial(LockTarget, name), terms)

    @call
    def release(self, name: str, *, token: int | None = None) -> Op[locks.ReleaseOutcome]:
        """Release a lock; the first waiter has it with the same commit."""
        actor = self.context.me().actor
        return self.context.grants.release(actor, LockTarget(name), token=validate.token(token))

    @call
    def heartbeat(self, name: str, *, token: int | None = None) -> Op[locks.BeatOutcome]:
        """Renew a grant; an expired one is not revived."""
        identity = self.context.me()
        return self.context.grants.heartbeat(
            identity.actor,
            LockTarget(name),
            token=validate.token(token),
            session_ttl=identity.session_ttl,
        )

    beat = heartbeat

    @call
    def break_(self, name: str, reason: str, *, token: int | None = None) -> Op[locks.BreakOutcome]:
        """End the grant of the holder of a lock, alive or not: for operators.

        The first waiter has it with the same commit.  The holder's token is fenced; it learns
        the ``reason`` with its next beat, and the record keeps it.  With a ``token`` only that
        grant is ended.
        """
        actor, target = self.context.me().actor, LockTarget(name)
        return self.context.grants.break_grant(
            actor, target, validate.reason(reason), token=validate.token(token)
        )

    @call
    def list(self) -> Op[tuple[LockView, ...]]:
        """All locks that are held or waited for."""
        from interlock.nouns.grants import views

        return views.locks(self.context.runner)

    @call
    def show(self, name: str) -> Op[LockView]:
        """One lock: its holder, its token, its queue."""
        from interlock.nouns.grants import views

        return views.lock(self.context.runner, LockTarget(name).name)
