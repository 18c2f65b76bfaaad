"""Operations on what was sent: subscriptions, the inbox, acknowledging, waiting."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import field
from msgspec.structs import asdict, replace

from interlock.core import validate
from interlock.core.outcomes import GivenFenced, Listing
from interlock.errors import BadInput
from interlock.nouns.messages import message as core
from interlock.nouns.messages import views
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Duration, Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.drivers import Op
    from interlock.runtime.fleet_calls import FleetCalls

Type = Annotated[
    str, option("name", "the type of the alert, such as build/failed", positional=True)
]
_NAMED = 8
"""So many agents are named to somebody who is new."""
Can = Annotated[
    tuple[str, ...],
    option("names", "also questions to whoever can do this; else what the session says it can"),
]


class AlertSubscribe(Request, frozen=True, kw_only=True):
    """Hear of alerts."""

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
        int, option("int", "also so many of those that were sent before", most=core.SHOWN_LIMIT)
    ] = 0
    follow: Annotated[bool, option("flag", "show them as they come; each is acknowledged")] = False
    list: Annotated[bool, option("flag", "subscribe to nothing; show what you hear of")] = False
    given: Given = ()


class AlertUnsubscribe(Request, frozen=True, kw_only=True):
    """Hear no more of alerts."""

    type: Type
    given: Given = ()


class InboxShow(Request, frozen=True, kw_only=True):
    """What waits for you."""

    ack: Annotated[bool, option("flag", "acknowledge what is shown, but no question")] = False
    all: Annotated[bool, option("flag", "all that is kept, read or not")] = False
    sent: Annotated[bool, option("flag", "the mail that you sent")] = False
    kind: Annotated[str | None, option("name", f"only these: {', '.join(core.KINDS)}")] = None
    senders: Annotated[tuple[str, ...], option("names", "only from these agents")] = field(
        name="from", default=()
    )
    type: Annotated[str, option("name", "only of this type")] = ""
    thread: Annotated[str, option("name", "a whole thread, read or not")] = ""
    search: Annotated[str, option("text", "only with this text in it")] = ""
    limit: Annotated[int, option("int", "at most so many", least=1, most=core.SHOWN_LIMIT)] = 100
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
        Duration | None, option("duration", "at most so long; else for ever", forever=True)
    ] = None
    can: Can = ()


class InboxAcknowledged(
    views.Inbox, frozen=True, kw_only=True, tag_field="outcome", tag="acknowledged"
):
    """Messages that were acknowledged after they were shown; ``stays`` questions were not."""


class SubscriptionList(Listing[core.SubscriptionView], frozen=True, kw_only=True):
    """What an agent hears of, by type."""

    listed = "subscriptions"

    agent: str
    subscriptions: tuple[core.SubscriptionView, ...]


def wanted(request: AlertSubscribe) -> str:
    """The type to subscribe to; none to see what there is."""
    if request.list and request != AlertSubscribe(list=True):
        raise BadInput("--list shows all that you hear of; leave the others out")
    if not request.list and request.type is None:
        raise BadInput("TYPE is missing; name a type of alerts, or --list those you hear of")
    return request.type or ""


def _subscribe(
    fleet: "FleetCalls", request: AlertSubscribe
) -> "Op[core.Subscribed | SubscriptionList | GivenFenced]":
    type_ = wanted(request)
    if request.list:
        you = fleet.context.me().actor.agent
        found = yield from fleet.messages.subscriptions()
        return SubscriptionList(agent=you, subscriptions=found)
    op = fleet.messages.subscribe(
        type_, senders=request.senders, where=request.where, last=request.last
    )
    return (yield from op)


def _unsubscribe(
    fleet: "FleetCalls", request: AlertUnsubscribe
) -> "Op[core.Unsubscribed | core.NotSubscribed | GivenFenced]":
    return fleet.messages.unsubscribe(request.type)


def look(fleet: "FleetCalls", request: InboxShow) -> "Op[views.Inbox]":
    """What is there, all of it unacknowledged as before."""
    if request.ack and (request.all or request.sent):
        raise BadInput("--ack is for what waits; leave --all and --sent out")
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
        stays = len(found.messages) - len(_settled(found))
        found = InboxAcknowledged(**asdict(replace(found, stays=stays)))
    return (yield from introduced(found))


def introduced(found: views.Inbox) -> "Op[views.Inbox]":
    """An inbox that says, of a name that is new, who else is here: that may have been meant."""
    if not found.new:
        return found
    from interlock.nouns.messages.presence import mailboxes

    others = [name for name in (yield from mailboxes()) if name != found.agent]
    some = dict.fromkeys([*validate.closest_names(found.agent, others), *others])
    return replace(found, agents=tuple(some)[:_NAMED])


def settle(fleet: "FleetCalls", request: InboxShow, found: views.Inbox) -> "Op[None]":
    """Acknowledge what was shown, if that was asked for; a question waits for its answer."""
    if request.ack and (ids := _settled(found)):
        yield from fleet.messages.ack(*ids, can=request.can or None)


def _settled(found: views.Inbox) -> list[str]:
    return [each.id for each in found.messages if each.kind != "query"]


def _inbox(fleet: "FleetCalls", request: InboxShow) -> "Op[views.Inbox]":
    found = yield from look(fleet, request)
    yield from settle(fleet, request, found)
    return found


def _ack(
    fleet: "FleetCalls", request: MessageAck
) -> "Op[core.Acknowledged | core.UnknownMessages | GivenFenced]":
    return fleet.messages.ack(*request.id, can=request.can or None)


def _wait(fleet: "FleetCalls", request: MessageWait) -> "Op[views.Arrived | views.NothingUnread]":
    patience = validate.FOREVER if request.timeout is None else request.timeout
    return fleet.messages.wait(patience, can=request.can or None)


NOUN = Noun(
    name="inbox",
    group="messages",
    texts=("interlock.nouns.messages.text",),
    operations=(
        Operation(
            name="subscribe",
            help="have alerts of a type delivered, over restarts too",
            request=AlertSubscribe,
            outcomes=(core.Subscribed, SubscriptionList, GivenFenced),
            lines=(core.Received,),
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
            help="have no more alerts of a type delivered",
            request=AlertUnsubscribe,
            outcomes=(core.Unsubscribed, core.NotSubscribed, GivenFenced),
            needs="agent",
            act=_unsubscribe,
            examples=("interlock unsubscribe build/failed --agent bob",),
        ),
        Operation(
            name="inbox",
            help="what waits for you, urgent first; nothing is acknowledged unless --ack",
            request=InboxShow,
            outcomes=(views.Inbox, InboxAcknowledged),
            needs="agent",
            reads=True,
            pages=True,
            for_models=True,
            in_shell="interlock.faces.cli.message:inbox",
            act=_inbox,
            examples=(
                "interlock inbox --ack --agent bob",
                "interlock inbox --all --from ada --search schema --agent bob",
            ),
        ),
        Operation(
            name="ack",
            help="acknowledge messages: they do not come again",
            request=MessageAck,
            outcomes=(core.Acknowledged, core.UnknownMessages, GivenFenced),
            needs="agent",
            act=_ack,
            examples=("interlock ack msg_12 msg_13 --agent bob",),
        ),
        Operation(
            name="wait",
            help="wait until something unread is there; nothing is acknowledged",
            request=MessageWait,
            outcomes=(views.Arrived, views.NothingUnread),
            needs="agent",
            reads=True,
            in_shell="interlock.faces.cli.message:wait",
            act=_wait,
            examples=("interlock wait --timeout 5m --agent bob",),
        ),
    ),
)
