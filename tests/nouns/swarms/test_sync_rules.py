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
from tests.nouns.swarms.swarm_heads import BANK, BUS, SHOP

from interlock.core import signing
from interlock.core.signing import KeySigner
from interlock.errors import BadInput
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.head import digest, milliseconds
from interlock.nouns.swarms.registry_rules import RegistryRefusal
from interlock.nouns.swarms.swarm import Floor, Peer, PeerKey
from interlock.nouns.swarms.sync_heads import STATE_EXPIRES, StateHead
from interlock.nouns.swarms.sync_rules import (
    CONCURRENT,
    KEEP,
    TAKE,
    CurrentValue,
    SharedValue,
    WriteApplied,
    WriteSame,
    WriteUndecided,
    ask,
    decide_write,
    judge_state,
    nothing_there,
    settle,
)

NOW = 1_700_000_000.0
PEER = Peer(
    swarm="bank",
    keys=(
        PeerKey(
            fingerprint=BANK.fingerprint,
            how="pinned",
            since=0.0,
            public=signing.to_base64(BANK.public_key),
        ),
    ),
)
SNAPSHOT = StateHead(
    from_swarm="bank",
    key=BANK.fingerprint,
    timestamp=milliseconds(NOW),
    expires=milliseconds(NOW) + milliseconds(STATE_EXPIRES),
    bus=BUS,
    version=7,
    agents=("ada", "bob"),
    completed_tasks=12,
    pending_tasks=3,
    avg_execution_time_ms=80.5,
    memory=1_000_000,
    avg_latency_ms=0.25,
    message_throughput_per_sec=40.0,
)
FLOOR = Floor(swarm="bank", state=SNAPSHOT, state_digest=digest(SNAPSHOT))


# Snapshots.


def judged(head: StateHead, by: KeySigner = BANK, now: float = NOW, floor: Floor = FLOOR) -> object:
    found = judge_state(PEER, floor, sign_head(replace(head, key=by.fingerprint), by), BUS, now)
    return found.reason if isinstance(found, RegistryRefusal) else found


@pytest.mark.parametrize(
    ("change", "order"),
    [({"version": 6}, "rollback"), ({"pending_tasks": 4}, "divergence")],
)
@pytest.mark.parametrize("later", [0.0, 86400.0])
def test_a_snapshot_is_judged_by_its_version_and_its_hash_before_its_time(
    change: dict[str, int], order: str, later: float
) -> None:
    assert judged(replace(SNAPSHOT, **change), now=NOW + later) == order


def test_a_newer_snapshot_raises_the_floor_and_a_known_one_stays_also_when_it_is_old() -> None:
    newer = replace(SNAPSHOT, version=8)
    assert judged(newer) == replace(FLOOR, state=newer, state_digest=digest(newer))
    assert judged(newer, floor=Floor(swarm="bank")) == replace(
        FLOOR, state=newer, state_digest=digest(newer)
    )
    assert judged(SNAPSHOT, now=NOW + 86400) == FLOOR


def test_only_the_swarm_itself_writes_its_snapshot_for_this_bus_and_a_short_time() -> None:
    newer = replace(SNAPSHOT, version=8)
    assert judged(newer, by=SHOP) == "unknown_key"
    assert judged(replace(newer, from_swarm="shop")) == "wrong_sender"
    assert judged(replace(newer, bus="bus_2")) == "wrong_bus"
    assert judged(newer, now=NOW + 86400) == "expired"
    assert judged(newer, now=NOW - 86400) == "future"


def test_a_divergence_is_an_alarm() -> None:
    found = judge_state(PEER, FLOOR, sign_head(replace(SNAPSHOT, memory=1), BANK), BUS, NOW)
    assert isinstance(found, RegistryRefusal)
    assert found.alarm


