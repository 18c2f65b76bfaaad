"""Where a store may stand, and who may read it."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.processes.helpers import ProcessGroup
from tests.stores.sqlite.store_programs import put

from interlock.errors import StoreMissing, StoreReadOnly, StoreUnsuitable
from interlock.stores.sqlite import SQLiteStore, files

NOBODY = 65534

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
31 30 254:1 / /home/ada/local rw,relatime shared:2 master:1 - btrfs /dev/vdb rw,subvol=/@
32 31 0:44 / /home/ada/local/share rw - 9p host rw,trans=virtio
33 22 0:45 / /mnt/two\040words rw - cifs //server/share rw
34 22 0:46 / /mnt/tab\011and\134slash rw - fuse.sshfs ada@server: rw
35 22 0:47 / /dev/shm rw - tmpfs tmpfs rw
36 22 0:48 / /mnt/over rw - nfs server:/x rw
37 36 254:2 / /mnt/over rw - ext4 /dev/vdc rw
38 22 0:50 / /mnt/image rw - overlay overlay rw,lowerdir=/a - b
39 22 0:51 / /mnt/vm rw - virtiofs share rw
""".strip("\n")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/store.db", "ext4"),
        ("/home/ada/store.db", "nfs4"),
        ("/homework/store.db", "ext4"),
        ("/home/ada/local/store.db", "btrfs"),
        ("/home/ada/local/share/deep/store.db", "9p"),
        ("/mnt/two words/store.db", "cifs"),
        ("/mnt/two", "ext4"),
        ("/mnt/tab\tand\\slash/store.db", "fuse.sshfs"),
        ("/dev/shm/store.db", "tmpfs"),  # noqa: S108 - a name in a list of mounts
        ("/mnt/over/store.db", "ext4"),
        ("/mnt/image/store.db", "overlay"),
        ("/mnt/vm/store.db", "virtiofs"),
    ],
)
def test_the_innermost_and_latest_mount_says_what_a_path_is_on(path: str, kind: str) -> None:
    assert files.file_system(path, MOUNTS) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "9p",
        "virtiofs",
        "cifs",
        "smb3",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse",
        "ceph",
    ],
)
def test_file_systems_without_honest_locks_are_refused_with_a_way_out(kind: str) -> None:
    with pytest.raises(StoreUnsuitable, match=rf"/x/store.db is on {kind}, .*local disk") as caught:
        files.refuse_shared("/x/store.db", kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "f2fs", "fuse.fuse-overlayfs", ""]
)
def test_local_file_systems_are_accepted(kind: str) -> None:
    files.refuse_shared("/x/store.db", kind)


def test_a_store_on_a_shared_file_system_is_not_even_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "file_system", lambda _path: "nfs4")
    with pytest.raises(StoreUnsuitable):
        SQLiteStore(str(tmp_path / "new" / "store.db"))
    assert os.listdir(tmp_path) == []


