"""Files below a root folder: whether they exist, and whether they have a text.

A definition that comes from a store must not read what lies elsewhere.  So each folder of a path is
opened by its descriptor, one below the other, and no link is followed: neither ``..``, nor a link,
nor a folder that is replaced in the meantime leads out of the root.  Only the root itself may be a
link, since its owner named it.

Reading a device can block or change it.  So the kind of a file is known before it is opened, and
nothing but a plain file is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR
from typing import TypeAlias

from interlock.nouns.guards.condition import FileNeed, TextNeed
from interlock.nouns.guards.sighting import Sighting, last_line, shown, sighting, unknown

PathNeed: TypeAlias = FileNeed | TextNeed

MOST = 16 << 20
"""How much of a file is read."""
FILE_SECONDS = 10.0
"""How long a file may take; a pattern adds its own limit."""
PATTERN_SECONDS = 5.0
"""How long a search for a pattern may take, with the start of its process; it has one second."""

_CHUNK = 1 << 20
_TIMES = 3
# With O_PATH, which Linux has, a folder that may not be listed can be passed through.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class AbsentFile(Exception):
    """There is no such file; the text says why."""


class UnknownFile(Exception):
    """It cannot be said whether there is; the text says why."""


class ChangedFile(UnknownFile):
    """The file changed while it was looked at."""


def look(root: str, path: str, needs: Sequence[PathNeed]) -> dict[PathNeed, Sighting]:
    """Answer all needs about one path by one look at it."""
    try:
        return _steady(root, path, needs)
    except AbsentFile as absent:
        return {need: sighting(False, str(absent), b"absent") for need in needs}
    except UnknownFile as reason:
        return dict.fromkeys(needs, unknown(str(reason)))


def _steady(root: str, path: str, needs: Sequence[PathNeed]) -> dict[PathNeed, Sighting]:
    """Look again at a file that changes, a few times."""
    for left in reversed(range(_TIMES)):
        try:
            with _parent(root, path) as (folder, name):
                return _look(folder, name, path, needs)
        except ChangedFile:
            if not left:
                raise
    raise AssertionError  # pragma: no cover - the last round returns or raises


def _look(folder: int, name: str, path: str, needs: Sequence[PathNeed]) -> dict[PathNeed, Sighting]:
    kind = _kind(folder, name, path)
    if path.endswith("/") and kind != "folder":
        raise AbsentFile(f"{shown(path)} is a {kind}, not a folder")
    seen: dict[PathNeed, Sighting] = {}
    exists = sighting(True, f"{shown(path)} is a {kind}", kind.encode())
    texts = [need for need in needs if isinstance(need, TextNeed)]
    seen.update((need, exists) for need in needs if isinstance(need, FileNeed))
    if texts and kind == "file":
        data = _read(folder, name, path)
        seen.update((need, _contains(need, data)) for need in texts)
    elif kind == "folder":
        says = f"{shown(path)} is a folder, which has no text"
        seen.update((need, sighting(False, says, b"folder")) for need in texts)
    else:
        seen.update((need, unknown(f"{shown(path)} is a {kind}; it is not read")) for need in texts)
    return seen


@contextmanager
def _parent(root: str, path: str) -> Iterator[tuple[int, str]]:
    """The open folder that a path is in, and the last name of the path."""
    *above, name = _names(path)
    try:
        folder = os.open(root, _FOLDER)
    except (OSError, ValueError) as error:
        raise UnknownFile(f"the root {shown(root)} cannot be opened: {_reason(error)}") from None
    try:
        for part in above:
            if (kind := _kind(folder, part, path)) != "folder":
                raise AbsentFile(f"there is no {shown(path)}: {shown(part)} is a {kind}")
            try:
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _trouble(error, path) from None
            folder, outer = inner, folder
            os.close(outer)
        yield folder, name
    finally:
        os.close(folder)


def _names(path: str) -> list[str]:
    """The names that a path consists of; the root itself is a dot."""
    if not path or path.startswith("/") or "\0" in path:
        raise UnknownFile(f"{shown(path) or 'an empty path'} is not a path below the root")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise UnknownFile(f"{shown(path)} is not a path below the root: it has '..'")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise UnknownFile(f"{shown(path)} is not a path that can be written") from None
    return names or ["."]


def _kind(folder: int, name: str, path: str) -> str:
    """What a name of an open folder is; a link is an error."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError as error:
        if error.errno in (ENOENT, ENAMETOOLONG):
            raise AbsentFile(f"there is no {shown(path)}") from None
        raise _trouble(error, path) from None
    kind = _KINDS.get(stat.S_IFMT(mode), "file of an unknown kind")
    if kind == "link":
        raise UnknownFile(f"{shown(name)} in {shown(path)} is a link, which is not followed")
    return kind


