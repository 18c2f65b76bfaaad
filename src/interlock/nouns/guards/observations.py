"""Facts from outside for guards: this host looks, or relies on a host that looked.

A host looks for the guards that it allows (``allowed.py``), and for conditions that its user typed.
What it sees for a guard is stored for all other hosts:

    observed/{guard}/{need}       the last observation, by the digests of the guard and of the need
    live/observed/{guard}/{need}  lives for the maximum age of the guard

The engine measures the age: an observation without its liveness key is too old, even if the clocks
of the hosts disagree.  The remaining time of the key gives the age on the clock of the reader.  A
look that could not say anything is not stored: another host may have a better answer.

The facts of each guard stand apart, by its digest: two guards may ask for the same file below
different roots.

A host that denies a guard deletes its note and its observations, so that no other host relies on
them (``withdraw``).

Observations are stored without an entry, so no watch sees them.  If a host sees something new, an
entry says so and signals ``wake/observed/{guard}``, for callers that wait for it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, get_args

from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import codec, keys
from interlock.core.decision import Decision, Event, Write
from interlock.core.safe_text import printable
from interlock.core.validate import span
from interlock.errors import BadInput, NotAllowed, StoreTrouble
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.gates import OBSERVED, awaited_now
from interlock.nouns.guards.guard import Guard, digest
from interlock.nouns.guards.hosts import allowing_hosts, allowing_note, few_hosts
from interlock.nouns.guards.results import AllowingHost
from interlock.nouns.guards.rules import Facts, needs
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.reads import KEYS_AT_ONCE, OWN_OPERATIONS, every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.runtime.processes.supervised import Supervision

T = TypeVar("T")

Observed: TypeAlias = Mapping[str, Facts]
"""The facts from outside for each guard, by its digest."""

NOBODY = Actor()
_OUTSIDE = get_args(c.OutsideNeed)
_NAMED = 3

decode_observation = codec.Decoder(c.Observation).read


class Gathered(NamedTuple):
    """The facts from outside for some guards, and the guards whose facts this host saw itself."""

    facts: Observed
    own: Mapping[str, Guard]


def observations(
    runner: Runner | None,
    guards: Collection[Guard],
    clock: Clock,
    *,
    own_root: str | None = None,
) -> Op[Observed]:
    """The facts from outside for these guards; an event loop is not blocked.

    For a guard that this host allows it looks, and stores what it sees; for the others it takes
    what another host stored.  Guards without a name are conditions that the caller wrote: this host
    looks below ``own_root`` for them, and stores nothing.  Without a store (no runner) it can only
    look.
    """
    found = yield from _gather(runner, guards, clock, own_root)
    if runner is not None:
        yield from _try_to_share(runner, found)
    return found.facts


def with_observations(
    runner: Runner,
    guards: Collection[Guard],
    clock: Clock,
    work: Callable[[Observed], Op[T]],
) -> Op[T]:
    """Carry out a work that relies on the facts from outside; then store what this host saw.

    For a work that moves a thing on: if the facts were stored before, their gates would be checked
    again, and the thing would have moved without it.
    """
    found = yield from _gather(runner, guards, clock, None)
    outcome = yield from work(found.facts)
    yield from _try_to_share(runner, found)
    return outcome


def _gather(
    runner: Runner | None, guards: Collection[Guard], clock: Clock, own_root: str | None
) -> Op[Gathered]:
    asking = {digest(guard): guard for guard in guards if outside_needs(guard)}
    if not asking:
        return Gathered({}, {})
    roots: dict[str, str | c.NoFact | None] = yield InThread(partial(_roots, asking, own_root))
    allowed = {key: root for key, root in roots.items() if isinstance(root, str)}
    found: dict[str, Facts] = yield InThread(partial(look, asking, allowed, clock))
    for key, root in roots.items():
        if isinstance(root, c.NoFact):
            found[key] = dict.fromkeys(outside_needs(asking[key]), root)
    others = {key: guard for key, guard in asking.items() if key not in found}
    if runner is None:
        says = f"{_not_here()}; a person has to read its file and allow it here"
        unknown = c.NoFact(says=says)
        for key, guard in others.items():
            found[key] = dict.fromkeys(outside_needs(guard), unknown)
        return Gathered(found, {})
    own = {key: asking[key] for key in allowed if asking[key].name}
    return Gathered({**found, **(yield from _stored(others, clock.wall()))}, own)


def looks_here(guards: Iterable[Guard]) -> Op[frozenset[str]]:
    """The digests of the guards whose facts from outside this host looks for."""
    asking = {digest(guard): guard for guard in guards if outside_needs(guard)}
    roots: dict[str, str | c.NoFact | None] = yield InThread(partial(_roots, asking, None))
    return frozenset([key for key, root in roots.items() if isinstance(root, str)])


def outside_needs(guard: Guard) -> tuple[c.OutsideNeed, ...]:
    """What a guard asks of a host."""
    return tuple([need for need in needs(guard.condition) if isinstance(need, _OUTSIDE)])


def observation_key(guard_digest: str, need: c.OutsideNeed) -> str:
    """The item of the last observation for a need of a guard."""
    return keys.observed(guard_digest, codec.digest(codec.encode(need)))


# Looking.


def _roots(asking: Mapping[str, Guard], own_root: str | None) -> dict[str, str | c.NoFact | None]:
    """The folder that each guard may look at; None if this host does not allow it."""
    from interlock.nouns.guards.allowed import allowed

    found: dict[str, str | c.NoFact | None] = {}
    for key, guard in asking.items():
        if own_root is not None and not guard.name:
            found[key] = own_root
            continue
        try:
            entry = allowed(key)
        except (NotAllowed, BadInput) as error:
            found[key] = c.NoFact(says=str(error))
        else:
            found[key] = None if entry is None else entry.root
    return found


def allowed_roots(asking: Mapping[str, Guard]) -> dict[str, str]:
    """The folders that guards may look at, for those of them that this host allows."""
    return {key: root for key, root in _roots(asking, None).items() if isinstance(root, str)}


def look(
    asking: Mapping[str, Guard],
    roots: Mapping[str, str],
    clock: Clock,
    within: Supervision | None = None,
) -> dict[str, Facts]:
    """What this host sees; guards with the same root share one look."""
    from pathlib import Path

    from interlock.nouns.guards.outside import observe

    found: dict[str, Facts] = {}
    for root in dict.fromkeys(roots.values()):
        here = {key: outside_needs(asking[key]) for key in roots if roots[key] == root}
        wanted = dict.fromkeys(need for each in here.values() for need in each)
        see = partial(observe, root=Path(root), host=host_name(), clock=clock, within=within)
        seen = see(wanted)
        # Beside a slow command, an observation of a file can become too old: look again.
        oldest = clock.wall() - min(asking[key].max_age for key in here) / 2
        plain = [need for need in wanted if not isinstance(need, c.CommandNeed)]
        seen |= see([need for need in plain if seen[need].at < oldest])
        found |= {key: {need: seen[need] for need in each} for key, each in here.items()}
    return found


# Storing, and relying on what others stored.


def _try_to_share(runner: Runner, seen: Gathered) -> Op[None]:
    """Store what this host saw, for the others; a failure of it spoils no answer."""
    with suppress(StoreTrouble):
        yield from share(runner, seen.own, seen.facts)


class FactToStore(NamedTuple):
    """An observation for a need of a guard, with the key that says how long it counts."""

    guard: str
    name: str
    item: str
    fact: c.Observation
    live: Write


def share(
    runner: Runner,
    guards: Mapping[str, Guard],
    seen: Observed,
    actor: Actor = NOBODY,
    again: Collection[str] = (),
) -> Op[frozenset[str]]:
    """Store what this host saw; returns the digests of the guards about which it is news.

    It is news if the store has another value, or none that is new enough.  Gates that wait for it
    are checked again, those of the guards ``again`` even if it is no news, and callers elsewhere
    that wait for it are woken.
    """
    facts = [fact for key in guards for fact in _to_store(runner, key, guards[key], seen[key])]
    if not facts:
        return frozenset()
    # Two checks and two puts for each fact, and a note that its guard is allowed here.
    most = min((runner.capabilities.max_operations - OWN_OPERATIONS) // 5, KEYS_AT_ONCE // 2)
    news: frozenset[str] = frozenset()
    for start in range(0, len(facts), most):
        some = facts[start : start + most]
        done = yield from runner.change(partial(_storing, some, again), actor, hopeful=False)
        names = {each.guard: each.name for each in some if each.guard in done.outcome}
        if names:
            yield from runner.change(partial(_telling, names, actor.agent), actor)
        news |= done.outcome
    # A denial that comes while this host looks does not find the observations yet.
    roots: dict[str, object] = yield InThread(partial(_roots, guards, None))
    denied = {key: guards[key].name for key, root in roots.items() if root is None}
    yield from withdraw(runner, denied, Actor())
    return news


def _to_store(runner: Runner, key: str, guard: Guard, seen: Facts) -> Iterator[FactToStore]:
    if guard.max_age < runner.capabilities.min_ttl:  # the engine could not measure it
        return
    for need in outside_needs(guard):
        fact = seen[need]
        if isinstance(fact, c.Observation) and fact.value is not None:
            item = observation_key(key, need)
            live = Write(keys.observed_live(item), {"host": fact.host}, guard.max_age)
            yield FactToStore(key, guard.name, item, fact, live)


def _storing(facts: Sequence[FactToStore], again: Collection[str]) -> DecideOp[frozenset[str]]:
    """Store the facts; the outcome is the digests of the guards about which they are news.

    It is not recorded: most looks only renew what is stored.
    """
    items = (yield tuple([key for each in facts for key in (each.item, each.live.key)])).items
    guards = dict.fromkeys(each.guard for each in facts)
    news = frozenset(each.guard for each in facts if _is_news(each, items))
    awaited: tuple[str, ...] = ()
    for key in guards:
        if key in news or key in again:
            awaited += yield from awaited_now(f"{OBSERVED}{key}")
    puts = [write for each in facts for write in (Write(each.item, each.fact), each.live)]
    return Decision(
        outcome=news, puts=(*puts, *map(allowing_note, guards)), awaited=awaited, quiet=True
    )


def _is_news(seen: FactToStore, items: Mapping[str, Item | None]) -> bool:
    before = stored_observation(items[seen.item])
    known = before is not None and before.value == seen.fact.value
    return not known or items[seen.live.key] is None


def _telling(names: Mapping[str, str], agent: str) -> DecideOp[str]:
    """Record that there is news about guards, and wake the callers elsewhere that wait for it."""
    yield from ()
    things = [f"guard/{name}" for name in names.values()]
    return Decision(
        outcome="observed",
        verb="guard.observe",
        thing=things[0],
        signals=tuple(map(keys.wake_observed, names)),
        events=tuple([Event("guard:observed", agent, thing) for thing in things]),
    )


def withdraw(runner: Runner, denied: Mapping[str, str], actor: Actor) -> Op[int]:
    """Delete the observations and the note of this host for guards: their names by their digests.

    Returns the number of observations.
    """
    host, count = host_name(), 0
    most = (runner.capabilities.max_operations - OWN_OPERATIONS) // 3  # a check and two deletes
    notes = yield from looked_up(keys.allows(key, host) for key in denied)
    for key, name in denied.items():
        items = yield from every(keys.observed(key))
        own = [item.key for item in items if _is_of(host, item)]
        note = keys.allows(key, host)
        if own or notes[note] is not None:
            for start in range(0, max(len(own), 1), most):
                some = own[start : start + most]
                work = partial(_withdrawing, host, some, note, f"guard/{name}")
                yield from runner.change(work, actor)
        count += len(own)
    return count


def _withdrawing(host: str, wanted: Sequence[str], note: str, thing: str) -> DecideOp[str]:
    items = (yield tuple(wanted)).items if wanted else {}
    own = [key for key, item in items.items() if item is not None and _is_of(host, item)]
    gone = (*own, *map(keys.observed_live, own), note)
    return Decision(outcome="withdrawn", verb="guard.withdraw", thing=thing, deletes=gone)


def _is_of(host: str, item: Item) -> bool:
    seen = stored_observation(item)
    return seen is not None and seen.host == host


def _stored(
    asking: Mapping[str, Guard], now: float, *, not_here: bool = True
) -> Op[dict[str, Facts]]:
    """What hosts saw for these guards; ``not_here`` says that this host does not allow them."""
    wanted = _stored_keys(asking)
    items = (yield from looked_up(wanted, times=True)) if wanted else {}
    found = {key: _facts(key, guard, items, now) for key, guard in asking.items()}
    unknown = [key for key, (_, missing) in found.items() if missing]
    hosts = (yield from allowing_hosts(unknown, own=not not_here)) if unknown else {}
    no_fact = _no_fact if not_here else _not_seen
    for key in unknown:
        facts, missing = found[key]
        says = no_fact(asking[key], hosts.get(key, ()), missing.values(), now)
        facts.update(dict.fromkeys(missing, says))
    return {key: facts for key, (facts, _) in found.items()}


def stored_observations(guards: Iterable[Guard], now: float) -> Op[Observed]:
    """What hosts saw for these guards, and which hosts could say more; this one does not look."""
    asking = {digest(guard): guard for guard in guards if outside_needs(guard)}
    return (yield from _stored(asking, now, not_here=False))


def last_observations(guards: Iterable[Guard], now: float) -> Op[Observed]:
    """What hosts saw for these guards, each with its age in words: for an answer to a caller."""
    found = yield from stored_observations(guards, now)
    return {
        key: {need: _dated(fact, now) for need, fact in each.items()} for key, each in found.items()
    }


def _dated(fact: c.Fact, now: float) -> c.Fact:
    if not isinstance(fact, c.Observation):
        return fact
    return replace(fact, says=f"{fact.says}, {span(max(now - fact.at, 0.0))} ago")


def stored_inside(guards: Collection[Guard], now: float) -> ReadOp[dict[str, Facts]]:
    """What hosts saw for these guards, read by the decision that relies on it.

    The commit checks that the observations are the same, and that they are not too old.
    """
    asking = {digest(guard): guard for guard in guards if outside_needs(guard)}
    wanted, items = _stored_keys(asking), dict[str, Item | None]()
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        items |= (yield tuple(wanted[start : start + KEYS_AT_ONCE])).items
    known: dict[str, Facts] = {}
    for key, guard in asking.items():
        facts, missing = _facts(key, guard, items, now)
        late = f"no host has looked within {span(guard.max_age)}{_looked(missing.values(), now)}"
        known[key] = facts | dict.fromkeys(missing, c.NoFact(says=late))
    return known


def _stored_keys(asking: Mapping[str, Guard]) -> list[str]:
    wanted = [
        observation_key(key, need) for key, guard in asking.items() for need in outside_needs(guard)
    ]
    return [*wanted, *map(keys.observed_live, wanted)]


def _facts(
    key: str, guard: Guard, items: Mapping[str, Item | None], now: float
) -> tuple[dict[c.FactNeed, c.Fact], dict[c.OutsideNeed, c.Observation | None]]:
    """The stored observations that count, and the needs without one, with an older observation."""
    facts: dict[c.FactNeed, c.Fact] = {}
    missing: dict[c.OutsideNeed, c.Observation | None] = {}
    for need in outside_needs(guard):
        item = observation_key(key, need)
        seen = stored_observation(items.get(item))
        if seen is not None and (live := items.get(keys.observed_live(item))) is not None:
            facts[need] = _aged(seen, guard.max_age, live.expires_in, now)
        else:
            missing[need] = seen
    return facts, missing


def stored_observation(item: Item | None) -> c.Observation | None:
    """The observation in an item; None if there is none, or if it is damaged."""
    return None if item is None else readable(decode_observation, item)


def _aged(seen: c.Observation, max_age: float, left: float | None, now: float) -> c.Observation:
    """The observation with its time on the clock of this host, by the age that the engine says.

    An engine that does not say the age has found it young enough: only the clock may be wrong.
    """
    age = now - seen.at if left is None else max_age - left
    return replace(seen, at=now - min(max(age, 0.0), max_age))


def _no_fact(
    guard: Guard, hosts: Sequence[AllowingHost], last: Iterable[c.Observation | None], now: float
) -> c.NoFact:
    """That no observation counts, and which host could say more."""
    live = tuple([each.host for each in hosts if each.live])
    looked = _looked(last, now)
    if live:
        late = f"and did not within {span(guard.max_age)}"
        return c.NoFact(
            says=f"{_not_here()}; {few_hosts(live)} may look, {late}{looked}", hosts=live
        )
    none = f"{_not_here()}, and no live host may look{looked}"
    if hosts:
        idle = tuple([each.host for each in hosts])
        return c.NoFact(says=f"{none}: no agent runs on {few_hosts(idle)}, which may", hosts=idle)
    remedy = "a person has to allow it on a host that has the files"
    return c.NoFact(says=f"{none}; {remedy}")


def _not_seen(
    guard: Guard, hosts: Sequence[AllowingHost], last: Iterable[c.Observation | None], now: float
) -> c.NoFact:
    """That no observation counts, for a reader who does not look: this host may be one of these."""
    if not hosts:
        remedy = "a person has to allow it on a host that has the files"
        return c.NoFact(says=f"no host may look{_looked(last, now)}; {remedy}")
    names = tuple([each.host for each in hosts])
    late = f"no host has looked within {span(guard.max_age)}{_looked(last, now, saw=True)}"
    return c.NoFact(says=f"{late}; {few_hosts(names)} may look", hosts=names)


def _not_here() -> str:
    return f"this host ({host_name()}) does not allow it"


def _looked(seen: Iterable[c.Observation | None], now: float, *, saw: bool = False) -> str:
    """When hosts last looked, in brackets, and what the last of them ``saw``."""
    last: dict[str, c.Observation] = {}
    for each in seen:
        if each is not None and (each.host not in last or each.at > last[each.host].at):
            last[each.host] = each
    newest = sorted(last.values(), key=lambda each: each.at, reverse=True)[:_NAMED]
    said = [f"{printable(each.host)} looked {span(max(now - each.at, 0.0))} ago" for each in newest]
    if not said:
        return ""
    return f" ({', '.join(said)}{f': {printable(newest[0].says)}' if saw else ''})"
