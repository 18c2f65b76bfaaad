"""Subscriptions to alerts: durable, with filters, and optionally with the last earlier alerts."""

from __future__ import annotations

from interlock.core import keys
from interlock.drivers import Op
from interlock.nouns.messages import inbox_rules, reading
from interlock.nouns.messages.inbox_rules import Cursor
from interlock.nouns.messages.message import (
    AlertSubscription,
    NotSubscribed,
    Subscribed,
    SubscriptionView,
    Unsubscribed,
)
from interlock.nouns.messages.reading import TopicState
from interlock.runtime.decide import DecideOp
from interlock.runtime.identity import Actor
from interlock.runtime.reads import every
from interlock.runtime.runner import Decided, Runner


class Subscriptions:
    """Subscribes and unsubscribes agents; its methods are generators for a driver."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def subscribe(
        self, actor: Actor, type_: str, wanted: AlertSubscription, last: int
    ) -> Op[Subscribed]:
        """Deliver alerts of this type from now on, after the ``last`` earlier ones."""
        if last:
            since = yield from self._before(type_, wanted, last)
            wanted = AlertSubscription(senders=wanted.senders, where=wanted.where, since=since)
        key = keys.subscription(actor.agent, type_)

        def deciding() -> DecideOp[Subscribed]:
            before = reading.stored_subscription((yield (key,))[key])
            return inbox_rules.subscribe(actor.agent, type_, wanted, before, last)

        done: Decided[Subscribed] = yield from self._runner.change(deciding, actor)
        return done.outcome

    def unsubscribe(self, actor: Actor, type_: str) -> Op[Unsubscribed | NotSubscribed]:
        """Stop delivering alerts of this type."""
        key = keys.subscription(actor.agent, type_)

        def deciding() -> DecideOp[Unsubscribed | NotSubscribed]:
            before = reading.stored_subscription((yield (key,))[key])
            return inbox_rules.unsubscribe(actor.agent, type_, before)

        done: Decided[Unsubscribed | NotSubscribed] = yield from self._runner.change(
            deciding, actor
        )
        return done.outcome

    def list(self, agent: str) -> Op[tuple[SubscriptionView, ...]]:
        """The subscriptions of an agent, by type."""
        items = yield from every(keys.subscription(agent))
        found = {keys.topic_of(item.key): reading.stored_subscription(item) for item in items}
        return tuple(
            SubscriptionView(type=type_, senders=each.senders, where=each.where)
            for type_, each in found.items()
            if each is not None
        )

    def _before(self, type_: str, wanted: AlertSubscription, last: int) -> Op[int]:
        """The revision before the ``last`` earlier alerts."""
        everything = TopicState(name=type_, wanted=wanted, cursor=Cursor(after=0))
        found, upto = yield from reading.unread_in_topic(everything)
        places = sorted(each.seq for each in found)[-last:]
        return places[0] - 1 if places else upto


def subscribed_types() -> Op[set[str]]:
    """The types of alerts that have a subscriber."""
    return {keys.topic_of(item.key) for item in (yield from every(keys.SUBSCRIPTIONS))}
