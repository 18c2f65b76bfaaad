"""Hands a grant from its commit to its caller and back, so that no interrupt can lose it.

An exception may interrupt a caller anywhere (Ctrl-C, a signal handler that raises): also between a
commit and the first line of a block, and before the first line of ``__exit__``.  No ``try`` covers
those moments.  So every request is noted in a *handover* before it is sent, and the handover is
tied to an object that only the caller's frame has on its stack: the function that ``with`` calls
at its end.  That object is deleted when the block is over, however the frame ends.  If the grants
of the handover were not released by then, the handover is abandoned, and the keeper releases
them.  A call outside of a block hands over its grant by returning: no exception can come between
the end of its ``try`` and its caller.

The tie is a weak reference whose callback runs no Python, so no second exception can interrupt it.

A grant or a wait that its caller gave up, and that could not be released yet, is a *pending
release*: the keeper releases it when the store answers (``PendingReleases``).
"""

from __future__ import annotations

from _contextvars import ContextVar  # the module contextvars only copies its names
from _weakref import ref  # the module weakref makes classes that no command needs
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from interlock.errors import InterlockError, StoreDamaged, StoreTrouble
from interlock.runtime.setbacks import NO_ANSWER

if TYPE_CHECKING:
    from interlock.runtime.runner import Runner
    from interlock.steps import Op

R = TypeVar("R")


class PendingRelease(Struct, frozen=True, eq=False):
    """A grant that is to be released, its thing, and the operation that releases it."""

    grant: str
    thing: str
    run: Callable[[], Op[None]]


if TYPE_CHECKING:

    class DroppableGrant(Protocol):
        """A grant that its holder relies on."""

        def drop(self) -> None:
            """Stop renewing it and watching it."""


class Handover(Struct, eq=False):
    """The grants that one call or block may have and has not released."""

    _grants: PendingReleases
    held: DroppableGrant | None = None
    """The grant in use, once there is one."""
    _requested: dict[object, Callable[[], Iterable[PendingRelease]]] = {}
    _tie: ref[Any] | None = None
    _closed: bool = False

    def tie(self, to: object) -> None:
        """Abandon the handover as soon as this object is deleted."""
        self._tie = ref(to, partial(self._grants.wake_keeper, None))
        self._grants.handovers.add(self)

    def add(self, key: object, releases: Callable[[], Iterable[PendingRelease]]) -> None:
        """Note a request before it is sent, with the releases of its grant."""
        self._requested[key] = releases

    def remove(self, key: object) -> None:
        """The request was refused, or its grant is released or pending release."""
        self._requested.pop(key, None)

    def close(self) -> None:
        """All of its grants are released or pending release."""
        self._requested.clear()
        self._grants.handovers.discard(self)
        self._closed = True
        self._tie = None

    def abandon(self) -> None:
        """The caller is gone: the keeper releases the grants, if there are any."""
        if self._requested:
            self._grants.abandoned.append(self)
            self._grants.wake_keeper(None)

    @property
    def tied(self) -> bool:
        """Whether the object that it is tied to exists."""
        return self._tie is not None and self._tie() is not None

    @property
    def abandoned(self) -> bool:
        """Whether the object that it was tied to is deleted."""
        return self._tie is not None and self._tie() is None

    def pending_releases(self) -> list[PendingRelease]:
        """The releases of all its grants."""
        return [each for releases in tuple(self._requested.values()) for each in releases()]

    def belongs_to(self, grants: PendingReleases) -> bool:
        """Whether a call to this service may use it."""
        tie = self._tie
        usable = self._grants is grants and not self._closed
        return usable and (tie is None or tie() is not None)


