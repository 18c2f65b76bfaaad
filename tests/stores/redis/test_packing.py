"""Requests are packed whole, or not at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import signal
from interlock.store import Check, Log, Put, Range, Txn
from interlock.stores.redis.scripts import commit_arguments, pack, read_arguments

def strike(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, strike)
checks = (Check("k", "at", revision=7),) * 40
txn = Txn(id="txn_1", checks=checks, puts=(Put("k", b"1", 5.0),))
make = {
    "commit": lambda: commit_arguments(txn),
    "read": lambda: read_arguments([Range("a/"), Log()] * 40),
}
struck = 0
while struck < 200:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        words = make[KIND]()
        while True:
            pack(tuple(words))
    except KeyboardInterrupt:
        struck += 1
print(struck)
"""


@pytest.mark.parametrize("kind", ["commit", "read"])
def test_a_signal_that_raises_while_a_request_is_packed_is_only_an_exception(kind: str) -> None:
    """The packer crashes if it has to spell a number then, so it never gets one."""
    program = INTERRUPTED.replace("KIND", repr(kind))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
