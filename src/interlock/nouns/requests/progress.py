"""Where a request is, in words: at which of the ten steps, what it waits for, and what comes next.

``exchange.py`` has the steps.  A home knows only its own part of them; the bus, if it answers,
says whether the envelope of a request or its result lies there (``SeenOnBus``).
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.safe_text import foreign
from interlock.core.validate import span
from interlock.nouns.requests import rules
from interlock.nouns.requests.exchange import ReceivedRequest
from interlock.nouns.requests.request import RETRY_AFTER, OutgoingRequest


class Progress(Struct, frozen=True, kw_only=True):
    """The last step that is done, what the request waits for, and what happens next, and when.

    ``place`` is where it lies, in a word: the outbox, the bus, a swarm, an agent, a decision.
    """

    step: int
    place: str
    says: str
    next: str = ""
    next_at: float | None = None

    def coming(self, now: float) -> str:
        """What happens next, with the time until then."""
        if self.next_at is None:
            return self.next
        left = self.next_at - now
        return f"{self.next} in {span(left)}" if left > 0 else f"{self.next}, which is due"


class SeenOnBus(Struct, frozen=True, kw_only=True):
    """Whether the bus has the envelope of a request, and its result."""

    request: bool
    result: bool


class RequestTask(Struct, frozen=True, kw_only=True):
    """The task of a received request: its state, and who works on it."""

    state: str
    agent: str = ""


def of_sent(request: OutgoingRequest, on_bus: SeenOnBus | None = None) -> Progress:
    """A request that we sent."""
    match request.state:
        case "answered":
            return Progress(step=10, place="", says=f"{foreign(request.to_swarm)} has answered it")
        case "cancelled":
            instead = (
                f"; {foreign(request.replaced_by)} does the work" if request.replaced_by else ""
            )
            says = f"it was cancelled: {foreign(request.reason)}{instead}"
            return Progress(step=10, place=request.replaced_by, says=says)
        case "escalated":
            return Progress(
                step=3,
                place=f"decision/{request.decision}",
                says=f"no answer came ({foreign(request.reason)}), so a person decides",
                next="a person decides",
            )
        case "open":
            return _open(request, on_bus)


def _open(request: OutgoingRequest, on_bus: SeenOnBus | None) -> Progress:
    found = _where(request, on_bus)
    coming = rules.next_step(request)
    if coming is not None and coming.kind == "time_out":
        coming = rules.next_step(rules.time_out(request))
    if coming is None:
        return found
    word = "a person is asked"
    if coming.kind == "retry":
        number, most = request.attempt + 1, request.first + len(RETRY_AFTER)
        word = f"attempt {number} of {most} is sent"
    return replace(found, next=word, next_at=coming.at)


def _where(request: OutgoingRequest, on_bus: SeenOnBus | None) -> Progress:
    swarm = request.to_swarm
    if on_bus is not None and on_bus.result:
        says = "its result is on the bus, and no process of this swarm has taken it in yet"
        return Progress(step=8, place="bus", says=says)
    if request.posted is None:
        says = (
            "until the bus answers" if on_bus is None else "until a process of this swarm posts it"
        )
        return Progress(step=1, place="outbox", says=f"it waits in the outbox {says}")
    if request.taken is not None:
        return Progress(
            step=5, place=swarm, says=f"{foreign(swarm)} has taken it in and works on it"
        )
    if on_bus is None:
        return Progress(step=3, place="bus", says=f"it was put on the bus for {foreign(swarm)}")
    if on_bus.request:
        return Progress(
            step=3, place="bus", says=f"it is on the bus, and {foreign(swarm)} has not taken it in"
        )
    says = f"it is no longer on the bus: {foreign(swarm)} has taken it in, or has refused it"
    return Progress(step=5, place=swarm, says=says)


def of_received(
    received: ReceivedRequest, task: RequestTask, *, acknowledged: bool, in_outbox: bool = False
) -> Progress:
    """A request that another swarm sent to us."""
    swarm = received.head.from_swarm
    if received.answered is None:
        return _unfinished(received, task)
    if acknowledged:
        return Progress(
            step=10, place=swarm, says=f"{foreign(swarm)} has taken its result from the bus"
        )
    if in_outbox:
        says = "its result waits in the outbox until the bus answers"
        return Progress(step=7, place="outbox", says=says, next="its result is posted")
    says = f"its result is on the bus, and {foreign(swarm)} has not taken it yet"
    return Progress(step=8, place="bus", says=says, next=f"{foreign(swarm)} takes it")


def _unfinished(received: ReceivedRequest, task: RequestTask) -> Progress:
    if not received.task:
        says = "it is a message to all agents"
        return Progress(step=4, place="inboxes", says=says, next="it is answered")
    if task.state == "running":
        says = f"{foreign(task.agent)} works on it"
        return Progress(step=6, place=task.agent, says=says, next=f"{foreign(task.agent)} answers")
    if task.state in ("complete", "failed", "dead", "dropped", ""):
        says = f"its task is {task.state or 'gone'}, and its result is not sent yet"
        return Progress(step=6, place="tasks", says=says, next="'interlock maintain' answers")
    says = (
        f"its task is {task.state}: no worker for {foreign(received.head.to_agent)} has claimed it"
    )
    return Progress(step=5, place="tasks", says=says, next="a worker claims it")