class PendingReleases:
    """The grants of one client that no caller has any more; any thread may call it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        runner.settling.on_unsettled = self._on_unsettled
        self.pending: deque[PendingRelease] = deque()
        """Grants and waits that were given up, and could not be released yet."""
        self.has_new_pending = False
        """Whether some of these were not tried yet."""
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is a new pending release; the driver of the keeper sets it."""
        self.handovers: set[Handover] = set()
        """The handovers of ``with`` blocks."""
        self.abandoned: deque[Handover] = deque()
        """The handovers that were abandoned outside of a block."""
        self.wake_keeper: Callable[..., object] = lambda *_: None
        """Wakes the driver of the keeper, which sets it; it takes no lock, so it is always safe."""
        self.on_abandoned_grant: Callable[[str], None] = lambda _grant: None
        """Called with an abandoned grant, so that it is not renewed."""

    def _on_unsettled(self) -> None:
        self.on_pending()  # looked up now: the client sets it after this object was made

    @property
    def has_pending(self) -> bool:
        """Whether there is something to settle or to release."""
        return bool(self.pending or self.runner.settling.unsettled)

    def add_pending(self, release: PendingRelease) -> None:
        """Add a pending release."""
        self.pending.append(release)
        self.has_new_pending = True
        self.on_pending()

    def release_or_queue(self, release: PendingRelease) -> Op[None]:
        """Release it now or later, once no request that may grant it can still arrive."""
        try:
            yield from self.runner.settling.settle_all()
            yield from release.run()
        except BaseException as error:
            self.add_pending(release)
            if not isinstance(error, InterlockError):
                raise

    def pending_grants(self) -> set[str]:
        """The ids of the grants among the pending releases."""
        self.collect_abandoned()
        return {release.grant for release in self.pending.copy()}

    def collect_abandoned(self) -> bool:
        """Add the grants of abandoned handovers to the pending releases; whether there were any.

        A handover is removed last, so an exception in between loses none.
        """
        abandoned = [each for each in tuple(self.handovers) if each.abandoned]
        abandoned += tuple(self.abandoned)
        for handover in abandoned:
            for release in handover.pending_releases():
                self.pending.append(release)
                self.has_new_pending = True
                self.on_abandoned_grant(release.grant)
            if handover.held is not None:
                handover.held.drop()
            self.handovers.discard(handover)
            with suppress(ValueError):
                self.abandoned.remove(handover)
        return bool(abandoned)

    def release_pending(self) -> Op[Exception | None]:
        """Settle unknown transactions, then run the pending releases.

        While the store fails it stops, so that renewals need not wait.  What fails by itself, such
        as a damaged item, keeps no other release from being run.  The first failure is returned,
        unless the store only does not answer.  A release is removed after it ran, so an interrupt
        loses none.
        """
        self.collect_abandoned()
        self.has_new_pending = False
        try:
            yield from self.runner.settling.settle_all()
        except NO_ANSWER:
            return None
        except Exception as error:  # noqa: BLE001 - it is reported
            return error
        failed: Exception | None = None
        for _ in range(len(self.pending)):
            try:
                release = self.pending[0]
            except IndexError:  # another thread was faster
                break
            try:
                yield from release.run()
            except NO_ANSWER:
                self.pending.rotate(-1)
                break
            except Exception as error:  # noqa: BLE001 - the others go on
                self.pending.rotate(-1)
                failed = failed or error
                if isinstance(error, StoreTrouble) and not isinstance(error, StoreDamaged):
                    break
            else:
                with suppress(ValueError):
                    self.pending.remove(release)
        return failed


HANDOVER: ContextVar[Handover | None] = ContextVar("interlock_handover", default=None)
"""The handover for the next call; its caller sets it right before the call is driven."""


def current(grants: PendingReleases) -> Handover:
    """The handover of the current call; a new one if its caller has none."""
    handover = HANDOVER.get()
    return handover if handover is not None and handover.belongs_to(grants) else Handover(grants)


if TYPE_CHECKING:

    class BlockWithHandover(Protocol[R]):
        """A block with a handover."""

        def entering(self, end: Callable[..., R]) -> None:
            """Take the function that ``with`` calls at the end; it lives as long as the block."""

        def leave(self, kind: Any, error: Any, trace: Any) -> R:  # noqa: ANN401 - as __exit__
            """The end of the block."""


class BlockExit(Generic[R]):
    """The ``__exit__`` of a block: ``leave``, as an object that lives as long as the block.

    ``with`` looks it up before it enters, and keeps it to the end.
    """

    def __get__(
        self, block: BlockWithHandover[R] | None, owner: type[BlockWithHandover[R]]
    ) -> Callable[..., R]:
        """The end of this block; or of any block, for a caller that passes it (``ExitStack``)."""
        if block is None:
            return owner.leave
        leave = partial(owner.leave, block)
        block.entering(leave)
        return leave
