"""Keys: one way from a name to its key and back, and ASCII all along."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.core import keys, validate
from interlock.core.thing_names import join_things, names_several, split_things, thing_of
from interlock.errors import BadName

SEEN = st.text(min_size=1, max_size=60)


@given(SEEN)
@example("a%2Fb")
@example("%")
@example("größe")
def test_a_part_of_a_key_is_ascii_and_stands_for_one_name(text: str) -> None:
    try:
        name = validate.name(text)
    except BadName:
        return
    part = keys.encode(name)
    assert part.isascii()
    assert not set("/,# ") & set(part)
    assert keys.decode(part) == name
    assert thing_of(keys.lock(name)) == f"lock/{name}"
    assert thing_of(keys.semaphore(name)) == f"sem/{name}"
    assert keys.task_of(keys.data(name)) == name
    assert keys.claim_of(keys.claims("ses_1", name)) == ("ses_1", name)
    assert validate.name(name) == name, "a name stays as it is once it was checked"


@pytest.mark.parametrize(
    ("key", "made"),
    [
        ("locks/team%2Fdeploy", keys.lock("team/deploy")),
        ("semaphores/a:b@c.d_e-f", keys.semaphore("a:b@c.d_e-f")),
        ("tasks/+imp_1/status", keys.status("+imp_1")),
        ("topics/*/msg_1", keys.topic("*", "msg_1")),
        ("topics/?rust/qry_1", keys.topic("?rust", "qry_1")),
        ("ready/a%2Fb,c/", keys.ready(keys.requirements(("c", "a/b")))),
    ],
)
def test_keys_of_plain_names_stay_as_they_are(key: str, made: str) -> None:
    assert made == key


def test_requirements_with_a_comma_are_no_two_requirements() -> None:
    assert keys.requirements(("a,b",)) != keys.requirements(("a", "b"))
    assert keys.requirements(("#" + "0" * 32,)) != "#" + "0" * 32


@given(
    st.lists(st.sampled_from(["lock/a", "sem/b+c", "lock/+", "sem/lock", "lock/a/b+"]), min_size=1)
)
def test_several_things_are_told_apart_again(things: list[str]) -> None:
    assert split_things(join_things(things)) == things


def test_only_locks_and_semaphores_are_named_at_once() -> None:
    assert split_things("task/a+lock/b") == ["task/a+lock/b"]
    assert names_several("a+lock/b")
    assert not names_several("a+b")
