"""Sealing by real processes: together, and killed between any two steps."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from tests.nouns.record.sealed import Row, fill, log, mark, segments, whole
from tests.processes.helpers import ProcessGroup, until

from interlock.store import Store
from interlock.stores import is_git, open_store


@pytest.fixture
def sealers() -> Iterator[ProcessGroup]:
    with ProcessGroup("tests.processes.seal_programs") as everybody:
        yield everybody


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened


@pytest.mark.proof_on("etcd")
def test_four_processes_write_and_seal_and_the_log_stays_small(
    url: str, store: Store, sealers: ProcessGroup
) -> None:
    each = 40 if is_git(url) else 100
    crowd = [sealers.start("writes", url, each) for _ in range(4)]
    for actor in crowd:
        assert actor.read_line() == "ready"
    for actor in crowd:
        actor.write_line()
    said = [tuple(map(int, line.split())) for actor in crowd for line in actor.remaining_lines()]
    found = [row[0] for row in whole(store)]
    written = [revision for revision, _ in said]
    assert len(written) == 4 * each
    assert set(written) <= set(found), "acknowledged, and neither in the log nor in a segment"
    assert len(found) == len(written) + sum(row[2].count(b'"record.') for row in whole(store))
    assert max(entries for _, entries in said) <= 10 + 4 * 40, "four who seal after twenty each"
    assert mark(store).entries + store.extent().entries >= len(found)


def test_whoever_is_killed_between_two_steps_leaves_a_whole_record(
    url: str, store: Store, sealers: ProcessGroup
) -> None:
    before: list[Row] = []
    for steps in range(20):
        fill(store, 20)
        before = whole(store)
        actor = sealers.start("dies", url, steps)
        over = actor.finished()
        assert whole(store)[: len(before)] == before
        if over:
            break
    else:
        raise AssertionError("a pass has no more than twenty steps")
    assert steps > 6
    assert store.extent().entries <= 12
    rows = log(store)
    assert rows[0][0] > mark(store).revision, "what is sealed is trimmed in the end"


@pytest.mark.proof_on("etcd")
def test_four_sealers_killed_at_random_moments_seal_everything_once(
    url: str, store: Store, sealers: ProcessGroup
) -> None:
    dice = random.Random(5)
    for _ in range(3):
        crowd = [sealers.start("seals", url) for _ in range(4)]
        for actor in crowd:
            assert actor.read_line() == "ready"
        for actor in crowd:
            fill(store, 30)
            before = until(lambda: steady(store))
            time.sleep(dice.random() * 0.02)  # the random moment
            actor.kill()
            assert until(lambda: steady(store))[: len(before)] == before
    assert len(segments(store)) > 3


def steady(store: Store) -> list[Row]:
    """The record; nothing if it was sealed while it was read."""
    before, found = mark(store), list[Row]()
    with suppress(AssertionError):
        found = whole(store)
    return found if mark(store) == before else []
