"""Answers: from a finished task to a result in the outbox (step 7 of ``exchange.py``).

A worker of ``request serve`` completes its task and stores the result with one commit.  A task of a
request may also end in other ways: an ordinary worker completes it, an operator cancels it, all its
workers are lost.  Then the next process that tends the requests of this home finds it by the mark
``unanswered``, and stores the result that the task has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Decision, Event, Write
from interlock.errors import BadInput, StoreDamaged
from interlock.nouns.guards.gates import merged
from interlock.nouns.requests.acknowledgements import UnacknowledgedMark
from interlock.nouns.requests.audit import AuditFacts, passed_ms
from interlock.nouns.requests.exchange import (
    OutboxEntry,
    ReceivedRequest,
    decode_received,
    task_id,
)
from interlock.nouns.requests.posting import Outbox, Posting
from interlock.nouns.requests.request import ResultStatus
from interlock.nouns.swarms.head import AckHead, ResultHead, milliseconds, result_head
from interlock.nouns.tasks.task import TaskOwner, TaskResult, TaskStatus
from interlock.nouns.tasks.task_reader import decode_claim, decode_result, decode_status
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp

SWEPT = KEYS_AT_ONCE
"""Unanswered requests that are looked at together, with one read."""
ROUNDS = 40
"""Such reads of one sweep: a long queue is looked at part by part, and holds nothing else up."""
ERROR_LIMIT = 64 * 1024
REMEMBERED = 1000
"""Requests whose items a process remembers until they are answered."""
_DONE = ("complete", "failed", "dead", "dropped")


class Answer(Struct, frozen=True, kw_only=True):
    """What an executor answers; ``body`` is the result as JSON, or the error as a JSON text."""

    status: ResultStatus
    body: Raw
    by: str
    at: float
    confidence: float | None = None
    citations: tuple[str, ...] = ()


class SignedAnswer(Struct, frozen=True, kw_only=True):
    """An answer that is signed and ready for the outbox."""

    received: ReceivedRequest
    answer: Answer
    posting: Posting
    until: float

    @property
    def mark(self) -> UnacknowledgedMark:
        """The mark that the asker has not taken it yet."""
        return UnacknowledgedMark(message=self.posting.message, until=self.until)


class OwnSwarmMoved(Exception):
    """Our own swarm changed after an answer was signed."""


def error_body(text: str) -> Raw:
    """An error as a body."""
    return Raw(msgspec.json.encode(text[:ERROR_LIMIT]))


class Answers:
    """Results of the requests that one home received; its methods are generators for a driver."""

    def __init__(self, home: Home, outbox: Outbox) -> None:
        self._home = home
        self._outbox = outbox
        self._after = ""
        """Where the next sweep begins."""
        self._taken: dict[str, tuple[ReceivedRequest, Item]] = {}
        """Requests that this process took in, with their items: it need not read them again."""

    def received(self, swarm: str, request: str) -> Op[ReceivedRequest | None]:
        """A request that was taken in."""
        key = keys.received(swarm, request)
        if (known := self._taken.get(key)) is not None:
            return known[0]
        return decode_received((yield Read(key))[key])

    def remember(self, received: Iterable[ReceivedRequest]) -> None:
        """Requests were just taken in by this process, which may soon have their results."""
        for each in received:
            key = keys.received(each.head.from_swarm, each.head.request_id)
            if (item := self._home.recalled((key,)).get(key)) is not None:
                self._taken[key] = each, item
        while len(self._taken) > REMEMBERED:
            self._taken.pop(next(iter(self._taken)), None)

    def guess(self, signed: SignedAnswer) -> dict[str, Item | None]:
        """What this process knows of the items that an answer changes; it knows that once."""
        head = signed.received.head
        key = keys.received(head.from_swarm, head.request_id)
        known = self._taken.pop(key, None)
        return {**self._home.guess(head.from_swarm), **({} if known is None else {key: known[1]})}

    def sign(self, own: OwnSwarm, received: ReceivedRequest, answer: Answer) -> Op[SignedAnswer]:
        """Sign a result; it binds the head of the request that was taken in."""

        def make(key: str) -> ResultHead:
            return result_head(
                received.head,
                message_id=self._home.runner.new_id("msg"),
                status=answer.status,
                executed_by=answer.by,
                executed_at=answer.at,
                body=bytes(answer.body),
                key=key,
                now=self._home.now(),
                confidence=answer.confidence,
                citations=answer.citations,
            )

        head, envelope = yield from self._home.sign(own, answer.by, make)
        to = received.head.from_swarm
        entry = OutboxEntry(
            kind="result",
            to=to,
            request=head.request_id,
            envelope=envelope,
            body=answer.body,
            expires=head.expires / 1000,
        )
        posting = Posting(key=keys.outbox(to, head.message_id), entry=entry, body=answer.body)
        until = head.deadline / 1000
        return SignedAnswer(received=received, answer=answer, posting=posting, until=until)

    def _sign_or_say(
        self, own: OwnSwarm, received: ReceivedRequest, answer: Answer
    ) -> Op[SignedAnswer]:
        """Sign the result of a task; if it is none that can be sent, an error that says why."""
        try:
            return (yield from self.sign(own, received, answer))
        except BadInput as error:
            said = error_body(f"its result cannot be sent: {error}")
            failed = Answer(status="error", body=said, by=answer.by, at=answer.at)
            return (yield from self.sign(own, received, failed))

    def along(
        self, own: OwnSwarm, signed: SignedAnswer
    ) -> Callable[[Decision[Any]], DecideOp[Any]]:
        """What makes the end of a task the answer of its request, in the same commit.

        OwnSwarmMoved if our own swarm is another one than that which signed.
        """

        def adding(decision: Decision[Any]) -> DecideOp[Any]:
            if not (yield from self._home.is_own(own)):
                raise OwnSwarmMoved
            added = yield from self._answering(signed)
            return merged(decision, [added])

        return adding

    def _answering(self, signed: SignedAnswer, *, again: bool = False) -> DecideOp[bool]:
        head = signed.received.head
        key, thing = keys.received(head.from_swarm, head.request_id), f"request/{head.request_id}"
        claim = keys.owner(signed.received.task)
        items = (yield (key, *((claim,) if signed.received.task else ()))).items
        stored = decode_received(items[key])
        if stored is None or (stored.answered is not None and not again):
            return Decision(outcome=False)
        yield from self._home.relies_on(head.from_swarm)
        answer, now = signed.answer, self._home.now()
        facts = _facts(signed, readable(decode_claim, items.get(claim)), now)
        executed = Event("request:executed", answer.by, thing, details=facts.details())
        after = replace(
            stored,
            answered=now,
            status=answer.status,
            executed_by=answer.by,
            executed_at=answer.at,
        )
        return Decision(
            outcome=True,
            verb="request.reply",
            thing=thing,
            puts=(
                Write(key, after),
                Write(signed.posting.key, signed.posting.entry),
                Write(keys.unacknowledged(head.from_swarm, head.request_id), signed.mark),
            ),
            deletes=(keys.unanswered(head.from_swarm, head.request_id),),
            events=() if stored.answered is not None else (executed,),
            trace=head.correlation_id,
        )

    def post(self, actor: Actor, own: OwnSwarm, signed: SignedAnswer) -> Op[None]:
        """Step 8: post a result that is in the outbox."""
        yield from self._outbox.post(actor, own, signed.posting, clear_later=True)

    def sweep(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """Answer requests whose tasks have ended without an answer."""
        done = 0
        for _ in range(ROUNDS):
            page = Range(keys.UNANSWERED, self._after, SWEPT)
            items: tuple[Item, ...] = (yield Read(page)).ranges[page]
            self._after = items[-1].key if len(items) == page.limit else ""
            for swarm, id_ in (yield from _ended(items)):
                try:
                    done += yield from self.finish(actor, own, swarm, id_)
                except (BadInput, StoreDamaged) as error:  # one request must not stop the others
                    _log().warning("request %s of %s is not answered: %s", id_, swarm, error)
            if not self._after:
                break
        return done

    def finish(self, actor: Actor, own: OwnSwarm, swarm: str, request: str) -> Op[bool]:
        """Answer a request if its task has ended, and it has no answer yet."""
        received = yield from self.received(swarm, request)
        if received is None or received.answered is not None:
            return False
        found = yield from self._outcome(received, actor)
        if found is None or self._home.signer(own, found.by) is None:
            return False
        signed = yield from self._sign_or_say(own, received, found)
        done = yield from self._home.runner.change(lambda: self._answering(signed), actor)
        if done.outcome:
            yield from self.post(actor, own, signed)
        return done.outcome

    def repeat(self, actor: Actor, own: OwnSwarm, swarm: str, request: str) -> Op[None]:
        """Answer a later attempt: with the result again, or with a receipt."""
        received = yield from self.received(swarm, request)
        if received is None:
            return
        found = yield from self._outcome(received, actor)
        if found is None:
            yield from self._receipt(actor, own, received)
            return
        if self._home.signer(own, found.by) is None:
            return
        signed = yield from self._sign_or_say(own, received, found)
        yield from self._home.runner.change(lambda: self._answering(signed, again=True), actor)
        yield from self.post(actor, own, signed)

    def _outcome(self, received: ReceivedRequest, actor: Actor) -> Op[Answer | None]:
        """The answer that the task of a request has; None while it is not finished."""
        if not received.task:
            by = received.executed_by or actor.agent or received.head.to_swarm
            return Answer(status="success", body=Raw(b"null"), by=by, at=received.at)
        status_key, result_key = keys.status(received.task), keys.result(received.task)
        items = (yield Read(status_key, result_key)).items
        status = decode_status(items[status_key])
        if status is not None and status.state not in _DONE:
            return None
        if status is None and received.answered is not None:
            return None  # what it answered is deleted, and another text would be a second result
        return _answer(received, status, readable(decode_result, items[result_key]))

    def _receipt(self, actor: Actor, own: OwnSwarm, received: ReceivedRequest) -> Op[None]:
        """Confirm to the asker that its request is a task here."""
        request, now = received.head, milliseconds(self._home.now())
        agent = actor.agent or own.name
        if self._home.signer(own, agent) is None:
            return

        def make(key: str) -> AckHead:
            return AckHead(
                message_id=self._home.runner.new_id("msg"),
                request_id=request.request_id,
                from_swarm=own.name,
                from_agent=agent,
                to_swarm=request.from_swarm,
                to_agent=request.reply_to or request.from_agent,
                correlation_id=request.correlation_id,
                in_reply_to=received.digest,
                timestamp=now,
                expires=max(request.deadline, now),
                deadline=max(request.deadline, now),
                key=key,
                bus=request.bus,
            )

        head, envelope = yield from self._home.sign(own, agent, make)
        entry = OutboxEntry(
            kind="receipt",
            to=head.to_swarm,
            request=head.request_id,
            envelope=envelope,
            expires=head.expires / 1000,
        )
        key = keys.outbox(head.to_swarm, head.message_id)

        def putting() -> DecideOp[None]:
            yield from self._home.relies_on(head.to_swarm)
            return Decision(
                outcome=None,
                verb="request.confirm",
                thing=f"request/{head.request_id}",
                puts=(Write(key, entry),),
                trace=head.correlation_id,
            )

        yield from self._home.runner.change(putting, actor)
        yield from self._outbox.post(actor, own, Posting(key=key, entry=entry, body=Raw(b"")))


def _ended(marks: Sequence[Item]) -> Op[list[tuple[str, str]]]:
    """The unanswered requests whose tasks do not wait or run, each with its swarm."""
    asked = [(keys.agent_of(item.key), keys.id_of(item.key)) for item in marks]
    statuses = {each: keys.status(task_id(*each)) for each in asked}
    items = yield from looked_up(statuses.values())

    def ended(key: str) -> bool:
        status = readable(decode_status, items[key])
        return items[key] is None if status is None else status.state in _DONE

    return [each for each, key in statuses.items() if ended(key)]


def _log() -> logging.Logger:
    return logging.getLogger("interlock")


def _facts(signed: SignedAnswer, owner: TaskOwner | None, now: float) -> AuditFacts:
    """What the audit has to know of a result; the time since its claim, if that still exists."""
    head, answer = signed.received.head, signed.answer
    return AuditFacts(
        from_swarm=head.to_swarm,
        from_agent=answer.by,
        to_swarm=head.from_swarm,
        to_agent=head.from_agent,
        confidence=answer.confidence,
        citations=answer.citations,
        status=answer.status,
        execution_ms=None if owner is None else passed_ms(owner.since, now),
    )


def _answer(
    received: ReceivedRequest, status: TaskStatus | None, result: TaskResult | None
) -> Answer:
    """The answer of a task that has ended; one that was deleted long ago had no answer.

    A second text must be the same as the first, so who executed it and when is taken from there.
    """
    by = (status.by if status else "") or (result.by if result else "") or received.head.to_swarm
    at = (result.at if result else 0.0) or (status.since if status else 0.0) or received.at
    if received.answered is not None:
        by, at = received.executed_by, received.executed_at
    if status is not None and status.state == "complete":
        kept = Raw(b"null") if result is None or result.result is UNSET else result.result
        return Answer(status="success", body=Raw(bytes(kept)), by=by, at=at)
    said = "" if status is None else status.reason
    if result is not None and result.error is not UNSET:
        found = msgspec.json.decode(result.error)
        said = found if isinstance(found, str) else said
    return Answer(status="error", body=error_body(said or "no worker finished it"), by=by, at=at)
