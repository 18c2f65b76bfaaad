"""A clock that a test sets, so that no test sleeps."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until ``advance``."""

    def __init__(self, monotonic: float = 1_000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return self._monotonic

    def wall(self) -> float:
        """Seconds since 1970, as people see them."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        if seconds < 0:
            raise ValueError("time does not go back; jump_wall() turns the wall clock")
        self._monotonic += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does."""
        self._wall += seconds
