"""Editing a plan: one commit for each change, and what others see of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nouns.tasks import task_truths

from interlock.errors import BadInput
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.edit_rules import KEPT, recorded
from interlock.steps import Op
from interlock.testing.testbed import Client, Testbed


@pytest.fixture(params=["local", "remote"])
def fleet(request: pytest.FixtureRequest) -> tuple[Testbed, Client]:
    stage = Testbed()
    make = stage.client if request.param == "local" else stage.remote
    return stage, make("ada", ttl=60.0)


def run(client: Client, op: Op[Any]) -> Any:
    """The outcome, of whichever kind it has to be."""
    return client.run(op)


def add(client: Client, name: str, **terms: Any) -> None:
    assert isinstance(run(client, client.tasks.publish(name, **terms)), task_outcomes.Published)


def edit(client: Client, name: str, **terms: Any) -> Any:
    return run(client, client.tasks.edit(name, **terms))


def changes(outcome: task_outcomes.TaskEdited) -> dict[str, tuple[Any, Any]]:
    return {name: (each.old, each.new) for name, each in outcome.changed.items()}


def well(stage: Testbed) -> None:
    assert task_truths.complaints(task_truths.look(stage.store)) == []


def state(client: Client, name: str) -> str:
    found: Any = run(client, client.tasks.show(name))
    return str(found.state)


def test_an_edit_moves_a_task_in_the_queue_and_says_what_it_was(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "a")
    add(ada, "b", labels=["x"], requires=["gpu"])
    done = edit(ada, "b", priority=1, requires=[], add_labels=["y"], remove_labels=["x"])
    assert changes(done) == {
        "priority": (5, 1),
        "requires": (("gpu",), ()),
        "labels": (("x",), ("y",)),
    }
    well(stage)
    got = run(ada, ada.tasks.next())
    assert (got.task, got.priority, got.requires) == ("b", 1, ())
    well(stage)


def test_an_edit_that_changes_nothing_writes_nothing(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    add(ada, "a", priority=2)
    before = stage.store.read("meta/base").revision
    assert edit(ada, "a", priority=2) == task_outcomes.TaskEdited(task="a", state="pending")
    assert stage.store.read("meta/base").revision == before


def test_a_need_may_be_younger_than_the_task_and_blocks_it(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    add(ada, "a")
    add(ada, "b")
    done = edit(ada, "a", add_needs=["b"])
    assert (done.state, changes(done)) == ("blocked", {"needs": ((), ("b",))})
    well(stage)
    token = run(ada, ada.tasks.claim("b")).token
    assert run(ada, ada.tasks.complete("b", token=token)).unblocked == 1
    well(stage)
    assert run(ada, ada.tasks.next()).task == "a"


def test_a_task_without_its_last_need_is_ready(fleet: tuple[Testbed, Client]) -> None:
    stage, ada = fleet
    add(ada, "a")
    add(ada, "b")
    add(ada, "c", needs=["a", "b"])
    assert edit(ada, "c", remove_needs=["a"]).state == "blocked"
    well(stage)
    assert edit(ada, "c", needs=[]).state == "pending"
    well(stage)
    assert isinstance(run(ada, ada.tasks.claim("c")), task_outcomes.Claimed)


def test_needs_that_lead_back_are_refused_and_the_cycle_is_named(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "a")
    add(ada, "b", needs=["a"])
    add(ada, "c", needs=["b"])
    with pytest.raises(BadInput, match="a -> c -> b -> a; drop one of these needs"):
        edit(ada, "a", add_needs=["c"])
    with pytest.raises(BadInput, match="'a' needs itself"):
        edit(ada, "a", add_needs=["a"])
    with pytest.raises(BadInput, match="'zz', which does not exist"):
        edit(ada, "a", add_needs=["zz"])
    well(stage)
    assert state(ada, "a") == "pending"


def test_a_cycle_by_way_of_a_failed_task_is_refused(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    add(ada, "a")
    add(ada, "b", needs=["a"])
    run(ada, ada.tasks.cancel("b"))
    with pytest.raises(BadInput, match="a -> b -> a"):
        edit(ada, "a", add_needs=["b"])


def test_a_later_task_of_the_same_id_is_no_need_and_no_cycle(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "old")
    add(ada, "open")
    add(ada, "late", needs=["open", "old"])
    run(ada, ada.tasks.complete("old", token=run(ada, ada.tasks.claim("old")).token))
    forget(stage, ada)
    add(ada, "old", needs=["late"])
    add(ada, "more")
    done = edit(ada, "late", add_needs=["more"])
    assert changes(done)["needs"] == (("open", "old"), ("open", "more")), "what was complete goes"
    well(stage)
    with pytest.raises(BadInput, match="late -> old -> late"):
        edit(ada, "late", add_needs=["old"])


def forget(stage: Testbed, client: Client) -> None:
    from interlock.nouns.tasks.retention import TaskRetention
    from interlock.runtime.identity import Actor
    from interlock.runtime.retention import RetentionLimits

    stage.clock.advance(10)
    run(client, client.agents.beat())
    run(client, TaskRetention(client.runner, RetentionLimits(age=5.0, count=0)).run(Actor()))


def test_a_task_that_a_worker_has_is_not_edited_and_the_worker_is_named(
    fleet: tuple[Testbed, Client],
) -> None:
    _, ada = fleet
    add(ada, "a")
    token = run(ada, ada.tasks.claim("a")).token
    done = edit(ada, "a", priority=1)
    assert isinstance(done, task_outcomes.Unchanged)
    assert (done.state, "ada claimed it" in done.reason) == ("running", True)
    run(ada, ada.tasks.release("a", token=token))
    assert edit(ada, "a", priority=1)
    assert run(ada, ada.tasks.next()).priority == 1


def test_a_claim_that_relied_on_the_task_before_an_edit_gets_it_as_it_is_now() -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada", ttl=60.0), stage.remote("bob", ttl=60.0)
    add(ada, "a", data="old")
    claiming = bob.tasks.claim("a")
    edit(ada, "a", data="new", priority=1)
    got = run(bob, claiming)
    assert (got.data, got.priority) == ("new", 1)
    well(stage)
    run(bob, bob.tasks.fail("a", token=got.token))
    well(stage)


def test_a_worker_that_claims_again_knows_the_edit() -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada", ttl=60.0), stage.remote("bob", ttl=60.0)
    add(ada, "a")
    run(bob, bob.tasks.claim("a"))
    run(ada, ada.tasks.requeue("a", "mine"))
    edit(ada, "a", priority=1, requires=["gpu"])
    got = run(bob, bob.tasks.next(can=["gpu"]))
    run(bob, bob.tasks.release("a", token=got.token))
    well(stage)


def test_a_task_at_its_gate_and_one_that_rests_can_be_edited(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "kept", guard=["nowhere"])
    add(ada, "later", not_before=60)
    add(ada, "need")
    add(ada, "failed", backoff=30)
    run(ada, ada.tasks.fail("failed", token=run(ada, ada.tasks.claim("failed")).token))
    for name in ("kept", "later", "failed"):
        assert edit(ada, name, priority=2, requires=["gpu"])
        well(stage)
        assert edit(ada, name, add_needs=["need"]).state == "blocked"
        well(stage)
        assert edit(ada, name, remove_needs=["need"])
        well(stage)


def test_a_moment_that_is_put_off_keeps_a_task_and_one_that_is_taken_away_lets_it_begin(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "queued")
    add(ada, "failed", backoff=30)
    add(ada, "kept", guard=["nowhere"])
    run(ada, ada.tasks.fail("failed", token=run(ada, ada.tasks.claim("failed")).token))
    for name in ("queued", "failed", "kept"):
        assert changes(edit(ada, name, not_before="1h"))["not_before"][0] is None
        well(stage)
        blocked = run(ada, ada.tasks.claim(name))
        assert 3500 < blocked.retry_in <= 3600, "also that of a task that rests, or is at its gate"
    for name, state_then in (("queued", "pending"), ("failed", "pending"), ("kept", "blocked")):
        assert edit(ada, name, not_before=None).state == state_then
        well(stage)
    assert run(ada, ada.tasks.claim("queued")).task == "queued"
    assert run(ada, ada.tasks.claim("failed")).attempt == 2


def test_a_task_is_checked_by_the_guards_that_an_edit_gives_it(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "a")
    add(ada, "b")
    done = edit(ada, "a", add_guard="nowhere")
    assert (done.state, changes(done)) == ("blocked", {"guards": ((), ("nowhere",))})
    assert run(ada, ada.tasks.claim("a")).guard == "nowhere"
    assert run(ada, ada.tasks.next()).task == "b"
    well(stage)
    assert edit(ada, "a", guard=()).state == "pending"
    well(stage)
    assert edit(ada, "a", add_evidence="nowhere").state == "pending"
    well(stage)
    token = run(ada, ada.tasks.claim("a")).token
    assert isinstance(run(ada, ada.tasks.complete("a", token=token)), task_outcomes.EvidenceMissing)


def test_a_new_deadline_counts_from_the_edit_and_none_never_ends(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    for name in ("sooner", "later", "never"):
        add(ada, name, deadline=10)
    stage.clock.advance(5.0)
    edit(ada, "sooner", deadline=1)
    edit(ada, "later", deadline=10)
    edit(ada, "never", deadline=None)
    well(stage)
    stage.clock.advance(6.0)
    assert run(ada, ada.tasks.claim("sooner")).state == "dead"
    assert [run(ada, ada.tasks.claim(name)).task for name in ("later", "never")]
    well(stage)


def test_times_that_leave_no_moment_to_begin_are_refused(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    add(ada, "a", not_before="2h")
    with pytest.raises(BadInput, match="no worker could begin it in time; change both"):
        edit(ada, "a", deadline="1h")
    with pytest.raises(BadInput, match="over already"):
        edit(ada, "a", deadline="2020-01-01T00:00")
    assert edit(ada, "a", deadline="1h", not_before=None).state == "pending"


def test_a_dropped_task_blocks_its_dependents_until_they_are_edited(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "a", labels=["x"], data={"much": 1})
    add(ada, "b", needs=["a"])
    assert run(ada, ada.tasks.drop("a", reason="not wanted")) == task_outcomes.TasksDropped(
        tasks=("a",), blocked=("b",)
    )
    well(stage)
    assert isinstance(run(ada, ada.tasks.next()), task_outcomes.NoTask)
    assert (state(ada, "a"), state(ada, "b")) == ("dropped", "blocked")
    assert [each.task for each in run(ada, ada.tasks.list()).tasks] == ["b"]
    assert [each.task for each in run(ada, ada.tasks.list(state=["dropped"])).tasks] == ["a"]
    assert isinstance(run(ada, ada.tasks.retry("a")), task_outcomes.Unchanged)
    assert run(ada, ada.tasks.drop("a")), "it was dropped before"
    forget(stage, ada)
    assert state(ada, "a") == "dropped", "a need that is gone would count as complete"
    assert edit(ada, "b", remove_needs=["a"]).state == "pending"
    forget(stage, ada)
    well(stage)
    assert isinstance(run(ada, ada.tasks.show("a")), task_outcomes.NoTask)


def test_tasks_are_dropped_together_or_not_at_all(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    add(ada, "a")
    add(ada, "b")
    token = run(ada, ada.tasks.claim("b")).token
    refused = run(ada, ada.tasks.drop("a", "b"))
    assert (refused.task, refused.state, state(ada, "a")) == ("b", "running", "pending")
    run(ada, ada.tasks.fail("b", token=token))
    assert "1 of its attempts failed" in run(ada, ada.tasks.drop("b")).reason
    assert run(ada, ada.tasks.drop("zz")).state == "unknown"


def test_an_ended_id_is_used_again_only_if_asked_and_its_tokens_rise(
    fleet: tuple[Testbed, Client],
) -> None:
    stage, ada = fleet
    add(ada, "a", deadline=50, labels=["x"])
    add(ada, "b", needs=["a"])
    first = run(ada, ada.tasks.claim("a")).token
    run(ada, ada.tasks.note("a", "the disk was full"))
    run(ada, ada.tasks.fail("a", "no", token=first, retry=False, error="why"))
    assert isinstance(run(ada, ada.tasks.publish("a")), task_outcomes.TaskExists)
    add(ada, "c")
    again = run(ada, ada.tasks.publish("a", "new", needs=["c"], again=True))
    assert (again.state, again.ended) == ("blocked", ())
    assert run(ada, ada.tasks.note("a", "try again")).note == 2, "notes stay"
    view = run(ada, ada.tasks.show("a"))
    assert [each.text for each in view.notes] == ["the disk was full", "try again"]
    well(stage)
    run(ada, ada.tasks.complete("c", token=run(ada, ada.tasks.claim("c")).token))
    got = run(ada, ada.tasks.claim("a"))
    assert (got.data, got.attempt, got.token > first) == ("new", 1, True)
    assert isinstance(run(ada, ada.tasks.complete("a", token=first)), task_outcomes.TaskFenced)
    assert run(ada, ada.tasks.complete("a", token=got.token)).unblocked == 1, "b waited for it"
    assert isinstance(run(ada, ada.tasks.publish("a", again=True)), task_outcomes.TaskExists), (
        "complete"
    )
    well(stage)


def test_an_id_that_is_used_again_makes_no_cycle(fleet: tuple[Testbed, Client]) -> None:
    _, ada = fleet
    add(ada, "a")
    add(ada, "b", needs=["a"])
    run(ada, ada.tasks.drop("a"))
    with pytest.raises(BadInput, match="a -> b -> a"):
        run(ada, ada.tasks.publish("a", needs=["b"], again=True))


def test_two_edits_at_the_same_time_make_no_cycle() -> None:
    stage = Testbed()
    ada, bob = stage.remote("ada", ttl=60.0), stage.remote("bob", ttl=60.0)
    add(ada, "a")
    add(ada, "b")
    first = bob.tasks.edit("b", add_needs=["a"])
    assert edit(ada, "a", add_needs=["b"])
    with pytest.raises(BadInput, match="b -> a -> b"):
        run(bob, first)
    well(stage)


@pytest.mark.parametrize("value", ["x" * 70_000, tuple(map(str, range(5000))), {"k": "y" * 9000}])
def test_a_long_value_is_cut_in_the_record_and_named_by_its_digest(value: object) -> None:
    short = recorded(value)
    assert len(str(short)) < KEPT
    assert "SHA-256" in str(short) or "more" in str(short)


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"labels": ["x"], "add_labels": ["y"]},
        {"add_needs": ["x"], "remove_needs": ["x"]},
        {"priority": 10**7},
        {"add_labels": [" "]},
        {"labels": "x"},
        {"guard": ["x"], "add_guard": "y"},
        {"retries": -1},
        {"not_before": "soon"},
        {"add_requires": [str(number) for number in range(40)]},
    ],
)
def test_an_edit_that_makes_no_sense_is_refused_before_anything_is_read(
    terms: dict[str, Any],
) -> None:
    stage = Testbed()
    ada = stage.client("ada", ttl=60.0)
    with pytest.raises(BadInput):
        run(ada, ada.tasks.edit("a", **terms))
