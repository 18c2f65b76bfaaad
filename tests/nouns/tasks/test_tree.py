"""Tasks with what they need: drawn once each, in every format, with any title."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interlock.core import codec, keys
from interlock.errors import BadInput
from interlock.nouns.tasks.task import STATES, Spec
from interlock.nouns.tasks.task_outcomes import NoTask
from interlock.nouns.tasks.task_view import TaskTree
from interlock.nouns.tasks.tree import _COLOURS
from interlock.runtime.text import render
from interlock.store import Put, Txn
from interlock.testing.testbed import Client, Testbed

HOSTILE = [
    '"]:::x\nclick t0 "javascript:1"',
    "<img src=x onerror=alert(1)>",
    "#quot; `**bold**` %%{init}%%",
    'a"; b -> c [label="\\',
    "\\N \\G } end",
    "\x1b[2J\u202e 界 é",
]


@pytest.fixture
def ada() -> Client:
    return Testbed().client("ada")


def publish(client: Client, task: str, *needs: str, **terms: Any) -> None:
    client.run(client.tasks.publish(task, needs=needs, **terms))


def tree(client: Client, task: str | None = None, **terms: Any) -> TaskTree:
    found = client.run(client.tasks.tree(task, **terms))
    assert isinstance(found, TaskTree)
    return found


def lines(client: Client, task: str | None = None, **terms: Any) -> list[str]:
    return tree(client, task, **terms).drawing.split("\n")


def complete(client: Client, task: str) -> None:
    client.run(client.tasks.claim(task))
    client.run(client.tasks.complete(task))


def plan(client: Client) -> None:
    publish(client, "design", title="Design it")
    publish(client, "build", "design", labels=["x"])
    publish(client, "test", "build")
    publish(client, "ship", "build", "test", labels=["x"])


def test_a_task_is_drawn_above_its_needs_and_a_shared_need_once(ada: Client) -> None:
    plan(ada)
    ada.run(ada.tasks.claim("design"))
    publish(ada, "alone")
    assert lines(ada) == [
        "alone [pending]",
        "ship [blocked]",
        "├─ build [blocked]",
        "│  └─ design [running, ada] 'Design it'",
        "└─ test [blocked]",
        "   └─ build [blocked] (shown above)",
    ]
    assert lines(ada, "build") == ["build [blocked]", "└─ design [running, ada] 'Design it'"]
    assert tree(ada, label=["x"]).roots == ("ship",)
    assert tree(ada, prefix="a").drawing == "alone [pending]"


def test_what_is_below_a_complete_task_is_drawn_only_if_asked_for(ada: Client) -> None:
    plan(ada)
    complete(ada, "design")
    complete(ada, "build")
    assert lines(ada, "test") == ["test [pending]", "└─ build [complete]"]
    assert lines(ada, "test", all=True)[-1] == "   └─ design [complete] 'Design it'"
    assert lines(ada, "build") == ["build [complete]", "└─ design [complete] 'Design it'"]


def test_a_need_that_was_deleted_was_complete(ada: Client) -> None:
    plan(ada)
    keys_ = (keys.data("design"), keys.status("design"))
    ada.store.commit(Txn(id="drop", deletes=keys_, quiet=True))
    assert lines(ada, "build")[-1] == "└─ design [deleted]"


def test_a_long_chain_is_drawn_whole_and_in_short_lines(ada: Client) -> None:
    for number in range(100):
        publish(ada, f"t{number:02}", *([f"t{number - 1:02}"] if number else []))
    drawn = lines(ada, "t99")
    found = [re.search(r"t\d\d", line) for line in drawn]
    assert sorted(each[0] for each in found if each) == [f"t{number:02}" for number in range(100)]
    assert max(map(len, drawn)) < 200


def test_many_needs_that_are_drawn_elsewhere_are_counted(ada: Client) -> None:
    needs = [f"n{number:02}" for number in range(30)]
    for need in needs:
        publish(ada, need)
    publish(ada, "a", *needs)
    publish(ada, "b", *needs)
    drawn = lines(ada)
    assert drawn[-1] == "└─ and 10 more that are shown above"
    assert len(drawn) == 1 + 30 + 1 + 20 + 1


def test_a_tree_has_as_many_tasks_as_were_asked_for(ada: Client) -> None:
    plan(ada)
    found = tree(ada, "ship", limit=2)
    assert ([each.task for each in found.tasks], found.more) == (["ship", "build"], True)
    assert render(found).endswith("a greater --limit shows them")
    assert not tree(ada, "ship", limit=4).more
    assert tree(ada, limit=3).more


def test_ids_that_were_used_again_and_need_each_other_are_drawn_once(ada: Client) -> None:
    plan(ada)
    again = codec.encode(Spec(at=1.0, needs=("ship",)))
    ada.store.commit(Txn(id="put", puts=(Put(keys.data("design"), again),), quiet=True))
    assert len([line for line in lines(ada) if "shown above" not in line]) == 4
    assert len(lines(ada, "ship")) == 6


def test_no_title_is_a_sign_of_a_format(ada: Client) -> None:
    publish(ada, "t")
    for number, title in enumerate(HOSTILE):
        publish(ada, f"u{number}", "t")
        spec = Spec(at=1.0, title=title, needs=("t",))
        put = Put(keys.data(f"u{number}"), codec.encode(spec))
        ada.store.commit(Txn(id=f"put{number}", puts=(put,), quiet=True))
    node = r'  t\d+\["[\w .,/:@=~-]*(?:#\d+;[\w .,/:@=~-]*|<br/>[\w .,/:@=~-]*)*"\]:::\w+'
    edge = r"  t\d+ --> t\d+|  classDef \w+ fill:#\w{6},color:#000|flowchart LR"
    for line in lines(ada, format="mermaid"):
        assert re.fullmatch(f"{node}|{edge}", line), line
    node = r'  t\d+ \[label="(?:[^"\\]|\\.)*", fillcolor="#\w{6}"\];'
    edge = r"  t\d+ -> t\d+;|  rankdir=LR;|  node .*|digraph tasks \{|\}"
    for line in lines(ada, format="dot"):
        assert re.fullmatch(f"{node}|{edge}", line), line
    assert tree(ada).drawing.replace("\n", "").isprintable()


def test_a_graph_has_a_colour_for_each_state() -> None:
    assert {*_COLOURS} == {*STATES, "deleted"}


def test_a_tree_that_cannot_be_drawn_is_refused(ada: Client) -> None:
    assert isinstance(ada.run(ada.tasks.tree("gone")), NoTask)
    for terms in ({"format": "svg"}, {"task": "t", "label": ["x"]}, {"limit": 0}):
        with pytest.raises(BadInput):
            ada.run(ada.tasks.tree(**terms))
