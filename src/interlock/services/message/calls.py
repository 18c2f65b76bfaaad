"""What a client can ask for of messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Raw

from interlock.core import message as core
from interlock.core import query as queries
from interlock.core import words
from interlock.core.matter import NoMatter, ResolveOutcome, Shown
from interlock.core.message import ABLE, ALL, Message, SendOutcome
from interlock.core.post import Terms
from interlock.core.query import AskOutcome, CancelOutcome, ReplyOutcome
from interlock.core.report import Reported
from interlock.driving import Op
from interlock.errors import BadInput, TooLarge
from interlock.services import callers
from interlock.services.calls import Calls, Desk
from interlock.services.message import looking, reading, serving
from interlock.services.message.acking import Acking
from interlock.services.message.asking import Asking
from interlock.services.message.asking import Terms as AskTerms
from interlock.services.message.files import described
from interlock.services.message.limits import limits
from interlock.services.message.posting import Heard, Posting
from interlock.services.message.receiver import REDELIVER, Receiver
from interlock.services.message.topics import Subscriptions
from interlock.services.runner import Who

if TYPE_CHECKING:
    from interlock.services.message.reception import Reception
    from interlock.services.message.tidy import Tidying

LAST_LIMIT = 10_000


class MessageCalls(Calls):
    """Messages, in the name of one client."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.limits = limits(desk.settings)
        self.posting = Posting(desk.runner, self.limits)
        self.acking = Acking(desk.runner)
        desk.tending.also = self._tidy

    @cached_property
    def asking(self) -> Asking:
        """Questions; whoever never asks or answers one does not pay for them."""
        return Asking(self.desk.runner, self.posting, self.desk.queues)

    @cached_property
    def tidying(self) -> Tidying:
        """What lets go of messages that are over, likewise."""
        from interlock.services.message.tidy import Tidying

        return Tidying(self.desk.runner, self.limits)

    def _tidy(self, who: Who) -> Op[bool]:
        return (yield from self.tidying.some(who)).more

    @cached_property
    def subscriptions(self) -> Subscriptions:
        """Subscriptions, likewise."""
        return Subscriptions(self.desk.runner)

    def alert(
        self,
        type: str,  # noqa: A002 - the word that people use
        data: object = None,
        *,
        urgent: bool = False,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
    ) -> Op[SendOutcome]:
        """Tell everybody who subscribed to this type; written once, whoever they are.

        ``acks`` are messages of ours that are acknowledged with the same commit.
        """
        type_ = words.name(type, "type of an alert")
        return self._post("alert", (), data, type=type_, urgent=urgent, id=id, acks=acks)

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
    ) -> Op[SendOutcome]:
        """Give data of some type to one agent, and with it a ``file`` that both can reach.

        Of the file its path, size and SHA-256 are sent; whoever receives it reads it where it lies,
        and is refused if it was changed meanwhile.
        Somebody who has never been here is refused, since most likely the name is misspelled;
        with ``hold`` the message is kept for it.
        """
        type_, reader = words.name(type, "type of what is shared"), named(to)
        found = None if file is None else (yield from described(file))
        return (
            yield from self._post(
                "share",
                (reader,),
                data,
                file=found,
                type=type_,
                urgent=urgent,
                hold=hold,
                id=id,
                acks=acks,
            )
        )

    def stop(
        self,
        to: str,
        reason: str = "",
        *,
        id: str | None = None,  # noqa: A002
        acks: Iterable[str] = (),
    ) -> Op[SendOutcome]:
        """Ask an agent to end: it finishes its step and goes.  It is read first.

        It is meant for the sessions of that agent that are there now, not for those to come.
        """
        said = text(reason, "reason", core.REASON_LIMIT)
        return self._post("stop", (named(to),), said, urgent=True, id=id, acks=acks)

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
    ) -> Op[SendOutcome]:
        """Mail to one agent, to several, or to ``all``; each of them reads it for itself.

        A mail that answers another (``reply_to``, its id) belongs to the thread of that one, if no
        other ``thread`` is named; without both it begins a thread of its own.
        """
        names = _several(to)
        everybody = names in (("all",), (ALL,))
        if not everybody and not names:
            raise BadInput("whom is it to? name an agent, several, or 'all'")
        readers = (ALL,) if everybody else words.names(names, "agent name", core.RECIPIENTS_LIMIT)
        return self._mail(
            readers,
            body,
            subject=text(subject, "subject", core.SUBJECT_LIMIT),
            type=words.name(type, "type of the mail") if type else "",
            thread=words.name(thread, "thread") if thread else "",
            reply_to=words.name(reply_to, "message id") if reply_to else "",
            urgent=urgent,
            hold=hold,
            id=id,
            acks=acks,
        )

    def _mail(
        self, to: tuple[str, ...], body: object, *, thread: str, reply_to: str, **more: object
    ) -> Op[SendOutcome]:
        if reply_to and not thread:
            thread = yield from self._thread(reply_to)
        given: dict[str, object] = {**more, "thread": thread, "reply_to": reply_to}
        return (yield from self._post("mail", to, body, **given))  # type: ignore[arg-type]

    def _thread(self, id_: str) -> Op[str]:
        """The thread of a message; what cannot be found begins one under its own id."""
        found = yield from reading.find(self.desk.me().who.agent, id_)
        return id_ if found is None else found.thread or id_

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
        id: str | None = None,  # noqa: A002
    ) -> Op[AskOutcome]:
        """Ask an agent, or whoever is able (``?ability``), and wait for the answer.

        An agent that had a session and has none now is ``away``, at once; with ``hold`` the
        question waits for it.  An answer that was given to the same question before will do if it
        is not older than ``cached``.  With ``person`` a person is asked when nobody answers.
        Asked again with the same ``id``, also by another process, it is the same question.
        """
        seat = self.desk.me()
        whom = named(to) if not to.startswith(ABLE) else ABLE + words.name(to[1:], "ability")
        usual = self.desk.settings.query(whom)
        wait = (usual or queries.TIMEOUT) if timeout is None else words.duration(timeout, "timeout")
        asked = queries.Query(
            id=self._id(id, "qry"),
            agent=seat.who.agent,
            session=seat.who.session,
            to=whom,
            question=self._body(question, "question"),
            at=self.desk.runner.clock.wall(),
            timeout=wait,
            urgent=urgent,
            person=person,
        )
        age = None if cached is None else words.duration(cached, "age of an answer")
        terms = AskTerms(hold=hold, cached=age, keep=id is not None)
        waits = callers.terms(seat.caller, callers.current())
        return self.asking.query(seat, asked, terms, waits)

    def reply(self, query: str, answer: object) -> Op[ReplyOutcome]:
        """Answer a question; it is acknowledged with that."""
        id_ = words.name(query, "query id")
        return self.asking.reply(self.desk.me().who, id_, self._body(answer, "answer"))

    def cancel(self, query: str) -> Op[CancelOutcome]:
        """Take a question of ours back."""
        return self.asking.cancel(self.desk.me().who, words.name(query, "query id"))

    def subscribe(
        self,
        type: str,  # noqa: A002
        *,
        senders: Iterable[str] = (),
        where: Mapping[str, object] | None = None,
        last: int = 0,
    ) -> Op[core.Subscribed]:
        """Have alerts of this type delivered, from now on and over restarts, until we unsubscribe.

        Those of some ``senders``, and ``where`` fields of their data have these values; of those
        that were sent before, the ``last`` ones, too.
        """
        type_ = words.name(type, "type of an alert")
        wanted = core.Subscription(
            senders=words.names(senders, "sender", core.FILTERS_LIMIT), where=_where(where)
        )
        number = words.whole(last, "number of alerts", 0, LAST_LIMIT)
        return self.subscriptions.subscribe(self.desk.me().who, type_, wanted, number)

    def unsubscribe(
        self,
        type: str,  # noqa: A002
    ) -> Op[core.Unsubscribed | core.NotSubscribed]:
        """Have no more alerts of this type delivered."""
        return self.subscriptions.unsubscribe(
            self.desk.me().who, words.name(type, "type of an alert")
        )

    def ack(
        self, *ids: str, can: Iterable[str] | None = None
    ) -> Op[core.Acknowledged | core.NotYours]:
        """Acknowledge messages: they will not come again."""
        wanted = [id_ if reading.missed_of(id_) else words.name(id_, "message id") for id_ in ids]
        if not wanted:
            raise BadInput("which message? name one, or several, by its id")
        able = yield from self.abilities(can)
        return (yield from self.acking.ack(self.desk.me().who, wanted, able))

    def abilities(self, can: Iterable[str] | None) -> Op[tuple[str, ...]]:
        """What we can do: as we are told, else as our session says of itself."""
        seat = self.desk.me()
        if can is not None:
            return words.abilities(can)
        if not seat.joined:
            return ()
        from interlock.services.report import Reports

        said = yield from Reports(self.desk.runner).show(seat.who.session)
        return said.can if isinstance(said, Reported) else ()

    def receiver(
        self, *, can: Iterable[str] = (), redeliver: float | str = REDELIVER, only: str = ""
    ) -> Receiver:
        """All that comes for us, until it is acknowledged; whoever opens it closes it.

        With ``only`` these are the alerts of one type, to which we subscribed.
        """
        return Receiver(
            self.desk.runner,
            self.acking,
            self.desk.me().who,
            words.abilities(can),
            words.duration(redeliver, "time until redelivery"),
            only=only,
        )

    def recv(
        self,
        *,
        can: Iterable[str] | None = None,
        timeout: float | str | None = None,
        ack: bool = True,
        redeliver: float | str = REDELIVER,
    ) -> Reception:
        """The same for a loop, which acknowledges as it goes on."""
        from interlock.services.message.reception import Reception, Terms

        self.desk.me()
        terms = Terms(
            can=None if can is None else words.abilities(can),
            timeout=None if timeout is None else words.duration(timeout, "timeout"),
            ack=ack,
            redeliver=words.duration(redeliver, "time until redelivery"),
        )
        return Reception(self, terms)

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
    ) -> Op[looking.Inbox]:
        """What waits for us, the urgent first; nothing is acknowledged.

        ``all`` shows all that is kept, read or not, and ``sent`` our own mail.  The others ask for
        some of them: of a ``kind``, from a ``sender`` or from several, of a ``type``, of a
        ``thread``, or with a text in it (``search``).
        """
        wanted = looking.Wanted(
            kind=_kind(kind),
            senders=words.names(_several(sender), "sender", core.FILTERS_LIMIT),
            type=words.name(type, "type") if type else "",
            thread=words.name(thread, "thread") if thread else "",
            search=text(search, "text to search for", core.SUBJECT_LIMIT),
            limit=words.whole(limit, "limit", 1, LAST_LIMIT),
        )
        who = self.desk.me().who
        if all or sent or thread:
            return looking.kept(who.agent, wanted, sent=sent)
        return self._unread(who, wanted, can)

    def _unread(
        self, who: Who, wanted: looking.Wanted, can: Iterable[str] | None
    ) -> Op[looking.Inbox]:
        yield from serving.known(self.desk.runner, who)
        return (yield from looking.unread(who.agent, wanted, (yield from self.abilities(can))))

    def wait(
        self, timeout: float | str = words.FOREVER, *, can: Iterable[str] | None = None
    ) -> Op[looking.Arrived | looking.Nothing]:
        """Wait until something unread is there for us; nothing is acknowledged.

        Whoever asks us something meanwhile knows that somebody is there.
        """
        from interlock.services.message.duty import Duty

        patience = words.patience(timeout)
        yield from serving.known(self.desk.runner, self.desk.me().who)
        receiver = self.receiver(can=(yield from self.abilities(can)))
        limit = None if patience == words.FOREVER else patience
        return (yield from looking.wait(receiver, Duty(self.desk), limit))

    def resolve(self, decision: str, answer: object) -> Op[ResolveOutcome]:
        """Decide what no agent could; whoever asked gets it as a message."""
        id_ = words.name(decision, "decision id")
        return self.asking.resolve(self.desk.me().who, id_, self._body(answer, "answer"))

    def decisions(self) -> Op[tuple[Shown, ...]]:
        """What persons are asked, and what they decided lately."""
        return self.asking.matters()

    def decision(self, decision: str) -> Op[Shown | NoMatter]:
        """One of them."""
        return self.asking.matter(words.name(decision, "decision id"))

    def _post(
        self,
        kind: core.Kind,
        to: tuple[str, ...],
        data: object,
        *,
        id: str | None,  # noqa: A002
        acks: Iterable[str],
        urgent: bool = False,
        hold: bool = False,
        type: str = "",  # noqa: A002
        subject: str = "",
        thread: str = "",
        reply_to: str = "",
        file: core.File | None = None,
    ) -> Op[SendOutcome]:
        who: Who = self.desk.me().who
        id_ = self._id(id, "msg")
        message = Message(
            id=id_,
            kind=kind,
            sender=who.agent,
            session=who.session,
            at=round(self.desk.runner.clock.wall(), 3),
            to=to,
            type=type,
            subject=subject,
            thread=thread or (id_ if kind == "mail" else ""),
            reply_to=reply_to,
            urgent=urgent,
            data=self._body(data, "body"),
            file=file,
        )
        ended = words.names(acks, "message id", core.RECIPIENTS_LIMIT)
        terms = Terms(hold=hold, acks=ended)
        return (
            self._ending(who, message, terms) if ended else self.posting.post(who, message, terms)
        )

    def _ending(self, who: Who, message: Message, terms: Terms) -> Op[SendOutcome]:
        """Send what acknowledges something: of a topic, if it is not to us alone."""
        able = yield from self.abilities(None)
        seen, begins = yield from self.acking.seen(who.agent, terms.acks, able)
        return (yield from self.posting.post(who, message, terms, Heard(seen, begins)))

    def _body(self, data: object, what: str) -> Raw:
        return Raw(words.payload(data, what, self.limits.body))

    def _id(self, id_: str | None, prefix: str) -> str:
        if id_ is None:
            return self.desk.runner.new_id(prefix)
        if not words.name(id_, "id").startswith(f"{prefix}_") or "/" in id_:
            raise BadInput(f"the id {id_!r} does not begin with '{prefix}_', or has a '/' in it")
        return id_


