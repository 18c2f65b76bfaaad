"""Filters for entries of the record.

An entry is about a thing if it names it (alone, or joined to others by ``+``), if one of its events
names it, or if it wrote or deleted the item of the thing.  It is about an agent, or about one of
its sessions, if that agent acted, or if one of the events affects it: bob's release that hands a
lock to ada is about ada, too.  It belongs to a trace if it or one of its events carries that trace:
one commit may acknowledge messages of several traces.  A task without a trace has its id as one.
"""

from __future__ import annotations

from msgspec import Struct

from interlock.core import keys
from interlock.core.entry import Entry
from interlock.core.thing_names import KINDS, key_of, split_things


class RecordFilter(Struct, frozen=True, kw_only=True):
    """The conditions that an entry must meet; an empty field is no condition.

    ``by`` is an agent's name or the id of a session; ``verb`` is a whole verb (``lock.acquire``) or
    its noun.
    """

    by: str = ""
    verb: str = ""
    thing: str = ""
    since: float | None = None
    until: float | None = None
    trace: str = ""

    def keeps(self, entry: Entry) -> bool:
        """Whether this entry meets every condition."""
        return (
            (not self.trace or _under(entry, self.trace))
            and (not self.verb or f"{entry.verb}.".startswith(f"{self.verb}."))
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at <= self.until)
            and (not self.by or concerns(entry, self.by))
            and (not self.thing or about(entry, self.thing))
        )


def _under(entry: Entry, trace: str) -> bool:
    task = f"task/{trace}"
    return entry.trace == trace or any(
        trace == event.trace or task == event.thing for event in entry.events
    )


def about(entry: Entry, thing: str) -> bool:
    """Whether an entry is about a thing."""
    if thing in split_things(entry.thing) or any(event.thing == thing for event in entry.events):
        return True
    kind, _, name = thing.partition("/")
    if kind not in KINDS:  # a noun of another package: its entries name it
        return False
    key = keys.status(name) if kind == "task" else key_of(thing)
    return key in entry.put or key in entry.deleted


def concerns(entry: Entry, agent: str) -> bool:
    """Whether an entry is about an agent, or about one of its sessions."""
    if agent in (entry.agent, entry.session):
        return True
    if any(event.agent == agent for event in entry.events):
        return True
    return about(entry, f"agent/{agent}")
