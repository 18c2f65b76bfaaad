"""The declaration of requests: operations, texts, keys, housekeeping."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeAlias, get_args

from interlock.core import keys
from interlock.core.outcomes import GivenFenced
from interlock.nouns.requests import outcomes as out
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import Duration, Given, Operation, Request, option

Names: TypeAlias = tuple[str, ...]
Id: TypeAlias = Annotated[
    str, option("name", "the request: its id, or the one that was chosen", positional=True)
]
_MODULE = "interlock.nouns.requests"
_READ = f"{_MODULE}.exchange"


class RequestSend(Request, frozen=True, kw_only=True):
    """Ask another swarm."""

    swarm: Annotated[
        str, option("text", "the swarm to ask, or * for any that can do it", positional=True)
    ]
    to: Annotated[
        str,
        option(
            "text",
            "its agent, can:X for any agent with that ability, or * for all",
            positional=True,
        ),
    ]
    payload: Annotated[
        Any,
        option("json", "what it gets: JSON, up to 1 MiB", positional=True),
    ] = None
    type: Annotated[str, option("name", "the type of the task")] = "task"
    priority: Annotated[int, option("int", "a higher number comes first", least=1, most=10)] = 5
    timeout: Annotated[
        Duration, option("duration", "how long an answer may take; longer counts against the swarm")
    ] = 30.0
    deadline: Annotated[
        str | None,
        option("text", "not carried out after that: 2h from now, or a time; 24h unless set"),
    ] = None
    wait: Annotated[
        Duration,
        option(
            "duration", "wait for the result; the request goes on if it takes longer", waits=True
        ),
    ] = 0
    id: Annotated[
        str | None, option("name", "a name for it: a repeated call with it sends nothing twice")
    ] = None
    act: Annotated[str, option("text", "request, inform or escalate")] = "request"
    correlation: Annotated[str, option("text", "an id that joins it with other messages")] = ""
    reply_to: Annotated[
        str | None, option("name", "the agent that the result is for; you unless set")
    ] = None
    confidence: Annotated[
        Any, option("json", "how sure you are of the payload, 0 to 1; it is passed on")
    ] = None
    citations: Annotated[Names, option("names", "sources of the payload, which are passed on")] = ()
    no_notice: Annotated[bool, option("flag", "send no message when the result is there")] = False
    given: Given = ()


class RequestResult(Request, frozen=True, kw_only=True):
    """The result of a request."""

    request: Id
    wait: Annotated[Duration, option("duration", "wait for it, for so long", waits=True)] = 0


class RequestCancel(Request, frozen=True, kw_only=True):
    """End a request."""

    request: Id
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""
    given: Given = ()


class RequestsList(Request, frozen=True, kw_only=True):
    """Requests by id."""

    state: Annotated[
        Names,
        option(
            "names",
            "only in these states: open, escalated, answered, cancelled; of those received:"
            " received, running, answered, acknowledged",
        ),
    ] = ()
    received: Annotated[bool, option("flag", "those that other swarms sent to us")] = False
    swarm: Annotated[str | None, option("name", "only to, or from, this swarm")] = None
    after: Annotated[
        str | None, option("name", "start after this id; of those received: ID@SWARM")
    ] = None
    limit: Annotated[int, option("int", "how many to list at most", least=1, most=10_000)] = 100


class RequestAudit(Request, frozen=True, kw_only=True):
    """What happened between swarms on a day."""

    day: Annotated[str, option("text", "2026-11-16, today or yesterday; in UTC")] = "today"
    action: Annotated[
        str | None, option("text", "only with this action: SHARE, HOLD or ESCALATE")
    ] = None
    swarm: Annotated[str | None, option("name", "only from, or to, this swarm")] = None
    request: Annotated[str | None, option("name", "only of this request, by its id")] = None
    limit: Annotated[int, option("int", "how many to list at most", least=1, most=10_000)] = 100
    out: Annotated[
        str | None, option("path", "bring the daily files in this folder up to date instead")
    ] = None


class RequestServe(Request, frozen=True, kw_only=True):
    """Carry out requests of other swarms with a program, and keep this swarm on its bus."""

    exit_words: ClassVar[dict[int, str]] = {
        0: "asked to stop",
        126: "the program cannot be run",
        127: "there is no such program",
    }

    can: Annotated[
        Names, option("names", "abilities: requests for these, and those for you by name")
    ] = ()
    jobs: Annotated[int, option("int", "how many programs run at once", least=1, most=1000)] = 1
    timeout: Annotated[Duration | None, option("duration", "end a program that takes longer")] = (
        None
    )
    ttl: Annotated[
        Duration,
        option("duration", "how long a claim lives if this command dies; then another one begins"),
    ] = 60.0
    command: Annotated[Names, option("command", "the program, after --", positional=True)] = ()


def _send(fleet: Any, request: RequestSend) -> Any:  # noqa: ANN401
    return fleet.requests.send(
        request.swarm,
        request.to,
        request.payload,
        type=request.type,
        priority=request.priority,
        timeout=request.timeout,
        deadline=request.deadline,
        wait=request.wait,
        id=request.id,
        act=request.act,
        correlation=request.correlation,
        reply_to=request.reply_to,
        confidence=request.confidence,
        citations=request.citations,
        notice=not request.no_notice,
    )


def _audit(fleet: Any, request: RequestAudit) -> Any:  # noqa: ANN401
    if request.out is not None:
        return fleet.requests.write_audit(request.out)
    return fleet.requests.audit(
        request.day,
        action=request.action,
        swarm=request.swarm,
        request=request.request,
        limit=request.limit,
    )


NOUN = Noun(
    name="request",
    help="work that agents ask of other swarms, signed and answered once",
    calls=f"{_MODULE}.calls:RequestCalls",
    blocking="interlock.client_requests:Requests",
    awaiting="interlock.aio_requests:Requests",
    keys=(
        KeyKind(prefix=keys.REQUESTS, read=f"{_READ}:decode_request"),
        KeyKind(prefix=keys.REQUEST_BODIES, read=f"{_READ}:examine", bulk=True),
        KeyKind(prefix=keys.REQUEST_NAMES, read=f"{_READ}:decode_name"),
        KeyKind(prefix=keys.REQUEST_DUE, read=f"{_READ}:examine"),
        KeyKind(prefix=keys.ESCALATED, read=f"{_READ}:examine"),
        KeyKind(prefix=keys.OUTBOX, read=f"{_READ}:decode_outbox"),
        KeyKind(prefix=keys.RECEIVED, read=f"{_READ}:decode_received"),
        KeyKind(prefix=keys.UNANSWERED, read=f"{_READ}:examine"),
        KeyKind(prefix=keys.UNACKNOWLEDGED, read=f"{_MODULE}.acknowledgements:decode_mark"),
        KeyKind(prefix=keys.SEEN, read=f"{_READ}:decode_seen", bulk=True),
        KeyKind(prefix=keys.FINDINGS, read=f"{_READ}:decode_finding"),
        # Without these a peer is unknown again; damaged ones would stop all requests to it.
        KeyKind(prefix=keys.REQUEST_RATES, read=f"{_READ}:decode_rate", repair=DELETE),
        KeyKind(prefix=keys.PEER_COUNTS, read=f"{_READ}:decode_counts", repair=DELETE),
        KeyKind(
            prefix=keys.REQUEST_REFUSALS,
            read=f"{_MODULE}.refusal_rules:decode_tally",
            repair=DELETE,
        ),
        KeyKind(
            prefix=keys.REQUESTS_REFUSED,
            read=f"{_MODULE}.refusal_rules:decode_refused",
            repair=DELETE,
        ),
        KeyKind(prefix=keys.BREAKERS, read=f"{_READ}:decode_breaker", repair=DELETE),
        KeyKind(prefix=keys.REPUTATIONS, read=f"{_READ}:decode_reputation", repair=DELETE),
    ),
    ids={"request": "req_"},
    why={"request": f"{_MODULE}.why:request"},
    health=Part(46, f"{_MODULE}.health:health"),
    history=f"{_MODULE}.history:RequestHistory",
    related=f"{_MODULE}.history:related",
    housekeeping=Part(25, f"{_MODULE}.housekeeping:RequestHousekeepingPart"),
    events=True,
    metrics=f"{_MODULE}.metrics:RequestMetrics",
    gauges=f"{_MODULE}.metrics:request_gauges",
    texts=(f"{_MODULE}.text",),
    operations=(
        Operation(
            name="request send",
            help="ask another swarm; with --wait, print the result",
            request=RequestSend,
            outcomes=(*get_args(out.SendRequestOutcome), GivenFenced),
            needs="agent",
            act=_send,
            examples=(
                'interlock request send bank can:audit \'{"file": "q3.csv"}\' --wait 30s',
                "interlock request send '*' can:audit @report.json",
                "interlock request send bank bob @report.json --type review --id q3",
            ),
        ),
        Operation(
            name="request result",
            help="print the result of a request, or wait for it",
            request=RequestResult,
            outcomes=get_args(out.ResultOutcome),
            needs="agent",
            call="requests.result",
            takes=True,
            examples=("interlock request result nightly --wait 10m",),
        ),
        Operation(
            name="request list",
            help="list requests to other swarms, or those received from them",
            request=RequestsList,
            outcomes=(out.RequestList,),
            needs="store",
            reads=True,
            pages=True,
            call="requests.list",
            examples=(
                "interlock request list --state open,escalated",
                "interlock request list --received --state running",
            ),
        ),
        Operation(
            name="request cancel",
            help="end a request; the other swarm may still do the work",
            request=RequestCancel,
            outcomes=(out.RequestCancelled, out.RequestOver, out.UnknownRequest, GivenFenced),
            needs="agent",
            call="requests.cancel",
            takes=True,
        ),
        Operation(
            name="request audit",
            help="list what happened between swarms on a day, or write daily files of it",
            request=RequestAudit,
            outcomes=(out.AuditList, out.AuditWritten, out.AuditBusy),
            needs="store",
            reads=True,
            act=_audit,
            examples=(
                "interlock request audit --day yesterday --action HOLD",
                "interlock request audit --out /var/log/interlock",
            ),
        ),
        Operation(
            name="request serve",
            help="run a program for each request: payload on stdin, result from stdout",
            request=RequestServe,
            outcomes=(),
            needs="agent",
            in_shell="interlock.faces.cli.serve:serve",
            examples=("interlock request serve --can audit --jobs 4 -- ./audit.sh",),
        ),
    ),
)
