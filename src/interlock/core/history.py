"""What a story is made of: one thing that happened to one agent, and how long something lasted."""

from __future__ import annotations

from msgspec import Struct

from interlock.core.log import RecordLine


class Happening(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to an agent.

    what        acquired, waiting, withdrew, released, reclaimed, refused (``reason`` says why),
                broken and requeued (an operator, ``by``, ended it, and ``says`` why);
                joined, left, lapsed for a session; published, blocked, unblocked, ready, claimed,
                completed, failed, dead, cancelled, retried for a task; sent, received for a
                message; asked, replied, expired, handed, cancelled for a question; stop for who is
                asked to end; forgotten; else the outcome of the entry
    held        for how many seconds, where it ended, or was worked on; ``waited`` likewise
    behind      who held it when the wait began
    count       how many of them are one line; ``on`` says of what
    came_from   whose grant ended in the same commit; ``went_to`` is the other side of it
    by          who did it, where that was somebody else
    on          the need that a task hangs on from now on, or does not any more; the type of an
                alert; the decision that a question was handed over as
    attempt     how often somebody has begun with a task, where all of it is known
    rests       for how many seconds nobody may begin with it
    says        why it failed, in the words of whoever said so: of the last time alone, since the
                record has no words
    trace       what it was done for: of whoever gets or loses something by the hand of another,
                the trace under which it began to wait, or acquired
    """

    revision: int
    at: float
    agent: str
    what: str
    thing: str
    token: int | None = None
    held: float | None = None
    waited: float | None = None
    behind: tuple[str, ...] = ()
    came_from: tuple[str, ...] = ()
    went_to: tuple[str, ...] = ()
    by: str = ""
    on: str = ""
    attempt: int | None = None
    rests: float | None = None
    count: int | None = None
    reason: str = ""
    says: str = ""
    session: str = ""
    trace: str = ""


class Open(Struct, frozen=True, kw_only=True):
    """A grant, a claim or a wait that has not ended yet."""

    at: float
    session: str
    trace: str
    token: int | None = None


def said(line: RecordLine, agent: str, what: str, thing: str, **more: object) -> Happening:
    """What an entry says of an agent."""
    return Happening(
        revision=line.revision,
        at=line.at,
        agent=agent,
        what=what,
        thing=thing,
        **{  # type: ignore[arg-type]  # the callers are in two modules
            "by": "" if line.agent == agent else line.agent,
            "trace": line.trace,
            **more,
        },
    )


def lasted(began: Open | None, line: RecordLine) -> float | None:
    """Seconds since it began; clocks of two machines may disagree, but nothing ends before."""
    return None if began is None else round(max(line.at - began.at, 0.0), 3)
