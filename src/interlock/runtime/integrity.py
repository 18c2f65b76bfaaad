"""Damaged items of a store: finding and repairing them.

The nouns declare their key prefixes with a function that decodes an item.  A reader that finds a
damaged item continues without it if it can; this module finds all of them.  Items that can be
derived from others declare a repair, which ``maintain`` carries out; the rest need a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from interlock import registry
from interlock.core.decision import Decision, Write
from interlock.errors import StoreDamaged
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.noun import DELETE, KeyKind
from interlock.runtime.reads import Pages
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

_PAGE = 200
REPAIRED = 1000
"""Items that one pass repairs, at most."""


def kinds() -> list[KeyKind]:
    """Every key prefix that a noun declares."""
    found = [kind for noun in registry.nouns() for kind in noun.keys]
    return sorted(found, key=lambda kind: kind.prefix)


def unreadable(
    wanted: Iterable[KeyKind] | None = None, most: int | None = None
) -> Op[list[StoreDamaged]]:
    """What is wrong with each damaged item; at most ``most`` items of each kind are read."""
    found: list[StoreDamaged] = []
    for kind in kinds() if wanted is None else wanted:
        items = yield from damaged(kind, most)
        found += [wrong for item in items if (wrong := damage(kind, item)) is not None]
    return found


def damaged(kind: KeyKind, most: int | None = None) -> Op[list[Item]]:
    """The items of a kind that cannot be read, among the first of them."""
    read: Callable[[Item], object] = registry.load(kind.read)
    found: list[Item] = []
    pages = Pages(kind.prefix, limit=_PAGE)
    while not pages.finished and (most is None or pages.items < most):
        items = yield from pages.read(_PAGE)
        found += [item for item in items if _damage(read, item) is not None]
    return found


def damage(kind: KeyKind, item: Item) -> StoreDamaged | None:
    """What is wrong with an item; None if it can be read."""
    return _damage(registry.load(kind.read), item)


def repair(runner: Runner, actor: Actor) -> Op[int]:
    """Write or delete damaged items that can be derived from others; returns how many."""
    found: list[tuple[KeyKind, Item]] = []
    for kind in kinds():
        if kind.repair:
            found += [(kind, item) for item in (yield from damaged(kind))]
    for kind, item in found[:REPAIRED]:
        yield from runner.change(partial(_repairing, kind, item.key, runner.clock.wall()), actor)
    return min(len(found), REPAIRED)


def _repairing(kind: KeyKind, key: str, now: float) -> DecideOp[str]:
    item = (yield (key,))[key]
    if item is None or damage(kind, item) is None:
        return Decision(outcome="gone")
    value: object | None = None
    if kind.repair != DELETE:
        again: Callable[[Item, float], ReadOp[object | None]] = registry.load(kind.repair)
        value = yield from again(item, now)
    puts = () if value is None else (Write(key, value),)
    deletes = (key,) if value is None else ()
    return Decision(
        outcome="mended", verb="record.mend", thing="record", puts=puts, deletes=deletes
    )


def _damage(read: Callable[[Item], object], item: Item) -> StoreDamaged | None:
    try:
        read(item)
    except StoreDamaged as error:
        return error
    return None
