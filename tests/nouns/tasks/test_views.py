"""What people see of tasks, and what looking costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

import pytest

import interlock
from interlock.core import codec, keys
from interlock.errors import BadInput, BadName, StoreDamaged
from interlock.nouns.tasks import views
from interlock.nouns.tasks.task import STATES, Spec, TaskStatus
from interlock.nouns.tasks.task_outcomes import Claimed, NoTask
from interlock.nouns.tasks.task_view import TaskList, TaskView
from interlock.runtime.text import render
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
    client.run(client.tasks.drop("dropped"))
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
    assert listed(ada, all=True) == sorted([*states, "complete", "dropped"])
    assert listed(ada, state=["complete"]) == ["complete"]
    assert listed(ada, state=["dead", "running"]) == ["dead", "running"]
    assert listed(ada, state=["complete", "running"]) == ["complete", "running"]


def test_a_list_is_filtered_by_label_requirement_worker_and_prefix(stage: Testbed) -> None:
    ada, bob = stage.client("ada"), stage.client("bob")
    publish(ada, "a", "b/1", labels=["red"], requires=["gpu"])
    publish(ada, "b/2", "b", labels=["red", "big"], requires=["gpu", "rust"])
    bob.run(bob.tasks.claim("b/2"))
    ada.run(ada.tasks.claim("a"))
    assert listed(ada, label=["red"]) == ["a", "b", "b/1", "b/2"]
    assert listed(ada, label=["big", "red"]) == ["b", "b/2"]
    assert listed(ada, requires=["rust"]) == ["b/2", "b"]
    assert listed(ada, holder="bob") == ["b/2"]
    assert listed(ada, holder="bob", all=True, label=["big"]) == ["b/2"]
    assert listed(ada, holder="bob", state=["pending"]) == []
    assert listed(ada, prefix="b") == ["b/1", "b/2", "b"]
    assert listed(ada, prefix="b/", all=True) == ["b/1", "b/2"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"all": True},
        {"state": ["pending", "complete"]},
        {"label": ["x"]},
        {"label": ["x"], "all": True},
    ],
)
def test_pages_join_to_the_whole_whatever_the_ids_and_the_way(
    ada: Client, query: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids with signs that sort before and after the separator of keys."""
    ids = ["a", "a-b", "a.b", "a/b", "a0", "a:b", "A", "a/b/c", "a/b-c", "aa", "z" * 200]
    publish(ada, *ids, labels=["x"])
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


def test_a_task_has_a_title_a_text_and_labels_beside_its_data(ada: Client) -> None:
    said = {"title": "Fix the login", "text": "Step 1\n\tstep 2\n", "labels": ["web", "auth"]}
    publish(ada, "t", **said)
    found = show(ada, "t")
    assert (found.title, found.text, found.labels) == (*list(said.values())[:2], ("web", "auth"))
    assert [task.title for task in ada.run(ada.tasks.list()).tasks] == ["Fix the login"]
    claimed = ada.run(ada.tasks.next())
    assert isinstance(claimed, Claimed)
    assert (claimed.title, claimed.text, claimed.labels) == (*list(said.values())[:2], found.labels)


def test_a_title_of_another_program_cannot_draw_on_the_terminal(ada: Client) -> None:
    publish(ada, "t", text="one\n\ttwo")
    spec = Spec(at=1.0, title="a\x1b[2Jb\nc", text="x\x1b[2J\n\ty\rz")
    ada.store.commit(Txn(id="put", puts=(Put(keys.data("t"), codec.encode(spec)),), quiet=True))
    assert "a\\x1b[2Jb\\nc" in render(ada.run(ada.tasks.list()))
    assert render(show(ada, "t")).endswith("\n\n  | x\\x1b[2J\n  | \\ty\\rz")


def test_tasks_are_listed_by_label_whatever_their_state(ada: Client) -> None:
    one_in_each_state(ada)
    publish(ada, "a", "a-1", "a/2", "z", labels=["x", "y"])
    publish(ada, "b", "c", labels=["y"])
    complete(ada, "z", "c")
    assert listed(ada, label=["x"]) == listed(ada, label=["x"], limit=1) == ["a", "a/2", "a-1"]
    assert listed(ada, label=["y"], all=True, limit=2) == ["a", "a/2", "a-1", "b", "c", "z"]
    assert listed(ada, label=["y", "x"], state=["complete"]) == ["z"]
    assert listed(ada, label=["y"], prefix="a/") == ["a/2"]
    assert listed(ada, label=["none"]) == listed(ada, label=["y", "none"]) == []


def test_a_label_that_few_open_tasks_have_is_found_among_many_complete_ones(ada: Client) -> None:
    for number in range(60):
        publish(ada, f"t{number:02}", labels=["x"])
        complete(ada, f"t{number:02}")
    publish(ada, "u", "v", labels=["x"])
    assert listed(ada, label=["x"], limit=1) == ["u", "v"]


def test_a_label_reads_its_own_tasks_alone(
    stage: Testbed, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ada, *[f"t{number:03}" for number in range(200)])
    publish(ada, "m1", "m2", labels=["x"])
    counting = Counting(stage, monkeypatch)
    assert listed(ada, label=["x"]) == ["m1", "m2"]
    assert counting.items < 12


def test_a_list_is_filtered_by_needs_and_by_words_of_the_title(ada: Client) -> None:
    publish(ada, "a", title="Fix the LOGIN page")
    publish(ada, "b", title="Größe der Login-Seite", needs=["a"])
    publish(ada, "c", needs=["a", "b"])
    assert listed(ada, needs=["a"]) == ["b", "c"]
    assert listed(ada, needs=["b", "a"]) == ["c"]
    assert listed(ada, title="login") == ["a", "b"]
    assert listed(ada, title="page fix") == listed(ada, title="log", prefix="a") == ["a"]
    assert listed(ada, title="GRO\u0308\u00dfE") == ["b"], "typed in another way"
    assert listed(ada, title="login", needs=["a"], limit=1) == ["b"]
    for words in ("  ", "a\nb"):
        with pytest.raises(BadInput):
            listed(ada, title=words)


@pytest.mark.parametrize("width", [57, 66, 80, 200])
def test_the_table_fits_the_terminal_and_the_id_is_cut_last(ada: Client, width: int) -> None:
    publish(ada, "short", labels=["x" * 40], title="界" * 90)
    publish(ada, "build/frontend", title="x\u0302" * 100, needs=["short"], labels=["web", "a,b"])
    publish(ada, "plain")
    lines = render(ada.run(ada.tasks.list()), width=width).splitlines()
    for line in lines:
        wide = sum(east_asian_width(sign) == "W" for sign in line)
        marks = sum(bool(combining(sign)) for sign in line)
        assert len(line) + wide - marks <= width
    assert "…" in "".join(lines)
    assert width == 57 or "build/frontend " in "".join(lines)
    assert "…" not in render(ada.run(ada.tasks.list()))
