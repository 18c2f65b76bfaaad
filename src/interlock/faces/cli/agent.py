"""``agent join`` and ``leave``, which change the environment of a shell, and ``agent log``.

The upload of a program's output must never end or delay that program: during an outage of the
store, lines are still read, and are kept up to a limit.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import IO, TYPE_CHECKING

from msgspec.structs import replace

from interlock.core.safe_text import foreign, quoted
from interlock.core.validate import command, quote
from interlock.errors import BadInput
from interlock.faces.cli.command import answer, note, stoppable, write_json
from interlock.faces.cli.connect import connected, speak_up
from interlock.faces.cli.parse import Parsed
from interlock.nouns.agents.log_rules import LogLine, Uploaded
from interlock.nouns.agents.noun import AgentJoin, AgentLog, AgentLogRequest, living
from interlock.runtime.text import lasting
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.agents.log_uploader import Uploader


def join(parsed: Parsed) -> int:
    """Begin a session that outlives this command."""
    request: AgentJoin = parsed.request
    with connected(parsed, anew=True) as fleet:
        # The session is that of the shell which asked: this command ends with its answer.
        joined = fleet.agents.join(
            ttl=request.ttl, metadata=request.metadata, can=request.can, pid=os.getppid()
        )
        if key := parsed.common.key:  # else the commands of the shell would not sign with it
            joined = replace(joined, key=os.path.abspath(key) if "/" in key else key)
        lives = f"lives {lasting(joined.expires_in)} after the last command"
        if joined.others and not parsed.common.json:
            many = "a session" if joined.others == 1 else f"{joined.others} sessions"
            note(
                f"{foreign(joined.agent)} is here already, with {many}: each is a holder of its"
                " own;"
                f" see {command(f'interlock agent show {quote(joined.agent)}')}"
            )
        if not parsed.common.json and sys.stderr.isatty():
            note(f"{foreign(joined.agent)} joined; {lives}")
            if sys.stdout.isatty():
                note('to set it in one go: eval "$(interlock agent join ...)"')
        try:
            return answer(parsed, joined)
        except OSError:  # no caller learned which session it is
            from interlock.runtime.identity import Actor

            context, actor = fleet.context, Actor(joined.agent, joined.session)
            drive(context.sessions.leave(actor), context.store)
            raise


def leave(parsed: Parsed) -> int:
    """End a session; a note says so if the shell still has it in its environment."""
    with connected(parsed) as fleet:
        outcome = living(fleet.agents.leave())
    status = answer(parsed, outcome)
    named = os.environ.get("INTERLOCK_SESSION") == outcome.session
    if named and not parsed.common.json and sys.stderr.isatty():  # a script knows
        note("the shell still names this session: unset INTERLOCK_SESSION")
    return status


def log(parsed: Parsed) -> int:
    """Show the log of an agent, follow it, or add to it."""
    request: AgentLogRequest = parsed.request
    if request.file is not None or request.read is not None or request.files:
        _alone(request)
    if request.file is not None:
        with connected(parsed) as fleet:
            uploaded = fleet.agents.log_file(request.file, name=request.name)
        return answer(parsed, uploaded)
    if request.upload is not None:
        return _upload(parsed, request, request.upload)
    with connected(parsed) as fleet:
        outcome = fleet.act(request)
        if not request.follow:
            return answer(parsed, outcome)
        stoppable()
        speak_up()
        _follow(parsed, fleet, outcome.lines if isinstance(outcome, AgentLog) else ())
    return 0


def _alone(request: AgentLogRequest) -> None:
    """Files are uploaded, read and listed one way at a time."""
    given = (request.file, request.read, request.upload, request.files or None)
    if sum(each is not None for each in given) > 1:
        raise BadInput("--file, --read, --files and --upload exclude each other; give one of them")
    if request.follow:
        raise BadInput("an uploaded file does not grow; leave --follow out")


def _follow(parsed: Parsed, fleet: Fleet, lines: tuple[LogLine, ...]) -> None:
    """Show these lines, and new ones as they come, without end."""
    name = parsed.request.name
    last = lines[-1].number if lines else 0
    _show(parsed, name, lines)
    from interlock.runtime.outage import OutageRetry

    outage = OutageRetry(fleet.context, "the log")
    with closing(fleet.agents.trail(name, last)) as trail:
        while True:
            _show(parsed, name, tuple(drive(outage.feed(trail.take, None), fleet.store)))


def _show(parsed: Parsed, agent: str, lines: tuple[LogLine, ...]) -> None:
    if parsed.common.json:
        for line in lines:
            write_json(line)
    elif lines:
        answer(parsed, AgentLog(agent=agent, lines=lines))


def _upload(parsed: Parsed, request: AgentLogRequest, path: str) -> int:
    if request.follow:
        raise BadInput("--upload reads until the end of its input; leave --follow out")
    with _opened(path) as file, connected(parsed) as fleet:
        stoppable()
        speak_up()
        uploader = fleet.agents.uploader(request.name)
        try:
            count = _read(file, uploader)
        finally:
            drive(uploader.drain(), fleet.store)
    return answer(parsed, Uploaded(agent=request.name, lines=count))


def _opened(path: str) -> IO[bytes]:
    try:
        return open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-")
    except (OSError, ValueError) as error:
        raise BadInput(f"{quoted(path)} cannot be read ({error}); name a file, or -") from None


def _read(file: IO[bytes], uploader: Uploader) -> int:
    from interlock.nouns.agents.log_service import LONGEST

    count = 0
    while line := file.readline(LONGEST):
        uploader.wait_for_room()
        uploader.add(line.decode("utf-8", "replace"))
        count += 1
    return count
