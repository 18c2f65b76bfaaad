"""Values that swarms share on the bus: written, read, spooled, in conflict, decided by people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import decode as decoded
from tests.nouns.swarms.swarm_homes import BusConnection, Process, Swarms, write

from interlock.client import Fleet
from interlock.core import keys
from interlock.errors import BadInput, TooLarge
from interlock.nouns.messages.decision import AlreadyResolved, DecisionView, OwnDecision, Resolved
from interlock.nouns.swarms import key_files, registry, share_rules
from interlock.nouns.swarms.reputation import standing
from interlock.nouns.swarms.results import NotRegistered, SwarmSynced
from interlock.nouns.swarms.shared import decode_copy
from interlock.nouns.swarms.sync_results import (
    ConflictView,
    SharedView,
    SharesFull,
    ShareSpooled,
    ShareUndecided,
    UnknownShared,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import DECIDE_IN, SYNC_EVERY
from interlock.nouns.swarms.trust_service import decode_reputation
from interlock.nouns.swarms.views import swarm_findings
from interlock.steps import drive
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.clock import FakeClock

HOUR = 3600.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))


@pytest.fixture
def swarms() -> Iterator[Swarms]:
    with Swarms() as found:
        found.pair()
        yield found
        for fleet in found.homes.values():
            assert audit(fleet.store) == []
        if not found.tampered:
            assert audit(found.bus) == []


@pytest.fixture
def shop(swarms: Swarms) -> Fleet:
    return swarms.homes["shop"]


@pytest.fixture
def bank(swarms: Swarms) -> Fleet:
    return swarms.homes["bank"]


def stored(home: Fleet, key: str, value: object, base: int | None = None) -> ValueShared:
    found = home.swarms.share(key, value, base=base)
    assert isinstance(found, ValueShared), found
    return found


def undecided(home: Fleet, key: str, value: object, base: int | None = None) -> ShareUndecided:
    found = home.swarms.share(key, value, base=base)
    assert isinstance(found, ShareUndecided), found
    return found


def view(home: Fleet, key: str) -> SharedView:
    found = home.swarms.shared(key)
    assert isinstance(found, SharedView), found
    return found


def conflict(home: Fleet, key: str = "k") -> ConflictView:
    (found,) = home.swarms.conflicts(key)
    return found


def cut(swarms: Swarms, name: str, *, is_cut: bool = True) -> None:
    swarms.connections[name].cut = is_cut


def heal(swarms: Swarms, name: str) -> SwarmSynced:
    cut(swarms, name, is_cut=False)
    return swarms.sync(name, force=False)


def person(swarms: Swarms, home: Fleet) -> Process:
    """A process of another agent of a home."""
    return Process(swarms, home.store, "maria")


def decide(swarms: Swarms, home: Fleet, decision: str, option: str) -> None:
    maria = person(swarms, home)
    assert isinstance(maria.run(maria.messages.resolve(decision, option)), Resolved)


def conflicts_counted(home: Fleet, swarm: str) -> int:
    item = home.store.read(keys.reputation(swarm))[keys.reputation(swarm)]
    return 0 if item is None else standing(decode_reputation(item), 0.0).conflicts


# In order.


def test_a_value_is_written_read_and_written_again_by_another_swarm(
    shop: Fleet, bank: Fleet
) -> None:
    first = stored(shop, "prices", {"apple": 3})
    assert (first.base, first.already, first.won) == (0, False, None)
    found = view(bank, "prices")
    assert (found.value, found.swarm, found.agent) == ({"apple": 3}, "shop", "shop-bot")
    assert found.revision == first.revision
    second = stored(bank, "prices", {"apple": 4})
    assert second.base == first.revision
    assert view(shop, "prices").value == {"apple": 4}
    assert not shop.swarms.conflicts()


def test_a_home_that_writes_twice_saw_what_it_wrote(shop: Fleet) -> None:
    assert stored(shop, "k", 1).revision == stored(shop, "k", 2).base


def test_the_same_value_is_stored_once(shop: Fleet, bank: Fleet) -> None:
    first = stored(shop, "k", {"a": 1, "b": 2})
    again = stored(bank, "k", {"b": 2, "a": 1})
    assert (again.already, again.revision) == (True, first.revision)
    assert stored(bank, "k", 3).base == first.revision


def test_a_key_that_nobody_wrote_is_unknown_and_leaves_nothing_behind(shop: Fleet) -> None:
    assert isinstance(shop.swarms.shared("k"), UnknownShared)
    assert shop.store.read(keys.copy("k"))[keys.copy("k")] is None


def test_a_home_without_a_bus_shares_nothing(swarms: Swarms) -> None:
    home = swarms.home("new")
    for found in (
        home.swarms.share("k", 1),
        home.swarms.shared("k"),
        home.swarms.shared_list(),
        home.swarms.states(),
    ):
        assert isinstance(found, NotRegistered)


@pytest.mark.parametrize("base", [-1, 2**60, True, "4"])
def test_a_base_is_a_revision(shop: Fleet, base: Any) -> None:
    with pytest.raises(BadInput):
        shop.swarms.share("k", 1, base=base)


def test_a_value_has_a_limit(shop: Fleet) -> None:
    with pytest.raises(TooLarge):
        shop.swarms.share("k", "x" * (64 * 1024))
    assert stored(shop, "k", "x" * (64 * 1024 - 2))


def test_reading_again_commits_nothing(shop: Fleet, bank: Fleet) -> None:
    stored(shop, "k", 1)
    view(bank, "k")
    before = bank.store.read(keys.OWN_SWARM).revision
    for _ in range(3):
        view(bank, "k")
    assert bank.store.read(keys.OWN_SWARM).revision == before


def test_a_list_has_what_this_home_knows_and_what_else_stands_on_the_bus(
    shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "a", 1)
    stored(bank, "b", 2)
    listed = bank.swarms.shared_list()
    assert listed
    assert [(each.key, each.value, each.swarm) for each in listed] == [
        ("a", 1, "shop"),
        ("b", 2, "bank"),
    ]
    assert bank.store.read(keys.copy("a"))[keys.copy("a")] is None
    assert undecided(bank, "a", 3).value == 1  # a list shows no revision of it to write on


# Conflicts.


def test_of_two_concurrent_writes_the_later_wins_and_both_homes_keep_the_loser(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    base = stored(shop, "k", "old").revision
    view(bank, "k")
    stored(bank, "k", "first")
    swarms.clock.advance(0.011)
    now = swarms.clock.wall()
    second = stored(shop, "k", "second")
    assert second.base == base
    assert second.won == conflict(shop)
    assert view(bank, "k").value == "second"
    for home in (shop, bank):
        found = conflict(home)
        assert (found.winner, found.winner_value) == ("shop", "second")
        assert (found.loser, found.loser_value) == ("bank", "first")
        assert found.resolution == "last_write_wins"
        assert found.winner_timestamp == pytest.approx(now, abs=0.001)
        assert found.loser_timestamp == pytest.approx(now - 0.011, abs=0.001)
        assert found.time_diff_ms == pytest.approx(11, abs=1)
    assert conflicts_counted(shop, "bank") == conflicts_counted(bank, "shop") == 0


def test_two_writes_within_ten_milliseconds_are_for_a_person(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    first = stored(shop, "k", 1)
    swarms.clock.advance(0.009)
    found = undecided(bank, "k", 2)
    assert (found.reason, found.swarm, found.value) == ("simultaneous_update", "shop", 1)
    assert found.revision == first.revision
    assert view(bank, "k").decisions == (found.decision,)
    assert conflict(bank).decision == found.decision
    assert view(shop, "k").value == 1
    assert conflicts_counted(bank, "shop") == 1


def test_conflicts_are_in_the_audit_and_in_the_metrics(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", "old")
    view(bank, "k")
    stored(bank, "k", "first")
    swarms.clock.advance(0.011)
    stored(shop, "k", "second")
    stored(shop, "j", 1)
    swarms.clock.advance(0.009)
    undecided(bank, "j", 2)
    view(bank, "k")
    (won,) = shop.requests.audit()
    assert (won.event_type, won.action, won.thing) == ("conflict_resolved", "SHARE", "shared/k")
    assert (won.from_swarm, won.to_swarm, won.reason) == ("bank", "shop", "last_write_wins")
    asked, lost = bank.requests.audit()
    assert (asked.event_type, asked.action) == ("conflict_escalated", "ESCALATE")
    assert (asked.thing, asked.reason) == ("shared/j", "simultaneous_update")
    assert lost.event_type == "conflict_resolved"
    counts = {each.name: each.value for each in bank.counters(since="1h").metrics}
    assert counts["conflicts_detected_total"] == 2
    assert counts["conflicts_resolved_by_timestamp_total"] == 1
    assert counts["conflicts_escalated_to_coordinator_total"] == 1


@pytest.mark.parametrize("later", [0.5, 31.0, 5 * HOUR])
def test_a_write_on_a_stale_base_is_for_a_person_and_keeps_both_values(
    swarms: Swarms, shop: Fleet, bank: Fleet, later: float
) -> None:
    first = stored(shop, "k", 1)
    view(bank, "k")
    stored(shop, "k", 2)
    stored(shop, "k", 3)
    swarms.clock.advance(later)
    found = undecided(bank, "k", 4, base=first.revision)
    assert (found.reason, found.value) == ("stale_base", 3)
    asked = bank.messages.decision(found.decision)
    assert isinstance(asked, DecisionView)
    assert [(each.option, each.value) for each in asked.options] == [
        ("keep_current", 3),
        ("take_other", 4),
    ]
    assert (asked.about, asked.agent, asked.default) == ("shared/k", "bank-bot", "keep_current")
    assert conflict(bank).resolution == "stale_base"


def test_a_caller_that_was_told_of_a_conflict_has_seen_the_other_value(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    told = undecided(bank, "k", 2)
    swarms.clock.advance(60)
    assert stored(bank, "k", 3).base == told.revision


def test_two_agents_of_one_home_conflict_as_two_swarms_do(swarms: Swarms, shop: Fleet) -> None:
    base = stored(shop, "k", 1).revision
    maria = person(swarms, shop)
    swarms.clock.advance(60)
    stored(shop, "k", 2)
    swarms.clock.advance(60)
    found = maria.run(maria.swarms.share("k", 3, base=base))
    assert isinstance(found, ShareUndecided)
    assert found.swarm == "shop"


@pytest.mark.parametrize("ahead", [-5 * HOUR, 5 * HOUR, 10 * 365 * 86400.0])
def test_a_wrong_clock_of_a_writer_decides_nothing(
    swarms: Swarms, shop: Fleet, bank: Fleet, ahead: float
) -> None:
    """The bank's clock is wrong; the bus has its own."""
    wrong = FakeClock()
    wrong.jump_wall(ahead)
    liar = Process(swarms, bank.store, "liar")
    liar.context.runner.clock = wrong
    stored(shop, "k", "old")
    view(bank, "k")
    swarms.clock.advance(1)
    newest = stored(shop, "k", "newest")
    swarms.clock.advance(60)
    found = liar.run(liar.swarms.share("k", "late"))
    assert isinstance(found, ShareUndecided)
    assert (found.reason, found.value) == ("stale_base", "newest")
    assert view(shop, "k").revision == newest.revision
    assert conflict(bank).time_diff_ms == pytest.approx(60_000, abs=10)


