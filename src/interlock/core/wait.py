"""Waits and callers, as other processes find them.

A *caller* is the task, thread, process or shell that acts for a session.  A deadlock is about
callers, so a grant stores the name of its caller and a wait the name of its own.

A wait for a pool stands in the queue of the pool.  A wait for a task, for an answer or for a guard
stands in no queue and is an item of its own (``UnqueuedWait``).  Both are listed,
``waits/{name}/{id}``, under every name that cannot go on while the wait lasts:

    its agent    always: another agent may wait for an answer of this agent or its session
    its caller   if the caller may have something that others wait for
    ``also``     the claims that its caller works on, if they have names of their own; for a guard,
                 the things that its caller acquires when the guard passes

A list says where to look and is never the truth: a queued wait exists while it stands in the queue,
an unqueued one while its liveness key exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.core import keys
from interlock.core.decision import Write

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # to make a class of a protocol takes a tenth of a millisecond

SESSION_CALLER = "*"
AGENT_CALLER = "@"
NAMED_CALLER = "="
"""The first character of a stored caller: the session as a whole, the agent's name on the host that
follows, or another name that follows; any other caller is a task or a thread with a unique name.
A caller inside of another is named ``a/b``; after a name that follows, ``/*`` is its session."""
_AGENT = "agent:"
_SESSION = "session:"
_BEFORE = "before:"


class UnqueuedWait(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A wait for a task, a query or a guard; ``wants`` is the key of that."""

    wants: str
    agent: str
    session: str
    live: str
    since: float
    caller: str = ""
    indexed: bool = False
    also: tuple[str, ...] = ()


class CallerFields(Protocol):
    """The fields that name a caller: in a grant, a request and a wait."""

    @property
    def agent(self) -> str:
        """The name of its agent."""

    @property
    def session(self) -> str:
        """The session of the agent."""

    @property
    def caller(self) -> str:
        """The caller within the session, as it is stored."""


class WaiterFields(CallerFields, Protocol):
    """The fields that say where a wait is listed."""

    @property
    def indexed(self) -> bool:
        """Whether it is listed under its caller."""

    @property
    def also(self) -> tuple[str, ...]:
        """The other names that it is listed under."""


class QueuedWait(WaiterFields, Protocol):
    """A wait that stands in a queue."""

    @property
    def id(self) -> str:
        """The id of the wait."""

    @property
    def live(self) -> str:
        """Its liveness key."""

    @property
    def weight(self) -> int:
        """How much it needs of the target."""

    @property
    def order(self) -> int | None:
        """When it began, as a token."""

    @property
    def together(self) -> tuple[str, ...]:
        """All targets that it waits for, if there are several."""


def caller_name(agent: str, session: str, caller: str) -> str:
    """The name of a caller in the whole store; empty if it is unknown.

    Its grants are released only if this caller goes on.
    """
    match caller[:1]:
        case "*":
            return session
        case "@":
            return f"{_AGENT}{keys.encode(agent)}{caller}"
        case "=":
            return f"{caller[1:-1]}{session}" if caller.endswith("/*") else caller[1:]
        case _:
            return caller


def caller_name_of(fields: CallerFields) -> str:
    """The name of the caller of a grant or a wait."""
    return caller_name(fields.agent, fields.session, fields.caller)


def agent_caller_name(agent: str) -> str:
    """The name of an agent as a whole, by which others wait for its answer."""
    return _AGENT + keys.encode(agent).replace("@", "%40")


def session_caller_name(session: str) -> str:
    """The name of a session as a whole, by which others wait for its answer; it holds nothing."""
    return _SESSION + session


def before_thing(thing: str) -> str:
    """The name under which waits for guards are listed that stand before a thing."""
    return _BEFORE + keys.encode(thing)


def is_shared_name(caller: str) -> bool:
    """Whether several callers may have this name at the same time."""
    return caller.startswith(_AGENT) and AGENT_CALLER in caller


def wait_keys(wait: WaiterFields, id_: str) -> tuple[str, ...]:
    """The keys that a wait is listed under."""
    own = caller_name_of(wait) if wait.indexed else ""
    names = (agent_caller_name(wait.agent), own, *wait.also)
    return tuple(dict.fromkeys([keys.waits(name, id_) for name in names if name]))


def wait_writes(wait: UnqueuedWait, id_: str) -> tuple[Write, ...]:
    """The writes that list a wait without a queue."""
    return tuple([Write(key, wait) for key in wait_keys(wait, id_)])
