"""The fields of leaves: what a legal value of each is.

Each function returns the value as it is kept, or raises ``BadInput`` with what to give instead.
They take any value at run time, since callers pass on what a file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from interlock.core import validate
from interlock.core.safe_text import quoted
from interlock.errors import BadDuration, BadInput, BadName, TooLarge

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


def meant(wrong: object, known: Iterable[str]) -> str:
    """The known words that are close to an unknown one, or all of them."""
    words = list(known)
    if close := validate.closest_names(str(wrong)[:100].replace("-", "_"), words):
        return f"did you mean {' or '.join(close)}?"
    return f"there is {words[0]}" if len(words) == 1 else f"there are {', '.join(words)}"


def lock(value: str) -> str:
    """The name of a lock."""
    from interlock.nouns.grants.request import pool_name

    return pool_name(value, "lock")


def semaphore(value: str) -> str:
    """The name of a semaphore."""
    from interlock.nouns.grants.request import pool_name

    return pool_name(value, "semaphore")


def slots(value: int) -> int:
    """A number of slots."""
    return validate.count(value, "number of slots", validate.CAPACITY)


def requirement(value: str) -> str:
    """A requirement of tasks."""
    return validate.name(value, "requirement")


def label(value: str) -> str:
    """A label of tasks."""
    return validate.name(value, "label")


def pipeline(value: str) -> str:
    """The name of a pipeline."""
    return validate.name(value, "pipeline name")


def phase(value: str) -> str:
    """The name of a phase."""
    return validate.name(value, "phase name")


def prefix(value: str) -> str:
    """The beginning of task ids; empty for all."""
    if not validate.require_text(value, "prefix"):
        return value
    try:
        return validate.task_id(value + "x")[:-1]  # "build/" begins an id, and is none itself
    except BadInput:
        raise BadName(
            f"no task id begins with {quoted(value)}; give the beginning of ids, such as 'build.'"
        ) from None


def state(value: str) -> str:
    """A state of tasks."""
    from interlock.nouns.tasks.task import STATES

    if value not in STATES:
        raise BadInput(f"there is no task state {quoted(str(value))}; {meant(value, STATES)}")
    return value


def none_ok(value: bool) -> bool:
    """Whether no task at all is complete, too."""
    return validate.flag(value, "none_ok")


def branch(value: str) -> str:
    """The name of a branch that git allows."""
    name = _filled(value, "branch", BRANCH_LIMIT)
    if name.startswith("refs/heads/"):
        raise BadName(f"a branch goes by its name alone; drop 'refs/heads/' from {quoted(name)}")
    if re.search(_NO_BRANCH, name):
        raise BadName(f"git allows no branch of the name {quoted(name)}; give one that it allows")
    return name


def path(value: str) -> str:
    """A path below the root, in one way of writing it, so that equal files have equal paths."""
    given = _filled(value, "path", TEXT_LIMIT)
    parts = [part for part in given.split("/") if part not in ("", ".")]
    if given.startswith("/") or ".." in parts or not parts:
        raise BadInput(
            f"the path {quoted(given)} does not stay below the root;"
            " give a relative path without '..'"
        )
    return "/".join(parts)


def text(value: str) -> str:
    """The text that a file should contain."""
    return _filled(value, "text", TEXT_LIMIT)


def pattern(value: str) -> str:
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


def run(value: str | Iterable[str]) -> str | tuple[str, ...]:
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


def command_words(given: str | tuple[str, ...], *, shell: bool) -> tuple[str, ...]:
    """The words to run: a line is split as a shell splits it, unless a shell runs it."""
    if shell:
        if isinstance(given, tuple) and len(given) > 1:
            raise BadInput("a command for a shell is one text, as in run = 'make test | tail'")
        return (given,) if isinstance(given, str) else given
    if isinstance(given, tuple):
        return given
    import shlex

    try:
        return run(shlex.split(given))  # type: ignore[return-value]  # words stay words
    except ValueError as error:
        raise BadInput(f"the command {quoted(given)} is not clear ({error}); correct it") from None


def shell(value: bool) -> bool:
    """Whether a shell runs the command."""
    return validate.flag(value, "shell")


def expect(value: int | str) -> int | str:
    """The expected status of a command."""
    if value in ("success", "failure"):
        return 0 if value == "success" else value
    if isinstance(value, str):
        raise BadInput(f"expect is a status such as 0, or 'failure', not {quoted(value)}")
    return validate.integer(value, "expected status", 0, _STATUSES)


def timeout(value: str | float) -> float:
    """How long a command may run, in seconds."""
    seconds = round(validate.duration(value, "timeout"), _MILLISECONDS)
    if not 0 < seconds <= LONGEST_COMMAND:
        raise BadDuration(f"the timeout {value!s:.40} is out of bounds; give 1ms to 1h")
    return seconds


def env(value: Iterable[str]) -> tuple[str, ...]:
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
