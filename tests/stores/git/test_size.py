"""What a day of five servers leaves at the remote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stores.git.conftest import Opens, Remote

import interlock
from interlock.nouns.tasks.task_outcomes import Claimed
from interlock.store import Put, Txn
from interlock.stores.git import GitStore
from interlock.stores.git.store import folder_size

DAY = 86_400.0
CHANGES = 600
PACES = (30.0, 30.0, 60.0, 60.0, 300.0)
BOUND = 1_000_000
LONG = 10 * DAY
Paces = tuple[float, ...]


class Day:
    """Servers that change the store and beat, by clocks that a test sets."""

    def __init__(self, host: Opens, monkeypatch: pytest.MonkeyPatch, paces: Paces) -> None:
        self.later = 0
        self.paces = paces
        real = time.clock_gettime_ns
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: real(clock) + self.later)
        self.stores = [host(f"s{number}") for number in range(len(paces))]
        self.fleets = [
            interlock.connect(store=store, agent=f"agent{number}", ttl=LONG)
            for number, store in enumerate(self.stores)
        ]
        for number, store in enumerate(self.stores):
            put = self.session(number)
            store.commit(Txn(id=f"txn_{number}", puts=(put,)))
            assert self.beat(number, store)
        self._works = self._changes()

    def run(self, hours: float, changes: int) -> tuple[int, int]:
        """Let so many hours pass; returns the recorded changes and the beats."""
        ends = hours * 3600
        due = [(ends * number / changes, -1) for number in range(1, changes + 1)]
        for number, pace in enumerate(self.paces):
            due += [(at, number) for at in _times(pace, ends)]
        begin, before = self.later, self.stores[0].read().revision
        for at, number in sorted(due):
            self.later = begin + int(at * 1e9)
            if number < 0:
                next(self._works)
            else:
                assert self.beat(number, self.stores[number])
        return self.stores[0].read().revision - before, sum(number >= 0 for _, number in due)

    def beat(self, number: int, store: GitStore) -> bool:
        return bool(store.renew((self.session(number),)))

    def session(self, number: int) -> Put:
        return Put(f"live/server{number}", b"", ttl=3 * self.paces[number])

    def _changes(self) -> Iterator[None]:
        """Each task is three recorded changes, by the servers in turn."""
        number = 0
        while True:
            fleet = self.fleets[number % len(self.fleets)]
            fleet.tasks.publish(f"build.{number}")
            yield
            claimed = fleet.tasks.next()
            assert isinstance(claimed, Claimed)
            yield
            fleet.tasks.complete(claimed.task, token=claimed.token)
            number += 1
            yield


def _times(every: float, ends: float) -> list[float]:
    return [number * every for number in range(1, int(ends / every) + 1)]


def size(remote: Remote) -> int:
    remote.git("repack", "-d", "-l", "-q", "--geometric=2")
    return sum(folder_size(str(Path(remote.path) / part)) for part in ("objects", "refs"))


@pytest.fixture
def day(
    host: Opens, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Day]:
    day = Day(host, monkeypatch, request.param)
    yield day
    for fleet in day.fleets:
        fleet.close()


@pytest.mark.parametrize("day", [(30.0, 60.0)], indirect=True)
def test_a_change_takes_little_at_the_remote_and_a_beat_nothing(remote: Remote, day: Day) -> None:
    before = size(remote)
    changes, beats = day.run(0.05, changes=15)
    assert changes >= 15  # and a few of the agents themselves
    assert beats == 9
    assert size(remote) - before < changes * BOUND / CHANGES
    objects = ""
    while changes:  # until the agents did nothing meanwhile
        objects = remote.git("count-objects", "-v")
        for store in day.stores:
            store._engine.remember("beats", 0)  # type: ignore[attr-defined]
        changes, beats = day.run(0.01, changes=0)
        assert beats == 1
    assert remote.git("count-objects", "-v") == objects


@pytest.mark.proof
@pytest.mark.parametrize("day", [PACES], indirect=True)
def test_a_day_of_five_servers_takes_less_than_a_megabyte(remote: Remote, day: Day) -> None:
    changes, beats = day.run(24, changes=CHANGES)
    assert changes >= CHANGES  # and a few of the agents themselves
    assert beats == sum(DAY / pace for pace in PACES)
    assert size(remote) < BOUND
