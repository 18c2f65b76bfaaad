"""Reports: what a session says of itself.

    idle      there is nothing to do
    waiting   there is work, but none of it is for this one now
    busy      at work, ``doing`` something (``task/t1``)

A report is one item, ``reports/{session}``, written when something in it changes: that is recorded,
and others are woken.  A state that is new begins with a clean slate: what a session did and noted
belongs to the state before, unless it is said again.  What it ``can`` do stays until it is said
anew.

Between two changes a session that is kept alive is heard of at a pace that follows its state: often
while it works, seldom while there is nothing to do.  That is for people.  It decides nothing, since
whether grants are reclaimed is for the liveness of the session alone.  It is a liveness key beside
it (``live/{session}.heard``), because a quiet write to a recorded item would look like tampering to
whoever verifies the record, and because the engine's own clock then says how long ago it was: of
the time that the key was given, what is left tells what has passed.

Who promised a pace and missed ``SILENT`` of them is silent: perhaps it hangs, though something in
it still beats for the session.  A shell promises none (``pace`` 0), and is never silent.  A report
ends with its session, in the same commit, and that of a lapsed session is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Success, Write
from interlock.nouns.agents.session_rules import SessionLapsed

ReportState: TypeAlias = Literal["idle", "waiting", "busy"]

STATES: tuple[ReportState, ...] = get_args(ReportState)
PACES: Mapping[ReportState, float] = {"busy": 30.0, "waiting": 60.0, "idle": 300.0}
"""Seconds between two signs of life, unless the settings say otherwise."""
SILENT = 3
"""Paces without a word after which somebody should look."""
REMEMBERED = 86400.0
"""For so long, at least, it is known when a session was last heard of."""


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session said last of itself."""

    agent: str
    session: str
    state: ReportState
    at: float
    can: tuple[str, ...] = ()
    doing: str = ""
    note: str = ""
    pace: float = 0.0


class ReportUpdate(Struct, frozen=True, kw_only=True):
    """What there is to say; None leaves it as it was.  ``paces`` are for who keeps them."""

    state: ReportState | None = None
    can: tuple[str, ...] | None = None
    doing: str | None = None
    note: str | None = None
    paces: Mapping[ReportState, float] | None = None


class Reported(Success, frozen=True, kw_only=True, tag="reported"):
    """What the session says of itself now."""

    agent: str
    session: str
    status: ReportState
    at: float
    can: tuple[str, ...] = ()
    doing: str = ""
    note: str = ""
    pace: float = 0.0


class Unreported(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """The session has said nothing of itself yet."""

    session: str


def update_report(
    before: Report | None, agent: str, session: str, ask: ReportUpdate, *, alive: bool, now: float
) -> Decision[Reported | SessionLapsed]:
    """Say it if there is anything new in it; else only be heard."""
    if not alive:
        return Decision(outcome=SessionLapsed(session=session))
    after = _after(before or Report(agent=agent, session=session, state="idle", at=now), ask)
    if before is not None and after == before:
        return Decision(outcome=report_outcome(before), puts=(sign_of_life(before),), quiet=True)
    return Decision(
        outcome=report_outcome(replace(after, at=now)),
        verb="agent.status",
        thing=f"agent/{agent}",
        puts=report_writes(replace(after, at=now)),
        deletes=() if before is None else removed_abilities(before, after.can),
        events=(Event("agent:status", agent),),
    )


def _after(before: Report, ask: ReportUpdate) -> Report:
    state = ask.state or before.state
    same = state == before.state
    return replace(
        before,
        state=state,
        can=before.can if ask.can is None else ask.can,
        doing=(before.doing if same else "") if ask.doing is None else ask.doing,
        note=(before.note if same else "") if ask.note is None else ask.note,
        pace=0.0 if ask.paces is None else ask.paces[state],
    )


class CapableAgent(Struct, frozen=True, gc=False):
    """Somebody who is able to do something, while a liveness key lives.

    A session, as it reports; or a caller that takes messages, and said so when it began.
    """

    agent: str
    session: str
    live: str


def report_writes(report: Report) -> tuple[Write, ...]:
    """What a report is in the store, where others find it by what it can do."""
    able = CapableAgent(report.agent, report.session, keys.live(report.session))
    return (
        Write(keys.report(report.session), report),
        sign_of_life(report),
        *[Write(keys.able(each, report.session), able) for each in report.can],
    )


def removed_abilities(report: Report, can: Iterable[str] = ()) -> tuple[str, ...]:
    """What no longer stands when a session can do only this."""
    gone = [each for each in report.can if each not in can]
    return tuple([keys.able(each, report.session) for each in gone])


def sign_of_life(report: Report) -> Write:
    """The sign that a session was heard of."""
    return Write(
        keys.report_live(report.session), {"agent": report.agent}, _remembered(report.pace)
    )


def seconds_silent(report: Report, left: float | None, now: float) -> float:
    """Seconds since a session was last heard of; ``left`` is what its sign of life has left.

    If even that lapsed, nothing but the clocks of two machines can tell.
    """
    if left is None:
        return max(now - report.at, 0.0)
    return max(_remembered(report.pace) - left, 0.0)


def is_silent(report: Report, unheard: float) -> bool:
    """Whether it promised to be heard of, and was not."""
    return 0 < report.pace * SILENT < unheard


def report_outcome(report: Report) -> Reported:
    """A report as an answer."""
    return Reported(
        agent=report.agent,
        session=report.session,
        status=report.state,
        at=report.at,
        can=report.can,
        doing=report.doing,
        note=report.note,
        pace=report.pace,
    )


def describe(report: Report) -> str:
    """How somebody stands, as part of a sentence: ``busy with task/t1``."""
    return f"{report.state} with {report.doing}" if report.doing else report.state


def _remembered(pace: float) -> float:
    return max(REMEMBERED, 2 * SILENT * pace)
