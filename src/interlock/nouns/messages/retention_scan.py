"""A round through what may be forgotten: its groups, and what came of each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.messages.retention_rules import Mark
from interlock.runtime.commits import Moment
from interlock.runtime.steps import Read
from interlock.store import Item, Range

WHOLE = (keys.IDS, keys.QUERIES, keys.DECISIONS)
"""Folders that are one group."""
SOME = 150
"""What a small part of a round forgets: it is over in a few hundredths of a second, so that leases
are renewed in time, and an event loop goes on.  If it forgot so much, another part follows soon."""


class Tidied(Struct, frozen=True, kw_only=True):
    """What was forgotten; what was over though nobody had said so; what is left.

    ``ids`` are those that may be chosen again.
    """

    forgotten: int = 0
    ids: int = 0
    reclaimed: int = 0
    left: int = 0

    @property
    def more(self) -> bool:
        """Whether a small part of a round did as much as it may: there may be more."""
        return self.forgotten + self.ids + self.reclaimed >= SOME


class Todo(Struct, frozen=True, kw_only=True):
    """What is to go of a topic, if nobody changed what was ``seen`` of it.

    ``count`` is how many messages it had at a ``moment``, less those that went since.
    """

    seen: int
    going: list[Mark]
    moment: Moment
    count: int


def following(folder: str, group: str) -> Op[str]:
    """The group behind another one, or the first; empty if there is none."""
    if group and folder in WHOLE:
        return ""
    after = f"{group[:-1]}0" if group else ""  # the character behind '/'
    page = Range(folder, after, 1)
    return group_of(folder, (yield Read(page)).ranges[page])


def group_of(folder: str, first: Sequence[Item]) -> str:
    """The group of the first item that was found."""
    if not first:
        return ""
    return folder if folder in WHOLE else f"{folder}{first[0].key.split('/', 2)[1]}/"


def together(one: Tidied, other: Tidied) -> Tidied:
    """The sum of two parts."""
    return Tidied(
        forgotten=one.forgotten + other.forgotten,
        ids=one.ids + other.ids,
        reclaimed=one.reclaimed + other.reclaimed,
        left=one.left + other.left,
    )
