"""The official SDK's own client finds nothing wrong with our server, in either era."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tests.faces.shell import Shell

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
"""What each mode of the client agrees on; all in one test, since its import takes long."""


async def _used(shell: Shell, mode: str) -> tuple[str, list[str], list[Any]]:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    words = ["-m", "interlock", "mcp", "--tools", "default,task"]
    server = StdioServerParameters(
        command=sys.executable, args=words, env=shell.environment(), cwd=shell.folder
    )
    async with Client(server, mode=mode) as client:
        listed = await client.list_tools()
        answers = [
            await client.call_tool("task_add", {"task": mode, "requires": [mode]}),
            await client.call_tool("task_next", {"can": [mode]}),
            await client.call_tool("task_done", {"task": mode}),
            await client.call_tool("lock_acquire", {}),
        ]
        return client.protocol_version, [each.name for each in listed.tools], answers


async def _in_each_era(shell: Shell) -> dict[str, tuple[str, list[str], list[Any]]]:
    found = await asyncio.gather(*(_used(shell, mode) for mode in VERSIONS))
    return dict(zip(VERSIONS, found, strict=True))


def test_the_official_client_works_with_the_server_in_each_era(ada: Shell) -> None:
    for mode, (agreed, names, answers) in asyncio.run(_in_each_era(ada)).items():
        assert agreed == VERSIONS[mode]
        assert {"task_next", "lock_acquire", "task_list"} <= set(names)
        assert [each.is_error for each in answers] == [False, False, False, True]
        assert answers[1].content[0].text.startswith(f"claimed {mode}, token ")
        assert "bad_input: lock_acquire needs lock" in answers[3].content[0].text
