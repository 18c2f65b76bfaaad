"""The calls about keys and swarms, as both clients offer them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from msgspec import Raw
from msgspec.structs import replace

from interlock.core import signing, validate
from interlock.errors import BadInput, BadName
from interlock.nouns.swarms.limits import LARGEST_QUEUE
from interlock.nouns.swarms.link import SwarmLink, sync
from interlock.nouns.swarms.own_keys import own_swarm
from interlock.nouns.swarms.publish_service import register
from interlock.nouns.swarms.registry_service import peer_states
from interlock.nouns.swarms.results import (
    AllowOutcome,
    DenyOutcome,
    Discovered,
    DiscoverOutcome,
    KeyList,
    KeyMade,
    KeyRotated,
    NotRegistered,
    RegisterOutcome,
    RevokeOutcome,
    SwarmAllowed,
    SwarmList,
    SwarmSynced,
    SyncOutcome,
    TrustOutcome,
)
from interlock.nouns.swarms.sync_heads import VALUE_LIMIT
from interlock.nouns.swarms.sync_results import (
    ConflictList,
    SharedList,
    SharedOutcome,
    ShareOutcome,
    SwarmStateList,
)
from interlock.nouns.swarms.trust_service import TrustChange, allow, deny, forgive, trust
from interlock.runtime.calls import Calls, D, call, stream
from interlock.steps import InThread, Op

MOST_RATE = 10_000
"""Each request writes the times of twice as many; a larger rate is better left unlimited."""
WINDOW, SHORTEST_WINDOW, LONGEST_WINDOW = 3600.0, 1.0, 86400.0
MOST_MARKS = 10_000_000

URL_LIMIT = 4096
NAME_LIMIT = 100
"""Bytes: peers put it behind the id of a request, and that names a task."""


class KeyCalls(Calls[D]):
    """``fleet.keys``: the keys of this user, in files that no one else may read."""

    @call
    def new(self, name: str) -> Op[KeyMade]:
        """Make a key; others pin its fingerprint."""
        from interlock.nouns.swarms import key_service

        made: KeyMade = yield InThread(partial(key_service.create, _key(name)))
        return made

    @call
    def list(self) -> Op[KeyList]:
        """The keys of this user, with their age."""
        from interlock.nouns.swarms import key_service

        found: KeyList = yield InThread(key_service.list_keys)
        return found

    @call
    def rotate(self, name: str) -> Op[KeyRotated]:
        """Replace a key; in a swarm both sign for a time, so that no request loses its key."""
        from interlock.nouns.swarms import key_service

        return key_service.rotate(self.context, self.context.identity.actor, _key(name))

    @call
    def revoke(self, name: str, reason: str = "") -> Op[RevokeOutcome]:
        """End a key of our swarm, by its name or fingerprint, at once and permanently."""
        from interlock.nouns.swarms.revoke_service import revoke_own

        actor, why = self.context.me().actor, validate.reason(reason) if reason else ""
        return revoke_own(self.context, actor, _key(name), why)


class SwarmCalls(Calls[D]):
    """``fleet.swarms``: this home as a swarm, and the swarms that it works with."""

    @call
    def register(self, name: str, *, bus: str, key: str) -> Op[RegisterOutcome]:
        """Make this home a swarm under a name, with a bus and a key that signs for it.

        Again, it moves to another bus, or rotates to another key.
        """
        actor = self.context.me().actor
        legal = validate.name(name, "swarm")
        if len(legal.encode()) > NAME_LIMIT:
            raise BadName(f"the name of a swarm has up to {NAME_LIMIT} bytes; take a shorter one")
        url, shown = self.context.bus.place(validate.text(bus, "bus", URL_LIMIT))
        key = _key(key)
        if "/" in key and not key.startswith(signing.FINGERPRINT_MARK):  # a path of this folder
            key = os.path.abspath(os.path.expanduser(key))
        return register(self.context, actor, legal, url=url, shown=shown, key=key)

    @call
    def list(self) -> Op[SwarmList | NotRegistered]:
        """This swarm, its peers with their status, and strangers that have an entry on the bus."""
        from interlock.nouns.swarms.views import list_swarms

        return list_swarms(self.context)

    @call
    def discover(
        self, ability: str, *, swarm: str | None = None, fresh: bool = False
    ) -> Op[DiscoverOutcome]:
        """The agents of live peers with an ability, least loaded first.

        What is known counts for five minutes, without a look at any store; ``fresh`` looks now.
        """
        only = "" if swarm is None else validate.name(swarm, "swarm")
        wanted = validate.name(ability, "ability")
        found = yield from self.context.swarms.discover(wanted, only, force=fresh)
        if found is None:
            return NotRegistered()
        agents, trouble, age = found
        return Discovered(ability=wanted, agents=agents, age=round(age, 3), trouble=trouble)

    @call
    def allow(
        self,
        name: str,
        *,
        key: str | None = None,
        first_use: bool = False,
        rate: str | None = None,
        queue: int | None = None,
        marks: int | None = None,
    ) -> Op[AllowOutcome]:
        """Let a swarm work with this one, and trust its key.

        ``key`` is the fingerprint that its operator gave you, or the line of its public key; then
        no other key is trusted.  ``first_use`` trusts the key of the first entry that is read.

        ``rate`` is how often one agent makes requests (``"200/1h"``, ``"0"`` for any number),
        ``queue`` how many requests may wait before no new one is made, and ``marks`` how many
        messages are remembered against replay.  These may also be changed alone, later.
        """
        actor = self.context.me().actor
        legal = validate.name(name, "swarm")
        limits = _limits(rate, queue, marks)
        if (key is not None and first_use) or (key is None and not first_use and not limits):
            raise BadInput(
                "name the key that the other swarm gave you (--key FINGERPRINT), or trust the first"
                " one that is read (--first-use)"
            )
        fingerprint, public = ("", "") if key is None else _pinned(_key(key))
        yield from self._must_be_free(legal, fingerprint)
        change = TrustChange(
            swarm=legal,
            fingerprint=fingerprint,
            public=public,
            first_use=first_use,
            limits=limits,
        )
        outcome = yield from allow(self.context.runner, actor, change)
        self.context.swarms.forget()
        if isinstance(outcome, SwarmAllowed) and outcome.how != "unchanged":
            return (yield from self._with_entry(outcome))
        return outcome

    @call
    def deny(self, name: str, reason: str = "", *, key: str | None = None) -> Op[DenyOutcome]:
        """Take nothing from a swarm and send nothing to it, from this commit on.

        With ``key`` only that key of it is revoked, permanently.
        """
        actor = self.context.me().actor
        fingerprint = "" if key is None else signing.require_fingerprint(_key(key))
        why = validate.reason(reason) if reason else ""
        legal = validate.name(name, "swarm")
        outcome = yield from deny(self.context.runner, actor, legal, why, fingerprint)
        self.context.swarms.forget()
        return outcome

    @call
    def trust(self, name: str | None = None, *, forgive: bool = False) -> Op[TrustOutcome]:
        """The reputation and the circuit breaker of peers; ``forgive`` clears those of one."""
        legal = None if name is None else validate.name(name, "swarm")
        return self._trust(legal, clear=forgive)

    @call
    def states(self) -> Op[SwarmStateList | NotRegistered]:
        """The newest snapshots of this swarm and of its peers: agents, tasks, times, memory."""
        from interlock.nouns.swarms.sync_views import list_states

        return list_states(self.context)

    @call
    def share(self, key: str, value: object, *, base: int | None = None) -> Op[ShareOutcome]:
        """Write a value on the bus that other swarms read and write, too.

        ``base`` is the revision of the value that the caller saw; without it the one that this home
        last showed to an agent, or wrote.  If another value stands there, the write is kept beside
        it until a person decides.  While the bus is away the write is stored at home, and any
        process of this swarm posts it later.
        """
        actor = self.context.me().actor
        name = validate.name(key, "shared key")
        body = Raw(validate.payload(value, "value", VALUE_LIMIT))
        on = None if base is None else validate.integer(base, "base", 0, validate.LARGEST)
        own = yield from own_swarm()
        if own is None:
            return NotRegistered()
        return (yield from self.context.shared.share(actor, own, name, body, on))

    @call
    def shared(self, key: str, *, accept: bool = False) -> Op[SharedOutcome]:
        """One shared value: from the bus, or as this home last read it while the bus is away.

        A value that is older than one which this home has read is refused; ``accept`` takes it, for
        a bus that was restored from a copy.
        """
        name, older = validate.name(key, "shared key"), validate.flag(accept, "accept")
        own = yield from own_swarm()
        if own is None:
            return NotRegistered()
        return (yield from self.context.shared.get(own, name, accept=older))

    @call
    def shared_list(self) -> Op[SharedList | NotRegistered]:
        """The shared values that this home knows, and the first others that stand on the bus."""
        own = yield from own_swarm()
        if own is None:
            return NotRegistered()
        return (yield from self.context.shared.list(own))

    @call
    def conflicts(self, key: str | None = None) -> Op[ConflictList]:
        """Conflicts about shared values that this home had a part in, with both values."""
        name = None if key is None else validate.name(key, "shared key")
        return self.context.shared.conflicts(name)

    @call
    def sync(self, *, force: bool = False) -> Op[SyncOutcome]:
        """One pass: our entry and our snapshot if they are due, our peers, and shared values.

        It also shows other swarms that this one is alive.
        """
        return sync(self.context, self.context.identity.actor, force=force)

    @stream
    def keep(self, callback: Callable[[SwarmSynced], object] | None = None) -> SwarmLink:
        """Keep this swarm on its bus, one pass after the other, until it is closed.

        Iterate over it, or give a ``callback``, which runs in the background.
        """
        return SwarmLink(self.context, callback)

    def _trust(self, name: str | None, *, clear: bool) -> Op[TrustOutcome]:
        if not clear:
            return (yield from trust(self.context.runner, name))
        if name is None:
            raise BadInput("name the swarm to forgive: interlock swarm trust NAME --forgive")
        return (yield from forgive(self.context.runner, self.context.me().actor, name))

    def _must_be_free(self, name: str, fingerprint: str) -> Op[None]:
        """A key signs for one swarm: a message names its sender, and so does its key."""
        own = yield from own_swarm()
        if own is not None and own.name == name:
            raise BadInput(f"{name} is this swarm itself; name another one")
        if own is not None and fingerprint in [key.fingerprint for key in own.keys]:
            raise BadInput(f"{fingerprint} is a key of this swarm; ask {name} for its own")
        for state in (yield from peer_states()).values():
            known = [key.fingerprint for key in state.peer.keys]
            if state.peer.swarm != name and state.peer.allowed and fingerprint in known:
                raise BadInput(
                    f"{fingerprint} is the key of {state.peer.swarm} already;"
                    f" ask {name} for its own"
                )

    def _with_entry(self, outcome: SwarmAllowed) -> Op[SwarmAllowed]:
        """Read the entry of a peer at once, so that an operator sees whether the key is right."""
        own = yield from own_swarm()
        if own is None:
            return replace(outcome, trouble="this home is not registered, so it has no bus yet")
        refreshed = yield from self.context.swarms.refresh(
            own, only=[outcome.swarm], force=True, urgent=True
        )
        trouble = refreshed.trouble or next((each.detail for each in refreshed.refused), "")
        state = (yield from peer_states()).get(outcome.swarm)
        if state is None or outcome.swarm not in refreshed.accepted:
            missing = trouble or "it has no entry on the bus yet"
            return replace(outcome, trouble=missing)
        trusted = state.peer.keys[0].fingerprint if state.peer.keys else outcome.fingerprint
        return replace(outcome, fingerprint=trusted, entry=state.floor.version)


def _limits(rate: str | None, queue: int | None, marks: int | None) -> dict[str, float]:
    """The limits that a caller sets."""
    found: dict[str, float] = {}
    if rate is not None:
        found["rate"], found["window"] = _rate(rate)
    if queue is not None:
        found["queue"] = validate.integer(queue, "queue", 1, LARGEST_QUEUE)
    if marks is not None:
        found["marks"] = validate.integer(marks, "marks", 1, MOST_MARKS)
    return found


def _rate(text: str) -> tuple[int, float]:
    """A number and a window: ``200/1h``, ``200`` for an hour, ``0`` for no limit."""
    number, _, window = str(text).partition("/")
    if not number.isascii() or not number.isdecimal():
        raise BadInput(f"the rate {str(text)[:40]!r} is not like 200/1h, or 0 for any number")
    limit = validate.integer(int(number[:9]), "rate", 0, MOST_RATE)
    seconds = validate.duration(window, "window of the rate") if window else WINDOW
    if not SHORTEST_WINDOW <= seconds <= LONGEST_WINDOW:
        bounds = f"{validate.span(SHORTEST_WINDOW)} to {validate.span(LONGEST_WINDOW)}"
        raise BadInput(f"the window of the rate is {validate.span(seconds)}; give {bounds}")
    return limit, seconds


def _key(text: str) -> str:
    """What names a key: its name, a path, a fingerprint or a public line."""
    return validate.text(text, "key", URL_LIMIT)


def _pinned(key: str) -> tuple[str, str]:
    """The fingerprint that an operator names, and the public key if the whole line was given."""
    if key.startswith(signing.KEY_TYPE.decode()):
        public = signing.read_public_line(key)
        return signing.fingerprint(public), signing.to_base64(public)
    return signing.require_fingerprint(key), ""
