"""A waiter may be killed at any step: the next waiter still gets the lock."""

from __future__ import annotations

import time

import pytest
from tests.processes import checks
from tests.processes.helpers import LockWaiters, ProcessGroup, store_times, until

import interlock
from interlock.nouns.grants.lock import LockReleased

STEPS = 11


@pytest.mark.proof_on("etcd")
def test_a_waiter_killed_after_any_step_costs_its_ttl_and_no_more(
    url: str, programs: ProcessGroup
) -> None:
    ttl = store_times(url).at_least(3)
    locks = [f"merge:{step}" for step in range(1, STEPS + 1)]
    with interlock.connect(url, agent="holder") as holder:
        held = [holder.lock(lock).__enter__() for lock in locks]
        doomed = [
            programs.start("die_waiting", url, lock, ttl, step)
            for step, lock in enumerate(locks, 1)
        ]
        # Dead already, or in the queue; who dies later does so when its turn comes.
        for actor, lock in zip(doomed, locks, strict=True):
            until(lambda a=actor, n=lock: not a.alive() or holder.locks.show(n).waiters)  # type: ignore[misc]
        heirs = LockWaiters(url, locks)
        heirs.wait()
        before = time.monotonic()
        for mine in held:
            assert isinstance(mine.release(), interlock.Released)
        came = heirs.came()
        for mine, lock in zip(held, locks, strict=True):
            token, moment = came[lock]
            assert token > mine.token
            assert moment - before < 2 * ttl + 1 + store_times(url).late, (
                "the next waiter reclaims it itself when it expires"
            )
        died = [actor.finished() for actor in doomed].count(False)
        fewest = 5 if holder.store.capabilities.transacts else 8  # it reads less there
        assert died >= fewest, "the steps ran out: make them fewer"
        assert all(holder.locks.show(lock).state == "free" for lock in locks)
    checks.sound(url)


def test_a_waiter_killed_in_the_queue_is_passed_over(url: str, programs: ProcessGroup) -> None:
    ttl = store_times(url).at_least(2)
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge") as held:
            doomed = programs.start("acquire", url, "merge", ttl, ttl)
            until(lambda: holder.locks.show("merge").waiters)
            doomed.kill()
            until(lambda: [a for a in holder.agents.list() if a.state == "lapsed"])
            following = programs.start("acquire", url, "merge", 60, 60)
            until(lambda: len(holder.locks.show("merge").waiters) == 2)
            released = held.release()
        assert isinstance(released, LockReleased)
        assert released.next == f"a{following.pid}", "its liveness was gone, so it is not served"
        assert following.read_line() == "ready"
        following.read_line()
        following.write_line()
        following.finish()


def test_a_waiter_that_is_stopped_past_its_hand_over_does_not_believe_in_it(
    url: str, programs: ProcessGroup
) -> None:
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge"):
            slow = programs.start("acquire", url, "merge", store_times(url).ttl, 30)
            assert slow.read_line() == "ready"
            until(lambda: holder.locks.show("merge").waiters)
            slow.freeze_asleep()
        with holder.lock("merge", wait=60) as mine:
            slow.thaw()
            until(lambda: not slow.alive() or holder.locks.show("merge").waiters)
            mine.check()
            token = mine.token
        # Its session expired (it reports that and ends), or it queued again behind this one.
        if slow.alive() and slow.has_line():
            assert int(slow.read_line().split()[0]) > token


def test_a_waiter_that_is_stopped_with_its_lock_knows_at_once_that_it_is_too_late(
    url: str, programs: ProcessGroup
) -> None:
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge"):
            late = programs.start("stop_with_the_lock", url, store_times(url).ttl)
            until(lambda: holder.locks.show("merge").waiters)
            began = time.monotonic()
            until(lambda: time.monotonic() > began + 0.1)  # a wait that is worth a second look
        late.frozen()
        with holder.lock("merge", wait=60) as mine:
            assert isinstance(mine.outcome, interlock.Reclaimed)
            late.thaw()
            until(lambda: holder.locks.show("merge").waiters)  # not inside, but in the queue again
            mine.check()
            assert not late.has_line()
        assert late.remaining_lines() == ["inside"]
