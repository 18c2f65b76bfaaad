"""All or nothing: checks, answers, entries, voids, revisions, stamps, limits."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from itertools import pairwise

import pytest
from msgspec.structs import replace

from interlock.errors import StoreClosed
from interlock.store import (
    LOG,
    VOID,
    Change,
    Check,
    Conflict,
    Item,
    Log,
    Put,
    Range,
    Resync,
    Store,
    can_transact,
    void,
)
from interlock.testing.conformance.place import (
    STALLED,
    Place,
    Suite,
    at_once,
    committed,
    fresh,
    refused,
    there,
    txn,
    write,
)


class Commits(Suite):
    """What ``commit`` promises, and ``capabilities``."""

    def test_a_check_holds_exactly_for_what_it_says(self, store: Store) -> None:
        revision = write(store, Put("is", b"1"))
        checks = {
            Check("is", "absent"): False,
            Check("is", "exists"): True,
            Check("is", "at", revision=revision): True,
            Check("is", "at", revision=revision - 1): False,
            Check("is", "at", revision=revision + 1): False,
            Check("is", "has", value=b"1"): True,
            Check("is", "has", value=b""): False,
            Check("not", "absent"): True,
            Check("not", "exists"): False,
            Check("not", "at", revision=revision): False,
            Check("not", "at", revision=0): False,
            Check("not", "has", value=b""): False,
        }
        for check, holds in checks.items():
            answer = store.commit(txn(Put("mark", b""), checks=(check,)))
            assert isinstance(answer, Conflict) is not holds, check

    def test_one_failed_check_stops_everything(self, store: Store) -> None:
        write(store, Put("a", b"old"), Put("b", b"old"))
        before = store.read("a", "b", "c")
        change = txn(
            Put("a", b"new"),
            Put("c", b"new"),
            deletes=("b",),
            checks=(Check("a", "exists"), Check("b", "absent"), Check("c", "absent")),
        )
        refused(store.commit(change))
        assert store.read("a", "b", "c") == before
        assert store.read(LOG + change.id)[LOG + change.id] is None

    def test_a_commit_changes_all_its_keys_at_one_revision(self, store: Store) -> None:
        write(store, Put("gone", b""))
        revision = write(store, Put("a", b"1"), Put("b", b"2"), deletes=("gone", "never"))
        snapshot = store.read("a", "b", "gone")
        assert {item and item.revision for item in snapshot.items.values()} == {revision, None}
        assert snapshot["gone"] is None

    def test_a_yes_brings_back_asked_keys_as_they_are_after_it(self, store: Store) -> None:
        write(store, Put("a", b"1"), Put("c", b"3"))
        checks = (Check("a", "exists"), Check("b", "absent"))
        change = txn(Put("a", b"2"), checks=checks, reads=("a", "c", "d"))
        items = committed(store.commit(change)).items
        assert items["d"] is None
        assert _value(items["c"]) == b"3"
        assert _value(items["a"]) == b"2"
        assert items == store.read(*items).items

    def test_a_no_brings_back_checked_and_asked_keys_as_they_stand(self, store: Store) -> None:
        write(store, Put("a", b"1"), Put("c", b"3"))
        checks = (Check("a", "absent"), Check("b", "absent"))
        change = txn(Put("a", b"2"), checks=checks, reads=("c", "d"))
        items = refused(store.commit(change)).items
        assert set(items) == {"a", "b", "c", "d", LOG + change.id}
        assert items == store.read(*items).items
        assert _value(items["a"]) == b"1"

    def test_a_recorded_commit_writes_its_own_entry(self, store: Store) -> None:
        change = txn(Put("a", b"1"))
        answer = committed(store.commit(change))
        key = LOG + change.id
        entry = there(store, key)
        assert entry.value == change.entry
        assert entry.hash == change.hash
        assert entry.entry == change.id
        assert entry.revision == entry.created == answer.revision

    def test_a_second_commit_under_one_id_is_refused_with_the_first_entry(
        self, store: Store
    ) -> None:
        change = txn(Put("a", b"1"))
        revision = committed(store.commit(change)).revision
        items = refused(store.commit(txn(Put("a", b"2"), id_=change.id))).items
        entry = items[LOG + change.id]
        assert entry is not None
        assert (entry.value, entry.revision) == (change.entry, revision)
        assert there(store, "a").value == b"1"

    def test_a_void_keeps_a_late_commit_out_for_ever(self, store: Store) -> None:
        late = txn(Put("a", b"1"))
        committed(store.commit(void(late.id)))
        items = refused(store.commit(late)).items
        assert _value(items[LOG + late.id]) == VOID
        assert store.read("a")["a"] is None

    def test_a_void_after_the_fact_finds_the_entry(self, store: Store) -> None:
        change = txn(Put("a", b"1"))
        revision = committed(store.commit(change)).revision
        entry = refused(store.commit(void(change.id))).items[LOG + change.id]
        assert entry is not None
        assert (entry.value, entry.revision) == (change.entry, revision)
        assert there(store, "a").value == b"1"

    def test_a_void_of_a_void_finds_it(self, store: Store) -> None:
        id_ = fresh()
        committed(store.commit(void(id_)))
        entry = refused(store.commit(void(id_))).items[LOG + id_]
        assert _value(entry) == VOID

    def test_of_a_commit_and_its_void_exactly_one_happens(self, place: Place) -> None:
        one, two = place.open(), place.open()
        for number in range(self.times(20)):
            change = txn(Put(f"a/{number}", b""))
            answers = at_once(partial(one.commit, change), partial(two.commit, void(change.id)))
            assert sum(isinstance(answer, Conflict) for answer in answers) == 1
            happened = one.read(f"a/{number}")[f"a/{number}"] is not None
            assert happened is isinstance(answers[1], Conflict)

    def test_revisions_strictly_increase_also_for_quiet_commits(self, store: Store) -> None:
        revisions = [write(store, Put("a", b""), quiet=number % 2 == 0) for number in range(8)]
        revisions.append(write(store))
        assert all(later > earlier for earlier, later in pairwise(revisions))
        assert store.read().revision == revisions[-1]

    def test_revisions_go_on_after_a_restart(self, place: Place, store: Store) -> None:
        write(store, Put("a", b""))
        last = write(store, Put("a", b""), quiet=True)
        again = place.reopen()
        durable = again.capabilities.durability != "none"
        assert (write(again, Put("a", b"")) > last) is durable

    def test_what_was_committed_survives_a_restart_if_it_says_so(
        self, place: Place, store: Store
    ) -> None:
        write(store, Put("a", b"1"))
        again = place.reopen()
        assert (again.read("a")["a"] is not None) is (again.capabilities.durability != "none")

    def test_created_stays_while_revision_moves(self, store: Store) -> None:
        first = write(store, Put("a", b"1"))
        second = write(store, Put("a", b"2"))
        item = there(store, "a")
        assert (item.created, item.revision) == (first, second)

    def test_a_key_put_after_its_deletion_is_created_anew(self, store: Store) -> None:
        write(store, Put("a", b"1"))
        write(store, deletes=("a",))
        again = write(store, Put("a", b"2"))
        item = there(store, "a")
        assert (item.created, item.revision) == (again, again)

    def test_an_item_is_stamped_by_its_last_recorded_write(self, store: Store) -> None:
        first, second = txn(Put("a", b"1")), txn(Put("a", b"2"))
        store.commit(first)
        committed(store.commit(second))
        assert _stamp(store, "a") == (second.id, second.hash)
        quiet = write(store, Put("a", b"3"), quiet=True)
        assert _stamp(store, "a") == (second.id, second.hash)
        item = there(store, "a")
        assert (item.value, item.revision) == (b"3", quiet)

    def test_an_item_that_was_only_written_quietly_has_no_stamp(self, store: Store) -> None:
        write(store, Put("a", b"1"), quiet=True)
        assert _stamp(store, "a") == ("", "")

    def test_a_quiet_commit_checks_like_any_other(self, store: Store) -> None:
        change = txn(Put("a", b"1"), checks=(Check("b", "exists"),), quiet=True)
        assert refused(store.commit(change)).items == {"b": None}
        assert store.read("a")["a"] is None

    def test_a_quiet_commit_may_come_twice(self, store: Store) -> None:
        change = txn(Put("a", b"1"), quiet=True)
        committed(store.commit(change))
        committed(store.commit(change))
        assert store.read(LOG + change.id)[LOG + change.id] is None

    def test_values_up_to_the_declared_size_fit(self, store: Store) -> None:
        value = bytes(store.capabilities.max_value)
        write(store, Put("a", value))
        assert there(store, "a").value == value

    def test_as_many_operations_as_declared_fit_in_one_commit(self, store: Store) -> None:
        half = min(store.capabilities.max_operations, 10_000) // 2
        puts = [Put(f"p/{number:05}", b"") for number in range(half)]
        checks = tuple(Check(put.key, "absent") for put in puts)
        committed(store.commit(txn(*puts, checks=checks)))
        write(store, deletes=tuple(put.key for put in puts))
        assert store.read(puts[-1].key)[puts[-1].key] is None

    def test_as_many_bytes_as_declared_fit_in_one_commit(self, store: Store) -> None:
        limits = store.capabilities
        left = min(limits.max_bytes, 4 * limits.max_value)
        change = txn()
        left -= len(change.entry)
        puts: list[Put] = []
        while left > 16:
            key = f"p/{len(puts):02}"
            puts.append(Put(key, bytes(min(limits.max_value, left - len(key)))))
            left -= len(key) + len(puts[-1].value)
        committed(store.commit(replace(change, puts=tuple(puts))))
        last = puts[-1]
        assert _value(store.read(last.key)[last.key]) == last.value

    def test_no_increment_is_lost_between_many_writers(self, place: Place, store: Store) -> None:
        writers, increments = 6, self.times(15)
        write(store, Put("counter", b"0"))

        def count(other: Store) -> list[int]:
            revisions: list[int] = []
            item = other.read("counter")["counter"]
            while len(revisions) < increments:
                assert item is not None
                value = str(int(item.value) + 1).encode()
                check = Check("counter", "at", revision=item.revision)
                change = txn(Put("counter", value), checks=(check,), reads=("counter",))
                answer = other.commit(change)
                if not isinstance(answer, Conflict):
                    revisions.append(answer.revision)
                item = answer.items["counter"]
            return revisions

        counts = at_once(*(partial(count, place.open()) for _ in range(writers)))
        assert there(store, "counter").value == str(writers * increments).encode()
        assert all(sorted(revisions) == revisions for revisions in counts)
        assert len({revision for each in counts for revision in each}) == writers * increments

    def test_event_loops_and_threads_commit_through_one_store_object(self, store: Store) -> None:
        rounds, tasks = 15, 4

        async def loop(name: str) -> None:
            for number in range(rounds):
                began = time.monotonic()
                keys = [f"{name}/{number}/{task}" for task in range(tasks)]
                await asyncio.gather(*(store.commit_async(txn(Put(key, b"1"))) for key in keys))
                assert time.monotonic() - began < STALLED, "answered, but not woken"

        def thread(name: str) -> None:
            for number in range(rounds):
                write(store, Put(f"{name}/{number}", b"1"))

        loops = [partial(asyncio.run, loop(name)) for name in ("a", "b")]
        at_once(*loops, partial(thread, "c"), partial(thread, "d"))
        for name, many in (("a", rounds * tasks), ("b", rounds * tasks), ("c", rounds)):
            ref = Range(f"{name}/")
            assert len(store.read(ref).ranges[ref]) == many

    def test_event_loops_and_threads_use_every_verb_of_one_store_object(self, store: Store) -> None:
        rounds, users = self.times(10), ("a", "b", "c", "d", "e")
        alive = tuple(Put(f"live/{name}", b"", ttl=600.0) for name in users)
        write(store, *alive)

        def received(found: list[Change], key: str, taken: list[Change | Resync]) -> bool:
            assert taken, "changed, but not woken"
            found += [change for change in taken if isinstance(change, Change)]
            return bool(found) and found[-1].key == key

        async def loop(name: str) -> list[Change]:
            watch, found = store.watch(f"{name}/", store.read().revision), list[Change]()
            for number in range(rounds):
                key = f"{name}/{number}"
                committed(await store.commit_async(txn(Put(key, b"1"))))
                assert (await store.read_async(key))[key] is not None
                assert await store.renew_async(alive) == {put.key for put in alive}
                while not received(found, key, await watch.take_async(STALLED)):
                    pass
            watch.close()
            return found

        def thread(name: str) -> list[Change]:
            watch, found = store.watch(f"{name}/", store.read().revision), list[Change]()
            for number in range(rounds):
                key = f"{name}/{number}"
                write(store, Put(key, b"1"))
                there(store, key)
                assert store.renew(alive) == {put.key for put in alive}
                while not received(found, key, watch.take(STALLED)):
                    pass
            watch.close()
            return found

        loops = [partial(asyncio.run, loop(name)) for name in users[:2]]
        threads = [partial(thread, name) for name in users[2:]]
        for name, found in zip(users, at_once(*loops, *threads), strict=True):
            assert [change.key for change in found] == [f"{name}/{n}" for n in range(rounds)]

    def test_of_many_who_claim_an_absent_key_one_wins_and_all_learn_who(
        self, place: Place, store: Store
    ) -> None:
        others = [place.open() for _ in range(8)]
        for number in range(5):
            key = f"claim/{number}"

            def claim(key: str, name: bytes, other: Store) -> bytes | None:
                change = txn(Put(key, name), checks=(Check(key, "absent"),), reads=(key,))
                return _value(other.commit(change).items[key])

            names = [str(index).encode() for index in range(len(others))]
            works = [partial(claim, key, *pair) for pair in zip(names, others, strict=True)]
            assert set(at_once(*works)) == {_value(store.read(key)[key])}

    def test_offers_transact_exactly_if_it_says_so(self, store: Store) -> None:
        assert store.capabilities.transacts is can_transact(store)
        assert store.capabilities.transacts is self.local, (
            "take LocalConformance for one that transacts"
        )

    def test_after_close_everything_is_refused(self, store: Store) -> None:
        write(store, Put("a", b""))
        store.close()
        store.close()
        with pytest.raises(StoreClosed):
            store.read("a")
        with pytest.raises(StoreClosed):
            store.read(Log())
        with pytest.raises(StoreClosed):
            store.commit(txn(Put("a", b"")))
        with pytest.raises(StoreClosed):
            store.watch("a", 0)
        with pytest.raises(StoreClosed):
            store.renew((Put("live/a", b"", ttl=600.0),))


def _value(item: Item | None) -> bytes | None:
    return None if item is None else item.value


def _stamp(store: Store, key: str) -> tuple[str, str] | None:
    item = store.read(key)[key]
    return None if item is None else (item.entry, item.hash)
