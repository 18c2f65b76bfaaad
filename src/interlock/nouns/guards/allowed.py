"""The definitions that this host allows to look at its files, its branches and its commands.

Every client of a store can write a definition, and every host reads it.  So a host looks outside of
the store only for the definitions on its own list (``runtime/allowed.py`` says where that is).  An
entry is the SHA-256 of a definition and the root folder that it may look at; a definition that
changes has another digest, and so it is not allowed.  Programs and scripts that a definition runs
are not part of its digest: a change of them is not noticed.

A denial wins over a permission; the next permission ends the denial.
"""

from __future__ import annotations

import os
import re

import msgspec
from msgspec import Struct

from interlock.core import validate
from interlock.core.safe_text import printable, quoted
from interlock.errors import BadInput, NotAllowed
from interlock.runtime import allowed as user_list
from interlock.runtime.allowed import DENIED, GUARDS

NOTE_LIMIT = 1000

_LONGEST_ROOT = 1 << 15
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
    user_list.write(GUARDS, digest, msgspec.json.encode(stored))
    made = _read(digest)
    # After the permission, so that a crash in between leaves the denial.
    user_list.remove(DENIED, digest)
    if made is None:
        raise NotAllowed("another process denied the definition at the same time; look at the list")
    return made


def deny(digest: str, note: str = "") -> None:
    """Deny a definition, and end its permission."""
    _check(digest)
    stored = {"note": validate.text(note, "note", NOTE_LIMIT)}
    user_list.write(DENIED, digest, msgspec.json.encode(stored))
    user_list.remove(GUARDS, digest)


def allowed(digest: str) -> AllowedDefinition | None:
    """The entry of a definition; None if it is not allowed on this host."""
    _check(digest)
    return _read(digest) if user_list.time_of(DENIED, digest) is None else None


def listed() -> list[AllowedDefinition | DeniedDefinition]:
    """All entries, by their digests; a definition that is allowed and denied is denied."""
    found: dict[str, AllowedDefinition | DeniedDefinition] = {}
    for digest in filter(_DIGEST.fullmatch, user_list.names(GUARDS)):
        if entry := _read(digest):
            found[digest] = entry
    for digest in filter(_DIGEST.fullmatch, user_list.names(DENIED)):
        if (since := user_list.time_of(DENIED, digest)) is not None:
            note = _denied_note(digest)
            found[digest] = DeniedDefinition(digest=digest, note=note, since=since)
    return [found[digest] for digest in sorted(found)]


def place() -> str:
    """The folder of the list."""
    return user_list.place()


def _read(digest: str) -> AllowedDefinition | None:
    entry = user_list.read(GUARDS, digest)
    if entry is None:
        return None
    data, since = entry
    try:
        stored = msgspec.json.decode(data, type=StoredPermission)
    except msgspec.DecodeError:
        stored = StoredPermission(root="")
    if not os.path.isabs(stored.root):
        path = printable(user_list.path_of(GUARDS, digest))
        raise NotAllowed(f"{path} is damaged; remove it, then allow the definition")
    return AllowedDefinition(digest=digest, root=stored.root, note=stored.note, since=since)


def _denied_note(digest: str) -> str:
    """The note of a denial; one that cannot be read denies all the same, without its note."""
    try:
        entry = user_list.read(DENIED, digest)
        stored = msgspec.json.decode(b"" if entry is None else entry[0], type=dict[str, str])
    except (NotAllowed, msgspec.DecodeError):
        return ""
    return stored.get("note", "")[:NOTE_LIMIT]


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
    return validate.text(os.path.realpath(path), "root", _LONGEST_ROOT)
