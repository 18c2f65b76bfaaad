"""Who writes keeps it small: the log, the messages that were read, and the tasks that are over.

Whoever crosses the limit of the log does a bounded part of the work.

A thousand commits, by whomever, pay for one small pass.  Every client begins to count somewhere
below a thousand, by chance: so the passes of many that write alike are spread, and a command that
ends at once pays its share.  A client that lives long does the pass where nobody waits for it:
whoever has no keeper starts one when a second thousand comes and nobody did the first.  Those at
one store object take turns.

Nobody ever fails by it, whatever is wrong with the record: what could not be done now is met again
by the next one, and what nobody foresaw is told to the log of the program, once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from interlock.drivers import Op
from interlock.errors import InterlockError
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.store import Store

T = TypeVar("T")

STEPS = 1
"""Up to 2,000 entries sealed for 1,000 written, so it catches up with what others left over; and
quick enough to be done between two renewals of the shortest lease."""
BETWEEN = 1.0
"""Seconds between two passes at one store object, if the first did all that was to be done."""

_passed: WeakKeyDictionary[Store, float] = WeakKeyDictionary()
"""Before which moment there is hardly anything to do."""


class Housekeeping:
    """What one client does for the record.

    It is ``due`` after one of a thousand commits of ours; ``on_due`` wakes whoever will ``tend``.
    ``also`` is done then, too, for a client of which the record is not all that it fills.
    """

    def __init__(self, runner: Runner, store: Store, settings: Settings | None = None) -> None:
        self.due = False
        self.on_due: Callable[[], None] | None = None
        self.on_late: Callable[[], None] | None = None
        """Called instead if it was due before, and nobody came."""
        self.passes: dict[str, Callable[[Actor], Op[bool]]] = {}
        """By what it is about; each says whether there is more to do at once."""
        self._runner = runner
        self._store = store
        self._settings = settings
        self._warned = False
        runner.chain.on_many = self._many

    def run(self, actor: Actor) -> Op[None]:
        """Do a bounded part of what is to be done, unless somebody has just done it."""
        from interlock.nouns.record.seal_service import Sealing  # few ever come here

        self.due = False
        now = self._runner.clock.monotonic()
        if now < _passed.get(self._store, now):
            return
        _passed[self._store] = now + self._runner.capabilities.allow(BETWEEN)
        sealing = Sealing(self._runner, self._settings)
        tidied = yield from self._unharmed(lambda: sealing.tidy(actor, STEPS))
        for also in tuple(self.passes.values()):
            self.due = (yield from self._unharmed(partial(also, actor))) is True or self.due
        if self.due or (tidied is not None and tidied.left and not tidied.finding):
            _passed.pop(self._store, None)

    def _unharmed(self, work: Callable[[], Op[T]]) -> Op[T | None]:
        try:
            return (yield from work())
        except InterlockError:
            return None  # 'maintain' and 'doctor' say it to whoever asks
        except Exception as error:  # noqa: BLE001 - a session must not lapse by the record
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            import logging

            self._warned = True
            said = "the record could not be tended (%r); run 'interlock record verify'"
            logging.getLogger("interlock").warning(said, error)

    def _many(self) -> None:
        late, self.due = self.due, True
        wake = self.on_late if late else self.on_due
        if wake is not None:
            wake()
