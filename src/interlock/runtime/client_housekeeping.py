"""The small share of housekeeping that every client does.

Clients keep a store small without ``maintain``.  After one of a thousand commits, a client does a
small step.  It starts to count somewhere below a thousand, by chance: this spreads the steps of
many clients with the same load, and a command that ends at once pays its share.  The keeper of a
client does the step in the background.  A client without a keeper starts one when a second thousand
is complete and the first step is still due.  The clients of one store object share one step.

No caller ever fails by a step: the next one finds again what could not be done, and an unforeseen
error goes to the log of the program, once.
"""

from __future__ import annotations

from _weakref import ref  # the module weakref makes classes that no command needs
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from interlock import registry
from interlock.errors import InterlockError
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op
from interlock.store import Store

T = TypeVar("T")

BETWEEN = 1.0
"""Seconds between two steps at one store object, if the first left nothing to do."""

_passed: dict[ref[Store], float] = {}
"""The moment before which there is hardly anything to do; each reference removes itself."""


class ClientHousekeeping:
    """The share of one client.

    It is ``due`` after one of a thousand commits; ``on_due`` wakes the keeper, which calls ``run``.
    """

    def __init__(self, runner: Runner, store: Store, settings: Settings | None = None) -> None:
        self.due = False
        self.on_due: Callable[[], None] | None = None
        self.on_late: Callable[[], None] | None = None
        """Called instead if a step was due before, and is still to be done."""
        self.passes: dict[str, Callable[[Actor], Op[bool]]] = {}
        """Steps of the nouns that the client uses; each returns whether there is more to do."""
        self._runner = runner
        self._store = store
        self._settings = settings
        self._warned = False
        runner.chain.on_many = self._many

    def run(self, actor: Actor) -> Op[None]:
        """Do a bounded step, unless another client has just done one."""
        self.due = False
        now = self._runner.clock.monotonic()
        if now < _passed.get(ref(self._store), now):
            return
        _passed[ref(self._store, _passed.pop)] = now + self._runner.capabilities.allow(BETWEEN)
        more = False
        for step in registry.client_steps():
            more = (yield from self._unharmed(partial(self._step, step, actor))) is True or more
        for also in tuple(self.passes.values()):
            self.due = (yield from self._unharmed(partial(also, actor))) is True or self.due
        if self.due or more:
            _passed.pop(ref(self._store), None)

    def _step(self, step: str, actor: Actor) -> Op[object]:
        return (yield from registry.load(step)(self._runner, self._settings, actor))

    def _unharmed(self, work: Callable[[], Op[T]]) -> Op[T | None]:
        try:
            return (yield from work())
        except InterlockError:
            return None  # 'maintain' and 'doctor' report it
        except Exception as error:  # noqa: BLE001 - the keeper must go on renewing
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            import logging

            self._warned = True
            said = "housekeeping of the record failed (%r); run 'interlock record verify'"
            logging.getLogger("interlock").warning(said, error)

    def _many(self) -> None:
        late, self.due = self.due, True
        wake = self.on_late if late else self.on_due
        if wake is not None:
            wake()
