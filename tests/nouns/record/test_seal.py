"""The log stays within its limit, and every entry is in the log or in a segment, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.nouns.record.sealed import (
    SMALL,
    Row,
    fill,
    log,
    mark,
    noted,
    rolled,
    segments,
    touch,
    whole,
)

import interlock
from interlock import aio
from interlock.core import codec, keys
from interlock.core.segment import RecordMark, unpack
from interlock.errors import BadInput, StoreAway, StoreDamaged
from interlock.nouns.record.seal_rules import LIMITS, SealLimits
from interlock.nouns.record.seal_service import Sealing, SealPass, SealStep
from interlock.runtime.client_housekeeping import BETWEEN, ClientHousekeeping
from interlock.runtime.history import LogFollowing
from interlock.runtime.housekeeping import HousekeepingPass, Maintained
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op, Read, drive, drive_async
from interlock.store import LOG, VOID, Put, Range, Resync, Store, void
from interlock.stores import open_store
from interlock.stores.sqlite import SQLiteStore
from interlock.testing.audit import audit
from interlock.testing.conformance.place import txn, write
from interlock.testing.faults import Crash, FaultyStore
from interlock.testing.testbed import Client, Stepper, Testbed

WHO = Actor("keeper")


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["memory", "sqlite", "redis", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store on each engine; on Redis entries may be forgotten at once."""
    kind = request.param
    url = {"memory": "memory:", "sqlite": None}.get(kind, "")
    if kind == "sqlite":
        url = str(request.getfixturevalue("tmp_path")) + "/store.db"
    with closing(open_store(url or request.getfixturevalue(f"{kind}_url"))) as opened:
        if kind == "redis":
            opened.settling = 0  # type: ignore[attr-defined]
        yield opened


def sealing(store: Store, limits: SealLimits = SMALL) -> Sealing:
    found = Sealing(Runner(store))
    found.limits = limits
    return found


def on(stage: Testbed, limits: SealLimits = SMALL, client: Client | None = None) -> Sealing:
    """Sealing by a client of the stage, whose clock is moved by hand."""
    found = Sealing((client or stage.client("keeper", ttl=None)).runner)
    found.limits = limits
    return found


def test_every_entry_is_in_the_log_or_in_a_segment_once(store: Store) -> None:
    before = fill(store, 40)
    found = sealing(store)
    assert drive(found.step(WHO), store) == SealStep(word="sealed", sealed=35, trimmed=35)
    assert [row[0] for row in log(store)][:5] == [row[0] for row in before[-5:]]
    assert whole(store)[:40] == before
    assert audit_of_items(store)


def audit_of_items(store: Store) -> bool:
    """Segment and mark carry the stamp of the entry that wrote them."""
    items = store.read(keys.SEALED, keys.segment(mark(store).revision)).items
    stamps = {(item.entry, item.hash) for item in items.values() if item is not None}
    last = log(store)[-1]
    return stamps == {(last[1], codec.digest(last[2]))}


def test_a_pass_seals_until_the_log_is_within_its_limit(store: Store) -> None:
    fill(store, 40)
    found = sealing(store)
    assert drive(found.run_pass(WHO), store) == SealPass(sealed=35)
    assert store.extent().entries <= SMALL.hot_entries
    revision = store.read().revision
    assert drive(found.run_pass(WHO), store) == SealPass()
    assert store.read().revision == revision, "a second pass has nothing to do"


def test_segments_follow_each_other_and_the_digest_goes_on(store: Store) -> None:
    found = sealing(store)
    before: list[Row] = []
    for _ in range(3):
        fill(store, 20)
        before = whole(store)
        assert drive(found.run_pass(WHO), store).sealed > 0
    assert len(segments(store)) == 3
    assert whole(store)[: len(before)] == before
    sealed = mark(store)
    ref = Range(keys.SEGMENTS)
    assert sealed.bytes == sum(len(item.value) for item in store.read(ref).ranges[ref])


