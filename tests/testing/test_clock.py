from __future__ import annotations

import pytest

from interlock.clock import Clock
from interlock.testing.clock import FakeClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock(monotonic=5.0, wall=100.0)
    assert (clock.monotonic(), clock.wall()) == (5.0, 100.0)


def test_advance_moves_both_sides_and_a_jump_only_the_wall() -> None:
    clock = FakeClock(monotonic=5.0, wall=100.0)
    clock.advance(1.5)
    clock.jump_wall(-50.0)
    assert (clock.monotonic(), clock.wall()) == (6.5, 51.5)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        FakeClock().advance(-1.0)
