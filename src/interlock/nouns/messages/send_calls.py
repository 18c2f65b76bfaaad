"""The calls that send messages, and the services that all calls on messages share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec import Raw

from interlock.client_context import Context
from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.agents.report_rules import Reported
from interlock.nouns.messages import inbox_reader
from interlock.nouns.messages import message as message_types
from interlock.nouns.messages.files import describe
from interlock.nouns.messages.inbox_service import topic_acks
from interlock.nouns.messages.limits import message_limits
from interlock.nouns.messages.message import (
    ALL,
    NobodyToStop,
    SendOutcome,
    StopOutcome,
    StoredMessage,
)
from interlock.nouns.messages.presence import is_running
from interlock.nouns.messages.query_service import QueryService
from interlock.nouns.messages.send_rules import SendOptions
from interlock.nouns.messages.send_service import MessageSender
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.runtime.identity import Actor
from interlock.runtime.reads import is_prefix, whole_id
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.messages.retention import MessageRetention


class SendCalls(Calls[D]):
    """The calls that send messages, and the services that all calls on messages share."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.limits = message_limits(context.settings)
        self.message_sender = MessageSender(context.runner, self.limits)
        context.housekeeping.passes["messages"] = self._small_pass

    @cached_property
    def queries(self) -> QueryService:
        """Questions; created on first use."""
        return QueryService(self.context.runner, self.message_sender, self.context.grants)

    @cached_property
    def retention(self) -> MessageRetention:
        """Retention; created on first use."""
        from interlock.nouns.messages.retention import MessageRetention

        return MessageRetention(self.context.runner, self.limits)

    def _small_pass(self, actor: Actor) -> Op[bool]:
        return (yield from self.retention.some(actor)).more

    def abilities(self, can: Iterable[str] | None) -> Op[tuple[str, ...]]:
        """The abilities of this client: as given, else as its session reports."""
        identity = self.context.me()
        if can is not None:
            return validate.abilities(can)
        if not identity.joined:
            return ()
        from interlock.nouns.agents.report_service import last_report

        said = yield from last_report(identity.actor.session)
        return said.can if isinstance(said, Reported) else ()

    @call
    def alert(
        self,
        type: str,  # noqa: A002 - the word that people use
        data: object = None,
        *,
        urgent: bool = False,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
        given: Given = (),
    ) -> Op[SendOutcome]:
        """Send an alert to all subscribers of this type: one commit for any number of them.

        ``acks`` are received messages that the same commit acknowledges; if one of them is no
        longer unread, nothing is sent. ``given`` are grants that this depends on, as for tasks: if
        one has ended, nothing is sent, and the outcome is ``GivenFenced``.
        """
        type_ = validate.unmarked_name(type, "type of an alert")
        return self._post(
            "alert", (), data, type=type_, urgent=urgent, id=id, acks=acks, given=given
        )

    @call
    def share(
        self,
        to: str,
        type: str,  # noqa: A002
        data: object = None,
        *,
        file: str | os.PathLike[str] | None = None,
        urgent: bool = False,
        hold: bool = False,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
        given: Given = (),
    ) -> Op[SendOutcome]:
        """Send data of a type to one agent, and with it a ``file`` that both can reach.

        The message carries the path, size and SHA-256 of the file; the receiver reads it in place,
        and is refused if it has changed. An unknown recipient is refused, since its name is
        probably misspelled; with ``hold`` the message is kept for it.
        """
        type_, to_ = validate.name(type, "type of what is shared"), (named(to),)
        post = partial(
            self._post,
            "share",
            to_,
            data,
            type=type_,
            urgent=urgent,
            hold=hold,
            id=id,
            acks=acks,
            given=given,
        )
        return post() if file is None else self._with_file(post, file)

    def _with_file(
        self, post: Callable[..., Op[SendOutcome]], file: str | os.PathLike[str]
    ) -> Op[SendOutcome]:
        found = yield from describe(file)
        return (yield from post(file=found))

    @call
    def stop(
        self,
        to: str,
        reason: str = "",
        *,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
        given: Given = (),
    ) -> Op[StopOutcome]:
        """Ask an agent to end: it finishes its step and exits.  A stop is delivered first.

        It is for the agent's present sessions, not for later ones. An agent without a session or a
        receive loop is ``away``, and nothing is sent; so is a person at a shell who only reads the
        inbox: send mail instead.
        """
        said, reader = validate.text(reason, "reason", message_types.REASON_LIMIT), named(to)
        if not (yield from is_running(reader)):
            return NobodyToStop(to=reader)
        return (
            yield from self._post(
                "stop", (reader,), said, urgent=True, id=id, acks=acks, given=given
            )
        )

    @call
    def send(
        self,
        to: str | Iterable[str],
        body: object = "",
        *,
        subject: str = "",
        type: str = "",  # noqa: A002
        thread: str = "",
        reply_to: str = "",
        urgent: bool = False,
        hold: bool = False,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
        given: Given = (),
    ) -> Op[SendOutcome]:
        """Send mail to one agent, to several, or to ``all``; each acknowledges it separately.

        A mail that answers another one (``reply_to``, its id) joins its thread, unless ``thread``
        names another; without both it starts a thread.
        """
        return self._mail(
            _recipients(several(to, "agent name")),
            body,
            subject=validate.text(subject, "subject", message_types.SUBJECT_LIMIT),
            type=validate.name(type, "type of the mail") if type else "",
            thread=validate.name(thread, "thread") if thread else "",
            reply_to=validate.name(reply_to, "message id") if reply_to else "",
            urgent=urgent,
            hold=hold,
            id=id,
            acks=acks,
            given=given,
        )

    def _mail(
        self, to: tuple[str, ...], body: object, *, thread: str, reply_to: str, **more: object
    ) -> Op[SendOutcome]:
        if is_prefix(thread) or is_prefix(reply_to):
            folders = yield from inbox_reader.message_folders(self.context.me().actor.agent)
            thread = yield from whole_id(thread, *folders)
            reply_to = yield from whole_id(reply_to, *folders)
        if reply_to and not thread:
            thread = yield from self._thread(reply_to)
        other: dict[str, object] = {**more, "thread": thread, "reply_to": reply_to}
        return (yield from self._post("mail", to, body, **other))  # type: ignore[arg-type]

    def _thread(self, id_: str) -> Op[str]:
        """The thread of a message; an unknown message starts one with its own id."""
        found = yield from inbox_reader.find_message(self.context.me().actor.agent, id_)
        return id_ if found is None else found.thread or id_

    def _post(
        self,
        kind: message_types.Kind,
        to: tuple[str, ...],
        data: object,
        *,
        id: str | None,  # noqa: A002
        acks: Iterable[str],
        given: Given,
        urgent: bool = False,
        hold: bool = False,
        type: str = "",  # noqa: A002
        subject: str = "",
        thread: str = "",
        reply_to: str = "",
        file: message_types.File | None = None,
    ) -> Op[SendOutcome]:
        identity = self._identity(given)
        actor = identity.actor
        id_ = self.context.runner.new_id("msg") if id is None else self._id(id, "msg")
        message = StoredMessage(
            id=id_,
            kind=kind,
            sender=actor.agent,
            session=actor.session,
            at=round(self.context.runner.clock.wall(), 3),
            to=to,
            type=type,
            subject=subject,
            thread=thread or (id_ if kind == "mail" else ""),
            reply_to=reply_to,
            urgent=validate.flag(urgent, "urgent"),
            data=self._body(data, "body"),
            file=file,
            trace=self.context.purpose or self.context.trace,
        )
        ended: tuple[str, ...] = ()
        if acks != ():
            ended = validate.names(acks, "message id", message_types.RECIPIENTS_LIMIT)
        options = SendOptions(hold=validate.flag(hold, "hold"), chosen=id is not None, acks=ended)
        sending = self._send_with_acks if ended else self.message_sender.send
        return self._fenced(identity, sending(actor, message, options))

    def _send_with_acks(
        self, actor: Actor, message: StoredMessage, options: SendOptions
    ) -> Op[SendOutcome]:
        """Send a message that acknowledges others, which may be of topics."""
        able = yield from self.abilities(None)
        found = yield from topic_acks(actor.agent, options.acks, able)
        return (yield from self.message_sender.send(actor, message, options, *found))

    def _body(self, data: object, what: str) -> Raw:
        return Raw(validate.payload(data, what, self.limits.body))

    def _id(self, id_: str | None, prefix: str) -> str:
        if id_ is None:
            return self.context.runner.new_id(prefix)
        begins, _, rest = validate.name(id_, "id").partition("_")
        if begins != prefix or not rest or "/" in rest:
            raise BadInput(f"the id {id_!r} is none; write {prefix}_ and a word, without a '/'")
        return id_


def named(agent: str) -> str:
    """The validated name of a single recipient."""
    if agent in (validate.ALL_AGENTS, ALL):
        raise BadInput("only mail goes to all; for an announcement use an alert")
    return validate.unmarked_name(agent, "agent name")


def several(names: str | Iterable[str], what: str) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(validate.require_iterable(names, what))


def _recipients(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise BadInput("the recipient is missing; name an agent, several, or 'all'")
    if names in ((validate.ALL_AGENTS,), (ALL,)):
        return (ALL,)
    if validate.ALL_AGENTS in names:
        raise BadInput("'all' means all agents; leave the other names out")
    return validate.names(names, "agent name", message_types.RECIPIENTS_LIMIT)
