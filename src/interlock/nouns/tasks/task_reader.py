"""Reads the items of tasks: decoded, and as the facts of a decision (``task_change.py``).

An item that cannot be decoded is damaged, and raises.  The value of an entry in the ``ready`` or
``due`` index only repeats the status of its task and its own key; a damaged one reads as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.nouns.tasks.task import (
    DueEntry,
    EndedEntry,
    ReadyEntry,
    Spec,
    TaskOwner,
    TaskResult,
    TaskStatus,
)
from interlock.nouns.tasks.task_change import NoteNumbers, TaskChanges, TaskFacts
from interlock.nouns.tasks.task_outcomes import Taken
from interlock.nouns.tasks.task_view import TaskNote
from interlock.runtime.attempt import DecideOp, FactReader
from interlock.runtime.identity import Actor
from interlock.runtime.reads import OWN_OPERATIONS, readable
from interlock.runtime.runner import Decided, Runner
from interlock.steps import Op
from interlock.store import Item

T = TypeVar("T")

_ROOM_ELSEWHERE = 1000
"""Operations of one commit on a shared engine, which makes other clients wait."""
_TEXT = 4, 5
"""The part of the largest value that an entry may have: a sealed entry must fit into a value."""

_SPEC = codec.Decoder(Spec)
_STATUS = codec.Decoder(TaskStatus)
_CLAIM = codec.Decoder(TaskOwner)
_READY = codec.Decoder(ReadyEntry)
_DUE = codec.Decoder(DueEntry)
_ENDED = codec.Decoder(EndedEntry)
_RESULT = codec.Decoder(TaskResult)
_NAMES = codec.Decoder(tuple[str, ...])
_NOTE_NUMBERS = codec.Decoder(NoteNumbers)
_NOTE = codec.Decoder(TaskNote)
_OF_TASKS: dict[str, codec.Decoder[Any]] = {
    "data": _SPEC,
    "status": _STATUS,
    "owner": _CLAIM,
    "result": _RESULT,
    "notes": _NOTE_NUMBERS,
}
_OF_INDEXES: dict[str, codec.Decoder[Any]] = {
    keys.READY: _READY,
    keys.SETS: _NAMES,
    keys.DUE: _DUE,
    keys.CLAIMS: _NAMES,
    keys.ENDED: _ENDED,
    keys.NOTES: _NOTE,
}


def decode_spec(item: Item | None) -> Spec | None:
    """The data of a task."""
    return _SPEC.read_if_present(item)


def decode_status(item: Item | None) -> TaskStatus | None:
    """The status of a task."""
    return _STATUS.read_if_present(item)


def decode_claim(item: Item | None) -> TaskOwner | None:
    """The claim of a task."""
    return _CLAIM.read_if_present(item)


def decode_result(item: Item | None) -> TaskResult | None:
    """The result of a task."""
    return _RESULT.read_if_present(item)


def decode_note_numbers(item: Item | None) -> NoteNumbers | None:
    """How many notes a task has."""
    return _NOTE_NUMBERS.read_if_present(item)


def decode_note(item: Item) -> TaskNote:
    """A note about a task."""
    return _NOTE.read(item)


def decode_ready(item: Item) -> ReadyEntry:
    """The value of an entry in the ``ready`` index."""
    return readable(_READY.read, item) or ReadyEntry()


def decode_due(item: Item | None) -> DueEntry | None:
    """The value of an entry in the ``due`` index."""
    if item is None:
        return None
    return readable(_DUE.read, item) or DueEntry()


def decode_ended(item: Item) -> EndedEntry:
    """The value of an entry in the ``ended`` index."""
    return _ENDED.read(item)


def decode_names(item: Item) -> tuple[str, ...]:
    """A list of names: the requirements of a set, or the liveness keys of a claim."""
    return _NAMES.read(item)


def is_leaving(item: Item) -> bool:
    """Whether a set of requirements is marked as leaving: it names one of them twice.

    A client that only wants the requirements reads a marked set as before.
    """
    requires = readable(decode_names, item)
    return requires is not None and len(set(requires)) < len(requires)


def examine(item: Item) -> None:
    """Raise if an item of a task, or of an index of tasks, is damaged."""
    folder, _, rest = item.key.partition("/")
    if item.key.startswith(keys.TASKS):
        decoder = _OF_TASKS.get(rest.rpartition("/")[2])
    else:
        decoder = _OF_INDEXES.get(f"{folder}/")
    if decoder is not None:
        decoder.read(item)


class TaskReader(FactReader[TaskFacts]):
    """The facts about tasks for one attempt at a decision."""

    def __init__(self, runner: Runner, base: int) -> None:
        limits = runner.capabilities
        room = limits.max_operations
        if not limits.transacts:
            room = min(room, _ROOM_ELSEWHERE)
        text = limits.max_value * _TEXT[0] // _TEXT[1]
        super().__init__(runner, base, TaskFacts(room - OWN_OPERATIONS, limits.min_ttl, text))
        self._clock = runner.clock
        self._lives: dict[str, float | None] = {}

    def learn(self, items: Mapping[str, Item | None], *, checked: bool = True) -> None:
        """Add the items of tasks, and whether other keys exist, to the facts."""
        facts, base = self.facts, self.base
        if checked:
            self._checked.update(items)
        item = None
        try:
            for key, item in items.items():
                if not key.startswith(keys.TASKS):
                    self._learn_other(key, item)
                    continue
                _, name, part = key.split("/", 2)
                task = keys.decode(name) if "%" in name else name
                written = 0 if item is None else base + item.revision
                match part:
                    case "status":
                        facts.statuses[task] = None if item is None else _STATUS.decode(item.value)
                        facts.newest[task] = written
                        facts.oldest[task] = 0 if item is None else base + item.created
                    case "owner":
                        facts.claims[task] = None if item is None else _CLAIM.decode(item.value)
                        facts.tokens[task] = written
                    case "data":
                        facts.specs[task] = None if item is None else _SPEC.decode(item.value)
                        facts.written[task] = written
                    case "notes":
                        facts.note_numbers[task] = decode_note_numbers(item)
                    case other:
                        raise AssertionError(f"no decision reads the {other} of a task")
        except codec.UNREADABLE as error:
            if item is None:
                raise
            raise codec.unreadable(item, error) from error

    def _learn_other(self, key: str, item: Item | None) -> None:
        if key.startswith(keys.DUE):
            self.facts.dues[key] = decode_due(item)
        elif key.startswith(keys.SETS):
            self.facts.exists[key] = item is not None and not is_leaving(item)
        elif key.startswith(keys.GATES):
            from interlock.nouns.guards.gates import decode_gate  # only guarded tasks have one

            self.facts.gates[keys.gate_of(key).removeprefix("task/")] = decode_gate(item)
        else:
            self.facts.exists[key] = item is not None
            self._lives[key] = None if item is None else item.expires_in
            if key == keys.CLOCK and item is not None and item.created:
                self.facts.clock = self.base + item.created

    def change(self, decide: Callable[[TaskChanges], Decision[T]]) -> DecideOp[T]:
        """Make a decision about tasks, as of now."""
        now = self._clock.wall()
        return self.decide(lambda facts: decide(TaskChanges(facts, now)))

    def timed(self, outcome: Taken) -> Taken:
        """The answer with the remaining life of the winner's claim, where that is known."""
        held = self.facts.claims[outcome.task]
        lives = [] if held is None else [self._lives.get(key) for key in held.live]
        known = [left for left in lives if left is not None]
        return replace(outcome, expires_in=round(min(known), 3)) if known else outcome


def set_gated(runner: Runner, _base: int, task: str, *, gated: bool) -> DecideOp[None]:
    """Mark a task as one that gates wait for, or remove the mark."""
    del runner
    key = keys.status(task)
    status = decode_status((yield (key,)).items[key])
    if status is None or status.gated == gated:
        return Decision(outcome=None)
    return Decision(outcome=None, puts=(Write(key, replace(status, gated=gated)),))


def change(
    runner: Runner,
    actor: Actor,
    wanted: tuple[str, ...],
    decide: Callable[[TaskChanges], Decision[T]],
    guess: dict[str, Item | None] | None = None,
) -> Op[Decided[T]]:
    """Carry out a decision about tasks that begins with these items."""
    base = yield from runner.base()

    def deciding() -> DecideOp[T]:
        reader = TaskReader(runner, base)
        reader.learn((yield wanted).items)
        return (yield from reader.change(decide))

    return (yield from runner.change(deciding, actor, guess))
