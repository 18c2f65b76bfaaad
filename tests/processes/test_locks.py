"""One holder, and tokens that only grow, however processes fail."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conftest import without_git
from tests.processes import checks
from tests.processes.helpers import Process, ProcessGroup, fewer, store_times, until

import interlock
from interlock.core import keys
from interlock.store import Range


def test_eight_processes_share_one_lock_fairly_and_never_overlap(
    url: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    fighters = [
        programs.start("fight", url, tmp_path / f"notes{n}", "merge", "5,5,0") for n in range(8)
    ]
    begin(fighters, 1.5)
    for fighter in fighters:
        assert fighter.remaining_lines() == ["over"]
    books = checks.notes(str(tmp_path / "notes*"))
    assert len(checks.one_holder(books)) == 8
    checks.in_turn(books)
    checks.nothing_lost(url, books)
    checks.sound(url)


def begin(fighters: Sequence[Process], seconds: float) -> float:
    """Let them fight for so long; returns the moment at which they end."""
    for fighter in fighters:
        assert fighter.read_line() == "ready"
    ends = time.monotonic() + seconds
    for fighter in fighters:
        fighter.write_line(str(ends))
    return ends


def chaos(
    programs: ProcessGroup, url: str, tmp_path: Path, *, seconds: float, fighters: int, seed: int
) -> dict[str, list[checks.Note]]:
    """Processes fight while some are killed, and some are stopped for longer than their ttl."""
    dice = random.Random(seed)
    ttl = store_times(url).ttl
    its_terms = f"{2 * ttl},{ttl},0.02"
    number = 0

    def start() -> Process:
        nonlocal number
        number += 1
        file = tmp_path / f"notes{number}"
        # Who was stopped cannot know who of the two was silent, and may say that the engine was.
        return programs.start("through_trouble", "fight", url, file, "merge,deploy", its_terms)

    alive = [start() for _ in range(fighters)]
    ends = begin(alive, seconds)
    while time.monotonic() < ends - 1:
        victim = dice.randrange(fighters)
        if dice.random() < 0.6:
            actor = alive[victim]
            actor.freeze()
            time.sleep(ttl * dice.choice((0.5, 1.2, 1.8)))  # the length of the stop is the test
            actor.thaw()
        else:
            alive[victim].kill()
            alive[victim] = start()
            begin([alive[victim]], ends - time.monotonic())
        time.sleep(dice.random() * 0.6)  # a random moment
    for actor in alive:
        assert actor.remaining_lines() == ["over"]
    return checks.notes(str(tmp_path / "notes*"))


@pytest.mark.proof_on("etcd")
def test_random_kills_and_stops_break_no_promise(
    url: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    seconds = 2 + 2 * store_times(url).ttl
    books = chaos(programs, url, tmp_path, seconds=seconds, fighters=5, seed=3)
    shares = checks.one_holder(books)
    assert len(shares) >= 3
    assert sum(shares.values()) > 10
    checks.tokens_grow(books)
    checks.nothing_lost(url, books)
    checks.sound(url)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2))
def test_long_chaos_breaks_no_promise(
    url: str, tmp_path: Path, programs: ProcessGroup, seed: int
) -> None:
    books = chaos(programs, url, tmp_path, seconds=60, fighters=8, seed=seed)
    shares = checks.one_holder(books)
    assert sum(shares.values()) > fewer(url, 500)
    checks.tokens_grow(books)
    checks.nothing_lost(url, books)
    checks.sound(url)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@without_git
@pytest.mark.parametrize("locks", [1, 10])
def test_fifty_processes_share_one_store_without_errors_or_starvation(
    url: str, programs: ProcessGroup, locks: int
) -> None:
    interlock.connect(url).close()
    actors = [programs.start("join", url, locks, 60) for _ in range(50)]
    for actor in actors:
        assert actor.read_line(120) == "ready"
    for actor in actors:
        actor.write_line()
    shares = [int(actor.read_line(180)) for actor in actors]
    for actor in actors:
        actor.finish(120)
    assert min(shares) >= sum(shares) / len(shares) / 2, sorted(shares)
    assert checks.sound(url) >= 2 * sum(shares)


def test_a_lock_moves_on_when_its_holder_is_killed(url: str, programs: ProcessGroup) -> None:
    ttl, late = store_times(url).at_least(2), store_times(url).late
    holder = programs.start("acquire", url, "merge", ttl, 30)
    assert holder.read_line() == "ready"
    token = int(holder.read_line().split()[0])
    waiter = programs.start("acquire", url, "merge", ttl, 30)
    assert waiter.read_line() == "ready"
    with interlock.connect(url) as fleet:
        until(lambda: fleet.locks.show("merge").waiters)
        holder.kill()
        killed = time.monotonic()
        later, moment = waiter.read_line().split()
        assert int(later) > token
        assert float(moment) - killed < ttl + late, (
            "its ttl and a little, not the ttl of its session"
        )
        waiter.write_line()
        waiter.finish()
        assert fleet.locks.show("merge").state == "free"


def test_whatever_a_zombie_tries_is_refused(url: str, programs: ProcessGroup) -> None:
    zombie = programs.start("zombie", url, store_times(url).at_least(2))
    old = int(zombie.read_line())
    zombie.freeze()
    with interlock.connect(url, agent="successor") as fleet, fleet.lock("merge", wait=60) as held:
        assert isinstance(held.outcome, interlock.Reclaimed)
        assert held.token > old
        zombie.write_line()
        zombie.thaw()
        assert zombie.remaining_lines() == [
            "lost True",
            "beat LockFenced",
            "commit LockFenced",
            "release LockFenced",
            "check Lost",
        ]
        held.check()
        shown = fleet.locks.show("merge")
        assert (shown.holder, shown.token) == ("successor", held.token)
        assert fleet.locks.show("other").state == "free"


def test_the_record_of_a_fight_names_every_holder_once(url: str, programs: ProcessGroup) -> None:
    actors = [programs.start("acquire", url, "merge", 5, 30) for _ in range(5)]
    for actor in actors:
        assert actor.read_line() == "ready"
    tokens = []
    for _ in range(5):
        found = until(lambda: [a for a in actors if a.has_line()])
        tokens.append(int(found[0].read_line().split()[0]))
        found[0].write_line()
        found[0].finish()
        actors.remove(found[0])
    assert tokens == sorted(tokens)
    grants = [
        revision
        for revision, entry in checks.read_log(url).items()
        if any(event.name == "lock:acquired" for event in entry.events)
    ]
    assert grants == tokens


def test_two_clients_of_one_store_see_the_same_order(url: str) -> None:
    with interlock.connect(url, agent="a") as one, interlock.connect(url, agent="b") as two:
        tokens = []
        for fleet in (one, two) * 20:
            outcome = fleet.locks.acquire("merge")
            assert isinstance(outcome, interlock.Acquired)
            tokens.append(outcome.token or 0)
            fleet.locks.release("merge", token=outcome.token)
        assert tokens == sorted(set(tokens))
        page = Range(keys.LOCKS)
        assert one.store.read(page).ranges[page] == (), "what is free leaves nothing behind"


def renewed(fleet: interlock.Fleet, lock: str) -> None:
    """Wait for a beat of its holder."""
    least = math.inf

    def rises() -> bool:
        nonlocal least
        left = fleet.locks.show(lock).expires_in or 0.0
        least, before = min(left, least), least
        return left > before

    until(rises)


def test_clocks_that_are_thirty_seconds_apart_neither_lose_nor_steal_a_lock(
    url: str, tmp_path: Path, programs: ProcessGroup
) -> None:
    ttl, late = 6.0, store_times(url).late
    slow = programs.start("askew", -30, "acquire", url, "deploy", ttl, 3 * ttl)
    assert slow.read_line() == "ready"
    token = int(slow.read_line().split()[0])
    fast = programs.start("askew", 30, "acquire", url, "deploy", ttl, 3 * ttl)
    assert fast.read_line() == "ready"
    fighters = [
        programs.start(
            "askew", clock, "fight", url, tmp_path / f"notes{clock}", "merge", f"5,{ttl},0.01"
        )
        for clock in (-30, 0, 30)
    ]
    begin(fighters, 1)
    with interlock.connect(url) as fleet:
        renewed(fleet, "deploy")
        shown = fleet.locks.show("deploy")
    for fighter in fighters:
        assert fighter.remaining_lines() == ["over"]
    assert (shown.state, shown.token, len(shown.waiters)) == ("held", token, 1)
    assert not fast.has_line()
    slow.write_line()
    given = time.monotonic()
    slow.finish()
    later, moment = fast.read_line().split()
    assert int(later) > token
    assert float(moment) - given < late
    fast.write_line()
    fast.finish()
    books = checks.notes(str(tmp_path / "notes*"))
    assert len(checks.one_holder(books)) == 3
    checks.tokens_grow(books)
    checks.nothing_lost(url, books)
    checks.sound(url)
    times = [entry.at for entry in checks.read_log(url).values()]
    assert times != sorted(times), "the record is in the order in which it happened all the same"
