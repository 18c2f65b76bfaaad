"""Subscriptions: durable, with filters, and with the last messages if somebody asks for them."""

from __future__ import annotations

from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.messages import inbox_rules, reading
from interlock.nouns.messages.inbox_rules import Cursor
from interlock.nouns.messages.message import (
    Heard,
    NotSubscribed,
    Subscribed,
    Subscription,
    Unsubscribed,
)
from interlock.nouns.messages.reading import Topic
from interlock.runtime.gather import every
from interlock.runtime.identity import Actor
from interlock.runtime.runner import Decided, DecideOp, Runner


class Subscriptions:
    """Who hears of what, as generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def subscribe(
        self, actor: Actor, type_: str, wanted: Subscription, last: int
    ) -> Op[Subscribed]:
        """Deliver alerts of this type from now on, and the last ones before."""
        if last:
            since = yield from self._before(type_, wanted, last)
            wanted = Subscription(senders=wanted.senders, where=wanted.where, since=since)
        key = keys.subscription(actor.agent, type_)

        def deciding() -> DecideOp[Subscribed]:
            before = reading.subscription((yield (key,))[key])
            return inbox_rules.subscribe(actor.agent, type_, wanted, before, last)

        done: Decided[Subscribed] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def unsubscribe(self, actor: Actor, type_: str) -> Op[Unsubscribed | NotSubscribed]:
        """Deliver no more of them."""
        key = keys.subscription(actor.agent, type_)

        def deciding() -> DecideOp[Unsubscribed | NotSubscribed]:
            before = reading.subscription((yield (key,))[key])
            return inbox_rules.unsubscribe(actor.agent, type_, before)

        done: Decided[Unsubscribed | NotSubscribed] = yield from self._runner.change(
            deciding, actor
        )
        return done.outcome

    def list(self, agent: str) -> Op[tuple[Heard, ...]]:
        """What an agent hears of, by type."""
        items = yield from every(keys.subscription(agent))
        found = {keys.topic_of(item.key): reading.subscription(item) for item in items}
        return tuple(
            Heard(type=type_, senders=each.senders, where=each.where)
            for type_, each in found.items()
            if each is not None
        )

    def _before(self, type_: str, wanted: Subscription, last: int) -> Op[int]:
        """The revision after which the last messages that are wanted came."""
        everything = Topic(name=type_, wanted=wanted, cursor=Cursor(after=0))
        found, upto = yield from reading.unheard(everything)
        places = sorted(each.seq for each in found)[-last:]
        return places[0] - 1 if places else upto


def heard() -> Op[set[str]]:
    """The types of alerts to which anybody subscribes."""
    return {keys.topic_of(item.key) for item in (yield from every(keys.SUBSCRIPTIONS))}
