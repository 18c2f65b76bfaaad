"""Killed at random moments, over and over: the store opens, is whole, and forgets nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.processes import judge
from tests.processes.helpers import Cast

import interlock


def test_fifty_kills_at_random_moments_lose_nothing(path: str, tmp_path: Path, cast: Cast) -> None:
    interlock.connect(path).close()
    dice = random.Random(11)
    entries = 0
    for number in range(10):
        crowd = [cast.start("busy", path, tmp_path / f"notes{number}.{n}") for n in range(5)]
        for actor in crowd:
            assert actor.hear() == "ready"
        for actor in crowd:
            time.sleep(dice.random() * 0.04)  # the random moment
            actor.kill()
        with interlock.connect(path, agent="after") as fleet:
            outcome = fleet.locks.acquire("n0", wait=20)
            assert isinstance(outcome, interlock.Acquired | interlock.Reclaimed)
            fleet.locks.release("n0", token=outcome.token)
        found = judge.sound(path)
        assert found > entries
        entries = found
    books = judge.notes(str(tmp_path / "notes*"))
    assert len(books) == 50
    judge.one_holder(books)
    judge.nothing_lost(path, books)
    assert sum(len(book) for book in books.values()) > 200
