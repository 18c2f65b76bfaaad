"""The line of each value of a definition file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import BadInput, TooLarge
from interlock.nouns.guards.source import DefinitionSource, Path, parse

TOML = r'''include = ["x"]  # line 1
[guard.a]
when = [
  {lock_free = "a"},   # a comment with [ and "
  {any = [
     {file_exists = "b]"},
     "other", 'it}s',
     {not = {any = [
        {x = 1},
     ]}},
  ]},
  """
  some [ lines {
  \""" """, {late = 2},
]
max_age = ~~~
60
s~~~

[[pipeline.p.phase]]
name = "one"
[[pipeline.p.phase]]
name = "two"
pre = ["a"]
other.deep = 1
'''.replace("~~~", "'''")
TOML_LINES: list[tuple[Path, int]] = [
    (("include",), 1),
    (("include", 0), 1),
    (("guard",), 2),
    (("guard", "a"), 2),
    (("guard", "a", "when"), 3),
    (("guard", "a", "when", 0), 4),
    (("guard", "a", "when", 0, "lock_free"), 4),
    (("guard", "a", "when", 1), 5),
    (("guard", "a", "when", 1, "any"), 5),
    (("guard", "a", "when", 1, "any", 0, "file_exists"), 6),
    (("guard", "a", "when", 1, "any", 1), 7),
    (("guard", "a", "when", 1, "any", 2), 7),
    (("guard", "a", "when", 1, "any", 3, "not"), 8),
    (("guard", "a", "when", 1, "any", 3, "not", "any", 0, "x"), 9),
    (("guard", "a", "when", 2), 12),
    (("guard", "a", "when", 3, "late"), 14),
    (("guard", "a", "max_age"), 16),
    (("pipeline", "p", "phase", 0), 20),
    (("pipeline", "p", "phase", 0, "name"), 21),
    (("pipeline", "p", "phase", 1), 22),
    (("pipeline", "p", "phase", 1, "pre", 0), 24),
    (("pipeline", "p", "phase", 1, "other", "deep"), 25),
    # what is not there has the line of what contains it
    (("guard", "a", "nothing"), 2),
    (("guard", "a", "when", 7), 3),
    (("nothing",), 1),
    ((), 1),
]


@pytest.mark.parametrize(("path", "line"), TOML_LINES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_value_of_toml_has_its_line(path: Path, line: int, end: str) -> None:
    assert parse("x.toml", TOML.replace("\n", end).encode()).line(path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("guard",), 2),
        (("guard", "a", "when", 0), 4),
        (("guard", "a", "when", 0, 'lo"ck'), 4),
        (("guard", "a", "when", 1, "any", 1), 6),
        (("guard", "a", "when", 1, "any", 2), 7),
        (("guard", "a", "max_age"), 10),
        (("guard", "b"), 2),
        ((), 1),
    ],
)
def test_a_value_of_json_has_its_line(path: Path, line: int) -> None:
    text = r"""{
 "guard": {
  "a": {"when": [
     {"lo\"ck": "a\"}b"},
     {"any": [
        {"x": []}, -2.5e3,
        "c"
     ]}
  ],
  "max_age":
     "60s"}
 }
}"""
    assert parse("x.json", text.encode()).line(path) == line


def test_a_line_is_found_though_a_key_is_written_in_another_way() -> None:
    text = '[guard]\n"\\u007az" = 1\nb = 2\n# zz\nx.zz = 3\n'
    assert parse("x.toml", text.encode()).line(("guard", "zz")) == 2


def test_only_a_line_feed_ends_a_line() -> None:
    text = "# a\x85b\u2028c\x0cd\ne = 1\n".replace("\x0c", "")
    assert parse("x.toml", text.encode()).line(("e",)) == 2


VALUES = st.recursive(
    st.integers(0, 9) | st.booleans() | st.sampled_from(["a", "]", '"', "\\", "x\ny", "# {"]),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abcd"), below, max_size=3)
    ),
    max_leaves=12,
)