def test_what_was_sealed_and_not_trimmed_is_trimmed_by_the_next_step(store: Store) -> None:
    fill(store, 40)
    first = Stepper(sealing(store).step(WHO), store, Runner(store).clock)
    while not segments(store):
        first.go()
    del first  # killed between the commit and the trimming
    assert store.extent().entries == 41
    before = whole(store)
    assert drive(sealing(store).step(WHO), store) == SealStep(word="sealed", sealed=1, trimmed=36)
    assert whole(store)[:41] == before


def test_the_newest_and_the_young_stay_in_the_log(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=3600.0))
    ada = stage.client("ada", ttl=None)
    for name in range(20):
        ada.run(ada.locks.acquire(f"old-{name}", ttl=60))
    stage.clock.advance(3000)
    for name in range(10):
        ada.run(ada.locks.acquire(f"new-{name}", ttl=60))
    assert drive(keeper.step(WHO), stage.store).word == "idle"
    stage.clock.advance(700)
    assert drive(keeper.step(WHO), stage.store).word == "idle", "nobody wrote for an hour"
    ada.run(ada.locks.acquire("now", ttl=60))
    assert drive(keeper.step(WHO), stage.store).sealed == 16, "four stand near a young one"
    stage.clock.advance(9000)
    ada.run(ada.locks.acquire("then", ttl=60))
    assert drive(keeper.step(WHO), stage.store).sealed == 12, "all but the five newest"


def test_a_log_of_twice_its_limit_does_not_wait_for_an_hour(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0))
    ada = stage.client("ada", ttl=None)
    for name in range(21):
        ada.run(ada.locks.acquire(f"old-{name}", ttl=60))
    stage.clock.advance(301)
    ada.run(ada.locks.acquire("now", ttl=60))
    assert drive(keeper.step(WHO), stage.store).sealed == 17


def test_a_sealer_whose_clock_is_ahead_seals_nothing_that_is_young(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    for name in range(40):
        ada.run(ada.locks.acquire(f"l-{name}", ttl=60))
    stage.clock.jump_wall(86_400)
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0))
    assert drive(keeper.step(WHO), stage.store).word == "idle"


def test_a_keeper_whose_clock_is_ahead_drops_nothing(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, keep=86_400.0))
    fill(stage.store, 40)
    stage.clock.jump_wall(365 * 86_400)
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 0
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 0, "its own entries are no proof"
    fill(stage.store, 1)
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 1


def test_an_entry_dated_years_ahead_stops_nothing(stage: Testbed) -> None:
    years = 3650 * 86_400.0
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0, keep=7200.0))
    stage.clock.jump_wall(years)
    fill(stage.store, 1)
    stage.clock.jump_wall(-years)
    fill(stage.store, 40)
    stage.clock.advance(3601)
    fill(stage.store, 5)
    assert drive(keeper.run_pass(WHO), stage.store).sealed == 37
    stage.clock.advance(7201)
    fill(stage.store, 1)
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 2


def test_a_log_of_entries_dated_years_ahead_is_a_finding(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0))
    stage.clock.jump_wall(3650 * 86_400.0)
    fill(stage.store, 40)
    stage.clock.jump_wall(-3650 * 86_400.0)
    found = drive(keeper.run_pass(WHO), stage.store)
    assert found.sealed == 0
    assert "from revision 1 on are dated 3650 days ahead of the clock here" in found.finding


def test_young_entries_of_a_slow_clock_among_others_stay(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0, newest=20))
    fill(stage.store, 30)
    stage.clock.advance(10_000)
    stage.clock.jump_wall(-7200)
    slow = fill(stage.store, 15)[-15:]
    stage.clock.jump_wall(7200)
    fill(stage.store, 30)
    drive(keeper.run_pass(WHO), stage.store)
    assert set(slow) <= set(log(stage.store))


def test_young_entries_of_a_store_whose_writers_are_slow_stay(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, age=3600.0, pressed=300.0))
    stage.clock.jump_wall(-7200)
    fill(stage.store, 60)
    stage.clock.jump_wall(7200)
    assert drive(keeper.run_pass(WHO), stage.store).sealed == 0


