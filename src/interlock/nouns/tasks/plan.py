"""Plans: tasks that are published together, all of them or none.

A plan is checked as a whole before anything is written.  The author gets all mistakes at once, each
with its line in the file and the id.  Only a plan can have a cycle of needs, since a single task
can only need tasks that exist; a cycle is refused, and written out: ``a -> b -> a`` says that a
needs b, which needs a.

The id of a plan is the digest of its contents, unless the author gives it a name.  Moments that are
written as durations (``not_before: 2h``) are part of the digest as they are written, and count from
the start of its publishing.  So the same file is the same plan, and an import that was killed can
be repeated, and continues.

The order of the file is the age of the tasks: within one priority, the first in the file comes
first.  A need may be anywhere in the file.

``plan_rules.py`` says how a plan gets into a store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from interlock.core import codec, validate
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, InterlockError, TooLarge
from interlock.nouns.tasks import task
from interlock.nouns.tasks.task import Spec

TASKS_LIMIT = 100_000
LARGEST = 256 * 1024 * 1024
MISTAKES_SHOWN = 20
"""The most mistakes that are named."""
_AGE = 0.000_001
_DIGITS = 32
_FEW = 5
_MARK = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before a text in UTF-8."""


class PlanEntry(Struct, frozen=True, gc=False):
    """One unchecked entry of a plan; ``wrong`` if it is not JSON."""

    where: str
    fields: object = None
    wrong: str = ""


