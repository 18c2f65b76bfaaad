"""Pipelines as definition files have them.

    [[pipeline.NAME.phase]]
    name = "test"
    pre = [...]              a list of conditions, or the name of a guard
    post = [...]
    on_failure = "block"     for pre and post, if they are lists; a named guard has its own
    max_age = "60s"          in the same way
    retries = 2
    hold = ["lock/merge", "sem/builds=2"]
    tasks = [{id = "test.1", data = {...}, priority = 3, needs = [...], requires = [...]}]

The tasks of all phases are checked together, as a plan is: each id once, and no cycle of needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput
from interlock.nouns.guards.definition import (
    ConditionReader,
    DefinitionTable,
    read_action,
    read_age,
)
from interlock.nouns.guards.guard import Guard
from interlock.nouns.guards.leaf_kinds import meant
from interlock.nouns.guards.leaf_kinds import phase as phase_name
from interlock.nouns.pipelines import definition as d

if TYPE_CHECKING:
    from interlock.nouns.tasks.plan import PlanTask

T = TypeVar("T")

_PHASE = ("name", "pre", "post", "on_failure", "max_age", "retries", "hold", "tasks")
_TASK = (
    "id",
    "data",
    "priority",
    "requires",
    "needs",
    "labels",
    "title",
    "text",
    "guard",
    "evidence",
)


class PipelineReader:
    """Reads one pipeline."""

    def __init__(self, conditions: ConditionReader, table: DefinitionTable, name: str) -> None:
        self._conditions = conditions
        self._table = table
        self._name = name

    def pipeline(self) -> d.PipelineDefinition:
        """The pipeline."""
        self._table.check_keys("a pipeline", ("phase",))
        listed = self._table.values.get("phase")
        if listed is not None and not isinstance(listed, list):
            raise self._table.wrong(
                f"phases are a list of tables, under [[pipeline.{self._name}.phase]]", "phase"
            )
        if not listed:
            raise self._table.wrong(d.no_phase(self._name))
        if len(listed) > d.PHASES_LIMIT:
            raise self._table.wrong(d.too_many_phases(len(listed)), "phase")
        tables = [self._phase_table(place, values) for place, values in enumerate(listed)]
        names = self._names(tables)
        tasks = self._tasks(tables)
        phases = tuple(
            self._phase(name, table, tuple(tasks[place]))
            for place, (name, table) in enumerate(zip(names, tables, strict=True))
        )
        return d.PipelineDefinition(name=self._name, phases=phases)

    def _phase_table(self, place: int, values: object) -> DefinitionTable:
        if not isinstance(values, dict):
            raise self._table.wrong(f"a phase is a table, not {values!r:.40}", "phase", place)
        table = DefinitionTable(self._table.source, (*self._table.path, "phase", place), values)
        table.check_keys("a phase", _PHASE)
        return table

    def _names(self, tables: list[DefinitionTable]) -> list[str]:
        found: dict[str, DefinitionTable] = {}
        for table in tables:
            if "name" not in table.values:
                raise table.wrong("the phase has no name; add name = 'build'")
            try:
                name = phase_name(table.values["name"])
            except BadInput as error:
                raise table.wrong(error, "name") from None
            if name in found:
                place = found[name].source.place((*found[name].path, "name"))
                raise table.wrong(
                    f"a phase of the name {quoted(name)} is in {place} already; rename one", "name"
                )
            found[name] = table
        return list(found)

    def _phase(
        self, name: str, table: DefinitionTable, tasks: tuple[d.PhaseTask, ...]
    ) -> d.PhaseDefinition:
        values = table.values
        return d.PhaseDefinition(
            name=name,
            pre=self._guard(table, name, "pre"),
            post=self._guard(table, name, "post"),
            on_failure=read_action(table, "on_failure"),
            retries=_checked(table, "retries", d.attempts, values.get("retries", 0)),
            hold=_checked(table, "hold", d.held, values.get("hold", ())),
            tasks=tasks,
        )

    def _guard(self, table: DefinitionTable, phase: str, field: str) -> Guard | None:
        value = table.values.get(field)
        if value is None:
            return None
        if isinstance(value, str):
            if (named := self._conditions.named(value)) is None:
                raise table.wrong(self._conditions.unknown(value), field)
            return named
        name = f"{self._name}/{phase}/{field}"
        return Guard(
            name=_checked(table, field, lambda text: validate.name(text, "guard name"), name),
            condition=self._conditions.condition(table, field),
            on_failure=read_action(table, "on_failure"),
            max_age=read_age(table, "max_age"),
        )

    def _tasks(self, tables: list[DefinitionTable]) -> list[list[d.PhaseTask]]:
        """The tasks of each phase."""
        from interlock.nouns.tasks import plan

        entries = [list(_entries(table)) for table in tables]
        if not any(entries):
            return [[] for _ in tables]
        found = plan.parse(plan.entries(values for some in entries for _, values in some))
        if found.wrong:
            raise self._wrong_tasks(tables, entries)
        drafts = iter(found.drafts)
        return [[_task(next(drafts)) for _ in some] for some in entries]

    def _wrong_tasks(
        self, tables: list[DefinitionTable], entries: list[list[tuple[int, dict[str, Any]]]]
    ) -> BadInput:
        """The mistakes of tasks, each with its line; finding lines costs time."""
        from interlock.nouns.tasks import plan

        located = [
            plan.PlanEntry(table.source.place((*table.path, "tasks", place)), values)
            for table, some in zip(tables, entries, strict=True)
            for place, values in some
        ]
        found = plan.parse(located)
        error = BadInput("; ".join(found.wrong[: plan.MISTAKES_SHOWN]))
        error.mistakes, error.cycles = found.wrong[: plan.MISTAKES_SHOWN], found.cycles
        return error


def _entries(table: DefinitionTable) -> Iterator[tuple[int, dict[str, Any]]]:
    """The tasks of a phase as they are written, each behind its position."""
    listed = table.values.get("tasks", [])
    if not isinstance(listed, list):
        raise table.wrong(
            f"tasks are a list of tables, as in [{{id = 'test.1'}}], not {listed!r:.40}", "tasks"
        )
    for place, values in enumerate(listed):
        if not isinstance(values, dict):
            raise table.wrong(f"a task is a table with an id, not {values!r:.40}", "tasks", place)
        for key in values:
            if key not in _TASK:
                said = f"a task of a phase has no field {quoted(key)}; {meant(key, _TASK)}"
                raise table.wrong(said, "tasks", place, key)
        yield place, values


def _task(draft: PlanTask) -> d.PhaseTask:
    return d.PhaseTask(
        id=draft.id,
        data=draft.data,
        priority=draft.priority,
        requires=draft.requires,
        needs=draft.needs,
        labels=draft.labels,
        title=draft.title,
        text=draft.text,
        guard=draft.guard,
        evidence=draft.evidence,
    )


def _checked(table: DefinitionTable, field: str, legal: Callable[[Any], T], value: object) -> T:
    """The legal value of a field."""
    try:
        return legal(value)
    except BadInput as error:
        raise table.wrong(error, field) from None
