"""Time as a parameter.

Durations and deadlines use the monotonic side, which no administrator and no NTP can turn back;
the wall side is for people and for retention only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # to make a class of a protocol takes a tenth of a millisecond


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded up."""
    return -int(-seconds * 1000 // 1)  # the module math is one more import for each command


class Clock(Protocol):
    """What the product knows of time."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""

    def wall(self) -> float:
        """Seconds since 1970, as people see them; may jump."""


class SystemClock:
    """The clocks of this machine; monotonic seconds are the same in all of its processes.

    With ``suspends`` they stand still while the machine is suspended, as everything on it does.
    Without, they go on, as the clock of another machine does (on Linux; elsewhere they may not).
    """

    # Every call reads a clock several times, so these are functions of C and no methods.
    wall = staticmethod(time.time)

    def __init__(self, *, suspends: bool = True) -> None:
        going_on = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self.monotonic: Callable[[], float] = partial(
            time.clock_gettime, time.CLOCK_MONOTONIC if suspends else going_on
        )
        if suspends and sys.platform == "linux":
            self.monotonic = time.monotonic  # the same clock, read in half the time
