"""Who a client is: the actor of each change, the identity behind it, and the trace id it carries.

An ``Actor`` is what one change needs: the agent and the session that the record names.  An
``Identity`` adds what a client knows of its own session.  A trace id groups all entries that were
written for one purpose.
"""

from __future__ import annotations

import os
from _contextvars import ContextVar  # the module contextvars only copies its names
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from interlock.core import validate
from interlock.core.decision import Proof

TRACE: ContextVar[str] = ContextVar("interlock_trace", default="")
"""The trace id for entries that are written in the current context."""


class Actor(Struct, frozen=True, gc=False):
    """The agent and session that make a change; it commits only while all ``given`` grants live."""

    agent: str = ""
    session: str = ""
    trace: str = ""
    given: tuple[Proof, ...] = ()

    @property
    def plain(self) -> Actor:
        """The actor without its ``given`` grants: for follow-up work after the change."""
        return Actor(self.agent, self.session, self.trace) if self.given else self


class Identity(Struct, frozen=True, kw_only=True):
    """The identity of a client: its actor, and what it knows of its session.

    ``caller`` names the waiting party where it is neither a task nor a thread of this process (see
    ``pool.py``).  ``listed`` says that another process began the session, so the client lists its
    grants under ``held/`` for that process.  ``role`` is set if the client does not act for its
    user directly: ``worker``.
    """

    actor: Actor
    session_ttl: float = 0.0
    joined: bool = False
    whole_session: bool = False
    caller: str = ""
    listed: bool = False
    role: str = ""


def host_name() -> str:
    """The name of this host, in sessions and in observations."""
    return os.uname().nodename


@contextmanager
def trace(trace_id: str) -> Iterator[str]:
    """Give this trace id to every entry that any client writes inside the block.

    It holds for the thread or task that runs the block, and for tasks that the block begins.
    """
    token = TRACE.set(validate.name(trace_id, "trace"))
    try:
        yield trace_id
    finally:
        TRACE.reset(token)
