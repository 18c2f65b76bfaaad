"""The declaration of messages: keys, operations that send, and answers to questions."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import UNSET
from msgspec.structs import asdict, replace

from interlock.core import keys
from interlock.core.outcomes import GivenFenced, always
from interlock.core.validate import ALL_AGENTS
from interlock.errors import BadInput, StoreTrouble
from interlock.nouns.messages import message
from interlock.nouns.messages import query as queries
from interlock.runtime.noun import DELETE, KeyKind, Noun, Part
from interlock.runtime.operation import MOST_BODY, Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

T = TypeVar("T")

Type = Annotated[
    str, option("name", "the type of the alert, such as build/failed", positional=True)
]
Query = Annotated[str, option("name", "the id of the question: qry_...", positional=True)]
Urgent = Annotated[bool, option("flag", "deliver it before messages that are not urgent")]
Hold = Annotated[bool, option("flag", "keep it for an agent that has not joined yet")]
Id = Annotated[str | None, option("name", "its id: a repeated call with it sends nothing twice")]
Text = Annotated[str | None, option("body", "the text", positional=True)]
Data = Annotated[Any, option("json", "JSON instead of a text")]
_ALL_AGENTS_WORDS = frozenset({ALL_AGENTS, "everybody", "everyone"})
"""Words that people write for all agents."""


class AlertSend(Request, frozen=True, kw_only=True):
    """Send an alert to its subscribers."""

    type: Type
    data: Annotated[Any, option("json", "the data: JSON", positional=True)] = None
    urgent: Urgent = False
    id: Id = None
    given: Given = ()


class QueryAsk(Request, frozen=True, kw_only=True):
    """Ask, and wait for the answer."""

    who: Annotated[
        str, option("name", "an agent, or '?rust' for any agent that can do rust", positional=True)
    ]
    text: Text = None
    data: Data = UNSET
    timeout: Annotated[
        Duration | None,
        option("duration", "how long to wait for the answer; 30s unless set", waits=True),
    ] = None
    cached: Annotated[
        Duration | None, option("duration", "accept an answer to the same question up to this age")
    ] = None
    hold: Annotated[
        bool, option("flag", "keep it for an agent that is away or has not joined yet")
    ] = False
    person: Annotated[bool, option("flag", "ask a person if no agent answers")] = False
    type: Annotated[
        str, option("name", "what kind of question it is; [query.timeouts] sets how long to wait")
    ] = ""
    urgent: Urgent = False
    id: Annotated[
        str | None, option("name", "its id: a repeated call with it waits for the same answer")
    ] = None
    given: Given = ()


class QueryReply(Request, frozen=True, kw_only=True):
    """Answer a question, or a message by its id."""

    id: Annotated[str, option("name", "the id of the question or message", positional=True)]
    text: Text = None
    data: Data = UNSET
    can: Annotated[
        tuple[str, ...],
        option("names", "your abilities, for a question to one; default: as your session reports"),
    ] = ()
    given: Given = ()


class QueryCancel(Request, frozen=True, kw_only=True):
    """Cancel a question."""

    id: Query
    given: Given = ()


class MessageShare(Request, frozen=True, kw_only=True):
    """Send data to an agent."""

    who: Annotated[str, option("name", "an agent", positional=True)]
    type: Annotated[str, option("name", "what kind of data it is", positional=True)]
    data: Annotated[Any, option("json", "JSON, up to 1 MiB", positional=True)] = None
    file: Annotated[
        str | None, option("path", "a file that both can reach: its path and digest go with it")
    ] = None
    urgent: Urgent = False
    hold: Hold = False
    id: Id = None
    given: Given = ()


class MessageStop(Request, frozen=True, kw_only=True):
    """Ask an agent to end."""

    who: Annotated[str, option("name", "an agent", positional=True)]
    reason: Annotated[str, option("text", "the reason, shown to others", positional=True)] = ""
    id: Id = None
    given: Given = ()


class MessageSend(Request, frozen=True, kw_only=True):
    """Send mail."""

    who: Annotated[
        tuple[str, ...],
        option("names", "an agent, several, or all; then the body", positional=True),
    ]
    body: Annotated[str, option("body", "the text", positional=True)]
    subject: Annotated[str, option("text", "what it is about, in a line")] = ""
    type: Annotated[str, option("name", "a word to find it by")] = ""
    thread: Annotated[str, option("name", "the thread that it belongs to")] = ""
    reply_to: Annotated[str, option("name", "the id of the mail that it answers")] = ""
    urgent: Urgent = False
    hold: Hold = False
    id: Id = None
    given: Given = ()


class SentUnsubscribed(message.Sent, frozen=True, kw_only=True, tag="sent"):
    """The alert is kept; its type has no subscriber yet.

    ``close`` are subscribed types with a similar name.
    """

    unheard: Literal[True] = always(word=True)
    close: tuple[str, ...] = ()


def said(text: str | None, data: object) -> object:
    """The body: a text, or JSON."""
    if text is None and data is UNSET:
        raise BadInput("say what: write a text, or give --data JSON")
    if text is not None and data is not UNSET:
        raise BadInput("a text or --data JSON, not both: leave one of them out")
    return data if text is None else text


def hinted(op: "Op[T]") -> "Op[T]":
    """An outcome that names, for an unknown agent, known agents with similar names."""
    return (yield from close_names((yield from op)))


def close_names(outcome: T) -> "Op[T]":
    """The outcome with known names similar to the unknown ones."""
    if not isinstance(outcome, message.UnknownAgent):
        return outcome
    from interlock.nouns.messages.presence import similar_names

    return replace(outcome, close=(yield from similar_names(outcome.unknown)))


def _with_subscribers(sent: message.SendOutcome) -> "Op[message.SendOutcome]":
    """The outcome of an alert, marked if its type has no subscriber: it may be misspelled."""
    from interlock.core.validate import closest_names
    from interlock.nouns.messages.inbox_service import subscribed_types

    if not isinstance(sent, message.Sent):
        return sent
    try:
        types = yield from subscribed_types()
    except StoreTrouble:  # the alert is sent anyway
        return sent
    if sent.type in types:
        return sent
    return SentUnsubscribed(**asdict(sent), close=tuple(closest_names(sent.type, sorted(types))))


def _query(fleet: "FleetCalls", request: QueryAsk) -> "Op[queries.AskOutcome]":
    op = fleet.messages.query(
        request.who,
        said(request.text, request.data),
        timeout=request.timeout,
        cached=request.cached,
        hold=request.hold,
        person=request.person,
        type=request.type,
        urgent=request.urgent,
        id=request.id,
    )
    return (yield from hinted(op))


def _reply(fleet: "FleetCalls", request: QueryReply) -> "Op[queries.ReplyOutcome]":
    return fleet.messages.reply(request.id, said(request.text, request.data), can=request.can)


def _own_query(outcome: queries.CancelOutcome) -> "Op[queries.CancelOutcome]":
    """The outcome of a call on the caller's own question."""
    yield from ()
    if isinstance(outcome, queries.Late | queries.UnknownQuery):
        return replace(outcome, mine=True)
    return outcome


