"""Files of a store that git tracks: commits and pushes are refused, setup and doctor name them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.faces.hooks.hosts import git, shop

from interlock.faces.cli.command import run as command
from interlock.faces.hooks.setup import Setup
from interlock.nouns.fleet.hosts_noun import SetupShown

__all__ = ["shop"]


@pytest.fixture
def clone(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a person, with the git hooks and without a store."""
    git(tmp_path, "clone", "-q", "--bare", str(shop), "shop.git")
    git(tmp_path, "clone", "-q", "shop.git", "clone")
    root = tmp_path / "clone"
    for name, value in (("user.email", "bob@example.org"), ("user.name", "Bob")):
        git(root, "config", name, value)
    monkeypatch.chdir(root)
    Setup("git", remove=False).write()
    (root / ".gitignore").unlink()
    return root


def refused(root: Path, *words: str) -> str:
    """What a git says that a hook refuses."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode, done.stdout
    return done.stderr


def track(root: Path, name: str = "other") -> None:
    """A commit with a file of a store that no hook sees."""
    (root / ".interlock").mkdir(exist_ok=True)
    (root / ".interlock" / name).write_text("of another\n")
    git(root, "add", "-f", f".interlock/{name}")
    git(root, "commit", "-qnm", "a store")


def test_a_commit_with_a_store_is_refused_and_the_way_out_works(clone: Path) -> None:
    (clone / "sub/.Interlock").mkdir(parents=True)
    (clone / "sub/.Interlock/store.db").write_text("x")
    (clone / "link").symlink_to(".git/config")
    (clone / "fine").symlink_to("src/a.py")
    git(clone, "add", "-A")
    said = refused(clone, "commit", "-qm", "x")
    assert "sub/.Interlock" in said
    _, _, way = said.partition("leave them out: ")
    subprocess.run(["sh", "-c", way], cwd=clone, check=True, capture_output=True)
    git(clone, "commit", "-qm", "x")
    assert git(clone, "ls-files").split() == ["fine", "src/a.py"]


def test_settings_of_a_submodule_hide_no_store(clone: Path) -> None:
    (clone / ".gitmodules").write_text(
        '[submodule "x"]\n  path = .interlock\n  url = ./x\n  ignore = all\n'
    )
    git(clone, "add", ".gitmodules")
    commit = git(clone, "rev-parse", "HEAD").strip()
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},.interlock")
    assert ".interlock" in refused(clone, "commit", "-qm", "x")
    git(clone, "commit", "-qnm", "x")
    assert ".interlock" in refused(clone, "push", "-q", "origin", "HEAD:side")


def test_no_override_lets_a_store_into_a_commit(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_OVERRIDE", "agreed")
    (clone / ".interlock").symlink_to("src")
    git(clone, "add", "-A")
    assert ".interlock" in refused(clone, "commit", "-qm", "x")


def test_a_tracked_store_may_be_deleted_and_hinders_no_other_commit(clone: Path) -> None:
    track(clone)
    (clone / "new").write_text("x")
    git(clone, "add", "new")
    git(clone, "commit", "-qm", "unrelated")
    git(clone, "rm", "-qr", "--cached", ".interlock")
    git(clone, "commit", "-qm", "without")
    assert (clone / ".interlock/other").exists()


def test_a_tracked_store_that_cannot_be_opened_may_be_deleted(clone: Path) -> None:
    track(clone, "store.db")
    git(clone, "rm", "-qr", "--cached", ".interlock")
    git(clone, "commit", "-qm", "without")
    git(clone, "push", "-q", "origin", "HEAD:side")


def test_a_push_of_a_store_is_refused_until_a_commit_deletes_it(clone: Path) -> None:
    track(clone)
    (clone / "new").write_text("x")
    git(clone, "add", "new")
    git(clone, "commit", "-qm", "unrelated")
    said = refused(clone, "push", "-q", "origin", "HEAD:side")
    assert "git rm -r --cached .interlock, then commit that" in said
    git(clone, "rm", "-qr", "--cached", ".interlock")
    git(clone, "commit", "-qm", "without")
    git(clone, "push", "-q", "origin", "HEAD:side")


def test_a_push_of_a_merge_that_brings_a_store_is_refused(clone: Path) -> None:
    git(clone, "push", "-q", "origin", "HEAD:main")
    git(clone, "checkout", "-qb", "evil")
    track(clone)
    git(clone, "push", "-q", "--no-verify", "origin", "evil")
    git(clone, "checkout", "-q", "main")
    git(clone, "merge", "-q", "--no-ff", "-m", "merge", "origin/evil")
    assert ".interlock" in refused(clone, "push", "-q", "origin", "main")


def test_a_push_of_the_first_commit_of_a_history_is_checked(clone: Path, tmp_path: Path) -> None:
    git(clone, "checkout", "-q", "--orphan", "fresh")
    track(clone)
    git(tmp_path, "init", "-q", "--bare", "empty.git")
    git(clone, "config", "log.showRoot", "false")
    assert ".interlock" in refused(clone, "push", "-q", f"{tmp_path}/empty.git", "fresh")


def test_setup_and_doctor_name_a_tracked_store(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not _notes()
    shutil.copy(shop / ".interlock/store.db", shop / "copy")
    git(shop, "add", "-f", ".interlock/store.db")
    git(shop, "commit", "-qm", "a store")
    assert "git rm -r --cached .interlock" in _notes()
    command(["doctor"])
    assert "git rm -r --cached .interlock" in capsys.readouterr().out
    git(shop, "rm", "-qr", "--cached", ".interlock")
    git(shop, "commit", "-qm", "without")
    command(["doctor"])
    assert "--cached" not in capsys.readouterr().out


def _notes() -> str:
    shown = Setup("git", remove=False).show()
    assert isinstance(shown, SetupShown)
    return " ".join(shown.notes)
