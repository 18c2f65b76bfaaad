"""A round through all tasks, from the first key to the last: how far it is, and what it knows.

The data of a task stand before its status, so whoever meets a status has seen what it is.  The
imports stand before all tasks: whatever is complete of them when the round comes by is met as
tasks, and as long as one is not, nobody can say who needs what.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from msgspec import Struct

from interlock.core import keys
from interlock.nouns.tasks import decode
from interlock.nouns.tasks import retention_rules as core
from interlock.nouns.tasks.retention_rules import Past, Said, Survey
from interlock.nouns.tasks.task import BATCH, Spec, Status
from interlock.runtime.commits import Moment
from interlock.runtime.decode import readable
from interlock.store import Item

SUSPECTS = 1_000
"""Tasks that failed of which a round finds out whether somebody needs them."""


class Start(Struct, frozen=True, kw_only=True):
    """How it stands when a round begins: what the record said last, and so what time it is."""

    moment: Moment
    mark: int
    now: float
    said: tuple[Said, ...]


class Round:
    """One round; ``whole`` if it begins with the first task.

    ``cut`` and ``suspects`` are from the round before: those that ended up to this revision are too
    many, and for those that failed nobody was looked for who needs them.
    """

    def __init__(
        self, start: Start, age: float, *, cut: int, suspects: dict[str, int], after: str
    ) -> None:
        self.mark = start.mark
        self.cut = cut
        self.suspects = suspects
        self.fresh: dict[str, int] = {}
        """The suspects of the next round."""
        self.after = after
        self.whole = not after
        self.sure = True
        """Whether all was met that may need a task: no import is under way, and all can be read."""
        self.over = False
        self.looked = 0
        self.stay = array("q")
        """At which revisions those ended that stay."""
        self._start = start
        self._age = age
        self._oldest = start.now
        self._young = core.young(start.said, age, start.now)
        self._tried = frozenset(suspects)
        self._data: Item | None = None

    @property
    def survey(self) -> Survey:
        """What stays, as of the beginning: whatever ends later is no older than that."""
        return Survey(
            revision=self._start.moment.revision,
            at=self._start.now,
            oldest=self._oldest,
            count=len(self.stay),
            entries=self._start.moment.entries,
        )

    def meet(self, items: Sequence[Item]) -> list[Past]:
        """Know what a page says; those that are over."""
        found = [each for item in items if (each := self._met(item)) is not None]
        self.after = items[-1].key if items else self.after
        self.looked += len(items)
        self._young = min(self._young, core.young(found, self._age, self._start.now))
        return found

    def going(self, some: Sequence[Past]) -> list[Past]:
        """Those of a page that go, as far as their time is concerned."""
        return core.going(some, self._start.now - self._age, self._young, self.cut)

    def suspect(self, some: Iterable[Past]) -> None:
        """Look for whoever needs these in the next round, unless this one does."""
        for each in some:
            if each.task not in self._tried and len(self.fresh) < SUSPECTS:
                self.fresh[each.task] = each.revision

    def leave(self, some: Sequence[Past]) -> None:
        """These stay for now."""
        self.stay.extend(each.revision for each in some)
        self._oldest = min([self._oldest, *(each.at for each in some)])

    def _met(self, item: Item) -> Past | None:
        if item.key.endswith("/data"):
            self._data = item
        if not item.key.endswith("/status"):
            return None
        task = keys.task_of(item.key)
        data = self._data if self._data and self._data.key == keys.data(task) else None
        status, spec = readable(decode.status, item), readable(decode.spec, data)
        if status is None or spec is None:
            self.sure = False
            return None
        return self._learn(task, item.revision, status, spec)

    def _learn(self, task: str, revision: int, status: Status, spec: Spec) -> Past | None:
        if status.state != "complete":
            self.sure = self.sure and not task.startswith(BATCH)
            for need in spec.needs:
                self.suspects.pop(need, None)
        return core.past(task, revision, status, spec)
