"""Deletions that no caller waits for: outbox entries that are posted, envelopes that are taken in.

These are steps 3, 5 and 10 of ``exchange.py``.  The exchange is right without them: an entry that
stays is posted again, and a message that stays is known by its mark.  So they are gathered, and
done in a background thread or task of the client, many with one commit.

An envelope is deleted only as it was read: a later attempt, or a genuine result that replaced
rubbish, may stand in its place by then.  The commit that puts an envelope puts its body, too, so
the body belongs to the envelope as long as that is unchanged.

A request that is answered at once never needs step 3, since the commit that ends it deletes its
outbox entry; so the entries of requests wait a little longer.

Without a client, as ``maintain`` and tests have it, everything is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.decision import Decision
from interlock.errors import InterlockError
from interlock.runtime.attempt import BoundedRefs
from interlock.runtime.leader import Bell
from interlock.runtime.reads import OWN_OPERATIONS
from interlock.steps import Op, Pause
from interlock.store import Item

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.posting import Posting
    from interlock.nouns.swarms.bus import Bus
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
_OPERATIONS = 3
"""Operations of one envelope in the commit that deletes it."""

Clear = Callable[["Actor", Sequence["Posting"]], Op[None]]


class TakenEnvelope(Struct, frozen=True, kw_only=True):
    """An envelope that is taken in, as it was read, without its value; and the key of its body."""

    item: Item
    body_key: str

    @classmethod
    def of(cls, item: Item, body_key: str) -> TakenEnvelope:
        """The envelope of an item."""
        return cls(item=replace(item, value=b"", omitted=0), body_key=body_key)

    def is_at(self, item: Item | None) -> bool:
        """Whether this item is the very one that was read."""
        return item is not None and item.revision == self.item.revision


class Cleanup:
    """The deletions of one client that are due."""

    def __init__(self, home: Home, clear: Clear) -> None:
        self._home = home
        self._clear = clear
        self._posted: dict[str, tuple[Posting, float]] = {}
        self._taken: dict[str, tuple[TakenEnvelope, OwnSwarm]] = {}
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
        taken: Iterable[TakenEnvelope] = (),
    ) -> Op[None]:
        """Entries are posted, or envelopes taken in: delete them soon, or now without a client."""
        now = self._home.runner.clock.monotonic()
        for each in posted:
            patience = ANSWER_SOON if each.entry.kind == "request" else 0.0
            self._posted[each.key] = each, now + patience
        self._taken.update({each.item.key: (each, own) for each in taken})
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

    def is_taken(self, item: Item) -> bool:
        """Whether this very envelope was taken in, and is not deleted yet."""
        found = self._taken.get(item.key)
        return found is not None and found[0].is_at(item)

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
        taken = tuple(self._taken.values())
        for own in {own.bus_id: own for _, own in taken}.values():
            theirs = [each for each, other in taken if other.bus_id == own.bus_id]
            try:
                yield from remove(self._home.bus, own, theirs)
            finally:  # after an error they are known by their marks, and deleted the next time
                self._removed(theirs)

    def _removed(self, gone: Sequence[TakenEnvelope]) -> None:
        for each in gone:
            if (found := self._taken.get(each.item.key)) is not None and found[0] is each:
                self._taken.pop(each.item.key, None)

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


def remove(bus: Bus, own: OwnSwarm, wanted: Sequence[TakenEnvelope]) -> Op[int]:
    """Delete these envelopes from the bus as far as they are unchanged; how many that were.

    These are steps 5 and 10.  The commit checks what it deletes, and reads nothing before: what
    was read when they were taken in is its guess.
    """

    def removing(runner: Runner, some: Sequence[TakenEnvelope]) -> Op[int]:
        left = list(some)

        def deleting() -> DecideOp[int]:
            items = (yield BoundedRefs.of([each.item.key for each in left])).items
            left[:] = [each for each in left if each.is_at(items[each.item.key])]
            pairs = [(each.item.key, each.body_key) for each in left]
            deletes = tuple([key for pair in pairs for key in pair if key])
            verb = "bus.remove" if deletes else ""
            thing = f"swarm/{own.name}"
            return Decision(outcome=len(left), verb=verb, thing=thing, deletes=deletes)

        guess = {each.item.key: each.item for each in some}
        return (yield from runner.change(deleting, bus.actor(own), guess)).outcome

    def work(runner: Runner) -> Op[int]:
        most = (runner.capabilities.max_operations - OWN_OPERATIONS) // _OPERATIONS
        done = 0
        for start in range(0, len(wanted), most):
            done += yield from removing(runner, wanted[start : start + most])
        return done

    return (yield from bus.on(own, work))
