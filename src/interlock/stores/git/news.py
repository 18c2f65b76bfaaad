"""The objects that a commit of the branch has and an older one has not, read level by level.

A commit names a tree and the commit before it, a tree names trees and files.  What a folder of the
older commit has under the same name is here already.  Everything else is asked for, all that is
known of it at once, so the number of questions is that of the commits and folders on the way.

What does not lead to the older commit within a few steps is left to git (``NotForUs``): a history
that begins again, a branch that was put back, much that is new at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from interlock.stores.git import objects
from interlock.stores.git.objects import FOLDER, MODULE, Tree
from interlock.stores.git.reader import GitObject

if TYPE_CHECKING:
    from interlock.stores.git.repository import Repository

COMMITS, OBJECTS, BYTES = 16, 256, 4 << 20


class NotForUs(ValueError):
    """Git itself has to fetch this."""


class _Want(Struct, frozen=True):
    """What an object should be, and the folder of the older commit that it is in the place of."""

    kind: str
    beside: Tree


class _Had(Struct, frozen=True):
    """An object that was read, and the ids that it names."""

    kind: str
    data: bytes
    names: tuple[str, ...]


class News:
    """The objects that are to be asked for, and those that were read so far."""

    def __init__(self, repository: Repository, base: str, head: GitObject) -> None:
        self._repository = repository
        self._base = base
        self._root = repository.root(base)
        self._read: dict[str, _Had] = {}
        self._wanted: dict[str, _Want] = {}
        self._commits = 0
        self.room = BYTES
        """Bytes that may still come."""
        self.head = head.oid
        self._wanted[head.oid] = _Want("commit", self._root)
        self.take([head.oid], [head])

    def has(self, commit: str) -> bool:
        """Whether a commit is the older one, or was read."""
        return commit == self._base or commit in self._read

    def wanted(self) -> list[str]:
        """The ids to ask for next."""
        return list(self._wanted)

    def take(self, names: Sequence[str], found: Sequence[GitObject | None]) -> None:
        """Read what came for ids that were asked for."""
        for name, each in zip(names, found, strict=True):
            want = self._wanted.pop(name)
            if each is None or each.kind != want.kind:
                raise NotForUs(f"no {want.kind} {name}")
            if objects.id_of(each.kind, each.data) != name:
                raise ValueError(f"{name} is another object")
            self.room -= len(each.data)
            self._read[name] = _Had(each.kind, each.data, ())  # so that it is not asked for again
            wants = self._below(each, want.beside)
            self._read[name] = _Had(each.kind, each.data, tuple(wants))
            self._wanted |= {oid: new for oid, new in wants.items() if oid not in self._read}
        if len(self._read) + len(self._wanted) > OBJECTS or self._commits > COMMITS:
            raise NotForUs("much is new")

    def _below(self, found: GitObject, beside: Tree) -> dict[str, _Want]:
        if found.kind == "blob":
            return {}
        if found.kind == "tree":
            return self._in_tree(objects.parse_tree(found.data), beside)
        self._commits += 1
        tree, parents = objects.links_of(found.data)
        if len(parents) != 1:  # the older commit is not sure to come, or not sure to be all
            raise NotForUs("a merge, or the begin of a history")
        before = [parent for parent in parents if parent != self._base]
        return {tree: _Want("tree", self._root)} | {
            parent: _Want("commit", self._root) for parent in before
        }

    def _in_tree(self, tree: Tree, beside: Tree) -> dict[str, _Want]:
        wants: dict[str, _Want] = {}
        for name, entry in tree.items():
            if beside.get(name) == entry or entry.mode == MODULE:
                continue
            if entry.mode == FOLDER:
                had = beside.get(name)
                here = self._repository.tree(had.oid) if had and had.mode == FOLDER else {}
                wants[entry.oid] = _Want("tree", here)
            else:
                wants[entry.oid] = _Want("blob", {})
        return wants

    def write(self) -> None:
        """Write all into the copy, each object after those that it names.

        So what is in the copy is complete, also if this process is killed.
        """
        self._write(self.head)

    def _write(self, oid: str) -> None:
        had = self._read.pop(oid)
        for name in had.names:
            if name in self._read:
                self._write(name)
        self._repository.write(had.kind, had.data)
