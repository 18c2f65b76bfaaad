"""The audit as files: ``cross_swarm_audit_2026-11-16.jsonl``, one for each day in UTC.

The record is the truth, and the files are a copy that outlives it.  A pass appends the lines of the
entries after the last one that it copied:

    .position   the revision and the id of that entry; replaced as a whole, after the lines are on
                disk
    .lock       held by the process that writes, so there is one at a time

A pass that was killed leaves lines behind its position, or half a line: the next one cuts them off
and appends them again.  So each event is in the files once.  Without ``.position`` the last
revision in the files takes its place.

Lines of one file are in the order of the record.  A line belongs to the day that its writer's clock
said, so a line may be appended to a file of an earlier day.

A file is deleted when its day and its last change are both older than it is to be kept: a wrong
clock that dates a line to 1970 does not delete it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Self

import msgspec
from msgspec import Struct

from interlock import git_command
from interlock.core import codec
from interlock.core.safe_text import printable
from interlock.core.validate import quote
from interlock.errors import BadInput
from interlock.nouns.requests.audit import AuditEntry, audit_day

_NAME = re.compile(r"cross_swarm_audit_(\d{4}-\d\d-\d\d)\.jsonl")
_TAIL = 64 * 1024
"""Bytes that are read first from the end of a file."""


class AuditPosition(Struct, frozen=True, kw_only=True):
    """The last entry of the record that is in the files; ``entry`` is its id, if it is known."""

    revision: int = 0
    entry: str = ""


class _Line(Struct):
    revision: int = 0


class AuditFolder:
    """The folder of the files; all methods block."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: int | None = None

    def begin(self) -> AuditPosition | None:
        """Become the writer, and cut off what is behind the position; None if there is another."""
        with self._said():
            self._make()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(self._in(".lock"), flags, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                return None
            position = self._position()
            for name in self._files():
                _cut(self._in(name), position.revision)
            return position

    def _make(self) -> None:
        """Make the folder, but none above it: a misspelt path would be taken for a new one."""
        above = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(above):
            raise BadInput(
                f"there is no folder {above}; make it (mkdir -p {quote(above)}), or name another"
            )
        root, real = git_command.upward(above)[-1], os.path.realpath(self.path)
        in_tree = os.path.lexists(os.path.join(root, ".git"))
        if in_tree and not os.path.join(real, "").startswith(os.path.realpath(root) + os.sep):
            raise BadInput(  # a commit may bring a link
                f"{printable(self.path)} leads out of the work tree, to {printable(real)}; remove"
                " the link, or name that folder"
            )
        with suppress(FileExistsError):
            os.mkdir(self.path, 0o700)

    def append(self, lines: Iterable[tuple[float, AuditEntry]], position: AuditPosition) -> None:
        """Add lines, each with its time, and move the position behind them."""
        with self._said():
            days = groupby(lines, key=lambda line: audit_day(line[0]))
            for day, some in days:
                data = b"".join([codec.encode(line) + b"\n" for _, line in some])
                self._write(f"cross_swarm_audit_{day}.jsonl", data, os.O_APPEND)
            self._write(".position.new", codec.encode(position), os.O_TRUNC)
            os.replace(self._in(".position.new"), self._in(".position"))
            _sync_folder(self.path)

    def rotate(self, now: float, keep: float) -> list[str]:
        """Delete files that are older than they are to be kept; their names."""
        last = audit_day(max(now - keep, 0.0))
        with self._said():
            old = [
                name
                for name, day in self._files().items()
                if day < last and os.stat(self._in(name)).st_mtime < now - keep
            ]
            for name in old:
                os.unlink(self._in(name))
        return old

    def __enter__(self) -> Self:
        """The folder; the end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Let another process write."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _position(self) -> AuditPosition:
        try:
            with open(self._in(".position"), "rb") as file:
                return msgspec.json.decode(file.read(), type=AuditPosition)
        except (FileNotFoundError, *codec.UNREADABLE):
            last = max((_last_revision(self._in(name)) for name in self._files()), default=0)
            # The lines of its entry may not all be there.
            return AuditPosition(revision=max(last - 1, 0))

    def _files(self) -> dict[str, str]:
        """The files by their names, with their days."""
        found = {name: _NAME.fullmatch(name) for name in sorted(os.listdir(self.path))}
        return {name: match[1] for name, match in found.items() if match is not None}

    def _write(self, name: str, data: bytes, how: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how
        with open(os.open(self._in(name), flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _in(self, name: str) -> str:
        return os.path.join(self.path, name)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInput(
                f"{error.filename or self.path}: {error.strerror}; the record has the audit, so"
                " nothing is lost: correct this, or name another folder"
            ) from error


def _last_revision(path: str) -> int:
    """The revision of the last whole line; 0 for a file without one."""
    lines = _tail(path, os.path.getsize(path))
    return next((at for line in reversed(lines) if (at := _revision(line)) is not None), 0)


def _cut(path: str, after: int) -> None:
    """Cut off the lines after a revision, and a line that is not whole."""
    size, wanted = os.path.getsize(path), _TAIL
    while True:
        lines = _tail(path, min(wanted, size))
        kept = len(lines)
        while kept and ((at := _revision(lines[kept - 1])) is None or at > after):
            kept -= 1
        if kept or wanted >= size:
            break
        wanted *= 4
    if (gone := sum(map(len, lines[kept:]))) or not lines:
        os.truncate(path, size - gone if lines else 0)


def _tail(path: str, size: int) -> Sequence[bytes]:
    """The lines in the last bytes of a file, with their ends; the first one may be cut."""
    with open(path, "rb") as file:
        file.seek(-size, os.SEEK_END)
        lines = file.read().splitlines(keepends=True)
    whole = size == os.path.getsize(path)
    return lines if whole else lines[1:]


def _revision(line: bytes) -> int | None:
    """The revision that a line names; None if it is not a whole line."""
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Line).revision
    except codec.UNREADABLE:
        return None


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
