"""Who writes keeps it small: the log, and the messages that were read.

Whoever crosses the limit of the log does a bounded part of the work.

A thousand commits, by whomever, pay for one small pass.  A client that lives long counts its own
and does the pass where nobody waits for it; a command that ends at once leaves it to chance.
Neither ever fails by it, whatever is wrong with the record: what could not be done now is met
again by the next one, and what nobody foresaw is told to the log of the program, once.
"""

from __future__ import annotations

from collections.abc import Callable

from interlock.driving import Op
from interlock.errors import InterlockError
from interlock.services.chain import MANY
from interlock.services.runner import Runner, Who
from interlock.settings import Settings

STEPS = 1
"""Up to 2,000 entries sealed for 1,000 written, so it catches up with what others left over; and
quick enough to be done between two renewals of the shortest lease."""


class Tending:
    """What one client does for the record.

    It is ``due`` after every thousandth of our commits, and ``on_due`` wakes whoever will ``tend``.
    ``also`` is done then, too, for a client of which the record is not all that it fills.
    """

    def __init__(self, runner: Runner, settings: Settings | None = None) -> None:
        self.due = False
        self.on_due: Callable[[], None] | None = None
        self.also: Callable[[Who], Op[bool]] | None = None
        """Whether there is more to do at once."""
        self._runner = runner
        self._settings = settings
        self._warned = False
        runner.chain.on_many = self._many

    def tend(self, who: Who) -> Op[None]:
        """Do a bounded part of what is to be done, if anything is."""
        from interlock.services.seal import Sealing  # few ever come here

        self.due = False
        yield from self._unharmed(lambda: Sealing(self._runner, self._settings).tidy(who, STEPS))
        also = self.also
        if also is not None and (yield from self._unharmed(lambda: also(who))) is True:
            self.due = True

    def _unharmed(self, work: Callable[[], Op[object]]) -> Op[object]:
        try:
            return (yield from work())
        except InterlockError:
            return None  # 'maintain' and 'doctor' say it to whoever asks
        except Exception as error:  # noqa: BLE001 - a session must not lapse by the record
            self._warn(error)
            return None

    def by_chance(self, who: Who) -> Op[None]:
        """At the end of a short life: the same, once in a thousand commits."""
        if any(self._runner.one_in(MANY) for _ in range(min(self._runner.chain.count, MANY))):
            yield from self.tend(who)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            import logging

            self._warned = True
            said = "the record could not be tended (%r); run 'interlock record verify'"
            logging.getLogger("interlock").warning(said, error)

    def _many(self) -> None:
        self.due = True
        if self.on_due is not None:
            self.on_due()
