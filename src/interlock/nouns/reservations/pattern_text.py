"""The text of a pattern of paths, and the token that each of its segments becomes.

``pattern.py`` says what the wildcards mean.  A token takes one segment of a path: a name, or
*pieces*, which take one character of a class, or any number of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from interlock.errors import BadInput, TooLarge

LONGEST = 1024
"""The most bytes of a pattern."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Characters, as ranges of code points in ascending order."""
Piece: TypeAlias = tuple[Ranges, bool]
"""Characters of a segment, and whether any number of them is taken."""

_SLASH, _LAST = ord("/"), 0x10FFFF
_ANY: Ranges = ((1, _SLASH - 1), (_SLASH + 1, _LAST))
_SPECIAL = frozenset("*?[\\")


class Token(Struct, frozen=True, gc=False):
    """What takes one segment of a path: ``name`` if that is one text, else ``pieces``.

    ``ANY_DEPTH`` takes any number of segments.
    """

    name: str = ""
    pieces: tuple[Piece, ...] = ()


ANY = Token(pieces=((_ANY, True),))
ANY_DEPTH = Token()


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """The characters of both."""
    if one is other or other is _ANY:
        return one
    if one is _ANY:
        return other
    pairs = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return tuple([(low, high) for low, high in pairs if low <= high])


def checked_text(text: str) -> str:
    """The text of a pattern, as it is kept; BadInput or TooLarge with what to do."""
    if not isinstance(text, str):
        raise BadInput(f"a pattern is text, not {type(text).__name__}")
    if not text.strip():
        raise BadInput("the pattern is empty; give a path or a glob, such as 'src/*.py'")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadInput("the pattern is not UTF-8; write it in UTF-8") from None
    if size > LONGEST:
        raise TooLarge(f"the pattern has {size} bytes; {LONGEST} are allowed")
    if text.startswith("!"):
        raise BadInput(
            f"the pattern {shown(text)} begins with '!', which takes nothing back here;"
            " list what you edit, or write '\\!' for a name that begins with it"
        )
    said = text
    if not text.isascii():
        from unicodedata import normalize  # most paths need none

        said = normalize("NFC", text)
    said = said.removeprefix("./")
    if found := re.search(r"[\x00-\x1f\x7f]", said):
        raise BadInput(
            f"the pattern {shown(text)} has a control character (U+{ord(found[0]):04X}); drop it"
        )
    middle = said.strip("/") or said
    segments = middle.split("/")
    if "" in segments or "." in segments:
        raise BadInput(
            f"the pattern {shown(text)} has an empty or '.' segment; write 'src/a.py', and"
            " '**' for everything"
        )
    if ".." in segments:
        raise BadInput(
            f"the pattern {shown(text)} has a '..', which may leave the repository;"
            " write the path from the root of the repository"
        )
    return said


def read_token(segment: str, text: str, *, fold: bool) -> Token:
    """The token of a segment of a pattern."""
    if segment == "**":
        return ANY_DEPTH
    if _SPECIAL.isdisjoint(segment):
        return Token(name=segment.lower() if fold else segment)
    pieces = tuple(_read_pieces(segment, text, fold=fold))
    if all(not many and len(of) == 1 and of[0][0] == of[0][1] for of, many in pieces):
        return Token(name="".join(chr(of[0][0]) for of, _ in pieces))
    return Token(pieces=pieces)


def _read_pieces(segment: str, text: str, *, fold: bool) -> Iterator[Piece]:
    at, starred = 0, False
    while at < len(segment):
        char = segment[at]
        at += 1
        if char == "*":
            if not starred:
                yield _ANY, True
            starred = True
            continue
        starred = False
        if char == "?":
            yield _ANY, False
        elif char == "[":
            ranges, at = _class(segment, at, text, fold=fold)
            yield ranges, False
        else:
            if char == "\\":
                if at == len(segment):
                    raise BadInput(
                        f"the pattern {shown(text)} ends with '\\'; write '\\\\' for one"
                    )
                char = segment[at]
                at += 1
            yield ((ord(_folded(char, fold=fold)),) * 2,), False


def _class(segment: str, at: int, text: str, *, fold: bool) -> tuple[Ranges, int]:
    """The characters of ``[...]``, and where it ends."""
    negated = segment[at : at + 1] in ("!", "^")
    at += negated
    begin, found = at, []
    while True:
        if at >= len(segment):
            raise BadInput(
                f"the pattern {shown(text)} has a '[' without a ']' in the same segment;"
                " write '\\[' for the character"
            )
        if segment[at] == "]" and at > begin:
            break
        if segment[at : at + 2] == "[:":
            raise BadInput(f"the pattern {shown(text)} has a class like [:alpha:]; write [a-zA-Z]")
        low, at = _class_char(segment, at)
        high = low
        if segment[at : at + 1] == "-" and segment[at + 1 : at + 2] not in ("", "]"):
            high, at = _class_char(segment, at + 1)
        found.append((ord(low), ord(high)))
    ranges = [pair for pair in found if pair[0] <= pair[1]]
    if fold:
        ranges = [other for pair in ranges for other in _both_cases(pair)]
    taken = _merged(ranges)
    return intersection(_inverse(taken) if negated else taken, _ANY), at + 1


def _class_char(segment: str, at: int) -> tuple[str, int]:
    if segment[at] == "\\" and at + 1 < len(segment):
        at += 1
    return segment[at], at + 1


def _both_cases(pair: tuple[int, int]) -> list[tuple[int, int]]:
    """A range with the other case of its characters; beyond a thousand, of none."""
    low, high = pair
    chars = [chr(code) for code in range(low, min(high, low + 1000) + 1)]
    both = {each for char in chars for each in (char.lower(), char.upper()) if len(each) == 1}
    return [pair, *[(ord(each), ord(each)) for each in both]]


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _inverse(ranges: Ranges) -> Ranges:
    found, after = [], 1
    for low, high in ranges:
        if low > after:
            found.append((after, low - 1))
        after = max(after, high + 1)
    return (*found, (after, _LAST)) if after <= _LAST else tuple(found)


def _folded(char: str, *, fold: bool) -> str:
    lower = char.lower() if fold else char
    return lower if len(lower) == 1 else char


def shown(text: str) -> str:
    """A pattern in an error."""
    return repr(text if len(text) <= 60 else text[:60] + "...")  # noqa: PLR2004
