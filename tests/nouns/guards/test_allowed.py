"""The host's list of allowed definitions: by digest, in files that no other user can write."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from interlock.errors import BadInput, NotAllowed, TooLarge
from interlock.nouns.guards.allowed import (
    AllowedDefinition,
    DeniedDefinition,
    allow,
    allowed,
    deny,
    listed,
)

DIGEST = sha256(b"definition").hexdigest()
OTHER = sha256(b"other").hexdigest()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "guards"
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(made))
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def test_nothing_is_allowed_at_first_and_nothing_is_created(folder: Path) -> None:
    assert allowed(DIGEST) is None
    assert listed() == []
    assert not folder.exists()


def test_an_allowed_definition_has_its_root(folder: Path, root: Path) -> None:
    made = allow(DIGEST, root, "for the build")
    assert allowed(DIGEST) == made
    assert (made.digest, made.root, made.note) == (DIGEST, str(root), "for the build")
    assert made.since == (folder / "guards" / f"{DIGEST}.json").stat().st_mtime


def test_a_definition_that_changed_is_not_allowed(folder: Path, root: Path) -> None:
    allow(DIGEST, root)
    assert allowed(OTHER) is None


def test_a_denial_ends_a_permission_and_a_permission_a_denial(folder: Path, root: Path) -> None:
    allow(DIGEST, root)
    deny(DIGEST)
    assert allowed(DIGEST) is None
    assert allow(DIGEST, root) == allowed(DIGEST)
    deny(OTHER)
    assert allowed(OTHER) is None


def test_a_denial_wins_if_a_crash_leaves_both(folder: Path, root: Path) -> None:
    deny(DIGEST)
    denial = (folder / "denied" / f"{DIGEST}.json").read_bytes()
    allow(DIGEST, root)
    (folder / "denied" / f"{DIGEST}.json").write_bytes(denial)
    assert allowed(DIGEST) is None
    assert [type(entry) for entry in listed()] == [DeniedDefinition]


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_denial_denies(folder: Path, root: Path, content: bytes) -> None:
    allow(DIGEST, root)
    (folder / "denied").mkdir(mode=0o700, exist_ok=True)
    (folder / "denied" / f"{DIGEST}.json").write_bytes(content)
    assert allowed(DIGEST) is None


def test_both_are_listed_by_their_digests(folder: Path, root: Path) -> None:
    allow(DIGEST, root, "note")
    deny(OTHER)
    (folder / "guards" / "notes.txt").touch()
    (folder / "guards" / f".{DIGEST}.1.tmp").touch()
    entries = listed()
    assert [entry.digest for entry in entries] == sorted([DIGEST, OTHER])
    by_digest = {entry.digest: entry for entry in entries}
    assert isinstance(by_digest[DIGEST], AllowedDefinition)
    assert isinstance(by_digest[OTHER], DeniedDefinition)
    assert by_digest[OTHER].since > 0


def test_only_this_user_can_read_and_write_the_list(folder: Path, root: Path) -> None:
    before = os.umask(0)
    try:
        allow(DIGEST, root)
        deny(OTHER)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert len(modes) == 5


@pytest.mark.parametrize("name", ["", "guards", f"guards/{DIGEST}.json", "denied"])
@pytest.mark.parametrize("mode", [stat.S_IWGRP, stat.S_IWOTH])
def test_a_list_that_others_may_write_is_refused(
    folder: Path, root: Path, name: str, mode: int
) -> None:
    allow(DIGEST, root)
    deny(OTHER)
    path = folder / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    calls: tuple[Callable[[], object], ...] = (lambda: allowed(DIGEST), listed)
    for call in calls:
        with pytest.raises(NotAllowed, match=r"other users may write to .*; run: chmod go-w"):
            call()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", ["", "guards", f"guards/{DIGEST}.json"])
def test_a_list_of_another_user_is_refused(folder: Path, root: Path, name: str) -> None:
    allow(DIGEST, root)
    os.chown(folder / name, 12345, 12345)
    with pytest.raises(NotAllowed, match="belongs to user 12345"):
        allowed(DIGEST)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_an_entry_that_is_not_a_file_is_refused(folder: Path, root: Path, kind: str) -> None:
    allow(DIGEST, root)
    entry = folder / "guards" / f"{DIGEST}.json"
    entry.rename(folder / "kept")
    makers: dict[str, Callable[[], None]] = {
        "link": lambda: entry.symlink_to(folder / "kept"),
        "pipe": lambda: os.mkfifo(entry, 0o600),
        "folder": lambda: entry.mkdir(mode=0o700),
        "device": lambda: entry.symlink_to("/dev/zero"),
    }
    makers[kind]()
    with pytest.raises(NotAllowed):
        allowed(DIGEST)


def test_a_folder_of_the_list_that_is_a_link_is_refused(folder: Path, root: Path) -> None:
    allow(DIGEST, root)
    (folder / "guards").rename(folder / "elsewhere")
    (folder / "guards").symlink_to("elsewhere")
    with pytest.raises(NotAllowed, match="cannot be used"):
        allowed(DIGEST)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"root": 5}', b'{"root": "relative"}', b"\xff", b"{}"]
)
def test_a_damaged_entry_allows_nothing_and_says_so(
    folder: Path, root: Path, content: bytes
) -> None:
    allow(DIGEST, root)
    (folder / "guards" / f"{DIGEST}.json").write_bytes(content)
    with pytest.raises(NotAllowed, match="is damaged; remove it"):
        allowed(DIGEST)


@pytest.mark.parametrize("digest", ["", "abc", DIGEST.upper(), f"{DIGEST}\n", f"../{DIGEST[3:]}"])
def test_what_is_no_digest_is_refused(folder: Path, root: Path, digest: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: allow(digest, root),
        lambda: deny(digest),
        lambda: allowed(digest),
    )
    for call in calls:
        with pytest.raises(BadInput, match="64 hexadecimal digits"):
            call()


@pytest.mark.parametrize(
    "path", ["", ".", "project", "/nonexistent/folder", "/etc/passwd", "/a\0b"]
)
def test_a_root_is_an_absolute_path_of_a_folder(folder: Path, root: Path, path: str) -> None:
    with pytest.raises(BadInput, match="the root"):
        allow(DIGEST, path)
    assert allowed(DIGEST) is None


def test_a_root_is_kept_without_links(folder: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert allow(DIGEST, tmp_path / "alias").root == str(root)


def test_a_note_has_a_limit(folder: Path, root: Path) -> None:
    with pytest.raises(TooLarge):
        allow(DIGEST, root, "x" * 2000)


def test_the_default_folder_is_that_of_the_desktop_standard(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INTERLOCK_ALLOWED_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "data"))
    allow(DIGEST, root)
    assert (tmp_path / "data/interlock/allowed/guards" / f"{DIGEST}.json").is_file()
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert allowed(DIGEST) is None
    allow(DIGEST, root)
    assert (tmp_path / "home/.local/state/interlock/allowed/guards" / f"{DIGEST}.json").is_file()


def test_a_folder_by_a_relative_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", "guards")
    with pytest.raises(BadInput, match="absolute path"):
        allowed(DIGEST)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INTERLOCK_ALLOWED_DIR", str(tmp_path / "file" / "guards"))
    with pytest.raises(NotAllowed, match="cannot be used: not a directory; name another folder"):
        allow(DIGEST, root)


def test_an_entry_is_whole_while_others_write_it(folder: Path, root: Path) -> None:
    allow(DIGEST, root)
    over = threading.Event()

    def rewrite() -> None:
        while not over.is_set():
            allow(DIGEST, root, "x" * 900)

    writers = [threading.Thread(target=rewrite) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert all(allowed(DIGEST) for _ in range(200))
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert os.listdir(folder / "guards") == [f"{DIGEST}.json"]


def test_a_write_that_fails_leaves_the_old_entry(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = allow(DIGEST, root, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotAllowed, match="no space left on device"):
        allow(DIGEST, root, "new")
    assert allowed(DIGEST) == made
    assert os.listdir(folder / "guards") == [f"{DIGEST}.json"]


def test_calls_leave_no_file_open(folder: Path, root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    allow(DIGEST, root)
    deny(OTHER)
    assert allowed(DIGEST)
    listed()
    (folder / "guards").chmod(0o777)
    with pytest.raises(NotAllowed):
        allowed(DIGEST)
    assert len(os.listdir("/proc/self/fd")) == before
