"""Folders of this user, outside of any store, that no other user may change.

A folder has a variable of its own, or it is below a folder of the XDG specification: that for data
or, for what this machine alone knows, that for state.  The latter is in no work tree, where a
commit could write it; a home folder that is one is its user's own.

    $INTERLOCK_..._DIR, or
    $XDG_DATA_HOME/interlock/KIND, else ~/.local/share/interlock/KIND, or
    $XDG_STATE_HOME/interlock/KIND, else ~/.local/state/interlock/KIND
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache

from interlock import git_command
from interlock.core import validate
from interlock.core.safe_text import printable, quoted
from interlock.errors import BadInput, NotAllowed

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def place(variable: str, kind: str, *, state: bool = False) -> str:
    """The folder for this kind of files."""
    path = _place(variable, kind, state=state)
    root = _work_tree_around(path) if state else ""
    if root and root != os.path.realpath(os.path.expanduser("~")):
        raise NotAllowed(
            f"{printable(path)} is inside of the work tree {printable(root)}, where a commit could"
            f" write it; name a folder outside of it with {variable}"
        )
    return path


@lru_cache
def _work_tree_around(path: str) -> str:
    return git_command.root_of(path)


def _place(variable: str, kind: str, *, state: bool) -> str:
    if named := os.environ.get(variable):
        if not os.path.isabs(named):
            raise BadInput(f"{variable} is {quoted(named)}; give an absolute path")
        return os.path.normpath(named)
    base = os.environ.get("XDG_STATE_HOME" if state else "XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # its specification says that a relative path counts as none
        base = os.path.join(os.path.expanduser("~"), ".local", "state" if state else "share")
    if not os.path.isabs(base):  # else it would be in the working directory, which a commit writes
        raise NotAllowed(f"this user has no home folder; name a folder with {variable}")
    return os.path.join(base, "interlock", kind)


def make_folder(path: str, *inner: str) -> None:
    """Create a folder and those inside of it, for this user alone, unless they exist."""
    above = os.path.dirname(path)
    os.makedirs(os.path.dirname(above), exist_ok=True)
    for folder in (above, path, *(os.path.join(path, each) for each in inner)):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def require_own(descriptor: int, path: str, danger: str, variable: str) -> os.stat_result:
    """Refuse a file or folder that another user could have written; ``danger`` says why."""
    found = os.fstat(descriptor)
    shown = printable(path)
    if found.st_uid not in (os.geteuid(), 0):
        raise NotAllowed(
            f"{shown} belongs to user {found.st_uid}, who {danger};"
            f" remove it, or name another folder with {variable}"
        )
    if found.st_mode & _OTHERS_WRITE:
        raise NotAllowed(
            f"other users may write to {shown}, and so {danger};"
            f" run: chmod go-w {validate.quote(shown)}"
        )
    return found


def write_whole(folder: int, name: str, data: bytes) -> None:
    """Write a file for this user alone, whole or not at all; it replaces an older one."""
    hidden = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(hidden, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(hidden, dir_fd=folder)
        raise
    os.fsync(folder)
