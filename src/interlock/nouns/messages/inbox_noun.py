"""The declaration of the inbox: subscriptions, acknowledging, waiting."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field
from msgspec.structs import asdict, replace

from interlock.core import validate
from interlock.core.outcomes import GivenFenced, Listing
from interlock.errors import BadInput
from interlock.nouns.messages import message
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.nouns.fleet.calls import FleetCalls
    from interlock.steps import Op

Type = Annotated[
    str, option("name", "the type of the alert, such as build/failed", positional=True)
]
_NAMED = 8
"""How many known agents are named to a new one."""
Can = Annotated[
    tuple[str, ...],
    option("names", "also questions to this ability; default: as your session reports"),
]


class AlertSubscribe(Request, frozen=True, kw_only=True):
    """Subscribe to alerts."""

    type: Annotated[
        str | None, option("name", "the type of the alert, such as build/failed", positional=True)
    ] = None
    senders: Annotated[tuple[str, ...], option("names", "only from these agents")] = field(
        name="from", default=()
    )
    where: Annotated[
        dict[str, Any], option("values", "only if this field of the data has this value")
    ] = field(default_factory=dict)
    last: Annotated[
        int, option("int", "also this number of earlier ones", most=message.SHOWN_LIMIT)
    ] = 0
    follow: Annotated[bool, option("flag", "print and acknowledge them as they arrive")] = False
    list: Annotated[bool, option("flag", "list your subscriptions instead")] = False
    given: Given = ()


class AlertUnsubscribe(Request, frozen=True, kw_only=True):
    """End a subscription."""

    type: Type
    given: Given = ()


class InboxShow(Request, frozen=True, kw_only=True):
    """List messages."""

    ack: Annotated[bool, option("flag", "acknowledge the listed messages but questions")] = False
    all: Annotated[bool, option("flag", "all kept messages, read or not")] = False
    sent: Annotated[bool, option("flag", "the mail that you sent")] = False
    kind: Annotated[str | None, option("name", f"only these: {', '.join(message.KINDS)}")] = None
    senders: Annotated[tuple[str, ...], option("names", "only from these agents")] = field(
        name="from", default=()
    )
    type: Annotated[str, option("name", "only of this type")] = ""
    thread: Annotated[str, option("name", "a whole thread, read or not")] = ""
    search: Annotated[str, option("text", "only with this text in it")] = ""
    limit: Annotated[
        int, option("int", "how many to list at most", least=1, most=message.SHOWN_LIMIT)
    ] = 100
    can: Can = ()


class MessageAck(Request, frozen=True, kw_only=True):
    """Acknowledge messages."""

    id: Annotated[
        tuple[str, ...],
        option("names", "ids of messages; 'inbox --ack' is for all at once", positional=True),
    ]
    can: Can = ()
    given: Given = ()


class MessageWait(Request, frozen=True, kw_only=True):
    """Wait for a message."""

    timeout: Annotated[
        Duration | None, option("duration", "how long to wait; default: no limit", forever=True)
    ] = None
    can: Can = ()


class InboxAcknowledged(
    message.Inbox, frozen=True, kw_only=True, tag_field="outcome", tag="acknowledged"
):
    """Messages that were listed and then acknowledged; ``stays`` questions were not."""


class SubscriptionList(Listing[message.SubscriptionView], frozen=True, kw_only=True):
    """The subscriptions of an agent, by type."""

    listed = "subscriptions"

    agent: str
    subscriptions: tuple[message.SubscriptionView, ...]


def subscribed_type(request: AlertSubscribe) -> str:
    """The type to subscribe to; empty to list subscriptions."""
    if request.list and request != AlertSubscribe(list=True):
        raise BadInput("--list shows all your subscriptions; leave the others out")
    if not request.list and request.type is None:
        raise BadInput("TYPE is missing; name a type of alerts, or --list your subscriptions")
    return request.type or ""


def _subscribe(
    fleet: "FleetCalls", request: AlertSubscribe
) -> "Op[message.Subscribed | SubscriptionList | GivenFenced]":
    type_ = subscribed_type(request)
    if request.list:
        you = fleet.context.me().actor.agent
        found = yield from fleet.messages.subscriptions()
        return SubscriptionList(agent=you, subscriptions=found)
    op = fleet.messages.subscribe(
        type_, senders=request.senders, where=request.where, last=request.last
    )
    return (yield from op)


def list_inbox(fleet: "FleetCalls", request: InboxShow) -> "Op[message.Inbox]":
    """The messages to list; nothing is acknowledged."""
    if request.ack and (request.all or request.sent):
        raise BadInput("--ack is for unread messages; leave --all and --sent out")
    found = yield from fleet.messages.inbox(
        all=request.all,
        sent=request.sent,
        kind=request.kind,
        sender=request.senders,
        type=request.type,
        thread=request.thread,
        search=request.search,
        limit=request.limit,
        can=request.can or None,
    )
    if request.ack:
        stays = len(found.messages) - len(_ids_to_acknowledge(found))
        found = InboxAcknowledged(**asdict(replace(found, stays=stays)))
    return (yield from introduced(found))


def introduced(found: message.Inbox) -> "Op[message.Inbox]":
    """An inbox that names known agents to a new one: it may be misspelled."""
    if not found.new:
        return found
    from interlock.nouns.messages.presence import mailboxes

    others = [name for name in (yield from mailboxes()) if name != found.agent]
    some = dict.fromkeys([*validate.closest_names(found.agent, others), *others])
    return replace(found, agents=tuple(some)[:_NAMED])


def acknowledge_listed(fleet: "FleetCalls", request: InboxShow, found: message.Inbox) -> "Op[None]":
    """Acknowledge the listed messages, if requested; a question waits for its answer."""
    if request.ack and (ids := _ids_to_acknowledge(found)):
        yield from fleet.messages.ack(*ids, can=request.can or None)


def _ids_to_acknowledge(found: message.Inbox) -> list[str]:
    return [each.id for each in found.messages if each.kind != "query"]


def _inbox(fleet: "FleetCalls", request: InboxShow) -> "Op[message.Inbox]":
    found = yield from list_inbox(fleet, request)
    yield from acknowledge_listed(fleet, request, found)
    return found


def _ack(
    fleet: "FleetCalls", request: MessageAck
) -> "Op[message.Acknowledged | message.UnknownMessages | GivenFenced]":
    return fleet.messages.ack(*request.id, can=request.can or None)


def _wait(
    fleet: "FleetCalls", request: MessageWait
) -> "Op[message.Arrived | message.NothingUnread]":
    patience = validate.FOREVER if request.timeout is None else request.timeout
    return fleet.messages.wait(patience, can=request.can or None)


NOUN = Noun(
    name="inbox",
    group="messages",
    texts=("interlock.nouns.messages.text",),
    operations=(
        Operation(
            name="subscribe",
            help="receive alerts of a type, across restarts",
            request=AlertSubscribe,
            outcomes=(message.Subscribed, SubscriptionList, GivenFenced),
            lines=(message.Received,),
            needs="agent",
            in_shell="interlock.faces.cli.message:subscribe",
            act=_subscribe,
            examples=(
                "interlock subscribe build/failed --where 'branch=\"main\"' --last 3 --agent bob",
                "interlock subscribe build/failed --follow --json --agent bob",
                "interlock subscribe --list --agent bob",
            ),
        ),
        Operation(
            name="unsubscribe",
            help="stop receiving alerts of a type",
            request=AlertUnsubscribe,
            outcomes=(message.Unsubscribed, message.NotSubscribed, GivenFenced),
            needs="agent",
            call="messages.unsubscribe",
            takes=True,
            examples=("interlock unsubscribe build/failed --agent bob",),
        ),
        Operation(
            name="inbox",
            help="list unread messages, urgent first; acknowledges none unless asked",
            request=InboxShow,
            outcomes=(message.Inbox, InboxAcknowledged),
            needs="agent",
            reads=True,
            pages=True,
            in_shell="interlock.faces.cli.message:inbox",
            act=_inbox,
            examples=(
                "interlock inbox --ack --agent bob",
                "interlock inbox --all --from ada --search schema --agent bob",
            ),
        ),
        Operation(
            name="ack",
            help="acknowledge messages: they are not delivered again",
            request=MessageAck,
            outcomes=(message.Acknowledged, message.UnknownMessages, GivenFenced),
            needs="agent",
            act=_ack,
            takes=True,
            examples=("interlock ack msg_12 msg_13 --agent bob",),
        ),
        Operation(
            name="wait",
            help="wait for an unread message; acknowledges nothing",
            request=MessageWait,
            outcomes=(message.Arrived, message.NothingUnread),
            needs="agent",
            reads=True,
            in_shell="interlock.faces.cli.message:wait",
            act=_wait,
            examples=("interlock wait --timeout 5m --agent bob",),
        ),
    ),
)
