"""Random conditions, and a tiny evaluator of its own that the rules are compared with."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from interlock.nouns.guards import condition as c
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
