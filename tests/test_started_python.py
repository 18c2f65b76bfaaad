"""Python that Interlock starts: without -P it imports from the working folder, as of a clone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.for_each import for_each

import interlock
from interlock.bench.processes import start_function

SOURCES = Path(interlock.__file__).parent
OUTSIDE = {"-P", "-I"}
"""Options of Python that leave the working folder out of the folders for imports."""


def unguarded(source: str) -> Iterator[int]:
    """The lines that start this interpreter, and let it import from the working folder."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple) and node.elts:
            options = [each.value for each in node.elts[1:2] if isinstance(each, ast.Constant)]
            if ast.unparse(node.elts[0]) == "sys.executable" and OUTSIDE.isdisjoint(options):
                yield node.lineno


@for_each("path", sorted(SOURCES.rglob("*.py")))
def test_every_python_leaves_the_working_folder_out(path: Path) -> None:
    assert list(unguarded(path.read_text())) == []


def test_a_python_that_imports_from_the_working_folder_is_found() -> None:
    for line in ('run([sys.executable, "-m", "interlock"])', "(sys.executable, *words)"):
        assert list(unguarded(line)) == [1], line
    assert list(unguarded('[sys.executable, "-P", "-m", "interlock"]')) == []


def test_a_measurement_in_a_clone_runs_none_of_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interlock.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    with start_function("absent") as process:
        process.communicate()
    assert not (tmp_path / "ran").exists()
