"""The base of all calls on messages: limits, services and validation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Raw

from interlock.core import validate
from interlock.drivers import Op
from interlock.errors import BadInput
from interlock.nouns.agents.report_rules import Reported
from interlock.nouns.messages.acknowledging import Acknowledger
from interlock.nouns.messages.limits import message_limits
from interlock.nouns.messages.message import ALL
from interlock.nouns.messages.querying import QueryService
from interlock.nouns.messages.sending import MessageSender
from interlock.nouns.messages.subscriptions import Subscriptions
from interlock.runtime.calls import Calls, D
from interlock.runtime.context import Context
from interlock.runtime.identity import Actor

if TYPE_CHECKING:
    from interlock.nouns.messages.retention import MessageRetention


class MessageServices(Calls[D]):
    """The services that the calls of one client share."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.limits = message_limits(context.settings)
        self.message_sender = MessageSender(context.runner, self.limits)
        self.acknowledger = Acknowledger(context.runner)
        context.housekeeping.passes["messages"] = self._small_pass

    @cached_property
    def queries(self) -> QueryService:
        """Questions; created on first use."""
        return QueryService(self.context.runner, self.message_sender, self.context.grants)

    @cached_property
    def retention(self) -> MessageRetention:
        """Retention; created on first use."""
        from interlock.nouns.messages.retention import MessageRetention

        return MessageRetention(self.context.runner, self.limits)

    def _small_pass(self, actor: Actor) -> Op[bool]:
        return (yield from self.retention.some(actor)).more

    @cached_property
    def topics(self) -> Subscriptions:
        """Subscriptions; created on first use."""
        return Subscriptions(self.context.runner)

    def abilities(self, can: Iterable[str] | None) -> Op[tuple[str, ...]]:
        """The abilities of this client: as given, else as its session reports."""
        identity = self.context.me()
        if can is not None:
            return validate.abilities(can)
        if not identity.joined:
            return ()
        from interlock.nouns.agents.report_service import Reports

        said = yield from Reports(self.context.runner).show(identity.actor.session)
        return said.can if isinstance(said, Reported) else ()

    def _body(self, data: object, what: str) -> Raw:
        return Raw(validate.payload(data, what, self.limits.body))

    def _id(self, id_: str | None, prefix: str) -> str:
        if id_ is None:
            return self.context.runner.new_id(prefix)
        begins, _, rest = validate.name(id_, "id").partition("_")
        if begins != prefix or not rest or "/" in rest:
            raise BadInput(f"the id {id_!r} is none; write {prefix}_ and a word, without a '/'")
        return id_


def named(agent: str) -> str:
    """The validated name of a single recipient."""
    if agent in (validate.ALL_AGENTS, ALL):
        raise BadInput("only mail goes to all; for an announcement use an alert")
    return validate.unmarked_name(agent, "agent name")


def several(names: str | Iterable[str], what: str) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(validate.require_iterable(names, what))
