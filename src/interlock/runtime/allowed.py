"""What this user allowed on this machine: definitions of guards, settings and stores of work trees.

What a commit can write is not trusted: a clone or a checkout could otherwise run a command, name a
store, or be one.  So it counts only if it stands on this list, which lies outside of every work
tree, as with direnv and the files that it loads.

The list is a folder of small files for each kind, ``guards``, ``denied``, ``settings`` and
``stores``, in

    $INTERLOCK_ALLOWED_DIR, or
    $XDG_STATE_HOME/interlock/allowed, or
    ~/.local/state/interlock/allowed

The folders and the files belong to this user, or to root, and no other user may write to them.
Otherwise every call raises ``NotAllowed``, with a line that says what to change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from interlock.core.safe_text import printable
from interlock.errors import NotAllowed
from interlock.runtime import user_files

FOLDER = "INTERLOCK_ALLOWED_DIR"
"""The environment variable that names another folder for the list."""
GUARDS, DENIED, SETTINGS, STORES = "guards", "denied", "settings", "stores"

_LARGEST = 1 << 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def place() -> str:
    """The folder of the list."""
    return user_files.place(FOLDER, "allowed", state=True)


def path_of(kind: str, name: str) -> str:
    """The file of an entry."""
    return os.path.join(place(), kind, f"{name}.json")


def read(kind: str, name: str) -> tuple[bytes, float] | None:
    """What an entry holds, and when it was written; None if there is none.

    What is no file there is an entry without content.
    """
    path = path_of(kind, name)
    if _is_missing(path):
        return None
    with _reading(kind) as folder:
        if folder is None:
            return None
        try:
            file = os.open(f"{name}.json", _READ, dir_fd=folder)
        except FileNotFoundError:
            return None
        try:
            found = _trust(file, path)
            data = os.read(file, _LARGEST) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(file)
        return data, found.st_mtime


def has_any(kind: str) -> bool:
    """Whether there may be entries of a kind."""
    return not _is_missing(os.path.join(place(), kind))


def _is_missing(path: str) -> bool:
    """Whether nothing is there, which is asked for by each command, and quicker than to open it."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:  # opening says what is wrong
        pass
    return False


def time_of(kind: str, name: str) -> float | None:
    """When an entry was written; None if there is none."""
    with _reading(kind) as folder:
        if folder is not None:
            with suppress(FileNotFoundError):
                return os.stat(f"{name}.json", dir_fd=folder, follow_symlinks=False).st_mtime
        return None


def write(kind: str, name: str, data: bytes) -> None:
    """Write an entry, whole or not at all; it replaces an older one."""
    with _refusing():
        user_files.make_folder(place(), kind)
    with _reading(kind) as folder:
        if folder is None:
            raise NotAllowed(f"the folder {printable(place())} was removed; try it again")
        user_files.write_whole(folder, f"{name}.json", data)


def remove(kind: str, name: str) -> None:
    """Delete an entry, if there is one."""
    with _reading(kind) as folder:
        if folder is None:
            return
        with suppress(FileNotFoundError):
            os.unlink(f"{name}.json", dir_fd=folder)
            os.fsync(folder)


def names(kind: str) -> list[str]:
    """The names of all entries of a kind."""
    with _reading(kind) as folder:
        found = [] if folder is None else os.listdir(folder)
    return sorted(
        name.removesuffix(".json") for name in found if name[0] != "." and name.endswith(".json")
    )


@contextmanager
def _reading(kind: str) -> Iterator[int | None]:
    """A folder of the list, open and trusted; None if there is none."""
    with _refusing():
        path = place()
        try:
            base = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            yield None
            return
        try:
            folder = _inner(base, path, kind)
        finally:
            os.close(base)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)


def _inner(base: int, path: str, kind: str) -> int | None:
    _trust(base, path)
    try:
        folder = os.open(kind, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
    except FileNotFoundError:
        return None
    try:
        _trust(folder, os.path.join(path, kind))
    except NotAllowed:
        os.close(folder)
        raise
    return folder


def _trust(descriptor: int, path: str) -> os.stat_result:
    """Refuse a file or folder that another user could have written."""
    return user_files.require_own(descriptor, path, "could allow anything", FOLDER)


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors of the file system as refusals."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise NotAllowed(
            f"the list of what is allowed in {printable(place())} cannot be used:"
            f" {what.lower()}; name another folder with {FOLDER}"
        ) from None
