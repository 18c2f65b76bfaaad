"""The prose of the project is plain English; tools/plain_english.py has the words to avoid."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import ROOT

IN_1000 = 0.3
"""How many words of the list there may be in 1,000 words of prose."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    place = ROOT / "tools" / "plain_english.py"
    spec = importlib.util.spec_from_file_location("plain_english", place)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # a dataclass looks its module up there
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def counted(tool: ModuleType) -> tuple[dict[str, int], int, Counter[str]]:
    """The limit of each file, the words of all prose, and those of the list in each file."""
    limits = tool.limits()
    return limits, *tool.counts(limits)


def test_no_file_has_more_words_of_the_list_than_its_limit(
    counted: tuple[dict[str, int], int, Counter[str]],
) -> None:
    known, total, found = counted
    above = {place: count for place, count in found.items() if count > known.get(place, 0)}
    assert not above, f"too many words of the list: see tools/plain_english.py {' '.join(above)}"
    assert found.total() * 1000 <= IN_1000 * total


def test_a_limit_falls_with_its_file(
    counted: tuple[dict[str, int], int, Counter[str]],
) -> None:
    known, _, found = counted
    files = [place for place in known if not (ROOT / place).is_dir()]
    above = {place: known[place] for place in files if known[place] > found[place]}
    assert not above, "run: python tools/plain_english.py --write"


def test_code_is_not_prose_and_a_message_is(tool: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`whoever` waits.\n\n```console\n$ whoever\n```\nNobody waits.\n")
    words, found = tool.read(page)
    assert words == 3
    assert [(each.line, each.word) for each in found] == [(6, "Nobody")]
