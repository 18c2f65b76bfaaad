"""Random conditions and leaves, and a tiny evaluator that the rules are compared with."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import strategies as st

from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.leaf_kinds import KINDS, build
from interlock.nouns.guards.rules import Facts

VALUES = (True, False, None)


def leaf(number: int) -> c.FileExists:
    return c.FileExists(path=str(number))


def shapes(most: int = 24) -> st.SearchStrategy[object]:
    """Trees of tuples; a leaf is its value: true, false, or None for unknown."""
    return st.recursive(
        st.sampled_from(VALUES),
        lambda below: (
            st.tuples(st.just("not"), below)
            | st.tuples(st.sampled_from(("all", "any")), st.lists(below, min_size=1, max_size=4))
        ),
        max_leaves=most,
    )


def built(shape: object) -> tuple[c.Condition, list[bool | None]]:
    """The condition of a shape, whose leaves have numbers in their order, and their values."""
    numbers = count()
    values: list[bool | None] = []

    def make(part: object) -> c.Condition:
        match part:
            case ("not", below):
                return c.Not(of=make(below))
            case ("all", list(some)):
                return c.AllOf(of=tuple([make(each) for each in some]))
            case ("any", list(some)):
                return c.AnyOf(of=tuple([make(each) for each in some]))
            case True | False | None:
                values.append(part)
                return leaf(next(numbers))
            case _:
                raise AssertionError(part)

    return make(shape), values


def facts(values: list[bool | None]) -> Facts:
    """Facts that give the leaves these values; an unknown one has no fact, or one without value."""
    found: dict[c.FactNeed, c.Fact] = {}
    for number, value in enumerate(values):
        if value is not None or number % 2:
            need = c.FileNeed(path=str(number))
            found[need] = c.Observation(value=value, says="", host="here", at=1.0)
    return found


def oracle(condition: c.Condition, values: list[bool | None]) -> float:
    """1 for true, 0 for false, a half for unknown: all is the least, any the most."""
    match condition:
        case c.AllOf():
            return min(oracle(each, values) for each in condition.of)
        case c.AnyOf():
            return max(oracle(each, values) for each in condition.of)
        case c.Not():
            return 1 - oracle(condition.of, values)
        case c.FileExists():
            value = values[int(condition.path)]
            return 0.5 if value is None else float(value)
        case _:
            raise AssertionError(condition)


TEXTS = st.text(st.sampled_from("ab1./\\,=!'\" \n-é()#"), min_size=1, max_size=8)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "slots": st.integers(1, 9),
    "none_ok": st.booleans(),
    "shell": st.booleans(),
    "state": st.sampled_from(("pending", "complete", "dead")),
    "expect": st.integers(0, 255) | st.just("failure"),
    "timeout": st.integers(1, 3_600_000).map(lambda ms: ms / 1000),
    "env": st.lists(st.sampled_from(("PATH", "HOME", "LANG")), unique=True),
    "run": st.lists(TEXTS, min_size=1, max_size=3),
}


@st.composite
def leaves(draw: st.DrawFn) -> c.Condition:
    """A legal leaf."""
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    names = {*kind.required, *draw(st.lists(st.sampled_from(sorted(kind.fields))))}
    given = {name: draw(FIELDS.get(name, TEXTS)) for name in sorted(names)}
    if given.get("shell"):
        given["run"] = given["run"][:1]
    if kind.name == "file_contains" and ("text" in given) == ("pattern" in given):
        given.pop("pattern", None)
        given.setdefault("text", "x")
    try:
        return build(kind.name, given)
    except BadInput:  # a text that is no name
        plain = {name: value for name, value in given.items() if name in FIELDS}
        if "run" in plain:
            plain["run"] = ["x,y", *plain["run"][1:]]
        some = dict.fromkeys((name for name in given if name not in FIELDS), "x,y\\")
        branches = dict.fromkeys(("branch", "into", "prefix", "needs", "pattern"), "x,y")
        return build(kind.name, {**plain, **{n: branches.get(n, v) for n, v in some.items()}})
