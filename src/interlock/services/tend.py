"""Who writes the log keeps it small: by whoever crosses the limit, in bounded steps.

A thousand commits, by whomever, pay for one small pass.  A client that lives long counts its own
and does the pass where nobody waits for it; a command that ends at once leaves it to chance.
Neither ever fails by it: what could not be done now is met again by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from interlock.driving import Op
from interlock.errors import InterlockError
from interlock.services.chain import MANY
from interlock.services.runner import Runner, Who
from interlock.services.seal import Sealing

STEPS = 2
"""Up to 4,000 entries sealed for 1,000 written: it catches up with what is left over."""


class Tending:
    """For a client that lives long: ``due`` after every thousandth of its commits.

    ``on_due`` wakes whoever tends, such as the thread or the task that renews the leases.
    """

    def __init__(self, sealing: Sealing, runner: Runner, on_due: Callable[[], None]) -> None:
        self.due = False
        self._sealing = sealing
        self._on_due = on_due
        runner.chain.on_many = self._many

    def tend(self, who: Who) -> Op[None]:
        """Do a bounded part of what is due."""
        self.due = False
        yield from _tended(self._sealing, who)

    def _many(self) -> None:
        self.due = True
        self._on_due()


def by_chance(sealing: Sealing, runner: Runner, who: Who) -> Op[None]:
    """At the end of a short life: one pass for a thousand commits, by chance."""
    if any(runner.one_in(MANY) for _ in range(min(runner.chain.count, MANY))):
        yield from _tended(sealing, who)


def _tended(sealing: Sealing, who: Who) -> Op[None]:
    with suppress(InterlockError):
        yield from sealing.tidy(who, STEPS)
