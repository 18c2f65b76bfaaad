"""The fleet for other frameworks: A2A (Agent2Agent), over JSON-RPC.

    GET  /.well-known/agent-card.json              the card of the fleet: a skill for each ability
                                                   of the agents that live now
    POST /a2a                                      a message for one of these skills
    GET  /a2a/agents/NAME/.well-known/agent-card.json, POST /a2a/agents/NAME
                                                   the skills of one agent
    GET  /a2a/skills/NAME/.well-known/agent-card.json, POST /a2a/skills/NAME
                                                   one skill, so a message need not name it

A message becomes a task that requires the skill, published by the agent of the caller's token.  Any
worker with that ability claims it, also if the message came to the address of another agent: it is
done at least once, and completed once, as every task.

The id of the task is made from the caller and its ``messageId``: a message that is sent again is
found again, as long as the task is kept.  A caller sees the tasks that it sent, and no other; that
of another caller is not found, as one that does not exist.

A send waits for the end of the task within the longest wait of the server, unless it asks for an
answer at once; a caller that leaves ends the wait, and not the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from interlock.core import codec, keys, validate
from interlock.core.safe_text import quoted
from interlock.core.validate import ALL_ABILITIES
from interlock.errors import BadInput
from interlock.faces.http import a2a_wire as wire
from interlock.faces.http.a2a_card import PATH, CardAddress, card
from interlock.faces.http.a2a_wire import A2AError, A2ARequest, Json, SentMessage
from interlock.faces.http.access import Caller, Refused, require
from interlock.faces.http.replies import json_reply, read_body, until_left
from interlock.nouns.agents.views import able_agents
from interlock.nouns.tasks.task_outcomes import NoTask, TaskCancelled
from interlock.nouns.tasks.task_reader import decode_status
from interlock.nouns.tasks.task_view import TaskView
from interlock.runtime.operation import MOST_BODY
from interlock.runtime.stoppable import stoppable
from interlock.steps import NextChanges, Op, OpenWatch, Read, drive

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from interlock.client import Fleet
    from interlock.faces.http.app import WebServer
    from interlock.faces.http.clients import Clients

VERSION_HEADER = "a2a-version"
LABEL = "a2a"
"""The label of tasks that came over A2A."""
_START = "a2a-"
"""How the ids of these tasks begin."""
_OPEN = ("blocked", "pending", "running")
_NAP = 5.0
_TITLE = 80
_LISTED_SKILLS = 50
_NONE = frozenset[str]()


async def card_reply(server: WebServer, request: Request, caller: Caller | None) -> Response:
    """The card of an address; a stranger gets that of the fleet, without its skills."""
    place = _place(request)
    skills = None
    if caller is not None:
        tasks = A2ATasks(server.clients, caller)
        skills = await server.in_thread(lambda: tasks.skills(place))
        if not skills and place != CardAddress():
            raise Refused(404, "no_route", f"{place.name} is not here now, or does not say what it"
                          f" can do; see {PATH}")  # fmt: skip
    found = card(place, _base(request), skills, closed=not server.access.open)
    return json_reply(200, msgspec.json.encode(found))


async def reply(server: WebServer, request: Request, caller: Caller) -> Response:
    """The answer to a request.  An error of the protocol has the status 200, as clients expect."""
    body = await read_body(request, 2 * MOST_BODY)  # the data of a task may have a megabyte
    try:
        version = request.headers.get(VERSION_HEADER)
        asked = await server.parsed(body, lambda: wire.parse(body, version))
        if asked.act in ("send", "cancel"):
            require(caller, "act", f"{asked.act} over A2A")
        result = await _result(server, request, caller, asked)
    except (A2AError, BadInput) as error:
        wrong = error if isinstance(error, A2AError) else A2AError("INVALID_PARAMS", str(error))
        id_ = await server.parsed(body, lambda: wire.request_id(body))
        return json_reply(200, wire.failed(id_, wrong))
    return json_reply(200, wire.answered(asked, result))


async def _result(server: WebServer, request: Request, caller: Caller, asked: A2ARequest) -> Json:
    place, tasks = _place(request), A2ATasks(server.clients, caller)
    if asked.act == "card":
        skills = await server.in_thread(lambda: tasks.skills(place))
        return card(place, _base(request), skills, closed=not server.access.open)
    if asked.act == "send":
        sent = wire.sent_message(asked.params)
        view = await server.in_thread(lambda: tasks.send(place, sent))
        if sent.waits and view.state in _OPEN:
            view = await _ended(server, request, caller, tasks, view)
        return wire.sent_result(asked.version, wire.task(view, sent.history_length))
    if asked.act in ("get", "cancel"):
        which = wire.converted(asked.params, wire.TaskParams)
        work = tasks.get if asked.act == "get" else tasks.cancel
        view = await server.in_thread(lambda: work(which.id))
        return wire.versioned(asked.version, wire.task(view, which.history_length))
    raise _unsupported(asked)


def _unsupported(asked: A2ARequest) -> A2AError:
    if asked.act == "push":
        return A2AError("PUSH_NOTIFICATION_NOT_SUPPORTED", "ask for the task from time to time")
    said = "send the message without a stream, and ask for the task from time to time"
    if asked.act == "list":
        said = "ask for each task by its id; 'interlock task list --label a2a' lists them"
    return A2AError("UNSUPPORTED_OPERATION", said)


async def _ended(
    server: WebServer, request: Request, caller: Caller, tasks: A2ATasks, view: TaskView
) -> TaskView:
    """The task at its end, or as it is when the wait is over."""
    stopped = threading.Event()

    def is_over() -> bool:
        return stopped.is_set() or server.stopping.is_set()

    def wait() -> TaskView:
        return tasks.wait(view.task, server.longest, is_over)

    try:
        return (await until_left(request, server.waiting(wait, caller.share()), stopped))[0]
    except Refused:  # too many wait already: the task is published all the same
        return view


class A2ATasks:
    """What a caller does with tasks; its methods block, for threads."""

    def __init__(self, clients: Clients, caller: Caller) -> None:
        self._clients = clients
        self._agent = caller.agent

    def send(self, place: CardAddress, sent: SentMessage) -> TaskView:
        """The task for a message: a new one, or that of the same message sent before."""
        if sent.task:
            self.get(sent.task)
            raise A2AError("UNSUPPORTED_OPERATION", "a task takes one message; send another one"
                           " without taskId, and name this task in its text")  # fmt: skip
        fleet, agent = self._fleet(), self._agent
        id_ = _START + codec.digest(f"{agent}\0{sent.id}".encode())[:32]
        found = fleet.tasks.show(id_)
        if isinstance(found, NoTask):
            skill = self._chosen(place, sent.skill)
            fleet.tasks.publish(
                id_,
                {"message": sent.message},
                title=_title(sent.text) or f"A2A message for {skill}"[:_TITLE],
                text=validate.lines(sent.text, "text of the message"),
                requires=[skill],
                labels=[LABEL],
            )
            found = self.get(id_)
        known = wire.message_of(found) or sent.message  # its data may have been edited
        if not self._is_own(found) or known != sent.message:
            raise A2AError("INVALID_PARAMS", f"messageId {quoted(sent.id)} was used for another"
                           " message; give each message an id of its own")  # fmt: skip
        return found

    def get(self, id_: str) -> TaskView:
        """A task that this caller sent."""
        try:
            found = self._fleet().tasks.show(id_)
        except BadInput:
            found = NoTask(reason="")
        if isinstance(found, NoTask) or not self._is_own(found):
            raise A2AError("TASK_NOT_FOUND", f"there is no task {quoted(id_)} of yours; an ended"
                           " one is deleted in time")  # fmt: skip
        return found

    def cancel(self, id_: str) -> TaskView:
        """Cancel a task that this caller sent; its worker learns that its claim has ended."""
        self.get(id_)
        outcome = self._fleet().tasks.cancel(id_, "by its sender, over A2A")
        found = self.get(id_)
        if not isinstance(outcome, TaskCancelled):
            state = wire.task_state(found)
            raise A2AError("TASK_NOT_CANCELABLE", f"the task is {state} already", state=state)
        return found

    def wait(self, id_: str, seconds: float, is_over: Callable[[], bool]) -> TaskView:
        """The task at its end, or as it is after a time or when it is over."""
        fleet = self._fleet()
        op = _until_ended(id_, fleet.context.runner.clock.monotonic, seconds)
        drive(stoppable(op, is_over), fleet.store)
        return self.get(id_)

    def _fleet(self) -> Fleet:
        return self._clients.of_agent(self._agent)

    def _is_own(self, view: TaskView) -> bool:
        return view.task.startswith(_START) and view.published_by == self._agent

    def skills(self, place: CardAddress) -> Mapping[str, frozenset[str]]:
        """The abilities of the agents that live now, with these, as far as a place has them."""
        found = drive(able_agents(), self._fleet().store)
        if place.agent:
            own = frozenset({place.agent})
            return {skill: own for skill, agents in found.items() if place.agent in agents}
        if place.skill:
            able = found.get(place.skill, _NONE) | found.get(ALL_ABILITIES, _NONE)
            return {place.skill: able} if able else {}
        return found

    def _chosen(self, place: CardAddress, named: str) -> str:
        """The skill that a message is for; A2AError says which there are."""
        skills = self.skills(place)
        real = [each for each in skills if each != ALL_ABILITIES]
        if not named and len(real) == 1:
            return real[0]
        if named in real or (named and ALL_ABILITIES in skills):
            return validate.name(named, "skill")
        known, wrong = _listed(real), 'name a skill in the metadata, {"skill": "..."}'
        if named or not real:
            wrong = f"no agent has the skill {quoted(named or place.skill)} now"
        raise A2AError("INVALID_PARAMS", f"{wrong}; these are there: {known}", skills=known)


def _listed(skills: Iterable[str]) -> str:
    names = sorted(skills)
    more = ", ..." if len(names) > _LISTED_SKILLS else ""
    return ", ".join(names[:_LISTED_SKILLS]) + more or "none; no agent says what it can do"


def _until_ended(task: str, monotonic: Callable[[], float], seconds: float) -> Op[None]:
    """Sleep until a task has ended or is gone, or the time is over."""
    key, ends = keys.status(task), monotonic() + seconds
    snapshot = yield Read(key)
    watch = yield OpenWatch(key, snapshot.revision)
    try:
        while (left := ends - monotonic()) > 0:
            status = decode_status(snapshot[key])
            if status is None or status.state not in _OPEN:
                return
            yield NextChanges(watch, min(left, _NAP))
            snapshot = yield Read(key)
    finally:
        watch.close()


def _title(text: str) -> str:
    """The beginning of a text as the title of a task; empty if it cannot be one."""
    try:
        return validate.title(" ".join(text.split())[:_TITLE])
    except BadInput:
        return ""


def _place(request: Request) -> CardAddress:
    parts = request.path_params
    return CardAddress(agent=parts.get("agent", ""), skill=parts.get("skill", ""))


def _base(request: Request) -> str:
    """The address of this server as the caller knows it; its host was checked."""
    return f"{request.url.scheme}://{request.headers['host']}"
