"""Intake: from the bus into a home (steps 4, 5, 9 and 10 of ``exchange.py``), many at a time.

Read from the bus, verify outside of any transaction, commit at home, delete from the bus.  The
commit relies on the trust that the signatures were verified with: if a key is revoked in between,
nothing is taken in, and the batch is verified again with the trust as it is then.

Any number of processes may do this at once: the marks against replay, and the finding that must be
new, make all but one of them do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import codec, keys, rate
from interlock.core.decision import Decision, Event, Write
from interlock.nouns.guards.gates import merged
from interlock.nouns.messages import decode
from interlock.nouns.requests import intake_rules, rules, send_rules
from interlock.nouns.requests.exchange import (
    QUARANTINE_LIMIT,
    UNSIGNED_LIMIT,
    EntryKind,
    decode_quarantined,
    decode_rate,
    decode_reputation,
    decode_request,
    decode_seen,
)
from interlock.nouns.requests.intake_rules import (
    Arrival,
    Known,
    RefusedRequest,
    Repeated,
    TakenIn,
    Verdict,
)
from interlock.nouns.requests.request import ArrivedResult, OutgoingRequest
from interlock.nouns.swarms import reputation
from interlock.nouns.swarms.envelope import (
    EnvelopeRefused,
    OpenedEnvelope,
    body_refusal,
    claimed_signers,
    open_envelope,
)
from interlock.nouns.swarms.head import AckHead, MessageHead, RequestHead, ResultHead
from interlock.nouns.swarms.reputation import UNKNOWN, PeerOutcome
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, every, looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Item, Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.nouns.requests.home import Home, Trust
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.task_change import TaskChanges
    from interlock.runtime.attempt import DecideOp, ReadOp
    from interlock.runtime.runner import Decided, Runner

H = TypeVar("H", bound=MessageHead)
T = TypeVar("T")

AT_ONCE = 48
"""Envelopes that are read, verified and committed together."""
BODIES_AT_ONCE = 4 * 1024 * 1024
"""Bytes of payloads that are taken in together, by what their heads say."""
_STALE = "the trust changed"
_FRESH_COUNT = 60.0
"""Seconds for which the number of messages in quarantine is taken for known."""


class OnBus(Struct, frozen=True, kw_only=True):
    """An envelope as the bus has it, with the key of its body there; empty if it has none."""

    key: str
    value: bytes
    body_key: str


class EnvelopesOnBus(Struct, frozen=True, kw_only=True):
    """The envelopes that the bus has for us, by their kinds, in the order of posting."""

    requests: list[OnBus]
    results: list[OnBus]
    receipts: list[OnBus]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.requests) + len(self.results) + len(self.receipts)

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return max(len(self.requests), len(self.results), len(self.receipts)) >= AT_ONCE


class IntakeReport(Struct, kw_only=True):
    """What an intake did: requests that became tasks, and those to answer again; results."""

    requests: list[str] = []
    repeated: list[tuple[str, str]] = []
    results: list[str] = []
    refused: int = 0
    read: int = 0

    @property
    def any(self) -> bool:
        """Whether there was anything on the bus."""
        return self.read > 0


class Intake:
    """Takes in what the bus has for one home; its methods are generators for a driver."""

    def __init__(self, home: Home, moment: Callable[[int], float]) -> None:
        self._home = home
        self._moment = moment
        self._counted = float("-inf")
        self._signed = self._unsigned = 0
        self._adding = [0, 0]
        """What the batch in progress adds to the quarantine: without a known sender, and with."""

    # Requests.

    def look(self, own: OwnSwarm) -> Op[EnvelopesOnBus]:
        """What the bus has for us, up to a page of each kind, with one read."""
        folders = (
            keys.bus_request(own.name),
            keys.bus_result(own.name),
            keys.bus_receipt(own.name),
        )
        pages = [Range(folder, limit=AT_ONCE) for folder in folders]

        def work(_runner: Runner) -> Op[list[tuple[Item, ...]]]:
            ranges = (yield Read(*pages)).ranges
            return [ranges[page] for page in pages]

        items = yield from self._home.bus.on(own, work)
        requests, results, receipts = map(_envelopes, folders, items)
        return EnvelopesOnBus(requests=requests, results=results, receipts=receipts)

    def requests(self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]) -> Op[IntakeReport]:
        """Take in these requests of other swarms."""
        taken = IntakeReport(read=len(found))
        if not found:
            return taken
        body_of = {each.key: each.body_key for each in found}
        while True:
            trust = yield from self._trust(found, RequestHead)
            opened, refused = self._open(found, RequestHead, trust, own)
            arrivals = yield from self._with_bodies(own, opened, refused)
            done = yield from self._take_requests(actor, arrivals, refused, trust)
            if done is not None:
                break
        for verdict in done:
            head = verdict.arrival.head
            if isinstance(verdict, TakenIn):
                taken.requests.append(head.request_id)
            if (isinstance(verdict, TakenIn) and verdict.spec is None) or (
                isinstance(verdict, Repeated) and verdict.later
            ):
                taken.repeated.append((head.from_swarm, head.request_id))
        taken.refused = len(refused) + sum(isinstance(each, RefusedRequest) for each in done)
        yield from self._delete(own, [key for each in body_of.items() for key in each])
        return taken

    def release(self, actor: Actor, own: OwnSwarm, envelope: bytes, body: bytes) -> Op[Any]:
        """Take in a request from quarantine, without regard to rate and reputation."""
        found = [OnBus(key="", value=envelope, body_key="")]
        while True:
            trust = yield from self._trust(found, RequestHead)
            opened, refused = self._open(found, RequestHead, trust, own)
            if refused:
                return refused[0][1]
            arrival = replace(_arrival(opened[0][1], envelope, body), released=True)
            done = yield from self._take_requests(actor, [arrival], [], trust, keep=False)
            if done is not None:
                return done[0]

    def _take_requests(
        self,
        actor: Actor,
        arrivals: Sequence[Arrival],
        refused: Sequence[tuple[OnBus, EnvelopeRefused]],
        trust: Trust,
        *,
        keep: bool = True,
    ) -> Op[list[Verdict] | None]:
        """Step 4; None if the trust changed before the commit."""
        yield from self._count()
        base = yield from self._home.runner.base()
        at = self._moment(max(len(arrivals), 1))
        ids = [self._home.runner.new_id("qua") for _ in (*arrivals, *refused)]

        def deciding() -> DecideOp[list[Verdict] | None]:
            now = self._home.now()
            relied = {key for each in arrivals for key in trust.relied(each.opened.key)}
            if not (yield from _unchanged(relied, trust.revisions)):
                return Decision(outcome=None)
            reader = TaskReader(self._home.runner, base)
            known = yield from _known(arrivals, reader)
            verdicts = [
                intake_rules.judge(each, known, self._home.rate, now, at + place * 0.000_001)
                for place, each in enumerate(arrivals)
            ]
            new = [each for each in verdicts if isinstance(each, TakenIn)]
            published = yield from _publish(reader, new)
            puts = [write for each in new for write in intake_rules.taken_in_writes(each)]
            for each in verdicts:
                if isinstance(each, TakenIn) or (isinstance(each, Repeated) and each.later):
                    key = each.arrival.seen_key
                    puts.append(Write(key, known.seen[key]))
                if isinstance(each, TakenIn) and not each.arrival.released:
                    key = each.arrival.rate_key
                    puts.append(Write(key, known.rates[key]))
            held = [each for each in verdicts if isinstance(each, RefusedRequest) and keep]
            kept = [*self._kept(ids, [*held, *[each for _, each in refused]], "request", now)]
            thing = f"request/{new[0].arrival.head.request_id}" if len(new) == 1 else "requests"
            own = Decision[Any](
                outcome=verdicts,
                verb=_verb(new, puts, kept),
                thing=thing,
                puts=(*puts, *kept),
                events=tuple(_events(verdicts, bool(kept))),
            )
            return merged(own, [published])

        return (yield from self._changed(deciding, actor))

    # Results and receipts.

    def result(self, actor: Actor, own: OwnSwarm, request: str) -> Op[IntakeReport]:
        """Take in the result of one request, if it is there."""
        folder = keys.bus_result(own.name)
        key = folder + request

        def work(_runner: Runner) -> Op[Item | None]:
            return (yield Read(key))[key]  # type: ignore[no-any-return]

        item = yield from self._home.bus.on(own, work)
        found = [] if item is None else _envelopes(folder, (item,))
        return (yield from self.results(actor, own, found))

    def results(self, actor: Actor, own: OwnSwarm, found: Sequence[OnBus]) -> Op[IntakeReport]:
        """Take in these results."""
        taken = IntakeReport(read=len(found))
        if not found:
            return taken
        while True:
            trust = yield from self._trust(found, ResultHead)
            opened, refused = self._open(found, ResultHead, trust, own)
            bodies = yield from self._bodies(own, [each for each, _ in opened])
            results = []
            for each, envelope in opened:
                body = bodies.get(each.body_key, b"")
                wrong = body_refusal(envelope.head, body)
                if wrong is None:
                    results.append((envelope, body))
                else:
                    refused.append((each, wrong))
            done = yield from self._take_results(actor, results, refused, trust)
            if done is not None:
                break
        taken.results, taken.refused = done, len(refused)
        deleted = [key for each in found for key in (each.key, each.body_key)]
        yield from self._delete(own, deleted)
        return taken

    def _take_results(
        self,
        actor: Actor,
        results: Sequence[tuple[OpenedEnvelope[ResultHead], bytes]],
        refused: Sequence[tuple[OnBus, EnvelopeRefused]],
        trust: Trust,
    ) -> Op[list[str] | None]:
        """Step 9; None if the trust changed before the commit."""
        yield from self._count()
        ids = [self._home.runner.new_id("qua") for _ in (*results, *refused)]
        notices = [self._home.runner.new_id("msg") for _ in results]
        recorded: dict[str, tuple[int, bool]] = {}

        def deciding() -> DecideOp[list[str] | None]:
            now = self._home.now()
            relied = {key for opened, _ in results for key in trust.relied(opened.key)}
            if not (yield from _unchanged(relied, trust.revisions)):
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
                        went.setdefault(swarm, []).append((before, "conflict"))
            recorded.clear()
            for swarm, ends in went.items():
                parts.append((yield from self._reputation(swarm, ends, recorded)))
            kept = [*self._kept(ids, wrong, "result", now)]
            if not parts and not kept:
                return Decision(outcome=answered)
            thing = f"request/{answered[0]}" if len(answered) == 1 else "requests"
            verb = "request.complete" if answered else "request.refuse"
            own = Decision[Any](
                outcome=answered,
                verb=verb,
                thing=thing,
                puts=tuple(kept),
                trace=parts[0].trace if len(answered) == 1 else "",
            )
            return merged(own, _things(parts, thing))

        done = yield from self._changed(deciding, actor)
        for swarm, (new, all_) in recorded.items() if done is not None else ():
            self._home.answered(swarm, new, recorded=all_)
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
        plain = all(outcome == "answered" and not request.probe for request, outcome in ends)
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
        trust = yield from self._trust(found, AckHead)
        opened, _ = self._open(found, AckHead, trust, own)
        for _, envelope in opened:
            head = envelope.head

            def deciding(head: AckHead = head) -> DecideOp[str]:
                request = (yield from _requests([head.request_id]))[head.request_id]
                known = request is not None and head.in_reply_to in request.heads
                if request is None or not known or head.from_swarm != request.to_swarm:
                    return Decision(outcome="unknown")
                return send_rules.take(request, self._home.now())

            yield from self._home.runner.change(deciding, actor)
        yield from self._delete(own, [each.key for each in found])
        return len(found)

    # Parts.

    def _trust(self, found: Sequence[OnBus], kind: type[MessageHead]) -> Op[Trust]:
        """The trust that these envelopes need: also the keys of agents, if one of these signed."""

        def agents(peers: Mapping[str, Any]) -> bool:
            own = {key.fingerprint for peer in peers.values() for key in peer.keys}
            return any(
                name not in own for each in found for name in claimed_signers(each.value, kind)
            )

        return (yield from self._home.trust(agents=agents))

    def _open(
        self, found: Sequence[OnBus], kind: type[H], trust: Trust, own: OwnSwarm
    ) -> tuple[list[tuple[OnBus, OpenedEnvelope[H]]], list[tuple[OnBus, EnvelopeRefused]]]:
        """Verify envelopes; nothing of them is believed before."""
        opened: list[tuple[OnBus, OpenedEnvelope[H]]] = []
        refused: list[tuple[OnBus, EnvelopeRefused]] = []
        now = self._home.now()
        for each in found:
            result = open_envelope(
                each.value,
                kind,
                lambda name: trust.key_of(name, now),
                bus=own.bus_id,
                now=now,
                swarm=own.name,
            )
            if isinstance(result, EnvelopeRefused):
                refused.append((each, result))
            elif (wrong := _misplaced(each, result)) is not None:
                refused.append((each, wrong))
            else:
                opened.append((each, result))
        return opened, refused

    def _with_bodies(
        self,
        own: OwnSwarm,
        opened: Sequence[tuple[OnBus, OpenedEnvelope[RequestHead]]],
        refused: list[tuple[OnBus, EnvelopeRefused]],
    ) -> Op[list[Arrival]]:
        """The requests whose bodies are those that were signed for."""
        bodies = yield from self._bodies(own, [each for each, _ in opened])
        arrivals: list[Arrival] = []
        for each, envelope in opened:
            body = bodies.get(each.body_key, b"")
            if (wrong := body_refusal(envelope.head, body) or _no_json(envelope, body)) is not None:
                refused.append((each, wrong))
            else:
                arrivals.append(_arrival(envelope, each.value, body))
        return arrivals

    def _bodies(self, own: OwnSwarm, wanted: Sequence[OnBus]) -> Op[dict[str, bytes]]:
        if not wanted:
            return {}

        def work(_runner: Runner) -> Op[dict[str, Item | None]]:
            return (yield from looked_up(each.body_key for each in wanted))

        items = yield from self._home.bus.on(own, work)
        return {key: item.value for key, item in items.items() if item is not None}

    def _delete(self, own: OwnSwarm, wanted: Iterable[str]) -> Op[None]:
        """Steps 5 and 10."""
        gone = tuple(filter(None, wanted))

        def deleting() -> DecideOp[None]:
            yield from ()
            thing = f"swarm/{own.name}"
            return Decision(outcome=None, verb="bus.remove", thing=thing, deletes=gone)

        def work(runner: Runner) -> Op[None]:
            yield from runner.change(deleting, self._home.bus.actor(own))

        yield from self._home.bus.on(own, work)

    def _count(self) -> Op[None]:
        """Count what is in quarantine, from time to time."""
        now = self._home.runner.clock.monotonic()
        if now - self._counted < _FRESH_COUNT:
            return
        items = yield from every(keys.QUARANTINE, most=QUARANTINE_LIMIT)
        kept = [each for item in items if (each := readable(decode_quarantined, item))]
        self._signed = sum(each.signed for each in kept)
        self._unsigned = len(kept) - self._signed
        self._counted = now

    def _kept(
        self,
        ids: Sequence[str],
        refused: Sequence[RefusedRequest | EnvelopeRefused],
        kind: EntryKind,
        now: float,
    ) -> Iterable[Write]:
        """The writes of what goes to quarantine, as far as there is room."""
        room = QUARANTINE_LIMIT - self._signed - self._unsigned
        unsigned = min(room, UNSIGNED_LIMIT - self._unsigned)
        self._adding = [0, 0]
        for id_, each in zip(ids, refused, strict=False):
            signed = isinstance(each, RefusedRequest) or each.head is not None
            if room <= 0 or (not signed and unsigned <= 0):
                continue
            room -= 1
            unsigned -= not signed
            self._adding[signed] += 1
            yield from intake_rules.quarantine(id_, each, kind, now)

    def _changed(self, deciding: Callable[[], DecideOp[T]], actor: Actor) -> Op[T]:
        """Commit a batch, and count what it added to the quarantine."""
        self._adding = [0, 0]
        done: Decided[T] = yield from self._home.runner.change(deciding, actor)
        self._unsigned += self._adding[False]
        self._signed += self._adding[True]
        return done.outcome


# Facts.


def _unchanged(relied: Iterable[str], revisions: Mapping[str, int]) -> ReadOp[bool]:
    """Whether the items of the trust are still as they were read; the commit checks that."""
    wanted = tuple(sorted(relied))
    if not wanted:
        return True
    items = (yield wanted).items
    return all(
        (item := items[key]) is not None and item.revision == revisions.get(key) for key in wanted
    )


def _known(arrivals: Sequence[Arrival], reader: TaskReader) -> ReadOp[Known]:
    """The marks, rates, reputations and tasks that decide about these requests."""
    swarms = {each.head.from_swarm for each in arrivals}
    wanted = dict.fromkeys(
        key
        for each in arrivals
        for key in (each.seen_key, each.rate_key, keys.reputation(each.head.from_swarm))
    )
    items = yield from _all(wanted)
    statuses = yield from _all(dict.fromkeys(keys.status(each.task) for each in arrivals))
    reader.learn(statuses)
    return Known(
        seen={each.seen_key: decode_seen(items[each.seen_key]) for each in arrivals},
        rates={each.rate_key: decode_rate(items[each.rate_key]) or rate.EMPTY for each in arrivals},
        reputations={
            swarm: decode_reputation(items[keys.reputation(swarm)]) or UNKNOWN for swarm in swarms
        },
        tasks={each.task: statuses[keys.status(each.task)] is not None for each in arrivals},
    )


def _all(wanted: Iterable[str]) -> ReadOp[dict[str, Item | None]]:
    found: dict[str, Item | None] = {}
    refs = list(wanted)
    for start in range(0, len(refs), KEYS_AT_ONCE):
        found |= (yield tuple(refs[start : start + KEYS_AT_ONCE])).items
    return found


def _publish(reader: TaskReader, new: Sequence[TakenIn]) -> DecideOp[None]:
    """Publish the tasks of requests that are taken in."""
    specs: dict[str, Spec] = {each.arrival.task: each.spec for each in new if each.spec is not None}

    def decide(changes: TaskChanges) -> Decision[None]:
        if not specs:
            return Decision(outcome=None)
        progress_rules.read_needs(changes, (), specs)
        progress_rules.read_requirement_sets(changes, specs.values())
        for id_, spec in specs.items():
            progress_rules.create(changes, id_, spec)
        return changes.decision(None, "request.receive", "requests")

    return (yield from reader.change(decide))


def _requests(ids: Sequence[str]) -> ReadOp[dict[str, OutgoingRequest | None]]:
    items = yield from _all(dict.fromkeys(map(keys.request, ids)))
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


def _verb(new: Sequence[object], puts: Sequence[object], kept: Sequence[object]) -> str:
    if new:
        return "request.receive"
    return "request.repeat" if puts else "request.refuse" if kept else ""


def _events(verdicts: Sequence[Verdict], kept: bool) -> Iterable[Event]:
    for each in verdicts:
        head = each.arrival.head
        if isinstance(each, TakenIn):
            sender = f"{head.from_agent}@{head.from_swarm}"
            yield Event("request:received", sender, f"request/{head.request_id}")
    if kept:
        yield Event("request:quarantined", "")


# Envelopes.


def _envelopes(folder: str, items: Sequence[Item]) -> list[OnBus]:
    kind, _, rest = folder.partition("/")
    bodies = "" if kind == "ack" else f"{kind}-body/{rest}"
    return [
        OnBus(
            key=item.key,
            value=item.value,
            body_key=bodies and bodies + item.key.removeprefix(folder),
        )
        for item in sorted(items, key=lambda item: item.revision)
    ]


def _arrival(opened: OpenedEnvelope[RequestHead], envelope: bytes, body: bytes) -> Arrival:
    return Arrival(opened=opened, envelope=envelope, body=body)


def _misplaced(found: OnBus, opened: OpenedEnvelope[Any]) -> EnvelopeRefused | None:
    """Why a valid envelope does not count where it was found: under the key of another one."""
    head: MessageHead = opened.head
    if not found.key or keys.id_of(found.key) in (head.message_id, head.request_id):
        return None
    detail = f"it was found under {found.key[:200]}"
    return EnvelopeRefused(reason="wrong_request", detail=detail, key=head.key, head=head)


def _no_json(opened: OpenedEnvelope[RequestHead], body: bytes) -> EnvelopeRefused | None:
    try:
        msgspec.json.decode(body, type=Raw)
        msgspec.json.decode(body)
    except codec.UNREADABLE as error:
        detail = f"its payload is not JSON: {error}"[:200]
        head = opened.head
        return EnvelopeRefused(reason="malformed", detail=detail, key=head.key, head=head)
    return None


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
