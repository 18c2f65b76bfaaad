"""``run``, ``lock run`` and ``sem run``: a program inside a session, or while holding something.

The command renews the session for the program, forwards signals to it, and ends it in time when it
cannot renew: SIGTERM comes early enough that SIGKILL, after the grace period, comes before another
agent can acquire the grant.  A stop message to the session ends the program, too, or the command
itself while it still waits.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from interlock.core import validate
from interlock.core.safe_text import foreign, one_line, quoted
from interlock.core.validate import REASON_LIMIT
from interlock.core.wait import SESSION_CALLER, caller_name
from interlock.errors import BadInput, InterlockError, Lapsed, Lost, Unavailable
from interlock.faces.cli.child import NOT_EXECUTABLE, NOT_FOUND, Child
from interlock.faces.cli.command import Stopped, answer_to, note
from interlock.faces.cli.connect import (
    CommandIdentity,
    opened,
    speak_up,
    tell,
    tell_if_new,
    url_of,
)
from interlock.faces.cli.parse import Parsed, usage

if TYPE_CHECKING:
    from types import FrameType

    from interlock.client import Fleet
    from interlock.nouns.fleet.noun import RunRequest
    from interlock.nouns.grants.held_grant import HeldPools
    from interlock.nouns.grants.request import GrantTarget
    from interlock.nouns.messages.stops import StopNotice
    from interlock.runtime.keeper import Lease

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TICK = 1.0
_PART_FOR_GRACE = 3


def run(parsed: Parsed) -> int:
    """Run a program inside a new session, holding the things of ``--hold``."""
    request: RunRequest = parsed.request
    if request.restart == "never":
        return _run(parsed, None)
    from interlock.faces.cli.restart import restarting

    backoff = validate.duration(request.backoff, "backoff")
    return restarting(request.restart, backoff, lambda stopped: _run(parsed, stopped))


def _run(parsed: Parsed, stopped: Callable[[], None] | None) -> int:
    """Run it once; ``stopped`` is called if a message asks it to end."""
    from interlock.nouns.grants.several import target_of

    request: RunRequest = parsed.request
    if request.worktree is not None:
        return _in_worktree(parsed, request, stopped)
    if request.hold:
        target = target_of(request.hold)
        return _holding(parsed, target, {"INTERLOCK_HELD": " ".join(target.named)}, stopped=stopped)
    terms = (validate.wait_time(request.wait), request.max_hold, request.guard)
    if any(terms) or request.metadata is not None:
        raise BadInput(
            "--wait, --max-hold, --metadata and --guard need something to hold; name it: --hold"
        )
    guard = _Guard(parsed, stopped=stopped)
    return guard.run(lambda fleet: (fleet.context.session_lease,), {})


def _in_worktree(parsed: Parsed, request: RunRequest, stopped: Callable[[], None] | None) -> int:
    """Run it in a worktree, which one program at a time has, by its lock."""
    from interlock.nouns.grants.several import target_of
    from interlock.nouns.merges import worktrees
    from interlock.nouns.merges.calls import branch_name

    here, branch = os.getcwd(), branch_name(request.worktree or "")
    target = target_of((*request.hold, f"lock/{worktrees.lock_name(branch, here)}"))
    environment = {"INTERLOCK_HELD": " ".join(target.named)}
    trees: list[worktrees.AgentWorktree] = []

    def enter() -> str:
        """Make it: with the lock, since another program may have removed it before."""
        tree = worktrees.make(branch, here)
        trees.append(tree)
        environment.update({"INTERLOCK_WORKTREE": tree.path, "PWD": tree.path})
        return tree.path

    def clean_up() -> None:
        for tree in trees:
            why = worktrees.remove(tree, request.into, here)
            end = f"stays: {why}" if why else "is removed"
            note(f"worktree {tree.path} {end}")

    return _holding(parsed, target, environment, enter=enter, clean_up=clean_up, stopped=stopped)


def lock_run(parsed: Parsed) -> int:
    """Run a program while holding a lock, as flock(1) does."""
    from interlock.nouns.grants.lock import LockTarget
    from interlock.nouns.grants.lock_operator_noun import LockRun

    request: LockRun = parsed.request
    target = LockTarget(request.lock)
    return _holding(parsed, target, {"INTERLOCK_LOCK": target.name})


def sem_run(parsed: Parsed) -> int:
    """Run a program while holding slots of a semaphore."""
    from interlock.nouns.grants.semaphore import SlotsTarget
    from interlock.nouns.grants.semaphore_noun import SemaphoreRun

    request: SemaphoreRun = parsed.request
    target = SlotsTarget(request.semaphore, request.weight, request.capacity)
    return _holding(parsed, target, {"INTERLOCK_SEMAPHORE": target.name})


def _holding(
    parsed: Parsed,
    target: GrantTarget,
    environment: dict[str, str],
    *,
    enter: Callable[[], str] | None = None,
    clean_up: Callable[[], None] | None = None,
    stopped: Callable[[], None] | None = None,
) -> int:
    """Run a program while holding something, in the folder that ``enter`` makes.

    ``clean_up`` is called before what is held is released.
    """
    from interlock.nouns.grants.held_grant import take
    from interlock.nouns.grants.request import GrantTerms
    from interlock.steps import drive

    request: Any = parsed.request
    terms = GrantTerms(
        wait=request.wait,
        ttl=None,
        max_hold=request.max_hold,
        metadata=request.metadata,
        guard=request.guard,
    )
    guard = _Guard(parsed, " and ".join(target.things), stopped=stopped)
    holding = guard.holding

    def hold(fleet: Fleet) -> Sequence[Lease | None]:
        held = drive(take(fleet.context, target, guard.wake, terms), fleet.store)
        fleet.keep()
        holding.append(held)
        environment["INTERLOCK_TOKEN"] = str(held.grant.token)
        guard.folder = "" if enter is None else enter()
        return (fleet.context.session_lease, *held.leases)

    def give_back() -> None:
        for held in holding:
            if clean_up is not None and not held.lost():
                clean_up()
            drive(held.release(), held.context.store)

    try:
        return guard.run(hold, environment, give_back)
    except Unavailable as no:
        return answer_to(guard.agent, parsed, no.outcome)


class _Guard:
    """Guards one program."""

    def __init__(
        self,
        parsed: Parsed,
        held: str = "",
        *,
        stopped: Callable[[], None] | None = None,
    ) -> None:
        request: Any = parsed.request
        self._held = held
        self.folder = ""
        """Where the program runs, if not here."""
        self._stopped_by_message = stopped
        self._tee = None
        if getattr(request, "log", False):
            from interlock.faces.cli.tee import OutputTee

            self._tee = OutputTee()
        if not request.command:
            raise BadInput(f"which program? put it after '--'; {usage(parsed.operation.name)}")
        self._parsed = parsed
        self._command: tuple[str, ...] = request.command
        self._grace = validate.duration(request.grace, "grace")
        self._ttl = validate.duration(request.ttl, "ttl")
        self._identity = CommandIdentity(parsed.common)
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._signals: list[int] = []
        self._asked: list[StopNotice] = []
        """Messages that ask the program to stop."""
        self._running = False
        self.holding: list[HeldPools] = []
        """What is held while the program runs."""

    @property
    def agent(self) -> str:
        """The agent in whose name the program runs."""
        return self._identity.agent or ""

    def wake(self) -> None:
        """Wake the main loop: something changed."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def run(
        self,
        prepare: Callable[[Fleet], Sequence[Lease | None]],
        environment: dict[str, str],
        give_back: Callable[[], None] | None = None,
    ) -> int:
        """Start the program once ``prepare`` has its grants, and wait for its end."""
        child = self._forked()
        try:
            self._listen()
            with self._connected() as fleet, self._hearing(fleet), self._logging(fleet):
                try:
                    leases = [lease for lease in prepare(fleet) if lease is not None]
                    for lease in leases:
                        lease.listeners.append(self.wake)
                    self._running = True
                    names = {**self._environment(fleet), **environment}
                    error = child.start(names, self.folder)
                    if error is not None:
                        return self._not_started(error)
                    return self._watch(child, leases, fleet, locked=give_back is not None)
                finally:
                    if give_back is not None:
                        with suppress(InterlockError):
                            give_back()
        finally:
            child.abandon()

    def _forked(self) -> Child:
        """The program, still waiting."""
        if self._tee is None:
            return Child(self._command)
        with self._tee.inherited():
            return Child(self._command)

    @contextmanager
    def _logging(self, fleet: Fleet) -> Iterator[None]:
        """Add the output of the program to the log of the agent, and pass it on."""
        if self._tee is None:
            yield
            return
        uploader = fleet.agents.uploader(self.agent)
        self._tee.start(uploader.add)
        try:
            yield
        finally:
            self._tee.finish()
            with suppress(InterlockError):
                from interlock.steps import drive

                drive(uploader.drain(), fleet.store)

    def _watch(self, child: Child, leases: Sequence[Lease], fleet: Fleet, *, locked: bool) -> int:
        grace = min(self._grace, *((lease.write.ttl or 0.0) / _PART_FOR_GRACE for lease in leases))
        while (status := child.poll()) is None:
            while self._signals:
                self._forward(child, self._signals.pop(0))
            now = time.monotonic()
            gone = any(lease.lost for lease in leases) or self._gone()
            ends = min(lease.ends for lease in leases)
            if gone or ends - grace <= now:
                # A lost lock may have another holder already, so there is no grace period.
                late = 0.0 if locked else grace
                cause = _cause(fleet)
                status = child.end(_at(now + late if gone else max(ends, now)))
                note(str(error := self._lost(leases, now + grace, cause, locked=locked)))
                return status or error.exit_status
            if self._asked:
                return self._stopped(child, leases, now + self._grace)
            self._sleep(min(ends - grace - now, _TICK))
        return status

    def _stopped(self, child: Child, leases: Sequence[Lease], kill_at: float) -> int:
        """End the program after a stop message; a second one, or a lost lease, ends the grace."""

        def hurry() -> bool:
            return len(self._asked) > 1 or any(lease.lost for lease in leases) or self._gone()

        return child.end(lambda: 0.0 if hurry() else min(kill_at, *(each.ends for each in leases)))

    def _gone(self) -> bool:
        """Whether a grant is lost."""
        return any(holding.lost() for holding in self.holding)

    @contextmanager
    def _hearing(self, fleet: Fleet) -> Iterator[None]:
        """Listen to stop messages for the session while the block runs."""
        from interlock.nouns.messages.stops import Stops
        from interlock.steps import drive
        from interlock.threads import background, going_on

        over, context, name = threading.Event(), fleet.context, "interlock-stops"
        stops = Stops(context.runner, context.me().actor)
        listener = stops.for_other_thread()

        def listen() -> None:
            drive(listener.listen(self._obey, lambda: not over.is_set()), fleet.store)

        background(going_on(listen, name, over), name).start()
        try:
            yield
        finally:
            over.set()
            with suppress(InterlockError):
                drive(stops.ack(), fleet.store)

    def _obey(self, stop: StopNotice) -> None:
        """In the listening thread: before the program runs, a signal ends the wait for grants."""
        why = f": {foreign(one_line(stop.reason), REASON_LIMIT)}" if stop.reason else ""
        note(f"{foreign(stop.sender)} asked {quoted(self._command[0])} to stop{why}")
        self._asked.append(stop)
        if self._stopped_by_message is not None:
            self._stopped_by_message()
        main = threading.main_thread().ident
        if not self._running and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)
        self.wake()

    def _lost(
        self, leases: Sequence[Lease], now: float, cause: str, *, locked: bool
    ) -> Lost | Lapsed:
        """Why the program was ended: the earliest lease that cannot be renewed bounds the hold."""
        if not locked:
            return Lapsed(f"the session could not be kept alive{cause}; the program was ended")
        if (note := next((h.broken for h in self.holding if h.broken), None)) is not None:
            return Lost(
                f"{foreign(note.by)} ended {self._held}: {foreign(note.reason)}; the program was"
                " ended"
            )
        first = min(leases, key=lambda lease: lease.ends)
        if not first.renewable and first.ends <= now:
            most = validate.span(first.write.ttl)
            return Lost(f"the maximum hold of {self._held}, {most}, is over; the program was ended")
        return Lost(f"{self._held} could not be kept any longer{cause}; the program was ended")

    def _not_started(self, error: OSError) -> int:
        program = quoted(self._command[0])
        if isinstance(error, FileNotFoundError):
            note(f"there is no program {program}; check its name and PATH")
            return NOT_FOUND
        note(f"{program} cannot be run ({error.strerror}); check its rights")
        return NOT_EXECUTABLE

    def _connected(self) -> Fleet:
        """A new session under the name of the calling agent."""
        identity = self._identity
        if identity.session and not identity.agent:
            outer = opened(identity.store, session=identity.session)
            identity.agent = outer.context.me().actor.agent
            outer.close()
        if not identity.agent:
            raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
        fleet = opened(
            identity.store,
            agent=identity.agent,
            ttl=self._ttl,
            trace=identity.trace,
            key=identity.key,
            caller=_inside(identity.caller),
            look=None,
        )
        tell(self._parsed, fleet)
        tell_if_new(fleet.store)
        speak_up()
        return fleet

    def _environment(self, fleet: Fleet) -> dict[str, str]:
        actor, identity = fleet.context.me().actor, fleet.context.identity
        key = self._identity.key
        named = {"INTERLOCK_KEY": os.path.abspath(key) if "/" in key else key} if key else {}
        return {
            **named,
            "INTERLOCK_AGENT": actor.agent,
            "INTERLOCK_CALLER": caller_name(actor.agent, actor.session, identity.caller),
            "INTERLOCK_SESSION": actor.session,
            "INTERLOCK_STORE": url_of(fleet.store, self._identity.store),
            "INTERLOCK_TRACE": actor.trace,
        }

    def _listen(self) -> None:
        """Let signals end the command while it waits; forward them once the program runs."""

        def on_signal(signum: int, _frame: FrameType | None) -> None:
            if not self._running:
                raise KeyboardInterrupt if signum == signal.SIGINT else Stopped(signum)
            self._signals.append(signum)

        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, on_signal)

    def _forward(self, child: Child, signum: int) -> None:
        # A terminal sends its interrupt to the whole foreground group: the program has it already.
        if signum != signal.SIGINT or not in_foreground():
            child.send(signum)

    def _sleep(self, seconds: float) -> None:
        select.select([self._wake_read], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)


def _cause(fleet: Fleet) -> str:
    """The reason of an outage of the store, as the end of a sentence; empty without one."""
    store = fleet.store
    trouble = store.outage if store.missing or store.outage else ""
    return f" ({trouble.partition(';')[0]})" if trouble else ""


def _at(moment: float) -> Callable[[], float]:
    return lambda: moment


def _inside(outer: str) -> str:
    """The caller of this session inside the outer caller; of a long chain, only the outermost."""
    if len(outer) > validate.NAME_LIMIT // 2:
        outer = outer.partition("/")[0]
    return f"{outer}/{SESSION_CALLER}" if outer else SESSION_CALLER


def in_foreground() -> bool:
    """Whether the terminal sends its interrupt to this process, and so to its children."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
