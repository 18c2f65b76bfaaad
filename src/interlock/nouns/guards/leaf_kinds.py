"""The leaves that people can write, each with its fields.

Definition files, the shell form and the constructors in Python build leaves from this table.  So
what one of them refuses is refused by all, with the same words.  ``validated`` checks a condition
that comes from elsewhere, decoded from JSON or built from the classes, in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from interlock.core import codec, validate
from interlock.core.safe_text import quoted
from interlock.errors import BadDuration, BadInput, BadName, TooLarge
from interlock.nouns.guards import condition as c

TEXT_LIMIT = 4096
"""The most bytes of a path, of a text that a file should contain, and of a pattern."""
COMMAND_LIMIT = 32 * 1024
"""The most bytes of a command with its arguments."""
BRANCH_LIMIT = 250
ENV_LIMIT = 64
LONGEST_COMMAND = 3600.0
_STATUSES = 255
_MILLISECONDS = 3
_NO_BRANCH = r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|^[-/]|[/.]$|//|(?:^|/)\.|\.lock(?:/|$)"
"""What git refuses in the name of a branch: git check-ref-format."""

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
            raise BadInput(f"{self.name} has no field {given}; {meant(name, self.fields)}")
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


def meant(wrong: object, known: Iterable[str]) -> str:
    """The known words that are close to an unknown one, or all of them."""
    words = list(known)
    if close := validate.closest_names(str(wrong)[:100].replace("-", "_"), words):
        return f"did you mean {' or '.join(close)}?"
    return f"there is {words[0]}" if len(words) == 1 else f"there are {', '.join(words)}"


# The fields: each function returns a value as it is kept, or raises BadInput with what to give
# instead.  They take any value at run time, since callers pass on what a file says.


def _lock(value: str) -> str:
    """The name of a lock."""
    from interlock.nouns.grants.request import pool_name

    return pool_name(value, "lock")


def _semaphore(value: str) -> str:
    """The name of a semaphore."""
    from interlock.nouns.grants.request import pool_name

    return pool_name(value, "semaphore")


def _slots(value: int) -> int:
    """A number of slots."""
    return validate.count(value, "number of slots", validate.CAPACITY)


def _requirement(value: str) -> str:
    """A requirement of tasks."""
    return validate.name(value, "requirement")


def _label(value: str) -> str:
    """A label of tasks."""
    return validate.name(value, "label")


def _pipeline(value: str) -> str:
    """The name of a pipeline."""
    return validate.name(value, "pipeline name")


def phase(value: str) -> str:
    """The name of a phase."""
    return validate.name(value, "phase name")


def _state(value: str) -> str:
    """A state of tasks."""
    from interlock.nouns.tasks.task import STATES

    if value not in STATES:
        raise BadInput(f"there is no task state {quoted(str(value))}; {meant(value, STATES)}")
    return value


def _none_ok(value: bool) -> bool:
    """Whether no task at all is complete, too."""
    return validate.flag(value, "none_ok")


def _branch(value: str) -> str:
    """The name of a branch that git allows."""
    name = _filled(value, "branch", BRANCH_LIMIT)
    if name.startswith("refs/heads/"):
        raise BadName(f"a branch goes by its name alone; drop 'refs/heads/' from {quoted(name)}")
    if re.search(_NO_BRANCH, name):
        raise BadName(f"git allows no branch of the name {quoted(name)}; give one that it allows")
    return name


def _path(value: str) -> str:
    """A path below the root, in one way of writing it, so that equal files have equal paths."""
    given = _filled(value, "path", TEXT_LIMIT)
    parts = [part for part in given.split("/") if part not in ("", ".")]
    if given.startswith("/") or ".." in parts or not parts:
        raise BadInput(
            f"the path {quoted(given)} does not stay below the root;"
            " give a relative path without '..'"
        )
    return "/".join(parts)


def _text(value: str) -> str:
    """The text that a file should contain."""
    return _filled(value, "text", TEXT_LIMIT)


def _pattern(value: str) -> str:
    """A regular expression; it is compiled here, and used where it can be stopped."""
    import warnings

    given = _filled(value, "pattern", TEXT_LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "[[" may mean something else some day
            re.compile(given)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadInput(
            f"the pattern {quoted(given)} is no regular expression ({error}); correct it,"
            " or write 'text' if it is plain text"
        ) from None
    return given


def _run(value: str | Iterable[str]) -> str | tuple[str, ...]:
    """A command as a line, or as words."""
    if isinstance(value, str):
        words: tuple[str, ...] = (value,)
    elif isinstance(value, list | tuple):
        words = tuple(value)
    else:
        raise BadInput(f"a command is a list of words, such as ['make', 'test'], not {value!r:.40}")
    size = sum(len(validate.text(word, "command", COMMAND_LIMIT)) for word in words)
    if not words or not words[0].strip():
        raise BadInput("the command is empty; say what to run, such as ['make', 'test']")
    if any("\0" in word for word in words):
        raise BadInput("the command has a NUL character; drop it")
    if size > COMMAND_LIMIT:
        raise TooLarge(f"the command has more than {COMMAND_LIMIT} bytes; put it into a script")
    return value if isinstance(value, str) else words


def _command_words(given: str | tuple[str, ...], *, shell: bool) -> tuple[str, ...]:
    """The words to run: a line is split as a shell splits it, unless a shell runs it."""
    if shell:
        if isinstance(given, tuple) and len(given) > 1:
            raise BadInput("a command for a shell is one text, as in run = 'make test | tail'")
        return (given,) if isinstance(given, str) else given
    if isinstance(given, tuple):
        return given
    import shlex

    try:
        return _run(shlex.split(given))  # type: ignore[return-value]  # words stay words
    except ValueError as error:
        raise BadInput(f"the command {quoted(given)} is not clear ({error}); correct it") from None


def _shell(value: bool) -> bool:
    """Whether a shell runs the command."""
    return validate.flag(value, "shell")


def _expect(value: int | str) -> int | str:
    """The expected status of a command."""
    if value in ("success", "failure"):
        return 0 if value == "success" else value
    if isinstance(value, str):
        raise BadInput(f"expect is a status such as 0, or 'failure', not {quoted(value)}")
    return validate.integer(value, "expected status", 0, _STATUSES)


def _timeout(value: str | float) -> float:
    """How long a command may run, in seconds."""
    seconds = round(validate.duration(value, "timeout"), _MILLISECONDS)
    if not 0 < seconds <= LONGEST_COMMAND:
        raise BadDuration(f"the timeout {value!s:.40} is out of bounds; give 1ms to 1h")
    return seconds


def _env(value: Iterable[str]) -> tuple[str, ...]:
    """The variables that are passed on to a command."""
    names = validate.names(value, "env", ENV_LIMIT)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadName(
                "env lists names of variables that are passed on, such as PATH;"
                f" {quoted(name)} is none"
            )
    return names


def _filled(value: str, what: str, most: int) -> str:
    """A text that is not empty."""
    given = validate.text(value, what, most)
    if not given:
        raise BadInput(f"the {what} is empty; give one, or leave it out")
    if "\0" in given:
        raise BadInput(f"the {what} {quoted(given)} has a NUL character; drop it")
    return given


# The leaves.


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
    words = _command_words(values["run"], shell=values.get("shell", False))
    return c.Command(**{**values, "run": words})


_FINISH: dict[type[c.BaseCondition], Callable[[Values], Any]] = {
    c.TasksComplete: _tasks(c.TasksComplete),
    c.NoBlockedTasks: _tasks(c.NoBlockedTasks),
    c.FileContains: _contains,
    c.Command: _command,
}
_FILTER: Validators = {
    "prefix": validate.task_prefix,
    "state": _state,
    "requires": _requirement,
    "needs": validate.task_id,
    "label": _label,
}
_COMMAND: Validators = {
    "run": _run,
    "shell": _shell,
    "expect": _expect,
    "timeout": _timeout,
    "env": _env,
}
_LEAVES: tuple[tuple[type[c.BaseCondition], Validators, str], ...] = (
    (c.LockFree, {"lock": _lock}, '"deploy"'),
    (c.LockHeld, {"lock": _lock, "by": validate.agent_name}, '{lock = "deploy", by = "ada"}'),
    (
        c.SemaphoreAvailable,
        {"semaphore": _semaphore, "slots": _slots},
        '{semaphore = "builds", slots = 2}',
    ),
    (c.TasksComplete, {**_FILTER, "none_ok": _none_ok}, '{prefix = "build."}'),
    (c.NoBlockedTasks, _FILTER, '{prefix = "build."}'),
    (
        c.PipelineInPhase,
        {"pipeline": _pipeline, "phase": phase},
        '{pipeline = "r1", phase = "test"}',
    ),
    (c.PipelineComplete, {"pipeline": _pipeline}, '"r1"'),
    (c.BranchExists, {"branch": _branch}, '"feature"'),
    (c.BranchClean, {"branch": _branch}, '"feature"'),
    (
        c.BranchMerged,
        {"branch": _branch, "into": _branch},
        '{branch = "feature", into = "main"}',
    ),
    (c.FileExists, {"path": _path}, '"STOP"'),
    (
        c.FileContains,
        {"path": _path, "text": _text, "pattern": _pattern},
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
