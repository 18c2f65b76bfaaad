"""``agent join``: its answer is a line for a shell to evaluate; all else goes to stderr."""

from __future__ import annotations

import os
import sys

from interlock.faces.cli.command import answer, note
from interlock.faces.cli.connect import connected
from interlock.faces.cli.parse import Parsed
from interlock.faces.operations.agent import Join
from interlock.faces.render import lasting


def join(parsed: Parsed) -> int:
    """Begin a session that outlives this command."""
    request: Join = parsed.request
    with connected(parsed, anew=True) as fleet:
        # The session is that of the shell which asked: this command ends with its answer.
        joined = fleet.agents.join(
            ttl=request.ttl, metadata=request.metadata, can=request.can, pid=os.getppid()
        )
    if not parsed.common.json and sys.stderr.isatty():
        note(f"{joined.agent} joined; lives {lasting(joined.expires_in)} after the last command")
        if sys.stdout.isatty():
            note('to set it in one go: eval "$(interlock agent join ...)"')
    return answer(parsed, joined)
