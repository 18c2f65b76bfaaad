"""Sets of requirements come with the first ready task and may go with the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import interlock
from interlock.core import keys
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.housekeeping import READY_AT_ONCE
from interlock.nouns.tasks.ready_index import delete_idle_sets
from interlock.runtime.housekeeping import HousekeepingPass
from interlock.runtime.identity import Actor
from interlock.steps import Op
from interlock.store import Put, Range, Store, Txn
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture(params=["local", "remote"])
def ada(request: pytest.FixtureRequest) -> Client:
    stage = Testbed()
    return stage.client("ada") if request.param == "local" else stage.remote("ada")


def sets(store: Store) -> set[str]:
    page = Range(keys.SETS)
    return {item.key.removeprefix(keys.SETS) for item in store.read(page).ranges[page]}


def test_a_set_without_a_ready_task_goes_and_comes_back_with_the_next_one(ada: Client) -> None:
    ada.run(ada.tasks.publish("t", requires=["gpu"]))
    assert ada.run(delete_idle_sets(ada.runner, Actor(), ["gpu"])) == 0, "a task is ready"
    assert sets(ada.store) == {"gpu"}
    claimed = ada.run(ada.tasks.next(can=["gpu"]))
    assert isinstance(claimed, task_outcomes.Claimed)
    assert ada.run(delete_idle_sets(ada.runner, Actor(), ["gpu", "none"])) == 1
    assert sets(ada.store) == set()
    ada.run(ada.tasks.release("t"))
    assert sets(ada.store) == {"gpu"}
    assert isinstance(ada.run(ada.tasks.next(can=["*"])), task_outcomes.Claimed)


def test_claims_let_most_sets_go_that_have_no_ready_task(ada: Client) -> None:
    for number in range(80):
        ada.run(ada.tasks.publish(f"t{number}", requires=[f"can{number}"]))
    for _ in range(80):
        claimed = ada.run(ada.tasks.next(can=["*"]))
        assert isinstance(claimed, task_outcomes.Claimed)
        ada.run(ada.tasks.complete(claimed.task))
    for _ in range(70):
        ada.run(ada.tasks.next(can=["*"]))
    assert len(sets(ada.store)) <= 32


@pytest.mark.parametrize("by", ["a worker", "maintenance"])
def test_a_set_that_was_missed_is_listed_again(ada: Client, by: str) -> None:
    """As by a client of an earlier version, which relies on no set when it gives a task back.

    A worker that finds nothing looks at some sets each time, however many tasks one of them has.
    """
    for number in range(READY_AT_ONCE + 1):
        ada.run(ada.tasks.publish(f"c{number}", requires=["cpu"]))
    ada.run(ada.tasks.publish("t", requires=["gpu", "rust"]))
    ada.store.commit(
        Txn(
            id=ada.runner.new_id("txn"),
            entry=b"{}",
            puts=(Put(keys.SETS_MARK, b"{}"),),
            deletes=(keys.requirement_set("gpu,rust"),),
        )
    )
    if by == "maintenance":
        ada.run(HousekeepingPass(ada.runner).run(Actor()))
    else:
        assert isinstance(ada.run(ada.tasks.next(can=["gpu", "rust"])), task_outcomes.NoTask)
    assert isinstance(ada.run(ada.tasks.next(can=["gpu", "rust"])), task_outcomes.Claimed)


Act = Callable[[Client], Op[Any]]


def _claimed(ada: Client) -> None:
    ada.run(ada.tasks.publish("t", requires=["gpu"]))
    ada.run(ada.tasks.next(can=["gpu"]))


def _blocked(ada: Client) -> None:
    ada.run(ada.tasks.publish("first"))
    ada.run(ada.tasks.publish("t", requires=["gpu"], needs=["first"]))
    ada.run(ada.tasks.claim("first"))


def _set_only(ada: Client) -> None:
    ada.run(ada.tasks.publish("other", requires=["gpu"]))
    ada.run(ada.tasks.next(can=["gpu"]))


@pytest.mark.parametrize(
    ("before", "act"),
    [
        (_set_only, lambda ada: ada.tasks.publish("t", requires=["gpu"])),
        (_claimed, lambda ada: ada.tasks.release("t")),
        (_blocked, lambda ada: ada.tasks.complete("first")),
    ],
    ids=["publish", "release", "unblock"],
)
def test_a_task_that_becomes_ready_while_its_set_is_let_go_is_found_in_any_order_of_steps(
    before: Callable[[Client], None], act: Act
) -> None:
    assert len(list(islice(_orders(before, act), 60))) > 5


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("then", range(4))
def test_a_set_that_was_used_again_meanwhile_stays(first: int, then: int) -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada"), stage.remote("bob")
    _set_only(ada)
    goes = Stepper(delete_idle_sets(bob.runner, Actor(), ["gpu"]), bob.store, bob.clock)
    for _ in range(first):
        goes.go()
    ada.run(ada.tasks.publish("between", requires=["gpu"]))
    ada.run(ada.tasks.next(can=["gpu"]))
    for _ in range(then):
        goes.go()
    ada.run(ada.tasks.publish("t", requires=["gpu"]))
    goes.run().result()
    assert isinstance(ada.run(ada.tasks.next(can=["gpu"])), task_outcomes.Claimed)


def _orders(before: Callable[[Client], None], act: Act) -> Iterator[None]:
    """Each order of the steps of the two, one after the other, each with a store of its own."""
    pending: deque[tuple[int, ...]] = deque([()])
    while pending:
        chosen = pending.popleft()
        ada, bob, begun = _begun(before, act)
        for number in chosen:
            begun[number].go()
        while not all(each.done for each in begun):
            left = [number for number, each in enumerate(begun) if not each.done]
            pending.extend((*chosen, number) for number in left[1:])
            chosen = (*chosen, left[0])
            begun[left[0]].go()
        for each in begun:
            each.result()
        got = bob.run(bob.tasks.next(can=["gpu"]))
        assert isinstance(got, task_outcomes.Claimed), (chosen, sets(ada.store))
        assert got.task == "t"
        yield


def _begun(before: Callable[[Client], None], act: Act) -> tuple[Client, Client, list[Any]]:
    stage = Testbed()
    ada, bob = stage.remote("ada"), stage.remote("bob")
    before(ada)
    if "gpu" not in sets(ada.store):  # as left by a task before this one
        value = (Put(keys.requirement_set("gpu"), b'["gpu"]'), Put(keys.SETS_MARK, b"{}"))
        ada.store.commit(Txn(id=ada.runner.new_id("txn"), entry=b"{}", puts=value))
    goes = delete_idle_sets(bob.runner, Actor(), ["gpu"])
    return ada, bob, [Stepper(act(ada), ada.store, ada.clock), Stepper(goes, bob.store, bob.clock)]


def test_old_sets_go_with_maintenance_on_every_engine(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        for number in range(20):
            fleet.tasks.publish(f"t{number}", requires=[f"can{number}"])
        while isinstance(claimed := fleet.tasks.next(can=["*"]), task_outcomes.Claimed):
            fleet.tasks.complete(claimed.task)
        assert len(sets(fleet.store)) == 20
        fleet.tasks.publish("last", requires=["can7"])
        fleet.maintain()
        assert sets(fleet.store) == {"can7"}
        claimed = fleet.tasks.next(can=["can7"])
        assert isinstance(claimed, task_outcomes.Claimed)
