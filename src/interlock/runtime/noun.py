"""The declaration of a noun: everything that the rest of the product needs to know about it.

A declaration is cheap to import: it names functions (``"interlock.nouns.tasks.why:task"``),
which are imported when they are used.  Faces and clients derive from the operations and the calls;
the runtime loops over the other fields of all nouns (``interlock.registry``) and imports no noun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from interlock.runtime.operation import Operation

DELETE = "delete"
"""The repair of an item that is written again by itself."""


class KeyKind(Struct, frozen=True, kw_only=True):
    """A key prefix, and how its items are read and repaired.

    ``read`` names a function that decodes an item, and raises StoreDamaged if it cannot: the
    integrity check and ``doctor`` call it.  ``repair`` names a function for items that can be
    derived from others: it takes the damaged item and the time, reads what it needs, and returns
    the new value, or None to delete the item; ``DELETE`` needs no function.  ``bulk`` items are
    many and rarely read again: ``doctor`` reads them all, ``health`` does not.
    """

    prefix: str
    read: str
    repair: str = ""
    bulk: bool = False


class Part(Struct, frozen=True, order=True):
    """What a noun adds to a pass over all nouns; those of a lower rank come first."""

    rank: int
    function: str


def parts(declared: Iterable[Part | None]) -> list[str]:
    """The functions of these parts, in order."""
    return [part.function for part in sorted(part for part in declared if part is not None)]


class Noun(Struct, frozen=True, kw_only=True):
    """One noun.

    name         its name in things (``lock/merge``) and in the record (``lock.acquire``)
    help         what it is, for ``--help``
    group        the heading in ``--help`` for commands that do not begin with the noun's name
    operations   its operations
    calls        the class with its calls; ``blocking`` and ``awaiting`` name the classes of the two
                 clients where these have more than the calls
    texts        modules whose TEXTS put its outcomes into words, by the name of their class
    keys         the key prefixes that it owns
    why          explains things: for each kind of thing a function ``(context, name) -> Op[Why]``;
                 ``ids`` says how ids of a kind begin, and ``why_plain`` explains a name without a
                 kind, or returns None
    health       finds problems: ``(checkup) -> Op[list[Problem]]``
    metrics      what it counts for monitors: a class of ``runtime.metrics``
    gauges       its present state as numbers for monitors: ``(scrape) -> Op[list[Metric]]``, with
                 a ``runtime.monitoring.Scrape``
    events       whether its entries have events, which ``observe`` shows under its name
    history      turns its entries into history events: a class of ``core.history``; without one
                 they have what every entry says.  ``history_details`` adds what the noun still
                 knows of a thing: ``(events, name) -> Op[events]``.  ``related`` names other
                 things whose events belong to it: ``(lines, name) -> things``
    waits        for each key prefix a function that reads what a wait for such a key waits for:
                 ``(keys, base) -> ReadOp[WaitTargets]``, for the wait graph
    proof        finds the liveness keys of a given grant of its things, None if that is over:
                 ``(item, proof, base, agent) -> keys``
    housekeeping does its part of ``maintain``: a class of ``runtime.housekeeping``
    gates        for each kind of its things that guards keep, the function that lets one move on
                 or wait further: ``(runner, base, name) -> DecideOp``
    gate_flags   for each kind of fact that gates wait for, the function that marks its item, or
                 removes the mark: ``(runner, base, name, gated=) -> ReadOp[Decision[None]]``
    decided      for each kind of its things that decisions are about, the function that says what
                 the end of one does, in the same commit: ``(decision) -> ReadOp[Decision]``
    decided_then for such a kind, what is done after that commit: ``(context, about) -> Op[None]``
    """

    name: str
    help: str = ""
    group: str = ""
    operations: tuple[Operation, ...] = ()
    calls: str = ""
    blocking: str = ""
    awaiting: str = ""
    texts: tuple[str, ...] = ()
    keys: tuple[KeyKind, ...] = ()
    why: Mapping[str, str] = {}
    ids: Mapping[str, str] = {}
    why_plain: str = ""
    health: Part | None = None
    history: str = ""
    history_details: str = ""
    related: str = ""
    events: bool = False
    metrics: str = ""
    gauges: str = ""
    waits: Mapping[str, str] = {}
    proof: str = ""
    housekeeping: Part | None = None
    gates: Mapping[str, str] = {}
    gate_flags: Mapping[str, str] = {}
    decided: Mapping[str, str] = {}
    decided_then: Mapping[str, str] = {}
