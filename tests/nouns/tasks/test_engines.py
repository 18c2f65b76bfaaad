"""Watching over tasks on every engine that real processes can share."""

from __future__ import annotations

from tests.conftest import with_git
from tests.faces.shell import until
from tests.nouns.tasks import task_truths

import interlock
from interlock.nouns.tasks.retention import TaskRetention
from interlock.nouns.tasks.task import LABELS_LIMIT
from interlock.nouns.tasks.task_outcomes import Claimed, PlanChanges, PlanUpdated
from interlock.runtime.retention import RetentionLimits
from interlock.steps import drive


@with_git
def test_a_lost_worker_is_seen_explained_put_back_and_told(url: str) -> None:
    with interlock.connect(url, agent="ada") as fleet:
        fleet.tasks.publish("build", backoff=0)
        fleet.tasks.publish("deploy", needs=["build"])
        with interlock.connect(url, agent="bob", join=False) as bob:
            assert isinstance(
                bob.tasks.claim("build", ttl=fleet.store.capabilities.min_ttl), Claimed
            )
        found = fleet.why("deploy")
        assert (found.by, found.state) == ("bob", "blocked")
        until(lambda: [each.kind for each in fleet.health().problems] == ["stale"])
        assert fleet.why("build").because == "bob was lost, and its claim is stale"
        assert fleet.maintain().reclaimed == 1
        assert fleet.health().healthy
        claimed = fleet.tasks.claim("build")
        assert isinstance(claimed, Claimed)
        assert [each.holds for each in fleet.agents.list()] == [("task/build",)]
        fleet.tasks.complete("build", token=claimed.token)
        told = [each.what for each in fleet.record.explain("task/build").happenings]
        assert told == ["published", "claimed", "reclaimed", "claimed", "completed"]
        deploy = [each.what for each in fleet.record.explain("task/deploy").happenings]
        assert deploy == ["published", "unblocked"]
        assert fleet.why("deploy").state == "pending"


@with_git
def test_a_plan_is_changed_and_its_record_says_how(url: str) -> None:
    """More tasks than some engines take in one commit."""
    plan = [
        {"id": f"t{n:02}", "needs": [f"t{n - 1:02}"] if n % 4 else [], "labels": ["a", "b"]}
        for n in range(24)
    ]
    changed = [{**each, "priority": 2, "labels": ["b", "c"]} for each in plan[:20]]
    changed += [{"id": "new", "needs": ["t03"]}, {**plan[20], "needs": ["new"]}]
    with interlock.connect(url, agent="ada") as fleet:
        assert fleet.tasks.publish_all(plan, id="p")
        shown = fleet.tasks.update_all(changed, id="p", dry_run=True)
        done = fleet.tasks.update_all(changed, id="p")
        assert isinstance(shown, PlanChanges)
        assert isinstance(done, PlanUpdated)
        assert (len(done.new), len(done.edited), len(done.dropped)) == (1, 21, 3)
        assert (shown.new, set(shown.dropped)) == (done.new, set(done.dropped))
        repeated = fleet.tasks.update_all(changed, id="p")
        assert isinstance(repeated, PlanUpdated)
        assert (repeated.same, repeated.edited) == (22, ())
        claimed = fleet.tasks.claim("t00")
        assert isinstance(claimed, Claimed)
        refused = fleet.tasks.edit("t00", priority=1)
        assert not refused
        fleet.tasks.complete("t00", token=claimed.token)
        assert fleet.tasks.edit("t01", title="Next")
        story = fleet.record.explain("task/t01").happenings
        assert [each.what for each in story] == ["published", "edited", "unblocked", "edited"]
        assert story[1].changed == {"labels": [["a", "b"], ["b", "c"]], "priority": [5, 2]}
        assert len(fleet.tasks.list(label=["c"])) == 19
        complaints = task_truths.complaints(_without_batches(task_truths.look(fleet.store)))
        assert complaints == []


def _without_batches(board: task_truths.Board) -> task_truths.Board:
    for part in (board.statuses, board.specs):
        for batch in [name for name in part if name.startswith("+")]:
            part.pop(batch)
    return board


def test_labels_and_notes_come_and_go_with_their_tasks(url: str) -> None:
    """As many labels as a task may have: an engine takes few of these tasks in one commit."""
    labels = [f"l{number:02}" for number in range(LABELS_LIMIT)]
    plan = [
        {"id": f"t{number}", "title": f"Part {number}", "labels": labels} for number in range(8)
    ]
    with interlock.connect(url, agent="ada") as fleet:
        assert fleet.tasks.publish_all(
            [*plan, {"id": "all", "needs": [each["id"] for each in plan]}]
        )
        assert len(fleet.tasks.list(label=["l00", "l31"], title="part", limit=5)) == 5
        for number in range(130):
            fleet.tasks.note("t0", f"note {number}")
        assert getattr(fleet.tasks.tree(), "roots", None) == ("all",)
        for each in plan:
            claimed = fleet.tasks.claim(str(each["id"]))
            assert isinstance(claimed, Claimed)
            fleet.tasks.complete(claimed.task, token=claimed.token)
        context, none = fleet.context, RetentionLimits(age=0.0, count=0)
        deleting = TaskRetention(context.runner, none).run(context.me().actor)
        assert drive(deleting, fleet.store).forgotten >= len(plan)
        board = task_truths.look(fleet.store)
        assert [*board.statuses] == ["all"]
        assert task_truths.complaints(board) == []
