"""What people see of tasks, and what looking costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.core import codec, keys
from interlock.errors import BadInput, BadName, StoreDamaged
from interlock.nouns.tasks import views
from interlock.nouns.tasks.task import STATES, NoTask, Spec, TaskStatus
from interlock.nouns.tasks.task_view import TaskList, TaskView
from interlock.store import Committed, Put, Range, Ref, Snapshot, Txn
from interlock.testing.testbed import Client, Testbed


@pytest.fixture
def stage() -> Testbed:
    return Testbed()


@pytest.fixture
def ada(stage: Testbed) -> Client:
    return stage.client("ada")


def publish(client: Client, *tasks: str, **terms: Any) -> None:
    for task in tasks:
        client.run(client.tasks.publish(task, **terms))


def complete(client: Client, *tasks: str) -> None:
    for task in tasks:
        client.run(client.tasks.claim(task))
        client.run(client.tasks.complete(task))


def listed(client: Client, **query: Any) -> list[str]:
    """The ids, page after page."""
    found: list[str] = []
    while True:
        page = client.run(client.tasks.list(**query))
        found += [task.task for task in page.tasks]
        if not page.more:
            return found
        query["after"] = page.more


def show(client: Client, task: str) -> TaskView:
    found = client.run(client.tasks.show(task))
    assert isinstance(found, TaskView)
    return found


def one_in_each_state(client: Client) -> None:
    publish(client, *STATES, retries=0)
    client.run(client.tasks.publish("on", needs=["pending"]))
    client.run(client.tasks.cancel("blocked"))
    client.run(client.tasks.retry("blocked"))
    for task in ("running", "dead"):
        client.run(client.tasks.claim(task))
    complete(client, "complete")
    client.run(client.tasks.cancel("failed", "no"))
    client.run(client.tasks.fail("dead", "bad luck"))


def test_all_that_is_not_complete_is_listed_by_id(ada: Client) -> None:
    one_in_each_state(ada)
    states = {task.task: task.state for task in ada.run(ada.tasks.list()).tasks}
    assert states == {
        "blocked": "pending",
        "dead": "dead",
        "failed": "failed",
        "on": "blocked",
        "pending": "pending",
        "running": "running",
    }
    assert list(states) == sorted(states)
    assert listed(ada, all=True) == sorted([*states, "complete"])
    assert listed(ada, state=["complete"]) == ["complete"]
    assert listed(ada, state=["dead", "running"]) == ["dead", "running"]
    assert listed(ada, state=["complete", "running"]) == ["complete", "running"]


def test_a_list_is_filtered_by_label_requirement_worker_and_prefix(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    publish(ada, "a", "b/1", labels=["red"], requires=["gpu"])
    publish(ada, "b/2", "b", labels=["red", "big"], requires=["gpu", "rust"])
    bob.run(bob.tasks.claim("b/2"))
    ada.run(ada.tasks.claim("a"))
    assert listed(ada, label=["red"]) == ["a", "b/1", "b/2", "b"]
    assert listed(ada, label=["big", "red"]) == ["b/2", "b"]
    assert listed(ada, requires=["rust"]) == ["b/2", "b"]
    assert listed(ada, holder="bob") == ["b/2"]
    assert listed(ada, holder="bob", all=True, label=["big"]) == ["b/2"]
    assert listed(ada, holder="bob", state=["pending"]) == []
    assert listed(ada, prefix="b") == ["b/1", "b/2", "b"]
    assert listed(ada, prefix="b/", all=True) == ["b/1", "b/2"]


@pytest.mark.parametrize("query", [{}, {"all": True}, {"state": ["pending", "complete"]}])
def test_pages_join_to_the_whole_whatever_the_ids_and_the_way(
    ada: Client, query: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids with signs that sort before and after the separator of keys."""
    ids = ["a", "a-b", "a.b", "a/b", "a0", "a:b", "A", "a/b/c", "a/b-c", "aa", "z" * 200]
    publish(ada, *ids)
    whole = listed(ada, **query)
    assert sorted(whole) == sorted(ids)
    for limit in (1, 2, 5):
        assert listed(ada, limit=limit, **query) == whole
    for few, sparse, most in ((-10, 16, -1), (-10, 0, -1), (-10, 0, 10_000), (-10, 1, 10_000)):
        monkeypatch.setattr(views, "_FEW_INDEXED", few)
        monkeypatch.setattr(views, "_SPARSE", sparse)
        monkeypatch.setattr(views, "_MOST_INDEXED", most)
        assert listed(ada, limit=3, **query) == whole


