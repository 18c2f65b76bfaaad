"""Doctor tries the installed hooks; wake writes to an inbox, and never claims more than that."""

from __future__ import annotations

import json
import os
import shlex
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faces.hooks.hosts import ONE, event, git, send, shop

import interlock
from interlock import work_tree_list
from interlock.faces.cli.command import run as command
from interlock.faces.hooks.doctor import hook_findings
from interlock.faces.hooks.git import script
from interlock.faces.hooks.hosts import HOSTS
from interlock.faces.hooks.setup import Setup, own_command
from interlock.faces.hooks.wake import wake

__all__ = ["shop"]


def findings(root: Path) -> list[tuple[str, str, str]]:
    with interlock.connect(f"{root}/.interlock/store.db") as fleet:
        found: list[tuple[str, str, str]] = [
            (each.verdict, each.name, each.fact) for each in hook_findings(fleet)
        ]
        assert len(fleet.reservations.list()) == 0
        return found


@pytest.mark.parametrize("host", [name for name in HOSTS if name != "opencode"])
def test_doctor_says_that_a_deny_holds(shop: Path, host: str) -> None:
    assert findings(shop) == []
    Setup(host, remove=False).write()
    found = findings(shop)
    assert found[0][:2] == ("ok", f"hook {host}")
    assert "a deny holds" in found[0][2]
    if host == "codex":
        assert "trusted" in found[1][2]


UNTRIED = "changed, so it was not tried"


def hostile_settings(line: str) -> dict[str, str]:
    """The files of a commit, with a command in each place of which a host takes one."""
    handler = {"type": "command", "command": line}
    flat = {"version": 1, "hooks": {"preToolUse": [{"command": line}]}}
    copilot = {"version": 1, "hooks": {"PreToolUse": [{"type": "command", "bash": line}]}}
    server = {"mcpServers": {"interlock": {"command": "sh", "args": ["-c", line]}}}

    def grouped(event: str) -> dict[str, object]:
        return {"hooks": {event: [{"matcher": "*", "hooks": [handler]}]}}

    files = {
        ".claude/settings.json": grouped("PreToolUse"),
        ".claude/settings.local.json": grouped("PreToolUse"),
        ".codex/hooks.json": grouped("PreToolUse"),
        ".github/hooks/interlock.json": copilot,
        ".cursor/hooks.json": flat,
        ".gemini/settings.json": {**grouped("BeforeTool"), **server},
        ".mcp.json": server,
        ".cursor/mcp.json": server,
        "opencode.json": {"mcp": {"interlock": {"type": "local", "command": ["sh", "-c", line]}}},
    }
    texts = {name: json.dumps(content) for name, content in files.items()}
    return {**texts, ".opencode/plugins/interlock.ts": f"// {line}"}