# While the bus is away.


def test_writes_are_spooled_while_the_bus_is_away_and_posted_in_order(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 0)
    cut(swarms, "shop")
    for number in (1, 2, 3):
        found = shop.swarms.share("k", number)
        assert isinstance(found, ShareSpooled), found
        assert "cut off" in found.trouble
    found = shop.swarms.share("other", "x")
    assert isinstance(found, ShareSpooled)
    assert view(shop, "k").waiting == 3
    swarms.clock.advance(60)
    done = heal(swarms, "shop")
    assert (done.posted, done.decisions, done.trouble) == (4, (), "")
    assert view(bank, "k").value == 3
    assert view(bank, "other").value == "x"
    puts = [put for txn in swarms.connections["shop"].posted for put in txn.puts]
    said = [put.value for put in puts if put.key == keys.shared("k")]
    assert [decoded(each)["value"] for each in said] == [0, 1, 2, 3]
    assert view(shop, "k").waiting == 0


def test_the_caller_of_a_write_that_follows_others_learns_of_their_decision(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 0)
    view(bank, "k")
    cut(swarms, "shop")
    shop.swarms.share("k", 1)
    stored(bank, "k", "bank's")
    swarms.clock.advance(60)
    cut(swarms, "shop", is_cut=False)
    found = undecided(shop, "k", 2)
    assert found.value == "bank's"
    assert conflict(shop).loser_value == 2
    assert view(shop, "k").decisions == (found.decision,)


