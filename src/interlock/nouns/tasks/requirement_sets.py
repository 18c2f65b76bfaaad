"""Letting sets of requirements go of which no task is ready.

A worker looks at one range of ready tasks for each set that it can do, so a set that nobody uses
any more costs every claim a look.  Whoever makes a task ready relies on its set, or writes it
(``task_change.py``): the danger is a task that becomes ready while its set is deleted, since no
worker would find it.  On a local engine looking and deleting are one transaction.  Across a network
they are three steps:

    1. write the set anew, as one that is leaving: whoever relied on it before conflicts, and
       whoever reads it from now on writes it anew, as one that stays
    2. look whether a task is ready: all that relied on the set before are there by now
    3. delete the set if none is, and only if it is still the leaving one of step 2

Whatever fails in between leaves a set that workers look at, which harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.driving import Op
from interlock.nouns.tasks import decode
from interlock.nouns.tasks.task_reader import change
from interlock.runtime.decode import readable
from interlock.runtime.runner import Actor, Deciding, Done, Glance, Reading, Runner
from interlock.store import Item, Range, Snapshot

SETS_AT_ONCE = 16
_VERB, _THING = "task.tidy", "tasks"


def let_go(runner: Runner, actor: Actor, sets: Sequence[str]) -> Op[int]:
    """Let these sets go, as far as no task of theirs is ready; how many went."""
    local = runner.capabilities.local
    if not local:
        marked: Done[int] = yield from runner.change(lambda: _marking(sets), actor)
        if not marked.outcome:
            return 0
    done: Done[int] = yield from runner.change(lambda: _deleting(sets, marked=not local), actor)
    return done.outcome


def list_again(runner: Runner, actor: Actor, place: str) -> Op[bool]:
    """See that the set of a task that is ready is there: a client of before may have missed it."""
    task = keys.listed(place)
    done: Done[bool] = yield from change(
        runner,
        actor,
        (keys.data(task), keys.set_of(keys.set_in(place))),
        lambda board: board.listed(task, _VERB),
    )
    return done.outcome


def _marking(sets: Iterable[str]) -> Deciding[int]:
    """Step 1, for those that are there and of which no task seems to be ready."""
    found: Snapshot = yield tuple([keys.set_of(name) for name in sets])
    idle = yield from _idle(found.items)
    puts = [Write(key, (*names, names[0])) for key, names in idle.items()]
    if not puts:
        return Decision(outcome=0)
    return Decision(outcome=len(puts), verb=_VERB, thing=_THING, puts=tuple(puts))


def _deleting(sets: Iterable[str], *, marked: bool) -> Deciding[int]:
    """Steps 2 and 3; what is not ``marked`` goes inside of one transaction."""
    found: Snapshot = yield tuple([keys.set_of(name) for name in sets])
    own = {
        key: item
        for key, item in found.items.items()
        if item is not None and (decode.leaving(item) or not marked)
    }
    idle = yield from _idle(own)
    if not idle:
        return Decision(outcome=0)
    mark = Write(keys.SETS_MARK, {})
    return Decision(outcome=len(idle), verb=_VERB, thing=_THING, puts=(mark,), deletes=tuple(idle))


def _idle(items: Mapping[str, Item | None]) -> Reading[dict[str, tuple[str, ...]]]:
    """Of these sets, those of which no task is ready, with what they require."""
    known = {key: readable(decode.names, item) for key, item in items.items() if item is not None}
    sets = {key: tuple(dict.fromkeys(names)) for key, names in known.items() if names}
    heads = {key: Range(keys.ready(key.removeprefix(keys.SETS)), limit=1) for key in sets}
    ranges = (yield Glance(heads.values())).ranges if heads else {}
    return {key: names for key, names in sets.items() if not ranges[heads[key]]}
