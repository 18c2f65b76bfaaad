"""The definitions that this host allows to look at its files, its branches and its commands.

Every client of a store can write a definition, and every host reads it.  So a host looks outside of
the store only for the definitions on its own list, as direnv does with the files that it loads.  An
entry is the SHA-256 of a definition and the root folder that it may look at; a definition that
changes has another digest, and so it is not allowed.  Programs and scripts that a definition runs
are not part of its digest: a change of them is not noticed.

The list is two folders of small files, ``allowed`` and ``denied``, in

    $INTERLOCK_GUARDS_DIR, or
    $XDG_DATA_HOME/interlock/guards, or
    ~/.local/share/interlock/guards

A denial wins over a permission; the next permission ends the denial.  The folders and the files
belong to this user, or to root, and no other user may write to them.  Otherwise every call raises
``NotAllowed``, with a line that says what to change.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from interlock.core import validate
from interlock.core.safe_text import printable, quoted
from interlock.errors import BadInput, NotAllowed
from interlock.runtime import user_files

FOLDER = "INTERLOCK_GUARDS_DIR"
"""The environment variable that names another folder for the list."""
NOTE_LIMIT = 1000

_ALLOWED, _DENIED = "allowed", "denied"
_LARGEST = 1 << 16
_DIGEST = re.compile(r"[0-9a-f]{64}")


class AllowedDefinition(Struct, frozen=True, kw_only=True):
    """A definition that this host allows, with the folder that it may look at, and since when."""

    digest: str
    root: str
    note: str = ""
    since: float = 0.0


class DeniedDefinition(Struct, frozen=True, kw_only=True):
    """A definition that this host denies, and since when."""

    digest: str
    note: str = ""
    since: float = 0.0


class StoredPermission(Struct, frozen=True, kw_only=True):
    """The content of a file of the list; its name is the digest, its time the time of the act."""

    root: str
    note: str = ""


def allow(digest: str, root: str | os.PathLike[str], note: str = "") -> AllowedDefinition:
    """Allow a definition to look at this folder; an earlier denial of it ends."""
    _check(digest)
    stored = StoredPermission(root=_root(root), note=validate.text(note, "note", NOTE_LIMIT))
    with _changing(_ALLOWED) as folder:
        user_files.write_whole(folder, _name(digest), msgspec.json.encode(stored))
        made = _read(folder, digest)
    # After the permission, so that a crash in between leaves the denial.
    _remove(_DENIED, digest)
    if made is None:
        raise NotAllowed("another process denied the definition at the same time; look at the list")
    return made


def deny(digest: str, note: str = "") -> None:
    """Deny a definition, and end its permission."""
    _check(digest)
    stored = {"note": validate.text(note, "note", NOTE_LIMIT)}
    with _changing(_DENIED) as folder:
        user_files.write_whole(folder, _name(digest), msgspec.json.encode(stored))
    _remove(_ALLOWED, digest)


def allowed(digest: str) -> AllowedDefinition | None:
    """The entry of a definition; None if it is not allowed on this host."""
    _check(digest)
    with _reading(_DENIED) as folder:
        if folder is not None and _time(folder, digest) is not None:
            return None
    with _reading(_ALLOWED) as folder:
        return None if folder is None else _read(folder, digest)


def listed() -> list[AllowedDefinition | DeniedDefinition]:
    """All entries, by their digests; a definition that is in both folders is denied."""
    found: dict[str, AllowedDefinition | DeniedDefinition] = {}
    with _reading(_ALLOWED) as folder:
        for digest in _digests(folder):
            if folder is not None and (entry := _read(folder, digest)):
                found[digest] = entry
    with _reading(_DENIED) as folder:
        for digest in _digests(folder):
            if folder is not None and (since := _time(folder, digest)) is not None:
                note = _denied_note(folder, digest)
                found[digest] = DeniedDefinition(digest=digest, note=note, since=since)
    return [found[digest] for digest in sorted(found)]


def place() -> str:
    """The folder of the list."""
    return user_files.place(FOLDER, "guards")


@contextmanager
def _reading(kind: str) -> Iterator[int | None]:
    """A folder of the list, open and trusted; None if there is none."""
    with _refusing():
        try:
            base = os.open(place(), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            yield None
            return
        try:
            folder = _inner(base, kind)
        finally:
            os.close(base)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)


@contextmanager
def _changing(kind: str) -> Iterator[int]:
    """A folder of the list, created if it is missing, open and trusted."""
    with _refusing():
        user_files.make_folder(place(), kind)
    with _reading(kind) as found:
        if found is None:
            raise NotAllowed(f"the folder {place()} was removed; try it again")
        yield found


def _inner(base: int, kind: str) -> int | None:
    _trust(base, place())
    try:
        folder = os.open(kind, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
    except FileNotFoundError:
        return None
    try:
        _trust(folder, os.path.join(place(), kind))
    except NotAllowed:
        os.close(folder)
        raise
    return folder


def _trust(descriptor: int, path: str) -> os.stat_result:
    """Refuse a file or folder that another user could have written."""
    return user_files.require_own(descriptor, path, "could allow any command", FOLDER)


def _read(folder: int, digest: str) -> AllowedDefinition | None:
    path = os.path.join(place(), _ALLOWED, _name(digest))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.open(_name(digest), flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = _trust(file, path)
        data = os.read(file, _LARGEST) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(file)
    try:
        stored = msgspec.json.decode(data, type=StoredPermission)
    except msgspec.DecodeError:
        stored = StoredPermission(root="")
    if not os.path.isabs(stored.root):
        raise NotAllowed(f"{printable(path)} is damaged; remove it, then allow the definition")
    return AllowedDefinition(
        digest=digest, root=stored.root, note=stored.note, since=found.st_mtime
    )


def _remove(kind: str, digest: str) -> None:
    with _reading(kind) as folder:
        if folder is None:
            return
        with suppress(FileNotFoundError):
            os.unlink(_name(digest), dir_fd=folder)
            os.fsync(folder)


def _time(folder: int, digest: str) -> float | None:
    """When a file of the list was written; None if there is none."""
    try:
        return os.stat(_name(digest), dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None


def _denied_note(folder: int, digest: str) -> str:
    """The note of a denial; one that cannot be read denies all the same, without its note."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        file = os.open(_name(digest), flags, dir_fd=folder)
        try:
            stored = msgspec.json.decode(os.read(file, _LARGEST), type=dict[str, str])
        finally:
            os.close(file)
    except (OSError, msgspec.DecodeError):
        return ""
    return stored.get("note", "")[:NOTE_LIMIT]


def _digests(folder: int | None) -> list[str]:
    names = [] if folder is None else os.listdir(folder)
    digests = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return [digest for digest in digests if _DIGEST.fullmatch(digest)]


def _name(digest: str) -> str:
    return f"{digest}.json"


def _check(digest: str) -> None:
    if _DIGEST.fullmatch(digest) is None:
        raise BadInput(f"{quoted(digest)} is not a digest: give the 64 hexadecimal digits")


def _root(root: str | os.PathLike[str]) -> str:
    """The root without links, so that a link that changes later does not lead elsewhere."""
    path = os.fspath(root)
    if not os.path.isabs(path) or "\0" in path:
        raise BadInput(f"the root {quoted(path)} is not an absolute path; give one")
    if not os.path.isdir(path):
        raise BadInput(f"the root {quoted(path)} is not a folder; create it, or give another")
    return validate.text(os.path.realpath(path), "root", _LARGEST // 2)


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors of the file system as refusals."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        raise NotAllowed(
            f"the list of allowed definitions in {printable(place())} cannot be used:"
            f" {what.lower()}; name another folder with {FOLDER}"
        ) from None
