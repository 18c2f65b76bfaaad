"""Definitions of pipelines on a store: each under its digest, and which one is the current."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from interlock.core import codec, keys
from interlock.core.decision import Decision, Write
from interlock.nouns.guards import guard as g
from interlock.nouns.pipelines import phase_tasks
from interlock.nouns.pipelines import pipeline as core
from interlock.nouns.pipelines.definition import PhaseTask, PipelineDefinition, guards_of
from interlock.nouns.pipelines.pipeline import CurrentDefinition
from interlock.nouns.pipelines.pipeline_reader import decode_current
from interlock.nouns.tasks.task_reader import TaskReader
from interlock.runtime.attempt import DecideOp
from interlock.runtime.identity import Actor, host_name
from interlock.runtime.runner import Runner
from interlock.steps import Op


class DefinitionService:
    """Writes definitions, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def define(
        self, actor: Actor, definitions: Sequence[PipelineDefinition]
    ) -> Op[core.PipelineDefined]:
        """Make these the current definitions of their names, all with one commit."""
        room = TaskReader(self._runner, 0).facts.max_operations
        for each in definitions:
            phase_tasks.check_definition(each, room, self._runner.capabilities.max_bytes)
        found = {digest_of(each): each for each in definitions}
        done = yield from self._runner.change(partial(self._defining, actor, found), actor)
        guards = {guard.name: guard for each in definitions for guard in guards_of(each)}
        looking = [each for each in guards.values() if g.outside(each.condition)]
        return replace(
            done.outcome,
            outside=tuple(each.name for each in looking),
            allowed=tuple(each.name for each in looking if _is_allowed(each)),
            host=host_name() if looking else "",
        )

    def _defining(
        self, actor: Actor, found: Mapping[str, PipelineDefinition]
    ) -> DecideOp[core.PipelineDefined]:
        now = self._runner.clock.wall()
        defined: list[core.DefinedPipeline] = []
        puts: list[Write] = []
        for digest, each in found.items():
            current, own = keys.definition(each.name), keys.definition(each.name, digest)
            items = (yield (current, own)).items
            known = decode_current(items[current])
            same = known is not None and known.digest == digest and items[own] is not None
            names = tuple(phase.name for phase in each.phases)
            defined.append(
                core.DefinedPipeline(pipeline=each.name, digest=digest, phases=names, already=same)
            )
            if not same:
                # Also one that exists: housekeeping deletes only those that are unchanged.
                puts.append(Write(own, each))
                puts.append(
                    Write(current, CurrentDefinition(digest=digest, by=actor.agent, at=now))
                )
        outcome = core.PipelineDefined(pipelines=tuple(defined))
        if not puts:
            return Decision(outcome=outcome)
        thing = f"definition/{defined[0].pipeline}" if len(defined) == 1 else "definitions"
        return Decision(outcome=outcome, verb="pipeline.define", thing=thing, puts=tuple(puts))


def _is_allowed(guard: g.Guard) -> bool:
    from interlock.nouns.guards.allowed import allowed

    return allowed(g.digest(guard)) is not None


def _plain_task(task: PhaseTask) -> dict[str, object]:
    """A task for the digest; fields of later versions are left out while they are empty."""
    plain = {
        "id": task.id,
        "data": task.data,
        "priority": task.priority,
        "requires": task.requires,
        "needs": task.needs,
        "labels": task.labels,
    }
    later = {
        "guard": task.guard,
        "evidence": task.evidence,
        "title": task.title,
        "text": task.text,
    }
    return plain | {field: said for field, said in later.items() if said}


def digest_of(definition: PipelineDefinition) -> str:
    """The SHA-256 of a definition as canonical JSON: equal definitions have equal digests."""
    plain = {
        "name": definition.name,
        "phases": [
            {
                "name": phase.name,
                "pre": phase.pre and g.digest(phase.pre),
                "post": phase.post and g.digest(phase.post),
                "on_failure": phase.on_failure,
                "retries": phase.retries,
                "hold": phase.hold,
                "tasks": list(map(_plain_task, phase.tasks)),
            }
            for phase in definition.phases
        ],
    }
    return codec.digest(codec.canonical(codec.encode(plain)))
