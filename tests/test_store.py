"""What a scope covers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hypothesis_settings import budget

from interlock.store import covers, scopes

KEYS = st.text(alphabet="ab/=é", max_size=5)


def plainly(scope: str, key: str) -> bool:
    return not scope or key == scope or (scope.endswith("/") and key.startswith(scope))


@settings(max_examples=budget(50))
@given(given=st.lists(KEYS, min_size=1, max_size=8), key=KEYS)
def test_several_scopes_cover_what_one_of_them_covers(given: list[str], key: str) -> None:
    assert covers(scopes(tuple(given)), key) == any(plainly(scope, key) for scope in given)


@settings(max_examples=budget(50))
@given(given=st.lists(KEYS, min_size=1, max_size=8), key=KEYS)
def test_no_key_is_in_two_of_the_scopes_that_a_watch_keeps(given: list[str], key: str) -> None:
    kept = scopes(tuple(given))
    assert set(kept) <= set(given)
    assert sum(plainly(scope, key) for scope in kept) <= 1


def test_one_scope_is_kept_as_several() -> None:
    assert scopes("p/") == ("p/",) == scopes(("p/", "p/a"))
