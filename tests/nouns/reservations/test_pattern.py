"""Patterns: the rules of ``.gitignore``, and overlaps that are decided exactly."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import BadInput, TooLarge
from interlock.nouns.reservations.conflicts import PatternEntry, PatternIndex
from interlock.nouns.reservations.pattern import escaped, exact, folded, overlap, overlaps, parse
from interlock.nouns.reservations.reservation import ReservedPattern


def common(one: str, other: str, *, fold: bool = False) -> str | None:
    return overlap(parse(one, fold=fold), parse(other, fold=fold))


@pytest.mark.parametrize(
    ("one", "other", "witness"),
    [
        ("src/*.py", "src/a*", "src/a.py"),
        ("src/*.py", "src/*.py", "src/a.py"),
        ("src", "src/a/b.py", "src/a/b.py"),
        ("b/*", "b/a/a", "b/a/a"),
        ("*.py", "src/a/b.py", "src/a/b.py"),
        ("/*.py", "a.py", "a.py"),
        ("src/**/x", "src/x", "src/x"),
        ("**", "a", "a"),
        ("a/**", "a", "a/a"),
        ("src/", "src", "src/a"),
        ("[a-c]x", "[c-e]x", "cx"),
        (r"src/\[id\]/page.tsx", "src/[[]id]/*", "src/[id]/page.tsx"),
        ("größe", "gr*", "größe"),
    ],
)
def test_a_witness_is_a_path_that_both_cover(one: str, other: str, witness: str) -> None:
    assert common(one, other) == witness
    assert common(other, one) == witness


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("src/*.py", "src/*.ts"),
        ("src/a.py", "src/b.py"),
        ("Makefile", "docs/Makefile"),  # a path is that path
        ("/*.py", "src/a.py"),
        ("src/[!a]*", "src/a*"),
        ("a/.?", "a/?."),  # only a/.. would match both, and that is no path
        ("*/test/*.py", "src/a.py"),
        ("Src", "src"),
    ],
)
def test_patterns_without_a_common_path_do_not_overlap(one: str, other: str) -> None:
    assert common(one, other) is None
    assert common(other, one) is None


def test_case_is_ignored_where_the_file_system_does() -> None:
    assert common("SRC/A.py", "src/[a-c].PY", fold=True) == "src/a.py"
    assert common("[A-C]x", "bX", fold=True) == "bx"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("!src", "begins with '!'"),
        ("../x", "leave the repository"),
        ("a/../../b", "leave the repository"),
        ("a//b", "empty or '.' segment"),
        (".", "'.' segment"),
        ("/", "empty"),
        ("a\0b", "control character"),
        ("[a", "without a ']'"),
        ("[[:alpha:]]", "write [a-zA-Z]"),
        ("a\\", "ends with"),
        ("[/]", "without a ']'"),
        ("[b-a]", "matches no path"),
        ("\ud800", "UTF-8"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        parse(text)


def test_a_pattern_has_a_limit() -> None:
    with pytest.raises(TooLarge):
        parse("a" * 1025)
    with pytest.raises(TooLarge):
        parse("/".join("a" * 65))


LETTERS = "ab."
PATHS = [
    "/".join(parts)
    for depth in (1, 2, 3)
    for parts in itertools.product(
        [
            "".join(chars)
            for size in (1, 2, 3)
            for chars in itertools.product(LETTERS, repeat=size)
            if size < 3 or depth == 1
            if "".join(chars) not in (".", "..")
        ],
        repeat=depth,
    )
    if depth < 3 or len("".join(parts)) == 3
]
"""Every short path over a small alphabet."""


def covers(pattern: str, path: str) -> bool:
    """An oracle with regular expressions, as gitignore(5) words it."""
    body = pattern.strip("/")
    anywhere = "/" not in body and re.search(r"[*?\[]", body) and not pattern.startswith("/")
    if anywhere and body != "**":
        body = f"**/{body}"
    regex = ""
    parts = body.split("/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            regex += "[^/]+(/[^/]+)*" if last else "([^/]+/)*"
            continue
        for piece in re.findall(r"\[!?[^\]]+\]|\*+|.", part):
            if piece.startswith("["):
                regex += piece.replace("[!", "[^/")
            else:
                regex += {"*": "[^/]*", "?": "[^/]"}.get(piece[0], re.escape(piece[0]))
        regex += "" if last else "/"
    regex += "/.+" if pattern.endswith("/") else "(/.+)?"
    return re.fullmatch(regex, path) is not None


SEGMENTS = st.lists(
    st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[a.]"]), min_size=1, max_size=3
).map("".join)
GLOBS = st.builds(
    lambda parts, end: "/".join(parts) + end,
    st.lists(st.one_of(SEGMENTS, st.just("**")), min_size=1, max_size=3),
    st.sampled_from(["", "", "", "/"]),
).filter(lambda text: not {".", ".."} & set(text.split("/")))


@given(GLOBS, GLOBS)
def test_an_overlap_is_found_exactly_when_a_path_exists(one: str, other: str) -> None:
    found = common(one, other)
    assert overlaps(parse(one), parse(other)) == (found is not None)
    short = next((path for path in PATHS if covers(one, path) and covers(other, path)), None)
    if short is not None:
        assert found is not None
    if found is not None:
        assert covers(one, found), found
        assert covers(other, found), found
    if found is not None and found in PATHS:
        assert short is not None


def test_an_escaped_path_means_itself() -> None:
    for path in ("src/[id]/page.tsx", "a*b", "a\\b", "!x/y?"):
        escaped_ = escaped(path)
        if not path.startswith("!"):
            assert common(escaped_, escaped_) == path


def index_of(number: int) -> PatternIndex:
    chance = random.Random(7)
    made = []
    for each in range(number):
        folder = f"src/part{chance.randrange(40)}/area{chance.randrange(25)}"
        name = f"file{each}"
        text = chance.choice([f"{folder}/{name}.py", f"{folder}/{name}/*.py", f"{folder}/{name}*"])
        of = ReservedPattern(id=f"rsv_{each}", agent="x", pattern=text, live="", since=0.0)
        made.append(PatternEntry(of, each))
    return PatternIndex(made)


def test_a_path_and_a_glob_are_compared_with_ten_thousand_in_time() -> None:
    """Generous bounds for a loaded machine; ``interlock bench`` has the figures."""
    index = index_of(10_000)
    for text, bound in (("src/part3/area4/other.py", 0.05), ("src/part*/**/*.ts", 0.5)):
        wanted = parse(text)
        best = 9.0
        for _ in range(3):
            begin = time.perf_counter()
            [each for each in index.candidates(wanted) if overlaps(wanted, parse(each.of.pattern))]
            best = min(best, time.perf_counter() - begin)
        assert best < bound, (text, best)


@pytest.mark.parametrize("path", ["!x.py", "!", "a/!x", "*", "[a", "a\\b", "**"])
def test_every_name_can_be_escaped_and_means_itself_alone(path: str) -> None:
    found = parse(escaped(path))
    assert [token.name for token in found.head] == path.split("/")
    assert found == exact(path)


@pytest.mark.parametrize("name", ["a\tb", "x\udcff", "l" * 2000, "!x", "\x7f"])
def test_a_path_that_no_pattern_may_spell_is_covered_by_what_covers_its_folder(name: str) -> None:
    path = exact(f"src/{name}")
    assert overlaps(path, parse("src/*"))
    assert overlaps(folded(path), parse("SRC", fold=True))
    assert not overlaps(path, parse("src/x.py"))
