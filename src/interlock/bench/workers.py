"""Talking to processes that were started to compete."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable


def tell(workers: Iterable[subprocess.Popen[bytes]], line: str) -> None:
    """Say this to all of these.

    Not as an argument, which everybody can see: a URL may hold a password.
    """
    for worker in workers:
        assert worker.stdin is not None  # noqa: S101 - it is a pipe
        worker.stdin.write(f"{line}\n".encode())
        worker.stdin.flush()
