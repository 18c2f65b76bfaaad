"""What a gate waits for: the facts of which one has to change before its guard can pass.

Of ``all`` the facts of one part that fails are enough: nothing moves before that part changes.  Of
``any`` it is the facts of each part.  Under ``not`` the two are exchanged.  A fact of the store is
chosen before one from outside, since the store reports its changes.

    lock, semaphore       its grants change
    tasks_complete        of all the tasks that are not complete, the last one changes its state
    no_blocked_tasks      the last task that is blocked, dead or failed changes its state
    a filter without a task that could change   a task is published
    pipeline              it enters a phase, or ends
    branch, file, command a host that allows the guard sees something else (``observed/{digest}``)
    a guard by its name   it is defined, or dropped

A semaphore that does not exist has no item to mark, and a grant that expires is no commit: the
housekeeping of gates (``housekeeping.py``) finds both.

``runtime/gates.py`` says how a gate is checked again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_rules import STUCK
from interlock.nouns.guards.rules import Evaluation, evaluate, failing
from interlock.nouns.tasks.task_reader import decode_status
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.gates import NEW_TASKS, GatedEntry
from interlock.runtime.runner import Runner
from interlock.store import Item

OBSERVED = "observed/"
"""How a fact begins that is what hosts see for a guard, by its digest."""


class GateFact(Struct, frozen=True, kw_only=True):
    """A fact that a gate waits for (``lock/merge``), with the value of its entry.

    ``state`` is the state in which a task was found, by a read that no commit checks.
    """

    fact: str
    entry: GatedEntry = GatedEntry()
    state: str = ""


class Gate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What keeps a thing: the guard, its leaf and the reason; and the facts that it waits for.

    ``attempts`` is how often a guard failed that is checked a limited number of times.
    """

    facts: tuple[str, ...]
    guard: str = ""
    leaf: str = ""
    reason: str = ""
    since: float = 0.0
    attempts: int = 0


_GATE: codec.Decoder[Gate] = codec.Decoder(Gate)


def decode_gate(item: Item | None) -> Gate | None:
    """What keeps a thing."""
    return _GATE.read_if_present(item)


class Hindrance(Struct, frozen=True, kw_only=True):
    """What keeps a thing from its next step; ``by`` are the agents that can clear it.

    ``stored`` is the reason without the present time, and ``thing`` what the leaf is about, such as
    ``lock/deploy``, if that may wait for something itself.  ``facts`` are those that have to change
    before the thing can move on.
    """

    guard: str
    leaf: str
    reason: str
    acts: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    stored: str = ""
    thing: str = ""
    facts: tuple[GateFact, ...] = ()


# Which facts.


def facts_of(guard: g.Guard, result: g.GuardResult) -> tuple[GateFact, ...]:
    """The facts that a guard which does not pass waits for."""
    found = {each.fact: each for each in _awaited(guard, result.evaluation)}
    return tuple(found.values())


def _awaited(guard: g.Guard, part: Evaluation) -> list[GateFact]:
    if _as_wanted(part):
        return []
    if not part.children:
        return _leaf(guard, part)
    each = [found for child in part.children if (found := _awaited(guard, child))]
    if part.part == "not" or (part.part == "any") is part.wanted:
        return [fact for found in each for fact in found]
    return min(each, key=_cost, default=[])


def _as_wanted(part: Evaluation) -> bool:
    return part.verdict == ("true" if part.wanted else "false")


def _cost(facts: Collection[GateFact]) -> tuple[bool, int]:
    return any(each.fact.startswith(OBSERVED) for each in facts), len(facts)


def _leaf(guard: g.Guard, leaf: Evaluation) -> list[GateFact]:
    match leaf.need:
        case c.LockNeed(lock=name):
            return [GateFact(fact=f"lock/{name}")]
        case c.SemaphoreNeed(semaphore=name):
            return [GateFact(fact=f"sem/{name}")]
        case c.PipelineNeed(pipeline=name):
            return [GateFact(fact=f"pipeline/{name}")]
        case c.TasksNeed(filter=chosen):
            return [_tasks(leaf, chosen)]
        case None:
            return []
        case _:
            return [observed_fact(guard)]


