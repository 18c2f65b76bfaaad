"""Messages for event loops.

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
from interlock.nouns.messages.query_rules import ReplyOutcome
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
        """All that comes for us, ``async for message in fleet.messages.recv():``.

        A message is acknowledged when the loop comes back for the next one, before that comes;
        one whose handling raises, or with which the loop is left, stays unread and comes again.
        With ``ack=False`` nothing is acknowledged but by ``message.ack()``, and what is not comes
        again after ``redeliver`` seconds.  With a ``timeout`` the loop ends when nothing came for
        so long; 0 takes what is there.  ``can`` are the abilities whose questions we answer:
        without it, those that our session says it has.  Trouble of the store does not end the loop.
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
        """All that came, as soon as there is anything; none when the time is up, or when closed.

        What was taken before is acknowledged with that, unless ``ack=False`` was said.
        """
        async with self._guard:
            found = await drive_async(self._loop.take(), self._store)
        return tuple([self._message(each) for each in found])

    def ack(self, *messages: Message | str) -> Awaitable[Acknowledged | UnknownMessages]:
        """Acknowledge messages now, or their ids, with one commit."""
        return drive_async(self._loop.ack(ids_of(messages)), self._store)

    async def close(self) -> None:
        """Take no more messages; any task may say so, and the loop ends soon."""
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
    """A message in our hands."""

    def __init__(self, received: Received, loop: ReceiveLoop, store: Store) -> None:
        super().__init__(received, loop)
        self._store = store

    def ack(self) -> Awaitable[Acknowledged | UnknownMessages]:
        """Acknowledge it now: it will not come again."""
        return drive_async(self._loop.ack((self.id,)), self._store)

    def reply(self, answer: object) -> Awaitable[ReplyOutcome]:
        """Answer a question, which acknowledges it."""
        return drive_async(self._loop.reply(self.id, answer), self._store)

    def file(self) -> SharedFile:
        """The file that came with it."""
        return SharedFile(self._file(), self._store)


class SharedFile:
    """A file that somebody shared: what is read is what was shared, or it raises Changed."""

    def __init__(self, file: File, store: Store) -> None:
        self._file = file
        self._store = store
        self.path, self.size, self.digest = file.path, file.size, file.digest

    def read(self) -> Awaitable[bytes]:
        """Its bytes."""
        return drive_async(files.read(self._file), self._store)

    def verify(self) -> Awaitable[None]:
        """See that it is still what was shared, however large it is."""
        return drive_async(files.verify(self._file), self._store)
