"""The calls of agents: their sessions, their reports, and their logs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.core import keys, validate
from interlock.core.decision import Write
from interlock.errors import BadInput
from interlock.nouns.agents import session_rules as sessions
from interlock.runtime.calls import Calls, D, call, plain
from interlock.runtime.identity import Actor
from interlock.steps import Op

if TYPE_CHECKING:
    import logging

    from interlock.nouns.agents.log_rules import LogFile, LogLine, Uploaded
    from interlock.nouns.agents.log_service import AgentLogService, LogTail
    from interlock.nouns.agents.log_uploader import Uploader
    from interlock.nouns.agents.report_rules import Reported, Unreported
    from interlock.nouns.messages.message import AgentResumed, PausedAgent, UnknownAgent


class AgentCalls(Calls[D]):
    """Agents, which are their sessions."""

    @call
    def join(
        self,
        *,
        ttl: float | str = sessions.SHELL_TTL,
        metadata: object = None,
        can: Iterable[str] = (),
        pid: int | None = None,
    ) -> Op[sessions.Joined]:
        """Begin a session that outlives this process; every command that carries it renews it.

        If this client has no agent name, the session gets an unused one, like ``amber-otter-3``.
        ``others`` of the outcome counts the other live sessions under its name.
        ``can`` lists its abilities; other agents see them beside the session.
        ``pid`` is the process shown for the session, by default this one.
        If this client has a key and its home is a swarm, other swarms get to know the key as that
        of the agent: it then signs the agent's requests where the key of the swarm is not.
        """
        context = self.context
        agent = context.agent or (yield from self._unused_name())
        session, least = context.runner.new_id("ses"), context.runner.capabilities.min_ttl
        lives, said = validate.ttl(ttl, least), validate.metadata(metadata)
        process = None if pid is None else validate.integer(pid, "pid", 0, validate.LARGEST)
        more = self._able(agent, session, can) if can else ()
        others = yield from context.sessions.here(agent)
        if context.runner.signer is not None:
            from interlock.nouns.swarms.agent_keys import announce_joining

            actor = Actor(agent, session, context.identity.actor.trace)
            yield from announce_joining(context.runner, actor)
        joined = yield from context.sessions.join(
            agent,
            ttl=lives,
            session=session,
            metadata=said,
            trace=context.identity.actor.trace,
            pid=process,
            more=more,
            listed=True,
        )
        return replace(joined, others=len(others))

    def _unused_name(self) -> Op[str]:
        from interlock.nouns.agents.views import all_sessions

        taken = frozenset([each.agent for each in (yield from all_sessions())])
        return sessions.random_agent_name(self.context.runner.random_below, taken)

    def _able(self, agent: str, session: str, can: Iterable[str]) -> tuple[Write, ...]:
        from interlock.nouns.agents.report_rules import Report, report_writes

        now, known = self.context.runner.clock.wall(), validate.abilities(can)
        return report_writes(Report(agent=agent, session=session, state="idle", at=now, can=known))

    @call
    def status(
        self,
        state: str | None = None,
        *,
        can: Iterable[str] | None = None,
        doing: str | None = None,
        note: str | None = None,
    ) -> Op[Reported | Unreported | sessions.SessionLapsed]:
        """Report the state of this session: ``idle``, ``waiting`` (for work it may do) or ``busy``.

        Another word, such as ``building``, counts as ``busy``.  Fields that are left out stay, but
        a new state clears ``doing`` and ``note``.  Without arguments it returns the last report.
        The ``pace`` of the report follows the state (``[agent]`` in the settings): a client that
        keeps the session alive repeats the report in time, so that others see that the session
        still works; a script in a shell does so itself, with ``beat`` or any other command.
        """
        from interlock.nouns.agents import report_service as report

        actor = self.context.joined_identity().actor
        if state is None and can is None and doing is None and note is None:
            return report.last_report(actor.session)
        kept = self.context.session_lease is not None
        paces = report.paces_from(self.context.settings)
        ask = report.report_update(state, can=can, doing=doing, note=note, paces=paces)
        saying = report.write_report(self.context.runner, actor, ask, shell=not kept)
        return self._repeated(saying) if kept else saying

    def _repeated(
        self, saying: Op[Reported | sessions.SessionLapsed]
    ) -> Op[Reported | sessions.SessionLapsed]:
        outcome = yield from saying
        if not isinstance(outcome, sessions.SessionLapsed):
            self.context.pulse.go_on(outcome)
        return outcome

    @call
    def leave(self) -> Op[sessions.Left | sessions.SessionLapsed]:
        """End this session; its grants go to the first waiters in the same commit.

        Its tasks go back to the queue first.
        """
        return self.context.leave()

    @call
    def beat(self) -> Op[sessions.Renewed | sessions.SessionLapsed]:
        """Renew this session."""
        return self.context.sessions.beat(self.context.me().actor.session)

    heartbeat = beat

    @call
    def log(self, lines: Iterable[str], *, name: str | None = None) -> Op[Uploaded]:
        """Put lines into the log of this agent, or of another one, now.

        Of a log 4 MB and a week are kept, unless ``[agent]`` of the settings says otherwise; a
        line above 16 KiB is cut, with a mark.  To upload as a program goes on, use ``handler``.
        """
        agent = self._named(name)
        return self._logs().upload(agent, lines, self.context.actor_for(agent))

    @call
    def log_file(self, path: str | os.PathLike[str], *, name: str | None = None) -> Op[Uploaded]:
        """Upload a whole file for this agent, or for another one, under its base name.

        It takes the place of the last file of that name, and no reader sees half of it.  Of a file
        above 4 MB the last lines are kept, and ``cut`` of the outcome says how many lines are not;
        a line above 16 KiB is cut, with a mark.  ``logged(file=...)`` reads it.
        """
        from interlock.nouns.agents.log_service import file_lines

        if not isinstance(path, str | os.PathLike):
            raise BadInput(f"'path' is the path of a file, not {path!r:.40}")
        agent, file = self._named(name), validate.name(os.path.basename(path), "file name")
        return self._logs().upload_file(
            agent, file, file_lines(path), self.context.actor_for(agent)
        )

    @call
    def log_files(self, name: str | None = None) -> Op[tuple[LogFile, ...]]:
        """The files that this agent uploaded, or another one."""
        return tuple((yield from self._logs().files(self._named(name))))

    @call
    def logged(
        self,
        name: str | None = None,
        *,
        limit: int = 100,
        after: int = 0,
        file: str | None = None,
    ) -> Op[tuple[LogLine, ...]]:
        """The last lines of an agent's log, this one's or that of another; ``after`` a number.

        With ``file``, those of a file that was uploaded by ``log_file``.
        """
        most, begin, agent = validate.limit(limit), validate.after(after), self._named(name)
        if file is None:
            return tuple((yield from self._logs().read(agent, limit=most, after=begin)))
        file = validate.name(file, "file name")
        found = yield from self._logs().read_file(agent, file, limit=most, after=begin)
        return tuple(found or ())

    @plain
    def handler(self, level: int | str = 0) -> logging.Handler:
        """A handler for ``logging`` that uploads log records to the log of this agent.

        It gathers lines for a second and never blocks.  If it has to drop lines while the store
        does not answer, it logs their number.  Closing the client uploads the rest.
        """
        from interlock.nouns.agents.log_uploader import UploadHandler

        return UploadHandler(self.uploader(self._named(None)), level)

    def uploader(self, name: str) -> Uploader:
        """Uploads lines in the background, as long as this client is open."""
        from interlock.nouns.agents.log_uploader import Uploader

        context, agent = self.context, validate.name(name, "agent name")
        uploader = Uploader(self._logs(), agent, context.actor_for(agent), context.wake)
        context.keeper.add_job(uploader)
        return uploader

    def trail(self, name: str, after: int) -> LogTail:
        """The lines of a log after a number, and all that come; close it when you have enough."""
        from interlock.nouns.agents.log_service import LogTail

        return LogTail(self._logs(), validate.name(name, "agent name"), after)

    def _named(self, name: str | None) -> str:
        return self.context.me().actor.agent if name is None else validate.name(name, "agent name")

    def _logs(self) -> AgentLogService:
        from interlock.nouns.agents.log_service import AgentLogService

        return AgentLogService(self.context.runner, self.context.settings)

    @call
    def pause(self, name: str, reason: str = "") -> Op[PausedAgent | UnknownAgent]:
        """Stop an agent from sending until it is resumed; it can still read, answer and work.

        The name of an agent that never joined is refused: it is probably misspelled.
        """
        from interlock.nouns.messages.limits import pause
        from interlock.nouns.messages.message import REASON_LIMIT

        agent = validate.name(name, "agent name")
        said = validate.text(reason, "reason", REASON_LIMIT)
        return pause(self.context.runner, self.context.me().actor, agent, said)

    @call
    def resume(self, name: str) -> Op[AgentResumed | UnknownAgent]:
        """Let an agent send again."""
        from interlock.nouns.messages.limits import resume

        agent = validate.name(name, "agent name")
        return resume(self.context.runner, self.context.me().actor, agent)

    @call
    def ack(self, name: str) -> Op[sessions.DeathsAcknowledged | sessions.NoDeath]:
        """Acknowledge that sessions under a name ended without leaving, or one by its id.

        ``health`` no longer shows them; unacknowledged it shows them for a day.
        """
        found, actor = validate.name(name, "agent name"), self.context.me().actor
        return self._acknowledge(found, actor)

    def _acknowledge(
        self, name: str, actor: Actor
    ) -> Op[sessions.DeathsAcknowledged | sessions.NoDeath]:
        from interlock.nouns.agents.housekeeping import acknowledge

        name = yield from _whole_name(name, keys.DEATHS)
        return (yield from acknowledge(self.context.runner, name, actor))

    @call
    def list(self) -> Op[tuple[sessions.Agent, ...]]:
        """All sessions with what they hold."""
        from interlock.nouns.agents.views import list_agents

        return list_agents(self.context.runner)

    @call
    def show(self, name: str) -> Op[tuple[sessions.Agent, ...]]:
        """The sessions under one name."""
        from interlock.nouns.agents.views import list_agents

        name = yield from _whole_name(validate.name(name, "agent name"), keys.SESSIONS)
        found = yield from list_agents(self.context.runner)
        return tuple(agent for agent in found if name in (agent.agent, agent.session))


def _whole_name(name: str, folder: str) -> Op[str]:
    """The name of an agent, or the whole id of a session."""
    if not name.startswith("ses_"):
        return name
    from interlock.runtime.reads import whole_id

    return (yield from whole_id(name, folder))
