"""Reads and follows the log."""

from __future__ import annotations

from interlock.core import keys, validate
from interlock.core.filter import RecordFilter
from interlock.core.log import RecordLine
from interlock.drivers import NextChanges, Op, OpenWatch, Read
from interlock.runtime.history import EVERYTHING, record_line, search
from interlock.store import LOG, Item, Resync, Watch


class LogReader:
    """Every operation on the record, as generators for a driver."""

    def log(
        self,
        wanted: RecordFilter = EVERYTHING,
        *,
        after: int = 0,
        limit: int = 100,
        last: bool = True,
    ) -> Op[tuple[RecordLine, ...]]:
        """Entries in order: the last ones, or the first ones after a revision."""
        return (yield from search(wanted, after=after, limit=limit, last=last))


def open_log(after: int | None) -> Op[Watch]:
    """Watch the log, after a revision or from now on; the caller closes the watch."""
    if after is None:
        after = (yield Read(keys.BASE)).revision
    watch: Watch = yield OpenWatch(LOG, validate.after(after))
    return watch


class LogFollowing:
    """Follows the entries after a revision; its opener closes it."""

    about = "following the record"

    def __init__(self, after: int) -> None:
        self._after = after
        self._watch: Watch | None = None

    def take(self, timeout: float | None) -> Op[tuple[RecordLine, ...] | Resync]:
        """The entries since the last call; waits for the first, at most ``timeout`` seconds.

        Resync if the entries that come next were trimmed away.
        """
        if self._watch is None:
            self._watch = yield OpenWatch(LOG, self._after)
        found: list[RecordLine] = []
        for change in (yield NextChanges(self._watch, timeout)):
            if isinstance(change, Resync):
                return change
            item = Item(change.key, change.value, change.revision, change.revision)
            found.append(record_line(item))
        return tuple(found)

    def each(self, taken: tuple[RecordLine, ...] | Resync) -> tuple[RecordLine | Resync, ...]:
        """The values one by one."""
        return (taken,) if isinstance(taken, Resync) else taken

    def close(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.close()
