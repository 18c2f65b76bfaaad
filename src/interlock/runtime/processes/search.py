"""The helper process that looks for a regular expression in text, for at most a second.

Python cannot stop an expression that explodes, not even in a thread.  So it runs here: a timer of
the kernel ends this process, also if the program that asked is gone by then.

The standard input has the length of the pattern in one line, the pattern, and the text, both in
UTF-8.  Bytes of the text that are not UTF-8 match nothing but a dot or a negated set.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

# Other numbers than those with which an interpreter ends that cannot run this.
FOUND, ABSENT, NOT_A_PATTERN, NO_ANSWER = 40, 41, 42, 43
SECONDS = 1.0

_MEMORY = 1 << 30


def main() -> None:
    """Search, and answer by the exit status; the output says what is wrong with a pattern."""
    length, _, data = sys.stdin.buffer.read().partition(b"\n")
    pattern, text = data[: int(length)], data[int(length) :]
    _limit()
    os._exit(_search(pattern.decode(), text.decode(errors="surrogateescape")))


def _limit() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})  # a caller's thread blocks it
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        pass  # the timer also bounds the memory, less tightly


def _search(pattern: str, text: str) -> int:
    import re
    import warnings

    warnings.simplefilter("ignore")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        os.write(1, str(error).encode(errors="replace"))
        return NOT_A_PATTERN
    except MemoryError:
        return NO_ANSWER
    try:
        return FOUND if compiled.search(text) else ABSENT
    except (MemoryError, RecursionError):
        return NO_ANSWER
