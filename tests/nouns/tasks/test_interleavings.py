"""Workers in processes of their own at one queue, their steps in any order, on a bad network.

Each publishes, edits, drops, claims, completes, fails, releases, cancels and retries at random; a
schedule says which process makes the next step, and when time passes; a seed says what fails, and
which process crashes.  After every step the items agree with each other, and a worker that learned
of a claim has it; when the network works again, all tasks are finished, each once.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.hypothesis_settings import budget
from tests.nouns.tasks import task_truths

from interlock.errors import BadInput, Lapsed, OutcomeUnknown, StoreBusy
from interlock.nouns.tasks.task_outcomes import Claimed, TaskCompleted, Unchanged
from interlock.steps import Commit, Op, Transact
from interlock.testing.audit import audit
from interlock.testing.faults import Chances, Crash, FaultyStore
from interlock.testing.testbed import Client, Stepper, Testbed

CHANCES = Chances(
    conflict=0.03, lost_reply=0.06, late_arrival=0.06, crash_before=0.01, crash_after=0.02
)
ORDINARY = (Lapsed, OutcomeUnknown, StoreBusy)
TTL = 8.0


class Worker:
    """A process that does what its random numbers say, one operation after the other."""

    def __init__(self, stage: Testbed, name: str, tasks: list[str], *, local: bool) -> None:
        self._stage = stage
        self._name = name
        self._tasks = tasks
        self._local = local
        self._dice = Random(name)
        self._start()

    def _start(self) -> None:
        if self._local:
            self.client = self._stage.client(self._name, ttl=TTL)
        else:
            self.client = self._stage.remote(self._name, ttl=TTL, chances=CHANCES)
        small = replace(self.client.runner.capabilities, max_operations=36)
        self.client.runner.capabilities = small
        self.held: dict[str, int] = {}
        self._hand: Stepper[Any] | None = None

    def step(self) -> bool:
        """One step; whether it may have changed anything."""
        if self._hand is None:
            self._hand = Stepper(self._act(), self.client.store, self.client.clock)
        self._hand.go()
        changed = bool(self._hand.steps) and isinstance(self._hand.steps[-1], Commit | Transact)
        if self._hand.done:
            hand, self._hand = self._hand, None
            try:
                self._told(hand.result())
            except Crash:
                self._restart()
            except ORDINARY:
                self.held.clear()
                self._restart()
        return changed

    def _restart(self) -> None:
        if isinstance(self.client.store, FaultyStore):
            self.client.network.revive()
            self.client.network.deliver()
        self._start()

    def _act(self) -> Op[Any]:
        tasks, dice = self.client.tasks, self._dice
        some = dice.choice(self._tasks) if self._tasks else "none"
        match dice.randrange(11 if self._tasks else 1):
            case 0 if len(self._tasks) < 10:
                needs = dice.sample(self._tasks, min(len(self._tasks), dice.randrange(4)))
                self._tasks.append(name := f"t{len(self._tasks)}")
                return _published(self.client, name, needs, dice)
            case 1 | 2:
                return dice.choice((tasks.cancel, tasks.retry))(some)
            case 3 | 4:
                return tasks.claim(some)
            case 5 | 6 | 7:
                return self._planning(some)
            case _ if self.held:
                return self._finishing(*dice.choice(sorted(self.held.items())))
            case _:
                return tasks.next()

    def _planning(self, some: str) -> Op[Any]:
        tasks, dice = self.client.tasks, self._dice
        match dice.randrange(6):
            case 0:
                return tasks.edit(some, priority=dice.randrange(1, 9), requires=[])
            case 1:
                return tasks.edit(some, add_labels=["c"], remove_labels=["a"])
            case 2:
                return tasks.drop(some)
            case 3:
                return tasks.publish(some, again=True, labels=["d"])
            case _:
                return self._edited_needs(some, dice.choice(self._tasks))

    def _edited_needs(self, task: str, other: str) -> Op[Any]:
        """A need more or less; one that leads back, or does not exist, is refused."""
        edit = self.client.tasks.edit
        try:
            if task == other or self._dice.randrange(3) == 0:
                return (yield from edit(task, needs=[]))
            return (yield from edit(task, add_needs=[other]))
        except BadInput:
            return None

    def _finishing(self, task: str, token: int) -> Op[Any]:
        del self.held[task]
        tasks = self.client.tasks
        acts = (tasks.complete, tasks.complete, tasks.fail, tasks.release)
        return self._dice.choice(acts)(task, token=token)

    def _told(self, outcome: object) -> None:
        """Our claims hold: no other client ended them while we live."""
        if isinstance(outcome, Claimed):
            self.held[outcome.task] = outcome.token or 0


def _published(client: Client, name: str, needs: list[str], dice: Random) -> Op[Any]:
    """Needs that are not there yet are left out; a name that is taken is no matter."""
    known = task_truths.look(client.store).statuses if not _dead(client) else {}
    return client.tasks.publish(
        name,
        needs=[n for n in needs if n in known],
        labels=dice.choice([(), ("a", "b")]),
        backoff=dice.choice([0, 1]),
        retries=50,
    )


def _dead(client: Client) -> bool:
    return isinstance(client.store, FaultyStore) and client.store.crashed


@pytest.mark.parametrize("local", [False, True], ids=["network", "local"])
@given(
    seed=st.integers(0, 2**16),
    schedule=st.lists(st.integers(0, 12), min_size=60, max_size=400),
)
@settings(max_examples=budget(15), deadline=None, print_blob=True)
def test_every_schedule_leaves_the_tasks_sound(local: bool, seed: int, schedule: list[int]) -> None:
    stage = Testbed(seed)
    tasks: list[str] = []
    workers = [Worker(stage, f"w{n}-{seed}", tasks, local=local) for n in range(3)]
    for number in schedule:
        if number == 12:
            stage.clock.advance(1)
            for worker in workers:
                _beat(worker.client)
        elif workers[number % 3].step():
            sound(stage)
    finish(stage)


def _beat(client: Client) -> None:
    """Its keeper renews its session beside it; that is not what is tried here."""
    lease = client.context.session_lease
    if lease is None or _dead(client) or not lease.alive():
        return
    if isinstance(client.store, FaultyStore):
        client.store.chances = Chances()
    client.run(client.context.keeper.beat())
    if isinstance(client.store, FaultyStore):
        client.store.chances = CHANCES


def sound(stage: Testbed) -> None:
    complaints = task_truths.complaints(task_truths.look(stage.store))
    assert complaints == [], complaints


def finish(stage: Testbed) -> None:
    """When all others are gone, one who stays does the rest."""
    heir = stage.remote("heir", ttl=10_000.0)
    for _ in _patience(stage):
        for task in task_truths.look(stage.store).ended:
            if isinstance(heir.run(heir.tasks.retry(task)), Unchanged):
                heir.run(heir.tasks.publish(task, again=True))
        got = heir.run(heir.tasks.next())
        sound(stage)
        if isinstance(got, Claimed):
            done = heir.run(heir.tasks.complete(got.task, token=got.token))
            assert isinstance(done, TaskCompleted)
        else:
            stage.clock.advance(1)
    done_once = task_truths.completions(stage.store)
    assert sorted(done_once) == sorted(task_truths.look(stage.store).statuses)
    complaints = audit(stage.store, heads=9)
    assert complaints == [], complaints


def _patience(stage: Testbed) -> Iterator[None]:
    for _ in range(2000):
        if set(task_truths.look(stage.store).states().values()) <= {"complete"}:
            return
        yield
    raise AssertionError(task_truths.look(stage.store).states())
