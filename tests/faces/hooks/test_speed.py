"""How long the hook before an edit takes, beside a bare start of Python in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.faces.hooks.hosts import edit, shop

__all__ = ["shop"]
TARGET = 6.0
ALLOWED = 9.0
"""What a loaded machine may take; a ratio above this is no noise."""
TURNS = 7


def took(words: list[str], data: bytes, root: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(words, input=data, stdout=subprocess.DEVNULL, cwd=root, check=True)
    return time.perf_counter() - begin


def ratio(root: Path) -> float:
    """The median of both, measured in turns."""
    program = os.path.join(os.path.dirname(sys.executable), "interlock")
    data = json.dumps(edit(root, "src/a.py")).encode()
    hook = [program, "hook", "claude", "PreToolUse"]
    bare = [sys.executable, "-I", "-c", "pass"]
    took(hook, data, root)
    pairs = [(took(bare, b"", root), took(hook, data, root)) for _ in range(TURNS)]
    bares, hooks = (sorted(each) for each in zip(*pairs, strict=True))
    return float(hooks[TURNS // 2] / bares[TURNS // 2])


def test_the_hook_before_an_edit_is_a_few_python_starts(shop: Path) -> None:
    found = ratio(shop)
    if found > ALLOWED:  # once more: another process may have taken the cores
        found = min(found, ratio(shop))
    assert found <= ALLOWED, found


def test_the_hook_imports_no_more_than_an_edit_needs(shop: Path) -> None:
    code = (
        "import sys, io\n"
        "from interlock.faces.cli.main import import_msgspec\n"
        "import_msgspec()\n"
        "from interlock.faces.hooks.main import answered\n"
        "from interlock.faces.hooks.hosts import HOSTS\n"
        "assert not answered(HOSTS['claude'], sys.stdin.buffer.read()).out\n"
        "print('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(edit(shop, "src/a.py")),
        capture_output=True,
        text=True,
        check=True,
        cwd=shop,
    )
    modules = set(done.stdout.split())
    for name in ("asyncio", "subprocess", "logging", "argparse", "inspect", "tomllib", "hashlib"):
        assert name not in modules, name
    for name in ("nouns.tasks.service", "nouns.messages.calls", "faces.cli.command", "faces.mcp"):
        assert f"interlock.{name}" not in modules, name
