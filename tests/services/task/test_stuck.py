"""What was left behind by somebody who died goes on, whoever comes along."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.core import task as core
from interlock.store import Range
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, FaultyStore
from interlock.testing.stage import Client, Stage


def far(stage: Stage, agent: str) -> Client:
    """Across a network, with room for a few tasks in a commit."""
    network = FaultyStore(stage.store, sleep=stage.clock.advance)
    network.capabilities = replace(network.capabilities, max_operations=50)
    return stage.client(agent, store=network)


@pytest.fixture
def stage() -> Stage:
    """Twenty tasks hung on one; whoever completed it died before it moved them all on."""
    stage = Stage()
    ada = far(stage, "ada")
    ada.run(ada.tasks.publish("root"))
    for number in range(20):
        ada.run(ada.tasks.publish(f"t{number:02}", needs=["root"]))
    ada.run(ada.tasks.claim("root"))
    ada.network.script([None, "crash before"])
    with pytest.raises(Crash):
        ada.run(ada.tasks.complete("root"))
    assert left(stage)
    return stage


def left(stage: Stage) -> int:
    page = Range(keys.HANGS, limit=1000)
    return len(stage.store.read(page).ranges[page])


def test_a_claim_by_name_moves_on_what_stands_in_its_way(stage: Stage) -> None:
    bob = far(stage, "bob")
    assert isinstance(bob.run(bob.tasks.claim("t19")), core.Claimed)
    assert audit(stage.store) == []


def test_a_claim_of_the_next_one_does_when_there_is_nothing_else(stage: Stage) -> None:
    bob = far(stage, "bob")
    done = set()
    while isinstance(claim := bob.run(bob.tasks.next()), core.Claimed):
        done.add(claim.task)
        bob.run(bob.tasks.complete(claim.task))
    assert done == {f"t{number:02}" for number in range(20)}
    assert left(stage) == 0
    assert audit(stage.store) == []


def test_a_queue_that_is_never_empty_does_not_keep_others_from_going_on(stage: Stage) -> None:
    bob = far(stage, "bob")
    for number in range(50):
        bob.run(bob.tasks.publish(f"other{number}", priority=1))
    for _ in range(50):
        claim = bob.run(bob.tasks.next())
        assert isinstance(claim, core.Claimed)
        assert claim.priority == 1
        bob.run(bob.tasks.complete(claim.task))
    assert left(stage) == 0
