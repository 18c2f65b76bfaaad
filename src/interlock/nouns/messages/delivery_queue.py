"""The queue of messages to deliver: urgent ones first, then in the order of sending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from msgspec import Struct

from interlock.nouns.messages.reading import InboxEntry


class Delivery(Struct, frozen=True):
    """A delivered message: how often, and when it is due for redelivery."""

    entry: InboxEntry
    attempts: int
    due: float


class DeliveryQueue:
    """Queued messages; a heap ticket of a dropped message stays until it is popped."""

    def __init__(self, found: Iterable[InboxEntry] = ()) -> None:
        self._entries = {each.id: each for each in found}
        self._tickets = [(each.order, each.id) for each in self._entries.values()]
        heapify(self._tickets)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[InboxEntry]:
        return iter(self._entries.values())

    def __contains__(self, id_: str) -> bool:
        return id_ in self._entries

    def add(self, found: InboxEntry) -> None:
        """Queue an entry, unless it is queued."""
        if found.id not in self._entries:
            self._entries[found.id] = found
            heappush(self._tickets, (found.order, found.id))

    def first(self, most: int) -> list[InboxEntry]:
        """The first entries; they stay until they are dropped."""
        found: list[InboxEntry] = []
        popped: list[tuple[tuple[bool, int], str]] = []
        while self._tickets and len(found) < most:
            ticket = heappop(self._tickets)
            each = self._entries.get(ticket[1])
            if each is not None and popped[-1:] != [ticket]:  # queued again: two tickets
                found.append(each)
                popped.append(ticket)
        for ticket in popped:
            heappush(self._tickets, ticket)
        return found

    def drop(self, id_: str) -> bool:
        """Remove an entry; return whether it was queued."""
        return self._entries.pop(id_, None) is not None
