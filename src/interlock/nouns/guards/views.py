"""Guards of the store as they stand: list, show, and what ``why`` says about one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.outcomes import NoGuard
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import guard as g
from interlock.nouns.guards import rules
from interlock.nouns.guards.definition import definition
from interlock.nouns.guards.gates import Hindrance, clearers, hindrance_of, subject
from interlock.nouns.guards.hosts import allowing_hosts, who_looks
from interlock.nouns.guards.leaf_rules import RULES
from interlock.nouns.guards.observations import (
    observation_key,
    outside_needs,
    stored_observation,
    stored_observations,
)
from interlock.nouns.guards.results import AllowingHost, GuardView, LastObservation
from interlock.nouns.guards.service import (
    action_word,
    check_inside,
    check_now,
    decode_guard,
    find_guards,
    leaf_verdict,
)
from interlock.nouns.guards.shell import leaf_text, text
from interlock.runtime.reads import every, looked_up, outside, readable
from interlock.runtime.runner import Runner
from interlock.runtime.why import NAMED, Why
from interlock.steps import InThread, Op
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context


def guards() -> Op[tuple[GuardView, ...]]:
    """All guards, by name; one that cannot be read is left out: doctor names it."""
    items = yield from every(keys.GUARDS)
    found = [guard for item in items if (guard := readable(decode_guard, item)) is not None]
    views: tuple[GuardView, ...] = yield InThread(partial(_views, found))
    return views


def guard(name: str) -> Op[GuardView | NoGuard]:
    """One guard, with its definition and its last observations."""
    found = yield from find_guards([name])
    if isinstance(found, NoGuard):
        return found
    views: tuple[GuardView, ...] = yield InThread(partial(_views, found))
    return replace(
        views[0],
        definition=definition(found[0]),
        stored=msgspec.json.decode(codec.encode(found[0])),
        observations=(yield from _observations(found[0])),
        hosts=(yield from _hosts(views[0])),
    )


def _hosts(view: GuardView) -> Op[tuple[AllowingHost, ...]]:
    if not view.outside:
        return ()
    return (yield from allowing_hosts([view.digest])).get(view.digest, ())


def _views(found: Iterable[g.Guard]) -> tuple[GuardView, ...]:
    return tuple(map(_view, found))


def _view(guard: g.Guard) -> GuardView:
    from interlock.nouns.guards.allowed import allowed

    view = GuardView(
        guard=guard.name,
        condition=text(guard.condition),
        action=action_word(guard.on_failure),
        digest=g.digest(guard),
        max_age=guard.max_age,
        outside=g.outside(guard.condition),
    )
    if not view.outside:
        return view
    try:
        entry = allowed(view.digest)
    except (NotAllowed, BadInput) as error:
        return replace(view, because=str(error))
    if entry is None:
        return replace(view, because="no person allowed this definition here")
    return replace(view, allowed=True, root=entry.root)


def _observations(guard: g.Guard) -> Op[tuple[LastObservation, ...]]:
    own = g.digest(guard)
    wanted = [observation_key(own, need) for need in outside_needs(guard)]
    items = yield from looked_up([*wanted, *map(keys.observed_live, wanted)])
    leaves = dict.fromkeys(rules.leaves_of(guard.condition))
    found = (_observation(own, leaf, items) for leaf in leaves)
    return tuple([each for each in found if each is not None])


def _observation(
    own: str, leaf: c.BaseCondition, items: Mapping[str, Item | None]
) -> LastObservation | None:
    key = observation_key(own, RULES[type(leaf)].need(leaf))  # type: ignore[arg-type]
    seen = stored_observation(items.get(key))
    if seen is None:
        return None
    return LastObservation(
        condition=leaf_text(leaf),
        value=seen.value,
        says=seen.says,
        host=seen.host,
        at=seen.at,
        digest=seen.digest,
        current=items.get(keys.observed_live(key)) is not None,
    )


# Why.


def why(context: Context, name: str) -> Op[Why]:
    """Which leaves keep a guard from passing, since when, and who can clear them."""
    found = yield from find_guards([name])
    thing = f"guard/{name}"
    if isinstance(found, NoGuard):
        clear = "define it: interlock guard define FILE"
        because = "the store has no guard of this name"
        return Why(thing=thing, blocked=False, because=because, clear=clear, state="unknown")
    runner = context.runner
    (result,) = yield from check_now(runner, found, runner.clock, looks=context.looks)
    if result.result == "passed":
        reason = result.evaluation.reason
        clear = "nothing is to be done"
        return Why(thing=thing, blocked=False, because=reason, clear=clear, state="passed")
    at = hindrance_of(found[0], result)
    looks = yield from who_looks(at.facts)
    return replace(_blocked(thing, result), guard=at.guard, leaf=at.leaf, meanwhile=looks)


def hindrance_now(runner: Runner, name: str) -> Op[Hindrance | None]:
    """What keeps a guard from passing now; nothing is written, and this host does not look."""
    found = yield from find_guards([name])
    if isinstance(found, NoGuard):
        return Hindrance(guard=name, leaf="", reason="the store has no guard of this name")
    now = runner.clock.wall()
    observed = yield from stored_observations(found, now)
    (result,) = yield from outside(check_inside(found, observed, now))
    return None if result.allowed else hindrance_of(found[0], result)


def _blocked(thing: str, result: g.GuardResult) -> Why:
    leaves = rules.failing(result.evaluation)
    said = [leaf_verdict(leaf) for leaf in leaves]
    facts = [leaf.fact for leaf in leaves]
    since = [at for fact in facts if (at := getattr(fact, "since", None)) is not None]
    return Why(
        thing=thing,
        blocked=True,
        because="; ".join(
            dict.fromkeys(
                f"{foreign(each.condition)} is {each.verdict}: {each.reason}" for each in said
            )
        ),
        clear="; ".join(result.acts),
        by=", ".join(dict.fromkeys(agent for leaf in leaves for agent in clearers(leaf))),
        leads_to=tuple(dict.fromkeys(filter(None, map(subject, leaves))))[:NAMED],
        since=min(since, default=None),
        state=result.result,
    )
