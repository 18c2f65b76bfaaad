"""Intake of results and receipts at the asker (steps 9 and 10 of ``exchange.py``), many at a time.

Any number of processes may do this at once: the finding must be new, which makes all but one of
them do nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.nouns.guards.gates import merged
from interlock.nouns.messages import decode
from interlock.nouns.requests import rules, send_rules
from interlock.nouns.requests.exchange import decode_reputation, decode_request
from interlock.nouns.requests.incoming import Incoming, OnBus, read_all, unchanged
from interlock.nouns.requests.quarantine_service import with_refused
from interlock.nouns.requests.request import ArrivedResult, OutgoingRequest
from interlock.nouns.swarms import reputation
from interlock.nouns.swarms.envelope import EnvelopeRefused, OpenedEnvelope, body_refusal
from interlock.nouns.swarms.head import AckHead, ResultHead
from interlock.nouns.swarms.reputation import UNKNOWN, PeerOutcome
from interlock.runtime.identity import Actor
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp, ReadOp


class ResultIntake:
    """Takes in results and receipts for one home; its methods are generators for a driver."""

    def __init__(self, home: Home, incoming: Incoming) -> None:
        self._home = home
        self._incoming = incoming
        self._room = home.room

    def one(self, actor: Actor, own: OwnSwarm, request: str) -> Op[None]:
        """Take in the result of one request, if it is there."""
        found = yield from self._incoming.at(own, keys.bus_result(own.name), [request])
        yield from self.take(actor, own, found)

    def take(self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]) -> Op[tuple[str, ...]]:
        """Take in these results; the requests that they answered."""
        left, answered = list(found), list[str]()
        while left:
            gone, done = yield from self._take_some(actor, own, left)
            left = [each for each in left if each.key not in gone]
            answered += done
        return tuple(answered)

    def _take_some(
        self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]
    ) -> Op[tuple[frozenset[str], list[str]]]:
        """Take in as many of these as one commit takes; the keys that are deleted from the bus."""
        incoming = self._incoming
        while True:
            trust = yield from incoming.trust(own, found, ResultHead)
            opened, refused = incoming.open(found, ResultHead, trust, own)
            opened = incoming.fitting(opened)
            bodies = yield from incoming.bodies(own, [each for each, _ in opened])
            results = []
            for each, envelope in opened:
                body = bodies.get(each.body_key, b"")
                wrong = body_refusal(envelope.head, body)
                if wrong is None:
                    results.append((envelope, body))
                else:
                    refused.append((each, wrong))
            done = yield from self._take(actor, results, refused, trust)
            if done is not None:
                break
        taken = [*[each for each, _ in opened], *[each for each, _ in refused]]
        gone = frozenset(key for each in taken for key in each.keys)
        yield from incoming.delete(own, gone)
        return gone, done

    def _take(
        self,
        actor: Actor,
        results: Sequence[tuple[OpenedEnvelope[ResultHead], bytes]],
        refused: Sequence[tuple[OnBus, EnvelopeRefused]],
        trust: Trust,
    ) -> Op[list[str] | None]:
        """Step 9; None if the trust changed before the commit."""
        ids = [self._home.runner.new_id("qua") for _ in (*results, *refused)]
        notices = [self._home.runner.new_id("msg") for _ in results]
        recorded: dict[str, tuple[int, bool]] = {}
        ended: list[OutgoingRequest] = []

        def deciding() -> DecideOp[list[str] | None]:
            now = self._home.now()
            relied = {key for opened, _ in results for key in trust.relied(opened.key)}
            if not (yield from unchanged(relied, trust.revisions)):
                return Decision(outcome=None)
            parts: list[Decision[str]] = []
            wrong: list[EnvelopeRefused] = [each for _, each in refused]
            answered: list[str] = []
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
                    answered.append(before.id)
                elif isinstance(judged, rules.ResultRefused):
                    wrong.append(_refusal(opened, judged))
                    if judged.conflict and before is not None:
                        asked[before.id] = replace(before, equivocated=True)
                        parts.append(_equivocated(before, answered))
                        went.setdefault(swarm, []).append((before, "conflict"))
            recorded.clear()
            ended[:] = [each for id_ in answered if (each := asked[id_]) is not None]
            for swarm, ends in went.items():
                parts.append((yield from self._reputation(swarm, ends, recorded)))
            kept = yield from self._room.keep(ids, wrong, "result", now)
            if not parts and not kept.changes:
                return Decision(outcome=answered)
            thing = f"request/{answered[0]}" if len(answered) == 1 else "requests"
            own = Decision[Any](
                outcome=answered,
                verb="request.complete" if answered else "request.refuse" if parts else "",
                thing=thing,
                trace=parts[0].trace if len(answered) == 1 else "",
            )
            return with_refused(merged(own, _things(parts, thing)), kept)

        done = yield from self._room.commit(deciding, actor)
        for swarm, (new, all_) in recorded.items() if done is not None else ():
            self._home.answered(swarm, new, recorded=all_)
        self._home.ended(ended if done is not None else ())
        return done

    def _answering(
        self, before: OutgoingRequest, judged: rules.ResultAccepted, notice: str, now: float
    ) -> DecideOp[str]:
        peer = yield from self._home.peer_facts(before.to_swarm)
        person = yield from _decision(before)
        return send_rules.answer(before, judged, peer, now, asked=person, notice=notice)

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

    def receipts(self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]) -> Op[int]:
        """Take in receipts: the receiver has a request, and works on it."""
        if not found:
            return 0
        while True:
            trust = yield from self._incoming.trust(own, found, AckHead)
            opened, refused = self._incoming.open(found, AckHead, trust, own)
            receipts = [envelope for _, envelope in opened]
            wrong = [each for _, each in refused]
            if (yield from self._take_receipts(actor, receipts, wrong, trust)):
                break
        yield from self._incoming.delete(own, [each.key for each in found])
        return len(found)

    def _take_receipts(
        self,
        actor: Actor,
        receipts: Sequence[OpenedEnvelope[AckHead]],
        refused: Sequence[EnvelopeRefused],
        trust: Trust,
    ) -> Op[bool]:
        """False if the trust changed before the commit."""
        ids = [self._home.runner.new_id("qua") for _ in (*receipts, *refused)]

        def deciding() -> DecideOp[bool]:
            now = self._home.now()
            relied = {key for each in receipts for key in trust.relied(each.key)}
            if not (yield from unchanged(relied, trust.revisions)):
                return Decision(outcome=False)
            asked = yield from _requests([each.head.request_id for each in receipts])
            wrong = list(refused)
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

        return (yield from self._room.commit(deciding, actor))


def _not_asked(head: AckHead, request: OutgoingRequest | None) -> EnvelopeRefused | None:
    """Why a receipt is for none of our requests, or for another head, or from another swarm."""
    if request is None:
        detail = f"no request {head.request_id} was sent, or it is deleted by now"
    elif head.from_swarm != request.to_swarm:
        detail = f"{head.from_swarm} signed it; {request.to_swarm} was asked"
    elif head.in_reply_to not in request.heads:
        detail = f"it confirms another request than {request.id}"
    else:
        return None
    return EnvelopeRefused(reason="wrong_request", detail=detail, key=head.key, head=head)


def _equivocated(request: OutgoingRequest, answered: Collection[str]) -> Decision[str]:
    """Remember that a request has a second result, unless this commit ends it."""
    if request.id in answered:
        return Decision(outcome="")
    puts, _ = send_rules.changed(request, replace(request, equivocated=True))
    return Decision(outcome="", puts=puts)


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