def named(agent: str) -> str:
    """The name of somebody to whom something is sent."""
    if agent in ("all", ALL):
        raise BadInput("only mail goes to everybody; to tell many of something use an alert")
    return words.name(agent, "agent name")


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def text(value: str, what: str, most: int) -> str:
    """A short text."""
    if not isinstance(value, str):
        raise BadInput(f"the {what} must be text, not {builtin_name(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadInput(f"the {what} is not UTF-8; write it in UTF-8") from None
    if size > most:
        raise TooLarge(f"the {what} has {size} bytes; {most} are allowed: shorten it")
    return value


def _kind(kind: str | None) -> core.Kind | None:
    found = next((each for each in core.KINDS if each == kind), None)
    if kind is not None and found is None:
        raise BadInput(
            f"no message is of the kind {kind!r:.40}; there are: {', '.join(core.KINDS)}"
        )
    return found


def builtin_name(value: object) -> str:
    """What kind of value this is."""
    return type(value).__name__


def _where(where: Mapping[str, object] | None) -> dict[str, object]:
    """Values that fields must have, as JSON can say them."""
    if where is None:
        return {}
    if len(where) > core.FILTERS_LIMIT:
        raise BadInput(f"{len(where)} fields to filter by; {core.FILTERS_LIMIT} are allowed")
    words.metadata(dict(where))
    return dict(where)
