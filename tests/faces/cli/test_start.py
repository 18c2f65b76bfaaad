"""A command pays only for what it uses."""

from __future__ import annotations

import subprocess
import sys

from tests.faces.shell import Shell

HEAVY = {
    "argparse", "asyncio", "dataclasses", "difflib", "hashlib", "inspect", "json", "logging",
    "multiprocessing", "pathlib", "socket", "subprocess", "tempfile", "tomllib",
}  # fmt: skip

SPY = """
import sys
before = set(sys.modules)
from interlock.faces.cli.command import run
status = run(sys.argv[1:])
print(*sorted(set(sys.modules) - before), file=sys.stderr)
sys.exit(status)
"""


def test_acquiring_a_lock_imports_nothing_heavy(ada: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", _without_site(SPY), "lock", "acquire", "merge"],
        cwd=ada.folder,
        env=ada.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stderr.split())
    assert "interlock.stores.sqlite.store" in imported
    # msgspec takes what typing_extensions, a tool of developers, brings along.
    brought = {"inspect"} if "typing_extensions" in imported else set()
    assert imported & HEAVY - brought == set()
    assert not [name for name in imported if name.endswith((".report", ".logs", ".uploader"))]


def _without_site(script: str) -> str:
    """Site packages may import things of their own accord when Python starts."""
    return f"import sys; sys.path[:] = {sys.path!r}\n{script}"
