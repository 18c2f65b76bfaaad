"""Tasks of phases: published with the phase, and complete before it is left."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from tests.nouns.pipelines.pipelines import Mover, phases, run_of
from tests.nouns.tasks import task_truths
from tests.nouns.tasks.gated import FREE, Agent, status_of

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.pipelines import phase_tasks
from interlock.store import Txn
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Testbed

TASKS = 'tasks = [{id = "b", needs = ["a"]}, {id = "a", data = {x = 1}, requires = ["rust"]}]'


@pytest.fixture
def bed() -> Testbed:
    return Testbed()


@pytest.fixture(params=["local", "remote"])
def ada(bed: Testbed, request: pytest.FixtureRequest) -> Mover:
    return Mover(bed.client("ada") if request.param == "local" else bed.remote("ada"))


def test_entering_a_phase_publishes_its_tasks_in_the_same_commit(bed: Testbed, ada: Mover) -> None:
    ada.define(phases("", TASKS))
    ada.start()
    before = bed.store.read().revision
    ada.advance()
    assert bed.store.read().revision == before + 1
    shown: Any = ada.client.run(ada.client.tasks.show("r1.a"))
    assert (shown.state, shown.data, shown.requires) == ("pending", {"x": 1}, ("rust",))
    assert shown.published_by == "ada"
    second: Any = ada.client.run(ada.client.tasks.show("r1.b"))
    assert second.on == "r1.a"
    assert task_truths.complaints(task_truths.look(bed.store)) == []
    assert audit(bed.store) == []


def test_the_phase_is_done_when_its_tasks_are_complete(bed: Testbed, ada: Mover) -> None:
    ada.define(phases(TASKS, ""))
    ada.start()
    assert run_of(bed.store).asked  # it goes on by itself
    blocked = ada.advance()
    assert (blocked.guard, blocked.leaf) == ("p/one/tasks", "tasks-complete=r1.")
    assert "2 of 2 tasks" in blocked.reason
    claim: Any = ada.client.run(ada.client.tasks.next(can=["*"]))
    why = ada.client.run(ada.client.fleet.why("pipeline/r1"))
    assert why.by == "ada"
    assert (why.guard, why.leaf) == ("p/one/tasks", "tasks-complete=r1.")
    assert [(each.thing, each.by) for each in why.chain] == [("task/r1.b", "ada")]
    assert why.chain[0].because.startswith(f"it needs {claim.task} (running): ada has worked on it")
    ada.client.run(ada.client.tasks.complete(claim.task, token=claim.token))
    assert "1 of 2 tasks" in ada.advance().reason
    assert ada.do_tasks() == ["r1.b"]
    assert run_of(bed.store).phase == "two"


def test_a_task_of_a_phase_may_have_guards_and_evidence(bed: Testbed, ada: Mover) -> None:
    agent = Agent(ada.client)
    agent.define(FREE)
    ada.lock("deploy")
    ada.define(phases('tasks = [{id = "a", guard = ["calm"], evidence = ["calm"]}]', ""))
    ada.start()
    assert status_of(bed.store, "r1.a").guard == "calm"
    agent.unlock("deploy")
    assert agent.claim("r1.a")
    agent.lock("deploy")
    assert not agent.complete("r1.a")
    agent.unlock("deploy")
    assert agent.complete("r1.a")
    assert run_of(bed.store).phase == "two"


def test_the_tasks_of_two_pipelines_do_not_collide(bed: Testbed, ada: Mover) -> None:
    ada.define(phases(TASKS))
    ada.start()
    ada.start(id_="r2")
    assert sorted(ada.do_tasks()) == ["r1.a", "r1.b", "r2.a", "r2.b"]
    assert [run_of(bed.store, each).state for each in ("r1", "r2")] == ["complete"] * 2


def test_a_failed_task_blocks_the_phase_until_it_is_retried(bed: Testbed, ada: Mover) -> None:
    ada.define(phases('tasks = [{id = "a"}]', ""))
    ada.start()
    claim: Any = ada.client.run(ada.client.tasks.next())
    ada.client.run(ada.client.tasks.fail(claim.task, "no", token=claim.token, retry=False))
    blocked = ada.advance()
    assert blocked.acts == ("retry task r1.a (failed)",)
    ada.client.run(ada.client.tasks.retry("r1.a"))
    ada.do_tasks()
    assert run_of(bed.store).phase == "two"


def test_a_task_may_need_tasks_of_earlier_phases_and_of_others(bed: Testbed, ada: Mover) -> None:
    ada.define(phases('tasks = [{id = "a"}]', 'tasks = [{id = "b", needs = ["a", "outside"]}]'))
    ada.start()
    ada.do_tasks()
    blocked = ada.advance()
    assert blocked.reason == "a task of the phase needs outside, which does not exist"
    ada.client.run(ada.client.tasks.publish("outside"))
    assert run_of(bed.store).phase == "two"
    assert ada.do_tasks() == ["outside", "r1.b"]


def test_a_task_that_another_published_under_its_id_blocks_the_phase(ada: Mover) -> None:
    ada.define(phases("", 'tasks = [{id = "a"}]'))
    ada.start()
    ada.client.run(ada.client.tasks.publish("r1.a"))
    assert "there is a task r1.a already" in ada.advance().reason


def test_a_task_that_is_gone_is_unknown_and_may_be_published_again(
    bed: Testbed, ada: Mover
) -> None:
    ada.define(phases('tasks = [{id = "a"}]\npost = [{lock_free = "x"}]', ""))
    ada.start()
    token = ada.lock("x")
    ada.do_tasks()
    parts = (keys.status("r1.a"), keys.data("r1.a"))
    bed.store.commit(Txn(id="txn_retention", deletes=parts, quiet=True))
    blocked = ada.advance()
    assert "task r1.a does not exist any more" in blocked.reason
    ada.client.run(ada.client.tasks.publish("r1.a"))
    ada.unlock("x", token)
    ada.do_tasks()
    assert run_of(bed.store).phase == "two"


def test_a_task_that_needs_one_of_a_later_phase_is_refused_when_defined(ada: Mover) -> None:
    with pytest.raises(BadInput, match="'a' of phase 'one' needs 'b', which a later phase"):
        ada.define(phases('tasks = [{id = "a", needs = ["b"]}]', 'tasks = [{id = "b"}]'))


def test_a_task_whose_whole_id_is_too_long_is_refused_when_started(ada: Mover) -> None:
    ada.define(phases(f'tasks = [{{id = "{"x" * 200}"}}]'))
    with pytest.raises(BadInput, match="task id"):
        ada.start(id_="r" * 200)


def test_a_pipeline_that_is_cancelled_cancels_its_open_tasks_with_it(
    bed: Testbed, ada: Mover
) -> None:
    """Those that wait, those that are blocked, and those that a worker has."""
    names = ("done", "runs", "rests", "waits")
    tasks = ", ".join(f'{{id = "{name}"}}' for name in names)
    ada.define(phases(f'tasks = [{tasks}, {{id = "needs", needs = ["waits"]}}]', ""))
    ada.start()
    worker = Mover(bed.remote("worker"))
    claims: list[Any] = [worker.client.run(worker.client.tasks.next()) for _ in names[:3]]
    tasks_of = worker.client.tasks
    worker.client.run(tasks_of.complete(claims[0].task, token=claims[0].token))
    worker.client.run(tasks_of.fail(claims[2].task, "later", token=claims[2].token))
    before = bed.store.read().revision
    assert ada.cancel(reason="off").tasks == 4
    assert bed.store.read().revision <= before + 2
    views: dict[str, Any] = {
        name: ada.client.run(ada.client.tasks.show(f"r1.{name}")) for name in (*names, "needs")
    }
    assert views.pop("done").state == "complete"
    assert {view.state for view in views.values()} == {"failed"}
    assert views["runs"].reason == "cancelled by ada: pipeline r1 was cancelled: off"
    fenced = worker.client.run(tasks_of.complete(claims[1].task, token=claims[1].token))
    assert not fenced
    story = ada.client.run(ada.client.record.explain("task/r1.waits"))
    assert [each.what for each in story.happenings] == ["published", "cancelled"]
    assert worker.do_tasks() == []
    assert task_truths.complaints(task_truths.look(bed.store)) == []
    assert audit(bed.store) == []


def test_tasks_that_do_not_fit_into_the_commit_are_cancelled_right_after_it(
    bed: Testbed, ada: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = ", ".join(f'{{id = "t{number}"}}' for number in range(10))
    ada.define(phases(f"tasks = [{tasks}]"))
    ada.start()
    monkeypatch.setattr(phase_tasks, "most_cancelled", lambda *_: 3)
    assert ada.cancel().tasks == 10
    run = run_of(bed.store)
    assert (run.state, run.closing) == ("cancelled", False)
    assert Mover(bed.client("zoe")).do_tasks() == []
    assert audit(bed.store) == []


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_tasks_that_a_client_did_not_come_to_cancel_are_cancelled_by_another(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(phase_tasks, "most_cancelled", lambda *_: 3)
    tasks = ", ".join(f'{{id = "t{number}"}}' for number in range(10))
    for commit in range(6):
        bed = Testbed()
        ada = Mover(bed.remote("ada"))
        ada.define(phases(f"tasks = [{tasks}]"))
        ada.start()
        ada.client.network.script([None] * commit + [fault])
        with suppress(Crash):
            ada.cancel()
        zoe = Mover(bed.client("zoe"))
        zoe.client.run(zoe.client.fleet.maintain())
        ended = run_of(bed.store).state == "cancelled"
        assert len(zoe.do_tasks()) == (0 if ended else 10), commit
        assert audit(bed.store) == []


def test_a_pipeline_that_ends_leaves_other_tasks_alone(ada: Mover) -> None:
    ada.define(phases('tasks = [{id = "a"}]'))
    ada.client.run(ada.client.tasks.publish("r1.other"))
    ada.start()
    assert ada.cancel().tasks == 1
    assert ada.do_tasks() == ["r1.other"]
