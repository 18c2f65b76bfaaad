"""Asking and answering: the question is committed, then the asker sleeps on it.

Whoever answers writes the item that the asker watches; so a round trip is two commits and two
wake-ups, and either side may be a new process by then.  A wait that can never end is refused as
those for locks are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from interlock.core import keys
from interlock.core import matter as matters
from interlock.core import query as core
from interlock.core.decision import Decision, Write
from interlock.core.matter import Matter, NoMatter, ResolveOutcome, Shown
from interlock.core.message import ABLE
from interlock.core.query import AskOutcome, CancelOutcome, Query, Reply, ReplyOutcome
from interlock.core.wait import Asleep, listed, listing
from interlock.driving import Op
from interlock.services import callers
from interlock.services.deadlock import Deadlocks, Withdrawal
from interlock.services.gather import every, outside
from interlock.services.graph import Start
from interlock.services.message import journal, states
from interlock.services.message.limits import Depths
from interlock.services.message.posting import Posting
from interlock.services.message.serving import here
from interlock.services.queue import Queues
from interlock.services.runner import Deciding, Done, Runner, Who
from interlock.services.steps import Open, Read, Take
from interlock.services.waiting import Seat
from interlock.store import Snapshot

T = TypeVar("T")

_NAP = 1.0
"""Seconds after which an asker looks again whether its wait can end."""


class Terms(Struct, frozen=True, kw_only=True):
    """How somebody asks.

    ``hold``    the question for somebody who is not there
    ``cached``  an answer will do that is not older than so many seconds
    ``keep``    it open if we are interrupted: whoever asked knows its id, and may come back
    """

    hold: bool = False
    cached: float | None = None
    keep: bool = False


class Asking:
    """Questions and answers, as generators for a driver."""

    def __init__(self, runner: Runner, posting: Posting, queues: Queues) -> None:
        self._runner = runner
        self._queues = queues
        self._deadlocks = Deadlocks(runner)
        self._posting = posting
        self._open = Depths(posting.limits.open)

    def query(self, seat: Seat, query: Query, terms: Terms, waits: callers.Terms) -> Op[AskOutcome]:
        """Ask, and wait for the answer."""
        who = seat.who
        if terms.cached is not None:
            known = yield from self._known(query, terms.cached)
            if known is not None:
                return known
        asleep = self._asleep(seat, query, waits)
        query = replace(query, waits=listed(asleep, query.id))
        try:
            done = yield from self._ask(who, query, terms, listing(asleep, query.id))
            if not isinstance(done.outcome, core.Asked):
                return told(done.outcome)
            journal.asked(who.agent, query.id, query.to)
            start = Start(
                id=query.id, wants=(asleep.wants,), asleep=asleep, revision=done.revision or 0
            )
            return told((yield from self._wait(who, query, start)))
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            if not terms.keep:  # nobody else knows its id
                yield from self.cancel(who, query.id)
            raise

    def reply(self, who: Who, id_: str, answer: Raw) -> Op[ReplyOutcome]:
        """Answer a question that was put to us."""
        message, matter = self._runner.new_id("msg"), self._runner.new_id("dec")

        def deciding() -> Deciding[ReplyOutcome]:
            wanted = (keys.query(id_), keys.unread(who.agent, id_))
            snapshot = yield wanted
            query = states.query(snapshot[wanted[0]])
            closes, alive = None, True
            if query is not None and query.state == "open":
                alive = (yield (keys.live(id_),))[keys.live(id_)] is not None
            elif query is not None and query.state == "handed":
                key = keys.decision(query.decision)
                closes = states.matter((yield (key,))[key])
            given = Reply(
                agent=who.agent,
                answer=answer,
                now=self._runner.clock.wall(),
                alive=alive,
                unread=snapshot[wanted[1]] is not None,
                message=message,
                matter=matter,
                closes=closes,
            )
            return core.reply(query, id_, given)

        outcome = yield from self._done(who, deciding)
        if isinstance(outcome, core.Replied):
            journal.replied(who.agent, id_, outcome.to)
        return outcome

    def cancel(self, who: Who, id_: str) -> Op[CancelOutcome]:
        """Take a question back."""

        def deciding() -> Deciding[CancelOutcome]:
            query = states.query((yield (keys.query(id_),))[keys.query(id_)])
            return core.cancel(query, id_, who.agent)

        return (yield from self._done(who, deciding))

    def resolve(self, who: Who, id_: str, answer: Raw) -> Op[ResolveOutcome]:
        """Decide what a person was asked, and let follow what follows from it."""
        message = self._runner.new_id("msg")

        def deciding() -> Deciding[ResolveOutcome]:
            now = self._runner.clock.wall()
            matter = states.matter((yield (keys.decision(id_),))[keys.decision(id_)])
            decided = matters.resolve(matter, id_, who.agent, answer, now)
            if matter is None or not decided.changes or not matter.about.startswith("query/"):
                return decided
            key = keys.query(matter.about.removeprefix("query/"))
            query = states.query((yield (key,))[key])
            if query is None or query.state != "handed":
                return decided
            given = Reply(agent=who.agent, answer=answer, now=now, message=message)
            follows = core.resolve(query, given)
            return replace(
                decided,
                puts=(*decided.puts, *follows.puts),
                deletes=follows.deletes,
                events=(
                    *decided.events,
                    *[replace(each, thing=f"query/{query.id}") for each in follows.events],
                ),
            )

        return (yield from self._done(who, deciding))

    def matters(self) -> Op[tuple[Shown, ...]]:
        """What persons are asked, and what they decided lately; oldest first."""
        found = [states.matter(item) for item in (yield from every(keys.DECISIONS))]
        return tuple(sorted(map(_shown, filter(None, found)), key=lambda each: each.at))

    def matter(self, id_: str) -> Op[Shown | NoMatter]:
        """One of them."""
        snapshot: Snapshot = yield Read(keys.decision(id_))
        found = states.matter(snapshot[keys.decision(id_)])
        return NoMatter(decision=id_) if found is None else _shown(found)

    def _done(self, who: Who, deciding: Callable[[], Deciding[T]]) -> Op[T]:
        done: Done[T] = yield from self._runner.change(deciding, who)
        return done.outcome

    def _known(self, query: Query, age: float) -> Op[core.Answered | None]:
        """What was answered before, if it is not too old."""
        key = keys.answer(query.to, bytes(query.question))
        cached = states.cached((yield Read(key))[key])
        if cached is None:
            return None
        key = keys.query(cached.query)
        before = states.query((yield Read(key))[key])
        if before is None or before.state != "answered":
            return None
        ago = max(self._runner.clock.wall() - before.replied, 0.0)
        if ago > age:
            return None
        answer = msgspec.json.decode(before.answer)
        return core.Answered(query=before.id, answer=answer, by=before.by, age=round(ago, 3))

    def _asleep(self, seat: Seat, query: Query, waits: callers.Terms) -> Asleep:
        """The wait as others find it; one of a command without a session ends with the question."""
        who = seat.who
        return Asleep(
            wants=keys.query(query.id),
            agent=who.agent,
            session=who.session,
            live=keys.live(who.session if seat.joined else query.id),
            since=query.at,
            caller=waits.caller,
            indexed=waits.indexed,
            also=waits.also,
        )

    def _ask(
        self, who: Who, query: Query, terms: Terms, notes: tuple[Write, ...]
    ) -> Op[Done[AskOutcome]]:
        key = keys.query(query.id)
        to = () if query.to.startswith(ABLE) else (query.to,)
        present = yield from here(query.to, who.session)
        full = yield from self._posting.full(to)
        many = yield from outside(self._open.full(keys.OPEN))
        errand = self._posting.errand(query.agent, (key,), to, full=full)
        matter = self._runner.new_id("dec")

        def deciding() -> Deciding[AskOutcome]:
            snapshot = yield errand.refs
            facts = yield from self._posting.facts(errand, snapshot)
            now = self._runner.clock.wall()
            ask = core.Ask(
                before=states.query(snapshot[key]),
                here=present,
                hold=terms.hold,
                many=(self._open.most, self._open.most) if many else None,
                least=self._runner.capabilities.min_ttl,
                notes=notes,
            )
            return core.ask(query, ask, facts, now, matter)

        return (yield from self._posting.carry_out(errand, deciding, who))

    def _wait(self, who: Who, query: Query, start: Start) -> Op[AskOutcome]:
        """Sleep until the question is answered, or the time is up; refused if that never ends."""
        clock, key, live = self._runner.clock, keys.query(query.id), keys.live(query.id)
        snapshot: Snapshot = yield Read(key, live, times=True)
        lives = snapshot[live]
        left = 0.0 if lives is None else lives.expires_in or 0.0
        ends = clock.monotonic() + min(query.timeout, left)
        watch = yield Open(key, start.revision or snapshot.revision)
        try:
            while True:
                now = states.query(snapshot[key])
                if now is None or now.state != "open":
                    return core.Cancelled(query=query.id) if now is None else core.standing(now)
                left = ends - clock.monotonic()
                if left <= 0:
                    return (yield from expire(self._runner, who, query.id))
                refused = yield from self._refuse(who, start)
                if refused is not None:
                    return refused
                yield Take(watch, min(left, _NAP))
                snapshot = yield Read(key)
        finally:
            watch.close()

    def _refuse(self, who: Who, start: Start) -> Op[AskOutcome | None]:
        """The circle that the wait closed, if it did; the question is taken back then."""

        def withdraw(cycle: tuple[str, ...]) -> Deciding[AskOutcome | None]:
            key = start.wants[0]
            query = states.query((yield (key,))[key])
            if query is None:
                return Decision(outcome=None)
            decision: Decision[AskOutcome | None] = core.refuse(query, cycle)
            return decision

        let_go = self._queues.let_go() | callers.let_go()
        give_way: Withdrawal[Any] = withdraw
        done: Done[Any] = yield from self._deadlocks.untie(who, start, give_way, let_go=let_go)
        refused: AskOutcome | None = done.outcome
        return refused


def expire(runner: Runner, who: Who, id_: str) -> Op[AskOutcome]:
    """End a question whose time is up, whoever meets it first."""
    matter = runner.new_id("dec")

    def deciding() -> Deciding[AskOutcome]:
        query = states.query((yield (keys.query(id_),))[keys.query(id_)])
        if query is None:
            return Decision(outcome=core.Cancelled(query=id_))
        return core.expire(query, runner.clock.wall(), matter)

    done: Done[AskOutcome] = yield from runner.change(deciding, who)
    return done.outcome


def told(outcome: AskOutcome) -> AskOutcome:
    """An answer in the words of Python."""
    if isinstance(outcome, core.Answered) and isinstance(outcome.answer, Raw):
        return replace(outcome, answer=msgspec.json.decode(outcome.answer))
    return outcome


def _shown(matter: Matter) -> Shown:
    return Shown(
        decision=matter.id,
        state=matter.state,
        about=matter.about,
        agent=matter.agent,
        question=msgspec.json.decode(matter.question),
        at=matter.at,
        by=matter.by,
        answer=msgspec.json.decode(matter.answer),
        resolved=matter.resolved or None,
    )
