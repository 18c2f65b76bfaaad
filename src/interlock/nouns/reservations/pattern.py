r"""Patterns of paths, and whether two of them have a path in common.

A *path* has no wildcard and is that file or folder, from the root of the repository.  A *glob* is
read as in ``.gitignore``:

    ?  *  [a-z]  [!a-z]   one character, any number of them, one of a class; never a ``/``
    **                    as a whole segment: any number of folders
    \\                     the next character is no wildcard
    a glob without ``/``  matches at any depth: ``*.py`` is ``**/*.py``
    a leading ``/``       is the root of the repository
    a trailing ``/``      only what is below the folder

A pattern *covers* what it matches and everything below it, so ``src`` covers ``src/a/b.py``, and
``b/*`` covers ``b/a/a``.  ``!`` at the start, ``..`` and empty segments are refused.

Whether two patterns overlap is decided exactly, as the emptiness of the product of two automata.
The outer ones read segments: a token takes one segment, ``ANY_DEPTH`` any number.  The inner ones
read characters: a piece takes one character of a class, or any number of them.  Both searches are
breadth first, so the first path that is found is a shortest one: the *witness*.  No path has an
empty, ``.`` or ``..`` segment, so the inner search does not end with one of these.

Rejected: to match each pattern against the text of the other, which finds no path for ``src/*.py``
and ``src/a*``; and regular expressions, which cannot be intersected.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from interlock.errors import BadInput, TooLarge
from interlock.nouns.reservations.pattern_text import (
    ANY,
    ANY_DEPTH,
    Piece,
    Ranges,
    Token,
    checked_text,
    intersection,
    read_token,
    shown,
)

DEEPEST = 64
"""The most segments of a pattern."""
INDEXED = 6
"""Literal segments at the start of a pattern by which it is found."""

_MARKED = r"[*?\[\\]|^!"
_PREFERRED = "abcdefghijklmnopqrstuvwxyz0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Characters for witnesses, the best first."""


class Pattern(Struct, frozen=True, gc=False):
    """A pattern that was read: its text, and a token for each segment.

    Everything below a match is covered, too, so the last token is always ``ANY_DEPTH``.
    """

    text: str
    tokens: tuple[Token, ...]
    head: tuple[Token, ...]
    """The tokens before the first ``ANY_DEPTH``."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The literal segments at its start, at most ``INDEXED``, in lower case."""
        found = []
        for token in self.tokens[:INDEXED]:
            if not token.name:
                break
            found.append(token.name.lower())
        return tuple(found)


def escaped(path: str) -> str:
    """The pattern that means this path and nothing else."""
    return re.sub(_MARKED, r"\\\g<0>", path)


