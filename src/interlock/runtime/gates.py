"""Gates that a change may have opened: the runner checks them again.

A gate is a guard before a step of a thing: the next phase of a pipeline, the claim of a task.  A
thing that a guard keeps waits for a few facts, of which one has to change first, and has an entry
under each of them (``gated/{fact}/{thing}``).  The item of the fact has a mark.  The decision that
changes a marked item names the fact (``Decision.awaited``), and the gates of that fact are checked
again, one decision for each thing:

    local engines    in the same transaction: a thing moves on with the commit that opened its gate.
                     If there are many, the rest follows in transactions of their own.
    other engines    the commit puts a note that names the facts (``recheck/{id}``); the client
                     checks the gates in commits of their own, and deletes the note with the last
                     one.  If the client dies before, housekeeping of another one finds the note.

So nothing polls.  An item without the mark costs nothing.

Some facts are no items:

    a thing that does not exist   has no item to mark: the decision that creates it says so
                                  (``Decision.created``), its gates are looked for before the
                                  commit, for the note, and checked after it
    tasks/{id}                    is a new task.  Gates that wait for tasks which do not exist yet
                                  have their entries under ``tasks``, each with the beginning of the
                                  ids; ``meta/new-tasks`` is the mark.  A publisher that finds the
                                  mark writes it again, so that a gate which has just read the tasks
                                  has to read them again.
    gate/{thing}                  is a thing that just came to its gate, and has no entry yet
    *                             is every gate, for housekeeping
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core import codec, keys
from interlock.core.decision import Decision, Success, Write
from interlock.errors import InterlockError, StoreDamaged, TooLarge
from interlock.runtime.attempt import DecideOp
from interlock.runtime.reads import readable
from interlock.steps import Op, Read
from interlock.store import Item, Range, Ref, Snapshot, View

if TYPE_CHECKING:
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

NEW_TASKS = "tasks"
"""The fact that stands for all tasks which are published from now on."""
EVERY = "*"
"""The fact that stands for all gates."""
STEPS = 1000
"""Gates that a client checks after one commit at most; a note is left for the rest."""
STEPS_INSIDE = 100
"""Gates that are checked in the transaction of a local engine: others wait for its end."""
FACTS_IN_NOTE = 100
"""A note of more facts stands for all gates."""
PAGE = 100


class WatchedView:
    """The state that the check of a gate reads; ``trouble`` is an error of the engine."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.trouble: Exception | None = None

    def read(self, *refs: Ref, longest: int | None = None) -> Snapshot:
        """All the refs as the transaction sees them."""
        try:
            return self._view.read(*refs, longest=longest)
        except Exception as error:
            self.trouble = error
            raise


class GatedEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thing that waits for a fact.

    ``prefix`` is how the ids of the tasks begin that it waits for.  ``guard`` is the guard whose
    facts a host has to look at, for the fact ``observed/{digest}``; else ``null``.
    """

    prefix: str = ""
    guard: Raw = Raw(b"null")


class RecheckNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gates of these facts are to be checked, those of the first one ``after`` this key."""

    facts: tuple[str, ...]
    after: str = ""


class Recheck(Struct, frozen=True, kw_only=True):
    """Gates that are to be checked after a commit, and the keys of the notes that say so."""

    note: RecheckNote
    keys: tuple[str, ...] = ()


_ENTRY = codec.Decoder(GatedEntry)
decode_entry = _ENTRY.read
_NOTE: codec.Decoder[RecheckNote] = codec.Decoder(RecheckNote)
decode_note = _NOTE.read


def note_of(facts: Iterable[str], after: str = "") -> RecheckNote:
    """The note of these facts; many of them are all gates."""
    distinct = tuple(dict.fromkeys(facts))
    if len(distinct) > FACTS_IN_NOTE:
        return RecheckNote(facts=(EVERY,))
    return RecheckNote(facts=distinct, after=after)


def changed_facts(decision: Decision[Any]) -> tuple[str, ...]:
    """The facts that a decision changes and that gates may wait for."""
    if not decision.awaited and not decision.created:
        return ()
    return tuple(dict.fromkeys((*decision.awaited, *decision.created)))


