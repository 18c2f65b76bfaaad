"""Clients in processes of their own, their steps in any order, on a network that fails.

Each client takes the lock, works for a while, gives it back, and again; its keeper beats beside it.
A schedule says whose step comes next and when time passes; a seed says what fails.  Processes
crash and start again.  Whatever happens, nobody works at the same time as anybody else, tokens
never go back, and when the network has calmed down everybody is served and the log adds up.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget

from interlock.errors import Lapsed, Lost, OutcomeUnknown, StoreAway, StoreBusy, Unavailable
from interlock.nouns.grants.held_grant import HeldPools, take
from interlock.nouns.grants.lock import LockTarget, ReleaseOutcome
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader, decode_pool
from interlock.nouns.grants.pool_wait import Asleep, PoolWait
from interlock.nouns.grants.request import GrantTarget, GrantTerms
from interlock.nouns.grants.semaphore import SlotsTarget
from interlock.nouns.grants.several import target_of
from interlock.runtime.attempt import Draft
from interlock.steps import Op
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash
from interlock.testing.testbed import Client, Stepper, Testbed

CHANCES = Chances(
    conflict=0.05,
    delay=0.05,
    lost_reply=0.08,
    late_arrival=0.08,
    crash_before=0.01,
    crash_after=0.02,
)
TTL = 6.0
ORDINARY = (Lapsed, Lost, OutcomeUnknown, StoreAway, StoreBusy, Unavailable)


class Resource:
    """What the lock protects: it refuses an older token than it has seen."""

    def __init__(self) -> None:
        self.token = 0

    def write(self, token: int) -> None:
        assert token >= self.token, f"token {token} after {self.token}"
        self.token = token


class Worker:
    """A process that works under the lock, again and again, until it has worked enough."""

    def __init__(self, stage: Testbed, name: str, resource: Resource, terms: GrantTerms) -> None:
        self.finished = 0
        self.unheard = 0
        self.chances = CHANCES
        self._stage = stage
        self._name = name
        self._resource = resource
        self._terms = terms
        self._start()

    def _start(self) -> None:
        """A new process: a session of its own, nothing in hand."""
        self.client: Client = self._stage.remote(self._name, ttl=TTL, chances=self.chances)
        self.holding: HeldPools | None = None
        self._taking: Stepper[HeldPools] | None = None
        self._giving: Stepper[ReleaseOutcome] | None = None
        self._beating: Stepper[None] | None = None
        self._work = 0
        settling = self.client.runner.settling
        leave = settling.leave_unsettled

        def counted(draft: Draft) -> None:
            self.unheard += 1
            leave(draft)

        settling.leave_unsettled = counted  # type: ignore[method-assign]

    @property
    def works(self) -> bool:
        """Whether it relies on the lock at this moment."""
        return self.holding is not None and not self.holding.lost()

    def step(self) -> None:
        """One step of its keeper, if it is due, and one of its work."""
        try:
            with suppress(*ORDINARY):
                self._beat()
            try:
                self._main()
            except ORDINARY:
                self.holding = self._taking = self._giving = None
        except Crash:
            self._restart()
        lease = self.client.context.session_lease
        if lease is not None and not lease.alive() and self._taking is None:
            self._restart()

    def calm(self) -> None:
        """From now on nothing fails."""
        self.chances = self.client.network.chances = Chances()

    def _restart(self) -> None:
        """What was under way still arrives, before its successor begins or some time later."""
        self.client.network.revive()
        self.client.network.deliver()
        self._start()

    def _beat(self) -> None:
        keeper = self.client.context.keeper
        if self._beating is None and keeper.wait() <= 0:
            self._beating = Stepper(keeper.run_due(), self.client.store, self._stage.clock)
        if self._beating is not None:
            self._beating.go()
            if self._beating.done:
                beating, self._beating = self._beating, None
                beating.result()

    def _main(self) -> None:
        if self._giving is not None:
            self._giving.go()
            if self._giving.done:
                giving, self._giving = self._giving, None
                giving.result()
                self.finished += 1
        elif self.holding is not None:
            if self.works:
                self._resource.write(self.holding.grant.token or 0)
            self._work -= 1
            if self._work <= 0 or not self.works:
                gives = self.holding.release()
                self._giving = Stepper(gives, self.client.store, self._stage.clock)
                self.holding = None
        else:
            self._take()

    def _take(self) -> None:
        if self._taking is None:
            taking = take(self.client.context, LockTarget("merge"), None, self._terms)
            self._taking = Stepper(taking, self.client.store, self._stage.clock)
        self._taking.go()
        if self._taking.done:
            taken, self._taking = self._taking, None
            self.holding = taken.result()
            self._work = 3


TERMS = st.builds(
    GrantTerms,
    wait=st.just(float("inf")),
    ttl=st.sampled_from([None, None, 3.0]),
    max_hold=st.sampled_from([None, None, 4.0]),
    metadata=st.none(),
    given=st.just(()),
)


@settings(max_examples=budget(40), deadline=None, print_blob=True)
@given(
    seed=st.integers(0, 2**32),
    terms=st.lists(TERMS, min_size=3, max_size=3),
    schedule=st.lists(st.integers(0, 7), min_size=100, max_size=400),
)
def test_one_at_a_time_whatever_the_order_and_whatever_fails(
    seed: int, terms: list[GrantTerms], schedule: list[int]
) -> None:
    stage, resource = Testbed(seed), Resource()
    workers = [Worker(stage, f"w{n}", resource, each) for n, each in enumerate(terms)]

    def act(number: int) -> None:
        if number < 6:
            workers[number % 3].step()
        else:
            stage.clock.advance((0.1, 1.5)[number - 6])
        assert sum(worker.works for worker in workers) <= 1

    for number in schedule:
        act(number)
    for worker in workers:
        worker.calm()
    before = [worker.finished for worker in workers]
    for number in range(20_000):
        act(number % 7)
        if all(w.finished > was + 1 for w, was in zip(workers, before, strict=True)):
            break
    assert all(w.finished > was + 1 for w, was in zip(workers, before, strict=True))
    # What a writer never heard of it cannot link.
    assert audit(stage.store, heads=1 + sum(worker.unheard for worker in workers)) == []


TARGETS = (LockTarget("a"), SlotsTarget("s", capacity=2), target_of(("lock/a", "lock/b")))


@settings(max_examples=budget(20))
@given(
    far=st.booleans(),
    turns=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TARGETS)), min_size=8, max_size=30),
)
def test_a_waiter_knows_from_its_commit_what_it_would_read(
    far: bool, turns: list[tuple[int, GrantTarget]]
) -> None:
    """The first check of a wait reads nothing, and must see what a read would show."""
    stage = Testbed()
    clients = [(stage.remote if far else stage.client)(f"agent{each}") for each in range(4)]
    work: dict[int, tuple[GrantTarget, Stepper[Any]]] = {}
    place = PoolWait._place

    def compare(
        self: PoolWait, pools: list[Pool], queued: PoolReader | None = None
    ) -> Op[Asleep | None]:
        found = stage.store.read(*self._request.keys)
        assert pools == [decode_pool(found[key], self._base) for key in self._request.keys]
        for page, items in () if queued is None else queued.lists.items():
            assert items == stage.store.read(page).ranges[page]
        return place(self, pools, queued)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoolWait, "_place", compare)
        for number, target in turns:
            grants, who = clients[number].context.grants, clients[number].context.me()
            if number not in work:
                asking = grants.acquire(who, target, wait=60.0)
                work[number] = target, clients[number].start(asking)
            elif work[number][1].run().done:
                held, running = work.pop(number)
                token = running.result().token
                clients[number].run(grants.release(who.actor, held, token=token))
    assert audit(stage.store) == []
