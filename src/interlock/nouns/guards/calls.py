"""The calls about guards, for both clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core.outcomes import NoGuard
from interlock.errors import BadInput
from interlock.nouns.guards.results import (
    GuardCheck,
    GuardDropped,
    GuardsDefined,
    GuardsLooked,
    GuardView,
)
from interlock.runtime.calls import Calls, D, call
from interlock.steps import Op

if TYPE_CHECKING:
    import os

    from interlock.nouns.guards.condition import Condition
    from interlock.nouns.guards.guard import Guard


class GuardCalls(Calls[D]):
    """Guards: conditions with a name, and what happens while they do not hold."""

    @call
    def check(
        self,
        *what: Condition | Guard | str,
        any_of: bool = False,
        root: str | os.PathLike[str] | None = None,
    ) -> Op[GuardCheck | NoGuard]:
        """Whether conditions hold: those of ``interlock.guard``, guards, and names of stored ones.

        All conditions must hold, with ``any_of`` one of them, and each guard.  Branches, files and
        commands of the conditions are looked at here, below ``root`` (the current folder).  Those
        of a guard are looked at only if this host allows its definition (``interlock guard
        allow``); else an observation of another host counts, if it is new enough.
        """
        from interlock.nouns.guards import requests

        asked = requests.asked(what, any_of=any_of, root=root)
        return requests.check(self.context.runner, asked, looks=self.context.looks)

    @call
    def define(self, *guards: Guard | str | os.PathLike[str]) -> Op[GuardsDefined]:
        """Put guards into the store, in one commit; one of the same name is replaced.

        A path stands for all guards of that file.
        """
        from interlock.nouns.guards import requests, service

        actor = self._identity(()).actor
        legal = requests.legal_guards(requests.with_files(guards))
        if not legal:
            raise BadInput("which guards? give at least one, made with interlock.guard.named")
        return service.define(self.context.runner, legal, actor)

    @call
    def look(self) -> Op[GuardsLooked]:
        """Look once at the outside, for things that wait for guards which this host allows.

        A thing whose guard passes now moves on.  ``connect(look=True)`` keeps looking in the
        background, and ``fleet.maintain(guards=True)`` while it runs.
        """
        from interlock.nouns.guards.poller import OutsidePoller

        return OutsidePoller(self.context).round()

    @call
    def list(self) -> Op[tuple[GuardView, ...]]:
        """All guards of the store, by name."""
        from interlock.nouns.guards import views

        return views.guards()

    @call
    def show(self, name: str) -> Op[GuardView | NoGuard]:
        """One guard: its definition, whether this host allows it, and its last observations."""
        from interlock.nouns.guards import views

        return views.guard(name)

    @call
    def drop(self, name: str) -> Op[GuardDropped | NoGuard]:
        """Delete a guard from the store."""
        from interlock.nouns.guards import service

        return service.drop(self.context.runner, name, self._identity(()).actor)
