"""What a client can ask for of locks, semaphores, and several of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.core.thing_names import names_several
from interlock.core.validate import CAPACITY
from interlock.drivers import Op
from interlock.errors import BadInput, BadName
from interlock.runtime.calls import Calls, D, call, grants
from interlock.runtime.given import Given, proofs
from interlock.runtime.outage import patient

if TYPE_CHECKING:
    from interlock.nouns.grants import lock as locks
    from interlock.nouns.grants import semaphore as semaphores
    from interlock.nouns.grants import several
    from interlock.nouns.grants.lock_service import LockView
    from interlock.nouns.grants.semaphore_service import SemaphoreView


class LockCalls(Calls[D]):
    """Locks, by name."""

    @grants
    @patient("a wait for a lock")
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
    ) -> Op[locks.AcquireOutcome]:
        """Take a lock, or say who has it.

        With ``wait`` it queues, first come first served, and is woken when its turn comes; a wait
        that could never end is answered with ``Deadlock`` at once, and leaves nothing behind: the
        others in its ``cycle`` go on as soon as this caller gives back what it holds.
        With ``ttl`` the grant lives by itself and must be renewed with ``heartbeat``; without, it
        lives as long as the session.  ``given`` are proofs (``held.check()``) of other grants
        that must still hold in the same commit.
        """
        patience, name = self.context.asking(wait), named(name, "lock")
        settings = self.context.settings.lock(name, self.context.runner.capabilities.min_ttl)
        lives, ends = self.context.terms(settings, ttl, max_hold)
        return self.context.locks.acquire(
            self.context.me(),
            name,
            ttl=lives,
            max_hold=ends,
            metadata=validate.metadata(metadata),
            token=validate.token(token),
            wait=patience,
            given=proofs(given),
        )

    @call
    def release(self, name: str, *, token: int | None = None) -> Op[locks.ReleaseOutcome]:
        """Release a lock; the first waiter has it with the same commit."""
        actor = self.context.me().actor
        return self.context.locks.release(actor, named(name, "lock"), token=validate.token(token))

    @call
    def heartbeat(self, name: str, *, token: int | None = None) -> Op[locks.BeatOutcome]:
        """Renew a grant; an expired one is not revived."""
        identity = self.context.me()
        return self.context.locks.heartbeat(
            identity.actor,
            named(name, "lock"),
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
        actor, lock = self.context.me().actor, named(name, "lock")
        return self.context.locks.break_grant(
            actor, lock, validate.reason(reason), token=validate.token(token)
        )

    @call
    def list(self) -> Op[tuple[LockView, ...]]:
        """All locks that are held or waited for."""
        return self.context.locks.list()

    @call
    def show(self, name: str) -> Op[LockView]:
        """One lock: its holder, its token, its queue."""
        return self.context.locks.show(named(name, "lock"))


class SemaphoreCalls(Calls[D]):
    """Semaphores, by name."""

    @grants
    @patient("a wait for slots")
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
    ) -> Op[semaphores.AcquireOutcome]:
        """Take slots of a semaphore, or say how many there are.

        The first request that names a ``capacity`` makes the semaphore; one that names another
        is refused.  With the ``token`` of a grant it is kept (``AlreadyHeld``), or gets more
        (``Increased``).  No request overtakes a waiter, so a large ``weight`` is never starved.
        ``wait``, ``ttl``, ``max_hold`` and ``given`` are as for locks.
        """
        patience, name = self.context.asking(wait), named(name, "semaphore")
        settings = self.context.settings.semaphore(name, self.context.runner.capabilities.min_ttl)
        lives, ends = self.context.terms(settings, ttl, max_hold)
        if capacity is None and "capacity" in settings:
            capacity = int(settings["capacity"])
        return self.context.semaphores.acquire(
            self.context.me(),
            name,
            weight=validate.count(weight, "weight", CAPACITY),
            capacity=None if capacity is None else _capacity(capacity),
            ttl=lives,
            max_hold=ends,
            metadata=validate.metadata(metadata),
            token=validate.token(token),
            wait=patience,
            given=proofs(given),
        )

    @call
    def release(self, name: str, *, token: int | None = None) -> Op[semaphores.ReleaseOutcome]:
        """Release slots; the first waiters that fit have them with the same commit."""
        actor = self.context.me().actor
        name = named(name, "semaphore")
        return self.context.semaphores.release(actor, name, token=validate.token(token))

    @call
    def heartbeat(self, name: str, *, token: int | None = None) -> Op[semaphores.BeatOutcome]:
        """Renew a grant; an expired one is not revived."""
        identity = self.context.me()
        return self.context.semaphores.heartbeat(
            identity.actor,
            named(name, "semaphore"),
            token=validate.token(token),
            session_ttl=identity.session_ttl,
        )

    beat = heartbeat

    @call
    def resize(self, name: str, capacity: int) -> Op[semaphores.Resized]:
        """Set the capacity for all callers; no holder loses a slot."""
        actor = self.context.me().actor
        name = named(name, "semaphore")
        return self.context.semaphores.resize(actor, name, _capacity(capacity))

    @call
    def remove(
        self, name: str
    ) -> Op[semaphores.Removed | semaphores.SlotsFull | semaphores.NoSemaphore]:
        """Remove a semaphore, unless it has holders or waiters."""
        actor = self.context.me().actor
        return self.context.semaphores.remove(actor, named(name, "semaphore"))

    @call
    def break_(
        self, name: str, reason: str, *, holder: str = "", token: int | None = None
    ) -> Op[semaphores.BreakOutcome]:
        """End the grant of a holder of slots, alive or not: for operators.

        ``holder`` or ``token`` say which grant, where there are several; otherwise as for locks.
        """
        actor, sem = self.context.me().actor, named(name, "semaphore")
        held_by = validate.name(holder, "agent name") if holder else ""
        end = self.context.semaphores.break_grant
        return end(actor, sem, validate.reason(reason), holder=held_by, token=validate.token(token))

    @call
    def list(self) -> Op[tuple[SemaphoreView, ...]]:
        """All semaphores."""
        return self.context.semaphores.list()

    @call
    def show(self, name: str) -> Op[SemaphoreView | semaphores.NoSemaphore]:
        """One semaphore: its holders, their tokens, its queue."""
        return self.context.semaphores.show(named(name, "semaphore"))


class SeveralCalls(Calls[D]):
    """Several locks and slots at once."""

    @grants
    @patient("a wait for several things")
    def acquire(
        self,
        *things: str,
        ttl: float | str | None = None,
        wait: float | str = 0,
        max_hold: float | str | None = None,
        metadata: object = None,
        given: Given = (),
    ) -> Op[several.AcquireOutcome]:
        """Take all of these with one commit, or none.

        A thing is ``lock/merge``, ``sem/builds`` or ``sem/builds=2``.
        With ``wait`` it queues for all of them at once, and gets all of them at once.
        A semaphore must be there already, or have its capacity in the settings.
        """
        patience = self.context.asking(wait)
        parts = parsed(things)
        lives, ends = self.context.terms({}, ttl, max_hold)
        return self.context.several.acquire(
            self.context.me(),
            tuple(self._with_capacity(part) for part in parts),
            ttl=lives,
            max_hold=ends,
            metadata=validate.metadata(metadata),
            wait=patience,
            given=proofs(given),
        )

    @call
    def release(self, *things: str, token: int | None = None) -> Op[several.ReleaseOutcome]:
        """Give all of these back with one commit."""
        actor = self.context.me().actor
        parts = parsed(things)
        said = zip(parts, things, strict=True)
        weights = tuple((part.thing, part.weight) for part, text in said if _weighted(text))
        names = tuple(part.thing for part in parts)
        return self.context.several.release(
            actor, names, token=validate.token(token), weights=weights
        )

    def _with_capacity(self, part: several.ThingRequest) -> several.ThingRequest:
        kind, _, name = part.thing.partition("/")
        if kind != "sem":
            return part
        from interlock.nouns.grants import several

        least = self.context.runner.capabilities.min_ttl
        capacity = self.context.settings.semaphore(name, least).get("capacity")
        return several.ThingRequest(
            part.thing, part.weight, None if capacity is None else int(capacity)
        )


def named(name: str, kind: str) -> str:
    """The name of a lock or a semaphore, as those take it who know which it is."""
    name = validate.name(name, f"{kind} name")
    prefix = "lock/" if kind == "lock" else "sem/"
    if name.startswith(prefix):
        raise BadName(f"a {kind} goes by its name alone here; drop {prefix!r} from {name!r}")
    return _single(name, kind)


def _single(name: str, kind: str) -> str:
    """Return the name if it cannot be taken for several things, which are joined by ``+``."""
    if "+" in name and names_several(name):
        raise BadName(f"the {kind} name {name!r} reads as several things; drop '+lock/' or '+sem/'")
    return name


def parsed(things: Iterable[str]) -> tuple[several.ThingRequest, ...]:
    """Things as people write them; each at most once, and not too many."""
    from interlock.nouns.grants import several  # a command about one lock does without

    parts = tuple(_part(thing) for thing in things)
    if not parts:
        raise BadInput("which things? name some, such as lock/merge and sem/builds=2")
    if len(parts) > several.AT_ONCE:
        raise BadInput(f"{len(parts)} things at once; {several.AT_ONCE} are allowed")
    names = [part.thing for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadInput(f"{twice} is named twice; name it once, with all that you want of it")
    return parts


def _part(text: str) -> several.ThingRequest:
    from interlock.nouns.grants import several

    if not isinstance(text, str):
        raise BadInput(f"a thing is text such as lock/merge, not {text!r:.40}")
    kind, slash, name = text.partition("/")
    if not slash:
        like = f"write lock/{text:.40} or sem/{text:.40}"
        raise BadInput(f"{text!r:.60} does not say what it is; {like}")
    weighted = _weighted(text)
    if kind not in ("lock", "sem") or not name or (weighted and kind == "lock"):
        raise BadInput(f"{text!r:.60} is not like lock/merge, sem/builds or sem/builds=2")
    said, weight = "lock" if kind == "lock" else "semaphore", "1"
    if kind == "sem" and "=" in name:
        if not weighted:
            raise BadInput(
                f"the weight in {text!r:.60} is no whole number; write sem/builds=2,"
                f" or {text:.40}=1 if '=' belongs to the name"
            )
        name, _, weight = name.rpartition("=")
    name = _single(validate.name(name, f"{said} name"), said)
    return several.ThingRequest(f"{kind}/{name}", validate.count(int(weight), "weight", CAPACITY))


def _weighted(text: str) -> bool:
    """Whether a thing comes with its weight, as in ``sem/builds=2``."""
    _, equals, weight = text.rpartition("=")
    return bool(equals) and validate.digits(weight)


def _capacity(value: int) -> int:
    return validate.count(value, "capacity", CAPACITY)
