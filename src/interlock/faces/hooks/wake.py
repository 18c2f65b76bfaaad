"""Wakes an idle agent, as far as its host lets others do that.

Claude Code has an inbox for each session: a Unix socket, which ``~/.claude/sessions/PID.json``
names.  A line of JSON there starts a turn.  What is written there is not delivered yet: a session
that bypasses permissions holds it back, and nothing confirms it.  So the message itself stays
unread until a hook has shown it.  Other hosts have no such way.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from interlock.core.safe_text import bars, foreign
from interlock.core.validate import quote
from interlock.faces.hooks.event import HookEvent
from interlock.faces.hooks.hosts import HOSTS
from interlock.nouns.fleet.hosts_noun import NotWoken, Woken

if TYPE_CHECKING:
    from interlock.client import Fleet

TEXT = "Messages of other agents wait for you: run 'interlock inbox --ack'."
_OWN_NAME = "interlock"
"""The sender of the hint, which no agent can have as its name."""
_PATIENCE = 2.0


def wake(fleet: Fleet, agent: str, text: str = "", sender: str = "") -> Woken | NotWoken:
    """Write to the inbox of the agent's session on this host: a hint, or what a sender says."""
    here = [each for each in fleet.agents.list() if each.agent == agent and each.state == "alive"]
    if not here:
        hint = (
            f"see 'interlock agent list'; a message waits for it: interlock send {quote(agent)}"
            " TEXT"
        )
        return NotWoken(agent=agent, reason="no session of this name lives", clear=hint)
    session, host = _host_session(here[-1].metadata)
    sockets = list(_sockets(agent, session))
    said = "\n".join([f"{foreign(sender)} says:", *bars(text)]) if text else TEXT
    last = "" if host == "claude" or not host else f"{HOSTS[host].title} cannot be woken"
    for path, token in sockets:
        try:
            _write(path, token, said, sender if text else _OWN_NAME)
        except OSError as error:
            last = f"its inbox does not answer: {error}"
            continue
        return Woken(agent=agent, way="inbox socket", state="written")
    return NotWoken(
        agent=agent,
        reason=last or "no session on this host has an inbox",
        clear="send a message, which its next hook delivers; an agent that is to be woken runs"
        " 'interlock wait' while it is idle",
    )


def _host_session(metadata: Any) -> tuple[str, str]:  # noqa: ANN401 - what its hook stored
    if not isinstance(metadata, dict):
        return "", ""
    host = metadata.get("host", "")
    return str(metadata.get("session", "")), host if host in HOSTS else ""


def _sockets(agent: str, session: str) -> Iterator[tuple[str, str]]:
    """The inboxes of sessions that belong to the agent, and the token of each."""
    folder = os.path.join(os.path.expanduser("~"), ".claude", "sessions")
    for file in sorted(glob.glob(os.path.join(glob.escape(folder), "*.json"))):
        try:
            with open(file, encoding="utf-8") as opened:
                found = json.load(opened)
            path, its = str(found["messagingSocketPath"]), str(found["sessionId"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        named = HookEvent("", "", its, "").agent(HOSTS["claude"])
        if its == session or agent in (named, found.get("name")):
            yield path, str(found.get("messagingToken") or "")


def _write(path: str, token: str, text: str, sender: str) -> None:
    lines: list[dict[str, Any]] = [{"type": "auth", "token": token}] if token else []
    lines.append(
        {
            "type": "user",
            "msg_id": str(uuid.uuid4()),
            "from": sender,
            "priority": "next",
            "message": {"role": "user", "content": text},
        }
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inbox:
        inbox.settimeout(_PATIENCE)
        inbox.connect(path)
        inbox.sendall("".join(f"{json.dumps(line)}\n" for line in lines).encode())
