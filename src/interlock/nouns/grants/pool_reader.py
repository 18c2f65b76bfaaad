"""Reads pools from a store: items as values, the facts of a decision, and all pools.

The commit checks every pool that a decision read.  Liveness keys are only glanced at, but for those
that the decision relies on (``PoolFacts``).

The claim of a task is a grant, too: where either may be meant, it is read by its id and its
liveness keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Proof, Write
from interlock.core.wait import caller_name_of
from interlock.nouns.grants.pool import BreakNote, Pool, with_token
from interlock.nouns.grants.pool_change import PoolFacts
from interlock.runtime.attempt import DecideOp, FactReader, ReadOp
from interlock.runtime.reads import OWN_OPERATIONS, readable
from interlock.runtime.runner import Runner
from interlock.store import LIVE, Item, Range

T = TypeVar("T")


class LiveGrant(Struct):
    """The id of a grant, and the liveness keys that keep it alive."""

    id: str
    live: tuple[str, ...]


_POOL = codec.Decoder(Pool)
_BREAK = codec.Decoder(BreakNote)
_GRANT = codec.Decoder(LiveGrant)


def decode_pool(item: Item | None, base: int = 0) -> Pool | None:
    """The lock or semaphore of an item, with the tokens of its grants."""
    if item is None:
        return None
    return with_token(_POOL.read(item), base + item.revision)


def readable_pool(item: Item, base: int) -> Pool | None:
    """The pool of an item in a pass over many; None for a damaged one."""
    return readable(lambda known: decode_pool(known, base), item)


def decode_break_note(item: Item | None) -> BreakNote | None:
    """The note about a grant that an operator ended."""
    return _BREAK.read_if_present(item)


def grant_ids(item: Item) -> tuple[str, ...]:
    """The ids of the grants in an item: those of a pool, or the claim of a task.

    A damaged item has none: its holders stop, and the others are found.
    """
    if item.key.startswith(keys.TASKS):
        claim = readable(_GRANT.read, item)
        return () if claim is None else (claim.id,)
    found = readable_pool(item, 0)
    return () if found is None else tuple(grant.id for grant in found.grants)


def grant_liveness(item: Item, proof: Proof, base: int, agent: str) -> tuple[str, ...] | None:
    """The liveness keys of the grant of a proof in a pool; None if it is not there.

    A token of a semaphore names one grant only together with its holder.
    """
    if proof.grant:
        found = _POOL.read(item).grant(proof.grant)
        return None if found is None else found.live
    known = decode_pool(item, base)
    grants = () if known is None else known.grants
    if agent and item.key.startswith(keys.SEMAPHORES):
        grants = tuple([grant for grant in grants if grant.agent == agent])
    return next((grant.live for grant in grants if grant.token == proof.token), None)


def claim_liveness(item: Item, proof: Proof, base: int, _agent: str) -> tuple[str, ...] | None:
    """The liveness keys of the claim of a proof; None if the task has another owner."""
    claim = _GRANT.read(item)
    same = claim.id == proof.grant if proof.grant else proof.token == base + item.revision
    return claim.live if same else None


_FEW = 4
"""Holders whose liveness is read before a decision asks for it."""


class PoolReader(FactReader[PoolFacts]):
    """The facts about pools for one attempt at a decision; ``live`` has the liveness items."""

    glances = LIVE

    def __init__(self, runner: Runner, base: int) -> None:
        limit = runner.capabilities.max_operations - OWN_OPERATIONS
        super().__init__(runner, base, PoolFacts({}, {}, {}, limit))
        self.live: dict[str, Item | None] = {}
        self.lists: dict[Range, tuple[Item, ...]] = {}
        """What the holders wait for, if that was read."""
        self.written: dict[str, Pool] = {}
        """The pools that the decision writes; their newest grants and waiters have no token yet."""

    def look_ahead(self, *more: str, lists: bool = False) -> ReadOp[None]:
        """Read the liveness that a decision about these pools asks for first, and ``more`` keys.

        With ``lists`` also what the holders wait for, which a caller that queues asks for next.

        Inside of a transaction that saves a second decision, and a read after it.  Across a network
        it would be a round trip, and nearly always liveness can be hoped for.
        """
        wanted, pages = [*more], list[Range]()
        for pool in self.facts.pools.values() if self._local else ():
            if pool is not None and len(pool.grants) <= _FEW:
                for grant in pool.grants:
                    wanted += grant.live
                if pool.waiters:
                    wanted.append(pool.waiters[0].live)
                if lists:
                    from interlock.runtime.wait_graph import list_pages  # most calls do not wait

                    pages += list_pages([caller_name_of(grant) for grant in pool.grants])
        unknown = dict.fromkeys([key for key in wanted if key not in self.facts.exists])
        if unknown or pages:
            snapshot = yield (*unknown, *pages)
            self.learn(snapshot.items)
            self.lists = {page: tuple(snapshot.ranges[page]) for page in pages}

    def note_written(self, decision: Decision[Any]) -> None:
        """Keep the pools of a decision: after its commit the caller knows them without a read.

        A list that it writes to is read again: the caller may wait for itself.
        """
        self.written = {
            each.key: each.value for each in decision.puts if isinstance(each.value, Pool)
        }
        for page in tuple(self.lists):
            if any(each.key.startswith(page.prefix) for each in decision.puts):
                del self.lists[page]

    def learn(
        self,
        items: Mapping[str, Item | None],
        *,
        checked: bool = True,
        decoded: Mapping[str, Pool | None] = {},
    ) -> None:
        """Add pools and liveness keys to the facts; some pools may be decoded already."""
        facts = self.facts
        if checked:
            self._checked.update(items)
        for key, item in items.items():
            if key.startswith(LIVE):
                facts.exists[key] = item is not None
                self.live[key] = item
            else:
                known = key in decoded
                facts.pools[key] = decoded[key] if known else decode_pool(item, self.base)
                facts.newest[key] = 0 if item is None else self.base + item.revision


def set_gated(
    runner: Runner, base: int, key: str, *, gated: bool, capacity: int | None = None
) -> DecideOp[None]:
    """Mark a pool as one that gates wait for, or remove the mark.

    A free lock has an item only while it is marked; a semaphore that does not exist has no
    capacity, and cannot be marked.
    """
    reader = PoolReader(runner, base)
    reader.learn((yield (key,)).items)
    pool = reader.facts.pools[key]
    if pool is None:
        if not gated or capacity is None:
            return Decision(outcome=None)
        pool = Pool(capacity=capacity)
    elif pool.gated == gated:
        return Decision(outcome=None)
    if not gated and not pool.grants and not pool.waiters and key.startswith(keys.LOCKS):
        return Decision(outcome=None, deletes=(key,))
    return Decision(outcome=None, puts=(Write(key, replace(pool, gated=gated)),))


def set_lock_gated(runner: Runner, base: int, name: str, *, gated: bool) -> DecideOp[None]:
    """Mark a lock as one that gates wait for, or remove the mark."""
    return set_gated(runner, base, keys.lock(name), gated=gated, capacity=1)


def set_semaphore_gated(runner: Runner, base: int, name: str, *, gated: bool) -> DecideOp[None]:
    """Mark a semaphore as one that gates wait for, or remove the mark."""
    return set_gated(runner, base, keys.semaphore(name), gated=gated)


def decide_on(
    runner: Runner,
    base: int,
    wanted: tuple[str, ...],
    decide: Callable[[PoolFacts, float], Decision[T]],
) -> DecideOp[T]:
    """One attempt at a decision about these pools, which gets the facts and the time."""
    reader = PoolReader(runner, base)
    reader.learn((yield wanted).items)
    now = runner.clock.wall()
    return (yield from reader.decide(lambda facts: decide(facts, now)))
