r"""``task run``: a program for a task, or for one task after the other.

The program gets the data of its task as JSON on its standard input; ``program.py`` says what its
environment has; if the data refer to a file (``file_values.py``), that is checked first, and its
path is in INTERLOCK_FILE.  Status 0 completes the task, any other status fails the attempt, and the
task is tried again as it asks for.  The end of what the program printed is kept with that, as text:

    {"status": 0, "output": "...", "errors": "..."}

Bytes that are no UTF-8 are shown as ``\xff`` there.  All of its output also goes to that of this
command as it comes; with ``--json`` to its standard error, and an outcome for each task, as a line
of JSON, to the standard output.

A program that cannot be started is a mistake of this worker, not of the task: the task goes back to
the queue without a counted attempt, and the command ends, since it would do the same to every task.

A claim that is lost ends its program.  With ``--loop`` the first signal, or stop message, lets the
programs finish, and the second one ends them and releases their tasks; without ``--loop`` there is
nothing else to stop, so the first one does that.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core import validate
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, Changed, Unavailable
from interlock.faces.cli.child import NOT_EXECUTABLE, NOT_FOUND
from interlock.faces.cli.command import answer, answer_to, note
from interlock.faces.cli.connect import CommandIdentity
from interlock.faces.cli.parse import Parsed
from interlock.faces.cli.program import ClaimedProgram, broken_off, connected, require_program
from interlock.nouns.tasks.file_values import referred, verify
from interlock.runtime.processes.supervised import Capture, Ended, Written
from interlock.runtime.text import render
from interlock.steps import drive_async
from interlock.threads import going_on_async

if TYPE_CHECKING:
    from interlock.aio import Fleet
    from interlock.aio_tasks import Claim
    from interlock.aio_worker import Worker
    from interlock.nouns.tasks.claim_noun import TaskRun

KEPT = 16 * 1024
"""Bytes of the end of an output that are kept with the task."""
LATE = 124
"""The exit status after a timeout, as of timeout(1)."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def task_run(parsed: Parsed) -> int:
    """Run a program for one task, or for one after the other until asked to stop."""
    request: TaskRun = parsed.request
    if request.loop and (request.task is not None or request.wait):
        raise BadInput("--loop takes each next task, and waits for it; leave the id and --wait out")
    if request.jobs > 1 and not request.loop:
        raise BadInput("--jobs is for a worker with several tasks; add --loop")
    if status := require_program(parsed):
        return status
    try:
        return asyncio.run(_run(parsed, request))
    except asyncio.CancelledError as error:
        if request.loop:
            note("the programs were ended, and their tasks wait for another worker")
        return broken_off(error)


async def _run(parsed: Parsed, request: TaskRun) -> int:
    identity = CommandIdentity(parsed.common)
    out = 2 if parsed.common.json else 1
    limit = None if request.timeout is None else validate.duration(request.timeout, "timeout")
    async with await connected(parsed, identity) as fleet:
        passed = os.dup(out)  # its number is free in the helper, whose own stdout is another
        try:
            program = ClaimedProgram(
                fleet,
                identity,
                request.command,
                outputs=(Capture(kept=KEPT, passed=passed), Capture(kept=KEPT, passed=2)),
                limit=limit,
                grace=validate.duration(request.grace, "grace"),
            )
            runs = _TaskRuns(parsed, program)
            return await (_work(fleet, request, runs) if request.loop else _once(fleet, runs))
        finally:
            os.close(passed)


async def _work(fleet: Fleet, request: TaskRun, runs: _TaskRuns) -> int:
    """A worker, until it is asked to stop."""
    worker = fleet.tasks.work(can=request.can, concurrency=request.jobs, ttl=request.ttl)
    note(f"working as {foreign(str(fleet.context.agent))}; stop with Ctrl-C")
    await worker.serve(lambda claim: runs.handle(claim, worker))
    return runs.unstarted


