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
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from interlock.nouns.grants.service import GrantService, PendingRelease

R = TypeVar("R")


class DroppableGrant(Protocol):
    """A grant that its holder relies on."""

    def drop(self) -> None:
        """Stop renewing it and watching it."""


class Handover:
    """The grants that one call or block may have and has not released."""

    __slots__ = ("_closed", "_grants", "_requested", "_tie", "held")

    def __init__(self, grants: GrantService) -> None:
        self.held: DroppableGrant | None = None
        """The grant in use, once there is one."""
        self._grants = grants
        self._requested: dict[object, Callable[[], Iterable[PendingRelease]]] = {}
        self._tie: weakref.ref[Any] | None = None
        self._closed = False

    def tie(self, to: object) -> None:
        """Abandon the handover as soon as this object is deleted."""
        self._tie = weakref.ref(to, partial(self._grants.wake_keeper, None))
        self._grants.handovers.add(self)

    def add(self, key: object, debts: Callable[[], Iterable[PendingRelease]]) -> None:
        """Note a request before it is sent, with the releases of its grant."""
        self._requested[key] = debts

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
        return [debt for asked in tuple(self._requested.values()) for debt in asked()]

    def belongs_to(self, grants: GrantService) -> bool:
        """Whether a call to this service may use it."""
        return self._grants is grants and not self._closed and not self.abandoned


HANDOVER: ContextVar[Handover | None] = ContextVar("interlock_handover", default=None)
"""The handover for the next call; its caller sets it right before the call is driven."""


def current(grants: GrantService) -> Handover:
    """The handover of the current call; a new one if its caller has none."""
    handover = HANDOVER.get()
    return handover if handover is not None and handover.belongs_to(grants) else Handover(grants)


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

    @overload
    def __get__(self, block: None, owner: type[BlockWithHandover[R]]) -> Callable[..., R]: ...
    @overload
    def __get__(
        self, block: BlockWithHandover[R], owner: type[BlockWithHandover[R]]
    ) -> Callable[..., R]: ...
    def __get__(
        self, block: BlockWithHandover[R] | None, owner: type[BlockWithHandover[R]]
    ) -> Callable[..., R]:
        """The end of this block; or of any block, for a caller that passes it (``ExitStack``)."""
        if block is None:
            return owner.leave
        leave = partial(owner.leave, block)
        block.entering(leave)
        return leave