def written(
    value: Any, path: Path, lines: list[str], found: dict[Path, int], *, flat: bool
) -> None:
    """Write a value as JSON or TOML, each element of an array on a line of its own."""
    if isinstance(value, list):
        lines[-1] += "["
        for place, each in enumerate(value):
            lines.append("")
            found[*path, place] = len(lines)
            written(each, (*path, place), lines, found, flat=flat)
            lines[-1] += "" if not flat and place == len(value) - 1 else ","
        lines.append("]")
    elif isinstance(value, dict):
        lines[-1] += "{"
        for place, (key, each) in enumerate(value.items()):
            lines[-1] += ", " * bool(place)
            if not flat:
                lines.append("")
            found[*path, key] = len(lines)
            lines[-1] += f"{key} = " if flat else f"{json.dumps(key)}: "
            written(each, (*path, key), lines, found, flat=flat)
        lines[-1] += "}"
    else:
        lines[-1] += json.dumps(value)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_every_value_of_any_toml_has_its_line(values: list[Any]) -> None:
    lines: list[str] = []
    found: dict[Path, int] = {}
    for place, value in enumerate(values):
        lines.append(f"[t.k{place}]")
        found["t", f"k{place}"] = len(lines)
        lines.append("v = ")
        found["t", f"k{place}", "v"] = len(lines)
        written(value, ("t", f"k{place}", "v"), lines, found, flat=True)
    check(parse("x.toml", "\n".join(lines).encode()), found)


@given(VALUES)
def test_every_value_of_any_json_has_its_line(value: Any) -> None:
    lines = ['{"v": ']
    found: dict[Path, int] = {}
    written(value, ("v",), lines, found, flat=False)
    check(parse("x.json", ("\n".join(lines) + "}").encode()), found)


def check(source: DefinitionSource, found: dict[Path, int]) -> None:
    assert {path: source.line(path) for path in found} == found


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.toml", b"a = 1\nb = [\n", "x.toml:2: this is not TOML: "),
        ("x.toml", b"a = 1\na = 2\n", "x.toml:2: this is not TOML: "),
        ("x.toml", b"a = 1\n\n[a]\n", "x.toml:3: this is not TOML: "),
        ("x.toml", b"a = 1\nb = \xff", "x.toml:2: the file is not UTF-8"),
        ("x.toml", b"a = 1\nb = " + b"[" * 9999 + b"\n]", "x.toml:2: values are nested too deeply"),
        ("x.toml", b"a = 1\nb = " + b"1" * 9999, "x.toml:2: a number has too many digits"),
        ("x.json", b'{"a":\n1,}', "x.json:2: this is not JSON: "),
        ("x.json", b"", "x.json:1: this is not JSON: Expecting value"),
        ("x.json", b"[1]", "x.json:1: a definition is an object with guards and pipelines"),
        ("x.json", b'{"a": 1,\n"b": {"a": 2,\n"c": 3, "a": 4}}', "x.json:3: the key 'a' is"),
        ("x.json", b'{\n"a":' + b"[" * 99999 + b"]" * 99999 + b"}", "x.json:2: values are nested"),
        ("x.json", b'{\n"a":' + b"1" * 9999 + b"}", "x.json:2: a number has too many digits"),
        ("x.json", b'{\n"a": "\xff"}', "x.json:2: the file is not UTF-8"),
    ],
)
def test_a_broken_file_is_one_clear_line(name: str, text: bytes, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(name, text)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_file_of_a_mebibyte_is_read_and_a_larger_one_is_refused() -> None:
    text = (b"#" * 1023 + b"\n") * 1024
    assert parse("x.toml", text[:-6] + b"\na = 1").values == {"a": 1}
    with pytest.raises(TooLarge, match=r"x\.toml: the file has more than 1048576 bytes; split it"):
        parse("x.toml", b" " * (1024 * 1024 + 1))


def test_a_mark_of_byte_order_is_no_part_of_the_text() -> None:
    assert parse("x.toml", b"\xef\xbb\xbfa = 1").values == {"a": 1}
    assert parse("x.json", b'\xef\xbb\xbf{"a": 1}').values == {"a": 1}


def test_the_line_is_found_with_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"[guard.g{n}]\nwhen = [\n  {{lock_free = 'a{n}'}},\n]\n" for n in range(500))
    source = parse("x.toml", text.encode())
    attempts = list(counted(monkeypatch, source, ("guard", "g321", "when", 0)))
    assert attempts[-1] == 321 * 4 + 3
    assert len(attempts) <= 8


def counted(monkeypatch: pytest.MonkeyPatch, source: DefinitionSource, path: Path) -> Iterator[int]:
    """The lines of each attempt; then the line that was found."""
    real, lines = tomllib.loads, []

    def loads(text: str) -> dict[str, Any]:
        lines.append(text.count("\n"))
        return real(text)

    monkeypatch.setattr(tomllib, "loads", loads)
    line = source.line(path)
    yield from lines
    yield line