def _read(folder: int, name: str, path: str) -> bytes:
    """The bytes of a plain file, and one more than the limit if there are more."""
    try:
        file = os.open(name, _PLAIN, dir_fd=folder)
    except OSError as error:
        raise _trouble(error, path) from None
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise ChangedFile(f"{shown(path)} changed while it was looked at")
        data = bytearray()
        while len(data) <= MOST and (part := os.read(file, min(_CHUNK, MOST + 1 - len(data)))):
            data += part
        if _version(os.fstat(file)) != _version(before):
            raise ChangedFile(f"{shown(path)} changed while it was read")
        return bytes(data)
    except OSError as error:
        raise _trouble(error, path) from None
    finally:
        os.close(file)


def _version(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _contains(need: TextNeed, data: bytes) -> Sighting:
    path, what = shown(need.path), "the pattern" if need.pattern else "the text"
    if bool(need.text) == bool(need.pattern):
        return unknown(f"{path}: look for a text or for a pattern, one of them")
    try:
        found = _matches(need.pattern, data) if need.pattern else _has(need.text, data)
    except UnknownFile as reason:
        return unknown(f"{path}: {reason}")
    if found:
        return sighting(True, f"{path} has {what}", data)
    if len(data) > MOST:
        says = f"{path} does not have {what} in its first {MOST >> 20} MiB; the rest is not read"
        return unknown(says)
    return sighting(False, f"{path} does not have {what}", data)


def _has(text: str, data: bytes) -> bool:
    try:
        return text.encode() in data[:MOST]
    except UnicodeEncodeError:
        raise UnknownFile("the text cannot be written in UTF-8") from None


def _matches(pattern: str, data: bytes) -> bool:
    """Whether a regular expression matches somewhere; asks a process that can be stopped."""
    import subprocess

    from interlock.runtime.processes import search
    from interlock.runtime.processes.supervised import helper_command

    if len(data) > MOST:  # its end would be a wrong one for the pattern
        raise UnknownFile(f"more than {MOST >> 20} MiB are too much for a pattern")
    try:
        encoded = pattern.encode()
    except UnicodeEncodeError:
        raise UnknownFile("the pattern cannot be written in UTF-8") from None
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            helper_command("search"),
            input=b"%d\n%b%b" % (len(encoded), encoded, data),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATTERN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownFile(f"no process can look for the pattern: {error}") from None
    if done.returncode == search.NOT_A_PATTERN:
        raise UnknownFile(f"the pattern is not a regular expression: {last_line(done.stdout)}")
    if done.returncode not in (search.FOUND, search.ABSENT):
        raise UnknownFile(f"the pattern took more than {search.SECONDS:.0f} s, or too much memory")
    return done.returncode == search.FOUND


def _trouble(error: OSError, path: str) -> UnknownFile:
    if error.errno in (ELOOP, ENOTDIR, ENOENT):  # its kind was right a moment ago
        return ChangedFile(f"{shown(path)} changed while it was looked at")
    return UnknownFile(f"{shown(path)} cannot be looked at: {_reason(error)}")


def _reason(error: OSError | ValueError) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
