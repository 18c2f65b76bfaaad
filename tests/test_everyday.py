"""An everyday run is repeatable: the same examples, in the same order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def test_settings_of_one_test_are_as_repeatable_as_the_run(pytestconfig: pytest.Config) -> None:
    own = settings(max_examples=3, deadline=None, print_blob=True, database=None)
    assert own.derandomize is (pytestconfig.getoption("--hypothesis-seed") is None)


def test_two_runs_search_in_the_same_places() -> None:
    assert searched() == searched()


def searched() -> list[int]:
    drawn: list[int] = []

    @given(st.integers())
    @settings(max_examples=20)
    def search(number: int) -> None:
        drawn.append(number)

    search()
    return drawn
