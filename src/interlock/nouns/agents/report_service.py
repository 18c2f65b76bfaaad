"""Writes and reads the reports of sessions; the keeper repeats them at their pace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec

from interlock.core import codec, keys, validate
from interlock.errors import BadInput
from interlock.nouns.agents import report_rules
from interlock.nouns.agents.session_rules import Session, SessionLapsed, is_hosted
from interlock.runtime import reads
from interlock.runtime.attempt import DecideOp, ReadOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every_inside
from interlock.runtime.runner import Decided, Runner
from interlock.settings import Settings
from interlock.steps import Op, Read
from interlock.store import Item, Range, Snapshot

NOTE_LIMIT = 1024
STATE_LIMIT = 40
NEVER = float("inf")
AGAIN = 1.0
"""Seconds until a failed report is retried."""
CALM = 5.0
"""Seconds between two reports of a session whose state changes all the time."""

_ABLE = codec.Decoder(report_rules.CapableAgent)
_read_session = codec.Decoder(Session).read_if_present

decode_report = codec.Decoder(report_rules.Report).read_if_present


def write_report(
    runner: Runner, actor: Actor, update: report_rules.ReportUpdate, *, shell: bool = False
) -> Op[report_rules.Reported | SessionLapsed]:
    """Update the report of this session; only a change is recorded.

    In a ``shell`` the session may be that of a coding agent, which has no pace.
    """
    own, live = keys.report(actor.session), keys.live(actor.session)
    session = keys.session(actor.session)

    def deciding() -> DecideOp[report_rules.Reported | SessionLapsed]:
        snapshot = yield (own, live, *((session,) if shell else ()))
        before, alive = decode_report(snapshot[own]), snapshot[live] is not None
        now, said = runner.clock.wall(), update
        if shell and is_hosted(_read_session(snapshot[session])):
            said = msgspec.structs.replace(update, paces=None)
        return report_rules.update_report(
            before, actor.agent, actor.session, said, alive=alive, now=now
        )

    done: Decided[report_rules.Reported | SessionLapsed] = yield from runner.change(deciding, actor)
    return done.outcome


def last_report(session: str) -> Op[report_rules.Reported | report_rules.Unreported]:
    """The last report of a session."""
    snapshot: Snapshot = yield Read(keys.report(session))
    found = decode_report(snapshot[keys.report(session)])
    return (
        report_rules.Unreported(session=session)
        if found is None
        else report_rules.report_outcome(found)
    )


class _Before(msgspec.Struct, frozen=True):
    """The report before a wait for work."""

    update: report_rules.ReportUpdate | None
    look: Callable[[], Op[report_rules.ReportState]] | None
    due: float
    said: float


class StatusReporter:
    """Reports the status of a worker: at once when it changes, then at its pace.

        fleet.pulse.be("busy", doing="task/t1")

    No method blocks: the keeper writes the report (only it calls ``wait`` and ``run``).  If the
    status changes faster than that, the last one is written.
    """

    what = "reports of the status"

    def __init__(
        self,
        runner: Runner,
        actor: Actor,
        paces: Mapping[report_rules.ReportState, float],
        wake: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._calm = runner.capabilities.allow(CALM)
        self._who = actor
        self._paces = paces
        self._clock = runner.clock
        self._wake = wake
        self._update: report_rules.ReportUpdate | None = None
        self._look: Callable[[], Op[report_rules.ReportState]] | None = None
        self._said = -NEVER
        self._due = NEVER
        self._guard = threading.RLock()  # a signal handler may wait for work, too
        self._waits: set[object] = set()
        self._before: _Before | None = None
        self._woken = -NEVER
        self._can: tuple[str, ...] = ()
        self._also: dict[str, None] = {}
        """What workers added since the abilities were last set."""
        self._can_again = False

    def be(
        self,
        state: report_rules.ReportState,
        doing: str = "",
        note: str = "",
        *,
        can: Iterable[str] | None = None,
        calmly: bool = False,
        look: Callable[[], Op[report_rules.ReportState]] | None = None,
    ) -> None:
        """Set the status from now on; ``calmly`` if it may change many times in a second.

        With ``look`` the state is computed each time that it is reported.
        """
        update = report_update(state, can=can, doing=doing, note=note)
        self.set_update(update, calmly=calmly, look=look)

    def set_update(
        self,
        update: report_rules.ReportUpdate,
        *,
        calmly: bool = False,
        look: Callable[[], Op[report_rules.ReportState]] | None = None,
    ) -> None:
        """Set the status as ``be`` does, by an update that is valid: a worker makes many."""
        self._before = None
        self._look = look
        self._also |= dict.fromkeys(update.also)
        also = tuple(self._also)  # two workers may report before one report is written
        self._update = msgspec.structs.replace(update, also=also, paces=self._paces)
        now = self._clock.monotonic()
        due = max(now, self._said + self._calm) if calmly else now
        if due < self._due or not calmly:
            self._due = due
            self._wake()

    def go_on(self, said: report_rules.Reported) -> None:
        """This was reported already: repeat it at its pace."""
        self._before = None
        self._look = None
        self._can, self._also = said.can, {}
        self._update = report_rules.ReportUpdate(
            state=said.status, doing=said.doing, note=said.note, paces=self._paces
        )
        self._due = self._clock.monotonic() + said.pace
        self._wake()

    def waits(self, wait: object) -> None:
        """A call waits for work: report so if it lasts, until ``waited`` ends the last such wait.

        A wait below ``CALM`` seconds writes nothing, and wakes the keeper at most once.
        """
        with self._guard:
            if wait in self._waits:
                return
            self._waits.add(wait)
            if len(self._waits) > 1:
                return
            now = self._clock.monotonic()
            self._before = _Before(self._update, self._look, self._due, self._said)
            self._update = report_update("waiting", paces=self._paces)
            self._look = state_without_work
            self._due = now + self._calm
            if now - self._woken >= self._calm:
                self._woken = now
                self._wake()

    def waited(self, wait: object) -> None:
        """The wait ended: the report before it applies again, unless a new one was set."""
        with self._guard:
            self._waits.discard(wait)
            before = self._before
            if self._waits or before is None:
                return
            self._before = None
            self._look, self._due = before.look, before.due
            if self._said == before.said:  # nothing was written since
                self._update = before.update
                return
            self._update = before.update or report_update("idle", paces=self._paces)
            self._due = self._clock.monotonic()
        self._wake()

    def follow(self, actor: Actor) -> None:
        """Report for the session that replaces the current one: it can do the same."""
        self._who = actor
        self._can_again = True
        now = self._clock.monotonic()
        if self._before is not None and self._before.update is not None:
            self._before = msgspec.structs.replace(self._before, due=now)
        if self._update is not None:
            self._due = now

    def wait(self) -> float:
        """Seconds until the next report is due."""
        return max(0.0, self._due - self._clock.monotonic())

    def run(self) -> Op[None]:
        """Write the report; an expired session stops reporting."""
        with self._guard:
            update, look, actor = self._update, self._look, self._who
            if update is None:
                return
            now = self._clock.monotonic()
            self._said, self._due = now, now + self._runner.capabilities.allow(AGAIN)
        said = update
        if self._can_again and update.can is None:
            said = msgspec.structs.replace(update, can=self._can)
        if look is not None:
            said = msgspec.structs.replace(said, state=(yield from look()))
        outcome = yield from write_report(self._runner, actor, said)
        if self._who is not actor:  # another session replaced it, and is due
            return
        if isinstance(outcome, SessionLapsed):
            self._due = NEVER
            return
        self._can, self._can_again = outcome.can, False
        if self._update is update:  # else a new status was set
            self._due = now + outcome.pace

    def finish(self, trouble: str) -> Op[None]:  # noqa: ARG002 - as all background jobs
        """Stop reporting: a report ends with its session."""
        self._due = NEVER
        yield from ()


def report_update(
    state: str | None = None,
    *,
    can: Iterable[str] | None = None,
    doing: str | None = None,
    note: str | None = None,
    paces: Mapping[report_rules.ReportState, float] | None = None,
) -> report_rules.ReportUpdate:
    """A validated update; ``paces`` if the client keeps them."""
    return report_rules.ReportUpdate(
        state=None if state is None else _state(state),
        can=None if can is None else validate.abilities(can),
        doing=doing if doing in (None, "") else validate.name(doing, "thing that is done"),
        note=None if note is None else validate.text(note, "note", NOTE_LIMIT),
        paces=paces,
    )


def _state(word: object) -> str:
    """A state of a report, or a word of the agent's own that is not a misspelled one."""
    fits = isinstance(word, str) and 0 < len(word) <= STATE_LIMIT
    if not isinstance(word, str) or not fits or not validate.ONE_WORD.issuperset(word):
        raise BadInput(
            "a status is idle, waiting, busy or a word of your own, such as building, not"
            f" {str(word)[:STATE_LIMIT]!r}"
        )
    if word in report_rules.STATES:
        return word
    if close := validate.closest_names(word, report_rules.STATES, 1):
        raise BadInput(f"there is no status {word!r}; did you mean {close[0]}?")
    return word


