"""Messages: stored values and outcomes, and the theory that all files of this folder rely on.

A message is stored once and delivered until its receiver acknowledges it, in commit order. There
are two kinds of delivery.

    direct     ``messages/{id}`` holds the message; ``unread/{agent}/{id}`` marks one recipient.
               Acknowledging deletes that mark and puts ``read/{agent}/{id}`` for a while.
    by topic   ``topics/{topic}/{id}`` holds the message: one commit for one or for five hundred
               subscribers.  Each subscriber has a durable cursor: the revision up to which it
               has acknowledged everything, and what it has acknowledged beyond that.

A topic is the type of an alert; or ``*``, mail to all agents but its sender; or ``?ability``,
questions to all agents with an ability. The last two are not legal names, so they cannot collide
with a type of alerts.

A message is durable before the sender gets "sent". Its place in the order is the revision of its
commit, so one sender's messages arrive in the order of sending, without a shared counter. A sender
may choose an id; the id is taken once (``ids/{id}``), for every kind of message. A process that was
killed repeats the call with the same id and gets ``exists``, for as long as messages are kept.
Generated ids are unique and need no mark. A receiver gets each message at least once, with the same
id each time, and never after it has acknowledged it.

Senders are limited (``limits.py``), and each refusal names the limit and when to retry. An unread
direct message is never deleted. A topic cannot wait for subscribers that never return, so its
oldest messages are deleted, and a subscriber that missed some gets a ``missed`` notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from msgspec import Raw, Struct, field

from interlock.core import item_outcomes, outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import Listing, always

Kind: TypeAlias = Literal["alert", "query", "answer", "share", "stop", "mail", "missed"]

KINDS: tuple[Kind, ...] = get_args(Kind)

ALL = "*"
"""The recipient of mail to all agents, and its topic."""
ABLE = "?"
"""The first character of a topic of questions to an ability."""

BODY_LIMIT = 1024 * 1024
SUBJECT_LIMIT = 1024
REASON_LIMIT = 16 * 1024
RECIPIENTS_LIMIT = 32
FILTERS_LIMIT = 32
SHOWN_LIMIT = 10_000
DEPTH = 10_000
KEEP = 86400.0
KEPT = 1000
ALERTS_KEPT = 10_000


class File(Struct, frozen=True, kw_only=True, gc=False):
    """A shared file: its path and the SHA-256 that its bytes must have."""

    path: str
    size: int
    digest: str


class StoredMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message as it is stored; ``type`` is the type of an alert or of shared data."""

    id: str
    kind: Kind
    sender: str = field(name="from")
    at: float
    session: str = ""
    to: tuple[str, ...] = ()
    type: str = ""
    subject: str = ""
    thread: str = ""
    reply_to: str = ""
    urgent: bool = False
    data: Raw = Raw(b"null")
    file: File | None = None
    trace: str = ""


class Unread(Struct, frozen=True, omit_defaults=True, gc=False):
    """The mark of an unread message in an inbox; ``trace`` is the message's trace."""

    urgent: bool = False
    trace: str = ""


class ReadMark(Struct, frozen=True, gc=False):
    """The mark of an acknowledged message, and when it was acknowledged."""

    at: float


