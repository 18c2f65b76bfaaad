"""Asking and answering: the question is committed, then the asker waits for its answer.

The answerer writes the item that the asker watches, so a round trip is two commits and two
wake-ups, and either side may restart in between. A wait ends with the answer, with its timeout, or
because it would close a cycle, as for locks. The wait and the question have separate timeouts: an
asker that returns by id with a shorter timeout than the question's leaves the question open when it
gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock import registry
from interlock.core import keys
from interlock.core.decision import Decision, Write
from interlock.core.wait import UnqueuedWait, wait_keys, wait_writes
from interlock.nouns.grants.service import GrantService
from interlock.nouns.messages import decision_rules, decode, log_lines, query_rules
from interlock.nouns.messages.decision import (
    DecisionView,
    HumanDecision,
    OptionView,
    ResolveOutcome,
    UnknownDecision,
)
from interlock.nouns.messages.decode import query_with_answer
from interlock.nouns.messages.limits import QueryQuota
from interlock.nouns.messages.message import ABLE
from interlock.nouns.messages.presence import KnownPresence, can_answer, is_able
from interlock.nouns.messages.query import (
    Asked,
    AskOutcome,
    CancelOutcome,
    Query,
    QueryAnswered,
    Replied,
    ReplyOutcome,
    TakenBack,
    TimedOut,
    TooMany,
)
from interlock.nouns.messages.query_rules import ReplyContext
from interlock.nouns.messages.send_service import MessageSender
from interlock.runtime import callers
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.deadlock import DeadlockResolver, Withdrawal
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.keeper import BEATS_PER_TTL
from interlock.runtime.reads import every, outside, readable
from interlock.runtime.runner import Decided, Runner
from interlock.runtime.wait_graph import Start
from interlock.steps import NextChanges, Op, OpenWatch, PrepareLiveness, Read
from interlock.store import Change, Resync, Snapshot

ASKER_TTL = 10.0
"""Seconds after which the wait of a killed command expires."""
_CHECK_AFTER, _CHECK_LONGEST = 1.0, 8.0
"""Seconds between two checks for a cycle, at first and at most: the interval doubles while nothing
changes.  A check may read all agents with an ability, and the wait that closes a cycle checks it.
"""
_AWAY_AFTER = 5.0
"""Seconds without a live session or receiver after which the recipient of a question is gone: one
that starts again has a new session by then, and answers."""
QUICK = 0.03
"""Seconds before the first check: the answer of a program mostly comes before, and saves it."""


ABSENT = "absent"
"""The outcome of a question whose recipient is not present by a key that is known of it."""


class AskOptions(Struct, frozen=True, kw_only=True):
    """How an agent asks.

    ``hold``    ask even if the recipient is absent
    ``cached``  accept an earlier answer up to this age, in seconds
    ``keep``    leave the question open after an interrupt: the caller knows its id and may return
    """

    hold: bool = False
    cached: float | None = None
    keep: bool = False


class Recipient:
    """The recipient of a question that is waited for: ``gone`` is when it counts as gone."""

    def __init__(self, runner: Runner, query: Query, *, hold: bool) -> None:
        self._clock = runner.clock
        self._query = query
        self._hold = hold
        self._after = runner.capabilities.allow(_AWAY_AFTER)
        self.gone = float("inf")

    def is_gone(self) -> Op[bool]:
        """Whether it has had no live session or receiver for long enough."""
        if self._hold or (yield from can_answer(self._query.to, self._query.session)):
            self.gone = float("inf")
        else:
            self.gone = min(self.gone, self._clock.monotonic() + self._after)
        return self.gone <= self._clock.monotonic()


class QueryService:
    """Questions, answers and decisions; its methods are generators for a driver."""

    def __init__(self, runner: Runner, message_sender: MessageSender, grants: GrantService) -> None:
        self._runner = runner
        self._grants = grants
        self._deadlocks = DeadlockResolver(runner)
        self._sender = message_sender
        self._quota = QueryQuota(runner, message_sender.limits.open)
        self._presence = KnownPresence()

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
        beat = self._beat(asleep, query)
        query = replace(query, waits=(*wait_keys(asleep, query.id), *[each.key for each in beat]))
        try:
            done, new = yield from self._ask(
                relying, query, terms, (*wait_writes(asleep, query.id), *beat)
            )
            if not isinstance(done.outcome, Asked):
                return decode_answer(done.outcome)
            log_lines.asked(actor.agent, query.id, query.to)
            start = Start(
                id=query.id, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0
            )
            outcome = yield from self._wait(actor, query, start, new=new, hold=terms.hold)
            if isinstance(outcome, TimedOut):
                log_lines.timed_out(actor.agent, query.id, query.to, outcome.timeout)
            return decode_answer(outcome)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            if terms.keep:
                yield from self._leave(actor, query)
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
            return query_rules.reply(query, id_, context)

        known = self._runner.recall(keys.query(id_)) | self._runner.recall(
            keys.unread(actor.agent, id_)
        )
        outcome = (yield from self._runner.change(deciding, actor, known)).outcome
        if isinstance(outcome, Replied):
            log_lines.replied(actor.agent, id_, outcome.to)
        return outcome

    def cancel(self, actor: Actor, id_: str) -> Op[CancelOutcome]:
        """Cancel a question."""

        def deciding() -> DecideOp[CancelOutcome]:
            query = decode.query((yield (keys.query(id_),))[keys.query(id_)])
            return query_rules.cancel(query, id_, actor.agent)

        return (yield from self._runner.change(deciding, actor)).outcome

    def resolve(self, actor: Actor, id_: str, answer: Raw) -> Op[ResolveOutcome]:
        """Make a decision, with its effect on what it is about: for a question, the answer."""
        message = self._runner.new_id("msg")

        def deciding() -> DecideOp[ResolveOutcome]:
            now = self._runner.clock.wall()
            decision = decode.decision((yield (keys.decision(id_),))[keys.decision(id_)])
            decided = decision_rules.resolve(decision, id_, actor.agent, answer, now)
            if decision is None or not decided.changes:
                return decided
            if not decision.about.startswith("query/"):
                return _merged(decided, (yield from _effect(decision, answer)))
            key = keys.query(decision.about.removeprefix("query/"))
            query = decode.query((yield (key,))[key])
            if query is None or query.state != "handed":
                return decided
            context = ReplyContext(agent=actor.agent, answer=answer, now=now, message=message)
            follows = query_rules.answer(query, "resolve", context)
            about = [replace(each, thing=f"query/{query.id}") for each in follows.events]
            return _merged(decided, replace(follows, events=tuple(about)))

        return (yield from self._runner.change(deciding, actor)).outcome

    def decisions(self) -> Op[tuple[DecisionView, ...]]:
        """Open decisions and recent ones, oldest first."""
        found = [readable(decode.decision, item) for item in (yield from every(keys.DECISIONS))]
        return tuple(sorted(map(_view_of, filter(None, found)), key=lambda each: each.at))

    def decision(self, id_: str) -> Op[DecisionView | UnknownDecision]:
        """One decision."""
        snapshot: Snapshot = yield Read(keys.decision(id_))
        found = decode.decision(snapshot[keys.decision(id_)])
        return UnknownDecision(unknown=(id_,), decision=id_) if found is None else _view_of(found)

    def _cached_answer(self, query: Query, age: float) -> Op[AskOutcome | None]:
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
        return decode_answer(replace(query_rules.outcome_of(before), age=round(ago, 3)))

    def _listed_wait(
        self, identity: Identity, query: Query, waits: callers.CallerTerms, *, keep: bool
    ) -> UnqueuedWait:
        """The wait as others see it; it ends soon after the asker does.

        A client lives as long as its session. The session of a shell, and the question, may outlive
        the command, so such a wait has its own liveness key, unless it is short.
        """
        actor = identity.actor
        if identity.joined and not identity.whole_session:
            live = keys.live(actor.session)
        else:
            own = keep or query.timeout > ASKER_TTL
            live = keys.asker_live(query.id) if own else keys.live(query.id)
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
    ) -> Op[tuple[Decided[AskOutcome], bool]]:
        """Commit the question; also whether it is new, and was not asked before by its id."""
        least = self._runner.capabilities.min_ttl
        if not self._runner.capabilities.transacts:
            lives = [each.ttl for each in notes if each.ttl is not None]
            yield PrepareLiveness(max(query.timeout, least), *lives)
        ask = query_rules.AskContext(hold=terms.hold, least=least, notes=notes)
        done, new = yield from self._put_if_present(actor, query, ask)
        if isinstance(done.outcome, TooMany) and (yield from self._quota.clear_expired(actor)):
            done, new = yield from self._put_if_present(actor, query, ask)
        if isinstance(done.outcome, TooMany):
            return Decided((yield from self._quota.refusal(actor.agent)), None), False
        return done, new

    def _put_if_present(
        self, actor: Actor, query: Query, ask: query_rules.AskContext
    ) -> Op[tuple[Decided[AskOutcome], bool]]:
        """Commit the question, unless no agent can answer it.

        Across a network the commit itself checks an agent that was present before, by the liveness
        key that is known of it: that saves a read.
        """
        if ask.hold:
            return (yield from self._put(actor, query, ask))
        if not self._runner.capabilities.transacts and (live := self._presence.live(query.to)):
            done, new = yield from self._put(actor, query, ask, live)
            if done.outcome != ABSENT:
                return done, new
            self._presence.drop(query.to)
        here = yield from can_answer(query.to, actor.session, self._presence)
        return (yield from self._put(actor, query, replace(ask, here=here)))

    def _put(
        self, actor: Actor, query: Query, ask: query_rules.AskContext, present: str = ""
    ) -> Op[tuple[Decided[Any], bool]]:
        """Commit the question; ``ABSENT`` if the liveness key ``present`` is gone."""
        key, live = keys.query(query.id), keys.live(query.id)
        to = () if query.to.startswith(ABLE) else (query.to,)
        slots = self._quota.guess(query.agent)
        plan = self._sender.plan(query.agent, (key,), to, free_keys=slots)
        decision_id = self._runner.new_id("dec")

        def deciding() -> DecideOp[AskOutcome | str]:
            snapshot = yield plan.refs
            if present and (yield (present,))[present] is None:
                return Decision(outcome=ABSENT)
            state = yield from self._sender.sender_state(plan, snapshot)
            now = self._sender.moment()
            before, alive = (yield from query_with_answer(snapshot[key])), True
            if before is not None and before.state == "open":
                alive = (yield (live,))[live] is not None
            free_slots: tuple[str, ...] = ()
            if before is None and slots:
                free_slots = yield from self._quota.take(query.agent, slots, snapshot.items)
            known = replace(ask, before=before, alive=alive, full=not free_slots)
            return query_rules.ask(replace(query, room=free_slots), known, state, now, decision_id)

        return (yield from self._sender.commit(plan, deciding, actor)), plan.needed

    def _beat(self, asleep: UnqueuedWait, query: Query) -> tuple[Write, ...]:
        """The wait's own liveness key, if it has one; it is put with the question."""
        if asleep.live != keys.asker_live(query.id):
            return ()
        ttl = max(min(query.timeout, ASKER_TTL), self._runner.capabilities.min_ttl)
        return (Write(asleep.live, {"agent": asleep.agent}, ttl),)

    def _wait(
        self, actor: Actor, query: Query, start: Start, *, new: bool, hold: bool
    ) -> Op[AskOutcome]:
        """Wait until the question has ended or the timeout is reached; refuse a wait in a cycle.

        Unless the question is on ``hold`` for it, a recipient that is gone ends the wait.

        Of a ``new`` question all is known; one that was asked before may have less time left.
        """
        clock, key = self._runner.clock, keys.query(query.id)
        snapshot: Snapshot | None = None
        after, left, last = start.revision, query.timeout, query.timeout
        if not new or not after:
            live = keys.live(query.id)
            snapshot = yield Read(key, live, times=True)
            after = after or snapshot.revision
            stored, lives = decode.query(snapshot[key]), snapshot[live]
            # The engine may report less than is left, by up to its grain: never end too early.
            grain = self._runner.capabilities.grain
            left = 0.0 if lives is None else (lives.expires_in or 0.0) + grain
            last = stored.timeout if stored is not None and left <= query.timeout else query.timeout
        ends = clock.monotonic() + min(query.timeout, left)
        beat = () if start.asleep is None else self._beat(start.asleep, query)
        pace = min([(each.ttl or 0.0) / BEATS_PER_TTL for each in beat], default=float("inf"))
        shortest, longest = map(self._runner.capabilities.allow, (_CHECK_AFTER, _CHECK_LONGEST))
        due, interval = clock.monotonic() + pace, shortest
        recipient = Recipient(self._runner, query, hold=hold)
        quick = clock.monotonic() + self._runner.capabilities.allow(QUICK) if new else 0.0
        watch = yield OpenWatch(key, after)
        try:
            while True:
                if snapshot is not None:
                    now = yield from outside(query_with_answer(snapshot[key]))
                    if now is None or now.state != "open":
                        taken = TakenBack(query=query.id)
                        return taken if now is None else query_rules.outcome_of(now)
                if ends <= clock.monotonic():
                    return (yield from self._timed_out(actor, query, last))
                early = clock.monotonic() < quick
                refused = None if early else (yield from self._refuse(actor, start))
                if refused is None and not early and (yield from recipient.is_gone()):
                    refused = yield from self._abandon(actor, query)
                if refused is not None:
                    return refused
                if due <= clock.monotonic():
                    due = clock.monotonic() + pace
                    if not (yield from self._renew(beat)):
                        due = float("inf")
                until = min(
                    ends, due, recipient.gone, quick if early else clock.monotonic() + interval
                )
                changes = yield NextChanges(watch, until - clock.monotonic())
                interval = shortest if changes or early else min(interval * 2, longest)
                snapshot = yield from _after(changes, key)
        finally:
            watch.close()

    def _leave(self, actor: Actor, query: Query) -> Op[AskOutcome]:
        """Stop waiting; the question stays open."""

        def deciding() -> DecideOp[AskOutcome]:
            key = keys.query(query.id)
            stored = decode.query((yield (key,))[key])
            if stored is None:
                return Decision(outcome=TakenBack(query=query.id))
            return query_rules.leave(stored, query.waits, query.timeout)

        return (yield from self._runner.change(deciding, actor)).outcome

    def _timed_out(self, actor: Actor, query: Query, last: float) -> Op[AskOutcome]:
        """End our wait, and the question unless its own timeout is later."""
        decision_id = self._runner.new_id("dec")

        def deciding() -> DecideOp[AskOutcome]:
            key, live = keys.query(query.id), keys.live(query.id)
            stored = yield from query_with_answer((yield (key,))[key])
            if stored is None:
                return Decision(outcome=TakenBack(query=query.id))
            if stored.timeout > last and (yield (live,))[live] is not None:
                return query_rules.leave(stored, query.waits, query.timeout)
            return query_rules.expire(stored, self._runner.clock.wall(), decision_id)

        return (yield from self._runner.change(deciding, actor)).outcome

    def _abandon(self, actor: Actor, query: Query) -> Op[AskOutcome]:
        """End the question, since no agent is left that could answer."""
        decision_id = self._runner.new_id("dec")

        def deciding() -> DecideOp[AskOutcome]:
            key = keys.query(query.id)
            stored = yield from query_with_answer((yield (key,))[key])
            if stored is None:
                return Decision(outcome=TakenBack(query=query.id))
            return query_rules.abandon(stored, self._runner.clock.wall(), decision_id)

        return (yield from self._runner.change(deciding, actor)).outcome

    def _renew(self, beat: tuple[Write, ...]) -> Op[bool]:
        """Renew the wait's liveness key; return whether it still exists.

        A wait that expired while this machine slept is not revived: the answer still arrives, but
        others no longer count the wait when they look for cycles.
        """
        alive = yield from self._runner.renew(beat)
        return len(alive) == len(beat)

    def _refuse(self, actor: Actor, start: Start) -> Op[AskOutcome | None]:
        """Cancel the question if its wait closes a cycle."""

        def withdraw(cycle: tuple[str, ...]) -> DecideOp[AskOutcome | None]:
            key = start.wants[0]
            query = yield from query_with_answer((yield (key,))[key])
            if query is None:
                return Decision(outcome=None)
            decision: Decision[AskOutcome | None] = query_rules.refuse(query, cycle)
            return decision

        pending = self._grants.pending_grants() | callers.pending_grants()
        give_way: Withdrawal[Any] = withdraw
        done = yield from self._deadlocks.resolve(actor, start, give_way, pending=pending)
        refused: AskOutcome | None = done.outcome
        return refused


