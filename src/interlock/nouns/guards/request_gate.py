"""Gates: a request that names guards is granted only while all of them pass.

The decision that grants reads the definitions and the facts of the store, and its commit checks
them: a definition or a fact that changes in between is a conflict.  Facts from outside are looked
at before the decision; one that finds a guard without current observations changes nothing, and is
made again after a look (``Unobserved``).

    passed             the decision stands
    warn               the decision stands; its entry names the guard and the reason
    failed, unknown    nothing changes (``GuardBlocked``); a caller that waits goes on to wait
                       (``guard_wait.py``)
    failed, and fail   nothing changes, and no caller waits

A gate belongs to one call, so it also counts the retries of its guards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event
from interlock.core.outcomes import GuardBlocked, NoGuard
from interlock.core.safe_text import foreign
from interlock.errors import BadInput
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_rules import RULES
from interlock.nouns.guards.observations import Observed, looks_here, observations, outside_needs
from interlock.nouns.guards.results import LeafVerdict
from interlock.nouns.guards.rules import failing, leaves_of
from interlock.nouns.guards.service import (
    action_word,
    check_inside,
    decode_guard,
    leaf_verdict,
    observed_facts,
)
from interlock.nouns.guards.shell import leaf_text
from interlock.nouns.guards.store_facts import key_of_need
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")


class Unobserved(Struct, frozen=True):
    """Guards whose facts from outside are missing or too old: look, then decide again."""

    guards: tuple[g.Guard, ...]


class GateResult(Struct, frozen=True):
    """What the guards of a gate say; ``results`` are in the order of ``guards``."""

    guards: tuple[g.Guard, ...]
    results: tuple[g.GuardResult, ...]

    @property
    def warned(self) -> list[g.GuardResult]:
        """The guards that do not pass, and only warn."""
        return [each for each in self.results if each.result != "passed" and each.allowed]

    @property
    def closed(self) -> list[tuple[g.Guard, g.GuardResult]]:
        """The guards that do not let the request pass."""
        pairs = zip(self.guards, self.results, strict=True)
        return [(guard, result) for guard, result in pairs if not result.allowed]


class RequestGate:
    """The guards of one call, by their names.

    ``thing`` is what the call is about, ``warning`` the event for a guard that only warns.  A guard
    must not ask about the items ``own``, which the granted decision itself changes.
    """

    def __init__(
        self,
        runner: Runner,
        names: Sequence[str],
        thing: str,
        warning: Event,
        own: Collection[str] = (),
    ) -> None:
        self.runner = runner
        self.thing = thing
        self.definitions = tuple([keys.guard(name) for name in names])
        self.here: set[str] = set()
        """The digests of guards that this host looks for."""
        self.retries: dict[str, tuple[int, float]] = {}
        """How often each guard failed again after its delay, and when it is due next."""
        self._names = tuple(names)
        self._warning = warning
        self._own = own
        self._observed: dict[str, Mapping[Any, Any]] = {}
        self._counts_until: dict[str, float] = {}

    # Inside a decision.

    def defined(self) -> ReadOp[list[g.Guard] | NoGuard]:
        """The guards as they are defined now; an error if one cannot guard this thing."""
        items = (yield self.definitions).items
        guards = []
        for name, key in zip(self._names, self.definitions, strict=True):
            if (item := items[key]) is None:
                return NoGuard(guard=name)
            guards.append(decode_guard(item))
        _refuse_own(guards, self._own, self.thing)
        return guards

    def check(self) -> ReadOp[GateResult | Unobserved | NoGuard]:
        """Read the definitions and the facts of the store, and check all guards."""
        guards = yield from self.defined()
        if isinstance(guards, NoGuard):
            return guards
        if unseen := tuple([guard for guard in guards if not self._has_seen(guard)]):
            return Unobserved(unseen)
        results = yield from check_inside(guards, self._observed, self.runner.clock.wall())
        return GateResult(tuple(guards), results)

    def refusal(self, found: GateResult | Unobserved | NoGuard) -> GuardBlocked | NoGuard | None:
        """Why the request may not pass; None if it may."""
        if isinstance(found, NoGuard):
            return found
        if isinstance(found, Unobserved) or not found.closed:
            return None
        return self.refusal_of(*[result for _, result in found.closed])

    def refusal_of(self, *closed: g.GuardResult) -> GuardBlocked:
        """The refusal for these guards."""
        return blocked(self.thing, closed)

    def decided(self, decision: Decision[T]) -> DecideOp[T | GuardBlocked | NoGuard | Unobserved]:
        """The decision if all guards pass; else one that changes nothing."""
        found = yield from self.check()
        if isinstance(found, Unobserved):
            return Decision(outcome=found)
        refused = self.refusal(found)
        if refused is not None or isinstance(found, NoGuard):
            return Decision(outcome=refused)  # type: ignore[arg-type]
        return self.recorded(decision, found)

    def recorded(self, decision: Decision[T], found: GateResult) -> Decision[T]:
        """A decision that the guards let pass, with what it relies on, for its entry."""
        warned = [_warning(result) for result in found.warned]
        return replace(
            decision,
            events=(*decision.events, *[self._warning for _ in warned]),
            reason="; ".join([*([decision.reason] if decision.reason else []), *warned]),
            observed=observed_facts(found.results),
        )

    # Around a decision.

    def change(
        self,
        deciding: Callable[[], DecideOp[Any]],
        actor: Actor,
        guess: Mapping[str, Item | None] | None = None,
    ) -> Op[Decided[Any]]:
        """Carry a decision through; while it lacks facts from outside, look and decide again."""
        self.drop_old()
        while True:
            done: Decided[Any] = yield from self.runner.change(deciding, actor, guess)
            if not isinstance(done.outcome, Unobserved):
                return done
            yield from self.look(done.outcome.guards)

    def look(self, guards: Sequence[g.Guard]) -> Op[None]:
        """Get the facts from outside for these guards."""
        clock = self.runner.clock
        observed: Observed = yield from observations(self.runner, guards, clock)
        self.here = set((yield from looks_here(guards))) | (self.here - set(observed))
        self._observed |= observed
        ends = {g.digest(guard): clock.monotonic() + guard.max_age for guard in guards}
        self._counts_until |= ends

    def drop(self, guard: g.Guard) -> None:
        """Look again for this guard before the next check."""
        self._observed.pop(g.digest(guard), None)

    def drop_others(self) -> None:
        """Read again what other hosts saw before the next check."""
        self._observed = {key: self._observed[key] for key in self._observed if key in self.here}

    def drop_old(self) -> None:
        """Look again for guards whose observations may be too old; once in an attempt.

        A decision must not do that itself: a look that takes longer than the maximum age would be
        repeated without end.
        """
        now = self.runner.clock.monotonic()
        for key in [key for key in self._observed if self._counts_until[key] <= now]:
            del self._observed[key]

    def _has_seen(self, guard: g.Guard) -> bool:
        return not outside_needs(guard) or g.digest(guard) in self._observed


def is_final(refused: GuardBlocked | NoGuard) -> bool:
    """Whether no wait helps: there is no such guard, or it failed and asks to fail."""
    if isinstance(refused, NoGuard):
        return True
    return refused.action == "fail" and refused.result == "failed"


def blocked(thing: str, closed: Sequence[g.GuardResult]) -> GuardBlocked:
    """The outcome for guards that do not pass; it names the one that matters most."""
    result = min(closed, key=_rank)
    leaf, action = _leaf(result), result.action
    failed = result.result == "failed"
    return GuardBlocked(
        thing=thing,
        guard=result.guard,
        result="failed" if failed else "unknown",
        leaf=leaf.condition,
        reason=leaf.reason,
        action=action_word(action),  # type: ignore[arg-type]  # one that warns is not closed
        acts=result.acts,
        message=action.message if failed and isinstance(action, g.FailAction) else "",
        retry_in=action.delay if failed and isinstance(action, g.RetryAction) else None,
    )


def _rank(result: g.GuardResult) -> int:
    """One that fails the request comes first, one that is only unknown last."""
    if result.result == "unknown":
        return 2
    return 0 if isinstance(result.action, g.FailAction) else 1


def _leaf(result: g.GuardResult) -> LeafVerdict:
    """The leaf that decides a result, as a person wrote it."""
    leaves = failing(result.evaluation)
    return leaf_verdict(next((each for each in leaves if each.text == result.leaf), leaves[0]))


def _warning(result: g.GuardResult) -> str:
    leaf = _leaf(result)
    return (
        f"warned by {foreign(result.guard)}: {foreign(leaf.condition)} is {leaf.verdict}:"
        f" {leaf.reason}"
    )


def _refuse_own(guards: Sequence[g.Guard], own: Collection[str], thing: str) -> None:
    """A guard about the very thing that is acquired would contradict itself."""
    for guard in guards if own else ():
        for leaf in leaves_of(guard.condition):
            if key_of_need(RULES[type(leaf)].need(leaf)) in own:
                raise BadInput(
                    f"guard {guard.name!r} asks for {leaf_text(leaf)}, and {thing} is what it"
                    " guards: it is granted only when it is free, so drop that condition"
                )
