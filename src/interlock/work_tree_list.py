"""Puts settings and stores of a work tree on the list of what the user allowed, and takes them off.

``work_tree.py`` says what counts, and is all that most commands need.  What calls this has made the
file itself, or has asked a person.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from interlock import file_mark, git_command
from interlock.errors import NotAllowed
from interlock.runtime import allowed
from interlock.runtime.allowed import SETTINGS, STORES
from interlock.work_tree import (
    FOLDERS,
    StoreEntry,
    born,
    canonical,
    decoded,
    digest,
    entry_name,
    entry_of,
    project_inode,
    root_of,
    settings_of,
)

_BESIDE = ("-wal", "-shm", "-journal")


def allow_settings(path: str, data: bytes | None) -> None:
    """Let a file with settings count while it holds just this; None if it shall be gone."""
    path = canonical(path)
    root = root_of(path)
    files = settings_of(root)
    if data is None:
        files.pop(path, None)
    else:
        files[path] = digest(data)
    if files:
        entry = {"path": root, "device": os.stat(root).st_dev, "files": files}
        allowed.write(SETTINGS, entry_name(root), msgspec.json.encode(entry))
    else:
        allowed.remove(SETTINGS, entry_name(root))


def forget_settings(path: str) -> bool:
    """Delete the entry of settings; returns whether there was one."""
    path = canonical(path)
    known = path in settings_of(root_of(path))
    allow_settings(path, None)
    return known


def allow_store(path: str) -> None:
    """Let the file that stands at a path now count as a store, with what SQLite has beside it.

    A mark that it has stays: should this end between two steps, the entry still fits the file.
    """
    forget_gone()
    path = canonical(path)
    found, real = os.stat(path), os.path.realpath(path)
    if _log_is_gone(real):
        with suppress(FileNotFoundError):
            os.unlink(f"{real}-shm")
    before = file_mark.read(real) or ""
    try:
        StoreEntry(
            path=path,
            device=found.st_dev,
            inode=found.st_ino,
            born=born(found),
            mark=_marked(real, before),
            project=project_inode(path),
        ).write()
    except NotAllowed:
        if not before:
            for suffix in ("", *_BESIDE):
                file_mark.remove(real + suffix)
        raise


def allow_next(path: str, file: str) -> None:
    """Let a file count as the store at a path as soon as it stands there."""
    path = canonical(path)
    entry = entry_of(path) or StoreEntry(path=path, project=project_inode(path))
    entry.mark = _marked(file, entry.mark)
    entry.coming = os.stat(file).st_ino
    entry.write()


def _marked(path: str, mark: str) -> str:
    """Give a file this mark, or a new one; empty where the file system has none."""
    mark = mark or os.urandom(16).hex()
    # Before the file, since SQLite may have them open; and after it, since it may just make them.
    for suffix in (*_BESIDE, "", *_BESIDE):
        if not file_mark.write(path + suffix, mark) and not suffix:
            return ""
    return mark


def forget_store(path: str) -> bool:
    """Delete the entry of a store; returns whether there was one."""
    path = canonical(path)
    if entry_of(path) is None:
        return False
    allowed.remove(STORES, entry_name(path))
    return True


def forget_gone() -> None:
    """Delete the entries of files that are gone; what cannot be seen from here stays.

    The store of a project that is still there keeps its entry: ``require_store`` needs it.
    """
    for kind in (STORES, SETTINGS):
        for name in allowed.names(kind):
            entry = decoded(kind, name)
            path = str(entry["path"]) if entry is not None else ""
            kept = os.path.basename(os.path.dirname(path)) in FOLDERS and kind == STORES
            if entry is None or (
                _surely_gone(path, entry.get("device"))
                and not (kept and project_inode(path) == entry.get("project"))
            ):
                allowed.remove(kind, name)


def _surely_gone(path: str, device: object) -> bool:
    """Whether nothing stands at a path, where the file system of then would show it."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        while not os.path.lexists(path):
            path = os.path.dirname(path)
        return os.lstat(path).st_dev == device
    except OSError:
        pass
    return False


def wrong_beside(path: str) -> str:
    """Why a store is refused for what SQLite takes for a part of it; empty if it is not."""
    real = os.path.realpath(path)
    mark = file_mark.read(real)
    for name in (real + suffix for suffix in _BESIDE):
        if mark and file_mark.read(name) not in (None, mark):
            tracked = ", and git tracks it" if is_tracked(name) else ""
            return f"{name} was not made by Interlock{tracked}; it becomes a part of the store"
    return "its log was removed: the last commits may be lost" if _log_is_gone(real) else ""


def _log_is_gone(real: str) -> bool:
    """Whether foreign hands removed a log: SQLite deletes the index first."""
    return os.path.lexists(f"{real}-shm") and not os.path.lexists(f"{real}-wal")


def is_tracked(path: str) -> bool:
    """Whether git tracks a file of a work tree."""
    import subprocess

    folder = os.path.dirname(path)
    if not git_command.root_of(folder):
        return False
    words = git_command.command("ls-files", "--error-unmatch", "--", path, folder=folder)
    environment = git_command.environment()
    try:
        done = subprocess.run(words, env=environment, capture_output=True, check=False)  # noqa: S603
    except OSError:
        return False
    return done.returncode == 0
