from __future__ import annotations

from contextlib import suppress

import pytest

import interlock
from interlock.errors import OutcomeUnknown
from interlock.store import Check, Committed, Conflict, Put, Txn, can_transact
from interlock.stores.memory import MemoryStore
from interlock.testing.clock import FakeClock
from interlock.testing.conformance import Conformance, Place
from interlock.testing.faults import FAULTS, Chances, Crash, FaultyStore, kill_at


def put(number: int, *checks: Check) -> Txn:
    return Txn(id=f"t{number}", entry=b"{}", puts=(Put("a", str(number).encode()),), checks=checks)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(FakeClock())


@pytest.fixture
def faulty(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory, sleep=lambda _: None)


def value(memory: MemoryStore) -> bytes | None:
    item = memory.read("a")["a"]
    return None if item is None else item.value


class FaultlessPlace(Place):
    def __init__(self) -> None:
        self._clock = FakeClock()
        self._memory = MemoryStore(self._clock)
        super().__init__(lambda: FaultyStore(self._memory))
        self.monotonic = self._clock.monotonic  # type: ignore[method-assign]

    def tick(self) -> None:
        self._clock.advance(0.05)

    def trim(self, store: object, revision: int) -> None:
        self._memory.trim(revision)

    def close(self) -> None:
        super().close()
        self._memory = MemoryStore(self._clock)


class TestWithoutFaults(Conformance):
    """Where nothing fails it is a store like any other, and a remote one."""

    @pytest.fixture
    def place(self) -> Place:
        return FaultlessPlace()


def test_it_is_not_local(faulty: FaultyStore) -> None:
    assert not can_transact(faulty)
    assert not faulty.capabilities.transacts


def test_a_conflict_shows_what_stands_and_does_nothing(
    memory: MemoryStore, faulty: FaultyStore
) -> None:
    faulty.script([None, "conflict"])
    faulty.commit(put(1))
    answer = faulty.commit(put(2, Check("a", "exists")))
    assert isinstance(answer, Conflict)
    assert answer.items == memory.read(*answer.items).items
    assert value(memory) == b"1"


def test_a_lost_reply_was_committed(memory: MemoryStore, faulty: FaultyStore) -> None:
    faulty.script(["lost reply"])
    with pytest.raises(OutcomeUnknown) as raised:
        faulty.commit(put(1))
    assert raised.value.txn == "t1"
    assert value(memory) == b"1"


def test_a_late_arrival_is_checked_when_it_arrives(
    memory: MemoryStore, faulty: FaultyStore
) -> None:
    faulty.script(["late arrival"])
    with pytest.raises(OutcomeUnknown):
        faulty.commit(put(1, Check("a", "absent")))
    assert value(memory) is None
    memory.commit(put(2))
    for _ in range(5):
        faulty.read("a")
    ((txn, answer),) = faulty.arrived
    assert (txn, type(answer)) == ("t1", Conflict)
    assert value(memory) == b"2"


def test_what_is_under_way_can_be_delivered(memory: MemoryStore, faulty: FaultyStore) -> None:
    faulty.script(["late arrival"])
    with pytest.raises(OutcomeUnknown):
        faulty.commit(put(1))
    faulty.deliver()
    assert value(memory) == b"1"


@pytest.mark.parametrize(("when", "found"), [("crash before", None), ("crash after", b"1")])
def test_a_crash_refuses_everything_until_it_is_revived(
    memory: MemoryStore, faulty: FaultyStore, when: str, found: bytes | None
) -> None:
    watch = faulty.watch("", 0)
    faulty.script([when])  # type: ignore[list-item]
    with pytest.raises(Crash):
        faulty.commit(put(1))
    for call in (
        lambda: faulty.read("a"),
        lambda: faulty.commit(put(2)),
        lambda: faulty.watch("", 0),
        lambda: watch.take(0),
    ):
        with pytest.raises(Crash):
            call()
    assert value(memory) == found
    faulty.revive()
    assert isinstance(faulty.commit(put(3)), Committed)


def test_a_crash_is_caught_by_no_handler_of_errors() -> None:
    assert not issubclass(Crash, Exception)


def test_a_delay_lets_time_pass(memory: MemoryStore) -> None:
    slept: list[float] = []
    faulty = FaultyStore(memory, sleep=slept.append)
    faulty.script(["delay"])
    assert isinstance(faulty.commit(put(1)), Committed)
    assert len(slept) == 1


def test_one_seed_draws_the_same_faults_again(memory: MemoryStore) -> None:
    chances = Chances(conflict=0.3, lost_reply=0.3, late_arrival=0.3)

    def drawn(seed: int) -> list[object]:
        faulty = FaultyStore(MemoryStore(FakeClock()), seed=seed, chances=chances)
        for number in range(30):
            with suppress(OutcomeUnknown):
                faulty.commit(put(number))
        return list(faulty.drawn)

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(drawn(1)) > 15


def test_every_fault_has_its_chance() -> None:
    assert tuple(fault.replace(" ", "_") for fault in FAULTS) == Chances.__struct_fields__


def test_a_misspelt_fault_is_refused(faulty: FaultyStore) -> None:
    with pytest.raises(ValueError, match="no such faults"):
        faulty.script(["lost replies"])  # type: ignore[list-item]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(("when", "tasks"), [("before", 1), ("after", 2)])
def test_a_process_dies_before_or_after_the_commit_of_a_verb(
    memory: MemoryStore, when: str, tasks: int, *, local: bool
) -> None:
    def die() -> None:
        raise Crash(when)

    store = memory if local else FaultyStore(memory)
    with interlock.connect(store=store, agent="ada") as fleet:
        fleet.tasks.publish("a")
        kill_at(fleet.context, "task.publish", when, die)  # type: ignore[arg-type]
        fleet.messages.share("bob", "note", 1)
        with pytest.raises(Crash):
            fleet.tasks.publish("b")
        assert len(fleet.tasks.list()) == tasks
