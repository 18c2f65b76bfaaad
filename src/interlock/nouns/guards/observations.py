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
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, get_args

from msgspec.structs import replace

from interlock.clock import Clock
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import printable
from interlock.core.validate import span
from interlock.errors import BadInput, NotAllowed, StoreTrouble
from interlock.nouns.guards import condition as c
from interlock.nouns.guards.guard import Guard, digest
from interlock.nouns.guards.rules import Facts, needs
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.reads import OWN_OPERATIONS, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.steps import InThread, Op
from interlock.store import Item

Observed: TypeAlias = Mapping[str, Facts]
"""The facts from outside for each guard, by its digest."""

_OUTSIDE = get_args(c.OutsideNeed)
_NAMED = 3

decode_observation = codec.Decoder(c.Observation).read


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
    asking = {digest(guard): guard for guard in guards if outside_needs(guard)}
    if not asking:
        return {}
    roots: dict[str, str | c.NoFact | None] = yield InThread(partial(_roots, asking, own_root))
    allowed = {key: root for key, root in roots.items() if isinstance(root, str)}
    found: dict[str, Facts] = yield InThread(partial(_look, asking, allowed, clock))
    for key, root in roots.items():
        if isinstance(root, c.NoFact):
            found[key] = dict.fromkeys(outside_needs(asking[key]), root)
    if runner is None:
        rest = {key: guard for key, guard in asking.items() if key not in found}
        return {**found, **_unseen(rest, {}, clock.wall())}
    shared = {key: found[key] for key in allowed if asking[key].name}
    yield from _share(runner, [(asking[key], key, facts) for key, facts in shared.items()])
    others = {key: guard for key, guard in asking.items() if key not in found}
    return {**found, **(yield from _stored(others, clock.wall()))}


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


def _look(asking: Mapping[str, Guard], roots: Mapping[str, str], clock: Clock) -> dict[str, Facts]:
    """What this host sees; guards with the same root share one look."""
    from pathlib import Path

    from interlock.nouns.guards.outside import observe

    found: dict[str, Facts] = {}
    for root in dict.fromkeys(roots.values()):
        here = {key: outside_needs(asking[key]) for key in roots if roots[key] == root}
        wanted = dict.fromkeys(need for each in here.values() for need in each)
        look = partial(observe, root=Path(root), host=host_name(), clock=clock)
        seen = look(wanted)
        # Beside a slow command, an observation of a file can become too old: look again.
        oldest = clock.wall() - min(asking[key].max_age for key in here) / 2
        plain = [need for need in wanted if not isinstance(need, c.CommandNeed)]
        seen |= look([need for need in plain if seen[need].at < oldest])
        found |= {key: {need: seen[need] for need in each} for key, each in here.items()}
    return found


# Storing, and relying on what others stored.


def _share(runner: Runner, seen: Iterable[tuple[Guard, str, Facts]]) -> Op[None]:
    """Store what this host saw, for the others; a failure of it spoils no answer."""
    least = runner.capabilities.min_ttl
    puts: list[Write] = []
    for guard, key, facts in seen:
        if guard.max_age < least:  # the engine could not measure it
            continue
        for need in outside_needs(guard):
            fact = facts[need]
            if isinstance(fact, c.Observation) and fact.value is not None:
                item = observation_key(key, need)
                live = Write(keys.observed_live(item), {"host": fact.host}, guard.max_age)
                puts += [Write(item, fact), live]
    most = (runner.capabilities.max_operations - OWN_OPERATIONS) // 2 * 2
    for start in range(0, len(puts), most):
        try:
            yield from runner.change(partial(_storing, puts[start : start + most]), Actor())
        except StoreTrouble:
            return


def _storing(puts: Sequence[Write]) -> DecideOp[str]:
    yield from ()
    return Decision(outcome="observed", puts=tuple(puts), quiet=True)


def _stored(asking: Mapping[str, Guard], now: float) -> Op[dict[str, Facts]]:
    """What other hosts saw for these guards."""
    wanted = [
        observation_key(key, need) for key, guard in asking.items() for need in outside_needs(guard)
    ]
    every = [*wanted, *map(keys.observed_live, wanted)]
    items = (yield from looked_up(every, times=True)) if every else {}
    return _unseen(asking, items, now)


def _unseen(
    asking: Mapping[str, Guard], items: Mapping[str, Item | None], now: float
) -> dict[str, Facts]:
    """The facts for guards that this host does not look for, from stored observations."""
    return {key: _facts(key, guard, items, now) for key, guard in asking.items()}


def _facts(key: str, guard: Guard, items: Mapping[str, Item | None], now: float) -> Facts:
    facts: dict[c.FactNeed, c.Fact] = {}
    missing: list[c.OutsideNeed] = []
    last: dict[str, float] = {}
    for need in outside_needs(guard):
        item = observation_key(key, need)
        seen = stored_observation(items.get(item))
        if seen is not None and (live := items.get(keys.observed_live(item))) is not None:
            facts[need] = _aged(seen, guard.max_age, live.expires_in, now)
            continue
        missing.append(need)
        if seen is not None:
            last[seen.host] = max(seen.at, last.get(seen.host, seen.at))
    says = _not_allowed(guard, last, now)
    return facts | dict.fromkeys(missing, c.NoFact(says=says))


def stored_observation(item: Item | None) -> c.Observation | None:
    """The observation in an item; None if there is none, or if it is damaged."""
    return None if item is None else readable(decode_observation, item)


def _aged(seen: c.Observation, max_age: float, left: float | None, now: float) -> c.Observation:
    """The observation with its time on the clock of this host, by the age that the engine says."""
    age = 0.0 if left is None else min(max(max_age - left, 0.0), max_age)
    return replace(seen, at=now - age)


def _not_allowed(guard: Guard, last: Mapping[str, float], now: float) -> str:
    newest = sorted(last, key=lambda host: last[host], reverse=True)[:_NAMED]
    looked = [f"{printable(host)} looked {span(max(now - last[host], 0.0))} ago" for host in newest]
    others = f"no other host has looked within {span(guard.max_age)}"
    return (
        f"this host ({host_name()}) does not allow it, and {others}"
        f"{' (' + ', '.join(looked) + ')' if looked else ''};"
        " run 'interlock guard allow FILE' on a host that has the files"
    )
