"""What list and show say about requests and about the quarantine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from interlock.core import codec, keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests import progress
from interlock.nouns.requests.exchange import (
    QuarantinedMessage,
    ReceivedRequest,
    decode_content,
    decode_quarantined,
    decode_received,
    decode_request,
)
from interlock.nouns.requests.progress import RequestTask
from interlock.nouns.requests.request import OutgoingRequest
from interlock.nouns.tasks.task_reader import decode_claim, decode_status
from interlock.runtime.reads import Pages, looked_up, readable
from interlock.steps import Op, Read
from interlock.store import Item

PAGE = 200


def list_requests(
    states: Collection[str], swarm: str, after: str, limit: int
) -> Op[out.RequestList]:
    """The requests that we sent, by id."""
    found: list[out.RequestView] = []
    pages = Pages(keys.REQUESTS, keys.request(after) if after else "", PAGE)
    while not pages.finished:
        for item in (yield from pages.read(PAGE)):
            request = readable(decode_request, item)
            if request is None or (states and request.state not in states):
                continue
            if swarm not in ("", request.to_swarm):
                continue
            if len(found) == limit:
                return out.RequestList(requests=tuple(found), more=found[-1].request)
            found.append(_sent(request))
    return out.RequestList(requests=tuple(found))


def list_received(
    states: Collection[str], swarm: str, after: str, limit: int
) -> Op[out.RequestList]:
    """The requests of other swarms, by swarm and id; ``after`` is ``ID@SWARM``."""
    found: list[out.RequestView] = []
    prefix = keys.received(swarm) if swarm else keys.RECEIVED
    id_, _, of = after.partition("@")
    pages = Pages(prefix, keys.received(of or swarm, id_) if after else "", PAGE)
    while not pages.finished:
        read = [readable(decode_received, item) for item in (yield from pages.read(PAGE))]
        for view in (yield from _received_views([each for each in read if each is not None])):
            if states and view.state not in states:
                continue
            if len(found) == limit:
                more = f"{found[-1].request}@{found[-1].from_swarm}"
                return out.RequestList(requests=tuple(found), more=more)
            found.append(view)
    return out.RequestList(requests=tuple(found))


def _received_views(some: Sequence[ReceivedRequest]) -> Op[list[out.RequestView]]:
    """Received requests, with what their tasks and the marks of their results say."""
    wanted: list[str] = []
    for each in some:
        if each.answered is not None:
            wanted.append(keys.unacknowledged(each.head.from_swarm, each.head.request_id))
        elif each.task:
            wanted += (keys.status(each.task), keys.owner(each.task))
    items = yield from looked_up(wanted)
    return [_received(each, items) for each in some]


def request_task(received: ReceivedRequest, items: Mapping[str, Item | None]) -> RequestTask:
    """The task of a received request, from its items."""
    status = readable(decode_status, items.get(keys.status(received.task)))
    owner = readable(decode_claim, items.get(keys.owner(received.task)))
    return RequestTask(
        state="" if status is None else status.state, agent="" if owner is None else owner.agent
    )


def _sent(request: OutgoingRequest) -> out.RequestView:
    where = progress.of_sent(request)
    return out.RequestView(
        request=request.id,
        state=request.state,
        task_type=request.task_type,
        agent=request.agent,
        priority=request.priority,
        at=request.made,
        deadline=request.deadline,
        to_swarm=request.to_swarm,
        to_agent=request.to_agent,
        attempt=request.attempt,
        step=where.step,
        place=where.place,
        reason=request.reason or where.says,
        next=where.next,
        next_at=where.next_at,
        decision=request.decision,
        ended_at=request.ended,
    )


def _received(request: ReceivedRequest, items: Mapping[str, Item | None]) -> out.RequestView:
    head = request.head
    mark = items.get(keys.unacknowledged(head.from_swarm, head.request_id))
    task = request_task(request, items)
    where = progress.of_received(request, task, acknowledged=mark is None)
    state = "running" if task.state == "running" else "received"
    if request.answered is not None:
        state = "acknowledged" if mark is None else "answered"
    return out.RequestView(
        request=head.request_id,
        state=state,
        step=where.step,
        place=where.place,
        reason=where.says,
        next=where.next,
        task_type=head.task_type,
        agent=head.from_agent,
        priority=head.priority,
        at=request.at,
        deadline=head.deadline / 1000,
        from_swarm=head.from_swarm,
        to_agent=head.to_agent,
        attempt=head.attempt,
        task=request.task,
        ended_at=request.answered,
    )


def list_quarantine(swarm: str, after: str, limit: int) -> Op[out.QuarantineList]:
    """Messages in quarantine, oldest first: their ids begin with the time."""
    found: list[out.QuarantineView] = []
    pages = Pages(keys.QUARANTINE, keys.quarantined(after) if after else "", PAGE)
    while not pages.finished:
        for item in (yield from pages.read(PAGE)):
            message = readable(decode_quarantined, item)
            if message is None or swarm not in ("", message.swarm):
                continue
            if len(found) == limit:
                return out.QuarantineList(messages=tuple(found), more=found[-1].id)
            found.append(_quarantined(message))
    return out.QuarantineList(messages=tuple(found))


def show_quarantine(id_: str) -> Op[out.QuarantineView | out.UnknownQuarantine]:
    """One message, with its payload."""
    own, content = keys.quarantined(id_), keys.quarantine_content(id_)
    items = (yield Read(own, content)).items
    message = decode_quarantined(items[own])
    if message is None:
        return out.UnknownQuarantine(unknown=(id_,))
    kept = decode_content(items[content])
    payload: object = None
    if kept is not None:
        try:
            payload = msgspec.json.decode(kept.body)
        except codec.UNREADABLE:
            payload = kept.body.decode("utf-8", "replace")
    return _quarantined(message, payload)


def _quarantined(message: QuarantinedMessage, payload: object = None) -> out.QuarantineView:
    return out.QuarantineView(
        id=message.id,
        kind=message.kind,
        reason=message.reason,
        detail=message.detail,
        at=message.at,
        releasable=message.content and message.kind == "request",
        message=message.message,
        request=message.request,
        swarm=message.swarm,
        agent=message.agent,
        key=message.key,
        payload=payload,
    )
