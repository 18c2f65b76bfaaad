"""Housekeeping of requests: what a pass of ``maintain`` does in a home that is a swarm.

``retention.py`` says what is deleted.  The keys of agents that were not used for a day are deleted,
too.  The steps that need the bus are ``tend``, which ``maintain`` calls after the pass.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.requests.refusal_rules import (
    decode_refused,
    decode_tally,
    record_left_over,
)
from interlock.nouns.requests.retention import RequestRetention
from interlock.nouns.swarms.agent_keys import is_unused
from interlock.nouns.swarms.swarm import decode_agent_keys, decode_own
from interlock.runtime.housekeeping import HousekeepingPart, Maintained
from interlock.runtime.reads import every, readable
from interlock.steps import Op, Read
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.runtime.attempt import DecideOp


class RequestHousekeepingPart(HousekeepingPart):
    """The part of a pass of ``maintain`` that is about requests."""

    def reclaim(self) -> Op[None]:
        """Record refusals that were counted and that no later one recorded."""
        now = self.work.runner.clock.wall()
        for item in (yield from every(keys.REQUEST_REFUSALS, most=self.work.bound)):
            if readable(decode_tally, item) is not None:
                yield from self.work.runner.change(
                    partial(_record_refusals, keys.agent_of(item.key), now), self.work.actor
                )

    def expired(self, now: float) -> Op[list[Item]]:
        """The items that were kept for long enough."""
        if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is None:
            return []
        old: list[Item] = []
        for item in (yield from every(keys.AGENT_KEYS, most=self.work.bound)):
            stored = readable(decode_agent_keys, item)
            if stored is not None and is_unused(stored, now):
                old.append(item)
        return old

    def shrink(self) -> Op[None]:
        """Delete requests, marks and refused messages that were kept for long enough."""
        if (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM] is not None:
            retention = RequestRetention(self.work.runner)
            self.work.left += yield from retention.run(self.work.actor)


def _record_refusals(agent: str, now: float) -> DecideOp[None]:
    tally, counts = keys.request_refusals(agent), keys.requests_refused(agent)
    items = (yield (tally, counts)).items
    before = decode_tally(items[tally])
    if before is None:
        return Decision(outcome=None)
    return record_left_over(agent, before, decode_refused(items[counts]) or {}, now)


def after_pass(context: Context, done: Maintained) -> Op[Maintained]:
    """What follows a pass of ``maintain``: the steps that need the bus, and the files."""
    moved = done.moved + (yield from tend(context))
    finding = done.finding or (yield from _copy_audit(context))
    return replace(done, moved=moved, finding=finding)


def _copy_audit(context: Context) -> Op[str]:
    """Bring the daily files of the audit up to date, if the settings name a folder for them.

    Returns why that failed, or nothing: the record has the audit, so ``maintain`` goes on.
    """
    from interlock.nouns.requests.audit_service import MOST_IN_PASS, write_audit

    try:
        if not (folder := context.settings.audit()):
            return ""
        yield from write_audit(context, folder, MOST_IN_PASS)
    except BadInput as error:
        return f"the audit is not written: {error}"
    return ""


def tend(context: Context) -> Op[int]:
    """Post, take in and repeat what is due, if this home is a swarm; how much that was.

    Shared values that wait are posted, too.  Without the key of the swarm this process can sign
    nothing, and leaves it to others.
    """
    own = (yield Read(keys.OWN_SWARM))[keys.OWN_SWARM]
    if own is None:
        return 0
    actor, done = context.identity.actor, 0
    with suppress(NotAllowed, BadInput):
        done = yield from context.requests.tend(actor)
    posted = yield from context.shared.posting.drain(actor, decode_own(own))
    return done + len(posted.settled)