class AlertSubscription(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A subscription of an agent to a topic: from these senders, with these values in the data.

    ``since`` is the revision after which messages count; by default the revision of the
    subscription itself.
    """

    senders: tuple[str, ...] = field(name="from", default=())
    where: Mapping[str, Any] = {}
    since: int | None = None


class SubscriptionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription as its owner lists it: alerts of a type, by sender and by values."""

    type: str
    senders: tuple[str, ...] = field(name="from", default=())
    where: Mapping[str, Any] = {}


class MailReader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a recipient of a mail has acknowledged it, and when if that is known."""

    agent: str
    read: bool = False
    read_at: float | None = None


class Received(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as its receiver gets it.

    ``seq`` grows with each message of any sender. ``attempt`` counts deliveries. ``expires_in`` is
    the time left to answer a question; ``state`` is the state of a question that is not open.
    ``read`` is whether the message is acknowledged, and ``read_at`` when, if that is known.
    ``readers`` are the recipients of a mail, for its sender.
    """

    also_in_json: ClassVar[tuple[str, ...]] = ("body",)

    id: str
    kind: Kind
    sender: str = field(name="from")
    at: float
    seq: int
    to: tuple[str, ...] = ()
    type: str = ""
    subject: str = ""
    thread: str = ""
    reply_to: str = ""
    urgent: bool = False
    data: Any = None
    file: File | None = None
    attempt: int = 1
    expires_in: float | None = None
    state: str = ""
    read: bool = False
    read_at: float | None = None
    readers: tuple[MailReader, ...] = ()

    @property
    def body(self) -> Any:  # noqa: ANN401 - any JSON
        """The text of a mail, as ``send`` calls it; None for other kinds."""
        return self.data if self.kind == "mail" else None


class MessageList(Listing[Received], frozen=True, kw_only=True):
    """Kept messages of all agents, newest first.

    ``more`` is the ``seq`` of the last one if there are older ones.
    """

    listed = "messages"

    messages: tuple[Received, ...]
    more: int | None = None


class Sent(Success, frozen=True, kw_only=True, tag="sent"):
    """The message is durable and will be delivered."""

    message: str
    kind: Kind
    to: tuple[str, ...] = ()
    type: str = ""
    thread: str = ""


class MessageExists(item_outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A message with this id exists and stays unchanged."""

    message: str


class AlreadyAcknowledged(Refusal, frozen=True, kw_only=True, tag="already"):
    """Nothing was sent: a message to acknowledge was acknowledged before, or is unknown."""

    messages: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class UnknownAgent(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No agent with this name is known; ``close`` are known agents with a similar name.

    ``unquoted`` is set if the name is probably the start of a text without quotes; ``hold`` if the
    message can be kept for an agent that joins later.
    """

    what: Literal["agent"] = always("agent")
    close: tuple[str, ...] = ()
    unquoted: bool = False
    hold: bool = True


RETRY_FULL = 1.0
"""Seconds for which an inbox counts as full without another count."""


class InboxFull(item_outcomes.Full, frozen=True, kw_only=True, tag="full"):
    """The inbox holds as many messages as are allowed.

    ``retry_in`` is the number of seconds until the inbox is counted again.
    """

    counted = True
    exit_status = 3
    http_status = 429
    agent: str
    depth: int
    retry_in: float = RETRY_FULL


class Limited(Refusal, frozen=True, kw_only=True, tag="limited"):
    """The sender has used all slots of its rate limit in this window."""

    counted = True
    exit_status = 3
    http_status = 429
    agent: str
    limit: int
    window: float
    retry_in: float


class Halted(item_outcomes.Paused, Refusal, frozen=True, kw_only=True, tag="paused"):
    """The sender is paused."""

    counted = True
    exit_status = 3
    http_status = 403
    agent: str
    by: str
    since: float
    reason: str = ""


class NobodyToStop(item_outcomes.Away, frozen=True, kw_only=True, tag="away"):
    """The agent has no live session and no receive loop, so there is nothing to stop."""

    to: str


SendOutcome: TypeAlias = (
    Sent
    | MessageExists
    | AlreadyAcknowledged
    | UnknownAgent
    | InboxFull
    | Limited
    | Halted
    | outcomes.GivenFenced
)
StopOutcome: TypeAlias = SendOutcome | NobodyToStop
Refused: TypeAlias = UnknownAgent | InboxFull | Limited | Halted


class Inbox(outcomes.Listing[Received], frozen=True, kw_only=True):
    """Messages of an agent; ``more`` if further ones match.

    ``stays`` is how many questions among them were not acknowledged with the others. ``view`` says
    what is listed; if nothing matches, ``others`` is the number of messages that do not. ``new`` is
    whether the agent was unknown before; a shell then names some known ``agents``, similar names
    first.
    """

    listed = "messages"

    agent: str
    messages: tuple[Received, ...]
    more: bool = False
    stays: int = 0
    view: Literal["unread", "all", "sent"] = "unread"
    others: int = 0
    new: bool = False
    agents: tuple[str, ...] = ()


class Arrived(Success, outcomes.Listing[Received], frozen=True, kw_only=True, tag="arrived"):
    """Unread messages exist; they were not acknowledged."""

    listed = "messages"

    messages: tuple[Received, ...]


class NothingUnread(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """No message arrived in time."""


class Acknowledged(Success, frozen=True, kw_only=True, tag="acknowledged"):
    """These messages will not be delivered again; ``already`` were acknowledged before."""

    messages: tuple[str, ...] = ()
    already: tuple[str, ...] = ()


class UnknownMessages(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """These ids are not in the inbox and were not lately; the others were acknowledged."""

    what: Literal["message"] = always("message")
    messages: tuple[str, ...] = ()
    already: tuple[str, ...] = ()


class Subscribed(Success, frozen=True, kw_only=True, tag="subscribed"):
    """Alerts of this type are delivered from now on, after the ``last`` earlier ones.

    An agent that was subscribed ``already`` continues at its cursor and gets no earlier ones.
    """

    type: str
    last: int = 0
    already: bool = False


class Unsubscribed(Success, frozen=True, kw_only=True, tag="unsubscribed"):
    """Alerts of this type are no longer delivered."""

    type: str


class NotSubscribed(Success, frozen=True, kw_only=True, tag="not_subscribed"):
    """There was no subscription to end."""

    type: str


class PausedAgent(item_outcomes.Paused, Success, frozen=True, kw_only=True, tag="paused"):
    """The agent may not send from now on."""

    agent: str


class AgentResumed(item_outcomes.Resumed, frozen=True, kw_only=True, tag="resumed"):
    """The agent may send; ``already`` if it was not paused."""

    agent: str
    already: bool = False


def matches(subscription: AlertSubscription, message: StoredMessage, data: object) -> bool:
    """Whether a message passes the filters of a subscription."""
    if subscription.senders and message.sender not in subscription.senders:
        return False
    return all(_field(data, path) == value for path, value in subscription.where.items())


_NOTHING = object()


def _field(data: object, path: str) -> object:
    """A field of the data; ``a.b`` is a nested field, unless a field has that name."""
    if not isinstance(data, Mapping):
        return _NOTHING
    if path in data:
        return data[path]
    first, dot, rest = path.partition(".")
    return _field(data.get(first), rest) if dot else _NOTHING
