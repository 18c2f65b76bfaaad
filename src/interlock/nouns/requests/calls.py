"""The calls of requests and of the quarantine: arguments are validated, services carry them out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.audit import AuditAction
from interlock.nouns.requests.request import (
    DEADLINE,
    GREATEST_PRIORITY,
    LEAST_PRIORITY,
    PRIORITY,
    TIMEOUT,
    Act,
    RequestState,
    require_citations,
    require_confidence,
)
from interlock.nouns.requests.send_service import (
    ANY_SWARM,
    RequestDraft,
    note_how_to_go_on,
    outcome_of,
)
from interlock.nouns.swarms.head import ABILITY, ALL_AGENTS, BODY_LIMIT, LONGEST_DEADLINE
from interlock.runtime.calls import Calls, D, call, patiently
from interlock.runtime.given import Given
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Moment
    from interlock.core.outcomes import GivenFenced
    from interlock.nouns.requests.service import RequestService
    from interlock.runtime.identity import Actor

LISTED = 100
MOST = 10_000
SHORTEST = 0.001
STATES: tuple[RequestState, ...] = get_args(RequestState)
RECEIVED_STATES = ("received", "running", "answered", "acknowledged")


class RequestCalls(Calls[D]):
    """Requests to other swarms, and those that came from them."""

    @property
    def _service(self) -> RequestService:
        return self.context.requests

    @call
    def send(
        self,
        swarm: str,
        to: str,
        payload: object = None,
        *,
        type: str = "task",  # noqa: A002 - as the command line calls it
        priority: int = PRIORITY,
        timeout: float | str = TIMEOUT,
        deadline: Moment | None = None,
        wait: float | str = 0,
        id: str | None = None,  # noqa: A002 - the word that people use
        act: Act = "request",
        correlation: str = "",
        reply_to: str | None = None,
        confidence: float | None = None,
        citations: Iterable[str] = (),
        notice: bool = True,
        given: Given = (),
    ) -> Op[out.SendRequestOutcome | GivenFenced]:
        """Ask a swarm: its agent ``to``, any of its agents with an ability (``can:X``), or all (*).

        The swarm ``*`` is any that is online and can do it: the better of two that are drawn.
        The request is durable when this returns, also while the bus is away; it is carried out at
        most until its ``deadline``.  A higher ``priority`` (1 to 10) comes first.  With ``wait``
        the answer is the result, if it comes in time; the request goes on if not.  ``timeout`` is
        how long an answer may take: a swarm that takes longer three times in a row is not asked
        for a minute.  A call that is repeated with the same ``id`` sends nothing twice.  Without a
        wait the asker gets a message with the result, unless ``notice`` is false.
        """
        patience = validate.wait_time(wait)
        chosen = "" if id is None else validate.name(id, "id of a request")
        draft = RequestDraft(
            to_swarm=_swarm(swarm, to),
            to_agent=_whom(to),
            body=validate.payload(payload, "payload", BODY_LIMIT),
            task_type=validate.name(type, "type"),
            priority=validate.integer(
                priority, "priority of a request", LEAST_PRIORITY, GREATEST_PRIORITY
            ),
            timeout=_positive(timeout, "timeout", LONGEST_DEADLINE),
            deadline=_deadline(deadline, self.context.runner.clock.wall()),
            act=_act(act),
            name=chosen,
            correlation_id=validate.name(correlation, "correlation") if correlation else "",
            reply_to="" if reply_to is None else validate.name(reply_to, "reply_to"),
            confidence=require_confidence(confidence),
            citations=require_citations(citations),
            notice=validate.flag(notice, "notice") and not patience,
        )
        identity = self._identity(given)
        return self._fenced(identity, self._sent(identity.actor, draft, patience))

    def _sent(self, actor: Actor, draft: RequestDraft, wait: float) -> Op[out.SendRequestOutcome]:
        sender, clock = self._service.sender, self.context.runner.clock
        if not wait:
            return (yield from sender.send(actor, draft))
        ends = clock.monotonic() + wait
        sent, finding = yield from sender.ask(actor, draft, wait)
        if finding is not None:
            return outcome_of(finding)
        if not isinstance(sent, out.RequestSent | out.RequestExists):
            return sent
        if isinstance(sent, out.RequestExists) and sent.differs:  # its result answers another one
            return sent
        left = max(ends - clock.monotonic(), 0.001)
        result = yield from self._result(actor, sent.request, left)
        if isinstance(result, out.RequestOpen) and isinstance(sent, out.RequestSent):
            return replace(result, warning=sent.warning)
        return sent if isinstance(result, out.UnknownRequest) else result

    def _result(self, actor: Actor, request: str, wait: float | str) -> Op[out.ResultOutcome]:
        """The result; the wait goes on while our home does not answer."""

        def attempt(left: float | str) -> Op[out.ResultOutcome]:
            return self._waited(actor, request, validate.wait_time(left))

        return patiently(self.context, "the wait for a result", attempt, wait)

    def _waited(self, actor: Actor, request: str, wait: float) -> Op[out.ResultOutcome]:
        """The result; a caller that is interrupted learns how to ask for it later."""
        try:
            return (yield from self._service.sender.result(actor, request, wait))
        except KeyboardInterrupt as error:
            note_how_to_go_on(error, request)
            raise

    @call
    def result(self, request: str, *, wait: float | str = 0) -> Op[out.ResultOutcome]:
        """The result of a request, by its id or by the one that its sender chose.

        With ``wait`` until it is there, for so long; a result is kept for an hour.
        """
        actor = self.context.me().actor
        named = validate.name(request, "request")
        return self._result(actor, named, wait)

    @call
    def cancel(
        self, request: str, reason: str = "", *, given: Given = ()
    ) -> Op[out.RequestCancelled | out.RequestOver | out.UnknownRequest | GivenFenced]:
        """End a request without waiting for its result; the other swarm may still do the work."""
        identity = self._identity(given)
        why = validate.text(reason, "reason", validate.REASON_LIMIT)
        cancelling = self._service.sender.cancel(
            identity.actor, validate.name(request, "request"), why
        )
        return self._fenced(identity, cancelling)

    @call
    def list(
        self,
        *,
        state: Iterable[str] = (),
        received: bool = False,
        swarm: str | None = None,
        after: str | None = None,
        limit: int = LISTED,
    ) -> Op[out.RequestList]:
        """Requests by id, in these states; or those that were ``received`` from other swarms."""
        from interlock.nouns.requests.views import list_received, list_requests

        name = "" if swarm is None else validate.name(swarm, "swarm")
        begin = "" if after is None else validate.name(after, "request")
        most = validate.integer(limit, "limit", 1, MOST)
        if validate.flag(received, "received"):
            if begin and not name and "@" not in begin:
                raise BadInput(f"{begin!r:.60} may be of any swarm; write it as ID@SWARM")
            return list_received(_states(state, RECEIVED_STATES), name, begin, most)
        return list_requests(_states(state, STATES), name, begin, most)

    @call
    def audit(
        self,
        day: str = "today",
        *,
        action: str | None = None,
        swarm: str | None = None,
        request: str | None = None,
        limit: int = LISTED,
    ) -> Op[out.AuditList]:
        """The last events between swarms on a day (``2026-11-16``, in UTC), as the record has them.

        ``action`` selects what became of them: ``SHARE``, ``HOLD`` or ``ESCALATE``; ``swarm`` those
        from or to a swarm, and ``request`` those of one request, by its id.
        """
        from interlock.nouns.requests.audit_service import DAY, AuditFilter, audit_lines

        begin = _day(day, self.context.runner.clock.wall())
        wanted = AuditFilter(
            begin=begin,
            end=begin + DAY,
            action=_action(action),
            swarm="" if swarm is None else validate.name(swarm, "swarm"),
            request="" if request is None else validate.name(request, "request"),
        )
        return audit_lines(wanted, validate.integer(limit, "limit", 1, MOST))

    @call
    def write_audit(self, folder: str) -> Op[out.AuditWritten | out.AuditBusy]:
        """Bring the daily files of the audit in a folder up to date: JSON Lines, one a day.

        A file is deleted after 90 days, or later if the record is kept for longer.  With a folder
        in the settings (``audit`` under ``[request]``) ``maintain`` does this.
        """
        from interlock.nouns.requests.audit_service import write_audit

        return write_audit(self.context, validate.text(folder, "folder", validate.METADATA_LIMIT))

    @call
    def tend(self) -> Op[int]:
        """Take in what the bus has, post what waits, and do what is due; how much that was.

        A process that serves does this by itself; so does ``maintain``.
        """
        return self._service.tend(self.context.identity.actor)


class QuarantineCalls(Calls[D]):
    """Messages of other swarms that were refused."""

    @call
    def list(
        self, *, swarm: str | None = None, after: str | None = None, limit: int = LISTED
    ) -> Op[out.QuarantineList]:
        """Messages in quarantine, oldest first."""
        from interlock.nouns.requests.views import list_quarantine

        return list_quarantine(
            "" if swarm is None else validate.name(swarm, "swarm"),
            "" if after is None else validate.name(after, "id"),
            validate.integer(limit, "limit", 1, MOST),
        )

    @call
    def show(self, id: str) -> Op[out.QuarantineView | out.UnknownQuarantine]:  # noqa: A002
        """One message, with its payload if its sender is known."""
        from interlock.nouns.requests.views import show_quarantine

        return show_quarantine(validate.name(id, "id"))

    @call
    def release(
        self,
        id: str,  # noqa: A002
    ) -> Op[out.QuarantineReleased | out.QuarantineKept | out.UnknownQuarantine]:
        """Take a message in after all: its signature is verified again, the limits do not count."""
        from interlock.nouns.requests.quarantine_service import release

        actor = self.context.me().actor
        return release(self.context.requests, actor, validate.name(id, "id"))

    @call
    def drop(self, *ids: str) -> Op[out.QuarantineDropped | out.UnknownQuarantine]:
        """Delete messages."""
        from interlock.nouns.requests.quarantine_service import drop

        if not ids:
            raise BadInput("which message? 'interlock quarantine list' shows their ids")
        actor = self.context.me().actor
        return drop(self.context.requests, actor, tuple(validate.name(id_, "id") for id_ in ids))


def _day(text: str, now: float) -> float:
    """The begin of a day in UTC."""
    word = validate.text(text, "day", validate.METADATA_LIMIT).strip()
    back = {"today": 0, "yesterday": 1}.get(word)
    if back is not None:
        return (now // 86400 - back) * 86400.0
    try:
        return datetime.fromisoformat(f"{date.fromisoformat(word)}T00:00:00+00:00").timestamp()
    except ValueError:
        raise BadInput(
            f"the day {word[:40]!r} is not like 2026-11-16, today or yesterday"
        ) from None


def _action(text: str | None) -> str:
    word = "" if text is None else validate.text(text, "action", validate.REASON_LIMIT).upper()
    if word not in ("", *get_args(AuditAction)):
        known = ", ".join(get_args(AuditAction))
        raise BadInput(f"there is no action {word[:40]!r}; there are {known}")
    return word


def _swarm(text: str, to: str) -> str:
    if text != ANY_SWARM:
        return validate.name(text, "swarm")
    if not to.startswith(ABILITY):
        raise BadInput(f"which swarm has {to!r:.40}? '*' as the swarm needs an ability: can:X")
    return text


def _whom(text: str) -> str:
    if text == ALL_AGENTS:
        return text
    if str(text).startswith(ABILITY):
        return ABILITY + validate.name(text.removeprefix(ABILITY), "ability")
    return validate.name(text, "agent of the other swarm")


def _positive(text: float | str, what: str, most: float) -> float:
    found = validate.duration(text, what)
    if not SHORTEST <= found <= most:
        raise BadInput(f"the {what} is {validate.span(found)}; give 1 ms to {validate.span(most)}")
    return found


def _deadline(moment: Moment | None, now: float) -> float:
    """Seconds until the deadline."""
    if moment is None:
        return DEADLINE
    left = validate.future_moment(moment, now, "deadline") - now
    if left < 0:
        raise BadInput("the deadline is over already; give a time to come, or a duration like 2h")
    return _positive(left, "deadline", LONGEST_DEADLINE)


def _act(text: str) -> Act:
    if text not in get_args(Act):
        raise BadInput(f"there is no act {text!r}; there are {', '.join(get_args(Act))}")
    return text  # type: ignore[return-value]


def _states(given: Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    wanted = validate.names(given, "state", len(known))
    unknown = [each for each in wanted if each not in known]
    if unknown:
        raise BadInput(f"there is no state {unknown[0]!r}; there are {', '.join(known)}")
    return wanted
