"""A request for an operation, carried out in a thread in the name of an agent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.faces import give_back
from interlock.faces.http.access import Caller, Refused
from interlock.faces.http.operations import Endpoint, answer
from interlock.faces.http.replies import json_reply, until_left
from interlock.faces.http.roles import permit
from interlock.runtime.stoppable import stoppable
from interlock.steps import Op

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from interlock.client import Fleet
    from interlock.faces.http.app import WebServer
    from interlock.runtime.operation import Request as OperationRequest


class ActingAgent(NamedTuple):
    """In whose name a caller acts; without a session as a shell command does."""

    caller: Caller
    agent: str
    session: str


class Call:
    """One request for an operation, carried out in a thread."""

    def __init__(
        self,
        server: WebServer,
        endpoint: Endpoint,
        asked: OperationRequest,
        actor: ActingAgent,
        stopped: threading.Event,
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._asked = asked
        self._actor = actor
        self._stopped = stopped

    def client(self) -> Fleet:
        """The client that the request acts through."""
        clients, actor = self._server.clients, self._actor
        if actor.session:
            return clients.of_session(actor.session, actor.agent).fleet
        return clients.of_agent(actor.agent)

    def run(self) -> Any:  # noqa: ANN401 - as the operation answers
        """The outcome; None if the call was stopped while it waited."""
        clients, actor, endpoint = self._server.clients, self._actor, self._endpoint
        changes = endpoint.changes(self._asked)
        permit(actor.caller, endpoint.operation, self._asked, clients.reader(), changes=changes)
        waits = endpoint.joins(self._asked)
        if actor.session and waits:
            with clients.of_session(actor.session, actor.agent).kept() as fleet:
                return self._act(fleet)
        if waits:
            with clients.joined(actor.agent) as fleet:
                return self._act(fleet)
        return self._act(self.client())

    def _act(self, fleet: Fleet) -> Any:  # noqa: ANN401
        from interlock.client import METHODS
        from interlock.nouns.fleet.calls import FleetCalls

        operation = self._endpoint.operation

        def carry_out(calls: FleetCalls, asked: OperationRequest) -> Op[Any]:
            return stoppable(operation.carry_out(calls, asked, remote=True), self._is_over)

        method = METHODS["grants" if operation.grants else "call"](carry_out)
        return method(FleetCalls(fleet.context), self._asked)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or self._server.stopping.is_set()


async def carry_out(
    server: WebServer,
    request: Request,
    endpoint: Endpoint,
    asked: OperationRequest,
    actor: ActingAgent,
) -> Response:
    """Carry out an operation; a grant that comes after its caller left is given back."""
    stopped = threading.Event()
    call = Call(server, endpoint, asked, actor, stopped)
    if not endpoint.joins(asked) and not endpoint.may_wait(asked):
        outcome = await server.in_thread(call.run)
        left = bool(give_back.unused_grants(outcome)) and await request.is_disconnected()
    else:
        outcome, left = await until_left(
            request, server.waiting(call.run, actor.caller.share(actor.agent)), stopped
        )
        if outcome is None:
            raise Refused(503, "stopped", "the server ends, or the caller left, while this waited")
    if left and (grants := give_back.unused_grants(outcome)):
        await server.in_thread(lambda: give_back.release(call.client(), grants))
    return json_reply(*answer(outcome))
