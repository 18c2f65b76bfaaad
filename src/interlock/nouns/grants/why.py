"""Why something does not go on: what blocks it, who can clear it, since when.

A pool is read as if stale grants and dead waiters were removed, as the next caller does.  Then
there are three reasons to be blocked: all of it is held; some is free, but the first waiter needs
more; or the rest is reserved for the first waiter, which also waits for another thing.

A holder may wait itself, for something that another one holds.  That chain is one line, down to
the holder at its end.  Where it meets a pipeline, a guard, a question or a task without a worker,
the explanation leads there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.safe_text import foreign
from interlock.core.thing_names import key_of, thing_of
from interlock.core.validate import quote, span
from interlock.core.wait import (
    UnqueuedWait,
    agent_caller_name,
    before_thing,
    caller_name,
    caller_name_of,
)
from interlock.errors import StoreDamaged
from interlock.nouns.agents.session_rules import Session
from interlock.nouns.grants.pool import Grant, Waiter
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.nouns.grants.service import break_notes
from interlock.nouns.grants.views import (
    LivePool,
    holders,
    live_pool,
    named_things,
    queue,
    stands_on,
)
from interlock.nouns.tasks.task import TaskOwner
from interlock.runtime import reads
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up, outside, readable_wait
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED, Why, explain_one
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

LINKS = 20
"""So many holders of a chain are followed, one after the other."""


def lock(context: Context, name: str) -> Op[Why]:
    """Explain a lock."""
    return (yield from _lock(context, validate.name(name, "lock name")))


def plain(context: Context, name: str) -> Op[Why]:
    """Explain a name that no other thing has: a lock that is used, an agent, or a free lock."""
    name = validate.name(name, "thing")
    live = yield from live_pool(context.runner, key_of(f"lock/{name}"), waiters=True)
    if live is None or not (live.grants or live.waiters):
        agent = yield from explain_one(context, f"agent/{name}")
        if agent:
            return agent
    return (yield from _lock(context, name, ", and nothing else has that name"))


def _lock(context: Context, name: str, besides: str = "") -> Op[Why]:
    """What blocks the next request for this lock; ``besides`` is added if it is free."""
    thing = f"lock/{name}"
    live = yield from live_pool(context.runner, key_of(thing), waiters=True)
    if live is None:
        why = Why(thing=thing, blocked=False, because=f"free{besides}", clear="acquire it")
    elif live.room > 0:
        why = yield from _room(context.runner, thing, live)
    else:
        grant = live.grants[0]
        session = yield from context.sessions.find(grant.session)
        because = _held_by(grant, session, len(live.waiters))
        clear = _clear(grant, live)
        why = yield from _blocked(context.runner, thing, live, because, clear)
    return (yield from _with_more(context.runner, why))


def _clear(grant: Grant, live: LivePool) -> str:
    """Who ends a grant; that of a pipeline never expires."""
    if pipeline := _pipeline(grant):
        return f"{foreign(pipeline)} leaves its phase, or ends"
    return f"{foreign(grant.agent)} releases it, or does not renew it{_for(live)}"


def _for(live: LivePool) -> str:
    """How long a holder may go without a renewal, if that is known."""
    return "" if live.expires_in is None else f" for {span(live.expires_in)}"


def semaphore(context: Context, name: str) -> Op[Why]:
    """Explain a semaphore: what blocks the next request for a slot."""
    name = validate.name(name, "semaphore name")
    thing = f"sem/{name}"
    live = yield from live_pool(context.runner, key_of(thing), waiters=True)
    if live is None:
        why = Why(
            thing=thing,
            blocked=False,
            because="there is no such semaphore yet",
            clear=f"acquire it with a capacity: interlock sem acquire {quote(name)} --capacity N",
        )
    elif live.room > 0:
        why = yield from _room(context.runner, thing, live)
    else:
        because = f"all {live.pool.capacity} slots are held: {holders(live.grants)}"
        lapses = any(grant.live for grant in live.grants)
        clear = "one of them releases"
        clear += f", or does not renew{_for(live)}" if lapses else ""
        why = yield from _blocked(context.runner, thing, live, because, clear)
    return (yield from _with_more(context.runner, why))


def _room(runner: Runner, thing: str, live: LivePool) -> Op[Why]:
    """Some is free: for the next request, for the first waiter, or too little for that."""
    if not live.waiters:
        because, clear = _free(thing, live)
        return Why(thing=thing, blocked=False, because=because, clear=clear)
    first = live.waiters[0]
    if first.weight <= live.room:
        return _kept(thing, live, first)
    because = (
        f"{_slots(live)}, but {foreign(first.agent)} wants {first.weight} and came first;"
        " requests are served in order, so smaller ones wait behind it"
    )
    clear = f"{holders(live.grants)} gives back {first.weight - live.room} more"
    clear += f", or {foreign(first.agent)} gives up"
    return (yield from _blocked(runner, thing, live, because, clear))


def _blocked(runner: Runner, thing: str, live: LivePool, because: str, clear: str) -> Op[Why]:
    grants, left = live.grants, live.expires_in
    callers = {caller_name_of(grant): grant.agent for grant in grants[:NAMED]}
    waits = yield from meanwhile(runner, callers)
    pipelines = [found for grant in grants[:NAMED] if (found := _pipeline(grant))]
    return Why(
        thing=thing,
        blocked=True,
        because=because,
        clear=clear,
        by=", ".join(dict.fromkeys(grant.agent for grant in grants)),
        since=min((grant.since for grant in grants), default=None),
        expires_in=None if left is None else round(left, 3),
        meanwhile=waits.lines,
        cycle=waits.cycle,
        waiters=queue(live.waiters),
        leads_to=(*pipelines, *waits.leads_to),
    )


def _pipeline(grant: Grant) -> str:
    """The pipeline that has a grant, if one does; its grants never expire."""
    kind, _, name = grant.agent.partition(":")
    return f"pipeline/{name}" if kind == "pipeline" and not grant.live else ""


def _with_more(runner: Runner, found: Why) -> Op[Why]:
    """The explanation, with waits for guards before this thing, and grants that were ended."""
    page = Range(keys.waits(before_thing(found.thing)), limit=NAMED)
    items = (yield Read(page)).ranges[page]
    waits = [each for item in items if isinstance(each := readable_wait(item), UnqueuedWait)]
    live = yield from looked_up(each.live for each in waits)
    now, said, leads_to = runner.clock.wall(), list(found.meanwhile), list(found.leads_to)
    for each in waits:
        if live[each.live] is not None:
            guard = yield from _guard(runner, each.wants)
            said.append(
                f"{foreign(each.agent)} waits for {foreign(thing_of(each.wants))} before it"
                " acquires this,"
                f" for {span(now - each.since)}{guard.says}"
            )
            said += guard.lines
            leads_to += guard.leads_to
    found = replace(found, meanwhile=tuple(dict.fromkeys(said)), leads_to=tuple(leads_to))
    return (yield from with_ended(found, now))


class ChainEnd(NamedTuple):
    """Where a chain of waits ends: what is said of that, and the things that it leads to."""

    says: str = ""
    lines: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()


def _guard(runner: Runner, key: str) -> Op[ChainEnd]:
    """The condition that keeps a guard from passing, and what that is about."""
    from interlock.nouns.guards.hosts import who_looks
    from interlock.nouns.guards.views import hindrance_now

    try:
        found = yield from hindrance_now(runner, thing_of(key).removeprefix("guard/"))
    except StoreDamaged as error:
        return ChainEnd(f": {error}")
    if found is None:
        return ChainEnd(", which passes now")
    leaf = foreign(found.leaf) if found.leaf else ""
    said = ": ".join(["", *filter(None, (leaf, found.reason))])
    looks = yield from who_looks(found.facts)
    return ChainEnd(said, looks, (found.thing,) if found.thing else ())


def with_ended(found: Why, now: float) -> Op[Why]:
    """The explanation, with the grants that an operator ended."""
    ended = yield from outside(break_notes(found.thing))
    said = [
        f"{foreign(note.by)} ended the grant of {foreign(note.holder)} (token {note.token})"
        f" {span(now - note.at)}"
        f" ago: {foreign(note.reason)}"
        for note in ended[:NAMED]
    ]
    return replace(found, ended=tuple(said)) if said else found


class WaitsOfCallers(NamedTuple):
    """What callers wait for, in lines, the things that this leads to, and a cycle of agents."""

    lines: tuple[str, ...] = ()
    leads_to: tuple[str, ...] = ()
    cycle: tuple[str, ...] = ()


def meanwhile(runner: Runner, callers: Mapping[str, str]) -> Op[WaitsOfCallers]:
    """What callers, each with its agent, wait for themselves, down to the holder at the end.

    A chain is followed for ``LINKS`` holders at most, and cut where it comes back to a caller.
    """
    said: dict[str, None] = {}
    leads_to: list[str] = []
    cycle: tuple[str, ...] = ()
    for start, agent in callers.items():
        for wait in (yield from _waited_for((start,))).get(start, ()):
            end = yield from _chain(runner, start, agent, wait.wanted)
            said |= dict.fromkeys([end.says, *end.lines])
            leads_to += end.leads_to
            cycle = cycle or end.cycle
    return WaitsOfCallers(tuple(said), tuple(dict.fromkeys(leads_to)), cycle)


def _chain(runner: Runner, start: str, agent: str, wanted: tuple[str, ...]) -> Op[ChainEnd]:
    """``ada waits for lock/merge, held by bob, who waits for lock/db, held by cleo``."""
    passed = {start: agent}
    said = f"{foreign(agent)} waits for {named_things(wanted)}"
    for _ in range(LINKS):
        holders = yield from _holders(wanted)
        if not holders:
            end = yield from _end(runner, wanted)
            return end._replace(says=said + end.says)
        waits = yield from _waited_for(holders)
        caller = next((each for each in holders if waits.get(each)), next(iter(holders)))
        holder = holders[caller]
        said += f", held by {foreign(holder.agent)}"
        if caller in passed:
            members = list(passed.values())[list(passed).index(caller) :]
            return ChainEnd(f"{said}: a cycle", cycle=(*members, members[0]))
        if not waits.get(caller):
            return ChainEnd(said, leads_to=(holder.pipeline,) if holder.pipeline else ())
        passed[caller] = holder.agent
        wanted = waits[caller][0].wanted
        said += f", who waits for {named_things(wanted)}"
    return ChainEnd(f"{said}, and so on")


def _end(runner: Runner, wanted: Iterable[str]) -> Op[ChainEnd]:
    """What is known of things that no caller holds: guards, questions, tasks without a worker."""
    says, lines, leads_to = "", list[str](), list[str]()
    for key in wanted:
        if key.startswith(keys.GUARDS):
            guard = yield from _guard(runner, key)
            says += guard.says
            lines += guard.lines
            leads_to += guard.leads_to
        elif key.startswith((keys.TASKS, keys.QUERIES)):
            leads_to.append(thing_of(key))
    return ChainEnd(says, tuple(lines), tuple(leads_to))


class _Holder(NamedTuple):
    agent: str
    pipeline: str = ""


def _holders(wanted: Iterable[str]) -> Op[dict[str, _Holder]]:
    """The first callers that hold something of these; tasks by their worker.

    Of a task that is blocked, the one that it hangs on in the end counts.
    """
    found: dict[str, _Holder] = {}
    for key in wanted:
        if key.startswith(keys.TASKS):
            claim = yield from _worker(keys.task_of(key))
            if claim is not None:
                name = caller_name(claim.agent, claim.session, claim.caller)
                found[name] = _Holder(claim.agent)
        elif key.startswith(keys.POOLS):
            item = (yield Read(key))[key]
            pool = None if item is None else readable_pool(item, 0)
            for grant in () if pool is None else pool.grants[:NAMED]:
                found[caller_name_of(grant) or grant.session] = _Holder(
                    grant.agent, _pipeline(grant)
                )
    return found


def _worker(task: str) -> Op[TaskOwner | None]:
    """Who works on a task, or on the one that it hangs on in the end."""
    from interlock.nouns.tasks.task_reader import decode_claim, decode_status

    for _ in range(LINKS):
        own = (keys.status(task), keys.owner(task))
        snapshot: Snapshot = yield Read(*own)
        status = reads.readable(decode_status, snapshot[own[0]])
        if status is None or status.state != "blocked":
            return reads.readable(decode_claim, snapshot[own[1]])
        task = status.on
    return None


class CallerWait(NamedTuple):
    """The keys that a caller waits for, and since when."""

    wanted: tuple[str, ...]
    since: float


def waits_of_agent(agent: str) -> Op[list[CallerWait]]:
    """What an agent waits for, in all of its sessions."""
    name = agent_caller_name(agent)
    return (yield from _waited_for((name,))).get(name, [])


def _waited_for(callers: Iterable[str]) -> Op[dict[str, list[CallerWait]]]:
    """What each of these callers waits for; as it is listed, if it still does."""
    pages = {each: Range(keys.waits(each), limit=KEYS_AT_ONCE) for each in callers if each}
    if not pages:
        return {}
    listed: Snapshot = yield Read(*pages.values())
    waits = [(each, item) for each, page in pages.items() for item in listed.ranges[page]]
    stands = {item.key: stands_on(item) for _, item in waits}
    found = yield from looked_up(key for each in stands.values() for key in each)
    waited: dict[str, list[CallerWait]] = {}
    for each, item in waits:
        since = _since(item, [found[key] for key in stands[item.key]])
        if since is not None:
            waited.setdefault(each, []).append(CallerWait(reads.waited_for(item), since))
    return waited


def _since(listed: Item, stands_on: Iterable[Item | None]) -> float | None:
    """When a listed wait began, if it is really in a queue, or lives."""
    there = [item for item in stands_on if item is not None]
    if isinstance(wait := readable_wait(listed), UnqueuedWait):
        return wait.since if there else None
    pools = [pool for item in there if (pool := readable_pool(item, 0)) is not None]
    waiters = (waiter for pool in pools for waiter in pool.waiters)
    id_ = keys.id_of(listed.key)
    return next((waiter.since for waiter in waiters if waiter.id == id_), None)


def _held_by(grant: Grant, session: Session | None, waiting: int) -> str:
    where = f" (process {session.pid} on {foreign(session.host)})" if session else ""
    queue = f", {waiting} wait{'s' if waiting == 1 else ''}" if waiting else ""
    return f"held by {foreign(grant.agent)}{where} with token {grant.token}{queue}"


def _free(thing: str, live: LivePool) -> tuple[str, str]:
    stale = live.stale[0] if live.stale else None
    if thing.startswith("lock/"):
        if stale is None:
            return "free", "acquire it"
        because = f"{foreign(stale.agent)} stopped renewing it and its grant {stale.token} is stale"
        return because, "acquire it, or run 'interlock maintain'"
    if stale is None:
        return _slots(live), "acquire them"
    whose = f"with what {foreign(stale.agent)} left, whose grant {stale.token} is stale"
    return f"{_slots(live)}, {whose}", "acquire them, or run 'interlock maintain'"


def _kept(thing: str, live: LivePool, first: Waiter) -> Why:
    """What is free is the first waiter's, who cannot take it yet."""
    others = [key for key in first.together if key != key_of(thing)]
    because = f"kept for {foreign(first.agent)}, who is served in a moment"
    clear = f"{foreign(first.agent)} gets it, and gives it back"
    if others:
        because = f"kept for {foreign(first.agent)}, who waits for {named_things(others)} as well"
        clear = f"{foreign(first.agent)} gets all that it waits for, or gives up"
    return Why(
        thing=thing,
        blocked=True,
        because=because,
        clear=clear,
        by=first.agent,
        since=first.since,
        waiters=queue(live.waiters),
    )


def _slots(live: LivePool) -> str:
    verb = "is" if live.room == 1 else "are"
    return f"{live.room} of {live.pool.capacity} slots {verb} free"
