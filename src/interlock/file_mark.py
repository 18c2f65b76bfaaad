"""The mark of a file: 32 hex digits in an extended attribute, which no commit and no copy writes.

Where the system or the file system has no such attributes, no file has a mark.
"""

from __future__ import annotations

import os
from contextlib import suppress

_NAME = "user.interlock"


def read(path: str, *, follow: bool = False) -> str | None:
    """The mark of a file; empty if it has none, None if there is no file."""
    try:
        return os.getxattr(path, _NAME, follow_symlinks=follow).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except (OSError, AttributeError):
        return ""


def write(path: str, mark: str) -> bool:
    """Mark a file; returns whether that is possible here."""
    try:
        os.setxattr(path, _NAME, mark.encode(), follow_symlinks=False)
    except (OSError, AttributeError):
        return False
    return True


def remove(path: str) -> None:
    """Take the mark off a file, if it has one."""
    with suppress(OSError, AttributeError):
        os.removexattr(path, _NAME, follow_symlinks=False)


def make(path: str, mark: str, owner: tuple[int, int]) -> None:
    """Make an empty file that has a mark from the moment it has its name, unless one is there."""
    try:
        _make(path, mark, owner, "")
    except (OSError, AttributeError):  # a system without files that have no name
        _make(path, mark, owner, f"{path}.{os.urandom(8).hex()}")


def _make(path: str, mark: str, owner: tuple[int, int], name: str) -> None:
    how = os.O_CREAT | os.O_EXCL if name else os.O_TMPFILE
    file = os.open(name or os.path.dirname(path), how | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.setxattr(file, _NAME, mark.encode())
        if os.geteuid() == 0:  # root may use the store of another user
            os.chown(file, *owner)
        # Any descriptor of a folder makes Python follow the link, as the system asks for.
        os.link(name or f"/proc/self/fd/{file}", path, src_dir_fd=0)
    except FileExistsError:
        pass  # another process was faster
    finally:
        os.close(file)
        if name:
            os.unlink(name)
