"""Sending requests and waiting for their results, at the asker (steps 1 to 3, and 9 and 10).

**Waiting.**  The callers of a process that wait for results follow the bus together
(``result_waits.py``).  While the bus is away a caller watches its home, since another process may
reach the bus.

An asker may be the only process of its swarm.  So while it waits it also does what is due for all
requests of its swarm, as a process that serves does: it posts what waits in the outbox, repeats,
escalates, and takes in receipts and the results of others.  One waiter of a process does this,
every few seconds.

The timeout ends the wait, not the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, BusTrouble, NotAllowed, StoreTrouble
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests import progress, refusal_rules, send_rules
from interlock.nouns.requests.exchange import (
    OutboxEntry,
    decode_finding,
    decode_name,
    decode_request,
)
from interlock.nouns.requests.posting import Outbox, Posted, Posting
from interlock.nouns.requests.request import (
    Act,
    OutgoingRequest,
    RequestFinding,
    head_of,
    with_head,
)
from interlock.nouns.requests.result_waits import LASTS
from interlock.nouns.requests.send_rules import NewRequest
from interlock.nouns.swarms.bus import RECONNECT
from interlock.nouns.swarms.head import ABILITY
from interlock.nouns.swarms.registry import LIVE_TTL
from interlock.runtime.identity import Actor
from interlock.runtime.reads import whole_id
from interlock.steps import Op, Read
from interlock.store import Item, Snapshot

if TYPE_CHECKING:
    from interlock.nouns.requests.home import Home
    from interlock.nouns.requests.result_waits import ResultWait, ResultWaits
    from interlock.nouns.swarms.swarm import OwnSwarm
    from interlock.runtime.attempt import DecideOp


ID = re.compile(r"req_[0-9a-f]{32}")
ANY_SWARM = "*"
"""Instead of a swarm: any that is online and has agents with the ability."""
MOST_TRIED = 3
"""Swarms that are tried for one request, if the first ones take none for now."""
_ELSEWHERE = (out.SwarmUnavailable, out.SwarmQueueFull, out.RequestLimited)
"""Refusals that concern one swarm for a time."""
TEND_EVERY = 5.0
"""Seconds between two looks at the outbox, at due steps and at tasks that ended by themselves."""


class RequestDraft(Struct, frozen=True, kw_only=True):
    """What a caller asks for; durations are in seconds."""

    to_swarm: str
    to_agent: str
    body: bytes
    task_type: str
    priority: int
    timeout: float
    deadline: float
    act: Act = "request"
    name: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    confidence: float | None = None
    citations: tuple[str, ...] = ()
    notice: bool = False


class RequestSender:
    """Requests to other swarms; its methods are generators for a driver."""

    def __init__(
        self,
        home: Home,
        outbox: Outbox,
        waits: ResultWaits,
        tend: Callable[[Actor, OwnSwarm], Op[int]],
    ) -> None:
        self._home = home
        self._outbox = outbox
        self._waits = waits
        self._tend_swarm = tend
        self._tended = float("-inf")

    def ask(
        self, actor: Actor, draft: RequestDraft, wait: float
    ) -> Op[tuple[out.RequestSent | out.SendRefusal, RequestFinding | None]]:
        """Send a request, and wait for a moment, up to ``wait`` seconds: its finding, if it came.

        An answer usually comes soon.  A caller that wants to wait for longer asks for the result.
        """
        ends = self._home.runner.clock.monotonic() + wait
        waiting: list[ResultWait] = []

        def posting(request: str) -> None:
            waiting.append(self._waits.add(request))

        try:
            sent, posted = yield from self._sent(actor, draft, posting)
            if not posted.revision:
                return sent, None
            waiting[0].since = posted.revision
            with suppress(StoreTrouble):  # the request is sent; the next wait shows the trouble
                return sent, (yield from self._attend(actor, waiting[0], ends))
        except KeyboardInterrupt as error:
            for each in waiting:
                note_how_to_go_on(error, each.request)
            raise
        finally:
            for each in waiting:
                self._waits.remove(each)
        return sent, None

    def send(self, actor: Actor, draft: RequestDraft) -> Op[out.RequestSent | out.SendRefusal]:
        """Store a request, and post it if the bus answers.

        For any swarm with an ability, it goes to the better of two; to another one if that refuses.
        """
        sent, _ = yield from self._sent(actor, draft)
        return sent

    def _sent(
        self,
        actor: Actor,
        draft: RequestDraft,
        posting: Callable[[str], object] | None = None,
    ) -> Op[tuple[out.RequestSent | out.SendRefusal, Posted]]:
        """Steps 1 to 3, for the swarm that is named, or for one of those with the ability.

        A caller that waits gives ``posting``, which is called with the id between the first two;
        the answer may soon make the third unnecessary.
        """
        if draft.to_swarm != ANY_SWARM:
            return (yield from self._sent_to_one(actor, draft, posting))
        tried: list[str] = []
        found: tuple[out.RequestSent | out.SendRefusal, Posted] | None = None
        ability = draft.to_agent.removeprefix(ABILITY)
        while len(tried) < MOST_TRIED and (found is None or isinstance(found[0], _ELSEWHERE)):
            swarm = yield from self._home.choose(ability, but=tried)
            if not swarm:
                break
            tried.append(swarm)
            found = yield from self._sent_to_one(actor, replace(draft, to_swarm=swarm), posting)
        unable = out.SwarmUnavailable(swarm=ANY_SWARM, reason="unable", retry_in=LIVE_TTL)
        return (unable, Posted()) if found is None else found

    def _sent_to_one(
        self, actor: Actor, draft: RequestDraft, posting: Callable[[str], object] | None
    ) -> Op[tuple[out.RequestSent | out.SendRefusal, Posted]]:
        while True:
            own = yield from self._home.own()
            if draft.to_swarm == own.name:
                raise BadInput(
                    f"{own.name} is this swarm itself; publish a task for its agents:"
                    " interlock task add, or ask one of them: interlock query"
                )
            yield from self._home.ready(own, actor)
            unlisted = yield from self._home.swarms.unlisted(own, draft.to_swarm, draft.to_agent)
            new = yield from self._new(own, actor, draft)
            done = yield from self._home.runner.change(
                partial(self._sending, own, new), actor, self._guess(new)
            )
            sent = done.outcome
            if sent is not None:
                break
        if not isinstance(sent, out.RequestSent):
            return sent, Posted()
        request = new.request
        self._home.in_flight[request.to_swarm] += 1
        waits = posting is not None
        if posting is not None:
            posting(request.id)
        key = keys.outbox(request.to_swarm, request.message)
        entry = Posting(key=key, entry=new.entry, body=new.body)
        posted = yield from self._outbox.post(actor, own, entry, clear_later=waits)
        if not posted.reason:
            yield from self._home.queues.posted(own, request.to_swarm, 1)
        reason = posted.reason
        return replace(sent, spooled=bool(reason), reason=reason, warning=unlisted), posted

    def _sending(
        self, own: OwnSwarm, new: NewRequest
    ) -> DecideOp[out.RequestSent | out.SendRefusal | None]:
        """Step 1; None if our own swarm is another one than that which signed."""
        request = new.request
        if not (yield from self._home.is_own(own)):
            return Decision(outcome=None)
        wanted = keys.request(request.id)
        if new.name:
            key = keys.request_name(new.name)
            if (named := decode_name((yield (key,)).items[key])) is not None:
                wanted = keys.request(named.request)
        before = decode_request((yield (wanted,)).items[wanted])
        peer = yield from self._home.peer_facts(request.to_swarm, request.agent)
        decided = send_rules.send(new, before, peer, self._home.now())
        refused = refusal_rules.of_send(request, decided.outcome)
        return decided if refused is None else (yield from self._refusing(decided, refused))

    def _guess(self, new: NewRequest) -> dict[str, Item | None]:
        """Nearly every request is new; the rest is as it was a moment ago."""
        request = new.request
        rate = keys.request_rate("to", request.to_swarm, request.agent)
        found = self._home.guess(request.to_swarm, also=(rate,))
        if found:
            found[keys.request(request.id)] = None
            if new.name:
                found[keys.request_name(new.name)] = None
        return found

    def _refusing(
        self,
        decided: Decision[out.RequestSent | out.SendRefusal],
        refused: refusal_rules.UnrecordedRefusal,
    ) -> DecideOp[out.RequestSent | out.SendRefusal]:
        """A refusal, which is recorded or counted."""
        tally, counts = keys.request_refusals(refused.agent), keys.requests_refused(refused.agent)
        items = (yield (tally, counts)).items
        recorded: Decision[Any] = refusal_rules.recording(
            refusal_rules.decode_tally(items[tally]) or refusal_rules.RefusalTally(),
            refusal_rules.decode_refused(items[counts]) or {},
            refused,
            self._home.now(),
        )
        return replace(recorded, outcome=decided.outcome)

    def _new(self, own: OwnSwarm, actor: Actor, draft: RequestDraft) -> Op[NewRequest]:
        """A request with the signed envelope of its first attempt."""
        runner, now = self._home.runner, self._home.now()
        chosen = ID.fullmatch(draft.name) is not None
        id_ = draft.name if chosen else runner.new_id("req")
        request = OutgoingRequest(
            id=id_,
            message=runner.new_id("msg"),
            agent=actor.agent,
            from_swarm=own.name,
            to_swarm=draft.to_swarm,
            to_agent=draft.to_agent,
            task_type=draft.task_type,
            made=now,
            deadline=now + draft.deadline,
            sent=now,
            heads=(),
            source_hash=sha256(draft.body).hexdigest(),
            source_size=len(draft.body),
            act=draft.act,
            priority=draft.priority,
            timeout=draft.timeout,
            correlation_id=draft.correlation_id or id_,
            reply_to=draft.reply_to or actor.agent,
            confidence=draft.confidence,
            citations=draft.citations,
            notice=draft.notice,
        )
        head, envelope = yield from self._home.sign(
            own,
            actor.agent,
            lambda key: head_of(request, swarm=own.name, bus=own.bus_id, key=key, now=now),
        )
        entry = OutboxEntry(
            kind="request",
            to=request.to_swarm,
            request=id_,
            envelope=envelope,
            expires=head.expires / 1000,
        )
        return NewRequest(
            request=with_head(request, head),
            body=Raw(draft.body),
            entry=entry,
            name="" if chosen else draft.name,
        )

    def find(self, named: str) -> Op[str]:
        """The id of a request that a caller names by its id, or by the one that it chose."""
        if ID.fullmatch(named):
            return named
        key = keys.request_name(named)
        found = decode_name((yield Read(key))[key])
        if found is not None:
            return found.request
        return (yield from whole_id(named, keys.REQUESTS))

    def result(self, actor: Actor, named: str, wait: float) -> Op[out.ResultOutcome]:
        """The result of a request, if there is one in time."""
        request = yield from self.find(named)
        if not wait:
            return (yield from self._result_now(actor, request))
        ends = self._home.runner.clock.monotonic() + wait
        return (yield from self._result(actor, request, ends))

    def _result(
        self, actor: Actor, request: str, ends: float, *, waited: bool = False
    ) -> Op[out.ResultOutcome]:
        clock = self._home.runner.clock
        while True:
            found = yield from self._look(request)
            if not isinstance(found, out.RequestOpen):
                return found
            if ends - clock.monotonic() <= 0:
                if waited:
                    yield from self._notice(actor, request)
                return found
            yield from self._tend(actor)
            wait = self._waits.add(request)
            try:
                finding = yield from self._attend(actor, wait, ends, again=waited)
            finally:
                self._waits.remove(wait)
            waited = True
            if finding is not None:
                return outcome_of(finding)

    def _result_now(self, actor: Actor, request: str) -> Op[out.ResultOutcome]:
        """The result without a wait; one that lies on the bus is taken in."""
        found = yield from self._look(request)
        if not isinstance(found, out.RequestOpen):
            return found
        with suppress(BusTrouble):
            yield from self._waits.look(actor, request)
        return (yield from self._look(request))

    def cancel(
        self, actor: Actor, named: str, reason: str
    ) -> Op[out.RequestCancelled | out.RequestOver | out.UnknownRequest]:
        """End a request; one that was answered stays answered."""
        request = yield from self.find(named)
        key = keys.request(request)
        ending: list[OutgoingRequest] = []

        def deciding() -> DecideOp[out.RequestCancelled | out.RequestOver | out.UnknownRequest]:
            stored = decode_request((yield (key,)).items[key])
            if stored is None:
                return Decision(outcome=out.UnknownRequest(unknown=(named,)))
            if stored.state == "cancelled":
                return Decision(outcome=out.RequestCancelled(request=request, already=True))
            if stored.state == "answered":
                over = out.RequestOver(
                    request=request, state="answered", reason="it was answered before"
                )
                return Decision(outcome=over)
            ending[:] = [stored]
            said = reason or f"{foreign(actor.agent)} cancelled it"
            ended: Decision[Any] = send_rules.cancel(stored, said, self._home.now())
            return replace(ended, outcome=out.RequestCancelled(request=request))

        done = (yield from self._home.runner.change(deciding, actor)).outcome
        if isinstance(done, out.RequestCancelled) and not done.already:
            yield from self._outbox.withdraw((yield from self._home.own()), ending[0])
        return done

    def _look(self, request: str) -> Op[out.ResultOutcome]:
        own, result = keys.request(request), keys.finding(request)
        snapshot: Snapshot = yield Read(own, result)
        stored, finding = decode_request(snapshot[own]), decode_finding(snapshot[result])
        if finding is not None:
            return outcome_of(finding)
        if stored is None:
            return out.UnknownRequest(unknown=(request,))
        if stored.state in ("answered", "cancelled"):
            reason = stored.reason or "its result was kept for an hour and is deleted"
            return out.RequestOver(
                request=request, state=stored.state, reason=reason, replaced_by=stored.replaced_by
            )
        found = progress.of_sent(stored)
        return out.RequestOpen(
            request=request,
            to_swarm=stored.to_swarm,
            to_agent=stored.to_agent,
            state=stored.state,
            attempt=stored.attempt,
            reason=found.says,
            next=found.next,
            next_at=found.next_at,
            decision=stored.decision,
        )

    def _tend(self, actor: Actor) -> Op[None]:
        """Do what is due for our swarm, if no waiter of this process did so a moment ago."""
        now = self._home.runner.clock.monotonic()
        if now - self._tended < TEND_EVERY:
            return
        self._tended = now
        own = yield from self._home.own()
        with suppress(NotAllowed, BadInput):  # without the key of the swarm others have to do it
            yield from self._tend_swarm(actor, own)

    def _attend(
        self, actor: Actor, wait: ResultWait, ends: float, *, again: bool = False
    ) -> Op[RequestFinding | None]:
        """Wait for a result on the bus, or at home while the bus is away; only for some seconds.

        The end of the request at home ends the wait, too; ``again`` if it was waited for before.
        What the caller read of its home before this may be too old, unless the request was just
        posted.  So it looks there again, now that nothing on the bus is missed.
        """
        clock = self._home.runner.clock
        began = clock.monotonic()
        ends = min(ends, began + TEND_EVERY * self._waits.patience())

        def left() -> float:
            return ends - clock.monotonic()

        def soon() -> float:
            return min(ends, began + LASTS) - clock.monotonic()

        try:
            if (yield from self._waits.begin(actor, wait)):
                found = yield from self._look(wait.request)
                if not isinstance(found, out.RequestOpen):
                    return wait.finding
            if not again:
                yield from self._waits.attend(actor, wait, soon)
            if not wait.settled and left() > 0:
                self._waits.keep_on(wait)
                yield from self._waits.attend(actor, wait, left)
        except BusTrouble:
            self._waits.keep_on(wait)
            yield from wait.bell.sleep(max(0.0, min(left(), RECONNECT * self._waits.patience())))
        return wait.finding

    def _notice(self, actor: Actor, request: str) -> Op[None]:
        """The asker stops waiting: it gets a message with the result."""
        key = keys.request(request)

        def deciding() -> DecideOp[None]:
            stored = decode_request((yield (key,)).items[key])
            if stored is None or stored.notice or stored.state not in ("open", "escalated"):
                return Decision(outcome=None)
            return Decision(
                outcome=None,
                verb="request.notify",
                thing=f"request/{request}",
                puts=(Write(key, replace(stored, notice=True)),),
            )

        yield from self._home.runner.change(deciding, actor)


def note_how_to_go_on(error: BaseException, request: str) -> None:
    """A caller that is interrupted learns how to ask for the result later."""
    again = f"interlock request result {validate.quote(request)} --wait 30s"
    error.add_note(f"the request goes on; for its result: {again}")


def outcome_of(finding: RequestFinding) -> out.RequestAnswered | out.RequestFailed:
    """A finding, as a caller gets it."""
    common: dict[str, Any] = {
        "request": finding.request,
        "from_swarm": finding.from_swarm,
        "executed_by": finding.executed_by,
        "executed_at": finding.executed_at,
        "result_posted_at": finding.result_posted_at,
        "confidence": finding.confidence,
        "citations": finding.citations,
    }
    if finding.status == "error":
        return out.RequestFailed(error=finding.error, **common)
    return out.RequestAnswered(result=msgspec.json.decode(finding.result), **common)