def _tasks(leaf: Evaluation, chosen: c.TaskFilter) -> GateFact:
    last = leaf.fact.last if isinstance(leaf.fact, c.TasksFact) else {}
    stuck = isinstance(leaf.condition, c.NoBlockedTasks)
    ids = [id_ for state, id_ in last.items() if state in STUCK or not stuck]
    open_ids = [
        (last[state], state) for state in last if state != "complete" and last[state] in ids
    ]
    if leaf.wanted and open_ids:
        id_, found = max(open_ids)
        return GateFact(fact=f"task/{id_}", state=found)
    return GateFact(fact=NEW_TASKS, entry=GatedEntry(prefix=chosen.prefix))


def observed_fact(guard: g.Guard) -> GateFact:
    """The observations of a guard; the entry has the guard, for the hosts that may look."""
    entry = GatedEntry(guard=Raw(codec.encode(guard)))
    return GateFact(fact=f"{OBSERVED}{g.digest(guard)}", entry=entry)


# In words.


def hindrance_of(guard: g.Guard, result: g.GuardResult) -> Hindrance:
    """What a guard that did not pass says."""
    leaf = next((each for each in failing(result.evaluation) if each.text == result.leaf), None)
    return Hindrance(
        guard=result.guard,
        leaf=result.leaf if leaf is None or leaf.wanted else f"!{leaf.text}",
        reason=result.reason,
        acts=result.acts,
        by=() if leaf is None else clearers(leaf),
        stored=result.reason if leaf is None else _timeless(leaf),
        thing="" if leaf is None else subject(leaf),
        facts=facts_of(guard, result),
    )


def _timeless(leaf: Evaluation) -> str:
    """The reason of a leaf with moments in the place of spans, which the item can keep."""
    if leaf.condition is None:
        return leaf.reason
    return evaluate(
        leaf.condition, {} if not (leaf.need and leaf.fact) else {leaf.need: leaf.fact}
    ).reason


def subject(leaf: Evaluation) -> str:
    """What a leaf is about, if that may wait for something itself."""
    match leaf.need, leaf.fact:
        case c.LockNeed(lock=name), _:
            return f"lock/{name}"
        case c.SemaphoreNeed(semaphore=name), _:
            return f"sem/{name}"
        case c.PipelineNeed(pipeline=name), _:
            return f"pipeline/{name}"
        case c.TasksNeed(), c.TasksFact(open=unfinished) if unfinished:
            return f"task/{unfinished[0][0]}"
        case _:
            return ""


def clearers(leaf: Evaluation) -> tuple[str, ...]:
    """The agents that could change the fact of a leaf."""
    match leaf.fact:
        case c.LockFact(holder=holder) if holder:
            return (holder,)
        case c.SemaphoreFact(holders=holders):
            return holders
        case c.TasksFact(open=unfinished):
            return tuple(dict.fromkeys(worker for _, _, worker in unfinished if worker))
        case _:
            return ()


# In the store.


def wait_for(
    runner: Runner, base: int, thing: str, facts: Sequence[GateFact], gate: Gate
) -> DecideOp[None]:
    """Make a thing wait for these facts; the changes are a part of the decision that keeps it.

    Nothing changes if it waits for the same already.
    """
    own = keys.gate(thing)
    before = decode_gate((yield (own,)).items[own])
    after = _merged(before, replace(gate, facts=tuple([each.fact for each in facts])))
    old = () if before is None else before.facts
    parts = [_entries(thing, facts, old)]
    if after != before:
        parts.append(Decision(outcome=None, puts=(Write(own, after),)))
    for each in facts:
        mark = yield from _mark(runner, base, each, new=each.fact not in old)
        parts.append(mark)
    return merged(Decision(outcome=None), parts)


