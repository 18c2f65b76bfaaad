"""Declarations: functions are named, exist, and are not imported; folders are listed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import interlock
from interlock import registry
from interlock.core import keys
from interlock.store import LIVE

NOUNS = Path(interlock.__file__).parent / "nouns"
NAMED = re.compile(r'"(interlock(?:\.\w+)+):(\w+)"')


@pytest.mark.parametrize("path", sorted(NOUNS.rglob("*noun.py")), ids=lambda path: path.stem)
def test_every_function_that_a_declaration_names_exists(path: Path) -> None:
    for module, name in NAMED.findall(path.read_text()):
        assert callable(getattr(import_module(module), name)), f"{module}:{name}"


CARRIED_OUT = re.compile(r"interlock\.nouns\.\w+\.(\w+_service|calls|doctor|health|text|views|why)")
ALL_DECLARATIONS = (
    "import sys; from interlock import registry; registry.names(); print(*sys.modules)"
)


def test_declarations_import_nothing_that_carries_operations_out() -> None:
    done = subprocess.run([sys.executable, "-c", ALL_DECLARATIONS], capture_output=True, check=True)
    imported = done.stdout.decode().split()
    assert "interlock.nouns.tasks.noun" in imported
    assert [name for name in imported if CARRIED_OUT.fullmatch(name)] == []


def test_the_folders_of_all_declared_items_are_listed() -> None:
    declared = {kind.prefix for noun in registry.nouns() for kind in noun.keys}
    assert {f"{prefix.partition('/')[0]}/" for prefix in declared} <= keys.FOLDERS | {LIVE}


def test_every_folder_that_has_a_name_is_listed() -> None:
    named = {each for each in vars(keys).values() if isinstance(each, str) and each.endswith("/")}
    folders = {folder for folder in named if folder.count("/") == 1}
    assert folders - {keys.LIVE, keys.WAKE, keys.ITSELF} == keys.FOLDERS