class PlanTask(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A checked task of a plan; its moments stay as they were given."""

    id: str
    data: Raw = Raw(b"null")
    priority: int = task.PRIORITY
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    title: str = ""
    text: str = ""
    guard: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    not_before: str | float | datetime | None = None
    deadline: str | float | datetime | None = None
    retries: int = task.RETRIES
    backoff: float = task.BACKOFF
    backoff_most: float = task.BACKOFF_MOST


class Plan(Struct, frozen=True, kw_only=True):
    """The tasks of a checked plan, each after its needs.

    ``places`` are their positions in the file, and ``where`` the same in words; ``outside`` are
    needs that must exist already; ``trace`` is the trace that its tasks are published under;
    ``name`` is the id that its author gave it.
    """

    id: str
    digest: str
    drafts: tuple[PlanTask, ...]
    places: Mapping[str, int]
    outside: tuple[str, ...]
    where: Mapping[str, str] = {}
    trace: str = ""
    name: str = ""

    @property
    def batch(self) -> str:
        """The id on which its tasks hang until all of them are written."""
        return task.BATCH + self.id

    def spec(self, draft: PlanTask, at: float, by: str) -> Spec:
        """The data of one of its tasks, if publishing began at this moment."""
        fields = asdict(draft)
        id_ = fields.pop("id")
        fields["guards"] = fields.pop("guard")
        for moment in ("not_before", "deadline"):
            if fields[moment] is not None:
                fields[moment] = validate.future_moment(fields[moment], at)
        at = round(at + self.places[id_] * _AGE, 6)
        return Spec(at=at, by=by, trace=self.trace, plan=self.name, **fields)


def read_file(file: str) -> list[PlanEntry]:
    """The tasks in a file, or of standard input (``-``)."""
    import sys
    from pathlib import Path

    try:
        if file == "-":
            text = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(file).open("rb") as opened:
                text = opened.read(LARGEST + 1)
    except (OSError, ValueError, AttributeError) as error:
        why = getattr(error, "strerror", None) or "it cannot be read"
        raise BadInput(f"no plan in {file!r} ({why}); name a file, or - for stdin") from None
    if len(text) > LARGEST:
        raise TooLarge(f"{file!r} has more than {LARGEST >> 20} MB; split the plan")
    return read(text)


def read(text: bytes) -> list[PlanEntry]:
    """The tasks in a file: one JSON array, or JSON Lines."""
    text = text.removeprefix(_MARK)
    if not text.lstrip().startswith(b"["):
        return list(_lines(text))
    try:
        found = msgspec.json.decode(text)
    except codec.UNREADABLE as error:
        raise BadInput(
            f"the plan is no JSON array ({error}); fix it, or write one task a line without '['"
        ) from None
    return entries(found)


def _lines(text: bytes) -> Iterator[PlanEntry]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield PlanEntry(f"line {number}", msgspec.json.decode(line))
        except codec.UNREADABLE as error:
            yield PlanEntry(f"line {number}", wrong=f"this is not JSON ({error})")


def entries(specs: Iterable[object]) -> list[PlanEntry]:
    """The entries that a program gives, each with its position."""
    if not isinstance(specs, Iterable):
        raise BadInput(f"a plan is a list of tasks, not {specs!r:.40}")
    return [
        each if isinstance(each, PlanEntry) else PlanEntry(f"number {place}", each)
        for place, each in enumerate(specs, 1)
    ]


class ParsedPlan(Struct, frozen=True, kw_only=True):
    """A plan after validation: its valid tasks, and all mistakes (``wrong``).

    ``cycles`` are tasks that need each other, as the error names them.
    """

    drafts: tuple[PlanTask, ...]
    where: Mapping[str, str]
    order: tuple[str, ...]
    wrong: tuple[str, ...]
    cycles: tuple[tuple[str, ...], ...]

    @property
    def outside(self) -> tuple[str, ...]:
        """Needs that must exist already."""
        needs = (need for each in self.drafts for need in each.needs)
        return tuple(dict.fromkeys(need for need in needs if need not in self.where))

    def refused(self, missing: Collection[str]) -> BadInput:
        """The error with all mistakes and the needs that are ``missing`` in the store."""
        wrong = [*self.wrong, *_unknown(self.drafts, self.where, missing)]
        return _refused(wrong, self.cycles)


def parse(listed: Iterable[PlanEntry]) -> ParsedPlan:
    """Validate the entries of a plan."""
    some = list(listed)
    if len(some) > TASKS_LIMIT:
        raise TooLarge(f"the plan has {len(some)} tasks; {TASKS_LIMIT} are allowed: split it")
    if not some:
        raise BadInput("the plan is empty; give at least one task")
    wrong: list[str] = []
    drafts: list[PlanTask] = []
    where: dict[str, str] = {}
    for each in some:
        draft = _draft(each, wrong)
        if draft is not None:
            drafts.append(draft)
        if (name := _name(each)) is not None:  # others may need it, though it has a mistake
            where.setdefault(name, each.where)
    wrong += _twice(some)
    order, cycles = _ordered(drafts)
    wrong += [
        f"{where[way[0]]} ({way[0]}): these need each other: {' -> '.join(way)};"
        " drop one of these needs"
        for way in cycles
    ]
    return ParsedPlan(
        drafts=tuple(drafts), where=where, order=order, wrong=tuple(wrong), cycles=cycles
    )


def plan_of(found: ParsedPlan, id_: str | None = None) -> Plan:
    """The plan of entries without mistakes."""
    drafts = list(found.drafts)
    digest = codec.digest(codec.encode(drafts))
    places = {draft.id: place for place, draft in enumerate(drafts)}
    return Plan(
        id=f"imp_{digest[:_DIGITS]}" if id_ is None else validate.name(id_, "id of the import"),
        digest=digest,
        drafts=tuple(drafts[places[each]] for each in found.order),
        places=places,
        outside=found.outside,
        where=found.where,
        name=id_ or "",
    )


def unknown(plan: Plan, missing: Sequence[str]) -> BadInput:
    """The error for needs that do not exist."""
    drafts = sorted(plan.drafts, key=lambda draft: plan.places[draft.id])
    return _refused(list(_unknown(drafts, plan.where, missing)))


def _unknown(
    drafts: Iterable[PlanTask], where: Mapping[str, str], missing: Collection[str]
) -> Iterator[str]:
    """A mistake for each need that does not exist."""
    lacking = set(missing)
    for draft in drafts:
        for need in draft.needs:
            if need in lacking:
                yield (
                    f"{where[draft.id]} ({foreign(draft.id)}): it needs {need!r}, which is neither"
                    " in the"
                    " plan nor in the store: add it to the plan, or publish it first"
                )


def _draft(entry: PlanEntry, wrong: list[str]) -> PlanTask | None:
    """One task, or None if it has mistakes."""
    fields = entry.fields
    if entry.wrong or not isinstance(fields, Mapping):
        wrong.append(f"{entry.where}: {entry.wrong or 'a task is an object with an id'}")
        return None
    name = fields.get("id", fields.get("task"))
    where = f"{entry.where} ({name})" if isinstance(name, str) and name else entry.where
    found: dict[str, Any] = {}
    before = len(wrong)
    for key, value in fields.items():
        validator = _FIELDS.get(key)
        if validator is None:
            wrong.append(f"{where}: there is no field {key!r:.40}; there are {_ALL}")
            continue
        try:
            found["id" if key == "task" else key] = validator(value)
        except InterlockError as error:
            wrong.append(f"{where}: {error}")
    wrong += [f"{where}: {each}" for each in _crossed(fields, found)]
    return PlanTask(**found) if len(wrong) == before else None


def _crossed(fields: Mapping[str, object], found: Mapping[str, Any]) -> Iterator[str]:
    """Mistakes of fields taken together."""
    if "id" in fields and "task" in fields:
        yield "it has both 'id' and 'task'; keep one of them"
    elif "id" not in fields and "task" not in fields:
        yield "it has no id; give it one, so that the plan can be repeated"
    if found.get("id", "") in found.get("needs", ()):
        yield "it needs itself; drop that need"


def _twice(listed: Sequence[PlanEntry]) -> Iterator[str]:
    """A mistake for each id that appears more than once."""
    counted: dict[str, list[str]] = {}
    for each in listed:
        if (name := _name(each)) is not None:
            counted.setdefault(name, []).append(each.where)
    for id_, where in counted.items():
        if len(where) > 1:
            some = ", ".join(where[:_FEW])
            yield f"task {id_!r:.80} appears {len(where)} times ({some}); keep one"


def _name(entry: PlanEntry) -> str | None:
    """The id of an entry, if it is a text."""
    fields = entry.fields
    name = fields.get("id", fields.get("task")) if isinstance(fields, Mapping) else None
    return name if isinstance(name, str) else None


def _ordered(
    drafts: Sequence[PlanTask],
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Their ids, each after its needs, and the cycles.

    The last need of a cycle is dropped, so that the next cycle is found.
    """
    from graphlib import CycleError, TopologicalSorter

    names = {draft.id for draft in drafts}
    needs = {draft.id: [need for need in draft.needs if need in names] for draft in drafts}
    cycles: list[tuple[str, ...]] = []
    for _ in range(MISTAKES_SHOWN + 1):
        try:
            return tuple(TopologicalSorter(needs).static_order()), tuple(cycles)
        except CycleError as error:
            cycle = error.args[1][:0:-1]
            first = cycle.index(next(draft.id for draft in drafts if draft.id in cycle))
            way = (*cycle[first:], *cycle[:first], cycle[first])
            cycles.append(way)
            needs[way[-2]] = [need for need in needs[way[-2]] if need != way[-1]]
    return (), tuple(cycles)


def _refused(wrong: Sequence[str], cycles: tuple[tuple[str, ...], ...] = ()) -> BadInput:
    count = "a mistake" if len(wrong) == 1 else f"{len(wrong)} mistakes"
    shown = f", the first {MISTAKES_SHOWN}" if len(wrong) > MISTAKES_SHOWN else ""
    first = tuple(wrong[:MISTAKES_SHOWN])
    error = BadInput(f"the plan has {count}{shown}, and nothing was published: {'; '.join(first)}")
    error.mistakes, error.cycles = first, cycles
    return error


def template(fields: Mapping[str, object], by: str) -> Spec:
    """The data of a task that is published again and again, from fields as a plan has them."""
    found = {key: _FIELDS[key](value) for key, value in fields.items()}
    found["guards"] = found.pop("guard", ())
    return Spec(at=0.0, by=by, **found)


def _names(what: str, most: int, *, ordered: bool = True) -> Callable[[Any], tuple[str, ...]]:
    def validator(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - as it was written
        if not isinstance(value, Iterable) or isinstance(value, Mapping):
            raise BadInput(f"{what} takes a list of names, not {value!r:.40}")
        found = validate.names(value, what, most)
        return found if ordered else tuple(sorted(found))

    return validator


def _id(value: Any) -> str:  # noqa: ANN401 - as it was written
    return validate.task_id(value)


def _moment(what: str) -> Callable[[Any], Any]:
    def validator(value: Any) -> Any:  # noqa: ANN401 - as it was written
        if value is not None:
            validate.future_moment(value, 0.0, what)
        return value

    return validator


def _duration(what: str) -> Callable[[Any], float]:
    return lambda value: validate.duration(value, what)


_FIELDS: dict[object, Callable[[Any], Any]] = {
    "id": _id,
    "task": _id,
    "data": lambda value: Raw(validate.payload(value, "data", task.DATA_LIMIT)),
    "priority": lambda value: validate.integer(value, "priority", *task.PRIORITIES),
    "requires": _names("requires", task.REQUIRES_LIMIT, ordered=False),
    "needs": _names("needs", task.NEEDS_LIMIT),
    "labels": _names("labels", task.LABELS_LIMIT),
    "title": validate.title,
    "text": validate.lines,
    "guard": _names("guard", task.GUARDS_LIMIT),
    "evidence": _names("evidence", task.GUARDS_LIMIT),
    "not_before": _moment("not_before"),
    "deadline": _moment("deadline"),
    "retries": lambda value: validate.integer(value, "number of retries", 0, task.MOST_RETRIES),
    "backoff": _duration("backoff"),
    "backoff_most": _duration("longest backoff"),
}
_ALL = ", ".join(str(key) for key in _FIELDS if key != "task")