def _merged(before: Gate | None, after: Gate) -> Gate:
    """The gate with the time since which the same leaf keeps the thing."""
    if before is None or (before.guard, before.leaf) != (after.guard, after.leaf):
        return after
    return replace(after, since=before.since, reason=before.reason)


def _entries(thing: str, facts: Iterable[GateFact], old: Collection[str]) -> Decision[None]:
    names = [each.fact for each in facts]
    return Decision(
        outcome=None,
        puts=tuple([Write(keys.gated(f.fact, thing), f.entry) for f in facts if f.fact not in old]),
        deletes=tuple([keys.gated(each, thing) for each in old if each not in names]),
    )


def _mark(runner: Runner, base: int, wanted: GateFact, *, new: bool) -> DecideOp[None]:
    """Mark the item of a fact, so that a change of it checks the gates.

    The commit cannot check that no task was published since the tasks were read.  But it checks the
    mark for new tasks, which a publisher that finds it writes again.  Where it was not there
    before, the gate is checked again right after this commit.  It is always written, so that a
    client which is about to delete it finds that a gate waits.  A task that has another state than
    the one that was read before also has the gate checked again.
    """
    fact = wanted.fact
    if fact == NEW_TASKS:
        before = (yield (keys.NEW_TASKS,)).items[keys.NEW_TASKS]
        if before is not None and not new:
            return Decision(outcome=None)
        put = Write(keys.NEW_TASKS, {})
        again = (f"{NEW_TASKS}/",) if before is None else ()
        return Decision(outcome=None, puts=(put,), awaited=again)
    kind, _, name = fact.partition("/")
    flag = registry.gate_flag(kind)
    marked: Decision[None] = Decision(outcome=None)
    if flag is not None:
        marked = yield from flag(runner, base, name, gated=True)
    if not wanted.state:  # it may not exist yet
        if (yield (keys.GATES_WAIT,)).items[keys.GATES_WAIT] is None:
            marked = replace(marked, puts=(*marked.puts, Write(keys.GATES_WAIT, {})))
        return marked
    key = keys.status(name)
    status = decode_status((yield (key,)).items[key])
    late = status is None or status.state != wanted.state
    return replace(marked, awaited=(fact,)) if late else marked


def stop_waiting(thing: str) -> DecideOp[None]:
    """Delete what a thing waited for; a part of the decision that lets it move on, or ends it."""
    own = keys.gate(thing)
    gate = decode_gate((yield (own,)).items[own])
    if gate is None:
        return Decision(outcome=None)
    return Decision(outcome=None, deletes=(own, *[keys.gated(fact, thing) for fact in gate.facts]))


def awaited_now(fact: str) -> ReadOp[tuple[str, ...]]:
    """The fact, if gates wait for it: for facts whose items have no mark."""
    from interlock.store import Range

    page = Range(keys.gated(fact), limit=1)
    return (fact,) if (yield (page,)).ranges[page] else ()


def merged(own: Decision[Any], others: Iterable[Decision[Any]]) -> Decision[Any]:
    """One decision with the changes of several.

    A mark that is put on an item which another part writes, too, goes into what that part writes.
    """
    parts = [own, *others]
    puts: dict[str, Write] = {}
    for part in parts:
        for put in part.puts:
            puts[put.key] = _marked(puts.get(put.key), put)
    deletes = dict.fromkeys(key for part in parts for key in part.deletes if key not in puts)
    return replace(
        own,
        puts=tuple(puts.values()),
        deletes=tuple(deletes),
        signals=tuple(dict.fromkeys(key for part in parts for key in part.signals)),
        events=tuple([event for part in parts for event in part.events]),
        awaited=tuple(dict.fromkeys(fact for part in parts for fact in part.awaited)),
        created=tuple(dict.fromkeys(thing for part in parts for thing in part.created)),
    )


def _marked(before: Write | None, put: Write) -> Write:
    if before is None or not getattr(put.value, "gated", False):
        return put
    return Write(put.key, replace(before.value, gated=True), before.ttl)  # type: ignore[type-var]
