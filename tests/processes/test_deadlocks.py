"""Deadlocks on real engines: threads and processes that really wait for each other.

A refusal comes at once, not with the next nap of a waiter, and to one of them only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

import interlock
from interlock.core import keys
from interlock.core.outcomes import Acquired, Deadlock
from interlock.nouns.grants import pool_wait
from interlock.nouns.tasks import claim_service
from interlock.store import Range

PATIENCE = 30


@pytest.fixture
def fast_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter never polls for changes."""
    for nap in ("_SLEEP", "_LONGEST_SLEEP"):
        monkeypatch.setattr(pool_wait, nap, 600.0)
    monkeypatch.setattr(claim_service, "_NAP", 600.0)


def together(*works: Callable[[], object]) -> list[object]:
    """Each in a thread of its own; what they return."""
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:  # noqa: BLE001 - reported below
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


@pytest.mark.usefixtures("fast_asleep")
@pytest.mark.parametrize("size", [2, 3])
def test_a_circle_is_refused_at_once_and_to_one_only(url: str, size: int) -> None:
    fleets = [interlock.connect(url, agent=f"a{number}") for number in range(size)]
    ready = threading.Barrier(size)

    def go_round(number: int) -> list[type]:
        locks, outcomes = fleets[number].locks, []
        for turn in range(8):
            own, other = f"{turn}-{number}", f"{turn}-{(number + 1) % size}"
            locks.acquire(own)
            ready.wait(PATIENCE)
            outcome = locks.acquire(other, wait=PATIENCE)
            if not isinstance(outcome, Deadlock):
                locks.release(other)
            locks.release(own)
            outcomes.append(type(outcome))
            ready.wait(PATIENCE)
        return outcomes

    found = together(*[lambda n=number: go_round(n) for number in range(size)])
    for turn in zip(*found, strict=True):
        assert sum(issubclass(each, Deadlock) for each in turn) == 1
        assert sum(issubclass(each, Acquired) for each in turn) == size - 1
    assert listed(fleets[0]) == 0
    for fleet in fleets:
        fleet.close()


@pytest.mark.usefixtures("fast_asleep")
def test_a_circle_over_a_lock_and_a_blocked_task_is_refused_at_once(url: str) -> None:
    """Ada works on what the task needs that bob waits for, while he has a lock that she wants."""
    with (
        interlock.connect(url, agent="ada") as ada,
        interlock.connect(url, agent="bob") as bob,
    ):
        both = threading.Barrier(2)
        ada.tasks.publish("build")
        ada.tasks.publish("deploy", needs=["build"])

        def build() -> object:
            claimed = ada.tasks.claim("build")
            both.wait(PATIENCE)
            outcome = ada.locks.acquire("site", wait=PATIENCE)
            ada.tasks.complete("build", token=getattr(claimed, "token", None))
            return outcome

        def deploy() -> object:
            bob.locks.acquire("site")
            both.wait(PATIENCE)
            outcome = bob.tasks.claim("deploy", wait=PATIENCE)
            bob.locks.release("site")
            return outcome

        found = together(build, deploy)
        assert [isinstance(each, Deadlock) for each in found].count(True) == 1, found
        assert [isinstance(each, Acquired) for each in found].count(True) == 1, found
        assert listed(ada) == 0


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

        found = together(*[lambda n=number: program(n) for number in range(5)])
        assert sum(found) > 0, "they do get into each other's way"  # type: ignore[arg-type]
        assert listed(ada) == 0
