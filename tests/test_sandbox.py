"""The ways of those who begin: in the sandbox of a coding agent, in a container, on a build host.

The sandbox is that of Codex: everything can be read, only the work tree can be written, its git
folder cannot, and there is no network.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.faces.hooks.hosts import denied, edit, git, send
from tests.faces.shell import COMMAND, PATIENCE, Result, Shell
from tests.person import at_a_terminal

from interlock.testing.servers import ServerTrouble
from interlock.testing.servers.process import find

Inside: TypeAlias = Callable[..., Result]
"""Runs a program in the sandbox."""
SERVER = 'store = "redis://127.0.0.1:1/stranger"\n'


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, and no variable that says more than a user does."""
    for name in [name for name in os.environ if name.startswith(("INTERLOCK_", "XDG_", "CODEX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    monkeypatch.setenv("INTERLOCK_AGENT", "ada")
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", ".")
    git(root, "config", "user.email", "ada@example.org")
    git(root, "config", "user.name", "Ada")
    (root / "a.py").write_text("a = 1\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    monkeypatch.chdir(root)
    return root


def shell(folder: Path, **exported: str) -> Shell:
    """The shell of an agent."""
    return Shell(folder, INTERLOCK_AGENT="ada", **exported)


@pytest.fixture
def inside(shop: Path) -> Inside:
    try:
        program = find("bwrap", "bubblewrap")
    except ServerTrouble as trouble:
        pytest.skip(str(trouble))
    words = [
        program, "--new-session", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev",
        "--bind", str(shop), str(shop), "--ro-bind", f"{shop}/.git", f"{shop}/.git",
        "--unshare-user", "--unshare-pid", "--unshare-net", "--proc", "/proc", "--",
    ]  # fmt: skip

    def run(*command: str, **variables: str) -> Result:
        done = subprocess.run(
            [*words, *(command or ("true",))],
            env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    if (refused := run()).status:
        pytest.skip(f"this machine lets nobody make a sandbox: {refused.err}")
    return run


def test_a_newcomer_works_in_the_sandbox_and_is_asked_for_nothing(
    shop: Path, inside: Inside
) -> None:
    outside = shell(shop)
    for words in (("init",), ("setup", "codex", "--yes"), ("setup", "git", "--yes")):
        assert outside.run(*words).status == 0
    assert inside("touch", f"{shop}/.git/x").status != 0
    for words in (
        ("task", "add", "t1"),
        ("task", "claim", "t1"),
        ("lock", "acquire", "merge"),
        ("inbox",),
    ):
        done = inside(*COMMAND, *words)
        assert (done.status, done.err) == (0, ""), done
    assert "ada" in outside.run("lock", "list").out
    assert outside.run("task", "list", "--json").json["tasks"][0]["state"] == "running"


def test_nothing_that_is_written_in_the_sandbox_counts_outside_of_it(
    shop: Path, inside: Inside, own_home: Path
) -> None:
    outside = shell(shop)
    assert outside.run("init").status == 0
    before = sorted(own_home.rglob("*"))
    refused = inside(*COMMAND, "allow", CODEX_THREAD_ID="t1")
    assert (refused.status, refused.out) == (3, "")
    wanted = f"printf '%s' '{SERVER}' > .interlock/config.toml"
    assert inside("sh", "-c", wanted).status == 0
    assert outside.run("lock", "list").status == 3
    assert "ask the person" in denied(send("codex", edit(shop, "a.py")))
    assert sorted(own_home.rglob("*")) == before


def test_a_store_that_is_made_in_the_sandbox_is_named_until_a_person_allows_it(
    shop: Path, inside: Inside
) -> None:
    made = inside(*COMMAND, "init")
    store = f"{shop}/.interlock/store.db"
    assert (made.status, made.out) == (0, f"created {store}\n")
    assert f"INTERLOCK_STORE={store}" in made.err
    assert inside(*COMMAND, "lock", "list").status == 3
    done = inside(*COMMAND, "lock", "acquire", "merge", INTERLOCK_STORE=store)
    assert done.status == 0
    assert at_a_terminal([*COMMAND, "allow"])[0] == 0
    assert inside(*COMMAND, "lock", "release", "merge", "--token", "1").status == 0


def test_a_shared_store_is_out_of_reach_of_the_sandbox_and_that_is_said(
    shop: Path, inside: Inside
) -> None:
    assert shell(shop).run("init", "--shared").status == 0
    done = inside(*COMMAND, "lock", "list")
    assert done.status == 4
    assert f"{shop}/.git/interlock/store.db cannot be written by you" in done.err


def test_two_worktrees_and_a_clone_need_one_init_each(shop: Path, tmp_path: Path) -> None:
    assert shell(shop).run("init").status == 0
    for name in ("one", "two"):
        git(shop, "worktree", "add", "-q", f"../{name}", "-b", name)
        assert shell(tmp_path / name).run("task", "add", name).status == 0
    assert len(shell(shop).run("task", "list", "--json").json["tasks"]) == 2
    git(tmp_path, "clone", "-q", str(shop), "clone")
    clone = shell(tmp_path / "clone")
    assert clone.run("task", "list").status == 4
    assert clone.run("init").status == 0
    assert clone.run("task", "list", "--json").json["tasks"] == []


def test_a_container_with_another_home_names_the_store_or_a_person_allows_it(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = shell(shop)
    assert host.run("init").status == 0
    assert host.run("task", "add", "t1").status == 0
    monkeypatch.setenv("HOME", f"{tmp_path}/other")
    done = host.run("task", "list")
    assert done.status == 3
    assert "was allowed at another place, or by another user or home folder" in done.err
    named = shell(shop, INTERLOCK_STORE=f"{shop}/.interlock/store.db")
    assert named.run("task", "list").status == 0
    assert at_a_terminal([*COMMAND, "task", "list"])[0] == 0
    assert host.run("task", "list").status == 0
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    assert host.run("task", "list").status == 0


def test_a_build_host_without_a_home_says_how_to_go_on(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    made = shell(shop).run("init")
    assert made.status == 0
    store = f"{shop}/.interlock/store.db"
    assert f"INTERLOCK_STORE={store}" in made.err
    assert shell(shop, INTERLOCK_STORE=store).run("task", "add", "t1").status == 0
