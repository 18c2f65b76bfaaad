"""Asking and answering: the question is committed, then the asker waits for its answer.

The answerer writes the item that the asker watches, so a round trip is two commits and two
wake-ups, and either side may restart in between. A wait that would close a cycle is refused, as for
locks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core.decision import Write
from interlock.core.wait import UnqueuedWait, wait_keys, wait_writes
from interlock.drivers import Op, Read
from interlock.nouns.grants.service import GrantService
from interlock.nouns.messages import decode, human_decision, log_lines
from interlock.nouns.messages import query_rules as core
from interlock.nouns.messages import reply_rules as replies
from interlock.nouns.messages.human_decision import (
    DecisionView,
    HumanDecision,
    ResolveOutcome,
    UnknownDecision,
)
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import can_answer, is_able
from interlock.nouns.messages.query_quota import QueryQuota
from interlock.nouns.messages.query_rules import AskOutcome, CancelOutcome, Query, ReplyOutcome
from interlock.nouns.messages.query_wait import ASKER_TTL, QueryWaits, query_with_answer
from interlock.nouns.messages.reply_rules import ReplyContext
from interlock.nouns.messages.sending import MessageSender
from interlock.runtime import callers
from interlock.runtime.decide import DecideOp
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.reads import every, outside, readable
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.wait_graph import Start
from interlock.store import Snapshot

T = TypeVar("T")


class AskOptions(Struct, frozen=True, kw_only=True):
    """How an agent asks.

    ``hold``    ask even if the recipient is absent
    ``cached``  accept an earlier answer up to this age, in seconds
    ``keep``    leave the question open after an interrupt: the caller knows its id and may return
    """

    hold: bool = False
    cached: float | None = None
    keep: bool = False


class QueryService:
    """Questions, answers and decisions; its methods are generators for a driver."""

    def __init__(self, runner: Runner, message_sender: MessageSender, grants: GrantService) -> None:
        self._runner = runner
        self._waits = QueryWaits(runner, grants)
        self._sender = message_sender
        self._quota = QueryQuota(runner, message_sender.limits.open)

    def query(
        self, identity: Identity, query: Query, terms: AskOptions, waits: callers.CallerTerms
    ) -> Op[AskOutcome]:
        """Ask, and wait for the answer."""
        actor, relying = identity.actor.plain, identity.actor
        if terms.cached is not None:
            known = yield from self._cached_answer(query, terms.cached)
            if known is not None:
                return known
        asleep = self._listed_wait(identity, query, waits, keep=terms.keep)
        beat = self._waits.beat(asleep, query)
        query = replace(query, waits=(*wait_keys(asleep, query.id), *[each.key for each in beat]))
        try:
            done = yield from self._ask(
                relying, query, terms, (*wait_writes(asleep, query.id), *beat)
            )
            if not isinstance(done.outcome, core.Asked):
                return decode_answer(done.outcome)
            log_lines.asked(actor.agent, query.id, query.to)
            start = Start(
                id=query.id, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0
            )
            outcome = yield from self._waits.wait(actor, query, start)
            if isinstance(outcome, core.TimedOut):
                log_lines.timed_out(actor.agent, query.id, query.to, outcome.timeout)
            return decode_answer(outcome)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            if terms.keep:
                yield from self._waits.leave(actor, query)
            else:  # no other process knows its id
                yield from self.cancel(actor, query.id)
            raise

    def reply(
        self, actor: Actor, id_: str, answer: Raw, can: tuple[str, ...] = ()
    ) -> Op[ReplyOutcome]:
        """Answer a question to this agent, or to an ability in ``can``."""
        message, decision_id = self._runner.new_id("msg"), self._runner.new_id("dec")

        def deciding() -> DecideOp[ReplyOutcome]:
            wanted = (keys.query(id_), keys.unread(actor.agent, id_))
            snapshot = yield wanted
            query = yield from query_with_answer(snapshot[wanted[0]])
            closes, alive, able = None, True, True
            if query is not None and query.to.startswith(ABLE):
                able = yield from is_able(actor, query.to.removeprefix(ABLE), can)
            if query is not None and query.state == "open":
                alive = (yield (keys.live(id_),))[keys.live(id_)] is not None
            elif query is not None and query.state == "handed":
                key = keys.decision(query.decision)
                closes = decode.decision((yield (key,))[key])
            context = ReplyContext(
                agent=actor.agent,
                answer=answer,
                now=self._runner.clock.wall(),
                able=able,
                alive=alive,
                unread=snapshot[wanted[1]] is not None,
                message=message,
                decision_id=decision_id,
                closes=closes,
            )
            return replies.reply(query, id_, context)

        outcome = yield from self._done(actor, deciding)
        if isinstance(outcome, core.Replied):
            log_lines.replied(actor.agent, id_, outcome.to)
        return outcome

    def cancel(self, actor: Actor, id_: str) -> Op[CancelOutcome]:
        """Cancel a question."""

        def deciding() -> DecideOp[CancelOutcome]:
            query = decode.query((yield (keys.query(id_),))[keys.query(id_)])
            return core.cancel(query, id_, actor.agent)

        return (yield from self._done(actor, deciding))

    def resolve(self, actor: Actor, id_: str, answer: Raw) -> Op[ResolveOutcome]:
        """Make a decision, and answer the question that it is about."""
        message = self._runner.new_id("msg")

        def deciding() -> DecideOp[ResolveOutcome]:
            now = self._runner.clock.wall()
            decision = decode.decision((yield (keys.decision(id_),))[keys.decision(id_)])
            decided = human_decision.resolve(decision, id_, actor.agent, answer, now)
            if decision is None or not decided.changes or not decision.about.startswith("query/"):
                return decided
            key = keys.query(decision.about.removeprefix("query/"))
            query = decode.query((yield (key,))[key])
            if query is None or query.state != "handed":
                return decided
            context = ReplyContext(agent=actor.agent, answer=answer, now=now, message=message)
            follows = replies.resolve(query, context)
            return replace(
                decided,
                puts=(*decided.puts, *follows.puts),
                deletes=follows.deletes,
                events=(
                    *decided.events,
                    *[replace(each, thing=f"query/{query.id}") for each in follows.events],
                ),
            )

        return (yield from self._done(actor, deciding))

    def decisions(self) -> Op[tuple[DecisionView, ...]]:
        """Open decisions and recent ones, oldest first."""
        found = [readable(decode.decision, item) for item in (yield from every(keys.DECISIONS))]
        return tuple(sorted(map(_view_of, filter(None, found)), key=lambda each: each.at))

    def decision(self, id_: str) -> Op[DecisionView | UnknownDecision]:
        """One decision."""
        snapshot: Snapshot = yield Read(keys.decision(id_))
        found = decode.decision(snapshot[keys.decision(id_)])
        return UnknownDecision(unknown=(id_,), decision=id_) if found is None else _view_of(found)

    def _done(self, actor: Actor, deciding: Callable[[], DecideOp[T]]) -> Op[T]:
        done: Decided[T] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def _cached_answer(self, query: Query, age: float) -> Op[core.Answered | None]:
        key = keys.last_answer(query.to, bytes(query.question))
        cached = decode.cached_answer((yield Read(key))[key])
        if cached is None:
            return None
        key = keys.query(cached.query)
        before = yield from outside(query_with_answer((yield Read(key))[key]))
        if before is None or before.state != "answered":
            return None
        ago = max(self._runner.clock.wall() - before.replied, 0.0)
        if ago > age:
            return None
        answer = msgspec.json.decode(before.answer)
        replied = before.replied or None
        return core.Answered(
            query=before.id, answer=answer, by=before.by, age=round(ago, 3), replied_at=replied
        )

    def _listed_wait(
        self, identity: Identity, query: Query, waits: callers.CallerTerms, *, keep: bool
    ) -> UnqueuedWait:
        """The wait as others see it; it ends soon after the asker does.

        A client lives as long as its session. The session of a shell, and the question, may outlive
        the command, so such a wait has its own liveness key, unless it is short.
        """
        actor = identity.actor
        live = (
            keys.asker_live(query.id) if keep or query.timeout > ASKER_TTL else keys.live(query.id)
        )
        if identity.joined and not identity.whole_session:
            live = keys.live(actor.session)
        return UnqueuedWait(
            wants=keys.query(query.id),
            agent=actor.agent,
            session=actor.session,
            live=live,
            since=query.at,
            caller=waits.caller,
            indexed=waits.indexed,
            also=waits.also,
        )

    def _ask(
        self, actor: Actor, query: Query, terms: AskOptions, notes: tuple[Write, ...]
    ) -> Op[Decided[AskOutcome]]:
        present = yield from can_answer(query.to, actor.session)
        least = self._runner.capabilities.min_ttl
        ask = core.AskContext(here=present, hold=terms.hold, least=least, notes=notes)
        done = yield from self._put(actor, query, ask)
        if isinstance(done.outcome, core.TooMany) and (yield from self._quota.clear_expired(actor)):
            done = yield from self._put(actor, query, ask)
        if isinstance(done.outcome, core.TooMany):
            return Decided((yield from self._quota.refusal(actor.agent)), None)
        return done

    def _put(self, actor: Actor, query: Query, ask: core.AskContext) -> Op[Decided[AskOutcome]]:
        key, live = keys.query(query.id), keys.live(query.id)
        to = () if query.to.startswith(ABLE) else (query.to,)
        slots = self._quota.guess(query.agent)
        plan = self._sender.plan(query.agent, (key,), to, free_keys=slots)
        decision_id = self._runner.new_id("dec")

        def deciding() -> DecideOp[AskOutcome]:
            snapshot = yield plan.refs
            state = yield from self._sender.sender_state(plan, snapshot)
            now = self._sender.moment()
            before, alive = (yield from query_with_answer(snapshot[key])), True
            if before is not None and before.state == "open":
                alive = (yield (live,))[live] is not None
            free_slots: tuple[str, ...] = ()
            if before is None and slots:
                free_slots = yield from self._quota.take(query.agent, slots, snapshot.items)
            known = replace(ask, before=before, alive=alive, full=not free_slots)
            return core.ask(replace(query, room=free_slots), known, state, now, decision_id)

        return (yield from self._sender.commit(plan, deciding, actor))


def decode_answer(outcome: AskOutcome) -> AskOutcome:
    """Decode the JSON of an answer."""
    if isinstance(outcome, core.Answered) and isinstance(outcome.answer, Raw):
        return replace(outcome, answer=msgspec.json.decode(outcome.answer))
    return outcome


def _view_of(decision_id: HumanDecision) -> DecisionView:
    return DecisionView(
        decision=decision_id.id,
        state=decision_id.state,
        about=decision_id.about,
        agent=decision_id.agent,
        question=msgspec.json.decode(decision_id.question),
        at=decision_id.at,
        by=decision_id.by,
        answer=msgspec.json.decode(decision_id.answer),
        resolved=decision_id.resolved or None,
    )
