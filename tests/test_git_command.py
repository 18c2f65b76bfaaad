"""The command of git: one place makes it, and it takes no bare repository inside a work tree."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.for_each import for_each
from tests.hostile_git import HostileFolder
from tests.nouns.merges.repositories import TestRepository

import interlock
from interlock import git_command
from interlock.faces.hooks.git import git_answer
from interlock.nouns.reservations.repository import find

SOURCES = Path(interlock.__file__).parent
STARTS = {"Popen", "run", "call", "check_call", "check_output", "system", "popen"}
STARTS |= {"create_subprocess_exec", "create_subprocess_shell", "execvp", "execvpe", "posix_spawnp"}


def gits(source: str) -> Iterator[int]:
    """The lines that hold a command of git."""
    tree = ast.parse(source)
    compared = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for each in node.comparators}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and id(node) not in compared:
            found = _text(node.elts[:1]) == "git"
        elif isinstance(node, ast.Call) and _name(node.func) in STARTS:
            found = _text(node.args[:1]).split(" ")[0] == "git"
        else:
            continue
        if found:
            yield node.lineno


def _text(begins: list[ast.expr]) -> str:
    first = begins[0] if begins else None
    if isinstance(first, ast.JoinedStr):
        first = first.values[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


@for_each("path", sorted(SOURCES.rglob("*.py")))
def test_every_git_is_started_by_one_function(path: Path) -> None:
    own = {SOURCES / "git_command.py", SOURCES / "testing/servers/git.py"}  # servers of tests
    assert path in own or list(gits(path.read_text())) == []


def test_a_git_without_the_function_is_found() -> None:
    for line in (
        'subprocess.run(["git", "status"])',
        'words = ("git", *more)',
        'Popen("git status", shell=True)',
        'os.system(f"git -C {folder} status")',
        'await asyncio.create_subprocess_exec("git", "status")',
    ):
        assert list(gits(line)) == [1], line
    assert list(gits((SOURCES / "git_command.py").read_text()))


@pytest.fixture
def shop(tmp_path: Path) -> TestRepository:
    return TestRepository(tmp_path / "shop", bare=False)


def git(
    *words: str, folder: Path, bare: bool = True, old: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run git; an ``old`` one does not know the setting that leaves out bare repositories."""
    command = git_command.command(*words, folder=str(folder), bare=bare)
    return subprocess.run(
        [word.replace("safe.bareRepository", "x.y") if old else word for word in command],
        cwd=folder,
        env=git_command.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_bare_folder_in_a_work_tree_is_no_root(shop: TestRepository, tmp_path: Path) -> None:
    hostile = HostileFolder(shop.folder)
    (tmp_path / "link").symlink_to(hostile.folder)
    shop.git("worktree", "add", "-q", f"{tmp_path}/tree", "-b", "tree")
    other = HostileFolder(tmp_path / "tree")
    for folder, root in (
        (hostile.folder, shop.folder),
        (hostile.folder / "objects", shop.folder),
        (tmp_path / "link", shop.folder),
        (other.folder, tmp_path / "tree"),
    ):
        assert find(str(folder)).root == str(root)
        for bare, old in ((True, False), (False, False), (True, True)):
            said = git("rev-parse", "--show-toplevel", folder=folder, bare=bare, old=old)
            assert said.stdout.strip() == str(root), said
            assert git("status", folder=folder, bare=bare, old=old).returncode == 0
    assert (hostile.marks(), other.marks()) == ("", "")


def test_a_folder_that_only_looks_like_a_work_tree_makes_no_bare_repository_one(
    shop: TestRepository,
) -> None:
    hostile = HostileFolder(shop.folder)
    (hostile.folder / ".git").mkdir()  # git skips it, and would take the bare folder beside it
    assert git("status", folder=hostile.folder).returncode
    assert hostile.marks() == ""


def test_a_bare_repository_of_the_user_is_taken_where_one_is_expected(tmp_path: Path) -> None:
    own = TestRepository(tmp_path / "own.git")
    for folder in (own.folder, own.folder / "refs"):
        assert git("rev-parse", "main", folder=folder).stdout.strip() == own.at("main")
    assert git("rev-parse", "main", folder=own.folder, bare=False).returncode
    assert git_answer(str(own.folder), "rev-parse", "--git-path", "hooks") == "hooks"


def test_filters_and_settings_of_the_user_go_on_working(
    shop: TestRepository, tmp_path: Path
) -> None:
    shop.branch("main", {".gitattributes": "big filter=large\n", "big": "pointer\n"})
    shop.git("config", "filter.large.smudge", "sed s/pointer/content/")
    shop.git("config", "filter.large.clean", "sed s/content/pointer/")
    made = git("worktree", "add", "-q", f"{tmp_path}/tree", "main", "--force", folder=shop.folder)
    assert made.returncode == 0, made
    assert (tmp_path / "tree/big").read_text() == "content\n"
    (tmp_path / "tree/big").write_text("content\n")
    assert git("status", "--porcelain", folder=tmp_path / "tree").stdout == ""


def test_hooks_run_only_where_they_are_wanted(shop: TestRepository, tmp_path: Path) -> None:
    hook = shop.folder / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    for hooks in (False, True):
        words = git_command.command(
            "update-ref", f"refs/x/{hooks}", "HEAD", folder=str(shop.folder), hooks=hooks
        )
        subprocess.run(words, cwd=shop.folder, check=True)
        assert (tmp_path / "ran").exists() == hooks


def test_the_repository_of_another_hook_is_not_taken(
    shop: TestRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TestRepository(tmp_path / "other.git")
    monkeypatch.setenv("GIT_DIR", str(other.folder))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    found = git("rev-parse", "--show-toplevel", folder=shop.folder).stdout.strip()
    assert found == str(shop.folder)