def test_many_writes_that_waited_become_one_decision_about_the_last(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 0)
    view(bank, "k")
    cut(swarms, "shop")
    for number in range(1, 50):
        shop.swarms.share("k", number)
    stored(bank, "k", "bank's")
    swarms.clock.advance(60)
    done = heal(swarms, "shop")
    assert (done.posted, len(done.decisions)) == (0, 1)
    assert conflict(shop).loser_value == 49
    assert view(shop, "k").waiting == 0


def test_writes_that_wait_have_a_limit_for_each_key(
    swarms: Swarms, shop: Fleet, bank: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_rules, "WAITING_LIMIT", 3)
    cut(swarms, "shop")
    for number in (1, 2, 3):
        assert isinstance(shop.swarms.share("k", number), ShareSpooled)
    full = shop.swarms.share("k", 4)
    assert isinstance(full, SharesFull)
    assert (full.waiting, full.limit) == (3, 3)
    assert isinstance(shop.swarms.share("other", 1), ShareSpooled)
    swarms.clock.advance(60)
    assert heal(swarms, "shop").posted == 4
    assert stored(shop, "k", 4)
    assert view(bank, "k").value == 4


def test_what_was_read_before_can_be_read_while_the_bus_is_away(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    view(bank, "k")
    cut(swarms, "bank")
    swarms.clock.advance(30 * 86400)
    found = view(bank, "k")
    assert found.value == 1
    assert "cut off" in found.trouble
    unknown = bank.swarms.shared("other")
    assert isinstance(unknown, UnknownShared)
    assert "cut off" in unknown.trouble
    listed = bank.swarms.shared_list()
    assert listed
    assert [each.key for each in listed] == ["k"]


def test_a_spooled_write_on_the_current_value_applies_after_any_time(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    cut(swarms, "shop")
    shop.swarms.share("k", 2)
    swarms.clock.advance(30 * 86400)
    assert heal(swarms, "shop").posted == 1
    assert view(bank, "k").value == 2


@pytest.mark.parametrize("away", [1.0, HOUR, 30 * 86400.0])
def test_a_spooled_write_never_wins_by_arriving_last(
    swarms: Swarms, shop: Fleet, bank: Fleet, away: float
) -> None:
    stored(shop, "k", 0)
    view(bank, "k")
    cut(swarms, "shop")
    for number in (1, 2):
        shop.swarms.share("k", number)
    swarms.clock.advance(away)
    stored(bank, "k", "bank's")
    swarms.clock.advance(0.02)
    done = heal(swarms, "shop")
    assert (done.posted, len(done.decisions)) == (0, 1)
    found = conflict(shop)
    assert (found.winner_value, found.loser_value) == ("bank's", 2)
    assert found.resolution == "stale_base"
    assert view(bank, "k").value == "bank's"
    assert view(shop, "k").waiting == 0
    assert conflicts_counted(shop, "bank") == 1


def test_the_next_write_after_a_decision_of_the_link_did_not_see_the_other_value(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 0)
    view(bank, "k")
    cut(swarms, "shop")
    shop.swarms.share("k", 1)
    stored(bank, "k", 2)
    swarms.clock.advance(60)
    heal(swarms, "shop")
    assert undecided(shop, "k", 3).value == 2


def test_a_bus_that_was_exchanged_takes_no_base_of_the_old_one(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    """The revision that a spooled write saw exists on the new bus, too, by chance."""
    seen = stored(shop, "k", 1).revision
    cut(swarms, "shop")
    shop.swarms.share("k", 2)
    shop.swarms.share("fresh", 3)
    swarms.clock.advance(60)
    swarms.bus = MemoryStore(swarms.clock)
    for name in ("bank", "shop"):
        swarms.connections[name] = BusConnection(swarms.bus, sleep=swarms.clock.advance)
        Swarms.connect_bus(swarms.homes[name].context, swarms.connections[name])
        swarms.register(name)
    assert stored(bank, "k", 9).revision == seen
    done = swarms.sync("shop", force=False)
    assert (done.posted, len(done.decisions)) == (1, 1)
    assert view(bank, "fresh").value == 3
    assert conflict(shop).loser_value == 2


def test_a_host_without_the_key_spools_and_another_one_posts(
    swarms: Swarms, shop: Fleet, bank: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "none"))
    found = shop.swarms.share("k", 1)
    assert isinstance(found, ShareSpooled)
    assert "not on this host" in found.trouble
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "keys"))
    assert swarms.sync("shop", force=False).posted == 1
    assert view(bank, "k").value == 1


