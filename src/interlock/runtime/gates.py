"""Gates that a change may have opened: the runner checks them again.

A gate is a guard before a step of a thing: the next phase of a pipeline, the claim of a task.  A
thing that a guard keeps waits for a few facts, of which one has to change first, and has an entry
under each of them (``gated/{fact}/{thing}``).  The item of the fact has a mark.  The decision that
changes a marked item names the fact (``Decision.awaited``), and the gates of that fact are checked
again, one decision for each thing:

    local engines    in the same transaction: a thing moves on with the commit that opened its gate
    other engines    the commit leaves a mark for the fact (``recheck/{fact}``); the client checks
                     the gates in commits of their own and deletes the mark with the last one.  If
                     the client dies before, the housekeeping of another one finds the mark.

So nothing polls.  An item without the mark costs nothing.

The fact ``tasks/{id}`` is a new task.  The gates that wait for tasks which do not exist yet have
their entries under ``tasks``, each with the beginning of the ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import InterlockError, StoreDamaged, TooLarge
from interlock.runtime.attempt import DecideOp
from interlock.runtime.reads import readable
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.steps import Op

NEW_TASKS = "tasks"
"""The fact that stands for all tasks which are published from now on."""
STEPS = 1000
"""Decisions that follow one commit at most; a mark is left for the rest."""
PAGE = 100


class GatedEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thing that waits for a fact.

    ``prefix`` is how the ids of the tasks begin that it waits for.  ``guard`` is the guard whose
    facts a host has to look at, for the fact ``observed/{digest}``.
    """

    prefix: str = ""
    guard: Raw | None = None


_ENTRY = codec.Decoder(GatedEntry)
decode_entry = _ENTRY.read


class GateCheck:
    """The gates of some facts, to be checked one after the other.

    ``deciding`` decides about the next one.  ``checked`` goes on behind it once the decision
    stands: an attempt that is repeated must find the same place.  With ``marked`` the facts have a
    mark in the store, which goes with the last of their gates.
    """

    def __init__(self, runner: Runner, base: int, facts: Iterable[str], *, marked: bool) -> None:
        self._runner = runner
        self._base = base
        self._marked = marked
        self._facts = deque(dict.fromkeys(facts))
        self._after = ""
        self._next = ""
        self._steps = 0

    @property
    def left(self) -> tuple[str, ...]:
        """The facts whose gates are still to be checked."""
        return tuple(self._facts)

    @property
    def within_bound(self) -> bool:
        """Whether another one may be checked now."""
        return bool(self._facts) and self._steps < STEPS

    def deciding(self) -> DecideOp[Any]:
        """Let the next thing that waits for the first fact move on, or wait for other facts."""
        fact = self._facts[0]
        folder, wanted = _folder(fact)
        mark = keys.recheck(folder)
        page = Range(keys.gated(folder), self._after, PAGE)
        refs = (mark, page) if self._marked else (page,)
        snapshot = yield refs
        marked = self._marked and snapshot.items[mark] is not None
        found = snapshot.ranges[page]
        entry = next((item for item in found if _concerns(item, wanted)), None)
        last = len(found) < PAGE and (entry is None or entry is found[-1])
        self._next = "" if last else (entry or found[-1]).key
        if entry is None:
            decision = yield from self._without_gates(folder, empty=not found and not self._after)
        else:
            kind, _, name = keys.gated_of(entry.key)[1].partition("/")
            decision = yield from registry.gate(kind)(self._runner, self._base, name)
        if not (marked and last):
            return decision
        if not decision.changes:
            return Decision(outcome="checked", verb="guard.clear", thing=folder, deletes=(mark,))
        return replace(decision, deletes=(*decision.deletes, mark))

    def _without_gates(self, fact: str, *, empty: bool) -> DecideOp[Any]:
        """Remove the mark of an item that no gate waits for any more."""
        kind, _, name = fact.partition("/")
        flag = registry.gate_flag(kind) if empty else None
        if flag is None:
            return Decision(outcome="none")
        cleared = yield from flag(self._runner, self._base, name, gated=False)
        if not cleared.changes:
            return Decision(outcome="none")
        return replace(cleared, outcome="cleared", verb="guard.clear", thing=fact)

    def checked(self, awaited: Iterable[str] = ()) -> None:
        """Go on behind the thing that was decided about; its decision changed these facts."""
        self._steps += 1
        if self._next:
            self._after = self._next
        else:
            self._facts.popleft()
            self._after = ""
        self._facts.extend(fact for fact in awaited if fact not in self._facts)


def marks(facts: Iterable[str]) -> tuple[Write, ...]:
    """The marks of facts whose gates are to be checked again."""
    return tuple([Write(keys.recheck(each), {}) for each in {_folder(fact)[0] for fact in facts}])


def check_gates(
    runner: Runner, actor: Actor, facts: Iterable[str], *, marked: bool = True
) -> Op[None]:
    """Check the gates of these facts, each in a commit of its own.

    If that fails, the marks stay, and a later housekeeping does it.
    """
    try:
        base = yield from runner.base()
        gates = GateCheck(runner, base, facts, marked=marked)
        while gates.within_bound:
            try:
                done = yield from runner.change_alone(gates.deciding, actor)
            except (StoreDamaged, TooLarge):  # of this thing; doctor names it
                gates.checked()
            else:
                gates.checked(done.awaited)
    except InterlockError:
        return


def _folder(fact: str) -> tuple[str, str]:
    """The fact that entries stand under, and the id of a new task."""
    kind, _, id_ = fact.partition("/")
    return (NEW_TASKS, id_) if kind == NEW_TASKS else (fact, "")


def _concerns(item: Item, task: str) -> bool:
    """Whether an entry is about this new task, if there is one."""
    if not task:
        return True
    entry = readable(decode_entry, item)
    return entry is None or task.startswith(entry.prefix)
