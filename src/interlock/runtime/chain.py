"""The chain of entries that this process writes.

Every entry links the committed entries of its writer that no other entry links yet: usually one,
several when commits were in flight together.  If an entry is not committed, its links become
unlinked again, once: drafts that were made together may have the same links.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from interlock.store import Txn

MANY = 1000
"""After this many recorded commits the size of the log is checked."""


class Draft(Struct, frozen=True, gc=False):
    """A transaction that is ready, and the heads of the chain that it links."""

    txn: Txn
    after: tuple[str, ...]


class Chain:
    """The entries of this process that no later one links yet.

    ``phase`` is the number of the first ``MANY`` commits that count as made: else writers that
    begin together would check the log at the same moment.
    """

    def __init__(self, writer: str, phase: int = 0) -> None:
        self.writer = writer
        self._phase = phase
        self._guard = threading.Lock()
        self._heads: list[str] = []
        self._latest = ""
        self.count = 0
        self.on_many: Callable[[], None] | None = None

    def take(self) -> tuple[str, ...]:
        """The hashes that the next entry links: all unlinked ones, else the latest."""
        with self._guard:
            heads, self._heads = self._heads, []
            return tuple(heads) if heads else ((self._latest,) if self._latest else ())

    def advance(self, draft: Draft) -> None:
        """An entry is committed; called twice if an interrupt came in between."""
        if not draft.txn.quiet:
            with self._guard:
                if draft.txn.hash in self._heads:
                    return
                self._latest = draft.txn.hash
                self._heads.append(draft.txn.hash)
                self.count += 1
                many = not (self.count + self._phase) % MANY
            if many and self.on_many is not None:
                self.on_many()

    def give_back(self, draft: Draft | None) -> None:
        """An entry was not committed: its links are unlinked again."""
        if draft is not None:
            with self._guard:
                self._heads = list(dict.fromkeys((*draft.after, *self._heads)))
