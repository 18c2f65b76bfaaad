"""Keys of this user: files that ssh-keygen reads, for this user alone."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from interlock.core import signing
from interlock.errors import BadInput, NotAllowed
from interlock.nouns.swarms import key_files

NOW = 1_800_000_000.0
NEEDS_SSH_KEYGEN = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen (Debian: openssh-client) is missing"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home" / "keys"
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(made))
    return made


def ssh_keygen(*words: str | Path) -> str:
    done = subprocess.run(
        ["ssh-keygen", *words], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout


def test_there_is_no_key_at_first_and_nothing_is_created(folder: Path) -> None:
    assert key_files.listed() == []
    with pytest.raises(BadInput, match="interlock key new ops"):
        key_files.load("ops")
    assert not folder.exists()


def test_a_new_key_signs(folder: Path) -> None:
    made = key_files.create("ops")
    found = key_files.load("ops")
    assert found.fingerprint == made.fingerprint
    assert signing.read_public_line(made.public_key) == found.public_key
    assert signing.fits(found.public_key, found.sign(b"data"), b"data")
    assert key_files.listed() == [made]


def test_only_this_user_can_read_the_files(folder: Path) -> None:
    key_files.create("ops")
    assert stat.S_IMODE((folder / "ops").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["ops"]  # nothing half-written beside it


def test_a_name_is_given_once(folder: Path) -> None:
    made = key_files.create("ops")
    with pytest.raises(BadInput, match="interlock key rotate ops"):
        key_files.create("ops")
    assert key_files.load("ops").fingerprint == made.fingerprint


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-x", ".hidden", "a b", "a@b", "a\n", "x" * 65, "a.pub"]
)
def test_other_names_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a key"):
        key_files.create(name)
    with pytest.raises(BadInput, match=r"no key|not the name"):
        key_files.load(name)


def test_a_path_is_no_name_for_a_new_key(folder: Path) -> None:
    with pytest.raises(BadInput, match="cannot name a key"):
        key_files.create("../ops")


def test_rotation_keeps_the_old_key_under_its_name_and_the_time(folder: Path) -> None:
    before = key_files.create("ops")
    new, old = key_files.rotate("ops", NOW)
    assert (new.name, old.name) == ("ops", "ops@20270115T080000Z")
    assert old.fingerprint == before.fingerprint != new.fingerprint
    assert old.created == before.created
    assert (new.retired, old.retired) == (False, True)
    assert key_files.load("ops").fingerprint == new.fingerprint
    assert key_files.load(old.name).fingerprint == before.fingerprint
    assert [each.name for each in key_files.listed()] == ["ops", "ops@20270115T080000Z"]


def test_a_second_rotation_in_the_same_second_loses_no_key(folder: Path) -> None:
    key_files.create("ops")
    new, old = key_files.rotate("ops", NOW)
    with pytest.raises(NotAllowed, match="within this second"):
        key_files.rotate("ops", NOW)
    assert key_files.listed() == [new, old]


def test_only_a_key_that_exists_is_rotated(folder: Path) -> None:
    key_files.create("ops")
    with pytest.raises(BadInput, match="is it ops"):
        key_files.rotate("opss", NOW)
    assert [each.name for each in key_files.listed()] == ["ops"]


def test_rotations_at_once_lose_no_key(folder: Path) -> None:
    made = {key_files.create("ops").fingerprint}
    guard = threading.Barrier(8)

    def turn(number: int) -> None:
        guard.wait()
        made.add(key_files.rotate("ops", NOW + number)[0].fingerprint)

    threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.fingerprint for each in key_files.listed()} == made
    assert len(made) == 9


def test_of_two_that_create_a_key_one_succeeds(folder: Path) -> None:
    guard, made, refused = threading.Barrier(8), [], []

    def create() -> None:
        guard.wait()
        try:
            made.append(key_files.create("ops"))
        except BadInput as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    assert key_files.listed() == made


def test_the_age_of_a_key_is_that_of_its_file(folder: Path) -> None:
    key_files.create("ops")
    os.utime(folder / "ops", (NOW, NOW))
    [found] = key_files.listed()
    day = 86400
    assert found.age(NOW + 89 * day) == 89 * day
    assert not found.overdue(NOW + 90 * day)
    assert found.overdue(NOW + 90 * day + 1)
    assert found.age(NOW - 5) == 0  # a clock that was set back


def test_a_retired_key_is_not_overdue(folder: Path) -> None:
    key_files.create("ops")
    os.utime(folder / "ops", (NOW, NOW))
    _, old = key_files.rotate("ops", NOW)
    assert not old.overdue(NOW + 365 * 86400)


# ---- files that do not count --------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o620])
def test_a_key_that_others_have_any_right_to_is_refused(folder: Path, mode: int) -> None:
    key_files.create("ops")
    (folder / "ops").chmod(mode)
    with pytest.raises(NotAllowed, match="chmod 600"):
        key_files.load("ops")
    [found] = key_files.listed()
    assert "chmod 600" in found.problem
    assert not found.fingerprint


def test_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    key_files.create("ops")
    (folder / "ops").rename(tmp_path / "elsewhere")
    (folder / "ops").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotAllowed, match="is a link"):
        key_files.load("ops")
    with pytest.raises(NotAllowed, match="is a link"):
        key_files.rotate("ops", NOW)
    with pytest.raises(BadInput, match="already"):
        key_files.create("ops")


def test_a_pipe_or_a_folder_is_no_key_and_blocks_nobody(folder: Path) -> None:
    key_files.create("ops")
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "inner").mkdir(mode=0o700)
    for name in ("pipe", "inner"):
        with pytest.raises(NotAllowed, match="is no file"):
            key_files.load(name)
    assert [bool(each.problem) for each in key_files.listed()] == [True, False, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(folder: Path) -> None:
    key_files.create("ops")
    os.chown(folder / "ops", 12345, -1)
    with pytest.raises(NotAllowed, match="belongs to user 12345"):
        key_files.load("ops")


def test_a_folder_that_others_may_write_to_is_refused(folder: Path) -> None:
    key_files.create("ops")
    folder.chmod(0o770)
    for call in (key_files.listed, lambda: key_files.load("ops"), lambda: key_files.create("a")):
        with pytest.raises(NotAllowed, match="chmod go-w"):
            call()


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"\xff" * 100_000], ids=["empty", "nonsense", "large"]
)
def test_a_file_that_is_no_key_is_refused(folder: Path, content: bytes) -> None:
    key_files.create("ops")
    (folder / "ops").write_bytes(content)
    with pytest.raises(NotAllowed, match="not a private key"):
        key_files.load("ops")


def test_a_truncated_key_is_refused_wherever_it_was_cut(folder: Path) -> None:
    key_files.create("ops")
    whole = (folder / "ops").read_bytes()
    lines = whole.splitlines(keepends=True)
    for number in range(len(lines) - 1):
        (folder / "ops").write_bytes(b"".join([*lines[:number], lines[-1]]))
        with pytest.raises(NotAllowed, match="not a private key"):
            key_files.load("ops")


def test_a_folder_that_cannot_be_used_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", str(tmp_path / "file" / "keys"))
    with pytest.raises(NotAllowed, match="not a directory"):
        key_files.create("ops")
    monkeypatch.setenv("INTERLOCK_KEYS_DIR", "keys")
    with pytest.raises(BadInput, match="absolute path"):
        key_files.listed()


def test_without_a_setting_the_folder_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INTERLOCK_KEYS_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert key_files.create("ops").path == str(tmp_path / "interlock" / "keys" / "ops")


def test_a_path_names_any_key_of_this_user(folder: Path, tmp_path: Path) -> None:
    made = key_files.create("ops")
    (folder / "ops").rename(tmp_path / "mine")
    assert key_files.signer(str(tmp_path / "mine")).fingerprint == made.fingerprint
    with pytest.raises(BadInput, match="there is no file"):
        key_files.signer(str(tmp_path / "other"))


# ---- ssh-keygen ---------------------------------------------------------------------------------


@NEEDS_SSH_KEYGEN
def test_ssh_keygen_reads_our_files(folder: Path) -> None:
    made = key_files.create("ops")
    assert ssh_keygen("-lf", folder / "ops").split()[:2] == ["256", made.fingerprint]
    assert ssh_keygen("-yf", folder / "ops").split()[:2] == made.public_key.split()[:2]


@NEEDS_SSH_KEYGEN
def test_files_of_ssh_keygen_can_be_used(folder: Path) -> None:
    key_files.create("ops")
    ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", "by hand", "-f", folder / "theirs")
    printed = ssh_keygen("-lf", folder / "theirs").split()[1]
    found = key_files.load("theirs")
    assert found.fingerprint == printed
    assert signing.fits(found.public_key, found.sign(b"x"), b"x")
    assert [each.name for each in key_files.listed()] == ["ops", "theirs"]


@NEEDS_SSH_KEYGEN
def test_a_key_with_a_passphrase_is_refused_and_the_error_says_what_to_do(folder: Path) -> None:
    key_files.create("ops")
    ssh_keygen("-q", "-t", "ed25519", "-N", "secret", "-f", folder / "locked")
    with pytest.raises(NotAllowed, match=r"ssh-add .*/locked"):
        key_files.load("locked")


@NEEDS_SSH_KEYGEN
def test_a_key_of_another_kind_is_refused(folder: Path) -> None:
    key_files.create("ops")
    ssh_keygen("-q", "-t", "ecdsa", "-N", "", "-f", folder / "other")
    with pytest.raises(NotAllowed, match="Ed25519"):
        key_files.load("other")
