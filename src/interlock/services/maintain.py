"""One bounded pass that reclaims what nobody came for, and seals the record.

Any process may run it, at any time.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from interlock.core import keys
from interlock.core import lock as locks
from interlock.core import session as sessions
from interlock.core.decision import Decision
from interlock.driving import Op
from interlock.services import states
from interlock.services.lock import every, liveness, looked_up
from interlock.services.runner import Deciding, Runner, Who
from interlock.settings import Settings
from interlock.store import Item

BOUND = 1000


class Maintained(Struct, frozen=True, kw_only=True):
    """What a pass did: grants and sessions reclaimed, entries sealed, and what is left to do.

    ``finding`` says why the record could not be sealed any further, as where it is damaged.
    """

    reclaimed: int = 0
    sealed: int = 0
    left: int = 0
    finding: str | UnsetType = UNSET


class Maintenance:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, settings: Settings | None = None) -> None:
        self._runner = runner
        self._settings = settings

    def run(self, who: Who, bound: int = BOUND) -> Op[Maintained]:
        """Reclaim stale locks and lapsed sessions, at most ``bound`` of them; then seal."""
        from interlock.services.seal import Sealing  # few commands ever need it

        base = yield from self._runner.base()
        reclaimed = left = 0
        for item in (yield from self._stale(base)):
            if reclaimed >= bound:
                left += 1
                continue
            done = yield from self._runner.change(self._deciding(item, base), who)
            reclaimed += done.outcome in ("reclaimed", "cleared")
        tidied = yield from Sealing(self._runner, self._settings).tidy(who)
        return Maintained(
            reclaimed=reclaimed,
            sealed=tidied.sealed,
            left=left + tidied.left,
            finding=tidied.finding or UNSET,
        )

    def _stale(self, base: int) -> Op[list[Item]]:
        """Locks whose grant and sessions whose liveness is gone."""
        lives: list[tuple[Item, tuple[str, ...]]] = []
        for item in (yield from every(keys.LOCKS)):
            lock = states.readable_lock(item, base)
            lives.append((item, lock.grant.live if lock else ()))
        lives += [
            (item, (keys.live(item.key.removeprefix(keys.SESSIONS)),))
            for item in (yield from every(keys.SESSIONS))
        ]
        live = yield from looked_up(key for _, wanted in lives for key in wanted)
        return [item for item, wanted in lives if any(live[key] is None for key in wanted)]

    def _deciding(self, item: Item, base: int) -> Callable[[], Deciding[str]]:
        if item.key.startswith(keys.LOCKS):
            return lambda: self._lock(item.key, base)
        return lambda: self._session(item.key)

    def _lock(self, key: str, base: int) -> Deciding[str]:
        lock = states.lock((yield (key,))[key], base)
        if lock is None:
            return Decision(outcome="gone")
        live = yield from liveness(lock)
        name = keys.name(key.removeprefix(keys.LOCKS))
        return locks.reclaim(lock, name, live.keys(), self._runner.clock.wall())

    def _session(self, key: str) -> Deciding[str]:
        live = keys.live(key.removeprefix(keys.SESSIONS))
        snapshot = yield (key, live)
        session = states.session(snapshot[key])
        if session is None or snapshot[live] is not None:
            return Decision(outcome="gone")
        return sessions.clear(session)
