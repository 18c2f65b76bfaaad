"""Housekeeping of guards: gates that no commit checks, and observations that are too old.

The commit that opens a gate checks it (``runtime/gates.py``).  Housekeeping finds the rest:

    a note is left     its client died, or lost the store, before it had checked the gates.  Clients
                       carry out notes after one of a thousand commits, workers when they find no
                       task, and so does ``maintain``
    no commit came     a grant expired, or the delay of a retry is over; a task came to match a
                       filter by its state, or failed where a guard waits for that
    something is lost  an entry, or the mark of an item that a client of an older version wrote

``maintain`` checks every gate for the last two, a bounded number in one pass: a note has the place
where the next pass continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.nouns.guards.gates import Gate, decode_gate
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.gates import (
    EVERY,
    Recheck,
    RecheckNote,
    check_gates,
    decode_entry,
    decode_note,
    note_of,
)
from interlock.runtime.housekeeping import HousekeepingPart
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, looked_up, readable
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op, Read
from interlock.store import Item, Range

NOTES_AT_ONCE = 16
STEPS_OF_CLIENT = 100
"""Gates that one step of a client checks at most."""


def check_noted(
    runner: Runner, actor: Actor, items: Sequence[Item], most: int = STEPS_OF_CLIENT
) -> Op[int]:
    """Check the gates that these notes name; how many things moved on.

    A note that is damaged may have named any gate.
    """
    every_gate = RecheckNote(facts=(EVERY,))
    ours = [item for item in items if item.key not in runner.notes]
    notes = {item.key: readable(decode_note, item) or every_gate for item in ours}
    begun = {key: note for key, note in notes.items() if note.after}
    whole = {key: note for key, note in notes.items() if not note.after}
    wanted = [Recheck(note=note, keys=(key,)) for key, note in begun.items()]
    if whole:
        facts = [fact for note in whole.values() for fact in note.facts]
        wanted.append(Recheck(note=note_of(facts), keys=tuple(whole)))
    moved = 0
    for each in wanted:
        moved += yield from check_gates(runner, actor, each, most)
    return moved


def client_step(runner: Runner, _settings: Settings | None, actor: Actor) -> Op[bool]:
    """The share of a client: carry out some notes; whether more of them may be left."""
    page = Range(keys.RECHECK, limit=NOTES_AT_ONCE)
    found = (yield Read(page)).ranges[page]
    if found:
        yield from check_noted(runner, actor, found)
    return len(found) == NOTES_AT_ONCE


class GuardHousekeepingPart(HousekeepingPart):
    """The part of a pass that is about guards."""

    def reclaim(self) -> Op[None]:
        """Check the gates that notes name, and then every gate."""
        work = self.work
        noted = yield from every(keys.RECHECK, most=work.bound)
        work.moved += yield from check_noted(work.runner, work.actor, noted, work.bound)
        yield from self._restore_entries()
        work.moved += yield from check_gates(work.runner, work.actor, (EVERY,), work.bound)

    def _restore_entries(self) -> Op[None]:
        """Let the gates whose entries were lost, or are damaged, write all of them again."""
        work = self.work
        gates = yield from every(keys.GATES, most=work.bound)
        known = {keys.gate_of(item.key): readable(decode_gate, item) for item in gates}
        entries = yield from looked_up(
            keys.gated(fact, thing) for thing, gate in known.items() if gate for fact in gate.facts
        )
        lost = {
            keys.gated_of(key)[1]
            for key, item in entries.items()
            if item is None or readable(decode_entry, item) is None
        }
        for thing in sorted(lost):
            yield from work.runner.change(partial(_forgetting, thing), work.actor)

    def expired(self, _now: float) -> Op[list[Item]]:
        """Observations that are too old, and entries of things that wait for something else."""
        items = yield from every(keys.OBSERVED)
        alive = yield from looked_up(keys.observed_live(item.key) for item in items)
        old = [item for item in items if alive[keys.observed_live(item.key)] is None]
        return [*old, *(yield from self._stale_entries())]

    def _stale_entries(self) -> Op[list[Item]]:
        entries = yield from every(keys.GATED, most=self.work.bound)
        named = {item.key: keys.gated_of(item.key) for item in entries}
        gates = yield from looked_up(keys.gate(thing) for _, thing in named.values())
        known = {key: readable(decode_gate, item) for key, item in gates.items()}
        stale = []
        for item in entries:
            fact, thing = named[item.key]
            key = keys.gate(thing)
            gate = known[key]
            damaged = gates[key] is not None and gate is None
            if not damaged and (gate is None or fact not in gate.facts):
                stale.append(item)
        return stale


def _forgetting(thing: str) -> DecideOp[str]:
    """Make a gate wait for nothing: its next check writes all entries again."""
    key = keys.gate(thing)
    gate = decode_gate((yield (key,)).items[key])
    if gate is None or not gate.facts:
        return Decision(outcome="none")
    return Decision(
        outcome="restored",
        verb="guard.restore",
        thing=thing,
        puts=(Write(key, replace(gate, facts=())),),
        deletes=tuple([keys.gated(fact, thing) for fact in gate.facts]),
    )


def repaired_gate(_item: Item, _now: float) -> ReadOp[Gate]:
    """A damaged gate waits for nothing: its next check finds what keeps the thing."""
    yield from ()
    return Gate(facts=())
