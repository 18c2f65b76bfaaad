"""Tasks against a model that only knows their purpose.

The machine publishes tasks of all kinds, lets workers claim them by name and in order, finish them
in all ways, with ended claims too, freeze until they expire, and leave; it edits tasks and their
needs, drops them and uses ids of ended ones again, cancels, retries, lets time pass, sets the wall
clock, and closes and opens a gate.  After each act
    the answer is what a model says that knows neither stores nor commits (``task_model.py``),
    every task stands as the model says, and
    the bare items agree with each other (``task_truths.py``).

A single worker gets exactly the best task, and "nothing" only if there is none.  Any client may
reclaim the task of a lost worker, at any moment; the model follows, if that was due.

It runs on a store in memory, on one with room for little, across a bad network, and on each engine;
there time cannot be moved, so nothing expires and no rest ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)
from msgspec.structs import replace
from tests.hypothesis_settings import across_a_bad_network, bounds, run
from tests.nouns.tasks import task_truths
from tests.nouns.tasks.task_model import LONGEST_REST, Held, Job, Model, Times

from interlock import guard
from interlock.errors import BadInput, Lapsed
from interlock.nouns.guards.calls import GuardCalls
from interlock.nouns.tasks import task as core
from interlock.nouns.tasks import task_outcomes
from interlock.nouns.tasks.retention import TaskRetention
from interlock.runtime.identity import Actor, Identity
from interlock.runtime.retention import RetentionLimits
from interlock.store import Store
from interlock.stores import open_store
from interlock.testing.audit import audit
from interlock.testing.faults import FaultyStore
from interlock.testing.testbed import Client, Testbed

NEVER = 1e9
CAPABILITIES = ("rust", "web")

# Acts happen at whole seconds, or hardly later; everything expires, ends or is due in between.
TTLS = st.sampled_from([None, None, None, 2.5])
SESSION_TTLS = st.sampled_from([3.5, 6.5])
SOON = st.sampled_from([None, None, None, 1.5, 3.5])
LATER = st.sampled_from([None, None, None, 2.5, 7.5])
AGES = st.sampled_from([1.5, 5000.0])
BACKOFFS = st.sampled_from([0.0, 1.1])
ENDS = st.sampled_from(
    ["complete", "complete", "fail", "fail", "release", "beat", "say", "give up"]
)
REQUIRES = st.lists(st.sampled_from(CAPABILITIES), unique=True, max_size=1)
CAN = st.sampled_from([[], list(CAPABILITIES), list(CAPABILITIES)]) | st.lists(
    st.sampled_from(CAPABILITIES), unique=True, max_size=2
)


Terms: TypeAlias = dict[str, Any]
TERMS: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.integers(1, 3),
    "requires": REQUIRES,
    "not_before": SOON,
    "deadline": LATER,
    "retries": st.integers(0, 3),
    "backoff": BACKOFFS,
    "guarded": st.sampled_from([False, False, True]),
}
GATE = guard.named("calm", guard.lock_free("gate"))
ACTS = (
    *(["next", "claim", "finish", "advance"] * 3),
    *("publish", "publish", "finish_what_may_be_over", "cancel", "send_back", "send_back"),
    *("freeze", "leave", "join", "make_progress", "publish_again", "meddle", "set_the_clock"),
    *("forget", "use_the_gate", "use_the_gate", "edit", "edit", "edit_needs", "edit_needs"),
    *("edit_terms", "edit_terms"),
    *("drop", "publish_ended", "publish_ended"),
)


class TaskMachine(RuleBasedStateMachine):
    """The acts, and what must be true after each."""

    moves = True
    cramped = False

    def __init__(self) -> None:
        super().__init__()
        self.stage = Testbed()
        self.under, self.store = self.make()
        self.clock = self.stage.clock
        self.clients: dict[str, Client] = {}
        self.frozen: set[str] = set()
        self.claims: list[Held] = []
        self.moments: dict[str, float] = {}
        self.model = Model(
            lambda: Times(self.clock.monotonic(), self.clock.wall()),
            lambda rest: rest if self.moves else NEVER,
        )

    def make(self) -> tuple[Store, Store]:
        """The store as it is, and as clients see it."""
        return self.stage.store, self.stage.store

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.keeper = self.stage.client("keeper", ttl=3e6, store=self.store)
        self.keeper.run(GuardCalls(self.keeper.context).define(GATE))
        for ttl in (3.5, 6.5, 6.5):
            self._join(ttl)
        for _ in range(4):
            self.publish(data)

    @rule(act=st.sampled_from(ACTS), data=st.data())
    def act(self, act: str, data: st.DataObject) -> None:
        """One rule for all, so that each search does a little of everything."""
        if not self.model.jobs:
            self.publish(data)
        getattr(self, act)(data)

    def _worker(self, data: st.DataObject) -> str:
        """A live client, as a rule."""
        living = [session for session in self.clients if self._lives(session)]
        return data.draw(st.sampled_from(living) | st.sampled_from([*self.clients]), "worker")

    def _task(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.model.jobs)), "task")

    # Workers.

    def join(self, data: st.DataObject) -> None:
        if len(self.clients) < 8:
            self._join(data.draw(SESSION_TTLS, "ttl"))

    def _join(self, ttl: float) -> str:
        ttl = ttl if self.moves else 100 * ttl
        agent = ("ada", "bob")[len(self.clients) % 2]
        client = self.stage.client(agent, ttl=None, store=self.store)
        session = client.session
        client.run(client.context.sessions.join(agent, ttl=ttl, session=session))
        client.context.identity = Identity(
            actor=Actor(agent, session), session_ttl=ttl, joined=True
        )
        self.clients[session] = client
        self._live(session, ttl)
        return session

    def _live(self, session: str, ttl: float) -> None:
        self.model.lives_until[session] = self.now + ttl if self.moves else NEVER

    def _lives(self, session: str) -> bool:
        return self.model.lives_until[session] > self.now

    def _beat(self, session: str) -> None:
        client = self.clients[session]
        word = type(client.run(client.agents.beat())).__name__
        assert (word == "Renewed") == self._lives(session)
        if word == "Renewed":
            self._live(session, client.context.identity.session_ttl)

    def freeze(self, data: st.DataObject) -> None:
        """No client renews it any more."""
        if len(self.clients) - len(self.frozen) > 2:
            self.frozen.add(self._worker(data))

    def leave(self, data: st.DataObject) -> None:
        session = self._worker(data)
        if not self._lives(session) or len(self.clients) - len(self.frozen) < 3:
            return
        self.frozen.add(session)
        client = self.clients[session]
        client.run(client.agents.leave())
        for job in self.model.jobs.values():
            if job.held is not None and (job.held.session, job.held.ttl) == (session, None):
                self.model.release(job)
        self.model.lives_until[session] = 0.0
        self.observe()

    # Tasks.

    def publish(self, data: st.DataObject) -> None:
        known = sorted(self.model.jobs)
        if len(known) >= 14:
            return
        wanted = st.lists(st.sampled_from(known or [""]), max_size=2, unique=True)
        needs = data.draw(st.just([]) | wanted, "needs")
        terms = {word: data.draw(draw, word) for word, draw in TERMS.items()}
        name = next(name for n in count() if (name := f"t/{n}") not in known)
        self._publish(self._worker(data), name, tuple(filter(None, needs)), **terms)

    def _publish(
        self, session: str, name: str, needs: tuple[str, ...], *, again: bool = False, **terms: Any
    ) -> None:
        self.clock.advance(0.001)  # so that one of two processes is the earlier one
        client, wall, here = self.clients[session], self.clock.wall(), self.now
        moments = self._moments(terms.pop("not_before"), terms.pop("deadline"))
        guards = [GATE.name] if terms["guarded"] else []
        published = client.run(
            client.tasks.publish(
                name,
                {"name": name},
                needs=needs,
                guard=guards,
                labels=("odd",) if name[-1] in "13579" else (),
                backoff_most=LONGEST_REST,
                again=again,
                **moments,
                **{word: term for word, term in terms.items() if word != "guarded"},
            )
        )
        absolute = self._absolute(moments, wall, here)
        terms["requires"] = frozenset(terms["requires"])
        job = Job(name=name, at=self._moment(session), needs=needs, **absolute, **terms)
        if again:
            self.model.again(job)
        else:
            self.model.publish(job)
        jobs = self.model.jobs
        ended = tuple(need for need in needs if jobs[need].state in core.UNSUCCESSFUL)
        assert isinstance(published, task_outcomes.Published), published
        due = (name, self._state(job), ended, GATE.name if self.model.kept(job) else "")
        assert (published.task, published.state, published.ended, published.guard) == due
        self.observe()

    def _state(self, job: Job) -> str:
        return "blocked" if self.model.kept(job) else job.state

    def _moment(self, session: str) -> float:
        """A publisher keeps its own order, though its clock is set back."""
        self.moments[session] = max(self.clock.wall(), self.moments.get(session, 0.0) + 0.000_001)
        return self.moments[session]

    def publish_again(self, data: st.DataObject) -> None:
        task, session = self._task(data), self._worker(data)
        client = self.clients[session]
        self._moment(session)
        assert isinstance(client.run(client.tasks.publish(task, "other")), task_outcomes.TaskExists)
        self.observe()

    # Changes of the plan.

    def edit(self, data: st.DataObject) -> None:
        job, client = self.model.jobs[self._task(data)], self.clients[self._worker(data)]
        wanted = {word: data.draw(TERMS[word], word) for word in ("priority", "requires")}
        label: Terms = {"add_labels": ["edited"]} if data.draw(st.booleans(), "label") else {}
        got = client.run(client.tasks.edit(job.name, **wanted, **label))
        wanted["requires"] = frozenset(wanted["requires"])
        if self._can_be_edited(got, job):
            assert isinstance(got, task_outcomes.TaskEdited), got
            before = {"priority": job.priority, "requires": job.requires}
            changed = {word for word in wanted if wanted[word] != before[word]}
            assert got.changed.keys() - {"labels", "needs"} == changed
            if got.changed:
                self.model.edit(job, **wanted)
        self.observe()

    def edit_terms(self, data: st.DataObject) -> None:
        """Its guard and its times, all of them."""
        job, client = self.model.jobs[self._task(data)], self.clients[self._worker(data)]
        wall, here = self.clock.wall(), self.now
        guarded = data.draw(TERMS["guarded"], "guarded")
        moments = self._moments(data.draw(SOON, "not_before"), data.draw(LATER, "deadline"))
        guards = [GATE.name] if guarded else []
        got: Any = client.run(client.tasks.edit(job.name, guard=guards, **moments))
        if self._can_be_edited(got, job) and got.changed:
            self.model.edit_terms(job, guarded=guarded, **self._absolute(moments, wall, here))
            now = got.state  # a claim notices a closed gate, a check a deadline
            late = now == "dead" and self.model.too_late(job)
            assert late or now in (job.state, self._state(job)), (got, job)
        self.observe()

    def _moments(self, not_before: float | None, deadline: float | None) -> Terms:
        if (deadline or 0.0) <= (not_before or 0.0):  # refused by itself
            deadline = None
        if deadline is not None and not self.moves:
            deadline *= 1000
        return {"not_before": not_before, "deadline": deadline}

    def _absolute(self, moments: Terms, wall: float, here: float) -> Terms:
        """The moments by the clock on the wall, the deadline by that of the engine."""
        found = {key: None if span is None else wall + span for key, span in moments.items()}
        if moments["deadline"] is not None:
            found["deadline"] = here + moments["deadline"] if self.moves else NEVER
        return found

    def edit_needs(self, data: st.DataObject) -> None:
        job, client = self.model.jobs[self._task(data)], self.clients[self._worker(data)]
        others = sorted(name for name in self.model.jobs if name != job.name)
        names = st.lists(st.sampled_from(others or [""]), max_size=2, unique=True)
        if not others:
            return
        meant = self.model.standing(job, job.needs)
        if data.draw(st.booleans(), "all"):
            needs = tuple(data.draw(names, "needs"))
            terms: Terms = {"needs": needs}
        else:
            more = tuple(data.draw(names, "more"))
            less = (
                ()
                if not job.needs
                else tuple(data.draw(st.lists(st.sampled_from(job.needs), max_size=1)))
            )
            more = tuple(name for name in more if name not in less)
            if not more and not less:
                return
            terms = {"add_needs": more, "remove_needs": less}
            kept = tuple(name for name in job.needs if name not in less)
            needs = tuple(dict.fromkeys((*kept, *more)))
            if needs != job.needs:
                needs = tuple(n for n in needs if n in meant or n not in job.needs)
        refused = job.state in ("blocked", "pending") and self.model.leads_back(job, needs)
        if refused and needs != job.needs:
            with pytest.raises(BadInput, match="would wait for itself"):
                client.run(client.tasks.edit(job.name, **terms))
            self.observe()
            return
        got = client.run(client.tasks.edit(job.name, **terms))
        if self._can_be_edited(got, job) and needs != job.needs:
            self.model.set_needs(job, needs)
            now = getattr(got, "state", "")  # a claim notices a closed gate, a check a deadline
            late = now == "dead" and self.model.too_late(job)
            assert late or now in (job.state, self._state(job)), (got, job)
        self.observe()

    def _can_be_edited(self, got: object, job: Job) -> bool:
        if job.state in ("blocked", "pending"):
            assert isinstance(got, task_outcomes.TaskEdited), got
            return True
        assert isinstance(got, task_outcomes.Unchanged), got
        assert got.state == job.state
        return False

    def drop(self, data: st.DataObject) -> None:
        job, client = self.model.jobs[self._task(data)], self.clients[self._worker(data)]
        got = client.run(client.tasks.drop(job.name))
        if job.state in ("blocked", "pending") and not job.attempts:
            self.model.drop(job)
        assert isinstance(
            got, task_outcomes.TasksDropped if job.state == "dropped" else task_outcomes.Unchanged
        )
        self.observe()

    def publish_ended(self, data: st.DataObject) -> None:
        """The id of a task that ended is used again, if it was not completed."""
        jobs = self.model.jobs
        over = sorted(name for name, job in jobs.items() if job.state in core.UNSUCCESSFUL)
        task = data.draw(st.sampled_from(over or sorted(jobs)), "task")
        session = self._worker(data)
        client = self.clients[session]
        if jobs[task].state not in core.UNSUCCESSFUL:
            self._moment(session)
            got = client.run(client.tasks.publish(task, again=True))
            assert isinstance(got, task_outcomes.TaskExists)
            self.observe()
            return
        others = st.sampled_from([name for name in jobs if name != task] or [""])
        needs = tuple(filter(None, data.draw(st.lists(others, max_size=2, unique=True), "needs")))
        if self.model.leads_back(jobs[task], needs):
            self._moment(session)
            with pytest.raises(BadInput, match="would wait for itself"):
                client.run(client.tasks.publish(task, needs=needs, again=True))
            self.observe()
            return
        terms = {word: data.draw(draw, word) for word, draw in TERMS.items()}
        self._publish(session, task, needs, again=True, **terms)

    def claim(self, data: st.DataObject) -> None:
        session, task = self._worker(data), self._task(data)
        client, job, ttl = self.clients[session], self.model.jobs[task], self._ttl(data)
        if not self._lives(session):
            with pytest.raises(Lapsed):
                client.run(client.tasks.claim(task, ttl=ttl))
            self.observe()
            return
        got = client.run(client.tasks.claim(task, ttl=ttl))
        if job.held is not None and not self.model.alive(job.held):
            self.model.fail(job)
        if self._begins(job):
            self._claimed(session, got, job, ttl)
        else:
            self._refused(got, job)
            self.observe()

    def _ttl(self, data: st.DataObject) -> float | None:
        ttl = data.draw(TTLS, "ttl")
        return ttl if self.moves or ttl is None else 100 * ttl

    def _begins(self, job: Job) -> bool:
        pending = job.state == "pending" and self.model.is_due(job)
        if pending and self.model.too_late(job):
            self.model.expire(job)
        return pending and job.state == "pending" and not self.model.kept(job)

    def _refused(self, got: object, job: Job) -> None:
        match got:
            case task_outcomes.Taken(holder=holder):
                assert job.held is not None
                assert holder == job.held.agent
            case task_outcomes.TaskBlocked(on=on) if on:
                assert job.state == "blocked"
                assert self.model.jobs[on].state != "complete"
            case task_outcomes.TaskBlocked(guard=guard) if guard:
                assert self.model.kept(job)
            case task_outcomes.TaskBlocked():
                assert (job.state, self.model.is_due(job)) == ("pending", False)
            case task_outcomes.NoTask(state=state):
                assert state == job.state
                assert state in ("complete", *core.UNSUCCESSFUL)
            case other:
                raise AssertionError(other)

    def _claimed(
        self, session: str, got: object, job: Job, ttl: float | None, *, last: bool = True
    ) -> None:
        assert isinstance(got, task_outcomes.Claimed), got
        agent = self.clients[session].context.identity.actor.agent
        told = (got.task, got.holder, got.data, got.attempt, got.priority, frozenset(got.requires))
        attempt = job.attempts + 1
        due = (job.name, agent, {"name": job.name}, attempt, job.priority, job.requires)
        assert told == due, (told, due)
        ends = NEVER if ttl is None or not self.moves else self.now + ttl
        held = Held(job.name, got.token or 0, agent, session, ttl, ends)
        self.model.begin(job, held)
        self.claims.append(held)
        if last:
            self.observe()

    def next(self, data: st.DataObject) -> None:
        limit = data.draw(st.sampled_from([1, 1, 3]), "limit")
        self._next(self._worker(data), data.draw(CAN, "can"), self._ttl(data), limit)

    def _next(self, session: str, can: list[str], ttl: float | None, limit: int = 1) -> Held | None:
        client = self.clients[session]
        if not self._lives(session):
            with suppress(Lapsed):
                got = client.run(client.tasks.next(can=can, ttl=ttl, limit=limit))
                assert isinstance(got, task_outcomes.NoTask)
            self.observe()
            return None
        got = client.run(client.tasks.next(can=can, ttl=ttl, limit=limit))
        several = (got, *(got.others if isinstance(got, task_outcomes.Claimed) else ()))
        assert len(several) <= limit
        # As if each was claimed right after the one before.
        return [
            self._is_best(session, each, can, ttl, last=each is several[-1]) for each in several
        ][-1]

    def _is_best(
        self, session: str, got: object, can: list[str], ttl: float | None, *, last: bool = True
    ) -> Held | None:
        """What ``next`` brought is the best task at this moment, or there is none."""
        client = self.clients[session]
        best = [job for job in self.model.ready(can) if not self.model.too_late(job)][:1]
        lost = {job.name for job in self.model.lost()}
        if isinstance(got, task_outcomes.Claimed) and got.task in lost:
            assert not best or not client.store.capabilities.transacts, "the ready come first"
            self.model.fail(self.model.jobs[got.task])
            best = [job for job in self.model.ready(can) if not self.model.too_late(job)][:1]
        if not best:
            assert isinstance(got, task_outcomes.NoTask), got
            self.observe()
            assert not self.model.lost(), "lost tasks are reclaimed before the answer 'nothing'"
            left = [job for job in self.model.ready(can) if not self.model.too_late(job)]
            assert not left, "and it is looked at again"
            return None
        self._claimed(session, got, best[0], ttl, last=last)
        return best[0].held

    # The ends of claims; also acts on ended ones.

    def finish(self, data: st.DataObject) -> None:
        held = [job.held for job in self.model.jobs.values() if job.held is not None]
        if held:
            self._finish(data.draw(st.sampled_from(held), "claim"), data)

    def finish_what_may_be_over(self, data: st.DataObject) -> None:
        if self.claims:
            self._finish(data.draw(st.sampled_from(self.claims), "claim"), data)

    def _finish(self, held: Held, data: st.DataObject) -> None:
        act, named = data.draw(ENDS, "act"), data.draw(st.booleans(), "named")
        after: Terms = {}
        if self._lives(held.session) and data.draw(st.booleans(), "then next"):
            after = {"then_next": True, "can": data.draw(CAN, "can"), "ttl": self._ttl(data)}
        match act:
            case "complete":
                self.complete(held, after, named=named)
            case "fail" | "give up":
                self.fail(held, after, named=named, retry=act == "fail")
            case "release":
                self.release(held, named=named)
            case "say":
                self.progress(held, named=named)
            case _:
                self.heartbeat(held, named=named)

    def _and_next(self, held: Held, got: Any, after: Terms) -> None:
        """As if ``next`` was called right after: the end of a task, then the best one."""
        if isinstance(got, task_outcomes.TaskCompleted | task_outcomes.TaskFailed) and after:
            self._is_best(held.session, got.next, after["can"], after["ttl"])
        else:
            assert getattr(got, "next", None) is None, "a refusal claims nothing"
            self.observe()

    def complete(self, held: Held, after: Terms, *, named: bool) -> None:
        job, client, token = self._speaks(held, named=named)
        got = client.run(client.tasks.complete(held.task, token=token, result=1, **after))
        if self._has_lapsed(job, held, token):
            assert isinstance(got, task_outcomes.TaskFenced), got
        elif self._is_its(job, held, token):
            free = self.model.complete(job)
            assert isinstance(got, task_outcomes.TaskCompleted), got
            assert not got.already
            assert got.unblocked == free or (self.cramped and got.unblocked <= free)
        elif job.state == "complete" and self._was_its(job, held, token):
            assert isinstance(got, task_outcomes.TaskCompleted), got
            assert got.already
        else:
            self._fenced(got, token)
        self._and_next(held, got, after)

    def fail(self, held: Held, after: Terms, *, named: bool, retry: bool) -> None:
        job, client, token = self._speaks(held, named=named)
        got = client.run(client.tasks.fail(held.task, "why", token=token, retry=retry, **after))
        if self._has_lapsed(job, held, token):
            assert isinstance(got, task_outcomes.TaskFenced), got
        elif self._is_its(job, held, token):
            self.model.fail(job, retry=retry)
            assert isinstance(got, task_outcomes.TaskFailed), got
            assert (got.state, got.attempts, got.already) == (job.state, job.attempts, False)
        elif isinstance(got, task_outcomes.TaskFailed):
            assert got.already
            assert self._was_its(job, held, token)
        else:
            self._fenced(got, token)
        self._and_next(held, got, after)

    def release(self, held: Held, *, named: bool) -> None:
        job, client, token = self._speaks(held, named=named)
        got = client.run(client.tasks.release(held.task, token=token))
        if self._has_lapsed(job, held, token):
            assert isinstance(got, task_outcomes.TaskFenced), got
        elif self._is_its(job, held, token):
            assert isinstance(got, task_outcomes.TaskReleased), got
            self.model.release(job)
        else:
            self._fenced(got, token)
        self.observe()

    def progress(self, held: Held, *, named: bool) -> None:
        """A report changes nothing else: the model knows nothing of it."""
        job, client, token = self._speaks(held, named=named)
        got = client.run(client.tasks.progress(held.task, 0.5, "half", token=token))
        own = job.held if self._is_its(job, held, token) else None
        if own is not None and self.model.alive(own):
            assert isinstance(got, task_outcomes.ProgressNoted), got
        elif own is not None:
            assert isinstance(got, task_outcomes.TaskFenced)
        else:
            self._fenced(got, token)
        self.observe()

    def heartbeat(self, held: Held, *, named: bool) -> None:
        job, client, token = self._speaks(held, named=named)
        got = client.run(client.tasks.heartbeat(held.task, token=token))
        own = job.held if self._is_its(job, held, token) else None
        if own is not None and self.model.alive(own):
            assert isinstance(got, task_outcomes.TaskExtended), got
            if own.ttl is None:
                self._live(own.session, self.clients[own.session].context.identity.session_ttl)
            elif self.moves:
                own.ends = self.now + own.ttl
        elif own is not None:
            assert isinstance(got, task_outcomes.TaskFenced)
        else:
            self._fenced(got, token)
        self.observe()

    def _speaks(self, held: Held, *, named: bool) -> tuple[Job, Client, int | None]:
        return (
            self.model.jobs[held.task],
            self.clients[held.session],
            held.token if named else None,
        )

    def _is_its(self, job: Job, held: Held, token: int | None) -> bool:
        return self._speaks_for(job.held, held, token)

    def _has_lapsed(self, job: Job, held: Held, token: int | None) -> bool:
        own = job.held
        return own is not None and self._is_its(job, held, token) and not self.model.alive(own)

    def _was_its(self, job: Job, held: Held, token: int | None) -> bool:
        return self._speaks_for(job.ended, held, token)

    def _speaks_for(self, claim: Held | None, held: Held, token: int | None) -> bool:
        if claim is None:
            return False
        if token is None:
            return claim.session == held.session
        return (claim.token, claim.agent) == (token, held.agent)

    def _fenced(self, got: object, token: int | None) -> None:
        """Without a token an earlier claim is not known without limit."""
        known = (
            (task_outcomes.TaskFenced, task_outcomes.TaskNotOwner)
            if token is None
            else task_outcomes.TaskFenced
        )
        assert isinstance(got, known), got

    def meddle(self, data: st.DataObject) -> None:
        """An agent that never had it, with a token that no claim has yet."""
        task, client = self._task(data), self.clients[self._worker(data)]
        for act in (client.tasks.complete, client.tasks.release, client.tasks.fail):
            assert isinstance(client.run(act(task, token=2**53 - 1)), task_outcomes.TaskNotOwner)
        self.observe()

    def cancel(self, data: st.DataObject) -> None:
        task, client = self._task(data), self.clients[self._worker(data)]
        job = self.model.jobs[task]
        got = client.run(client.tasks.cancel(task))
        if job.state in ("blocked", "pending", "running"):
            assert got == task_outcomes.TaskCancelled(task=task)
            self.model.cancel(job)
        elif job.cancelled:
            assert got == task_outcomes.TaskCancelled(task=task, already=True)
        else:
            assert isinstance(got, task_outcomes.Unchanged)
            assert got.state == job.state
        self.observe()

    def send_back(self, data: st.DataObject) -> None:
        over = [job.name for job in self.model.jobs.values() if job.state in ("failed", "dead")]
        task = data.draw(st.sampled_from(over or sorted(self.model.jobs)), "task")
        job, client = self.model.jobs[task], self.clients[self._worker(data)]
        got = client.run(client.tasks.retry(task))
        if job.state in ("failed", "dead"):
            self.model.retry(job)
            assert got == task_outcomes.Retried(task=task, state=self._state(job))  # type: ignore[arg-type]
        else:
            assert isinstance(got, task_outcomes.Unchanged)
            assert got.state in (job.state, self._state(job)), "a claim notices a closed gate"
        self.observe()

    # What happens by itself.

    def make_progress(self, data: st.DataObject) -> None:
        client = self.clients[self._worker(data)]
        client.run(client.context.tasks.housekeeping.step(client.context.me().actor))
        self.observe()
        assert not self.model.lost(), "one step is enough for a few"

    def use_the_gate(self, data: st.DataObject) -> None:
        """Close the gate of guarded tasks, or open it: then those that it kept are ready."""
        locks = self.keeper.locks
        closes = not self.model.closed
        self.keeper.run(locks.acquire("gate") if closes else locks.release("gate"))
        self.model.closed = closes
        self.observe()

    def forget(self, data: st.DataObject) -> None:
        """Delete tasks that ended long ago, or are too many; their ids may be used again."""
        keep = RetentionLimits(
            age=data.draw(AGES, "age"), count=data.draw(st.sampled_from([0, 2, 100]), "count")
        )
        client = self.clients[self._worker(data)]
        client.run(TaskRetention(client.runner, keep).run(Actor()))
        truths = task_truths.look(self.under)
        gone = [job for job in self.model.jobs.values() if job.name not in truths.statuses]
        for job in sorted(gone, key=lambda job: -job.number):  # a task goes before its needs
            self.model.forget(job)
        self.claims = [held for held in self.claims if held.task in self.model.jobs]
        self.observe()
        complete = [job.name for job in self.model.jobs.values() if job.state == "complete"]
        assert keep.count or truths.todo.issuperset(complete), "none is kept"

    def advance(self, data: st.DataObject) -> None:
        self._advance(data.draw(st.integers(1, 3), "seconds"))

    def set_the_clock(self, data: st.DataObject) -> None:
        """The wall clock is set; no claim, rest or deadline may notice."""
        self.clock.jump_wall(data.draw(st.sampled_from([-3600.0, 3600.0]), "jump"))
        self.observe()

    def _advance(self, seconds: int) -> None:
        for _ in range(seconds):
            for session in self.clients:
                if session not in self.frozen and self._lives(session):
                    self._beat(session)
            if isinstance(self.store, FaultyStore):
                self.store.deliver()
            self.clock.advance(1)
        self.observe()

    # What must be true.

    def observe(self) -> None:
        truths = task_truths.look(self.under)
        assert task_truths.complaints(truths) == []
        assert truths.statuses.keys() == self.model.jobs.keys()
        for name, job in self.model.jobs.items():
            self._follow(job, truths.statuses[name])
            status, held = truths.statuses[name], job.held
            stands = "pending" if status.guard else status.state
            assert (stands, status.attempts) == (job.state, job.attempts), job
            assert not status.guard or self.model.kept(job), "nothing else keeps it"
            if held is not None:
                owner = (
                    truths.tokens[name],
                    truths.owners[name].agent,
                    truths.owners[name].session,
                )
                assert owner == (held.token, held.agent, held.session)

    def _follow(self, job: Job, status: core.TaskStatus) -> None:
        """A task may have been reclaimed or have expired without an act."""
        lost = job.held is not None and not self.model.alive(job.held)
        if lost and status.state != "running":
            self.model.fail(job)
        job.early = job.early and (bool(status.due) or not self.model.is_due(job))
        late = job.state == "pending" and self.model.too_late(job) and self.model.is_due(job)
        if late and status.state == "dead":
            self.model.expire(job)

    def teardown(self) -> None:
        """After any history: each task that can be done is done, once."""
        self.frozen.update(self.clients)
        if self.model.closed:
            self.keeper.run(self.keeper.locks.release("gate"))
            self.model.closed = False
        appointments = [job.not_before or 0.0 for job in self.model.jobs.values()]
        self.clock.jump_wall(max([0.0, *(1 + at - self.clock.wall() for at in appointments)]))
        last = self._join(6.5)
        for _ in range(12 * (len(self.model.jobs) + 1)):
            held = self._next(last, list(CAPABILITIES), None)
            if isinstance(held, Held):
                self.complete(held, {}, named=True)
            elif not self._waits():
                break
            else:
                self._advance(1)
        assert not self._waits()
        done = task_truths.completions(self.under)
        complete = [job.name for job in self.model.jobs.values() if job.state == "complete"]
        assert sorted(done) == sorted([*complete, *self.model.done]), "each once"
        complaints = audit(self.under)
        assert complaints == [], complaints
        self.close()

    def _waits(self) -> bool:
        """Whether anything will still happen by itself."""
        jobs = self.model.jobs.values()
        coming = [job for job in jobs if job.state in ("pending", "running")]
        return any(job.rests_until < NEVER for job in coming if self.moves or not job.held)

    def close(self) -> None:
        """Nothing is left to do with a store in memory."""


class CrampedMachine(TaskMachine):
    """On a store whose commits have room for little, so that more is left to do."""

    cramped = True

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=36)
        return memory, memory


class FaultyMachine(TaskMachine):
    """Across a bad network."""

    @initialize(seed=st.integers(0, 2**16))
    def sow(self, seed: int) -> None:
        assert isinstance(self.store, FaultyStore)
        self.store.sow(seed)

    def make(self) -> tuple[Store, Store]:
        return self.stage.store, across_a_bad_network(self.stage.store)


class CrampedFaultyMachine(FaultyMachine):
    """Both."""

    cramped = True

    def make(self) -> tuple[Store, Store]:
        memory = self.stage.store
        memory.capabilities = replace(memory.capabilities, max_operations=36)
        return super().make()


class EngineMachine(TaskMachine):
    """On an engine with a clock of its own: nothing expires during the run."""

    moves = False

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        super().__init__()

    def make(self) -> tuple[Store, Store]:
        store = open_store(self._place())
        return store, store

    def close(self) -> None:
        with closing(self.under):
            pass


MACHINES = [TaskMachine, CrampedMachine, FaultyMachine, CrampedFaultyMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_is_kept(machine: type[TaskMachine]) -> None:
    run(machine, bounds(15))


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_is_kept_for_long(machine: type[TaskMachine]) -> None:
    run(machine, bounds(2000, 60, shrink=True))


def test_every_promise_is_kept_on_every_engine(places: Callable[[], str]) -> None:
    run(lambda: EngineMachine(places), bounds(4, 25))


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_every_promise_is_kept_on_every_engine_for_long(places: Callable[[], str]) -> None:
    run(lambda: EngineMachine(places), bounds(200, 50, shrink=True))
