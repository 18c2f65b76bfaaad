"""Messages: written once, delivered until they are acknowledged, in the order of their commits.

There are two ways for a message to go.

    to some   ``messages/{id}`` is the message, and ``unread/{agent}/{id}`` says for whom it waits.
              Acknowledging takes that mark away (and leaves ``read/{agent}/{id}`` for a while).
    to all    ``topics/{topic}/{id}`` is the message, whoever reads it: one commit for one or for
              five hundred subscribers.  Each of them has a durable cursor, the revision up to which
              it has acknowledged everything, and what it has acknowledged beyond that.  Alerts
              come to all who asked for them, and mail to all comes to all but its sender.

A topic is the type of an alert; ``*``, mail to everybody; or ``?ability``, questions to whoever can
do something.  The last two are no legal names, so nobody's alerts can be mistaken for them.

Everything is durable before the sender hears "sent": the commit is the message.  Its place in the
order is the revision that created it, so what one sender sends is received in that order, and no
counter is fought for.  An id that the sender chose is taken once (``ids/{id}``), whatever the kind
of message: who repeats a call that was killed, with the same id, finds that the message exists, for
as long as messages are kept.  Ids that are made here never meet, and leave no mark.  Whoever
receives sees each message at least once, and the same id each time; acknowledged, it never comes
again.

What a sender may do is bounded, and every refusal says by what and for how long (``rate_limit.py``
for how often; the depth of an inbox is counted now and then, so it may be passed by a few).
Nothing is dropped: an unread message is never trimmed, and of a topic, which cannot wait for those
who never come back, the oldest are; whoever missed some of them is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from msgspec import Raw, Struct, field

from interlock.core import outcomes
from interlock.core.decision import Refusal, Success
from interlock.core.outcomes import always

Kind: TypeAlias = Literal["alert", "query", "answer", "share", "stop", "mail", "missed"]

KINDS: tuple[Kind, ...] = get_args(Kind)

ALL = "*"
"""Whom mail is to that is for everybody, and its topic."""
ABLE = "?"
"""What the topic begins with of questions to whoever is able to do something."""

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
    """A file that is shared by saying where it is, and what it has to be: its SHA-256."""

    path: str
    size: int
    digest: str


class StoredMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message as it is stored.  ``type`` is that of an alert or of what is shared."""

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
    """The mark that a message waits for somebody; ``trace`` is that of the message."""

    urgent: bool = False
    trace: str = ""


class ReadMark(Struct, frozen=True, gc=False):
    """The mark that somebody acknowledged a message, and when."""

    at: float


