"""The files of a work tree that setup and doctor read and write: a commit may make them links.

A path is resolved first: a link within the work tree works (``AGENTS.md`` may be ``CLAUDE.md``),
one that leads out of it is refused.  To write, each folder is opened from the one above it and no
link is followed, so that a link which appears in between leads nowhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from interlock.errors import BadInput
from interlock.work_tree import FOLDER

_NEVER_COMMITTED = frozenset((".git", FOLDER))
LONGEST = 16 * 1024 * 1024
_BESIDE = ".interlock-new"
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


def resolved(path: str, *roots: str) -> str:
    """The path without links; BadInput if it leads out of these folders, into .git for example."""
    found = os.path.realpath(path)
    for root in roots:
        parts = os.path.relpath(found, os.path.realpath(root)).split(os.sep)
        if parts[0] != os.pardir and _NEVER_COMMITTED.isdisjoint(map(str.casefold, parts)):
            return found
    raise BadInput(
        f"{path} leads out of the work tree, to {found}; remove the link, then run setup again"
    )


def read_bytes(path: str) -> bytes | None:
    """What a file has; None if there is none.  OSError for a pipe or a device: it may not end."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError("it is no regular file")
        if len(data := file.read(LONGEST + 1)) > LONGEST:
            raise OSError(f"it has more than {LONGEST >> 20} MiB")
        return data


def write(path: str, text: str, mode: int) -> None:
    """Write a file at once; ``path`` is resolved, and its folders are made."""
    with _folder(path, make=True) as folder:
        name = os.path.basename(path)
        with suppress(FileNotFoundError):  # left over, or of a commit
            os.unlink(name + _BESIDE, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        number = os.open(name + _BESIDE, flags, 0o600, dir_fd=folder)
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(number, mode)
        os.replace(name + _BESIDE, name, src_dir_fd=folder, dst_dir_fd=folder)


def move(path: str, name: str) -> None:
    """Give a file, or a link, another name in its folder."""
    with _folder(path) as folder:
        os.replace(os.path.basename(path), name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(path: str) -> None:
    """Delete a file, or a link."""
    with _folder(path) as folder, suppress(FileNotFoundError):
        os.unlink(os.path.basename(path), dir_fd=folder)


@contextmanager
def _folder(path: str, *, make: bool = False) -> Iterator[int]:
    """The folder of a resolved path; OSError if there is a link on the way to it by now."""
    at = os.open(os.sep, _FOLDER)
    try:
        for part in filter(None, os.path.dirname(path).split(os.sep)):
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(part, dir_fd=at)
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)
