"""A store that fails in every way a network and a crash can, repeatably.

FaultyStore wraps any store and looks like an engine across a network, so the runner takes its
optimistic loop.  Before each commit it draws at most one fault, by its script or by its seed:

    conflict      a conflict without a cause; nothing happened
    delay         time passes, before the request arrives or before its answer does
    lost reply    committed, and OutcomeUnknown
    late arrival  OutcomeUnknown, and the commit arrives after the next few operations:
                  its checks are evaluated then
    crash before  the process dies before it sent anything
    crash after   the process dies after the commit happened

After a crash everything is refused until ``revive``, so that code which still runs (a ``finally``)
can do no more than a dead process could.  Requests under way at that moment still arrive.

``drawn`` lists every fault in order; a failing seed can be read there.

``kill_at`` is for real processes: SIGKILL at a commit that its verb names, before or after it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import entry
from interlock.errors import OutcomeUnknown
from interlock.store import (
    Answer,
    Capabilities,
    Change,
    Conflict,
    Extent,
    Finding,
    Ref,
    Resync,
    Scope,
    Snapshot,
    Store,
    Txn,
    Watch,
)
from interlock.stores.derived import BlockingStore

if TYPE_CHECKING:
    from interlock.client_context import Context
    from interlock.runtime.attempt import Draft
    from interlock.runtime.runner import Runner

Fault: TypeAlias = Literal[
    "conflict", "delay", "lost reply", "late arrival", "crash before", "crash after"
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

LATEST_ARRIVAL = 4
LONGEST_DELAY = 0.05


class Crash(BaseException):
    """The process died here; no handler of ordinary errors may survive it."""


class Chances(Struct, frozen=True, kw_only=True):
    """The probability of each fault at each commit; they must not add up to more than one."""

    conflict: float = 0.0
    delay: float = 0.0
    lost_reply: float = 0.0
    late_arrival: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0


class Drawn(Struct, frozen=True):
    """A fault that happened: at which commit (the first is 1), which transaction, and how."""

    commit: int
    txn: str
    fault: Fault
    detail: str = ""


class _Late(Struct):
    txn: Txn
    operations: int


class FaultyStore(BlockingStore):
    """Any store, seen across a network that fails and from a process that dies."""

    def __init__(
        self,
        store: Store,
        *,
        seed: int = 0,
        chances: Chances | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.capabilities: Capabilities = replace(
            store.capabilities, transacts=False, one_machine=False, consecutive=False
        )
        self.drawn: list[Drawn] = []
        self.arrived: list[tuple[str, Answer]] = []
        self.crashed = False
        self._store = store
        self._random = Random(seed)
        self.chances = chances or Chances()
        self._sleep = sleep
        self._script: list[Fault | None] = []
        self._late: list[_Late] = []
        self.commits = 0
        """How many requests to commit were sent."""

    def script(self, faults: Sequence[Fault | None]) -> None:
        """Force these faults at the next commits, one each; None lets a commit through."""
        unknown = set(faults) - {None, *FAULTS}
        if unknown:
            raise ValueError(f"there are no such faults: {unknown}; there are {FAULTS}")
        self._script = list(faults)

    def sow(self, seed: int) -> None:
        """Draw by this seed from now on."""
        self._random = Random(seed)

    def revive(self) -> None:
        """Start the process again; the store kept all commits."""
        self.crashed = False

    def deliver(self) -> None:
        """Let everything that is still under way arrive now."""
        late, self._late = self._late, []
        for request in late:
            self.arrived.append((request.txn.id, self._store.commit(request.txn)))

    def read(
        self, *refs: Ref, times: bool = False, fresh: bool = True, longest: int | None = None
    ) -> Snapshot:
        """As the store does."""
        self._operate()
        return self._store.read(*refs, times=times, fresh=fresh, longest=longest)

    def commit(self, txn: Txn) -> Answer:
        """As the store does, unless a fault is drawn."""
        self._operate()
        self.commits += 1
        match self._draw():
            case None:
                return self._store.commit(txn)
            case "conflict":
                self._note(txn, "conflict")
                return Conflict(self._store.read(*txn.asked, longest=txn.longest).items)
            case "delay":
                return self._delay(txn)
            case "lost reply":
                answer = self._store.commit(txn)
                self._note(txn, "lost reply", type(answer).__name__)
                raise OutcomeUnknown("the reply was lost", txn.id)
            case "late arrival":
                self._late.append(_Late(txn, self._random.randint(1, LATEST_ARRIVAL)))
                self._note(txn, "late arrival", f"in {self._late[-1].operations} operations")
                raise OutcomeUnknown("the request is late", txn.id)
            case "crash before":
                self._note(txn, "crash before")
                self._crash()
            case "crash after":
                answer = self._store.commit(txn)
                self._note(txn, "crash after", type(answer).__name__)
                self._crash()
        raise AssertionError("every fault returns or raises")

    def watch(self, scope: Scope, after: int) -> FaultyWatch:
        """As the store does; a dead process takes nothing from it."""
        self._operate()
        return FaultyWatch(self, self._store.watch(scope, after))

    def info(self) -> dict[str, object]:
        """As the store does."""
        return self._store.info()

    def examine(self) -> list[Finding]:
        """As the store does."""
        return self._store.examine()

    def sweep(self) -> int:
        """As the store does."""
        self._operate()
        return self._store.sweep()

    def trim(self, revision: int) -> int:
        """As the store does."""
        self._operate()
        return self._store.trim(revision)

    def extent(self) -> Extent:
        """As the store does."""
        self._operate()
        return self._store.extent()

    def wall(self) -> float | None:
        """As the store does."""
        self._operate()
        return self._store.wall()

    def close(self) -> None:
        """As the store does."""
        self._store.close()

    def refuse_if_crashed(self) -> None:
        """What a dead process cannot do, it must not seem to do."""
        if self.crashed:
            raise Crash("this process is dead; revive() starts it again")

    def _operate(self) -> None:
        """One more operation: late requests come nearer."""
        self.refuse_if_crashed()
        for request in tuple(self._late):
            request.operations -= 1
            if request.operations <= 0:
                self._late.remove(request)
                self.arrived.append((request.txn.id, self._store.commit(request.txn)))

    def _draw(self) -> Fault | None:
        if self._script:
            return self._script.pop(0)
        left = self._random.random()
        for fault in FAULTS:
            left -= getattr(self.chances, fault.replace(" ", "_"))
            if left < 0:
                return fault
        return None

    def _delay(self, txn: Txn) -> Answer:
        seconds = self._random.uniform(0, LONGEST_DELAY)
        before = self._random.random() < 0.5
        self._note(txn, "delay", f"{seconds:.3f} s {'before' if before else 'after'}")
        if before:
            self._sleep(seconds)
            return self._store.commit(txn)
        answer = self._store.commit(txn)
        self._sleep(seconds)
        return answer

    def _crash(self) -> None:
        self.crashed = True
        self.refuse_if_crashed()

    def _note(self, txn: Txn, fault: Fault, detail: str = "") -> None:
        self.drawn.append(Drawn(self.commits, txn.id, fault, detail))


class FaultyWatch:
    """A feed that ends with its process."""

    def __init__(self, store: FaultyStore, watch: Watch) -> None:
        self._store = store
        self._watch = watch

    def take(self, timeout: float | None) -> list[Change | Resync]:
        """As the store's watch does."""
        self._store.refuse_if_crashed()
        return self._watch.take(timeout)

    def take_async(self, timeout: float | None) -> Awaitable[list[Change | Resync]]:
        """As the store's watch does."""
        self._store.refuse_if_crashed()
        return self._watch.take_async(timeout)

    def close(self) -> None:
        """As the store's watch does."""
        self._watch.close()


