"""The tool that measures the source runs on it, and finds the way of a call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

SIZE = Path(__file__).parent.parent / "tools" / "size.py"


def run(*words: str) -> list[list[str]]:
    command = [sys.executable, str(SIZE), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_the_parts_add_up() -> None:
    lines: dict[str, int] = {}
    for *part, size, _ in run()[1:]:
        lines[" ".join(part)] = int(size.replace(",", ""))
        if part == ["total"]:
            break
    assert {"core", "runtime", "nouns/tasks", "stores/redis", "clients", "top level"} < set(lines)
    assert lines.pop("total") == sum(lines.values())


def test_a_call_enters_modules_and_frames_below_the_face() -> None:
    _, claim, acquire = run("--calls")
    for name, modules, frames in (claim, acquire):
        assert name in ("tasks.next", "locks.acquire")
        assert int(modules) > 5
        assert int(frames) > 3
