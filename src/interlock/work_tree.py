"""What of a work tree counts.

What a commit can write configures nothing and is no store until the user allowed it on this
machine (``runtime/allowed.py`` has the list): a clone, a pull request or a checkout would otherwise
choose the store, run a program through a git remote's hooks, or replace the store.

settings  count by their digest, for the repository that they are in, so that its worktrees share an
          entry: a change of one letter is another digest.  Removed settings are a change, too.
a store   counts by its path, its device and inode, and a random mark in an extended attribute of
          the file.  A checkout writes another file, and a file system gives the inode of a deleted
          file to the next one; no commit holds an extended attribute.  Where there are no such
          attributes, the device and the inode have to do.

SQLite takes what stands beside the file (``-wal``, ``-shm``, ``-journal``) for a part of it; there
``stores.sqlite`` uses only files with the mark of the store.

A file that the user names (``--store``, INTERLOCK_STORE, ``connect(URL)``) needs no entry.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import msgspec

from interlock import file_mark, git_command
from interlock.core.safe_text import foreign
from interlock.core.validate import quote
from interlock.errors import NotAllowed, NotAllowedYet, StoreGone
from interlock.runtime import allowed
from interlock.runtime.allowed import SETTINGS, STORES

FOLDER, SHARED = FOLDERS = ".interlock", "interlock"
"""The folder of a project, and the one in its git folder, which all worktrees share."""
FILE = "store.db"
LARGEST = 1 << 14
"""The most bytes of a file with settings."""
_LONGEST = 4096
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIME = (1 << 127) - 1
_ASK = (
    "nothing is done here until a person has looked at that in a terminal of their own"
    " and allowed it"
)


class StoreEntry:
    """A store on the list: which file it is, and the folder of its project.

    ``born`` is the time of the file where the system has one (macOS), ``mark`` its extended
    attribute; empty where the file system has none.  ``coming`` is the inode of a file that is
    about to take its place, as in a restore.
    """

    __slots__ = ("born", "coming", "device", "inode", "mark", "path", "project")

    def __init__(
        self,
        *,
        path: str,
        device: int = 0,
        inode: int = 0,
        born: float = 0.0,
        mark: str = "",
        project: int = 0,
        coming: int = 0,
    ) -> None:
        self.path = path
        self.device = device
        self.inode = inode
        self.born = born
        self.mark = mark
        self.project = project
        self.coming = coming

    def write(self) -> None:
        """Put it on the list."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        allowed.write(STORES, entry_name(self.path), msgspec.json.encode(fields))


# ---- settings -----------------------------------------------------------------------------------


