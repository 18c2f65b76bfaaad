"""A plan is imported, changed, and imported again."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from tests.nouns.tasks import task_truths
from tests.nouns.tasks.test_edit import run

from interlock.errors import BadInput
from interlock.nouns.record.calls import RecordCalls
from interlock.nouns.tasks import task_outcomes
from interlock.steps import Op
from interlock.testing.audit import audit
from interlock.testing.faults import Crash, Fault
from interlock.testing.testbed import Client, Testbed

Entry = dict[str, Any]
FIRST: list[Entry] = [
    {"id": "spec", "title": "Write it down", "priority": 2},
    {"id": "build", "needs": ["spec"], "labels": ["ci"], "data": {"steps": 1}},
    {"id": "test", "needs": ["build"]},
    {"id": "old", "labels": ["ci"]},
    {"id": "ship", "needs": ["test", "old"]},
]
SECOND: list[Entry] = [
    {"id": "spec", "title": "Write it down", "priority": 2},
    {"id": "lint", "requires": ["rust"]},
    {"id": "build", "needs": ["spec", "lint"], "labels": ["ci", "slow"], "data": {"steps": 2}},
    {"id": "test", "needs": ["build"], "priority": 1, "text": "All of them."},
    {"id": "ship", "needs": ["test"]},
]


@pytest.fixture(params=["local", "remote", "cramped"])
def fleet(request: pytest.FixtureRequest) -> tuple[Testbed, Client]:
    stage = Testbed()
    if request.param == "local":
        return stage, stage.client("ada", ttl=600.0)
    return stage, cramped(stage, "ada", 60 if request.param == "cramped" else 1000)


def cramped(stage: Testbed, name: str, operations: int) -> Client:
    client = stage.remote(name, ttl=600.0)
    small = replace(client.runner.capabilities, max_operations=operations)
    client.runner.capabilities = small
    return client


def imports(client: Client, plan: list[Entry]) -> Any:
    return run(client, client.tasks.publish_all(plan, id="release"))


def update(client: Client, plan: list[Entry], **terms: Any) -> Any:
    return run(client, client.tasks.update_all(plan, **{"id": "release", **terms}))


def sound(stage: Testbed) -> task_truths.Board:
    board = task_truths.look(stage.store)
    plain = {id_: each for id_, each in board.statuses.items() if not id_.startswith("+")}
    board.statuses = plain
    board.specs = {id_: each for id_, each in board.specs.items() if id_ in plain}
    assert task_truths.complaints(board) == []
    return board


def kinds(done: Any) -> tuple[list[str], dict[str, list[str]], list[str], list[str]]:
    edited = {each.task: sorted(each.changed) for each in done.edited}
    return sorted(done.new), edited, sorted(done.dropped), sorted(each.task for each in done.left)


ALL: tuple[list[str], dict[str, list[str]], list[str], list[str]] = (
    ["lint"],
    {
        "build": ["data", "labels", "needs"],
        "test": ["priority", "text"],
        "ship": ["needs"],
    },
    ["old"],
    [],
)


def test_a_changed_plan_is_shown_first_and_then_applied(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    imports(ada, FIRST)
    before = stage.store.read("meta/base").revision
    shown = update(ada, SECOND, dry_run=True)
    assert isinstance(shown, task_outcomes.PlanChanges)
    assert (kinds(shown), shown.same) == (ALL, 1)
    assert stage.store.read("meta/base").revision == before, "nothing was written"
    done = update(ada, SECOND)
    assert isinstance(done, task_outcomes.PlanUpdated)
    assert kinds(done) == ALL
    board = sound(stage)
    assert board.states() == {
        "spec": "pending",
        "lint": "pending",
        "build": "blocked",
        "test": "blocked",
        "ship": "blocked",
        "old": "dropped",
    }
    assert board.specs["build"].needs == ("spec", "lint")
    again = update(ada, SECOND)
    assert (kinds(again), again.same) == (([], {}, [], []), 5), "it is that plan by now"
    assert isinstance(imports(ada, SECOND), task_outcomes.PlanExists)
    back = update(ada, FIRST)
    assert (back.new, back.dropped) == (("old",), ("lint",)), "what was dropped is published again"
    sound(stage)


def test_tasks_that_run_or_have_ended_are_left_alone_and_named(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    imports(ada, FIRST)
    run(ada, ada.tasks.claim("old"))
    token = run(ada, ada.tasks.claim("spec")).token
    run(ada, ada.tasks.complete("spec", token=token))
    run(ada, ada.tasks.cancel("test"))
    done = update(ada, [{**SECOND[0], "priority": 9}, *SECOND[1:]])
    assert {each.task: each.state for each in done.left} == {
        "spec": "complete",
        "old": "running",
        "test": "failed",
    }
    assert kinds(done)[:3] == (["lint"], {name: ALL[1][name] for name in ("build", "ship")}, [])
    sound(stage)


def test_guards_and_times_of_a_changed_plan_are_changed(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    plan: list[Entry] = [{"id": "a", "deadline": "2h"}, {"id": "b", "not_before": "1h"}]
    imports(ada, plan)
    began = run(ada, ada.tasks.show("b")).not_before
    stage.clock.advance(60.0)
    assert update(ada, plan).same == 2, "a duration counts from the publishing"
    done = update(ada, [{"id": "a"}, {"id": "b", "guard": ["calm"], "not_before": "3h"}])
    assert kinds(done)[1] == {"a": ["deadline"], "b": ["guards", "not_before"]}
    sound(stage)
    a, b = run(ada, ada.tasks.show("a")), run(ada, ada.tasks.show("b"))
    assert (a.deadline, b.guards) == (None, ("calm",))
    assert b.not_before == pytest.approx(began + 7200, abs=0.01)


def test_a_plan_that_was_never_imported_is_imported(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    done = update(ada, FIRST)
    assert (type(done), done.tasks) == (task_outcomes.Imported, 5)


def test_a_task_of_another_plan_is_not_touched(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    imports(ada, FIRST)
    before = stage.store.read("meta/base").revision
    other = update(ada, [{"id": "spec", "priority": 7}], id="other")
    assert isinstance(other, task_outcomes.PlanExists)
    assert (other.task, "belongs to the plan release" in other.reason) == ("spec", True)
    assert stage.store.read("meta/base").revision == before


@pytest.mark.parametrize("remote", [False, True])
def test_a_task_that_another_agent_publishes_during_the_update_is_not_touched(remote: bool) -> None:
    outcomes = set[type]()
    for moment in range(40):
        stage = Testbed()
        ada, bob = (
            (stage.remote if remote else stage.client)(name, ttl=600.0) for name in ("ada", "bob")
        )
        imports(ada, FIRST)

        def during(op: Op[Any], bob: Client = bob, moment: int = moment) -> Op[Any]:
            answer = None
            for number in count():
                if number == moment:
                    run(bob, bob.tasks.publish("lint", title="bob's own"))
                try:
                    answer = yield op.send(answer)
                except StopIteration as done:
                    return done.value
            raise AssertionError

        outcome = run(ada, during(ada.tasks.update_all(SECOND, id="release")))
        spec = sound(stage).specs["lint"]
        assert (spec.title, spec.plan) in (("bob's own", ""), ("", "release"))
        outcomes.add(type(outcome))
        if spec.plan:
            break
    assert outcomes == {task_outcomes.PlanExists, task_outcomes.PlanUpdated}


def test_of_a_plan_without_a_name_nothing_is_dropped(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    run(ada, ada.tasks.publish_all(FIRST))
    done = update(ada, SECOND, id=None)
    assert kinds(done) == (*ALL[:2], [], [])


def test_mistakes_of_a_changed_plan_are_found_before_anything_is_written(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    imports(ada, FIRST)
    run(ada, ada.tasks.publish("mine", needs=["ship"]))
    before = stage.store.read("meta/base").revision
    with pytest.raises(BadInput, match=r"would wait for itself: .*mine.*; drop one of these needs"):
        update(ada, [{**FIRST[0], "needs": ["mine"]}, *FIRST[1:]])
    with pytest.raises(BadInput, match="neither in the plan nor in the store"):
        update(ada, [{**FIRST[0], "needs": ["zz"]}, *FIRST[1:]])
    with pytest.raises(BadInput, match="these need each other: spec -> build -> spec"):
        update(ada, [{**FIRST[0], "needs": ["build"]}, *FIRST[1:]])
    assert stage.store.read("meta/base").revision == before


@pytest.mark.parametrize("operations", [60, 1000])
@pytest.mark.parametrize("fault", ["crash before", "crash after", "lost reply", "late arrival"])
def test_an_update_that_was_struck_is_finished_by_the_next(fault: Fault, operations: int) -> None:
    for commit in count():
        stage = Testbed()
        ada = cramped(stage, "ada", operations)
        imports(ada, FIRST)
        ada.network.script([None] * commit + [fault])
        struck = False
        try:
            update(ada, SECOND)
        except Crash:
            struck = True
        sound(stage)
        bob = cramped(stage, "bob", operations)
        assert isinstance(update(bob, SECOND), task_outcomes.PlanUpdated)
        board = sound(stage)
        assert board.specs["build"].needs == ("spec", "lint")
        assert board.states()["old"] == "dropped"
        assert audit(stage.store) == []
        if not struck and not ada.network.drawn:
            assert commit >= (2 if operations == 60 else 1)
            return


def test_an_update_after_a_killed_import_begins_anew() -> None:
    stage = Testbed()
    ada = cramped(stage, "ada", 40)
    ada.network.script([None, "crash after"])
    with pytest.raises(Crash):
        imports(ada, FIRST)
    stage.clock.advance(120)
    bob = stage.remote("bob", ttl=600.0)
    assert isinstance(update(bob, SECOND), task_outcomes.Imported)
    assert "old" not in sound(stage).states()


def test_500_tasks_are_imported_changed_and_imported_again(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    plan = [
        {"id": f"t{n:03}", "needs": [f"t{n - 1:03}"] if n % 10 else [], "title": f"Step {n}"}
        for n in range(500)
    ]
    imports(ada, plan)
    changed = [{**task, "priority": 2} if n % 5 == 3 else task for n, task in enumerate(plan)]
    changed = [*changed[:490], {"id": "new", "needs": ["t489"]}]
    changed[7] = {**changed[7], "title": "Another", "needs": ["t006", "t015"]}
    done = update(ada, changed)
    new, edited, dropped, left = kinds(done)
    assert (new, len(edited), len(dropped), left) == (["new"], 99, 10, [])
    assert edited["t007"] == ["needs", "title"]
    sound(stage)
    assert kinds(update(ada, changed)) == ([], {}, [], [])
    run(ada, ada.tasks.edit("t007", priority=1))
    story = run(ada, RecordCalls(ada.context).explain("task/t007"))
    edits = [each.changed for each in story.happenings if each.what == "edited"]
    assert edits == [
        {"title": ["Step 7", "Another"], "needs": [["t006"], ["t006", "t015"]]},
        {"priority": [5, 1]},
    ]
    assert audit(stage.store) == []
