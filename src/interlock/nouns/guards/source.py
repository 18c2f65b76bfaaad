"""The text of a definition file, TOML or JSON, and the line of each value in it.

No parser of TOML in the standard library keeps lines.  So the line of a value is found by its path
when an error needs it: the shortest beginning of the file (in lines) that has a value at that path.
A beginning that ends inside of an array, an inline table or a string is closed before it is parsed,
so that the element of a long array has its own line.  A longer beginning has all paths of a shorter
one, so bisection finds the line; it starts where all keys of the path have appeared in the text.

A JSON file is scanned once for the paths of its values; the same scan finds a key that is there
twice, which the parser would not report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct

from interlock.core.safe_text import one_line
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
