"""Being there for an agent: said to others while somebody takes its messages.

Whoever asks the agent is not told that it is away, and who waits for its answer waits for this
caller.
"""

from __future__ import annotations

from contextlib import suppress

from interlock.core.session import TTL
from interlock.driving import Op
from interlock.errors import StoreTrouble
from interlock.services.calls import Desk
from interlock.services.keeper import Lease
from interlock.services.message.serving import retire, serve


class Duty:
    """That one caller of ours takes messages; the keeper of the client keeps it true."""

    def __init__(self, desk: Desk, can: tuple[str, ...] = ()) -> None:
        self._desk = desk
        self._can = can
        self._caller = ""
        self._lease: Lease | None = None

    @property
    def stands(self) -> bool:
        """Whether others still know."""
        return self._lease is not None and not self._lease.lost

    def begin(self) -> Op[None]:
        """Say so, unless it stands."""
        if self.stands:
            return
        self._drop()
        desk, seat = self._desk, self._desk.me()
        someone = desk.queues.speaks()
        name = seat.caller or ("" if someone is None else someone.name)
        self._caller = self._caller or name or desk.runner.new_id("clr")
        sent = desk.runner.clock.monotonic()
        ttl = max(seat.session_ttl or TTL, desk.runner.capabilities.min_ttl)
        write = yield from serve(desk.runner, seat.who, self._caller, ttl, self._can)
        self._lease = desk.keeper.keep(write, sent)
        desk.wake()

    def end(self) -> Op[None]:
        """We are not there any more; a store that is in trouble will notice by itself."""
        if self._lease is None:
            return
        self._drop()
        if not self._desk.store.trouble:
            with suppress(StoreTrouble):
                yield from retire(self._desk.runner, self._desk.me().who, self._caller)

    def _drop(self) -> None:
        if self._lease is not None:
            self._desk.keeper.drop(self._lease)
            self._lease = None
