"""Reading for decisions about tasks: what a decision asks for as it goes.

The commit checks only what the decision says it relies on: ``task_change.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.driving import Op
from interlock.nouns.grants.pool_change import Missing
from interlock.nouns.tasks import decode
from interlock.nouns.tasks.task import Taken
from interlock.nouns.tasks.task_change import Board, Known
from interlock.runtime.gather import KEYS_AT_ONCE
from interlock.runtime.runner import Actor, Deciding, Done, Glance, Reading, Runner
from interlock.store import Item

T = TypeVar("T")

_OWN_OPERATIONS = 8
_ROOM_ELSEWHERE = 1000
"""Operations of one commit on an engine that others wait for meanwhile."""
_TEXT = 4, 5
"""Of what a value may have, the part that an entry may have: sealed, it has to fit into one."""


class Facts:
    """The facts for one attempt at a decision, read as it asks for them."""

    def __init__(self, runner: Runner, base: int) -> None:
        self._base = base
        self._read: set[str] = set()
        self._lives: dict[str, float | None] = {}
        limits = runner.capabilities
        room = (
            limits.max_operations if limits.local else min(limits.max_operations, _ROOM_ELSEWHERE)
        )
        text = limits.max_value * _TEXT[0] // _TEXT[1]
        self.known = Known(room - _OWN_OPERATIONS, limits.min_ttl, text)

    def learn(self, items: Mapping[str, Item | None], *, checked: bool = True) -> None:
        """Know what was read, and whether the commit checks it anyway."""
        if checked:
            self._read.update(items)
        for key, item in items.items():
            if not key.startswith(keys.TASKS):
                self._learn_other(key, item)
                continue
            task = keys.task_of(key)
            match key.rpartition("/")[2]:
                case "status":
                    self.known.statuses[task] = decode.status(item)
                    self.known.newest[task] = 0 if item is None else self._base + item.revision
                    self.known.oldest[task] = 0 if item is None else self._base + item.created
                case "owner":
                    self.known.claims[task] = decode.claim(item)
                    self.known.tokens[task] = 0 if item is None else self._base + item.revision
                case "data":
                    self.known.specs[task] = decode.spec(item)
                case other:
                    raise AssertionError(f"no decision reads the {other} of a task")

    def _learn_other(self, key: str, item: Item | None) -> None:
        if key.startswith(keys.DUE):
            self.known.dues[key] = decode.due(item)
        elif key.startswith(keys.SETS):
            self.known.there[key] = item is not None and not decode.leaving(item)
        else:
            self.known.there[key] = item is not None
            self._lives[key] = None if item is None else item.expires_in
            if key == keys.CLOCK and item is not None and item.created:
                self.known.clock = self._base + item.created

    def timed(self, outcome: Taken) -> Taken:
        """Whoever comes too late is told how long the winner lives, where that is known."""
        held = self.known.claims[outcome.task]
        lives = [] if held is None else [self._lives.get(key) for key in held.live]
        known = [left for left in lives if left is not None]
        return replace(outcome, expires_in=round(min(known), 3)) if known else outcome

    def decide(self, decide: Callable[[Known], Decision[T]]) -> Deciding[T]:
        """Decide on what is known, and on whatever else that takes."""
        while True:
            self.known.relied.clear()
            try:
                decision = decide(self.known)
            except Missing as missing:
                yield from self._find(missing.refs)
                continue
            if decision.changes:
                unchecked = [key for key in self.known.relied if key not in self._read]
                for start in range(0, len(unchecked), KEYS_AT_ONCE):
                    yield tuple(unchecked[start : start + KEYS_AT_ONCE])
            return decision

    def _find(self, refs: tuple[str, ...]) -> Reading[None]:
        for start in range(0, len(refs), KEYS_AT_ONCE):
            some = Glance(refs[start : start + KEYS_AT_ONCE])
            self.learn((yield some).items, checked=False)


def change(
    runner: Runner,
    actor: Actor,
    wanted: tuple[str, ...],
    decide: Callable[[Board], Decision[T]],
    guess: dict[str, Item | None] | None = None,
) -> Op[Done[T]]:
    """Carry out a decision about tasks that begins with these items."""
    base = yield from runner.base()

    def deciding() -> Deciding[T]:
        facts = Facts(runner, base)
        facts.learn((yield wanted).items)
        now = runner.clock.wall()
        return (yield from facts.decide(lambda known: decide(Board(known, now))))

    return (yield from runner.change(deciding, actor, guess))