@lru_cache(maxsize=16384)
def exact(path: str, *, fold: bool = False) -> Pattern:
    """The pattern of a path that exists, which may have characters that no pattern may have.

    Bytes that are not UTF-8 match what takes any character.
    """
    said = path
    if not path.isascii():
        from unicodedata import normalize  # most paths need none

        said = normalize("NFC", path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    names = (said.lower() if fold else said).split("/")
    if not {"", ".", ".."}.isdisjoint(names):
        return parse(escaped(path), fold=fold)  # which refuses it, or reads ./a
    tokens = tuple([Token(name=name) for name in names])
    return Pattern(escaped(said), (*tokens, ANY_DEPTH), tokens)


def folded(found: Pattern) -> Pattern:
    """A pattern as a file system reads it that ignores case."""
    if any(not token.name for token in found.head) or len(found.tokens) != len(found.head) + 1:
        return parse(found.text, fold=True)
    tokens = tuple([Token(name=token.name.lower()) for token in found.head])
    return Pattern(found.text, (*tokens, ANY_DEPTH), tokens)


@lru_cache(maxsize=16384)
def parse(text: str, *, fold: bool = False) -> Pattern:
    """Read a pattern; ``fold`` for a file system that ignores case."""
    said = checked_text(text)
    rooted, folder = said.startswith("/"), said.endswith("/")
    segments = said.strip("/").split("/")
    tokens = [read_token(segment, text, fold=fold) for segment in segments]
    if len(tokens) > DEEPEST:
        raise TooLarge(f"the pattern {shown(text)} has more than {DEEPEST} segments; shorten it")
    if len(tokens) == 1 and not rooted and not tokens[0].name and tokens[0] is not ANY_DEPTH:
        tokens.insert(0, ANY_DEPTH)
    tokens += [ANY] * ((tokens[-1] is ANY_DEPTH) + folder)
    tokens.append(ANY_DEPTH)
    tokens = list(_without_repeats(tokens))
    found = Pattern(said, tuple(tokens), tuple(tokens[: tokens.index(ANY_DEPTH)]))
    if any(token.pieces and _common(token, ANY, plain=True) is None for token in found.tokens):
        raise BadInput(f"the pattern {shown(text)} matches no path; check its [...]")
    return found


def overlap(one: Pattern, other: Pattern) -> str | None:
    """A path that both patterns cover; None if there is none."""
    if not overlaps(one, other):
        return None
    # A witness in which every ``*`` stands for something reads better: src/a.py, not src/.py.
    return _path(one, other, plain=False) or _path(one, other, plain=True)


def overlaps(one: Pattern, other: Pattern) -> bool:
    """Whether a path exists that both patterns cover.

    Only the tokens before the first ``ANY_DEPTH`` of either one decide: from there on that one
    takes the segments that the other needs, and its own rest fits below that, since both end with
    ``ANY_DEPTH``.
    """
    for mine, theirs in zip(one.head, other.head, strict=False):
        if mine.name and theirs.name:
            if mine.name != theirs.name:
                return False
        elif _common_segment(mine, theirs, plain=True) is None:
            return False
    return True


def _path(one: Pattern, other: Pattern, *, plain: bool) -> str | None:
    """The shortest common path, by a search over pairs of positions."""
    ends = (len(one.tokens) - 1, len(other.tokens) - 1)
    came: dict[tuple[int, int], tuple[tuple[int, int], str] | None] = {(0, 0): None}
    todo = deque([(0, 0)])
    while todo:
        at = todo.popleft()
        if at == ends and came[at] is not None:
            return _walked(came, at)
        for after, name in _steps(one.tokens, other.tokens, at, plain=plain):
            if after not in came:
                came[after] = (at, name)
                # A step without a segment comes first: the path stays a shortest one.
                (todo.append if name else todo.appendleft)(after)
    return None


def _walked(
    came: dict[tuple[int, int], tuple[tuple[int, int], str] | None], at: tuple[int, int]
) -> str | None:
    names = []
    while (step := came[at]) is not None:
        at, name = step
        names.append(name)
    return "/".join(name for name in reversed(names) if name) or None


def _steps(
    mine: tuple[Token, ...], theirs: tuple[Token, ...], at: tuple[int, int], *, plain: bool
) -> Iterator[tuple[tuple[int, int], str]]:
    """Where a pair of positions leads, and the segment that is taken; "" for none."""
    i, j = at
    one, other = mine[i], theirs[j]
    if one is ANY_DEPTH and i < len(mine) - 1:
        yield (i + 1, j), ""
    if other is ANY_DEPTH and j < len(theirs) - 1:
        yield (i, j + 1), ""
    name = _common(one, other, plain=plain)
    if name is not None:
        yield (i + (one is not ANY_DEPTH), j + (other is not ANY_DEPTH)), name


def _common(one: Token, other: Token, *, plain: bool) -> str | None:
    """A segment that both tokens take; None if there is none."""
    if one.name and other.name:
        return one.name if one.name == other.name else None
    return _common_segment(one, other, plain=plain)


@lru_cache(maxsize=65536)
def _common_segment(one: Token, other: Token, *, plain: bool) -> str | None:
    mine, theirs = _pieces(one, plain=plain), _pieces(other, plain=plain)
    start = (0, 0, 0)
    came: dict[tuple[int, int, int], tuple[tuple[int, int, int], str] | None] = {start: None}
    todo = deque([start])
    while todo:
        at = todo.popleft()
        i, j, dots = at
        if i == len(mine) and j == len(theirs) and dots > 2:  # noqa: PLR2004 - not "", "." or ".."
            return _spelled(came, at)
        for after, char in _char_steps(mine, theirs, at):
            if after not in came:
                came[after] = (at, char)
                (todo.append if char else todo.appendleft)(after)
    return None


def _spelled(
    came: dict[tuple[int, int, int], tuple[tuple[int, int, int], str] | None],
    at: tuple[int, int, int],
) -> str:
    chars = []
    while (step := came[at]) is not None:
        at, char = step
        chars.append(char)
    return "".join(reversed(chars))


def _pieces(token: Token, *, plain: bool) -> tuple[Piece, ...]:
    if token is ANY_DEPTH:
        token = ANY
    found = tuple([(((ord(c), ord(c)),), False) for c in token.name]) or token.pieces
    if plain:
        return found
    # Each star takes at least one character here, for a better witness.
    return tuple([part for piece in found for part in _at_least_one(piece)])


def _at_least_one(piece: Piece) -> tuple[Piece, ...]:
    return ((piece[0], False), piece) if piece[1] else (piece,)


def _char_steps(
    mine: tuple[Piece, ...], theirs: tuple[Piece, ...], at: tuple[int, int, int]
) -> Iterator[tuple[tuple[int, int, int], str]]:
    i, j, dots = at
    one = mine[i] if i < len(mine) else None
    other = theirs[j] if j < len(theirs) else None
    if one is not None and one[1]:
        yield (i + 1, j, dots), ""
    if other is not None and other[1]:
        yield (i, j + 1, dots), ""
    if one is None or other is None:
        return
    both = intersection(one[0], other[0])
    after = (i + (not one[1]), j + (not other[1]))
    if (char := _other_than_dot(both)) is not None:
        yield (*after, 3), char
    if _has(both, ord(".")):
        # 0: nothing so far, 1 and 2: so many dots and nothing else, 3: any other text.
        yield (*after, min(dots + 1, 3)), "."


def _has(ranges: Ranges, char: int) -> bool:
    return any(low <= char <= high for low, high in ranges)


def _other_than_dot(ranges: Ranges) -> str | None:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return None if ranges[0][0] == ord(".") else chr(ranges[0][0])
    for char in _PREFERRED:
        if _has(ranges, ord(char)):
            return char
    for low, high in ranges:
        for char_ in range(low, min(high, low + 1) + 1):
            if char_ != ord("."):
                return chr(char_)
    return None


def _without_repeats(tokens: list[Token]) -> Iterator[Token]:
    """The tokens, with one ``ANY_DEPTH`` where several follow each other."""
    before: Token | None = None
    for token in tokens:
        if token is not ANY_DEPTH or before is not ANY_DEPTH:
            yield token
        before = token
