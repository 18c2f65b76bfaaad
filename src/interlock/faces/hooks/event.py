"""One event of a host: its JSON, as all hosts have it in common."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

import msgspec

from interlock.core.codec import digest
from interlock.faces.hooks.hosts import AFTER, BEFORE, Host

_PATHS = ("file_path", "notebook_path", "filePath", "absolute_path", "target_file", "path")
_PATCHES = ("command", "input", "patch", "patchText", "patch_text")
# Patterns as text: one that is not used need not be compiled.
_FILE = r"(?m)^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\*\*\* Move to: (.+)$"
_PLAIN = r"[\w-]+"
_LONGEST = 64


class BadEvent(Exception):
    """The input is no event of this host."""


class HookEvent(NamedTuple):
    """An event: what it means, whose it is, and the files that its tools edit.

    ``named`` is the host's own word.  ``edits`` says whether all of its tools are edit tools, and
    ``again`` that the agent already goes on because of a stop hook.  ``transcript`` is the file in
    which the host writes what this agent does.
    """

    means: str
    named: str
    session: str
    folder: str
    agent_id: str = ""
    agent_type: str = ""
    tool: str = ""
    paths: tuple[str, ...] = ()
    edits: bool = False
    again: bool = False
    source: str = ""
    transcript: str = ""

    def agent(self, host: Host) -> str:
        """The name of the agent: its own, or one made of its session; a sub-agent has another."""
        known = os.environ.get("INTERLOCK_AGENT", "")
        name = known or f"{host.name}-{_short(self.session)}"
        if self.agent_id:
            kind = re.sub(r"[^A-Za-z0-9_-]+", "-", self.agent_type)[:24] or "sub"
            name = f"{name}/{kind}-{_short(self.agent_id)}"
        return name

    @property
    def session_id(self) -> str:
        """The session of this agent: the one around it, or one made of the host's session."""
        around = os.environ.get("INTERLOCK_SESSION", "")
        if around and not self.agent_id:
            return around
        text = f"{self.session}\n{self.agent_id}"
        return "ses_" + digest(text.encode("utf-8", "surrogatepass"))[:32]


def read(host: Host, text: str, named: str = "") -> HookEvent:
    """The event of a host; ``named`` if the command line says which one it is."""
    try:
        payload = _parsed(text)
    except ValueError:
        raise BadEvent(f"the input is no JSON: {text[:60]!r}") from None
    if not isinstance(payload, dict):
        raise BadEvent(f"the input is no JSON object: {text[:60]!r}")
    name = _text(payload, "hook_event_name", "hookEventName", "event") or named
    means = host.events.get(name)
    if means is None:
        raise BadEvent(f"{host.title} has no event {name!r:.60}; known: {', '.join(host.events)}")
    tool, paths, edits = _tools(host, payload, means)
    roots = payload.get("workspace_roots")
    first = roots[0] if isinstance(roots, list) and roots else ""
    return HookEvent(
        means=means,
        named=name,
        session=_text(payload, "session_id", "sessionId", "conversation_id", "sessionID") or "none",
        folder=_text(payload, "cwd") or (first if isinstance(first, str) else "") or os.getcwd(),
        agent_id=_text(payload, "agent_id"),
        agent_type=_text(payload, "agent_type"),
        tool=tool,
        paths=paths,
        edits=edits,
        again=bool(payload.get("stop_hook_active") or payload.get("loop_count")),
        source=_text(payload, "source"),
        transcript=_transcript(payload),
    )


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    """A JSON value; the usual parser also reads half a surrogate pair, as an edit may have one."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        import json  # a host waits for this at every edit, and hardly ever needs it

        return json.loads(text)


def _transcript(payload: dict[str, Any]) -> str:
    """The transcript of a session; a sub-agent has one of its own beside it."""
    whole, sub = _text(payload, "transcript_path"), _text(payload, "agent_id")
    if own := _text(payload, "agent_transcript_path"):
        return own
    if not sub:
        return whole
    begin, suffix = os.path.splitext(whole)
    return f"{begin}/subagents/agent-{sub}{suffix}" if suffix and re.fullmatch(_PLAIN, sub) else ""


def _tools(host: Host, payload: dict[str, Any], means: str) -> tuple[str, tuple[str, ...], bool]:
    """The tool, the files that edit tools name, and whether there is no other tool."""
    if means not in (BEFORE, AFTER):
        return "", (), False
    calls = payload.get("tool_calls")
    calls = calls if isinstance(calls, list) else [payload]
    found: dict[str, None] = {}
    names = []
    for each in calls:
        if isinstance(each, dict):
            names.append(_text(each, "tool_name", "toolName", "name", "tool"))
            if names[-1] in host.edits:
                found |= dict.fromkeys(_paths(each))
    edits = bool(names) and all(name in host.edits for name in names)
    return (names[0] if names else ""), tuple(found), edits


def _paths(call: dict[str, Any]) -> list[str]:
    arguments: Any = next(
        (call[key] for key in ("tool_input", "toolArgs", "args", "input") if key in call), {}
    )
    if isinstance(arguments, str):
        try:
            arguments = _parsed(arguments)
        except ValueError:
            arguments = {"patch": arguments}
    if not isinstance(arguments, dict):
        return []
    found = [arguments[key] for key in _PATHS if isinstance(arguments.get(key), str)]
    for key in _PATCHES:
        if isinstance(patch := arguments.get(key), str):
            found += [one or other for one, other in re.findall(_FILE, patch)]
    return [path.strip() for path in found if path.strip()]


def _text(payload: dict[str, Any], *names: str) -> str:
    return next((v for name in names if isinstance(v := payload.get(name), str) and v), "")


def _short(id_: str) -> str:
    """A few letters of an id; of one with other characters, of its digest."""
    plain = re.sub(r"[^0-9A-Za-z]", "", id_)
    if len(plain) < 6 or len(id_) > _LONGEST:  # noqa: PLR2004
        return digest(id_.encode("utf-8", "replace"))[:8]
    return plain[-8:].lower()
