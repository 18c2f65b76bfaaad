"""Files of a commit that would be taken for a store, or lead into one or into ``.git``.

A store is below ``.interlock``, which git ignores.  Where a branch has files there, a checkout puts
them in the place of the live store, and the way back deletes it.  So no branch, commit or push may
add or change one.  It may delete them, and leave those alone that a target has already.

File systems compare names in several ways: without case, without characters of no width, by short
names.  Git protects ``.git`` under each of these names on every file system, and so does this.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from interlock.core.safe_text import printable

_LINK, _GONE = "120000", "000000"
_STORE = re.compile(r"\.interlock|interl~\d+")
_STORE_OR_GIT = re.compile(rf"{_STORE.pattern}|\.git|git~\d+")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""The property Default_Ignorable_Code_Point of Unicode."""
_ID = re.compile("[0-9a-f]{40,}")
_SHOWN = 3
RAW = ("--raw", "-z", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
"""The options of git whose output ``changed_files`` reads."""

GitCall: TypeAlias = Callable[..., str]
"""Runs git with words and its input ``given``; returns what it prints, decoded as file names are.
"""


class TrackedFile(NamedTuple):
    """A file of a commit: its mode, the id of its content, and its path."""

    mode: str
    oid: str
    path: str


def changed_files(raw: str) -> Iterator[TrackedFile]:
    """The files that a diff names, as they are afterwards."""
    parts = iter(raw.split("\0"))
    for part in parts:
        said = part.lstrip("\n")
        before = len(said) - len(said.lstrip(":"))  # a merge has several
        if before:
            words = said.lstrip(":").split(" ")
            yield TrackedFile(words[before], words[2 * before + 1], next(parts))


def listed_files(listing: str) -> Iterator[TrackedFile]:
    """The files that ``ls-files -s -z`` or ``ls-tree -r -z`` names."""
    for line in listing.split("\0"):
        head, _, path = line.partition("\t")
        if found := _ID.search(head):
            yield TrackedFile(head.partition(" ")[0], found[0], path)


def store_files(git: GitCall, files: Iterable[TrackedFile]) -> tuple[str, ...]:
    """Those that no commit may bring: each folder, file or link once."""
    here = [each for each in files if each.mode != _GONE]
    found = [store_part(each.path) for each in here]
    links = [each for each in here if each.mode == _LINK]
    if links:
        ids = "".join([f"{each.oid}\n" for each in links])
        targets = _contents(git("cat-file", "--batch", given=ids))
        found += [
            each.path
            for each, target in zip(links, targets, strict=True)
            if any(_STORE_OR_GIT.fullmatch(name) for name in _names(target))
        ]
    return tuple(dict.fromkeys(filter(None, found)))


def named_store_files(found: tuple[str, ...]) -> str:
    """What they are, and some of their names."""
    few = ", ".join(map(printable, found[:_SHOWN])) + (", ..." if found[_SHOWN:] else "")
    return f"files of a store of Interlock, or links into one or into .git: {few}"


def way_out(found: tuple[str, ...]) -> str:
    """The command that takes them out of the next commit, and leaves them in the folder."""
    few = " ".join(shlex.quote(printable(each)) for each in found[:_SHOWN])
    return f"git rm -r --cached {few}{' ...' if found[_SHOWN:] else ''}"


def store_part(path: str) -> str:
    """The path down to the name of a folder of a store; empty if it has none."""
    parts = path.split("/")
    if path.isascii() and "interl" not in path.lower():
        return ""
    for number, part in enumerate(parts, 1):
        if any(_STORE.fullmatch(name) for name in _names(part)):
            return "/".join(parts[:number])
    return ""


def _names(path: str) -> Iterator[str]:
    """The names in a path, each in the form that file systems compare."""
    for part in re.split(r"[/\\]", _INVISIBLE.sub("", path).casefold()):
        yield part.partition(":")[0].rstrip(". ")


def _contents(batch: str) -> Iterator[str]:
    """What ``cat-file --batch`` prints of objects that are there."""
    left = os.fsencode(batch)
    while left:
        head, _, left = left.partition(b"\n")
        words = head.split(b" ")
        size = int(words[2]) if words[2:] else -1  # a damaged repository lacks it
        yield os.fsdecode(left[: max(size, 0)])
        left = left[size + 1 :]
