"""A rest that is shorter than the shortest liveness of an engine lasts as long as it says."""

from __future__ import annotations

import pytest

import interlock
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["client", "remote"])
def ada(stage: Testbed, request: pytest.FixtureRequest) -> Client:
    return stage.client("ada") if request.param == "client" else stage.remote("ada")


def test_a_backoff_of_a_fifth_of_a_second_is_one(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", backoff="200ms", backoff_most="200ms"))
    assert ada.runner.capabilities.min_ttl > 0.2
    ada.run(ada.tasks.next())
    ada.run(ada.tasks.fail("t1", "no"))
    found = ada.run(ada.tasks.next())
    assert isinstance(found, NoTask)
    assert 0.1 < (found.begins_in or 0) <= 0.2
    stage.clock.advance(0.21)
    assert isinstance(ada.run(ada.tasks.next()), Claimed)


def test_a_waiter_takes_the_task_when_its_short_rest_is_over(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("t1", backoff="200ms", backoff_most="200ms"))
    ada.run(ada.tasks.next())
    ada.run(ada.tasks.fail("t1", "no"))
    began = stage.clock.monotonic()
    assert isinstance(ada.run(ada.tasks.next(wait=60)), Claimed)
    assert 0.1 < stage.clock.monotonic() - began < 0.3


def test_a_short_rest_ends_on_every_engine(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("t1", backoff="50ms", backoff_most="50ms")
        for _ in range(3):
            assert isinstance(fleet.tasks.next(wait=60), Claimed)
            fleet.tasks.fail("t1", "no")
        assert isinstance(fleet.tasks.next(wait=60), Claimed)
