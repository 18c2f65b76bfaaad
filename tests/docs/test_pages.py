"""Every block of the documentation runs, and its output is real; pages.py says how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import LANGUAGES, PORTS, ROOT, blocks, carry_out, matches, ports_for
from tests.for_each import for_each

from interlock import __version__

PAGES = [
    ROOT / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.parent.name not in ("decisions", "reference")
    ),
]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
_WAITS = re.compile(r"\bsleep \d+ *(?:;|&&)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_does_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    carry_out(page.read_text(), tmp_path)


@for_each("page", PAGES, name)
def test_no_block_escapes_and_none_waits_by_sleeping(page: Path) -> None:
    for block in blocks(page.read_text()):
        assert block.language in (*LANGUAGES, "until"), f"line {block.line}: {block.language}"
        assert not _WAITS.search(block.text), f"line {block.line}"


@for_each("page", PAGES, name)
def test_prose_has_one_sentence_per_line(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for line in text.splitlines():
        if not line.startswith("|"):
            bare = re.sub(r"`[^`]*`", "", line)
            assert not re.search(r"[a-z`)][.?!] [A-Z]", bare), line


def test_the_readme_can_be_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_the_readme_and_the_changelog_name_the_version() -> None:
    assert f"version {__version__};" in (ROOT / "README.md").read_text()
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


@for_each("page", HOW_TO, name)
def test_a_how_to_is_40_to_120_lines(page: Path) -> None:
    assert 40 <= len(page.read_text().splitlines()) <= 120


def test_make_demo_is_what_the_pages_run_for_it() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t@\$\(BIN\)/interlock demo$", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("token 3, 15 min", "token 12,   15 min\n"),
        ("ses_01ab alive", "ses_99ffee alive"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("a\n...\nd", "a\nd"),
        ("held by ... for 2 s", "held by ada for 0.1 s"),
        ("", ""),
    ],
)
def test_what_may_differ_matches(shown: str, real: str) -> None:
    assert matches(shown, real)


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("acquired merge", "busy merge"),
        ("expires in 15 min", "expires in 30 s"),
        ("a\n...\nd", "a\nb"),
        ("a", "a\nb"),
        ("", "something"),
        ("something", ""),
    ],
)
def test_what_must_not_differ_does_not_match(shown: str, real: str) -> None:
    assert not matches(shown, real)


def test_a_server_of_a_page_has_a_port_of_its_own(tmp_path: Path) -> None:
    page = "```console\n$ test 6379 -ne $((6000 + 379))\n$ echo redis://host:6379 16379\n"
    carry_out(page + "redis://host:6379 16379\n```\n", tmp_path)
    with ports_for("port 6379, http://host:2380, 16379 and 0.2379") as ports:
        assert set(ports) == {"6379", "2380"} < set(PORTS)


def test_a_word_may_stand_for_any_word() -> None:
    assert matches("hana has it", "finn has it", frozenset({"hana"}))
    assert not matches("hana has it", "finn lost it", frozenset({"hana"}))


def test_a_page_goes_on_with_the_token_that_it_got(tmp_path: Path) -> None:
    got = "$ echo acquired, token 7\nacquired, token 3\n"
    page = f"```console\n{got}$ test '--token 3' = --token' '7\n```"
    carry_out(page, tmp_path)
