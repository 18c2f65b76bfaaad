"""Declarations name functions by module and name: each of them exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import interlock

NOUNS = Path(interlock.__file__).parent / "nouns"
NAMED = re.compile(r'"(interlock(?:\.\w+)+):(\w+)"')


@pytest.mark.parametrize("path", sorted(NOUNS.rglob("*noun.py")), ids=lambda path: path.stem)
def test_every_function_that_a_declaration_names_exists(path: Path) -> None:
    for module, name in NAMED.findall(path.read_text()):
        assert callable(getattr(import_module(module), name)), f"{module}:{name}"
