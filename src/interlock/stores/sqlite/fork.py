"""What happens to open stores when a program forks.

SQLite notes in tables of the process which locks the process has.  A fork copies the tables but
not the locks, so in the child every connection, a new one too, relies on locks that only the
parent has: others take the file for unused, and what the child was told is committed gets lost.

So no connection is open at the moment of a fork.  Just before it every store finishes what it is
doing and closes its connections; right after it the parent's stores open them again, and the
child's are over: the child may connect anew.  A store that does not come to rest in time (say,
since the fork is called inside of a transaction) is left as it is, and its file is refused to the
child for good.  So it is after a fork by C code, which runs no hooks: a store notices by the id of
its process.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from interlock.errors import StoreClosed
from interlock.stores.sqlite.files import identity

PATIENCE = 5.0


class Forkable(Protocol):
    """A store, as a fork sees it."""

    path: str

    def rest(self) -> bool:
        """Have no connection open; False if that could not be done in time."""

    def wake(self) -> None:
        """In the parent: go on."""

    def abandon(self) -> None:
        """In the child: let go of what is the parent's."""


class Guard:
    """All open stores of this process, and the right to open or close one."""

    def __init__(self) -> None:
        self.changing = threading.Lock()
        self._stores: weakref.WeakSet[Forkable] = weakref.WeakSet()
        self._moving: list[Forkable] = []
        self._sure = False
        self._refused: set[tuple[int, int]] = set()
        self._refuse_all = False
        self._pid = os.getpid()

    def add(self, store: Forkable) -> None:
        """Mind this one too."""
        self._stores.add(store)

    def discard(self, store: Forkable) -> None:
        """It is closed."""
        self._stores.discard(store)

    def check(self, path: str) -> None:
        """Raise if this process cannot use the file since it was forked while somebody wrote."""
        self.notice()
        if self._refuse_all or (self._refused and identity(path) in self._refused):
            raise StoreClosed(
                f"{path} was being written when this process was forked;"
                " start such processes with spawn or exec, or fork at another moment"
            )

    def notice(self) -> None:
        """Notice a fork by C code, which runs none of the hooks: all connections were open."""
        if self._pid != os.getpid():
            self._sure = not self.changing.locked()
            self._moving = list(self._stores)
            self.after_in_child()

    def before(self) -> None:
        """Bring all stores to rest."""
        self._sure = self.changing.acquire(timeout=PATIENCE)
        self._moving = [store for store in list(self._stores) if not store.rest()]

    def after_in_parent(self) -> None:
        """Go on."""
        for store in list(self._stores):
            store.wake()
        if self._sure:
            self.changing.release()

    def after_in_child(self) -> None:
        """Forget the parent's stores."""
        self._pid = os.getpid()
        self._refuse_all = self._refuse_all or not self._sure
        self._refused.update(identity(store.path) for store in self._moving)
        for store in list(self._stores):
            store.abandon()
        self._stores = weakref.WeakSet()
        self.changing = threading.Lock()


guard = Guard()

os.register_at_fork(
    before=guard.before,
    after_in_parent=guard.after_in_parent,
    after_in_child=guard.after_in_child,
)
