"""Conditions that come from elsewhere, and the names that leaves take."""

from __future__ import annotations

import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nouns.guards.random_conditions import built, leaves, shapes

from interlock.errors import BadInput, BadName, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import KINDS, build, decode, kind_of, validated

A = c.LockFree(lock="a")


@given(leaves())
def test_a_legal_leaf_is_valid_as_it_is(leaf: c.Condition) -> None:
    assert validated(leaf) == leaf
    assert decode(msgspec.json.encode(leaf)) == leaf


@given(shapes())
def test_a_legal_tree_is_valid_as_it_is(shape: object) -> None:
    condition, _ = built(shape)
    assert decode(msgspec.json.encode(condition)) == condition


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from(("if", "of", "lock", "run", "filter", "x")), below)
        | st.fixed_dictionaries({"if": st.sampled_from(sorted(KINDS))}, optional={"lock": below})
        | st.fixed_dictionaries({"if": st.sampled_from(("all", "any", "not")), "of": below})
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_condition_or_a_clear_error(value: object) -> None:
    try:
        found = decode(msgspec.json.encode(value))
    except BadInput:
        return
    assert validated(found) == found


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (c.AllOf(of=()), "'all' of nothing says nothing"),
        (c.AnyOf(of=()), "'any' of nothing says nothing"),
        (c.Not(of=A & c.AnyOf(of=())), "'any' of nothing says nothing"),
        (c.AllOf(of=[A]), "'all' of nothing says nothing"),  # type: ignore[arg-type]
        (c.AllOf(of=(A, "b")), "a condition is made by interlock.guard; 'b' is none"),  # type: ignore[arg-type]
        (None, "None is none"),
        (c.BaseCondition(), "is none"),
        (c.LockFree(lock=3), "the lock name must be text, not int"),  # type: ignore[arg-type]
        (c.LockFree(lock=""), "the lock name is empty"),
        (c.LockFree(lock="a\x1b[2J"), "has a character that cannot be seen"),
        (c.LockFree(lock="\ud800"), "has a character that cannot be seen"),
        (c.LockHeld(lock="a", by=0), "the agent name must be text"),  # type: ignore[arg-type]
        (c.TasksComplete(filter="build."), "a filter is a TaskFilter; 'build.' is none"),  # type: ignore[arg-type]
        (c.TasksComplete(filter=c.TaskFilter(state="x")), "there is no task state 'x'"),
        (c.Command(run=()), "the command is empty"),
        (c.Command(run=("a", "b\0")), "has a NUL character"),
        (c.Command(run=("a", "b"), shell=True), "a command for a shell is one text"),  # noqa: S604
        (c.Command(run=("x" * 20_000, "y" * 20_000)), "more than 32768 bytes"),
        (c.Command(run=("a",), timeout=float("nan")), "the timeout nan is out of bounds"),
        (c.Command(run=("a",), env=("A",) * 2 + ("B B",)), "'B B' is none"),
        (c.FileContains(path="x", text="t", pattern="p"), "either a text or a pattern"),
        (c.FileContains(path="x", pattern="(" * 4000), "no regular expression"),
        (c.FileContains(path="x", pattern="x{99999999999}"), "no regular expression"),
        (c.FileContains(path="x", text="t" * 5000), "5000 bytes; 4096 are allowed"),
        (c.FileExists(path="a/../../b"), "does not stay below the root"),
        (c.FileExists(path="a\0b"), "has a NUL character"),
        (c.FileExists(path="\ud800"), "is not UTF-8"),
    ],
)
def test_what_no_constructor_makes_is_refused(condition: object, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        validated(condition)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrap", [b'{"if":"not","of":%s}', b'{"if":"all","of":[%s]}', b'{"if":"any","of":[%s]}']
)
def test_32_levels_are_allowed_and_more_are_refused_at_any_depth(wrap: bytes) -> None:
    before, after = wrap.split(b"%s")
    leaf = b'{"if":"lock_free","lock":"a"}'
    assert isinstance(decode(before * 31 + leaf + after * 31), c.BaseCondition)
    for levels in (32, 33, 200, 900, 5_000, 100_000):
        with pytest.raises(TooLarge, match="nested too deeply; 32 levels are allowed"):
            decode(before * levels + leaf + after * levels)