# Decisions.


def test_a_person_takes_the_other_value_and_it_is_written_at_once(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    swarms.clock.advance(HOUR)
    assert isinstance(bank.messages.resolve(found.decision, "take_other"), OwnDecision)
    decide(swarms, bank, found.decision, "take_other")
    now = view(shop, "k")
    assert (now.value, now.swarm, now.agent) == (2, "bank", "bank-bot")
    assert view(bank, "k").decisions == ()
    assert not shop.swarms.conflicts()  # its writer saw our value


def test_a_person_keeps_the_current_value(swarms: Swarms, shop: Fleet, bank: Fleet) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    decide(swarms, bank, found.decision, "keep_current")
    assert view(shop, "k").value == view(bank, "k").value == 1
    assert (view(bank, "k").decisions, view(bank, "k").waiting) == ((), 0)


def test_a_choice_about_a_value_that_has_changed_since_is_a_new_decision(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    swarms.clock.advance(60)
    stored(shop, "k", 3)
    decide(swarms, bank, found.decision, "take_other")
    assert view(shop, "k").value == 3
    (again,) = view(bank, "k").decisions
    assert again != found.decision
    decide(swarms, bank, again, "take_other")
    assert view(shop, "k").value == 2


def test_a_choice_waits_for_a_bus_that_is_away(swarms: Swarms, shop: Fleet, bank: Fleet) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    cut(swarms, "bank")
    maria = person(swarms, bank)
    maria.bus.cut = True
    assert isinstance(maria.run(maria.messages.resolve(found.decision, "take_other")), Resolved)
    assert view(bank, "k").waiting == 1
    swarms.clock.advance(HOUR)
    assert heal(swarms, "bank").posted == 1
    assert view(shop, "k").value == 2


def test_a_decision_that_nobody_makes_leaves_the_value_as_it_is(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    swarms.clock.advance(DECIDE_IN - 60)
    swarms.sync("bank")
    assert view(bank, "k").decisions == (found.decision,)
    swarms.clock.advance(61)
    cut(swarms, "bank")  # it needs no bus
    swarms.unsynced("bank")
    asked = bank.messages.decision(found.decision)
    assert isinstance(asked, DecisionView)
    assert (asked.state, asked.by, asked.answer) == ("expired", "", "keep_current")
    cut(swarms, "bank", is_cut=False)
    swarms.clock.advance(60)
    assert view(bank, "k").decisions == ()
    assert view(shop, "k").value == 1
    maria = person(swarms, bank)
    late = maria.run(maria.messages.resolve(found.decision, "take_other"))
    assert isinstance(late, AlreadyResolved)


def test_maintain_ends_decisions_and_posts_what_waits(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    cut(swarms, "bank")
    bank.swarms.share("other", 3)
    swarms.clock.advance(DECIDE_IN + 1)
    cut(swarms, "bank", is_cut=False)
    assert bank.maintain().moved == 2
    asked = bank.messages.decision(found.decision)
    assert isinstance(asked, DecisionView)
    assert asked.state == "expired"
    assert view(shop, "other").value == 3


def test_a_conflict_is_kept_for_ninety_days(swarms: Swarms, shop: Fleet, bank: Fleet) -> None:
    stored(shop, "k", 1)
    undecided(bank, "k", 2)
    swarms.clock.advance(89 * 86400)
    bank.maintain()
    assert conflict(bank).key == "k"
    swarms.clock.advance(2 * 86400)
    bank.maintain()
    assert not bank.swarms.conflicts()


# Keys that change.


def test_a_value_is_signed_again_after_a_rotation_and_keeps_its_revision(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    first = stored(shop, "k", 1)
    view(bank, "k")
    shop.keys.rotate("shop")
    swarms.sync("shop")
    swarms.sync("bank")
    swarms.clock.advance(registry.OVERLAP + 60)  # the old key counts no more
    swarms.sync("shop")
    swarms.sync("bank")
    found = view(swarms.home("bank"), "k")
    assert (found.value, found.revision, found.refused) == (1, first.revision, "")
    assert stored(bank, "k", 2, base=first.revision)
    assert not bank.swarms.conflicts()


def test_a_reader_follows_a_rotation_that_it_did_not_know_of(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    view(bank, "k")
    shop.keys.rotate("shop")
    stored(shop, "k", 2)
    found = view(bank, "k")
    assert (found.value, found.refused) == (2, "")


def test_a_copy_stays_valid_when_its_key_has_ended(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    view(bank, "k")
    key_files.rotate("shop", swarms.clock.wall())
    bank.swarms.deny("shop")
    swarms.clock.advance(SYNC_EVERY)
    found = view(bank, "k")
    assert (found.value, found.refused) == (1, "")
    item = bank.store.read(keys.copy("k"))[keys.copy("k")]
    copy = decode_copy(item)
    assert copy is not None
    assert copy.seen == found.revision


# Health and why.


def test_writes_that_wait_and_decisions_are_visible(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    stored(shop, "k", 1)
    found = undecided(bank, "k", 2)
    assert found.decision in bank.why("shared/k").clear
    cut(swarms, "shop")
    shop.swarms.share("k", 5)
    assert "not on the bus" in shop.why("shared/k").because
    swarms.clock.advance(400)
    assert [each.thing for each in shop.health().problems if each.kind == "unsent"] == ["shared/k"]
    found_by_doctor = drive(swarm_findings(shop.context), shop.store)
    assert [each.name for each in found_by_doctor] == ["swarm", "shared"]
    heal(swarms, "shop")
    assert not shop.why("shared/k").blocked
    assert not [each for each in shop.health().problems if each.kind == "unsent"]


def test_events_tell_of_values_conflicts_and_decisions(
    swarms: Swarms, shop: Fleet, bank: Fleet
) -> None:
    with bank.observe(nouns=["swarm", "decision"]) as seen:
        stored(shop, "k", 1)
        found = undecided(bank, "k", 2)
        decide(swarms, bank, found.decision, "take_other")
        said = {each.event for each in seen.take(1)}
    assert {"swarm:written", "swarm:undecided", "swarm:settled", "swarm:shared"} <= said


def test_a_damaged_copy_does_not_stop_the_others(swarms: Swarms, shop: Fleet, bank: Fleet) -> None:
    stored(shop, "a", 1)
    stored(shop, "b", 1)
    view(bank, "a")
    view(bank, "b")
    write(bank, keys.copy("a"), {"key": 3})
    stored(shop, "b", 2)
    swarms.sync("bank")
    copy = decode_copy(bank.store.read(keys.copy("b"))[keys.copy("b")])
    assert copy is not None
    assert bytes(copy.value) == b"2"
    assert view(bank, "a").value == 1
