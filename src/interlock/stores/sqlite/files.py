"""Where a store's file may be, who may read it, and whether it is still there.

SQLite in WAL mode needs shared memory and honest file locks, which network and host-shared file
systems do not give: there a store would be damaged, so it is refused.
A store is for its owner only: folder 0700, files 0600, and no file of another user.

A commit into a file that was deleted or replaced is in no store, and no other client sees it.  So
``OpenFiles`` compares names and files after each commit and each read, before the caller gets the
answer.  Once they differ, every call fails until the store is opened again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import apsw

from interlock import file_mark
from interlock.descriptors import is_refused
from interlock.errors import (
    StoreFull,
    StoreGone,
    StoreMissing,
    StoreReadOnly,
    StoreUnsuitable,
)
from interlock.thread_calls import from_handler

REFUSED = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "glusterfs", "gfs2", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf",
    "virtiofs", "vmhgfs",
}  # fmt: skip
_FUSE_OK = {"fuseblk", "fuse.fuse-overlayfs"}
SIDE = "-bells"
VOLATILE = {"tmpfs", "ramfs"}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What a system says when there is no room left: on the disk, for the user, or in the file."""
_ROOM = 64 * 1024
LOGS = ("-wal", "-shm")
"""What SQLite makes beside a store that is open, in this order; it deletes the last one first."""
BESIDE = (*LOGS, "-journal")
"""What SQLite takes for a part of a store."""
CLOSING, LOCKED = 1.0, 10.0
"""Seconds in which another program may close a store, or let others in."""
LOOK = 0.1
"""Seconds between two looks at the files that no commit or read asks for."""
_MOUNTS = "/proc/self/mountinfo"
_HEADER = 100
_FIXED, _COUNTS, _APPLICATION = slice(24), slice(24, 32), slice(68, 72)
"""Where the header of the file keeps what never changes while it is in use, its change counter
with its number of pages, and the mark of the program that it belongs to."""
_UNMARKED = bytes(4)
_WRITTEN_BY, _BY_LOG = slice(18, 20), b"\2\2"
"""How the file is written: through a log."""
_SECOND, _GRAIN = 1_000_000_000, 100_000_000
_TRIES, _PAUSE = 5, 0.002
_ESCAPED = r"\\([0-7]{3})"
"""A text, as few places need it: to compile it would slow every command down."""


def file_system(path: str, mounts: str | None = None) -> str:
    """The type of the file system that a path is on; empty where the system does not say."""
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
        point = before.split(" ")[4]
        if "\\" in point:
            point = re.sub(_ESCAPED, lambda found: chr(int(found[1], 8)), point)
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
    exists = _exists(path)
    if not exists and not create:
        raise StoreMissing(
            f"there is no store at {path}; make one: {beginning(path)}; or connect(URL) in Python,"
            " or name another"
        )
    if os.path.isfile(f"{path}/HEAD") and os.path.isdir(f"{path}/objects"):
        raise StoreMissing(f"{path} is a git repository; write git+file://{path}")
    if os.path.isdir(path):
        raise StoreMissing(f"{path} is a folder; name a file, such as {path}/store.db")
    if exists and not os.path.isfile(path):
        raise StoreUnsuitable(f"{path} is not a regular file, so no store; name another")
    if exists and not create and not os.path.getsize(path):
        init = beginning(path)
        raise StoreMissing(f"{path} is empty, so no store; to start over: {init}")
    if exists and not (os.access(path, os.W_OK) and os.access(folder, os.W_OK)):
        raise StoreReadOnly(
            f"{path} cannot be written by you; change its permissions or its folder's"
        )
    _refuse_foreign(path)
    kind = file_system(path if exists else _nearest(folder))
    refuse_shared(path, kind)
    if not exists:
        _create(path, folder)
    return kind


def _refuse_foreign(path: str) -> None:
    """Raise if another user made the file, or one that SQLite would take for a part of it.

    That user could read and change everything in it.  Root may use the store of another user, but
    not one that stands where any user can put files.
    """
    folder = os.path.dirname(path)
    shared = os.path.isdir(folder) and bool(os.stat(folder).st_mode & stat.S_IWOTH)
    for name in (path, *(path + suffix for suffix in BESIDE)):
        try:
            owner = os.lstat(name).st_uid
        except OSError:
            continue
        if owner != os.geteuid() and (os.geteuid() or shared):
            raise StoreUnsuitable(
                f"{name} belongs to user {owner}, who could change the store behind your back;"
                " name a file of your own, or have it handed over with chown"
            )


def _exists(path: str) -> bool:
    """Whether there is something at this path; raises if we may not look."""
    try:
        os.stat(path)
    except PermissionError:
        raise StoreUnsuitable(
            f"you may not look into the folder of {path}; ask its owner, or name another store"
        ) from None
    except (OSError, ValueError):
        return False
    return True


