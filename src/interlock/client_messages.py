"""Messages for programs that may block."""

from __future__ import annotations

from interlock.client import Fleet, Noun, blocking
from interlock.services.message.calls import MessageCalls


class Messages(Noun[MessageCalls]):
    """Messages: alert, query, share, stop, mail."""

    def __init__(self, calls: MessageCalls, fleet: Fleet) -> None:
        super().__init__(calls)
        self._fleet = fleet

    alert = blocking(MessageCalls.alert)
    share = blocking(MessageCalls.share)
    stop = blocking(MessageCalls.stop)
    send = blocking(MessageCalls.send)
    query = blocking(MessageCalls.query)
    reply = blocking(MessageCalls.reply)
    cancel = blocking(MessageCalls.cancel)
    subscribe = blocking(MessageCalls.subscribe)
    unsubscribe = blocking(MessageCalls.unsubscribe)
    inbox = blocking(MessageCalls.inbox)
    ack = blocking(MessageCalls.ack)
    wait = blocking(MessageCalls.wait)
    decisions = blocking(MessageCalls.decisions)
    decision = blocking(MessageCalls.decision)
    resolve = blocking(MessageCalls.resolve)
