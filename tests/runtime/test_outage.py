"""What waits goes on through trouble that passes, tells of it once, and ends with any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import interlock
from interlock.core.outcomes import Acquired
from interlock.errors import StoreAway, StoreBusy, StoreMissing, StoreTrouble
from interlock.store import Committed, Ref, Snapshot, Work
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
    monkeypatch.setattr("interlock.runtime.outage.AGAIN", 0.001)


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


class AwayForSome(MemoryStore):
    """Away for the threads that are named."""

    away: tuple[str, ...] = ()

    def transact(self, work: Work) -> Committed | None:
        self._answer()
        return super().transact(work)

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        self._answer()
        return super().read(*refs, times=times, fresh=fresh, longest=longest)

    def _answer(self) -> None:
        if threading.current_thread().name.startswith(self.away or "nobody"):
            raise StoreAway("away")


@pytest.mark.parametrize("noun", ["locks", "semaphores"])
def test_what_a_session_is_told_it_has_is_nothing_that_is_given_back(noun: str) -> None:
    """A wait that met an outage was served meanwhile, and is asked for anew by its session."""
    store = AwayForSome()
    terms: dict[str, Any] = {"capacity": 1} if noun == "semaphores" else {}
    with (
        interlock.connect(store=store, agent="ada") as ada,
        interlock.connect(store=store, agent="bob") as bob,
    ):
        had = getattr(bob, noun).acquire("x", **terms)
        shell = interlock.connect(store=store, session=ada.context.identity.actor.session)
        found: list[Any] = []
        waits = threading.Thread(
            target=lambda: found.append(getattr(shell, noun).acquire("x", wait=60)), name="waits"
        )
        waits.start()
        until(lambda: getattr(bob, noun).show("x").waiters)
        store.away = ("waits", "interlock-")
        getattr(bob, noun).release("x", token=had.token)
        until(lambda: shell.context.grants.pending)
        store.away = ("interlock-",)  # the keeper is later than the wait
        waits.join()
        store.away = ()
        assert isinstance(found[0], interlock.Granted)
        until(lambda: not shell.context.grants.pending)
        shown = getattr(bob, noun).show("x")
        holders = [shown.token] if noun == "locks" else [each.token for each in shown.holders]
        assert holders == [found[0].token]
        shell.close()


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        threading.Event().wait(0.01)
