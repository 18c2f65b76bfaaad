"""A wall clock that jumps by an hour, forward or back, at any moment.

What lives or rests, and how long a task may be begun, is measured by the engine's clock.  So no
claim is lost early, no rest is longer and no deadline is over too soon.  ``not_before`` is a moment
of the wall clock.  Older is who was published at an earlier moment, as its publisher's wall clock
said; one publisher keeps its order even if its clock is set back.
"""

from __future__ import annotations

import pytest

from interlock.core import keys
from interlock.nouns.tasks.task_outcomes import (
    Claimed,
    NoTask,
    TaskBlocked,
    TaskCompleted,
    TaskFailed,
)
from interlock.testing.testbed import Client, Testbed

HOUR = 3600.0
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "network"])
def ada(request: pytest.FixtureRequest, stage: Testbed) -> Client:
    make = stage.client if request.param == "local" else stage.remote
    return make("ada", ttl=100_000.0)


def claimed(client: Client) -> Claimed:
    got = client.run(client.tasks.next())
    assert isinstance(got, Claimed), got
    return got


@JUMPS
def test_no_claim_is_lost_early(stage: Testbed, ada: Client, jump: float) -> None:
    bob = stage.client("bob", ttl=30.0)
    bob.run(bob.tasks.publish("t"))
    bob.run(bob.tasks.publish("own", retries=0))
    held = [claimed(bob), bob.run(bob.tasks.claim("own", ttl=20))]
    for _ in range(3):
        stage.clock.jump_wall(jump)
        assert isinstance(ada.run(ada.tasks.next()), NoTask)
    stage.clock.advance(19)
    assert isinstance(ada.run(ada.tasks.next()), NoTask)
    for each in held:
        assert isinstance(each, Claimed)
        done = bob.run(bob.tasks.complete(each.task, token=each.token))
        assert isinstance(done, TaskCompleted)


@JUMPS
@pytest.mark.parametrize("before", [True, False], ids=["before it rests", "while it rests"])
def test_no_rest_is_longer(stage: Testbed, ada: Client, jump: float, *, before: bool) -> None:
    ada.run(ada.tasks.publish("t", backoff=4, backoff_most=4))
    got = claimed(ada)
    if before:
        stage.clock.jump_wall(jump)
    assert isinstance(ada.run(ada.tasks.fail("t", token=got.token)), TaskFailed)
    if not before:
        stage.clock.jump_wall(jump)
    stage.clock.advance(3)
    assert isinstance(ada.run(ada.tasks.next()), NoTask)
    assert isinstance(ada.run(ada.tasks.claim("t")), TaskBlocked)
    stage.clock.advance(2)
    assert claimed(ada).attempt == 2


def test_no_rest_is_hidden_behind_others_that_wait(stage: Testbed, ada: Client) -> None:
    """It began to rest when the clock was an hour ahead; now many come before it by the clock."""
    ada.run(ada.tasks.publish("t"))
    stage.clock.jump_wall(HOUR)
    ada.run(ada.tasks.fail("t", token=claimed(ada).token))
    stage.clock.jump_wall(-HOUR)
    for number in range(150):
        ada.run(ada.tasks.publish(f"later{number}", not_before=600))
    stage.clock.advance(2)
    looks = [ada.run(ada.tasks.next()) for _ in range(3)]
    assert [each.task for each in looks if isinstance(each, Claimed)] == ["t"]


def test_a_named_moment_is_one_of_the_wall_clock(stage: Testbed, ada: Client) -> None:
    ada.run(ada.tasks.publish("later", not_before=60))
    stage.clock.jump_wall(HOUR)
    assert claimed(ada).task == "later"


