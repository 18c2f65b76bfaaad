"""Where a store under test stands, and the small words that the suite is written in."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from msgspec.structs import replace

from interlock.store import Change, Check, Committed, Conflict, Item, Put, Resync, Store, Txn, Watch

T = TypeVar("T")

PATIENCE = 20.0
"""Nothing in the suite takes this long unless it is broken."""
STALLED = 8.0
"""A handful of commits that takes this long was answered, but its event loop was not woken."""

_numbers = itertools.count(1)


class Place:
    """Opens stores on one set of data; an engine with odd ways overrides what differs.

    ``opens`` makes a store object on the data of this place, also a second one beside the first.
    """

    def __init__(self, opens: Callable[[], Store]) -> None:
        self._opens = opens
        self._open: list[Store] = []

    def open(self) -> Store:
        """A store object on the data of this place."""
        store = self._opens()
        self._open.append(store)
        return store

    def reopen(self) -> Store:
        """The same data after a restart."""
        self.close()
        return self.open()

    def close(self) -> None:
        """Close everything that was opened here."""
        for store in self._open:
            store.close()
        self._open = []

    def trim(self, store: Store, revision: int) -> None:
        """Make the engine delete its history up to a revision."""
        store.trim(revision)

    def monotonic(self) -> float:
        """The clock by which this place waits."""
        return time.monotonic()

    def tick(self) -> None:
        """Let a little time pass; a place with a clock of its own moves it."""
        time.sleep(0.01)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds."""
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, "waited in vain"
            self.tick()


class Suite:
    """What all parts of the suite share."""

    local = False
    repetitions = 1.0
    """The share of its repetitions that a race runs: an engine with slow commits may run fewer."""

    def times(self, number: int) -> int:
        """So often a race repeats a step that others repeat ``number`` times."""
        return max(2, round(number * self.repetitions))

    @pytest.fixture
    def place(self) -> Place:
        """Where the store under test stands; each store's test class gives its own."""
        raise NotImplementedError("a conformance class needs a fixture 'place'")

    @pytest.fixture
    def store(self, place: Place) -> Iterator[Store]:
        """A fresh store."""
        yield place.open()
        place.close()


def fresh() -> str:
    """A transaction id that was never used."""
    return f"txn_{next(_numbers):06}{time.time_ns():x}"


def txn(
    *puts: Put,
    id_: str = "",
    checks: tuple[Check, ...] = (),
    deletes: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    signals: tuple[str, ...] = (),
    quiet: bool = False,
    longest: int | None = None,
) -> Txn:
    """A transaction with a fresh id and, unless it is quiet, an entry and its hash."""
    id_ = id_ or fresh()
    return Txn(
        id=id_,
        entry=b"" if quiet else f'{{"verb":"test","id":"{id_}"}}'.encode(),
        hash="" if quiet else f"#{id_}",
        checks=checks,
        longest=longest,
        puts=puts,
        deletes=deletes,
        reads=reads,
        signals=signals,
        quiet=quiet,
    )


def write(
    store: Store,
    *puts: Put,
    deletes: tuple[str, ...] = (),
    signals: tuple[str, ...] = (),
    quiet: bool = False,
) -> int:
    """Commit something that must succeed; returns its revision."""
    change = txn(*puts, deletes=deletes, signals=signals, quiet=quiet)
    return committed(store.commit(change)).revision


def there(store: Store, key: str) -> Item:
    """The item under a key, which must be there."""
    item = store.read(key)[key]
    assert item is not None, key
    return item


def committed(answer: object) -> Committed:
    """The answer, which must be a yes."""
    assert isinstance(answer, Committed), answer
    return answer


def refused(answer: object) -> Conflict:
    """The answer, which must be a no."""
    assert isinstance(answer, Conflict), answer
    return answer


def gather(watch: Watch, enough: Callable[[list[Change]], bool]) -> list[Change]:
    """Take changes until there are enough of them; a Resync must not come."""
    found: list[Change] = []
    ends = time.monotonic() + PATIENCE
    while not enough(found):
        assert time.monotonic() < ends, f"only {found}"
        for change in watch.take(1.0):
            assert not isinstance(change, Resync), change
            found.append(replace(change, item=None))  # only some engines send it
    return found


def at_once(*works: Callable[[], T]) -> list[T]:
    """Run all of these at the same time, each in a thread; the first failure is raised."""
    gate = threading.Barrier(len(works))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int, work: Callable[[], T]) -> None:
        try:
            gate.wait(PATIENCE)
            results[number] = work()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert len(results) == len(works), "some of them hang"
    return [results[number] for number in range(len(works))]