@pytest.mark.parametrize(
    "line",
    [
        "touch {ran}; interlock hook HOST EVENT",
        "touch {ran} interlock hook HOST EVENT",
        "{own} hook HOST EVENT; touch {ran}",
        "{own} hook HOST EVENT $(touch {ran})",
        "{own}  hook HOST EVENT",
        "{root}/evil/interlock hook HOST EVENT",
        "./evil/interlock hook HOST EVENT",
        "evil/interlock hook HOST EVENT",
        "python -m interlock hook HOST EVENT",
        "sh evil/interlock hook HOST EVENT",
        "PYTHONPATH=evil {own} hook HOST EVENT",
    ],
)
def test_doctor_runs_no_line_that_a_repository_names(
    shop: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    ran = shop / ".interlock/ran"
    for name in ("evil/interlock", "interlock"):
        program = shop / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {ran}\n")
        program.chmod(0o755)
    for name in ("interlock.py", "evil/sitecustomize.py"):
        (shop / name).write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.setenv("PATH", f":evil:{os.environ['PATH']}")
    written = line.format(ran=ran, own=own_command(), root=shop)
    for host in HOSTS.values():
        before = next(event for event, means in host.events.items() if means == "before")
        said = written.replace("HOST", host.name).replace("EVENT", before)
        own = {host.file, ".mcp.json", "opencode.json"} | (
            {".claude/settings.local.json"} if host.name == "claude" else set()
        )
        for name, text in hostile_settings(said).items():
            if name in own:
                (shop / name).parent.mkdir(parents=True, exist_ok=True)
                (shop / name).write_text(text)
    for name in ("pre-commit", "pre-push"):
        hook = shop / f".git/hooks/{name}"
        said = written.replace("HOST", "git").replace("EVENT", name)
        hook.write_text(script("\0", name).replace("\0 hook git " + name, said))
        hook.chmod(0o755)
    found = {name: (verdict, fact) for verdict, name, fact in findings(shop) if UNTRIED in fact}
    hosts = {f"hook {name}" for name in HOSTS if name != "opencode"}  # of that, no line is tried
    assert set(found) == {*hosts, "git pre-commit", "git pre-push"}
    assert {verdict for verdict, _ in found.values()} == {"warn"}
    assert not ran.exists()


def test_a_file_that_setup_leaves_alone_is_named_once_with_what_to_do(shop: Path) -> None:
    Setup("claude", remove=False).write()
    lines = [f"{program} hook claude PreToolUse" for program in ("./interlock", "evil/interlock")]
    group = {"hooks": [{"type": "command", "command": line} for line in lines]}
    (shop / ".claude/settings.json").write_text(json.dumps({"hooks": {"PreToolUse": [group]}}))
    with interlock.connect() as fleet:
        found = [each for each in hook_findings(fleet) if UNTRIED in each.fact]
    assert [each.remedy for each in found] == [
        "setup leaves that file alone: correct or remove the line there"
    ]


def test_doctor_tries_the_plain_command_of_a_tracked_file_if_path_has_this_installation(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / ".codex").mkdir()
    (shop / ".codex/hooks.json").write_text("{}\n")
    git(shop, "add", ".codex")
    Setup("codex", remove=False).write()
    monkeypatch.setenv("PATH", f"{Path(own_command()).parent}:{os.environ['PATH']}")
    assert findings(shop)[0][:2] == ("ok", "hook codex")
    other = tmp_path / "bin/interlock"
    other.parent.mkdir()
    other.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")
    verdict, name, fact = findings(shop)[0]
    assert (verdict, name) == ("warn", "hook codex")
    assert f"'interlock' on PATH is {other}" in fact
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "../secret"])
def test_doctor_reads_no_settings_that_a_link_takes_out_of_the_work_tree(
    shop: Path, tmp_path: Path, target: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("{}")
    (shop / ".claude").mkdir()
    named = f"{tmp_path}/pipe" if target == "pipe" else target
    (shop / ".claude/settings.json").symlink_to(named if "/dev" in named else tmp_path / named)
    assert findings(shop)[0][:2] == ("bad", "hook claude")
    assert command(["doctor"]) == 4


def test_doctor_does_not_wait_for_a_pipe_in_the_place_of_a_file(shop: Path) -> None:
    (shop / ".claude").mkdir()
    os.mkfifo(shop / ".claude/settings.json")
    git(shop, "config", "core.hooksPath", "hooks")
    (shop / "hooks").mkdir()
    os.mkfifo(shop / "hooks/pre-commit")
    first, second = findings(shop)
    assert (first[:2], second[:2]) == (("bad", "hook claude"), ("bad", "git pre-commit"))
    assert "no regular file" in first[2]
    assert "no regular file" in second[2]


def git_findings(root: Path) -> list[tuple[str, str]]:
    return [(verdict, fact) for verdict, name, fact in findings(root) if name.startswith("git ")]


def test_doctor_tries_the_git_hooks_and_leaves_the_repository_as_it_was(shop: Path) -> None:
    hooks = shop / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    ran = shop / ".interlock/ran"
    (hooks / "pre-commit").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (hooks / "pre-commit").chmod(0o755)
    assert git_findings(shop) == []  # nothing of ours is here
    Setup("git", remove=False).write()
    before = git(shop, "count-objects"), git(shop, "status", "--porcelain")
    commit, push = git_findings(shop)
    assert commit[0] == push[0] == "ok"
    assert "a deny holds" in commit[1]
    assert "there before runs after it" in commit[1]
    assert "there before" not in push[1]
    assert not ran.exists()
    assert (git(shop, "count-objects"), git(shop, "status", "--porcelain")) == before


def test_doctor_tries_the_git_hooks_before_the_first_commit(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    monkeypatch.chdir(empty)
    (empty / ".interlock").mkdir(mode=0o700)
    interlock.connect(f"{empty}/.interlock/store.db").close()
    work_tree_list.allow_store(f"{empty}/.interlock/store.db")
    Setup("git", remove=False).write()
    assert [verdict for verdict, _ in git_findings(empty)] == ["ok", "ok"]


def test_doctor_says_which_git_hooks_are_missing_replaced_or_idle(shop: Path) -> None:
    Setup("claude", remove=False).write()
    assert [verdict for verdict, _ in git_findings(shop)] == ["warn", "warn"]
    assert "not installed" in git_findings(shop)[0][1]
    Setup("git", remove=False).write()
    commit, push = (shop / ".git/hooks" / name for name in ("pre-commit", "pre-push"))
    commit.chmod(0o644)
    other = shop / ".interlock/interlock"  # another installation
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    push.write_text(push.read_text().replace(own_command(), shlex.quote(str(other))))
    (first, said), (second, answer) = git_findings(shop)
    assert (first, second) == ("bad", "warn")
    assert "not executable" in said
    assert "another installation" in answer
    (commit.parent / "pre-commit.before-interlock").write_text("")
    commit.write_text("#!/bin/sh\ntrue\n")
    push.write_text("#!/bin/sh\ninterlock hook git pre-push\n")
    (first, said), (second, answer) = git_findings(shop)
    assert (first, second) == ("warn", "warn")
    assert "another tool has replaced" in said
    assert "not tried" in answer
    git(shop, "config", "core.hooksPath", ".hooks")  # setup changes nothing there
    with interlock.connect(f"{shop}/.interlock/store.db") as fleet:
        last = list(hook_findings(fleet))[-1]
    assert "not installed" in last.fact
    assert last.remedy.startswith("add this line to pre-push in .hooks: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda text, ran: f"{text}touch {ran}\n",
        lambda text, ran: text.replace("input=$(cat)", f"touch {ran}; input=$(cat)"),
        lambda text, ran: text.replace(own_command(), f"touch {ran}; {own_command()}"),
        lambda text, ran: text.replace(own_command(), f"touch {ran} -m interlock; true"),
        lambda text, _: text.replace(own_command(), "'"),
    ],
)
def test_doctor_does_not_run_a_git_hook_that_was_changed(
    shop: Path, change: Callable[[str, str], str]
) -> None:
    Setup("git", remove=False).write()
    hook, ran = shop / ".git/hooks/pre-commit", shop / ".interlock/ran"
    hook.write_text(change(hook.read_text(), shlex.quote(str(ran))))
    (verdict, said), (other, _) = git_findings(shop)
    assert (verdict, other) == ("warn", "ok")
    assert "was changed" in said
    assert not ran.exists()


def test_a_remedy_of_doctor_names_a_path_with_a_space_as_a_shell_wants_it(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b"
    shop.rename(folder)
    monkeypatch.chdir(folder)
    Setup("git", remove=False).write()
    hook = folder / ".git/hooks/pre-commit"
    hook.chmod(0o644)
    with interlock.connect(f"{folder}/.interlock/store.db") as fleet:
        remedy = next(each.remedy for each in hook_findings(fleet) if each.name == "git pre-commit")
    assert remedy == f"run: chmod +x '{hook}'"


def test_doctor_says_what_the_sandbox_of_codex_cannot_reach(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Setup("codex", remove=False).write()
    monkeypatch.setenv("INTERLOCK_STORE", f"{tmp_path}/elsewhere.db")
    with interlock.connect(f"{tmp_path}/elsewhere.db") as fleet:
        facts = [each.fact for each in hook_findings(fleet)]
    assert any("sandbox cannot write" in fact for fact in facts)


def test_wake_writes_to_the_inbox_and_says_written(shop: Path) -> None:
    send("claude", event(shop, "SessionStart", source="startup"))
    sessions = Path(os.environ["HOME"]) / ".claude/sessions"
    sessions.mkdir(parents=True)
    path = f"{shop}/s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    got: list[bytes] = []

    def receive() -> None:
        inbox, _ = server.accept()
        with inbox, inbox.makefile("rb") as lines:
            got.extend(lines)

    reader = threading.Thread(target=receive)
    reader.start()
    (sessions / "1.json").write_text("{broken")
    there = {"sessionId": ONE, "messagingSocketPath": path, "name": "x", "status": "idle"}
    (sessions / "2.json").write_text(json.dumps(there))
    with interlock.connect(f"{shop}/.interlock/store.db") as fleet:
        done = wake(fleet, "claude-55556666", "look at docs", "ada")
        assert isinstance(done, interlock.Woken)
        assert done.state == "written"
        reader.join(10)
        (line,) = [json.loads(each) for each in got]
        assert line["type"] == "user"
        assert line["from"] == "ada"
        assert line["message"]["content"] == "ada says:\n  | look at docs"
        server.close()
        refused = wake(fleet, "claude-55556666")
        assert isinstance(refused, interlock.NotWoken)
        assert "does not answer" in refused.reason
        unknown = wake(fleet, "nemo")
        assert isinstance(unknown, interlock.NotWoken)
        assert "no session" in unknown.reason


def test_a_host_that_cannot_be_woken_is_named(shop: Path) -> None:
    send("codex", event(shop, "SessionStart", source="startup"))
    with interlock.connect(f"{shop}/.interlock/store.db") as fleet:
        refused = wake(fleet, "codex-55556666")
    assert isinstance(refused, interlock.NotWoken)
    assert "Codex cannot be woken" in refused.reason
    assert "interlock wait" in refused.clear
