"""From a decision to the transaction that commits it, with its entry in the record.

An entry names its writer, the outcome, the hashes of the entries it follows, and the digest of
every value that it puts.  A refusal changes nothing that stays, so no later item would carry the
hash of its entry, and the last entry of a process could disappear unnoticed.  Such an entry also
writes one of a few slots: the next entry in that slot links it.

Entries form a chain.  Every entry links the committed entries of its writer that no other entry
links yet: usually one, several when commits were in flight together.  If an entry is not committed,
its links become unlinked again, once: drafts that were made together may have the same links.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec
from interlock.core.decision import REFUSALS, Decision, Event, Write
from interlock.core.log import Entry
from interlock.errors import TooLarge
from interlock.runtime.decide import Attempt
from interlock.runtime.identity import Actor
from interlock.store import LIVE, Check, Item, Put, Snapshot, Txn

if TYPE_CHECKING:
    from interlock.runtime.runner import Runner


SLOTS = 16
"""Slots that link entries which change nothing else: two such entries rarely meet in one."""


def draft_transaction(runner: Runner, attempt: Attempt, actor: Actor, *, checked: bool) -> Draft:
    """The transaction that carries a decision out, with its entry."""
    decision = attempt.decision
    txn = runner.new_id("txn")
    puts = tuple([Put(w.key, codec.encode(w.value), w.ttl) for w in decision.puts])
    size = 0
    for put in puts:
        size += len(put.key) + len(put.value)
        if len(put.value) > runner.capabilities.max_value:
            raise TooLarge(
                f"{put.key} would have {len(put.value)} bytes;"
                f" this store takes {runner.capabilities.max_value}"
            )
    checks: tuple[Check, ...] = ()
    if checked:
        checks = tuple(_check(key, item) for key, item in attempt.seen.items())
    lists = (checks, puts, decision.deletes, decision.signals, decision.reads)
    if (operations := sum(map(len, lists))) > runner.capabilities.max_operations:
        raise TooLarge(
            f"this takes {operations} operations in one transaction and this store takes"
            f" {runner.capabilities.max_operations}; ask for less at once"
        )
    if decision.quiet:
        return Draft(Txn(id=txn, checks=checks, puts=puts, quiet=True, ends=True), ())
    after = runner.chain.take()
    entry = codec.encode(
        Entry(
            id=txn,
            at=round(runner.clock.wall(), 3),
            writer=runner.chain.writer,
            agent=actor.agent,
            session=actor.session,
            verb=decision.verb,
            outcome=outcome_word(decision.outcome),
            thing=decision.thing,
            trace=decision.trace or actor.trace,
            on=attempt.on,
            after=after,
            saw={k: _stamp(i) for k, i in attempt.seen.items() if not k.startswith(LIVE)},
            put={p.key: codec.digest(p.value) for p in puts if p.ttl is None},
            deleted=tuple([k for k in decision.deletes if not k.startswith(LIVE)]),
            events=decision.events,
            via=decision.via,
            took=decision.took,
            reason=decision.reason,
        )
    )
    if size + len(entry) > runner.capabilities.max_bytes:
        runner.chain.give_back(Draft(Txn(id=txn), after))
        raise TooLarge(
            f"this takes {size + len(entry)} bytes in one transaction and this store takes"
            f" {runner.capabilities.max_bytes}; ask for less at once"
        )
    return Draft(
        Txn(
            id=txn,
            entry=entry,
            hash=codec.digest(entry),
            checks=checks,
            puts=puts,
            deletes=decision.deletes,
            reads=decision.reads,
            signals=decision.signals,
            ends=decision.ends,
        ),
        after,
    )


def needs_link(decision: Decision[Any]) -> bool:
    """Whether a recorded decision changes nothing that stays, as a refusal does."""
    for put in decision.puts:  # nearly always the first one decides: this runs at every commit
        if put.ttl is None:
            return False
    if not decision.verb or decision.quiet:
        return False
    return all(key.startswith(LIVE) for key in decision.deletes)


def with_link(attempt: Attempt, snapshot: Snapshot, key: str, actor: Actor) -> Attempt:
    """The attempt with a write into a slot, so that the next entry there links this one.

    A refusal is also an event: watchers learn of a caller that names a grant it does not have.
    """
    bare, word = attempt.decision, outcome_word(attempt.decision.outcome)
    if not bare.events and word in REFUSALS:
        noun = bare.thing.partition("/")[0]
        event = Event(f"{_EVENT_NOUNS.get(noun, noun)}:{word}", actor.agent)
        bare = replace(bare, events=(event,))
    put = Write(key, {"verb": bare.verb, "thing": bare.thing, "outcome": word})
    seen = {**attempt.seen, key: snapshot.items[key]}
    on = max(attempt.on, snapshot.revision)
    return Attempt(replace(bare, puts=(*bare.puts, put)), seen, on, attempt.hoped)


def outcome_word(outcome: object) -> str:
    """The word for an outcome in the record: its tag, or the outcome itself."""
    kind = type(outcome)
    if kind not in _tags:
        config = getattr(kind, "__struct_config__", None)
        _tags[kind] = None if config is None else config.tag
    return str(_tags[kind] or outcome)


def _check(key: str, item: Item | None) -> Check:
    if item is None:
        return Check(key, "absent")
    if key.startswith(LIVE):
        return Check(key, "exists")
    if not item.revision:  # a guess has no revision: the value must be equal
        return Check(key, "has", value=item.value)
    return Check(key, "at", revision=item.revision)


def _stamp(item: Item | None) -> str | None:
    if item is None:
        return None
    return item.hash or "blind"


_tags: dict[type, object] = {}
_EVENT_NOUNS = {"sem": "semaphore"}
"""The names of nouns in events, where they differ from the record."""


ENTRIES_BETWEEN_CHECKS = 1000
"""After this many recorded commits the size of the log is checked."""


class Draft(Struct, frozen=True, gc=False):
    """A transaction that is ready, and the heads of the chain that it links."""

    txn: Txn
    after: tuple[str, ...]


class Chain:
    """The entries of this process that no later one links yet.

    ``phase`` is the number of commits that count as made at the beginning: else writers that begin
    together would check the size of the log at the same moment.
    """

    def __init__(self, writer: str, phase: int = 0) -> None:
        self.writer = writer
        self._phase = phase
        self._guard = threading.Lock()
        self._heads: list[str] = []
        self._latest = ""
        self.count = 0
        self.on_many: Callable[[], None] | None = None

    def take(self) -> tuple[str, ...]:
        """The hashes that the next entry links: all unlinked ones, else the latest."""
        with self._guard:
            heads, self._heads = self._heads, []
            return tuple(heads) if heads else ((self._latest,) if self._latest else ())

    def advance(self, draft: Draft) -> None:
        """An entry is committed; called twice if an interrupt came in between."""
        if not draft.txn.quiet:
            with self._guard:
                if draft.txn.hash in self._heads:
                    return
                self._latest = draft.txn.hash
                self._heads.append(draft.txn.hash)
                self.count += 1
                many = not (self.count + self._phase) % ENTRIES_BETWEEN_CHECKS
            if many and self.on_many is not None:
                self.on_many()

    def give_back(self, draft: Draft | None) -> None:
        """An entry was not committed: its links are unlinked again."""
        if draft is not None:
            with self._guard:
                self._heads = list(dict.fromkeys((*draft.after, *self._heads)))
