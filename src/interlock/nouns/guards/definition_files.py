"""Reading definition files, and the files that they include.

An included file lies in the folder of the first file or below it, and no link leads to it: each
part of its path is opened by itself, so that a part that is replaced in the meantime by a link
changes nothing.  A pipe or a device is refused without reading it.
"""

from __future__ import annotations

import errno
import os
import stat

from interlock.core.safe_text import printable, quoted
from interlock.errors import BadInput
from interlock.nouns.guards.source import SOURCE_LIMIT, DefinitionSource, parse

FILES_LIMIT = 100
"""The most files of one set."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINKS = (errno.ELOOP, errno.ENOTDIR)


def load(path: str) -> list[DefinitionSource]:
    """A definition file and all that it includes, each once; the file itself comes first."""
    try:
        path = os.fspath(path)
        name = printable(path)
        handle = os.open(path, _FILE)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"{str(path)!r:.200} cannot be read ({why}); name a file") from None
    try:
        data = _content(handle)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}; name a file") from None
    folder, base = os.path.split(path)
    try:
        root = os.open(folder or ".", _FOLDER)
    except OSError as error:
        raise BadInput(f"{name}: its folder cannot be opened ({error.strerror})") from None
    try:
        return _Loading(root, folder).all(base, parse(name, data))
    finally:
        os.close(root)


class _Loading:
    """One set of files; names are relative to the folder of the first file."""

    def __init__(self, root: int, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._sources: dict[str, DefinitionSource] = {}

    def all(self, name: str, source: DefinitionSource) -> list[DefinitionSource]:
        self._include(name, source, [name])
        return list(self._sources.values())

    def _include(self, name: str, source: DefinitionSource, chain: list[str]) -> None:
        self._sources[name] = source
        named = source.values.get("include", [])
        if not isinstance(named, list):
            raise source.wrong(("include",), "include takes a list of files, as in ['common.toml']")
        for place, given in enumerate(named):
            try:
                self._one(name, given, chain)
            except _NotIncluded as error:
                raise source.wrong(("include", place), str(error)) from None

    def _one(self, name: str, given: object, chain: list[str]) -> None:
        if not isinstance(given, str) or not given or "\0" in given:
            raise _NotIncluded(f"include takes names of files, not {given!r:.40}")
        wanted = os.path.normpath(os.path.join(os.path.dirname(name), given))
        if os.path.isabs(given) or wanted.split("/")[0] == "..":
            raise _NotIncluded(
                f"{quoted(given)} is not in the folder of the first file; move it there"
            )
        if wanted in chain:
            cycle = " -> ".join([*chain[chain.index(wanted) :], wanted])
            raise _NotIncluded(f"files include each other in a cycle: {printable(cycle)}; drop one")
        if wanted in self._sources:
            return
        if len(self._sources) >= FILES_LIMIT:
            raise _NotIncluded(f"more than {FILES_LIMIT} files are included; join some of them")
        found = parse(printable(os.path.join(self._folder, wanted)), self._read(given, wanted))
        self._include(wanted, found, [*chain, wanted])

    def _read(self, given: str, wanted: str) -> bytes:
        *folders, base = wanted.split("/")
        folder = self._root
        opened: list[int] = []
        try:
            for part in folders:
                folder = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                opened.append(folder)
            return _content(os.open(base, _FILE | os.O_NOFOLLOW, dir_fd=folder))
        except (OSError, ValueError) as error:
            link = getattr(error, "errno", None) in _LINKS
            why = "there is a link on the way" if link else getattr(error, "strerror", None)
            raise _NotIncluded(
                f"the included file {quoted(given)} cannot be read ({why or error});"
                " include a file that can"
            ) from None
        finally:
            for each in opened:
                os.close(each)


class _NotIncluded(Exception):
    """A file cannot be included."""


def _content(handle: int) -> bytes:
    """The bytes of a file, one more than allowed at most."""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        found = b""
        while len(found) <= SOURCE_LIMIT:
            piece = os.read(handle, SOURCE_LIMIT + 1 - len(found))
            if not piece:
                break
            found += piece
        return found
    finally:
        os.close(handle)