def test_of_two_sealers_one_wins_and_nothing_is_sealed_twice(stage: Testbed) -> None:
    before = fill(stage.store, 40)
    clients = [stage.remote(name, ttl=None) for name in ("one", "two")]
    hands = [Stepper(on(stage, client=c).step(WHO), c.store, stage.clock) for c in clients]
    while not all(hand.done for hand in hands):
        for hand in hands:
            hand.go()
    assert sorted(hand.result().word for hand in hands) == ["overtaken", "sealed"]
    assert whole(stage.store)[:40] == before


@pytest.mark.parametrize("fault", ["lost reply", "late arrival", "conflict"])
def test_an_unknown_outcome_seals_once_or_not_at_all(stage: Testbed, fault: str) -> None:
    before = fill(stage.store, 40)
    client = stage.remote("keeper", ttl=None)
    client.network.script([fault])  # type: ignore[list-item]
    found = on(stage, client=client)
    client.run(found.run_pass(WHO))
    client.network.deliver()
    client.run(found.run_pass(WHO))
    rows = [row for row in whole(stage.store) if row[2] != VOID]
    assert rows[:40] == before
    assert len(segments(stage.store)) == 1


@pytest.mark.parametrize("steps", range(1, 12))
def test_whoever_is_killed_before_any_step_leaves_a_whole_record(
    stage: Testbed, steps: int
) -> None:
    before = fill(stage.store, 60)
    limits = replace(SMALL, between=20, keep=0.0)
    hand = Stepper(on(stage, limits).run_pass(WHO), stage.store, stage.clock)
    for _ in range(steps):
        if not hand.done:
            hand.go()
    kept = replace(limits, keep=3600.0)
    if mark(stage.store).dropped is None:
        assert whole(stage.store)[:60] == before
    drive(on(stage, kept).run_pass(WHO), stage.store)
    assert stage.store.extent().entries <= 10


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_a_crash_around_the_commit_is_repaired_by_the_next(stage: Testbed, fault: str) -> None:
    before = fill(stage.store, 40)
    client = stage.remote("keeper", ttl=None)
    assert isinstance(client.store, FaultyStore)
    client.network.script([fault])  # type: ignore[list-item]
    with pytest.raises(Crash):
        client.run(on(stage, client=client).run_pass(WHO))
    assert whole(stage.store)[:40] == before
    drive(on(stage).run_pass(WHO), stage.store)
    assert stage.store.extent().entries <= 10
    assert whole(stage.store)[:40] == before


def test_voids_are_sealed_as_they_stand(store: Store) -> None:
    store.commit(void("txn_one"))
    fill(store, 20)
    store.commit(void("txn_two"))
    before = fill(store, 20)
    drive(sealing(store).run_pass(WHO), store)
    assert whole(store)[:42] == before
    assert [row[1] for row in whole(store) if row[2] == VOID] == ["txn_one", "txn_two"]


def test_a_follower_that_is_behind_is_told_or_misses_nothing(store: Store) -> None:
    fill(store, 40)
    following = LogFollowing(after=log(store)[3][0])
    expected = [row[0] for row in log(store)[4:]]
    drive(sealing(store).run_pass(WHO), store)
    found: list[int] = []
    while len(found) < len(expected):
        told = drive(following.take(10), store)
        if isinstance(told, Resync):
            break
        assert told, f"silence after {found}"
        found += [line.revision for line in told]
    else:
        assert found[: len(expected)] == expected
    following.close()


def test_checkpoints_note_the_digest_and_sealing_meets_it(store: Store) -> None:
    fill(store, 30)
    found = sealing(store, replace(SMALL, hot_entries=10_000, between=20))
    rows = log(store)
    assert drive(found.checkpoint(WHO, 1000), store) == 30
    assert noted(store) == rolled(RecordMark(), rows)
    assert drive(found.checkpoint(WHO, 1000), store) == 0
    fill(store, 25)
    rows = log(store)
    assert drive(found.checkpoint(WHO, 1000), store) == 26
    assert noted(store) == rolled(RecordMark(), rows)
    found.limits = SMALL
    assert drive(found.run_pass(WHO), store).sealed == 52
    assert len(whole(store)) == 58


