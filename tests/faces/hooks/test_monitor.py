"""The monitor of the plugin for Claude Code: a line of its output begins a turn.

No live host has confirmed it: these tests start the command in the folder of the project, with the
variables of an interactive session, and read the lines that it prints.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faces.hooks.hosts import ONE, event, git, send, shop
from tests.faces.shell import PATIENCE, until

import interlock
from interlock.errors import BadInput
from interlock.faces.hooks import monitor
from interlock.faces.hooks.event import HookEvent
from interlock.faces.hooks.hosts import HOSTS
from interlock.faces.hooks.rewake import SessionOver
from interlock.faces.hooks.setup import Setup
from interlock.faces.hooks.state import HookState
from interlock.nouns.messages.message import SHOWN_LIMIT

__all__ = ["shop"]
AGENT = "claude-55556666"
STATE = HookEvent("", "", ONE, "")
SETTINGS = ".claude/settings.local.json"
SESSION = {"CLAUDE_CODE_SESSION_ID": ONE, "CLAUDE_CODE_ENTRYPOINT": "cli"}
QUICK = (
    "import sys; from interlock.faces.hooks import main, monitor, rewake; monitor._FIRST = 0.2;"
    " monitor._PAUSE = rewake._LOOK = 0.05; sys.exit(main.main(['claude', 'monitor']))"
)


@contextmanager
def start(root: Path, variables: dict[str, str] = SESSION) -> Iterator[subprocess.Popen[str]]:
    """The monitor with short pauses, as the host starts it with a session."""
    process = subprocess.Popen(
        [sys.executable, "-c", QUICK],
        cwd=root,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], (), (), PATIENCE)[0], "no line came"
    return process.stdout.readline()


def test_a_line_says_that_mail_waits_and_a_hook_of_the_turn_delivers_it(shop: Path) -> None:
    url = f"{shop}/.interlock/store.db"
    send("claude", event(shop, "SessionStart", source="startup"))
    with interlock.connect(url, agent="ada") as ada, start(shop) as process:
        ada.messages.send(AGENT, "during a turn")  # it is shown by the turn itself
        assert "during a turn" in json.dumps(send("claude", event(shop, "Stop")))
        send("claude", event(shop, "PostToolBatch", tool_calls=[]))
        assert send("claude", event(shop, "Stop")) == ({}, "", 0)
        ada.messages.send(AGENT, "the build\nis red")
        said = line(process)
        assert said == (
            "interlock: 1 message waits for you, from ada; read them: interlock inbox --ack\n"
        )
        with interlock.connect(url, agent=AGENT) as own:
            assert own.messages.inbox().messages  # written is not read
            answer = send("claude", event(shop, "PostToolBatch", tool_calls=[]))
            assert "is red" in json.dumps(answer)
            send("claude", event(shop, "Stop"))
            assert not own.messages.inbox().messages
        ada.messages.stop(AGENT, "enough")
        ada.messages.send(AGENT, "more")
        assert "one asks you to stop" in line(process)
        send("claude", event(shop, "SessionEnd", reason="other"))
        assert process.wait(PATIENCE) == 0


def test_the_hook_in_the_background_comes_first(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the agent at once, which is not idle then; the monitor stays silent."""
    url = f"{shop}/.interlock/store.db"
    send("claude", event(shop, "SessionStart", source="startup"))
    send("claude", event(shop, "Stop"))
    said: list[str] = []
    looks: list[int] = []
    known = monitor._new

    def new(fleet: interlock.Fleet, about: HookEvent, told: set[str]) -> list[object]:
        looks.append(1)
        if len(looks) == 2:
            with HookState(STATE) as state:
                state.idle = False
        if len(looks) == 3:
            raise SessionOver
        return list(known(fleet, about, told))

    monkeypatch.setattr(monitor, "_new", new)
    monkeypatch.setattr(monitor, "_FIRST", 0.0)
    monkeypatch.setattr(monitor, "_PAUSE", 0.0)
    for name, value in SESSION.items():
        monkeypatch.setenv(name, value)
    with interlock.connect(url, agent="ada") as ada:
        ada.messages.send(AGENT, "hello")
    monitor.watch(HOSTS["claude"], said.append)
    assert said == []
    assert len(looks) == 3


def test_what_has_left_the_inbox_is_forgotten(shop: Path) -> None:
    """A session may get more messages than an inbox lists at once."""
    send("claude", event(shop, "SessionStart", source="startup"))
    send("claude", event(shop, "Stop"))
    url = f"{shop}/.interlock/store.db"
    with interlock.connect(url, agent="ada") as ada, interlock.connect(url, agent=AGENT) as own:
        ada.messages.send(AGENT, "first")
        (first,) = monitor._new(own, STATE, set())
        ada.messages.send(AGENT, "second")
        told = {first.id, *[f"msg_{number}" for number in range(SHOWN_LIMIT)]}
        (second,) = monitor._new(own, STATE, told)
    assert second.id != first.id
    assert told == {first.id}


@pytest.mark.parametrize(
    "variables", [{"CLAUDE_CODE_SESSION_ID": ""}, {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}]
)
def test_without_an_interactive_session_it_ends(shop: Path, variables: dict[str, str]) -> None:
    with start(shop, {**SESSION, **variables}) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "")
    assert "no interactive session" in err


def test_a_session_has_one_monitor_and_it_ends_with_the_session(shop: Path) -> None:
    send("claude", event(shop, "SessionStart", source="startup"))
    file = f"{HookState(STATE).file}.monitor"
    with start(shop) as first:
        until(lambda: os.path.exists(file), "the first monitor")
        with start(shop) as second:
            assert second.wait(PATIENCE) == 0
        assert first.poll() is None


def test_setup_enables_the_plugin_only_when_asked_and_removes_it(shop: Path) -> None:
    settings = shop / SETTINGS
    settings.parent.mkdir()
    foreign = {"enabledPlugins": {"lint@team": True}, "model": "opus"}
    settings.write_text(json.dumps(foreign))
    Setup("claude", remove=False).write()
    assert "extraKnownMarketplaces" not in settings.read_text()
    shown = Setup("claude", remove=False, monitor=True).show()
    assert "monitors/monitors.json" in shown.diff
    assert not (shop / ".claude/interlock-plugin").exists()
    Setup("claude", remove=False, monitor=True).write()
    found = json.loads(settings.read_text())
    assert found["enabledPlugins"] == {
        "lint@team": True,
        "interlock-monitor@interlock-local": True,
    }
    folder = Path(found["extraKnownMarketplaces"]["interlock-local"]["source"]["path"])
    (listed,) = json.loads((folder / ".claude-plugin/marketplace.json").read_text())["plugins"]
    named = json.loads((folder / ".claude-plugin/plugin.json").read_text())["name"]
    assert listed["name"] == named == "interlock-monitor"
    (entry,) = json.loads((folder / "monitors/monitors.json").read_text())
    assert entry["command"].endswith("interlock hook claude monitor")
    assert entry.keys() == {"name", "command", "description", "when"}
    assert git(shop, "status", "--porcelain") == ""
    assert Setup("claude", remove=False).show().files == ()  # it stays until it is removed
    Setup("claude", remove=True).write()
    assert json.loads(settings.read_text()) == foreign
    assert not folder.exists()


def test_other_hosts_have_no_monitor(shop: Path) -> None:
    with pytest.raises(BadInput, match="codex has no plugin monitor"):
        Setup("codex", remove=False, monitor=True)
