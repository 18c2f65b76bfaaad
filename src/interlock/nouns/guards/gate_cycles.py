"""Things that wait for each other at their gates: none of them ever moves on by itself.

A thing moves on when one of the facts changes that its gate waits for.  Who changes a fact:

    a lock, a semaphore   one of its holders; a pipeline holds as ``pipeline:ID``
    a pipeline            itself, if it waits at its own gate
    a task                itself, if it waits at its own gate; or the task that it needs

Everything else may change at any time: an agent works, a person advances a pipeline, a task is
published, a host sees something new.  So the things are reduced: one that waits for something else
than other stuck things is not stuck.  Those that remain wait for each other, or behind such things.

An operator ends it: ``pipeline cancel``, ``task cancel``, ``lock break``, ``guard define``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from interlock.core import keys
from interlock.core.safe_text import foreign, foreign_names
from interlock.core.thing_names import key_of
from interlock.core.validate import quote
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import readable_pool
from interlock.nouns.guards.gates import Gate, decode_gate
from interlock.nouns.guards.store_facts import readable_progress
from interlock.nouns.tasks.task_reader import decode_status
from interlock.runtime.health import HealthCheck, Problem
from interlock.runtime.reads import looked_up, readable
from interlock.steps import Op
from interlock.store import Item

FOLLOWED = 100
"""The most things that are followed from one."""
_DEFINITION = "guard/"
ANYONE = ""
"""An agent, a person or a host may change it."""


def cycle_from(thing: str) -> Op[tuple[str, ...]]:
    """The things that wait for each other, from this one on; empty if it may move on.

    The first and the last one are the same.
    """
    waits: dict[str, frozenset[str]] = {}
    unknown = {thing}
    while unknown:
        gates = yield from looked_up(keys.gate(each) for each in sorted(unknown))
        found = {keys.gate_of(key): readable(decode_gate, item) for key, item in gates.items()}
        waits |= yield from waits_of(found)
        if len(waits) > FOLLOWED:
            return ()
        unknown = {each for changers in waits.values() for each in changers} - {ANYONE, *waits}
    return cycle_of(thing, stuck(waits))


def waits_of(gates: Mapping[str, Gate | None]) -> Op[dict[str, frozenset[str]]]:
    """For each thing, what can change the facts that it waits for; one without a gate is free."""
    facts = {fact for gate in gates.values() if gate is not None for fact in gate.facts}
    wanted = {fact: key for fact in sorted(facts) if (key := _item_of(fact))}
    items = yield from looked_up(wanted.values())
    changers = {fact: frozenset(_changers(fact, items[key])) for fact, key in wanted.items()}
    anyone = frozenset({ANYONE})
    found = {}
    for thing, gate in gates.items():
        each = [changers.get(fact, anyone) for fact in _moving(gate)]
        found[thing] = frozenset().union(*each) if each else anyone
    return found


def _moving(gate: Gate | None) -> list[str]:
    """The facts that may change by themselves: a definition is changed by an operator."""
    facts = () if gate is None else gate.facts
    return [fact for fact in facts if not fact.startswith(_DEFINITION)] or list(facts)


def stuck(waits: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The things that only other stuck things could move on."""
    left = dict(waits)
    while free := [thing for thing, changers in left.items() if not changers <= left.keys()]:
        for thing in free:
            del left[thing]
    return left


def cycle_of(thing: str, waits: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """A cycle of stuck things that this one is part of, or waits behind."""
    passed: list[str] = []
    while thing in waits and thing not in passed:
        passed.append(thing)
        thing = min(waits[thing])
    return (*passed[passed.index(thing) :], thing) if thing in passed else ()


def cycles(waits: Mapping[str, frozenset[str]]) -> list[tuple[str, ...]]:
    """The cycles of stuck things, each once."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    left = stuck(waits)
    for thing in sorted(left):
        cycle = cycle_of(thing, left)
        found.setdefault(frozenset(cycle), cycle)
    return list(found.values())


def cycle_text(cycle: Sequence[str]) -> str:
    """A cycle in words, from its first member by name, and what ends it."""
    at = cycle.index(min(cycle))
    members = (*cycle[at:-1], *cycle[:at], cycle[at])
    return f"they wait for each other: {foreign_names(members, ' -> ')}; cancel one of them"


def _item_of(fact: str) -> str:
    """The item of a fact; empty for one that may change at any time."""
    kind, _, name = fact.partition("/")
    match kind:
        case "lock" | "sem":
            return key_of(fact)
        case "pipeline":
            return keys.pipeline(name)
        case "task":
            return keys.status(name)
        case _:
            return ""


def _changers(fact: str, item: Item | None) -> Iterator[str]:
    kind = fact.partition("/")[0]
    if item is None:
        yield ANYONE
    elif kind == "pipeline":
        run = readable_progress(item)
        yield fact if run is not None and run.state == "running" and run.asked else ANYONE
    elif kind == "task":
        status = readable(decode_status, item)
        waits = status is not None and status.state == "blocked"
        yield fact if waits else ANYONE
    else:
        yield from _holders(readable_pool(item, 0) or Pool())


def _holders(pool: Pool) -> Iterator[str]:
    if not pool.grants or (pool.waiters and pool.free > 0):
        yield ANYONE
    for grant in pool.grants:
        kind, _, name = grant.agent.partition(":")
        yield f"pipeline/{name}" if kind == "pipeline" and not grant.live else ANYONE


def health(checkup: HealthCheck) -> Op[list[Problem]]:
    """Things that wait for each other."""
    items = yield from checkup.read(keys.GATES)
    gates = {keys.gate_of(item.key): readable(decode_gate, item) for item in items}
    problems = []
    for cycle in cycles((yield from waits_of(gates))):
        kind, _, name = cycle[0].partition("/")
        members = [gate for each in cycle if (gate := gates[each]) is not None]
        problems.append(
            Problem(
                kind="deadlock",
                says=f"{foreign(cycle[0])}: waiting never ends ({foreign_names(cycle, ' -> ')})",
                remedy="cancel one of them, and the others go on:"
                f" interlock {kind} cancel {quote(name)} REASON --agent NAME",
                thing=cycle[0],
                since=max((gate.since for gate in members), default=None),
                cycle=tuple(cycle),
            )
        )
    return problems
