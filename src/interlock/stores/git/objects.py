"""Git's objects as bytes: written by this process, since a git command for each costs far more."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import zlib
from contextlib import suppress

from msgspec import Struct

FOLDER, FILE, MODULE = "40000", "100644", "160000"
KINDS = {
    FOLDER: "a folder", FILE: "a file", MODULE: "a submodule", "120000": "a symbolic link",
    "100755": "a program",
}  # fmt: skip
_QUICK = 1
_TRIES = 10
_ID = re.compile("[0-9a-f]{40}")


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


def links_of(commit: bytes) -> tuple[str, list[str]]:
    """The tree and the parents that a commit names; ValueError if it is none."""
    tree, *rest = commit.partition(b"\n\n")[0].split(b"\n")
    parents = [line[7:].decode("ascii") for line in rest if line.startswith(b"parent ")]
    if not all(_ID.fullmatch(each) for each in (tree[5:].decode("ascii"), *parents)):
        raise ValueError("a commit without a tree")
    return tree_of(commit), parents


def id_of(kind: str, data: bytes) -> str:
    """The id of an object."""
    return _id(_whole(kind, data))


def write(folder: str, kind: str, data: bytes) -> str:
    """Put an object into the ``objects`` folder of a repository; returns its id."""
    whole = _whole(kind, data)
    oid = _id(whole)
    place = f"{folder}/{oid[:2]}"
    path = f"{place}/{oid[2:]}"
    if os.path.exists(path):
        return oid
    writer = f"{os.getpid()}_{threading.get_ident()}"  # two may write the same object at once
    part = os.path.join(place, f"tmp_obj_{writer}_{oid[2:]}")  # git prunes it if it is left
    packed = zlib.compress(whole, _QUICK)
    try:
        fd = _create(place, part)
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


def _create(place: str, part: str) -> int:
    """Open a new file in a folder, which git removes while it packs if it finds it empty."""
    left = _TRIES
    while True:
        with suppress(FileExistsError):
            os.mkdir(place)
        try:
            return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
        except FileNotFoundError:
            left -= 1
            if not left:
                raise


def _whole(kind: str, data: bytes) -> bytes:
    return b"%b %d\0%b" % (kind.encode(), len(data), data)


def _id(whole: bytes) -> str:
    return hashlib.sha1(whole, usedforsecurity=False).hexdigest()


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _order(entry: TreeEntry) -> bytes:
    return os.fsencode(entry.name) + (b"/" if entry.mode == FOLDER else b"")
