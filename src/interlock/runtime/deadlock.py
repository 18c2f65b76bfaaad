"""Refusing a wait that can never end: read the graph, and withdraw if we are to give way.

The graph is read without holding up anybody, so it may have moved by the time we withdraw.  If it
shows a knot, it is therefore read again as a part of the commit, which stands on all that makes the
knot: the items of its places, and the liveness of those who wait or are met in it.  Lists cannot be
checked: whoever began to take messages in the very last moment may come too late.

A look takes several reads, between which others go on.  It may so seem that somebody else has to
give way who has not.  Whoever is stuck because of others therefore looks again, until two looks
show the same: then it stood like that in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, TypeVar

from interlock.core import keys
from interlock.core.deadlock import DeadlockedSet
from interlock.core.decision import Decision, Outcome
from interlock.drivers import Op
from interlock.nouns.grants import rules
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import GrantRequest
from interlock.runtime.decide import DecideOp, ReadOp
from interlock.runtime.gather import KEYS_AT_ONCE, outside
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.wait_graph import Graph, Start
from interlock.runtime.wait_graph.around import Around

T = TypeVar("T")
Withdrawal: TypeAlias = Callable[[tuple[str, ...]], DecideOp[T | None]]
"""How a wait gives way: takes the names of the circle, and returns the decision."""

_LOOKS = 16
_FOR_A_WITHDRAWAL = 48


class DeadlockDetector:
    """The look at the graph, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def refuse(
        self,
        actor: Actor,
        request: GrantRequest[Any],
        around: Around,
        pending: AbstractSet[str] = frozenset(),
    ) -> Op[Decided[Outcome | None]]:
        """Withdraw a wait in queues that closed a circle; None if it may go on.

        What is ``around`` it was read after it was committed.
        """
        if around.open:
            return Decided(None, None)
        base = yield from self._runner.base()

        def withdraw(cycle: tuple[str, ...]) -> DecideOp[Outcome | None]:
            reader = PoolReader(self._runner, base)
            reader.learn((yield request.keys).items)
            now = self._runner.clock.wall()
            return (
                yield from reader.decide(lambda facts: rules.withdraw(request, facts, now, cycle))
            )

        start = Start(id=request.grant, wants=request.keys)
        return (yield from self.resolve(actor, start, withdraw, around, pending))

    def resolve(
        self,
        actor: Actor,
        start: Start,
        withdraw: Withdrawal[T],
        around: Around | None = None,
        pending: AbstractSet[str] = frozenset(),
    ) -> Op[Decided[T | None]]:
        """Let a wait give way if it closed a circle; the outcome is None if it may go on.

        Call it when the wait was committed, and again whenever its sleep ends without a result.
        The wait of a task or a query is listed by ``core.wait.listing`` in that commit:

            asleep = Asleep(wants=keys.query(id_), agent=..., session=..., caller=..., live=...,
                            since=now, indexed=..., also=...)
            ... commit puts=(..., *listing(asleep, wait)) ...
            start = Start(id=wait, wants=(asleep.wants,), asleep=asleep, revision=done.revision)
            done = yield from deadlocks.untie(who, start, withdraw, let_go=callers.pending_grants())

        ``indexed`` if the caller may have something that others wait for: a grant, a claim, or a
        place among those who serve an inbox (``Someone.holds``).  ``withdraw`` gets the agents of
        the circle, beginning with the one that waits; it yields what it has to read, and returns
        the decision that ends the wait, with the ``listed`` keys among its deletes.  It is
        committed only while the circle stands; a ``withdraw`` that finds its wait over already
        decides that, or nothing (``Decision(outcome=None)``).
        """
        base = yield from self._runner.base()
        dead: set[str] = set()

        def deciding() -> DecideOp[T | None]:
            graph = Graph(base, start, None, pending)
            yield from graph.explore()
            found = yield from graph.living(dead)
            if found is None or not (yield from self._rely(graph, found)):
                return Decision(outcome=None)
            return (yield from withdraw(found.names))

        last: object = None
        for _ in range(_LOOKS):
            graph = Graph(base, start, around, pending)
            yield from outside(graph.explore())
            if (yield from outside(graph.living(dead))) is not None:
                done: Decided[T | None] = yield from self._runner.change(deciding, actor)
                if done.outcome is not None:
                    return done
            elif graph.seen == last or not graph.stuck(dead):
                break
            last, around = graph.seen, None
        return Decided(None, None)

    def _rely(self, graph: Graph, found: DeadlockedSet) -> ReadOp[bool]:
        """Have the commit check all that makes the knot; whether every wait is still listed.

        If that is more than a commit can stand on, it was true a moment ago.
        """
        refs = (*graph.items(found), *graph.liveness(found))
        if len(refs) > self._runner.capabilities.max_operations - _FOR_A_WITHDRAWAL:
            return True
        for start in range(0, len(refs), KEYS_AT_ONCE):
            items = (yield refs[start : start + KEYS_AT_ONCE]).items
            if any(item is None and key.startswith(keys.WAITS) for key, item in items.items()):
                return False
        return True


def standing(base: int, start: Start, pools: Mapping[str, Pool | None]) -> Op[DeadlockedSet | None]:
    """The knot that a wait of somebody else closed, if it still stands."""
    graph = Graph(base, start, Around(pools))
    yield from outside(graph.explore())
    return (yield from outside(graph.living(set())))
