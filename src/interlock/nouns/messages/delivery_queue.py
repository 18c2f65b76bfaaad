"""The queue of messages to deliver: urgent ones first, then in the order of sending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from msgspec import Struct

from interlock.nouns.messages.reading import InboxEntry


class Delivery(Struct, frozen=True):
    """A delivered message: how often, and when it is due for redelivery."""

    found: InboxEntry
    times: int
    due: float


class DeliveryQueue:
    """Queued messages; a heap ticket of a dropped message stays until it is popped."""

    def __init__(self, found: Iterable[InboxEntry] = ()) -> None:
        self._found = {each.id: each for each in found}
        self._tickets = [(each.order, each.id) for each in self._found.values()]
        heapify(self._tickets)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[InboxEntry]:
        return iter(self._found.values())

    def __contains__(self, id_: str) -> bool:
        return id_ in self._found

    def join(self, found: InboxEntry) -> None:
        """Queue an entry, unless it is queued."""
        if found.id not in self._found:
            self._found[found.id] = found
            heappush(self._tickets, (found.order, found.id))

    def first(self, most: int) -> list[InboxEntry]:
        """The first entries; they stay until they are dropped."""
        found: list[InboxEntry] = []
        drawn: list[tuple[tuple[bool, int], str]] = []
        while self._tickets and len(found) < most:
            ticket = heappop(self._tickets)
            each = self._found.get(ticket[1])
            if each is not None and drawn[-1:] != [ticket]:  # queued again: two tickets
                found.append(each)
                drawn.append(ticket)
        for ticket in drawn:
            heappush(self._tickets, ticket)
        return found

    def drop(self, id_: str) -> bool:
        """Remove an entry; return whether it was queued."""
        return self._found.pop(id_, None) is not None
