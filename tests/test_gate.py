"""`make test` is about Interlock: what only measures it can fail without holding a change up."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
MEASURES = re.compile(r"\b(?:compare|git_race|load|measure_\w+|merge_speed|size|swarms_\w+)\b")
USES = re.compile(
    r"^\s*(?:from tools\S* import .*|import tools\S*|.*\"tools\" / .*)$", re.MULTILINE
)


def test_tests_of_the_tools_that_measure_are_left_out_of_the_gate() -> None:
    of_tools = [
        path
        for path in TESTS.rglob("test_*.py")
        if any(MEASURES.search(line) for line in USES.findall(path.read_text()))
    ]
    assert len(of_tools) > 3
    for path in of_tools:
        assert "pytestmark = pytest.mark.tools\n" in path.read_text(), path
