"""The calls of messages: questions, subscriptions, the inbox; ``send_calls.py`` has the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec import Raw
from msgspec.structs import replace

from interlock import registry
from interlock.core import keys, validate
from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput, BadName
from interlock.nouns.messages import feed, inbox_reader, inbox_service, message, presence, views
from interlock.nouns.messages import query as queries
from interlock.nouns.messages.decision import (
    DecisionView,
    Resolved,
    ResolveOutcome,
    UnknownDecision,
)
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.query import AskOutcome, CancelOutcome, ReplyOutcome
from interlock.nouns.messages.query_service import AskOptions
from interlock.nouns.messages.receiver import REDELIVER, InboxReceiver
from interlock.nouns.messages.send_calls import SendCalls, named, several
from interlock.runtime import callers
from interlock.runtime.calls import D, call
from interlock.runtime.given import Given
from interlock.runtime.identity import Actor
from interlock.runtime.operation import GREATEST
from interlock.runtime.outage import OutageRetry
from interlock.runtime.reads import by_prefix, is_prefix, whole_id
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.messages.receive_loop import ReceiveLoop


class MessageCalls(SendCalls[D]):
    """All calls on messages of one client."""

    @call
    def query(
        self,
        to: str,
        question: object,
        *,
        timeout: float | str | None = None,
        cached: float | str | None = None,
        hold: bool = False,
        person: bool = False,
        urgent: bool = False,
        type: str = "",  # noqa: A002
        id: str | None = None,  # noqa: A002
        given: Given = (),
    ) -> Op[AskOutcome]:
        """Ask an agent or an ability (``?ability``), and wait for the answer.

        An agent that had a session and has none now is ``away``, at once; with ``hold`` the
        question waits for it. An earlier answer to the same question is accepted up to the age
        ``cached``; it carries the id of the earlier question. With ``person`` a person is asked if
        no agent answers. Without a ``timeout`` it waits as configured for this ``type`` of
        question, for this recipient, or for all (``[query.timeouts]`` and ``[query."*"]``), else 30
        s. Asked again with the same ``id``, also by another process, it is the same question; a
        different question with that id is ``exists``.
        """
        identity = self._identity(given)
        recipient = _recipient(to)
        kind = validate.name(type, "type") if type else ""
        usual = self.context.settings.query(recipient, kind)
        wait = (
            (usual or queries.TIMEOUT) if timeout is None else validate.duration(timeout, "timeout")
        )
        asked = queries.Query(
            id=self._id(id, "qry"),
            agent=identity.actor.agent,
            session=identity.actor.session,
            to=recipient,
            question=self._body(question, "question"),
            at=self.context.runner.clock.wall(),
            timeout=wait,
            type=kind,
            urgent=validate.flag(urgent, "urgent"),
            person=validate.flag(person, "person"),
            trace=self.context.purpose or self.context.trace,
        )
        age = None if cached is None else validate.duration(cached, "age of an answer")
        terms = AskOptions(hold=validate.flag(hold, "hold"), cached=age, keep=id is not None)
        waits = callers.caller_terms(identity.caller, self.context.grants.current_caller())
        return self._fenced(identity, self.queries.query(identity, asked, terms, waits))

    @call
    def reply(
        self, query: str, answer: object, *, can: Iterable[str] = (), given: Given = ()
    ) -> Op[ReplyOutcome]:
        """Answer a question, or a message by its id, which also acknowledges it.

        The answer to a message is mail to its sender, in the same thread. A question to an ability
        can be answered by an agent that has it: by its session's report (``pulse``), by the ``can``
        of its receiver, or by ``can`` here.
        """
        id_, able = validate.name(query, "query id"), validate.abilities(can)
        said = self._body(answer, "answer")
        if id_.startswith("msg_"):
            return self._answer_message(id_, answer, given)
        identity = self._identity(given)
        return by_prefix(
            id_,
            lambda each: self._fenced(
                identity, self.queries.reply(identity.actor, each, said, able)
            ),
            keys.QUERIES,
        )

    def _answer_message(self, id_: str, answer: object, given: Given) -> Op[ReplyOutcome]:
        """Send mail to the sender of a message; the same commit acknowledges an unread one."""
        agent = self.context.me().actor.agent
        id_ = yield from whole_id(id_, *(yield from inbox_reader.message_folders(agent)))
        found = yield from inbox_reader.find_message(agent, id_)
        if found is None:
            return message.UnknownMessages(unknown=(id_,))
        mail = partial(
            self._post,
            "mail",
            found.to if found.sender == agent else (found.sender,),
            answer,
            subject=found.subject,
            thread=found.thread or id_,
            reply_to=id_,
            id=None,
            given=given,
        )
        outcome = yield from mail(acks=(id_,))
        return (yield from mail(acks=())) if _was_read(outcome) else outcome

    @call
    def cancel(self, query: str, *, given: Given = ()) -> Op[CancelOutcome]:
        """Cancel our question."""
        identity, id_ = self._identity(given), validate.name(query, "query id")
        return by_prefix(
            id_,
            lambda each: self._fenced(identity, self.queries.cancel(identity.actor, each)),
            keys.QUERIES,
        )

    @call
    def resolve(self, decision: str, answer: object, *, given: Given = ()) -> Op[ResolveOutcome]:
        """Make a decision that another agent asked for; the asker gets it as a message.

        The answer to a decision with options is the name of one, or
        ``{"option": NAME, "comment": TEXT}``.
        """
        id_ = validate.name(decision, "decision id")
        identity, said = self._identity(given), self._body(answer, "answer")
        return by_prefix(
            id_,
            lambda each: self._fenced(identity, self._resolved(identity.actor, each, said)),
            keys.DECISIONS,
        )

    def _resolved(self, actor: Actor, id_: str, answer: Raw) -> Op[ResolveOutcome]:
        outcome = yield from self.queries.resolve(actor, id_, answer)
        if isinstance(outcome, Resolved):
            follow = registry.decided_then(outcome.about.partition("/")[0])
            if follow is not None:
                yield from follow(self.context, outcome.about)
        return outcome

    @call
    def decisions(self) -> Op[tuple[DecisionView, ...]]:
        """Open decisions and recent ones."""
        return self.queries.decisions()

    @call
    def decision(self, decision: str) -> Op[DecisionView | UnknownDecision]:
        """One decision."""
        return by_prefix(
            validate.name(decision, "decision id"), self.queries.decision, keys.DECISIONS
        )

    @call
    def subscribe(
        self,
        type: str,  # noqa: A002
        *,
        senders: Iterable[str] = (),
        where: Mapping[str, object] | None = None,
        last: int = 0,
        given: Given = (),
    ) -> Op[message.Subscribed | GivenFenced]:
        """Deliver alerts of this type from now on, across restarts, until ``unsubscribe``.

        ``senders`` and ``where`` (values of fields of the data) filter them; ``last`` adds that
        many earlier ones. A repeated call changes the filters and keeps the cursor, so it adds no
        earlier ones.
        """
        type_ = _type(type)
        wanted = message.AlertSubscription(
            senders=validate.names(senders, "sender", message.FILTERS_LIMIT), where=_where(where)
        )
        number = validate.integer(last, "number of alerts", 0, message.SHOWN_LIMIT)
        identity = self._identity(given)
        op = inbox_service.subscribe(self.context.runner, identity.actor, type_, wanted, number)
        return self._fenced(identity, op)

    @call
    def unsubscribe(
        self,
        type: str,  # noqa: A002
        *,
        given: Given = (),
    ) -> Op[message.Unsubscribed | message.NotSubscribed | GivenFenced]:
        """Stop delivering alerts of this type."""
        identity, type_ = self._identity(given), validate.unmarked_name(type, "type of an alert")
        op = inbox_service.unsubscribe(self.context.runner, identity.actor, type_)
        return self._fenced(identity, op)

    @call
    def subscriptions(self) -> Op[tuple[message.SubscriptionView, ...]]:
        """Our subscriptions by type, with their filters."""
        return inbox_service.subscriptions(self.context.me().actor.agent)

    @call
    def ack(
        self, *ids: str, can: Iterable[str] | None = None, given: Given = ()
    ) -> Op[message.Acknowledged | message.UnknownMessages | GivenFenced]:
        """Acknowledge messages: they are not delivered again."""
        wanted = list(map(_id, ids))
        if not wanted:
            raise BadInput("which message? name one, or several, by its id")
        able = yield from self.abilities(can)
        identity = self._identity(given)
        ack = partial(inbox_service.ack, self.context.runner, identity.actor, can=able)
        outcome = yield from self._fenced(identity, ack(ids=wanted))
        if not isinstance(outcome, message.UnknownMessages):
            return outcome
        whole = yield from self._whole(outcome.unknown)
        if whole == outcome.unknown:
            return outcome
        more = yield from self._fenced(identity, ack(ids=whole))
        if isinstance(more, GivenFenced):
            return more
        return replace(
            more, messages=outcome.messages + more.messages, already=outcome.already + more.already
        )

    def _whole(self, ids: tuple[str, ...]) -> Op[tuple[str, ...]]:
        """Complete shortened ids of our messages."""
        agent = self.context.me().actor.agent
        folders = yield from inbox_reader.message_folders(agent)
        found: tuple[str, ...] = ()
        for each in ids:
            found += ((yield from whole_id(each, *folders)),)
        return found

    def receiver(
        self, *, can: Iterable[str] = (), redeliver: float | str = REDELIVER, only: str = ""
    ) -> InboxReceiver:
        """A receiver of our messages; the caller closes it.

        With ``only`` it receives the alerts of one type, which we subscribed to.
        """
        return InboxReceiver(
            self.context.runner,
            self.context.me().actor,
            validate.abilities(can),
            validate.duration(redeliver, "time until redelivery"),
            only=only,
        )

    def reception(
        self,
        *,
        can: Iterable[str] | None = None,
        timeout: float | str | None = None,
        ack: bool = True,
        redeliver: float | str = REDELIVER,
    ) -> ReceiveLoop:
        """A loop over our messages, which acknowledges each when the next is requested."""
        from interlock.nouns.messages.receive_loop import ReceiveLoop, ReceiveOptions

        self.context.me()
        terms = ReceiveOptions(
            can=None if can is None else validate.abilities(can),
            timeout=None if timeout is None else validate.duration(timeout, "timeout"),
            ack=validate.flag(ack, "ack"),
            redeliver=validate.duration(redeliver, "time until redelivery"),
        )
        return ReceiveLoop(cast("MessageCalls", self.steps), terms)

    @call
    def inbox(
        self,
        *,
        all: bool = False,  # noqa: A002 - the word that people use
        sent: bool = False,
        kind: str | None = None,
        sender: str | Iterable[str] = (),
        type: str = "",  # noqa: A002
        thread: str = "",
        search: str = "",
        limit: int = 100,
        can: Iterable[str] | None = None,
    ) -> Op[message.Inbox]:
        """Our unread messages, urgent ones first; nothing is acknowledged.

        ``all`` lists all kept messages, read or not, and ``sent`` our own mail. The other arguments
        filter: by ``kind``, ``sender`` or senders, ``type``, ``thread``, or text (``search``).
        """
        wanted = views.InboxFilter(
            kind=_kind(kind),
            senders=validate.names(several(sender, "sender"), "sender", message.FILTERS_LIMIT),
            type=validate.name(type, "type") if type else "",
            thread=validate.name(thread, "thread") if thread else "",
            search=validate.text(search, "text to search for", message.SUBJECT_LIMIT),
            limit=validate.integer(limit, "limit", 1, message.SHOWN_LIMIT),
        )
        actor = self.context.me().actor
        validate.flag(all, "all")
        if validate.flag(sent, "sent") or all or thread:
            return self._kept(actor, wanted, can, sent=sent)
        return self._unread(actor, wanted, can)

    @call
    def list(
        self,
        *,
        kind: str | None = None,
        sender: str | Iterable[str] = (),
        to: str = "",
        type: str = "",  # noqa: A002
        thread: str = "",
        search: str = "",
        open: bool = False,  # noqa: A002
        before: int | None = None,
        limit: int = 100,
    ) -> Op[message.MessageList]:
        """The messages of all agents, newest first, as far as they are kept: for operators.

        The arguments filter as those of ``inbox``; ``to`` is a recipient, ``open`` leaves questions
        that can still be answered. ``before`` continues after the ``more`` of an earlier list.
        """
        wanted = views.InboxFilter(
            kind=_kind(kind),
            senders=validate.names(several(sender, "sender"), "sender", message.FILTERS_LIMIT),
            type=validate.name(type, "type") if type else "",
            thread=validate.name(thread, "thread") if thread else "",
            search=validate.text(search, "text to search for", message.SUBJECT_LIMIT),
            limit=validate.integer(limit, "limit", 1, message.SHOWN_LIMIT),
        )
        return feed.feed(
            feed.FeedFilter(
                wanted=wanted,
                to=validate.name(to, "recipient") if to and to != message.ALL else to,
                open=validate.flag(open, "open"),
                before=None if before is None else validate.integer(before, "before", 0, GREATEST),
            )
        )

    def _kept(
        self, actor: Actor, wanted: views.InboxFilter, can: Iterable[str] | None, *, sent: bool
    ) -> Op[message.Inbox]:
        able = yield from self.abilities(can)
        if is_prefix(wanted.thread):
            (thread,) = yield from self._whole((wanted.thread,))
            wanted = replace(wanted, thread=thread)
        return (yield from views.kept(actor.agent, wanted, able, sent=sent))

    def _unread(
        self, actor: Actor, wanted: views.InboxFilter, can: Iterable[str] | None
    ) -> Op[message.Inbox]:
        runner = self.context.runner
        new = yield from presence.ensure_mailbox(runner, self.context.me())
        able = yield from self.abilities(can)
        found = yield from views.unread(runner, actor, wanted, able)
        return replace(found, new=new)

    @call
    def wait(
        self, timeout: float | str = validate.FOREVER, *, can: Iterable[str] | None = None
    ) -> Op[message.Arrived | message.NothingUnread]:
        """Wait until we have an unread message; nothing is acknowledged.

        During the wait, an agent that asks us something sees that we are present.
        """
        outage = OutageRetry(self.context, "a wait for messages")
        return outage.through(lambda left: self._wait(left, can), validate.wait_time(timeout))

    def _wait(
        self, patience: float, can: Iterable[str] | None
    ) -> Op[message.Arrived | message.NothingUnread]:
        yield from presence.ensure_mailbox(self.context.runner, self.context.me())
        able = yield from self.abilities(can)
        receiving = presence.ReceiverPresence(self.context, () if can is None else able)
        limit = None if patience == validate.FOREVER else patience
        return (yield from views.wait(self.receiver(can=able), receiving, limit))


def _was_read(outcome: message.SendOutcome) -> bool:
    return isinstance(outcome, message.AlreadyAcknowledged)


def _recipient(to: str) -> str:
    if validate.require_text(to, "agent name").startswith(ABLE):
        return ABLE + validate.name(to[len(ABLE) :], "ability")
    return named(to)


def _type(type_: str) -> str:
    """The type of alerts to subscribe to: one type, not a pattern."""
    if "*" in validate.require_text(type_, "type of an alert"):
        raise BadName(
            f"the type {type_!r:.40} has a '*', but a subscription is to one type of alerts;"
            " subscribe to each of them by its name"
        )
    return validate.unmarked_name(type_, "type of an alert")


def _id(id_: str | list[str] | tuple[str, ...] | set[str]) -> str:
    """The id of a message, or of a notice of missed messages."""
    if isinstance(id_, list | tuple | set):
        raise BadInput("ack takes ids one by one; for several write ack(*ids)")
    told = inbox_reader.parse_missed_id(validate.require_text(id_, "message id"))
    return id_ if told else validate.name(id_, "message id")


def _kind(kind: str | None) -> message.Kind | None:
    found = next((each for each in message.KINDS if each == kind), None)
    if kind is not None and found is None:
        raise BadInput(
            f"no message is of the kind {kind!r:.40}; there are: {', '.join(message.KINDS)}"
        )
    return found


def _where(where: Mapping[str, object] | None) -> dict[str, object]:
    """The filter values, which must be JSON."""
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise BadInput(f"'where' takes fields and their values, not {where!r:.40}")
    if len(where) > message.FILTERS_LIMIT:
        raise BadInput(f"{len(where)} fields to filter by; {message.FILTERS_LIMIT} are allowed")
    wanted = dict(where)
    validate.payload(wanted, "filter", validate.METADATA_LIMIT)
    return wanted
