"""What phases hold: acquired with the phase, kept, exchanged, released, and busy."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.pipelines.pipelines import Mover, phases, run_of

from interlock.nouns.grants.lock import LockAcquired
from interlock.nouns.pipelines import pipeline as core
from interlock.testing.audit import audit
from interlock.testing.testbed import Testbed

MERGE = 'hold = ["lock/merge"]'
BOTH = 'hold = ["lock/merge", "sem/builds=2"]'


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "remote"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Mover:
    return Mover(bed.client("ada") if request.param == "local" else bed.remote("ada"))


@pytest.fixture
def bob(bed: Testbed) -> Mover:
    return Mover(bed.remote("bob"))


def slots(ada: Mover, capacity: int) -> None:
    ada.client.run(ada.client.semaphores.resize("builds", capacity))


def free(ada: Mover) -> int:
    shown: Any = ada.client.run(ada.client.semaphores.show("builds"))
    return int(shown.available)


def test_a_phase_holds_its_lock_and_slots_until_it_is_left(bed: Testbed, ada: Mover) -> None:
    slots(ada, 3)
    ada.define(phases(BOTH, ""))
    ada.start()
    assert (ada.holder("merge"), free(ada)) == ("pipeline:r1", 1)
    assert ada.show().holds == ("lock/merge", "sem/builds=2")
    ada.advance()
    assert (ada.holder("merge"), free(ada)) == ("", 3)
    assert run_of(bed.store).grants == ()
    assert audit(bed.store) == []


@pytest.mark.parametrize("end", ["complete", "cancel", "fail"])
def test_a_pipeline_that_ends_releases_what_it_holds(bed: Testbed, ada: Mover, end: str) -> None:
    slots(ada, 2)
    fails = 'post = [{lock_held = "x"}]\non_failure = {fail = "no"}' if end == "fail" else ""
    ada.define(phases(f"{BOTH}\n{fails}"))
    ada.start()
    outcome = ada.cancel() if end == "cancel" else ada.advance()
    ended = (core.PipelineCompleted, core.PipelineCancelled, core.PipelineFailed)
    assert isinstance(outcome, ended)
    assert (ada.holder("merge"), free(ada), run_of(bed.store).grants) == ("", 2, ())


def test_two_phases_in_sequence_keep_the_grant_of_the_same_lock(bed: Testbed, ada: Mover) -> None:
    ada.define(phases(MERGE, MERGE, ""))
    ada.start()
    before = ada.client.run(ada.client.locks.show("merge"))
    grants = run_of(bed.store).grants
    ada.advance()
    after = ada.client.run(ada.client.locks.show("merge"))
    assert (after.token, after.since) == (before.token, before.since)
    assert run_of(bed.store).grants == grants
    ada.advance()
    assert ada.holder("merge") == ""


def test_slots_grow_and_shrink_from_phase_to_phase(ada: Mover, bob: Mover) -> None:
    slots(ada, 3)
    ada.define(phases('hold = ["sem/builds"]', 'hold = ["sem/builds=3"]', 'hold = ["sem/builds"]'))
    ada.start()
    assert free(ada) == 2
    got: Any = bob.client.run(bob.client.semaphores.acquire("builds"))
    blocked = ada.advance()
    assert blocked.leaf == "semaphore-available=builds,slots=3"
    assert bob.client.run(bob.client.semaphores.release("builds", token=got.token))
    assert free(ada) == 0
    assert ada.advance()
    assert free(ada) == 2


def test_a_busy_lock_blocks_it_and_names_the_holder(bed: Testbed, ada: Mover, bob: Mover) -> None:
    slots(ada, 2)
    ada.define(phases("", BOTH))
    ada.start()
    token = bob.lock("merge")
    blocked = ada.advance()
    assert (blocked.guard, blocked.leaf) == ("p/two/hold", "lock-free=merge")
    assert blocked.reason.startswith("bob holds lock merge")
    assert free(ada) == 2  # all or nothing
    assert run_of(bed.store).asked
    bob.unlock("merge", token)
    assert (run_of(bed.store).phase, ada.holder("merge")) == ("two", "pipeline:r1")
    assert audit(bed.store) == []


def test_leaving_serves_the_waiters_in_the_same_commit(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(MERGE, ""))
    ada.start()
    wait = bob.client.start(bob.client.locks.acquire("merge", wait=60))
    assert not wait.done
    assert wait.wakes >= bed.clock.monotonic() + 1  # the pipeline's grant never expires
    before = bed.store.read().revision
    ada.advance()
    assert bed.store.read().revision == before + 1
    assert isinstance(wait.run().result(), LockAcquired)
    assert audit(bed.store) == []


def test_no_agent_releases_or_renews_what_a_pipeline_holds(bed: Testbed, ada: Mover) -> None:
    ada.define(phases(MERGE, ""))
    ada.start()
    token = ada.client.run(ada.client.locks.show("merge")).token
    thief = bed.client("bob")
    for call in (thief.locks.release, thief.locks.heartbeat, thief.locks.acquire):
        assert not thief.run(call("merge", token=token))
    assert ada.holder("merge") == "pipeline:r1"


def test_slots_that_are_reserved_for_the_first_waiter_block_it(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    slots(ada, 2)
    ada.define(phases("", 'hold = ["sem/builds"]'))
    ada.start()
    bob.client.run(bob.client.semaphores.acquire("builds"))
    cleo = Mover(bed.remote("cleo"))
    cleo.client.start(cleo.client.semaphores.acquire("builds", weight=2, wait=60))
    assert free(ada) == 1
    blocked = ada.advance()
    assert blocked.reason == "it is reserved for cleo, the first waiter"
    assert blocked.acts == ("cleo gets and releases sem/builds",)


def test_a_lock_whose_holder_is_dead_is_taken_over(bed: Testbed, ada: Mover, bob: Mover) -> None:
    ada.define(phases("", MERGE))
    ada.start()
    bob.client.run(bob.client.locks.acquire("merge", ttl=5))
    bed.clock.advance(6)
    assert ada.advance().phase == "two"
    assert ada.holder("merge") == "pipeline:r1"


def test_a_grant_never_expires_and_an_operator_can_end_it(
    bed: Testbed, ada: Mover, bob: Mover
) -> None:
    ada.define(phases(MERGE, ""))
    ada.start()
    bed.clock.advance(10 * 86400)
    zoe = Mover(bed.client("zoe"))
    zoe.client.run(zoe.client.fleet.maintain())
    assert zoe.holder("merge") == "pipeline:r1"
    why = zoe.client.run(zoe.client.fleet.why("lock/merge"))
    assert (why.by, why.clear) == (
        "pipeline:r1",
        "pipeline/r1 leaves its phase, or ends",
    )
    broken = zoe.client.run(zoe.client.locks.break_("merge", reason="stuck"))
    assert broken
    assert zoe.holder("merge") == ""
    assert zoe.advance().phase == "two"
    assert audit(bed.store) == []


@pytest.mark.parametrize(
    ("hold", "says"),
    [("sem/none=2", "has no capacity yet"), ("sem/builds=9", "9 wanted")],
)
def test_slots_that_cannot_be_had_block_it_with_the_reason(
    ada: Mover, hold: str, says: str
) -> None:
    slots(ada, 2)
    ada.define(phases("", f'hold = ["{hold}"]'))
    ada.start()
    assert says in ada.advance().reason


def test_health_reports_a_lock_that_a_pipeline_holds_for_long_as_held_not_as_stale(
    bed: Testbed, ada: Mover
) -> None:
    ada.define(phases(MERGE))
    ada.start()
    bed.clock.advance(7200)
    zoe = Mover(bed.client("zoe"))
    found = zoe.client.run(zoe.client.fleet.health()).problems
    assert "stale" not in [each.kind for each in found]
