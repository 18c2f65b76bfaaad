"""Operators and the quarantine: let a message in after all, or delete it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.core import keys
from interlock.core.decision import Decision
from interlock.nouns.requests import outcomes as out
from interlock.nouns.requests.exchange import decode_content, decode_quarantined
from interlock.nouns.requests.intake_rules import RefusedRequest, Repeated, TakenIn
from interlock.nouns.swarms.envelope import EnvelopeRefused
from interlock.steps import Op, Read

if TYPE_CHECKING:
    from interlock.nouns.requests.service import RequestService
    from interlock.runtime.attempt import DecideOp
    from interlock.runtime.identity import Actor


def release(
    service: RequestService, actor: Actor, id_: str
) -> Op[out.QuarantineReleased | out.QuarantineKept | out.UnknownQuarantine]:
    """Take a request in from quarantine."""
    own, content = keys.quarantined(id_), keys.quarantine_content(id_)
    items = (yield Read(own, content)).items
    message, kept = decode_quarantined(items[own]), decode_content(items[content])
    if message is None:
        return out.UnknownQuarantine(unknown=(id_,))
    if kept is None or message.kind != "request":
        detail = "only a request whose signature was verified can be released"
        return out.QuarantineKept(id=id_, reason=message.reason, detail=detail)
    swarm = yield from service.home.own()
    verdict = yield from service.intake.release(actor, swarm, kept.envelope, kept.body)
    if isinstance(verdict, EnvelopeRefused | RefusedRequest):
        return out.QuarantineKept(id=id_, reason=verdict.reason, detail=verdict.detail)
    yield from drop(service, actor, (id_,), verb="quarantine.release")
    task = verdict.arrival.task if isinstance(verdict, TakenIn | Repeated) else ""
    return out.QuarantineReleased(id=id_, task=task, already=isinstance(verdict, Repeated))


def drop(
    service: RequestService, actor: Actor, ids: tuple[str, ...], verb: str = "quarantine.drop"
) -> Op[out.QuarantineDropped | out.UnknownQuarantine]:
    """Delete messages; all of them, or none if one is unknown."""
    wanted = tuple(map(keys.quarantined, ids))

    def deciding() -> DecideOp[out.QuarantineDropped | out.UnknownQuarantine]:
        items = (yield wanted).items
        unknown = tuple(id_ for id_ in ids if items[keys.quarantined(id_)] is None)
        if unknown:
            return Decision(outcome=out.UnknownQuarantine(unknown=unknown))
        return Decision(
            outcome=out.QuarantineDropped(dropped=ids),
            verb=verb,
            thing=f"quarantine/{ids[0]}",
            deletes=(*wanted, *map(keys.quarantine_content, ids)),
        )

    return (yield from service.home.runner.change(deciding, actor)).outcome
