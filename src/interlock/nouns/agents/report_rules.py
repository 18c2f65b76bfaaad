"""Rules for reports: the status that a session reports of itself.

    idle      there is no work
    waiting   there is work, but none that this session can do now
    busy      at work, ``doing`` something (``task/t1``)

Any other word, such as ``building``, is a state as well; it counts as ``busy``.

A report is one item, ``reports/{session}``.  It is written when something in it changes; the change
is recorded and wakes watchers.  A new state clears ``doing`` and ``note``, unless the update gives
them.

``can`` is what the session can do: it chooses the tasks of each claim that names no abilities of
its own.  It stays until an update replaces it.  A worker with abilities of its own adds them
(``also``), so two workers of one session do not hide each other's.  A new ability wakes the waits
for a task.

Between two changes a session renews a sign of life at a pace that follows its state: often while it
works, rarely while it is idle.  People read it; no decision depends on it, since only the liveness
of the session decides whether its grants are reclaimed.  The sign is a liveness key
(``live/{session}.heard``) for two reasons: a quiet write to a recorded item would look like
tampering to ``record verify``, and the remaining ttl of the key gives its age by the clock of the
engine.

A session that missed its pace ``SILENT`` times is silent: its process may hang although its keeper
still renews the session.  In a shell a script keeps the pace: each of its commands is a sign of
life, and it is silent when none came for the time after which an agent counts as dead, beyond its
pace.  The session of a coding agent has no pace (0), since a model may think for long, and is never
silent.
The commit that ends a session deletes its report; that of an expired session no longer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace

from interlock.core import keys, outcomes
from interlock.core.decision import Decision, Event, Success, Write
from interlock.core.safe_text import foreign
from interlock.core.validate import ALL_ABILITIES, CAN_LIMIT
from interlock.nouns.agents.session_rules import SessionLapsed

ReportState: TypeAlias = Literal["idle", "waiting", "busy"]

STATES: tuple[ReportState, ...] = get_args(ReportState)
PACES: Mapping[ReportState, float] = {"busy": 30.0, "waiting": 60.0, "idle": 300.0}
"""Seconds between two signs of life, by default."""
SILENT = 3
"""Missed paces after which a session counts as silent."""
REMEMBERED = 86400.0
"""Seconds for which the store keeps a sign of life, at least."""


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last report of a session."""

    agent: str
    session: str
    state: str
    at: float
    can: tuple[str, ...] = ()
    doing: str = ""
    note: str = ""
    pace: float = 0.0


class ReportUpdate(Struct, frozen=True, kw_only=True):
    """A change of a report; None leaves a field.  Without ``paces`` the session has none."""

    state: str | None = None
    can: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    doing: str | None = None
    note: str | None = None
    paces: Mapping[ReportState, float] | None = None


class Reported(Success, frozen=True, kw_only=True, tag="reported"):
    """The session's report as it is now."""

    agent: str
    session: str
    status: str
    at: float
    can: tuple[str, ...] = ()
    doing: str = ""
    note: str = ""
    pace: float = 0.0


class Unreported(outcomes.Nothing, frozen=True, kw_only=True, tag="nothing"):
    """The session has not reported yet."""

    session: str


def update_report(
    before: Report | None,
    agent: str,
    session: str,
    update: ReportUpdate,
    *,
    alive: bool,
    now: float,
) -> Decision[Reported | SessionLapsed]:
    """Record a report that changed; otherwise only renew the sign of life."""
    if not alive:
        return Decision(outcome=SessionLapsed(session=session))
    after = _after(before or Report(agent=agent, session=session, state="idle", at=now), update)
    if before is not None and after == before:
        return Decision(outcome=report_outcome(before), puts=(sign_of_life(before),), quiet=True)
    return Decision(
        outcome=report_outcome(replace(after, at=now)),
        verb="agent.status",
        thing=f"agent/{agent}",
        puts=report_writes(replace(after, at=now)),
        deletes=() if before is None else removed_abilities(before, after.can),
        signals=_wakes(before, after),
        events=(Event("agent:status", agent),),
    )


def _wakes(before: Report | None, after: Report) -> tuple[str, ...]:
    """The signal for waits for a task, if the session can do more than before."""
    more = set(after.can).difference(() if before is None else before.can)
    return (keys.wake_ready(keys.NO_REQUIREMENTS),) if more else ()


def _after(before: Report, update: ReportUpdate) -> Report:
    state = update.state or before.state
    same = state == before.state
    return replace(
        before,
        state=state,
        can=_able(before.can if update.can is None else update.can, update.also),
        doing=(before.doing if same else "") if update.doing is None else update.doing,
        note=(before.note if same else "") if update.note is None else update.note,
        pace=0.0 if update.paces is None else update.paces[kind_of(state)],
    )


def _able(can: tuple[str, ...], also: tuple[str, ...]) -> tuple[str, ...]:
    """Abilities and further ones, as many as a report may have."""
    every = tuple(dict.fromkeys((*can, *also)))
    return (ALL_ABILITIES,) if ALL_ABILITIES in every else every[-CAN_LIMIT:]


def kind_of(state: str) -> ReportState:
    """What a state counts as: a word of the agent's own is busy."""
    return next((each for each in STATES if each == state), "busy")


class CapableAgent(Struct, frozen=True, gc=False):
    """An agent with an ability, for as long as a liveness key lives.

    It is a session that reports the ability, or a receiver that declared it when it started.
    """

    agent: str
    session: str
    live: str


def report_writes(report: Report) -> tuple[Write, ...]:
    """The items of a report, with an index by ability."""
    able = CapableAgent(report.agent, report.session, keys.live(report.session))
    return (
        Write(keys.report(report.session), report),
        sign_of_life(report),
        *[Write(keys.able(each, report.session), able) for each in report.can],
    )


def removed_abilities(report: Report, can: Iterable[str] = ()) -> tuple[str, ...]:
    """The index keys of abilities that are not in ``can``."""
    gone = [each for each in report.can if each not in can]
    return tuple([keys.able(each, report.session) for each in gone])


def sign_of_life(report: Report) -> Write:
    """The write that renews a session's sign of life."""
    return Write(
        keys.report_live(report.session), {"agent": report.agent}, _remembered(report.pace)
    )


def seconds_silent(report: Report, left: float | None, now: float) -> float:
    """Seconds since a session's last sign of life, which has ``left`` seconds of its ttl.

    If the sign expired, the wall clocks of the two machines are compared instead.
    """
    if left is None:
        return max(now - report.at, 0.0)
    return max(_remembered(report.pace) - left, 0.0)


def is_silent(report: Report, unheard: float, *, late: float | None = None) -> bool:
    """Whether the session missed its pace; a shell may be ``late`` by so many seconds."""
    patience = report.pace * SILENT if late is None else report.pace + late
    return report.pace > 0 and unheard > patience


def report_outcome(report: Report) -> Reported:
    """A report as an outcome."""
    fields = asdict(report)
    return Reported(status=fields.pop("state"), **fields)


def describe(report: Report) -> str:
    """The state as part of a sentence: ``busy with task/t1``."""
    return f"{report.state} with {foreign(report.doing)}" if report.doing else report.state


def _remembered(pace: float) -> float:
    return max(REMEMBERED, 2 * SILENT * pace)
