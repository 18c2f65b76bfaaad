"""Objects in the cache, beside a git that packs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interlock.stores.git import objects


def test_an_object_is_written_though_git_removes_its_folder_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = os.open
    removed: list[str] = []

    def open_later(path: str, flags: int, mode: int = 0o777) -> int:
        if not removed:
            removed.append(os.path.dirname(path))
            os.rmdir(removed[0])
        return opens(path, flags, mode)

    monkeypatch.setattr(os, "open", open_later)
    oid = objects.write(str(tmp_path), "blob", b"1")
    assert removed
    assert (tmp_path / oid[:2] / oid[2:]).exists()


def test_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: str, *_: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "open", gone)
    with pytest.raises(FileNotFoundError, match="tmp_obj_"):
        objects.write(str(tmp_path), "blob", b"1")


@pytest.mark.parametrize(
    "commit", [b"", b"tree x\n\n", b"tree " + b"0" * 40 + b"\nparent -x\n\n", b"\xff" * 60]
)
def test_a_commit_that_names_no_ids_is_none(commit: bytes) -> None:
    with pytest.raises(ValueError):
        objects.links_of(commit)