# Real processes.


def kill_at(
    context: Context,
    verb: str,
    when: Literal["before", "after"],
    die: Callable[[], object] | None = None,
) -> None:
    """Kill this process at its next commit of a verb, at home or on the bus of its client.

        kill_at(fleet.context, "request.receive", "after")

    ``before`` nothing of the commit has happened, ``after`` it is durable and its caller has no
    answer.  ``die`` is called instead of the kill, for a test that stays alive.
    """
    point = _KillPoint(verb, when, die or _kill)
    point.arm(context.runner)
    bus = context.bus
    make = bus._runner  # noqa: SLF001 - the bus is opened later, when it is first needed

    def made(store: Store) -> Runner:
        runner = make(store)
        point.arm(runner)
        return runner

    setattr(bus, "_runner", made)  # noqa: B010 - mypy would not let a method be replaced


class _KillPoint:
    """The commit at which a process dies."""

    def __init__(
        self, verb: str, when: Literal["before", "after"], die: Callable[[], object]
    ) -> None:
        self._verb = verb
        self._when = when
        self._die = die

    def arm(self, runner: Runner) -> None:
        """Stand before and behind each commit of a runner."""
        draft, advance = runner.draft, runner.chain.advance

        def drafting(*attempt: Any, **terms: Any) -> Draft:  # noqa: ANN401 - as the runner calls it
            made = draft(*attempt, **terms)
            self._pass("before", made)
            return made

        def advancing(made: Draft) -> None:
            advance(made)
            self._pass("after", made)

        setattr(runner, "draft", drafting)  # noqa: B010
        setattr(runner.chain, "advance", advancing)  # noqa: B010

    def _pass(self, when: str, made: Draft) -> None:
        recorded = when == self._when and not made.txn.quiet
        if recorded and entry.decode(made.txn.entry).verb == self._verb:
            self._die()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
