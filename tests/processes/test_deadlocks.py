"""Deadlocks on real engines: threads and processes that really wait for each other.

A refusal comes at once, not with the next nap of a waiter, and to one of them only.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

import interlock
from interlock.core import keys
from interlock.core.answers import Acquired, Deadlock
from interlock.store import Range

PATIENCE = 30
NAP = 1.0
"""What the look of a waiter that sleeps would take: a refusal at once is well below."""


def together(*works: Callable[[], object]) -> list[object]:
    """Each in a thread of its own; what they return."""
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:  # noqa: BLE001 - told below
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [each for each in results if isinstance(each, BaseException)], results
    return results


def listed(fleet: interlock.client.Fleet) -> int:
    waits = Range(keys.WAITS)
    return len(fleet.store.read(waits).ranges[waits])


@pytest.mark.parametrize("size", [2, 3])
def test_a_circle_is_refused_at_once_and_to_one_only(url: str, size: int) -> None:
    fleets = [interlock.connect(url, agent=f"a{number}") for number in range(size)]
    ready, late = threading.Barrier(size), list[float]()

    def go_round(number: int) -> list[type]:
        locks, outcomes = fleets[number].locks, []
        for turn in range(8):
            own, other = f"{turn}-{number}", f"{turn}-{(number + 1) % size}"
            locks.acquire(own)
            ready.wait(PATIENCE)
            began = time.monotonic()
            outcome = locks.acquire(other, wait=PATIENCE)
            if isinstance(outcome, Deadlock):
                late.append(time.monotonic() - began)
            else:
                locks.release(other)
            locks.release(own)
            outcomes.append(type(outcome))
            ready.wait(PATIENCE)
        return outcomes

    found = together(*[lambda n=number: go_round(n) for number in range(size)])
    for turn in zip(*found, strict=True):
        assert sum(issubclass(each, Deadlock) for each in turn) == 1
        assert sum(issubclass(each, Acquired) for each in turn) == size - 1
    print(f"{url[:6]} {size}: p50 {statistics.median(late):.3f} max {max(late):.3f}")  # noqa: T201
    assert statistics.median(late) < NAP / 2
    assert listed(fleets[0]) == 0
    for fleet in fleets:
        fleet.close()


def test_random_programs_in_threads_all_come_to_their_end(url: str) -> None:
    things = ["lock/a", "lock/b", "sem/s", "sem/s=2", "sem/t=2"]
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        ada.semaphores.resize("s", 2)
        ada.semaphores.resize("t", 3)

        def program(seed: int) -> int:
            random, refused = Random(seed), 0
            fleet = random.choice([ada, bob])
            for _ in range(6):
                held: list[tuple[list[str], int]] = []
                for _ in range(random.randint(1, 3)):
                    some = random.sample(things[:3], random.randint(1, 2))
                    some = some if random.random() < 0.6 else [random.choice(things)]
                    outcome = fleet.several.acquire(*some, wait=PATIENCE)
                    if isinstance(outcome, Deadlock):
                        refused += 1
                        break
                    assert isinstance(outcome, Acquired), outcome
                    held.append(([each.partition("=")[0] for each in some], outcome.token or 0))
                for names, token in held:
                    fleet.several.release(*names, token=token)
            return refused

        began = time.monotonic()
        found = together(*[lambda n=number: program(n) for number in range(5)])
        assert time.monotonic() - began < PATIENCE, "nobody waited for its patience to end"
        assert sum(found) > 0, "they do get into each other's way"  # type: ignore[arg-type]
        assert listed(ada) == 0
