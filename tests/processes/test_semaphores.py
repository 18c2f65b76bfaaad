"""Slots and several things at once, however the processes fail that want them."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.processes import checks
from tests.processes.helpers import Process, ProcessGroup, fewer, store_times, until
from tests.processes.test_locks import begin

import interlock
from interlock.nouns.grants.semaphore import SemaphoreView

CAPACITY = 5
STEPS = 12


SEVERAL = "lock/a{0}+lock/b{0}+sem/s{0}=3"


@pytest.fixture
def builds(url: str) -> str:
    """A store with a semaphore."""
    with interlock.connect(url, agent="admin") as fleet:
        fleet.semaphores.resize("builds", CAPACITY)
    return url


def test_eight_processes_share_slots_and_the_big_ones_are_served(
    builds: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    sizes = ["1", "1", "1", "2", "2", "1,2", "4", "5"]
    fighters = [
        programs.start("share", builds, tmp_path / f"notes{n}", size, "5,5,0.005")
        for n, size in enumerate(sizes)
    ]
    begin(fighters, 2)
    for fighter in fighters:
        assert fighter.remaining_lines() == ["over"]
    books = checks.notes(str(tmp_path / "notes*"))
    assert len(checks.never_above(books, CAPACITY)) == 8
    checks.in_turn(books)
    checks.sound(builds)


def chaos(
    programs: ProcessGroup, url: str, tmp_path: Path, *, seconds: float, seed: int
) -> Counter[int]:
    """Processes want slots while some are killed, and some stopped for longer than their ttl."""
    dice = random.Random(seed)
    ttl = store_times(url).ttl
    numbers = iter(range(1000))

    def start() -> Process:
        notes = tmp_path / f"notes{next(numbers)}"
        its_terms = f"{2 * ttl},{ttl},0.02"
        return programs.start("through_trouble", "share", url, notes, "1,2,3,5", its_terms)

    alive = [start() for _ in range(8)]
    ends = begin(alive, seconds)
    while time.monotonic() < ends - 1:
        victim = dice.randrange(len(alive))
        if dice.random() < 0.5:
            alive[victim].freeze()
            time.sleep(ttl * dice.choice((0.5, 1.2, 1.8)))  # the length of the stop is the test
            alive[victim].thaw()
        else:
            alive[victim].kill()
            alive[victim] = start()
            begin([alive[victim]], ends - time.monotonic())
        time.sleep(dice.random() * 0.6)  # a random moment
    for actor in alive:
        assert actor.remaining_lines() == ["over"]
    shares = checks.never_above(checks.notes(str(tmp_path / "notes*")), CAPACITY)
    checks.sound(url)
    return sum(shares.values(), start=Counter[int]())


@pytest.mark.proof_on("etcd")
def test_kills_and_stops_never_lead_to_more_than_there_is(
    builds: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    seconds = 2 + 2 * store_times(builds).ttl
    assert chaos(programs, builds, tmp_path, seconds=seconds, seed=3).total() > 10


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_long_chaos_never_leads_to_more_than_there_is(
    builds: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    sizes = chaos(programs, builds, tmp_path, seconds=60, seed=4)
    assert set(sizes) == {1, 2, 3, 5}, "every size is served"
    assert sizes.total() > fewer(builds, 300)


@pytest.mark.proof_on("etcd")
def test_a_queue_whose_holders_are_all_killed_is_served_within_their_ttl(
    builds: str, programs: ProcessGroup
) -> None:
    ttl, late = store_times(builds).at_least(3), store_times(builds).late
    holders = [programs.start("wait_together", builds, ttl, "sem/builds") for _ in range(CAPACITY)]
    for holder in holders:
        assert holder.read_line() == "ready"
        holder.read_line()
    waiters = [programs.start("wait_together", builds, 60, "sem/builds=2") for _ in range(2)]
    with interlock.connect(builds) as fleet:
        until(lambda: len(slots(fleet).waiters) == 2)
        for holder in holders:
            holder.kill()
        killed = time.monotonic()
        for waiter in waiters:
            assert waiter.read_line() == "ready"
            assert float(waiter.read_line().split()[1]) - killed < ttl + late
            waiter.write_line()
            waiter.finish()
        until(lambda: fleet.maintain().left == 0 and slots(fleet).available == CAPACITY)
    checks.sound(builds)


def slots(fleet: interlock.Fleet, name: str = "builds") -> SemaphoreView:
    shown = fleet.semaphores.show(name)
    assert isinstance(shown, SemaphoreView)
    return shown


@pytest.mark.proof_on("etcd")
@pytest.mark.parametrize(
    ("url", "things"),
    [("sqlite", "sem/s{0}=3"), *((e, SEVERAL) for e in ("sqlite", "redis", "etcd"))],
    indirect=["url"],
)
def test_whoever_is_killed_after_any_step_leaves_all_or_nothing_and_then_nothing(
    url: str, programs: ProcessGroup, things: str
) -> None:
    ttl = store_times(url).at_least(3)
    steps = range(1, STEPS + 1)
    with interlock.connect(url, agent="holder") as holder:
        held = [holder.slots(f"s{step}", weight=1, capacity=3).__enter__() for step in steps]
        doomed = [programs.start("die_waiting", url, things.format(n), ttl, n) for n in steps]
        for step, actor in zip(steps, doomed, strict=True):
            until(lambda a=actor, n=step: not a.alive() or slots(holder, f"s{n}").waiters)  # type: ignore[misc]
        released = time.monotonic()
        for mine in held:
            assert isinstance(mine.release(), interlock.Released)
        assert [actor.finished() for actor in doomed].count(False) >= 5, "make the steps fewer"
        for step in steps:
            names = things.format(step).split("+")
            with holder.together(*names, wait=60):
                assert time.monotonic() - released < 2 * ttl + 1 + store_times(url).late
            assert slots(holder, f"s{step}").available == 3
        assert holder.locks.list() == (), "no process has a part of it"
    checks.sound(url)
