"""Messages of the asyncio client.

async for message in fleet.messages.recv():
    await handle(message)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING, Self

from interlock.drivers import drive_async
from interlock.nouns.messages import files
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.message import Acknowledged, File, Received, UnknownMessages
from interlock.nouns.messages.query import ReplyOutcome
from interlock.nouns.messages.receive_loop import ReceivedMessage, ids_of
from interlock.nouns.messages.receiver import REDELIVER
from interlock.runtime.calls import Awaiting
from interlock.store import Store

if TYPE_CHECKING:
    from interlock.nouns.messages.receive_loop import ReceiveLoop


class Messages(MessageCalls[Awaiting]):
    """Messages: alert, query, share, stop, mail."""

    def recv(
        self,
        *,
        can: Iterable[str] | None = None,
        timeout: float | str | None = None,
        ack: bool = True,
        redeliver: float | str = REDELIVER,
    ) -> Receiver:
        """Receive all messages, urgent ones first: ``async for message in fleet.messages.recv():``.

        A message is acknowledged when the loop asks for the next one.  If its handling raises, or
        the loop ends with it, the message stays unread and is delivered again.
        With ``ack=False`` only ``message.ack()`` acknowledges, and an unacknowledged message is
        delivered again after ``redeliver`` seconds.  With a ``timeout`` the loop ends when no
        message came for that long; 0 takes only those that are there.  ``can`` are the abilities
        whose questions this agent answers; without it, those of its session.  An outage of the
        store does not end the loop.
        """
        loop = self.reception(can=can, timeout=timeout, ack=ack, redeliver=redeliver)
        return Receiver(loop, self.context.store)


class Receiver:
    """Messages as they come; iterate, in an ``async with`` block if the loop may be left."""

    def __init__(self, loop: ReceiveLoop, store: Store) -> None:
        self._loop = loop
        self._store = store
        self._in_block = False
        self._guard = asyncio.Lock()

    async def take(self) -> tuple[Message, ...]:
        """Wait for messages and return all of them; none at the timeout, or when closed.

        This acknowledges the messages of the call before, unless ``ack=False``.
        """
        async with self._guard:
            found = await drive_async(self._loop.take(), self._store)
        return tuple([self._message(each) for each in found])

    def ack(self, *messages: Message | str) -> Awaitable[Acknowledged | UnknownMessages]:
        """Acknowledge messages now, or their ids, with one commit."""
        return drive_async(self._loop.ack(ids_of(messages)), self._store)

    async def close(self) -> None:
        """Take no more messages; any task may call it, and the loop ends soon."""
        self._loop.closed = True
        async with self._guard:
            await drive_async(self._loop.end(), self._store)

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            while (message := await self._next()) is not None:
                yield message
        finally:
            if self._in_block:
                await drive_async(self._loop.leave(), self._store)
            else:
                await self.close()

    async def __aenter__(self) -> Self:
        self._in_block = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _next(self) -> Message | None:
        async with self._guard:
            found = await drive_async(self._loop.next(), self._store)
        return None if found is None else self._message(found)

    def _message(self, received: Received) -> Message:
        return Message(received, self._loop, self._store)


class Message(ReceivedMessage):
    """A received message."""

    def __init__(self, received: Received, loop: ReceiveLoop, store: Store) -> None:
        super().__init__(received, loop)
        self._store = store

    def ack(self) -> Awaitable[Acknowledged | UnknownMessages]:
        """Acknowledge it now: it is not delivered again."""
        return drive_async(self._loop.ack((self.id,)), self._store)

    def reply(self, answer: object) -> Awaitable[ReplyOutcome]:
        """Answer a question, which acknowledges it."""
        return drive_async(self._loop.reply(self.id, answer), self._store)

    def file(self) -> SharedFile:
        """The file that came with it."""
        return SharedFile(self._file(), self._store)


class SharedFile:
    """A shared file: a read returns the bytes as they were shared, or raises Changed."""

    def __init__(self, file: File, store: Store) -> None:
        self._file = file
        self._store = store
        self.path, self.size, self.digest = file.path, file.size, file.digest

    def read(self) -> Awaitable[bytes]:
        """Its bytes."""
        return drive_async(files.read(self._file), self._store)

    def verify(self) -> Awaitable[None]:
        """Check that the file has not changed since it was shared; it may have any size."""
        return drive_async(files.verify(self._file), self._store)
