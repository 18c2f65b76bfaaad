"""Definition files, TOML or JSON: their text, the files that they include, the line of each value.

An included file lies in the folder of the first file or below it, and no link leads to it: each
part of its path is opened by itself, so that a part that is replaced in the meantime by a link
changes nothing.  A pipe or a device is refused without reading it.

No parser of TOML in the standard library keeps lines.  So the line of a value is found by its path
when an error needs it: the shortest beginning of the file (in lines) that has a value at that path.
A beginning that ends inside of an array, an inline table or a string is closed before it is parsed,
so that the element of a long array has its own line.  A longer beginning has all paths of a shorter
one, so bisection finds the line; it starts where all keys of the path have appeared in the text.

A JSON file is scanned once for the paths of its values; the same scan finds a key that is there
twice, which the parser would not report.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct

from interlock.core.safe_text import one_line, printable, quoted
from interlock.errors import BadInput, TooLarge

Path: TypeAlias = tuple[str | int, ...]

SOURCE_LIMIT = 1024 * 1024
"""The most bytes of one file."""
_LEVELS = 100
"""Deeper values are refused; conditions are allowed far less."""
_TOML_TOKENS = (
    r'"""(?:\\.|[^\\])*?"{3,5}|' r"'''.*?'{3,5}|" r'"""|' r"'''|"
    r'"(?:\\.|[^"\\\n])*"|' r"'[^'\n]*'|" r"#[^\n]*|[\[\]{}]"
)  # fmt: skip
_JSON_TOKENS = r'"(?:\\.|[^"\\])*"|[\[\]{}:,]|[^\s\[\]{}:,"]+'
_LONG_NUMBER = r"[0-9_]{4000}"
"""Python refuses to read longer numbers."""

FILES_LIMIT = 100
"""The most files of one set."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINKS = (errno.ELOOP, errno.ENOTDIR)


class DefinitionSource(Struct, frozen=True, kw_only=True):
    """One definition file: its name as errors say it, its text, and its values."""

    name: str
    text: str
    values: dict[str, Any]
    is_json: bool = False

    def line(self, path: Path) -> int:
        """The line of the value at a path, or of the innermost value on the way to it."""
        while not _has(self.values, path):
            path = path[:-1]
        if not path:
            return 1
        return _json_line(self.text, path) if self.is_json else _toml_line(self.text, path)

    def place(self, path: Path) -> str:
        """The file and the line of a value."""
        return f"{self.name}:{self.line(path)}"

    def wrong(self, path: Path, error: str | BadInput) -> BadInput:
        """The error for the value at a path."""
        kind = BadInput if isinstance(error, str) else type(error)
        return kind(f"{self.place(path)}: {error}")


def parse(name: str, data: bytes) -> DefinitionSource:
    """The values of a definition file; a name that ends in ``.json`` is JSON, any other TOML."""
    if len(data) > SOURCE_LIMIT:
        raise TooLarge(
            f"{name}: the file has more than {SOURCE_LIMIT} bytes; split it, and include the parts"
        )
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}:{line}: the file is not UTF-8; write it in UTF-8") from None
    is_json = name.endswith(".json")
    found = _parse_json(name, text) if is_json else _parse_toml(name, text)
    return DefinitionSource(name=name, text=text, values=found, is_json=is_json)


# Files, and those that they include.


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


# TOML


def _parse_toml(name: str, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        at = re.search(r"at line ([0-9]+)", said)
        line = int(at[1]) if at else text.rstrip("\n").count("\n") + 1
        raise BadInput(f"{name}:{line}: this is not TOML: {one_line(said)}") from None
    except RecursionError:
        line = _first_line(_lines(text), 1, _is_too_deep)
        raise TooLarge(f"{name}:{line}: values are nested too deeply; use fewer levels") from None
    except ValueError:
        raise _long_number(name, text) from None


def _is_too_deep(text: str) -> bool:
    import tomllib

    try:
        tomllib.loads(text)
    except RecursionError:
        return True
    except ValueError:
        return False
    return False


def _toml_line(text: str, path: Path) -> int:
    lines = _lines(text)
    return _first_line(lines, _least(text, path), lambda some: _has(_closed_toml(some), path))


def _lines(text: str) -> list[str]:
    return [line + "\n" for line in text.split("\n")]  # splitlines knows more ends than TOML


def _least(text: str, path: Path) -> int:
    """A line before which the path cannot be complete."""
    if re.search(r"\\u", text, re.IGNORECASE):
        return 1  # a key may be written in another way
    return max(_at(text, max(text.find(str(step)), 0)) for step in path if isinstance(step, str))


def _first_line(lines: list[str], least: int, found: Callable[[str], bool]) -> int:
    """The number of the line that ends the shortest beginning for which this is found."""
    low, high, step = least, least, 1
    while high < len(lines) and not found("".join(lines[:high])):
        low, high, step = high + 1, high + step, step * 2
    high = min(high, len(lines))
    while low < high:
        middle = (low + high) // 2
        if found("".join(lines[:middle])):
            high = middle
        else:
            low = middle + 1
    return low


def _closed_toml(text: str) -> dict[str, Any]:
    """The values of the longest beginning that can be closed and parsed."""
    import tomllib

    while text:
        try:
            return tomllib.loads(text + _closers(text))
        except (ValueError, RecursionError):  # it ends between a key and its value
            text = text[: text.rstrip("\n").rfind("\n") + 1]
    return {}


def _closers(text: str) -> str:
    """What closes the arrays, inline tables and strings that are open at the end of a text."""
    opened: list[str] = []
    for token in re.finditer(_TOML_TOKENS, text, re.DOTALL):
        match token[0]:
            case "[":
                opened.append("]")
            case "{":
                opened.append("}")
            case "]" | "}":
                opened = opened[:-1]
            case '"""' | "'''":
                opened.append(token[0])
                break
            case _:
                pass
    return "".join(reversed(opened))


