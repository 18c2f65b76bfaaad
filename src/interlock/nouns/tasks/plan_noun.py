"""The operation that publishes a whole plan: ``task import``."""

from typing import TYPE_CHECKING, Annotated

from interlock.core.outcomes import GivenFenced
from interlock.errors import BadInput, TooLarge
from interlock.nouns.tasks.plan_rules import Checked, Imported, PlanExists
from interlock.runtime.noun import Noun
from interlock.runtime.operation import Given, Operation, Request, option

if TYPE_CHECKING:
    from interlock.drivers import Op
    from interlock.runtime.fleet_calls import FleetCalls

LARGEST = 256 * 1024 * 1024


class TaskImport(Request, frozen=True, kw_only=True):
    """Publish a whole plan."""

    file: Annotated[
        str,
        option("text", "a JSON array of tasks, or JSON Lines; - is stdin", positional=True),
    ]
    id: Annotated[str | None, option("name", "the id of the plan; its digest if left out")] = None
    dry_run: Annotated[bool, option("flag", "only check it, and write nothing")] = False
    given: Given = ()


def _import(
    fleet: "FleetCalls", request: TaskImport
) -> "Op[Imported | Checked | PlanExists | GivenFenced]":
    from interlock.nouns.tasks.plan import read

    specs = read(_text(request.file))
    return fleet.tasks.publish_all(specs, id=request.id, dry_run=request.dry_run)


def _text(file: str) -> bytes:
    """What stands in a file, or comes in."""
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
    return text


NOUN = Noun(
    name="plan",
    texts=("interlock.nouns.tasks.text",),
    operations=(
        Operation(
            name="task import",
            help="publish a whole plan: all of its tasks, or none",
            request=TaskImport,
            outcomes=(Imported, Checked, PlanExists, GivenFenced),
            needs="agent",
            aliases=("task publish-all",),
            act=_import,
            examples=(
                "interlock task import plan.json --agent ada",
                "interlock task import plan.jsonl --agent ada --dry-run",
                "make-plan | interlock task import - --agent ada --id release-7 --json",
            ),
        ),
    ),
)