async def _once(fleet: Fleet, runs: _TaskRuns) -> int:
    """One task; a signal or a stop message ends its program, and releases it."""
    request: TaskRun = runs.parsed.request
    claimed = ""
    async with _broken_off_by_stops(fleet):
        try:
            async with fleet.tasks.hold(
                request.task, can=request.can, ttl=request.ttl, wait=request.wait
            ) as claim:
                claimed = claim.task
                return await runs.handle(claim)
        except Unavailable as no:
            return answer_to(str(fleet.context.agent), runs.parsed, no.outcome)
        except asyncio.CancelledError:
            if claimed:  # else it was still waiting for a task
                note(f"the program was ended, and task {foreign(claimed)} waits for another worker")
            raise


class _TaskRuns:
    """Runs the program for claims, and ends them."""

    def __init__(self, parsed: Parsed, program: ClaimedProgram) -> None:
        self.parsed = parsed
        self.unstarted = 0
        """The exit status if the program could not be started."""
        self._program = program

    async def handle(self, claim: Claim, worker: Worker | None = None) -> int:
        """Run the program for a claim, end that, and return the status of the program."""
        file = referred(claim.data)
        if file is not None:
            try:
                await drive_async(verify(claim.data), claim.context.store)
            except Changed as changed:  # another attempt may find it as it was
                self._say(await claim.fail(str(changed)), f"{claim.task}: {changed}")
                return changed.exit_status
        about = {} if file is None else {"INTERLOCK_FILE": file.path}
        ended = await self._program.run(claim, msgspec.json.encode(claim.data), about)
        why = self._program.failure(ended)
        if ended.how == "not started":
            return await self._not_started(claim, why, worker)
        kept = _kept(ended)
        if not why:
            self._say(await claim.conclude(kept))
            return 0
        self._say(await claim.conclude_failed(why, kept), f"{claim.task}: {why}")
        return LATE if ended.how == "late" else ended.status or 1

    async def _not_started(self, claim: Claim, why: str, worker: Worker | None) -> int:
        found = shutil.which(self._program.command[0]) is not None
        self.unstarted = NOT_EXECUTABLE if found else NOT_FOUND
        if worker is not None:
            worker.stop(why)
        await claim.release()
        note(
            f"{why}; task {foreign(claim.task)} is back in the queue; check its name, PATH and"
            " rights"
        )
        return self.unstarted

    def _say(self, outcome: Any, why: str = "") -> None:  # noqa: ANN401 - any outcome
        if why:
            note(why)
        if self.parsed.common.json:
            answer(self.parsed, outcome)
        else:
            note(render(outcome))


def _kept(ended: Ended) -> dict[str, object]:
    """What is kept of a run: its status, and the end of its output."""
    printed = {"output": _end(ended.out), "errors": _end(ended.err)}
    return {"status": ended.status, **{name: text for name, text in printed.items() if text}}


def _end(written: Written) -> str:
    """The end of an output as text; a character that is cut in two is left out."""
    whole = written.head + written.tail
    end = whole[-KEPT:]
    if written.size > len(end):
        end = end.lstrip(bytes(range(0x80, 0xC0)))
    return end.decode("utf-8", "backslashreplace")


@asynccontextmanager
async def _broken_off_by_stops(fleet: Fleet) -> AsyncIterator[None]:
    """Cancel the block when a signal or a stop message comes."""
    from interlock.nouns.messages.stops import StopNotice, Stops

    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    if work is None:
        raise AssertionError("a coroutine runs in a task")
    stops = Stops(fleet.context.runner, fleet.context.me().actor)
    stop: Callable[[str], object] = work.cancel

    def obey(asked: StopNotice) -> None:
        note(str(asked))
        stop(signal.SIGTERM.name)

    listening = going_on_async(
        lambda: drive_async(stops.listen(obey), fleet.store), "interlock-stops"
    )
    ear = asyncio.create_task(listening)
    wanted = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    for signum in wanted:
        loop.add_signal_handler(signum, stop, signum.name)
    try:
        yield
    finally:
        for signum in wanted:
            loop.remove_signal_handler(signum)
        ear.cancel()
        await asyncio.wait((ear,))
        await drive_async(stops.ack(), fleet.store)
