"""Steps of open requests that time brings: timeouts, further attempts, escalations and their ends.

Any process of the asker's swarm does them: one that waits for a result, one that serves, or
``maintain``.  Each is one commit that relies on the request, so two processes do each of them once.

When a person has decided about an escalated request, or the time for that is up, the decision takes
effect here: a task of our own, the attempts again, a request to another swarm, or its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.nouns.guards.gates import merged
from interlock.nouns.messages import decision_rules, decode
from interlock.nouns.messages.decision import HumanDecision
from interlock.nouns.requests import intake_rules, rules, send_rules
from interlock.nouns.requests.exchange import (
    REQUEST_LABEL,
    OutboxEntry,
    decode_request,
    requirement,
)
from interlock.nouns.requests.outcomes import (
    RequestLimited,
    RequestSent,
    SwarmNotAllowed,
    SwarmQueueFull,
    SwarmUnavailable,
)
from interlock.nouns.requests.posting import Outbox, Posting
from interlock.nouns.requests.request import (
    OutgoingRequest,
    head_of,
    task_priority,
    with_head,
)
from interlock.nouns.swarms.head import ABILITY, ALL_AGENTS, RequestHead
from interlock.nouns.swarms.results import SwarmStatus
from interlock.nouns.tasks import progress_rules
from interlock.nouns.tasks.task import Spec
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime.identity import Actor
from interlock.runtime.reads import looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Range

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.nouns.requests.home import Home
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.nouns.tasks.task_change import TaskChanges
    from interlock.runtime.attempt import DecideOp, ReadOp

DUE_AT_ONCE = 64
ESCALATED_AT_ONCE = 200
MOST_PAGES = 16
"""Pages of due steps that one call does at most."""


class Attempts:
    """The timed steps of the requests of one home; its methods are generators for a driver."""

    def __init__(self, home: Home, outbox: Outbox, moment: Callable[[int], float]) -> None:
        self._home = home
        self._outbox = outbox
        self._moment = moment
        self._looked_at = ""
        """The last escalated request that this process looked at."""

    def step(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """Do what is due; how many steps that were."""
        done, after = 0, ""
        for _ in range(MOST_PAGES):
            page = Range(keys.REQUEST_DUE, after, DUE_AT_ONCE)
            items = (yield Read(page)).ranges[page]
            for item in items:
                while (yield from self._due(actor, own, keys.id_of(item.key))):
                    done += 1  # a timeout and the next attempt may be due together
            if len(items) < page.limit or keys.due_at(items[-1].key) > self._home.now():
                break
            after = items[-1].key  # steps that need the key of another process stay before it
        return done + (yield from self._carry_out(actor, own))

    def _due(self, actor: Actor, own: OwnSwarm, id_: str) -> Op[bool]:
        request = yield from self._stored(id_)
        kind = None if request is None else rules.due_step(request, self._home.now())
        if request is None or kind is None:
            return False
        if kind == "retry":
            return (yield from self._repeat(actor, own, request))
        jitter = self._home.runner.random_below(1000) / 1000
        decision = self._home.runner.new_id("dec")

        def deciding() -> DecideOp[str]:
            found, now = (yield from _read(id_)), self._home.now()
            if found is None or rules.due_step(found, now) != kind:
                return Decision(outcome="")
            if kind == "time_out":
                swarm = found.to_swarm
                yield keys.breaker(swarm), keys.reputation(swarm)  # which it changes
                peer = yield from self._home.peer_facts(swarm)
                answers = self._home.unrecorded(swarm)
                return send_rules.time_out(found, peer, now, jitter, answers)
            reason = rules.escalation_reason(found, now, status)
            least = self._home.runner.capabilities.min_ttl
            return send_rules.escalate(found, reason, decision, now, least=least, status=status)

        status: SwarmStatus = "online"
        if kind == "escalate":
            status = yield from self._home.status(own, request.to_swarm)
        done = yield from self._home.runner.change(deciding, actor)
        if done.outcome and kind == "time_out":
            self._home.answered(request.to_swarm, 0, recorded=True)
        elif done.outcome and self._home.now() >= request.deadline:
            yield from self._outbox.withdraw(own, request)
        return bool(done.outcome)

    def _repeat(
        self, actor: Actor, own: OwnSwarm, request: OutgoingRequest, *, resume: bool = False
    ) -> Op[bool]:
        """Another attempt: signed outside, and stored if the request is still as it was."""
        if self._home.signer(own, request.agent) is None:
            return False  # a process with the key of the swarm, or of the agent, does it
        now = self._home.now()
        again = rules.resume if resume else rules.retry
        after = again(request, request.heads[-1], now)
        head, entry = yield from self._signed(own, after, now)
        after = with_head(after, head)
        parts: list[Decision[Any]] = []

        def deciding() -> DecideOp[str]:
            found = yield from _read(request.id)
            if found != request:
                return Decision(outcome="")
            yield from self._home.relies_on(request.to_swarm)
            return merged(send_rules.attempt(found, after, entry), parts)

        done = yield from self._home.runner.change(deciding, actor)
        if not done.outcome:
            return False
        key = keys.request_body(request.id)
        item = (yield Read(key))[key]
        body = Raw(b"null") if item is None else Raw(item.value)
        posting = Posting(
            key=keys.outbox(request.to_swarm, request.message), entry=entry, body=body
        )
        yield from self._post(actor, own, posting)
        return True

    def _post(self, actor: Actor, own: OwnSwarm, posting: Posting) -> Op[None]:
        """Post a request that was promised; one for a full queue waits in the outbox."""
        swarm = posting.entry.to
        if (yield from self._home.queues.full(swarm)) is not None:
            return
        posted = yield from self._outbox.post(actor, own, posting)
        if not posted.reason:
            yield from self._home.queues.posted(own, swarm, 1)

    def _signed(
        self, own: OwnSwarm, request: OutgoingRequest, now: float
    ) -> Op[tuple[RequestHead, OutboxEntry]]:
        head, envelope = yield from self._home.sign(
            own,
            request.agent,
            lambda key: head_of(request, swarm=own.name, bus=own.bus_id, key=key, now=now),
        )
        return head, OutboxEntry(
            kind="request",
            to=request.to_swarm,
            request=request.id,
            envelope=envelope,
            expires=head.expires / 1000,
        )

    # Decisions of people.

    def _carry_out(self, actor: Actor, own: OwnSwarm) -> Op[int]:
        """Carry out what people have decided about escalated requests, a page of them each time."""
        page = Range(keys.ESCALATED, self._looked_at, ESCALATED_AT_ONCE)
        found = (yield Read(page)).ranges[page]
        self._looked_at = found[-1].key if len(found) == page.limit else ""
        stored = yield from looked_up(keys.request(keys.id_of(item.key)) for item in found)
        requests = [each for item in stored.values() if (each := readable(decode_request, item))]
        waiting = {each.decision: each for each in requests if each.state == "escalated"}
        items = yield from looked_up(
            key for id_ in waiting for key in (keys.decision(id_), keys.live(id_))
        )
        done = 0
        for id_, request in waiting.items():
            decision = decode.decision(items[keys.decision(id_)])
            if decision is not None and decision.state == "open":
                if items[keys.live(id_)] is not None:
                    continue
                decision = yield from self._expired(actor, id_)
            done += yield from self._effect(actor, own, request, decision)
        return done

    def _effect(
        self, actor: Actor, own: OwnSwarm, request: OutgoingRequest, decision: HumanDecision | None
    ) -> Op[bool]:
        """Let a decision that has ended take effect; False if it has none yet."""
        if decision is None:  # it was deleted before it took effect
            return (yield from self._end(actor, own, request))
        option = decision_rules.chosen(decision)
        match "" if option is None else option.name:
            case "queue_for_later":
                return (yield from self._repeat(actor, own, request, resume=True))
            case "local_execution":
                return (yield from self._do_here(actor, own, request))
            case "alternative_swarm":
                return (yield from self._ask_other(actor, own, request, decision))
            case "give_up":
                return (yield from self._end(actor, own, request))
            case _:
                return False

    def _expired(self, actor: Actor, id_: str) -> Op[HumanDecision | None]:
        """A decision whose time is up, ended by its default."""
        key, live = keys.decision(id_), keys.live(id_)
        yield from self._home.runner.change(lambda: self._expiring(key, live), actor, hopeful=False)
        return decode.decision((yield Read(key))[key])

    def _end(self, actor: Actor, own: OwnSwarm, request: OutgoingRequest) -> Op[bool]:
        """End a request without a result."""

        def deciding() -> DecideOp[str]:
            found = yield from _read(request.id)
            if found is None or found.state != "escalated":
                return Decision(outcome="")
            return send_rules.cancel(found, "give_up", self._home.now())

        return (yield from self._ended(actor, own, request, deciding))

    def _ended(
        self,
        actor: Actor,
        own: OwnSwarm,
        request: OutgoingRequest,
        deciding: Callable[[], DecideOp[str]],
    ) -> Op[bool]:
        """Commit the end of a request, and take its envelope back from the bus."""
        done = yield from self._home.runner.change(deciding, actor)
        if done.outcome:
            yield from self._outbox.withdraw(own, request)
        return bool(done.outcome)

    def _expiring(self, key: str, live: str) -> DecideOp[bool]:
        items = (yield (key, live)).items
        decision = decode.decision(items[key])
        if decision is None:
            return Decision(outcome=False)
        return decision_rules.expire(decision, self._home.now(), alive=items[live] is not None)

    def _do_here(self, actor: Actor, own: OwnSwarm, request: OutgoingRequest) -> Op[bool]:
        """A task of our own does the work instead."""
        base = yield from self._home.runner.base()
        at = self._moment(1)

        def deciding() -> DecideOp[str]:
            found = yield from _read(request.id)
            if found is None or found.state != "escalated":
                return Decision(outcome="")
            key = keys.request_body(request.id)
            item = (yield (key,)).items[key]
            body = Raw(b"null") if item is None else Raw(item.value)
            spec = _local_spec(found, body, at)
            ended = send_rules.cancel(
                found, "local_execution", self._home.now(), f"task/{request.id}"
            )
            reader = TaskReader(self._home.runner, base)

            def publish(changes: TaskChanges) -> Decision[None]:
                progress_rules.read_needs(changes, (), (request.id,))
                if changes.status(request.id) is not None:
                    return Decision(outcome=None)
                progress_rules.read_requirement_sets(changes, (spec,))
                progress_rules.create(changes, request.id, spec)
                return changes.decision(None, "request.cancel", f"task/{request.id}")

            return merged(ended, [(yield from reader.change(publish))])

        return (yield from self._ended(actor, own, request, deciding))

    def _ask_other(
        self, actor: Actor, own: OwnSwarm, request: OutgoingRequest, decision: HumanDecision
    ) -> Op[bool]:
        """A new request does the work instead, to the swarm that the person named, or to another.

        If that cannot be asked, the person is asked again, with the reason.
        """
        if self._home.signer(own, request.agent) is None:
            return False
        swarm = yield from self._other_swarm(request, decision)
        if not swarm:
            why = "no other swarm that is online can do it; name one that you allow"
            return (yield from self._ask_again(actor, request, why))
        runner, now = self._home.runner, self._home.now()
        other = msgspec.structs.replace(
            request,
            id=runner.new_id("req"),
            message=runner.new_id("msg"),
            to_swarm=swarm,
            made=now,
            sent=now,
            heads=(),
            state="open",
            attempt=1,
            first=1,
            posted=None,
            timed_out=False,
            taken=None,
            decision="",
            reason="",
            probe=False,
            record_probe=False,
        )
        head, entry = yield from self._signed(own, other, now)
        other = with_head(other, head)
        body: list[Raw] = []
        refused: list[object] = []

        def deciding() -> DecideOp[str]:
            refused.clear()
            found = yield from _read(request.id)
            if found is None or found.state != "escalated":
                return Decision(outcome="")
            key = keys.request_body(request.id)
            item = (yield (key,)).items[key]
            body[:] = [Raw(b"null") if item is None else Raw(item.value)]
            new = send_rules.NewRequest(request=other, body=body[0], entry=entry)
            peer = yield from self._home.peer_facts(swarm, other.agent)
            sent = send_rules.send(new, None, peer, self._home.now())
            if not isinstance(sent.outcome, RequestSent):
                refused[:] = [sent.outcome]
                return Decision(outcome="")
            ended = send_rules.cancel(
                found, "alternative_swarm", self._home.now(), f"request/{other.id}"
            )
            events = tuple(
                [msgspec.structs.replace(e, thing=f"request/{other.id}") for e in sent.events]
            )
            return merged(ended, [msgspec.structs.replace(sent, events=events)])

        done = yield from self._ended(actor, own, request, deciding)
        if done:
            posting = Posting(key=keys.outbox(swarm, other.message), entry=entry, body=body[0])
            yield from self._post(actor, own, posting)
        elif refused:
            return (yield from self._ask_again(actor, request, _cannot_ask(swarm, refused[0])))
        return done

    def _other_swarm(self, request: OutgoingRequest, decision: HumanDecision) -> Op[str]:
        """The swarm that a person named, else the better of two others that can do it."""
        said = msgspec.json.decode(decision.answer)
        named = str(said.get("swarm", "")) if isinstance(said, dict) else ""
        if named or not request.to_agent.startswith(ABILITY):
            return named
        ability = request.to_agent.removeprefix(ABILITY)
        return (yield from self._home.choose(ability, but=(request.to_swarm,)))

    def _ask_again(self, actor: Actor, request: OutgoingRequest, why: str) -> Op[bool]:
        decision, least = self._home.runner.new_id("dec"), self._home.runner.capabilities.min_ttl

        def deciding() -> DecideOp[str]:
            found = yield from _read(request.id)
            if found is None or found.state != "escalated" or found.decision != request.decision:
                return Decision(outcome="")
            return send_rules.ask_again(found, decision, why, self._home.now(), least)

        return bool((yield from self._home.runner.change(deciding, actor)).outcome)

    def _stored(self, id_: str) -> Op[OutgoingRequest | None]:
        key = keys.request(id_)
        return decode_request((yield Read(key))[key])


def _read(id_: str) -> ReadOp[OutgoingRequest | None]:
    key = keys.request(id_)
    return decode_request((yield (key,)).items[key])


def _cannot_ask(swarm: str, refused: object) -> str:
    """Why another swarm cannot be asked, in words."""
    match refused:
        case SwarmNotAllowed():
            return f"{foreign(swarm)} is not allowed here: interlock swarm allow {quote(swarm)}"
        case SwarmUnavailable(reason=reason, retry_in=wait):
            return f"{foreign(swarm)} is not asked for now ({reason}); retry in {wait:.0f} s"
        case RequestLimited(retry_in=wait) | SwarmQueueFull(retry_in=wait):
            return f"{foreign(swarm)} takes no more requests for now; retry in {wait:.0f} s"
        case _:
            return f"{foreign(swarm)} cannot be asked"


def _local_spec(request: OutgoingRequest, body: Raw, at: float) -> Spec:
    """The task that does the work of a request in our own swarm."""
    head = head_of(request, swarm="", bus="", key="", now=at)
    wanted = () if request.to_agent == ALL_AGENTS else (requirement(request.to_agent),)
    return Spec(
        at=at,
        by=request.agent,
        data=intake_rules.task_data(head, bytes(body)),
        priority=task_priority(request.priority),
        requires=wanted,
        labels=(REQUEST_LABEL,),
        trace=request.correlation_id,
    )