@JUMPS
@pytest.mark.parametrize("how", ["next", "by name", "maintain"])
def test_a_deadline_is_measured_by_the_engine(
    stage: Testbed, ada: Client, jump: float, how: str
) -> None:
    for number in range(3):
        ada.run(ada.tasks.publish(f"t{number}", deadline=60))
    stage.clock.jump_wall(jump)
    ada.run(ada.fleet.maintain())
    assert claimed(ada).task == "t0"
    stage.clock.advance(61)
    if how == "maintain":
        assert ada.run(ada.fleet.maintain()).moved == 2
    look = ada.tasks.next() if how == "next" else ada.tasks.claim("t1")
    assert isinstance(ada.run(look), NoTask)
    assert ada.run(ada.tasks.show("t1")).state == "dead"


def test_the_key_of_a_deadline_goes_with_the_end_of_its_task(stage: Testbed, ada: Client) -> None:
    key = keys.deadline("t0")
    ada.run(ada.tasks.publish("t0", deadline=60))
    got = claimed(ada)
    ada.run(ada.tasks.fail("t0", token=got.token))
    stage.clock.advance(30)
    assert stage.store.read(key).items[key] is not None, "a retry has the same deadline"
    got = claimed(ada)
    assert ada.run(ada.tasks.complete("t0", token=got.token))
    assert stage.store.read(key).items[key] is None


def test_after_a_loss_of_all_liveness_the_wall_clock_decides(stage: Testbed, ada: Client) -> None:
    """As after a reboot under SQLite: a key that is gone then says nothing about the time."""
    ada.run(ada.tasks.publish("t0", deadline=60))
    ada.run(ada.tasks.publish("t1", deadline=60))
    stage.store._rows.pop(keys.deadline("t0"))
    stage.store._rows.pop(keys.deadline("t1"))
    stage.store._rows.pop(keys.CLOCK)
    assert claimed(ada).task == "t0"
    ada.run(ada.tasks.publish("t2", deadline=60))
    stage.clock.advance(61)
    assert isinstance(ada.run(ada.tasks.claim("t1")), NoTask)
    stage.clock.jump_wall(-HOUR)
    assert isinstance(ada.run(ada.tasks.claim("t2")), NoTask)


def test_an_edit_after_a_loss_of_all_liveness_ends_nothing(stage: Testbed, ada: Client) -> None:
    """The engine measures what is left of the deadline, from the edit on."""
    ada.run(ada.tasks.publish("t0", deadline=60))
    for key in (keys.deadline("t0"), keys.CLOCK):
        stage.store._rows.pop(key)
    ada.run(ada.tasks.publish("t1", deadline=60))
    assert ada.run(ada.tasks.edit("t0", priority=1))
    stage.clock.jump_wall(HOUR)
    stage.clock.advance(30)
    assert claimed(ada).task == "t0"


def test_a_task_that_is_published_again_has_a_deadline_of_its_own(
    stage: Testbed, ada: Client
) -> None:
    ada.run(ada.tasks.publish("t0"))
    ada.run(ada.tasks.publish("t1", deadline=600))  # since then the engine measures
    ada.run(ada.tasks.drop("t0"))
    ada.run(ada.tasks.publish("t0", deadline=60, again=True))
    stage.clock.jump_wall(-HOUR)
    stage.clock.advance(61)
    assert isinstance(ada.run(ada.tasks.claim("t0")), NoTask)


@JUMPS
def test_who_is_published_later_by_the_same_client_is_younger(
    stage: Testbed, ada: Client, jump: float
) -> None:
    for number in range(6):
        ada.run(ada.tasks.publish(f"t{number}"))
        stage.clock.jump_wall(jump)
    assert [claimed(ada).task for _ in range(6)] == [f"t{number}" for number in range(6)]


@JUMPS
def test_who_waits_sleeps_no_longer(stage: Testbed, ada: Client, jump: float) -> None:
    """A clock that was set back makes a nap no longer than the longest one is."""
    ada.run(ada.tasks.publish("t", backoff=2, backoff_most=2))
    ada.run(ada.tasks.fail("t", token=claimed(ada).token))
    waiting = ada.start(ada.tasks.next(wait=100))
    stage.clock.jump_wall(jump)
    stage.clock.advance(6)
    assert isinstance(waiting.run().result(), Claimed)
