"""The calls of pipelines: arguments are validated, and the service carries them out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from interlock.core import validate
from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput
from interlock.nouns.pipelines import pipeline as pipelines
from interlock.runtime.calls import Calls, D, call
from interlock.runtime.given import Given
from interlock.steps import Op

if TYPE_CHECKING:
    from interlock.nouns.pipelines.definition import PipelineDefinition
    from interlock.nouns.pipelines.service import PipelineService


class PipelineCalls(Calls[D]):
    """Pipelines, by id."""

    @cached_property
    def _service(self) -> PipelineService:
        from interlock.nouns.pipelines.service import PipelineService

        context = self.context
        return PipelineService(context.runner, context.settings, context.tasks.moment)

    @call
    def define(
        self,
        what: str | os.PathLike[str] | PipelineDefinition | Iterable[PipelineDefinition],
        *,
        given: Given = (),
    ) -> Op[pipelines.PipelineDefined | GivenFenced]:
        """Define the pipelines of a file (TOML or JSON), or of values.

        Pipelines that were started before keep their own definitions.
        """
        from interlock.nouns.pipelines.definition_service import DefinitionService

        identity = self._identity(given)
        found = _definitions(what)
        service = DefinitionService(self.context.runner)
        return self._fenced(identity, service.define(identity.actor, found))

    @call
    def start(
        self,
        name: str,
        *,
        id: str | None = None,  # noqa: A002 - the word that people use
        given: Given = (),
    ) -> Op[pipelines.StartOutcome]:
        """Start a pipeline; without an id it gets a fresh one.

        It is in its first phase with the same commit, unless a guard keeps it before that.
        """
        fresh = self.context.runner.new_id("pip") if id is None else pipeline_id(id)
        identity = self._identity(given)
        starting = self._service.start(
            identity.actor, definition_name(name), fresh, self.context.purpose
        )
        return self._fenced(identity, starting)

    @call
    def advance(
        self, pipeline: str, *, phase: str | None = None, given: Given = ()
    ) -> Op[pipelines.AdvanceOutcome]:
        """Say that the work of the present phase is done: the pipeline goes on if its guards pass.

        With ``phase`` only if it is in that phase; without, if it is still in the phase that this
        call found it in.  Otherwise ``Overtaken`` names the agent that moved it.  If a guard keeps
        it (``PipelineBlocked``), it goes on by itself when the guard passes.
        """
        expected = None if phase is None else phase and validate.name(phase, "phase name")
        identity = self._identity(given)
        advancing = self._service.advance(identity.actor, pipeline_id(pipeline), expected)
        return self._fenced(identity, advancing)

    @call
    def cancel(
        self, pipeline: str, reason: str = "", *, given: Given = ()
    ) -> Op[pipelines.CancelOutcome]:
        """End a pipeline; it releases what it holds.  Tasks that it published stay."""
        said = validate.text(reason, "reason", pipelines.REASON_LIMIT)
        identity = self._identity(given)
        return self._fenced(
            identity, self._service.cancel(identity.actor, pipeline_id(pipeline), said)
        )

    @call
    def list(
        self,
        *,
        state: Iterable[str] = (),
        after: str | None = None,
        limit: int = pipelines.LISTED,
    ) -> Op[pipelines.PipelineList]:
        """Pipelines by id, in these states; ``after`` an id, if ``more`` are left."""
        from interlock.nouns.pipelines.views import list_pipelines

        asked = validate.names(state, "state", len(pipelines.PIPELINE_STATES))
        for each in asked:
            if each not in pipelines.PIPELINE_STATES:
                known = ", ".join(pipelines.PIPELINE_STATES)
                raise BadInput(f"no pipeline is {each!r:.40}; the states are: {known}")
        return list_pipelines(
            asked,
            None if after is None else pipeline_id(after),
            validate.integer(limit, "limit", 1, pipelines.MOST),
        )

    @call
    def show(self, pipeline: str) -> Op[pipelines.PipelineView | pipelines.UnknownPipeline]:
        """One pipeline: its phase, what blocks it, what it holds, and its tasks."""
        from interlock.nouns.pipelines.views import show_pipeline

        return show_pipeline(pipeline_id(pipeline))


def pipeline_id(text: str) -> str:
    """The id of a pipeline, which goes without its kind."""
    text = validate.name(text, "pipeline id")
    if text.startswith("pipeline/"):
        raise BadInput(f"a pipeline goes by its id alone here; drop 'pipeline/' from {text!r}")
    return text


def definition_name(text: str) -> str:
    """The name of a definition."""
    return validate.name(text, "pipeline name")


def _definitions(what: object) -> tuple[PipelineDefinition, ...]:
    from interlock.nouns.pipelines.definition import PipelineDefinition, validated

    if isinstance(what, PipelineDefinition):
        return (validated(what),)
    if isinstance(what, str | os.PathLike):
        from interlock.nouns.guards.definition import read

        path = os.fspath(what)
        file = read(path)
        if not (found := tuple(file.pipelines.values())):
            guards = "; for its guards: interlock guard define FILE" if file.guards else ""
            raise BadInput(
                f"{path}: there is no pipeline in it; define one under"
                f" [[pipeline.NAME.phase]]{guards}"
            )
        return found
    several = tuple(what) if isinstance(what, Iterable) else ()
    if not several or not all(isinstance(each, PipelineDefinition) for each in several):
        raise BadInput("define takes a file, or values of PipelineDefinition")
    return tuple(validated(each) for each in several)
