"""Tasks of phases: published with the phase, and complete before it is left."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.pipelines.pipelines import Mover, phases, run_of
from tests.nouns.tasks import task_truths

from interlock.core import keys
from interlock.errors import BadInput
from interlock.store import Txn
from interlock.testing.audit import audit
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
    assert why.meanwhile[0].startswith("task/r1.")
    ada.client.run(ada.client.tasks.complete(claim.task, token=claim.token))
    assert "1 of 2 tasks" in ada.advance().reason
    assert ada.do_tasks() == ["r1.b"]
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
