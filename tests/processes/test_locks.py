"""One holder, and tokens that only grow, whatever happens to the processes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import apsw
import pytest
from tests.processes import judge
from tests.processes.helpers import Actor, Cast, until

import interlock

TTL = 0.5


def test_eight_processes_share_one_lock_fairly_and_never_overlap(
    path: str, tmp_path: Path, cast: Cast
) -> None:
    interlock.connect(path).close()
    ends = time.monotonic() + 4
    fighters = [
        cast.start("fight", path, tmp_path / f"notes{n}", "merge", "5,0", ends) for n in range(8)
    ]
    for fighter in fighters:
        assert fighter.hear() == "ready"
    for fighter in fighters:
        assert fighter.rest() == ["over"]
    books = judge.notes(str(tmp_path / "notes*"))
    shares = judge.one_holder(books)
    assert len(shares) == 8
    assert min(shares.values()) >= sum(shares.values()) / 8 / 2, shares
    judge.nothing_lost(path, books)
    judge.sound(path)


def chaos(
    cast: Cast, path: str, tmp_path: Path, *, seconds: float, fighters: int, seed: int, freeze: bool
) -> dict[str, list[judge.Note]]:
    """Processes fight while some are killed, and some are stopped for longer than their ttl."""
    dice = random.Random(seed)
    interlock.connect(path).close()
    ends = time.monotonic() + seconds
    number = 0

    def start() -> Actor:
        nonlocal number
        number += 1
        file = tmp_path / f"notes{number}"
        return cast.start("fight", path, file, "merge,deploy", f"{TTL},0.02", ends)

    alive = [start() for _ in range(fighters)]
    for actor in alive:
        assert actor.hear() == "ready"
    while time.monotonic() < ends - 1:
        victim = dice.randrange(fighters)
        if freeze and dice.random() < 0.6:
            actor = alive[victim]
            actor.freeze()
            time.sleep(TTL * dice.choice((0.5, 1.2, 1.8)))  # the length of the stop is the test
            actor.thaw()
        else:
            alive[victim].kill()
            alive[victim] = start()
            assert alive[victim].hear() == "ready"
        time.sleep(dice.random() * 0.6)  # likewise: a random moment
    for actor in alive:
        assert actor.rest() == ["over"]
    return judge.notes(str(tmp_path / "notes*"))


@pytest.mark.parametrize("freeze", [False, True], ids=["killed", "killed and stopped"])
def test_random_kills_and_stops_break_no_promise(
    path: str, tmp_path: Path, cast: Cast, *, freeze: bool
) -> None:
    books = chaos(cast, path, tmp_path, seconds=6, fighters=5, seed=3, freeze=freeze)
    shares = judge.one_holder(books)
    assert len(shares) >= 5
    assert sum(shares.values()) > 20
    judge.nothing_lost(path, books)
    judge.sound(path)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5))
def test_long_chaos_breaks_no_promise(path: str, tmp_path: Path, cast: Cast, seed: int) -> None:
    books = chaos(cast, path, tmp_path, seconds=60, fighters=8, seed=seed, freeze=True)
    shares = judge.one_holder(books)
    assert sum(shares.values()) > 500
    judge.nothing_lost(path, books)
    judge.sound(path)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("locks", [1, 10])
def test_fifty_processes_share_one_file_without_errors_or_starvation(
    path: str, cast: Cast, locks: int
) -> None:
    interlock.connect(path).close()
    actors = [cast.start("join", path, locks, 60) for _ in range(50)]
    for actor in actors:
        assert actor.hear(120) == "ready"
    for actor in actors:
        actor.tell()
    shares = [int(actor.hear(180)) for actor in actors]
    for actor in actors:
        actor.finish(120)
    assert min(shares) >= sum(shares) / len(shares) / 2, sorted(shares)
    assert judge.sound(path) >= 2 * sum(shares)


@pytest.mark.parametrize("ttl", [0.5, 1.0])
def test_a_lock_moves_on_when_its_holder_is_killed(path: str, cast: Cast, ttl: float) -> None:
    holder = cast.start("acquire", path, "merge", ttl, 30)
    assert holder.hear() == "ready"
    token = int(holder.hear().split()[0])
    waiter = cast.start("acquire", path, "merge", ttl, 30)
    assert waiter.hear() == "ready"
    with interlock.connect(path) as fleet:
        until(lambda: fleet.locks.show("merge").waiters)
        holder.kill()
        killed = time.monotonic()
        later, moment = waiter.hear().split()
        assert int(later) > token
        assert float(moment) - killed < ttl + 3, "its ttl and about a second"
        waiter.tell()
        waiter.finish()
        assert fleet.locks.show("merge").state == "free"


def test_whatever_a_zombie_tries_is_refused(path: str, cast: Cast) -> None:
    zombie = cast.start("zombie", path, 0.5)
    old = int(zombie.hear())
    zombie.freeze()
    with interlock.connect(path, agent="heir") as fleet, fleet.lock("merge", wait=20) as held:
        assert isinstance(held.outcome, interlock.Reclaimed)
        assert held.token > old
        zombie.tell()
        zombie.thaw()
        assert zombie.rest() == [
            "lost True",
            "beat Fenced",
            "commit Fenced",
            "release Fenced",
            "check Lost",
        ]
        held.check()
        shown = fleet.locks.show("merge")
        assert (shown.holder, shown.token) == ("heir", held.token)
        assert fleet.locks.show("other").state == "free"


@pytest.mark.parametrize("way", ["blocking", "interrupt", "async"])
def test_a_holder_that_cannot_renew_stops_before_anybody_else_begins(
    path: str, cast: Cast, way: str
) -> None:
    holder = cast.start("hold", path, 1.0, way)
    token = int(holder.hear().split()[1])
    waiter = cast.start("acquire", path, "merge", 1.0, 30)
    assert waiter.hear() == "ready"
    with interlock.connect(path) as fleet:
        until(lambda: fleet.locks.show("merge").waiters)
    stuck = cast.start("stop_inside", path)
    stuck.frozen()
    word, moment = holder.hear().split()
    assert word == "stopped"
    stuck.thaw()
    later, began = waiter.hear().split()
    assert int(later) > token
    assert float(moment) < float(began)
    assert holder.hear() == "raised Lost"
    holder.finish()
    waiter.tell()
    waiter.finish()


def test_the_record_of_a_fight_names_every_holder_once(path: str, cast: Cast) -> None:
    actors = [cast.start("acquire", path, "merge", 5, 30) for _ in range(5)]
    for actor in actors:
        assert actor.hear() == "ready"
    tokens = []
    for _ in range(5):
        found = until(lambda: [a for a in actors if a.said()])
        tokens.append(int(found[0].hear().split()[0]))
        found[0].tell()
        found[0].finish()
        actors.remove(found[0])
    assert tokens == sorted(tokens)
    grants = [
        revision
        for revision, entry in judge.read_log(path).items()
        if any(event.name == "lock:acquired" for event in entry.events)
    ]
    assert grants == tokens


def test_two_stores_on_one_file_see_the_same_order(path: str) -> None:
    with interlock.connect(path, agent="a") as one, interlock.connect(path, agent="b") as two:
        tokens = []
        for fleet in (one, two) * 20:
            outcome = fleet.locks.acquire("merge")
            assert isinstance(outcome, interlock.Acquired)
            tokens.append(outcome.token or 0)
            fleet.locks.release("merge", token=outcome.token)
        assert tokens == sorted(set(tokens))
    db = apsw.Connection(path)
    assert db.execute("SELECT count(*) FROM item WHERE key LIKE 'locks/%'").fetchall() == [(0,)]
    db.close()