def test_a_condition_of_too_many_leaves_is_refused() -> None:
    allowed = c.AllOf(of=(A,) * 10_000)
    assert validated(allowed) == allowed
    with pytest.raises(TooLarge, match="too many leaves; 10000 are allowed"):
        validated(c.AllOf(of=(c.AnyOf(of=(A,) * 5_000), c.AnyOf(of=(A,) * 5_001))))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b'{"if":"x"}', b'{"lock":"a"}', b"\xff"])
def test_bytes_that_are_no_condition_are_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="this is no condition"):
        decode(data)


def test_an_unknown_field_of_a_stored_condition_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown field `until`"):
        decode(b'{"if":"lock_free","lock":"a","until":3}')


NAMES = [
    *("feature", "feature/x", "a.b", "a-b", "größe", "x@y", "1", "@", "a,b", "x%y", "a'b"),
    *("", "-x", "a b", "a..b", "/a", "a/", "a//b", "a.", ".a", "a/.b", "a.lock", "a.lock/b"),
    *("a~b", "a^b", "a:b", "a?b", "a*b", "a[b", "a\\b", "a\x7fb", "a\tb", "a@{b", "a\nb"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_is_named_as_git_allows(name: str) -> None:
    ref = f"refs/heads/{name}"
    allowed = not subprocess.run(["git", "check-ref-format", ref], check=False).returncode
    allowed &= not name.startswith("-")  # git allows it in a ref, not as a branch
    if allowed:
        assert build("branch_exists", {"branch": name}) == c.BranchExists(branch=name)
    else:
        with pytest.raises(BadInput):
            build("branch_exists", {"branch": name})


def test_a_branch_of_too_long_a_name_is_refused() -> None:
    with pytest.raises(TooLarge, match="251 bytes; 250 are allowed"):
        build("branch_exists", {"branch": "x" * 251})


@pytest.mark.parametrize("prefix", ["build.", "build/", "a b ", "größe", "x" * 199])
def test_the_beginning_of_an_id_need_not_be_an_id(prefix: str) -> None:
    found = build("tasks_complete", {"prefix": prefix})
    assert found == c.TasksComplete(filter=c.TaskFilter(prefix=prefix))


def test_names_that_can_be_typed_in_two_ways_are_one() -> None:
    assert build("lock_free", {"lock": "gro\u0308ße"}) == build("lock_free", {"lock": "größe"})
    assert build("tasks_complete", {"prefix": "gro\u0308"}) == build(
        "tasks_complete", {"prefix": "grö"}
    )


def test_a_pattern_that_python_warns_about_is_only_a_pattern() -> None:
    found = build("file_contains", {"path": "x", "pattern": "[[a]"})
    assert found == c.FileContains(path="x", pattern="[[a]")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_example_of_a_kind_is_legal(kind: Any) -> None:
    import tomllib

    example = tomllib.loads(f"x = {kind.example}")["x"][kind.name]
    made = build(kind.name, example if isinstance(example, dict) else {kind.main: example})
    assert kind_of(made) is kind


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match=r"branch_merged needs the field 'into', as in \{branch_m"):
        build("branch_merged", {"branch": "x"})


def test_conditions_are_combined_and_flattened() -> None:
    b, d = c.LockFree(lock="b"), c.LockFree(lock="d")
    assert A & b & d == c.AllOf(of=(A, b, d))
    assert A | b | d == c.AnyOf(of=(A, b, d))
    assert ~~A == A
    assert ~(A & b) == c.Not(of=c.AllOf(of=(A, b)))


def test_words_of_python_that_would_lose_a_part_are_errors() -> None:
    with pytest.raises(TypeError, match=r"combine with & \| ~"):
        _ = A and c.LockFree(lock="b")  # type: ignore[redundant-expr, unreachable]
    with pytest.raises(TypeError, match=r"combine with & \| ~"):
        _ = not A
    with pytest.raises(TypeError, match="not with 'b'"):
        _ = A & "b"  # type: ignore[operator]


def test_a_name_with_a_kind_before_it_is_refused() -> None:
    with pytest.raises(BadName, match="drop 'sem/' from 'sem/x'"):
        build("semaphore_available", {"semaphore": "sem/x"})
