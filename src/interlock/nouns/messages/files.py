"""Shared files: a message carries the path, the size and the SHA-256 of a file, not its bytes.

The receiver reads the file in place, on the same machine or on a shared disk. It may have been
changed or moved since, so the bytes are checked: a read returns the shared bytes or raises Changed.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from interlock.client_context import Context
from interlock.core.safe_text import foreign
from interlock.errors import BadInput, Changed
from interlock.nouns.messages.message import File
from interlock.runtime.calls import Calls, D, call
from interlock.steps import InThread, Op

_PIECE = 1024 * 1024


class FileHandle(Calls[D]):
    """A shared file as the receiver of its message sees it, in either client."""

    def __init__(self, file: File, context: Context) -> None:
        super().__init__(context)
        self._file = file
        self.path, self.size, self.digest = file.path, file.size, file.digest

    @call
    def read(self) -> Op[bytes]:
        """Its bytes."""
        return read(self._file)

    @call
    def verify(self) -> Op[None]:
        """Check that the file has not changed since it was shared; it may have any size."""
        return verify(self._file)


def describe(path: str | os.PathLike[str]) -> Op[File]:
    """The path, size and digest of a file."""
    found: File = yield InThread(lambda: _described(path))
    return found


def verify(file: File) -> Op[None]:
    """Raise Changed if a file has changed since it was shared."""
    yield InThread(lambda: _verified(file))


def read(file: File) -> Op[bytes]:
    """The bytes that were shared; raise Changed if they are gone."""
    data: bytes = yield InThread(lambda: _read(file))
    return data


def _described(path: str | os.PathLike[str]) -> File:
    try:
        where = os.path.abspath(os.fsdecode(path))
        size, digest = _digest(where)
        where.encode()
    except TypeError:
        raise BadInput(f"a file is named by its path, not by {path!r:.40}") from None
    except UnicodeEncodeError:
        raise BadInput("the path of the file is not UTF-8; rename the file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(
            f"the file {str(path)!r:.200} cannot be read ({why}); name one that can"
        ) from None
    return File(path=where, size=size, digest=digest)


def _opened(path: str) -> BinaryIO:
    """Open a regular file: a pipe or a device may block or have no end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise OSError("it is no regular file")


def _digest(path: str) -> tuple[int, str]:
    """The size of a file, and its SHA-256."""
    import hashlib

    size, hashed = 0, hashlib.sha256()
    with _opened(path) as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            hashed.update(piece)
    return size, hashed.hexdigest()


def _verified(file: File) -> None:
    try:
        if os.path.getsize(file.path) == file.size and _digest(file.path)[1] == file.digest:
            return
    except (OSError, ValueError) as error:
        raise _gone(file, error) from None
    raise _changed(file)


def _read(file: File) -> bytes:
    import hashlib

    try:
        with _opened(file.path) as opened:
            data = opened.read(file.size + 1)  # a file that has grown need not fit into memory
    except (OSError, ValueError) as error:
        raise _gone(file, error) from None
    if hashlib.sha256(data).hexdigest() != file.digest:
        raise _changed(file)
    return data


def _gone(file: File, error: Exception) -> Changed:
    return Changed(
        f"the shared file cannot be read ({error}); ask for it to be shared again:"
        f" {foreign(file.path)}"
    )


def _changed(file: File) -> Changed:
    return Changed(
        f"{foreign(file.path)} has changed since it was shared; ask for it to be shared again"
    )
