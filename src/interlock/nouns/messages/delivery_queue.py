"""What waits to be given out, in its order: the urgent first, then as it was sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from msgspec import Struct

from interlock.nouns.messages.reading import InboxEntry


class Delivery(Struct, frozen=True):
    """A message that was given out: how often, and when it is to come again."""

    found: InboxEntry
    times: int
    due: float


class DeliveryQueue:
    """Messages by their place; whatever is dropped leaves its ticket behind until that is drawn."""

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
        """Wait, unless it waits already."""
        if found.id not in self._found:
            self._found[found.id] = found
            heappush(self._tickets, (found.order, found.id))

    def first(self, most: int) -> list[InboxEntry]:
        """The first ones; they stay until they are dropped."""
        found: list[InboxEntry] = []
        drawn: list[tuple[tuple[bool, int], str]] = []
        while self._tickets and len(found) < most:
            ticket = heappop(self._tickets)
            each = self._found.get(ticket[1])
            if each is not None and drawn[-1:] != [ticket]:  # one that waits again has two
                found.append(each)
                drawn.append(ticket)
        for ticket in drawn:
            heappush(self._tickets, ticket)
        return found

    def drop(self, id_: str) -> bool:
        """It waits no more; whether it did."""
        return self._found.pop(id_, None) is not None
