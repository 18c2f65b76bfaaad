"""Killed at random moments, many times: the store opens, is undamaged, and loses nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.processes import checks
from tests.processes.helpers import ProcessGroup, store_times, until

import interlock


def kill(programs: ProcessGroup, url: str, tmp_path: Path, *, rounds: int, seed: int) -> None:
    """Five processes change as much as they can and are killed one after the other, in rounds."""
    ttl = store_times(url).ttl
    dice = random.Random(seed)
    entries = 0
    for number in range(rounds):
        crowd = [
            programs.start("busy", url, tmp_path / f"notes{number}.{n}", ttl) for n in range(5)
        ]
        for actor in crowd:
            assert actor.read_line() == "ready"
        until(lambda n=number: got(tmp_path, n) > 2)  # type: ignore[misc]
        for actor in crowd:
            time.sleep(dice.random() * 0.04)  # the random moment
            actor.kill()
        found = checks.sound(url)
        assert found > entries
        entries = found
    with interlock.connect(url, agent="after") as fleet:
        for lock in fleet.locks.list():
            outcome = fleet.locks.acquire(lock.lock, wait=20)
            assert isinstance(outcome, interlock.Acquired | interlock.Reclaimed)
            fleet.locks.release(lock.lock, token=outcome.token)
    books = checks.notes(str(tmp_path / "notes*"))
    assert len(books) == 5 * rounds
    checks.one_holder(books)
    checks.nothing_lost(url, books)
    assert checks.tokens_grow(books) > 2 * rounds


def got(tmp_path: Path, number: int) -> int:
    """How many locks the processes of a round had so far."""
    return sum(book.read_bytes().count(b"got") for book in tmp_path.glob(f"notes{number}.*"))


@pytest.mark.proof_on("etcd")
def test_kills_at_random_moments_lose_nothing(
    url: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    kill(programs, url, tmp_path, rounds=3, seed=11)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_kills_lose_nothing(
    url: str, tmp_path: Path, programs: ProcessGroup, seed: int
) -> None:
    kill(programs, url, tmp_path, rounds=40, seed=seed)
