"""The declaration of agents, which are their sessions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from interlock.client_context import lapsed
from interlock.core import keys, outcomes
from interlock.nouns.agents import session_rules
from interlock.nouns.agents.log_rules import LogFile, LogLine, Uploaded
from interlock.nouns.agents.report_rules import Reported, Unreported
from interlock.nouns.messages.message import AgentResumed, PausedAgent, UnknownAgent
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

T = TypeVar("T")


class AgentJoin(Request, frozen=True, kw_only=True):
    """Begin a session that outlives this command."""

    ttl: Annotated[
        Duration, option("duration", "how long it lives after the last command that uses it")
    ] = session_rules.SHELL_TTL
    metadata: Annotated[Any, option("json", "JSON that others see beside the session")] = None
    can: Annotated[tuple[str, ...], option("names", "what it can do, such as rust,gpu")] = ()


class AgentLeave(Request, frozen=True, kw_only=True):
    """End this session."""


class AgentBeat(Request, frozen=True, kw_only=True):
    """Renew this session."""


class AgentStatus(Request, frozen=True, kw_only=True):
    """Say how this session stands, or show what it said last."""

    state: Annotated[
        str | None,
        option(
            "name",
            "idle, waiting, busy, or a word of your own such as building, which counts as busy;"
            " without any option the last report is shown",
            positional=True,
        ),
    ] = None
    can: Annotated[tuple[str, ...] | None, option("names", "what it can do, such as rust,gpu")] = (
        None
    )
    doing: Annotated[str | None, option("name", "what it is busy with, such as task/t1")] = None
    note: Annotated[str | None, option("text", "a short note for people")] = None


class AgentLogRequest(Request, frozen=True, kw_only=True):
    """The log of an agent: what is in it, or more for it."""

    name: Annotated[str, option("name", "an agent's name", positional=True)]
    limit: Annotated[int, option("int", "how many lines, counted from the last", least=1)] = 100
    follow: Annotated[bool, option("flag", "show new lines as they arrive, until stopped")] = False
    upload: Annotated[
        str | None,
        option("path", "add the lines of this file (- for stdin) to the log as they are written"),
    ] = None
    file: Annotated[
        str | None,
        option("path", "upload this whole file under its base name, in place of the last one"),
    ] = None
    read: Annotated[str | None, option("name", "show an uploaded file instead of the log")] = None
    files: Annotated[bool, option("flag", "list the uploaded files")] = False


class AgentsList(Request, frozen=True, kw_only=True):
    """All sessions."""


class AgentShow(Request, frozen=True, kw_only=True):
    """The sessions under one name."""

    name: Annotated[str, option("name", "an agent's name, or a session's id", positional=True)]


class AgentPause(Request, frozen=True, kw_only=True):
    """Let an agent send nothing."""

    name: Annotated[str, option("name", "an agent's name", positional=True)]
    reason: Annotated[str, option("text", "the reason, shown to the agent and to others")] = ""


class AgentResume(Request, frozen=True, kw_only=True):
    """Let an agent send again."""

    name: Annotated[str, option("name", "an agent's name", positional=True)]


class AgentAck(Request, frozen=True, kw_only=True):
    """Acknowledge that sessions ended without leaving."""

    name: Annotated[str, option("name", "an agent's name, or a session's id", positional=True)]


class AgentList(outcomes.Listing[session_rules.Agent], frozen=True, kw_only=True):
    """Sessions, by name, with what they hold; ``known`` are others that can be written to.

    ``paused`` are the agents that may not send, with a session or without.
    """

    listed = "agents"

    agents: tuple[session_rules.Agent, ...]
    known: tuple[str, ...] = ()
    paused: tuple[session_rules.SenderPause, ...] = ()


class AgentLog(outcomes.Listing[LogLine], frozen=True, kw_only=True):
    """The last lines that an agent uploaded."""

    listed = "lines"

    agent: str
    lines: tuple[LogLine, ...]


class LogFiles(outcomes.Listing[LogFile], frozen=True, kw_only=True):
    """The files that an agent uploaded."""

    listed = "files"

    agent: str
    files: tuple[LogFile, ...]


class NoLog(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """Nothing was uploaded under this name, or it is gone by now."""

    agent: str
    file: str = ""


class UnknownAgentName(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """There is no session under this name; ``paused`` and ``refusals`` are kept without one."""

    agent: str
    paused: session_rules.SenderPause | None = None
    refusals: Mapping[str, int] = {}


def living(outcome: T | session_rules.SessionLapsed) -> T:
    """The answer of a session that lives; one that is over is the same error for all commands."""
    if isinstance(outcome, session_rules.SessionLapsed):
        raise lapsed(outcome.session)
    return outcome


def _leave(fleet: "FleetCalls", _request: AgentLeave) -> "Op[session_rules.Left]":
    return living((yield from fleet.agents.leave()))


def _beat(fleet: "FleetCalls", _request: AgentBeat) -> "Op[session_rules.Renewed]":
    return living((yield from fleet.agents.beat()))


def _status(fleet: "FleetCalls", request: AgentStatus) -> "Op[Reported | Unreported]":
    outcome = yield from fleet.agents.status(
        request.state, can=request.can, doing=request.doing, note=request.note
    )
    if isinstance(outcome, session_rules.SessionLapsed):
        raise lapsed(outcome.session)
    return outcome


def _log(fleet: "FleetCalls", request: AgentLogRequest) -> "Op[AgentLog | LogFiles | NoLog]":
    agent, file = request.name, request.read
    if request.files:
        return LogFiles(agent=agent, files=(yield from fleet.agents.log_files(agent)))
    found = yield from fleet.agents.logged(agent, limit=request.limit, file=file)
    return AgentLog(agent=agent, lines=found) if found else NoLog(agent=agent, file=file or "")


def _list(fleet: "FleetCalls", _request: AgentsList) -> "Op[AgentList]":
    from interlock.nouns.agents.views import pauses
    from interlock.nouns.messages.presence import mailboxes

    found = yield from fleet.agents.list()
    here = {each.agent for each in found}
    known = [name for name in (yield from mailboxes()) if name not in here]
    paused = tuple((yield from pauses()).values())
    return AgentList(agents=found, known=tuple(sorted(known)), paused=paused)


def _show(fleet: "FleetCalls", request: AgentShow) -> "Op[AgentList | UnknownAgentName]":
    from interlock.nouns.agents.views import without_session

    found = yield from fleet.agents.show(request.name)
    if not found:
        pause, refusals = yield from without_session(request.name)
        return UnknownAgentName(agent=request.name, paused=pause, refusals=refusals)
    paused = {each.agent: each.paused for each in found}.values()
    return AgentList(agents=found, paused=tuple(filter(None, paused)))


def _pause(fleet: "FleetCalls", request: AgentPause) -> "Op[PausedAgent | UnknownAgent]":
    from interlock.nouns.messages.noun import hinted

    return (yield from hinted(fleet.agents.pause(request.name, request.reason)))


def _resume(fleet: "FleetCalls", request: AgentResume) -> "Op[AgentResumed | UnknownAgent]":
    from interlock.nouns.messages.noun import hinted

    return (yield from hinted(fleet.agents.resume(request.name)))


NOUN = Noun(
    name="agent",
    help="sessions of agents, their status and their logs",
    calls="interlock.nouns.agents.calls:AgentCalls",
    keys=(
        KeyKind(prefix=keys.SESSIONS, read="interlock.nouns.agents.session_service:decode_session"),
        KeyKind(prefix=keys.DEATHS, read="interlock.nouns.agents.session_service:decode_death"),
        KeyKind(
            prefix=keys.REPORTS,
            read="interlock.nouns.agents.report_service:decode_report",
            repair=DELETE,
        ),
        KeyKind(
            prefix=keys.ABLE,
            read="interlock.nouns.agents.report_service:capable_agent",
            repair=DELETE,
        ),
        KeyKind(prefix=keys.LOGBOOKS, read="interlock.nouns.agents.log_service:decode_logbook"),
        KeyKind(
            prefix=keys.LOGS, read="interlock.nouns.agents.log_service:decode_chunk", bulk=True
        ),
    ),
    why={"agent": "interlock.nouns.agents.why:agent"},
    health=Part(10, "interlock.nouns.agents.views:health"),
    gauges="interlock.nouns.agents.metrics:agent_gauges",
    housekeeping=Part(40, "interlock.nouns.agents.housekeeping:AgentHousekeepingPart"),
    texts=("interlock.nouns.agents.text",),
    operations=(
        Operation(
            name="agent join",
            help="begin a session for a shell, and print the line that sets it",
            request=AgentJoin,
            outcomes=(session_rules.Joined,),
            needs="agent",
            in_shell="interlock.faces.cli.agent:join",
            call="agents.join",
            examples=(
                'eval "$(interlock agent join --agent ada)"',
                'eval "$(interlock agent join --agent ada --can rust,gpu)"',
                'eval "$(interlock agent join)"',
            ),
        ),
        Operation(
            name="agent leave",
            help="end this session; its grants go to the first waiters",
            request=AgentLeave,
            outcomes=(session_rules.Left,),
            needs="session",
            in_shell="interlock.faces.cli.agent:leave",
            act=_leave,
            takes=True,
        ),
        Operation(
            name="agent beat",
            help="renew this session; every command that uses it renews it too",
            request=AgentBeat,
            outcomes=(session_rules.Renewed,),
            needs="session",
            aliases=("agent heartbeat",),
            act=_beat,
            takes=True,
        ),
        Operation(
            name="agent status",
            help="report the status and abilities of this session, or show its last report",
            request=AgentStatus,
            outcomes=(Reported, Unreported),
            needs="session",
            act=_status,
            takes=True,
            examples=(
                "interlock agent status busy --doing task/t1",
                "interlock agent status idle --can rust,gpu",
            ),
        ),
        Operation(
            name="agent log",
            help="show the log of an agent or a file of it, or upload lines or a file",
            request=AgentLogRequest,
            outcomes=(AgentLog, LogFiles, NoLog, Uploaded),
            lines=(LogLine,),
            needs="store",
            in_shell="interlock.faces.cli.agent:log",
            act=_log,
            examples=(
                "interlock agent log ada --follow",
                "python worker.py 2>&1 | interlock agent log ada --upload -",
                "interlock agent log ada --file build.log",
                "interlock agent log ada --read build.log",
            ),
        ),
        Operation(
            name="agent list",
            help="list all sessions, what they do and hold, and other agents that get mail",
            request=AgentsList,
            outcomes=(AgentList,),
            needs="store",
            reads=True,
            act=_list,
        ),
        Operation(
            name="agent show",
            help="show the sessions under one name",
            request=AgentShow,
            outcomes=(AgentList, UnknownAgentName),
            needs="store",
            reads=True,
            act=_show,
        ),
        Operation(
            name="agent pause",
            help="stop an agent from sending until it is resumed",
            request=AgentPause,
            outcomes=(PausedAgent, UnknownAgent),
            needs="agent",
            act=_pause,
            takes=True,
            examples=("interlock agent pause bob --reason 'it repeats itself' --agent ada",),
        ),
        Operation(
            name="agent resume",
            help="allow a paused agent to send again",
            request=AgentResume,
            outcomes=(AgentResumed, UnknownAgent),
            needs="agent",
            act=_resume,
            takes=True,
            examples=("interlock agent resume ada --agent maria",),
        ),
        Operation(
            name="agent ack",
            help="acknowledge dead sessions, so that health no longer shows them",
            request=AgentAck,
            outcomes=(session_rules.DeathsAcknowledged, session_rules.NoDeath),
            needs="agent",
            call="agents.ack",
            takes=True,
            examples=("interlock agent ack bob --agent maria",),
        ),
    ),
)
