"""Housekeeping: the pass of ``maintain`` over all nouns.

``maintain`` is one bounded pass, which any process may run at any time.  Each noun declares its
part of it (``Noun.housekeeping``), and the pass does three rounds in the order of their ranks:

    reclaim   release grants, claims and sessions that expired; delete expired messages
    expired   name notes that were kept for long enough: the pass deletes them in a few commits
    shrink    delete old tasks, seal the record, trim logs

Between the first two it repairs items that can be derived from others; at the end the engine
sweeps.

What clients do without it is in ``client_housekeeping.py``.
"""

from __future__ import annotations

from interlock import registry
from interlock.core.decision import Success
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op, StoreCall
from interlock.store import Item

BOUND = 1000


class Maintained(Success, frozen=True, kw_only=True, tag="maintained"):
    """What a pass did: grants, claims and sessions reclaimed, entries sealed, what is left to do.

    ``moved`` is how many tasks and pipelines made progress: their time came, their needs were
    complete, their deadline was over, or a guard passed.  ``forgotten`` is how many old messages
    and queries were deleted, ``forgotten_tasks`` how many tasks.  ``finding`` says why the record
    could not be sealed any further, for example because it is damaged.

    With ``guards``: ``looks`` is how often this host looked at the outside for guards, ``changed``
    are the guards that there was news about, and ``not_allowed`` those that things wait for and
    that this host does not allow.
    """

    reclaimed: int = 0
    sealed: int = 0
    left: int = 0
    moved: int = 0
    forgotten: int = 0
    forgotten_tasks: int = 0
    finding: str = ""
    looks: int = 0
    changed: tuple[str, ...] = ()
    not_allowed: tuple[str, ...] = ()


class HousekeepingPart:
    """The part of one noun; each method is a generator for a driver."""

    def __init__(self, work: HousekeepingPass) -> None:
        self.work = work

    def reclaim(self) -> Op[None]:
        """Release what belongs to expired sessions."""
        yield from ()

    def expired(self, _now: float) -> Op[list[Item]]:
        """The items that were kept for long enough, which the pass deletes."""
        yield from ()
        return []

    def shrink(self) -> Op[None]:
        """Delete or pack what is old."""
        yield from ()


class HousekeepingPass:
    """One pass, as a generator for a driver; the nouns get it, and add to its counts."""

    def __init__(self, runner: Runner, settings: Settings | None = None) -> None:
        self.runner = runner
        self.settings = settings or Settings()
        self.actor = Actor()
        self.bound = BOUND
        self._reset()

    def run(self, actor: Actor, bound: int = BOUND) -> Op[Maintained]:
        """Reclaim, repair, delete and seal, up to a bound."""
        from interlock.runtime.integrity import repair
        from interlock.runtime.noun import parts

        self._reset()
        self.actor, self.bound = actor, bound
        declared = parts(noun.housekeeping for noun in registry.nouns())
        nouns: list[HousekeepingPart] = [registry.load(part)(self) for part in declared]
        for noun in nouns:
            yield from noun.reclaim()
        self.reclaimed += yield from repair(self.runner, actor)
        yield from self._delete_expired(nouns)
        for noun in nouns:
            yield from noun.shrink()
        yield StoreCall("sweep")
        return Maintained(
            reclaimed=self.reclaimed,
            sealed=self.sealed,
            left=self.left,
            moved=self.moved,
            forgotten=self.deleted_messages,
            forgotten_tasks=self.deleted_tasks,
            finding=self.finding,
        )

    def _reset(self) -> None:
        self.reclaimed = self.sealed = self.left = self.moved = 0
        self.deleted_messages = self.deleted_tasks = 0
        self.finding = ""

    def _delete_expired(self, nouns: list[HousekeepingPart]) -> Op[None]:
        from interlock.runtime import refusals, retention, retention_clock

        now = yield from retention_clock.earlier_time(self.runner)
        old = yield from refusals.expired(now)
        for noun in nouns:
            old += yield from noun.expired(now)
        read = {item.key: item.revision for item in old}

        def unchanged(item: Item) -> bool:
            return item.revision == read[item.key]

        yield from retention.delete_items(
            self.runner, self.actor, tuple(read), unchanged, verb="record.expire"
        )
