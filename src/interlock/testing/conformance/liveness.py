"""Keys that expire: judged by the engine's clock, absent to every reader, seen by no watch."""

from __future__ import annotations

import asyncio

from interlock.store import Check, Conflict, Put, Range, Store
from interlock.testing.conformance.place import Place, Suite, gather, there, txn, write

KEY = "live/ses_1"
LONG = 600.0


class Liveness(Suite):
    """What a ``ttl`` promises."""

    def test_a_liveness_key_tells_how_long_it_lives(self, place: Place, store: Store) -> None:
        write(store, Put(KEY, b"", ttl=LONG))
        first = _left(store)
        assert first is not None
        assert 0 < first <= LONG
        place.until(lambda: (_left(store) or LONG) < first)

    def test_a_renewal_starts_the_ttl_again(self, place: Place, store: Store) -> None:
        created = write(store, Put(KEY, b"", ttl=LONG))
        place.until(lambda: (_left(store) or LONG) < LONG - 0.1 - store.capabilities.grain)
        sent = place.monotonic()
        write(store, Put(KEY, b"", ttl=LONG), quiet=True)
        renewed = store.read(KEY, times=True)[KEY]
        assert renewed is not None
        assert renewed.expires_in is not None
        grain = store.capabilities.grain
        assert place.monotonic() + renewed.expires_in >= sent + LONG - 0.01 - grain
        assert renewed.created == created

    def test_renew_starts_the_ttl_again_and_returns_what_was_alive(
        self, place: Place, store: Store
    ) -> None:
        other = Put("live/ses_2", b"", ttl=LONG)
        write(store, Put(KEY, b"", ttl=LONG), other)
        write(store, deletes=(other.key,))
        place.until(lambda: (_left(store) or LONG) < LONG - 0.1 - store.capabilities.grain)
        sent = place.monotonic()
        assert store.renew((Put(KEY, b"", ttl=LONG), other)) == {KEY}
        left = _left(store)
        assert left is not None
        assert place.monotonic() + left >= sent + LONG - 0.01 - store.capabilities.grain
        assert store.read(other.key)[other.key] is None
        assert asyncio.run(_renew(store, (Put(KEY, b"", ttl=LONG), other))) == {KEY}

    def test_renew_keeps_the_stamp_and_wakes_no_watch(self, place: Place, store: Store) -> None:
        write(store, Put(KEY, b"", ttl=LONG))
        before = store.read(KEY)[KEY]
        watch = place.open().watch("live/", store.read().revision)
        assert store.renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
        assert place.open().renew((Put(KEY, b"", ttl=LONG),)) == {KEY}
        last = write(store, Put("live/last", b"", ttl=LONG))
        assert [change.revision for change in gather(watch, bool)] == [last]
        watch.close()
        item = store.read(KEY)[KEY]
        assert before is not None
        assert item is not None
        assert (item.created, item.entry, item.hash) == (before.created, before.entry, before.hash)

    def test_renew_revives_no_key(self, place: Place, store: Store) -> None:
        self._lapsed(place, store)
        assert store.renew((Put(KEY, b"old", ttl=LONG), Put("live/other", b"", ttl=LONG))) == {
            "live/other"
        }
        assert place.open().renew((Put(KEY, b"old", ttl=LONG),)) == frozenset()
        assert store.renew(()) == frozenset()
        assert store.read(KEY)[KEY] is None

    def test_a_liveness_key_lapses_and_never_early(self, place: Place, store: Store) -> None:
        ttl = store.capabilities.min_ttl
        sent = place.monotonic()
        write(store, Put(KEY, b"", ttl=ttl))
        place.until(lambda: _left(store) is None)
        assert place.monotonic() - sent >= ttl

    def test_a_lapsed_key_is_absent_to_reads_ranges_and_checks(
        self, place: Place, store: Store
    ) -> None:
        revision = self._lapsed(place, store)
        everything = Range("live/")
        snapshot = store.read(KEY, everything)
        assert snapshot[KEY] is None
        assert [item.key for item in snapshot.ranges[everything]] == ["live/other"]
        assert not _holds(store, Check(KEY, "exists"))
        assert not _holds(store, Check(KEY, "at", revision=revision))
        assert not _holds(store, Check(KEY, "has", value=b"old"))
        assert _holds(store, Check(KEY, "absent"))

    def test_lapsed_keys_take_no_room_in_a_page(self, place: Place, store: Store) -> None:
        self._lapsed(place, store)
        page = Range("live/", limit=1)
        assert [item.key for item in store.read(page).ranges[page]] == ["live/other"]

    def test_a_key_put_after_it_lapsed_is_created_anew(self, place: Place, store: Store) -> None:
        self._lapsed(place, store)
        revision = write(store, Put(KEY, b"new", ttl=LONG), quiet=True)
        item = there(store, KEY)
        assert (item.created, item.value) == (revision, b"new")
        assert (item.entry, item.hash) == ("", "")

    def test_a_quiet_commit_deletes_a_key(self, store: Store) -> None:
        write(store, Put(KEY, b"", ttl=LONG), Put("live/other", b"", ttl=LONG), quiet=True)
        write(store, deletes=(KEY,), quiet=True)
        found = store.read(KEY, "live/other")
        assert found[KEY] is None
        assert found["live/other"] is not None

    def test_a_lapse_is_no_change_that_a_watch_sees(self, place: Place, store: Store) -> None:
        watch = store.watch("live/", store.read().revision)
        self._lapsed(place, store)
        last = write(store, Put("live/last", b"", ttl=LONG))
        changes = gather(watch, lambda found: bool(found) and found[-1].revision == last)
        assert [(change.key, change.deleted) for change in changes] == [
            ("live/other", False),
            (KEY, False),
            ("live/last", False),
        ]
        watch.close()

    def test_a_lapse_moves_no_revision(self, place: Place, store: Store) -> None:
        self._lapsed(place, store)
        revision = write(store)
        assert store.read(KEY).revision == revision

    def test_deleting_a_liveness_key_ends_it_at_once(self, store: Store) -> None:
        write(store, Put(KEY, b"", ttl=LONG))
        write(store, deletes=(KEY,))
        assert store.read(KEY)[KEY] is None

    def test_the_engine_tells_what_time_it_is_or_that_it_cannot(self, store: Store) -> None:
        now = store.wall()
        assert now is None or now > 0

    def _lapsed(self, place: Place, store: Store) -> int:
        """Put a key beside one that stays, and let it expire; returns the revision that put it."""
        write(store, Put("live/other", b"", ttl=LONG))
        revision = write(store, Put(KEY, b"old", ttl=store.capabilities.min_ttl))
        place.until(lambda: store.read(KEY)[KEY] is None)
        return revision


async def _renew(store: Store, puts: tuple[Put, ...]) -> frozenset[str]:
    return await store.renew_async(puts)


def _left(store: Store) -> float | None:
    item = store.read(KEY, times=True)[KEY]
    return None if item is None else item.expires_in


def _holds(store: Store, check: Check) -> bool:
    return not isinstance(store.commit(txn(checks=(check,))), Conflict)
