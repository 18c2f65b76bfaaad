"""Messages of the blocking client.

for message in fleet.messages.recv():
    handle(message)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self

from interlock.client import offered
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.files import FileHandle
from interlock.nouns.messages.message import Acknowledged, UnknownMessages
from interlock.nouns.messages.receive_loop import MessageHandle, ids_of
from interlock.nouns.messages.receiver import REDELIVER
from interlock.runtime.calls import Blocking
from interlock.steps import drive

if TYPE_CHECKING:
    from interlock.nouns.messages.receive_loop import ReceiveLoop


class Messages(MessageCalls[Blocking]):
    """Messages: alert, query, share, stop, mail."""

    def recv(
        self,
        *,
        can: Iterable[str] | None = None,
        timeout: float | str | None = None,
        ack: bool = True,
        redeliver: float | str = REDELIVER,
    ) -> Receiver:
        """Receive all messages, urgent ones first: ``for message in fleet.messages.recv():``.

        A message is acknowledged when the loop asks for the next one.  If its handling raises, or
        the loop ends with it, the message stays unread and is delivered again.
        With ``ack=False`` only ``message.ack()`` acknowledges, and an unacknowledged message is
        delivered again after ``redeliver`` seconds.  With a ``timeout`` the loop ends when no
        message came for that long; 0 takes only those that are there.  ``can`` are the abilities
        whose questions this agent answers; without it, those of its session.  An outage of the
        store does not end the loop.
        """
        loop = self.reception(can=can, timeout=timeout, ack=ack, redeliver=redeliver)
        return Receiver(loop)


class Receiver:
    """Messages as they come; iterate over it, in a ``with`` block if the loop may be left."""

    def __init__(self, loop: ReceiveLoop) -> None:
        self._loop = loop
        self._store = loop.context.store
        self._in_block = False
        self._guard = threading.RLock()  # a signal handler may close the receiver, too

    def take(self) -> tuple[Message, ...]:
        """Wait for messages and return all of them; none at the timeout, or when closed.

        This acknowledges the messages of the call before, unless ``ack=False``.
        """
        with self._guard:
            found = drive(self._loop.take(), self._store)
        return tuple([Message(each, self._loop) for each in found])

    def ack(self, *messages: Message | str) -> Acknowledged | UnknownMessages:
        """Acknowledge messages now, or their ids, with one commit; any thread may."""
        return drive(self._loop.ack(ids_of(messages)), self._store)

    def close(self) -> None:
        """Take no more messages; any thread may call it, and the loop ends soon."""
        self._loop.closed = True
        with self._guard:
            drive(self._loop.end(), self._store)

    def __iter__(self) -> Iterator[Message]:
        try:
            while (message := self._next()) is not None:
                yield message
        finally:
            if self._in_block:
                with self._guard:
                    drive(self._loop.leave(), self._store)
            else:
                self.close()

    def __enter__(self) -> Self:
        self._in_block = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Message | None:
        with self._guard:
            found = drive(self._loop.next(), self._store)
        return None if found is None else Message(found, self._loop)


@offered
class Message(MessageHandle[Blocking]):
    """A received message."""

    def file(self) -> SharedFile:
        """The file that came with it."""
        return SharedFile(self._file(), self.context)


@offered
class SharedFile(FileHandle[Blocking]):
    """A shared file: a read returns the bytes as they were shared, or raises Changed."""