def test_a_checkpoint_is_not_noted_over_entries_that_were_sealed_meanwhile(stage: Testbed) -> None:
    """Its pages would have a hole."""
    fill(stage.store, 40)
    keeper = on(stage, replace(SMALL, between=20))
    hand = Stepper(keeper.checkpoint(WHO, 1000), stage.store, stage.clock)
    while "InThread" not in [type(step).__name__ for step in hand.steps]:
        hand.go()
    drive(on(stage).step(WHO), stage.store)
    hand.run()
    assert hand.result() == 0
    assert noted(stage.store) is None


@pytest.mark.parametrize("what", ["step", "checkpoint"])
def test_what_an_engine_trims_while_we_read_is_no_part_of_a_digest(
    stage: Testbed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.nouns.record.seal_service.PAGE", 10)
    fill(stage.store, 60)
    stage.store.capabilities = replace(stage.store.capabilities, max_log=40)
    keeper = on(stage, replace(SMALL, between=20))
    op: Op[object] = keeper.step(WHO) if what == "step" else keeper.checkpoint(WHO, 1000)
    hand = Stepper(op, stage.store, stage.clock)
    while [type(step) for step in hand.steps].count(Read) < 2:
        hand.go()
    stage.store.trim(log(stage.store)[25][0])
    hand.run()
    assert not segments(stage.store)
    assert noted(stage.store) is None


def test_a_record_that_contradicts_its_checkpoint_is_not_sealed(stage: Testbed) -> None:
    fill(stage.store, 40)
    keeper = on(stage, replace(SMALL, between=20))
    drive(keeper.checkpoint(WHO, 1000), stage.store)
    forge(stage, keys.CHECKPOINT, msgspec.json.encode(replace(noted(stage.store), digest="0" * 64)))  # type: ignore[type-var]
    with pytest.raises(StoreDamaged, match="checkpoint"):
        drive(on(stage, replace(SMALL, newest=0)).step(WHO), stage.store)
    assert segments(stage.store) == []
    assert stage.store.extent().entries >= 40


def test_an_entry_that_was_edited_is_not_sealed_and_maintain_says_where(stage: Testbed) -> None:
    rows = fill(stage.store, 40)
    revision, id_, stored = rows[7]
    forge(stage, LOG + id_, stored.replace(b'"test"', b'"tset"'))
    found = drive(on(stage).run_pass(WHO), stage.store)
    assert found.sealed == 0
    assert f"damaged at revision {revision}" in found.finding
    assert "record verify" in found.finding
    assert stage.store.extent().entries == 40


def forge(stage: Testbed, key: str, value: bytes) -> None:
    """Change what stands there as no commit would."""
    row = stage.store._rows[key]
    stage.store._rows[key] = replace(row, value=value)


def test_entries_that_an_engine_trimmed_unsealed_are_a_finding(store: Store) -> None:
    fill(store, 40)
    drive(sealing(store).run_pass(WHO), store)
    rows = fill(store, 40)
    store.trim(rows[20][0])
    found = drive(sealing(store).run_pass(WHO), store)
    if store.capabilities.engine == "etcd":  # it never trims by itself, and keeps no such mark
        return
    assert f"damaged at revision {rows[20][0]}" in found.finding
    assert found.sealed == 0
    (finding,) = drive(sealing(store).findings(), store)
    assert finding.verdict == "bad"


def test_where_nothing_was_sealed_before_a_gap_sealing_begins_behind_it(store: Store) -> None:
    rows = fill(store, 60)
    store.trim(rows[20][0])
    store.capabilities = replace(store.capabilities, max_log=1_000, trims_after=0)  # type: ignore[misc]
    assert drive(sealing(store).run_pass(WHO), store).sealed == 34
    sealed, (only,) = mark(store), segments(store)
    if store.capabilities.engine != "etcd":
        assert sealed.dropped == only.begins == RecordMark(revision=rows[20][0])
        assert noted(store) == only.ends
    assert [row[:3] for row in unpack(only.packed)] == rows[21:55]


def test_behind_a_gap_that_the_engine_cannot_have_made_nothing_is_sealed(store: Store) -> None:
    rows = fill(store, 60)
    store.trim(rows[20][0])
    found = drive(sealing(store).run_pass(WHO), store)
    if store.capabilities.engine == "etcd":  # it keeps no mark of how far it was trimmed
        return
    assert f"damaged at revision {rows[20][0]}" in found.finding
    assert (found.sealed, segments(store)) == (0, [])


def test_a_lost_mark_is_a_finding_not_a_new_beginning(stage: Testbed) -> None:
    fill(stage.store, 40)
    drive(on(stage).run_pass(WHO), stage.store)
    fill(stage.store, 40)
    stage.store._remove(keys.SEALED)
    assert "knows of none" in drive(on(stage).run_pass(WHO), stage.store).finding


def test_segments_older_than_the_record_is_kept_are_dropped_oldest_first(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, keep=1500.0))
    ada = stage.client("ada", ttl=None)
    for part in range(3):
        for name in range(20):
            ada.run(ada.locks.acquire(f"{part}-{name}", ttl=60))
        assert drive(keeper.run_pass(WHO), stage.store).dropped == 0
        stage.clock.advance(600)
    parts = segments(stage.store)
    ada.run(ada.locks.acquire("now", ttl=60))
    found = drive(keeper.run_pass(WHO), stage.store)
    assert found.dropped == 1
    assert segments(stage.store) == parts[1:]
    assert mark(stage.store).dropped == parts[0].ends
    stage.clock.advance(10_000)
    ada.run(ada.locks.acquire("then", ttl=60))
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 2
    sealed = mark(stage.store)
    assert (sealed.bytes, segments(stage.store)) == (0, [])
    assert sealed.dropped == parts[-1].ends


