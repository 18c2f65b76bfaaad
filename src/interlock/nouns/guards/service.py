"""Guards: checked inside a decision or by themselves, and kept in the store under their names.

A gate checks its guards in two steps.  Before its decision it gets the facts from outside
(``observations``), which may take long.  Inside its decision ``check_inside`` reads the facts of
the store, so that the commit relies on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import get_args

from interlock.clock import Clock
from interlock.core import codec, keys, validate
from interlock.core.decision import Decision, Event, ObservedFact, Write
from interlock.core.outcomes import NoGuard
from interlock.errors import BadInput
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards import rules
from interlock.nouns.guards.leaf_kinds import validated
from interlock.nouns.guards.observations import (
    Observed,
    last_observations,
    observations,
    outside_needs,
    stored_inside,
)
from interlock.nouns.guards.results import (
    ActionWord,
    GuardCheck,
    GuardDropped,
    GuardsDefined,
    GuardVerdict,
    LeafVerdict,
)
from interlock.nouns.guards.store_facts import store_facts
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import looked_up, outside, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item, Range

_STORE = get_args(c.StoreNeed)
_WORST = ("failed", "unknown", "passed")
_NAMED = 5
"""The most things that are named as waiting for a guard that is dropped."""
_GUARD: codec.Decoder[g.Guard] = codec.Decoder(g.Guard)


# Checking.


def check_inside(
    guards: Sequence[g.Guard], observed: Observed, now: float
) -> ReadOp[tuple[g.GuardResult, ...]]:
    """Check guards inside the decision that relies on them.

    ``observed`` has the facts from outside that ``observations`` got before.  For other guards the
    decision relies on what hosts have stored.
    """
    wanted = dict.fromkeys(need for guard in guards for need in store_needs(guard))
    known = (yield from store_facts(wanted)) if wanted else {}
    outside = [each for each in guards if outside_needs(each) and g.digest(each) not in observed]
    if outside:
        observed = {**observed, **(yield from stored_inside(outside, now))}
    results = []
    for guard in guards:
        seen = observed.get(g.digest(guard), {}) if observed else {}
        results.append(g.check(guard, {**known, **seen}, now))
    return tuple(results)


def observed_facts(results: Sequence[g.GuardResult]) -> tuple[ObservedFact, ...]:
    """The facts from outside that these results rely on, for the entry of a commit."""
    found = {
        (leaf.text, fact.host, fact.at): ObservedFact(
            condition=leaf.text,
            host=fact.host,
            at=round(fact.at, 3),
            max_age=result.max_age,
            digest=fact.digest,
        )
        for result in results
        for leaf in rules.leaves(result.evaluation)
        if isinstance(fact := leaf.fact, c.Observation) and fact.value is not None
    }
    return tuple(found.values())


def check_now(
    runner: Runner | None,
    guards: Sequence[g.Guard],
    clock: Clock,
    *,
    own_root: str | None = None,
    looks: bool = True,
) -> Op[tuple[g.GuardResult, ...]]:
    """Check guards by themselves; without a runner, those that ask nothing of the store.

    If this host does not look (``looks``), what hosts saw last counts.
    """
    if looks:
        observed = yield from observations(runner, guards, clock, own_root=own_root)
    else:
        observed = yield from last_observations(guards, clock.wall())
    return (yield from outside(check_inside(guards, observed, clock.wall())))


def store_needs(guard: g.Guard) -> tuple[c.StoreNeed, ...]:
    """What a guard asks of the store."""
    return tuple([need for need in rules.needs(guard.condition) if isinstance(need, _STORE)])


def own_guard(conditions: Sequence[c.Condition], *, any_of: bool) -> g.Guard:
    """Conditions that a caller wrote, as a guard without a name."""
    if len(conditions) == 1:
        return g.Guard(name="", condition=conditions[0])
    group = c.AnyOf(of=tuple(conditions)) if any_of else c.AllOf(of=tuple(conditions))
    return g.Guard(name="", condition=validated(group))


def report(results: Sequence[g.GuardResult]) -> GuardCheck:
    """The answer of a check."""
    verdicts = [_verdict(result) for result in results]
    worst = min(verdicts, key=lambda each: _WORST.index(each.outcome))
    return GuardCheck(
        outcome=worst.outcome,
        leaves=worst.leaves,
        acts=worst.acts,
        guard=worst.guard,
        action=worst.action,
        message=worst.message,
        guards=tuple(verdicts) if len(verdicts) > 1 else (),
    )


def _verdict(result: g.GuardResult) -> GuardVerdict:
    action = result.action
    return GuardVerdict(
        outcome=result.result,
        leaves=tuple(map(leaf_verdict, rules.leaves(result.evaluation))),
        acts=result.acts,
        guard=result.guard,
        action=action_word(action) if result.guard else "",
        message=action.message if isinstance(action, g.FailAction) else "",
    )


def leaf_verdict(leaf: rules.Evaluation) -> LeafVerdict:
    """What the facts say about a leaf, as a person wrote it."""
    if leaf.wanted:
        return LeafVerdict(condition=leaf.text, verdict=leaf.verdict, reason=leaf.reason)
    return LeafVerdict(
        condition=f"!{leaf.text}", verdict=rules.OPPOSITE[leaf.verdict], reason=leaf.reason
    )


def action_word(action: g.FailureAction) -> ActionWord:
    """The kind of an action."""
    return action.__struct_config__.tag  # type: ignore[return-value]


# Guards in the store.


def decode_guard(item: Item) -> g.Guard:
    """A guard of the store; StoreDamaged if it is none, or not that of its key."""
    found = _GUARD.read(item)
    try:
        legal = g.guard(found.name, found.condition, found.on_failure, found.max_age)
    except BadInput as error:
        raise codec.unreadable(item, error) from error
    if legal.name != keys.guard_of(item.key):
        raise codec.unreadable(item, ValueError("its name is another one"))
    return legal


def find_guards(names: Iterable[str]) -> Op[list[g.Guard] | NoGuard]:
    """The guards of these names, in this order; or the first name that the store does not have."""
    legal = [validate_name(name) for name in names]
    items = yield from looked_up(map(keys.guard, legal))
    found = []
    for name in legal:
        item = items[keys.guard(name)]
        if item is None:
            return NoGuard(guard=name)
        found.append(decode_guard(item))
    return found


def define(runner: Runner, guards: Sequence[g.Guard], actor: Actor) -> Op[GuardsDefined]:
    """Put guards into the store, in one commit."""
    return (yield from runner.change(partial(_defining, guards, actor.agent), actor)).outcome


def _defining(guards: Sequence[g.Guard], agent: str) -> DecideOp[GuardsDefined]:
    items = (yield tuple([keys.guard(guard.name) for guard in guards])).items
    new, changed, same = [], [], []
    for guard in guards:
        item = items[keys.guard(guard.name)]
        if item is None:
            new.append(guard)
        elif _is_same(guard, item):
            same.append(guard)
        else:
            changed.append(guard)
    put = [guard for guard in guards if guard not in same]
    outcome = GuardsDefined(
        new=tuple(guard.name for guard in new),
        changed=tuple(guard.name for guard in changed),
        same=tuple(guard.name for guard in same),
    )
    if not put:
        return Decision(outcome=outcome)
    return Decision(
        outcome=outcome,
        verb="guard.define",
        thing=f"guard/{put[0].name}",
        puts=tuple([Write(keys.guard(guard.name), guard) for guard in put]),
        events=tuple([Event("guard:defined", agent, f"guard/{guard.name}") for guard in put]),
        created=tuple([f"guard/{guard.name}" for guard in put]),  # gates may wait for it
    )


def _is_same(guard: g.Guard, item: Item) -> bool:
    """Whether the store has this very guard; a damaged item is another one, and is replaced."""
    found = readable(decode_guard, item)
    return found is not None and g.digest(found) == g.digest(guard)


def drop(runner: Runner, name: str, actor: Actor) -> Op[GuardDropped | NoGuard]:
    """Delete a guard from the store."""
    legal = validate_name(name)
    return (yield from runner.change(partial(_dropping, legal, actor.agent), actor)).outcome


def _dropping(name: str, agent: str) -> DecideOp[GuardDropped | NoGuard]:
    key = keys.guard(name)
    if (yield (key,))[key] is None:
        return Decision(outcome=NoGuard(guard=name))
    page = Range(keys.gated(f"guard/{name}"), limit=_NAMED)
    waiting = tuple([keys.gated_of(each.key)[1] for each in (yield (page,)).ranges[page]])
    return Decision(
        outcome=GuardDropped(guard=name, waiting=waiting),
        verb="guard.drop",
        thing=f"guard/{name}",
        deletes=(key,),
        events=(Event("guard:dropped", agent),),
        created=(f"guard/{name}",),
    )


def validate_name(name: str) -> str:
    """A legal name of a guard."""
    return validate.name(name, "guard name")
