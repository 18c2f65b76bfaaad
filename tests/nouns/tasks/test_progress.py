"""How far the work is: reported as often as a worker likes, committed now and then, and shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.processes.helpers import until

import interlock
from interlock.clock import SystemClock
from interlock.errors import BadInput, StoreAway, TooLarge
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.claim_reports import AGAIN, PACE, ClaimReporter, work_report
from interlock.nouns.tasks.held_claim import HeldClaim, claim_for_block
from interlock.nouns.tasks.task_view import TaskView
from interlock.runtime.text import render
from interlock.stores.memory import MemoryStore
from interlock.testing.testbed import Client, Stepper, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


def claimed(client: Client, task: str = "t1") -> HeldClaim:
    client.run(client.tasks.publish(task, backoff=0))
    return client.run(claim_for_block(client.context, task, ttl=None, wait=0))


def shown(client: Client, task: str = "t1") -> TaskView:
    found = client.run(client.tasks.show(task))
    assert isinstance(found, TaskView)
    return found


def reports(stage: Testbed, client: Client) -> list[tuple[float | None, str]]:
    feed = client.run(client.tasks.subscribe(events=["progress"], after=0))
    return [(each.progress, each.doing) for each in client.run(feed.take(0))]


def test_a_report_is_in_the_list_the_task_the_events_and_the_story(stage: Testbed) -> None:
    ada = stage.client("ada")
    held = claimed(ada)
    said = ada.run(ada.tasks.progress("t1", 0.4, "compiling", token=held.claimed.token))
    assert said == task_outcomes.ProgressNoted(task="t1", progress=0.4, doing="compiling")
    (listed,) = ada.run(ada.tasks.list()).tasks
    for found in (listed, shown(ada)):
        assert (found.progress, found.doing) == (0.4, "compiling")
        assert "40 %: compiling" in render(shown(ada))
    assert reports(stage, ada) == [(0.4, "compiling")]
    story = ada.run(ada.record.explain("task/t1"))
    assert "progress, '40 %: compiling'" in render(story)


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_the_end_of_a_claim_ends_its_report(stage: Testbed, end: str) -> None:
    ada = stage.client("ada")
    held = claimed(ada)
    ada.run(held.say_progress(work_report(0.5, "half")))
    ada.run(held.fail("no") if end == "fail" else getattr(held, end)())
    assert (shown(ada).progress, shown(ada).doing) == (None, "")


def test_only_the_claim_itself_can_report(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    held = claimed(ada)
    assert isinstance(bob.run(bob.tasks.progress("t1", 0.1)), task_outcomes.TaskNotOwner)
    ada.run(held.release())
    late = ada.run(ada.tasks.progress("t1", 0.9, token=held.claimed.token))
    assert isinstance(late, task_outcomes.TaskNotOwner | task_outcomes.TaskFenced)
    assert isinstance(ada.run(ada.tasks.progress("none", 0.1)), task_outcomes.TaskNotOwner)
    assert reports(stage, ada) == []


def test_the_same_report_again_changes_nothing(stage: Testbed) -> None:
    ada = stage.client("ada")
    held = claimed(ada)
    for _ in range(2):
        ada.run(ada.tasks.progress("t1", 0.5, token=held.claimed.token))
    assert reports(stage, ada) == [(0.5, "")]


@pytest.mark.parametrize("part", [-0.1, 1.1, math.nan, math.inf, True, "0.4", None])
def test_a_part_that_is_none_is_refused(part: Any) -> None:
    with pytest.raises(BadInput, match="from 0 to 1"):
        work_report(part, "")


def test_a_text_about_the_progress_is_one_short_line() -> None:
    for bad in ("two\nlines", "\x1b[2J", " "):
        with pytest.raises(BadInput):
            work_report(0.1, bad)
    with pytest.raises(TooLarge):
        work_report(0.1, "x" * 201)


class Pacing:
    """A reporter whose keeper runs whenever it is due."""

    def __init__(self, stage: Testbed) -> None:
        self.stage, self.client = stage, stage.client("ada", ttl=86400.0)
        self.reporter: ClaimReporter = self.client.context.claim_reports

    def run(self) -> None:
        if self.reporter.wait() <= 0:
            self.client.run(self.reporter.run())


def test_the_first_report_is_committed_at_once_and_then_the_last_one_at_its_pace(
    stage: Testbed,
) -> None:
    pacing = Pacing(stage)
    held = claimed(pacing.client)
    for step in range(1000):  # a hundred seconds
        pacing.reporter.report(held, work_report(step / 1000, ""))
        pacing.run()
        stage.clock.advance(0.1)
    found = [part or 0.0 for part, _ in reports(stage, pacing.client)]
    assert found[0] == 0.0
    assert len(found) == 100 / PACE
    assert found == sorted(found)
    pacing.client.run(held.complete())
    stage.clock.advance(PACE)
    pacing.run()
    assert len(reports(stage, pacing.client)) == 100 / PACE
    assert pacing.reporter.wait() == math.inf


def test_a_report_that_fails_is_repeated_with_what_is_new_by_then(stage: Testbed) -> None:
    pacing = Pacing(stage)
    held = claimed(pacing.client)
    pacing.reporter.report(held, work_report(0.1, ""))
    with pytest.raises(StoreAway):
        Stepper(pacing.reporter.run(), pacing.client.store, stage.clock).interrupt(
            StoreAway("cut off")
        ).result()
    assert 0 < pacing.reporter.wait() <= AGAIN
    pacing.reporter.report(held, work_report(0.2, ""))
    stage.clock.advance(AGAIN)
    pacing.run()
    assert [part for part, _ in reports(stage, pacing.client)] == [0.2]


def test_a_worker_reports_from_its_handler_without_waiting_for_the_store() -> None:
    store = MemoryStore(SystemClock())
    with (
        interlock.connect(agent="ada", store=store) as fleet,
        interlock.connect(agent="bob", store=store) as other,
    ):
        fleet.tasks.publish("t1")
        with fleet.tasks.hold("t1") as claim:
            claim.progress(0.25, "reading")
            until(lambda: getattr(other.tasks.show("t1"), "doing", "") == "reading")
            for step in range(500):
                claim.progress(step / 1000, "writing")
        with other.tasks.subscribe(events=["progress"], after=0) as feed:
            assert len(feed.take(0)) == 1
        claim.progress(1.0)  # its claim is over: nothing to say


def test_a_report_never_stands_in_the_way_of_the_end_on_every_store(url: str) -> None:
    """The end relies on the status, which each report changes, also while it is under way."""
    with interlock.connect(url, agent="ada") as fleet:
        for end in ("complete", "fail"):
            fleet.tasks.publish(end)
            with fleet.tasks.hold(end) as claim:
                said = fleet.tasks.progress(end, 0.5, "half", token=claim.outcome.token)
                assert isinstance(said, task_outcomes.ProgressNoted)
                claim.progress(0.7)  # the keeper commits it at the same time as the end
                claim.complete(1) if end == "complete" else claim.fail("no", retry=False)
            found = fleet.tasks.show(end)
            assert isinstance(found, TaskView)
            assert (found.state, found.progress) == ({"fail": "failed"}.get(end, end), None)
