"""From a commit into the caller's hands and back, without a moment for which nobody answers.

An exception may strike a caller anywhere (Ctrl-C, a handler of a signal that raises): also between
a commit and the first line of a block, and before the first line of ``__exit__``.  No ``try`` of
ours covers those moments.  So all that a call asks for is put on a ticket before it is sent, and
the ticket is tied to an object that only the frame of the caller has, on its stack: what ``with``
calls at its end.  However the frame goes on, that object goes when the block is over.  If what is
on the ticket was not given back by then, the ticket is abandoned, and the keeper gives back what
is on it.  A call that is no block hands over what it was granted by returning: nothing can strike
between the end of its ``try`` and its caller.

The tie is a weak reference whose callback runs no Python, so a second exception cannot strike it.
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
    """Something granted that its holder relies on."""

    def drop(self) -> None:
        """Rely on it no more."""


class Handover:
    """What one call or block may have been granted and has not given back."""

    __slots__ = ("_asked", "_closed", "_grants", "_tie", "held")

    def __init__(self, grants: GrantService) -> None:
        self.held: DroppableGrant | None = None
        """What the holder relies on, once it does."""
        self._grants = grants
        self._asked: dict[object, Callable[[], Iterable[PendingRelease]]] = {}
        self._tie: weakref.ref[Any] | None = None
        self._closed = False

    def tie(self, to: object) -> None:
        """Abandon it as soon as this object is gone."""
        self._tie = weakref.ref(to, partial(self._grants.wake_keeper, None))
        self._grants.handovers.add(self)

    def add(self, key: object, debts: Callable[[], Iterable[PendingRelease]]) -> None:
        """Something is about to be asked for: how to take back what came of it."""
        self._asked[key] = debts

    def remove(self, key: object) -> None:
        """Nothing came of it, or it was given back, or is owed."""
        self._asked.pop(key, None)

    def close(self) -> None:
        """All of it was given back, or is owed."""
        self._asked.clear()
        self._grants.handovers.discard(self)
        self._closed = True
        self._tie = None

    def abandon(self) -> None:
        """Nobody has it any more: the keeper gives back what is on it, if there is anything."""
        if self._asked:
            self._grants.abandoned.append(self)
            self._grants.wake_keeper(None)

    @property
    def tied(self) -> bool:
        """Whether the object that it is tied to is there."""
        return self._tie is not None and self._tie() is not None

    @property
    def abandoned(self) -> bool:
        """Whether what it was tied to is gone."""
        return self._tie is not None and self._tie() is None

    def pending_releases(self) -> list[PendingRelease]:
        """What takes back all that is on it."""
        return [debt for asked in tuple(self._asked.values()) for debt in asked()]

    def belongs_to(self, grants: GrantService) -> bool:
        """Whether a call to these may put something on it."""
        return self._grants is grants and not self._closed and not self.abandoned


HANDOVER: ContextVar[Handover | None] = ContextVar("interlock_ticket", default=None)
"""Where a call puts what it asks for; set by its caller right before it is driven."""


def current(grants: GrantService) -> Handover:
    """The ticket of the call that is driven; one of its own if its caller has none."""
    handover = HANDOVER.get()
    return handover if handover is not None and handover.belongs_to(grants) else Handover(grants)


class BlockWithHandover(Protocol[R]):
    """A block with a ticket."""

    def entering(self, end: Callable[..., R]) -> None:
        """What ``with`` will call at the end; it lives no longer than the block."""

    def leave(self, kind: Any, error: Any, trace: Any) -> R:  # noqa: ANN401 - as __exit__
        """The end of the block."""


class BlockExit(Generic[R]):
    """The ``__exit__`` of a block: ``leave``, as an object that lives as long as the block does.

    ``with`` asks for it before it enters, and keeps it to the end.
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
        """What ends this block; or any, for who calls it with a block (``ExitStack`` does)."""
        if block is None:
            return owner.leave
        leave = partial(owner.leave, block)
        block.entering(leave)
        return leave
