"""Messages of the asyncio client.

async for message in fleet.messages.recv():
    await handle(message)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING, Self

from interlock.aio import offered
from interlock.nouns.messages.calls import MessageCalls
from interlock.nouns.messages.files import FileHandle
from interlock.nouns.messages.message import Acknowledged, UnknownMessages
from interlock.nouns.messages.receive_loop import MessageHandle, ids_of
from interlock.nouns.messages.receiver import REDELIVER
from interlock.runtime.calls import Awaiting
from interlock.steps import drive_async

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
        return Receiver(loop)


class Receiver:
    """Messages as they come; iterate, in an ``async with`` block if the loop may be left."""

    def __init__(self, loop: ReceiveLoop) -> None:
        self._loop = loop
        self._store = loop.context.store
        self._in_block = False
        self._guard = asyncio.Lock()

    async def take(self) -> tuple[Message, ...]:
        """Wait for messages and return all of them; none at the timeout, or when closed.

        This acknowledges the messages of the call before, unless ``ack=False``.
        """
        async with self._guard:
            found = await drive_async(self._loop.take(), self._store)
        return tuple([Message(each, self._loop) for each in found])

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
        return None if found is None else Message(found, self._loop)


@offered
class Message(MessageHandle[Awaiting]):
    """A received message."""

    def file(self) -> SharedFile:
        """The file that came with it."""
        return SharedFile(self._file(), self.context)


@offered
class SharedFile(FileHandle[Awaiting]):
    """A shared file: a read returns the bytes as they were shared, or raises Changed."""
