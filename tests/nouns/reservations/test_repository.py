"""The name of a repository, by which all its clones and worktrees share reservations."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.nouns.merges.repositories import TestRepository

from interlock.nouns.reservations.repository import find


def test_a_bare_repository_its_worktrees_and_its_clones_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INTERLOCK_REPOSITORY", raising=False)
    bare = TestRepository(tmp_path / "shop.git")
    bare.git("worktree", "add", "-q", f"{tmp_path}/tree", "main")
    bare.git("clone", "-q", str(bare.folder), f"{tmp_path}/clone")
    bare.git("clone", "-q", "--bare", str(bare.folder), f"{tmp_path}/mirror")
    for folder in ("shop.git", "shop.git/refs", "tree", "clone", "clone/.git", "mirror"):
        assert find(f"{tmp_path}/{folder}").name == "shop", folder
    assert find(f"{tmp_path}/shop.git/refs").root == str(bare.folder)
