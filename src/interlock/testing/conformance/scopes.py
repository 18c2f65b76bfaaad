"""A watch of several scopes: one feed of all of them, each change once."""

# ruff: noqa: D102 - the name of a test says what should be true

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from interlock.errors import StoreClosed
from interlock.store import LOG, Change, Put, Resync, Scope, Store, Watch
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
                task = asyncio.create_task(_take(watch))
                await asyncio.sleep(0)
                await asyncio.to_thread(write, other, Put(f"p/{number}", b""))
                assert [_key(change) for change in await task] == [f"p/{number}"]
            assert [_key(change) for change in await _take(beside)] == ["p/0"]
            watch.close()
            await asyncio.to_thread(write, other, Put("p/0", b""))
            assert [_key(change) for change in await _take(beside)] == ["p/0"]
            beside.close()

        asyncio.run(main())

    def test_nothing_in_several_scopes_is_missed_or_doubled_while_many_write(
        self, place: Place, store: Store
    ) -> None:
        writers, each = 3, 20
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
        waiting = threading.Event()
        ended: list[BaseException] = []

        def waits() -> None:
            waiting.set()
            try:
                watch.take(PATIENCE)
            except BaseException as error:  # noqa: BLE001 - which one is the question
                ended.append(error)

        thread = threading.Thread(target=waits, daemon=True)
        thread.start()
        assert waiting.wait(PATIENCE)
        store.close()
        thread.join(PATIENCE)
        assert [type(error) for error in ended] == [StoreClosed]

    def test_a_watch_of_no_scope_is_refused(self, store: Store) -> None:
        with pytest.raises(ValueError, match="no scope"):
            store.watch((), 0)


def _count(least: int) -> Callable[[list[Change]], bool]:
    return lambda found: len(found) >= least


def _has(change: Change, found: list[Change]) -> bool:
    return change in found


def _key(change: Change | Resync) -> str:
    assert isinstance(change, Change)
    return change.key


async def _take(watch: Watch) -> list[Change | Resync]:
    return await watch.take_async(PATIENCE)
