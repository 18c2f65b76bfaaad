"""Refusals are counted for each agent, so that each one is visible.

The record has the first refusal of each caller and verb for a grant, or of a sender, within a
minute.  All of them are counted, by the minute: ``meta/refused/{agent}``.  That is a quiet commit
of its own, after the refusal stands; a failure of it does not turn the answer into an error.
Metrics, ``observe --counts`` and ``agent show`` read these counts, so they agree.

Where a commit is a push (``capabilities.gathered``), the processes of a host count together, at
most once a minute: at once, or with the first refusal or change after the minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.errors import StoreDamaged, StoreTrouble
from interlock.runtime import gathered
from interlock.runtime.reads import every
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.store import Item

MINUTE = 60
KEPT = 240
"""Minutes that are counted one by one; older ones are part of the total."""
OLD = 86400.0
"""Seconds after the last refusal of an agent, after which maintenance deletes the counts."""


class Refused(Struct, frozen=True):
    """One refusal that is to be counted."""

    agent: str
    minute: int
    word: str


class RefusalCounts(Struct, frozen=True, kw_only=True):
    """The refusals of an agent by outcome: in total, and by the minute."""

    total: dict[str, int] = {}
    minutes: dict[str, dict[str, int]] = {}

    def since(self, moment: float, word: str = "") -> int:
        """The number since a moment, of one outcome or of all."""
        first = int(moment) // MINUTE
        some = [counts for minute, counts in self.minutes.items() if int(minute) >= first]
        return sum(n for counts in some for each, n in counts.items() if word in ("", each))

    @property
    def number(self) -> int:
        """How many there were in total."""
        return sum(self.total.values())

    @property
    def at(self) -> float | None:
        """When the last minute with one began."""
        return max(map(int, self.minutes)) * MINUTE if self.minutes else None


_REFUSED = codec.Decoder(RefusalCounts)
_LINE = msgspec.json.Decoder(Refused)


def refused(item: Item | None) -> RefusalCounts:
    """The counts of an agent; a damaged item counts as empty."""
    try:
        return RefusalCounts() if item is None else _REFUSED.read(item)
    except StoreDamaged:
        return RefusalCounts()


def all_refused() -> Op[dict[str, RefusalCounts]]:
    """The counts of each agent that was refused, those with the most first."""
    folder = keys.refusal_counts()
    found = {
        keys.decode(item.key.removeprefix(folder)): refused(item)
        for item in (yield from every(folder))
    }
    return dict(sorted(found.items(), key=lambda each: (-each[1].number, each[0])))


def expired(now: float) -> Op[list[Item]]:
    """The counts of agents whose last refusal was long ago."""
    from interlock.runtime.retention import old_items

    return old_items(keys.refusal_counts(), refused, now - OLD)


def count(runner: Runner, actor: Actor, word: str) -> Op[None]:
    """Count one more refusal."""
    now = runner.clock.wall()
    line = Refused(agent=actor.agent, minute=int(now) // MINUTE, word=word)
    if path := runner.capabilities.gathered:
        with suppress(OSError):
            gathered.add(path, [msgspec.json.encode(line).decode()])
        yield from write_gathered(runner, actor)
    else:
        yield from _write(runner, actor, [line])


def write_gathered(runner: Runner, actor: Actor) -> Op[None]:
    """Count the refusals that the processes of this host gathered, if they are due."""
    path, now = runner.capabilities.gathered, runner.clock.wall()
    try:
        lines = gathered.take(path, now)
    except (OSError, ValueError):
        return
    found = []
    for line in lines:
        with suppress(msgspec.DecodeError):
            found.append(_LINE.decode(line))
    if found and not (yield from _write(runner, actor, found)):
        with suppress(OSError):
            gathered.add(path, lines)


def _write(runner: Runner, actor: Actor, refusals: Sequence[Refused]) -> Op[bool]:
    """Count refusals with one commit; False if the store did not take it."""
    wanted = {each.agent: keys.refusal_counts(each.agent) for each in refusals}

    def deciding() -> DecideOp[None]:
        items = (yield tuple(wanted.values())).items
        counts = {agent: refused(items[key]) for agent, key in wanted.items()}
        minute = int(runner.clock.wall()) // MINUTE
        for each in refusals:
            counts[each.agent] = _with_one(counts[each.agent], each, minute)
        puts = tuple([Write(wanted[agent], found) for agent, found in counts.items()])
        return Decision(outcome=None, puts=puts, quiet=True)

    try:
        yield from runner.change_alone(deciding, actor.plain)
    except StoreTrouble:
        return False
    return True


def _with_one(before: RefusalCounts, one: Refused, minute: int) -> RefusalCounts:
    recent = {m: dict(c) for m, c in before.minutes.items() if int(m) > minute - KEPT}
    then = recent.setdefault(str(one.minute), {})
    then[one.word] = then.get(one.word, 0) + 1
    total = {**before.total, one.word: before.total.get(one.word, 0) + 1}
    return RefusalCounts(total=total, minutes=recent)
