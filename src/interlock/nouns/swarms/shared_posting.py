"""Writing a shared value: spooled at home, put on the bus in order, or left to a person.

    1  home   the write (``shared-writes/{key}/...``), and its id as the newest one of the copy
    2  bus    the signed value, its envelope as our last write, and the key that measures its age
    3  home   the write is deleted, and the copy is what stands on the bus now

A crash after 1 leaves a write that any process of the swarm posts.  A crash after 2 leaves one that
is on the bus: our last write there has its id, so it is not stored twice, also if another swarm has
overwritten it since.  Where a write is about to win a conflict, one more commit at home keeps the
loser before step 2.  A write that a person has to decide about has a decision instead of step 3.

**In order.**  Writes of one home to one key are posted in the order of their commits.  A process
posts the next one only after step 3 of the one before it.  It reads the bus first, then whether the
write still waits at home, and then commits on the bus if nothing has changed there.  So a process
that was asleep for hours posts nothing that another one has posted.

A write that names no base relies on what its home saw.  If an earlier write of the home still
waits, it follows that one; if that one becomes a decision, the last one that follows it is what the
person decides about, since each of them saw the one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Raw, Struct

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.signing import Signer
from interlock.errors import BusTrouble, NotAllowed, StoreBusy
from interlock.nouns.swarms import share_rules
from interlock.nouns.swarms.envelope import sign_head
from interlock.nouns.swarms.own_keys import current_signer
from interlock.nouns.swarms.reputation import UNKNOWN, Reputation
from interlock.nouns.swarms.shared import (
    OpenedShared,
    SharedCopy,
    SharedWrite,
    StoredConflict,
    decode_copy,
    decode_undecided,
    decode_write,
)
from interlock.nouns.swarms.shared_bus import (
    head_of,
    look,
    put_value,
    stored_before,
    what_stands,
)
from interlock.nouns.swarms.shared_reading import trust_now
from interlock.nouns.swarms.swarm import OwnSwarm
from interlock.nouns.swarms.sync_results import (
    SharesFull,
    ShareSpooled,
    ShareUndecided,
    ValueShared,
)
from interlock.nouns.swarms.sync_rules import (
    WriteApplied,
    WriteConflict,
    WriteSame,
    WriteUndecided,
    decide_write,
)
from interlock.nouns.swarms.trust_service import decode_reputation
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every, readable
from interlock.steps import InThread, Op, Read
from interlock.store import Range, Snapshot

if TYPE_CHECKING:
    from interlock.client_context import Context

DIRECT = 5.0
"""Seconds after which a write counts as one that waited; the link leaves younger ones alone."""
AT_ONCE = 1000
"""Writes that one pass posts at most."""
_TRIES = 20
"""How often a write is judged again because the value has changed."""

NOT_NOW = (BusTrouble, NotAllowed, StoreBusy)
"""Why a write waits: the bus is away, our key is on another host, or others write all the time."""

Settled: TypeAlias = ValueShared | ShareUndecided


class AtHome(Struct, frozen=True, kw_only=True):
    """What our home has: the write if it still waits, and the copy."""

    write: SharedWrite | None
    copy: SharedCopy | None


class SharesPosted(Struct, frozen=True, kw_only=True):
    """What a pass did: the writes that are settled, by id, and why others wait."""

    settled: dict[str, Settled] = {}
    trouble: str = ""


class SharedPosting:
    """The writes of one home; its methods are generators for a driver."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runner = context.runner

    def share(
        self, actor: Actor, own: OwnSwarm, key: str, value: Raw, base: int | None
    ) -> Op[ValueShared | ShareSpooled | ShareUndecided | SharesFull]:
        """Store a write at home, and put it on the bus if that answers."""
        clock = self._runner.clock
        wall, monotonic = clock.wall(), clock.monotonic()

        def waited() -> bool:  # one of the clocks goes on while this machine is suspended
            return max(clock.wall() - wall, clock.monotonic() - monotonic) > DIRECT

        write = yield from self._spool(actor, own, key, value, base)
        if isinstance(write, SharesFull):
            return write
        trouble = ""
        done: dict[str, Settled] = {}
        try:
            done = yield from self._post_key(actor, own, key, write.id, waited)
        except NOT_NOW as error:
            trouble = str(error)
        if write.id in done:
            return done[write.id]
        settled = yield from self._settled_by_another(write)
        spooled = ShareSpooled(key=key, base=write.base, trouble=trouble)
        return spooled if settled is None else settled

    def drain(self, actor: Actor, own: OwnSwarm, *, young: bool = False) -> Op[SharesPosted]:
        """Post what waits, in order; a ``young`` write may be one that its caller posts now."""
        writes = yield from first_waiting(AT_ONCE)
        now = self._runner.clock.wall()
        due = [w.key for w in writes if young or not 0 <= now - w.written_at < DIRECT]
        settled: dict[str, Settled] = {}
        trouble = ""
        for key in due:
            try:
                settled |= yield from self._post_key(actor, own, key)
            except NOT_NOW as error:
                trouble = trouble or str(error)
                if self._context.bus.trouble or isinstance(error, NotAllowed):
                    break  # else the bus refuses this one, and may take the next
        return SharesPosted(settled=settled, trouble=trouble)

    def post_waiting(self, actor: Actor, own: OwnSwarm, key: str) -> Op[str]:
        """Post the writes of one key that wait; why some still do, or nothing."""
        try:
            yield from self._post_key(actor, own, key)
        except NOT_NOW as error:
            return str(error)
        return ""

    # Step 1.

    def _spool(
        self, actor: Actor, own: OwnSwarm, key: str, value: Raw, base: int | None
    ) -> Op[SharedWrite | SharesFull]:
        write = SharedWrite(
            id=self._runner.new_id(share_rules.WRITE),
            key=key,
            bus=own.bus_id,
            agent=actor.agent,
            value=value,
            base=0,
            written_at=round(self._runner.clock.wall(), 3),
        )

        def deciding() -> DecideOp[share_rules.Spooled | SharesFull]:
            page = Range(keys.shared_write(key), limit=1)
            snapshot = yield (keys.copy(key), page)
            first = [decode_write(item) for item in snapshot.ranges[page]]
            copy = decode_copy(snapshot[keys.copy(key)])
            return share_rules.spool(copy, write, base, first[0] if first else None)

        done = (yield from self._runner.change(deciding, actor)).outcome
        return done if isinstance(done, SharesFull) else done.write

    # Step 2.

    def _post_key(
        self,
        actor: Actor,
        own: OwnSwarm,
        key: str,
        direct: str = "",
        waited: Callable[[], bool] | None = None,
    ) -> Op[dict[str, Settled]]:
        """Post the writes of one key in order; ``direct`` is the one that a caller just made."""
        done: dict[str, Settled] = {}
        tried: set[str] = set()
        while (write := (yield from _first(key))) is not None and write.id not in tried:
            tried.add(write.id)
            is_own = write.id == direct
            found = yield from self._post(
                actor, own, write, waited if is_own and not done else None, shown=is_own
            )
            if found is not None:
                done[write.id] = found
        return done

    def _post(
        self,
        actor: Actor,
        own: OwnSwarm,
        write: SharedWrite,
        waited: Callable[[], bool] | None,
        *,
        shown: bool,
    ) -> Op[Settled | None]:
        """Settle one write; None if another process did."""
        for _ in range(_TRIES):
            seen = yield from self._context.bus.on(own, partial(look, own=own, key=write.key))
            home = yield from self._at_home(write)  # only now: see the head of this module
            if home.write is None:
                return None
            write = home.write
            before = stored_before(own, write, seen)
            if before is not None:
                return (yield from self._finish(actor, write, before, write.plan))
            trust = yield from trust_now(own, self._runner.clock.wall())
            stands = what_stands(own, trust, home.copy, seen, write.key)
            spooled = waited is None or waited()
            new = share_rules.proposed(own.name, write, own.bus_id, spooled=spooled)
            decided = decide_write(write.key, stands.current, new, seen.now)
            if isinstance(decided, WriteUndecided):
                opened = stands.opened
                return (yield from self._escalate(actor, own, write, decided, opened, shown=shown))
            if isinstance(decided, WriteSame):
                return (yield from self._finish(actor, write, stands.opened, None))
            stored = yield from self._store(actor, own, write, decided, seen.now)
            if stored is not None:
                return (yield from self._finish(actor, write, stored, decided.conflict))
        raise StoreBusy(f"other swarms keep writing {write.key}; retry later")

    def _at_home(self, write: SharedWrite) -> Op[AtHome]:
        wanted = (write.place, keys.copy(write.key))
        snapshot: Snapshot = yield Read(*wanted)
        waits = snapshot[wanted[0]]
        return AtHome(
            write=None if waits is None else decode_write(waits),
            copy=decode_copy(snapshot[wanted[1]]),
        )

    def _store(
        self, actor: Actor, own: OwnSwarm, write: SharedWrite, decided: WriteApplied, now: float
    ) -> Op[OpenedShared | None]:
        """Put a write on the bus; None if something else stands there by now."""
        signer: Signer = yield InThread(partial(current_signer, own, self._runner.clock.wall()))
        if decided.conflict is not None:
            yield from self._plan(actor, write, decided.conflict)
        head = head_of(own, write, decided, signer.fingerprint, now)
        work = partial(
            put_value,
            head=head,
            envelope=(yield InThread(partial(sign_head, head, signer))),
            value=write.value,
            fresh=decided.conflict is not None,
        )
        return (yield from self._context.bus.on(own, work))

    def _plan(self, actor: Actor, write: SharedWrite, conflict: WriteConflict) -> Op[None]:
        def deciding() -> DecideOp[str]:
            item = (yield (write.place,))[write.place]
            if item is None:
                return Decision(outcome="gone")
            return share_rules.plan(decode_write(item), conflict)

        yield from self._runner.change(deciding, actor)

    # Step 3.

    def _finish(
        self,
        actor: Actor,
        write: SharedWrite,
        stands: OpenedShared | None,
        conflict: WriteConflict | None,
    ) -> Op[ValueShared]:
        """The write is on the bus, or the same value is; None if our copy is that."""
        runner = self._runner
        won = None
        if conflict is not None:
            at = round(runner.clock.wall(), 3)
            won = StoredConflict(id=runner.new_id("cfl"), conflict=conflict, at=at)

        def deciding() -> DecideOp[str]:
            copy = yield from _if_waiting(write)
            if copy is None:
                return Decision(outcome="gone")
            chain = yield from _chain(write, 1)
            follower = chain[1] if len(chain) > 1 else None
            return share_rules.finish(write, copy, follower, stands, won)

        yield from runner.change(deciding, actor)
        home = yield from self._at_home(write)
        known = 0 if home.copy is None else home.copy.revision
        return ValueShared(
            key=write.key,
            revision=known if stands is None else stands.revision,
            base=write.base,
            already=stands is None or stands.head.write_id != write.id,
            won=None if won is None else share_rules.view_conflict(won),
        )

    def _escalate(
        self,
        actor: Actor,
        own: OwnSwarm,
        write: SharedWrite,
        undecided: WriteUndecided,
        stands: OpenedShared | None,
        *,
        shown: bool,
    ) -> Op[ShareUndecided | None]:
        """A person decides; None if another process has settled the write."""
        runner = self._runner
        found = share_rules.Escalation(
            decision=runner.new_id("dec"),
            conflict=runner.new_id("cfl"),
            undecided=undecided,
            stands=stands,
            bus=own.bus_id,
            now=round(runner.clock.wall(), 3),
            least_ttl=runner.capabilities.min_ttl,
            shown=shown,
        )

        def deciding() -> DecideOp[str]:
            copy = yield from _if_waiting(write)
            if copy is None:
                return Decision(outcome="gone")
            chain = yield from _chain(write, share_rules.CHAIN)
            if len(chain) > share_rules.CHAIN:
                return share_rules.merge(chain)
            standing = yield from _standing(undecided.conflict.winner)
            return share_rules.escalate(found, chain, copy, standing)

        outcome = share_rules.MERGED
        while outcome == share_rules.MERGED:
            outcome = (yield from runner.change(deciding, actor)).outcome
        if outcome == "gone":
            return None
        key = keys.undecided(found.decision)
        item = (yield Read(key))[key]
        return None if item is None else share_rules.undecided_outcome(decode_undecided(item))

    def _settled_by_another(self, write: SharedWrite) -> Op[Settled | None]:
        """How another process of our home settled a write; None if it still waits."""
        home = yield from self._at_home(write)
        if home.write is not None:
            return None
        for item in (yield from every(keys.UNDECIDED)):
            left = readable(decode_undecided, item)
            if left is not None and left.is_about(write):
                return share_rules.undecided_outcome(left)
        copy = home.copy
        revision = copy.revision if copy is not None and copy.write == write.id else 0
        return ValueShared(key=write.key, revision=revision, base=write.base)


