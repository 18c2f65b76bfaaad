"""A waiter may be killed at any step: whoever comes behind it gets the lock all the same."""

from __future__ import annotations

import time

from tests.processes import judge
from tests.processes.helpers import Cast, Heirs, terms, until

import interlock
from interlock.nouns.grants.lock import LockReleased

STEPS = 11


def test_a_waiter_killed_after_any_step_costs_its_ttl_and_no_more(url: str, cast: Cast) -> None:
    ttl = terms(url).at_least(3)
    locks = [f"merge:{step}" for step in range(1, STEPS + 1)]
    with interlock.connect(url, agent="holder") as holder:
        held = [holder.lock(lock).__enter__() for lock in locks]
        doomed = [
            cast.start("die_waiting", url, lock, ttl, step) for step, lock in enumerate(locks, 1)
        ]
        # Dead already, or in the queue; who dies later does so when its turn comes.
        for actor, lock in zip(doomed, locks, strict=True):
            until(lambda a=actor, n=lock: not a.alive() or holder.locks.show(n).waiters)  # type: ignore[misc]
        heirs = Heirs(url, locks)
        heirs.wait()
        before = time.monotonic()
        for mine in held:
            assert isinstance(mine.release(), interlock.Released)
        came = heirs.came()
        for mine, lock in zip(held, locks, strict=True):
            token, moment = came[lock]
            assert token > mine.token
            assert moment - before < 2 * ttl + 1 + terms(url).late, (
                "what lapses is passed on, by the heir itself"
            )
        died = [actor.finished() for actor in doomed].count(False)
        assert died >= 8, "the steps ran out: make them fewer"
        assert all(holder.locks.show(lock).state == "free" for lock in locks)
    judge.sound(url)


def test_a_waiter_killed_in_the_queue_is_passed_over(url: str, cast: Cast) -> None:
    ttl = terms(url).at_least(2)
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge") as held:
            doomed = cast.start("acquire", url, "merge", ttl, ttl)
            until(lambda: holder.locks.show("merge").waiters)
            doomed.kill()
            until(lambda: [a for a in holder.agents.list() if a.state == "lapsed"])
            heir = cast.start("acquire", url, "merge", 60, 60)
            until(lambda: len(holder.locks.show("merge").waiters) == 2)
            released = held.release()
        assert isinstance(released, LockReleased)
        assert released.next == f"a{heir.pid}", "its liveness was gone, so it is not served"
        assert heir.hear() == "ready"
        heir.hear()
        heir.tell()
        heir.finish()


def test_a_waiter_that_is_stopped_past_its_hand_over_does_not_believe_in_it(
    url: str, cast: Cast
) -> None:
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge"):
            slow = cast.start("acquire", url, "merge", terms(url).ttl, 30)
            assert slow.hear() == "ready"
            until(lambda: holder.locks.show("merge").waiters)
            slow.freeze_asleep()
        with holder.lock("merge", wait=60) as mine:
            slow.thaw()
            until(lambda: not slow.alive() or holder.locks.show("merge").waiters)
            mine.check()
            token = mine.token
        # Its session lapsed (it says so and ends), or it queued again and came after us.
        if slow.alive() and slow.said():
            assert int(slow.hear().split()[0]) > token


def test_a_waiter_that_is_stopped_with_its_lock_knows_at_once_that_it_is_too_late(
    url: str, cast: Cast
) -> None:
    with interlock.connect(url, agent="holder") as holder:
        with holder.lock("merge"):
            late = cast.start("stop_with_the_lock", url, terms(url).ttl)
            until(lambda: holder.locks.show("merge").waiters)
            began = time.monotonic()
            until(lambda: time.monotonic() > began + 0.1)  # a wait that is worth a second look
        late.frozen()
        with holder.lock("merge", wait=60) as mine:
            assert isinstance(mine.outcome, interlock.Reclaimed)
            late.thaw()
            until(lambda: holder.locks.show("merge").waiters)  # not inside, but in the queue again
            mine.check()
            assert not late.said()
        assert late.rest() == ["inside"]
