"""Closes open stores for the moment in which a program forks.

SQLite keeps the locks of a process in tables of that process.  A fork copies the tables but not
the locks, so in the child every connection, even a new one, relies on locks that only the parent
has: other processes take the file for unused, and acknowledged commits of the child get lost.

So no connection is open at the moment of a fork.  Just before it every store finishes its work
and closes its connections; right after it the parent's stores open them again, and the child's
are closed: the child may connect again.  A store that does not stop in time (for example because
the program forks inside a transaction) stays as it is, and its file is refused to the child for
good.  That is also the case after a fork by C code, which runs no hooks: a store notices it by the
id of its process.
"""

from __future__ import annotations

import os
import threading
from _weakref import ref  # the module weakref makes classes that no command needs
from typing import TYPE_CHECKING, Protocol

from interlock.errors import StoreClosed
from interlock.stores.sqlite.files import identity

PATIENCE = 5.0


if TYPE_CHECKING:

    class Forkable(Protocol):
        """A store, as a fork sees it."""

        path: str

        def rest(self) -> bool:
            """Have no connection open; False if that could not be done in time."""

        def wake(self) -> None:
            """In the parent: open the connections again."""

        def abandon(self) -> None:
            """In the child: drop the resources of the parent."""


class ForkGuard:
    """All open stores of this process, and the right to open or close one."""

    def __init__(self) -> None:
        self.changing = threading.Lock()
        self._stores: set[ref[Forkable]] = set()
        """Each reference removes itself."""
        self._moving: list[Forkable] = []
        self._sure = False
        self._refused: set[tuple[int, int]] = set()
        self._refuse_all = False
        self._pid = os.getpid()

    def add(self, store: Forkable) -> None:
        """Register an open store."""
        self._stores.add(ref(store, self._stores.discard))

    def discard(self, store: Forkable) -> None:
        """Remove a closed store."""
        self._stores.discard(ref(store))

    def check(self, path: str) -> None:
        """Raise if this process cannot use the file since it was forked during a write."""
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
            self._moving = self._open()
            self.after_in_child()

    def before(self) -> None:
        """Close the connections of all stores."""
        self._sure = self.changing.acquire(timeout=PATIENCE)
        self._moving = [store for store in self._open() if not store.rest()]

    def after_in_parent(self) -> None:
        """Open the connections of all stores again."""
        for store in self._open():
            store.wake()
        if self._sure:
            self.changing.release()

    def after_in_child(self) -> None:
        """Drop the parent's stores."""
        self._pid = os.getpid()
        self._refuse_all = self._refuse_all or not self._sure
        self._refused.update(identity(store.path) for store in self._moving)
        for store in self._open():
            store.abandon()
        self._stores = set()
        self.changing = threading.Lock()

    def _open(self) -> list[Forkable]:
        return [store for each in list(self._stores) if (store := each()) is not None]


guard = ForkGuard()

os.register_at_fork(
    before=guard.before,
    after_in_parent=guard.after_in_parent,
    after_in_child=guard.after_in_child,
)
