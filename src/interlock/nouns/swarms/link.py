"""The link between a swarm and its bus: one pass after the other, by any process of the swarm.

A pass takes over a key that was rotated, puts revocations, our entry and our snapshot on the bus,
renews our liveness there, reads the peers that are due, and tends shared values: it posts writes
that wait and ends decisions whose time is up.  Any number of processes may do it: each step is
decided by what stands in the stores.

``swarms.keep`` is a stream of passes, and every process that serves requests has one.  A change of
our trust, our keys, those of our agents, their abilities or our registration at home starts the
next pass at once; else it follows after ``BEAT`` seconds, which renews the liveness key in time.
While the bus is away a pass tries it every ``RECONNECT`` seconds, and everything else at home goes
on.  It has its own thread or task, since a bus that does not answer must not keep the keeper of the
home store from renewing.

Of all processes with such a stream one works, the one with the lease ``live/link``; ten workers
would sign ten entries when one agent joins.  The others look for the lease.  A process that is in
trouble gives it up: another one may reach the bus, or have the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.errors import BusTrouble, InterlockError, StoreTrouble
from interlock.nouns.swarms.bus import RECONNECT
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.nouns.swarms.publish_service import EntryPublished, beat, publish
from interlock.nouns.swarms.registry import LIVE_TTL
from interlock.nouns.swarms.registry_service import PeersRefreshed
from interlock.nouns.swarms.results import (
    EntryRefused,
    NotRegistered,
    SwarmNotSynced,
    SwarmSynced,
    SyncOutcome,
)
from interlock.nouns.swarms.revoke_service import post_revocations
from interlock.nouns.swarms.state_service import StatePublished, publish_state
from interlock.runtime.process_lease import ProcessLease
from interlock.runtime.reads import every
from interlock.steps import NextChanges, Op, OpenWatch, Read
from interlock.store import Change, Resync, Snapshot, Watch

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.identity import Actor

BEAT = LIVE_TTL / 3
"""Seconds between two passes."""
CHECK_OWN = 30.0
"""Seconds between two checks of our own agents, to see whether our entry is due."""
LEASE = 15.0
"""Seconds after which another process goes on for one that died; its liveness lasts longer."""
LOOK_FOR_LEASE = 5.0
"""Seconds between two looks for the lease that another process has."""
CALM = 1.0
"""Seconds between two passes because of new abilities: many agents may join at once."""
SLICE = 0.25
"""Seconds at most until a process notices that it is to stop."""
_SCOPES = (keys.OWN_SWARM, keys.AGENT_KEYS, keys.PEERS, keys.REVOKED, keys.ABLE)


def sync(context: Context, actor: Actor, *, force: bool = False) -> Op[SyncOutcome]:
    """One whole pass; with ``force`` all peers are read, and our entry is signed again."""
    own = yield from own_swarm()
    if own is None:
        return NotRegistered()
    done = yield from _pass(context, own, actor, force=force, young=True)
    if not done.trouble:
        return done
    return SwarmNotSynced(
        swarm=done.swarm,
        trouble=done.trouble,
        version=done.version,
        published=done.published,
        accepted=done.accepted,
        refused=done.refused,
        revoked=done.revoked,
    )


def _pass(
    context: Context, own: OwnSwarm, actor: Actor, *, force: bool = False, young: bool = False
) -> Op[SwarmSynced]:
    trouble = yield from post_revocations(context, own, urgent=True)
    published, said = yield from _published(context, own, actor, force=force)
    trouble = trouble or said
    own = (yield from own_swarm()) or own  # publishing may have taken over another key
    refreshed, state = PeersRefreshed(trouble=trouble), StatePublished(version=0, now=False)
    if not trouble or not context.bus.trouble:
        state, said = yield from _stated(context, own, force=force)
        refreshed = yield from context.swarms.refresh(own, force=force)
        yield from context.bus.tidy()
        trouble = trouble or said
    tended = yield from context.shared.tend(actor, own, force=force, young=young)
    return SwarmSynced(
        swarm=own.name,
        version=published.version,
        published=published.now,
        state=state.version,
        stated=state.now,
        accepted=refreshed.accepted,
        refused=refreshed.refused,
        revoked=refreshed.revoked,
        posted=tended.posted,
        decisions=tended.decisions,
        trouble=trouble or refreshed.trouble or tended.trouble,
    )


def _stated(context: Context, own: OwnSwarm, *, force: bool) -> Op[tuple[StatePublished, str]]:
    """Our snapshot on the bus, and why it is not there."""
    nothing = StatePublished(version=0, now=False)
    try:
        return (yield from publish_state(context, own, force=force)), ""
    except StoreTrouble:
        raise
    except InterlockError as error:
        return nothing, str(error)


def _published(
    context: Context, own: OwnSwarm, actor: Actor, *, force: bool
) -> Op[tuple[EntryPublished, str]]:
    """Our entry on the bus, and why it is not there: the bus is away, or a key is not here."""
    nothing = EntryPublished(version=0, now=False)
    try:
        done = yield from publish(context, own, actor, force=force, urgent=True)
    except StoreTrouble:
        raise
    except BusTrouble as error:
        return nothing, str(error)
    except InterlockError as error:  # a host without the key can still show that it is there
        yield from beat(context, own)
        return nothing, str(error)
    return done, ""


class SwarmLink:
    """A stream of passes: what each of them did, if it did something or is in trouble."""

    about = "the link to the bus"

    def __init__(
        self, context: Context, callback: Callable[[SwarmSynced], object] | None = None
    ) -> None:
        self._context = context
        self._clock = context.runner.clock
        self._watch: Watch | None = None
        self._due = float("-inf")
        self._checked = float("-inf")
        self._said: tuple[str, tuple[EntryRefused, ...]] = ("", ())
        self._able: set[str] = set()
        """The abilities of agents that were listed, by their keys."""
        self._listed = float("-inf")
        """When the last pass because of abilities was due."""
        id_ = context.runner.new_id("lnk")
        self._lease = ProcessLease(context.runner, keys.LINK, id_, LEASE)
        self._leads = False
        if callback is not None:
            self.callback = callback

    def take(self, timeout: float | None) -> Op[tuple[SwarmSynced, ...]]:
        """The next pass that did something; none when the time is up."""
        ends = float("inf") if timeout is None else self._clock.monotonic() + timeout
        while True:
            yield from self._wait(ends)
            if self._clock.monotonic() < self._due:
                if self._clock.monotonic() >= ends:
                    return ()
                continue
            done = yield from self._run()
            if done is not None and self._worth_telling(done):
                return (done,)
            if self._clock.monotonic() >= ends:
                return ()

    def each(self, taken: Iterable[SwarmSynced]) -> Iterable[SwarmSynced]:
        """The passes one by one."""
        return taken

    def run(self, stopped: Callable[[], bool]) -> Op[None]:
        """One pass after the other, for a process that has other work; trouble is logged."""
        troubled = False
        try:
            while not stopped():
                for done in (yield from self.take(SLICE)):
                    if done.trouble or troubled:
                        _log(done)
                    troubled = bool(done.trouble)
        finally:
            self.close()
            yield from self.leave()

    def close(self) -> None:
        """Stop watching."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def leave(self) -> Op[None]:
        """Let another process go on at once."""
        if self._leads and not self._context.store.outage:
            self._leads = False
            yield from self._lease.leave(self._context.identity.actor)

    def _wait(self, ends: float) -> Op[None]:
        """Wait until a pass is due, something changes at home, or the time is up."""
        if self._watch is None:
            snapshot: Snapshot = yield Read(keys.OWN_SWARM)
            self._able = {item.key for item in (yield from every(keys.ABLE))}
            self._watch = yield OpenWatch(_SCOPES, snapshot.revision)
            self._due = float("-inf")
            return
        now = self._clock.monotonic()
        if now >= self._due:
            return
        changes = yield NextChanges(self._watch, min(self._due, ends) - now)
        if not changes:
            return
        about_agents = [each for each in changes if _is_ability(each)]
        if len(about_agents) < len(changes):
            self._due = self._checked = float("-inf")
            self._context.swarms.forget()
        elif self._learn(about_agents):
            self._checked = float("-inf")
            if (due := max(self._clock.monotonic(), self._listed + CALM)) < self._due:
                self._due = self._listed = due

    def _learn(self, changes: Iterable[Change]) -> bool:
        """Whether these abilities are news: a report writes all of its agent's again."""
        news = False
        for each in changes:
            news = news or each.deleted or each.key not in self._able
            if each.deleted:
                self._able.discard(each.key)
            else:
                self._able.add(each.key)
        return news

    def _run(self) -> Op[SwarmSynced | None]:
        now = self._clock.monotonic()
        self._due = now + BEAT
        own, actor = (yield from own_swarm()), self._context.identity.actor
        if own is None:
            return None
        self._leads = yield from self._lease.take(actor)
        if not self._leads:
            self._due, self._checked = now + LOOK_FOR_LEASE, float("-inf")
            return None
        done = yield from self._lead(own, actor, now)
        if done.trouble:
            yield from self.leave()
        return done

    def _lead(self, own: OwnSwarm, actor: Actor, now: float) -> Op[SwarmSynced]:
        """The pass of the process that has the lease."""
        if now < self._checked + CHECK_OWN:
            try:
                yield from beat(self._context, own, urgent=True)
            except BusTrouble as error:
                self._due = now + RECONNECT
                self._checked = float("-inf")
                return SwarmSynced(swarm=own.name, version=0, trouble=str(error))
            refreshed = yield from self._context.swarms.refresh(own)
            tended = yield from self._context.shared.tend(actor, own)
            return SwarmSynced(
                swarm=own.name,
                version=0,
                accepted=refreshed.accepted,
                refused=refreshed.refused,
                revoked=refreshed.revoked,
                posted=tended.posted,
                decisions=tended.decisions,
                trouble=refreshed.trouble or tended.trouble,
            )
        done = yield from _pass(self._context, own, actor)
        self._due = self._clock.monotonic() + (RECONNECT if self._context.bus.trouble else BEAT)
        self._checked = float("-inf") if done.trouble else now
        return done

    def _worth_telling(self, done: SwarmSynced) -> bool:
        """Whether a pass is news: it changed something, or trouble or refusals began or ended."""
        said = (done.trouble, done.refused)
        news = said != self._said
        self._said = said
        return news or done.published or bool(done.revoked or done.posted or done.decisions)


def _is_ability(change: Change | Resync) -> bool:
    return isinstance(change, Change) and change.key.startswith(keys.ABLE)


def _log(done: SwarmSynced) -> None:
    import logging

    log = logging.getLogger("interlock")
    if done.trouble:
        said = "%s is not kept on its bus from here, and this is tried again: %s"
        log.warning(said, done.swarm, done.trouble)
    else:
        log.warning("%s is on its bus again", done.swarm)
