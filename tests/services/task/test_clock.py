"""A wall clock that jumps by an hour, forward or back, at any moment.

What lives or rests is measured by the engine's clock, so no claim is lost early and no rest is
longer.  What somebody named is a moment of the wall clock: ``not_before`` and ``deadline`` go with
it.  Older is who was published at an earlier moment, as its publisher's wall clock said; one
publisher keeps its order even if its clock is set back.
"""

from __future__ import annotations

import pytest

from interlock.core.task import Blocked, Claimed, Completed, Failed, NoTask
from interlock.testing.stage import Client, Stage

HOUR = 3600.0
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(params=["local", "network"])
def ada(request: pytest.FixtureRequest, stage: Stage) -> Client:
    make = stage.client if request.param == "local" else stage.remote
    return make("ada", ttl=100_000.0)


def claimed(client: Client) -> Claimed:
    got = client.run(client.tasks.next())
    assert isinstance(got, Claimed), got
    return got


@JUMPS
def test_no_claim_is_lost_early(stage: Stage, ada: Client, jump: float) -> None:
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
        assert isinstance(done, Completed)


@JUMPS
@pytest.mark.parametrize("before", [True, False], ids=["before it rests", "while it rests"])
def test_no_rest_is_longer(stage: Stage, ada: Client, jump: float, *, before: bool) -> None:
    ada.run(ada.tasks.publish("t", backoff=4, backoff_most=4))
    got = claimed(ada)
    if before:
        stage.clock.jump_wall(jump)
    assert isinstance(ada.run(ada.tasks.fail("t", token=got.token)), Failed)
    if not before:
        stage.clock.jump_wall(jump)
    stage.clock.advance(3)
    assert isinstance(ada.run(ada.tasks.next()), NoTask)
    assert isinstance(ada.run(ada.tasks.claim("t")), Blocked)
    stage.clock.advance(2)
    assert claimed(ada).attempt == 2


def test_no_rest_is_hidden_behind_others_that_wait(stage: Stage, ada: Client) -> None:
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


def test_a_named_moment_is_one_of_the_wall_clock(stage: Stage, ada: Client) -> None:
    ada.run(ada.tasks.publish("later", not_before=60))
    ada.run(ada.tasks.publish("soon", deadline=60))
    stage.clock.jump_wall(HOUR)
    assert claimed(ada).task == "later"
    assert isinstance(ada.run(ada.tasks.claim("soon")), NoTask)


@JUMPS
def test_who_is_published_later_by_the_same_client_is_younger(
    stage: Stage, ada: Client, jump: float
) -> None:
    for number in range(6):
        ada.run(ada.tasks.publish(f"t{number}"))
        stage.clock.jump_wall(jump)
    assert [claimed(ada).task for _ in range(6)] == [f"t{number}" for number in range(6)]


@JUMPS
def test_who_waits_sleeps_no_longer(stage: Stage, ada: Client, jump: float) -> None:
    """A clock that was set back makes a nap no longer than the longest one is."""
    ada.run(ada.tasks.publish("t", backoff=2, backoff_most=2))
    ada.run(ada.tasks.fail("t", token=claimed(ada).token))
    waiting = ada.start(ada.tasks.next(wait=100))
    stage.clock.jump_wall(jump)
    stage.clock.advance(6)
    assert isinstance(waiting.run().result(), Claimed)
