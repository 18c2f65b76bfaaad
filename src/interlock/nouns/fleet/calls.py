"""The calls of a client that concern the whole store, and its nouns as attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from interlock import registry
from interlock.core import validate
from interlock.errors import BadInput
from interlock.runtime.calls import Calls, D, call, opened
from interlock.runtime.given import Given, proofs
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.client_context import Context, Moment
    from interlock.nouns.agents.calls import AgentCalls
    from interlock.nouns.branches.calls import BranchCalls
    from interlock.nouns.budgets.calls import BudgetCalls
    from interlock.nouns.fleet.metrics import MetricsWritten
    from interlock.nouns.fleet.noun import Diagnosis
    from interlock.nouns.grants.calls import LockCalls
    from interlock.nouns.grants.semaphore_calls import SemaphoreCalls
    from interlock.nouns.grants.several_calls import SeveralCalls
    from interlock.nouns.guards.calls import GuardCalls
    from interlock.nouns.merges.calls import MergeCalls
    from interlock.nouns.messages.calls import MessageCalls
    from interlock.nouns.pipelines.calls import PipelineCalls
    from interlock.nouns.record.calls import RecordCalls
    from interlock.nouns.requests.calls import QuarantineCalls, RequestCalls
    from interlock.nouns.reservations.calls import ReservationCalls
    from interlock.nouns.schedules.calls import ScheduleCalls
    from interlock.nouns.swarms.calls import KeyCalls, SwarmCalls
    from interlock.nouns.tasks.calls import TaskCalls
    from interlock.runtime.health import Health
    from interlock.runtime.housekeeping import Maintained
    from interlock.runtime.monitoring import Metrics
    from interlock.runtime.noun import Noun
    from interlock.runtime.observe import Counters, Observing
    from interlock.runtime.why import Why


class FleetCalls(Calls[D]):
    """The whole store, and its nouns: ``fleet.locks`` is imported when it is first used."""

    if TYPE_CHECKING:
        agents: AgentCalls[D]
        branches: BranchCalls[D]
        budgets: BudgetCalls[D]
        guards: GuardCalls[D]
        keys: KeyCalls[D]
        locks: LockCalls[D]
        merges: MergeCalls[D]
        messages: MessageCalls[D]
        pipelines: PipelineCalls[D]
        quarantine: QuarantineCalls[D]
        record: RecordCalls[D]
        requests: RequestCalls[D]
        reservations: ReservationCalls[D]
        schedules: ScheduleCalls[D]
        semaphores: SemaphoreCalls[D]
        several: SeveralCalls[D]
        swarms: SwarmCalls[D]
        tasks: TaskCalls[D]

    else:

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the calls of any noun
            if name.startswith("_") or (noun := registry.with_attribute(name)) is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            calls = self.__dict__[name] = self._calls(noun)
            return calls

    def _calls(self, noun: Noun) -> Any:  # noqa: ANN401
        """The calls of a noun, for this client."""
        calls = registry.load(noun.calls)(self.context)
        calls.given = self.given
        return calls

    @classmethod
    def relying(cls, context: Context, given: Given) -> Self:
        """The calls of one request, each of which relies on these grants."""
        fleet = cls(context)
        fleet.given = proofs(given)
        return fleet

    @call
    def maintain(
        self, *, guards: bool = False, timeout: float | str | None = None
    ) -> Op[Maintained]:
        """One bounded pass that releases stale locks and claims and deletes expired data.

        With ``guards`` it also looks at branches, files and commands, for things that wait for
        guards which this host allows, and goes on with all of it until the ``timeout`` is over:
        without a limit by default, one round with 0.
        """
        if not guards:
            from interlock.nouns.requests.housekeeping import after_pass
            from interlock.runtime.housekeeping import HousekeepingPass

            if timeout is not None:
                raise BadInput("a time limit is for guards; add --guards (guards=True)")
            work = HousekeepingPass(self.context.runner, self.context.settings)
            done = yield from work.run(self.context.identity.actor)
            return (yield from after_pass(self.context, done))
        from interlock.nouns.guards.maintenance import GuardMaintenance

        return (yield from GuardMaintenance(self.context, timeout).run())

    @call
    def health(
        self,
        *,
        dead_after: float | str = 300.0,
        waiting: float | str = 3600.0,
        held: float | str = 3600.0,
        stuck: float | str = 3600.0,
    ) -> Op[Health]:
        """The problems that need attention; it only reads.

        Sessions: those that expired more than ``dead_after`` ago and still exist, those that were
        deleted within a day and not acknowledged, and agents that have not reported for three times
        the interval that they announced.  Grants: stale ones, those ``held`` for longer, agents
        that are ``waiting`` for longer, and waits that can never end.  Tasks: those that run for
        longer than ``stuck`` or past their deadline, whose worker is lost, that wait for a worker
        for longer than ``waiting``, that no agent here is able to do, that are ready while no
        session works, that are dead or failed, that a dead or failed task blocks, and unfinished
        changes.  Messages: those that have waited for longer than ``waiting`` for an absent
        recipient, inboxes that are nearly full, paused senders, and open decisions.  Pipelines:
        those that failed, and those that a guard has kept for longer than ``waiting``.  Requests:
        envelopes that wait in the outbox, peers to which nothing is sent, requests that have waited
        for longer than ``waiting``, refused messages, and queues above 1,000 and 10,000.  The
        record, if it cannot be sealed.
        """
        from interlock.runtime.health import HealthCheck, Patience
        from interlock.runtime.reads import fresh_once

        patience = Patience(
            dead_after=validate.duration(dead_after, "dead-after"),
            waiting=validate.duration(waiting, "waiting"),
            held=validate.duration(held, "held"),
            stuck=validate.duration(stuck, "stuck"),
        )
        check = HealthCheck(self.context.runner, self.context.settings, patience)
        return fresh_once(check.run())

    @call
    def check(self) -> Op[Diagnosis]:
        """The findings of ``interlock doctor`` about this store: each is ok, a warning, or bad.

        It reads everything and tries one unrecorded write, so it may take a while.  The result is
        true if nothing is bad.  A store that does not answer is a finding, not an exception.
        """
        from interlock.nouns.fleet.doctor import diagnose  # rarely needed

        return diagnose(self.context)

    @opened
    def observe(
        self, *, nouns: Iterable[str] | None = None, after: int | None = None
    ) -> Op[Observing]:
        """Every event of the record, from now on or ``after`` a revision: iterate, or ``take``.

        ``nouns`` selects the events of some nouns: ``message``, ``query``, ``task``.  An event
        called ``missed`` reports that events up to its revision are lost.
        """
        from interlock.runtime import observe

        observing = observe.Observing(observe.nouns(nouns), self.context.runner.clock)
        yield from observing.open(after)
        return observing

    @call
    def counters(self, *, since: Moment = "1m") -> Op[Counters]:
        """How many agents are registered and questions are open, and totals since a moment.

        The totals count messages sent and received, questions answered or timed out, and refused
        senders.  ``since`` is a duration back from now, or a time.  The record is the source.
        """
        from interlock.runtime import observe

        now = self.context.runner.clock.wall()
        return observe.counters(validate.moment(since, now, "'since'"))

    @call
    def metrics(
        self, *, file: str | None = None, verify: bool = False
    ) -> Op[Metrics | MetricsWritten]:
        """The state of the store as numbers for a monitor, and counters of its record.

        A ``file`` is replaced with them as text for the textfile collector of Prometheus, and its
        counters go on where the last run ended; without one, they count the newest 20,000 entries.
        ``verify`` judges the whole record first, as ``record.verify`` does.
        """
        from interlock.nouns.fleet.metrics import read_metrics

        return read_metrics(self.context, file=file, verify=validate.flag(verify, "verify"))

    @call
    def why(self, thing: str) -> Op[Why]:
        """Explain what blocks a thing, since when, and who can clear it.

        ``task/ID``, ``lock/NAME``, ``sem/NAME``, ``pipeline/ID``, ``guard/NAME``, ``agent/NAME``,
        ``query/ID``, ``message/ID``, ``request/ID`` or ``schedule/NAME``; a plain name is that of
        a task, a pipeline, a semaphore, a guard or a schedule, if there is one, else of a lock that
        is used, else of an agent, else of a lock.
        """
        from interlock.runtime.reads import fresh_once
        from interlock.runtime.why import explain

        return fresh_once(explain(self.context, thing))
