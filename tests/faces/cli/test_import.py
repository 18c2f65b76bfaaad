"""Whole plans at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faces.shell import Shell

PLAN = [{"id": "a", "data": {"x": 1}}, {"task": "b", "needs": ["a"], "priority": 1}]


@pytest.fixture
def plan(ada: Shell) -> Path:
    file = ada.folder / "plan.json"
    file.write_text(json.dumps(PLAN))
    return file


def test_a_file_is_imported_once(ada: Shell, plan: Path) -> None:
    status, checked = ada.json("task", "import", "plan.json", "--dry-run")
    assert (status, checked["outcome"], checked["ready"]) == (0, "checked", 1)
    status, answer = ada.json("task", "import", str(plan))
    assert status == 0
    assert answer.pop("plan") == checked["plan"]
    counts = {"tasks": 2, "ready": 1, "blocked": 1, "later": 0, "guarded": 0}
    assert answer == {"outcome": "imported", **counts}
    status, again = ada.json("task", "import", "plan.json")
    assert (status, again["outcome"], again["plan"]) == (1, "exists", checked["plan"])


def test_a_changed_plan_is_shown_and_then_applied(ada: Shell, plan: Path) -> None:
    ada.json("task", "import", "plan.json", "--id", "p")
    status, same = ada.json("task", "import", "plan.json", "--id", "p", "--dry-run")
    assert (status, same["outcome"], same["same"]) == (0, "changes", 2)
    plan.write_text(json.dumps([{"id": "a", "title": "First", "data": {"x": 1}}, {"id": "c"}]))
    status, shown = ada.json("task", "import", "plan.json", "--id", "p", "--dry-run")
    edited = [{"task": "a", "changed": {"title": {"old": "", "new": "First"}}}]
    assert (shown["outcome"], shown["new"], shown["edited"]) == ("changes", ["c"], edited)
    assert shown["dropped"] == ["b"]
    status, done = ada.json("task", "import", "plan.json", "--id", "p", "--update")
    assert (status, done) == (0, {**shown, "outcome": "updated"})
    assert ada.run("task", "import", "plan.json", "--id", "p", "--update").out == (
        "updated p: 0 new, 0 edited, 0 dropped, 0 left alone, 2 the same\n"
    )


def test_lines_come_in_by_a_pipe_and_under_a_name(ada: Shell) -> None:
    lines = "\n".join(map(json.dumps, PLAN)) + "\n"
    done = ada.run("task", "import", "-", "--id", "release-7", input=lines)
    assert (done.status, done.out) == (0, "imported 2 tasks: 1 ready, 1 blocked\n")
    other = ada.run("task", "import", "-", "--id", "release-7", input='{"id":"c"}')
    assert other.status == 1
    assert other.out.startswith("exists release-7: another plan was imported under the id")
    taken = ada.run("task", "import", "-", input='{"id":"c"}\n{"id":"b"}\n')
    assert taken.status == 1
    assert taken.out.startswith("exists b: there is a task b already; give yours another id")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the plan is empty; give at least one task"),
        ("[]", "the plan is empty"),
        ("[{]", "the plan is no JSON array"),
        ('{"id":"a"}\nhum\n', "line 2: this is not JSON"),
        ('{"id":"a","colour":"red"}', "line 1 (a): there is no field 'colour'"),
        ('[{"id":"a"},{"id":"a"}]', "task 'a' appears 2 times (number 1, number 2)"),
        ('[{"id":"a","needs":["b"]},{"id":"b","needs":["a"]}]', "a -> b -> a"),
        ('[{"id":"a","needs":["nobody"]}]', "number 1 (a): it needs 'nobody'"),
    ],
)
def test_a_bad_plan_with_one_mistake_is_bad_input_in_one_line(
    ada: Shell, text: str, said: str
) -> None:
    done = ada.run("task", "import", "-", input=text)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_each_mistake_of_a_plan_has_a_line_of_its_own(ada: Shell) -> None:
    (ada.folder / "bad.jsonl").write_text('{"id":"a","colour":1}\n{"id":"b","needs":["x"]}\nhum\n')
    done = ada.run("task", "import", "bad.jsonl")
    head, *lines = done.err.splitlines()
    assert (done.status, done.out) == (2, "")
    assert head == "interlock: the plan has 3 mistakes, and nothing was published:"
    starts = ("  line 1 (a): there is", "  line 3: this is not JSON", "  line 2 (b): it needs 'x'")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    status, answer = ada.json("task", "import", "bad.jsonl")
    assert (status, answer["mistakes"]) == (2, [line.strip() for line in lines])
    assert all(mistake in answer["message"] for mistake in answer["mistakes"])


def test_the_json_of_a_refused_plan_has_its_cycles(ada: Shell) -> None:
    plan = '{"id":"a","needs":["b"]}\n{"id":"b","needs":["a"]}\n'
    (ada.folder / "bad.jsonl").write_text(plan)
    status, answer = ada.json("task", "import", "bad.jsonl")
    assert (status, answer["cycles"]) == (2, [["a", "b", "a"]])


def test_the_json_of_a_refused_edit_has_its_cycle(ada: Shell) -> None:
    ada.run("task", "add", "a")
    ada.run("task", "add", "b", "--needs", "a")
    status, answer = ada.json("task", "edit", "a", "--needs", "b")
    assert (status, answer["cycles"]) == (2, [["a", "b", "a"]])


def test_a_file_that_is_not_there_is_bad_input(ada: Shell) -> None:
    status, answer = ada.json("task", "import", "nothing.json")
    assert (status, answer["error"]) == (2, "bad_input")
    assert "no plan in 'nothing.json' (No such file or directory)" in answer["message"]
    assert ada.run("task", "import", ".").status == 2
    assert ada.run("task", "import").status == 2