def test_all_segments_together_stay_within_their_size(store: Store) -> None:
    found = sealing(store, replace(SMALL, sealed=6000))
    for _ in range(5):
        fill(store, 20)
        drive(found.run_pass(WHO), store)
        assert mark(store).bytes <= 6000
    kept = segments(store)
    assert 0 < len(kept) < 5
    assert mark(store).dropped == kept[0].begins


def test_the_record_goes_on_when_everything_was_dropped(stage: Testbed) -> None:
    keeper = on(stage, replace(SMALL, sealed=1))
    fill(stage.store, 40)
    assert drive(keeper.run_pass(WHO), stage.store).dropped == 1
    gone = mark(stage.store)
    fill(stage.store, 40)
    keeper.limits = SMALL
    drive(keeper.run_pass(WHO), stage.store)
    (only,) = segments(stage.store)
    assert only.begins.digest == gone.digest
    assert only.begins.entries == gone.entries


def test_a_segment_fits_into_an_item_whatever_its_entries(stage: Testbed) -> None:
    """Random bytes hardly shrink, so half of the entries have to wait for the next segment."""
    for number in range(20):
        entry = b'{"id":"txn_%d","at":1.0,"verb":"%b"}' % (
            number,
            stage.random.randbytes(50_000).hex().encode(),
        )
        write_entry(stage.store, f"txn_{number}", entry)
    found = drive(on(stage, replace(SMALL, newest=0)).step(WHO), stage.store)
    assert 0 < found.sealed < 20
    for item in stage.store.read(Range(keys.SEGMENTS)).ranges[Range(keys.SEGMENTS)]:
        assert len(item.value) <= stage.store.capabilities.max_value


