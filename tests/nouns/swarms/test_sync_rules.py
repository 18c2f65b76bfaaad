"""State sync: one writer for a snapshot, and no shared value that is lost without a trace."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Raw
from msgspec.structs import replace
from tests.hypothesis_settings import bounds, budget, run

from interlock.nouns.swarms.registry_rules import VersionFloor
from interlock.nouns.swarms.sync_rules import (
    KEEP,
    TAKE,
    CurrentValue,
    SharedValue,
    SwarmSnapshot,
    WriteApplied,
    WriteSame,
    WriteUndecided,
    ask,
    decide_write,
    judge_snapshot,
    settle,
    snapshot_digest,
)

NOW = 1_700_000_000.0
SNAPSHOT = SwarmSnapshot(
    swarm="bank",
    version=7,
    timestamp=round(NOW * 1000),
    agents=("ada", "bob"),
    completed_tasks=12,
    pending_tasks=3,
    avg_execution_time_ms=80,
    memory=1_000_000,
    avg_latency_ms=2,
    message_throughput_per_sec=40,
)


# Snapshots.


@pytest.mark.parametrize(
    ("change", "order"),
    [
        ({"version": 8}, "newer"),
        ({}, "unchanged"),
        ({"version": 6}, "rollback"),
        ({"pending_tasks": 4}, "divergence"),
    ],
)
def test_a_snapshot_is_judged_by_its_version_and_its_hash(
    change: dict[str, int], order: str
) -> None:
    floor = VersionFloor(version=7, digest=snapshot_digest(SNAPSHOT))
    read = replace(SNAPSHOT, **change)
    assert judge_snapshot(floor, read, snapshot_digest(read), "bank") == order


def test_only_the_swarm_itself_writes_its_snapshot() -> None:
    digest = snapshot_digest(SNAPSHOT)
    assert judge_snapshot(None, SNAPSHOT, digest, "shop") == "wrong_writer"
    assert judge_snapshot(None, SNAPSHOT, digest, "bank") == "newer"


def test_a_snapshot_encodes_back_to_its_bytes() -> None:
    data = msgspec.json.encode(SNAPSHOT)
    assert msgspec.json.encode(msgspec.json.decode(data, type=SwarmSnapshot)) == data


# Shared values.


def write(value: str, base: int, swarm: str = "shop", **more: object) -> SharedValue:
    made = SharedValue(
        value=Raw(msgspec.json.encode(value)), swarm=swarm, base=base, written_at=NOW
    )
    return replace(made, **more)


def stored(value: str = "old", revision: int = 20, base: int = 10, at: float = NOW) -> CurrentValue:
    return CurrentValue(shared=write(value, base, "bank"), revision=revision, at=at)


def test_a_write_on_the_current_revision_applies_also_if_it_waited_for_hours() -> None:
    new = write("new", 20, spooled=True)
    assert decide_write("k", stored(), new, NOW + 9999) == WriteApplied(shared=new, expected=20)
    first = write("new", 0)
    assert decide_write("k", None, first, NOW) == WriteApplied(shared=first, expected=0)


def test_of_two_writes_on_one_base_the_later_wins_and_the_loser_is_kept() -> None:
    new = write("new", 10)
    found = decide_write("k", stored(), new, NOW + 0.011)
    assert isinstance(found, WriteApplied)
    assert (found.shared, found.expected) == (new, 20)
    conflict = found.conflict
    assert conflict is not None
    assert (conflict.winner, conflict.loser) == ("shop", "bank")
    assert (bytes(conflict.winner_value), bytes(conflict.loser_value)) == (b'"new"', b'"old"')
    assert (conflict.winner_timestamp, conflict.loser_timestamp) == (NOW + 0.011, NOW)
    assert conflict.time_diff_ms == pytest.approx(11, abs=0.01)
    assert conflict.resolution == "last_write_wins"


@pytest.mark.parametrize("later", [0.0, 0.005, -3.0])
def test_within_ten_milliseconds_of_the_buss_clock_a_person_decides(later: float) -> None:
    found = decide_write("k", stored(), write("new", 10), NOW + later)
    assert isinstance(found, WriteUndecided)
    assert found.conflict.resolution == "simultaneous_update"
    assert found.conflict.winner == "bank"
    assert bytes(found.conflict.loser_value) == b'"new"'


@pytest.mark.parametrize(
    ("new", "later"),
    [
        (write("new", 10), 31.0),
        (write("new", 10, spooled=True), 5.0),
        (write("new", 9), 5.0),
        (write("new", 25), 5.0),
        (write("new", 0), 5.0),
    ],
)
def test_a_write_on_a_stale_base_is_a_decision_that_keeps_both_values(
    new: SharedValue, later: float
) -> None:
    found = decide_write("k", stored(), new, NOW + later)
    assert isinstance(found, WriteUndecided)
    assert found.conflict.resolution == "stale_base"
    values = (found.conflict.winner_value, found.conflict.loser_value)
    assert [bytes(each) for each in values] == [b'"old"', b'"new"']


def test_a_write_on_a_value_that_was_deleted_is_a_decision() -> None:
    found = decide_write("k", None, write("new", 10), NOW)
    assert isinstance(found, WriteUndecided)
    assert (found.revision, found.conflict.winner) == (0, "")


def test_the_same_value_again_is_no_conflict() -> None:
    assert decide_write("k", stored("old"), write("old", 3), NOW) == WriteSame()


@given(
    claims=st.floats(0, 2e9),
    base=st.sampled_from([0, 9, 10, 20, 30]),
    later=st.floats(0, 100),
    spooled=st.booleans(),
)
def test_the_clock_of_the_sender_decides_nothing(
    claims: float, base: int, later: float, spooled: bool
) -> None:
    plain = write("new", base, spooled=spooled)
    lying = replace(plain, written_at=claims)
    one = decide_write("k", stored(), plain, NOW + later)
    other = decide_write("k", stored(), lying, NOW + later)
    assert type(one) is type(other)
    if isinstance(one, WriteApplied) and isinstance(other, WriteApplied):
        assert (one.expected, one.conflict) == (other.expected, other.conflict)


# Decisions.


def undecided(base: int = 9) -> WriteUndecided:
    found = decide_write("k", stored(), write("new", base), NOW + 5)
    assert isinstance(found, WriteUndecided)
    return found


def test_the_decision_has_both_values_and_leaves_the_current_one_by_default() -> None:
    asked = ask(undecided(), "dec_1", "ada", NOW)
    options = [(each.name, each.acts, bytes(each.value)) for each in asked.options]
    assert options == [(KEEP, False, b'"old"'), (TAKE, True, b'"new"')]
    assert (asked.about, asked.default) == ("shared/k", KEEP)
    question = msgspec.json.decode(asked.question)
    assert (question["type"], question["swarms"]) == ("stale_base", ["bank", "shop"])


def test_a_choice_applies_to_the_value_that_the_person_saw() -> None:
    assert settle(undecided(), KEEP, stored(), NOW + 9) == WriteSame()
    found = settle(undecided(), TAKE, stored(), NOW + 9)
    assert isinstance(found, WriteApplied)
    assert (bytes(found.shared.value), found.expected) == (b'"new"', 20)


def test_a_choice_does_not_overwrite_a_value_that_changed_since() -> None:
    newer = stored("newer", revision=40, base=20, at=NOW + 8)
    found = settle(undecided(), TAKE, newer, NOW + 9)
    assert isinstance(found, WriteUndecided)
    assert bytes(found.conflict.winner_value) == b'"newer"'
    assert isinstance(settle(undecided(), TAKE, None, NOW + 9), WriteUndecided)


class Model(RuleBasedStateMachine):
    """Swarms that write one key, directly or after a cut, with any clocks of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.current: CurrentValue | None = None
        self.revision, self.now, self.number = 0, NOW, 0
        self.saw = {"bank": 0, "shop": 0, "post": 0}
        self.kept: set[bytes] = set()
        self.made: set[bytes] = set()

    @rule(seconds=st.sampled_from([0.001, 0.02, 5.0, 40.0, 7200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(swarm=st.sampled_from(["bank", "shop", "post"]))
    def look(self, swarm: str) -> None:
        self.saw[swarm] = 0 if self.current is None else self.current.revision

    @rule(
        swarm=st.sampled_from(["bank", "shop", "post"]),
        spooled=st.booleans(),
        claims=st.floats(0, 2e9),
    )
    def write(self, swarm: str, spooled: bool, claims: float) -> None:
        self.number += 1
        new = write(f"v{self.number}", self.saw[swarm], swarm, spooled=spooled, written_at=claims)
        self.made.add(bytes(new.value))
        found = decide_write("k", self.current, new, self.now)
        if isinstance(found, WriteUndecided):
            self.kept |= {bytes(found.conflict.winner_value), bytes(found.conflict.loser_value)}
            return
        assert isinstance(found, WriteApplied)
        if self.current is not None and found.conflict is not None:
            assert not spooled
            assert self.now - self.current.at <= 30
            self.kept |= {bytes(found.conflict.loser_value)}
        elif self.current is not None:
            assert new.base == self.current.revision
            self.kept |= {bytes(self.current.shared.value)}  # its writer saw it
        self.revision += 1
        self.current = CurrentValue(shared=new, revision=self.revision, at=self.now)
        self.saw[swarm] = self.revision

    @invariant()
    def each_value_is_current_or_seen_by_its_successor_or_kept(self) -> None:
        current = set() if self.current is None else {bytes(self.current.shared.value)}
        assert self.made <= self.kept | current


def test_no_value_is_lost_in_any_order_of_writes_cuts_and_clocks() -> None:
    run(Model, bounds(budget(80), 40))
