"""Tasks that a dead client left behind make progress with the next client."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock.core import keys
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.housekeeping import RECLAIMED_AT_ONCE
from interlock.store import Put, Range, Txn
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, FaultyStore
from interlock.testing.testbed import Client, Testbed


def far(stage: Testbed, agent: str) -> Client:
    """Across a network, with room for a few tasks in a commit."""
    network = FaultyStore(stage.store, sleep=stage.clock.advance)
    network.capabilities = replace(network.capabilities, max_operations=50)
    return stage.client(agent, store=network)


@pytest.fixture
def stage() -> Testbed:
    """Twenty tasks hung on one; its worker died before it unblocked all of them."""
    stage = Testbed()
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


def left(stage: Testbed) -> int:
    page = Range(keys.HANGS, limit=1000)
    return len(stage.store.read(page).ranges[page])


def test_a_claim_by_name_moves_on_what_stands_in_its_way(stage: Testbed) -> None:
    bob = far(stage, "bob")
    assert isinstance(bob.run(bob.tasks.claim("t19")), task_outcomes.Claimed)
    assert audit(stage.store) == []


def test_a_claim_of_the_next_one_does_when_there_is_nothing_else(stage: Testbed) -> None:
    bob = far(stage, "bob")
    done = set()
    while isinstance(claim := bob.run(bob.tasks.next()), task_outcomes.Claimed):
        done.add(claim.task)
        bob.run(bob.tasks.complete(claim.task))
    assert done == {f"t{number:02}" for number in range(20)}
    assert left(stage) == 0
    assert audit(stage.store) == []


def test_a_queue_that_is_never_empty_does_not_keep_others_from_going_on(stage: Testbed) -> None:
    bob = far(stage, "bob")
    for number in range(50):
        bob.run(bob.tasks.publish(f"other{number}", priority=1))
    for _ in range(50):
        claim = bob.run(bob.tasks.next())
        assert isinstance(claim, task_outcomes.Claimed)
        assert claim.priority == 1
        bob.run(bob.tasks.complete(claim.task))
    assert left(stage) == 0


@pytest.mark.parametrize("local", [True, False])
def test_entries_of_claims_that_stand_for_nothing_keep_no_lost_task_from_coming_back(
    local: bool,
) -> None:
    stage = Testbed()
    ada, bob = stage.client("ada", ttl=10.0), stage.client("bob", ttl=600.0)
    for task in ("lost", "kept"):
        bob.run(bob.tasks.publish(task, backoff=0))
    ada.run(ada.tasks.claim("lost"))
    bob.run(bob.tasks.claim("kept"))
    strays = [keys.claims("ses_0", f"gone{number:02}") for number in range(RECLAIMED_AT_ONCE)]
    strays.append(keys.claims("ses_0", "kept"))
    stray = tuple(Put(key, b'["live/ses_0"]') for key in strays)
    stage.store.commit(Txn(id="strays", puts=stray, quiet=True))
    stage.clock.advance(20.0)
    eve = stage.client("eve") if local else stage.remote("eve")
    found = [eve.run(eve.tasks.next()) for _ in range(2)]
    assert "lost" in [each.task for each in found if isinstance(each, task_outcomes.Claimed)]
    page = Range(keys.CLAIMS)
    left = [item.key for item in stage.store.read(page).ranges[page]]
    assert left == sorted([keys.claims(eve.session, "lost"), keys.claims(bob.session, "kept")])
    assert isinstance(bob.run(bob.tasks.complete("kept")), task_outcomes.TaskCompleted)
