"""Git's objects as bytes: written by this process, since a git command for each costs far more."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from contextlib import suppress

from msgspec import Struct

FOLDER, FILE = "40000", "100644"
_QUICK = 1


class TreeEntry(Struct, frozen=True, gc=False):
    """A name in a tree: a file or a folder, by the id of its object."""

    mode: str
    name: str
    oid: str


Tree = dict[str, TreeEntry]


def parse_tree(data: bytes) -> Tree:
    """The names in a tree object."""
    found: Tree = {}
    at = 0
    while at < len(data):
        space, end = data.index(b" ", at), data.index(b"\0", at)
        name = data[space + 1 : end].decode("utf-8", "surrogateescape")
        found[name] = TreeEntry(data[at:space].decode(), name, data[end + 1 : end + 21].hex())
        at = end + 21
    return found


def encode_tree(tree: Tree) -> bytes:
    """The object of a tree; git sorts a folder as if its name ended in a slash."""
    rows = sorted(tree.values(), key=_order)
    return b"".join(
        [
            b"%b %b\0%b" % (row.mode.encode(), os.fsencode(row.name), bytes.fromhex(row.oid))
            for row in rows
        ]
    )


def encode_commit(tree: str, parent: str, ident: str, message: str) -> bytes:
    """The object of a commit by one person; without a parent it is a root."""
    lines = [f"tree {tree}", *([f"parent {parent}"] if parent else [])]
    lines += [f"author {ident}", f"committer {ident}", "", message]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def tree_of(commit: bytes) -> str:
    """The tree that a commit names."""
    return commit[5:45].decode("ascii")


def write(folder: str, kind: str, data: bytes) -> str:
    """Put an object into the ``objects`` folder of a repository; returns its id."""
    whole = b"%b %d\0%b" % (kind.encode(), len(data), data)
    oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    place = f"{folder}/{oid[:2]}"
    path = f"{place}/{oid[2:]}"
    if os.path.exists(path):
        return oid
    writer = f"{os.getpid()}_{threading.get_ident()}"  # two may write the same object at once
    part = os.path.join(place, f"tmp_obj_{writer}_{oid[2:]}")  # git prunes it if it is left
    packed = zlib.compress(whole, _QUICK)
    try:
        with suppress(FileExistsError):
            os.mkdir(place)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
        try:
            _write_all(fd, packed)
        finally:
            os.close(fd)
        os.rename(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    return oid


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _order(entry: TreeEntry) -> bytes:
    return os.fsencode(entry.name) + (b"/" if entry.mode == FOLDER else b"")
