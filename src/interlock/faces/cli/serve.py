"""``request serve``: a program for each request of another swarm, several at once.

The program gets the payload as JSON on its standard input.  If it ends with status 0, its standard
output is the result: JSON, or else text.  Any other status is an answer with an error, which has
what the program printed to its standard output, and the end of its standard error.  That also goes
to the standard error of this command.  Its environment has

    INTERLOCK_REQUEST     the id of the request, which every attempt to carry it out has
    INTERLOCK_TASK        its task
    INTERLOCK_TOKEN       the token of this attempt, which grows with each
    INTERLOCK_FROM_SWARM, INTERLOCK_FROM_AGENT, INTERLOCK_TASK_TYPE

Execution is at least once: a host may fail after the work and before the commit.  A program that
must not have its effect twice stores the id of the request with what it changes.

A claim that is lost ends its program, and so does the end of this command.  The first signal lets
the programs finish; the second one ends them with all that they started, and releases the claims.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.faces.cli.command import note
from interlock.faces.cli.connect import CommandIdentity, speak_up, url_of
from interlock.faces.cli.parse import Parsed, usage
from interlock.faces.cli.run import NOT_FOUND
from interlock.nouns.requests.serving import RequestError
from interlock.nouns.swarms.head import BODY_LIMIT
from interlock.runtime.processes.tree import end_with_parent
from interlock.steps import drive_async

if TYPE_CHECKING:
    from interlock.aio import Fleet
    from interlock.nouns.requests.noun import RequestServe
    from interlock.nouns.requests.serving import ServedRequest

ERRORS_KEPT = 2000
"""Bytes of a program's standard error that its asker gets, the last ones."""
DRAIN = 1.0
"""Seconds for the rest of its standard error; what it left behind may hold that open."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for a program whose claim is lost."""


def serve(parsed: Parsed) -> int:
    """Carry out requests until a signal or a message asks to stop."""
    request: RequestServe = parsed.request
    if not request.command:
        raise BadInput(f"which program? put it after '--'; {usage(parsed.operation.name)}")
    program = request.command[0]
    if shutil.which(program) is None:  # else every request would be answered with this error
        note(f"{quoted(program)} is no program that can be run; check its name, PATH and rights")
        return NOT_FOUND
    try:
        return asyncio.run(_serve(CommandIdentity(parsed.common), request))
    except asyncio.CancelledError as broken_off:  # by a second signal, or a second message
        note("the programs were ended, and their requests wait for another worker")
        name = str(broken_off).partition(" ")[0]
        return 128 + (
            signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGTERM
        )


async def _serve(identity: CommandIdentity, request: RequestServe) -> int:
    from interlock import aio

    limit = None if request.timeout is None else validate.duration(request.timeout, "timeout")
    async with await aio.connect(
        identity.store,
        identity.agent,
        session=identity.session,
        trace=identity.trace,
        key=identity.key,
    ) as fleet:
        if fleet.context.agent is None:
            raise BadInput("who are you? give --agent NAME, or set INTERLOCK_AGENT")
        fleet.context.runner.via = "cli"
        speak_up()
        await drive_async(fleet.context.requests.begin(fleet.context.me().actor), fleet.store)
        program = RequestProgram(fleet, identity, request.command, limit)
        note(f"serving as {fleet.context.agent}; stop with Ctrl-C")
        await fleet.requests.serve(
            program.run, can=request.can, concurrency=request.jobs, ttl=request.ttl
        )
    return 0


class RequestProgram:
    """Starts the program for one request after the other."""

    def __init__(
        self,
        fleet: Fleet,
        identity: CommandIdentity,
        command: tuple[str, ...],
        limit: float | None,
    ) -> None:
        self._command = command
        self._limit = limit
        key = identity.key or ""
        named = {"INTERLOCK_KEY": os.path.abspath(key) if "/" in key else key} if key else {}
        self._environment = {
            **os.environ,
            **named,
            "INTERLOCK_AGENT": str(fleet.context.agent),
            "INTERLOCK_STORE": url_of(fleet.store, identity.store),
        }

    async def run(self, request: ServedRequest) -> Any:  # noqa: ANN401 - any JSON
        """The result of one run; RequestError if it fails."""
        process = await self._started(request)
        try:
            return await asyncio.wait_for(self._result(process, request), self._limit)
        except TimeoutError:
            raise RequestError(f"the program took longer than {self._limit:.0f} s") from None
        finally:
            await _ended(process)

    async def _started(self, request: ServedRequest) -> Process:
        """Start the program; one that is cancelled now is ended with all that it started.

        asyncio itself would kill the program alone, and wait for what the program left behind.
        """
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={**self._environment, **_about(request)},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _ended(await starting)
            raise
        except OSError as error:
            said = f"{quoted(self._command[0])} cannot be run: {error.strerror}"
            note(f"{said}; check its name, PATH and rights")
            raise RequestError(said) from None

    async def _result(self, process: Process, request: ServedRequest) -> Any:  # noqa: ANN401
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("the program has pipes")
        errors = bytearray()
        feeding = asyncio.create_task(_feed(process, msgspec.json.encode(request.payload)))
        passing = asyncio.create_task(_pass_on(process.stderr, errors))
        try:
            output = await _limited(process.stdout)
            status = await process.wait()
            await asyncio.wait((passing,), timeout=DRAIN)
        finally:
            feeding.cancel()
            passing.cancel()
            await asyncio.wait((feeding, passing))
        if status:
            how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
            said = [each.decode("utf-8", "replace").strip() for each in (output, errors)]
            raise RequestError(": ".join([f"the program {how}", *filter(None, said)]))
        return _parsed(output)


def _about(request: ServedRequest) -> dict[str, str]:
    return {
        "INTERLOCK_REQUEST": request.id,
        "INTERLOCK_TASK": request.claim.task,
        "INTERLOCK_TOKEN": str(request.token),
        "INTERLOCK_FROM_SWARM": request.from_swarm,
        "INTERLOCK_FROM_AGENT": request.from_agent,
        "INTERLOCK_TASK_TYPE": request.task_type,
    }


async def _feed(process: Process, payload: bytes) -> None:
    """Write the payload; a program need not read it."""
    if process.stdin is None:
        return
    with suppress(ConnectionError):
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()


async def _pass_on(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Write a program's standard error to our own, and keep its end."""
    while part := await stream.read(65536):
        kept += part
        del kept[:-ERRORS_KEPT]
        with suppress(OSError):  # ours may be closed
            await asyncio.to_thread(os.write, 2, part)  # it may be full, and others go on


async def _limited(stream: asyncio.StreamReader) -> bytes:
    """All output, if it is not too large."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65536):
        size += len(part)
        if size > BODY_LIMIT:
            raise RequestError(f"the program printed more than {BODY_LIMIT} bytes")
        parts.append(part)
    return b"".join(parts)


def _parsed(output: bytes) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(output)
    except (ValueError, RecursionError):
        pass
    try:
        return output.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:  # a result with replaced characters would be a wrong one
        raise RequestError(
            "the program printed bytes that are no text; print JSON or UTF-8, or encode them"
        ) from None


async def _ended(process: Process) -> None:
    """End a program that still runs, and all that it started in its process group."""
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE)
    finally:  # also if a third signal does not wait for that
        _signal(process, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(process: Process, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signum)
