"""Deletions that no caller waits for: outbox entries that are posted, envelopes that are taken in.

These are steps 3, 5 and 10 of ``exchange.py``.  The exchange is right without them: an entry that
stays is posted again, and a message that stays is known by its mark.  So they are gathered, and
done in a background thread or task of the client, many with one commit.

A request that is answered at once never needs step 3, since the commit that ends it deletes its
outbox entry; so the entries of requests wait a little longer.

Without a client, as ``maintain`` and tests have it, everything is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from interlock.core.decision import Decision
from interlock.errors import InterlockError
from interlock.runtime.leader import Bell
from interlock.runtime.reads import OWN_OPERATIONS
from interlock.steps import Op, Pause

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.posting import Posting
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner

GATHER = 0.005
"""Seconds for which deletions are gathered; more come while a commit is under way."""
ANSWER_SOON = 0.5
"""Seconds for which the outbox entry of a request is kept, since its answer may delete it."""
SOON = 0.25
"""Seconds until the next attempt after an error."""
IDLE = 3600.0

Clear = Callable[["Actor", Sequence["Posting"]], Op[None]]


class Cleanup:
    """The deletions of one client that are due."""

    def __init__(self, home: Home, clear: Clear) -> None:
        self._home = home
        self._clear = clear
        self._posted: dict[str, tuple[Posting, float]] = {}
        self._taken: dict[str, OwnSwarm] = {}
        self._actor: Actor | None = None
        self._bell = Bell()
        self.start: Callable[[], object] | None = None
        """Starts the thread or the task that runs ``run``, if the client has one."""

    def add(
        self,
        actor: Actor,
        own: OwnSwarm,
        *,
        posted: Sequence[Posting] = (),
        taken: Iterable[str] = (),
    ) -> Op[None]:
        """Entries are posted, or envelopes taken in: delete them soon, or now without a client."""
        now = self._home.runner.clock.monotonic()
        for each in posted:
            patience = ANSWER_SOON if each.entry.kind == "request" else 0.0
            self._posted[each.key] = each, now + patience
        self._taken.update(dict.fromkeys(taken, own))
        self._actor = actor
        if self.start is None:
            yield from self.finish()
        else:
            self.start()
            self._bell.ring()

    def drop(self, key: str) -> None:
        """The outbox entry under this key is gone."""
        self._posted.pop(key, None)

    def is_posted(self, key: str) -> bool:
        """Whether an outbox entry was posted, and is not deleted yet."""
        return key in self._posted

    def is_taken(self, key: str) -> bool:
        """Whether an envelope was taken in, and is not deleted yet."""
        return key in self._taken

    def run(self, stopped: Callable[[], bool]) -> Op[None]:
        """Delete all that is due, until the client is closed."""
        while not stopped():
            yield from self._bell.sleep(self._seconds())
            if stopped():
                return
            yield Pause(GATHER)
            try:
                yield from self.clear_posted(self._home.runner.clock.monotonic())
                yield from self.remove_taken()
            except InterlockError:  # other processes, or the next message, do it
                yield Pause(SOON)

    def stop(self) -> None:
        """Wake ``run``, which ends."""
        self._bell.ring()

    def finish(self) -> Op[None]:
        """Delete everything that is due, now."""
        yield from self.clear_posted()
        yield from self.remove_taken()

    def remove_taken(self) -> Op[None]:
        """Delete the envelopes that are taken in, now."""
        taken = dict(self._taken)
        for own in {own.bus_id: own for own in taken.values()}.values():
            theirs = [key for key, each in taken.items() if each.bus_id == own.bus_id]
            try:
                yield from self._remove(own, theirs)
            except InterlockError:  # they are known by their marks, and deleted the next time
                self._removed(theirs)
                raise
            self._removed(theirs)

    def _removed(self, gone: Sequence[str]) -> None:
        for key in gone:
            self._taken.pop(key, None)

    def _seconds(self) -> float:
        """Seconds until something is due."""
        if self._taken:
            return GATHER
        first = min((due for _, due in tuple(self._posted.values())), default=None)
        return IDLE if first is None else max(0.0, first - self._home.runner.clock.monotonic())

    def clear_posted(self, now: float = float("inf")) -> Op[None]:
        """Delete the outbox entries that are due at this monotonic time, or all of them."""
        found = tuple(self._posted.values())
        by_target: dict[str, list[Posting]] = {}
        for posting, due in found:
            if due <= now:
                by_target.setdefault(posting.entry.to, []).append(posting)
        if (actor := self._actor) is None:
            return
        for some in by_target.values():
            yield from self._clear(actor, some)
            for posting in some:
                self._posted.pop(posting.key, None)

    def _remove(self, own: OwnSwarm, wanted: Sequence[str]) -> Op[None]:
        """Steps 5 and 10."""

        def deleting(some: tuple[str, ...]) -> DecideOp[str]:
            yield from ()
            thing = f"swarm/{own.name}"
            return Decision(outcome="removed", verb="bus.remove", thing=thing, deletes=some)

        def work(runner: Runner) -> Op[None]:
            most = runner.capabilities.max_operations - OWN_OPERATIONS
            for start in range(0, len(wanted), most):
                some = tuple(wanted[start : start + most])
                yield from runner.change(partial(deleting, some), self._home.bus.actor(own))

        yield from self._home.bus.on(own, work)
