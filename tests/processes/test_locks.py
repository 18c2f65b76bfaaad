"""One holder, and tokens that only grow, whatever happens to the processes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.processes import judge
from tests.processes.helpers import Actor, Cast, terms, until

import interlock
from interlock.core import keys
from interlock.store import Range


def test_eight_processes_share_one_lock_fairly_and_never_overlap(
    url: str, tmp_path: Path, cast: Cast
) -> None:
    fighters = [
        cast.start("fight", url, tmp_path / f"notes{n}", "merge", "5,5,0") for n in range(8)
    ]
    begin(fighters, 1.5)
    for fighter in fighters:
        assert fighter.rest() == ["over"]
    books = judge.notes(str(tmp_path / "notes*"))
    assert len(judge.one_holder(books)) == 8
    judge.in_turn(books)
    judge.nothing_lost(url, books)
    judge.sound(url)


def begin(fighters: Sequence[Actor], seconds: float) -> float:
    """Let them fight for so long; returns the moment at which they end."""
    for fighter in fighters:
        assert fighter.hear() == "ready"
    ends = time.monotonic() + seconds
    for fighter in fighters:
        fighter.tell(str(ends))
    return ends


def chaos(
    cast: Cast, url: str, tmp_path: Path, *, seconds: float, fighters: int, seed: int
) -> dict[str, list[judge.Note]]:
    """Processes fight while some are killed, and some are stopped for longer than their ttl."""
    dice = random.Random(seed)
    ttl = terms(url).ttl
    its_terms = f"{2 * ttl},{ttl},0.02"
    number = 0

    def start() -> Actor:
        nonlocal number
        number += 1
        file = tmp_path / f"notes{number}"
        # Who was stopped cannot know who of the two was silent, and may say that the engine was.
        return cast.start("through_trouble", "fight", url, file, "merge,deploy", its_terms)

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
        time.sleep(dice.random() * 0.6)  # likewise: a random moment
    for actor in alive:
        assert actor.rest() == ["over"]
    return judge.notes(str(tmp_path / "notes*"))


def test_random_kills_and_stops_break_no_promise(url: str, tmp_path: Path, cast: Cast) -> None:
    seconds = 2 + 2 * terms(url).ttl
    books = chaos(cast, url, tmp_path, seconds=seconds, fighters=5, seed=3)
    shares = judge.one_holder(books)
    assert len(shares) >= 3
    assert sum(shares.values()) > 10
    judge.tokens_grow(books)
    judge.nothing_lost(url, books)
    judge.sound(url)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2))
def test_long_chaos_breaks_no_promise(url: str, tmp_path: Path, cast: Cast, seed: int) -> None:
    books = chaos(cast, url, tmp_path, seconds=60, fighters=8, seed=seed)
    shares = judge.one_holder(books)
    assert sum(shares.values()) > 500
    judge.tokens_grow(books)
    judge.nothing_lost(url, books)
    judge.sound(url)


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("locks", [1, 10])
def test_fifty_processes_share_one_store_without_errors_or_starvation(
    url: str, cast: Cast, locks: int
) -> None:
    interlock.connect(url).close()
    actors = [cast.start("join", url, locks, 60) for _ in range(50)]
    for actor in actors:
        assert actor.hear(120) == "ready"
    for actor in actors:
        actor.tell()
    shares = [int(actor.hear(180)) for actor in actors]
    for actor in actors:
        actor.finish(120)
    assert min(shares) >= sum(shares) / len(shares) / 2, sorted(shares)
    assert judge.sound(url) >= 2 * sum(shares)


def test_a_lock_moves_on_when_its_holder_is_killed(url: str, cast: Cast) -> None:
    ttl, late = terms(url).at_least(2), terms(url).late
    holder = cast.start("acquire", url, "merge", ttl, 30)
    assert holder.hear() == "ready"
    token = int(holder.hear().split()[0])
    waiter = cast.start("acquire", url, "merge", ttl, 30)
    assert waiter.hear() == "ready"
    with interlock.connect(url) as fleet:
        until(lambda: fleet.locks.show("merge").waiters)
        holder.kill()
        killed = time.monotonic()
        later, moment = waiter.hear().split()
        assert int(later) > token
        assert float(moment) - killed < ttl + late, (
            "its ttl and a little, not the ttl of its session"
        )
        waiter.tell()
        waiter.finish()
        assert fleet.locks.show("merge").state == "free"


def test_whatever_a_zombie_tries_is_refused(url: str, cast: Cast) -> None:
    zombie = cast.start("zombie", url, terms(url).at_least(2))
    old = int(zombie.hear())
    zombie.freeze()
    with interlock.connect(url, agent="heir") as fleet, fleet.lock("merge", wait=60) as held:
        assert isinstance(held.outcome, interlock.Reclaimed)
        assert held.token > old
        zombie.tell()
        zombie.thaw()
        assert zombie.rest() == [
            "lost True",
            "beat LockFenced",
            "commit LockFenced",
            "release LockFenced",
            "check Lost",
        ]
        held.check()
        shown = fleet.locks.show("merge")
        assert (shown.holder, shown.token) == ("heir", held.token)
        assert fleet.locks.show("other").state == "free"


def test_the_record_of_a_fight_names_every_holder_once(url: str, cast: Cast) -> None:
    actors = [cast.start("acquire", url, "merge", 5, 30) for _ in range(5)]
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
        for revision, entry in judge.read_log(url).items()
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
    url: str, tmp_path: Path, cast: Cast
) -> None:
    ttl, late = 6.0, terms(url).late
    slow = cast.start("askew", -30, "acquire", url, "deploy", ttl, 3 * ttl)
    assert slow.hear() == "ready"
    token = int(slow.hear().split()[0])
    fast = cast.start("askew", 30, "acquire", url, "deploy", ttl, 3 * ttl)
    assert fast.hear() == "ready"
    fighters = [
        cast.start(
            "askew", clock, "fight", url, tmp_path / f"notes{clock}", "merge", f"5,{ttl},0.01"
        )
        for clock in (-30, 0, 30)
    ]
    begin(fighters, 1)
    with interlock.connect(url) as fleet:
        renewed(fleet, "deploy")
        shown = fleet.locks.show("deploy")
    for fighter in fighters:
        assert fighter.rest() == ["over"]
    assert (shown.state, shown.token, len(shown.waiters)) == ("held", token, 1)
    assert not fast.said()
    slow.tell()
    given = time.monotonic()
    slow.finish()
    later, moment = fast.hear().split()
    assert int(later) > token
    assert float(moment) - given < late
    fast.tell()
    fast.finish()
    books = judge.notes(str(tmp_path / "notes*"))
    assert len(judge.one_holder(books)) == 3
    judge.tokens_grow(books)
    judge.nothing_lost(url, books)
    judge.sound(url)
    times = [entry.at for entry in judge.read_log(url).values()]
    assert times != sorted(times), "the record is in the order in which it happened all the same"
