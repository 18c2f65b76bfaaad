"""The record: reading the log, in the order in which things happened."""

from __future__ import annotations

import msgspec

from interlock.core import codec
from interlock.core.log import Entry, Line, decode
from interlock.driving import Op
from interlock.errors import StoreDamaged
from interlock.services.steps import Open, Read, Take
from interlock.store import LOG, Item, Log, Resync


class Record:
    """Every operation on the record, as generators for a driver."""

    def log(self, *, after: int = 0, limit: int = 100, last: bool = True) -> Op[tuple[Line, ...]]:
        """Entries in order: the last ones, or the first ones after a revision."""
        ref = Log(after=after, limit=limit, last=last)
        items = (yield Read(ref)).ranges[ref]
        return tuple(line(item) for item in items)

    def follow(self, after: int, timeout: float | None) -> Op[tuple[Line, ...] | Resync]:
        """The entries after a revision; waits for the first one, at most so long.

        Resync if the entries that come next were trimmed away.
        """
        watch = yield Open(LOG, after)
        try:
            changes = yield Take(watch, timeout)
        finally:
            watch.close()
        found: list[Line] = []
        for change in changes:
            if isinstance(change, Resync):
                return change
            item = Item(change.key, change.value, change.revision, change.revision)
            found.append(line(item))
        return tuple(found)


def line(item: Item) -> Line:
    """An entry with its place in the order and its own hash."""
    try:
        entry: Entry = decode(item.value)
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"{item.key} is not an entry ({error}); restore a copy") from error
    fields = {name: getattr(entry, name) for name in Entry.__struct_fields__}
    fields["id"] = item.key.removeprefix(LOG)
    return Line(revision=item.revision, hash=codec.digest(item.value), **fields)
