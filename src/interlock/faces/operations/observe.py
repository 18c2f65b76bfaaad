"""Observing everything that happens in a fleet."""

from typing import TYPE_CHECKING, Annotated

from interlock.core.observed import Counters, Observed
from interlock.faces.operations.shape import Operation, Request, option

if TYPE_CHECKING:
    from interlock.client import Fleet


class Observe(Request, frozen=True, kw_only=True):
    """All that happens, as it happens."""

    noun: Annotated[
        tuple[str, ...], option("names", "only these: message, query, task, lock, agent ...")
    ] = ()
    after: Annotated[
        int | None, option("int", "begin with what happened after this revision, not now")
    ] = None
    counters: Annotated[bool, option("flag", "not what happens, but what it comes to")] = False
    since: Annotated[
        str, option("text", "count since then: 5m back from now, or a time: 2026-11-15T10:00")
    ] = "1m"


def _counters(fleet: "Fleet", request: Observe) -> Counters:
    return fleet.counters(since=request.since)


OPERATIONS = (
    Operation(
        name="observe",
        help="everything that happens, as it happens; or what it comes to",
        request=Observe,
        outcomes=(Counters, Observed),
        needs="store",
        act=_counters,
        examples=(
            "interlock observe --json",
            "interlock observe --noun message,query",
            "interlock observe --counters --since 5m",
        ),
    ),
)
