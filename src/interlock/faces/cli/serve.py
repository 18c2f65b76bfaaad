"""``request serve``: a program for each request of another swarm, several at once.

The program gets the payload as JSON on its standard input.  If it ends with status 0, its standard
output is the result: JSON, or else text.  Any other status is an answer with an error, which has
what the program printed to its standard output, and the end of its standard error.  That also goes
to the standard error of this command.  ``program.py`` says what its environment has for every task;
for a request it also has

    INTERLOCK_REQUEST     the id of the request, which every attempt to carry it out has
    INTERLOCK_FROM_SWARM, INTERLOCK_FROM_AGENT, INTERLOCK_TASK_TYPE

Execution is at least once: a host may fail after the work and before the commit.  A program that
must not have its effect twice stores the id of the request with what it changes.

A claim that is lost ends its program, and so does the end of this command.  The first signal lets
the programs finish; the second one ends them with all that they started, and releases the claims.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core import validate
from interlock.core.safe_text import foreign
from interlock.faces.cli.command import note
from interlock.faces.cli.connect import CommandIdentity
from interlock.faces.cli.parse import Parsed
from interlock.faces.cli.program import ClaimedProgram, broken_off, connected, require_program
from interlock.nouns.requests.serving import RequestError
from interlock.nouns.swarms.head import BODY_LIMIT
from interlock.runtime.processes.supervised import Capture
from interlock.steps import drive_async

if TYPE_CHECKING:
    from interlock.nouns.requests.noun import RequestServe
    from interlock.nouns.requests.serving import ServedRequest

ERRORS_KEPT = 2000
"""Bytes of a program's standard error that its asker gets, the last ones."""
OUTPUTS = (Capture(kept=BODY_LIMIT, most=BODY_LIMIT), Capture(kept=ERRORS_KEPT, passed=2))


def serve(parsed: Parsed) -> int:
    """Carry out requests until a signal or a message asks to stop."""
    request: RequestServe = parsed.request
    if status := require_program(parsed):
        return status
    try:
        return asyncio.run(_serve(parsed, request))
    except asyncio.CancelledError as error:  # by a second signal, or a second message
        note("the programs were ended, and their requests wait for another worker")
        return broken_off(error)


async def _serve(parsed: Parsed, request: RequestServe) -> int:
    identity = CommandIdentity(parsed.common)
    limit = None if request.timeout is None else validate.duration(request.timeout, "timeout")
    async with await connected(parsed, identity) as fleet:
        await drive_async(fleet.context.requests.begin(fleet.context.me().actor), fleet.store)
        program = ClaimedProgram(fleet, identity, request.command, outputs=OUTPUTS, limit=limit)
        note(f"serving as {foreign(str(fleet.context.agent))}; stop with Ctrl-C")
        await fleet.requests.serve(
            lambda each: _run(program, each),
            can=request.can,
            concurrency=request.jobs,
            ttl=request.ttl,
        )
    return 0


async def _run(program: ClaimedProgram, request: ServedRequest) -> Any:  # noqa: ANN401 - any JSON
    """The result of one run; RequestError if it fails."""
    ended = await program.run(request.claim, msgspec.json.encode(request.payload), _about(request))
    why = program.failure(ended)
    if not why:
        return _parsed(ended.out.head)
    if ended.how == "ended":
        parts = (ended.out.head, (ended.err.head + ended.err.tail)[-ERRORS_KEPT:])
        said = [each.decode("utf-8", "replace").strip() for each in parts]
        why = ": ".join([why, *filter(None, said)])
    elif ended.how == "not started":
        note(f"{why}; check its name, PATH and rights")
    raise RequestError(why)


def _about(request: ServedRequest) -> dict[str, str]:
    return {
        "INTERLOCK_REQUEST": request.id,
        "INTERLOCK_FROM_SWARM": request.from_swarm,
        "INTERLOCK_FROM_AGENT": request.from_agent,
        "INTERLOCK_TASK_TYPE": request.task_type,
    }


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
