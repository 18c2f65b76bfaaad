"""The repository that a folder is in, read from its files without running git.

A repository has a name, under which all hosts and worktrees share its reservations: the one in
INTERLOCK_REPOSITORY, else the last part of the address of the remote ``origin``, else the name of
the folder of the main worktree or of the bare repository, without ``.git``.  The root is that of
the worktree, where paths are relative to.  Outside of a repository, and in a bare one, the folder
itself is the root.

A file has one name: symbolic links above it are followed, also those above the root.  A path that
is a link itself has two: its own, which ``git`` knows, and that of the file that is written.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from unicodedata import normalize

from msgspec import Struct

from interlock import git_command
from interlock.core import validate
from interlock.errors import BadInput
from interlock.nouns.reservations import pattern

_ORIGIN = '[remote "origin"]'


class ReservedRepository(Struct, frozen=True):
    """A worktree of a repository: the name, the root, and whether its file system ignores case.

    ``named`` says that a caller named another repository than that of its folder: its links are
    unknown here.
    """

    name: str
    root: str
    fold: bool = False
    named: bool = False

    def relative(self, path: str, folder: str = "") -> str:
        """A path of the file system, from the root; BadInput if it lies outside.

        Symbolic links are followed, except for the last part, which may be a link that is edited.
        A relative one begins at the folder.
        """
        whole = os.path.normpath(os.path.join(folder or self.root, path))
        parent, name = os.path.split(whole)
        for real in (os.path.join(os.path.realpath(parent), name), os.path.realpath(whole)):
            if (found := self._inside(real)) is not None:
                return normalize("NFC", found)
        raise BadInput(f"{path!r:.200} lies outside of the repository {self.root}")

    def contains(self, path: str, folder: str = "") -> bool:
        """Whether a path lies inside."""
        try:
            self.relative(path, folder)
        except BadInput:
            return False
        return True

    def patterns(self, text: str) -> tuple[str, ...]:
        """A pattern as a caller wrote it, from the root, with links followed up to a wildcard.

        A path that is a link brings the pattern of its target along.
        """
        text = self._from_root(text)
        if self.named or str(text) != text or text.startswith("!"):
            return (text,)  # what is no text or no pattern is refused later
        segments = text.removeprefix("./").strip("/").split("/")
        if not {"", ".", ".."}.isdisjoint(segments):
            return (text,)
        marked = (at for at, each in enumerate(segments) if pattern.escaped(each) != each)
        literal = min(next(marked, len(segments)), len(segments) - 1)
        folder = os.path.join(self.root, *segments[:literal])
        found = [text]
        if (real := os.path.realpath(folder)) != folder and (above := self._inside(real)):
            rest = "/".join(segments[literal:]) + ("/" if text.endswith("/") else "")
            found = [f"/{rest}" if above == "." else f"{pattern.escaped(above)}/{rest}"]
        whole = os.path.join(self.root, *segments)
        if os.path.islink(whole) and (target := self._inside(os.path.realpath(whole))):
            found += [pattern.escaped(target)] if target != "." else []
        return tuple(found)

    def _inside(self, real: str) -> str | None:
        found = os.path.relpath(real, self.root)
        return None if found == ".." or found.startswith("../") else found

    def _from_root(self, text: str) -> str:
        if not str(text).startswith("/"):
            return text
        if text.startswith(f"{self.root}/"):
            return text[len(self.root) :]
        first = text.split("/", 2)[1]
        if first and os.path.lexists(f"/{first}") and not os.path.lexists(f"{self.root}/{first}"):
            if self.contains(text):
                return f"/{self.relative(text)}{'/' if text.endswith('/') else ''}"
            raise BadInput(
                f"{text!r:.200} lies outside of the repository {self.root};"
                " write the path from the root of the repository"
            )
        return text


def find(start: str | None = None) -> ReservedRepository:
    """The repository that a folder is in; None for the working directory."""
    here = os.path.realpath(start or os.getcwd())
    named = os.environ.get("INTERLOCK_REPOSITORY", "")
    return _find(here, named)


@lru_cache(maxsize=64)
def _find(here: str, named: str) -> ReservedRepository:
    root = _root(here)
    if root is None:
        return ReservedRepository(_name(named or os.path.basename(here)), here)
    inside = os.path.join(root, ".git")
    common = git_command.git_folders(inside)[1] if os.path.lexists(inside) else root
    origin, folds = _config(os.path.join(common, "config"))
    main = os.path.dirname(common) if os.path.basename(common) == ".git" else common
    last = re.split(r"[/:\\]", origin.rstrip("/"))[-1] if origin else os.path.basename(main)
    return ReservedRepository(_name(named or last.removesuffix(".git")), root, folds)


def _name(text: str) -> str:
    try:
        return validate.name(text, "name of the repository")
    except BadInput:
        if os.environ.get("INTERLOCK_REPOSITORY"):
            raise
        return "repository"  # a folder may have any name


def _root(here: str) -> str | None:
    if root := git_command.root_of(here):  # a bare folder inside of it came with a commit
        return root
    while not _is_bare(here):
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above
    return here


def _is_bare(folder: str) -> bool:
    """Whether a folder is a bare repository: it has what git itself looks for."""
    if os.path.basename(folder) == ".git":  # of the worktree above it
        return False
    isdir, join = os.path.isdir, os.path.join
    return all(isdir(join(folder, name)) for name in ("objects", "refs")) and os.path.isfile(
        join(folder, "HEAD")
    )


def _config(path: str) -> tuple[str, bool]:
    """The address of the remote ``origin``, and whether the file system ignores case."""
    origin, inside, folds = "", False, False
    for line in _text(path).splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        if name.startswith("["):
            inside = line.strip() == _ORIGIN
        elif inside and not origin and name == "url":
            origin = value
        folds = folds or (name.lower(), value.lower()) == ("ignorecase", "true")
    return origin, folds


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(65536)
    except OSError:
        return ""