class GateCheck:
    """The gates of some facts, to be checked one after the other.

    ``deciding`` decides about the next one.  ``checked`` goes on behind it once the decision
    stands: an attempt that is repeated must find the same place.  The notes of the facts are
    deleted together with the last decision.
    """

    def __init__(self, runner: Runner, base: int, wanted: Recheck, most: int = STEPS) -> None:
        self._runner = runner
        self._base = base
        self._facts = deque(wanted.note.facts)
        self._after = wanted.note.after
        self._notes = wanted.keys
        self._next = ""
        self._clears = False
        self._steps_left = most

    @property
    def left(self) -> RecheckNote | None:
        """The gates that are still to be checked."""
        return note_of(self._facts, self._after) if self._facts else None

    @property
    def notes(self) -> tuple[str, ...]:
        """The keys of the notes that are not deleted yet."""
        return self._notes

    @property
    def goes_on(self) -> bool:
        """Whether another one may be checked now."""
        return bool(self._facts) and self._steps_left > 0

    def deciding(self) -> DecideOp[Any]:
        """Let the next thing that waits for the first fact move on, or wait for other facts."""
        fact = self._facts[0]
        decision = yield from self._decide(fact)
        last = len(self._facts) == 1 and not self._next and not changed_facts(decision)
        self._clears = last and bool(self._notes)
        if not self._clears:
            return decision
        if not decision.changes:
            thing = _folder(fact)[0]
            return Decision(outcome="checked", verb="guard.clear", thing=thing, deletes=self._notes)
        return replace(decision, deletes=(*decision.deletes, *self._notes))

    def _decide(self, fact: str) -> DecideOp[Any]:
        if fact.startswith(keys.ITSELF):
            self._next = ""
            return (yield from self._move_on(fact.removeprefix(keys.ITSELF)))
        folder, new = _folder(fact)
        page = _page(folder, self._after, whole=not new)
        found = (yield (page,)).ranges[page]
        entry = next((item for item in found if _concerns(item, new)), None)
        last = len(found) < page.limit and (entry is None or entry is found[-1])
        self._next = "" if last else (entry or found[-1]).key
        if entry is not None:
            return (yield from self._move_on(_thing(entry)))
        if found or self._after or folder == EVERY:
            return Decision(outcome="none")
        return (yield from self._without_gates(folder))

    def _move_on(self, thing: str) -> DecideOp[Any]:
        """Let a thing move on, or wait; one that only a newer version knows is left alone."""
        kind, _, name = thing.partition("/")
        if (gate := registry.gate(kind)) is None:
            return Decision(outcome="none")
        decision: Decision[Any] = yield from gate(self._runner, self._base, name)
        return decision

    def _without_gates(self, fact: str) -> DecideOp[Any]:
        """Remove the mark of an item that no gate waits for any more."""
        kind, _, name = fact.partition("/")
        cleared: Decision[None] = Decision(outcome=None)
        if fact == NEW_TASKS:
            if (yield (keys.NEW_TASKS,)).items[keys.NEW_TASKS] is not None:
                cleared = replace(cleared, deletes=(keys.NEW_TASKS,))
        elif (flag := registry.gate_flag(kind)) is not None:
            cleared = yield from flag(self._runner, self._base, name, gated=False)
        if not cleared.changes:
            return Decision(outcome="none")
        return replace(cleared, outcome="cleared", verb="guard.clear", thing=fact)

    def checked(self, facts: Sequence[str] = (), notes: tuple[str, ...] = ()) -> None:
        """Go on behind the thing that was decided about; its decision changed these facts.

        A fact whose gates are being checked follows again: some of them were checked before it
        changed.
        """
        self._steps_left -= 1
        self._notes = notes if self._clears else (*self._notes, *notes)
        self._clears = False
        again = [fact for fact in facts if fact not in list(self._facts)[1:]]
        if self._next:
            self._after = self._next
        else:
            self._facts.popleft()
            self._after = ""
            again = [fact for fact in again if fact not in self._facts]
        self._facts.extend(again)

    def skip(self, error: Exception) -> None:
        """Go on behind a thing that cannot be decided about; doctor names a damaged item."""
        if not isinstance(error, InterlockError):
            import logging

            said = "a gate of %s could not be checked (%r); run 'interlock doctor'"
            logging.getLogger("interlock").warning(said, self._facts[0], error)
        self._clears = False
        self.checked()


def check_gates(
    runner: Runner, actor: Actor, wanted: Recheck | Iterable[str], most: int = STEPS
) -> Op[int]:
    """Check the gates of these facts, each in a commit of its own; how many things moved on.

    If that fails, the notes stay, and a later housekeeping does it.
    """
    if not isinstance(wanted, Recheck):
        wanted = Recheck(note=note_of(wanted))
    moved = 0
    runner.notes.update(wanted.keys)
    try:
        if not wanted.keys:
            note = wanted.note
            wanted = Recheck(note=replace(note, facts=(yield from with_gates(note.facts))))
            if not wanted.note.facts:
                return 0
        base = yield from runner.base()
        gates = GateCheck(runner, base, wanted, most)
        while gates.goes_on:
            try:
                done = yield from runner.change_alone(gates.deciding, actor)
            except (StoreDamaged, TooLarge) as error:  # of this thing
                gates.skip(error)
                continue
            except InterlockError:
                raise
            except Exception as error:  # noqa: BLE001 - its items made the rules raise; others go on
                gates.skip(error)
                continue
            more = done.recheck
            gates.checked(more.note.facts if more else (), more.keys if more else ())
            moved += isinstance(done.outcome, Success)
        if gates.left is not None or gates.notes:
            yield from runner.change_alone(lambda: _leave(runner, gates), actor)
    except InterlockError:
        pass
    finally:
        runner.notes.difference_update(wanted.keys)
    return moved


def with_gates(facts: Sequence[str]) -> Op[tuple[str, ...]]:
    """Those of these facts that gates wait for."""
    if not facts:
        return ()
    pages = {fact: _page(_folder(fact)[0], "", whole=True) for fact in facts}
    found = (yield Read(*dict.fromkeys(pages.values()))).ranges
    return tuple([fact for fact in facts if fact.startswith(keys.ITSELF) or found[pages[fact]]])


def _leave(runner: Runner, gates: GateCheck) -> DecideOp[str]:
    """Leave one note for the gates that are still to be checked, and delete the others."""
    yield from ()
    left = gates.left
    if left is None:
        return Decision(outcome="checked", verb="guard.clear", deletes=gates.notes)
    return replace(left_note(runner, left), quiet=False, deletes=gates.notes)


def left_note(runner: Runner, left: RecheckNote) -> Decision[str]:
    """The decision that leaves a note."""
    note = Write(keys.recheck(runner.new_id("chk")), left)
    return Decision(outcome="left", verb="guard.recheck", puts=(note,), quiet=True)


def _page(folder: str, after: str, *, whole: bool) -> Range:
    """The next entries: one, and another one to know whether it is the last; or many to choose."""
    prefix = keys.GATES if folder == EVERY else keys.gated(folder)
    return Range(prefix, after, 2 if whole else PAGE)


def _thing(entry: Item) -> str:
    if entry.key.startswith(keys.GATES):
        return keys.gate_of(entry.key)
    return keys.gated_of(entry.key)[1]


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
