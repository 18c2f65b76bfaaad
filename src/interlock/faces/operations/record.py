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


class Gap(Struct, frozen=True, kw_only=True, tag_field="gap", tag="trimmed"):
    """Entries after a revision may be gone: those that are left begin later, or are none (0)."""

    after: int
    begins: int


class Entries(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Entries in the order in which they happened."""

    entries: tuple[Line, ...]
    gap: Gap | None = None


def _log(fleet: "Fleet", request: Log) -> Entries:
    last = request.after is None
    found = fleet.record.log(after=request.after or 0, limit=request.limit, last=last)
    return Entries(entries=found, gap=gap(fleet, request.after) if request.after else None)


def gap(fleet: "Fleet", after: int) -> Gap | None:
    """What is missing after a revision, as far as the record tells: its oldest entries go first."""
    oldest = fleet.record.log(limit=1, last=False)
    begins = oldest[0].revision if oldest else 0
    return None if 0 < begins <= after else Gap(after=after, begins=begins)


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
