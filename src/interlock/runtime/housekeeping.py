"""Clients that write also keep the store small: the log, acknowledged messages, finished tasks.

A client that crosses the limit of the log does a bounded part of the work.  One small pass is due
for each thousand commits.  Every client starts its count at a random number below a thousand, so
the passes of many similar writers are spread, and a command that ends at once does its share.  A
client that lives long does the pass in its keeper: a client without a keeper starts one when a
second pass becomes due and the first was not done.  Clients on one store object take turns.

A failure of a pass never reaches a caller.  The next pass meets the same finding, and an unexpected
error goes to the log of the program, once.
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
"""Up to 2,000 entries sealed for 1,000 written, so it catches up with a backlog; and quick enough
to run between two renewals of the shortest lease."""
BETWEEN = 1.0
"""Seconds between two passes at one store object, if the first left no work."""

_passed: WeakKeyDictionary[Store, float] = WeakKeyDictionary()
"""The time before which a pass would find hardly any work."""


class Housekeeping:
    """The periodic work of one client for the record, and the ``passes`` of other nouns.

    It is ``due`` after a thousand commits of this client; ``on_due`` then wakes the keeper.
    """

    def __init__(self, runner: Runner, store: Store, settings: Settings | None = None) -> None:
        self.due = False
        self.on_due: Callable[[], None] | None = None
        self.on_late: Callable[[], None] | None = None
        """Called instead if it was due before, and no keeper ran it."""
        self.passes: dict[str, Callable[[Actor], Op[bool]]] = {}
        """Passes by noun; each returns whether more is to be done at once."""
        self._runner = runner
        self._store = store
        self._settings = settings
        self._warned = False
        runner.chain.on_many = self._many

    def run(self, actor: Actor) -> Op[None]:
        """Do a bounded part of the work, unless another client has just done it."""
        from interlock.nouns.record.seal_service import Sealing  # few clients run it

        self.due = False
        now = self._runner.clock.monotonic()
        if now < _passed.get(self._store, now):
            return
        _passed[self._store] = now + self._runner.capabilities.allow(BETWEEN)
        sealing = Sealing(self._runner, self._settings)
        tidied = yield from self._unharmed(lambda: sealing.tidy(actor, STEPS))
        for work in tuple(self.passes.values()):
            self.due = (yield from self._unharmed(partial(work, actor))) is True or self.due
        if self.due or (tidied is not None and tidied.left and not tidied.finding):
            _passed.pop(self._store, None)

    def _unharmed(self, work: Callable[[], Op[T]]) -> Op[T | None]:
        try:
            return (yield from work())
        except InterlockError:
            return None  # 'maintain' and 'doctor' report it
        except Exception as error:  # noqa: BLE001 - a session must not expire because of the record
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
