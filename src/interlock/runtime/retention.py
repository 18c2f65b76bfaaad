"""Retention: what all nouns share to delete what is old.

Each noun judges its own items, by facts that only it has (``docs/decisions/retention.md``).  It
reads them with ``reads.Pages``, takes the time from ``retention_clock``, and deletes them in
commits that judge them again:

    old_items      the items under a prefix that are from before a moment
    delete_items   deletes items that stand alone, as many with one commit as the engine takes
    random_key     where the share of a short command begins, so that many commands cover all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from interlock.core.decision import Decision, Success
from interlock.runtime.attempt import DecideOp, Unchecked
from interlock.runtime.identity import Actor
from interlock.runtime.reads import OWN_OPERATIONS, Pages, readable
from interlock.runtime.runner import Runner
from interlock.steps import Op
from interlock.store import Item

THING = "record"
_MOST_OPERATIONS = 400
"""Operations of one commit, also where the engine would take more: others wait for it."""


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """How long something is kept after it ended, and how many of its kind."""

    age: float
    count: int


class Forgotten(Success, frozen=True, kw_only=True, tag="forgotten"):
    """This number of items was deleted; ``left`` did not fit into the commit."""

    count: int = 0
    left: int = 0


class Dated(Protocol):
    """A value with its time; None if it has none, and stays."""

    @property
    def at(self) -> float | None:
        """When it was written, or ended."""


def operations_at_once(runner: Runner) -> int:
    """How many operations one commit of deletions may have."""
    return min(runner.capabilities.max_operations - OWN_OPERATIONS, _MOST_OPERATIONS)


def random_key(runner: Runner, prefix: str) -> str:
    """A key under a prefix from which to begin; not all of these are equally likely."""
    return prefix + chr(ord("0") + runner.random_below(ord("z") - ord("0") + 1))


def old_items(prefix: str, read: Callable[[Item], Dated | None], before: float) -> Op[list[Item]]:
    """The items under a prefix from before a moment, without damaged ones."""
    found: list[Item] = []
    pages = Pages(prefix)
    while not pages.finished:
        for item in (yield from pages.read()):
            dated = readable(read, item)
            old = dated is not None and dated.at is not None and dated.at < before
            found += [item] if old else []
    return found


def delete_items(
    runner: Runner,
    actor: Actor,
    gone: Sequence[str],
    over: Callable[[Item], bool],
    *,
    verb: str,
    lives: Mapping[str, str] | None = None,
) -> Op[int]:
    """Delete items that still exist and are over; the liveness keys in ``lives`` must be gone."""
    done, portion = 0, max(1, operations_at_once(runner) // 2)
    for start in range(0, len(gone), portion):
        deciding = partial(_deleting, verb, tuple(gone[start : start + portion]), over, lives)
        done += (yield from runner.change(deciding, actor)).outcome.count
    return done


def _deleting(
    verb: str, some: tuple[str, ...], over: Callable[[Item], bool], lives: Mapping[str, str] | None
) -> DecideOp[Forgotten]:
    items = (yield some).items
    old = [key for key, item in items.items() if item is not None and over(item)]
    if old and lives is not None:
        live = (yield Unchecked([lives[key] for key in old])).items
        old = [key for key in old if live[lives[key]] is None]
    return deletion(verb, old, len(old))


def deletion(verb: str, gone: Sequence[str], count: int) -> Decision[Forgotten]:
    """Delete items; ``count`` of them were asked for, and the others go with these."""
    if not gone:
        return Decision(outcome=Forgotten())
    return Decision(outcome=Forgotten(count=count), verb=verb, thing=THING, deletes=tuple(gone))
