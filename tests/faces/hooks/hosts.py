"""Events as hosts send them, and a repository with a store for their agents."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import work_tree_list
from interlock.faces.hooks.hosts import HOSTS
from interlock.faces.hooks.main import answered

ONE, TWO = "0a1b2c3d-1111-4222-8333-444455556666", "9f8e7d6c-1111-4222-8333-777788889999"
"""The sessions of two agents."""


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main", ".")
    git(root, "config", "user.email", "ada@example.org")
    git(root, "config", "user.name", "Ada")
    (root / ".gitignore").write_text(".interlock/\n")
    (root / "src").mkdir()
    (root / "src/a.py").write_text("a = 1\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    (root / ".interlock").mkdir(mode=0o700)
    interlock.connect(f"{root}/.interlock/store.db").close()
    work_tree_list.allow_store(f"{root}/.interlock/store.db")
    return root


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a store, for hooks that run in this process."""
    for name in [
        name for name in os.environ if name.startswith(("INTERLOCK_", "CLAUDE_", "CODEX"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    root = repository(tmp_path / "shop")
    monkeypatch.chdir(root)
    return root


def event(root: Path, name: str, session: str = ONE, **more: Any) -> dict[str, Any]:
    """An event in the shape that Claude Code documents."""
    return {
        "session_id": session,
        "prompt_id": "p1",
        "transcript_path": f"{root}/t.jsonl",
        "cwd": str(root),
        "permission_mode": "default",
        "hook_event_name": name,
        **more,
    }


def edit(root: Path, path: str, session: str = ONE, **more: Any) -> dict[str, Any]:
    call = {"tool_name": "Edit", "tool_use_id": "toolu_1"}
    arguments = {"file_path": f"{root}/{path}", "old_string": "1", "new_string": "2"}
    return event(root, "PreToolUse", session, **call, tool_input=arguments, **more)


def send(host: str, payload: object, named: str = "") -> tuple[Any, str, int]:
    """The JSON that the host gets, stderr, and the exit status."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    answer = answered(HOSTS[host], data, named)
    return (json.loads(answer.out) if answer.out else {}), answer.err, answer.status


def denied(answer: tuple[Any, str, int]) -> str:
    """The reason of a refusal in Claude Code's shape; empty if there is none."""
    out, _, status = answer
    assert status == 0
    inner = out.get("hookSpecificOutput", {})
    return inner["permissionDecisionReason"] if inner.get("permissionDecision") == "deny" else ""


def said(answer: tuple[Any, str, int]) -> str:
    """The text that the model gets."""
    return str(answer[0].get("hookSpecificOutput", {}).get("additionalContext", ""))