def paces_from(settings: Settings) -> dict[report_rules.ReportState, float]:
    """The pace of the signs of life, by state."""
    found = settings.agent()
    return {state: found.get(state, report_rules.PACES[state]) for state in report_rules.STATES}


def state_without_work() -> Op[report_rules.ReportState]:
    """The state of a worker without a task: ``waiting`` if a task may become ready for it."""
    pages = [Range(prefix, limit=1) for prefix in (keys.READY, keys.DUE, keys.HANGS)]
    ranges = (yield Read(*pages)).ranges
    found = [item for page in pages for item in ranges[page]]
    tasks = [item for item in found if not keys.is_schedule_entry(item.key)]
    return "waiting" if tasks else "idle"


def agents_able_to(ability: str) -> ReadOp[dict[str, report_rules.CapableAgent]]:
    """The agents that reported an ability, by key; some may have ended since.

    Only the index of this ability, and that of "everything", is read.
    """
    found: dict[str, report_rules.CapableAgent] = {}
    for each in dict.fromkeys((ability, validate.ALL_ABILITIES)):
        for item in (yield from every_inside(keys.able(each))):
            if (able := reads.readable(capable_agent, item)) is not None:
                found[item.key] = able
    return found


def capable_agent(item: Item) -> report_rules.CapableAgent:
    """Decode a capable agent."""
    return _ABLE.read(item)
