"""Starts, advances and cancels pipelines on a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.decision import Decision, Write
from interlock.core.safe_text import foreign
from interlock.core.thing_names import key_of
from interlock.errors import BadInput, StoreDamaged
from interlock.nouns.grants.pool import Pool
from interlock.nouns.grants.pool_change import PoolChanges, PoolFacts
from interlock.nouns.grants.pool_reader import PoolReader
from interlock.nouns.grants.request import Demand
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.gates import (
    Gate,
    Hindrance,
    hindrance_of,
    merged,
    stop_waiting,
    wait_for,
)
from interlock.nouns.guards.guard import Guard, GuardResult
from interlock.nouns.guards.observations import (
    Observed,
    stored_observations,
    with_observations,
)
from interlock.nouns.guards.service import check_inside, observed_facts
from interlock.nouns.pipelines import holding, phase_tasks, rules
from interlock.nouns.pipelines import pipeline as core
from interlock.nouns.pipelines.definition import (
    PhaseDefinition,
    PipelineDefinition,
)
from interlock.nouns.pipelines.pipeline import PhaseGrant, PipelineRun
from interlock.nouns.pipelines.pipeline_reader import (
    decode_current,
    decode_definition,
    decode_run,
    definition_inside,
)
from interlock.nouns.pipelines.rules import GiveUp, PhaseStep, RunChange, Stage, Stay
from interlock.nouns.tasks.rules import OPEN, cancel_open
from interlock.nouns.tasks.task import FRESH
from interlock.nouns.tasks.task_change import TaskChanges
from interlock.nouns.tasks.task_reader import TaskReader, decode_status
from interlock.runtime.attempt import DecideOp, ReadOp, Unchecked
from interlock.runtime.gates import GatedEntry
from interlock.runtime.identity import Actor
from interlock.runtime.reads import KEYS_AT_ONCE, outside
from interlock.runtime.runner import Runner
from interlock.settings import Settings
from interlock.steps import Op, Read
from interlock.store import Item


class PipelineService:
    """Every operation on pipelines, as generators for a driver.

    ``moment`` returns times for tasks that are published, which keep their order.
    """

    def __init__(self, runner: Runner, settings: Settings, moment: Callable[[int], float]) -> None:
        self._runner = runner
        self._settings = settings
        self._moment = moment

    # Moves.

    def start(
        self, actor: Actor, name: str, pipeline: str, trace: str = ""
    ) -> Op[core.StartOutcome]:
        """Start a pipeline with the current definition of this name."""
        definition = yield from self._current(name)
        if definition is None:
            return core.UnknownDefinition(unknown=(name,))
        for phase in definition.phases:
            for task in phase.tasks:
                validate.task_id(phase_tasks.task_id(pipeline, task.id))
        pre = definition.phases[0].pre
        base = yield from self._runner.base()

        def begin(observed: Observed) -> Op[core.StartOutcome]:
            starting = partial(
                self._starting, actor, name, pipeline, base=base, observed=observed, trace=trace
            )
            done = yield from self._runner.change(starting, actor)
            return (yield from self._with_cycle(done.outcome))  # type: ignore[no-any-return]

        guards = [pre] if pre else []
        return (yield from with_observations(self._runner, guards, self._runner.clock, begin))

    def _starting(
        self, actor: Actor, name: str, pipeline: str, *, base: int, observed: Observed, trace: str
    ) -> DecideOp[Any]:
        own, current = keys.pipeline(pipeline), keys.definition(name)
        items = (yield (own, current)).items
        if (run := decode_run(items[own])) is not None:
            exists = core.PipelineExists(
                pipeline=pipeline, definition=run.definition, state=run.state, phase=run.phase
            )
            return Decision(outcome=exists)
        if (known := decode_current(items[current])) is None:
            return Decision(outcome=core.UnknownDefinition(unknown=(name,)))
        definition = yield from definition_inside(name, known.digest)
        now = self._runner.clock.wall()
        fresh = rules.fresh(name, known.digest, actor.agent, now, trace)
        change = self._change(pipeline, fresh, actor.agent, now, new=True)
        return (yield from self._step(change, definition, base, observed, explicit=True))

    def advance(
        self, actor: Actor, pipeline: str, phase: str | None = None, *, explicit: bool = True
    ) -> Op[core.AdvanceOutcome]:
        """Take the next step, from the phase that is expected; else from the present one.

        ``explicit`` says that an agent asks for it: this host looks at the outside, and a failure
        counts for a phase with retries.
        """
        own = keys.pipeline(pipeline)
        run = decode_run((yield Read(own))[own])
        if run is None:
            return core.UnknownPipeline(unknown=(pipeline,))
        definition = yield from self._definition(run)
        expected = run.phase if phase is None else phase
        names = [each.name for each in definition.phases]
        if expected and expected not in names:
            raise BadInput(
                f"pipeline {pipeline!r} has no phase {expected!r}; its phases: {', '.join(names)}"
            )
        base = yield from self._runner.base()

        def go_on(observed: Observed) -> Op[core.AdvanceOutcome]:
            advancing = partial(
                self.advancing, actor.agent, pipeline, base, expected, observed, explicit=explicit
            )
            done = yield from self._runner.change(advancing, actor)
            return (yield from self._with_cycle(done.outcome))  # type: ignore[no-any-return]

        looks = explicit and rules.overtaken(pipeline, run, expected) is None
        guards = _guards(rules.next_step(run, definition)) if looks else []
        return (yield from with_observations(self._runner, guards, self._runner.clock, go_on))

    def _with_cycle(self, outcome: Any) -> Op[Any]:  # noqa: ANN401 - any outcome
        """The outcome of a pipeline that waits, with the things that wait for each other."""
        if not isinstance(outcome, core.PipelineBlocked | core.PipelineStarted) or not outcome.leaf:
            return outcome
        from interlock.nouns.guards.gate_cycles import cycle_from

        return replace(outcome, cycle=(yield from cycle_from(f"pipeline/{outcome.pipeline}")))

    def advancing(
        self,
        by: str,
        pipeline: str,
        base: int,
        expected: str | None = None,
        observed: Observed | None = None,
        *,
        explicit: bool = False,
    ) -> DecideOp[Any]:
        """One attempt to take the next step; None as ``expected`` takes the phase as it is."""
        own = keys.pipeline(pipeline)
        run = decode_run((yield (own,)).items[own])
        if run is None:
            return Decision(outcome=core.UnknownPipeline(unknown=(pipeline,)))
        if (refused := rules.overtaken(pipeline, run, expected)) is not None:
            return Decision(outcome=refused)
        definition = yield from definition_inside(run.definition, run.digest)
        change = self._change(pipeline, run, by, self._runner.clock.wall())
        return (yield from self._step(change, definition, base, observed or {}, explicit=explicit))

    def cancel(self, actor: Actor, pipeline: str, reason: str) -> Op[core.CancelOutcome]:
        """End a pipeline."""
        base = yield from self._runner.base()
        done = yield from self._runner.change(
            lambda: self._cancelling(actor.agent, pipeline, base, reason), actor
        )
        return done.outcome  # type: ignore[no-any-return]

    def _cancelling(self, by: str, pipeline: str, base: int, reason: str) -> DecideOp[Any]:
        own = keys.pipeline(pipeline)
        run = decode_run((yield (own,)).items[own])
        if run is None:
            return Decision(outcome=core.UnknownPipeline(unknown=(pipeline,)))
        if run.state == "cancelled":
            already = core.PipelineCancelled(
                pipeline=pipeline, phase=run.phase, reason=run.reason, already=True
            )
            return Decision(outcome=already)
        if (refused := rules.overtaken(pipeline, run, None)) is not None:
            return Decision(outcome=refused)
        change = self._change(pipeline, run, by, self._runner.clock.wall())
        said = f"pipeline {foreign(pipeline)} was cancelled" + (
            f": {foreign(reason)}" if reason else ""
        )
        tasks = yield from self._cancel_tasks(change, base, said)
        decision = rules.cancel(change, reason, tasks.outcome)
        return (yield from self._end(change, base, decision, [tasks]))

    def closing(self, pipeline: str, run: PipelineRun, base: int) -> DecideOp[Any]:
        """Cancel further tasks of a pipeline that was cancelled."""
        change = self._change(pipeline, run, run.by, self._runner.clock.wall())
        said = f"pipeline {foreign(pipeline)} was cancelled" + (
            f": {foreign(run.reason)}" if run.reason else ""
        )
        tasks = yield from self._cancel_tasks(change, base, said)
        return merged(rules.close(pipeline, run, tasks.outcome), [tasks])

    def _cancel_tasks(
        self, change: RunChange, base: int, reason: str
    ) -> DecideOp[rules.CancelledTasks]:
        """Cancel the open tasks of the phase, as many as fit into the commit."""
        try:
            definition = yield from definition_inside(change.run.definition, change.run.digest)
        except StoreDamaged:  # a pipeline can be cancelled all the same
            return Decision(outcome=rules.CancelledTasks())
        phase = rules.next_step(change.run, definition).leaving
        ids = (
            [phase_tasks.task_id(change.pipeline, task.id) for task in phase.tasks] if phase else []
        )
        found: dict[str, Item | None] = {}
        for start in range(0, len(ids), KEYS_AT_ONCE):
            some = tuple([keys.status(id_) for id_ in ids[start : start + KEYS_AT_ONCE]])
            found |= (yield Unchecked(some)).items
        states = {id_: decode_status(found[keys.status(id_)]) for id_ in ids}
        left = [id_ for id_, status in states.items() if status and status.state in OPEN]
        if not left:
            return Decision(outcome=rules.CancelledTasks())
        reader = TaskReader(self._runner, base)
        most = phase_tasks.most_cancelled(reader.facts, len(change.run.grants))
        tasks = rules.CancelledTasks(open=len(left), left=len(left) > most)

        def decide(changes: TaskChanges) -> Decision[rules.CancelledTasks]:
            cancel_open(changes, left[:most], change.by, reason)
            return changes.decision(tasks, "pipeline.cancel", f"pipeline/{change.pipeline}")

        return (yield from reader.change(decide))

    # One step.

    def _change(
        self, pipeline: str, run: PipelineRun, by: str, now: float, *, new: bool = False
    ) -> RunChange:
        return RunChange(
            pipeline=pipeline,
            run=run,
            by=by,
            now=now,
            new=new,
            min_ttl=self._runner.capabilities.min_ttl,
        )

    def _step(
        self,
        change: RunChange,
        definition: PipelineDefinition,
        base: int,
        observed: Observed,
        *,
        explicit: bool,
    ) -> DecideOp[Any]:
        """Take the next step, or say what prevents it."""
        step = rules.next_step(change.run, definition)
        results, found = yield from self._judge(change, step, base, observed, explicit=explicit)
        warned = tuple([each.guard for each in results if each.result != "passed"])
        change = replace(change, observed=observed_facts(results))
        if found is None:
            change = replace(change, warned=warned)
            entered = yield from self._enter(change, definition, step, base)
            if isinstance(entered, Decision):
                return entered
            found = entered
        if isinstance(found, GiveUp):
            return (yield from self._end(change, base, rules.fail(change, found)))
        return (yield from self._stay(replace(change, warned=()), found, base))

    def _stay(self, change: RunChange, why: Stay, base: int) -> DecideOp[Any]:
        """The pipeline waits for the facts that keep it."""
        decision, at = rules.stay(change, why), why.hindrance
        thing = f"pipeline/{change.pipeline}"
        gate = Gate(
            facts=(), guard=at.guard, leaf=at.leaf, reason=at.stored or at.reason, since=change.now
        )
        waiting = yield from wait_for(self._runner, base, thing, at.facts, gate)
        if waiting.changes and not decision.verb:  # it waits for another fact of the same leaf
            decision = replace(decision, verb="pipeline.block", thing=thing)
        return merged(decision, [waiting])

    def _end(
        self,
        change: RunChange,
        base: int,
        decision: Decision[Any],
        parts: Sequence[Decision[Any]] = (),
    ) -> DecideOp[Any]:
        """End the pipeline: it releases what it holds, and waits for nothing."""
        released = yield from self._release(change, base)
        return (yield from self._moved(change, decision, [released, *parts]))

    def _moved(
        self, change: RunChange, decision: Decision[Any], parts: list[Decision[Any]]
    ) -> DecideOp[Any]:
        """The decision of a pipeline that has moved on: it waits for nothing of its last phase."""
        still = yield from stop_waiting(f"pipeline/{change.pipeline}")
        return merged(decision, [*parts, still])

    def _judge(
        self,
        change: RunChange,
        step: PhaseStep,
        base: int,
        observed: Observed,
        *,
        explicit: bool,
    ) -> ReadOp[tuple[list[GuardResult], Stay | GiveUp | None]]:
        """Check the tasks of the phase, its guard and that of the next one, up to a failure."""
        results: list[GuardResult] = []
        checks: list[tuple[Stage, PhaseDefinition, Guard]] = []
        if (leaving := step.leaving) is not None:
            if leaving.tasks:
                guard, result = yield from self._check_tasks(change, leaving, base)
                if not result.allowed:
                    return results, Stay(hindrance=hindrance_of(guard, result))
            if leaving.post is not None:
                checks.append(("post", leaving, leaving.post))
        if (entering := step.entering) is not None and entering.pre is not None:
            checks.append(("pre", entering, entering.pre))
        for stage, phase, guard in checks:
            rests = yield from self._rests(change, stage, guard)
            result = (yield from check_inside([guard], observed, change.now))[0]
            results.append(result)
            found = rules.judge(change.run, phase, stage, result, rests=rests, explicit=explicit)
            if found is not None:
                return results, found
        return results, None

    def _rests(self, change: RunChange, stage: Stage, guard: Guard) -> ReadOp[bool]:
        """Whether the delay of a retry is not over; the commit checks that."""
        counted = change.run.attempt if stage == "post" else change.run.entering
        if not counted or not isinstance(guard.on_failure, g.RetryAction):
            return False
        key = keys.pipeline_rest(change.pipeline, stage)
        return (yield (key,)).items[key] is not None

    def _check_tasks(
        self, change: RunChange, phase: PhaseDefinition, base: int
    ) -> ReadOp[tuple[Guard, GuardResult]]:
        """Whether the tasks of a phase are complete; the commit checks the status of each."""
        ids = [phase_tasks.task_id(change.pipeline, task.id) for task in phase.tasks]
        reader = TaskReader(self._runner, base)
        wanted = [part(id_) for id_ in ids for part in (keys.status, keys.owner)]
        for start in range(0, len(wanted), KEYS_AT_ONCE):
            reader.learn((yield tuple(wanted[start : start + KEYS_AT_ONCE])).items)
        name = f"{change.run.definition}/{phase.name}/tasks"
        guard = phase_tasks.tasks_guard(change.pipeline, name)
        statuses = {id_: reader.facts.statuses[id_] for id_ in ids}
        owners = reader.facts.claims
        return guard, phase_tasks.check_complete(
            guard, change.pipeline, statuses, owners, change.now
        )

    def _enter(
        self, change: RunChange, definition: PipelineDefinition, step: PhaseStep, base: int
    ) -> ReadOp[Decision[Any] | Stay]:
        """Exchange what the phases hold, and publish the tasks of the next one."""
        phase = step.entering
        if phase is None:
            return (yield from self._end(change, base, rules.complete(change)))
        name = f"{change.run.definition}/{phase.name}"
        pools = yield from self._exchange(change, self._demands(phase), base, f"{name}/hold")
        if isinstance(pools.outcome, Hindrance):
            return Stay(hindrance=pools.outcome)
        parts = [pools]
        if phase.tasks:
            published = yield from self._publish(change, definition, phase, base, f"{name}/tasks")
            if published.outcome is not None:
                return Stay(hindrance=published.outcome)
            parts.append(published)
        decision = rules.enter(change, phase, pools.outcome)
        moved = yield from self._moved(change, decision, parts)
        if not phase.tasks:
            return moved
        return merged(moved, [self._await_tasks(change, phase, f"{name}/tasks")])

    def _await_tasks(self, change: RunChange, phase: PhaseDefinition, guard: str) -> Decision[None]:
        """Make the pipeline wait for the tasks that the same decision publishes."""
        last = phase_tasks.task_id(change.pipeline, phase.tasks[-1].id)
        fact, thing = f"task/{last}", f"pipeline/{change.pipeline}"
        gate = Gate(facts=(fact,), guard=guard, since=change.now)
        return Decision(
            outcome=None,
            puts=(
                Write(keys.status(last), replace(FRESH, gated=True)),  # a mark for the one above
                Write(keys.gated(fact, thing), GatedEntry()),
                Write(keys.gate(thing), gate),
            ),
        )

    def _demands(self, phase: PhaseDefinition) -> tuple[Demand, ...]:
        if not phase.hold:
            return ()
        from interlock.nouns.grants.several import target_of

        least = self._runner.capabilities.min_ttl
        return target_of(phase.hold).configured(self._settings, least)[0].demands

    def _release(self, change: RunChange, base: int) -> DecideOp[Any]:
        """Release all that the pipeline holds."""
        return self._exchange(change, (), base, "")

    def _exchange(
        self, change: RunChange, demands: tuple[Demand, ...], base: int, guard: str
    ) -> DecideOp[Any]:
        """Hold what is demanded and nothing else; the outcome is the grants, or a hindrance."""
        held = change.run.grants
        wanted = dict.fromkeys([*[key_of(each.thing) for each in held], *[d.key for d in demands]])
        if not wanted:
            return Decision(outcome=())
        reader = PoolReader(self._runner, base)
        reader.learn((yield tuple(wanted)).items)
        ids = [self._runner.new_id("grt") for _ in demands]
        agent = holding.holder_name(change.pipeline)

        def decide(facts: PoolFacts) -> Decision[tuple[PhaseGrant, ...] | Hindrance]:
            changes = PoolChanges(facts, change.now)
            found = holding.exchange(changes, agent, held, demands, ids)
            if isinstance(found, Demand):
                for grant in (changes.pool(found.key) or Pool()).grants:
                    facts.rely(grant)
                return Decision(outcome=holding.busy_hindrance(changes, guard, found))
            return changes.decision(found, "pipeline.advance", f"pipeline/{change.pipeline}")

        decision = yield from reader.decide(decide)
        if isinstance(decision.outcome, Hindrance) and reader.facts.relied:
            # The pipeline is blocked by holders that live: the commit checks that.
            yield tuple(reader.facts.relied)[:KEYS_AT_ONCE]
        return decision

    def _publish(
        self,
        change: RunChange,
        definition: PipelineDefinition,
        phase: PhaseDefinition,
        base: int,
        guard: str,
    ) -> DecideOp[Hindrance | None]:
        at = self._moment(len(phase.tasks))
        specs = phase_tasks.specs_of(
            change.pipeline, definition, phase, at=at, by=change.by, trace=change.run.trace
        )
        reader = TaskReader(self._runner, base)
        thing = f"pipeline/{change.pipeline}"

        def decide(changes: TaskChanges) -> Decision[Hindrance | None]:
            found = phase_tasks.publish(changes, change.pipeline, guard, specs)
            if found is not None:
                return Decision(outcome=found)
            return changes.decision(None, "pipeline.advance", thing)

        return (yield from reader.change(decide))

    # Reading.

    def hindrance(self, pipeline: str) -> Op[Hindrance | None]:
        """What keeps a running pipeline from its next step now; nothing is written.

        This host does not look at the outside: it relies on what hosts saw last, if that is new.
        """
        own = keys.pipeline(pipeline)
        run = decode_run((yield Read(own))[own])
        if run is None or run.state != "running":
            return None
        definition = yield from self._definition(run)
        base = yield from self._runner.base()
        change = self._change(pipeline, run, run.by, self._runner.clock.wall())
        guards = _guards(rules.next_step(run, definition))
        observed = yield from stored_observations(guards, change.now)
        return (yield from outside(self._hindrance(change, definition, base, observed)))

    def _hindrance(
        self, change: RunChange, definition: PipelineDefinition, base: int, observed: Observed
    ) -> ReadOp[Hindrance | None]:
        step = rules.next_step(change.run, definition)
        _, found = yield from self._judge(change, step, base, observed, explicit=False)
        if found is None:
            entered = yield from self._enter(change, definition, step, base)
            return entered.hindrance if isinstance(entered, Stay) else None
        return found.hindrance

    def _current(self, name: str) -> Op[PipelineDefinition | None]:
        key = keys.definition(name)
        current = decode_current((yield Read(key))[key])
        if current is None:
            return None
        own = keys.definition(name, current.digest)
        return decode_definition((yield Read(own))[own])

    def _definition(self, run: PipelineRun) -> Op[PipelineDefinition]:
        return (yield from outside(definition_inside(run.definition, run.digest)))


def move_on(runner: Runner, base: int, pipeline: str) -> DecideOp[Any]:
    """Let a pipeline take its next step if its guards pass now; else it waits further.

    One that was cancelled cancels further tasks.  It acts for the agent that moved it last.
    """
    own = keys.pipeline(pipeline)
    run = decode_run((yield (own,)).items[own])
    settings = runner.settings or Settings()
    service = PipelineService(runner, settings, lambda _: round(runner.clock.wall(), 6))
    if run is not None and run.closing:
        return (yield from service.closing(pipeline, run, base))
    if run is None or run.state != "running" or not run.asked:
        thing = f"pipeline/{pipeline}"
        over: Decision[None] = yield from stop_waiting(thing)
        return replace(over, verb="guard.clear", thing=thing) if over.changes else over
    return (yield from service.advancing(run.by, pipeline, base))


def _guards(step: PhaseStep) -> list[Guard]:
    post = step.leaving.post if step.leaving else None
    pre = step.entering.pre if step.entering else None
    return [guard for guard in (post, pre) if guard is not None]
