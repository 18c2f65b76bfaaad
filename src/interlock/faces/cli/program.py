"""A program that works on a claim: ``task run`` and ``request serve``.

It gets the data of its task on its standard input, and has in its environment

    INTERLOCK_TASK        its task
    INTERLOCK_TOKEN       the token of the claim, which grows with each attempt
    INTERLOCK_ATTEMPT     which attempt this is, from 1 on
    INTERLOCK_AGENT, INTERLOCK_STORE, INTERLOCK_KEY

so that commands inside act for the same agent in the same store.  It has no session: what it
acquires must not live as long as a worker does.

It runs below a supervisor (``runtime/processes``).  So nothing of it is left at its end, nor when
its claim is lost, the worker is asked to stop, or the worker is killed: all that it started gets
SIGTERM, and SIGKILL after the grace period, in any process group and session.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from interlock import store_location
from interlock.core.safe_text import quoted
from interlock.core.validate import quote, span
from interlock.errors import BadInput
from interlock.faces.cli.child import NOT_EXECUTABLE, NOT_FOUND
from interlock.faces.cli.command import note
from interlock.faces.cli.connect import CommandIdentity, meet_store, speak_up, url_of
from interlock.faces.cli.parse import Parsed, usage
from interlock.runtime.processes.supervised import Capture, Ended, supervise

if TYPE_CHECKING:
    from asyncio import CancelledError

    from interlock.aio import Fleet
    from interlock.nouns.tasks.claim_handle import ClaimHandle

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for a program whose claim is lost."""


class ClaimedProgram:
    """Runs a program for one claim after the other, or for several at once."""

    def __init__(
        self,
        fleet: Fleet,
        identity: CommandIdentity,
        command: tuple[str, ...],
        *,
        outputs: Sequence[Capture],
        limit: float | None = None,
        grace: float = GRACE,
    ) -> None:
        self.command = command
        self._limit = limit
        self._grace = grace
        self._outputs = outputs
        key = identity.key or ""
        named = {"INTERLOCK_KEY": os.path.abspath(key) if "/" in key else key} if key else {}
        self._environment = {
            **os.environ,
            **named,
            "INTERLOCK_AGENT": str(fleet.context.agent),
            "INTERLOCK_STORE": url_of(fleet.store, identity.store),
        }

    async def run(
        self, claim: ClaimHandle[Any], data: bytes, about: Mapping[str, str] | None = None
    ) -> Ended:
        """Run it to its end; a cancellation ends it first, with all that it started."""
        known = {
            "INTERLOCK_TASK": claim.task,
            "INTERLOCK_TOKEN": str(claim.outcome.token),
            "INTERLOCK_ATTEMPT": str(claim.attempt),
        }
        return await supervise(
            self.command,
            environment={**self._environment, **known, **(about or {})},
            input=data,
            outputs=self._outputs,
            seconds=self._limit,
            grace=self._grace,
        )

    def failure(self, ended: Ended) -> str:
        """Why a run is a failure; empty if it ended with status 0."""
        if ended.how == "late":
            return f"the program took longer than {span(self._limit)}"
        if ended.how == "too much":
            return f"the program printed more than {self._outputs[0].most:.0f} bytes"
        if ended.how != "ended":
            return f"{quoted(self.command[0])} cannot be run: {ended.says}"
        if ended.signal:
            return f"the program was killed by signal {ended.signal}"
        return f"the program ended with status {ended.status}" if ended.status else ""


def require_program(parsed: Parsed) -> int:
    """0 if the program of a command can be run; else says why not, before anything is claimed.

    Else every task would fail for a mistake that is not in the task.  The status is that of a
    shell: 126 for a file that cannot be executed, 127 if there is none.
    """
    command = parsed.request.command
    if not command:
        raise BadInput(f"which program? put it after '--'; {usage(parsed.operation.name)}")
    if shutil.which(command[0]) is not None:
        return 0
    program, file = quoted(command[0]), shutil.which(command[0], os.F_OK)
    if file is not None:
        note(
            f"{program} is not executable; make it so: chmod +x {quote(file)},"
            f" or name its interpreter: -- sh {quote(file)}"
        )
        return NOT_EXECUTABLE
    if os.path.isdir(command[0]):
        note(f"{program} is a folder; name a program")
        return NOT_EXECUTABLE
    note(f"there is no program {program}; check its name and PATH")
    return NOT_FOUND


async def connected(parsed: Parsed, identity: CommandIdentity) -> Fleet:
    """A client in a session of its own, or in the one that was named; it makes no store's file."""
    from interlock import aio

    url = identity.store
    place = store_location.named_store(url, create=False) if url else store_location.find_store()
    store = await store_location.open_place_async(place)
    try:
        meet_store(parsed, store)
        fleet = await aio.connect(
            agent=identity.agent,
            session=identity.session,
            trace=identity.trace,
            key=identity.key,
            store=store,
        )
    except BaseException:
        await store.close_async()
        raise
    fleet.context.shares_store = False  # the client closes it
    if fleet.context.agent is None:
        await fleet.close()
        raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
    fleet.context.runner.via = "cli"
    speak_up()
    return fleet


def broken_off(error: CancelledError) -> int:
    """The exit status of a worker that did not finish: of the signal, or as for SIGTERM."""
    name = str(error).partition(" ")[0]
    with suppress(KeyError):
        return 128 + signal.Signals[name]
    return 128 + signal.SIGTERM
