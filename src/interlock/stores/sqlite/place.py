"""Where a store's file may stand, and who may read it.

SQLite in WAL mode needs shared memory and honest file locks, which network and host-shared file
systems do not give: there a store would be damaged, so it is refused.
A store is for its owner only: folder 0700, files 0600.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from interlock.errors import StoreMissing, StoreReadOnly, StoreUnsuitable

REFUSED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "glusterfs", "gfs2", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf",
    "virtiofs", "vmhgfs",
}  # fmt: skip
_FUSE_OK = {"fuseblk", "fuse.fuse-overlayfs"}
SIDE = "-bells"
VOLATILE = {"tmpfs", "ramfs"}
_MOUNTS = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system(path: str, mounts: str | None = None) -> str:
    """The type of the file system that a path is on; empty where the system cannot tell."""
    if mounts is None:
        try:
            with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return ""
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def refuse_shared(path: str, kind: str) -> None:
    """Raise if a file system of this kind would break a store."""
    if kind in REFUSED or (kind.startswith("fuse") and kind not in _FUSE_OK):
        raise StoreUnsuitable(
            f"{path} is on {kind}, where SQLite cannot lock safely; put the store on a local disk"
        )


def prepare(path: str, *, create: bool) -> str:
    """Make sure that the file is there, ours alone, and on a file system to trust; which one."""
    folder = os.path.dirname(path)
    exists = os.path.exists(path)
    if not exists and not create:
        init = beginning(path)
        raise StoreMissing(
            f"there is no store at {path}; make one: {init}; or connect(URL), or name another"
        )
    if os.path.isdir(path):
        raise StoreMissing(f"{path} is a folder; name a file, such as {path}/store.db")
    if exists and not os.path.isfile(path):
        raise StoreUnsuitable(f"{path} is not a regular file, so no store; name another")
    if exists and not create and not os.path.getsize(path):
        init = beginning(path)
        raise StoreMissing(f"{path} is empty, so no store; to begin anew: {init}")
    if exists and not (os.access(path, os.W_OK) and os.access(folder, os.W_OK)):
        raise StoreReadOnly(f"{path} cannot be written by you; mend the rights of file and folder")
    kind = file_system(path if exists else _nearest(folder))
    refuse_shared(path, kind)
    if not exists:
        _create(path, folder)
    return kind


def beginning(path: str) -> str:
    """The command that makes a store at this very place, as a shell takes it."""
    import shlex

    return f"interlock init --store {shlex.quote(path)}"


def identity(path: str) -> tuple[int, int]:
    """Which file stands at a path now; (0, 0) if none does."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def make_side_folder(folder: str) -> None:
    """Make sure that the folder beside the file is there, and that nobody else can meddle in it.

    In a place that others may write to, somebody could have put theirs there, or a link.
    """
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    owners = {os.geteuid()}
    if os.geteuid() == 0:
        owners.add(os.stat(folder.removesuffix(SIDE)).st_uid)
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a folder"
    elif found.st_uid not in owners:
        wrong = "belongs to somebody else"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "can be written by others"
    else:
        return
    raise StoreUnsuitable(f"{folder} {wrong}; take it away, or put the store in a folder of yours")


def _nearest(folder: str) -> str:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def _create(path: str, folder: str) -> None:
    if not os.path.lexists(folder):  # more likely a slip of the pen than a wish
        raise StoreMissing(f"there is no folder {folder}; make it, or name another place")
    try:
        # Exclusive: closing a descriptor of an open database would drop SQLite's own locks.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if os.path.isdir(folder):
            return  # somebody else was faster
        raise StoreMissing(f"{folder} is not a folder; name another place") from None
    except NotADirectoryError:
        raise StoreMissing(f"{folder} is not a folder; name another place") from None
    except PermissionError:
        raise StoreReadOnly(f"{folder} cannot be written by you; name another place") from None
    except OSError as error:
        raise StoreReadOnly(f"{path} cannot be created ({error.strerror}); name another") from None
