"""Observing everything that happens in a fleet."""

from typing import TYPE_CHECKING, Annotated

from interlock.core.events import Counters, Observed
from interlock.errors import BadInput
from interlock.runtime.operation import Operation, Request, option

if TYPE_CHECKING:
    from interlock.client import Fleet

_MINUTE = "1m"


class ObserveRequest(Request, frozen=True, kw_only=True):
    """All that happens, as it happens."""

    noun: Annotated[
        tuple[str, ...], option("names", "only these: message, query, task, lock, agent ...")
    ] = ()
    after: Annotated[
        int | None, option("int", "begin with what happened after this revision, not now")
    ] = None
    counters: Annotated[bool, option("flag", "not what happens, but what it comes to")] = False
    since: Annotated[
        str | None,
        option("text", "count since then: 5m (1m unless set), or a time: 2026-11-15T10:00"),
    ] = None


def fitting(request: ObserveRequest) -> ObserveRequest:
    """What goes together: events after a revision, or counters since a time."""
    if request.counters and (request.noun or request.after is not None):
        raise BadInput("--counters is of all that happened; leave --noun and --after out")
    if request.since is not None and not request.counters:
        raise BadInput("--since is for --counters; events begin --after a revision, or now")
    return request


def _counters(fleet: "Fleet", request: ObserveRequest) -> Counters:
    since = fitting(request).since
    return fleet.counters(since=_MINUTE if since is None else since)


OPERATIONS = (
    Operation(
        name="observe",
        help="everything that happens, as it happens; or what it comes to",
        request=ObserveRequest,
        outcomes=(Counters,),
        lines=(Observed,),
        needs="store",
        act=_counters,
        examples=(
            "interlock observe --json",
            "interlock observe --noun message,query",
            "interlock observe --counters --since 5m",
        ),
    ),
)