def _has(values: Any, path: Path) -> bool:  # noqa: ANN401 - as it was parsed
    try:
        for step in path:
            values = values[step]
    except (KeyError, IndexError, TypeError):
        return False
    return True


# JSON


class _Twice(Exception):
    """A key is there twice."""


def _parse_json(name: str, text: str) -> dict[str, Any]:
    import json

    try:
        found = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise BadInput(f"{name}:{error.lineno}: this is not JSON: {error.msg}") from None
    except _Twice:
        raise _twice(name, text) from None
    except RecursionError:
        line = next(_at(text, where) for path, where in _json_paths(text) if len(path) > _LEVELS)
        raise TooLarge(f"{name}:{line}: values are nested too deeply; use fewer levels") from None
    except ValueError:
        raise _long_number(name, text) from None
    if not isinstance(found, dict):
        raise BadInput(f"{name}:1: a definition is an object with guards and pipelines")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _twice(name: str, text: str) -> BadInput:
    first: dict[Path, int] = {}
    for path, where in _json_paths(text):
        line = _at(text, where)
        if path in first:
            return BadInput(
                f"{name}:{line}: the key {path[-1]!r:.40} is in line {first[path]} already;"
                " keep one of them"
            )
        first[path] = line
    raise AssertionError("no key is there twice")


def _json_line(text: str, path: Path) -> int:
    return next(_at(text, where) for found, where in _json_paths(text) if found == path)


def _json_paths(text: str) -> Iterator[tuple[Path, int]]:
    """The path of each value, and where its key or the value itself begins.

    The text is JSON, apart from its depth; so the kind of a token says what comes next.
    """
    import json

    steps: list[str | int] = []
    in_object: list[bool] = []
    expects_key = False
    for token in re.finditer(_JSON_TOKENS, text, re.DOTALL):
        match token[0]:
            case "{" | "[":
                if in_object and not in_object[-1]:
                    yield tuple(steps), token.start()
                in_object.append(token[0] == "{")
                steps.append("" if in_object[-1] else 0)
                expects_key = in_object[-1]
            case "}" | "]":
                in_object.pop()
                steps.pop()
            case ",":
                expects_key = in_object[-1]
                if not expects_key:
                    steps[-1] = int(steps[-1]) + 1
            case ":":
                expects_key = False
            case key if expects_key:
                steps[-1] = json.loads(key)
                yield tuple(steps), token.start()
            case _ if in_object and not in_object[-1]:
                yield tuple(steps), token.start()
            case _:
                pass


def _at(text: str, where: int) -> int:
    return text.count("\n", 0, where) + 1


def _long_number(name: str, text: str) -> BadInput:
    """The only value of a right form that Python refuses to read."""
    found = re.search(_LONG_NUMBER, text)
    line = _at(text, found.start() if found else 0)
    return BadInput(f"{name}:{line}: a number has too many digits; give a smaller one")