def _after(changes: Sequence[Change | Resync], key: str) -> Op[Snapshot]:
    """The question after these changes: as the last one brought it, or as a read shows it."""
    last = changes[-1] if changes else None
    if isinstance(last, Change) and last.item is not None:
        return Snapshot(last.revision, {key: last.item})
    snapshot: Snapshot = yield Read(key)
    return snapshot


def _effect(decision: HumanDecision, answer: Raw) -> ReadOp[Decision[Any]]:
    """What this answer does to the thing that a decision is about, if its noun says so."""
    work = registry.decided(decision.about.partition("/")[0])
    if work is None:
        return Decision(outcome=None)
    ended = replace(decision, state="resolved", answer=answer)
    effect: Decision[Any] = yield from work(ended)
    return effect


def _merged(decided: Decision[ResolveOutcome], effect: Decision[Any]) -> Decision[ResolveOutcome]:
    return replace(
        decided,
        puts=(*decided.puts, *effect.puts),
        deletes=(*decided.deletes, *effect.deletes),
        events=(*decided.events, *effect.events),
    )


def decode_answer(outcome: AskOutcome) -> AskOutcome:
    """Decode the JSON of an answer."""
    if isinstance(outcome, QueryAnswered) and isinstance(outcome.answer, Raw):
        return replace(outcome, answer=msgspec.json.decode(outcome.answer))
    return outcome


def _view_of(decision: HumanDecision) -> DecisionView:
    return DecisionView(
        decision=decision.id,
        state=decision.state,
        about=decision.about,
        agent=decision.agent,
        question=msgspec.json.decode(decision.question),
        at=decision.at,
        options=tuple(
            [
                OptionView(
                    option=each.name,
                    text=each.text,
                    acts=each.acts,
                    value=msgspec.json.decode(each.value),
                )
                for each in decision.options
            ]
        ),
        default=decision.default,
        deadline=decision.deadline,
        by=decision.by,
        answer=msgspec.json.decode(decision.answer),
        resolved=decision.resolved or None,
    )