def _without_hold(outcome: message.StopOutcome) -> "Op[message.StopOutcome]":
    """A stop cannot be kept for an agent that joins later."""
    outcome = yield from close_names(outcome)
    return replace(outcome, hold=False) if isinstance(outcome, message.UnknownAgent) else outcome


def _send(fleet: "FleetCalls", request: MessageSend) -> "Op[message.SendOutcome]":
    outcome = yield from fleet.messages.send(
        request.who,
        request.body,
        subject=request.subject,
        type=request.type,
        thread=request.thread,
        reply_to=request.reply_to,
        urgent=request.urgent,
        hold=request.hold,
        id=request.id,
    )
    first, *others = request.who
    if isinstance(outcome, message.UnknownAgent) and others and first not in outcome.unknown:
        outcome = replace(outcome, unquoted=others[-1] in outcome.unknown)
    if isinstance(outcome, message.UnknownAgent) and _ALL_AGENTS_WORDS.intersection(
        each.casefold() for each in outcome.unknown
    ):
        return replace(outcome, close=(ALL_AGENTS,))
    return (yield from close_names(outcome))


_LIMITS = (message.Limited, message.Halted)
_DIRECT = (message.Sent, message.MessageExists, message.UnknownAgent, message.InboxFull, *_LIMITS)
_ANSWERS = (
    queries.QueryAnswered, queries.TimedOut, queries.TakenBack, queries.NobodyToAsk, queries.Handed,
    queries.QueryDeadlock, queries.QueryExists, message.UnknownAgent, queries.TooMany,
    message.InboxFull, *_LIMITS,
)  # fmt: skip

_BULK = (keys.READ, keys.SENT, keys.ANSWERS, keys.RATES)
_REPAIRS = {
    keys.UNREAD: "interlock.nouns.messages.decode:repair_unread",
    keys.READ: "interlock.nouns.messages.decode:repair_mark",
    keys.SENT: "interlock.nouns.messages.decode:repair_mark",
    keys.MAILBOXES: "interlock.nouns.messages.decode:repair_mailbox",
    keys.OPEN: "interlock.nouns.messages.decode:repair_open_query",
    keys.ASKING: DELETE,
    keys.ANSWERS: DELETE,
    keys.RATES: DELETE,
}

