"""Local engines: read, decide and commit inside one transaction."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from interlock.errors import StoreClosed
from interlock.store import (
    LOG,
    Committed,
    Log,
    Put,
    Range,
    Store,
    TransactingStore,
    Txn,
    View,
    Work,
    can_transact,
)
from interlock.testing.conformance.place import (
    STALLED,
    Place,
    Suite,
    at_once,
    committed,
    there,
    txn,
    write,
)


class Transactions(Suite):
    """What ``transact`` promises."""

    def test_transact_commits_what_the_work_returns(self, store: Store) -> None:
        change = txn(Put("a", b"1"))
        answer = committed(_local(store).transact(lambda _: change))
        snapshot = store.read("a", LOG + change.id)
        item, entry = snapshot["a"], snapshot[LOG + change.id]
        assert item is not None
        assert entry is not None
        assert item.revision == entry.revision == answer.revision == snapshot.revision
        assert (item.entry, item.hash, entry.value) == (change.id, change.hash, change.entry)

    def test_transact_of_nothing_changes_nothing(self, store: Store) -> None:
        revision = write(store, Put("a", b""))
        assert _local(store).transact(lambda _: None) is None
        assert asyncio.run(_transact(store, lambda _: None)) is None
        assert store.read().revision == revision

    def test_the_work_reads_the_latest_moment(self, store: Store) -> None:
        revision = write(store, Put("p/a", b"1"), Put("p/b", b"2"))
        seen: list[Any] = []

        def work(view: View) -> None:
            seen.append(view.read("p/a", "p/x", Range("p/"), Log(last=True, limit=1)))

        _local(store).transact(work)
        assert seen[0].revision == revision
        assert seen[0] == store.read("p/a", "p/x", Range("p/"), Log(last=True, limit=1))

    def test_an_exception_inside_reaches_its_caller_and_changes_nothing(self, store: Store) -> None:
        revision = write(store, Put("a", b"1"))

        def work(view: View) -> Txn:
            view.read("a")
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            _local(store).transact(work)
        with pytest.raises(ZeroDivisionError, match="mine"):
            asyncio.run(_transact(store, work))
        assert store.read("a").revision == revision
        assert write(store, Put("a", b"2")) > revision

    def test_no_increment_is_lost_between_threads(self, place: Place, store: Store) -> None:
        threads, increments = 6, self.times(15)

        def count(other: TransactingStore) -> list[int]:
            return [committed(other.transact(_increment)).revision for _ in range(increments)]

        works = [partial(count, _local(place.open())) for _ in range(threads)]
        revisions = sorted(revision for found in at_once(*works) for revision in found)
        assert _counted(store) == threads * increments
        assert revisions == list(range(revisions[0], revisions[0] + threads * increments))

    def test_no_increment_is_lost_between_tasks(self, store: Store) -> None:
        tasks = 50

        async def main() -> list[Committed | None]:
            return await asyncio.gather(*(_transact(store, _increment) for _ in range(tasks)))

        start = store.read().revision
        revisions = [committed(answer).revision for answer in asyncio.run(main())]
        assert _counted(store) == tasks
        assert sorted(revisions) == list(range(start + 1, start + 1 + tasks))

    def test_an_exception_ends_only_its_own_transaction(self, store: Store) -> None:
        def fails(view: View) -> Txn:
            _increment(view)
            raise ZeroDivisionError

        async def main() -> list[Committed | BaseException | None]:
            works = [fails if number % 3 == 0 else _increment for number in range(30)]
            calls = (_transact(store, work) for work in works)
            return await asyncio.gather(*calls, return_exceptions=True)

        start = store.read().revision
        answers = asyncio.run(main())
        assert {type(answer) for answer in answers[::3]} == {ZeroDivisionError}
        good = [answer for number, answer in enumerate(answers) if number % 3]
        revisions = sorted(committed(answer).revision for answer in good)
        assert revisions == list(range(start + 1, start + 21))
        assert _counted(store) == 20

    def test_threads_tasks_and_plain_commits_mix(self, place: Place, store: Store) -> None:
        other, turns = _local(place.open()), 4 * self.times(5)

        async def tasks() -> None:
            for _ in range(turns // 4):
                await asyncio.gather(*(_transact(store, _increment) for _ in range(4)))

        def thread() -> None:
            for number in range(turns):
                other.transact(_increment)
                write(store, Put(f"p/{number}", b""))

        at_once(lambda: asyncio.run(tasks()), thread, thread)
        assert _counted(store) == 3 * turns

    def test_two_event_loops_and_threads_share_one_store_object(self, store: Store) -> None:
        rounds, tasks = self.times(120), 8

        async def loop() -> None:
            for _ in range(rounds):
                began = time.monotonic()
                await asyncio.gather(*(_transact(store, _increment) for _ in range(tasks)))
                assert time.monotonic() - began < STALLED, "answered, but not woken"

        def thread() -> None:
            for _ in range(rounds):
                committed(_local(store).transact(_increment))

        works = [lambda: asyncio.run(loop())] * 2 + [thread] * 3
        at_once(*works)
        assert _counted(store) == rounds * (2 * tasks + 3)

    def test_everything_transacted_is_in_the_log_once(self, store: Store) -> None:
        at_once(*([partial(_local(store).transact, _increment)] * 8))
        ref = Log()
        revisions = [entry.revision for entry in store.read(ref).ranges[ref]]
        assert len(revisions) == 8
        assert sorted(set(revisions)) == revisions

    def test_sweep_forgets_what_lapsed_and_nothing_else(self, place: Place, store: Store) -> None:
        write(store, Put("live/long", b"", ttl=600.0), Put("a", b""))
        write(store, *(Put(f"live/{n}", b"", ttl=store.capabilities.min_ttl) for n in range(3)))
        assert _local(store).sweep() == 0
        place.until(lambda: store.read("live/2")["live/2"] is None)
        assert _local(store).sweep() == 3
        assert _local(store).sweep() == 0
        assert None not in store.read("live/long", "a").items.values()

    def test_info_names_the_engine(self, store: Store) -> None:
        assert _local(store).info()["engine"] == store.capabilities.engine

    def test_after_close_transact_is_refused(self, store: Store) -> None:
        store.close()
        with pytest.raises(StoreClosed):
            _local(store).transact(_increment)
        with pytest.raises(StoreClosed):
            asyncio.run(_transact(store, _increment))


def _local(store: Store) -> TransactingStore:
    assert can_transact(store)
    return store


async def _transact(store: Store, work: Work) -> Committed | None:
    return await _local(store).transact_async(work)


def _increment(view: View) -> Txn:
    item = view.read("counter")["counter"]
    value = 0 if item is None else int(item.value)
    return txn(Put("counter", str(value + 1).encode()))


def _counted(store: Store) -> int:
    item = there(store, "counter")
    return int(item.value)
