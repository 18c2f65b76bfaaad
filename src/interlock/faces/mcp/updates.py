"""Which resources changed: a thread follows the store while a client has subscribed to one.

An update is a cue without content, and its client reads the resource again.  So updates that come
close together become one, an update too many is harmless, and after an outage, when changes may
have been missed, all subscribers get one.

The thread has one watch: of what the board shows, of the marks of unread messages, or of both.  It
sleeps in that watch, and ends with the last subscription.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.errors import InterlockError
from interlock.store import Change, Resync
from interlock.threads import background

if TYPE_CHECKING:
    from interlock.store import Store

BOARD, INBOX, PRIMER = "interlock://board", "interlock://inbox", "interlock://primer"
TOGETHER = 0.2
"""Seconds between two updates of a resource, at least."""
_FOLDERS = {
    BOARD: (keys.TASKS, keys.LOCKS, keys.SESSIONS, keys.REPORTS, keys.DEATHS),
    INBOX: (keys.UNREAD, keys.TOPICS),
    PRIMER: (),
}
"""What each resource is made of; nothing in the store changes the primer."""
_SLICE = 0.25
"""Seconds after which the thread looks whether the store is still there, and what is wanted."""
_AGAIN = 0.5


class Listener:
    """One subscription: to a resource, as an agent has it, with what is called after a change."""

    def __init__(self, uri: str, agent: str, tell: Callable[[], None]) -> None:
        self.uri = uri
        self.agent = agent
        self.tell = tell

    @property
    def changes(self) -> bool:
        """Whether anything in the store changes the resource."""
        return bool(_FOLDERS[self.uri])

    def concerns(self, change: Change | Resync) -> bool:
        """Whether the resource may be another one after this change."""
        return self.changes and (isinstance(change, Resync) or self._made_of(change.key))

    def _made_of(self, key: str) -> bool:
        if self.uri == INBOX and key.startswith(keys.UNREAD):
            return keys.agent_of(key) == self.agent
        return key.startswith(_FOLDERS[self.uri])


class ResourceUpdates:
    """All subscriptions to the resources of one store; any thread may add and remove them.

    ``store`` returns the open store, and opens it again if it was removed or replaced.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._listeners: dict[Listener, None] = {}
        self._watched: set[str] = set()
        """The resources that the watch covers, or will cover when it is opened again."""
        self._missed: set[str] = set()
        """Those among them of which a change may have been missed before it is opened."""
        self._after: int | None = None
        """Where the next watch begins; None for now."""
        self._wishes = 0
        """How often another resource was added to those."""
        self._pause = threading.Event()

    def add(self, listener: Listener) -> None:
        """Notify a listener of every change from now on; an error if the store does not answer."""
        revision = self._store().read().revision
        with self._lock:
            self._listeners[listener] = None
            if listener.uri in self._watched or not listener.changes:
                return
            begins = not self._watched
            self._missed |= self._watched
            self._watched.add(listener.uri)
            self._after = revision
            self._wishes += 1
        if begins:
            background(self._run, "interlock-updates").start()

    def remove(self, listener: Listener) -> None:
        """Notify it no more."""
        with self._lock:
            self._listeners.pop(listener, None)

    def _run(self) -> None:
        while self._is_wanted():
            try:
                self._follow()
            except (InterlockError, OSError):
                self._begin_again()
            except Exception as error:  # noqa: BLE001 - subscribers must not be left alone
                sys.stderr.write(f"interlock: updates begin again: unexpected {error!r:.200}\n")
                self._begin_again()

    def _is_wanted(self) -> bool:
        """Whether there is a subscription; without one the thread is over."""
        with self._lock:
            if not any(each.changes for each in self._listeners):
                self._watched.clear()
                self._missed.clear()
            return bool(self._watched)

    def _begin_again(self) -> None:
        with self._lock:
            self._after, self._missed = None, set(self._watched)
        self._pause.wait(_AGAIN)

    def _follow(self) -> None:
        """Follow the store until it is gone, or until other resources are wanted, or none."""
        store = self._store()
        with self._lock:
            wishes, after = self._wishes, self._after
            missed, self._missed = self._missed, set()
            folders = tuple(folder for uri in sorted(self._watched) for folder in _FOLDERS[uri])
        watch = store.watch(folders, store.read().revision if after is None else after)
        try:
            self._tell([each for each in self._now() if each.uri in missed])
            while wishes == self._wishes and self._now():
                if store.missing:
                    self._begin_again()
                    return
                if changes := watch.take(_SLICE):
                    self._tell([each for each in self._now() if any(map(each.concerns, changes))])
                    self._pause.wait(TOGETHER)
        finally:
            watch.close()

    def _now(self) -> tuple[Listener, ...]:
        with self._lock:
            return tuple(self._listeners)

    def _tell(self, listeners: Iterable[Listener]) -> None:
        for each in listeners:
            each.tell()
