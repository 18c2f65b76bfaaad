"""Tests that send signals pass wherever they are run from."""

from __future__ import annotations

import subprocess
import sys

LOOK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
START = (
    "import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', sys.argv[1]])"
)


def test_programs_that_tests_start_hear_an_interrupt_also_in_a_background_job() -> None:
    """A shell has its background jobs ignore SIGINT, and every program that they start."""
    words = [sys.executable, "-c", START, LOOK]
    job = ["sh", "-c", 'trap "" INT; exec "$@"', "job"]
    heard = subprocess.run([*job, *words], check=True, capture_output=True, text=True)
    assert heard.stdout == "False\n"
    ignored = subprocess.run([*job, *words[:2], LOOK], check=True, capture_output=True, text=True)
    assert ignored.stdout == "True\n", "the shell does what this test assumes"