class Counting:
    """How many items were read."""

    def __init__(self, stage: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.items = 0
        read = stage.store.read

        def counted(*refs: Ref, **options: Any) -> Snapshot:
            snapshot = read(*refs, **options)
            self.items += len(snapshot.items) + sum(map(len, snapshot.ranges.values()))
            return snapshot

        monkeypatch.setattr(stage.store, "read", counted)


def test_what_is_complete_costs_nothing_to_leave_out(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"done{number}" for number in range(300)]
    publish(ada, *many, "b", "f", "p", "r", "x")
    complete(ada, *many)
    ada.run(ada.tasks.publish("later", not_before=60))
    ada.run(ada.tasks.publish("n", needs=["p"]))
    for task in ("r", "x"):
        ada.run(ada.tasks.claim(task))
    ada.run(ada.tasks.fail("x"))
    counting = Counting(stage, monkeypatch)
    assert len(listed(ada)) == 7
    assert counting.items < 60
    counting.items = 0
    assert len(listed(ada, all=True, limit=1000)) == 307
    assert counting.items > 600


def test_what_a_page_costs_depends_on_how_many_are_wanted_not_on_how_many_there_are(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, costs = Counting(stage, monkeypatch), []
    for first, last in ((0, 200), (200, 1500)):
        publish(ada, *[f"t{number:05d}" for number in range(first, last)])
        counting.items = 0
        page = ada.run(ada.tasks.list(limit=20))
        assert [task.task for task in page.tasks] == [f"t{number:05d}" for number in range(20)]
        costs.append(counting.items)
    assert costs[1] == costs[0] < 400


def test_open_tasks_behind_many_complete_ones_are_found_by_the_indexes(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [f"a{number:04d}" for number in range(1500)]
    publish(ada, *over, *[f"z{number:03d}" for number in range(100)])
    complete(ada, *over)
    counting = Counting(stage, monkeypatch)
    page = ada.run(ada.tasks.list(limit=10))
    assert [task.task for task in page.tasks] == [f"z{number:03d}" for number in range(10)]
    assert counting.items < 1500, "there are more than 3000"
    assert listed(ada, limit=10) == [f"z{number:03d}" for number in range(100)]


def test_a_page_of_complete_tasks_reads_only_its_part(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"done{number:03d}" for number in range(300)]
    publish(ada, *many)
    complete(ada, *many)
    counting = Counting(stage, monkeypatch)
    page = ada.run(ada.tasks.list(state=["complete"], limit=5, after="done100"))
    assert [task.task for task in page.tasks] == [f"done{n}" for n in range(101, 106)]
    assert page.more == "done105"
    assert counting.items < 100


def test_who_works_on_it_is_shown_until_its_claim_is_over(stage: Testbed, ada: Client) -> None:
    publish(ada, "t", data={"x": 1}, labels=["red"])
    claimed = ada.run(ada.tasks.claim("t", ttl=10))
    began = stage.clock.wall()
    stage.clock.advance(4.0)
    shown = show(ada, "t")
    assert (shown.state, shown.holder, shown.token) == ("running", "ada", claimed.token)  # type: ignore[union-attr]
    assert (shown.since, shown.expires_in, shown.stale) == (began, 6.0, False)
    assert (shown.session, shown.data, shown.labels) == (ada.session, {"x": 1}, ("red",))
    stage.clock.advance(7.0)
    shown = show(ada, "t")
    assert (shown.state, shown.holder, shown.stale) == ("running", "ada", True)
    assert shown.expires_in is None
    (row,) = ada.run(ada.tasks.list()).tasks
    assert row.stale


def test_whoever_completes_while_we_look_is_not_called_stale(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ada, "t")
    ada.run(ada.tasks.claim("t", ttl=10))
    read, done = stage.store.read, False

    def interrupted(*refs: Ref, **options: Any) -> Snapshot:
        nonlocal done
        if not done and any(str(ref).startswith(keys.LIVE) for ref in refs):
            done = True
            ada.run(ada.tasks.complete("t"))
        return read(*refs, **options)

    eve = stage.client("eve")
    monkeypatch.setattr(stage.store, "read", interrupted)
    shown = show(eve, "t")
    assert done
    assert (shown.state, shown.holder, shown.stale) == ("running", "ada", False)


def test_a_task_that_waits_says_for_what_and_how_long(stage: Testbed, ada: Client) -> None:
    began = stage.clock.wall()
    publish(ada, "need", "rest", backoff=8.0)
    ada.run(ada.tasks.publish("hangs", needs=["need"]))
    ada.run(ada.tasks.publish("later", not_before=60, deadline=90))
    ada.run(ada.tasks.claim("rest"))
    ada.run(ada.tasks.fail("rest", "bad luck", error=[1]))
    stage.clock.advance(2.0)
    hangs, later, rest = (show(ada, task) for task in ("hangs", "later", "rest"))
    assert (hangs.state, hangs.on, hangs.needs) == ("blocked", "need", ("need",))
    assert (later.state, later.retry_in) == ("pending", 58.0)
    assert (later.not_before, later.deadline) == (began + 60, began + 90)
    assert (rest.state, rest.attempts, rest.reason) == ("pending", 1, "bad luck")
    assert rest.error == [1]
    assert rest.retry_in is not None
    assert 6.0 <= rest.retry_in <= 8.0
    stage.clock.advance(10.0)
    assert show(ada, "rest").retry_in == 0.0


def test_what_came_of_it_and_who_did_it_is_shown(stage: Testbed, ada: Client) -> None:
    publish(ada, "t")
    bob = stage.client("bob")
    bob.run(bob.tasks.claim("t"))
    bob.run(bob.tasks.complete("t", result={"pull": 7}))
    shown = show(ada, "t")
    assert (shown.state, shown.by, shown.result) == ("complete", "bob", {"pull": 7})
    assert (shown.published_by, shown.holder) == ("ada", "")
    nothing = ada.run(ada.tasks.show("nope"))
    assert isinstance(nothing, NoTask)
    assert nothing.state == "unknown"
    assert nothing.reason.startswith("there is no task nope; ")


def test_a_batch_is_no_task_and_hides_what_it_holds_back(stage: Testbed, ada: Client) -> None:
    publish(ada, "t")
    held = TaskStatus(state="blocked", on="+batch", place=-1)
    items = {
        keys.data("+batch"): Spec(at=1.0),
        keys.status("+batch"): TaskStatus(state="blocked"),
        keys.data("member"): Spec(at=1.0),
        keys.status("member"): held,
        keys.hangs("+batch", "member"): {},
    }
    put(stage, items)
    assert listed(ada) == listed(ada, all=True) == ["t"]
    shown = show(ada, "member")
    assert (shown.state, shown.on) == ("blocked", "")
    assert "import" in shown.reason
    put(stage, {keys.status("+batch"): TaskStatus(state="complete")})
    assert listed(ada) == listed(ada, all=True) == ["member", "t"], "the next client unblocks it"


def put(stage: Testbed, items: dict[str, Any]) -> None:
    puts = tuple(Put(key, codec.encode(value)) for key, value in items.items())
    assert isinstance(stage.store.commit(Txn(id="put", puts=puts, quiet=True)), Committed)


def test_wrong_words_are_refused(ada: Client) -> None:
    for query in ({"state": ["ready"]}, {"limit": 0}, {"limit": 10_001}, {"label": "red"}):
        with pytest.raises(BadInput):
            ada.run(ada.tasks.list(**query))
    for query in ({"prefix": "/"}, {"after": ""}, {"holder": "a\tb"}):
        with pytest.raises(BadName):
            ada.run(ada.tasks.list(**query))  # type: ignore[arg-type]
    assert ada.run(ada.tasks.list()) == TaskList(tasks=())


@pytest.mark.parametrize("query", [{}, {"all": True}])
def test_a_long_list_does_not_keep_the_data_of_its_tasks(
    tmp_path: Path, query: dict[str, Any]
) -> None:
    with interlock.connect(str(tmp_path / "store.db"), agent="ada") as fleet:
        for number in range(100):
            fleet.tasks.publish(f"t{number:02d}", "x" * 200_000)
        fleet.tasks.list()
        tracemalloc.start()
        listed = fleet.tasks.list(**query).tasks
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(listed) == 100
    assert most < 15_000_000, "of 20 million"


@pytest.mark.parametrize("part", [keys.data, keys.status, keys.owner])
def test_a_task_that_cannot_be_read_is_left_out_and_the_others_are_listed(
    stage: Testbed, ada: Client, part: Callable[[str], str]
) -> None:
    publish(ada, "bad")
    publish(ada, "good")
    publish(ada, "later", not_before=60)
    ada.run(ada.tasks.claim("bad"))
    (due,) = stage.store.read(page := Range(keys.DUE)).ranges[page]
    puts = (Put(part("bad"), b"garbage"), Put(due.key, b"garbage"))
    assert isinstance(stage.store.commit(Txn(id="put", puts=puts, quiet=True)), Committed)
    assert listed(ada) == listed(ada, all=True) == ["good", "later"]
    with pytest.raises(StoreDamaged, match="tasks/bad/"):
        show(ada, "bad")