class AlertSubscription(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What somebody asked to hear of a topic: from these agents, with these values in its data.

    ``since`` is the revision after which messages count; without one, that of the subscription.
    """

    senders: tuple[str, ...] = field(name="from", default=())
    where: Mapping[str, Any] = {}
    since: int | None = None


class SubscriptionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent hears of: alerts of a type, from these agents, with these values."""

    type: str
    senders: tuple[str, ...] = field(name="from", default=())
    where: Mapping[str, Any] = {}


class SenderPause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody may not send for now."""

    agent: str
    by: str
    since: float
    reason: str = ""


class MailReader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a reader of a mail has acknowledged it, and when, as far as that is known."""

    agent: str
    read: bool = False
    read_at: float | None = None


class Received(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as its reader sees it.

    ``seq`` grows with each message, whoever sent it.  ``attempt`` counts how often it was given
    out.  ``expires_in`` is how long a question may be answered, and ``state`` how
    one stands that is not open.  ``read`` is whether it was acknowledged, and ``read_at`` when, as
    far as that is known.  ``readers`` are those of a mail, for its sender.
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
    def body(self) -> Any:  # noqa: ANN401 - what was given
        """The text of a mail, as ``send`` calls it; None of all others."""
        return self.data if self.kind == "mail" else None


class Sent(Success, frozen=True, kw_only=True, tag="sent"):
    """It is durable, and will be delivered."""

    message: str
    kind: Kind
    to: tuple[str, ...] = ()
    type: str = ""
    thread: str = ""


class MessageExists(outcomes.Exists, Refusal, frozen=True, kw_only=True, tag="exists"):
    """A message of this id was sent before, and stays as it is."""

    message: str


class AlreadyAcknowledged(Refusal, frozen=True, kw_only=True, tag="already"):
    """Nothing was sent: what it was to acknowledge was acknowledged before, or is not ours."""

    messages: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class UnknownAgent(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """Nobody of this name has been here yet; ``close`` are others that are called much like it.

    ``unquoted`` if the name is more likely the beginning of a text without quotes; ``hold`` if
    it can be kept for somebody who comes later.
    """

    what: Literal["agent"] = always("agent")
    close: tuple[str, ...] = ()
    unquoted: bool = False
    hold: bool = True


RETRY_FULL = 1.0
"""Seconds for which an inbox is taken to be full without another count."""


class InboxFull(outcomes.Full, frozen=True, kw_only=True, tag="full"):
    """So many messages wait for this agent that no more are taken.

    ``retry_in`` is in how many seconds it is worth trying again: it is not counted sooner.
    """

    counted = True
    exit_status = 3
    agent: str
    depth: int
    retry_in: float = RETRY_FULL


class Limited(Refusal, frozen=True, kw_only=True, tag="limited"):
    """The sender has had all its turns within this window."""

    counted = True
    exit_status = 3
    agent: str
    limit: int
    window: float
    retry_in: float


class Halted(outcomes.Paused, Refusal, frozen=True, kw_only=True, tag="paused"):
    """Somebody has paused the sender."""

    counted = True
    exit_status = 3
    agent: str
    by: str
    since: float
    reason: str = ""


class NobodyToStop(outcomes.Away, frozen=True, kw_only=True, tag="away"):
    """Nobody is there to be stopped: no session of it lives now, nor a loop that receives."""

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


class Acknowledged(Success, frozen=True, kw_only=True, tag="acknowledged"):
    """These will not come again; ``already`` were acknowledged before."""

    messages: tuple[str, ...] = ()
    already: tuple[str, ...] = ()


class UnknownMessages(outcomes.Unknown, frozen=True, kw_only=True, tag="unknown"):
    """No message of these ids is, or was lately, in the inbox; the others were acknowledged."""

    what: Literal["message"] = always("message")
    messages: tuple[str, ...] = ()
    already: tuple[str, ...] = ()


class Subscribed(Success, frozen=True, kw_only=True, tag="subscribed"):
    """Alerts of this type are delivered from now on; ``last`` of those before, too.

    Whoever was subscribed ``already`` goes on where it was: none of the last ones come again.
    """

    type: str
    last: int = 0
    already: bool = False


class Unsubscribed(Success, frozen=True, kw_only=True, tag="unsubscribed"):
    """Alerts of this type are not delivered any more."""

    type: str


class NotSubscribed(Success, frozen=True, kw_only=True, tag="not_subscribed"):
    """There was nothing to end."""

    type: str


class PausedAgent(outcomes.Paused, Success, frozen=True, kw_only=True, tag="paused"):
    """The agent may not send from now on."""

    agent: str


class Resumed(Success, frozen=True, kw_only=True, tag="resumed"):
    """The agent may send again; or it never was paused."""

    agent: str


def matches(subscription: AlertSubscription, message: StoredMessage, data: object) -> bool:
    """Whether somebody asked for this: from such a sender, with such fields in its data."""
    if subscription.senders and message.sender not in subscription.senders:
        return False
    return all(_field(data, path) == value for path, value in subscription.where.items())


_NOTHING = object()


def _field(data: object, path: str) -> object:
    """A field of the data; ``a.b`` is that of an object inside, unless a field is called so."""
    if not isinstance(data, Mapping):
        return _NOTHING
    if path in data:
        return data[path]
    first, dot, rest = path.partition(".")
    return _field(data.get(first), rest) if dot else _NOTHING
