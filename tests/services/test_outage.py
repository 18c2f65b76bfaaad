"""What waits goes on through trouble that passes, tells of it once, and ends with any other."""

from __future__ import annotations

import pytest

import interlock
from interlock.core.answers import Acquired
from interlock.errors import StoreBusy, StoreMissing, StoreTrouble
from interlock.store import Committed, Work
from interlock.stores.memory import MemoryStore


class _Troubled(MemoryStore):
    """Raises what it is told to before it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: list[StoreTrouble] = []

    def transact(self, work: Work) -> Committed | None:
        if self.troubles:
            raise self.troubles.pop()
        return super().transact(work)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.services.outage.AGAIN", 0.001)


def stuck(times: int) -> list[StoreTrouble]:
    return [StoreBusy(f"process {number} has held the store up") for number in range(times)]


def test_a_wait_goes_on_through_a_stuck_writer_and_tells_of_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = _Troubled()
    with interlock.connect(agent="ada", store=store) as fleet:
        store.troubles = stuck(3)
        assert isinstance(fleet.locks.acquire("merge", wait=60), Acquired)
        store.troubles = stuck(1)
        with pytest.raises(StoreBusy):
            fleet.locks.acquire("other")
    told = [line for line in caplog.messages if "goes on when this is over" in line]
    assert told == ["a wait for a lock goes on when this is over: process 2 has held the store up"]


def test_a_store_that_is_gone_ends_a_wait_at_once() -> None:
    store = _Troubled()
    with interlock.connect(agent="ada", store=store) as fleet:
        store.troubles = [StoreMissing("the file is gone; connect again")]
        with pytest.raises(StoreMissing):
            fleet.locks.acquire("merge", wait=60)
        store.troubles = [StoreMissing("the file is gone; connect again")] * 3
        with pytest.raises(StoreMissing):
            next(iter(fleet.tasks.work(stop_on_messages=False)))
        store.troubles = []


def test_without_retries_a_wait_ends_at_once() -> None:
    store = _Troubled()
    with interlock.connect(agent="ada", store=store, no_retry=True) as fleet:
        store.troubles = stuck(1)
        with pytest.raises(StoreBusy):
            fleet.locks.acquire("merge", wait=60)
