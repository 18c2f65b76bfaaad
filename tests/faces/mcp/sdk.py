"""The official SDK's client, used as a host uses it: tools, and updates of resources."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, NamedTuple

from tests.faces.shell import PATIENCE

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
"""What each mode of the client agrees on; all in one test, since its import takes long."""
BOARD = "interlock://board"


class Used(NamedTuple):
    """What a client saw: the agreed version, the names of the tools, answers, an update."""

    version: str
    tools: list[str]
    answers: list[Any]
    updated: str


async def used(server: Any, mode: str) -> Used:
    """Connect, subscribe to the board, add a task, hear of it, and do it."""
    from mcp.client.client import Client

    heard = asyncio.Queue[str]()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            heard.put_nowait(str(message.params.uri))

    task = {"task": mode, "requires": [mode], "priority": -99}
    async with Client(server, mode=mode, message_handler=hear) as client:
        listed = await client.list_tools()
        if mode == "legacy":
            with warnings.catch_warnings(action="ignore"):
                await client.subscribe_resource(BOARD)
            answers = [await client.call_tool("task_add", task)]
            updated = await asyncio.wait_for(heard.get(), PATIENCE)
            with warnings.catch_warnings(action="ignore"):
                await client.unsubscribe_resource(BOARD)
        else:
            async with client.listen(resource_subscriptions=[BOARD, "file:///x"]) as events:
                assert events.honored.resource_subscriptions == [BOARD]
                answers = [await client.call_tool("task_add", task)]
                updated = str((await asyncio.wait_for(anext(events), PATIENCE)).uri)
        answers += [
            await client.call_tool("task_next", {"can": [mode]}),
            await client.call_tool("task_done", {"task": mode}),
            await client.call_tool("lock_acquire", {}),
        ]
        return Used(client.protocol_version, [each.name for each in listed.tools], answers, updated)


def check(mode: str, found: Used) -> None:
    """Nothing is wrong with what a client saw."""
    assert found.version == VERSIONS[mode]
    assert {"task_next", "lock_acquire"} <= set(found.tools)
    assert [each.is_error for each in found.answers] == [False, False, False, True]
    assert found.answers[1].content[0].text.startswith(f"claimed {mode}, token ")
    assert "bad_input: lock_acquire needs lock" in found.answers[3].content[0].text
    assert found.updated == BOARD