def test_an_entry_that_fits_into_no_segment_is_a_finding_and_fails_nobody(stage: Testbed) -> None:
    noise = stage.random.randbytes(1_500_000).hex().encode()
    write_entry(stage.store, "txn_huge", b'{"id":"txn_huge","at":1.0,"verb":"%b"}' % noise)
    fill(stage.store, 20)
    found = drive(on(stage).run_pass(WHO), stage.store)
    assert found.sealed == 0
    assert "this store takes" in found.finding


def write_entry(store: Store, id_: str, entry: bytes) -> None:
    store.commit(replace(txn(Put("a", b"")), id=id_, entry=entry, hash=codec.digest(entry)))


def test_the_bytes_of_the_log_decide_where_the_limit_is_a_size(stage: Testbed) -> None:
    fill(stage.store, 200)
    keeper = on(stage, replace(SMALL, hot_entries=0, hot_bytes=64 << 10))
    state = drive(keeper.read_state(), stage.store)
    assert 400 < state.size < 1200
    assert keeper.excess(state) == 200 - (64 << 10) // state.size


def test_an_engine_that_trims_by_itself_is_sealed_well_before(redis_url: str) -> None:
    with closing(open_store(f"{redis_url}&log=40")) as store:
        store.settling = 0  # type: ignore[attr-defined]
        fill(store, 30)
        found = sealing(store, replace(LIMITS["redis"], newest=5, age=-1.0, pressed=-1.0))
        assert drive(found.run_pass(WHO), store).sealed == 25


def test_young_entries_stay_in_redis_though_they_are_sealed(redis_url: str) -> None:
    with closing(open_store(redis_url)) as store:
        before = fill(store, 40)
        assert drive(sealing(store).step(WHO), store) == SealStep(word="sealed", sealed=35)
        assert store.extent().entries == 41
        assert whole(store)[:40] == before


def test_it_works_in_an_event_loop(store: Store) -> None:
    before = fill(store, 40)

    async def tidies() -> SealPass:
        return await drive_async(sealing(store, replace(SMALL, between=20)).run_pass(WHO), store)

    assert asyncio.run(tidies()).sealed == 35
    assert whole(store)[:40] == before


