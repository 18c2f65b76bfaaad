"""Random programs, their steps in any order: every deadlock is refused at once, nothing else is.

Each program acquires, increases and releases, claims tasks and asks agents as it likes, and gives
everything back when it ends or is refused.  Queries are answered when nobody else can move.  After
each step the truth is read from the store and judged by an oracle that plays the programs to their
end (``tests/core/wait_model.py``).  No time passes, so nobody is helped by a timer.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.wait_model import Asked, State, deadlocked_sets
from tests.hypothesis_settings import budget
from tests.runtime.questions import Query, answer, ask

from interlock.core import keys, outcomes
from interlock.core.wait import (
    UnqueuedWait,
    WaiterFields,
    agent_caller_name,
    caller_name_of,
    session_caller_name,
)
from interlock.nouns.grants import semaphore
from interlock.nouns.grants.pool import Pool, with_token
from interlock.nouns.tasks.task import TaskOwner
from interlock.runtime.callers import LocalCaller
from interlock.steps import Op
from interlock.store import Log, Range
from interlock.testing.audit import audit
from interlock.testing.testbed import Client, Stepper, Testbed

LOCKS = ("lock/a", "lock/b", "lock/c")
SLOTS = {"sem/s": 2, "sem/t": 3}
TASKS = ("task/x", "task/y")
AGENTS = ("off0", "off1", "off2", "nobody")
"""Who is asked: a program is a session, so it is stuck exactly if that is; some agents have two."""


class Program:
    """A task: what it holds as (things, token, weight), and the step that it is at."""

    def __init__(self, client: Client, number: int, random: Random) -> None:
        self.client = client
        self.someone = LocalCaller(f"task{number}")
        self.held: list[tuple[tuple[str, ...], int, int]] = []
        self.refused = 0
        self.done = False
        self._random = random
        self._left = random.randint(2, 6)
        self._hand: Stepper[object] | None = None
        self._asked: tuple[tuple[str, ...], int, int] | None = None

    def go(self) -> bool:
        """One step; whether there was one to do."""
        if self.done:
            return False
        self.client.context.grants.current_caller = lambda: self.someone
        if self._hand is None:
            self._hand = Stepper(self._next(), self.client.store, self.client.clock)
            return True
        moved = self._hand.go()
        if self._hand.done:
            self._finish(self._hand.result())
            self._hand = None
        return moved

    def _next(self) -> Op[object]:
        self._left -= 1
        random = self._random
        if self._left < 0 or (self.held and random.random() < 0.25):
            return self._release()
        slots = [each for each in self.held if each[0][0] in SLOTS and len(each[0]) == 1]
        if slots and random.random() < 0.4:
            (thing,), token, weight = random.choice(slots)
            if weight < SLOTS[thing]:
                return self._slots(thing, random.randint(weight + 1, SLOTS[thing]), token)
        if random.random() < 0.3:
            return self._several(random.sample([*LOCKS, *SLOTS], 2))
        thing = random.choice([*LOCKS, *SLOTS, *TASKS, *AGENTS])
        return self._wait_for(thing)

    def _wait_for(self, thing: str) -> Op[object]:
        if thing in AGENTS:
            self._asked = ((), 0, 0)
            return ask(self.client, thing)
        if thing in TASKS:
            self._asked = ((thing,), 0, 1)
            return self.client.tasks.claim(thing[5:], wait="1h")
        if thing in SLOTS:
            return self._slots(thing, self._random.randint(1, SLOTS[thing]), None)
        self._asked = ((thing,), 0, 1)
        return self.client.locks.acquire(thing[5:], wait="1h")

    def _slots(self, thing: str, weight: int, token: int | None) -> Op[object]:
        self._asked = ((thing,), token or 0, weight)
        return self.client.semaphores.acquire(thing[4:], weight=weight, token=token, wait="1h")

    def _several(self, some: list[str]) -> Op[object]:
        things = [f"{t}={self._random.randint(1, SLOTS[t])}" if t in SLOTS else t for t in some]
        self._asked = (tuple(some), 0, 1)
        return self.client.several.acquire(*things, wait="1h")

    def _release(self) -> Op[object]:
        self._asked = None
        if not self.held:
            self.done = True
            return nothing()
        things, token, _ = self.held.pop(self._random.randrange(len(self.held)))
        if things[0] in TASKS:
            return self.client.tasks.release(things[0][5:], token=token)
        return self.client.several.release(*things, token=token)

    def _finish(self, outcome: object) -> None:
        if isinstance(outcome, outcomes.Deadlock):
            self.refused += 1
            self._left = 0
        elif outcome == "answered":
            pass
        elif self._asked is None:
            assert outcome is None or isinstance(outcome, outcomes.Released)
        else:
            things, before, weight = self._asked
            token = getattr(outcome, "token", None)
            assert token is not None, outcome
            self.held = [each for each in self.held if not before or each[1] != before]
            self.held.append((things, token, weight))


def nothing() -> Op[object]:
    return None
    yield


def truth(stage: Testbed) -> State:
    """Who holds and waits, from the items themselves."""
    snapshot = stage.store.read(*map(Range, keys.POOLS), Range(keys.TASKS), Range(keys.WAITS))
    items = {item.key: item for found in snapshot.ranges.values() for item in found}
    pools = {
        key: with_token(msgspec.json.decode(item.value, type=Pool), item.revision)
        for key, item in items.items()
        if key.startswith(keys.POOLS)
    }
    waits: dict[str, tuple[int, Asked]] = {}
    for key, pool in pools.items():
        for waiter in pool.waiters:
            _, before = waits.get(waiter.id, (0, Asked("")))
            wants = (*before.wants, (key, waiter.weight))
            asked = Asked(caller_name_of(waiter), wants, (), whole(waiter))
            waits[waiter.id] = (waiter.order or 0, asked)
    for key, item in items.items():
        if key.startswith(keys.WAITS) and item.value.startswith(b"{"):
            asleep = msgspec.json.decode(item.value, type=UnqueuedWait)
            groups = tuple(who_acts(stage, asleep.wants))
            asked = Asked(asleep.caller, (), groups, whole(asleep))
            waits[keys.id_of(key)] = (item.revision, asked)
    in_order = sorted(waits.items(), key=lambda each: each[1][0])
    return State(
        tuple((key, pool.capacity) for key, pool in pools.items()),
        tuple(
            (key, caller_name_of(g), g.weight) for key, pool in pools.items() for g in pool.grants
        ),
        tuple((id_, asked) for id_, (_, asked) in in_order),
    )


def whole(party: WaiterFields) -> tuple[str, ...]:
    """All that does not go on while somebody waits."""
    return agent_caller_name(party.agent), session_caller_name(party.session)


def who_acts(stage: Testbed, wanted: str) -> Iterator[tuple[str, ...]]:
    """Who works on a task; whom a query is for."""
    if wanted.startswith(keys.QUERIES):
        query = stage.store.read(wanted)[wanted]
        found = None if query is None else msgspec.json.decode(query.value, type=Query)
        if found is not None and found.state == "open":
            page = Range(keys.agent_session(found.to))
            sessions = [keys.id_of(item.key) for item in stage.store.read(page).ranges[page]]
            yield (*map(session_caller_name, sessions), agent_caller_name(found.to))
    else:
        key = keys.owner(keys.task_of(wanted))
        if (owner := stage.store.read(key)[key]) is not None:
            yield (msgspec.json.decode(owner.value, type=TaskOwner).caller,)


def unanswered(stage: Testbed) -> list[str]:
    page = Range(keys.QUERIES)
    found = [
        msgspec.json.decode(item.value, type=Query) for item in stage.store.read(page).ranges[page]
    ]
    return [query.id for query in found if query.state == "open"]


def refusals(stage: Testbed) -> int:
    entries = next(iter(stage.store.read(Log(limit=100_000)).ranges.values()))
    return sum(b'"outcome":"deadlock"' in entry.value for entry in entries)


def confirm(mover: Program, before: State, after: State) -> None:
    """One wait withdrew: it was the youngest of a knot, which is untied by that."""
    (gone,) = [id_ for id_, asked in before.waits if asked.caller == mover.someone.name]
    order = [id_ for id_, _ in before.waits]
    tied = [each for each in deadlocked_sets(before) if gone in each]
    assert any(max(each, key=order.index) == gone for each in tied), before
    assert all(each in deadlocked_sets(before) for each in deadlocked_sets(after)), (
        "nobody else is worse off"
    )


def play(seed: int) -> int:
    """Run some programs to their end; how many were refused."""
    random, stage = Random(seed), Testbed(seed)
    agents = (*AGENTS[:2], random.choice(AGENTS[:3]))
    clients = [stage.client("near"), *[stage.remote(name) for name in agents]]
    for task in TASKS:
        clients[0].run(clients[0].tasks.publish(task[5:]))
    for thing, capacity in SLOTS.items():
        clients[0].run(clients[0].semaphores.resize(thing[4:], capacity))
    programs = [Program(client, n, random) for n, client in enumerate(clients)]
    programs = [Program(clients[0], 9, random), *programs][: random.randint(3, 5)]
    told = 0
    while True:
        ready = random.sample(programs, len(programs))
        before = truth(stage)
        mover = next((program for program in ready if program.go()), None)
        if mover is None and (left := unanswered(stage)):
            assert deadlocked_sets(truth(stage)) == [], f"somebody sleeps for ever: seed {seed}"
            clients[0].run(answer(clients[0], left[0]))
            continue
        if mover is None:
            break
        if (now := refusals(stage)) > told:
            told = now
            confirm(mover, before, truth(stage))
    assert deadlocked_sets(truth(stage)) == [], f"somebody sleeps for ever: seed {seed}"
    assert all(program.done for program in programs), f"not everybody came to its end: seed {seed}"
    assert told == sum(program.refused for program in programs)
    after = truth(stage)
    assert not after.grants
    assert not after.waits
    waits = Range(keys.WAITS)
    assert stage.store.read(waits).ranges[waits] == ()
    assert audit(stage.store, heads=len(programs)) == []
    return told


@settings(max_examples=budget(30), deadline=None)
@given(st.integers(0, 2**32))
def test_every_deadlock_is_refused_at_once_and_nothing_else_is(seed: int) -> None:
    play(seed)


def test_the_programs_do_get_into_deadlocks() -> None:
    assert sum(play(seed) > 0 for seed in range(30)) > 5


@pytest.mark.proof
def test_every_deadlock_is_refused_at_once_for_many_programs() -> None:
    for seed in range(5000):
        play(seed)


def test_the_dead_in_a_queue_do_not_hide_a_circle() -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=600.0)
    ada.run(ada.semaphores.acquire("slots", capacity=2, weight=2))
    for number, ttl in enumerate((600.0, 5.0, 600.0)):
        other = stage.client(f"other{number}", ttl=ttl)
        other.start(other.semaphores.acquire("slots", wait=500))
    stage.clock.advance(6.0)
    refused = ada.start(ada.semaphores.acquire("slots", wait=500)).result()
    assert isinstance(refused, semaphore.SlotsDeadlock)
    assert refused.cycle == ("ada",)
