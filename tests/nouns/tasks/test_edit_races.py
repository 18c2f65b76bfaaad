"""Two clients change one task at the same time: each order of their steps has one meaning.

The first makes some of its steps, then the second some of its own, then both finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from tests.nouns.tasks import task_truths

from interlock.errors import BadInput
from interlock.nouns.tasks import task_outcomes
from interlock.steps import Op
from interlock.testing.testbed import Client, Stepper, Testbed

Act: TypeAlias = Callable[[Client], Op[Any]]
MOST = 14
"""More steps than any of these operations takes before it is done, if nothing conflicts."""


def scene() -> tuple[Testbed, Client, Client]:
    stage = Testbed()
    ada, bob = stage.remote("ada", ttl=60.0), stage.remote("bob", ttl=60.0)
    for name in ("a", "b", "need"):
        assert ada.run(ada.tasks.publish(name, name, labels=["old"]))
    return stage, ada, bob


def begun(client: Client, op: Op[Any]) -> Stepper[Any]:
    """An operation before its first step."""
    return Stepper(op, client.store, client.clock)


def results(first: Act, second: Act, before: Act | None = None) -> Iterator[tuple[Any, Any, Any]]:
    """The outcomes of both, and what is in the store, after each order of their steps."""
    for steps in range(MOST):
        for others in range(MOST):
            stage, ada, bob = scene()
            if before is not None:
                bob.run(before(bob))
            one, two = begun(ada, first(ada)), begun(bob, second(bob))
            for running, number in ((one, steps), (two, others)):
                for _ in range(number):
                    running.go()
            one.run()
            two.run()
            board = task_truths.look(stage.store)
            assert task_truths.complaints(board) == [], (steps, others)
            yield _outcome(one), _outcome(two), board


def _outcome(done: Any) -> Any:
    try:
        return done.result()
    except BadInput as error:
        return error


def both_ways(found: set[str], *wanted: str) -> None:
    assert found == set(wanted), "each of the two was first in some order"


@pytest.mark.parametrize("by_name", [True, False])
def test_an_edit_or_a_claim_is_first_and_the_other_is_told(*, by_name: bool) -> None:
    def claim(client: Client) -> Op[Any]:
        return client.tasks.claim("a") if by_name else client.tasks.next(can=["*"])

    def edit(client: Client) -> Op[Any]:
        return client.tasks.edit("a", data="new", requires=["rust"], priority=1, labels=[])

    winners = set()
    for edited, claimed, board in results(edit, claim):
        assert isinstance(claimed, task_outcomes.Claimed)
        if claimed.task != "a":
            continue
        if isinstance(edited, task_outcomes.TaskEdited):
            winners.add("edit")
            assert (claimed.data, claimed.requires) == ("new", ("rust",))
        else:
            winners.add("claim")
            assert "bob claimed it" in edited.reason
            assert (claimed.data, board.specs["a"].labels) == ("a", ("old",))
    both_ways(winners, "edit", "claim")


def test_a_need_that_is_completed_while_it_is_added_blocks_nothing() -> None:
    def complete(client: Client) -> Op[Any]:
        return client.tasks.complete("need")

    edit: Act = lambda client: client.tasks.edit("a", add_needs=["need"])  # noqa: E731
    claim: Act = lambda client: client.tasks.claim("need")  # noqa: E731
    for edited, completed, board in results(edit, complete, before=claim):
        assert isinstance(edited, task_outcomes.TaskEdited)
        assert isinstance(completed, task_outcomes.TaskCompleted)
        assert board.states()["a"] == "pending" or "need" in board.todo


def test_an_edit_and_a_cancellation_are_one_after_the_other() -> None:
    edit: Act = lambda client: client.tasks.edit("a", priority=1, add_labels=["new"])  # noqa: E731
    cancel: Act = lambda client: client.tasks.cancel("a")  # noqa: E731
    winners = set()
    for edited, cancelled, board in results(edit, cancel):
        assert cancelled == task_outcomes.TaskCancelled(task="a")
        assert board.states()["a"] == "failed"
        changed = isinstance(edited, task_outcomes.TaskEdited)
        assert board.specs["a"].labels == (("old", "new") if changed else ("old",))
        winners.add("edit" if changed else "cancel")
    both_ways(winners, "edit", "cancel")


def test_two_edits_both_happen_and_each_says_what_it_replaced() -> None:
    first: Act = lambda client: client.tasks.edit("a", add_labels=["x"], priority=1)  # noqa: E731
    second: Act = lambda client: client.tasks.edit("a", add_labels=["y"], priority=2)  # noqa: E731
    winners = set()
    for one, two, board in results(first, second):
        assert sorted(board.specs["a"].labels) == ["old", "x", "y"]
        replaced = {one.changed["priority"].old, two.changed["priority"].old}
        assert replaced | {board.specs["a"].priority} == {5, 1, 2}
        assert board.statuses["a"].edits == 2
        winners.add(str(board.specs["a"].priority))
    both_ways(winners, "1", "2")


def test_of_two_edits_that_close_a_cycle_one_is_refused() -> None:
    first: Act = lambda client: client.tasks.edit("a", add_needs=["b"])  # noqa: E731
    second: Act = lambda client: client.tasks.edit("b", add_needs=["a"])  # noqa: E731
    winners = set()
    for one, two, board in results(first, second):
        refused = [each for each in (one, two) if isinstance(each, BadInput)]
        assert len(refused) == 1
        assert "would wait for itself" in str(refused[0])
        assert len([task for task, spec in board.specs.items() if spec.needs]) == 1
        winners.add("second" if refused[0] is one else "first")
    both_ways(winners, "first", "second")


def test_a_task_is_dropped_or_claimed() -> None:
    drop: Act = lambda client: client.tasks.drop("a", "b")  # noqa: E731
    claim: Act = lambda client: client.tasks.claim("a")  # noqa: E731
    winners = set()
    for dropped, claimed, board in results(drop, claim):
        if isinstance(claimed, task_outcomes.Claimed):
            assert (dropped.task, dropped.state, board.states()["b"]) == ("a", "running", "pending")
        else:
            assert isinstance(dropped, task_outcomes.TasksDropped)
            assert (claimed.state, board.states()["b"]) == ("dropped", "dropped")
        winners.add(type(claimed).__name__)
    both_ways(winners, "Claimed", "NoTask")


def test_an_id_is_published_again_once() -> None:
    again: Act = lambda client: client.tasks.publish("a", "again", again=True)  # noqa: E731
    drop: Act = lambda client: client.tasks.drop("a")  # noqa: E731
    for one, two, _ in results(again, again, before=drop):
        kinds = sorted(type(each).__name__ for each in (one, two))
        assert kinds == ["Published", "TaskExists"]


def test_an_update_of_a_plan_leaves_alone_what_a_worker_claims_meanwhile() -> None:
    plan = [{"id": name, "data": name, "labels": ["old"]} for name in ("a", "b", "need")]
    winners = set()
    for steps in range(2 * MOST):
        stage = Testbed()
        ada, bob = stage.remote("ada", ttl=60.0), stage.remote("bob", ttl=60.0)
        ada.run(ada.tasks.publish_all(plan, id="p"))
        changed = [{**plan[0], "data": "new"}, plan[2]]
        update = begun(ada, ada.tasks.update_all(changed, id="p"))
        for _ in range(steps):
            update.go()
        claims = [bob.run(bob.tasks.claim(name)) for name in ("a", "b")]
        done: Any = update.run().result()
        left = {each.task for each in done.left}
        assert left == {each.task for each in claims if isinstance(each, task_outcomes.Claimed)} - {
            each.task for each in done.edited
        }
        for claim in claims:
            if isinstance(claim, task_outcomes.Claimed):
                assert claim.data == ("new" if claim.task not in left else claim.task)
            winners.add(type(claim).__name__)
        assert task_truths.complaints(_without_batch(stage)) == []
    both_ways(winners, "Claimed", "NoTask")


def _without_batch(stage: Testbed) -> task_truths.Board:
    board = task_truths.look(stage.store)
    for part in (board.statuses, board.specs):
        part.pop("+p", None)
    return board