def beginning(path: str) -> str:
    """The command that makes a store at this very place, as a shell takes it."""
    import shlex

    return f"interlock init --store {shlex.quote(path)}"


def away(path: str) -> str:
    """The command that moves a file out of the way."""
    import shlex

    return f"mv {shlex.quote(path)} {shlex.quote(path + '.damaged')}"


def full(path: str, error: int = errno.ENOSPC) -> StoreFull:
    """The error of a full disk, or of a limit: one with a number of its own is named."""
    if error in (errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"no room for another commit in {path} ({os.strerror(error)}); free some space, or"
            " raise the limit, then go on"
        )
    return StoreFull(f"no room for another commit in {path}; free some space, then go on")


def no_room(folder: str) -> bool:
    """Whether a folder takes no further file of some size: tried, since quotas count as well."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_ROOM))
    except OSError as error:
        return error.errno in FULL
    return False


def identity(path: str) -> tuple[int, int]:
    """Which file stands at a path now; (0, 0) if none does."""
    try:
        found = os.stat(path)
    except OSError as error:
        if from_handler(error):
            raise
        return 0, 0
    return found.st_dev, found.st_ino


@contextmanager
def own_logs(path: str) -> Iterator[bool]:
    """While the first connection is opened: what SQLite has beside the store is of Interlock.

    Yields whether the store has a mark; a commit of others may have written files beside one.  Then
    the connection reads once before this ends, which opens the log.  Until then we have the lock of
    a reader, through SQLite itself: closing a descriptor of our own would drop its locks.  With
    that lock no program deletes the log as the last that closes the store.  So SQLite finds the
    files that were looked at or made here, and no moment to be killed leaves one without a mark.
    """
    lock = _locked(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.xClose()


def _locked(path: str) -> apsw.VFSFile | None:
    started = time.monotonic()
    while mark := file_mark.read(path):  # again each time: a restore replaces the file
        lock = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])
        try:
            lock.xLock(apsw.SQLITE_LOCK_SHARED)
            _require_marked(path, mark)
            if lock.xFileSize() >= _HEADER and lock.xRead(_HEADER, 0)[_WRITTEN_BY] == _BY_LOG:
                _make_logs(path, mark)
        except BaseException as error:
            lock.xClose()
            patience = {apsw.BusyError: LOCKED, StoreGone: CLOSING, StoreUnsuitable: CLOSING}
            if time.monotonic() - started > patience.get(type(error), 0.0):
                raise
        else:
            return lock
        time.sleep(_PAUSE)
    return None


def _require_marked(path: str, mark: str) -> None:
    """Raise unless all that SQLite takes for a part of a store has its mark.

    An empty file, too: it may stand where a log was that other processes have open.
    """
    found = {suffix: file_mark.read(path + suffix) for suffix in BESIDE}
    for suffix, has in found.items():
        if has not in (None, mark):
            raise StoreUnsuitable(
                f"{path}{suffix} was not made by Interlock: SQLite would take it for a part of the"
                " store; close other programs that use the store, and check out a branch that does"
                " not track it"
            )
    if found["-shm"] is not None and found["-wal"] is None:
        raise StoreGone(
            f"{path}-wal, the log of the store, was removed while it was in use, as a checkout does"
            " with a file that another branch tracks: the last commits may be lost; restore a"
            " backup (interlock store restore FILE --force), or let a person decide to go on"
            " without them",
            path,
        )


def _make_logs(path: str, mark: str) -> None:
    try:
        owner = os.stat(path)
        for suffix in LOGS:
            if not os.path.lexists(path + suffix):
                file_mark.make(path + suffix, mark, (owner.st_uid, owner.st_gid))
    except OSError as error:
        if is_refused(error):
            raise
        if error.errno in FULL:
            raise full(path) from None
        raise StoreReadOnly(
            f"no file can be made beside {path} ({error.strerror}); change the permissions of its"
            " folder"
        ) from None


def mark_logs(path: str) -> None:
    """Mark the log that SQLite has made beside a store whose mark is younger than its opening."""
    if mark := file_mark.read(path):
        for suffix in LOGS:
            file_mark.write(path + suffix, mark)


class OpenFiles:
    """The files of an open store, and whether they still stand at its path.

    The names are compared by device and inode: the path as it was given, which may go through
    symbolic links, the real path, the write-ahead log and its index.  SQLite keeps the last two
    while a connection is open, so they change only by foreign hands.

    A name that is made, removed or renamed changes the time of its folder.  So while the folder is
    as it was at the last comparison, and was not changed just before it (the clock of a file
    system has a grain), there is nothing to compare: one ``stat`` is enough.

    A copy over the file (``cp``) leaves the inode as it is.  The raw header shows it: only SQLite
    writes there, and its change counter, and the number of pages beside it, never go back.
    """

    def __init__(self, named: str, path: str) -> None:
        self.gone = ""
        """Why nothing that is in the files that we have open counts any more."""
        self.path = path
        main = dict.fromkeys((named, path))
        self._names = (*main, path + "-wal", path + "-shm")
        self._main = [identity(name) for name in main]
        self._noted = self._main
        self._links = len(main) > 1
        self._folder = os.path.dirname(path)
        self._unchanged: tuple[int, int, int] | None = None
        self._header = b""
        self._due = 0.0

    def begin(self, db: apsw.Connection) -> None:
        """A connection was opened: note its files; the main one must be the one from before."""
        db.pragma("user_version")  # it opens the log with the first read
        self._unchanged = None
        self._noted = [*self._main, *map(identity, self._names[-2:])]
        self._compare()
        if not self._header:
            self._header = _header(db)
        self.check(db)

    def rest(self) -> None:
        """All connections are about to close for a moment, and their log goes with the last."""
        self._noted, self._unchanged = self._main, None

    def check(self, db: apsw.Connection) -> None:
        """Raise unless the files of this connection, which is ours to use now, stand there."""
        if not self.gone:
            self._compare()
            if db.read("main", 0, 0, _HEADER)[1] != self._header:
                self._judge(db)
        if self.gone:
            raise StoreMissing(self.gone)

    def recheck(self, db: apsw.Connection | None = None) -> bool:
        """Whether the store is gone, asked after the engine failed or before it closes."""
        if not self.gone:
            self._compare()
            if db is not None:
                with suppress(Exception):  # what failed before is the error that counts
                    self.check(db)
        return bool(self.gone)

    def went_back(self, seen: int, revision: int) -> None:
        """The store has a lower revision than we saw in it: a restore gave it an older state."""
        self.gone = self.gone or (
            f"{self.path} went back from revision {seen} to {revision}, as after a restore;"
            " stop what relied on it, and connect again"
        )
        self.refuse()

    def look(self) -> bool:
        """Whether the store is gone; compares the names at most ten times a second."""
        if not self.gone and (now := time.monotonic()) >= self._due:
            self._due = now + LOOK
            self._unchanged = None
            self._compare()
        return bool(self.gone)

    def refuse(self) -> None:
        """Raise if the store is known to be gone."""
        if self.gone:
            raise StoreMissing(self.gone)

    def _compare(self) -> None:
        try:
            folder = os.stat(self._folder)
        except OSError as error:
            if from_handler(error):
                raise
            mark = None
        else:
            mark = (folder.st_dev, folder.st_ino, folder.st_mtime_ns)
            if mark == self._unchanged and not self._links:
                return
            if not _settled(mark[2]):
                mark = None
        noted = self._noted
        names = self._names[: len(noted)]
        found = [identity(name) for name in names]
        if noted is not self._noted:  # a fork closed or opened files
            return
        if found == noted:
            self._unchanged = mark
            return
        pairs = zip(names, found, noted, strict=True)
        name = next(name for name, now, was in pairs if now != was)
        self.gone = (
            f"{name} was moved, deleted or replaced while it was in use;"
            " stop what relied on it, and connect again"
        )

    def _judge(self, db: apsw.Connection) -> None:
        """The header changed: by a checkpoint, or by a copy over the file."""
        for _ in range(_TRIES):  # a checkpoint may be writing it at this moment
            header = _header(db)
            was = self._header
            same = header[_FIXED] == was[_FIXED] and header[_COUNTS] >= was[_COUNTS]
            if same and was[_APPLICATION] in (_UNMARKED, header[_APPLICATION]):
                self._header = header
                return
            time.sleep(_PAUSE)
        wal, shm = self._names[-2:]
        self.gone = (
            f"{self.path} was overwritten by another copy while it was in use; stop every program"
            f" that uses it, remove {wal} and {shm}, copy again, then connect again"
        )


def _settled(changed: int) -> bool:
    """Whether a later change of a folder would show: its time is exact, and was some time ago."""
    # Whole seconds: the file system may know no finer time.
    return bool(changed % _SECOND) and time.time_ns() - changed > _GRAIN


def _header(db: apsw.Connection) -> bytes:
    """The beginning of the file itself, past the write-ahead log and every cache.

    Through SQLite's own descriptor: closing our own would drop the locks of this process.
    """
    return db.read("main", 0, 0, _HEADER)[1]


def make_side_folder(folder: str) -> None:
    """Make sure that the folder beside the file is there, and that no other user can change it.

    In a place that others may write to, another user could have put a folder or a link there.
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
        wrong = "belongs to another user"
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
            _refuse_foreign(path)
            return  # another process was faster
        raise StoreMissing(f"{folder} is not a folder; name another place") from None
    except NotADirectoryError:
        raise StoreMissing(f"{folder} is not a folder; name another place") from None
    except PermissionError:
        raise StoreReadOnly(f"{folder} cannot be written by you; name another place") from None
    except OSError as error:
        if is_refused(error):
            raise
        if error.errno in FULL:
            raise full(path) from None
        raise StoreReadOnly(f"{path} cannot be created ({error.strerror}); name another") from None