@pytest.mark.parametrize(
    "change",
    [
        {"expires": milliseconds(NOW) + milliseconds(STATE_EXPIRES) + 1},
        {"agents": ("ada", "ada")},
        {"agents": ("a\nb",)},
        {"memory": -1},
        {"avg_latency_ms": -1.0},
    ],
)
def test_a_snapshot_that_no_reader_accepts_is_not_signed(change: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        sign_head(replace(SNAPSHOT, **change), BANK)


# Shared values.


def write(value: str, base: int, swarm: str = "shop", **more: object) -> SharedValue:
    made = SharedValue(
        value=Raw(msgspec.json.encode(value)), swarm=swarm, base=base, written_at=NOW
    )
    return replace(made, **more)


def stored(
    value: str = "old", revision: int = 20, base: int = 10, age: float | None = None
) -> CurrentValue:
    """A value of the bank, which the bus stored so many seconds before ``NOW``."""
    return CurrentValue(
        shared=write(value, base, "bank"),
        revision=revision,
        item=revision + 1,
        at=NOW - (60.0 if age is None else age),
        age=age,
    )


def test_a_write_on_the_current_revision_applies_also_if_it_waited_for_hours() -> None:
    new = write("new", 20, spooled=True)
    assert decide_write("k", stored(), new, NOW + 9999) == WriteApplied(shared=new, expected=21)
    first = write("new", 0)
    assert decide_write("k", None, first, NOW) == WriteApplied(shared=first, expected=0)


def test_of_two_writes_on_one_base_the_later_wins_and_the_loser_is_kept() -> None:
    new = write("new", 10)
    found = decide_write("k", stored(age=0.011), new, NOW)
    assert isinstance(found, WriteApplied)
    assert (found.shared, found.expected) == (new, 21)
    conflict = found.conflict
    assert conflict is not None
    assert (conflict.winner, conflict.loser) == ("shop", "bank")
    assert (bytes(conflict.winner_value), bytes(conflict.loser_value)) == (b'"new"', b'"old"')
    assert (conflict.winner_timestamp, conflict.loser_timestamp) == (NOW, NOW - 0.011)
    assert conflict.time_diff_ms == pytest.approx(11, abs=0.01)
    assert conflict.resolution == "last_write_wins"


@pytest.mark.parametrize("age", [0.0, 0.005, 0.010])
def test_within_ten_milliseconds_of_the_buss_clock_a_person_decides(age: float) -> None:
    found = decide_write("k", stored(age=age), write("new", 10), NOW)
    assert isinstance(found, WriteUndecided)
    assert found.conflict.resolution == "simultaneous_update"
    assert found.conflict.winner == "bank"
    assert bytes(found.conflict.loser_value) == b'"new"'


@pytest.mark.parametrize(
    ("new", "age"),
    [
        (write("new", 10), None),
        (write("new", 10, spooled=True), 5.0),
        (write("new", 9), 5.0),
        (write("new", 25), 5.0),
        (write("new", 0), 5.0),
    ],
)
def test_a_write_on_a_stale_base_is_a_decision_that_keeps_both_values(
    new: SharedValue, age: float | None
) -> None:
    found = decide_write("k", stored(age=age), new, NOW)
    assert isinstance(found, WriteUndecided)
    assert found.conflict.resolution == "stale_base"
    values = (found.conflict.winner_value, found.conflict.loser_value)
    assert [bytes(each) for each in values] == [b'"old"', b'"new"']


def test_a_write_on_a_value_that_was_deleted_is_a_decision() -> None:
    found = decide_write("k", None, write("new", 10), NOW)
    assert isinstance(found, WriteUndecided)
    assert (found.revision, found.conflict.winner) == (0, "")
    assert ask(found, "dec_1", "ada", NOW).options[0].text == "keep it deleted"


def test_what_no_trusted_swarm_signed_is_not_overwritten_without_a_person() -> None:
    rubbish = nothing_there(NOW, 20)
    for new in (write("new", 0), write("new", 10), replace(write("x", 0), value=Raw(b"null"))):
        found = decide_write("k", rubbish, new, NOW)
        assert isinstance(found, WriteUndecided)
        assert found.conflict.winner == ""
        assert "no swarm that is trusted" in ask(found, "dec_1", "ada", NOW).options[0].text
    saw = write("new", 20)
    assert decide_write("k", rubbish, saw, NOW) == WriteApplied(shared=saw, expected=20)


def test_the_same_value_again_is_no_conflict() -> None:
    assert decide_write("k", stored("old"), write("old", 3), NOW) == WriteSame()


@given(
    claims=st.floats(0, 2e9),
    base=st.sampled_from([0, 9, 10, 20, 30]),
    age=st.one_of(st.none(), st.floats(0, 30)),
    spooled=st.booleans(),
)
def test_the_clock_of_the_sender_decides_nothing(
    claims: float, base: int, age: float | None, spooled: bool
) -> None:
    plain = write("new", base, spooled=spooled)
    lying = replace(plain, written_at=claims)
    one = decide_write("k", stored(age=age), plain, NOW)
    other = decide_write("k", stored(age=age), lying, NOW)
    assert type(one) is type(other)
    if isinstance(one, WriteApplied) and isinstance(other, WriteApplied):
        assert (one.expected, one.conflict) == (other.expected, other.conflict)


# Decisions.


def undecided(base: int = 9) -> WriteUndecided:
    found = decide_write("k", stored(age=5.0), write("new", base), NOW)
    assert isinstance(found, WriteUndecided)
    return found


def test_the_decision_has_both_values_and_leaves_the_current_one_by_default() -> None:
    asked = ask(undecided(), "dec_1", "ada", NOW)
    options = [(each.name, each.acts, bytes(each.value)) for each in asked.options]
    assert options == [(KEEP, False, b'"old"'), (TAKE, True, b'"new"')]
    assert (asked.about, asked.default) == ("shared/k", KEEP)
    question = msgspec.json.decode(asked.question)
    assert (question["type"], question["swarms"]) == ("stale_base", ["bank", "shop"])


def test_a_choice_is_a_write_on_the_value_that_the_person_saw() -> None:
    assert settle(undecided(), KEEP) is None
    chosen = settle(undecided(), TAKE)
    assert chosen is not None
    assert (bytes(chosen.value), chosen.base, chosen.spooled) == (b'"new"', 20, True)
    assert isinstance(decide_write("k", stored(age=5.0), chosen, NOW), WriteApplied)


def test_a_choice_does_not_overwrite_a_value_that_changed_since() -> None:
    chosen = settle(undecided(), TAKE)
    assert chosen is not None
    newer = stored("newer", revision=40, base=20, age=1.0)
    found = decide_write("k", newer, chosen, NOW)
    assert isinstance(found, WriteUndecided)
    assert bytes(found.conflict.winner_value) == b'"newer"'
    assert isinstance(decide_write("k", None, chosen, NOW), WriteUndecided)


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
        current = self.current
        if current is not None:
            age = self.now - current.at
            current = replace(current, age=age if age <= CONCURRENT else None)
        found = decide_write("k", current, new, self.now)
        if isinstance(found, WriteUndecided):
            self.kept |= {bytes(found.conflict.winner_value), bytes(found.conflict.loser_value)}
            return
        assert isinstance(found, WriteApplied)
        if self.current is not None and found.conflict is not None:
            assert not spooled
            assert self.now - self.current.at <= CONCURRENT
            self.kept |= {bytes(found.conflict.loser_value)}
        elif self.current is not None:
            assert new.base == self.current.revision
            self.kept |= {bytes(self.current.shared.value)}  # its writer saw it
        self.revision += 1
        self.current = CurrentValue(
            shared=new, revision=self.revision, item=self.revision, at=self.now
        )
        self.saw[swarm] = self.revision

    @invariant()
    def each_value_is_current_or_seen_by_its_successor_or_kept(self) -> None:
        current = set() if self.current is None else {bytes(self.current.shared.value)}
        assert self.made <= self.kept | current


def test_no_value_is_lost_in_any_order_of_writes_cuts_and_clocks() -> None:
    run(Model, bounds(budget(40), 40))
