"""A guard is printed as a definition file could have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.nouns.guards.random_leaves import leaves

from interlock import guard
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.definition import define
from interlock.nouns.guards.definition_text import definition
from interlock.nouns.guards.source import parse

ACTIONS = (
    st.just(guard.block())
    | st.just(guard.warn())
    | st.builds(guard.retry, st.floats(0.001, 3600), st.integers(1, 1000))
    | st.builds(guard.fail, st.sampled_from(["no", 'a "b"\n\\c', "é\x07"]))
)
CONDITIONS = st.recursive(
    leaves(),
    lambda below: (
        st.builds(lambda each: c.Not(of=each), below)
        | st.lists(below, min_size=2, max_size=3).map(lambda some: c.AnyOf(of=tuple(some)))
        | st.lists(below, min_size=2, max_size=3).map(lambda some: c.AllOf(of=tuple(some)))
    ),
    max_leaves=6,
)


@given(
    CONDITIONS, ACTIONS, st.floats(0.001, 86400), st.sampled_from(["calm", "a.b c", 'é"x', "1/2"])
)
def test_the_text_reads_as_the_same_guard(
    condition: c.Condition, action: g.FailureAction, age: float, name: str
) -> None:
    made = guard.named(name, condition, on_failure=action, max_age=age)
    text = "\n".join(definition(made))
    again = define([parse("guards.toml", text.encode())]).guards[name]
    assert g.digest(again) == g.digest(made)


def test_defaults_are_left_out() -> None:
    made = guard.named("calm", guard.lock_free("deploy") & ~guard.file_exists("STOP"))
    assert definition(made) == (
        "[guard.calm]",
        'when = [{lock_free = "deploy"}, {not = {file_exists = "STOP"}}]',
    )
