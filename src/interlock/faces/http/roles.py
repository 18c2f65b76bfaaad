"""What a caller may do by its role: one list of operations, of fields, and of what agents own.

``read`` is enough for what only reads.  All else is the ordinary work of an agent (``ACT``), or it
needs an admin (``ADMIN``): what changes or ends the work of others, and what changes the limits,
the trust or the rules of the fleet.  A field may need more than its operation (``ADMIN_FIELDS``).
What an agent began itself it may also change and end (``OWN``): a token owns what its agent and the
sub-agents of that began.

Each way over the network asks here: HTTP before it reads a body (``least``), and all of them before
they carry a request out (``permit``).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, TypeAlias

from interlock import registry
from interlock.core import keys, validate
from interlock.faces.http.access import Caller, require
from interlock.runtime.operation import Operation, Request, fields
from interlock.steps import Op, Read, drive

if TYPE_CHECKING:
    from interlock.client import Fleet
    from interlock.nouns.fleet.server_service import Role

Mine: TypeAlias = Callable[[str], bool]
"""Whether an agent is one that the caller speaks for."""

ACT = frozenset({
    "ack", "acquire", "agent log", "agent status", "alert", "budget count", "cancel", "guard check",
    "inbox", "lock acquire", "lock beat", "lock release", "pipeline start", "query", "release",
    "reply", "request result", "request send", "reserve", "schedule add", "sem acquire", "sem beat",
    "sem release", "send", "share", "subscribe", "swarm discover", "swarm share", "swarm shared",
    "task add", "task beat", "task claim", "task done", "task fail", "task next", "task note",
    "task progress", "task release", "unreserve", "unsubscribe",
})  # fmt: skip
"""Operations that change something, and are the ordinary work of an agent."""
ADMIN = frozenset({
    "agent ack", "agent pause", "agent resume", "budget drop", "budget set", "budget uncount",
    "decision resolve", "guard drop", "lock break", "maintain", "merge cancel", "pipeline advance",
    "pipeline cancel", "quarantine drop", "quarantine release", "request cancel", "schedule drop",
    "schedule pause", "schedule resume", "sem break", "sem remove", "sem resize", "stop",
    "swarm allow", "swarm deny", "swarm sync", "swarm trust", "task cancel", "task drop",
    "task edit", "task requeue", "task retry",
})  # fmt: skip
"""Operations that change or end the work of others, or change the fleet."""
ADMIN_FIELDS = {
    "budget count": "task", "schedule add": "replace", "swarm shared": "accept",
    "task add": "again", "unreserve": "holder",
}  # fmt: skip
"""Operations of agents that need an admin if this field is given."""


def least(operation: str) -> Role:
    """The role without which no request for an operation is carried out."""
    if registry.find(operation).reads:
        return "read"
    return "act" if operation in ACT or operation in OWN else "admin"


def needed(operation: str, *, changes: bool, given: Container[str] = ()) -> Role:
    """The role that a request needs, which has ``given`` these fields.

    One that changes something and is in neither list needs an admin: a new operation is not open
    to every agent by mistake.
    """
    if not changes:
        return "read"
    if operation in ADMIN or ADMIN_FIELDS.get(operation) in given:
        return "admin"
    return "act" if operation in ACT or registry.find(operation).reads else "admin"


def permit(
    caller: Caller, operation: Operation, asked: Request, fleet: Fleet, *, changes: bool
) -> None:
    """Refuse a request for which the role of its caller is not enough.

    The store is read only for an agent that has to own what the request is about.
    """
    name = operation.name
    given = [
        each.name
        for each in fields(operation.request)
        if getattr(asked, each.attribute) != each.default
    ]
    role = needed(name, changes=changes, given=given)
    own = OWN.get(name)
    if role != "admin" or caller.role != "act" or own is None:
        require(caller, role, repr(name))
    elif not own(fleet, asked, caller.speaks_for):
        require(caller, role, f"{name!r} of what another agent began")


def _published(fleet: Fleet, task: str, mine: Mine) -> bool:
    return mine(getattr(fleet.tasks.show(task), "published_by", ""))


def _replaces_own_task(fleet: Fleet, asked: Any, mine: Mine) -> bool:  # noqa: ANN401
    if asked.task is None or not (found := fleet.tasks.show(asked.task)):
        return True
    return mine(found.published_by)


def _replaces_own_schedule(fleet: Fleet, asked: Any, mine: Mine) -> bool:  # noqa: ANN401
    found = fleet.schedules.show(asked.schedule)
    return not found or mine(found.added_by)


def _worked_on(fleet: Fleet, asked: Any, mine: Mine) -> bool:  # noqa: ANN401
    """Whether an agent has a task, had it last, or published it."""
    found = fleet.tasks.show(asked.task)
    return any(mine(getattr(found, part, "")) for part in ("holder", "by", "published_by"))


def _sender(request: str) -> Op[str]:
    """The agent that sent a request to another swarm."""
    from interlock.nouns.requests.exchange import decode_request

    key = keys.request(validate.name(request, "request"))
    found = decode_request((yield Read(key))[key])
    return "" if found is None else found.agent


def _starter(pipeline: str) -> Op[str]:
    """The agent that started a pipeline."""
    from interlock.nouns.pipelines.calls import pipeline_id
    from interlock.nouns.pipelines.pipeline_reader import decode_run

    key = keys.pipeline(pipeline_id(pipeline))
    found = decode_run((yield Read(key))[key])
    return "" if found is None else found.starter


def _own_task(fleet: Fleet, asked: Any, mine: Mine) -> bool:  # noqa: ANN401
    return _published(fleet, asked.task, mine)


OWN: dict[str, Callable[[Fleet, Any, Mine], bool]] = {
    "budget count": _worked_on,
    "merge cancel": lambda fleet, asked, mine: mine(
        getattr(fleet.merges.show(asked.merge), "by", "")
    ),
    "pipeline advance": lambda fleet, asked, mine: mine(
        drive(_starter(asked.pipeline), fleet.store)
    ),
    "request cancel": lambda fleet, asked, mine: mine(drive(_sender(asked.request), fleet.store)),
    "schedule add": _replaces_own_schedule,
    "task add": _replaces_own_task,
    "task cancel": _own_task,
    "task drop": lambda fleet, asked, mine: all(
        _published(fleet, id_, mine) for id_ in asked.tasks
    ),
    "task edit": _own_task,
    "task retry": _own_task,
    "unreserve": lambda _, asked, mine: mine(asked.holder),
}
"""Requests for an admin that an agent may also make about what it began itself."""
