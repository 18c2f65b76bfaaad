"""Writes of shared values at their home: what each step of ``shared_posting.py`` commits there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.messages import decision_rules
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.swarms import reputation as reputations
from interlock.nouns.swarms.reputation import Reputation
from interlock.nouns.swarms.shared import (
    OpenedShared,
    SharedCopy,
    SharedWrite,
    StoredConflict,
    UndecidedWrite,
    moved,
    taken_in,
)
from interlock.nouns.swarms.sync_results import ConflictView, SharesFull, ShareUndecided
from interlock.nouns.swarms.sync_rules import (
    SharedValue,
    WriteConflict,
    WriteUndecided,
    ask,
    settle,
)

WRITE = "shw"
"""How ids of writes begin."""
WAITING_LIMIT = 1000
"""Writes to one key that may wait for the bus."""
CHAIN = 16
"""Writes that one commit deletes for a decision about the last of them."""
MERGED = "merged"


class Spooled(Struct, frozen=True, kw_only=True, tag="spooled"):
    """The write that was stored; the record has the tag alone, and not the value."""

    write: SharedWrite


def spool(
    copy: SharedCopy | None, write: SharedWrite, base: int | None, first: SharedWrite | None
) -> Decision[Spooled | SharesFull]:
    """Store a write that is to be posted; without a base it is the value that this home saw.

    If an earlier write of this home still waits, this one follows it; ``first`` is the first one
    that waits.
    """
    known = moved(copy or SharedCopy(key=write.key, bus=write.bus), write.bus)
    waiting = 0 if first is None else known.writes - first.number + 1
    if waiting >= WAITING_LIMIT:
        return Decision(outcome=SharesFull(key=write.key, waiting=waiting, limit=WAITING_LIMIT))
    write = replace(write, number=known.writes + 1)
    if base is None:
        write = replace(write, base=known.seen, follows=known.pending)
    else:
        write = replace(write, base=base)
    return Decision(
        outcome=Spooled(write=write),
        verb="swarm.share",
        thing=f"shared/{write.key}",
        puts=(
            Write(write.place, write),
            Write(keys.copy(write.key), replace(known, writes=write.number, pending=write.id)),
        ),
        events=(Event("swarm:written", write.agent),),
    )


def plan(write: SharedWrite, conflict: WriteConflict) -> Decision[str]:
    """Keep the loser of a conflict at home, before it is overwritten on the bus."""
    put = Write(write.place, replace(write, plan=conflict))
    return Decision(outcome="planned", verb="swarm.plan", thing=f"shared/{write.key}", puts=(put,))


def finish(
    write: SharedWrite,
    copy: SharedCopy,
    follower: SharedWrite | None,
    stands: OpenedShared | None,
    won: StoredConflict | None,
) -> Decision[str]:
    """The value stands on the bus: delete the write, and keep what stands there.

    Without ``stands`` it is what our copy says.
    """
    after = copy if stands is None else taken_in(copy, stands, stands.head.bus)
    if after.pending == write.id:
        after = replace(after, pending="")
    revision = after.revision if stands is None else stands.revision
    after = replace(after, seen=max(after.seen, revision))
    puts = [Write(keys.copy(write.key), after)]
    events = [Event("swarm:shared", write.agent)]
    if follower is not None:
        freed = replace(follower, base=revision, bus=after.bus, follows="")
        puts.append(Write(follower.place, freed))
    if won is not None:
        puts.append(Write(keys.conflict(won.id), won))
        events.append(Event("swarm:conflict", write.agent, details=won.conflict.details()))
    return Decision(
        outcome="shared",
        verb="swarm.ack",
        thing=f"shared/{write.key}",
        puts=tuple(puts),
        deletes=(write.place,),
        events=tuple(events),
    )


class Escalation(Struct, frozen=True, kw_only=True):
    """What a write that a person decides about leads to: the ids are new.

    ``stands`` is the value on the bus, if a trusted swarm signed it.  ``shown`` says that the
    caller gets that value, too.
    """

    decision: str
    conflict: str
    undecided: WriteUndecided
    stands: OpenedShared | None
    bus: str
    now: float
    least_ttl: float
    shown: bool


def escalate(
    found: Escalation,
    chain: Sequence[SharedWrite],
    copy: SharedCopy | None,
    standing: Reputation | None,
) -> Decision[str]:
    """Open a decision about the last write of a chain; each one saw the one before it.

    ``standing`` is the reputation of the swarm whose value stands there, if it is a peer.
    """
    write, other = chain[-1], found.undecided.conflict.winner
    undecided = about(found.undecided, write)
    left = UndecidedWrite(
        decision=found.decision,
        first=chain[0].number,
        last=write.number,
        bus=found.bus,
        agent=write.agent,
        undecided=undecided,
    )
    kept = StoredConflict(
        id=found.conflict, conflict=undecided.conflict, at=found.now, decision=found.decision
    )
    after = moved(copy or SharedCopy(key=write.key, bus=found.bus), found.bus)
    if found.stands is not None and after.item < found.stands.item:
        after = taken_in(after, found.stands, found.bus)
    if after.pending in [each.id for each in chain]:
        after = replace(after, pending="")
    if found.shown:
        after = replace(after, seen=undecided.revision)
    question = ask(undecided, found.decision, write.agent, found.now)
    puts = [
        *decision_rules.opening(question, found.now, found.least_ttl),
        Write(keys.undecided(found.decision), left),
        Write(keys.conflict(kept.id), kept),
        Write(keys.copy(write.key), after),
    ]
    if standing is not None:
        counted = reputations.record(standing, ["conflict"])
        puts.append(Write(keys.reputation(other), counted))
    return Decision(
        outcome="undecided",
        verb="swarm.escalate",
        thing=f"shared/{write.key}",
        puts=tuple(puts),
        deletes=tuple([each.place for each in chain]),
        events=(Event("swarm:undecided", write.agent, details=undecided.conflict.details()),),
        reason=undecided.conflict.resolution,
    )


def merge(chain: Sequence[SharedWrite]) -> Decision[str]:
    """Delete the writes between the first and the last of a long chain: each saw the one before it.

    The chain becomes a decision about its last write, and has to fit into one commit.
    """
    first, *between, last = chain
    return Decision(
        outcome=MERGED,
        verb="swarm.tidy",
        thing=f"shared/{first.key}",
        puts=(Write(last.place, replace(last, follows=first.id)),),
        deletes=tuple([each.place for each in between]),
    )


def about(undecided: WriteUndecided, write: SharedWrite) -> WriteUndecided:
    """The question with the value of a later write, which saw the one that it was about."""
    shared = replace(undecided.shared, value=write.value, written_at=write.written_at)
    conflict = replace(undecided.conflict, loser_value=write.value)
    return replace(undecided, shared=shared, conflict=conflict)


def carry_out(
    left: UndecidedWrite, decision: HumanDecision | None, copy: SharedCopy | None
) -> Decision[bool]:
    """What the end of a decision does: to take the other value is a new write.

    Its base is the revision that the person saw.  A decision that is gone leaves the value as it
    is.
    """
    key = left.undecided.conflict.key
    option = None if decision is None else decision_rules.chosen(decision)
    chosen = settle(left.undecided, "" if option is None else option.name)
    ended: Decision[bool] = Decision(
        outcome=True,
        verb="swarm.resolve",
        thing=f"shared/{key}",
        deletes=(keys.undecided(left.decision),),
        events=(Event("swarm:settled", left.agent, f"shared/{key}"),),
    )
    if chosen is None:
        return ended
    known = copy or SharedCopy(key=key, bus=left.bus)
    new = SharedWrite(
        id=f"{WRITE}_{keys.uuid_of(left.decision)}",  # one write for one decision
        key=key,
        bus=left.bus,
        agent=left.agent,
        value=chosen.value,
        base=chosen.base,
        written_at=chosen.written_at,
        number=known.writes + 1,
    )
    after = replace(known, writes=new.number, pending=known.pending or new.id)
    return replace(ended, puts=(Write(new.place, new), Write(keys.copy(key), after)))


def expire(
    left: UndecidedWrite,
    decision: HumanDecision | None,
    copy: SharedCopy | None,
    now: float,
    *,
    alive: bool,
) -> Decision[bool]:
    """End a decision whose time is up, and carry out one that has ended."""
    if decision is None or decision.state != "open":
        return carry_out(left, decision, copy)
    ended = decision_rules.expire(decision, now, alive=alive)
    if not ended.outcome:
        return ended
    kept = carry_out(left, None, copy)
    return replace(ended, deletes=kept.deletes, events=(*ended.events, *kept.events))


# Views.


def proposed(swarm: str, write: SharedWrite, bus: str, *, spooled: bool) -> SharedValue:
    """A write as the rules judge it; a base on another bus is never the current one."""
    base = write.base if write.bus == bus or not write.base else -1
    return SharedValue(
        value=write.value, swarm=swarm, base=base, written_at=write.written_at, spooled=spooled
    )


def chain_of(write: SharedWrite, waiting: Iterable[SharedWrite]) -> list[SharedWrite]:
    """A write, and those that follow it, in their order."""
    behind = {each.follows: each for each in waiting}
    chain = [write]
    while (follower := behind.get(chain[-1].id)) is not None:
        chain.append(follower)
    return chain


def undecided_outcome(left: UndecidedWrite) -> ShareUndecided:
    """How the caller learns of a decision."""
    conflict = left.undecided.conflict
    stale = conflict.resolution == "stale_base"
    return ShareUndecided(
        key=conflict.key,
        decision=left.decision,
        reason="stale_base" if stale else "simultaneous_update",
        swarm=conflict.winner,
        value=msgspec.json.decode(conflict.winner_value),
        revision=left.undecided.revision,
    )


def view_conflict(stored: StoredConflict) -> ConflictView:
    """A conflict as people see it."""
    found = stored.conflict
    return ConflictView(
        conflict=stored.id,
        key=found.key,
        winner=found.winner,
        loser=found.loser,
        winner_value=msgspec.json.decode(found.winner_value),
        loser_value=msgspec.json.decode(found.loser_value),
        winner_timestamp=found.winner_timestamp,
        loser_timestamp=found.loser_timestamp,
        time_diff_ms=found.time_diff_ms,
        resolution=found.resolution,
        at=stored.at,
        decision=stored.decision,
    )