NOUN = Noun(
    name="message",
    help="delivered until they are acknowledged",
    group="messages",
    calls="interlock.nouns.messages.calls:MessageCalls",
    blocking="interlock.client_messages:Messages",
    awaiting="interlock.aio_messages:Messages",
    keys=(
        *(
            KeyKind(
                prefix=prefix,
                read="interlock.nouns.messages.decode:examine",
                repair=_REPAIRS.get(prefix, ""),
                bulk=prefix in _BULK,
            )
            for prefix in keys.MESSAGE_FOLDERS
            if prefix not in (keys.SERVING, keys.DECISIONS)
        ),
        KeyKind(
            prefix=keys.SERVING,
            read="interlock.nouns.messages.presence:liveness_key",
            repair=DELETE,
        ),
    ),
    why={
        "query": "interlock.nouns.messages.why:query",
        "message": "interlock.nouns.messages.why:message",
    },
    ids={"query": "qry_", "message": "msg_"},
    health=Part(40, "interlock.nouns.messages.health:health"),
    gauges="interlock.nouns.messages.metrics:message_gauges",
    housekeeping=Part(50, "interlock.nouns.messages.retention:MessageHousekeepingPart"),
    history="interlock.nouns.messages.history:MessageHistory",
    waits={keys.QUERIES: "interlock.nouns.messages.wait_targets:wait_targets"},
    texts=("interlock.nouns.messages.text",),
    operations=(
        Operation(
            name="alert",
            help="send an alert to all subscribers of a type, in one commit",
            request=AlertSend,
            outcomes=(message.Sent, SentUnsubscribed, message.MessageExists, *_LIMITS, GivenFenced),
            needs="agent",
            call="messages.alert",
            then=_with_subscribers,
            examples=('interlock alert build/failed \'{"branch": "main"}\' --agent ada',),
        ),
        Operation(
            name="query",
            help="ask an agent or an ability, and wait for the answer",
            request=QueryAsk,
            outcomes=(*_ANSWERS, GivenFenced),
            most_body=2 * MOST_BODY,
            needs="agent",
            in_shell="interlock.faces.cli.message:query",
            act=_query,
            examples=(
                'interlock query bob "API base URL?" --agent ada --timeout 30s',
                "interlock query '?rust' 'which edition?' --cached 1h --person --agent ada",
            ),
        ),
        Operation(
            name="reply",
            help="answer a question or a message, which also acknowledges it",
            request=QueryReply,
            outcomes=(
                queries.Replied,
                queries.Late,
                queries.NotAsked,
                queries.UnknownQuery,
                message.UnknownMessages,
                *_DIRECT,
                GivenFenced,
            ),
            most_body=2 * MOST_BODY,
            needs="agent",
            act=_reply,
            takes=True,
            examples=('interlock reply qry_12 "https://example.org/v2" --agent bob',),
        ),
        Operation(
            name="cancel",
            help="cancel your question",
            request=QueryCancel,
            outcomes=(
                queries.QueryCancelled,
                queries.Late,
                queries.NotAsked,
                queries.UnknownQuery,
                GivenFenced,
            ),
            needs="agent",
            call="messages.cancel",
            then=_own_query,
            takes=True,
            examples=("interlock cancel qry_12 --agent ada",),
        ),
        Operation(
            name="share",
            help="send data of a type to an agent",
            request=MessageShare,
            outcomes=(*_DIRECT, GivenFenced),
            needs="agent",
            call="messages.share",
            then=close_names,
            examples=(
                "interlock share bob schema @schema.json --agent ada",
                "interlock share bob report --file build/report.html --agent ada",
            ),
        ),
        Operation(
            name="stop",
            help="ask an agent to stop: it finishes its step and exits",
            request=MessageStop,
            outcomes=(*_DIRECT, message.NobodyToStop, GivenFenced),
            needs="agent",
            call="messages.stop",
            then=_without_hold,
            examples=("interlock stop bob 'the plan has changed' --agent ada",),
        ),
        Operation(
            name="send",
            help="send mail to one agent, to several or to all; the last word is the body",
            request=MessageSend,
            outcomes=(*_DIRECT, GivenFenced),
            most_body=2 * MOST_BODY,
            needs="agent",
            act=_send,
            examples=(
                "interlock send bob cy --subject 'Review, please' 'On branch fix.' --agent ada",
                "git diff | interlock send all --subject 'What I changed' - --agent ada",
            ),
        ),
    ),
)
