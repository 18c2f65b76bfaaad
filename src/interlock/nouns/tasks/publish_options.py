"""The options of publishing, which tasks and schedules share."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from interlock.core import keys
from interlock.errors import BadInput
from interlock.nouns.tasks import task as task_types
from interlock.runtime.operation import Duration, Request, option

if TYPE_CHECKING:
    from interlock.steps import Op

Names: TypeAlias = tuple[str, ...]
Task = Annotated[str, option("name", "the id of the task", positional=True)]
JSON = "JSON, up to 1 MiB"

Title = Annotated[str, option("text", "what it is about, in a line")]
Text = Annotated[str, option("body", "what to do, in any words, up to 64 KiB")]
Data = Annotated[Any, option("json", f"the data for its worker: {JSON}")]
PRIORITY_OPTION = option(
    "int", "a lower number comes first", least=keys.LEAST_PRIORITY, most=keys.GREATEST_PRIORITY
)
Priority = Annotated[int, PRIORITY_OPTION]
Needs = Annotated[Names, option("names", "tasks that must be complete before it starts")]
Requires = Annotated[Names, option("names", "abilities that 'task next' asks of the worker")]
Labels = Annotated[Names, option("names", "labels to filter by")]
Guards = Annotated[Names, option("names", "guards that must pass before it can be claimed")]
Evidence = Annotated[Names, option("names", "guards that must pass before it can be completed")]
Retries = Annotated[
    int, option("int", "how often a failed attempt is repeated", most=task_types.MOST_RETRIES)
]
Backoff = Annotated[
    Duration, option("duration", "pause after a failed attempt, doubled with each one")
]
BackoffMost = Annotated[Duration, option("duration", "the longest pause")]
_SHARED = (
    "title", "text", "priority", "needs", "requires", "label", "guard", "evidence", "deadline",
    "retries", "backoff", "backoff_most",
)  # fmt: skip
_ARGUMENTS = {"label": "labels"}


def shared_terms(request: Request) -> dict[str, Any]:
    """The arguments of a call that publishes, as far as tasks and schedules share them."""
    return {_ARGUMENTS.get(name, name): getattr(request, name) for name in _SHARED}


def value_or_file(value: Any, file: str | None, what: str) -> "Op[Any]":  # noqa: ANN401 - any JSON value
    """A value as it was given, or the reference to a file."""
    if file is None:
        return value
    from interlock.nouns.tasks.file_values import reference

    if value is not None:
        raise BadInput(f"--file is instead of --{what}; give one of them")
    return (yield from reference(file))