def test_maintenance_seals_and_says_so(stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(stage.store, 40)
    keeper = stage.client("keeper", ttl=None)
    monkeypatch.setitem(LIMITS, "memory", SMALL)
    pass_ = HousekeepingPass(keeper.runner)
    assert keeper.run(pass_.run(WHO)) == Maintained(sealed=35)
    assert keeper.run(pass_.run(WHO)) == Maintained()


def test_a_pass_is_bounded_and_says_how_many_entries_are_left(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.nouns.record.seal_service.BATCH", 10)
    fill(stage.store, 100)
    assert drive(on(stage).run_pass(WHO), stage.store) == SealPass(sealed=40, left=53)


def test_a_checkpoint_that_has_far_to_go_goes_on_in_the_next_pass(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.nouns.record.seal_service.PAGE", 10)
    rows = fill(stage.store, 100)
    keeper = on(stage, replace(SMALL, hot_entries=10_000, between=20))
    assert drive(keeper.checkpoint(WHO, 40), stage.store) == 40
    assert noted(stage.store) == rolled(RecordMark(), rows[:40])
    assert drive(keeper.checkpoint(WHO, 40), stage.store) == 40
    assert noted(stage.store) == rolled(RecordMark(), rows[:80])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "memory", SMALL)


@pytest.mark.usefixtures("small")
def test_one_of_a_thousand_commits_pays_for_a_pass(stage: Testbed) -> None:
    ada = stage.client("ada", ttl=None)
    rings: list[int] = []
    housekeeping = ClientHousekeeping(ada.runner, stage.store)
    housekeeping.on_due = housekeeping.on_late = lambda: rings.append(stage.store.read().revision)
    for number in range(2000):
        ada.run(ada.runner.change(lambda n=number: touch(n), WHO))  # type: ignore[misc]
    first, second = rings
    assert second - first == 1000
    ada.run(housekeeping.run(WHO))
    assert not housekeeping.due
    assert stage.store.extent().entries <= 10


def test_those_who_begin_together_do_not_pay_together(stage: Testbed) -> None:
    """And of a thousand commands with one commit each, about one pays."""
    clients = [stage.client(f"agent.{number}", ttl=None) for number in range(40)]
    housekeeping = [ClientHousekeeping(client.runner, stage.store) for client in clients]
    paid: list[int] = []
    for number in range(1000):
        for client in clients:
            client.run(client.runner.change(partial(touch, number), WHO))
        paid.append(sum(each.due for each in housekeeping))
        for each in housekeeping:
            each.due = False
    assert sum(paid) == 40
    assert max(paid) <= 3


@pytest.mark.usefixtures("small")
def test_clients_at_one_store_take_turns(stage: Testbed) -> None:
    ada, bob = stage.client("ada", ttl=None), stage.client("bob", ttl=None)
    housekeeping = {client: ClientHousekeeping(client.runner, stage.store) for client in (ada, bob)}

    def passes(client: Client) -> bool:
        fill(stage.store, 40)
        before = stage.store.extent().entries
        client.run(housekeeping[client].run(WHO))
        return stage.store.extent().entries < before

    assert passes(ada)
    assert not passes(bob)
    assert not passes(ada)
    stage.clock.advance(BETWEEN)
    assert passes(bob)


@pytest.mark.usefixtures("small")
def test_the_next_in_turn_goes_on_at_once_with_what_a_pass_left_over(
    stage: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast clients at one store write, a thousand commits pay for more than a thousand."""
    monkeypatch.setattr("interlock.nouns.record.seal_service.BATCH", 20)
    clients = [stage.client(name, ttl=None) for name in ("ada", "bob", "cid")]
    fill(stage.store, 60)
    for client in clients:
        client.run(ClientHousekeeping(client.runner, stage.store).run(WHO))
    assert stage.store.extent().entries <= 10


@pytest.fixture
def tended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody tends."""
    found = threading.Event()

    def run(housekeeping: ClientHousekeeping, _: Actor) -> Op[None]:
        housekeeping.due = False
        found.set()
        yield from ()

    monkeypatch.setattr(ClientHousekeeping, "run", run)
    return found


def test_a_long_life_without_a_session_tends_before_its_end(
    tmp_path: Path, tended: threading.Event
) -> None:
    with interlock.connect(str(tmp_path / "store.db"), "ada", join=False) as fleet:
        fleet.context.housekeeping._many()
        assert not fleet._threads, "a short life would pay at its end"
        fleet.context.housekeeping._many()
        assert tended.wait(30)


def test_a_long_life_without_a_session_tends_in_its_loop(
    tmp_path: Path, tended: threading.Event
) -> None:
    async def work() -> None:
        url = str(tmp_path / "store.db")
        async with await aio.connect(url, "ada", join=False) as fleet:
            fleet.context.housekeeping._many()
            fleet.context.housekeeping._many()
            assert await asyncio.to_thread(tended.wait, 30)

    asyncio.run(work())


def test_a_short_life_in_a_loop_pays_at_its_end(tmp_path: Path, tended: threading.Event) -> None:
    async def work() -> None:
        url = str(tmp_path / "store.db")
        async with await aio.connect(url, "ada", join=False) as fleet:
            fleet.context.housekeeping._many()

    asyncio.run(work())
    assert tended.is_set()


def test_tending_never_fails_anybody(stage: Testbed) -> None:
    ada = stage.remote("ada", ttl=None)

    def away() -> None:
        raise StoreAway("it does not answer; see to it")

    ada.network.extent = away  # type: ignore[assignment]
    ada.run(ClientHousekeeping(ada.runner, stage.store).run(WHO))


def test_the_state_that_sealing_writes_stands_in_the_record(stage: Testbed) -> None:
    """The log replayed against the items, while all of it is there."""
    fill(stage.store, 40)
    keeper = on(stage, replace(SMALL, between=20))
    stage.store.trim = lambda revision: 0  # type: ignore[method-assign]
    drive(keeper.run_pass(WHO, steps=1), stage.store)
    assert {entry for _, _, entry in log(stage.store) if b"record." in entry}
    assert audit(stage.store) == []


def test_quiet_revisions_do_not_count_as_entries(stage: Testbed) -> None:
    fill(stage.store, 8)
    for _ in range(50):
        write(stage.store, Put("live/a", b"", ttl=5), quiet=True)
    assert drive(on(stage).run_pass(WHO), stage.store) == SealPass()


def test_a_file_does_not_grow_while_the_log_stays_small(tmp_path: Path) -> None:
    """Freed pages are used again; nothing has to be vacuumed."""
    with closing(SQLiteStore(str(tmp_path / "store.db"))) as store:
        found = sealing(store, replace(SMALL, sealed=20_000))
        pages: list[int] = []
        for _ in range(8):
            fill(store, 150)
            drive(found.run_pass(WHO), store)
            pages.append(store._ask(lambda reader: int(str(reader.db.pragma("page_count")))))
        assert pages[-1] <= pages[2] * 1.1
        assert store.check() == []


def test_facts_and_findings_say_how_large_the_record_is(store: Store) -> None:
    fill(store, 40)
    found = sealing(store)
    facts = drive(found.facts(), store)
    assert (facts["log_entries"], facts["sealed_entries"], facts["sealed_bytes"]) == (40, 0, 0)
    (before,) = drive(found.findings(), store)
    assert before.verdict == "warn"
    assert "interlock maintain" in before.remedy
    drive(found.run_pass(WHO), store)
    facts = drive(found.facts(), store)
    assert (facts["log_entries"], facts["sealed_entries"]) == (6, 35)
    assert facts["sealed_bytes"] > 0
    (after,) = drive(found.findings(), store)
    assert (after.verdict, after.name) == ("ok", "record")
    assert "6 in the log" in after.fact
    assert "35 sealed" in after.fact


def test_the_settings_stand_above_the_limits_of_the_engine(
    stage: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[record]\nhot = "64MB"\nkeep = "30d"\n')
    monkeypatch.setenv("INTERLOCK_RECORD_SEALED", "2GB")
    runner = stage.client("ada", ttl=None).runner
    limits = Sealing(runner, Settings(str(tmp_path))).limits
    assert (limits.hot_entries, limits.hot_bytes) == (0, 64 << 20)
    assert (limits.keep, limits.sealed) == (30 * 86_400, 2 << 30)
    monkeypatch.setenv("INTERLOCK_RECORD_HOT", "5000")
    limits = Sealing(runner, Settings(str(tmp_path))).limits
    assert (limits.hot_entries, limits.hot_bytes) == (5000, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[record]\nhot = 'much'", "hot 'much' is not like 512KB, 256MB or 1GB"),
        ("[record]\nsealed = '0'", "is not like 512KB"),
        ("[record]\nkeep = '5y'", "is not like 500ms"),
        ("[record]\nkeep = true", "must be a number"),
        ("[record]\nkept = '5d'", "does not know 'kept'; it takes hot, keep and sealed"),
        ("record = 5", "must be a table"),
    ],
)
def test_a_limit_that_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(BadInput) as raised:
        Settings(str(tmp_path)).record()
    assert said in str(raised.value)
    assert "config.toml" in str(raised.value)


def test_a_log_that_is_too_young_to_be_sealed_is_no_finding(stage: Testbed) -> None:
    fill(stage.store, 200)
    old, young = SMALL, replace(SMALL, age=3600.0, pressed=3600.0)
    assert [each.verdict for each in drive(on(stage, old).findings(), stage.store)] == ["warn"]
    assert [each.verdict for each in drive(on(stage, young).findings(), stage.store)] == ["ok"]
    assert drive(on(stage, young).run_pass(WHO), stage.store).sealed == 0, (
        "maintain could do nothing"
    )
