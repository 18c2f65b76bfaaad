"""Being there for an agent: said to others while somebody takes its messages.

Whoever asks the agent is not told that it is away, and who waits for its answer waits for this
caller.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Write
from interlock.drivers import Op
from interlock.errors import StoreTrouble
from interlock.nouns.agents.session import TTL
from interlock.nouns.grants.pool import caller
from interlock.nouns.messages.receivers import Serving, inherited, receivers, retire, serve
from interlock.runtime.callers import Someone
from interlock.runtime.context import Context
from interlock.runtime.identity import Identity
from interlock.runtime.keeper import Lease


class Duty:
    """That one caller of ours takes messages; the keeper of the client keeps it true."""

    def __init__(self, context: Context, can: tuple[str, ...] = ()) -> None:
        self._context = context
        self._can = can
        self._caller = ""
        self._lease: Lease | None = None
        self._someone: Someone | None = None
        self._note = Serving("", "")
        """What we said last of ourselves."""
        self._said = False
        """Whether others may know: from before it is said until it is taken back."""

    @property
    def stands(self) -> bool:
        """Whether others still know."""
        return self._lease is not None and not self._lease.lost

    def begin(self, *, whole: bool = False) -> Op[None]:
        """Say so, unless it stands; ``whole`` if we are given all that waits at once."""
        if self.stands:
            return
        self._drop()
        context, identity = self._context, self._context.me()
        self._someone = someone = None if identity.caller else context.queues.speaks()
        self._caller = self._caller or self._name(identity, someone)
        sent = context.runner.clock.monotonic()
        ttl = max(identity.session_ttl or TTL, context.runner.capabilities.min_ttl)
        if someone is not None:
            someone.holds.add(self)  # what it waits for is what its askers wait for
        self._said = True
        others = yield from receivers(
            identity.actor.agent, keys.serving(identity.actor.agent, self._caller)
        )
        known = inherited(others.standing)
        self._note = replace(
            known,
            session=identity.actor.session,
            live=keys.serves(identity.actor.session, self._caller),
            can=self._can,
            hand=known.hand | self._note.hand,
            whole=whole or known.whole,
            at=round(context.runner.clock.wall(), 3),
        )
        write = yield from serve(
            context.runner, identity.actor, self._caller, ttl, self._note, dead=others.dead
        )
        if not self._said:  # it ended meanwhile, in another thread
            yield from self._take_back()
            return
        self._lease = context.keeper.keep(write, sent)
        context.wake()

    def has(self, hand: dict[str, int]) -> tuple[Write, ...]:
        """What notes that this is in our hands from now on; nothing, if that stands already."""
        note = replace(self._note, hand=hand, begun=())
        if not self.stands or note == self._note:
            return ()
        return (Write(keys.serving(self._context.me().actor.agent, self._caller), note),)

    def noted(self, hand: dict[str, int]) -> None:
        """That was committed."""
        self._note = replace(self._note, hand=hand, begun=())

    def end(self) -> Op[None]:
        """We are not there any more; a store that is in trouble will notice by itself."""
        said, self._said = self._said, False
        self._drop()
        if said:
            yield from self._take_back()

    def _take_back(self) -> Op[None]:
        if not self._context.store.trouble:
            with suppress(StoreTrouble):
                yield from retire(
                    self._context.runner, self._context.me().actor, self._caller, self._can
                )

    def _name(self, identity: Identity, someone: Someone | None) -> str:
        """A task or thread goes by its own name.

        Of a shell it is one command, which waits for nothing else meanwhile, whatever other
        commands of the same shell do.
        """
        if someone is not None:
            return someone.name
        own = self._context.runner.new_id("clr")
        inside = caller(identity.actor.agent, identity.actor.session, identity.caller)
        return f"{inside}/{own}" if inside else own

    def _drop(self) -> None:
        if self._someone is not None:
            self._someone.holds.discard(self)
        if self._lease is not None:
            self._context.keeper.drop(self._lease)
            self._lease = None
