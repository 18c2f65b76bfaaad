"""How far a watch has got, though a commit may arrive in pieces.

A commit that concerns several channels is published on each of them, one after the other, and
whoever listens to more than one may have heard the first piece when the connection ends or when it
is time to look into the log.  So a revision is behind us only when a later one was heard.  Until
then the log is asked for it again, and the keys that were told by then are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from interlock.store import Change


class Position:
    """Everything up to ``after`` was told, and some keys of the revision that has begun."""

    def __init__(self, after: int, *, pieces: bool) -> None:
        self.after = after
        self._pieces = pieces
        self._begun = 0
        self._told: set[str] = set()

    def untold(self, change: Change) -> bool:
        """Whether the reader does not know of this one yet."""
        if change.revision == self._begun:
            return change.key not in self._told
        return change.revision > self.after

    def hear(self, revision: int, previous: int, changes: Iterable[Change]) -> list[Change]:
        """What is new in a piece of this revision; ``previous`` is the one recorded before it."""
        found = [change for change in changes if self.untold(change)]
        if not self._pieces:
            self.after = revision
            return found
        if revision != self._begun:
            self.after, self._begun, self._told = max(self.after, previous), revision, set()
        self._told.update(change.key for change in found)
        return found

    def reach(self, revision: int) -> None:
        """Nothing is missing up to this revision, whichever that is."""
        self.after, self._begun = revision, 0
