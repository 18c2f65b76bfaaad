"""Messages for event loops."""

from __future__ import annotations

from interlock.aio import Fleet, Noun, awaited
from interlock.services.message.calls import MessageCalls


class Messages(Noun[MessageCalls]):
    """Messages: alert, query, share, stop, mail."""

    def __init__(self, calls: MessageCalls, fleet: Fleet) -> None:
        super().__init__(calls)
        self._fleet = fleet

    alert = awaited(MessageCalls.alert)
    share = awaited(MessageCalls.share)
    stop = awaited(MessageCalls.stop)
    send = awaited(MessageCalls.send)
    query = awaited(MessageCalls.query)
    reply = awaited(MessageCalls.reply)
    cancel = awaited(MessageCalls.cancel)
    subscribe = awaited(MessageCalls.subscribe)
    unsubscribe = awaited(MessageCalls.unsubscribe)
    inbox = awaited(MessageCalls.inbox)
    ack = awaited(MessageCalls.ack)
    wait = awaited(MessageCalls.wait)
    decisions = awaited(MessageCalls.decisions)
    decision = awaited(MessageCalls.decision)
    resolve = awaited(MessageCalls.resolve)