# At home.


def first_waiting(most: int) -> Op[list[SharedWrite]]:
    """The first write of each key that waits; damaged ones are left out, and ``doctor`` says so."""
    found: list[SharedWrite] = []
    after = ""
    while len(found) < most:
        page = Range(keys.SHARED_WRITES, after, 1)
        items = (yield Read(page)).ranges[page]
        if not items:
            break
        first = yield from _first(keys.shared_of(items[0].key))
        found += [] if first is None else [first]
        after = f"{items[0].key.rpartition('/')[0]}0"  # behind the folder: 0 follows the slash
    return found


def _first(key: str) -> Op[SharedWrite | None]:
    """The first write of a key that waits: all before it are settled."""
    page = Range(keys.shared_write(key), limit=4)
    items = (yield Read(page)).ranges[page]
    found = [each for item in items if (each := readable(decode_write, item)) is not None]
    return found[0] if found else None


def _if_waiting(write: SharedWrite) -> ReadOp[SharedCopy | None]:
    """The copy, if the write still waits; its commits always write both."""
    wanted = (write.place, keys.copy(write.key))
    snapshot = yield wanted
    if snapshot[wanted[0]] is None:
        return None
    return decode_copy(snapshot[wanted[1]]) or SharedCopy(key=write.key, bus=write.bus)


def _chain(write: SharedWrite, most: int) -> ReadOp[list[SharedWrite]]:
    """A write and up to so many that follow it.

    The commit checks the ones that it found; another one would have changed the copy, which it
    checks, too.
    """
    page = Range(keys.shared_write(write.key), write.place, most)
    items = (yield (page,)).ranges[page]
    waiting = [each for item in items if (each := readable(decode_write, item)) is not None]
    chain = share_rules.chain_of(write, waiting)
    yield tuple([each.place for each in chain])
    return chain


def _standing(swarm: str) -> ReadOp[Reputation | None]:
    """The reputation of a swarm, if it is a peer."""
    if not swarm:
        return None
    wanted = (keys.peer(swarm), keys.reputation(swarm))
    snapshot = yield wanted
    if snapshot[wanted[0]] is None:
        return None
    item = snapshot[wanted[1]]
    return UNKNOWN if item is None else decode_reputation(item)
