"""Guards of the evidence: a task is complete when they pass, and its worker keeps it till then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.nouns.tasks.gated import FREE, Agent, status_of

import interlock
from interlock import aio, guard
from interlock.aio_tasks import Claim as AsyncClaim
from interlock.client_tasks import Claim
from interlock.clock import SystemClock
from interlock.core.entry import decode
from interlock.errors import Unproven
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.allowed import allow
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.task_view import TaskView
from interlock.store import VOID, Log, Store
from interlock.stores.memory import MemoryStore
from interlock.testing.audit import audit
from interlock.testing.testbed import Testbed

CALM: dict[str, Any] = {"evidence": ["calm"]}


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "remote"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Agent:
    make = bed.client if request.param == "local" else bed.remote
    return Agent(make("ada", ttl=1e6))


def entries(store: Store) -> list[Any]:
    page = Log(limit=1000)
    return [decode(i.value) for i in store.read(page).ranges[page] if i.value != VOID]


def acting(action: g.FailureAction) -> g.Guard:
    return guard.named("calm", guard.lock_free("deploy"), on_failure=action)


def claimed(ada: Agent, *guards: g.Guard, **terms: Any) -> int:
    """A claimed task with evidence that does not pass."""
    ada.define(*guards)
    ada.publish(**{**CALM, **terms})
    token = ada.claim().token
    ada.lock()
    return int(token)


def test_a_task_whose_evidence_passes_is_complete(bed: Testbed, ada: Agent) -> None:
    ada.define(FREE)
    assert ada.publish(**CALM).state == "pending"
    ada.claim()
    assert ada.complete() == task_outcomes.TaskCompleted(task="t1")
    assert ada.complete().already


def test_a_task_that_lacks_evidence_stays_with_its_worker(bed: Testbed, ada: Agent) -> None:
    ada.publish("t2")
    token = claimed(ada, FREE)
    found = ada.complete(token=token)
    assert found == task_outcomes.EvidenceMissing(
        task="t1",
        guard="calm",
        result="failed",
        leaf="lock-free=deploy",
        reason="ada holds lock deploy, for 0 s",
        acts=("ada releases lock deploy",),
    )
    assert not found
    assert (ada.show().state, ada.show().token) == ("running", token)
    assert ada.show().evidence == ("calm",)
    assert "it lacks evidence: guard calm: lock-free=deploy" in ada.why().because
    ada.unlock()
    assert isinstance(ada.complete(token=token), task_outcomes.TaskCompleted)
    assert audit(bed.store) == []


def test_a_refusal_is_recorded_once_in_a_minute_with_its_reason(bed: Testbed, ada: Agent) -> None:
    token = claimed(ada, FREE)
    for _ in range(3):
        ada.complete(token=token)
    (refused,) = [each for each in entries(bed.store) if each.verb == "task.complete"]
    assert refused.outcome == "blocked"
    assert refused.reason.startswith("guard calm: lock-free=deploy: ada holds lock deploy, since")
    told = ada.client.run(ada.client.record.explain("task/t1"))
    assert [(each.what, each.reason) for each in told.happenings][-1] == ("refused", "evidence")


def test_another_worker_does_not_learn_about_evidence(bed: Testbed, ada: Agent) -> None:
    claimed(ada, FREE)
    bob = Agent(bed.remote("bob"))
    assert isinstance(bob.complete(token=2**50), task_outcomes.TaskNotOwner)


def test_a_guard_that_is_not_defined_is_no_evidence(ada: Agent) -> None:
    ada.publish(**CALM)
    ada.claim()
    found = ada.complete()
    assert (found.result, found.reason) == ("unknown", "the store has no guard of this name")


def test_a_guard_that_warns_lets_it_be_completed_and_says_so(bed: Testbed, ada: Agent) -> None:
    token = claimed(ada, acting(g.WarnAction()))
    assert ada.complete(token=token).warned == ("calm",)
    (done,) = [each for each in entries(bed.store) if each.verb == "task.complete"]
    assert [each.name for each in done.events] == ["task:completed", "task:warned"]
    assert done.reason.startswith("warned by guard calm: lock-free=deploy:")


def test_a_guard_that_fails_ends_the_attempt_with_its_message(bed: Testbed, ada: Agent) -> None:
    token = claimed(ada, acting(g.fail("the release is frozen")), retries=1, backoff=0)
    found = ada.complete(token=token)
    assert isinstance(found, task_outcomes.EvidenceFailed)
    assert not found
    assert (found.state, found.attempts) == ("pending", 1)
    assert (found.guard, found.reason) == ("calm", "the release is frozen")
    token = ada.claim().token
    assert ada.complete(token=token).state == "dead"
    assert status_of(bed.store).reason == "the release is frozen"


def test_a_guard_that_is_retried_is_counted_once_in_its_delay_and_then_fails(
    bed: Testbed, ada: Agent
) -> None:
    token = claimed(ada, acting(g.retry("10s", 2)), retries=0)
    found = ada.complete(token=token)
    assert (found.failures, found.retry_in) == (1, 10.0)
    assert ada.complete(token=token).failures == 1, "not counted before the delay is over"
    bed.clock.advance(11)
    assert ada.complete(token=token).failures == 2
    bed.clock.advance(11)
    ended = ada.complete(token=token)
    assert isinstance(ended, task_outcomes.EvidenceFailed)
    assert ended.state == "dead"
    assert ended.reason.endswith("(failure 3)")


def test_a_new_attempt_counts_from_zero(bed: Testbed, ada: Agent) -> None:
    token = claimed(ada, acting(g.retry("10s", 1)), backoff=0)
    assert ada.complete(token=token).failures == 1
    ada.client.run(ada.client.tasks.release("t1", token=token))
    assert status_of(bed.store).failures == 0


def test_a_task_that_lacks_evidence_unblocks_no_other(bed: Testbed, ada: Agent) -> None:
    token = claimed(ada, FREE)
    ada.publish("t2", needs=["t1"])
    ada.complete(token=token)
    assert status_of(bed.store, "t2").on == "t1"
    ada.unlock()
    assert ada.complete(token=token).unblocked == 1


# Facts from outside.


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "allowed"))
    root = tmp_path / "project"
    root.mkdir()
    return root


BUILT = guard.named("calm", guard.file_exists("app"))


def test_the_host_of_the_worker_looks_before_it_completes(
    bed: Testbed, ada: Agent, project: Path
) -> None:
    allow(g.digest(BUILT), project)
    ada.define(BUILT)
    ada.publish(**CALM)
    token = ada.claim().token
    found = ada.complete(token=token)
    assert (found.result, found.leaf) == ("failed", "file-exists=app")
    (project / "app").touch()
    assert ada.complete(token=token), "what was seen before the work does not count"
    (done,) = [
        e for e in entries(bed.store) if (e.verb, e.outcome) == ("task.complete", "completed")
    ]
    assert [each.condition for each in done.observed] == ["file-exists=app"]


def test_a_host_that_may_not_look_says_which_one_could(ada: Agent, project: Path) -> None:
    ada.define(BUILT)
    ada.publish(**CALM)
    found = ada.complete(token=ada.claim().token)
    assert found.result == "unknown"
    assert "does not allow it" in found.reason


# Workers.


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def fleet(store: MemoryStore) -> Iterator[interlock.Fleet]:
    with interlock.connect(agent="ada", store=store) as fleet:
        fleet.guards.define(FREE)
        fleet.locks.acquire("deploy")
        fleet.tasks.publish("t1", retries=1, backoff=0, **CALM)
        yield fleet


def test_the_end_of_a_block_fails_an_attempt_without_evidence(fleet: interlock.Fleet) -> None:
    said = r"guard calm: lock-free=deploy: .*; the attempt failed"
    with pytest.raises(Unproven, match=said), fleet.tasks.hold("t1") as claim:
        pass
    assert claim.ended == "failed"
    shown = fleet.tasks.show("t1")
    assert isinstance(shown, TaskView)
    assert (shown.state, shown.attempts) == ("pending", 1)
    assert shown.reason.startswith("guard calm: lock-free=deploy:")


def test_a_block_may_get_its_evidence_and_complete_again(fleet: interlock.Fleet) -> None:
    with fleet.tasks.hold("t1") as claim:
        with pytest.raises(Unproven) as caught:
            claim.complete()
        assert isinstance(caught.value.outcome, task_outcomes.EvidenceMissing)
        assert not claim.settled
        fleet.locks.release("deploy")
        claim.complete("done")
    assert claim.ended == "completed"


def test_an_unproven_completion_that_leaves_its_block_fails_the_attempt(
    fleet: interlock.Fleet,
) -> None:
    with pytest.raises(Unproven), fleet.tasks.hold("t1") as claim:
        claim.complete()
    assert claim.ended == "failed"


def test_a_worker_fails_what_lacks_evidence_and_goes_on(
    fleet: interlock.Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []
    worker = fleet.tasks.work()

    def handler(claim: Claim) -> str:
        handled.append(claim.attempt)
        if claim.attempt == 2:
            worker.stop()
        return "result"

    with caplog.at_level(logging.WARNING, "interlock"):
        worker.serve(handler)
    assert handled == [1, 2]
    assert "task t1 lacks evidence: guard calm: lock-free=deploy:" in caplog.text
    shown = fleet.tasks.show("t1")
    assert getattr(shown, "state", "") == "dead"


def test_a_handler_waits_for_a_guard_that_asks_for_retries(fleet: interlock.Fleet) -> None:
    fleet.guards.define(acting(g.retry("10ms", 1)))
    with pytest.raises(Unproven, match=r"\(failure 2\)"), fleet.tasks.hold("t1") as claim:
        pass
    assert (claim.ended, getattr(fleet.tasks.show("t1"), "attempts", 0)) == ("failed", 1)


def test_an_async_worker_fails_what_lacks_evidence(store: MemoryStore) -> None:
    async def main() -> tuple[str, list[int]]:
        handled: list[int] = []
        async with await aio.connect(agent="ada", store=store) as fleet:
            await fleet.guards.define(FREE)
            await fleet.locks.acquire("deploy")
            await fleet.tasks.publish("t1", retries=1, backoff=0, **CALM)
            worker = fleet.tasks.work()

            async def handler(claim: AsyncClaim) -> None:
                handled.append(claim.attempt)
                if claim.attempt == 2:
                    worker.stop()

            await worker.serve(handler)
            shown = await fleet.tasks.show("t1")
            return getattr(shown, "state", ""), handled

    assert asyncio.run(asyncio.wait_for(main(), 30)) == ("dead", [1, 2])
