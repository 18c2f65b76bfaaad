"""What list and show say about requests and about the quarantine."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from interlock.core import codec, keys
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import (
    QuarantinedMessage,
    ReceivedRequest,
    decode_content,
    decode_quarantined,
    decode_received,
    decode_request,
)
from interlock.nouns.requests.request import OutgoingRequest
from interlock.runtime.reads import Pages, readable
from interlock.steps import Op, Read

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


def list_received(swarm: str, after: str, limit: int) -> Op[out.RequestList]:
    """The requests of other swarms, by swarm and id."""
    found: list[out.RequestView] = []
    prefix = keys.received(swarm) if swarm else keys.RECEIVED
    pages = Pages(prefix, "", PAGE)
    while not pages.finished:
        for item in (yield from pages.read(PAGE)):
            request = readable(decode_received, item)
            if request is None or (after and request.head.request_id <= after):
                continue
            if len(found) == limit:
                return out.RequestList(requests=tuple(found), more=found[-1].request)
            found.append(_received(request))
    return out.RequestList(requests=tuple(found))


def _sent(request: OutgoingRequest) -> out.RequestView:
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
        reason=request.reason,
        decision=request.decision,
        ended_at=request.ended,
    )


def _received(request: ReceivedRequest) -> out.RequestView:
    head = request.head
    return out.RequestView(
        request=head.request_id,
        state="received" if request.answered is None else "answered",
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
