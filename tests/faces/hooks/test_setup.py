"""Setup merges into the files of a host, and takes away only its own entries."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.faces.hooks.hosts import ONE, TWO, denied, edit, git, repository, send, shop

import interlock
from interlock.errors import BadInput
from interlock.faces.cli.command import run as command
from interlock.faces.hooks.git import run, script
from interlock.faces.hooks.hosts import HOSTS
from interlock.faces.hooks.primer import TOKENS, primer, tokens
from interlock.faces.hooks.setup import Setup, installed
from interlock.nouns.fleet.hosts_noun import SetUp, SetupShown

__all__ = ["shop"]
FOREIGN: dict[str, Any] = {
    "model": "opus",
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "check.sh"}]},
            {"matcher": "Edit", "hooks": [{"type": "command", "command": "lint interlock.py"}]},
        ],
        "Notification": [{"hooks": [{"type": "command", "command": "beep"}]}],
    },
}
NAMES = [*HOSTS, "agents", "git"]


def snapshot(root: Path) -> dict[str, bytes]:
    skipped = ("objects", "logs", ".interlock", "exclude", "index")
    files = [each for each in root.rglob("*") if each.is_file()]
    return {
        str(each.relative_to(root)): each.read_bytes()
        for each in files
        if not any(part in skipped for part in each.parts)
    }


@pytest.mark.parametrize("host", NAMES)
def test_setup_shows_first_and_remove_leaves_the_folder_as_it_was(shop: Path, host: str) -> None:
    before = snapshot(shop)
    shown = Setup(host, remove=False).show()
    assert isinstance(shown, SetupShown)
    assert shown.files
    assert "interlock" in shown.diff
    assert snapshot(shop) == before
    assert isinstance(Setup(host, remove=False).write(), SetUp)
    assert Setup(host, remove=False).show().files == ()  # once is enough
    if host not in ("agents", "git"):
        assert git(shop, "status", "--porcelain") == ""  # nothing of this machine is committed
    assert Setup(host, remove=True).write().files
    assert snapshot(shop) == before


def test_only_the_stop_of_claude_code_has_a_hook_in_the_background(shop: Path) -> None:
    for host in ("claude", "codex", "gemini"):
        Setup(host, remove=False).write()
    hooks = json.loads((shop / ".claude/settings.local.json").read_text())["hooks"]
    (waker,) = hooks["Stop"][0]["hooks"][1:]
    assert waker["command"].endswith("interlock hook claude wake")
    assert (waker["asyncRewake"], waker["timeout"]) == (True, 86_400)
    texts = [(shop / HOSTS[host].file).read_text() for host in ("codex", "gemini")]
    assert "asyncRewake" not in "".join([json.dumps({**hooks, "Stop": []}), *texts])


@pytest.mark.parametrize("host", ["claude", "codex", "gemini"])
def test_entries_of_others_stay(shop: Path, host: str) -> None:
    name = ".claude/settings.local.json" if host == "claude" else HOSTS[host].file
    path = shop / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(FOREIGN, indent=4))
    Setup(host, remove=False).write()
    merged = json.loads(path.read_text())
    assert merged["model"] == "opus"
    before = next(event for event, means in HOSTS[host].events.items() if means == "before")
    commands = [each["command"] for g in merged["hooks"][before] for each in g["hooks"]]
    assert any(f"hook {host} {before}" in each for each in commands)
    assert set(merged["hooks"]) > set(FOREIGN["hooks"])
    Setup(host, remove=True).write()
    assert json.loads(path.read_text()) == FOREIGN


def test_the_hook_before_an_edit_fails_closed_where_the_host_can(shop: Path) -> None:
    Setup("claude", remove=False).write()
    found = json.loads((shop / ".claude/settings.local.json").read_text())["hooks"]
    (group,) = found["PreToolUse"]
    assert group["matcher"] == "Edit|Write|MultiEdit|NotebookEdit"
    assert group["hooks"][0]["onFailure"] == "block"
    assert os.path.isabs(group["hooks"][0]["command"])
    assert "PostToolUse" not in found  # the batch has it already
    Setup("cursor", remove=False).write()
    cursor = json.loads((shop / ".cursor/hooks.json").read_text())
    assert cursor["hooks"]["preToolUse"][0]["failClosed"] is True


def test_a_committed_file_gets_no_path_of_this_machine(shop: Path) -> None:
    path = shop / ".codex/hooks.json"
    path.parent.mkdir()
    path.write_text("{}\n")
    git(shop, "add", ".codex")
    git(shop, "commit", "-qm", "hooks")
    Setup("codex", remove=False).write()
    text = path.read_text()
    assert '"interlock hook codex PreToolUse"' in text
    assert str(shop.parent) not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n  // mine\n  "a": 1\n}', "comments"),
        ('{ "a": 1 /* mine */ }', "comments"),
        ('{ "a": "https://x" "b" }', "Expecting"),
        ('{"a": ', "cannot be changed"),
        ("[]", "no JSON object"),
        ('{"hooks": []}', "is no object"),
    ],
)
def test_a_file_that_cannot_be_merged_stays_as_it_is(shop: Path, text: str, says: str) -> None:
    path = shop / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        Setup("claude", remove=False)
    assert path.read_text() == text


def test_copilot_does_not_run_the_hooks_of_claude_code_twice(shop: Path) -> None:
    Setup("copilot", remove=False).write()
    assert (shop / ".github/hooks/interlock.json").exists()
    done = Setup("claude", remove=False).write()
    assert "Copilot" in " ".join(done.notes)
    left = json.loads((shop / ".github/hooks/interlock.json").read_text())
    assert "hooks" not in left
    again = Setup("copilot", remove=False).write()
    assert again.files == ()


def test_a_linked_worktree_sets_up_the_main_one_where_the_host_reads_that(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(shop, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    monkeypatch.chdir(tmp_path / "side")
    Setup("claude", remove=False).write()
    assert (shop / ".claude/settings.local.json").exists()
    assert installed(HOSTS["claude"], str(tmp_path / "side"))
    Setup("git", remove=False).write()
    assert (shop / ".git/hooks/pre-commit").stat().st_mode & stat.S_IXUSR


# Links.

WRITTEN = {
    "claude": [".claude/settings.local.json", ".mcp.json"],
    "codex": [".codex/hooks.json", ".codex/config.toml"],
    "copilot": [".github/hooks/interlock.json"],
    "cursor": [".cursor/hooks.json", ".cursor/mcp.json"],
    "gemini": [".gemini/settings.json"],
    "opencode": [".opencode/plugins/interlock.ts", "opencode.json"],
    "agents": ["AGENTS.md"],
    "git": ["hooks/pre-commit"],
}


def places(host: str) -> list[str]:
    """Every folder and file of a host that a commit may have as a link."""
    found: dict[str, None] = {}
    for name in WRITTEN[host]:
        parts = name.split("/")
        found |= dict.fromkeys("/".join(parts[:at]) for at in range(1, len(parts) + 1))
    return list(found)


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize(
    ("host", "name"), [(host, name) for host in WRITTEN for name in places(host)]
)
def test_setup_changes_nothing_outside_of_the_work_tree_through_a_link(
    shop: Path, tmp_path: Path, host: str, name: str, *, remove: bool
) -> None:
    if host == "git":  # the folder of a commit, which the user made that of the hooks
        git(shop, "config", "core.hooksPath", "hooks")
        (shop / "hooks").mkdir()
        for each in ("pre-commit", "pre-push"):
            (shop / "hooks" / each).write_text(script("interlock", each))
    elif remove:
        Setup(host, remove=False, monitor=host == "claude").write()
    outside = tmp_path / "outside"
    outside.mkdir()
    link = shop / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() or link.exists():
        link.rename(outside / "was")
    file = any(each == name for each in WRITTEN[host])
    target = outside / "was" if (outside / "was").exists() else outside
    if file and target == outside:
        target = outside / "file"
        target.write_text("{}")
    link.symlink_to(target)
    before = snapshot(outside)
    names = sorted(map(str, outside.rglob("*")))
    if host == "git" and file:  # git's own link is moved or replaced, and not written through
        Setup(host, remove=remove).write()
    else:
        with pytest.raises(BadInput, match="out of the work tree"):
            Setup(host, remove=remove, monitor=host == "claude" and not remove)
    assert snapshot(outside) == before
    assert sorted(map(str, outside.rglob("*"))) == names


@pytest.mark.parametrize("target", [".git/x", ".git", ".interlock/config.toml", "../shop2/x"])
def test_a_link_into_the_git_folder_leads_out_of_the_work_tree(shop: Path, target: str) -> None:
    (shop / "AGENTS.md").symlink_to(target)
    with pytest.raises(BadInput, match=r"out of the work tree, .*; remove the link"):
        Setup("agents", remove=False)


def test_links_within_the_work_tree_stay_and_are_followed(shop: Path) -> None:
    (shop / "CLAUDE.md").write_text("Be kind.\n")
    (shop / "AGENTS.md").symlink_to("CLAUDE.md")
    (shop / "tools/claude").mkdir(parents=True)
    (shop / "tools/claude/own").write_text("")
    (shop / ".claude").symlink_to("tools/claude")
    Setup("agents", remove=False).write()
    assert "interlock prime" in (shop / "CLAUDE.md").read_text()
    Setup("claude", remove=False, monitor=True).write()
    assert (shop / "tools/claude/settings.local.json").is_file()
    assert git(shop, "status", "--porcelain", "-uall", "tools") == "?? tools/claude/own\n"
    assert Setup("claude", remove=False).show().files == ()
    Setup("agents", remove=True).write()
    Setup("claude", remove=True).write()
    assert (shop / "AGENTS.md").is_symlink()
    assert (shop / ".claude").is_symlink()
    assert (shop / "CLAUDE.md").read_text() == "Be kind.\n"
    assert [each.name for each in (shop / "tools/claude").iterdir()] == ["own"]


def test_the_file_beside_the_written_one_is_no_way_out(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("mine\n")
    (shop / "AGENTS.md.interlock-new").symlink_to(tmp_path / "profile")
    Setup("agents", remove=False).write()
    assert (tmp_path / "profile").read_text() == "mine\n"
    assert "interlock prime" in (shop / "AGENTS.md").read_text()


@pytest.mark.parametrize("remove", [False, True])
def test_a_link_that_appears_after_the_check_is_not_followed(
    shop: Path, tmp_path: Path, *, remove: bool
) -> None:
    outside = tmp_path / "outside"
    if remove:
        Setup("cursor", remove=False).write()
    change = Setup("cursor", remove=remove)
    if remove:
        (shop / ".cursor").rename(outside)
    else:
        outside.mkdir()
    before = snapshot(outside)
    (shop / ".cursor").symlink_to(outside)
    with pytest.raises(BadInput, match=r"hooks.json cannot be written .*; correct it, then run"):
        change.write()
    assert snapshot(outside) == before


def test_a_hook_folder_that_the_user_linked_into_the_work_tree_is_used(shop: Path) -> None:
    (shop / ".git/hooks").rename(shop / "hooks")
    (shop / ".git/hooks").symlink_to("../hooks")
    Setup("git", remove=False).write()
    assert "hook git pre-commit" in (shop / "hooks/pre-commit").read_text()
    Setup("git", remove=True).write()
    assert not (shop / "hooks/pre-commit").exists()


# Git hooks.


def commit(root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (root / "src/a.py").write_text(f"{os.urandom(4).hex()}\n")
    git(root, "add", "-A")
    words = ["git", "-C", str(root), "commit", "-qm", "change"]
    variables = {**os.environ, **variables}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=variables)


def test_a_commit_and_a_push_with_reserved_files_are_refused_unless_overridden(
    shop: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    git(shop, "remote", "add", "origin", f"{tmp_path}/origin.git")
    git(shop, "push", "-q", "origin", "main")
    earlier = shop / ".git/hooks/pre-commit"
    earlier.write_text("touch ran-before\n")  # git runs one without '#!', too
    earlier.chmod(0o755)
    Setup("git", remove=False).write()
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada:
        ada.reservations.reserve("src/*.py", ttl=600, reason="new parser", repository="origin")
        done = commit(shop, INTERLOCK_AGENT="bob")
        assert done.returncode == 1
        for word in ("src/a.py", "ada", "new parser", "INTERLOCK_OVERRIDE"):
            assert word in done.stderr
        assert commit(shop, INTERLOCK_AGENT="ada").returncode == 0
        assert (shop / "ran-before").exists()  # the hook that was there still runs
        push = ["git", "-C", str(shop), "push", "-q", "origin", "HEAD:other"]
        refused = subprocess.run(push, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "this push has files" in refused.stderr
        done = commit(shop, INTERLOCK_AGENT="bob", INTERLOCK_OVERRIDE="hot fix")
        assert done.returncode == 0
        over = [each for each in ada.record.log() if each.verb == "reservation.override"]
        assert [each.reason for each in over] == ["hot fix"]
    Setup("git", remove=True).write()
    assert earlier.read_text() == "touch ran-before\n"
    assert not (shop / ".git/hooks/pre-push").exists()


@pytest.mark.parametrize("remove", [False, True])
def test_setup_of_git_outside_of_a_repository_says_that_it_did_nothing(
    tmp_path: Path, remove: bool
) -> None:
    with pytest.raises(BadInput, match="in no git repository, so nothing was changed"):
        Setup("git", remove=remove, folder=str(tmp_path))


def test_a_hook_that_was_there_is_moved_aside_and_back_as_it_is(shop: Path) -> None:
    hooks = shop / ".git/hooks"
    texts = {"pre-commit": b"#!/bin/sh\r\n# gr\xf6\xdfer\r\n", "pre-push": b"true\n"}
    modes = {"pre-commit": 0o644, "pre-push": 0o751}  # the first one is switched off
    for name, text in texts.items():
        (hooks / name).write_bytes(text)
        (hooks / name).chmod(modes[name])
    json.dumps(Setup("git", remove=False).show().diff).encode()
    Setup("git", remove=False).write()
    for name, text in texts.items():
        aside = hooks / f"{name}.before-interlock"
        assert (aside.read_bytes(), stat.S_IMODE(aside.stat().st_mode)) == (text, modes[name])
        assert stat.S_IMODE((hooks / name).stat().st_mode) == 0o755
    Setup("git", remove=True).write()
    for name, text in texts.items():
        assert (hooks / name).read_bytes() == text
        assert stat.S_IMODE((hooks / name).stat().st_mode) == modes[name]
        assert not (hooks / f"{name}.before-interlock").exists()


def test_an_agent_commits_what_it_edited_itself(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "src/a.py").write_text("changed\n")
    git(shop, "add", "-A")
    sub = {"agent_id": "agent_01ABC", "agent_type": "code-reviewer"}
    assert not denied(send("claude", edit(shop, "src/a.py", **sub)))
    with monkeypatch.context() as named:  # a sub-agent's commands run under its agent's session
        named.setenv("CLAUDE_CODE_SESSION_ID", ONE)
        assert run("pre-commit") == 0
        named.setenv("CLAUDE_CODE_SESSION_ID", TWO)
        assert run("pre-commit") == 1
    # Other hosts do not say which session runs a command.
    assert run("pre-commit") == 0
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada:
        ada.reservations.reserve("src", ttl=600, reason="new parser", on_conflict="warn")
        capsys.readouterr()
        assert run("pre-commit") == 1
        assert "INTERLOCK_AGENT='YOUR NAME'" in capsys.readouterr().err
        monkeypatch.setenv("INTERLOCK_AGENT", "ada")
        ada.reservations.unreserve("src")
        assert run("pre-commit") == 1


def test_a_push_is_checked_for_its_own_changes_and_refused_if_git_fails(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def push(new: str) -> int:
        line = f"refs/heads/side {git(shop, 'rev-parse', new).strip()} refs/heads/side {old}\n"
        monkeypatch.setattr("sys.stdin", io.StringIO(line))
        return run("pre-push")

    git(tmp_path, "init", "-q", "--bare", "shop.git")
    git(shop, "remote", "add", "origin", f"{tmp_path}/shop.git")
    git(shop, "push", "-q", "origin", "main:side")
    old = git(shop, "rev-parse", "HEAD").strip()
    commit_file(shop, "src/a.py")
    git(shop, "push", "-q", "origin", "main")
    git(shop, "checkout", "-qb", "side", old)
    commit_file(shop, "own.py")
    git(shop, "merge", "-q", "main")
    with interlock.connect(f"{shop}/.interlock/store.db", agent="ada") as ada:
        ada.reservations.reserve("src", ttl=600)
        assert push("HEAD") == 0  # what others changed was pushed by them
        (shop / "src/a.py").write_text("in the merge\n")
        git(shop, "commit", "-qa", "--amend", "-m", "merge")
        assert push("HEAD") == 1
        capsys.readouterr()
        monkeypatch.setenv("GIT_DIR", f"{tmp_path}/none")
        assert run("pre-commit") == 1
        assert "cannot check" in capsys.readouterr().err


def commit_file(root: Path, name: str) -> None:
    (root / name).write_text(f"{name} changed\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", name)


def test_hooks_of_another_manager_are_left_alone(shop: Path) -> None:
    (shop / ".husky/_").mkdir(parents=True)
    git(shop, "config", "core.hooksPath", ".husky/_")
    done = Setup("git", remove=False).write()
    assert done.files == ()
    assert "core.hooksPath is .husky/_" in " ".join(done.notes)
    assert "hook git pre-commit" in " ".join(done.notes)


def test_git_hooks_fail_closed_and_say_how_to_go_on(shop: Path) -> None:
    Setup("git", remove=False).write()
    (shop / ".interlock/store.db").write_bytes(b"x" * 8192)
    done = commit(shop)
    assert done.returncode == 1
    assert "--no-verify" in done.stderr


# The primer.


def test_the_primer_has_a_limit_whatever_the_store_holds(shop: Path) -> None:
    with interlock.connect(f"{shop}/.interlock/store.db", agent="n" * 190) as fleet:
        for number in range(30):
            fleet.reservations.reserve("a" * 190 + str(number), ttl=600)
            fleet.tasks.publish(f"t{number}")
        for host in ("", *HOSTS):
            assert tokens(primer(fleet, host)) <= TOKENS


def test_the_commands_print_and_refuse_clearly(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["prime", "--for", "claude", "--agent", "ada"]) == 0
    text = capsys.readouterr().out
    assert "You are ada" in text
    assert text.count("\n") > 5
    assert command(["prime", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] <= TOKENS
    assert command(["setup", "claud"]) == 2
    assert "did you mean 'claude'?" in capsys.readouterr().err
    assert command(["setup", "claude"]) == 0
    assert "+++" in capsys.readouterr().out
    assert not (shop / ".claude").exists()
    assert command(["setup", "claude", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "set_up"
    assert repository(shop.parent / "third").exists()