def test_an_existing_store_is_not_opened_after_it_moved_to_a_shared_file_system(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SQLiteStore(path).close()
    monkeypatch.setattr(files, "file_system", lambda _path: "virtiofs")
    with pytest.raises(StoreUnsuitable):
        SQLiteStore(path)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_folder_and_files_are_for_their_owner_only(tmp_path: Path, mask: int) -> None:
    (tmp_path / "home").mkdir(0o700)
    old = os.umask(mask)
    try:
        store = SQLiteStore(str(tmp_path / "home" / "store.db"))
        watch = store.watch("k/", 0)
        store.transact(lambda _: put("k/a"))
    finally:
        os.umask(old)
    modes = {
        str(found.relative_to(tmp_path)): stat.S_IMODE(found.stat().st_mode)
        for found in (tmp_path / "home", *(tmp_path / "home").rglob("*"))
    }
    folders = {name for name in modes if (tmp_path / name).is_dir()}
    assert folders == {"home", "home/store.db-bells"}
    assert {"home/store.db", "home/store.db-wal", "home/store.db-shm"} < set(modes)
    assert len(modes) == 10, "gate, turn, synced, the bell and its mark as well"
    assert {name: oct(mode) for name, mode in modes.items()} == {
        name: "0o700" if name in folders else "0o600" for name in modes
    }
    watch.close()
    store.close()


def as_nobody(programs: ProcessGroup, path: Path) -> str:
    """How opening goes for a user without special rights."""
    user = (NOBODY,) if os.getuid() == 0 else ()
    (answer,) = programs.start("open_it", path, *user).remaining_lines()
    return answer


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can reach.

    It is none of pytest's, which shuts all others out again whenever a run begins beside this one.
    """
    with tempfile.TemporaryDirectory() as made:
        top = Path(made).resolve()
        for folder in (top, *top.parents):
            if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(0o755)
        home = top / "home"
        home.mkdir()
        yield home


def give(*paths: Path) -> None:
    if os.getuid() == 0:
        for found in paths:
            os.chown(found, NOBODY, NOBODY)


def test_a_folder_of_ones_own_is_enough(shared: Path, programs: ProcessGroup) -> None:
    give(shared)
    assert as_nobody(programs, shared / "store.db") == "ok"


def test_a_read_only_folder_is_named_with_a_remedy(shared: Path, programs: ProcessGroup) -> None:
    shared.chmod(0o555)
    answer = as_nobody(programs, shared / "store.db")
    assert answer.startswith("StoreReadOnly")
    assert f"{shared} cannot be written by you; name another place" in answer


def test_a_folder_that_is_closed_to_us_is_no_missing_store(
    shared: Path, programs: ProcessGroup
) -> None:
    SQLiteStore(str(shared / "store.db")).close()
    shared.chmod(0o000)
    answer = as_nobody(programs, shared / "store.db")
    shared.chmod(0o700)
    assert answer.startswith("StoreUnsuitable")
    assert f"you may not look into the folder of {shared / 'store.db'}" in answer


def test_a_read_only_file_is_named_with_a_remedy(shared: Path, programs: ProcessGroup) -> None:
    SQLiteStore(str(shared / "store.db")).close()
    (shared / "store.db").chmod(0o444)
    shared.chmod(0o777)
    answer = as_nobody(programs, shared / "store.db")
    assert answer.startswith("StoreReadOnly")
    assert "store.db cannot be written by you; change its permissions or its folder's" in answer


def test_a_file_in_a_read_only_folder_is_named_with_a_remedy(
    shared: Path, programs: ProcessGroup
) -> None:
    SQLiteStore(str(shared / "store.db")).close()
    give(shared / "store.db")
    shared.chmod(0o555)
    answer = as_nobody(programs, shared / "store.db")
    assert answer.startswith("StoreReadOnly")
    assert "change its permissions or its folder's" in answer


def test_a_folder_of_bells_that_is_not_ours_is_named_with_a_remedy(
    shared: Path, programs: ProcessGroup
) -> None:
    give(shared)
    assert as_nobody(programs, shared / "store.db") == "ok"
    notifier = shared / "store.db-bells"
    if os.getuid() == 0:
        os.chown(notifier, 0, 0)
    else:
        notifier.chmod(0)
    try:
        answer = as_nobody(programs, shared / "store.db")
    finally:
        notifier.chmod(0o700)
    assert answer.startswith("StoreUnsuitable" if os.getuid() == 0 else "StoreReadOnly")
    assert "store.db-bells" in answer


def test_without_create_a_missing_store_is_an_error_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"there is no store at .*; make one: "):
        SQLiteStore(str(tmp_path / "a" / "store.db"), create=False)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="is a folder; name a file"):
        SQLiteStore(str(tmp_path))


def test_the_folder_of_a_git_repository_has_a_url(tmp_path: Path) -> None:
    (tmp_path / "HEAD").touch()
    (tmp_path / "objects").mkdir()
    with pytest.raises(StoreMissing, match=r"is a git repository; write git\+file:///"):
        SQLiteStore(str(tmp_path))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreMissing, match="is not a folder"):
        SQLiteStore(str(tmp_path / "file" / "store.db"))


def test_a_relative_path_keeps_its_meaning_when_the_program_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("store.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.transact(lambda _: put("a"))
    assert store.read("a")["a"] is not None
    store.close()


@pytest.mark.parametrize(("kind", "grade"), [("tmpfs", "process"), ("ext4", "power loss")])
def test_a_store_in_memory_does_not_claim_to_survive_a_power_cut(
    path: str, monkeypatch: pytest.MonkeyPatch, kind: str, grade: str
) -> None:
    monkeypatch.setattr(files, "file_system", lambda _path: kind)
    store = SQLiteStore(path)
    assert store.capabilities.durability == grade
    store.close()


def refused(path: str) -> str:
    """Why it is refused, in one line."""
    with pytest.raises(StoreUnsuitable) as caught:
        SQLiteStore(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_side_folder_that_is_a_link_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    os.symlink(tmp_path / "elsewhere", path + "-bells")
    assert "is not a folder" in refused(path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_side_folder_that_others_may_write_to_is_refused(path: str) -> None:
    os.mkdir(path + "-bells")
    os.chmod(path + "-bells", 0o770)  # noqa: S103 - just that
    assert "can be written by others" in refused(path)


def test_a_side_folder_of_somebody_else_is_refused(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir(path + "-bells", 0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert "belongs to another user" in refused(path)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_file_that_another_user_planted_is_refused(
    shared: Path, programs: ProcessGroup, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """That user may read and write it, and so could take every lock."""
    shared.chmod(0o1777)  # as /tmp is
    planted = shared / f"store.db{suffix}"
    if suffix:
        planted.touch()
    else:
        SQLiteStore(str(planted)).close()
    planted.chmod(0o666)
    before = {found: found.stat() for found in shared.iterdir()}
    if os.getuid() == 0:
        answer = as_nobody(programs, shared / "store.db")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        answer = f"StoreUnsuitable {refused(str(shared / 'store.db'))}"
    assert answer.startswith(f"StoreUnsuitable {planted} belongs to user {os.getuid()}, ")
    assert "; name a file of your own, or" in answer
    assert {found: found.stat().st_size for found in shared.iterdir()} == {
        found: was.st_size for found, was in before.items()
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_root_uses_the_store_of_another_user_unless_any_user_could_have_put_it_there(
    shared: Path, programs: ProcessGroup
) -> None:
    give(shared)
    store = shared / "store.db"
    assert as_nobody(programs, store) == "ok"
    SQLiteStore(str(store)).close()
    shared.chmod(0o1777)
    assert f"{store} belongs to user {NOBODY}" in refused(str(store))


def test_a_gate_that_is_a_link_is_not_followed(path: str, tmp_path: Path) -> None:
    os.mkdir(path + "-bells", 0o700)
    os.symlink(tmp_path / "victim", path + "-bells/gate")
    with pytest.raises(StoreReadOnly):
        SQLiteStore(path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("kind", ["device", "fifo", "socket"])
def test_what_is_not_a_regular_file_is_refused_and_nothing_left_behind(
    tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "store.db")
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "device":
            path = "/dev/null"
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            bound.bind(path)
        before = set(tmp_path.iterdir())
        assert "is not a regular file" in refused(path)
    assert set(tmp_path.iterdir()) == before
    assert not os.path.exists("/dev/null-bells")


@pytest.mark.parametrize("end", ["_engine", "_reader"])
def test_both_connections_trust_no_schema(path: str, end: str) -> None:
    store = SQLiteStore(path)
    store.read()  # through the connection that writes
    store.read()
    db = getattr(store, end).db
    assert db.pragma("trusted_schema") == 0
    assert db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
    assert db.pragma("journal_mode") == "wal"
    store.close()
