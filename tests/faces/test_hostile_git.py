"""A folder that looks like a bare repository: no command and no hook runs a program it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.faces.hooks.hosts import ONE, TWO, edit, event
from tests.faces.shell import Shell
from tests.hostile_git import HostileFolder
from tests.nouns.merges.repositories import TestRepository

GUARDS = """[guard.branches]
when = [
  {branch_exists = "main"},
  {branch_merged = {branch = "side", into = "main"}},
  {branch_clean = "main"},
]
"""


@pytest.fixture
def shop(tmp_path: Path) -> TestRepository:
    made = TestRepository(tmp_path / "shop", bare=False)
    made.git("clone", "-q", "--bare", ".", f"{tmp_path}/shop.git")
    made.git("remote", "add", "origin", f"{tmp_path}/shop.git")
    made.branch("side", {"new": "new\n"})
    return made


@pytest.fixture
def hostile(shop: TestRepository) -> HostileFolder:
    return HostileFolder(shop.folder, f"{shop.folder}.git")


@pytest.fixture
def inside(bare: Shell, shop: TestRepository, hostile: HostileFolder) -> Shell:
    """A shell in the hostile folder, with the store of the work tree above."""
    above = shop.folder.parent
    bare.exported |= {
        "INTERLOCK_AGENT": "ada",
        "XDG_CACHE_HOME": f"{above}/cache",
        "XDG_CONFIG_HOME": f"{above}/config",
        "HOME": f"{above}/home",
    }
    bare.folder = shop.folder
    assert bare.run("init").status == 0
    bare.folder = hostile.folder
    return bare


@pytest.mark.parametrize(
    "words",
    [
        ["merge", "submit", "side"],
        ["merge", "submit", "side", "--remote", "origin"],
        ["merge", "serve", "--drain", "--unguarded"],
        ["merge", "serve", "--drain", "--", "true"],
        ["watch-branch", "--once"],
        ["watch-branch", "--once", "--remote", "origin"],
        ["rebase"],
        ["rebase", "--remote", "origin"],
        ["run", "--worktree", "side", "--", "true"],
        ["reserve", "*.txt"],
        ["doctor"],
        ["record", "anchor", "git:anchors"],
        ["setup", "git", "--yes"],
        ["setup", "claude", "--yes"],
        ["setup", "agents", "--yes"],
        ["hook", "git", "pre-commit"],
    ],
    ids=" ".join,
)
def test_no_command_runs_a_program_of_the_folder(
    inside: Shell, hostile: HostileFolder, words: list[str]
) -> None:
    ran = inside.run(*words)
    assert (hostile.marks(), ran.err.count("Traceback")) == ("", 0), ran


def test_a_queue_that_is_served_from_there_is_that_of_the_work_tree(
    inside: Shell, shop: TestRepository, hostile: HostileFolder
) -> None:
    side = shop.at("side")
    assert inside.run("merge", "submit", "side").status == 0
    assert inside.run("merge", "serve", "--drain", "--", "test", "-e", "new").status == 0
    assert shop.has(side)
    assert hostile.marks() == ""


def test_guards_look_at_the_work_tree(inside: Shell, hostile: HostileFolder) -> None:
    file = inside.folder / "guards.toml"
    file.write_text(GUARDS)
    assert inside.run("guard", "allow", "guards.toml").status == 0
    said = inside.run("guard", "check", "--file", "guards.toml").out
    assert hostile.marks() == "", said
    assert "side has commits that are not in main" in said


def test_a_push_is_checked_without_a_program_of_the_folder(
    inside: Shell, shop: TestRepository, hostile: HostileFolder
) -> None:
    line = f"refs/heads/side {shop.at('side')} refs/heads/side {'0' * 40}\n"
    ran = inside.run("hook", "git", "pre-push", input=line)
    assert (ran.status, hostile.marks()) == (0, ""), ran


def test_no_hook_of_a_coding_agent_runs_a_program_of_the_folder(
    inside: Shell, shop: TestRepository, hostile: HostileFolder
) -> None:
    folder = hostile.folder
    assert inside.run("reserve", "vendor", "--agent", "bob").status == 0
    for payload in (
        event(folder, "SessionStart", source="startup"),
        edit(folder, "a.txt"),
        event(folder, "PostToolBatch", tool_calls=[{"tool_name": "Bash", "tool_input": {}}]),
        event(folder, "PostToolUse", tool_name="Bash", tool_input={"command": "ls"}),
        event(folder, "Stop", TWO, stop_hook_active=False),
        event(folder, "SessionEnd", ONE),
    ):
        ran = inside.run("hook", "claude", input=json.dumps(payload))
        assert (ran.status, hostile.marks()) == (0, ""), (payload, ran)