def read_settings(path: str) -> bytes | None:
    """What a file with settings holds; None if there is none.

    NotAllowed if another user could have written it, or if it is no plain file.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not os.path.lexists(path):
            return None
        raise NotAllowed(
            f"{path} cannot be read ({error.strerror}); correct or remove it"
        ) from None
    try:
        found = os.fstat(file)
        # The digest covers what a group could write.
        _require_own(found, path, {os.geteuid(), 0}, stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise NotAllowed(f"{path} is no file with settings; remove it")
        with open(file, "rb", closefd=False) as reader:
            return reader.read(LARGEST)
    finally:
        os.close(file)


def allowed_settings(path: str) -> bytes | None:
    """What a file with settings holds, if it counts; NotAllowedYet if it was not allowed.

    Settings that were allowed and are gone are a change that has to be allowed, too.
    """
    data = read_settings(path)
    if data is None and not allowed.has_any(SETTINGS):
        return None
    path = canonical(path)
    try:
        known = settings_of(root_of(path))
    except NotAllowed:
        if data is None:  # a list that cannot be used had none
            return None
        raise
    if data is None and path not in known:
        return None
    if data is not None and digest(data) in known.values():
        return data
    what = f"the settings in {foreign(path, _LONGEST)}"
    if data is None:
        raise NotAllowedYet(f"{what} were removed, as a checkout does: {_ASK}", path)
    if path in known:
        raise NotAllowedYet(f"{what} were changed after they were allowed: {_ASK}", path)
    raise NotAllowedYet(
        f"{what} were not allowed on this machine, and the work tree may have brought them along:"
        f" {_ASK}",
        path,
    )


def settings_of(root: str) -> dict[str, str]:
    """The digests of the settings of a repository, by their paths."""
    found = decoded(SETTINGS, entry_name(root))
    return dict(found["files"]) if found is not None and found.get("path") == root else {}


def root_of(path: str) -> str:
    """The main worktree of a file with settings, whose worktrees share an entry."""
    project = _project_of(path)
    return git_command.main_worktree(project) or project


def digest(data: bytes) -> str:
    """The digest of settings."""
    from hashlib import sha256

    return sha256(data).hexdigest()


# ---- stores -------------------------------------------------------------------------------------


def require_store(path: str) -> bool:
    """Whether a store stands at a path; raise unless it counts, or if it is gone from there."""
    path = canonical(path)
    if _require_counts(path):
        return True
    if _is_gone(path):
        raise StoreGone(
            f"the store {foreign(path, _LONGEST)}, which was used here, was removed, as a checkout"
            " does with a file that another branch tracks; a person restores a backup, or starts"
            " over with an empty store",
            path,
        )
    return False


def require_counts(path: str) -> bool:
    """Whether a store stands at a path; raise unless it counts, before anything opens it."""
    return _require_counts(canonical(path))


def _require_counts(path: str) -> bool:
    found = _stat(path)
    if found is None:
        return False
    entry = entry_of(path)
    if entry is None:
        if not found.st_size:  # of a commit, or an ``init`` was killed: nothing is in it
            return False
        _require_own(found, path, {os.geteuid()}, _OTHERS_WRITE)
        what = f"the store {foreign(path, _LONGEST)}"
        if file_mark.read(path):
            raise NotAllowedYet(
                f"{what} was allowed at another place, or by another user or home folder: {_ASK}",
                path,
            )
        raise NotAllowedYet(
            f"{what} was not allowed on this machine, and the work tree may have brought it along:"
            f" {_ASK}",
            path,
        )
    if not _is_that(entry, found, path):
        raise NotAllowedYet(f"{_replaced(path)}: {_ASK}", path)
    _require_own(found, path, {os.geteuid()}, _OTHERS_WRITE)
    return True


def may_be_store(path: str) -> bool:
    """Whether something stands at a path; an empty file, or a link to nowhere, is none."""
    found = _stat(path)
    return found is not None and found.st_size > 0


def is_gone(path: str) -> bool:
    """Whether a store of this very project stood at a path, and nothing does now."""
    return _is_gone(canonical(path))


def _is_gone(path: str) -> bool:
    if _stat(path) is not None:
        return False
    try:
        entry = entry_of(path)
    except NotAllowed:  # a list that cannot be used had none
        return False
    return entry is not None and project_inode(path) == entry.project


def require_not_replaced(path: str, *, create: bool) -> None:
    """Raise if a store in its usual place is another one than the one that was allowed there.

    A file elsewhere counts by the user's word alone.  ``create`` if the caller makes a store where
    none is.
    """
    if not _is_usual(path) and not _is_usual(path := os.path.realpath(path)):  # a link of the user
        return
    path = canonical(path)
    found = _stat(path)
    try:
        entry = entry_of(path)
        if create and found is None and entry is not None:
            allowed.remove(STORES, entry_name(path))
    except NotAllowed:  # the list cannot be used, and is not asked for more
        return
    if entry is not None and found is not None and not _is_that(entry, found, path):
        raise NotAllowedYet(f"{_replaced(path)}: {_ASK}", path)


def _is_usual(path: str) -> bool:
    return os.path.basename(os.path.dirname(os.path.abspath(path))) in FOLDERS


def is_replaced(path: str) -> bool:
    """Whether another file stands at a path than the one that was allowed there."""
    path = canonical(path)
    entry, found = entry_of(path), _stat(path)
    return entry is not None and found is not None and not _is_that(entry, found, path)


def entry_of(path: str) -> StoreEntry | None:
    """The entry of the store at a path, which is canonical; None if there is none."""
    found = decoded(STORES, entry_name(path))
    if found is None or found.get("path") != path:
        return None
    try:
        return StoreEntry(**found)
    except TypeError:  # damaged: it allows nothing
        return None


def decoded(kind: str, name: str) -> dict[str, Any] | None:
    """An entry of the list; None if there is none, or if it is damaged: then it allows nothing."""
    found = allowed.read(kind, name)
    try:
        entry = None if found is None else msgspec.json.decode(found[0])
    except msgspec.DecodeError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("path"), str) else None


def entry_name(path: str) -> str:
    """The name of the entry of a path; a hash would be one more import for each command."""
    return f"{int.from_bytes(os.fsencode(path), 'big') % _PRIME:032x}"


def _is_that(entry: StoreEntry, found: os.stat_result, path: str) -> bool:
    if file_mark.read(path, follow=True) != entry.mark:
        return False
    if found.st_ino == entry.coming:
        return True
    if (found.st_ino, born(found)) != (entry.inode, entry.born):
        return False
    # Some file systems number their devices again at each boot.
    return bool(entry.mark) or found.st_dev == entry.device


def _replaced(path: str) -> str:
    return (
        f"another file stands at {foreign(path, _LONGEST)} than the store that was used here: it"
        " was replaced, as a checkout does with a file that a branch tracks"
    )


def _project_of(path: str) -> str:
    """The folder around the folder of a file, which is not resolved: a commit may hold a link."""
    return os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(path))))


def canonical(path: str) -> str:
    """One name for a store, however its project was reached."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(_project_of(path), os.path.basename(folder), name)


def project_inode(path: str) -> int:
    """The inode of the folder around the folder of a store; 0 if there is none."""
    found = _stat(_project_of(path))
    return 0 if found is None else found.st_ino


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def born(found: os.stat_result) -> float:
    """When a file was made; 0 where the system does not know it."""
    return float(getattr(found, "st_birthtime", 0.0))


def _require_own(found: os.stat_result, path: str, owners: set[int], writable: int) -> None:
    """Raise if another user could have written a file; root is asked to own its files, too."""
    if found.st_uid not in owners:
        raise NotAllowed(
            f"{path} belongs to user {_user(found.st_uid)}, who could change it behind your back;"
            " name a store of your own with --store PATH"
        )
    if found.st_mode & writable:
        raise NotAllowed(f"other users may write to {path}; run: chmod go-w {quote(path)}")


def _user(number: int) -> str:
    """The name of a user, or the number of one without a name."""
    from pwd import getpwuid

    try:
        return getpwuid(number).pw_name
    except KeyError:
        return str(number)
