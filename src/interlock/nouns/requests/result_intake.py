"""Intake of results and receipts at the asker (steps 9 and 10 of ``exchange.py``), many at a time.

Any number of processes may do this at once: the finding must be new, which makes all but one of
them do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.nouns.guards.gates import merged
from interlock.nouns.messages import decode
from interlock.nouns.requests import rules, send_rules
from interlock.nouns.requests.exchange import decode_breaker, decode_reputation, decode_request
from interlock.nouns.requests.incoming import (
    STALE,
    EnvelopeOnBus,
    Incoming,
    VerifiedEnvelopes,
    read_all,
    unchanged,
)
from interlock.nouns.requests.quarantine_service import with_refused
from interlock.nouns.requests.request import ArrivedResult, OutgoingRequest, RequestFinding
from interlock.nouns.swarms import reputation
from interlock.nouns.swarms.breaker import CLOSED
from interlock.nouns.swarms.envelope import EnvelopeRefused, OpenedEnvelope, body_refusal
from interlock.nouns.swarms.head import AckHead, ResultHead
from interlock.nouns.swarms.reputation import UNKNOWN, PeerOutcome
from interlock.runtime.identity import Actor
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.requests.cleanup import Cleanup
    from interlock.nouns.requests.home import Home
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp, ReadOp


Result: TypeAlias = tuple[OpenedEnvelope[ResultHead], bytes]
"""A result whose envelope is verified, and its body."""


class _Taken:
    """What one attempt at a commit takes in."""

    def __init__(self) -> None:
        self.answered: list[tuple[OutgoingRequest, RequestFinding]] = []
        self.wrong: list[EnvelopeRefused] = []
        self.recorded: dict[str, tuple[int, bool]] = {}
        """For each swarm the answers that its reputation does not have, and whether it has all."""

    def clear(self) -> None:
        """Begin another attempt."""
        self.answered.clear()
        self.wrong.clear()
        self.recorded.clear()


class ResultIntake:
    """Takes in results and receipts for one home; its methods are generators for a driver."""

    def __init__(self, home: Home, incoming: Incoming, cleanup: Cleanup) -> None:
        self._home = home
        self._incoming = incoming
        self._room = home.room
        self._cleanup = cleanup
        self.answered: Callable[[RequestFinding], object] = lambda _: None
        """Called with each finding that is committed."""

    def take(self, actor: Actor, own: OwnSwarm, found: Sequence[EnvelopeOnBus]) -> Op[None]:
        """Take in these results."""
        left = list(found)
        while left:
            gone = yield from self._take_some(actor, own, left)
            left = [each for each in left if each.key not in gone]

    def _take_some(
        self, actor: Actor, own: OwnSwarm, found: Sequence[EnvelopeOnBus]
    ) -> Op[frozenset[str]]:
        """Take in as many of these as one commit takes; the keys of those that are dealt with."""
        incoming, again = self._incoming, False
        while True:
            verified = yield from incoming.verified(own, found, ResultHead, again=again)
            first = incoming.fitting(verified.opened)
            whole = yield from incoming.with_bodies(own, first)
            verified = replace(verified, opened=whole)
            results = _results(verified)
            done = yield from self._take(actor, own, results, verified)
            if done is not None:
                break
            again = True
        for request, finding in done:
            self._cleanup.drop(keys.outbox(request.to_swarm, request.message))
            self.answered(finding)
        yield from incoming.taken(actor, own, verified.envelopes)
        dealt_with = (*first, *verified.refused)
        return frozenset(each.key for each, _ in dealt_with)

    def _take(
        self,
        actor: Actor,
        own: OwnSwarm,
        results: Sequence[Result],
        verified: VerifiedEnvelopes[ResultHead],
    ) -> Op[list[tuple[OutgoingRequest, RequestFinding]] | None]:
        """Step 9; None if the trust, or our own swarm, changed before the commit."""
        home, taken = self._home, _Taken()
        ids = [home.runner.new_id("qua") for _ in (*results, *verified.refused)]
        notices = [home.runner.new_id("msg") for _ in results]

        def deciding() -> DecideOp[str]:
            if not (yield from home.is_own(own)) or not (yield from unchanged(verified.relied)):
                return Decision(outcome=STALE)
            taken.clear()
            taken.wrong += [each for _, each in verified.refused]
            parts = yield from self._judge(results, notices, taken)
            kept = yield from self._room.keep(ids, taken.wrong, "result", home.now())
            names = [request.id for request, _ in taken.answered]
            if not parts and not kept.changes:
                return Decision(outcome="repeated")
            thing = f"request/{names[0]}" if len(names) == 1 else "requests"
            whole = Decision[Any](
                outcome="answered" if names else "refused",
                verb="request.complete" if names else "request.refuse" if parts else "",
                thing=thing,
                trace=parts[0].trace if len(names) == 1 else "",
            )
            return with_refused(merged(whole, _things(parts, thing)), kept)

        guess = home.guess(*{opened.key.swarm for opened, _ in results})
        if guess:
            asked_for = [keys.request(opened.head.request_id) for opened, _ in results]
            guess |= {**verified.relied, **home.recalled(asked_for)}
        done = yield from self._room.commit(deciding, actor, guess)
        if done.outcome == STALE:
            return None
        for swarm, (new, all_) in taken.recorded.items():
            home.answered(swarm, new, recorded=all_)
        home.ended(request for request, _ in taken.answered)
        return taken.answered

    def _judge(
        self, results: Sequence[Result], notices: Sequence[str], taken: _Taken
    ) -> ReadOp[list[Decision[str]]]:
        """Judge results inside of a decision: the parts of it, and what they mean."""
        now = self._home.now()
        parts: list[Decision[str]] = []
        went: dict[str, list[tuple[OutgoingRequest, PeerOutcome]]] = {}
        asked = yield from _requests([opened.head.request_id for opened, _ in results])
        for (opened, body), notice in zip(results, notices, strict=True):
            before = asked.get(opened.head.request_id)
            judged = rules.accept_result(before, _arrived(opened, body), now)
            swarm = opened.key.swarm
            if isinstance(judged, rules.ResultAccepted) and before is not None:
                parts.append((yield from self._answering(before, judged, notice, now)))
                went.setdefault(swarm, []).append((before, "answered"))
                asked[before.id] = judged.request
                taken.answered.append((before, judged.finding))
            elif isinstance(judged, rules.ResultRefused):
                taken.wrong.append(_refusal(opened, judged))
                if judged.conflict and before is not None:
                    asked[before.id] = replace(before, equivocated=True)
                    names = [request.id for request, _ in taken.answered]
                    parts.append(_equivocated(before, names))
                    went.setdefault(swarm, []).append((before, "conflict"))
        for swarm, ends in went.items():
            parts.append((yield from self._reputation(swarm, ends, taken.recorded)))
        return parts

    def _answering(
        self, before: OutgoingRequest, judged: rules.ResultAccepted, notice: str, now: float
    ) -> DecideOp[str]:
        circuit = keys.breaker(before.to_swarm)
        breaker = decode_breaker((yield (circuit,)).items[circuit]) or CLOSED
        person = yield from _decision(before)
        return send_rules.answer(before, judged, breaker, now, asked=person, notice=notice)

    def _reputation(
        self,
        swarm: str,
        ends: Sequence[tuple[OutgoingRequest, PeerOutcome]],
        recorded: dict[str, tuple[int, bool]],
    ) -> DecideOp[str]:
        """Add how requests ended to the reputation of a peer, now or with a later commit."""
        plain = all(outcome == "answered" and not request.record_probe for request, outcome in ends)
        if plain and not self._home.records_answers(swarm, len(ends)):
            recorded[swarm] = len(ends), False
            return Decision(outcome="")
        key = keys.reputation(swarm)
        record = decode_reputation((yield (key,)).items[key]) or UNKNOWN
        record = reputation.record(record, ["answered"] * self._home.unrecorded(swarm))
        for request, outcome in ends:
            record = send_rules.after_request(request, record, outcome)
        recorded[swarm] = 0, True
        return Decision(outcome="", puts=(Write(key, record),))

    def receipts(self, actor: Actor, own: OwnSwarm, found: Sequence[EnvelopeOnBus]) -> Op[None]:
        """Take in receipts: the receiver has a request, and works on it."""
        if not found:
            return
        again = False
        while True:
            verified = yield from self._incoming.verified(own, found, AckHead, again=again)
            if (yield from self._take_receipts(actor, verified)):
                break
            again = True
        yield from self._incoming.taken(actor, own, verified.envelopes)

    def _take_receipts(self, actor: Actor, verified: VerifiedEnvelopes[AckHead]) -> Op[bool]:
        """False if the trust changed before the commit."""
        receipts = [envelope for _, envelope in verified.opened]
        ids = [self._home.runner.new_id("qua") for _ in (*receipts, *verified.refused)]

        def deciding() -> DecideOp[bool]:
            now = self._home.now()
            if not (yield from unchanged(verified.relied)):
                return Decision(outcome=False)
            asked = yield from _requests([each.head.request_id for each in receipts])
            wrong = [each for _, each in verified.refused]
            parts: list[Decision[str]] = []
            for each in receipts:
                request = asked[each.head.request_id]
                why = _not_asked(each.head, request)
                if request is None or why is not None:
                    wrong += [] if why is None else [why]
                else:
                    parts.append(send_rules.take(request, now))
            kept = yield from self._room.keep(ids, wrong, "receipt", now)
            changing = [part for part in parts if part.changes]
            own = Decision[Any](
                outcome=True,
                verb="request.confirm" if changing else "",
                thing=changing[0].thing if len(changing) == 1 else "requests",
                trace=changing[0].trace if len(changing) == 1 else "",
            )
            return with_refused(merged(own, changing), kept)

        return (yield from self._room.commit(deciding, actor)).outcome


def _not_asked(head: AckHead, request: OutgoingRequest | None) -> EnvelopeRefused | None:
    """Why a receipt is for none of our requests, or for another head, or from another swarm."""
    if request is None:
        detail = f"no request {foreign(head.request_id)} was sent, or it is deleted by now"
    elif head.from_swarm != request.to_swarm:
        detail = f"{foreign(head.from_swarm)} signed it; {foreign(request.to_swarm)} was asked"
    elif head.in_reply_to not in request.heads:
        detail = f"it confirms another request than {foreign(request.id)}"
    else:
        return None
    return EnvelopeRefused(reason="wrong_request", detail=detail, key=head.key, head=head)


def _equivocated(request: OutgoingRequest, answered: Collection[str]) -> Decision[str]:
    """Remember that a request has a second result, unless this commit ends it."""
    if request.id in answered:
        return Decision(outcome="")
    puts, _ = send_rules.changed(request, replace(request, equivocated=True))
    return Decision(outcome="", puts=puts)


def _results(verified: VerifiedEnvelopes[ResultHead]) -> list[Result]:
    """The results whose bodies are those that were signed for; the others are refused."""
    results: list[Result] = []
    for each, envelope in verified.opened:
        wrong = body_refusal(envelope.head, each.body or b"", each.body_size)
        if wrong is None:
            results.append((envelope, each.body or b""))
        else:
            verified.refused.append((each, wrong))
    return results


def _requests(ids: Sequence[str]) -> ReadOp[dict[str, OutgoingRequest | None]]:
    items = yield from read_all(dict.fromkeys(map(keys.request, ids)))
    return {id_: decode_request(items[keys.request(id_)]) for id_ in ids}


def _decision(request: OutgoingRequest) -> ReadOp[Any]:
    if not request.decision:
        return None
    key = keys.decision(request.decision)
    return decode.decision((yield (key,)).items[key])


def _things(parts: Sequence[Decision[str]], whole: str) -> list[Decision[str]]:
    """Parts whose events name their things, where these are not that of the whole."""
    return [
        replace(
            part,
            events=tuple(
                [
                    each if each.thing or part.thing == whole else replace(each, thing=part.thing)
                    for each in part.events
                ]
            ),
        )
        for part in parts
    ]


def _arrived(opened: OpenedEnvelope[ResultHead], body: bytes) -> ArrivedResult:
    head = opened.head
    result, error = Raw(body), ""
    if head.status == "error":
        result, error = Raw(b"null"), _text(body)
    else:
        try:
            msgspec.json.decode(body)
        except codec.UNREADABLE:
            result = Raw(msgspec.json.encode(body.decode("utf-8", "replace")))
    return ArrivedResult(
        request=head.request_id,
        signer=opened.key.swarm,
        agent=opened.key.agent,
        in_reply_to=head.in_reply_to,
        status=head.status,
        source_hash=head.source_hash,
        executed_by=head.executed_by,
        executed_at=head.executed_at / 1000,
        posted_at=head.timestamp / 1000,
        result=result,
        error=error,
        confidence=head.confidence,
        citations=head.citations,
    )


def _text(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except codec.UNREADABLE:
        return body.decode("utf-8", "replace")
    return found if isinstance(found, str) else body.decode("utf-8", "replace")


def _refusal(opened: OpenedEnvelope[ResultHead], refused: rules.ResultRefused) -> EnvelopeRefused:
    head = opened.head
    reason: Any = refused.reason
    return EnvelopeRefused(reason=reason, detail=refused.detail, key=head.key, head=head)
