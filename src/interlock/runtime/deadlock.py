"""Refuses a wait that can never end: reads the wait graph, and withdraws if the wait is the victim.

The graph is read without locks, so it may have changed by the time the wait withdraws.  If it shows
a deadlocked set, it is therefore read again by the commit, which checks all items of the set: its
places, and the liveness of its waits and holders.  Lists cannot be checked: an agent that began
to receive messages at the last moment may come too late.

One check takes several reads, between which others go on.  So it may seem that another wait is the
victim when none is.  A wait that is stuck because of others therefore checks again, until two
checks show the same: then the graph stood like that in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias, TypeVar

from interlock.core import keys
from interlock.core.deadlock import DeadlockedSet
from interlock.core.decision import Decision
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, outside
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.wait_graph import Graph, KnownTargets, Start, WaitTarget
from interlock.steps import Op

T = TypeVar("T")
Withdrawal: TypeAlias = Callable[[tuple[str, ...]], DecideOp[T | None]]
"""How a wait withdraws: takes the agents of the cycle, and returns the decision."""

_MOST_CHECKS = 16
_FOR_A_WITHDRAWAL = 48


class DeadlockResolver:
    """Checks of the wait graph; the methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def resolve(
        self,
        actor: Actor,
        start: Start,
        withdraw: Withdrawal[T],
        around: KnownTargets | None = None,
        pending: AbstractSet[str] = frozenset(),
    ) -> Op[Decided[T | None]]:
        """Withdraw a wait that closed a cycle; the outcome is None if it may go on.

        Call it after the commit of the wait, and after every sleep without a result.
        ``core.wait.wait_writes`` lists the wait for a task or a query in that commit:

            wait = UnqueuedWait(wants=keys.query(id_), agent=..., session=..., caller=...,
                                live=..., since=now, indexed=..., also=...)
            ... commit puts=(..., *wait_writes(wait, id_)) ...
            start = Start(id=id_, wants=(wait.wants,), asleep=wait, revision=done.revision)
            done = yield from detector.resolve(actor, start, withdraw, pending=...)

        ``indexed`` if the caller may have something that others wait for: a grant, a claim, or a
        place as a receiver (``LocalCaller.holds``).  ``withdraw`` gets the agents of
        the cycle, beginning with the waiter; it yields the keys that it has to read, and returns
        the decision that ends the wait, with its ``wait_keys`` among its deletes.  It is
        committed only while the cycle stands; a ``withdraw`` that finds its wait over already
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
        for _ in range(_MOST_CHECKS):
            graph = Graph(base, start, around, pending)
            yield from outside(graph.explore())
            if (yield from outside(graph.living(dead))) is not None:
                done: Decided[T | None] = yield from self._runner.change(deciding, actor)
                if done.outcome is not None:
                    return done
            elif graph.snapshot == last or not graph.stuck(dead):
                break
            last, around = graph.snapshot, None
        return Decided(None, None)

    def _rely(self, graph: Graph, found: DeadlockedSet) -> ReadOp[bool]:
        """Have the commit check all items of the set; returns whether every wait is still listed.

        If a commit cannot check that many, the last read has to be enough.
        """
        refs = (*graph.items(found), *graph.liveness(found))
        if len(refs) > self._runner.capabilities.max_operations - _FOR_A_WITHDRAWAL:
            return True
        for start in range(0, len(refs), KEYS_AT_ONCE):
            items = (yield refs[start : start + KEYS_AT_ONCE]).items
            if any(item is None and key.startswith(keys.WAITS) for key, item in items.items()):
                return False
        return True


def standing(
    base: int, start: Start, targets: Mapping[str, WaitTarget]
) -> Op[DeadlockedSet | None]:
    """The deadlocked set that the wait of another client closed, if it still stands."""
    graph = Graph(base, start, KnownTargets(targets))
    yield from outside(graph.explore())
    return (yield from outside(graph.living(set())))
