"""Operations on the record."""

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from interlock.core.log import Line
from interlock.faces.operations.shape import Operation, Request, option

if TYPE_CHECKING:
    from interlock.client import Fleet


class Log(Request, frozen=True, kw_only=True):
    """What happened, in order."""

    after: Annotated[
        int | None, option("int", "the first entries after this revision, not the last ones")
    ] = None
    limit: Annotated[int, option("int", "at most so many", least=1)] = 100
    follow: Annotated[bool, option("flag", "go on with new ones as they come, until stopped")] = (
        False
    )


class Entries(Struct, frozen=True, kw_only=True):
    """Entries in the order in which they happened."""

    entries: tuple[Line, ...]


def _log(fleet: "Fleet", request: Log) -> Entries:
    last = request.after is None
    found = fleet.record.log(after=request.after or 0, limit=request.limit, last=last)
    return Entries(entries=found)


OPERATIONS = (
    Operation(
        name="record log",
        help="what happened: the last entries, or those after a revision",
        request=Log,
        outcomes=(Entries,),
        needs="store",
        act=_log,
        examples=("interlock record log --limit 20", "interlock record log --follow --json"),
    ),
)
