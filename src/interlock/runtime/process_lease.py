"""A lease in a store: one process at a time does what any of them could do.

It saves work and protects nothing: a process that was frozen may go on while another one has begun.
So everything that is done under a lease is right if two processes do it at once, or its own commit
checks ``held``.  A process that dies is replaced when the lease expires, one that leaves at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from interlock.core.decision import Decision, Write

if TYPE_CHECKING:
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.identity import Actor
    from interlock.runtime.runner import Runner
    from interlock.steps import Op
    from interlock.store import Item


class ProcessLease:
    """One lease, as one process wants it; ``holder`` is an id that no other one has."""

    def __init__(self, runner: Runner, key: str, holder: str, ttl: float) -> None:
        self._runner = runner
        self._key = key
        self._holder = holder
        self.ttl = max(ttl, runner.capabilities.min_ttl)

    def take(self, actor: Actor) -> Op[bool]:
        """Take the lease, or renew it; False if another process has it."""

        def taking() -> DecideOp[bool]:
            if (yield from self._taken_by()) not in ("", self._holder):
                return Decision(outcome=False)
            return Decision(outcome=True, puts=(self._write(self._holder),), quiet=True)

        return (yield from self._runner.change(taking, actor, hopeful=False)).outcome

    def leave(self, actor: Actor) -> Op[None]:
        """Let another process have it, if it is ours."""

        def leaving() -> DecideOp[None]:
            if not (yield from self.held()):
                return Decision(outcome=None)
            return Decision(outcome=None, puts=(self._write(""),), quiet=True)

        yield from self._runner.change(leaving, actor, hopeful=False)

    def held(self) -> ReadOp[bool]:
        """Whether it is ours; the commit of the decision that asks checks that."""
        return (yield from self._taken_by()) == self._holder

    def _taken_by(self) -> ReadOp[str]:
        item: Item | None = (yield (self._key,)).items[self._key]
        if item is None:
            return ""
        found = msgspec.json.decode(item.value)
        return str(found.get("by", "")) if isinstance(found, dict) else ""

    def _write(self, holder: str) -> Write:
        return Write(self._key, {"by": holder}, self.ttl)
