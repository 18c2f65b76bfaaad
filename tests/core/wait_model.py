"""An oracle for deadlocks that knows nothing of reduction: it plays the programs.

Whoever runs may give back one of its grants after the other, queues are served in their order, and
a wait never ends if no execution serves it.  A wait for tasks or for answers is served as soon as
somebody of each of its groups runs: all who work on what is needed, one of those who may answer.
What goes by a name runs if it has no wait, or one of those that it had was served.

A *knot* is a set of waits that never end though everybody outside of it ends at once, and that all
end as soon as any one of them gives way.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple


class Asked(NamedTuple):
    """A wait as the oracle plays it: so much of some pools, or somebody of each group.

    ``also`` are other names that do not run while it lasts.
    """

    caller: str
    wants: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    also: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        return {self.caller, *self.also} - {""}


class State(NamedTuple):
    """Capacities; grants as (pool, caller, weight); waits in their order."""

    capacities: tuple[tuple[str, int], ...]
    grants: tuple[tuple[str, str, int], ...]
    waits: tuple[tuple[str, Asked], ...]


def served(state: State) -> tuple[State, set[str]]:
    """Serve whoever is first in all of its queues and fits, until nobody is."""
    done: set[str] = set()
    while True:
        for number, (id_, ask) in enumerate(state.waits):
            before = {pool for _, other in state.waits[:number] for pool, _ in other.wants}
            if ask.wants and all(p not in before and n <= free(state, p) for p, n in ask.wants):
                grants = (*state.grants, *((p, ask.caller, n) for p, n in ask.wants))
                waits = (*state.waits[:number], *state.waits[number + 1 :])
                state = State(state.capacities, grants, waits)
                done.add(id_)
                break
        else:
            return state, done


def free(state: State, pool: str) -> int:
    return dict(state.capacities)[pool] - sum(n for p, _, n in state.grants if p == pool)


def ever_served(state: State, awake: set[str]) -> set[str]:
    """All waits that some execution serves, if these run from the beginning."""
    names = {id_: ask.names for id_, ask in state.waits}

    def asleep(over: set[str] | frozenset[str]) -> set[str]:
        waiting = {name for id_ in names for name in names[id_]}
        return waiting - awake - {name for id_ in over for name in names[id_]}

    def settled(now: State, over: frozenset[str]) -> tuple[State, frozenset[str]]:
        while True:
            now, done = served(now)
            stuck = asleep(over | done)
            done |= {
                id_
                for id_, ask in now.waits
                if not ask.wants and all(set(group) - stuck for group in ask.groups)
            }
            if not done:
                return now, over
            over |= done
            left = tuple([each for each in now.waits if each[0] not in over])
            now = State(now.capacities, now.grants, left)

    seen = {settled(state, frozenset())}
    todo = list(seen)
    ends: set[str] = set()
    while todo:
        now, over = todo.pop()
        ends |= over
        stuck = asleep(over)
        for number, (_, caller, _) in enumerate(now.grants):
            if caller not in stuck:
                rest = (*now.grants[:number], *now.grants[number + 1 :])
                step = settled(State(now.capacities, rest, now.waits), over)
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
    return ends


def never_end(state: State, among: Iterable[str]) -> bool:
    """Whether none of these ever ends, though every other wait ends at once."""
    kept = set(among)
    awake = {name for id_, ask in state.waits if id_ not in kept for name in ask.names}
    waits = tuple((id_, ask) for id_, ask in state.waits if id_ in kept)
    return not ever_served(State(state.capacities, state.grants, waits), awake)


def deadlocked_sets(state: State) -> list[set[str]]:
    """Sets that never end, none of whose parts would do so alone."""
    ids = [id_ for id_, _ in state.waits]
    found: list[set[str]] = []
    for size in range(1, len(ids) + 1):
        for some in combinations(ids, size):
            if not any(each <= set(some) for each in found) and never_end(state, some):
                found.append(set(some))
    return found
