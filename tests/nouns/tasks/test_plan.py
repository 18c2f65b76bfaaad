"""What makes a plan, and everything that can be wrong with one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget

from interlock.errors import BadInput, TooLarge
from interlock.nouns.tasks import plan
from interlock.nouns.tasks.plan import Plan


def check(listed: Iterable[plan.PlanEntry], name: str | None = None) -> Plan:
    """The plan, or an error with all mistakes that show without the store."""
    found = plan.parse(listed)
    if found.wrong:
        raise found.refused(())
    return plan.plan_of(found, name)


def made(*specs: dict[str, Any], name: str | None = None) -> Plan:
    return check(plan.entries(specs), name)


def mistakes(*specs: object) -> str:
    with pytest.raises(BadInput) as refused:
        check(plan.entries(specs))
    assert "\n" not in str(refused.value)
    assert "nothing was published" in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "number 1: it has no id; give it one"),
        ({"id": ""}, "number 1: the task id is empty"),
        ({"id": 7}, "number 1: the task id must be text, not int"),
        ({"id": ["a"]}, "number 1: the task id must be text, not list"),
        ({"id": "a\u200b"}, "the task id 'a\\u200b' has a character that cannot be seen (U+200B)"),
        ({"id": "+imp_1"}, "starts with '+', which imports use"),
        ({"id": "task/a"}, "drop 'task/' from 'task/a'"),
        ({"id": "a", "task": "a"}, "number 1 (a): it has both 'id' and 'task'"),
        ({"id": "a", "needs": ["a"]}, "number 1 (a): it needs itself; drop that need"),
        ({"id": "a", "needs": "b"}, "needs takes a list of names; put brackets around 'b'"),
        ({"id": "a", "needs": None}, "needs takes a list of names, not None"),
        ({"id": "a", "needs": {"b": 1}}, "needs takes a list of names, not {'b': 1}"),
        ({"id": "a", "needs": [1]}, "the needs must be text, not int"),
        ({"id": "a", "requires": ["x"] * 2 + [f"y{n}" for n in range(32)]}, "33 names for"),
        ({"id": "a", "labels": ["not\tgood"]}, "the labels 'not\\tgood' has a character"),
        ({"id": "a", "priority": "high"}, "the priority is a whole number, not 'high'"),
        ({"id": "a", "priority": True}, "the priority is a whole number, not True"),
        ({"id": "a", "priority": 10**9}, "give -1000000 to 1000000"),
        ({"id": "a", "retries": -1}, "the number of retries -1 is out of bounds"),
        ({"id": "a", "retries": 1.5}, "the number of retries is a whole number, not 1.5"),
        ({"id": "a", "backoff": "soon"}, "the backoff 'soon' is not like 500ms"),
        ({"id": "a", "backoff_most": -1}, "the longest backoff -1 is out of bounds"),
        ({"id": "a", "not_before": "tomorrow"}, "not_before is no moment: 'tomorrow'"),
        ({"id": "a", "deadline": []}, "the deadline must be seconds or text"),
        ({"id": "a", "data": "x" * (1 << 20)}, "the data has 1048578 bytes"),
        ({"id": "a", "data": {1, 2}, "need": []}, "there is no field 'need'; there are id, data"),
        ("a", "number 1: a task is an object with an id"),
        (None, "number 1: a task is an object with an id"),
    ],
)
def test_a_bad_field_is_named_with_its_place_and_its_task(spec: object, said: str) -> None:
    assert said in mistakes(spec)


def test_all_mistakes_are_said_at_once() -> None:
    said = mistakes(
        {"id": "a", "priority": "x", "retries": "y"}, {"id": "b", "colour": 1}, {"needs": ["b"]}
    )
    assert said.startswith("the plan has 4 mistakes")
    assert all(part in said for part in ("number 1 (a)", "number 2 (b)", "number 3: it has no id"))


def test_of_very_many_mistakes_the_first_twenty_are_said() -> None:
    said = mistakes(*({"id": f"t{n}", "x": 1} for n in range(30)))
    assert said.startswith("the plan has 30 mistakes, the first 20,")
    assert "number 20 (t19)" in said
    assert "number 21" not in said


def test_an_id_that_stands_there_twice_is_named_with_both_places() -> None:
    said = mistakes({"id": "a"}, {"id": "b"}, {"task": "a", "priority": "broken"})
    assert "task 'a' appears 2 times (number 1, number 3); keep one" in said


def test_a_circle_of_needs_is_spelled_out() -> None:
    said = mistakes(
        {"id": "x", "needs": ["a"]},
        {"id": "a", "needs": ["b"]},
        {"id": "b", "needs": ["c", "d"]},
        {"id": "c", "needs": ["a"]},
        {"id": "d"},
    )
    assert "these need each other: a -> b -> c -> a;" in said


def test_an_empty_plan_and_one_that_is_far_too_large_are_refused() -> None:
    with pytest.raises(BadInput, match="the plan is empty"):
        made()
    with pytest.raises(TooLarge, match="100001 tasks; 100000 are allowed: split it"):
        check(plan.entries([{"id": "a"}] * 100_001))


def test_a_file_is_an_array_or_lines() -> None:
    array = plan.read(b' [{"id": "a"}, 3]')
    assert [(each.where, each.fields) for each in array] == [
        ("number 1", {"id": "a"}),
        ("number 2", 3),
    ]
    lines = plan.read(b'\xef\xbb\xbf{"id": "a"}\r\n\n  \n{"id": "b"}\n')
    assert [(each.where, each.fields) for each in lines] == [
        ("line 1", {"id": "a"}),
        ("line 4", {"id": "b"}),
    ]


@pytest.mark.parametrize("text", [b"[1,", b'[{"id": "\xff"}]', b"[" * 5000])
def test_a_broken_array_is_one_clear_line(text: bytes) -> None:
    with pytest.raises(BadInput, match=r"the plan is no JSON array .*; fix it"):
        plan.read(text)


def test_a_broken_line_is_a_mistake_like_others() -> None:
    found = plan.read(b'{"id": "a"}\n{"id":\n{"id": "a"}\n\xff\n' + b"[" * 5000)
    with pytest.raises(BadInput) as refused:
        check(found)
    said = str(refused.value)
    assert "line 2: this is not JSON" in said
    assert "line 4: this is not JSON" in said
    assert "(line 1, line 3)" in said


def test_the_same_words_are_the_same_plan_and_others_are_not() -> None:
    one = {"id": "a", "data": {"x": 1}, "not_before": "2h"}
    assert made(one).id == made({"task": "a", "not_before": "2h", "data": {"x": 1}}).id
    assert made(one).id.startswith("imp_")
    others: list[dict[str, object]] = [
        {"data": {"x": 2}}, {"not_before": "3h"}, {"priority": 1}, {"id": "b"}, {"labels": ["l"]},
    ]  # fmt: skip
    ids = {made(one | other).id for other in others}
    assert len(ids | {made(one).id}) == len(others) + 1
    assert made(one, name="release/7").id == "release/7"


def test_a_task_is_as_old_as_its_place_says_and_counts_from_when_publishing_began() -> None:
    found = made({"id": "b", "needs": ["a"]}, {"id": "a", "deadline": "1h", "not_before": 5})
    assert [draft.id for draft in found.drafts] == ["a", "b"], "after what it needs"
    first, second = (found.spec(draft, 1000.0, "ada") for draft in found.drafts)
    assert (first.at, second.at) == (1000.000001, 1000.0)
    assert (first.deadline, first.not_before, first.by) == (4600.0, 1005.0, "ada")


def test_needs_that_are_not_in_the_plan_must_exist_elsewhere() -> None:
    found = made({"id": "a", "needs": ["x", "y"]}, {"id": "b", "needs": ["a", "y"]})
    assert found.outside == ("x", "y")
    said = str(plan.unknown(found, ["y"]))
    assert "number 1 (a): it needs 'y', which is neither in the plan nor in the store" in said
    assert "number 2 (b): it needs 'y'" in said
    many = str(plan.unknown(made({"id": "a", "needs": [f"n{n}" for n in range(30)]}),
                            [f"n{n}" for n in range(30)]))  # fmt: skip
    assert "the plan has 30 mistakes, the first 20, and nothing was published" in many


@given(st.data())
@settings(max_examples=budget(30), deadline=None)
def test_a_circle_is_found_exactly_where_there_is_one(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    edges = data.draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
    needs = {n: sorted({b for a, b in edges if a == n and b != n}) for n in range(size)}
    specs = [{"id": f"t{n}", "needs": [f"t{m}" for m in needs[n]]} for n in range(size)]
    left = dict(needs)
    while free := [n for n in left if not any(m in left for m in left[n])]:
        for n in free:
            del left[n]
    if not left:
        order = [draft.id for draft in made(*specs).drafts]
        assert all(order.index(f"t{m}") < order.index(f"t{n}") for n in needs for m in needs[n])
        return
    circle = mistakes(*specs).split("these need each other: ")[1].split(";")[0].split(" -> ")
    assert circle[0] == circle[-1]
    assert len(set(circle)) == len(circle) - 1
    for one, other in pairwise(circle):
        assert int(other[1:]) in needs[int(one[1:])], "each needs the next"


def test_circles_that_share_a_task_are_each_said() -> None:
    said = mistakes(
        {"id": "a", "needs": ["b", "c"]}, {"id": "b", "needs": ["a"]}, {"id": "c", "needs": ["a"]}
    )
    assert "these need each other: a -> b -> a;" in said
    assert "these need each other: a -> c -> a;" in said
