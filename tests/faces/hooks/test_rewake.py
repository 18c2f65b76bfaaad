"""An idle agent of Claude Code is woken by a hook in the background, as its documentation says.

No live host has confirmed it: these tests start the command with the input, the variables and the
standard files that are documented, and look at its exit status and its standard error.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faces.hooks.hosts import ONE, event, send, shop
from tests.faces.shell import PATIENCE, until

import interlock
from interlock.faces.hooks import rewake
from interlock.faces.hooks.event import HookEvent
from interlock.faces.hooks.hosts import HOSTS, HookAnswer
from interlock.faces.hooks.state import HookState

__all__ = ["shop"]
AGENT = "claude-55556666"
STATE = HookEvent("", "", ONE, "")


def stop(root: Path) -> dict[str, Any]:
    return event(root, "Stop", stop_hook_active=False)


def start(root: Path) -> subprocess.Popen[str]:
    """The hook as the host starts it beside its Stop hook."""
    program = [sys.executable, "-m", "interlock", "hook", "claude", "wake"]
    process = subprocess.Popen(
        program,
        cwd=root,
        env={**os.environ, "CLAUDE_CODE_SESSION_ID": ONE, "CLAUDE_CODE_ENTRYPOINT": "cli"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(stop(root)))
    process.stdin.close()
    process.stdin = None
    return process


def waits() -> bool:
    """Whether a process waits for the session."""
    path = f"{HookState(STATE).file}.wake"
    if not os.path.exists(path):
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_mail_wakes_an_idle_agent_once(shop: Path) -> None:
    send("claude", event(shop, "SessionStart", source="startup"))
    assert send("claude", stop(shop)) == ({}, "", 0)
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada, start(shop) as first:
        until(waits, "the wait")
        with start(shop) as second:
            assert second.wait(PATIENCE) == 0
        ada.messages.send(AGENT, "the build is red")
        out, err = first.communicate(timeout=PATIENCE)
        assert (first.returncode, out) == (2, "")
        assert "the build is red" in err
        assert not HookState(STATE).loaded().idle
        with interlock.connect(f"{shop}/.interlock/store.db", agent=AGENT) as own:
            assert own.messages.inbox().messages  # written is not read
            send("claude", event(shop, "PostToolBatch", tool_calls=[]))
            assert not own.messages.inbox().messages


def woken(root: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> HookAnswer:
    """The hook in this process."""
    known = {"CLAUDE_CODE_SESSION_ID": ONE, **variables}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    return rewake.wait_and_wake(HOSTS["claude"], json.dumps(stop(root)).encode())


@pytest.mark.parametrize(
    "variables",
    [{"CLAUDE_CODE_SESSION_ID": "another"}, {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}],
)
def test_a_host_that_may_wait_for_it_is_not_held_up(
    shop: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada:
        ada.messages.send(AGENT, "hello")
    assert woken(shop, monkeypatch, **variables) == HookAnswer()


def test_during_a_turn_it_waits_until_the_agent_stops(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewake, "_PAUSE", 0.01)
    looks: list[bool] = []

    def new(fleet: Any, about: HookEvent) -> str:
        looks.append(HookState(STATE).loaded().idle)
        if len(looks) == 3:  # the Stop hook lets the agent stop
            with HookState(STATE) as state:
                state.idle = True
        return known(fleet, about)

    known = rewake._new
    send("claude", event(shop, "SessionStart", source="startup"))
    monkeypatch.setattr(rewake, "_new", new)
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada:
        ada.messages.send(AGENT, "hello")
        ada.messages.stop(AGENT, "enough")
    answer = woken(shop, monkeypatch)
    assert answer.status == 2
    assert "hello" in answer.err
    assert "asks you to stop; release what you hold, and end ---\n  | enough" in answer.err
    assert looks[:3] == [False] * 3
    with HookState(STATE) as state:  # it is idle again, and a request to stop wakes it once
        state.idle = True
        with interlock.connect(f"{shop}/.interlock/store.db", agent=AGENT) as own:
            own.messages.ack(*state.shown)
    with interlock.connect(f"{shop}/.interlock/store.db", agent=AGENT) as own:
        assert known(own, STATE) == ""


@pytest.mark.parametrize("ends", ["session", "host"])
def test_it_ends_with_its_session_and_with_its_host(
    shop: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(rewake, "_LOOK", 0.02)
    send("claude", stop(shop))
    began = threading.Event()

    def end() -> None:
        until(waits, "the wait")
        began.wait(0.2)
        if ends == "session":
            os.remove(HookState(STATE).file)
        else:
            monkeypatch.setattr(os, "getppid", lambda: 1)

    other = threading.Thread(target=end)
    other.start()
    assert woken(shop, monkeypatch) == HookAnswer()
    other.join()
    assert not waits()
