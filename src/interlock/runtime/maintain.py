"""One bounded pass that reclaims what nobody came for, and seals the record.

Any process may run it, at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from interlock.core import keys
from interlock.core.decision import Decision, Success
from interlock.core.wait import UnqueuedWait
from interlock.drivers import Op
from interlock.errors import StoreDamaged, TooLarge
from interlock.nouns.agents import session_rules as sessions
from interlock.nouns.agents.decode import decode_death, decode_session
from interlock.nouns.agents.report_rules import describe
from interlock.nouns.agents.session_service import report_keys
from interlock.nouns.grants import rules
from interlock.nouns.grants.decode import decode_break_note, decode_pool, readable_pool
from interlock.nouns.grants.pool import Pool, listed_sessions
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.runtime import decode
from interlock.runtime.decide import DecideOp, ReadOp
from interlock.runtime.gather import KEYS_AT_ONCE, every, looked_up
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.store import Item, Range

BOUND = 1000


class Maintained(Success, frozen=True, kw_only=True, tag="maintained"):
    """What a pass did: grants, claims and sessions reclaimed, entries sealed, what is left to do.

    ``moved`` is how many tasks went on: their time came, their needs were complete, or their
    deadline was over.  ``forgotten`` is how many messages and queries that are over were let go,
    ``forgotten_tasks`` how many tasks.
    ``finding`` says why the record could not be sealed any further, as where
    it is damaged.
    """

    reclaimed: int = 0
    sealed: int = 0
    left: int = 0
    moved: int = 0
    forgotten: int = 0
    forgotten_tasks: int = 0
    finding: str = ""


class Maintenance:
    """The pass, as a generator for a driver."""

    def __init__(self, runner: Runner, settings: Settings | None = None) -> None:
        self._runner = runner
        self._settings = settings

    def run(self, actor: Actor, bound: int = BOUND) -> Op[Maintained]:
        """Reclaim what is stale, lapsed or waited for by nobody, up to a bound; then seal."""
        from interlock.nouns.messages.limits import message_limits  # few commands ever need these
        from interlock.nouns.messages.retention import MessageRetention
        from interlock.nouns.record.seal_service import Sealing
        from interlock.nouns.tasks.housekeeping import TaskMaintenance
        from interlock.nouns.tasks.retention import TaskRetention, retention_limits
        from interlock.runtime.integrity import repair

        base = yield from self._runner.base()
        forgetting = TaskRetention(self._runner, retention_limits(self._settings))
        look = yield from forgetting.read_facts()
        tasks = yield from TaskMaintenance(self._runner).run(actor, bound)
        reclaimed, left = tasks.reclaimed, tasks.left
        for item in (yield from self._stale(base)):
            if reclaimed >= bound:
                left += 1
                continue
            try:
                done = yield from self._runner.change(self._deciding(item, base), actor)
            except (StoreDamaged, TooLarge):  # nobody else's trouble; doctor names it
                left += 1
                continue
            reclaimed += done.outcome in ("reclaimed", "cleared")
            left += done.outcome == "at work"
        mail = yield from MessageRetention(
            self._runner, message_limits(self._settings or Settings())
        ).run(actor)
        over = yield from forgetting.run(actor, first=look)
        mended = yield from repair(self._runner, actor)
        yield from self._expire(actor)
        tidied = yield from Sealing(self._runner, self._settings).tidy(actor)
        return Maintained(
            reclaimed=reclaimed + mail.reclaimed + mended,
            sealed=tidied.sealed,
            left=left + mail.left + over.left + tidied.left,
            moved=tasks.moved,
            forgotten=mail.forgotten,
            forgotten_tasks=over.forgotten,
            finding=tidied.finding or "",
        )

    def _expire(self, actor: Actor) -> Op[None]:
        """Delete notes for operators and holders, and counts, that were kept for long enough."""
        from interlock.runtime import refusals, retention_clock

        now, portion = (yield from retention_clock.earlier_time(self._runner)), KEYS_AT_ONCE // 2
        old: list[Item] = []
        for item in (yield from every(keys.DEATHS)):
            death = decode.readable(decode_death, item)
            old += [item] if death and now - death.at > sessions.DEATH_KEPT else []
        for item in (yield from every(keys.BROKEN)):
            note = decode.readable(decode_break_note, item)
            old += [item] if note and now - note.at > sessions.DEATH_KEPT else []
        counted = yield from every(keys.refusal_counts())
        old += [item for item in counted if refusals.refused(item).is_old(now)]
        for start in range(0, len(old), portion):
            some = {item.key: item.revision for item in old[start : start + portion]}
            yield from self._runner.change(partial(_deleting, some), actor)

    def _stale(self, base: int) -> Op[list[Item]]:
        """Pools with a grant or a first waiter, and sessions, whose liveness is gone."""
        pools = yield from every(*keys.POOLS)
        lives = [(item, _relies_on(readable_pool(item, base))) for item in pools]
        lives += [
            (item, (keys.live(item.key.removeprefix(keys.SESSIONS)),))
            for item in (yield from every(keys.SESSIONS))
        ]
        live = yield from looked_up(key for _, wanted in lives for key in wanted)
        stale = [item for item, wanted in lives if any(live[key] is None for key in wanted)]
        held = {item.key: listed_sessions(readable_pool(item, base)) for item in pools}
        return [*stale, *(yield from self._orphans(base)), *(yield from self._unheld(held))]

    def _unheld(self, held: dict[str, set[str]]) -> Op[list[Item]]:
        """Pools that are listed under a session which has nothing of them."""
        lists = [(item, keys.held_of(item.key)) for item in (yield from every(keys.HELD))]
        return [item for item, (session, key) in lists if session not in held.get(key, ())]

    def _orphans(self, base: int) -> Op[list[Item]]:
        """Waits that are listed, but stand in no queue, or live no more."""
        waits = yield from every(keys.WAITS)
        wanted = {item.key: _stands_on(item) for item in waits}
        found = yield from looked_up(filter(None, wanted.values()))
        readable = readable_pool
        stands = {item.key: found.get(wanted[item.key]) for item in waits}
        return [item for item in waits if not _waits(item.key, stands[item.key], base, readable)]

    def _deciding(self, item: Item, base: int) -> Callable[[], DecideOp[str]]:
        if item.key.startswith(keys.POOLS):
            return lambda: self._pool(item.key, base)
        if item.key.startswith(keys.HELD):
            return lambda: self._listed(item.key, base)
        if item.key.startswith(keys.WAITS):
            return lambda: self._wait(item.key, _stands_on(item), base)
        return lambda: self._session(item.key)

    def _pool(self, key: str, base: int) -> DecideOp[str]:
        reader = PoolReader(self._runner, base)
        reader.learn((yield (key,)).items)
        now = self._runner.clock.wall()
        return (yield from reader.decide(lambda facts: rules.reclaim(key, facts, now)))

    def _listed(self, key: str, base: int) -> DecideOp[str]:
        session, pool = keys.held_of(key)
        snapshot = yield (key, pool)
        if snapshot[key] is None or session in listed_sessions(decode_pool(snapshot[pool], base)):
            return Decision(outcome="gone")
        return Decision(outcome="cleared", verb="wait.clear", thing="record", deletes=(key,))

    def _wait(self, key: str, stands_on: str, base: int) -> DecideOp[str]:
        snapshot = yield ((key, stands_on) if stands_on else (key,))
        found = snapshot[stands_on] if stands_on else None
        if snapshot[key] is None or _waits(key, found, base):
            return Decision(outcome="gone")
        return Decision(outcome="cleared", verb="wait.clear", thing="record", deletes=(key,))

    def _session(self, key: str) -> DecideOp[str]:
        id_ = key.removeprefix(keys.SESSIONS)
        live = keys.live(id_)
        snapshot = yield (key, live, keys.report(id_))
        session = decode_session(snapshot[key])
        if session is None or snapshot[live] is not None:
            return Decision(outcome="gone")
        if (yield from _works(id_)):
            return Decision(outcome="at work")
        from interlock.nouns.agents.report_service import decode_report

        said = decode.readable(decode_report, snapshot[keys.report(id_)])
        was = "" if said is None else describe(said)
        return sessions.clear(session, self._runner.clock.wall(), was, report_keys(snapshot, id_))


def _deleting(wanted: dict[str, int]) -> DecideOp[str]:
    """Delete those of these that still are as they were seen."""
    items = (yield tuple(wanted)).items
    there = tuple([key for key, item in items.items() if item and item.revision == wanted[key]])
    if not there:
        return Decision(outcome="gone")
    return Decision(outcome="expired", verb="record.expire", thing="record", deletes=there)


def _relies_on(pool: Pool | None) -> tuple[str, ...]:
    """The liveness of all who hold, and of the first who waits while there is room."""
    if pool is None:
        return ()
    held = [key for grant in pool.grants for key in grant.live]
    first = pool.waiters[:1] if pool.free > 0 else ()
    return (*held, *(waiter.live for waiter in first))


def _works(session: str) -> ReadOp[bool]:
    """Whether a session has claims that live by it: those are put back first."""
    page = Range(keys.claims(session), limit=KEYS_AT_ONCE)
    found = (yield (page,)).ranges[page]
    return any(keys.live(session) in decode.decode_keys(item) for item in found)


def _stands_on(item: Item) -> str:
    """What a listed wait cannot do without: one of its pools, or its liveness; "" if unreadable."""
    try:
        found = decode.decode_wait(item)
    except StoreDamaged:
        return ""
    return found.live if isinstance(found, UnqueuedWait) else next(iter(found), "")


def _waits(
    key: str,
    stands_on: Item | None,
    base: int,
    read: Callable[[Item, int], Pool | None] = decode_pool,
) -> bool:
    if stands_on is None or stands_on.key.startswith(keys.LIVE):
        return stands_on is not None
    pool = read(stands_on, base)
    return pool is not None and pool.position(keys.id_of(key)) is not None
