"""The leaves that people can write, each with its fields.

Definition files, the shell form and the constructors in Python build leaves from this table.  So
what one of them refuses is refused by all, with the same words.  ``validated`` checks a condition
that comes from elsewhere, decoded from JSON or built from the classes, in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from interlock.core import codec, validate
from interlock.core.safe_text import quoted
from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards import condition as c
from interlock.nouns.guards import leaf_fields as f

Values: TypeAlias = Mapping[str, Any]
Validators: TypeAlias = dict[str, Callable[[Any], Any]]


class LeafKind(Struct, frozen=True, kw_only=True):
    """A kind of leaf.

    ``main`` is the field that a value without a name stands for, as in ``lock_free = "deploy"``;
    ``example`` is the leaf as a definition file has it.
    """

    name: str
    leaf: type[c.BaseCondition]
    main: str
    fields: Mapping[str, Callable[[Any], Any]]
    required: tuple[str, ...]
    example: str

    def field(self, name: object, value: object) -> object:
        """The value of a field, if both are legal."""
        if not isinstance(name, str) or name not in self.fields:
            given = quoted(str(name))
            raise BadInput(f"{self.name} has no field {given}; {f.meant(name, self.fields)}")
        return self.fields[name](value)

    def make(self, values: Values) -> c.Condition:
        """The leaf of these fields, which are legal one by one."""
        for name in self.required:
            if name not in values:
                raise BadInput(f"{self.name} needs the field {name!r}, as in {self.example}")
        finish: Callable[[Values], c.Condition] | None = _FINISH.get(self.leaf)
        made: Any = self.leaf(**values) if finish is None else finish(values)
        return made  # type: ignore[no-any-return]


def build(kind: str, given: Mapping[str, object]) -> c.Condition:
    """The leaf of this kind with these fields."""
    found = KINDS[kind]
    return found.make({name: found.field(name, value) for name, value in given.items()})


def kind_of(leaf: c.BaseCondition) -> LeafKind:
    """The kind of a leaf."""
    return _BY_TYPE[type(leaf)]


def fields_of(leaf: c.BaseCondition | c.TaskFilter) -> Iterator[tuple[str, Any]]:
    """The fields of a leaf that differ from their defaults, with those of its filter."""
    for name in leaf.__struct_fields__:
        value = getattr(leaf, name)
        if isinstance(value, c.TaskFilter):
            yield from fields_of(value)
        elif value != _DEFAULTS[type(leaf)].get(name):
            yield name, value


def validated(condition: object, *, above: int = 0) -> c.Condition:
    """The condition, built again of legal parts; ``above`` is the number of levels above it.

    An empty ``all`` or ``any`` is refused, and so are more levels and more leaves than allowed.
    """
    return _Rebuilt().again(condition, above + 1)


class _Rebuilt:
    """One condition that is built again; it never goes deeper than allowed."""

    def __init__(self) -> None:
        self._leaves = 0

    def again(self, part: object, depth: int) -> c.Condition:
        if depth > c.DEPTH:
            raise too_deep()
        match part:
            case c.AllOf() | c.AnyOf():
                return type(part)(of=tuple([self.again(each, depth + 1) for each in _some(part)]))
            case c.Not():
                return c.Not(of=self.again(part.of, depth + 1))
            case c.BaseCondition() if type(part) in _BY_TYPE:
                return self._leaf(part)
            case _:
                raise BadInput(f"a condition is made by interlock.guard; {part!r:.40} is none")

    def _leaf(self, leaf: c.BaseCondition) -> c.Condition:
        self._leaves += 1
        if self._leaves > c.LEAVES:
            raise too_many()
        chosen = getattr(leaf, "filter", None)
        if chosen is not None and not isinstance(chosen, c.TaskFilter):
            raise BadInput(f"a filter is a TaskFilter; {chosen!r:.40} is none")
        return build(_BY_TYPE[type(leaf)].name, dict(fields_of(leaf)))


def decode(data: bytes) -> c.Condition:
    """A condition from its JSON, validated."""
    try:
        found = _DECODER.decode(data)
    except RecursionError:
        raise too_deep() from None
    except codec.UNREADABLE as error:
        raise BadInput(f"this is no condition ({error}); see interlock.guard") from None
    return validated(found)


def empty(word: str) -> BadInput:
    """The error for ``all`` or ``any`` of nothing."""
    return BadInput(f"{word!r} of nothing says nothing; give at least one condition, or drop it")


def too_deep() -> TooLarge:
    """The error for conditions that are nested too deeply."""
    return TooLarge(f"conditions are nested too deeply; {c.DEPTH} levels are allowed")


def too_many() -> TooLarge:
    """The error for too many leaves."""
    return TooLarge(f"the condition has too many leaves; {c.LEAVES} are allowed: split it")


def _some(group: c.AllOf | c.AnyOf) -> tuple[object, ...]:
    if not group.of or not isinstance(group.of, tuple):
        raise empty("all" if isinstance(group, c.AllOf) else "any")
    return group.of


def _tasks(leaf: type[c.BaseCondition]) -> Callable[[Values], Any]:
    def finish(values: Values) -> object:
        chosen = c.TaskFilter(**{key: value for key, value in values.items() if key in _FILTER})
        rest = {key: value for key, value in values.items() if key not in _FILTER}
        return leaf(filter=chosen, **rest)

    return finish


def _contains(values: Values) -> c.Condition:
    if ("text" in values) == ("pattern" in values):
        raise BadInput("file_contains needs either a text or a pattern; give one of them")
    return c.FileContains(**values)


def _command(values: Values) -> c.Condition:
    words = f.command_words(values["run"], shell=values.get("shell", False))
    return c.Command(**{**values, "run": words})


_FINISH: dict[type[c.BaseCondition], Callable[[Values], Any]] = {
    c.TasksComplete: _tasks(c.TasksComplete),
    c.NoBlockedTasks: _tasks(c.NoBlockedTasks),
    c.FileContains: _contains,
    c.Command: _command,
}
_FILTER: Validators = {
    "prefix": f.prefix,
    "state": f.state,
    "requires": f.requirement,
    "needs": validate.task_id,
    "label": f.label,
}
_COMMAND: Validators = {
    "run": f.run,
    "shell": f.shell,
    "expect": f.expect,
    "timeout": f.timeout,
    "env": f.env,
}
_LEAVES: tuple[tuple[type[c.BaseCondition], Validators, str], ...] = (
    (c.LockFree, {"lock": f.lock}, '"deploy"'),
    (c.LockHeld, {"lock": f.lock, "by": validate.agent_name}, '{lock = "deploy", by = "ada"}'),
    (
        c.SemaphoreAvailable,
        {"semaphore": f.semaphore, "slots": f.slots},
        '{semaphore = "builds", slots = 2}',
    ),
    (c.TasksComplete, {**_FILTER, "none_ok": f.none_ok}, '{prefix = "build."}'),
    (c.NoBlockedTasks, _FILTER, '{prefix = "build."}'),
    (
        c.PipelineInPhase,
        {"pipeline": f.pipeline, "phase": f.phase},
        '{pipeline = "r1", phase = "test"}',
    ),
    (c.PipelineComplete, {"pipeline": f.pipeline}, '"r1"'),
    (c.BranchExists, {"branch": f.branch}, '"feature"'),
    (c.BranchClean, {"branch": f.branch}, '"feature"'),
    (
        c.BranchMerged,
        {"branch": f.branch, "into": f.branch},
        '{branch = "feature", into = "main"}',
    ),
    (c.FileExists, {"path": f.path}, '"STOP"'),
    (
        c.FileContains,
        {"path": f.path, "text": f.text, "pattern": f.pattern},
        '{path = "CHANGELOG.md", text = "1.2"}',
    ),
    (c.Command, _COMMAND, '["make", "test"]'),
)


def defaults_of(leaf: type[Struct]) -> dict[str, Any]:
    """The fields of a leaf that have a default; all of them come last."""
    defaults = leaf.__struct_defaults__
    return dict(
        zip(leaf.__struct_fields__[-len(defaults) :], defaults, strict=True) if defaults else ()
    )


def _kind(leaf: type[c.BaseCondition], fields: Validators, example: str) -> LeafKind:
    name = str(leaf.__struct_config__.tag)
    return LeafKind(
        name=name,
        leaf=leaf,
        main=next(iter(fields)),
        fields=fields,
        required=tuple(each for each in leaf.__struct_fields__ if each not in defaults_of(leaf)),
        example=f"{{{name} = {example}}}",
    )


_BY_TYPE = {leaf: _kind(leaf, fields, example) for leaf, fields, example in _LEAVES}
KINDS = {kind.name: kind for kind in _BY_TYPE.values()}
"""Every kind of leaf, by its name in definitions."""
_STRUCTS: tuple[type[Struct], ...] = (*_BY_TYPE, c.TaskFilter)
_DEFAULTS = {each: defaults_of(each) for each in _STRUCTS}
_DECODER: codec.Decoder[c.Condition] = codec.Decoder(c.Condition)  # type: ignore[arg-type]
