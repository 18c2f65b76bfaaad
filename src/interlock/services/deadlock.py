"""Refusing a wait that can never end: read the graph, and withdraw if we are to give way.

The graph is read without holding up anybody, so it may have moved by the time we withdraw.  The
commit therefore stands on all that makes up the knot: the pools of its members, and the liveness of
those who wait or hold in it.  If any of it moved we look again, at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from interlock.core import queue
from interlock.core.ask import Ask
from interlock.core.deadlock import Knot
from interlock.core.decision import Decision, Outcome
from interlock.core.pool import Pool
from interlock.driving import Op
from interlock.services.gather import KEYS_AT_ONCE, Gathering, looked_up, outside
from interlock.services.graph import Graph
from interlock.services.runner import Deciding, Done, Runner, Who
from interlock.store import LIVE

_LOOKS = 16
_FOR_A_WITHDRAWAL = 48


class Deadlocks:
    """The look at the graph, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def refuse(
        self,
        who: Who,
        ask: Ask[Any],
        base: int,
        pools: Mapping[str, Pool | None],
        let_go: AbstractSet[str] = frozenset(),
    ) -> Op[Done[Outcome | None]]:
        """Withdraw a wait that closed a circle, and say who is in it; None if it may go on.

        ``pools`` are those of the wait, as they were read after it was committed; ``let_go`` are
        grants that nobody has to act for.  Whoever holds nothing is not listed, and need not
        look: it is waited for only by those behind it in a queue, who are younger.
        """
        for _ in range(_LOOKS if ask.indexed else 0):
            graph = Graph(base, ask.grant, pools, let_go)
            yield from outside(graph.explore(ask.keys))
            dead: set[str] = set()
            knot = yield from _living(graph, dead)
            if knot is None:
                break
            done = yield from self._withdraw(who, ask, base, (graph, knot, dead))
            if done.outcome is not None:
                return done
            pools = {}
        return Done(None, None)

    def _withdraw(
        self, who: Who, ask: Ask[Any], base: int, found: tuple[Graph, Knot, set[str]]
    ) -> Op[Done[Outcome | None]]:
        graph, knot, dead = found
        refs = (*graph.pools_of(knot), *graph.liveness(knot))
        if len(refs) > self._runner.capabilities.max_operations - _FOR_A_WITHDRAWAL:
            refs = ask.keys  # more than a commit can stand on: it was true a moment ago

        def deciding() -> Deciding[Outcome | None]:
            gathering = Gathering(self._runner, base)
            for start in range(0, len(refs), KEYS_AT_ONCE):
                gathering.learn((yield refs[start : start + KEYS_AT_ONCE]).items)
            still = _still(graph, knot, gathering, dead)
            if still is None:
                return Decision(outcome=None)
            agents = tuple([wait.agent for wait in still.cycle])
            now = self._runner.clock.wall()
            return (
                yield from gathering.decide(lambda known: queue.withdraw(ask, known, now, agents))
            )

        done: Done[Outcome | None] = yield from self._runner.change(deciding, who)
        return done


def standing(
    base: int, start: str, wanted: tuple[str, ...], pools: Mapping[str, Pool | None]
) -> Op[Knot | None]:
    """The knot that a wait of somebody else closed, if it still stands."""
    graph = Graph(base, start, pools)
    yield from outside(graph.explore(wanted))
    return (yield from _living(graph, set()))


def _living(graph: Graph, dead: set[str]) -> Op[Knot | None]:
    """The knot of those who live; whoever does not is added to the dead."""
    while (knot := graph.knot(dead)) is not None:
        live = yield from looked_up(graph.liveness(knot))
        gone = {key for key, item in live.items() if item is None}
        if not gone:
            return knot
        dead |= gone
    return None


def _still(graph: Graph, knot: Knot, known: Gathering, dead: AbstractSet[str]) -> Knot | None:
    """The same knot, on what was read just now; who was dead before still is."""
    pools, live = known.facts.pools, known.facts.live
    now = graph.with_pools(pools)
    found = now.knot({*dead, *(key for key, alive in live.items() if not alive)})
    if found is None or {w.id for w in found.members} != {w.id for w in knot.members}:
        return None
    asked = any(key.startswith(LIVE) for key in live)
    return None if asked and any(key not in live for key in now.liveness(found)) else found
