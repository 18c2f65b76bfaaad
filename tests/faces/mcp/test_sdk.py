"""The official SDK's own client finds nothing wrong with our server, in either era."""

from __future__ import annotations

import asyncio
import sys

from tests.faces.mcp.sdk import VERSIONS, Used, check, used
from tests.faces.shell import Shell


async def _in_each_era(shell: Shell) -> dict[str, Used]:
    from mcp.client.stdio import StdioServerParameters

    words = ["-m", "interlock", "mcp", "--tools", "default,task"]
    server = StdioServerParameters(
        command=sys.executable, args=words, env=shell.environment(), cwd=shell.folder
    )
    found = await asyncio.gather(*(used(server, mode) for mode in VERSIONS))
    return dict(zip(VERSIONS, found, strict=True))


def test_the_official_client_works_with_the_server_in_each_era(ada: Shell) -> None:
    for mode, found in asyncio.run(_in_each_era(ada)).items():
        check(mode, found)
        assert "task_list" in found.tools
