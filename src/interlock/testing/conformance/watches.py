"""The feed: every change once, in order, from a revision on, or an explicit Resync.

``Watches`` has a feed of one scope, ``Scopes`` one of several.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from interlock.errors import StoreClosed
from interlock.store import LOG, Change, Check, Put, Resync, Scope, Store, Watch
from interlock.testing.conformance.place import (
    PATIENCE,
    Place,
    Suite,
    at_once,
    committed,
    gather,
    txn,
    write,
)


class Watches(Suite):
    """What ``watch`` promises."""

    def test_changes_come_in_order_and_only_in_the_scope(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        first = write(store, Put("p/b", b""), Put("q/b", b""))
        second = write(store, Put("p/a", b""), deletes=("p/b",))
        write(store, Put("q/a", b""))
        third = write(store, Put("p/b", b""))
        changes = gather(watch, lambda found: bool(found) and found[-1].revision == third)
        assert changes == [
            Change(first, "p/b"),
            Change(second, "p/a"),
            Change(second, "p/b", deleted=True),
            Change(third, "p/b"),
        ]

    def test_entries_come_with_their_value(self, store: Store) -> None:
        watch = store.watch(LOG, store.read().revision)
        change = txn(Put("a", b"1"))
        revision = committed(store.commit(change)).revision
        found = gather(watch, bool)
        assert found == [Change(revision, LOG + change.id, value=change.entry)]

    def test_an_empty_scope_brings_everything(self, store: Store) -> None:
        watch = store.watch("", store.read().revision)
        change = txn(Put("a", b""), Put("z", b""), signals=("m",))
        store.commit(change)
        found = gather(watch, lambda found: len(found) >= 4)
        assert sorted(each.key for each in found) == ["a", LOG + change.id, "m", "z"]

    def test_a_watch_resumes_after_any_revision(self, store: Store) -> None:
        revisions = [0, *(write(store, Put(f"p/{number}", b"")) for number in range(6))]
        for position, after in enumerate(revisions[:-1]):
            watch = store.watch("p/", after)
            changes = gather(watch, lambda found: bool(found) and found[-1].key == "p/5")
            assert [change.revision for change in changes] == revisions[position + 1 :]
            watch.close()
        assert store.watch("p/", revisions[-1]).take(0) == []

    def test_a_watch_from_an_old_revision_goes_on_with_what_comes(self, store: Store) -> None:
        write(store, Put("p/1", b""))
        watch = store.watch("p/", 0)
        write(store, Put("p/2", b""))
        assert [change.key for change in gather(watch, _count(2))] == ["p/1", "p/2"]
        write(store, Put("p/3", b""))
        assert [change.key for change in gather(watch, _count(1))] == ["p/3"]

    def test_forgotten_history_is_a_resync_never_a_gap(self, place: Place, store: Store) -> None:
        old = write(store, Put("p/1", b""))
        write(store, Put("p/2", b""))
        last = write(store, Put("p/2", b""))  # which an engine may still know
        place.trim(store, last)
        for after in (0, old):
            watch = store.watch("p/", after)
            came = _first(watch)
            assert isinstance(came, Resync)
            assert came.revision >= last
            write(store, Put("p/3", b""))
            assert [change.key for change in gather(watch, _count(1))] == ["p/3"]
            watch.close()

    def test_history_forgotten_under_an_open_watch_is_no_gap_either(
        self, place: Place, store: Store
    ) -> None:
        watch = store.watch("p/", store.read().revision)
        other = place.open()
        missed = write(other, Put("p/1", b""))
        place.trim(other, missed)
        came = _first(watch)
        assert came == Change(missed, "p/1") or isinstance(came, Resync)
        assert came.revision >= missed

    def test_a_watch_that_missed_nothing_needs_no_resync(self, place: Place, store: Store) -> None:
        last = write(store, Put("p/1", b""))
        place.trim(store, last)
        watch = store.watch("p/", last)
        write(store, Put("p/2", b""))
        assert [change.key for change in gather(watch, _count(1))] == ["p/2"]

    def test_revisions_go_on_after_history_was_forgotten(self, place: Place, store: Store) -> None:
        last = write(store, Put("p/1", b""))
        place.trim(store, last)
        assert store.read("p/1").revision == last
        assert store.read("p/1")["p/1"] is not None
        assert write(store) > last

    def test_no_change_is_missed_or_doubled_while_many_write(
        self, place: Place, store: Store
    ) -> None:
        writers, each = 4, self.times(25)
        start = store.read().revision

        def writes(name: int, other: Store) -> list[tuple[int, str]]:
            keys = [f"p/{name}/{number}" for number in range(each)]
            return [(write(other, Put(key, b""), Put("q", b"")), key) for key in keys]

        def reads(other: Store) -> list[tuple[int, str]]:
            found: list[Change] = []
            while len(found) < writers * each:  # closes and resumes every few changes
                watch = other.watch("p/", found[-1].revision if found else start)
                found += gather(watch, _count(7 if len(found) + 7 < writers * each else 1))
                watch.close()
            return [(change.revision, change.key) for change in found]

        def follows(other: Store) -> list[tuple[int, str]]:
            watch = other.watch("p/", start)
            return [(each.revision, each.key) for each in gather(watch, _count(writers * each))]

        works = [partial(writes, name, place.open()) for name in range(writers)]
        works += [partial(reads, store), partial(follows, store), partial(follows, place.open())]
        *written, one, two, three = at_once(*works)
        expected = sorted(pair for pairs in written for pair in pairs)
        assert one == expected
        assert two == expected
        assert three == expected

    def test_watches_of_different_scopes_each_get_their_own(self, store: Store) -> None:
        start = store.read().revision
        watches = {scope: store.watch(scope, start) for scope in ("p/", "p/a", "q/", "r/")}
        write(store, Put("p/a", b""), Put("p/ab", b""), Put("p/a/b", b""), Put("q/a", b""))
        found = {
            scope: watch.take(PATIENCE if scope != "r/" else 0) for scope, watch in watches.items()
        }
        keys = {scope: [_key(change) for change in changes] for scope, changes in found.items()}
        assert keys == {"p/": ["p/a", "p/ab", "p/a/b"], "p/a": ["p/a"], "q/": ["q/a"], "r/": []}

    def test_deleting_what_is_not_there_is_no_change(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        write(store, deletes=("p/1",))
        loud = write(store, Put("p/2", b""))
        assert gather(watch, bool) == [Change(loud, "p/2")]

    def test_the_end_of_a_liveness_key_is_no_change(self, store: Store) -> None:
        write(store, Put("live/1", b"", ttl=60))
        watch = store.watch("live/", store.read().revision)
        write(store, deletes=("live/1",))
        loud = write(store, Put("live/2", b"", ttl=60))
        assert gather(watch, bool) == [Change(loud, "live/2")]

    def test_a_signal_wakes_and_stores_nothing(self, store: Store) -> None:
        watch = store.watch("wake/a", store.read().revision)
        revision = write(store, Put("p", b""), signals=("wake/a", "wake/b"))
        assert gather(watch, bool) == [Change(revision, "wake/a")]
        assert store.read("wake/a")["wake/a"] is None

    def test_a_quiet_commit_wakes_nobody(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        write(store, Put("p/1", b""), quiet=True)
        loud = write(store, Put("p/2", b""))
        assert gather(watch, bool) == [Change(loud, "p/2")]

    def test_a_refused_commit_wakes_nobody(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        store.commit(txn(Put("p/1", b""), checks=(Check("p/0", "exists"),), signals=("p/s",)))
        loud = write(store, Put("p/2", b""))
        assert gather(watch, bool) == [Change(loud, "p/2")]

    def test_take_is_empty_when_the_time_is_up(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        assert watch.take(0) == []
        started = time.monotonic()
        assert watch.take(0.05) == []
        assert 0.04 <= time.monotonic() - started < PATIENCE

    def test_looks_without_any_patience_see_what_another_committed(
        self, place: Place, store: Store
    ) -> None:
        watch = store.watch("p/", store.read().revision)
        revision = write(place.open(), Put("p/1", b""))
        found: list[Change | Resync] = []
        ends = time.monotonic() + PATIENCE
        while not found and time.monotonic() < ends:
            found = watch.take(0)
        assert found == [Change(revision, "p/1")]

    def test_take_sleeps_until_a_commit_wakes_it(self, place: Place, store: Store) -> None:
        for writer in (store, place.open()):
            watch = store.watch("p/", store.read().revision)
            found, _ = at_once(
                partial(gather, watch, bool), partial(write, writer, Put("p/1", b""))
            )
            assert found == [Change(writer.read().revision, "p/1")]
            watch.close()

    def test_take_async_sleeps_until_a_commit_wakes_it(self, place: Place, store: Store) -> None:
        other = place.open()

        async def main() -> None:
            start = store.read().revision
            one, two = store.watch("p/1", start), store.watch("p/2", start)
            takes = [asyncio.create_task(_take(watch, PATIENCE)) for watch in (one, two)]
            await asyncio.sleep(0)
            await asyncio.to_thread(write, other, Put("p/1", b""))
            assert _is_about(await takes[0], "p/1")
            write(store, Put("p/2", b""))
            assert _is_about(await takes[1], "p/2")
            write(store, Put("p/1", b""))
            assert _is_about(await _take(one, PATIENCE), "p/1")
            assert await _take(two, 0.02) == []
            assert await _take(two, 0) == []
            one.close()
            two.close()

        asyncio.run(main())

    def test_a_cancelled_take_async_loses_nothing(self, store: Store) -> None:
        async def main() -> None:
            watch = store.watch("p/", store.read().revision)
            task = asyncio.create_task(_take(watch, None))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            write(store, Put("p/1", b""))
            assert [_key(change) for change in await _take(watch, PATIENCE)] == ["p/1"]

        asyncio.run(main())

    def test_a_watch_that_outlives_its_event_loop_harms_nobody(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)

        async def main() -> None:
            task = asyncio.create_task(_take(watch, None))
            await asyncio.sleep(0)
            task.cancel()

        asyncio.run(main())
        write(store, Put("p/1", b""))
        assert [change.key for change in gather(watch, bool)] == ["p/1"]

    def test_a_closed_watch_leaves_the_others_alone(self, store: Store) -> None:
        start = store.read().revision
        one, two = store.watch("p/", start), store.watch("p/", start)
        one.close()
        one.close()
        write(store, Put("p/1", b""))
        assert [change.key for change in gather(two, bool)] == ["p/1"]

    def test_close_ends_whoever_waits(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)

        def waits() -> None:
            while True:
                watch.take(0.2)

        assert isinstance(_raised_by_close(store, waits), StoreClosed)

    def test_after_close_a_watch_is_refused_too(self, store: Store) -> None:
        watch = store.watch("p/", store.read().revision)
        store.close()
        with pytest.raises(StoreClosed):
            watch.take(0)
        with pytest.raises(StoreClosed):
            asyncio.run(_take(watch, 0))
        watch.close()


MANY = 150
"""How many scopes a watch must be able to have."""


class Scopes(Suite):
    """What ``watch`` promises of several scopes."""

    def test_each_of_several_scopes_is_seen_and_nothing_else(self, store: Store) -> None:
        watch = store.watch(("q/a", "p/", "r/s/"), store.read().revision)
        write(store, Put("p/1", b""), Put("q/a", b""), Put("q/ab", b""), Put("q/a/b", b""))
        write(store, Put("r/1", b""), Put("p", b""), Put("r/st", b""))
        write(store, Put("r/s/1", b""), deletes=("p/1", "q/ab"))
        found = gather(watch, _count(4))
        assert Counter((each.key, each.deleted) for each in found) == Counter(
            [("p/1", False), ("q/a", False), ("r/s/1", False), ("p/1", True)]
        )
        assert watch.take(0) == []

    @pytest.mark.parametrize(
        "scope",
        [("p/", "p/a/", "p/a/1", "p/"), ("p/a/", "", "q/"), ("p/a/1", "p/a/1")],
        ids=["nested", "everything", "twice"],
    )
    def test_what_two_scopes_cover_is_told_once(self, store: Store, scope: Scope) -> None:
        watch = store.watch(scope, store.read().revision)
        found: list[Change] = []
        for _ in range(3):  # what comes twice may come later
            last = write(store, Put("p/a/1", b""), Put("p/a/2", b""))
            found += gather(watch, partial(_has, Change(last, "p/a/1")))
        found += [each for each in watch.take(0.02) if isinstance(each, Change)]
        assert len([each for each in found if each.key == "p/a/1"]) == 3
        assert len({(each.revision, each.key) for each in found}) == len(found)

    def test_one_commit_in_several_scopes_is_told_in_full(self, store: Store) -> None:
        watch = store.watch(("p/", "q/", "wake/a"), store.read().revision)
        for _ in range(5):
            revision = write(store, Put("p/1", b""), Put("q/1", b""), signals=("wake/a",))
            found = gather(watch, _count(3))
            assert {(each.revision, each.key) for each in found} == {
                (revision, "p/1"), (revision, "q/1"), (revision, "wake/a"),
            }  # fmt: skip
        assert watch.take(0) == []

    def test_entries_and_other_scopes_come_in_one_feed(self, store: Store) -> None:
        watch = store.watch((LOG, "p/"), store.read().revision)
        change = txn(Put("p/1", b"1"), Put("q/1", b""))
        revision = committed(store.commit(change)).revision
        found = sorted(gather(watch, _count(2)), key=lambda each: each.key)
        entry = Change(revision, LOG + change.id, value=change.entry)
        assert found == [entry, Change(revision, "p/1")]

    def test_signals_among_several_scopes_wake(self, store: Store) -> None:
        watch = store.watch(("wake/a", "wake/b", "p/"), store.read().revision)
        for name in ("wake/b", "wake/a"):
            revision = write(store, signals=(name, "wake/c"))
            assert gather(watch, bool) == [Change(revision, name)]

    def test_several_scopes_resume_after_any_revision(self, store: Store) -> None:
        keys = [f"{'pq'[number % 2]}/{number}" for number in range(6)]
        revisions = [0, *(write(store, Put(key, b""), Put("r/1", b"")) for key in keys)]
        for position, after in enumerate(revisions):
            watch = store.watch(("p/", "q/"), after)
            found = gather(watch, _count(len(keys) - position))
            assert sorted(each.revision for each in found) == revisions[position + 1 :]
            if store.capabilities.ordered:
                assert [each.key for each in found] == keys[position:]
            assert watch.take(0) == []
            watch.close()

    def test_forgotten_history_of_several_scopes_is_a_resync(
        self, place: Place, store: Store
    ) -> None:
        write(store, Put("p/1", b""), Put("q/1", b""))
        write(store, Put("p/2", b""), Put("q/2", b""))
        last = write(store, Put("p/2", b""), Put("q/2", b""))  # which an engine may still know
        place.trim(store, last)
        watch = store.watch(("p/", "q/"), 0)
        assert any(isinstance(came, Resync) for came in watch.take(PATIENCE))
        later = write(store, Put("p/3", b""), Put("q/3", b""))
        fresh: list[str] = []
        while sorted(fresh) != ["p/3", "q/3"]:  # a second Resync does no harm
            came = watch.take(PATIENCE)
            assert came, f"only {fresh}"
            fresh += [
                each.key for each in came if isinstance(each, Change) if each.revision >= later
            ]

    def test_each_of_many_scopes_wakes_at_once(self, place: Place, store: Store) -> None:
        other = place.open()
        watch = store.watch(tuple(f"p/{number}/" for number in range(MANY)), store.read().revision)
        for number in (0, MANY // 2, MANY - 1):
            found, revision = at_once(
                partial(gather, watch, bool), partial(write, other, Put(f"p/{number}/x", b""))
            )
            assert found == [Change(revision, f"p/{number}/x")]  # type: ignore[arg-type]
        watch.close()

    def test_an_event_loop_is_woken_by_each_of_many_scopes(
        self, place: Place, store: Store
    ) -> None:
        other = place.open()

        async def main() -> None:
            start = store.read().revision
            watch = store.watch(tuple(f"p/{number}" for number in range(MANY)), start)
            beside = store.watch(("p/0", "q/"), start)
            for number in (MANY - 1, MANY // 2, 0):
                task = asyncio.create_task(_take(watch, PATIENCE))
                await asyncio.sleep(0)
                await asyncio.to_thread(write, other, Put(f"p/{number}", b""))
                assert [_key(change) for change in await task] == [f"p/{number}"]
            assert [_key(change) for change in await _take(beside, PATIENCE)] == ["p/0"]
            watch.close()
            await asyncio.to_thread(write, other, Put("p/0", b""))
            assert [_key(change) for change in await _take(beside, PATIENCE)] == ["p/0"]
            beside.close()

        asyncio.run(main())

    def test_nothing_in_several_scopes_is_missed_or_doubled_while_many_write(
        self, place: Place, store: Store
    ) -> None:
        writers, each = 3, self.times(20)
        start = store.read().revision

        def writes(name: int, other: Store) -> list[tuple[int, str]]:
            found = []
            for number in range(each):
                keys = [f"{folder}/{name}/{number}" for folder in ("p", "q")]
                revision = write(other, *(Put(key, b"") for key in (*keys, "r")))
                found += [(revision, key) for key in keys]
            return found

        def follows(other: Store) -> list[tuple[int, str]]:
            watch = other.watch(("q/", "p/"), start)
            found = gather(watch, _count(2 * writers * each))
            assert watch.take(0) == []
            return [(change.revision, change.key) for change in found]

        works = [partial(writes, name, place.open()) for name in range(writers)]
        *written, one, two = at_once(
            *works, partial(follows, store), partial(follows, place.open())
        )
        expected = sorted(pair for pairs in written for pair in pairs)
        for found in (one, two):
            assert sorted(found) == expected
            for folder in ("p/", "q/") if not store.capabilities.ordered else ("",):
                revisions = [revision for revision, key in found if key.startswith(folder)]
                assert revisions == sorted(revisions)

    def test_close_ends_whoever_waits_for_several_scopes(self, store: Store) -> None:
        watch = store.watch(("p/", "q/", "wake/a"), store.read().revision)
        raised = _raised_by_close(store, partial(watch.take, PATIENCE))
        assert isinstance(raised, StoreClosed)

    def test_a_watch_of_no_scope_is_refused(self, store: Store) -> None:
        with pytest.raises(ValueError, match="no scope"):
            store.watch((), 0)


def _has(change: Change, found: list[Change]) -> bool:
    return change in found


def _count(least: int) -> Callable[[list[Change]], bool]:
    return lambda found: len(found) >= least


def _first(watch: Watch) -> Change | Resync:
    (first,) = watch.take(PATIENCE)
    return first


def _is_about(changes: Sequence[Change | Resync], key: str) -> bool:
    """Whether these are of a key; a Resync may stand for them where others compact the server."""
    return bool(changes) and all(isinstance(each, Resync) or each.key == key for each in changes)


def _key(change: Change | Resync) -> str:
    assert isinstance(change, Change)
    return change.key


async def _take(watch: Watch, timeout: float | None) -> list[Change | Resync]:
    return await watch.take_async(timeout)


def _raised_by_close(store: Store, waits: Callable[[], object]) -> BaseException | None:
    """What a thread that waits gets when the store is closed."""
    waiting = threading.Event()
    raised: list[BaseException] = []

    def run() -> None:
        waiting.set()
        try:
            waits()
        except BaseException as error:  # noqa: BLE001 - which one is the question
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waiting.wait(PATIENCE)
    store.close()
    thread.join(PATIENCE)
    return raised[0] if raised else None
