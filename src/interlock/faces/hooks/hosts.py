"""The adapter table: one row for each host of coding agents.

A row says which file has the hooks, which of the host's events mean what, which tools edit files,
and in what shape the host takes a refusal, a text for the model, and "go on" at the end of a turn.
What a vendor documents was read there; rows with ``tested=False`` have a part that is not
documented, and ``docs/how-to`` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from interlock.errors import NotAllowed, StoreGone, StoreUnsuitable

FOR_A_PERSON = (NotAllowed, StoreGone, StoreUnsuitable)
"""What a commit can cause: no model is to go around that, and no text names a way."""
START, PROMPT, BEFORE, AFTER, STOP, SUB_START, SUB_STOP, END = (
    "start", "prompt", "before", "after", "stop", "sub start", "sub stop", "end",
)  # fmt: skip
"""What an event means to us."""


class HookAnswer(NamedTuple):
    """What a hook prints, and its exit status."""

    out: str = ""
    err: str = ""
    status: int = 0


class Host(NamedTuple):
    """One host.

    file         the file of a project with its hooks, from the root of the worktree
    events       its events, and what they mean
    edits        the tools that edit files
    shape        how it takes answers: the name of an encoder
    fails        what it does when a hook fails: ``open`` lets the tool run, ``closed`` refuses it
    wake         how an idle agent can be woken
    matcher      what its hook before a tool is limited to
    trusts       whether a user has to trust a hook before it runs
    instructions the file with instructions that it reads
    transcripts  whether it writes transcripts with the tokens that were spent
    rewakes      whether a hook that ends in the background begins a turn (``rewake.py``)
    """

    name: str
    title: str
    file: str
    events: Mapping[str, str]
    edits: frozenset[str]
    shape: str
    fails: str
    wake: str
    matcher: str = ""
    trusts: bool = False
    instructions: str = "AGENTS.md"
    transcripts: bool = False
    rewakes: bool = False
    tested: bool = True


_CLAUDE_EVENTS = {
    "SessionStart": START,
    "UserPromptSubmit": PROMPT,
    "PreToolUse": BEFORE,
    "PostToolBatch": AFTER,
    "Stop": STOP,
    "SubagentStart": SUB_START,
    "SubagentStop": SUB_STOP,
    "SessionEnd": END,
}
_EDITS = ("Edit", "Write", "MultiEdit", "NotebookEdit")

HOSTS: dict[str, Host] = {
    each.name: each
    for each in (
        Host(
            name="claude",
            title="Claude Code",
            file=".claude/settings.json",
            events={**_CLAUDE_EVENTS, "PostToolUse": AFTER},
            edits=frozenset(_EDITS),
            shape="claude",
            fails="open; closed from 2.1.295 on (onFailure)",
            wake="a hook in the background (asyncRewake), a plugin monitor, the inbox socket, the"
            " Stop hook",
            matcher="|".join(_EDITS),
            instructions="CLAUDE.md",
            transcripts=True,
            rewakes=True,
        ),
        Host(
            name="codex",
            title="Codex",
            file=".codex/hooks.json",
            events={
                "SessionStart": START,
                "UserPromptSubmit": PROMPT,
                "PreToolUse": BEFORE,
                "PostToolUse": AFTER,
                "Stop": STOP,
                "SubagentStart": SUB_START,
                "SubagentStop": SUB_STOP,
                "SessionEnd": END,
            },
            edits=frozenset(("apply_patch", "Edit", "Write")),
            shape="codex",
            fails="open",
            wake="the Stop hook; interlock wait",
            matcher="apply_patch|Edit|Write",
            trusts=True,
            transcripts=True,
        ),
        Host(
            name="copilot",
            title="Copilot CLI",
            file=".github/hooks/interlock.json",
            events={
                "SessionStart": START,
                "UserPromptSubmit": PROMPT,
                "PreToolUse": BEFORE,
                "PostToolUse": AFTER,
                "Stop": STOP,
                "SessionEnd": END,
            },
            edits=frozenset((*_EDITS, "edit", "create", "str_replace_editor", "apply_patch")),
            shape="copilot",
            fails="closed after a crash, open after a timeout",
            wake="interlock wait",
            tested=False,
        ),
        Host(
            name="cursor",
            title="Cursor",
            file=".cursor/hooks.json",
            events={
                "sessionStart": START,
                "beforeSubmitPrompt": PROMPT,
                "preToolUse": BEFORE,
                "postToolUse": AFTER,
                "stop": STOP,
                "sessionEnd": END,
            },
            edits=frozenset((*_EDITS, "edit_file", "search_replace", "write", "Delete")),
            shape="cursor",
            fails="closed (failClosed)",
            wake="interlock wait",
            tested=False,
        ),
        Host(
            name="gemini",
            title="Gemini CLI",
            file=".gemini/settings.json",
            events={
                "SessionStart": START,
                "BeforeAgent": PROMPT,
                "BeforeTool": BEFORE,
                "AfterTool": AFTER,
                "AfterAgent": STOP,
                "SessionEnd": END,
            },
            edits=frozenset(("write_file", "replace", "edit")),
            shape="gemini",
            fails="open",
            wake="interlock wait",
            matcher="write_file|replace|edit",
            instructions="GEMINI.md",
            tested=False,
        ),
        Host(
            name="opencode",
            title="opencode",
            file=".opencode/plugins/interlock.ts",
            events={**_CLAUDE_EVENTS, "PostToolUse": AFTER},
            edits=frozenset(("edit", "write", "multiedit", "patch", "apply_patch")),
            shape="opencode",
            fails="closed: the plugin throws",
            wake="interlock wait",
            tested=False,
        ),
    )
}
"""The hosts with hooks; ``agents`` in ``setup`` is a plain AGENTS.md for all others."""


def deny(host: Host, event: str, reason: str) -> HookAnswer:
    """Refuse the tool, with a reason that the model reads."""
    match host.shape:
        case "claude" | "codex":
            inner = {
                "hookEventName": event or "PreToolUse",
                "permissionDecision": "deny",
                "permissionDecisionReason": reason,
            }
            return _json({"hookSpecificOutput": inner})
        case "copilot":
            return _json({"permissionDecision": "deny", "permissionDecisionReason": reason})
        case "cursor":
            return _json({"permission": "deny", "user_message": reason, "agent_message": reason})
        case "gemini":
            return _json({"decision": "deny", "reason": reason})
        case _:
            return _json({"deny": reason})


def context(host: Host, event: str, text: str) -> HookAnswer:
    """A text for the model; an empty one says nothing."""
    if not text:
        return HookAnswer()
    match host.shape:
        case "claude" | "codex" | "gemini":
            inner = {"hookEventName": event, "additionalContext": text}
            return _json({"hookSpecificOutput": inner})
        case "copilot":
            return _json({"additionalContext": text})
        case "cursor":
            return _json({"additional_context": text})
        case _:
            return _json({"context": text})


def go_on(host: Host, reason: str) -> HookAnswer:
    """Keep the agent from stopping, with the reason as its next input."""
    match host.shape:
        case "claude" | "codex" | "copilot":
            return _json({"decision": "block", "reason": reason})
        case "cursor":
            return _json({"followup_message": reason})
        case "gemini":
            return _json({"decision": "deny", "reason": reason})
        case _:
            return _json({"context": reason})


def _json(value: object) -> HookAnswer:
    try:
        return HookAnswer(out=msgspec.json.encode(value).decode())
    except UnicodeEncodeError:  # half a surrogate pair of a name
        import json

        return HookAnswer(out=json.dumps(value))
