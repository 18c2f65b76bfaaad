"""The definition of a pipeline: its phases in their order, as a value that is stored.

A phase is entered when its ``pre`` guard passes, and left when its ``post`` guard passes.  While
the pipeline is in the phase it holds what ``hold`` names.  Entering it publishes its ``tasks``.
``retries`` is how often the phase is attempted again after its post guard failed.

A pipeline has at least one phase, and each phase has a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from interlock.core import codec, validate
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import guard as g
from interlock.nouns.guards.leaf_kinds import too_deep

PHASES_LIMIT = 100
PRIORITY = 5
"""The priority of a task, unless it says another: that of every task."""


class PhaseTask(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A task that a phase publishes."""

    id: str
    data: Raw = Raw(b"null")
    priority: int = PRIORITY
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    guard: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


class PhaseDefinition(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One phase; ``hold`` has things such as ``lock/merge`` and ``sem/builds=2``."""

    name: str
    pre: g.Guard | None = None
    post: g.Guard | None = None
    on_failure: g.FailureAction = g.BlockAction()
    retries: int = 0
    hold: tuple[str, ...] = ()
    tasks: tuple[PhaseTask, ...] = ()


class PipelineDefinition(
    Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A pipeline, with its phases in their order."""

    name: str
    phases: tuple[PhaseDefinition, ...]


def guards_of(pipeline: PipelineDefinition) -> Iterator[g.Guard]:
    """The guards of all phases, in their order."""
    for phase in pipeline.phases:
        yield from (guard for guard in (phase.pre, phase.post) if guard is not None)


def decode(data: bytes) -> PipelineDefinition:
    """A definition from its JSON, validated."""
    try:
        found = _DECODER.decode(data)
    except RecursionError:
        raise too_deep() from None
    except codec.UNREADABLE as error:
        raise BadInput(f"this is no pipeline ({error}); define it again") from None
    return validated(found)


def validated(pipeline: PipelineDefinition) -> PipelineDefinition:
    """The definition, built again of legal parts."""
    validate.name(pipeline.name, "pipeline name")
    if not pipeline.phases:
        raise no_phase(pipeline.name)
    if len(pipeline.phases) > PHASES_LIMIT:
        raise too_many_phases(len(pipeline.phases))
    names: dict[str, None] = {}
    for phase in pipeline.phases:
        if validate.name(phase.name, "phase name") in names:
            raise BadInput(f"two phases have the name {phase.name!r}; rename one of them")
        names[phase.name] = None
    _check_tasks([task for phase in pipeline.phases for task in phase.tasks])
    return replace(pipeline, phases=tuple(_phase(phase) for phase in pipeline.phases))


def _check_tasks(tasks: list[PhaseTask]) -> None:
    """Refuse tasks that could not be published together."""
    if not tasks:
        return
    from interlock.nouns.tasks import plan

    fields = ({**asdict(task), "data": msgspec.json.decode(task.data)} for task in tasks)
    if wrong := plan.parse(plan.entries(fields)).wrong:
        raise BadInput("; ".join(wrong[: plan.MISTAKES_SHOWN]))


def _phase(phase: PhaseDefinition) -> PhaseDefinition:
    return replace(
        phase,
        pre=_guard(phase.pre),
        post=_guard(phase.post),
        on_failure=g.legal_action(phase.on_failure),
        retries=attempts(phase.retries),
        hold=held(phase.hold),
    )


def _guard(guard: g.Guard | None) -> g.Guard | None:
    return guard and g.guard(guard.name, guard.condition, guard.on_failure, guard.max_age)


def attempts(value: int) -> int:
    """A number of retries."""
    return validate.integer(value, "number of retries", 0, g.MOST_RETRIES)


def held(things: object) -> tuple[str, ...]:
    """The locks and slots that a phase holds, as people write them."""
    from interlock.nouns.grants.several import target_of

    if not isinstance(things, list | tuple):
        raise BadInput(f"hold takes a list of things, as in ['lock/merge'], not {things!r:.40}")
    return target_of(things).named if things else ()


def no_phase(name: str) -> BadInput:
    """The error for a pipeline without a phase."""
    return BadInput(f"the pipeline has no phase; add one under [[pipeline.{name}.phase]]")


def too_many_phases(count: int) -> TooLarge:
    """The error for too many phases."""
    return TooLarge(f"the pipeline has {count} phases; {PHASES_LIMIT} are allowed")


_DECODER: codec.Decoder[PipelineDefinition] = codec.Decoder(PipelineDefinition)
